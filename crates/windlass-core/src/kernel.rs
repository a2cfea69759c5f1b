//! One runtime: its store, clock and executor, what its attempts share, and the runs it drives.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;

use crate::admit::{Keys, Permits};
use crate::call::Attempt;
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::call::execute::Told;
use crate::call::loops::sessions::SessionLoops;
use crate::call::operation::{Operation, Written};
use crate::call::plan::{Place, Scope, asked, plan, resolve};
use crate::call::{Middleware, Reach, ToolCall, ToolRef};
use crate::error::{Error, Result};
use crate::id::{Mint, RunId, WorkerId};
use crate::limits;
use crate::path::Path;
use crate::policy::{Policy, Resolved};
use crate::rest::Rest;
use crate::run::Run;
use crate::run::drive::{Completion, Drive, Root, RunEnd};
use crate::run::keep::Kept;
use crate::run::machine::{Machine, Stop, TakenUp};
use crate::run::record::{Asked, Event, Finished, OpKind, Recorded, Settled};
use crate::run::state::{Ending, Hold};
use crate::runtime::Start;
use crate::session::Sessions;
use crate::spawn::Spawn;
use crate::store::{Claimant, Creation, Store, StoreError};
use crate::time::{Clock, Times};
use crate::tool::projection::Lens;
use crate::tool::spec::Recovery;
use crate::tool::{Effect, Tool, ToolError, Toolbox};
use crate::watchdog::Watchdog;
use crate::worker::Lease;

/// Where a store that failed is tried again, at first and at most.
const RELOAD_DELAYS: (std::time::Duration, std::time::Duration) =
    (std::time::Duration::from_millis(100), std::time::Duration::from_secs(30));

/// Most notes about mail for runs nobody here drives; such a run's mail is read when it is taken up anyway.
const LETTERS_KEPT: usize = 4_096;

pub(crate) struct Kernel {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    /// What runs that are taken up from their journal find their tools in.
    pub(crate) toolbox: Toolbox,
    pub(crate) permits: Arc<Permits>,
    pub(crate) keys: Arc<Keys>,
    /// Keys that runs of an earlier process held, until those runs are driven again.
    pub(crate) kept: Kept,
    pub(crate) connections: Vec<String>,
    /// What governs every call, where neither it nor its tool says otherwise.
    pub(crate) policy: Policy,
    /// Whether that says nothing.
    pub(crate) is_silent: bool,
    /// Whether somebody is there to be asked.
    pub(crate) attended: bool,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    /// The language people are told things in.
    pub(crate) locale: String,
    pub(crate) watchdog: Watchdog,
    pub(crate) mint: Mint,
    /// Who owns the runs this process drives.
    pub(crate) worker: WorkerId,
    pub(crate) lease: Lease,
    /// Exclusivity among the attempts of a session's runs.
    pub(crate) sessions: Sessions,
    /// What sessions were told lately.
    pub(crate) loops: SessionLoops,
    pub(crate) live: Mutex<BTreeMap<RunId, Live>>,
    /// Runs that got mail while nobody here was known to drive them.
    pub(crate) letters: Mutex<BTreeSet<RunId>>,
    /// Runs that will be driven, once it is their turn.
    pub(crate) queued: Mutex<BTreeMap<RunId, Arc<Completion>>>,
    /// Suspended runs: who waits for their end, and when the next one is due.
    pub(crate) rest: Rest,
    /// How long a run only waits before it is suspended.
    pub(crate) suspend_after: std::time::Duration,
    /// How often the store lets go of what it keeps no longer.
    pub(crate) tidy_every: Option<std::time::Duration>,
    pub(crate) reach: Arc<Reach>,
    /// Whether runs are driven here; see [`Config::drives`](crate::Config::drives).
    pub(crate) drives: bool,
    pub(crate) closed: AtomicBool,
    /// Attempts on threads of their own, which may outlive whoever waited for them, and the taking up of their run.
    pub(crate) on_threads: Mutex<Vec<Attempt>>,
    /// Largest artifact that is stored.
    pub(crate) artifact_bytes: u64,
}

/// A run this process drives.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) run: Arc<Run>,
    pub(crate) completion: Arc<Completion>,
}

impl Kernel {
    /// The run, if this process is known to drive it; else a note that there is mail for it, should it turn out to.
    pub(crate) fn notify(&self, run: RunId) -> Option<Live> {
        let known = self.live.lock();
        let live = known.get(&run).cloned();
        if live.is_none() {
            let mut letters = self.letters.lock();
            letters.insert(run);
            // A run that is about to be known is a young one.
            if letters.len() > LETTERS_KEPT {
                letters.pop_first();
            }
        }
        live
    }

