//! Taking up runs: claiming them from the store and driving them from their journals. At most one task of a process
//! takes up a run at a time. The [`roster`] decides which, and keeps the requests that arrive meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::attribution::Attribution;
use crate::call::ToolCall;
use crate::call::batch::Batch;
use crate::call::loops;
use crate::call::plan::{CallSite, Scope, plan, resolve};
use crate::driver::DrivenRun;
use crate::id::{RunId, WorkerId};
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::roster::{self, RequestAnswer, RunStage, TakeUpCause};
use crate::run::drive::{Completion, Drive, Root, RunEnd};
use crate::run::machine::{Machine, TakenUp};
use crate::run::record::{Event, Finished, OpKind, OpOutcome, Recorded, Settled};
use crate::run::state::{Ending, Hold, RunState};
use crate::run::{Belongs, Run};
use crate::scope::{is_owner_bound, recorded_call};
use crate::store::{Claimed, KeyPlace, Message, StoreError};
use crate::time::Times;
use crate::tool::{LiveTools, ToolError};

/// First and longest delay before a run is tried again after the store failed. The first is short, so that a run
/// continues soon after a full disk has space again.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), limits::STORE_RETRY);

/// The warning about a run that is not driven because the store fails.
const NOT_TAKEN_UP: &str = "the run cannot be taken up yet";

/// The result of the first try to take up a run.
type FirstTry = Completion<Result<Option<DrivenRun>, StoreError>>;

/// Answers the caller that waits for the first try, even if the executor drops the task.
struct Reply(Option<Arc<FirstTry>>);

impl Reply {
    fn send(&mut self, answer: impl FnOnce() -> Result<Option<DrivenRun>, StoreError>) {
        if let Some(reply) = self.0.take() {
            reply.complete(answer());
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(|| Err(StoreError::Unavailable("the executor was shut down".to_owned())));
    }
}

impl Kernel {
    /// Something was written for the run. A run that is driven here reads its mail; otherwise the store is asked for
    /// due runs.
    pub(crate) fn nudge(self: &Arc<Self>, run: RunId) {
        match self.roster.driven(run) {
            Some(driven) => self.env.spawn.spawn(Box::pin(async move { driven.run.look_for_mail().await })),
            None => self.look_for_due(),
        }
    }

    /// Like [`nudge`](Self::nudge), but a run that is driven here has its mail when this returns.
    pub(crate) async fn notify(self: &Arc<Self>, run: RunId) {
        match self.roster.driven(run) {
            Some(driven) => driven.run.look_for_mail().await,
            None => self.look_for_due(),
        }
    }

    /// Takes up the run in a new task, unless it is driven here.
    pub(crate) fn take_up_for(self: &Arc<Self>, run: RunId, cause: TakeUpCause) {
        match self.request(run, cause) {
            Some(RequestAnswer::Driven(driven)) => driven.run.wake(),
            Some(RequestAnswer::Granted) => self.start_taking_up(run, cause),
            Some(RequestAnswer::Noted) | None => {}
        }
    }

    /// Like [`take_up_for`](Self::take_up_for), but returns after the first try, or at once if another task takes up
    /// the run. An error says why the first try failed.
    pub(crate) async fn take_up(
        self: &Arc<Self>,
        run: RunId,
        cause: TakeUpCause,
    ) -> Result<Option<DrivenRun>, StoreError> {
        match self.request(run, cause) {
            Some(RequestAnswer::Driven(driven)) => Ok(Some(driven)),
            Some(RequestAnswer::Granted) => self.first_try(run, cause).await,
            Some(RequestAnswer::Noted) | None => Ok(None),
        }
    }

    /// Takes up a run at a person's request, and returns what came of the first try.
    pub(crate) async fn resume(self: &Arc<Self>, run: RunId) -> Result<Option<DrivenRun>, StoreError> {
        match self.granted(run).await {
            Some(driven) => Ok(Some(driven)),
            None => self.first_try(run, TakeUpCause::Person).await,
        }
    }

    /// Waits until the caller may take up the run. Returns the run instead if it is driven here.
    async fn granted(&self, run: RunId) -> Option<DrivenRun> {
        loop {
            match self.roster.grant(run) {
                Ok(()) => return None,
                Err(RunStage::Driven(driven)) => return Some(driven),
                Err(RunStage::Queued(settled) | RunStage::TakingUp(settled)) => drop(settled.wait().await),
                Err(RunStage::NotDriven) => {}
            }
        }
    }

    /// Runs in a task of its own, so that a caller that is dropped halfway does not leave behind a run that is claimed
    /// but not driven.
    async fn first_try(self: &Arc<Self>, run: RunId, cause: TakeUpCause) -> Result<Option<DrivenRun>, StoreError> {
        let first = Arc::new(FirstTry::default());
        self.start_taking_up_with(run, cause, Reply(Some(first.clone())));
        first.wait().await
    }

