//! Taking runs up: claiming them from the store and driving them from their journals. One task of a process takes up a run
//! at a time; the [roster](crate::roster) says which, and keeps what is asked for meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::call::ToolCall;
use crate::call::batch::Batch;
use crate::call::plan::{Place, Scope, plan, resolve};
use crate::driver::Live;
use crate::id::{RunId, WorkerId};
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::roster::{self, Cause, Request, Stage};
use crate::run::Run;
use crate::run::drive::{Completion, Drive, Root, RunEnd};
use crate::run::machine::{Machine, TakenUp};
use crate::run::record::{Event, Finished, OpKind, Recorded, Settled, Told};
use crate::run::state::{Ending, Hold, RunState};
use crate::scope::{is_owner_bound, recorded_call};
use crate::store::{Claimant, KeyPlace, StoreError};
use crate::time::Times;
use crate::tool::ToolError;

/// When a run is tried again after the store failed, at first and at most: a disk with room again is not to be waited for.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), limits::LOOK_AGAIN);

/// The warning about a run that is not driven because the store fails.
const NOT_TAKEN_UP: &str = "the run cannot be taken up yet";

/// What the task that takes up a run came to at its first try.
type FirstTry = Completion<Result<Option<Live>, StoreError>>;

/// Answers the caller that waits for the first try, also if the executor drops the task.
struct Reply(Option<Arc<FirstTry>>);

impl Reply {
    fn send(&mut self, answer: impl FnOnce() -> Result<Option<Live>, StoreError>) {
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
    /// Something may have come for the run: it is told if it is driven here, and taken up if it is at rest.
    pub(crate) fn nudge(self: &Arc<Self>, run: RunId) {
        self.take_up_for(run, Cause::Woken);
    }

    /// The same; a run that is driven here has its mail when this returns.
    pub(crate) async fn notify(self: &Arc<Self>, run: RunId) {
        match self.request(run, Cause::Woken) {
            Some(Request::Live(live)) => live.run.look_for_mail().await,
            Some(Request::Granted) => self.taking_up(run, Cause::Woken),
            Some(Request::Noted) | None => {}
        }
    }

    /// Has the run taken up, unless it is driven here.
    pub(crate) fn take_up_for(self: &Arc<Self>, run: RunId, cause: Cause) {
        match self.request(run, cause) {
            Some(Request::Live(live)) => {
                let kernel = self.clone();
                self.env.spawn.spawn(Box::pin(async move { kernel.look_at_live(live, cause).await }));
            }
            Some(Request::Granted) => self.taking_up(run, cause),
            Some(Request::Noted) | None => {}
        }
    }

    /// The same; returns once that was tried, or is left to another task. An error says why it was not taken up at once.
    pub(crate) async fn take_up(self: &Arc<Self>, run: RunId, cause: Cause) -> Result<Option<Live>, StoreError> {
        match self.request(run, cause) {
            Some(Request::Live(live)) => {
                self.look_at_live(live.clone(), cause).await;
                Ok(Some(live))
            }
            Some(Request::Granted) => self.first_try(run, cause).await,
            Some(Request::Noted) | None => Ok(None),
        }
    }

    /// Takes up a run for a person, who is told what became of it.
    pub(crate) async fn resume(self: &Arc<Self>, run: RunId) -> Result<Option<Live>, StoreError> {
        match self.granted(run).await {
            Some(live) => Ok(Some(live)),
            None => self.first_try(run, Cause::Person).await,
        }
    }

    /// Waits until the caller is the one that takes up the run; the run, if it is driven here.
    async fn granted(&self, run: RunId) -> Option<Live> {
        loop {
            match self.roster.grant(run) {
                Ok(()) => return None,
                Err(Stage::Live(live)) => return Some(live),
                Err(Stage::Queued(settled) | Stage::Taking(settled)) => drop(settled.wait().await),
                Err(Stage::Resting) => {}
            }
        }
    }

    /// In a task of its own: a caller that goes away in the middle leaves no run behind that is claimed and not driven.
    async fn first_try(self: &Arc<Self>, run: RunId, cause: Cause) -> Result<Option<Live>, StoreError> {
        let first = Arc::new(FirstTry::default());
        self.taking_up_with(run, cause, Reply(Some(first.clone())));
        first.wait().await
    }

    /// `None` where nothing is taken up any more.
    fn request(&self, run: RunId, cause: Cause) -> Option<Request<Live>> {
        (self.drives && !self.closed.load(Ordering::Acquire)).then(|| self.roster.request(run, cause))
    }

    /// The run is driven here, and something asked for it to be taken up.
    async fn look_at_live(self: &Arc<Self>, live: Live, cause: Cause) {
        live.run.look_for_mail().await;
        // The store may know better: this worker froze, another one took the run over and left it.
        if cause == Cause::Left
            && let Ok(Some(info)) = self.store.info(live.run.id).await
            && info.epoch > live.run.with(|machine| machine.outbox().epoch())
        {
            live.run.lose();
        }
    }

    /// Begins to take up a run; only the caller may that the roster granted it.
    pub(crate) fn taking_up(self: &Arc<Self>, run: RunId, cause: Cause) {
        self.taking_up_with(run, cause, Reply(None));
    }

    fn taking_up_with(self: &Arc<Self>, run: RunId, cause: Cause, reply: Reply) {
        let kernel = self.clone();
        self.env.spawn.spawn(Box::pin(async move { kernel.until_settled(run, cause, reply).await }));
    }

    /// Takes up a run, however long the store fails; ends when the run is driven, or is not to be.
    async fn until_settled(self: &Arc<Self>, run: RunId, cause: Cause, mut reply: Reply) {
        let (mut cause, mut delay, mut trouble) = (cause, DELAYS.0, None);
        if cause == Cause::Reload {
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
                Ok(None) => self.not_taken(run),
                Err(error) if is_final(&error) => {
                    if let StoreError::Damaged { .. } = error {
                        tracing::error!(%run, "the run cannot be taken up: {error}");
                    }
                    // It is over, or another worker's.
                    if !matches!(error, StoreError::Busy { .. } | StoreError::Damaged { .. }) {
                        self.leave_queues(run, &Path::root());
                    }
                    self.not_taken(run)
                }
                Err(error) => {
                    trouble = Some(self.troubled(Some(run), NOT_TAKEN_UP, &error));
                    reply.send(|| answer.clone());
                    self.env.clock.sleep(delay).await;
                    delay = (delay * 2).min(DELAYS.1);
                    // It may have been claimed all the same, and then nothing drives it.
                    cause = cause.max(Cause::Unowned);
                    continue;
                }
            };
            reply.send(|| answer);
            self.trouble_over(trouble.take());
            match next {
                Some(again) => cause = again,
                None => return,
            }
        }
    }

