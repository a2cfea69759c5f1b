//! Tools against real servers on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hostile;
mod limits;
mod openapi;
mod redirects;
mod retries;
mod server;
mod tls;
