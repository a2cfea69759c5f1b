//! End to end, in one binary. Tests that prove a row of the contract are named after it.

mod architecture;
mod crash;
mod world;
