//! Runs: their journal, the replay decision, the machine, and its driver.

mod abandoned;
mod budget;
mod cancelling;
pub mod check;
pub(crate) mod children;
pub mod compare;
pub(crate) mod drive;
pub mod fork;
pub(crate) mod history;
mod intent;
mod labels;
mod line;
pub(crate) mod machine;
pub(crate) mod origin;
pub(crate) mod outbox;
pub(crate) mod parks;
mod rare;
pub(crate) mod recall;
pub mod record;
pub(crate) mod refs;
pub(crate) mod replay;
pub mod reply;
mod restored;
pub mod secrets;
pub(crate) mod spent;
pub mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::admit::{Fifo, QueuedKey};
use crate::attribution::Attribution;
use crate::call::Origin;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::store::{Answer, ArtifactId, Commit, Mail, StoreError};
use crate::time::Timestamp;
use crate::tool::Effect;
use history::RecordedOp;
use machine::{Machine, Stop};
use origin::Origins;
use outbox::Outbox;
use record::{Asked, Event, Record};
use state::Hold;

/// Commits in a row that may complete immediately before other tasks get their turn: a few milliseconds on a fast disk.
const COMMITS_PER_TURN: usize = 16;

/// One run in this process: the machine, and what its branches share.
// Many fields: flags beside the machine are read at every poll, without its lock.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) kernel: Arc<Kernel>,
    /// Exclusivity among the attempts of its session. A run without a session has its own.
    pub(crate) exclusivity: Arc<Fifo>,
    machine: Mutex<Machine>,
    /// Whether an earlier owner left anything. Most runs have one owner, and skip the lookup.
    has_past: bool,
    /// Whether the machine has a reason to stop. Read at every poll.
    stopped: AtomicBool,
    /// Whether the body was cut off. What is left of it stops, while the run's end is still written.
    is_cut_off: AtomicBool,
    cancelled: AtomicBool,
    /// How many cancellations there are, of the run and of parts of it.
    cancels: AtomicUsize,
    /// Operations and bodies that are pending for another reason than a park.
    awake: AtomicUsize,
    /// Branches that another thread is polling right now. Whether they only wait is known when the poll ends.
    polled: AtomicUsize,
    /// The driver's waker, if it could not tell whether the run only waits.
    driver: Mutex<Option<Waker>>,
    /// Whether anything in it ever waited for the mailbox or for a time. A run that never did is never suspended.
    waited: AtomicBool,
    /// Whether a task will read the mailbox again after a failed read.
    rereads_mail: AtomicBool,
    /// Commits that completed as soon as they were sent.
    immediate_commits: AtomicUsize,
    /// The generation of the run.
    pub(crate) generation: u32,
    /// The session it belongs to.
    pub(crate) session: Option<Arc<str>>,
    /// Whether it is a turn of its session.
    pub(crate) is_turn: bool,
    /// Who it acts for, and what caused it.
    pub(crate) attribution: Option<Arc<Attribution>>,
    /// The runs it was forked from.
    pub(crate) origins: Origins,
    /// Whether its journal is only checked against the code, and nothing is performed.
    pub(crate) only_checks: bool,
    event_wakers: Mutex<EventWakers>,
    /// Nanoseconds by which the wall clock is ahead of the ticks. Instants are derived from tick readings that are made
    /// anyway.
    clock_offset: AtomicI64,
}

/// What is fixed about a run when it is created.
pub(crate) struct Belongs {
    pub(crate) session: Option<Arc<str>>,
    pub(crate) is_turn: bool,
    pub(crate) attribution: Option<Arc<Attribution>>,
}

