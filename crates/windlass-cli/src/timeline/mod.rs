//! Draws the timeline of a run: its tree of calls, and how each spent its time. Pure functions from activities to lines of
//! text.
//!
//! `tree` turns activities into rows with spans of time, `axis` maps time to columns, `draw` turns both into lines.

mod axis;
mod draw;
mod text;
mod tree;

pub use draw::draw;
pub(crate) use text::cause;
pub use tree::{Note, Row, Span, SpanKind, Tree};

#[cfg(test)]
mod tests;
