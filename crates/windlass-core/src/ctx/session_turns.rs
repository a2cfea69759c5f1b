//! Settings and turns of the session of a durable body, each an operation in the journal.

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::session::{CtxSession, unexpected};
use super::{Handle, runs::refuse_start};
use crate::call::ToolCall;
use crate::call::plan::{NOT_A_ROOT_CALL, asked, resolve};
use crate::store::{SessionAnswer, SessionChange, SessionSettings, SettingsChange, StartTurn};
use crate::tool::{ToolError, ToolResult};
use crate::value::Digest;

impl<'c> CtxSession<'c> {
    /// Its model, by the name it was set to.
    pub fn model(self) -> BoxFuture<'c, ToolResult<Option<String>>> {
        let settings = self.settings();
        Box::pin(async move { Ok(settings.await?.model.map(|model| model.to_string())) })
    }

    /// Its settings.
    pub fn settings(self) -> BoxFuture<'c, ToolResult<SessionSettings>> {
        let read = self.read("settings", Value::Null, |target| {
            Box::pin(async move {
                let found = target.info().await?;
                Ok(json!(found.map(|session| session.settings).unwrap_or_default()))
            })
        });
        Box::pin(async move { Ok(serde_json::from_value(read.await?)?) })
    }

    /// Changes its settings.
    pub fn configure(self, change: SettingsChange) -> BoxFuture<'c, ToolResult<()>> {
        let change = match self.ctx.run.kernel.with_agent_id(&self.ctx.scope.toolbox, change) {
            Ok(change) => change,
            Err(error) => return Box::pin(std::future::ready(Err(ToolError::failed(error.to_string())))),
        };
        let input = serde_json::to_value(&change);
        let write = self.write("configure", input, SessionChange::Settings(change));
        Box::pin(async move { write.await.map(drop) })
    }

    /// Starts a turn of the session, unless it has one with this id: the same id always means the same run. The turn
    /// waits for the turns before it, or is refused, as the session's [`TurnPolicy`](crate::store::TurnPolicy) says: a
    /// refusal is an error with the code `session_busy`, or `session_full` for a session with too many unfinished runs.
    /// It goes on when this run ends, also if this run is cancelled.
    pub fn start_turn<T: 'static>(self, id: &str, call: ToolCall<T>) -> BoxFuture<'c, ToolResult<Handle<T>>> {
        let call = call.untyped().bounded();
        let refuse = |error| -> BoxFuture<'c, ToolResult<Handle<T>>> { Box::pin(std::future::ready(Err(error))) };
        let toolbox = match self.ctx.scope.toolbox.with_layers(&call.layers) {
            Ok(toolbox) => toolbox,
            Err(missing) => return refuse(ToolError::unavailable(missing.to_string())),
        };
        if call.start.is_some() {
            return refuse(ToolError::failed(NOT_A_ROOT_CALL));
        }
        let tool = resolve(&toolbox.snapshot(), &call.tool).cloned();
        if let Some(error) = refuse_start(&toolbox, tool.as_deref(), &call) {
            return refuse(error);
        }
        let asked = asked(&call, tool.as_ref(), &toolbox.layers());
        // The operation has no places for secrets, so arguments that contain one are recorded as their digest.
        let args = match asked.secrets.is_empty() {
            true => (*call.args).clone(),
            false => json!(Digest::of(&call.args).to_string()),
        };
        let input = json!({"turn": id, "tool": asked.name, "args": args});
        // The id of the run follows from the operation, when it is written.
        let start = StartTurn { id: id.into(), run: self.ctx.run.id, asked };
        let write = self.write("start_turn", Ok(input), SessionChange::Start(Box::new(start)));
        Box::pin(async move {
            match write.await? {
                SessionAnswer::Started { run, .. } => Ok(Handle::of_turn(run)),
                answer => Err(unexpected(&answer)),
            }
        })
    }
}
