//! Middleware: what a program does to every call, before its arguments are checked and before its outcome is told.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::Value;

use super::child::broken_promise;
use super::running::panic_message;
use crate::id::RunId;
use crate::path::Path;
use crate::run::Run;
use crate::tool::{Output, Tool, ToolError, ToolResult, ToolSpec};

/// Sees every call of a runtime. Registered in order: `before` runs in that order, `after` in reverse.
///
/// Both are plain functions: they decide, they do not wait. Work that has to wait belongs into a tool's `prepare` or its
/// body. Neither runs again for a call the journal knows: what they said is in the record.
pub trait Middleware: Send + Sync + 'static {
    /// Before the arguments are checked against the schema. May rewrite them, or answer the call without an attempt; an
    /// error refuses the call. Changes nothing outside: after a crash it may be asked again about a call that did not
    /// get any further.
    fn before(&self, _call: &mut Incoming<'_>) -> ToolResult<()> {
        Ok(())
    }

    /// After the call has its outcome, and before anybody is told. May tell the body something else; the record keeps the
    /// outcome itself beside it. If this fails or panics, the body gets an internal error, and the record still says what
    /// happened. A call that was refused before its attempt does not come here.
    fn after(&self, _call: &mut Outgoing<'_>) -> ToolResult<()> {
        Ok(())
    }
}

/// Which call middleware looks at.
#[derive(Clone, Copy)]
struct About<'a> {
    tool: &'a Tool,
    run: RunId,
    path: &'a Path,
    id: Option<&'a str>,
}

/// A call on its way in; see [`Middleware::before`].
pub struct Incoming<'a> {
    about: About<'a>,
    args: Arc<Value>,
    answer: Option<Output>,
}

impl Incoming<'_> {
    /// The tool's spec.
    pub fn tool(&self) -> &ToolSpec {
        self.about.tool.spec()
    }

    /// The run it belongs to.
    pub fn run(&self) -> RunId {
        self.about.run
    }

    /// Where in the run it stands.
    pub fn path(&self) -> &Path {
        self.about.path
    }

    /// The id the model gave the call, if it did.
    pub fn id(&self) -> Option<&str> {
        self.about.id
    }

    /// The arguments, not checked yet, as earlier middleware left them.
    pub fn args(&self) -> &Value {
        &self.args
    }

    /// Rewrites the arguments. What was asked stays in the record; replay compares that.
    pub fn set_args(&mut self, args: Value) {
        self.args = Arc::new(args);
    }

    /// Answers the call: later middleware, the checks and the body are passed over. The answer must fit the tool's output
    /// schema, as if the body had given it.
    pub fn answer(&mut self, output: impl Into<Output>) {
        self.answer = Some(output.into());
    }
}

/// A call on its way out; see [`Middleware::after`].
pub struct Outgoing<'a> {
    about: About<'a>,
    args: &'a Value,
    result: &'a ToolResult<Output>,
    told: Option<ToolResult<Output>>,
}

impl Outgoing<'_> {
    /// The tool's spec.
    pub fn tool(&self) -> &ToolSpec {
        self.about.tool.spec()
    }

    /// The run it belongs to.
    pub fn run(&self) -> RunId {
        self.about.run
    }

    /// Where in the run it stands.
    pub fn path(&self) -> &Path {
        self.about.path
    }

    /// The id the model gave the call, if it did.
    pub fn id(&self) -> Option<&str> {
        self.about.id
    }

    /// The arguments it was executed with.
    pub fn args(&self) -> &Value {
        self.args
    }

    /// What the body will be told, as things stand.
    pub fn result(&self) -> Result<&Output, &ToolError> {
        self.told.as_ref().unwrap_or(self.result).as_ref()
    }

    /// Tells the body this instead.
    pub fn tell(&mut self, result: ToolResult<Output>) {
        self.told = Some(result);
    }
}

/// What `before` made of a call.
pub(crate) enum Entrance {
    /// It goes on, with these arguments.
    Open(Arc<Value>),
    Answered(Output),
}

/// A call as both directions see it.
pub(crate) struct Passing<'a> {
    pub(crate) run: &'a Run,
    pub(crate) path: &'a Path,
    pub(crate) tool: &'a Tool,
    pub(crate) args: &'a Arc<Value>,
    pub(crate) id: Option<&'a str>,
}

impl<'a> Passing<'a> {
    fn about(&self) -> About<'a> {
        About { tool: self.tool, run: self.run.id, path: self.path, id: self.id }
    }

    pub(crate) fn before(&self) -> ToolResult<Entrance> {
        let mut call = Incoming { about: self.about(), args: self.args.clone(), answer: None };
        for middleware in &self.run.kernel.env.middleware {
            let said = std::panic::catch_unwind(AssertUnwindSafe(|| middleware.before(&mut call)));
            said.unwrap_or_else(|panic| Err(self.panicked(&panic_message(&*panic))))?;
            if let Some(answer) = call.answer {
                return Ok(Entrance::Answered(answer));
            }
        }
        Ok(Entrance::Open(call.args))
    }

    /// What the body is told instead of `result`, if anything: `told` is what the output check says.
    pub(crate) fn after(
        &self,
        result: &ToolResult<Output>,
        told: Option<ToolResult<Output>>,
    ) -> Option<ToolResult<Output>> {
        let middleware = &self.run.kernel.env.middleware;
        if middleware.is_empty() {
            return told;
        }
        let mut call = Outgoing { about: self.about(), args: self.args, result, told };
        for middleware in middleware.iter().rev() {
            let said = std::panic::catch_unwind(AssertUnwindSafe(|| middleware.after(&mut call)));
            let problem = match said {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("middleware failed after the call: {error}"),
                Err(panic) => format!("middleware panicked after the call: {}", panic_message(&*panic)),
            };
            call.told = Some(Err(ToolError::internal(problem)));
        }
        match call.told {
            // The body decodes what it is told: that must keep the tool's promise too.
            Some(Ok(output)) => {
                let caused = result.as_ref().map_or(&[][..], |output| &output.commands);
                if !output.commands.is_empty() && output.commands != caused {
                    let problem = "middleware cannot cause work after the call: return it from the tool";
                    return Some(Err(ToolError::internal(problem)));
                }
                let told = Ok(output);
                Some(broken_promise(self.tool, &told).unwrap_or(told))
            }
            told => told,
        }
    }

    fn panicked(&self, message: &str) -> ToolError {
        let correlation = format!("{}:{}", self.run.id, self.path);
        let name = &self.tool.spec().name;
        tracing::error!(correlation, %name, "middleware panicked before the call: {message}");
        ToolError::Panicked { correlation }
    }
}