    /// Whether a thread that cannot be interrupted is still at an attempt of this operation.
    pub(crate) fn is_on_thread(&self, run: RunId, path: &Path) -> bool {
        let mut attempts = self.on_threads.lock();
        attempts.retain(Attempt::is_on_thread);
        attempts.iter().any(|attempt| attempt.run() == run && attempt.path() == path)
    }

    /// What governs a call of this tool, unless that is [what the tool says by itself](crate::tool::Tool::resolved): most
    /// calls and most runtimes say nothing.
    pub(crate) fn governs(&self, tool: &Tool, call: Option<&Policy>) -> Option<Box<Resolved>> {
        (!self.is_silent || call.is_some()).then(|| Box::new(Resolved::of(&self.policy, tool.spec(), call)))
    }

    fn claimant(&self) -> Claimant {
        Claimant { worker: self.worker, now: self.clock.now() }
    }

    fn base(&self) -> (crate::time::Timestamp, u64) {
        (self.clock.now(), self.clock.ticks())
    }

    fn fresh(self: &Arc<Self>, tool: Arc<str>, how: &Start) -> Result<Arc<Run>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if !self.drives {
            let why = "this runtime drives no runs; start the call instead (`start_with`), for whoever does";
            return Err(Error::Refused(why.to_owned()));
        }
        let base = self.base();
        let id = self.mint.run(base.0);
        let (key, session) = (how.key.clone(), how.session.clone());
        let creation = Creation { tool, at: base.0, worker: self.worker, key, session, ..Creation::default() };
        Ok(Run::new(self.clone(), id, base, (how.session.clone(), false), Machine::create(id, creation)))
    }

    /// A new run of one call, not polled yet. It is no turn.
    pub(crate) fn start_call(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        call: ToolCall,
        how: &Start,
    ) -> Result<(Drive, Lens)> {
        let call = call.bounded();
        let snapshot = toolbox.snapshot();
        let tool = resolve(&snapshot, &call.tool);
        let name = tool.map_or_else(|| call.tool.as_str().into(), |tool| tool.spec().id.shared());
        let lens = Lens::of(tool, &call.args, (call.limits.as_deref(), &self.policy));
        let run = self.fresh(name, how)?;
        let scope = Scope { toolbox: toolbox.clone(), held: None };
        let refused = self.loop_refusals(how.session.as_ref(), &snapshot, [&call]);
        self.loop_asked(how.session.as_ref(), run.id, [&call], &refused);
        let future = match refused.into_iter().next().flatten() {
            Some(error) => {
                let operation = Operation::new(Path::root(), asked(&call, tool), Written::WhenPending);
                CallFuture::refused(run.clone(), operation, error)
            }
            None => plan(&run, &scope, Place::root(), call, tool),
        };
        Ok((Drive::new(run, Root::Call(future)), lens))
    }

    /// A new run of several calls, not polled yet.
    pub(crate) fn start_batch(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        calls: Vec<ToolCall>,
        stop_on_failure: bool,
        how: &Start,
    ) -> Result<(Drive, Vec<Lens>)> {
        if calls.len() > limits::BATCH_CALLS {
            let (count, most) = (calls.len(), limits::BATCH_CALLS);
            return Err(Error::Refused(format!("a batch of {count} calls is too large; the limit is {most}")));
        }
        let run = self.fresh("batch".into(), how)?;
        run.with(|machine| machine.outbox().reserve(calls.len() + 2));
        run.append(&Path::root(), run.now(), Some(batch_asked(calls.len(), stop_on_failure)), Event::Entered);
        let scope = Scope { toolbox: toolbox.clone(), held: None };
        let refused = self.loop_refusals(how.session.as_ref(), &toolbox.snapshot(), &calls);
        self.loop_asked(how.session.as_ref(), run.id, &calls, &refused);
        let mut batch = Batch::new(run.clone(), Path::root(), scope, calls, stop_on_failure);
        for (index, error) in refused.into_iter().enumerate().filter_map(|(index, error)| Some((index, error?))) {
            batch.refuse(index, error);
        }
        let lenses = batch.lenses();
        batch.accept();
        Ok((Drive::new(run, Root::Batch(batch)), lenses))
    }

    /// Polls a run once here and now; only if it has to wait does it become a task of its own.
    pub(crate) async fn drive(self: &Arc<Self>, drive: Drive) -> RunEnd {
        if self.store.commits_at_once() {
            let (live, mut here) = self.here(Box::new(drive));
            let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut here).poll(cx))).await;
            drop(here);
            return match polled {
                Poll::Ready(end) => end,
                Poll::Pending => live.completion.wait().await,
            };
        }
        let mut first = Some(drive);
        let polled = std::future::poll_fn(|cx| Poll::Ready(first.as_mut().map(|drive| drive.poll(cx)))).await;
        match (polled, first) {
            (Some(Poll::Ready(end)), Some(drive)) => {
                self.after(&drive.run, &end);
                end
            }
            (_, Some(drive)) => self.detach(drive).wait().await,
            (_, None) => RunEnd::Elsewhere,
        }
    }

    /// Polls a run once, so that what it does first is done when this returns, and gives it a task of its own.
    async fn detach_polled(self: &Arc<Self>, mut drive: Drive) -> Arc<Completion> {
        let first = std::future::poll_fn(|cx| Poll::Ready(drive.poll(cx))).await;
        let Poll::Ready(end) = first else { return self.detach(drive) };
        self.after(&drive.run, &end);
        let completion = Arc::new(Completion::default());
        completion.complete(end);
        completion
    }

    /// Gives a run a task of its own.
    pub(crate) fn detach(self: &Arc<Self>, drive: Drive) -> Arc<Completion> {
        let driven = self.driven(Box::new(drive));
        let completion = driven.task.completion.clone();
        driven.detach(self);
        completion
    }

    /// A run that whoever waits for it drives, here and now.
    pub(crate) fn here(self: &Arc<Self>, drive: Box<Drive>) -> (Live, Here) {
        drive.run.with(|machine| machine.outbox().known());
        let driven = self.driven(drive);
        let live = Live { run: driven.drive.run.clone(), completion: driven.task.completion.clone() };
        (live, Here { kernel: self.clone(), driven: Some(driven) })
    }

    /// Makes it known that this process drives the run.
    fn driven(self: &Arc<Self>, drive: Box<Drive>) -> Driven {
        let run = drive.run.clone();
        let completion = Arc::new(Completion::default());
        let live = Live { run: run.clone(), completion: completion.clone() };
        let mail = {
            let mut known = self.live.lock();
            known.insert(run.id, live);
            self.letters.lock().remove(&run.id)
        };
        if self.closed.load(Ordering::Acquire) {
            // Shut down meanwhile, by somebody who may not have seen this run among the live ones.
            run.with(Machine::release);
        }
        if mail {
            let run = run.clone();
            self.spawn.spawn(Box::pin(async move { run.look_for_mail().await }));
        }
        let task = DriveTask { driven: Some((self.clone(), run)), completion };
        Driven { drive, task }
    }

    /// What follows the end of driving a run.
    pub(crate) fn after(self: &Arc<Self>, run: &Arc<Run>, end: &RunEnd) {
        let (kernel, id) = (self.clone(), run.id);
        self.kept.forget(id);
        // Whatever follows reads its mailbox anew.
        self.letters.lock().remove(&id);
        match end {
            RunEnd::Unknown(_) if !self.closed.load(Ordering::Acquire) => {
                // Whoever attaches to the run meanwhile waits for what becomes of it.
                self.queued.lock().entry(id).or_default();
                self.spawn.spawn(Box::pin(async move {
                    kernel.reload(id).await;
                    kernel.dequeue(id);
                    // Nobody drives it after all: whoever waits looks for themselves.
                    if !kernel.live.lock().contains_key(&id) {
                        kernel.ended(id, &RunEnd::Elsewhere);
                    }
                }));
            }
            RunEnd::Finished(told) if run.session.is_some() => {
                self.loop_ended(run.session.as_ref(), id, told);
                self.ended(id, end);
                // The next turn of its session may be due.
                self.spawn.spawn(Box::pin(async move { kernel.take_up_due().await }));
            }
            RunEnd::Suspended { wake } => self.after_suspension(run, *wake),
            RunEnd::Continued => self.wake_up_as(id, Some(TakenUp::Woken)),
            RunEnd::Elsewhere if run.has_lapsed() => {
                self.ended(id, end);
                self.try_again_with_a_lease(id);
            }
            RunEnd::Elsewhere => {
                self.ended(id, end);
                self.after_supersession(id);
            }
            _ => self.ended(id, end),
        }
    }

    /// A store that failed decides nothing: the run is taken up again from the journal, once the store answers.
    async fn reload(self: &Arc<Self>, run: RunId) {
        let mut delay = RELOAD_DELAYS.0;
        loop {
            self.clock.sleep(delay).await;
            // Shut down meanwhile, or taken up by somebody who would not wait.
            if self.closed.load(Ordering::Acquire) || self.live.lock().contains_key(&run) {
                return;
            }
            match self.take_up(run, TakenUp::Reloaded).await {
                // Nothing of it was ever recorded, it has ended, or somebody else has it.
                Ok(_)
                | Err(
                    StoreError::NoSuchRun(_)
                    | StoreError::Finished(_)
                    | StoreError::Stale { .. }
                    | StoreError::Leased { .. },
                ) => return,
                Err(error) => tracing::warn!(%run, "the run cannot be taken up yet: {error}"),
            }
            delay = (delay * 2).min(RELOAD_DELAYS.1);
        }
    }

    /// A run's turn has come, or will not.
    pub(crate) fn dequeue(&self, run: RunId) {
        let turn = self.queued.lock().remove(&run);
        if let Some(turn) = turn {
            turn.complete(RunEnd::Elsewhere);
        }
    }

    /// Claims a run and drives it from its journal.
    pub(crate) async fn take_up(self: &Arc<Self>, id: RunId, how: TakenUp) -> std::result::Result<Live, StoreError> {
        let _taking = self.taking(id);
        let claimed = self.store.claim(id, self.claimant()).await?;
        let base = self.base();
        let session = claimed.session.clone();
        let (last, turn, sealed) = (claimed.last, claimed.turn, claimed.sealed.clone());
        let run = Run::new(self.clone(), id, base, (session, turn), Machine::claimed(id, claimed, base.0, how));
        if last != self.worker && last != WorkerId::default() && self.is_owner_bound(&run) {
            return Ok(self.end_as_lost(run).await);
        }
        let scope = Scope { toolbox: self.toolbox.clone(), held: None };
        // Before anything is planned: nobody may see what could not be opened.
        let root = match sealed {
            Some(why) => {
                run.hold(Hold::Sealed { why });
                None
            }
            None => self.root_of(&run, scope),
        };
        let drive = match root {
            _ if run.is_halted() => Drive::stopped(run.clone()),
            Some(root) => Drive::new(run.clone(), root),
            None => {
                let problem = "the journal does not say what the run is".to_owned();
                run.hold(Hold::Undecodable { path: Path::root(), problem });
                Drive::stopped(run.clone())
            }
        };
        let completion = self.detach_polled(drive).await;
        // Mail may have come between the claim and the moment this process was known to drive the run.
        run.look_for_mail().await;
        Ok(Live { run, completion })
    }

    /// Whether the run ends with its owner.
    fn is_owner_bound(&self, run: &Run) -> bool {
        let root = run.standing(&Path::root(), |standing| standing.asked.name.clone());
        let tool = root.and_then(|name| self.toolbox.by_id(&name));
        tool.is_some_and(|tool| tool.spec().guards.recovery == Recovery::OwnerBound)
    }

    /// The owner of a run that is bound to it is gone.
    async fn end_as_lost(self: &Arc<Self>, run: Arc<Run>) -> Live {
        let message = "lost: the run was bound to the process that owned it, and that is gone; start it again if it is \
                       still wanted";
        let result: Recorded = Err(Arc::new(ToolError::unavailable(message)));
        let at = run.now();
        let told = Told { result: result.clone(), at, times: Times::default() };
        run.with(|machine| {
            machine.abandon_below(&Path::root(), at);
            machine.end_around(&Path::root(), &told);
            machine.finish(Ending::Lost, &result)
        });
        run.flush().await;
        // Nobody is told of an end that may not be there.
        let end = match run.with(|machine| machine.stop().cloned()) {
            Some(Stop::Reload(error)) => RunEnd::Unknown(*error),
            Some(_) => RunEnd::Elsewhere,
            None => RunEnd::Finished(vec![told]),
        };
        let completion = Arc::new(Completion::default());
        self.after(&run, &end);
        completion.complete(end);
        Live { run, completion }
    }

    /// Ends a run whose body nobody enters any more, with an outcome from outside.
    pub(crate) async fn finish_by_hand(
        self: &Arc<Self>,
        id: RunId,
        result: Recorded,
        settled: Settled,
    ) -> std::result::Result<Arc<Run>, StoreError> {
        let claimed = self.store.claim(id, self.claimant()).await?;
        let base = self.base();
        let session = claimed.session.clone();
        let turn = claimed.turn;
        let machine = Machine::claimed(id, claimed, base.0, TakenUp::Resumed);
        let run = Run::new(self.clone(), id, base, (session, turn), machine);
        let ending = if result.is_ok() { Ending::Ok } else { Ending::Failed };
        let told = result.clone();
        let settled = Some(Box::new(settled));
        let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled };
        run.append(&Path::root(), base.0, None, Event::Finished(finished));
        run.with(|machine| {
            machine.abandon_below(&Path::root(), base.0);
            machine.finish(ending, &told)
        });
        Ok(run)
    }

    /// What a journal says its run is.
    pub(crate) fn root_of(&self, run: &Arc<Run>, scope: Scope) -> Option<Root> {
        let root = run.standing(&Path::root(), |standing| standing.asked.clone())?;
        match root.kind {
            OpKind::Call => {
                let call = recorded_call(&root);
                let snapshot = scope.toolbox.snapshot();
                let tool = resolve(&snapshot, &call.tool);
                Some(Root::Call(plan(run, &scope, Place::root(), call, tool)))
            }
            OpKind::Batch => {
                let count: u32 = root.name.parse().ok()?;
                let calls: Option<Vec<ToolCall>> = (0..count)
                    .map(|index| {
                        let path = Path::root().child(index);
                        run.standing(&path, |standing| recorded_call(&standing.asked))
                    })
                    .collect();
                let (past, _) = run.with(|machine| machine.ask_past(&Path::root(), &root));
                let stop = root.input.as_ref().is_some_and(|input| input["stop_on_failure"] == true);
                let batch = Batch::new(run.clone(), Path::root(), scope, calls?, stop);
                Some(Root::Batch(past.into_iter().fold(batch, |batch, past| batch.again(&past.spent))))
            }
            _ => None,
        }
    }
}