    /// `None` if this runtime does not drive the run.
    fn request(&self, run: RunId, cause: TakeUpCause) -> Option<RequestAnswer<DrivenRun>> {
        (self.drives.includes(run) && !self.closed.load(Ordering::Acquire)).then(|| self.roster.request(run, cause))
    }

    /// Starts a task that takes up a run. Only for a caller to which the roster granted the run.
    pub(crate) fn start_taking_up(self: &Arc<Self>, run: RunId, cause: TakeUpCause) {
        self.start_taking_up_with(run, cause, Reply(None));
    }

    fn start_taking_up_with(self: &Arc<Self>, run: RunId, cause: TakeUpCause, reply: Reply) {
        let kernel = self.clone();
        self.env.spawn.spawn(Box::pin(async move { kernel.try_until_settled(run, cause, reply).await }));
    }

    /// Tries to take up a run until that is settled, however long the store fails. Returns when the run is driven, or
    /// is not to be driven here.
    async fn try_until_settled(self: &Arc<Self>, run: RunId, cause: TakeUpCause, mut reply: Reply) {
        let (mut cause, mut delay, mut trouble) = (cause, DELAYS.0, None);
        if cause == TakeUpCause::Reload {
            self.env.clock.sleep(delay).await;
        }
        loop {
            let tried = match self.closed.load(Ordering::Acquire) {
                true => Ok(None),
                false => self.try_take_up(run, cause).await,
            };
            let answer = match &tried {
                Ok(taken) => Ok(taken.clone()),
                Err(error) => Err(error.clone()),
            };
            let next = match tried {
                Ok(Some(_)) => None,
                Ok(None) => self.not_taken_up(run),
                Err(error) if is_final(&error) => {
                    if let StoreError::Damaged { .. } = error {
                        tracing::error!(%run, "the run cannot be taken up: {error}");
                    }
                    // The run has ended, or another worker owns it.
                    if !matches!(error, StoreError::Busy { .. } | StoreError::Damaged { .. }) {
                        self.leave_queues(run, &Path::root());
                    }
                    self.not_taken_up(run)
                }
                Err(error) => {
                    trouble = Some(self.report_store_failure(Some(run), NOT_TAKEN_UP, &error));
                    reply.send(|| answer.clone());
                    self.env.clock.sleep(delay).await;
                    delay = (delay * 2).min(DELAYS.1);
                    // The claim may have succeeded although its answer was lost. Then nothing drives the run.
                    cause = cause.max(TakeUpCause::Undriven);
                    continue;
                }
            };
            reply.send(|| answer);
            self.report_recovery(trouble.take());
            match next {
                Some(again) => cause = again,
                None => return,
            }
        }
    }

    /// The run is not to be driven here. Returns the cause of another try if one was requested meanwhile.
    fn not_taken_up(&self, run: RunId) -> Option<TakeUpCause> {
        match self.roster.not_taken_up(run) {
            Ok(again) => Some(again),
            Err(waiters) => {
                self.notify_waiters(waiters, &RunEnd::Elsewhere);
                None
            }
        }
    }

    /// Notifies everything that waits for a run that is no longer driven here.
    pub(crate) fn notify_waiters(&self, notify: roster::ToNotify, end: &RunEnd) {
        for completion in notify.settled.into_iter().chain(notify.waiters) {
            completion.complete(end.clone());
        }
    }

    async fn try_take_up(self: &Arc<Self>, run: RunId, cause: TakeUpCause) -> Result<Option<DrivenRun>, StoreError> {
        let state = self.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?.state;
        if let RunState::Finished { .. } = state {
            return Err(StoreError::Finished(run));
        }
        let Some(how) = cause.takes_up(&state) else { return Ok(None) };
        let claimed = self.store.claim(run, self.lease.worker).await?;
        let driven = self.drive_claimed(run, claimed, how).await;
        Ok(Some(driven))
    }

    /// Drives a run that this process has claimed, after the roster granted it to the caller.
    async fn drive_claimed(self: &Arc<Self>, run: RunId, claimed: Claimed, how: TakenUp) -> DrivenRun {
        let tools = self.session_tools(claimed.session.as_ref()).await;
        let driven = self.drive_taken_up(self.drive_of(run, claimed, how, tools)).await;
        // Mail may have arrived between the claim and the registration of the run.
        driven.run.look_for_mail().await;
        driven
    }

