//! The HTTP API of Windlass. [`wire`] has every request and answer.

pub mod wire;
