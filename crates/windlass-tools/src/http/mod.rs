//! Requests as tools. A template has places for arguments, and nothing an argument says leaves its place; secrets are named
//! and read when they are needed; what becomes of a request that got no answer follows from the effect class of its call.

mod body;
mod exchange;
mod place;
mod reconcile;
mod request;
mod status;
mod template;

pub(crate) use exchange::{Exchange, exchange};
pub use place::Address;
pub(crate) use place::{check_segment, exactly};
pub use reconcile::HappenedWhen;
pub use request::{Problem, Request, effect_of};
pub(crate) use request::{header_name, header_value};
pub use template::{BadTemplate, Template};
