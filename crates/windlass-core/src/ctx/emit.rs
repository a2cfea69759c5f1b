//! Events of a body, and its next generation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use super::Ctx;
use crate::activity::Happening;
use crate::call::park::finished;
use crate::call::plan::asked;
use crate::call::{ToolCall, ToolRef};
use crate::run::record::{Asked, Event, OpKind, OpOutcome, Record};
use crate::run::replay::Decision;
use crate::time::Times;
use crate::tool::{Effect, Output, ToolError, ToolResult};
use crate::value::size;

impl Ctx {
    /// Emits an event that the tool declared ([`Tool::event`](crate::tool::Tool::event)). Watchers of the run see it
    /// once, however often the body is entered. A value that does not fit the event's schema is refused.
    pub fn emit(&mut self, name: &str, value: &impl Serialize) -> ToolResult<()> {
        let value = serde_json::to_value(value)?;
        size::check_depth(&value, "the event").map_err(ToolError::failed)?;
        self.tool.channels().check_event(&self.tool.spec().name, name, &value)?;
        let asked = Asked::operation(OpKind::Emit, name.into(), Some(Arc::new(value)), Effect::Readonly);
        let (path, mut guard) = self.next(OpKind::Emit, name.into());
        guard.over();
        if let Decision::Perform { .. } = self.run.with(|machine| machine.ask(&path, &asked)) {
            let outcome =
                OpOutcome { result: Ok(Arc::new(Output::default())), at: self.run.now(), times: Times::default() };
            self.run.with(|machine| machine.append(Record { asked: Some(asked), ..finished(&path, &outcome) }));
            self.run.pump_if_due();
        }
        // Nothing is awaited here, so only this error stops a body whose run is no longer driven. What the body does
        // with the error is not recorded.
        if self.run.is_halted() {
            return Err(ToolError::unavailable("this process no longer drives the run"));
        }
        Ok(())
    }

    /// Reports progress to the clients that [watch](crate::Runtime::watch) the run now. Not stored, and not repeated
    /// while recorded operations are answered.
    pub fn progress(&self, message: &str) {
        self.say(|| Happening::Progress { message: message.to_owned() });
    }

    /// Logs a message, also to the clients that watch the run now. Not stored, and not repeated while recorded
    /// operations are answered.
    pub fn log(&self, message: &str) {
        if self.say(|| Happening::Logged { message: message.to_owned() }) {
            tracing::info!(run = %self.run.id, path = %self.path, "{message}");
        }
    }

    /// Reports to watchers, unless the journal has a record for the next operation: then the report was made when that
    /// was performed. Returns whether it did.
    fn say(&self, what: impl FnOnce() -> Happening) -> bool {
        let next = self.path.child(self.frame.next.load(Ordering::Acquire));
        let fresh = self.run.recorded_op(&next, |_| ()).is_none();
        if fresh {
            self.run.kernel.reach.watchers.send_live(self.run.id, self.run.session.as_ref(), &self.path, what);
        }
        fresh
    }

    /// Ends this generation of the run and continues with other arguments and a fresh journal, under the same id. For
    /// bodies that run for ever, because a journal is bounded. Mail that was not received yet stays. Only the body at
    /// the root of a run can do this, and not once the run is cancelled. Returns only if it cannot continue.
    pub fn continue_as<T>(&mut self, args: Value) -> BoxFuture<'_, ToolResult<T>> {
        Box::pin(async move {
            if !self.path.is_root() {
                let why = "only the body at the root of a run can continue as its next generation; return to it first";
                return Err(ToolError::failed(why));
            }
            // The next generation would not know about the cancellation.
            if let Some(error) = self.run.cancellation(&self.path, true) {
                return Err(error);
            }
            size::check_depth(&args, "the arguments of the next generation").map_err(ToolError::failed)?;
            self.tool.contract()?.check_arguments(&args)?;
            let call = ToolCall::<Value>::to(ToolRef::Id(self.tool.spec().id.clone()), args);
            let asked = asked(&call, Some(&self.tool), &self.scope.toolbox.layers());
            // A generation begins when nothing of the one before it is in flight.
            self.frame.set_busy(true);
            self.run.flush().await;
            let cancelled = self.run.with(|machine| {
                if let Some(error) = machine.cancellation(&self.path) {
                    return Some(error);
                }
                let generation = machine.generation() + 1;
                let (children, cancelled_at_end) = machine.children();
                let event = Event::Continued { generation, children, cancelled_at_end };
                let at = self.run.now();
                machine.continue_as(Record { path: crate::path::Path::root(), at, asked: Some(asked), event });
                None
            });
            match cancelled {
                Some(error) => {
                    self.frame.set_busy(false);
                    Err(error)
                }
                // The run stops here, and its next generation is entered from the start.
                None => std::future::pending().await,
            }
        })
    }
}
