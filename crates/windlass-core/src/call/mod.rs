//! Calls: from being asked for to having an outcome. One file a stage.

pub(crate) mod approve;
mod attempt;
pub(crate) mod batch;
pub(crate) mod child;
pub(crate) mod commands;
mod doubt;
pub(crate) mod durable;
pub(crate) mod execute;
mod key;
pub(crate) mod loops;
mod middleware;
pub(crate) mod operation;
pub(crate) mod park;
mod parked;
pub(crate) mod plan;
mod prepare;
pub(crate) mod queue;
mod request;
pub(crate) mod rules;
pub(crate) mod running;
mod stopwatch;
pub(crate) mod wait;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

pub use attempt::{Attempt, Call, Cancelled};
pub(crate) use attempt::{Origin, Reach, idempotency_key};
pub use commands::Command;
pub use middleware::{Incoming, Middleware, Outgoing};
pub use prepare::Preparation;
pub use request::{ToolCall, ToolRef, batch_identity};

use crate::id::RunId;
use crate::path::Path;
use crate::time::Times;
use crate::tool::projection::{Lens, Place};
use crate::tool::view::{self, Projection};
use crate::tool::{Output, ToolError};

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run it belongs to.
    pub run: RunId,
    /// Where in the run it stands.
    pub path: Path,
    /// The id the model gave the call.
    pub id: Option<Arc<str>>,
    /// What it returned.
    pub result: Result<Arc<Output>, Arc<ToolError>>,
    /// Where its time went.
    pub times: Times,
    pub(crate) lens: Lens,
}

impl Outcome {
    /// What the model is shown: the value, or what the tool's projector makes of it, or the error as JSON. Text beyond the
    /// tool's output budget is cut, and says how to read on ([`Runtime::read_output`](crate::Runtime::read_output)); `result`
    /// has all of it.
    pub fn for_model(&self) -> Value {
        self.shown().into_owned()
    }

    /// The same without copying what the call returned, where that is what the model is shown.
    pub fn shown(&self) -> Cow<'_, Value> {
        view::shown(self.result.as_deref().map_err(|error| &**error), &self.lens, &self.place())
    }

    /// The same as native content blocks.
    pub fn projection(&self) -> Projection {
        view::projection(self.result.as_deref().map_err(|error| &**error), &self.lens, &self.place())
    }

    fn place(&self) -> Place<'_> {
        Place { run: self.run, path: &self.path }
    }

    /// The output value, or `None` if the call failed.
    pub fn value(&self) -> Option<&Value> {
        self.result.as_ref().ok().map(|output| &output.value)
    }

    /// The error, or `None` if the call succeeded.
    pub fn error(&self) -> Option<&ToolError> {
        self.result.as_ref().err().map(|error| &**error)
    }
}
