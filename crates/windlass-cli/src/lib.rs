//! What the `windlass` binary is made of.

pub mod config;
