//! Tools without Rust: requests and documents that become tools, and the rules they live by, each written once.

mod encode;
pub mod http;
pub mod net;
pub mod openapi;
pub mod secret;