pub(crate) fn batch_asked(count: usize, stop_on_failure: bool) -> Asked {
    let input = stop_on_failure.then(|| Arc::new(serde_json::json!({"stop_on_failure": true})));
    Asked::operation(OpKind::Batch, count.to_string().into(), input, Effect::Readonly)
}

/// The call a record says was asked for.
fn recorded_call(asked: &Asked) -> ToolCall {
    let args = asked.input.clone().unwrap_or_default();
    let mut call = ToolCall::to(ToolRef::Id(asked.name.clone().into()), args);
    call.id = asked.call_id.clone();
    call.broken = asked.broken.clone();
    call.limits = asked.limits.clone();
    call
}

/// A run that this process is known to drive.
struct Driven {
    /// Large, and handed on more than once.
    drive: Box<Drive>,
    task: DriveTask,
}

impl Driven {
    fn end(self, end: RunEnd) {
        // Nothing of the run is left with whoever drove it by the time anyone is told that it ended.
        drop(self.drive);
        self.task.end(end);
    }

    /// Gives it a task of its own.
    fn detach(mut self, kernel: &Kernel) {
        kernel.spawn.spawn(Box::pin(async move {
            let end = std::future::poll_fn(|cx| self.drive.poll(cx)).await;
            self.end(end);
        }));
    }
}

