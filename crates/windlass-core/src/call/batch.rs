//! Several calls at once. Parallel calls overlap. An exclusive call waits for the calls before it and holds back the
//! calls after it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::child::CallFuture;
use super::operation::{Operation, RecordState};
use super::plan::{CallSite, Scope, asked, plan, plan_in, tool_at};
use super::request::ToolCall;
use super::rules::{SessionMode, session_of};
use crate::path::Path;
use crate::run::record::{Asked, Event, OpOutcome, Recorded};
use crate::run::spent::{EarlierTime, SpentTime};
use crate::run::{Awake, Polling, Registration, Run};
use crate::tool::{Effect, Tool, ToolError};

/// What the batch and its calls share.
#[derive(Default)]
struct BatchShared {
    /// Calls that ended, in that order. The guard keeps the run from being suspended until the batch collects them.
    ended: Vec<(usize, OpOutcome, Awake)>,
    /// Calls in doubt, or waiting for an answer, that no longer hold back the calls after them.
    released: Vec<usize>,
    waker: Option<Waker>,
    /// The body dropped the batch, so its calls stop.
    dropped: bool,
}

/// Lets a call tell its batch that it no longer holds back the calls after it.
#[derive(Clone)]
pub(crate) struct Barrier {
    shared: Arc<Mutex<BatchShared>>,
    index: usize,
}

impl Barrier {
    pub(crate) fn is_dropped(&self) -> bool {
        self.shared.lock().dropped
    }