    /// Drives a run that `claim_due` returned, unless another task of this process owns it.
    pub(crate) fn take_up_claimed(self: &Arc<Self>, run: RunId, claimed: Result<Claimed, StoreError>) {
        let claimed = match claimed {
            Ok(claimed) => claimed,
            // It may have been claimed anyway, under an epoch that is not known here.
            Err(_) => return self.take_up_after_lost_answer(run, None),
        };
        match self.roster.claimed(run, claimed.epoch) {
            // The claim supersedes this owner: the store refuses its writes from now on.
            RequestAnswer::Driven(driven) if driven.epoch() < claimed.epoch => driven.run.lose(),
            RequestAnswer::Driven(_) | RequestAnswer::Noted => {}
            RequestAnswer::Granted => {
                let kernel = self.clone();
                self.env.spawn.spawn(Box::pin(async move { kernel.drive_found(run, claimed).await }));
            }
        }
    }

    /// Takes up a run that a claim without an answer may have taken, under this epoch if it is known. An owner with an
    /// earlier claim is superseded, even if it has not noticed yet.
    pub(crate) fn take_up_after_lost_answer(self: &Arc<Self>, run: RunId, epoch: Option<u64>) {
        // Without an epoch the run is taken up again as soon as any owner stops driving it.
        match (self.roster.claimed(run, epoch.unwrap_or(u64::MAX)), epoch) {
            (RequestAnswer::Driven(driven), Some(epoch)) if driven.epoch() < epoch => driven.run.lose(),
            (RequestAnswer::Driven(_) | RequestAnswer::Noted, _) => {}
            (RequestAnswer::Granted, _) => self.start_taking_up(run, TakeUpCause::Undriven),
        }
    }

    async fn drive_found(self: &Arc<Self>, run: RunId, claimed: Claimed) {
        if !self.closed.load(Ordering::Acquire) {
            let how = if claimed.was_running { TakenUp::Found } else { TakenUp::Woken };
            self.drive_claimed(run, claimed, how).await;
            return;
        }
        // Nothing is started any more. The run is released cleanly, so that this does not count as a death.
        if let Err(error) = self.store.release(run, claimed.epoch).await {
            self.report_store_failure(Some(run), "the run could not be released", &error);
        }
        self.not_taken_up(run);
    }

    /// Builds the drive of a run that was claimed.
    fn drive_of(
        self: &Arc<Self>,
        id: RunId,
        claimed: Claimed,
        how: TakenUp,
        tools: Result<Option<Arc<LiveTools>>, StoreError>,
    ) -> Drive {
        let last = claimed.last;
        let damaged = claimed.damaged.clone().map(|place| Hold::Damaged { run: id, place });
        let unreadable = damaged.or_else(|| claimed.sealed.clone().map(|why| Hold::Sealed { why }));
        let run = self.claimed(id, claimed, how);
        let scope = match tools {
            Ok(tools) => self.scope_of(&run, tools),
            Err(StoreError::Damaged { place, .. }) => Err(Hold::Damaged { run: id, place }),
            // The run is taken up again: without what its session hides, it would see too many tools.
            Err(error) => {
                run.failed(error);
                return Drive::stopped(run);
            }
        };
        if last != self.lease.worker && last != WorkerId::default() && is_owner_bound(&run, scope.as_ref().ok()) {
            return lost(run);
        }
        // Decided before anything is planned: a body must not see values that could not be opened or were altered.
        let hold = match (unreadable, scope) {
            (Some(hold), _) | (None, Err(hold)) => hold,
            (None, Ok(scope)) => {
                // Before the root is planned, which takes its calls out of the history.
                let counted = loops::recorded_calls(&run);
                match self.root_of(&run, scope) {
                    _ if run.is_halted() => return Drive::stopped(run),
                    Some(root) => return Drive::new(run, root).counting(counted),
                    None => Hold::Undecodable {
                        path: Path::root(),
                        problem: "the journal does not record the root call".to_owned(),
                    },
                }
            }
        };
        run.hold(hold);
        Drive::stopped(run)
    }

    fn claimed(self: &Arc<Self>, id: RunId, mut claimed: Claimed, how: TakenUp) -> Arc<Run> {
        let base = (self.env.clock.now(), self.env.clock.ticks());
        let belongs = Belongs {
            session: claimed.session.clone(),
            is_turn: claimed.turn,
            attribution: Attribution::shared(claimed.principal.as_ref(), claimed.cause.as_ref()),
        };
        let shared = std::mem::take(&mut claimed.places);
        if claimed.mail.iter().any(|mail| matches!(mail.message, Message::Await { .. })) {
            self.undriven.awaited.insert(id);
        }
        let mut machine = Machine::claimed(id, claimed, base.0, how);
        shared.iter().for_each(|place| machine.set_shared_place(&place.path, &place.key));
        self.take_up_places(id, &mut machine);
        Run::new(self.clone(), id, base, belongs, machine)
    }