    /// The run is not to be driven here; returns why it is to be looked at again, if it is.
    fn not_taken(&self, run: RunId) -> Option<Cause> {
        match self.roster.not_taken(run) {
            Ok(again) => Some(again),
            Err(told) => {
                self.tell(told, &RunEnd::Elsewhere);
                None
            }
        }
    }

    /// Tells what waits for a run that is not driven here any more.
    pub(crate) fn tell(&self, told: roster::Told, end: &RunEnd) {
        for completion in told.settled.into_iter().chain(told.waiters) {
            completion.complete(end.clone());
        }
    }

    async fn try_take_up(self: &Arc<Self>, run: RunId, cause: Cause) -> Result<Option<Live>, StoreError> {
        let state = self.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?.state;
        if let RunState::Finished { .. } = state {
            return Err(StoreError::Finished(run));
        }
        let Some(how) = cause.takes_up(&state) else { return Ok(None) };
        let drive = self.claim(run, how).await?;
        let live = self.drive_taken(drive).await;
        // Mail may have come between the claim and the moment the run was known to be driven.
        live.run.look_for_mail().await;
        Ok(Some(live))
    }

    /// Claims a run: it is this process's, and not driven yet.
    async fn claim(self: &Arc<Self>, id: RunId, how: TakenUp) -> Result<Drive, StoreError> {
        let claimed = self.store.claim(id, self.claimant()).await?;
        let last = claimed.last;
        let damaged = claimed.damaged.clone().map(|place| Hold::Damaged { run: id, place });
        let unreadable = damaged.or_else(|| claimed.sealed.clone().map(|why| Hold::Sealed { why }));
        let run = self.claimed(id, claimed, how);
        let scope = self.scope_of(&run);
        if last != self.lease.worker && last != WorkerId::default() && is_owner_bound(&run, scope.as_ref().ok()) {
            return Ok(lost(run));
        }
        // Before anything is planned: no body may see what could not be opened, or is not what was written.
        let hold = match (unreadable, scope) {
            (Some(hold), _) | (None, Err(hold)) => hold,
            (None, Ok(scope)) => match self.root_of(&run, scope) {
                _ if run.is_halted() => return Ok(Drive::stopped(run)),
                Some(root) => return Ok(Drive::new(run, root)),
                None => Hold::Undecodable {
                    path: Path::root(),
                    problem: "the journal does not say what the run is".to_owned(),
                },
            },
        };
        run.hold(hold);
        Ok(Drive::stopped(run))
    }

