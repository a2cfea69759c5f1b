//! Runs started by runs: a body starts others, waits for them, signals and cancels them.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::park::{CtxPark, Park};
use super::{Ctx, decode};
use crate::admit::HeldKey;
use crate::call::ToolCall;
use crate::call::park::{ChildRef, ParkPlan, finished};
use crate::call::plan::{NOT_A_ROOT_CALL, asked, resolve, unknown};
use crate::id::RunId;
use crate::path::Path;
use crate::run::children::ChildFate;
use crate::run::outbox::Started;
use crate::run::record::{Asked, Event, OpKind, OpOutcome, Record};
use crate::run::replay::Decision;
use crate::run::state::Blocked;
use crate::store::{Creation, Message, Turn};
use crate::time::{Times, Timestamp};
use crate::tool::spec::Background;
use crate::tool::{Effect, Output, Tool, ToolError, ToolResult, Toolbox};

/// A run that can be awaited: one that was spawned, or [any other](Handle::of). `T` is the type its outcome decodes to.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Handle<T> {
    run: RunId,
    /// The run that spawned it, if the handle comes from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<RunId>,
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
    /// A handle of any run, whichever run or program started it.
    pub fn of(run: RunId) -> Self {
        Self { run, parent: None, turn: false, output: PhantomData }
    }

    /// A turn of the session of the run that started it.
    pub(super) fn of_turn(run: RunId) -> Self {
        Self { run, parent: None, turn: true, output: PhantomData }
    }

    /// Which run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Its end, as part of a [`Ctx::first`]. Losing does not stop the run.
    pub fn park(&self) -> Park<T> {
        let mut park = Park::new(OpKind::Join, self.run.to_string().into(), Blocked::Child { run: self.run });
        park.plan.child = Some(ChildRef { run: self.run, parent: self.parent, turn: self.turn });
        park
    }
}

/// The end of a run; await it. See [`Ctx::join`].
#[must_use = "this waits for nothing until it is awaited: write `ctx.join(…).await?`"]
pub struct Join<'c, T>(CtxPark<'c, T>);

impl<T> Join<'_, T> {
    /// Stops waiting after this time, with a `timed_out` error. The time counts from when the wait began, even across
    /// restarts of the process.
    pub fn within(self, time: Duration) -> Self {
        Self(self.0.within(time))
    }

    /// Cancels the awaited run when this run is cancelled, and returns how it really ended: it may have succeeded all
    /// the same. The body receives its own cancellation in the next operation. Without this, a cancellation ends the
    /// wait at once. The time for cleaning up limits the wait.
    pub fn cancel_with_me(self) -> Self {
        Self(self.0.with_plan(|plan| plan.cancels = true))
    }
}

impl<T: DeserializeOwned + 'static> Future for Join<'_, T> {
    type Output = ToolResult<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// A run to be spawned; await it for its handle. See [`Ctx::spawn`].
#[must_use = "nothing is spawned until this is awaited: write `ctx.spawn(…).await?`"]
pub struct Spawn<'c, T> {
    ctx: &'c mut Ctx,
    /// `None` once it was spawned.
    call: Option<ToolCall<T>>,
    options: SpawnOptions,
}

#[derive(Clone, Copy, Default)]
struct SpawnOptions {
    fate: ChildFate,
    turn: bool,
}

impl<T> Spawn<'_, T> {
    /// Detaches the run: it is not cancelled when this one is.
    pub fn abandon(mut self) -> Self {
        self.options.fate = ChildFate::Abandoned;
        self
    }

    /// Cancels the run when this one ends in any way: with an outcome, with an error, or cancelled. Without this, a run
    /// that fails or succeeds leaves the runs it spawned running. A run that continues as its next generation has not ended.
    pub fn cancel_when_parent_ends(mut self) -> Self {
        self.options.fate = ChildFate::CancelledAtEnd;
        self
    }

    /// Starts it as a turn of this run's session. It waits for the turns before it.
    pub fn turn(mut self) -> Self {
        self.options.turn = true;
        self
    }
}

