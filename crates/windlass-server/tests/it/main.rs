//! The API by real requests over a real socket. Tests that prove a row of the contract are named after it.

// A test should stop at the first error, also in its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod artifacts;
mod bad_requests;
mod calls;
mod client_limits;
mod client_tools;
mod corruption;
mod events;
mod inbox;
mod late_answers;
mod lists;
mod net;
mod openapi;
mod runs;
mod server;
mod session_files;
mod session_tools;
mod sessions;
mod shutdown;
mod turns;
mod visibility;
mod visibility_matrix;
mod webhook;
mod world;
