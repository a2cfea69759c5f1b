//! From the kernel's values to those of the API.

mod event;
mod inbox;
mod outcome;
mod run;
mod tool;
mod value;

pub(crate) use event::{activity, cursor, parse_cursor, trace};
pub(crate) use inbox::{Item, ItemId, What, items};
pub(crate) use outcome::{failure, outcome, outcomes, violation};
pub(crate) use run::{comparison, explanation, journal, replay_check, run, state};
pub(crate) use tool::{anthropic, effect_word, openai, tool};
