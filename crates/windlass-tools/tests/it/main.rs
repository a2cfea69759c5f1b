//! Tools as they really run: commands with their processes, files, sockets and signals; requests to real servers on this machine.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(target_os = "linux")]
mod attacks;
#[cfg(target_os = "linux")]
mod confined;
#[cfg(target_os = "linux")]
mod ends;
#[cfg(target_os = "linux")]
mod hostile;
mod hostile_addresses;
#[cfg(target_os = "linux")]
mod launches;
#[cfg(target_os = "linux")]
mod leftovers;
mod limits;
mod openapi;
#[cfg(target_os = "linux")]
mod reach;
mod redirects;
#[cfg(target_os = "linux")]
mod remains;
#[cfg(target_os = "linux")]
mod results;
mod retries;
#[cfg(target_os = "linux")]
mod secrets;
mod server;
mod tls;
#[cfg(target_os = "linux")]
mod world;
