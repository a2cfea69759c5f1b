//! The binary as people and programs use it: real processes, on files and against servers.

// A test that cannot go on should stop right there, helpers included.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bad_input;
mod calls;
mod care;
mod demo;
mod docs;
mod hostile;
mod http;
mod inbox;
mod killed;
mod runs;
mod serve;
mod tools;
mod watch;
mod world;
