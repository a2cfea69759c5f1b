//! Middleware: what a program does with every call, before its arguments are checked and before its outcome is
//! returned.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::Value;

use super::child::broken_promise;
use super::running::panic_message;
use crate::attribution::Attribution;
use crate::id::RunId;
use crate::path::Path;
use crate::run::Run;
use crate::tool::{Output, Tool, ToolError, ToolResult, ToolSpec};

/// Sees every call of a runtime. Registered in order: `before` runs in that order, `after` in reverse.
///
/// Both are plain functions: they decide and do not wait. Work that has to wait belongs in a tool's `prepare` or its
/// body. Neither runs again for a call that the journal records: their result is in the record.
pub trait Middleware: Send + Sync + 'static {
    /// Runs before the arguments are checked against the schema. It may rewrite them, or answer the call without an
    /// attempt; an error refuses the call. It must not change anything outside: after a crash it may be called again
    /// for a call that did not get any further, and a dry run calls it for a call that is not made.
    fn before(&self, _call: &mut Incoming<'_>) -> ToolResult<()> {
        Ok(())
    }

    /// Runs after the call has its outcome, and before the body receives it. It may tell the body something else; the
    /// record keeps the outcome itself beside it. If this fails or panics, the body gets an internal error, and the
    /// record still says what happened. It is not called for a call that was refused before its attempt.
    fn after(&self, _call: &mut Outgoing<'_>) -> ToolResult<()> {
        Ok(())
    }
}

/// The call that middleware looks at.
#[derive(Clone, Copy)]
struct CallInfo<'a> {
    tool: &'a Tool,
    run: RunId,
    attribution: Option<&'a Attribution>,
    path: &'a Path,
    id: Option<&'a str>,
    session: Option<&'a str>,
}

impl<'a> CallInfo<'a> {
    fn principal(&self) -> Option<&'a str> {
        self.attribution?.principal.as_deref()
    }

    fn cause(&self) -> Option<&'a str> {
        self.attribution?.cause.as_deref()
    }
}

/// A call on its way in; see [`Middleware::before`].
pub struct Incoming<'a> {
    info: CallInfo<'a>,
    args: Arc<Value>,
    answer: Option<Output>,
}

impl Incoming<'_> {
    /// The tool's spec.
    pub fn tool(&self) -> &ToolSpec {
        self.info.tool.spec()
    }

    /// The run it belongs to. In a dry run, which has none, all bytes of the id are zero.
    pub fn run(&self) -> RunId {
        self.info.run
    }

    /// Who the run acts for, if it says so.
    pub fn principal(&self) -> Option<&str> {
        self.info.principal()
    }

    /// What caused the run, as given, if it says so.
    pub fn cause(&self) -> Option<&str> {
        self.info.cause()
    }

    /// The path of the call in the run.
    pub fn path(&self) -> &Path {
        self.info.path
    }

    /// The id that the model gave the call, if any.
    pub fn id(&self) -> Option<&str> {
        self.info.id
    }

    /// The name of the session it belongs to.
    pub fn session(&self) -> Option<&str> {
        self.info.session
    }

    /// The arguments as earlier middleware left them. They are not checked yet.
    pub fn args(&self) -> &Value {
        &self.args
    }

    /// Rewrites the arguments. The record keeps the original arguments, and replay compares those.
    pub fn set_args(&mut self, args: Value) {
        self.args = Arc::new(args);
    }

    /// Answers the call. Later middleware, the checks and the body are skipped. The answer must fit the tool's output
    /// schema, as if the body had returned it.
    pub fn answer(&mut self, output: impl Into<Output>) {
        self.answer = Some(output.into());
    }
}

/// A call on its way out; see [`Middleware::after`].
pub struct Outgoing<'a> {
    info: CallInfo<'a>,
    args: &'a Value,
    result: &'a ToolResult<Output>,
    replacement: Option<ToolResult<Output>>,
}

