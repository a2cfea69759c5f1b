//! End to end, in one binary. Tests that prove a row of the contract are named after it.

mod architecture;
mod attempts;
mod bad_input;
mod calls;
mod crash;
mod doubts;
mod golden;
mod holds;
mod kill;
mod owners;
mod soak;
mod threads;
mod world;
