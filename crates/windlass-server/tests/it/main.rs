//! The API by real requests over a real socket. Tests that prove a row of the contract are named after it.

// A test that cannot go on should stop right there, helpers included.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod artifacts;
mod bounds;
mod calls;
mod client_tools;
mod damage;
mod description;
mod events;
mod house;
mod inbox;
mod late;
mod limits;
mod lists;
mod net;
mod runs;
mod stopping;
mod webhook;
mod world;