impl Outgoing<'_> {
    /// The tool's spec.
    pub fn tool(&self) -> &ToolSpec {
        self.info.tool.spec()
    }

    /// The run it belongs to.
    pub fn run(&self) -> RunId {
        self.info.run
    }

    /// Who the run acts for, if it says so.
    pub fn principal(&self) -> Option<&str> {
        self.info.principal()
    }

    /// What caused the run, as given, if it says so.
    pub fn cause(&self) -> Option<&str> {
        self.info.cause()
    }

    /// The path of the call in the run.
    pub fn path(&self) -> &Path {
        self.info.path
    }

    /// The id that the model gave the call, if any.
    pub fn id(&self) -> Option<&str> {
        self.info.id
    }

    /// The name of the session it belongs to.
    pub fn session(&self) -> Option<&str> {
        self.info.session
    }

    /// The arguments it was executed with.
    pub fn args(&self) -> &Value {
        self.args
    }

    /// What the body will be told, after the middleware so far.
    pub fn result(&self) -> Result<&Output, &ToolError> {
        self.replacement.as_ref().unwrap_or(self.result).as_ref()
    }

    /// Tells the body this instead.
    pub fn tell(&mut self, result: ToolResult<Output>) {
        self.replacement = Some(result);
    }
}

/// The result of `before`.
pub(crate) enum BeforeOutcome {
    /// The call continues, with these arguments.
    Open(Arc<Value>),
    Answered(Output),
}

/// A call as both directions see it.
pub(crate) struct MiddlewareCall<'a> {
    pub(crate) middleware: &'a [Arc<dyn Middleware>],
    pub(crate) run: RunId,
    pub(crate) attribution: Option<&'a Attribution>,
    pub(crate) path: &'a Path,
    pub(crate) tool: &'a Tool,
    pub(crate) args: &'a Arc<Value>,
    pub(crate) id: Option<&'a str>,
    pub(crate) session: Option<&'a str>,
}

impl<'a> MiddlewareCall<'a> {
    pub(crate) fn in_run(
        run: &'a Run,
        path: &'a Path,
        tool: &'a Tool,
        args: &'a Arc<Value>,
        id: Option<&'a str>,
    ) -> Self {
        let (middleware, attribution) = (&*run.kernel.env.middleware, run.attribution.as_deref());
        let session = run.session.as_deref();
        Self { middleware, run: run.id, attribution, path, tool, args, id, session }
    }

    fn info(&self) -> CallInfo<'a> {
        let Self { run, attribution, path, tool, id, session, .. } = *self;
        CallInfo { tool, run, attribution, path, id, session }
    }

    pub(crate) fn before(&self) -> ToolResult<BeforeOutcome> {
        let mut call = Incoming { info: self.info(), args: self.args.clone(), answer: None };
        for middleware in self.middleware {
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| middleware.before(&mut call)));
            result.unwrap_or_else(|panic| Err(self.panicked(&panic_message(&*panic))))?;
            if let Some(answer) = call.answer {
                return Ok(BeforeOutcome::Answered(answer));
            }
        }
        Ok(BeforeOutcome::Open(call.args))
    }

    /// What the body is told instead of `result`, if anything. `replacement` is the result of the output check.
    pub(crate) fn after(
        &self,
        result: &ToolResult<Output>,
        replacement: Option<ToolResult<Output>>,
    ) -> Option<ToolResult<Output>> {
        let middleware = self.middleware;
        if middleware.is_empty() {
            return replacement;
        }
        let mut call = Outgoing { info: self.info(), args: self.args, result, replacement };
        for middleware in middleware.iter().rev() {
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| middleware.after(&mut call)));
            let problem = match result {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("middleware failed after the call: {error}"),
                Err(panic) => format!("middleware panicked after the call: {}", panic_message(&*panic)),
            };
            call.replacement = Some(Err(ToolError::internal(problem)));
        }
        match call.replacement {
            // The body decodes what it is told, so that must fit the tool's schema too.
            Some(Ok(output)) => {
                let caused = result.as_ref().map_or(&[][..], |output| &output.commands);
                if !output.commands.is_empty() && output.commands != caused {
                    let problem = "middleware cannot add commands after the call; return them from the tool";
                    return Some(Err(ToolError::internal(problem)));
                }
                let replacement = Ok(output);
                Some(broken_promise(self.tool, &replacement).unwrap_or(replacement))
            }
            replacement => replacement,
        }
    }

    fn panicked(&self, message: &str) -> ToolError {
        let correlation = format!("{}:{}", self.run, self.path);
        let name = &self.tool.spec().name;
        tracing::error!(correlation, %name, "middleware panicked before the call: {message}");
        ToolError::Panicked { correlation }
    }
}
