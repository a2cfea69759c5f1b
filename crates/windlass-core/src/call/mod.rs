//! Calls: from the request to the outcome. One file per stage.

pub(crate) mod approve;
mod attempt;
pub(crate) mod await_end;
pub(crate) mod await_run;
pub(crate) mod batch;
pub(crate) mod child;
pub(crate) mod commands;
pub(crate) mod connect;
mod doubt;
pub(crate) mod durable;
pub(crate) mod execute;
mod file_edits;
pub(crate) mod hidden;
pub(crate) mod identity;
mod key;
pub(crate) mod loops;
mod middleware;
pub(crate) mod operation;
mod outcome;
pub(crate) mod park;
mod parked;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod queue;
mod request;
pub(crate) mod rules;
pub(crate) mod running;
mod secrets_used;
mod session_view;
pub(crate) mod shared;
mod stopwatch;
mod target;
pub(crate) mod wait;

pub use attempt::{Attempt, Call, Cancelled, idempotency_key};
pub(crate) use attempt::{Origin, Reach};
pub use commands::Command;
pub use file_edits::{EditWriter, FileEdits, StagedEdits, UnmadeEdit};
pub use identity::batch_identity;
pub(crate) use middleware::{BeforeOutcome, MiddlewareCall};
pub use middleware::{Incoming, Middleware, Outgoing};
pub use outcome::{Outcome, OutcomeCall};
pub use prepare::Preparation;
pub use request::{ToolCall, ToolRef};
pub use session_view::SessionView;

pub use crate::value::Metadata;