    /// Lets the calls after this one start: its attempt is over, though it has no outcome yet.
    pub(crate) fn release_later_calls(&self) {
        let waker = {
            let mut shared = self.shared.lock();
            shared.released.push(self.index);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct CallSlot {
    call: Option<ToolCall>,
    /// The scope of a call that adds layers. All others use the scope of the batch.
    scope: Option<Box<Scope>>,
    tool: Option<Arc<Tool>>,
    exclusive: bool,
    open: bool,
    outcome: Option<OpOutcome>,
    written: RecordState,
    /// Why the call is not made. Boxed, because it is rare and every call has a slot.
    refused: Option<Box<ToolError>>,
}

pub(crate) struct Batch {
    run: Arc<Run>,
    path: Path,
    scope: Scope,
    slots: Vec<CallSlot>,
    shared: Arc<Mutex<BatchShared>>,
    stop_on_failure: bool,
    /// Whether it was asked for before any operation received a cancellation; see [`Run::heeds_cancel`].
    heeds_cancel: bool,
    /// The ticks when it was asked for, or taken up again. `earlier` is the time that had passed by then.
    asked: u64,
    earlier: EarlierTime,
    /// Whether the calls that have not begun by now wait for others.
    holds_back: bool,
    progress: BatchProgress,
    /// Whether the journal is held back until it names all calls. None of them has left the process.
    corked: bool,
}

#[derive(Default)]
struct BatchProgress {
    next: usize,
    settled: usize,
    open: usize,
    open_exclusive: usize,
    /// How many of the settled calls were sent to the store.
    sent: usize,
    failed: Option<usize>,
}

impl Batch {
    /// Builds a batch. A root batch is restored from the journal alone, so it records every call before anything can be
    /// lost. The calls of other batches are asked for again by their body.
    pub(crate) fn new(run: Arc<Run>, path: Path, scope: Scope, calls: Vec<ToolCall>, stop_on_failure: bool) -> Self {
        let snapshot = scope.toolbox.snapshot();
        let written = if path.is_root() { RecordState::WhenPending } else { RecordState::No };
        let slots = (0u32..)
            .zip(calls)
            .map(|(index, call)| {
                let call = call.bounded();
                let path = path.child(index);
                let (own, tool) = match scope.of_call(&call) {
                    Ok(None) => (None, tool_at(&run, &path, &snapshot, &call).cloned()),
                    Ok(Some(own)) => {
                        let tool = tool_at(&run, &path, &own.toolbox.snapshot(), &call).cloned();
                        (Some(Box::new(own)), tool)
                    }
                    // The call is refused, or held, when its turn comes.
                    Err(_) => (None, None),
                };
                let exclusive = tool.as_ref().is_some_and(|tool| session_of(tool) == SessionMode::Exclusive);
                CallSlot {
                    call: Some(call),
                    scope: own,
                    tool,
                    exclusive,
                    open: false,
                    outcome: None,
                    written,
                    refused: None,
                }
            })
            .collect();
        let slots: Vec<CallSlot> = slots;
        let failed = if stop_on_failure { first_failure(&run, &path, slots.len()) } else { None };
        Self {
            heeds_cancel: run.heeds_cancel(&path),
            asked: run.kernel.env.clock.ticks(),
            earlier: EarlierTime::default(),
            holds_back: false,
            shared: Arc::default(),
            progress: BatchProgress { failed, ..BatchProgress::default() },
            corked: false,
            run,
            path,
            scope,
            slots,
            stop_on_failure,
        }
    }

    /// Continues a batch that an earlier owner began.
    pub(crate) fn again(mut self, spent: &SpentTime) -> Self {
        self.earlier = spent.by(self.run.at(self.asked));
        self
    }

    /// Nanoseconds from the request for the batch to these outcomes.
    pub(crate) fn total(&self, outcomes: &[OpOutcome]) -> u64 {
        let longest = outcomes.iter().map(|outcome| outcome.times.total).max().unwrap_or(0);
        let passed = self.run.kernel.env.clock.ticks().saturating_sub(self.asked);
        self.earlier.total.saturating_add(passed).max(longest)
    }

    /// Records a new batch.
    pub(crate) fn enter(&self, asked: Asked) {
        self.run.append(&self.path, self.run.at(self.asked), Some(asked), Event::Entered);
    }

    /// For a new root batch: makes sure that the journal names every call before it can be lost.
    pub(crate) fn accept(&mut self) {
        let readonly = |slot: &CallSlot| {
            slot.tool.as_ref().is_none_or(|tool| !tool.is_durable() && tool.spec().effect == Effect::Readonly)
        };
        if self.slots.iter().all(readonly) {
            // Readonly attempts do not wait for the store. If none becomes pending, one commit at the end is enough.
            self.corked = true;
            self.run.with(|machine| machine.outbox().cork(true));
        } else {
            self.record_calls();
        }
    }

    fn record_calls(&mut self) {
        // The time of the request: an attempt made at once counts from there, and must not precede its call.
        let (at, layers) = (self.run.at(self.asked), self.scope.toolbox.layers());
        // Calls that were started record themselves when they have to wait.
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(call) = &slot.call else { continue };
            slot.written = RecordState::Accepted;
            let asked = asked(call, slot.tool.as_ref(), &layers.and(&call.layers));
            self.run.append(&self.path.child(index as u32), at, Some(asked), Event::Accepted);
        }
    }

    fn uncork(&mut self) {
        if std::mem::take(&mut self.corked) {
            self.run.with(|machine| machine.outbox().cork(false));
        }
    }

    /// Ready with the outcomes in the order of the calls, once all have one.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Vec<OpOutcome>> {
        loop {
            self.collect();
            while self.progress.next < self.slots.len() && self.may_start() {
                self.start(cx);
                if self.run.is_stopped() {
                    return Poll::Pending;
                }
            }
            self.holds_back = true;
            if self.progress.settled == self.slots.len() {
                self.uncork();
                return Poll::Ready(self.slots.iter_mut().filter_map(|slot| slot.outcome.take()).collect());
            }
            if self.corked {
                self.record_calls();
                self.uncork();
                self.run.pump();
            } else if self.progress.sent < self.progress.settled {
                // A crash while others go on must not lose what has settled, nor the order.
                self.run.pump();
            }
            self.progress.sent = self.progress.settled;
            let mut shared = self.shared.lock();
            if shared.ended.is_empty() && shared.released.is_empty() {
                shared.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }

    fn may_start(&self) -> bool {
        if self.slots[self.progress.next].exclusive {
            self.progress.open == 0
        } else {
            self.progress.open_exclusive == 0
        }
    }

    /// Starts the next call. It is polled once here, and gets a task of its own only if it has to wait.
    fn start(&mut self, cx: &mut Context<'_>) {
        let index = self.progress.next;
        self.progress.next += 1;
        let path = self.path.child(index as u32);
        let slot = &mut self.slots[index];
        let exclusive = slot.exclusive;
        let written = slot.written;
        let Some(call) = slot.call.take() else { return };
        let barrier = Some(Barrier { shared: self.shared.clone(), index });
        let mut future = match self.refusal(index, &path) {
            Some(error) => {
                let layers = self.scope.toolbox.layers().and(&call.layers);
                let asked = asked(&call, self.slots[index].tool.as_ref(), &layers);
                CallFuture::refused(self.run.clone(), Operation::new(path, asked, written), error)
            }
            None => {
                let (slot, site) = (&self.slots[index], CallSite { path, written, barrier });
                match &slot.scope {
                    None if !call.layers.is_empty() => {
                        plan_in(&self.run, &self.scope, &self.scope.toolbox.snapshot(), site, call)
                    }
                    own => plan(&self.run, own.as_deref().unwrap_or(&self.scope), site, call, slot.tool.as_ref()),
                }
            }
        };
        if self.holds_back {
            let waited = self.run.kernel.env.clock.ticks().saturating_sub(self.asked);
            future = future.after(EarlierTime::default().waited(waited));
        }
        self.progress.open += 1;
        self.progress.open_exclusive += usize::from(exclusive);
        self.slots[index].open = true;
        match future.poll(cx) {
            Poll::Ready(outcome) => self.settle(index, outcome),
            Poll::Pending if self.run.is_stopped() => {}
            Poll::Pending => {
                let shared = self.shared.clone();
                let task =
                    CallTask { run: self.run.clone(), future, shared, index, registration: Registration::default() };
                self.run.kernel.env.spawn.spawn(Box::pin(task));
            }
        }
    }

    /// Why the call at `path`, which has not begun, is not made: the batch was cancelled, or stopped by a failure, or
    /// the call is refused.
    fn refusal(&mut self, index: usize, path: &Path) -> Option<ToolError> {
        let refused = self.slots[index].refused.take();
        let culprit = self.progress.failed.filter(|_| self.stop_on_failure);
        let cancelled = self.heeds_cancel && self.run.is_cancelled_at(path);
        if (culprit.is_none() && !cancelled && refused.is_none()) || has_begun(&self.run, path) {
            return None;
        }
        let skipped = |culprit: usize| skipped(culprit, self.slots[culprit].tool.as_deref());
        self.run.cancellation(path, self.heeds_cancel).or_else(|| culprit.map(skipped)).or(refused.map(|error| *error))
    }

    fn collect(&mut self) {
        let (ended, released) = {
            let mut shared = self.shared.lock();
            (std::mem::take(&mut shared.ended), std::mem::take(&mut shared.released))
        };
        ended.into_iter().for_each(|(index, outcome, _awake)| self.settle(index, outcome));
        released.into_iter().for_each(|index| self.close(index));
    }

    fn settle(&mut self, index: usize, outcome: OpOutcome) {
        if outcome.result.is_err() {
            self.progress.failed.get_or_insert(index);
        }
        self.close(index);
        self.progress.settled += 1;
        self.slots[index].outcome = Some(outcome);
    }

    /// The call no longer holds back others.
    fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if std::mem::take(&mut slot.open) {
            self.progress.open -= 1;
            self.progress.open_exclusive -= usize::from(slot.exclusive);
        }
    }

    /// Ends the batch before its calls have ended. Calls without a result end with `outcome`, and doubts among them stay
    /// open.
    pub(crate) fn cut_off(mut self, outcome: &OpOutcome) -> Vec<OpOutcome> {
        self.collect();
        let results = std::mem::take(&mut self.slots).into_iter().enumerate().map(|(index, slot)| {
            slot.outcome.unwrap_or_else(|| {
                self.run.with(|machine| machine.end_around(&self.path.child(index as u32), outcome));
                outcome.clone()
            })
        });
        results.collect()
    }

    /// The calls of a batch that has not begun, with their tools.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&ToolCall, Option<&Arc<Tool>>)> {
        self.slots.iter().filter_map(|slot| Some((slot.call.as_ref()?, slot.tool.as_ref())))
    }

    /// Refuses the call at `index`, which has not begun, unless an earlier owner began it.
    pub(crate) fn refuse(&mut self, index: usize, error: ToolError) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.refused = Some(Box::new(error));
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.uncork();
        // Calls in doubt hold back no others, but they still exist.
        if self.progress.settled < self.progress.next {
            self.shared.lock().dropped = true;
            self.run.wake();
        }
    }
}

