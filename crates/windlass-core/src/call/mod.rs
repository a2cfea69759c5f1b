//! Calls: from being asked for to having an outcome. One file a stage.

mod attempt;
pub(crate) mod batch;
pub(crate) mod child;
pub(crate) mod commands;
mod doubt;
pub(crate) mod durable;
pub(crate) mod execute;
pub(crate) mod park;
mod parked;
pub(crate) mod plan;
pub(crate) mod queue;
mod request;
pub(crate) mod rules;
pub(crate) mod running;
pub(crate) mod wait;

use std::sync::Arc;

use serde_json::Value;

pub(crate) use attempt::Origin;
pub(crate) use attempt::idempotency_key;
pub use attempt::{Attempt, Call, Cancelled};
pub use commands::Command;
pub use request::{ToolCall, ToolRef, batch_identity};

use crate::id::RunId;
use crate::path::Path;
use crate::time::Times;
use crate::tool::{Output, ToolError, view};

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
    pub(crate) open_world: bool,
}

impl Outcome {
    /// What the model is shown: the value, or the error as JSON.
    pub fn for_model(&self) -> Value {
        view::for_model(self.result.as_deref().map_err(|error| &**error), self.open_world)
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
