//! Tools without Rust: commands, HTTP requests and OpenAPI documents that become tools, and the rules they follow.

pub mod command;
mod encode;
pub mod http;
mod media;
pub mod net;
pub mod openapi;
pub mod process;
pub mod sandbox;
pub mod secret;
pub mod standard;