/// Wakers of the futures that wait for an event of the run.
#[derive(Default)]
struct EventWakers {
    slots: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl Run {
    pub(crate) fn new(
        kernel: Arc<Kernel>,
        id: RunId,
        base: (Timestamp, u64),
        Belongs { session, is_turn, attribution }: Belongs,
        mut machine: Machine,
    ) -> Arc<Self> {
        let exclusivity =
            session.as_ref().map_or_else(Fifo::session, |session| kernel.admission.sessions.exclusivity(session));
        let stopped = AtomicBool::new(machine.stop().is_some());
        let cancelled = AtomicBool::new(machine.is_cancelled());
        let cancels = AtomicUsize::new(machine.cancel_count());
        let has_past = machine.has_past();
        let generation = machine.generation();
        let origins = machine.take_origins();
        let only_checks = machine.only_checks();
        Arc::new(Self {
            id,
            kernel,
            exclusivity,
            machine: Mutex::new(machine),
            has_past,
            stopped,
            is_cut_off: AtomicBool::new(false),
            cancelled,
            cancels,
            awake: AtomicUsize::new(0),
            polled: AtomicUsize::new(0),
            driver: Mutex::default(),
            waited: AtomicBool::new(false),
            rereads_mail: AtomicBool::new(false),
            immediate_commits: AtomicUsize::new(0),
            generation,
            session,
            is_turn,
            attribution,
            origins,
            only_checks,
            event_wakers: Mutex::default(),
            clock_offset: AtomicI64::new(clock_offset(base)),
        })
    }

    /// Calls `work` with the machine, then wakes all waiters if the run stopped or was cancelled.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Machine) -> R) -> R {
        let mut machine = self.machine.lock();
        let result = work(&mut machine);
        self.publish(machine);
        result
    }

    fn publish(&self, machine: MutexGuard<'_, Machine>) {
        let stops = machine.stop().is_some() && !self.stopped.swap(true, Ordering::AcqRel);
        let count = machine.cancel_count();
        let cancels = count > 0 && self.cancels.swap(count, Ordering::AcqRel) != count;
        if cancels && machine.is_cancelled() {
            self.cancelled.store(true, Ordering::Release);
        }
        drop(machine);
        if stops || cancels {
            self.wake();
        }
    }