/// Whether an earlier owner did anything about the call at `path` beyond accepting it.
pub(crate) fn has_begun(run: &Run, path: &Path) -> bool {
    run.recorded_op(path, |op| op.has_begun()).unwrap_or(false)
}

/// The call whose failure the journal records first: the calls that are skipped after a crash name the same one as those
/// before.
fn first_failure(run: &Run, path: &Path, count: usize) -> Option<usize> {
    let failed = |index: usize| {
        let at = run.recorded_op(&path.child(index as u32), |op| op.failed_at()).flatten()?;
        Some((at, index))
    };
    (0..count).filter_map(failed).min().map(|(_, index)| index)
}

/// How the reason of a skipped call begins.
const SKIPPED: &str = "skipped: call ";

fn skipped(culprit: usize, tool: Option<&Tool>) -> ToolError {
    let name = tool.map_or("unknown tool", |tool| &tool.spec().name);
    ToolError::Cancelled { reason: format!("{SKIPPED}{culprit} (`{name}`) failed, and this batch stops on failure") }
}

/// Whether a call with this outcome was skipped because another call of its batch had failed.
pub(crate) fn was_skipped(result: &Recorded) -> bool {
    matches!(result, Err(error) if matches!(&**error, ToolError::Cancelled { reason } if reason.starts_with(SKIPPED)))
}

/// A pending call in a task of its own.
struct CallTask {
    run: Arc<Run>,
    future: CallFuture,
    shared: Arc<Mutex<BatchShared>>,
    index: usize,
    registration: Registration,
}

impl Future for CallTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.registration.register(&this.run, cx);
        if this.run.is_stopped() || this.shared.lock().dropped {
            return Poll::Ready(());
        }
        let _polling = Polling::new(&this.run);
        let Poll::Ready(outcome) = this.future.poll(cx) else {
            return if this.run.is_stopped() { Poll::Ready(()) } else { Poll::Pending };
        };
        let waker = {
            let mut shared = this.shared.lock();
            let mut awake = Awake::default();
            awake.set(&this.run, true);
            shared.ended.push((this.index, outcome, awake));
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Poll::Ready(())
    }
}
