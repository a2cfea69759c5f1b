//! A run as a picture: who called whom, and where the time went. Pure functions from what happened to lines of text.
//!
//! `tree` turns activities into rows with spans of time, `axis` turns time into columns, `draw` turns both into
//! lines.

mod axis;
mod draw;
mod tree;
mod words;

pub use draw::draw;
pub use tree::{Note, Phase, Row, Span, Tree};
pub(crate) use words::cause;

#[cfg(test)]
mod tests;
