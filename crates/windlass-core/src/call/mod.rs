//! Calls: from the request to the outcome. One file per stage.

pub(crate) mod approve;
mod attempt;
pub(crate) mod await_end;
pub(crate) mod batch;
pub(crate) mod child;
pub(crate) mod commands;
mod doubt;
pub(crate) mod durable;
pub(crate) mod execute;
mod hidden;
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
mod session_view;
pub(crate) mod shared;
mod stopwatch;
pub(crate) mod wait;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

pub use attempt::{Attempt, Call, Cancelled, idempotency_key};
pub(crate) use attempt::{Origin, Reach};
pub use commands::Command;
pub use middleware::{Incoming, Middleware, Outgoing};
pub use prepare::Preparation;
pub use request::{ToolCall, ToolRef, batch_identity};
pub use session_view::SessionView;

use crate::id::RunId;
use crate::path::Path;
use crate::time::Times;
use crate::tool::projection::{ModelView, OutputUri};
use crate::tool::view::{self, Projection};
use crate::tool::{Output, ToolError};

/// The outcome of a call.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run it belongs to.
    pub run: RunId,
    /// The path of the call in the run.
    pub path: Path,
    /// The id that the model gave the call.
    pub id: Option<Arc<str>>,
    /// What it returned.
    pub result: Result<Arc<Output>, Arc<ToolError>>,
    /// How its time was spent.
    pub times: Times,
    pub(crate) model_view: ModelView,
}

impl Outcome {
    /// What the model is shown: the value, or what the tool's projector makes of it, or the error as JSON. Text beyond
    /// the tool's output budget is cut, with a note how to read on
    /// ([`Runtime::read_output`](crate::Runtime::read_output)); `result` has all of it.
    pub fn for_model(&self) -> Value {
        self.shown().into_owned()
    }

    /// Like [`for_model`](Self::for_model), without copying the output if it is shown as it is.
    pub fn shown(&self) -> Cow<'_, Value> {
        view::shown(self.result.as_deref().map_err(|error| &**error), &self.model_view, &self.uri())
    }

    /// Like [`for_model`](Self::for_model), as native content blocks.
    pub fn projection(&self) -> Projection {
        view::projection(self.result.as_deref().map_err(|error| &**error), &self.model_view, &self.uri())
    }

    fn uri(&self) -> OutputUri<'_> {
        OutputUri { run: self.run, path: &self.path }
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