    /// Whether everything below this run must stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_halted() || self.is_cut_off.load(Ordering::Acquire)
    }

    /// Whether this run is no longer driven here.
    pub(crate) fn is_halted(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stops everything below this run, so that its end can be written.
    pub(crate) fn quiesce(&self) {
        self.is_cut_off.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the run was cancelled, not only a part of it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Reads what an earlier owner's journal has at `path`, if no body asked for it yet.
    pub(crate) fn recorded_op<R>(&self, path: &Path, look: impl FnOnce(&RecordedOp) -> R) -> Option<R> {
        if self.has_past { self.with(|machine| machine.recorded_op(path).map(look)) } else { None }
    }

    /// Whether the next attempt must be announced, because a process died with this run before. Counts the attempt.
    pub(crate) fn must_announce_attempt(&self) -> bool {
        self.has_past && self.with(Machine::must_announce_attempt)
    }

    pub(crate) fn origin(self: &Arc<Self>) -> Origin {
        Origin {
            run: self.id,
            generation: self.generation,
            session: self.session.clone(),
            attribution: self.attribution.clone(),
            reach: self.kernel.reach.clone(),
            home: Arc::downgrade(self),
            lasts: limits::ATTEMPT_TIMEOUT,
            effect: Effect::Once,
        }
    }

    /// Allows the outcome at `path`, once recorded, to refer to these artifacts.
    pub(crate) fn vouch(&self, path: &Path, artifacts: Vec<ArtifactId>) {
        if !artifacts.is_empty() {
            self.with(|machine| machine.refs.vouch(path, artifacts));
        }
    }

    /// Stops the run because another worker owns it, or may own it.
    pub(crate) fn lose(&self) {
        self.with(Machine::lose);
    }

    pub(crate) fn hold(&self, hold: Hold) {
        self.with(|machine| machine.hold(hold));
    }

    /// Converts a tick reading to an instant.
    pub(crate) fn at(&self, ticks: u64) -> Timestamp {
        let nanos = self.clock_offset.load(Ordering::Relaxed).saturating_add(i64::try_from(ticks).unwrap_or(i64::MAX));
        Timestamp::from_micros(nanos.div_euclid(1_000))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at(self.kernel.env.clock.ticks())
    }

    /// Reads the wall clock again. The ticks alone may have missed time during a pause.
    pub(crate) fn rebase(&self) {
        self.clock_offset
            .store(clock_offset((self.kernel.env.clock.now(), self.kernel.env.clock.ticks())), Ordering::Relaxed);
    }

    /// Adds a record to the journal.
    pub(crate) fn append(self: &Arc<Self>, path: &Path, at: Timestamp, asked: Option<Asked>, event: Event) -> u64 {
        let record = Record { path: path.clone(), at, asked, event };
        let (mark, due) = self.with(|machine| {
            let mark = machine.append(record);
            (mark, machine.outbox().is_due())
        });
        if due {
            self.pump();
        }
        mark
    }

    /// Whether everything up to `mark` is durable. Sends a commit if needed, but registers no waker: use
    /// [`Registration::register`] for that.
    pub(crate) fn is_durable(self: &Arc<Self>, mark: u64) -> bool {
        let commit = self.with(|machine| {
            let outbox = machine.outbox();
            if outbox.is_durable(mark) {
                return Err(());
            }
            outbox.want(mark);
            Ok(machine.next_commit())
        });
        match commit {
            Err(()) => true,
            Ok(None) => false,
            Ok(Some(commit)) => {
                self.send(commit);
                self.has_durable(mark)
            }
        }
    }

    /// Like [`is_durable`](Self::is_durable), for a mark that has been waited for before, so that its commit is already
    /// requested.
    pub(crate) fn has_durable(&self, mark: u64) -> bool {
        self.with(|machine| machine.outbox().is_durable(mark))
    }

    /// Sends what is buffered, without waiting for it. Called when a body is about to become pending.
    pub(crate) fn pump(self: &Arc<Self>) {
        if let Some(commit) = self.with(Machine::next_commit) {
            self.send(commit);
        }
    }

    /// Sends a commit, and further ones as their answers arrive.
    fn send(self: &Arc<Self>, mut commit: Commit) {
        loop {
            match self.kernel.store.commit(commit) {
                Answer::Ready(answer) => match self.answered(answer, |_| true) {
                    Some(next) => commit = next,
                    None => return,
                },
                Answer::Wait(ticket) => {
                    let is_turn_over = ticket.is_answered() && self.is_turn_over();
                    let run = self.clone();
                    let follow = move |answer| {
                        if let Some(next) = run.answered(answer, Outbox::is_due) {
                            run.send(next);
                        }
                    };
                    if is_turn_over {
                        return self.kernel.env.spawn.spawn(Box::pin(async move { follow(ticket.await) }));
                    }
                    return ticket.then(follow);
                }
            }
        }
    }

    /// Whether the run has continued long enough without ever waiting, because the store completed each commit
    /// immediately. Then the other tasks of its thread are next.
    fn is_turn_over(&self) -> bool {
        self.immediate_commits.fetch_add(1, Ordering::Relaxed) % COMMITS_PER_TURN == COMMITS_PER_TURN - 1
    }

    /// Whether everything in it is pending and parked.
    pub(crate) fn is_all_parked(&self) -> bool {
        self.waited.load(Ordering::Acquire)
            && self.polled.load(Ordering::Acquire) == 0
            && self.awake.load(Ordering::Acquire) == 0
    }

    /// Wakes the driver when no other thread polls a branch of the run any more. Does nothing if none does now.
    pub(crate) fn wake_when_unpolled(&self, cx: &Context<'_>) {
        if self.polled.load(Ordering::Acquire) == 0 {
            return;
        }
        *self.driver.lock() = Some(cx.waker().clone());
        if self.polled.load(Ordering::Acquire) == 0 {
            self.wake_driver();
        }
    }

    fn wake_driver(&self) {
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Whether its keys tie the run to this process: another worker that takes it up would not know its places.
    pub(crate) fn is_bound_by_keys(&self) -> bool {
        self.kernel.lease.length.is_some()
            && !self.kernel.admission.is_shared
            && !self.kernel.admission.keys.of(self.id).is_empty()
    }

    /// Whether the run has stopped only for a while, so that its operations keep their places in the key queues.
    pub(crate) fn keeps_places(&self) -> bool {
        let is_paused = |machine: &mut Machine| {
            matches!(machine.stop(), Some(Stop::Suspended { .. } | Stop::Held(_) | Stop::Reload(_) | Stop::Lapsed))
        };
        self.is_halted() && self.with(is_paused)
    }

    /// Gives up a place once everything recorded so far is durable. Until then the operation that had the place may
    /// turn out not to be finished.
    pub(crate) fn leave_queue(&self, turn: QueuedKey) {
        let left = self.with(|machine| {
            machine.leave_when_durable(turn);
            machine.take_left()
        });
        self.release(left);
    }

    fn release(&self, left: Vec<QueuedKey>) {
        for next in left.iter().filter_map(|turn| self.kernel.admission.keys.release(turn)) {
            self.kernel.take_up_for_key(next);
        }
    }

    /// Gives up the places of operations at or below a path that was left for good.
    pub(crate) fn leave_queues_below(&self, path: &Path) {
        for next in self.kernel.admission.keys.release_below(self.id, path) {
            self.kernel.take_up_for_key(next);
        }
    }

    /// Notes that an operation waits for the mailbox or for a time.
    pub(crate) fn note_wait(&self) {
        self.waited.store(true, Ordering::Release);
    }

    pub(crate) fn pump_if_due(self: &Arc<Self>) {
        if self.with(|machine| machine.outbox().is_due()) {
            self.pump();
        }
    }

    /// The store answered the commit in flight. Returns the next one if it is to be sent now.
    fn answered(&self, answer: Result<(), StoreError>, now: impl FnOnce(&Outbox) -> bool) -> Option<Commit> {
        let (nudged, left, next) = self.with(|machine| {
            machine.answered(answer);
            let (nudged, left) = (machine.take_nudged(), machine.take_left());
            (nudged, left, if now(machine.outbox()) { machine.next_commit() } else { None })
        });
        nudged.into_iter().for_each(|run| self.kernel.nudge(run));
        self.release(left);
        self.kernel.reach.watchers.changed(self.id, self.session.as_ref());
        self.wake();
        next
    }

    /// The store failed while no commit of the run was in flight.
    pub(crate) fn failed(&self, error: StoreError) {
        self.with(|machine| machine.answered(Err(error)));
        self.wake();
    }

    /// Waits until everything recorded so far is durable, or can no longer become so in this process.
    pub(crate) async fn flush(self: &Arc<Self>) {
        let mut registration = Registration::default();
        std::future::poll_fn(|cx| {
            registration.register(self, cx);
            let mark = self.with(|machine| machine.outbox().written());
            let lost =
                |machine: &mut Machine| matches!(machine.stop(), Some(Stop::Lost | Stop::Lapsed | Stop::Reload(_)));
            if self.with(lost) || self.is_durable(mark) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    /// Wakes every future that waits for an event of the run.
    pub(crate) fn wake(&self) {
        let mut wakers: SmallVec<[Waker; 2]> = SmallVec::new();
        for waker in self.event_wakers.lock().slots.iter_mut().filter_map(Option::take) {
            // An operation, its body and the driver often wait in the same task, which needs only one wake-up.
            if wakers.iter().rev().take(2).all(|other| !other.will_wake(&waker)) {
                wakers.push(waker);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Reads new mail. If the read fails, it is repeated later: the sender does not write again, and a run that is not
    /// suspended has no other way to learn of the mail.
    pub(crate) async fn look_for_mail(self: &Arc<Self>) {
        let Err(error) = self.fetch_mail().await else { return };
        self.kernel.report_store_failure(Some(self.id), "the mailbox could not be read", &error);
        if self.rereads_mail.swap(true, Ordering::AcqRel) {
            return;
        }
        let run = self.clone();
        self.kernel.env.spawn.spawn(Box::pin(async move {
            while !run.is_halted() {
                run.kernel.env.clock.sleep(limits::STORE_RETRY).await;
                run.rereads_mail.store(false, Ordering::Release);
                if run.fetch_mail().await.is_ok() || run.rereads_mail.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }));
    }

    /// Reads new mail once.
    async fn fetch_mail(&self) -> Result<(), StoreError> {
        let seen = self.with(|machine| machine.seen());
        let mail = self.kernel.store.mail(self.id, seen).await?;
        self.deliver(mail);
        Ok(())
    }

    /// Delivers new mail, and wakes the futures that wait for it.
    pub(crate) fn deliver(&self, mail: Vec<Mail>) {
        let now = self.now();
        self.with(|machine| mail.into_iter().for_each(|mail| machine.deliver(mail, now)));
        self.wake();
    }
}

/// Held while a branch with a task of its own is polled. Between two operations such a branch holds nothing else, and
/// yet it is not idle.
pub(crate) struct Polling(Arc<Run>);

impl Polling {
    pub(crate) fn new(run: &Arc<Run>) -> Self {
        run.polled.fetch_add(1, Ordering::AcqRel);
        Self(run.clone())
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.0.polled.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.wake_driver();
        }
    }
}

/// Held by an operation that is pending and not parked. A run with any of these is not suspended.
#[derive(Default)]
pub(crate) struct Awake(Option<Arc<Run>>);

impl Awake {
    pub(crate) fn set(&mut self, run: &Arc<Run>, awake: bool) {
        match (&self.0, awake) {
            (None, true) => {
                run.awake.fetch_add(1, Ordering::AcqRel);
                self.0 = Some(run.clone());
            }
            (Some(_), false) => self.release(),
            _ => {}
        }
    }

    fn release(&mut self) {
        let Some(run) = self.0.take() else { return };
        // The last one wakes the driver, which may be pending on another thread.
        if run.awake.fetch_sub(1, Ordering::AcqRel) == 1 && run.waited.load(Ordering::Acquire) {
            run.wake();
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.release();
    }
}

/// The difference between a wall clock reading and a tick reading of the same moment. Nanoseconds since 1970 fit until
/// the year 2262.
fn clock_offset((wall, ticks): (Timestamp, u64)) -> i64 {
    wall.as_micros().saturating_mul(1_000).saturating_sub(i64::try_from(ticks).unwrap_or(i64::MAX))
}

/// A future's slot among those that are woken at events of the run.
#[derive(Default)]
pub(crate) struct Registration(Option<(Arc<Run>, usize)>);

impl Registration {
    /// Registers to be woken once, at the next event of the run.
    pub(crate) fn register(&mut self, run: &Arc<Run>, cx: &Context<'_>) {
        let mut event_wakers = run.event_wakers.lock();
        match &self.0 {
            Some((_, slot)) => match &mut event_wakers.slots[*slot] {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                waker => *waker = Some(cx.waker().clone()),
            },
            None => {
                let slot = event_wakers.free.pop().unwrap_or_else(|| {
                    event_wakers.slots.push(None);
                    event_wakers.slots.len() - 1
                });
                event_wakers.slots[slot] = Some(cx.waker().clone());
                drop(event_wakers);
                self.0 = Some((run.clone(), slot));
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((run, slot)) = self.0.take() {
            let mut event_wakers = run.event_wakers.lock();
            event_wakers.slots[slot] = None;
            event_wakers.free.push(slot);
        }
    }
}
