//! Conversion of the kernel's values to those of the API.

mod blocked;
mod event;
mod inbox;
mod outcome;
mod run;
mod tool;
mod value;

pub(crate) use blocked::{explanation, moves};
pub(crate) use event::{activity, cursor, parse_cursor, trace};
pub(crate) use inbox::{Item, ItemCause, ItemId, items};
pub(crate) use outcome::{failure, outcome, outcomes, violation};
pub(crate) use run::{comparison, journal, replay_check, run, state};
pub(crate) use tool::{anthropic, effect_name, failed_source, openai, tool};