// Nothing in it is pinned in place.
impl<T> Unpin for Spawn<'_, T> {}

impl<T: DeserializeOwned + 'static> Future for Spawn<'_, T> {
    type Output = ToolResult<Handle<T>>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(call) = this.call.take() else { return Poll::Pending };
        match this.ctx.spawn_now(call.untyped().bounded(), this.options) {
            Some(result) => Poll::Ready(result),
            // The run is held.
            None => Poll::Pending,
        }
    }
}

impl Ctx {
    /// Starts a tool as a run of its own, and continues without waiting for it. The run exists if and only if this
    /// operation is recorded.
    ///
    /// What becomes of it when this run ends:
    ///
    /// | this run | by default | [`abandon`](Spawn::abandon) | [`cancel_when_parent_ends`](Spawn::cancel_when_parent_ends) |
    /// |---|---|---|---|
    /// | succeeds | continues | continues | cancelled |
    /// | fails | continues | continues | cancelled |
    /// | is cancelled | cancelled | continues | cancelled |
    ///
    /// So a body that fails between `spawn` and [`join`](Ctx::join) leaves the child running, or waiting for an answer,
    /// unless it asked for something else.
    pub fn spawn<T: DeserializeOwned + 'static>(&mut self, call: ToolCall<T>) -> Spawn<'_, T> {
        Spawn { ctx: self, call: Some(call), options: SpawnOptions::default() }
    }

    /// Waits for the end of a run and returns its outcome: a run that this one spawned, or any other, by its id. It can
    /// be awaited again. Meanwhile this run costs only a row in the store.
    ///
    /// ```
    /// # use windlass_core::{RunId, ctx::{Ctx, Handle}, tool::ToolResult};
    /// # async fn body(ctx: &mut Ctx, run: RunId) -> ToolResult<String> {
    /// let report: String = ctx.join(&Handle::of(run)).await?;
    /// # Ok(report)
    /// # }
    /// ```
    ///
    /// Besides the run's own error, it fails with the code `no_such_run` if there is no such run, with `run_removed` if
    /// it was purged before its outcome was read, and with `unavailable` if the run waits for the end of this one. The
    /// outcome of a batch is `null`; its calls have outcomes of their own.
    pub fn join<T: DeserializeOwned + 'static>(&mut self, handle: &Handle<T>) -> Join<'_, T> {
        let mut park = handle.park();
        park.plan.held = Some(HeldKey::queues(self.scope.held.as_ref()));
        Join(match self.refuse_join(&park.plan) {
            Some(error) => CtxPark::refused(self, error),
            None => CtxPark::new(self, park),
        })
    }

    /// Why this run would never learn of the end of the child that a park waits for.
    pub(super) fn refuse_join(&self, plan: &ParkPlan) -> Option<ToolError> {
        let ChildRef { run, turn, .. } = plan.child?;
        if turn && self.run.is_turn {
            let session = self.run.session.as_deref().unwrap_or_default();
            return Some(ToolError::failed(format!(
                "run {run} is a turn of session {session}, which waits for this very turn to end; do not wait for it, or \
                 start it without `turn`"
            )));
        }
        None
    }