    fn claimant(&self) -> Claimant {
        Claimant { worker: self.lease.worker, now: self.env.clock.now() }
    }

    fn claimed(self: &Arc<Self>, id: RunId, claimed: crate::store::Claimed, how: TakenUp) -> Arc<Run> {
        let base = (self.env.clock.now(), self.env.clock.ticks());
        let session = (claimed.session.clone(), claimed.turn);
        let mut machine = Machine::claimed(id, claimed, base.0, how);
        self.take_up_places(id, &mut machine);
        Run::new(self.clone(), id, base, session, machine)
    }

    /// The run keeps its places in the queues of keys, but for those of operations that are over: the commit that said so was
    /// written, and its answer was lost.
    fn take_up_places(self: &Arc<Self>, id: RunId, machine: &mut Machine) {
        let (over, open): (Vec<KeyPlace>, _) =
            self.admission.keys.of(id).into_iter().partition(|place| machine.was_over(&place.path));
        machine.has_places(open);
        over.iter().for_each(|place| self.leave_queues(id, &place.path));
    }

    /// Gives up the places of a run at or below a path.
    fn leave_queues(self: &Arc<Self>, run: RunId, path: &Path) {
        self.admission.keys.release_below(run, path).into_iter().for_each(|next| self.nudge(next));
    }

    /// Ends a run whose body is not entered any more, with an outcome from outside. `None` if it is driven here.
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
        // As in `first_try`.
        self.env.spawn.spawn(Box::pin(async move {
            let ended = match kernel.store.claim(id, kernel.claimant()).await {
                Ok(claimed) => {
                    let run = kernel.claimed(id, claimed, TakenUp::Resumed);
                    Ok(kernel.drive_taken(by_hand(run, result, settled)).await.completion.wait().await)
                }
                Err(error) => {
                    if let Some(again) = kernel.not_taken(id) {
                        kernel.taking_up(id, again);
                    }
                    Err(error)
                }
            };
            answer.complete(ended);
        }));
        ended.wait().await.map(Some)
    }

    /// What a journal says its run is.
    pub(crate) fn root_of(&self, run: &Arc<Run>, scope: Scope) -> Option<Root> {
        let root = run.standing(&Path::root(), |standing| standing.asked.clone())?;
        match root.kind {
            OpKind::Call => {
                let call = recorded_call(&root, &root.layers);
                let snapshot = scope.toolbox.snapshot();
                let tool = resolve(&snapshot, &call.tool);
                Some(Root::Call(plan(run, &scope, Place::root(), call, tool)))
            }
            OpKind::Batch => {
                let count: u32 = root.name.parse().ok()?;
                let calls: Option<Vec<ToolCall>> = (0..count)
                    .map(|index| {
                        let path = Path::root().child(index);
                        run.standing(&path, |standing| recorded_call(&standing.asked, &root.layers))
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

/// Whether trying again does not help: the run is over, another owner has it, it is not its turn, or it is damaged.
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

/// The owner of a run that is bound to it is gone: the run ends as lost.
fn lost(run: Arc<Run>) -> Drive {
    let message = "lost: the run was bound to the process that owned it, and that is gone; start it again if it is \
                   still wanted";
    let result: Recorded = Err(Arc::new(ToolError::unavailable(message)));
    let at = run.now();
    let told = Told { result: result.clone(), at, times: Times::default() };
    let mark = run.with(|machine| {
        machine.abandon_below(&Path::root(), at);
        machine.end_around(&Path::root(), &told);
        machine.finish(Ending::Lost, &result)
    });
    Drive::ended(run, mark, vec![told])
}

/// The run ends with an outcome from outside.
fn by_hand(run: Arc<Run>, result: Recorded, settled: Settled) -> Drive {
    let at = run.now();
    let ending = if result.is_ok() { Ending::Ok } else { Ending::Failed };
    let told = Told { result: result.clone(), at, times: Times::default() };
    let settled = Some(Box::new(settled));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled };
    run.append(&Path::root(), at, None, Event::Finished(finished));
    let mark = run.with(|machine| {
        machine.abandon_below(&Path::root(), at);
        machine.finish(ending, &told.result)
    });
    Drive::ended(run, mark, vec![told])
}
