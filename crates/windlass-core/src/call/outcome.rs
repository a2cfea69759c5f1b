//! Outcomes of calls.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::id::RunId;
use crate::path::Path;
use crate::run::secrets::Places;
use crate::time::Times;
use crate::tool::projection::{ModelView, OutputUri};
use crate::tool::view::{self, Projection};
use crate::tool::{Output, Tool, ToolError};
use crate::value::Metadata;

/// The outcome of a call.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run it belongs to.
    pub run: RunId,
    /// The path of the call in the run.
    pub path: Path,
    /// The id that the model gave the call.
    pub id: Option<Arc<str>>,
    /// The call: its tool and its arguments.
    pub call: OutcomeCall,
    /// What it returned.
    pub result: Result<Arc<Output>, Arc<ToolError>>,
    /// How its time was spent.
    pub times: Times,
    pub(crate) model_view: ModelView,
}

/// The call that an outcome belongs to.
#[derive(Clone)]
pub struct OutcomeCall {
    /// The id of the tool; the name as called if no tool has it.
    pub tool: Arc<str>,
    /// The name by which the tool was called.
    pub name: Arc<str>,
    /// The arguments as asked.
    pub args: Arc<Value>,
    /// What the provider's metadata was when the call was made, byte for byte.
    pub metadata: Option<Metadata>,
    /// The arguments that replaced those asked for, if middleware or the tool's `prepare` did that.
    pub(crate) rewritten: Option<Arc<Value>>,
    /// Knows which arguments are secret.
    pub(crate) found: Option<Arc<Tool>>,
    /// Where the arguments as asked and as executed contained secrets when they were recorded with their tool.
    pub(crate) secrets: Option<(Places, Places)>,
}

impl OutcomeCall {
    /// The arguments as executed: after middleware and the tool's `prepare`.
    pub fn executed(&self) -> &Arc<Value> {
        self.rewritten.as_ref().unwrap_or(&self.args)
    }

    /// The arguments as asked, with secrets hidden. `None` if there was no such tool: all of them may be secret.
    pub fn shown_args(&self) -> Option<Value> {
        self.shown(&self.args, |secrets| &secrets.0)
    }

    /// The arguments as executed, with secrets hidden; `None` if they are the ones asked for.
    pub fn shown_executed(&self) -> Option<Value> {
        self.shown(self.rewritten.as_ref()?, |secrets| &secrets.1)
    }

    /// Hides what is secret by the tool's schema now, and what was secret when it was recorded.
    fn shown(&self, args: &Value, places: impl Fn(&(Places, Places)) -> &Places) -> Option<Value> {
        let mut shown = match &self.found {
            Some(tool) => tool.without_secrets(args)?,
            None => self.secrets.as_ref().map(|_| args.clone())?,
        };
        self.secrets.iter().for_each(|secrets| places(secrets).hide(&mut shown));
        Some(shown)
    }
}

/// Without the arguments, which may contain secrets.
impl fmt::Debug for OutcomeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tool, name, metadata, .. } = self;
        f.debug_struct("OutcomeCall").field("tool", tool).field("name", name).field("metadata", metadata).finish()
    }
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
