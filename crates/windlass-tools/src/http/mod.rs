//! HTTP requests as tools. A template has placeholders for arguments, and no argument can affect anything outside of
//! its placeholder. Secrets are named, and read when they are needed. The effect class of a call decides what a missing
//! response means.

mod address;
mod body;
mod exchange;
mod reconcile;
mod request;
mod status;
mod template;

pub use address::Address;
pub(crate) use address::{check_segment, exactly, target_of};
pub(crate) use exchange::{Exchange, exchange};
pub use reconcile::HappenedWhen;
pub use request::{Problem, Request, effect_of};
pub(crate) use request::{header_name, header_value};
pub use template::{BadTemplate, Template};