    /// Sends a signal to another run. Returns an error if that run is finished. A signal that is sent again after a
    /// crash arrives once.
    pub fn signal(&mut self, run: RunId, name: &str, value: &impl Serialize) -> BoxFuture<'_, ToolResult<()>> {
        let value = match serde_json::to_value(value) {
            Ok(value) => Arc::new(value),
            Err(error) => return Box::pin(std::future::ready(Err(ToolError::from(error)))),
        };
        let message = Message::Signal { name: name.into(), value: value.clone() };
        let input = json!({"name": name, "value": value});
        self.send_message(OpKind::Signal, run, input, message)
    }

    /// Cancels another run. Returns an error if that run is finished.
    pub fn cancel_run(&mut self, run: RunId, reason: &str) -> BoxFuture<'_, ToolResult<()>> {
        let by = format!("run {}", self.run.id);
        let message = Message::Cancel { by, reason: reason.to_owned() };
        self.send_message(OpKind::Cancel, run, json!({"reason": reason}), message)
    }

    /// Writes to another run's mailbox in an idempotent step: the mailbox deduplicates the message.
    fn send_message(
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
                    Ok(result) => result,
                    // A body never sees a store failure: the journal is reloaded, and replay decides.
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
    fn spawn_now<T: DeserializeOwned + 'static>(
        &mut self,
        call: ToolCall,
        options: SpawnOptions,
    ) -> Option<ToolResult<Handle<T>>> {
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
                let refused = match &toolbox {
                    Ok(toolbox) => self.refuse_spawn(&path, toolbox, tool.as_deref(), &call, options),
                    Err(missing) => Some(ToolError::unavailable(missing.to_string())),
                };
                self.start_child(&path, own, child, refused, options)
            }
            _ => return None,
        };
        decode(&self.run, &path, &result)
    }

    fn refuse_spawn(
        &self,
        path: &Path,
        toolbox: &Toolbox,
        tool: Option<&Tool>,
        call: &ToolCall,
        options: SpawnOptions,
    ) -> Option<ToolError> {
        if let Some(error) = self.run.cancellation(path, self.run.heeds_cancel(path)) {
            return Some(error);
        }
        if call.start.is_some() {
            return Some(ToolError::failed(NOT_A_ROOT_CALL));
        }
        if options.turn && self.run.session.is_none() {
            return Some(ToolError::failed("only a run in a session can spawn a turn; start this one in a session"));
        }
        refuse_start(toolbox, tool, call)
    }

    fn start_child(
        &mut self,
        path: &Path,
        own: Asked,
        child: Asked,
        refused: Option<ToolError>,
        options: SpawnOptions,
    ) -> crate::run::record::Recorded {
        let at = self.run.now();
        self.passed(at);
        let id = child_id(&self.run, path, at);
        let result = match refused {
            Some(error) => Err(Arc::new(error)),
            None => {
                self.run.kernel.drives.add(id);
                let mut value = json!({"run": id, "parent": self.run.id});
                options.fate.record(&mut value);
                if options.turn {
                    value["turn"] = true.into();
                }
                Ok(Arc::new(Output::value(value)))
            }
        };
        let outcome = OpOutcome { result: result.clone(), at, times: Times::default() };
        let record = Record { asked: Some(own), ..finished(path, &outcome) };
        let start = result.is_ok().then(|| {
            let mut start = started(&self.run, path, child, id, at);
            start.creation.turn = if options.turn { Turn::Queue } else { Turn::No };
            (start, options.fate)
        });
        self.run.with(|machine| machine.spawned(record, start));
        self.run.pump_if_due();
        result
    }
}

/// Why this call cannot become a run of its own.
pub(crate) fn refuse_start(toolbox: &Toolbox, tool: Option<&Tool>, call: &ToolCall) -> Option<ToolError> {
    let Some(tool) = tool else { return Some(unknown(toolbox, &call.tool)) };
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
    let attribution = parent.attribution.as_deref();
    let creation = Creation {
        tool: asked.name.clone(),
        at,
        session: parent.session.clone(),
        principal: attribution.and_then(|attribution| attribution.principal.clone()),
        cause: attribution.and_then(|attribution| attribution.cause.clone()),
        parent: Some(Box::new((parent.id, path.clone()))),
        ..Creation::default()
    };
    let records = vec![Record { path: Path::root(), at, asked: Some(asked), event: Event::Accepted }];
    Started { run, creation, records }
}

/// The id of the run started at `path`. It is the same whenever that is tried again.
pub(crate) fn child_id(parent: &crate::run::Run, path: &Path, at: Timestamp) -> RunId {
    RunId::derived(&crate::call::idempotency_key(parent.id, parent.generation, path), at)
}
