//! The binary as people and programs use it: real processes, on files and against servers.

// A test that cannot go on should stop right there, helpers included.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod apart;
mod bad_input;
mod beside;
mod calls;
mod care;
mod demo;
mod docs;
mod full_disk;
mod hostile;
mod http;
mod inbox;
mod killed;
mod openapi;
mod runs;
mod serve;
mod tools;
mod watch;
mod world;