/// The end of a run, for whoever drives it by waiting for it: no other task has to be made, run and woken. If this is
/// dropped before, the run goes on as a task of its own. It must be polled until then, as everything that others may wait
/// for.
pub(crate) struct Here {
    kernel: Arc<Kernel>,
    driven: Option<Driven>,
}

impl Future for Here {
    type Output = RunEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RunEnd> {
        let Some(driven) = &mut self.driven else { return Poll::Pending };
        let Poll::Ready(end) = driven.drive.poll(cx) else { return Poll::Pending };
        if let Some(driven) = self.driven.take() {
            driven.end(end.clone());
        }
        Poll::Ready(end)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(driven) = self.driven.take() {
            driven.detach(&self.kernel);
        }
    }
}

/// Makes sure that whoever waits for a run is told, even if the executor drops its task.
struct DriveTask {
    driven: Option<(Arc<Kernel>, Arc<Run>)>,
    completion: Arc<Completion>,
}

impl DriveTask {
    fn end(mut self, end: RunEnd) {
        self.let_go(end);
    }

    fn let_go(&mut self, end: RunEnd) {
        let Some((kernel, run)) = self.driven.take() else { return };
        {
            let mut live = kernel.live.lock();
            // A later owner in this process may have taken its place.
            if live.get(&run.id).is_some_and(|live| Arc::ptr_eq(&live.completion, &self.completion)) {
                live.remove(&run.id);
            }
        }
        kernel.after(&run, &end);
        // Whoever is told may open the store again at once.
        drop((kernel, run));
        self.completion.complete(end);
    }
}

impl Drop for DriveTask {
    fn drop(&mut self) {
        self.let_go(RunEnd::Elsewhere);
    }
}
