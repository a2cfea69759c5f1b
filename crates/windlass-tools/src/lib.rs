//! Tools without Rust: programs that become tools, and the rules they live by, each written once.

pub mod command;
pub mod process;
pub mod sandbox;
