//! Runs among runs: a body starts others, waits for them, signals and cancels them.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::park::{CtxPark, Park};
use super::{Ctx, decode};
use crate::call::ToolCall;
use crate::call::park::{Child, ParkPlan, finished};
use crate::call::plan::{asked, resolve};
use crate::id::RunId;
use crate::path::Path;
use crate::run::outbox::Started;
use crate::run::record::{Asked, Event, OpKind, Record, Told};
use crate::run::replay::Decision;
use crate::run::state::Blocked;
use crate::store::{Creation, Message, Turn};
use crate::time::{Times, Timestamp};
use crate::tool::spec::Background;
use crate::tool::{Effect, Output, Tool, ToolError, ToolResult};

/// A run that was spawned. `T` is what its outcome decodes to.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Handle<T> {
    run: RunId,
    parent: RunId,
    /// Whether it is a turn of the session both belong to.
    #[serde(default)]
    turn: bool,
    #[serde(skip)]
    output: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self { run: self.run, parent: self.parent, turn: self.turn, output: PhantomData }
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.run)
    }
}

impl<T> Handle<T> {
    /// Which run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Its end, as part of a [`Ctx::first`]. Losing does not stop the run.
    pub fn park(&self) -> Park<T> {
        let mut park = Park::new(OpKind::Join, self.run.to_string().into(), Blocked::Child { run: self.run });
        park.plan.child = Some(Child { run: self.run, parent: self.parent, turn: self.turn });
        park
    }
}

/// A run to be spawned; await it for its handle. See [`Ctx::spawn`].
#[must_use = "nothing is spawned until this is awaited"]
pub struct Spawn<'c, T> {
    ctx: &'c mut Ctx,
    call: ToolCall<T>,
    how: How,
}

#[derive(Clone, Copy, Default)]
struct How {
    abandoned: bool,
    turn: bool,
}

impl<T> Spawn<'_, T> {
    /// Leaves the run to itself: it is not cancelled when this one is.
    pub fn abandon(mut self) -> Self {
        self.how.abandoned = true;
        self
    }

    /// Starts it as a turn of this run's session: it waits for the turns before it.
    pub fn turn(mut self) -> Self {
        self.how.turn = true;
        self
    }
}

impl<'c, T: DeserializeOwned + 'static> IntoFuture for Spawn<'c, T> {
    type Output = ToolResult<Handle<T>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { ctx, call, how } = self;
        let spawned = ctx.spawn_now(call.untyped().bounded(), how);
        Box::pin(async move {
            match spawned {
                Some(result) => result,
                None => std::future::pending().await,
            }
        })
    }
}

impl Ctx {
    /// Starts a tool as a run of its own, and goes on without waiting for it. The run is there if and only if this
    /// operation is recorded. It is cancelled when this run is, unless it was [abandoned](Spawn::abandon).
    pub fn spawn<T: DeserializeOwned + 'static>(&mut self, call: ToolCall<T>) -> Spawn<'_, T> {
        Spawn { ctx: self, call, how: How::default() }
    }

    /// Waits for the end of a run that this one spawned, and returns its outcome; again, if it is asked for again in the
    /// same generation. A fork that has the handle of its
    /// original's child has the outcome its original was told, or an error.
    pub fn join<T: DeserializeOwned + 'static>(&mut self, handle: &Handle<T>) -> CtxPark<'_, T> {
        let park = handle.park();
        match self.deaf_to(&park.plan) {
            Some(error) => CtxPark::refused(self, error),
            None => CtxPark::new(self, park),
        }
    }

    /// Why this run would never hear of the end of the child that a park waits for.
    pub(super) fn deaf_to(&self, plan: &ParkPlan) -> Option<ToolError> {
        let Child { run, parent, turn } = plan.child?;
        if parent != self.run.id && !self.run.origins.include(parent) {
            return Some(ToolError::failed(format!(
                "run {run} was spawned by run {parent}, and only that one can wait for it; pass its result on instead of \
                 its handle"
            )));
        }
        if turn && self.run.is_turn {
            let session = self.run.session.as_deref().unwrap_or_default();
            return Some(ToolError::failed(format!(
                "run {run} is a turn of session {session}, which waits for this very turn to end; do not wait for it, or \
                 start it without `turn`"
            )));
        }
        None
    }

