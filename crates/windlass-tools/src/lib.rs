//! Tools without Rust: programs, requests and documents that become tools, and the rules they live by, each written once.

pub mod command;
mod encode;
pub mod http;
pub mod net;
pub mod openapi;
pub mod process;
pub mod sandbox;
pub mod secret;
