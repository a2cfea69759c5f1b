//! Tools as they really run: commands with their processes, files, sockets and signals; requests to servers on this
//! machine.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(target_os = "linux")]
mod attacks;
#[cfg(target_os = "linux")]
mod cleanup;
#[cfg(target_os = "linux")]
mod confined;
#[cfg(target_os = "linux")]
mod hostile;
mod hostile_addresses;
#[cfg(target_os = "linux")]
mod leftovers;
mod limits;
mod openapi;
#[cfg(target_os = "linux")]
mod other_processes;
mod redirects;
#[cfg(target_os = "linux")]
mod results;
mod retries;
#[cfg(target_os = "linux")]
mod secrets;
mod server;
#[cfg(target_os = "linux")]
mod session_files;
mod standard;
#[cfg(target_os = "linux")]
mod start_failures;
#[cfg(target_os = "linux")]
mod termination;
mod tls;
#[cfg(target_os = "linux")]
mod world;
