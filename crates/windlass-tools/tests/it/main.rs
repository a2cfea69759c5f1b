//! Commands as they really run: processes, files, sockets, signals.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod confined;
mod ends;
mod hostile;
mod leftovers;
mod results;
mod secrets;
mod world;