    /// Sends a signal to another run. Answered with an error if that run is finished. A signal that is sent again after a
    /// crash arrives once.
    pub fn signal(&mut self, run: RunId, name: &str, value: &impl Serialize) -> BoxFuture<'_, ToolResult<()>> {
        let value = match serde_json::to_value(value) {
            Ok(value) => Arc::new(value),
            Err(error) => return Box::pin(std::future::ready(Err(ToolError::from(error)))),
        };
        let message = Message::Signal { name: name.into(), value: value.clone() };
        let input = json!({"name": name, "value": value});
        self.tell(OpKind::Signal, run, input, message)
    }

    /// Cancels another run. Answered with an error if that run is finished.
    pub fn cancel_run(&mut self, run: RunId, reason: &str) -> BoxFuture<'_, ToolResult<()>> {
        let by = format!("run {}", self.run.id);
        let message = Message::Cancel { by, reason: reason.to_owned() };
        self.tell(OpKind::Cancel, run, json!({"reason": reason}), message)
    }

    /// Writes to another run's mailbox, as an attempt that may be repeated: the mailbox takes it once.
    fn tell(
        &mut self,
        kind: OpKind,
        to: RunId,
        input: serde_json::Value,
        message: Message,
    ) -> BoxFuture<'_, ToolResult<()>> {
        let run = self.run.clone();
        let step = self.step(to.to_string(), move |attempt| {
            let (run, message, dedupe) = (run.clone(), message.clone(), attempt.key());
            async move {
                match run.kernel.write_to(to, message, dedupe.into()).await {
                    Ok(told) => told,
                    // A body never sees that the store failed: the journal is reloaded, and replay decides.
                    Err(error) => {
                        run.failed(error);
                        std::future::pending().await
                    }
                }
            }
        });
        Box::pin(step.idempotent().input(&input).of_kind(kind).into_future())
    }

    /// `None` if the run is held.
    fn spawn_now<T: DeserializeOwned + 'static>(&mut self, call: ToolCall, how: How) -> Option<ToolResult<Handle<T>>> {
        let toolbox = self.scope.toolbox.with_layers(&call.layers);
        let tool = toolbox.as_ref().ok().and_then(|toolbox| resolve(&toolbox.snapshot(), &call.tool).cloned());
        let child = asked(&call, tool.as_ref(), &self.scope.toolbox.layers().and(&call.layers));
        let own = Asked { kind: OpKind::Spawn, effect: Effect::Readonly, ..child.clone() };
        let (path, mut guard) = self.next(OpKind::Spawn, own.name.clone());
        guard.over();
        let result = match self.run.with(|machine| machine.ask(&path, &own)) {
            Decision::Answer { result, at } => {
                self.passed(at);
                result
            }
            Decision::Perform { .. } => {
                let missing = toolbox.err().map(|missing| ToolError::unavailable(missing.to_string()));
                let refused = missing.or_else(|| self.refuse_spawn(tool.as_deref(), &call, how));
                self.start_child(&path, own, child, refused, how)
            }
            _ => return None,
        };
        decode(&self.run, &path, &result)
    }

    fn refuse_spawn(&self, tool: Option<&Tool>, call: &ToolCall, how: How) -> Option<ToolError> {
        if let Some(error) = self.run.cancellation(self.run.heeds_cancel()) {
            return Some(error);
        }
        if how.turn && self.run.session.is_none() {
            return Some(ToolError::failed("only a run in a session can spawn a turn; start this one in a session"));
        }
        refuse_start(tool, call)
    }

    fn start_child(
        &mut self,
        path: &Path,
        own: Asked,
        child: Asked,
        refused: Option<ToolError>,
        how: How,
    ) -> crate::run::record::Recorded {
        let at = self.run.now();
        self.passed(at);
        let id = child_id(&self.run, path, at);
        let result = match refused {
            Some(error) => Err(Arc::new(error)),
            None => {
                let mut value = json!({"run": id, "parent": self.run.id});
                if how.abandoned {
                    value["abandoned"] = true.into();
                }
                if how.turn {
                    value["turn"] = true.into();
                }
                Ok(Arc::new(Output::value(value)))
            }
        };
        let told = Told { result: result.clone(), at, times: Times::default() };
        let record = Record { asked: Some(own), ..finished(path, &told) };
        let start = result.is_ok().then(|| {
            let mut start = started(&self.run, path, child, id, at);
            start.creation.turn = if how.turn { Turn::Queue } else { Turn::No };
            (start, !how.abandoned)
        });
        self.run.with(|machine| machine.spawned(record, start));
        self.run.pump_if_due();
        result
    }
}

/// Why this call cannot become a run of its own.
pub(crate) fn refuse_start(tool: Option<&Tool>, call: &ToolCall) -> Option<ToolError> {
    let Some(tool) = tool else {
        return Some(ToolError::unavailable(format!("there is no tool `{}`", call.tool.as_str())));
    };
    if tool.spec().guards.background == Background::Never {
        let name = &tool.spec().name;
        return Some(ToolError::denied(format!("`{name}` does not run in the background: call it and wait")));
    }
    if let Some(message) = &call.broken {
        return Some(ToolError::invalid("", message.to_string()));
    }
    tool.contract().and_then(|contract| contract.check_arguments(&call.args)).err()
}

pub(crate) fn started(parent: &crate::run::Run, path: &Path, asked: Asked, run: RunId, at: Timestamp) -> Started {
    let creation = Creation {
        tool: asked.name.clone(),
        at,
        session: parent.session.clone(),
        parent: Some(Box::new((parent.id, path.clone()))),
        ..Creation::default()
    };
    let records = vec![Record { path: Path::root(), at, asked: Some(asked), event: Event::Accepted }];
    Started { run, creation, records }
}

/// The id of the run started at `path`: the same whenever that is tried again.
pub(crate) fn child_id(parent: &crate::run::Run, path: &Path, at: Timestamp) -> RunId {
    RunId::derived(&crate::call::idempotency_key(parent.id, parent.generation, path), at)
}
