//! End to end, in one binary. Tests that prove a row of the contract are named after it.

// A test that cannot go on should stop right there, helpers included.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod approval;
mod architecture;
mod attempts;
mod bad_input;
mod calls;
mod cpu;
mod crash;
mod crash_parks;
mod crash_runs;
mod declared;
mod doubts;
mod explain;
mod fork_crash;
mod forks;
mod golden;
mod holds;
mod kill;
mod log;
mod loops;
mod mayhem;
mod middleware;
mod owners;
mod parked;
mod parks;
mod policy;
mod prepare;
mod projection;
mod promise;
mod properties;
mod regressions;
mod replay_check;
mod runs;
mod shaky;
mod soak;
mod stuck;
mod threads;
mod transfer;
mod watch;
mod workers;
mod world;
