//! Tests of the binary: real processes, on files and with servers.

// A failed helper should stop its test at once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod attribution;
mod bad_input;
mod calls;
mod demo;
mod docs;
mod files;
mod full_disk;
mod hostile;
mod http;
mod inbox;
mod killed;
mod kinds;
mod maintenance;
mod openapi;
mod outputs;
mod protected_files;
mod runs;
mod second_process;
mod serve;
mod sessions;
mod tools;
mod watch;
mod without_server;
mod world;