    /// Restores the run's places in the key queues. Places of finished operations are given up: the commit that
    /// finished them was written, but its answer was lost.
    fn take_up_places(self: &Arc<Self>, id: RunId, machine: &mut Machine) {
        if self.admission.is_shared {
            return;
        }
        let (over, open): (Vec<KeyPlace>, _) =
            self.admission.keys.of(id).into_iter().partition(|place| machine.was_over(&place.path));
        machine.set_places(open);
        over.iter().for_each(|place| self.leave_queues(id, &place.path));
    }

    /// Gives up the run's places in the key queues at or below a path.
    fn leave_queues(self: &Arc<Self>, run: RunId, path: &Path) {
        self.admission.keys.release_below(run, path).into_iter().for_each(|next| self.take_up_for_key(next));
    }

    /// The key that an operation of a suspended run waits for is free. Only this process knows that; no store does.
    pub(crate) fn take_up_for_key(self: &Arc<Self>, run: RunId) {
        self.take_up_for(run, TakeUpCause::Key);
    }

    /// Finishes a run with an outcome given by a person, without entering its body. `None` if the run is driven here.
    pub(crate) async fn finish_by_hand(
        self: &Arc<Self>,
        id: RunId,
        result: Recorded,
        settled: Settled,
    ) -> Result<Option<RunEnd>, StoreError> {
        if self.granted(id).await.is_some() {
            return Ok(None);
        }
        let (kernel, ended) = (self.clone(), Arc::new(Completion::default()));
        let answer = ended.clone();
        // In a task of its own, for the same reason as `first_try`.
        self.env.spawn.spawn(Box::pin(async move {
            let ended = match kernel.store.claim(id, kernel.lease.worker).await {
                Ok(claimed) => {
                    let run = kernel.claimed(id, claimed, TakenUp::Resumed);
                    Ok(kernel.drive_taken_up(by_hand(run, result, settled)).await.completion.wait().await)
                }
                Err(error) => {
                    if let Some(again) = kernel.not_taken_up(id) {
                        kernel.start_taking_up(id, again);
                    }
                    // The claim may have succeeded although its answer was lost. Then nothing drives the run.
                    if !is_final(&error) {
                        kernel.take_up_after_lost_answer(id, None);
                    }
                    Err(error)
                }
            };
            answer.complete(ended);
        }));
        ended.wait().await.map(Some)
    }

    /// The root call or batch that a journal records.
    pub(crate) fn root_of(&self, run: &Arc<Run>, scope: Scope) -> Option<Root> {
        let root = run.recorded_op(&Path::root(), |op| op.asked.clone())?;
        match root.kind {
            OpKind::Call => {
                let call = recorded_call(&root, &root.layers);
                let snapshot = scope.toolbox.snapshot();
                let tool = resolve(&snapshot, &call.tool);
                Some(Root::Call(plan(run, &scope, CallSite::root(), call, tool)))
            }
            OpKind::Batch => {
                let count: u32 = root.name.parse().ok()?;
                let calls: Option<Vec<ToolCall>> = (0..count)
                    .map(|index| {
                        let path = Path::root().child(index);
                        run.recorded_op(&path, |op| recorded_call(&op.asked, &root.layers))
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

/// Whether trying again is useless: the run has ended, another worker owns it, it is not its turn, or it is damaged.
fn is_final(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Finished(_)
            | StoreError::NoSuchRun(_)
            | StoreError::Stale { .. }
            | StoreError::Leased { .. }
            | StoreError::Busy { .. }
            | StoreError::Damaged { .. }
    )
}

/// Ends a run as lost: it was bound to its owner, and that process is gone.
fn lost(run: Arc<Run>) -> Drive {
    let message = "lost: the run was bound to the process that owned it, and that process is gone; start it again if \
                   it is still wanted";
    let result: Recorded = Err(Arc::new(ToolError::unavailable(message)));
    let at = run.now();
    let outcome = OpOutcome { result: result.clone(), at, times: Times::default() };
    let mark = run.with(|machine| {
        machine.abandon_below(&Path::root(), at);
        machine.end_around(&Path::root(), &outcome);
        machine.finish(Ending::Lost, &result)
    });
    Drive::ended(run, mark, vec![outcome])
}

/// Ends the run with an outcome given by a person.
fn by_hand(run: Arc<Run>, result: Recorded, settled: Settled) -> Drive {
    let at = run.now();
    let ending = if result.is_ok() { Ending::Ok } else { Ending::Failed };
    let outcome = OpOutcome { result: result.clone(), at, times: Times::default() };
    let settled = Some(Box::new(settled));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled };
    run.append(&Path::root(), at, None, Event::Finished(finished));
    let mark = run.with(|machine| {
        machine.abandon_below(&Path::root(), at);
        machine.finish(ending, &outcome.result)
    });
    Drive::ended(run, mark, vec![outcome])
}
