//! Runs: their journal, the replay decision, the machine, and what drives it.

mod budget;
mod cancelling;
pub mod check;
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

use crate::admit::{Fifo, KeyTurn};
use crate::call::Origin;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::store::{Answer, ArtifactId, Commit, Mail, StoreError};
use crate::time::Timestamp;
use crate::tool::{Effect, ToolError};
use history::Standing;
use machine::{Machine, Stop};
use origin::Origins;
use outbox::Outbox;
use record::{Asked, Event, Record};
use state::Hold;

/// Commits in a row that may be over at once before other tasks are let go first: a few milliseconds on a quick disk.
const TURN: usize = 16;

/// One run in this process: the machine and what its branches share.
// Many fields: flags beside the machine are read at every poll, without its lock.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) kernel: Arc<Kernel>,
    /// Exclusivity among the attempts of its session: a run without one is its own.
    pub(crate) turns: Arc<Fifo>,
    machine: Mutex<Machine>,
    /// Whether an earlier owner left anything; most runs begin and end with one owner, and need not look for it.
    has_past: bool,
    /// Whether the machine has a reason to stop; read at every poll.
    stopped: AtomicBool,
    /// Whether the body was cut off: what is left of it comes to a halt, while the run's end is still written.
    quiet: AtomicBool,
    cancelled: AtomicBool,
    /// Operations and bodies that stand still for another reason than a park.
    awake: AtomicUsize,
    /// Branches that another thread is at this very moment polling: whether they only wait is known when it is done.
    polled: AtomicUsize,
    /// Whoever drives the run, if it could not tell whether the run only waits.
    driver: Mutex<Option<Waker>>,
    /// Whether anything in it ever waited for the mailbox or for a time: without that it is never suspended.
    waited: AtomicBool,
    /// Whether somebody is about to read its mailbox, which could not be read.
    looks_again: AtomicBool,
    /// Commits that were over as soon as they were sent.
    at_once: AtomicUsize,
    /// Which generation of the run this is.
    pub(crate) generation: u32,
    /// The session it belongs to.
    pub(crate) session: Option<Arc<str>>,
    /// Whether it is a turn of its session.
    pub(crate) is_turn: bool,
    /// The runs it was forked from.
    pub(crate) origins: Origins,
    /// Nothing of it is performed: its journal is checked against the code.
    pub(crate) only_checks: bool,
    interest: Mutex<Interest>,
    /// By how many nanoseconds the wall clock is ahead of the ticks: instants are derived from ticks read anyway.
    ahead: AtomicI64,
}

/// Wakers of the futures that wait for something to happen to the run.
#[derive(Default)]
struct Interest {
    slots: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl Run {
    pub(crate) fn new(
        kernel: Arc<Kernel>,
        id: RunId,
        base: (Timestamp, u64),
        (session, is_turn): (Option<Arc<str>>, bool),
        mut machine: Machine,
    ) -> Arc<Self> {
        let turns = session.as_ref().map_or_else(Fifo::session, |session| kernel.admission.sessions.turns(session));
        let stopped = AtomicBool::new(machine.stop().is_some());
        let cancelled = AtomicBool::new(machine.is_cancelled());
        let has_past = machine.has_past();
        let generation = machine.generation();
        let origins = machine.take_origins();
        let only_checks = machine.only_checks();
        Arc::new(Self {
            id,
            kernel,
            turns,
            machine: Mutex::new(machine),
            has_past,
            stopped,
            quiet: AtomicBool::new(false),
            cancelled,
            awake: AtomicUsize::new(0),
            polled: AtomicUsize::new(0),
            driver: Mutex::default(),
            waited: AtomicBool::new(false),
            looks_again: AtomicBool::new(false),
            at_once: AtomicUsize::new(0),
            generation,
            session,
            is_turn,
            origins,
            only_checks,
            interest: Mutex::default(),
            ahead: AtomicI64::new(ahead(base)),
        })
    }

    /// Works on the machine, then tells everyone who waits if it stopped.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Machine) -> R) -> R {
        let mut machine = self.machine.lock();
        let result = work(&mut machine);
        self.publish(machine);
        result
    }

    fn publish(&self, machine: MutexGuard<'_, Machine>) {
        let stops = machine.stop().is_some() && !self.stopped.swap(true, Ordering::AcqRel);
        let cancels = machine.is_cancelled() && !self.cancelled.swap(true, Ordering::AcqRel);
        drop(machine);
        if stops || cancels {
            self.wake();
        }
    }

    /// Whether everything below this run must come to a halt.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_halted() || self.quiet.load(Ordering::Acquire)
    }

    /// Whether nobody drives this run any further.
    pub(crate) fn is_halted(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Brings everything below this run to a halt, so that its end can be written.
    pub(crate) fn quiesce(&self) {
        self.quiet.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Whether an operation that is asked for now heeds a cancellation, or is part of cleaning up after one.
    pub(crate) fn heeds_cancel(&self) -> bool {
        !self.is_cancelled() || !self.with(|machine| machine.is_cleaning_up())
    }

    /// The cancellation an operation that heeds it must be told.
    pub(crate) fn cancellation(&self, heeds: bool) -> Option<ToolError> {
        (heeds && self.is_cancelled()).then(|| self.with(Machine::cancellation))
    }

    /// Looks at what an earlier owner's journal has at `path` and no body asked for yet.
    pub(crate) fn standing<R>(&self, path: &Path, look: impl FnOnce(&Standing) -> R) -> Option<R> {
        if self.has_past { self.with(|machine| machine.standing(path).map(look)) } else { None }
    }

    /// Whether the next attempt must be announced, because a process died with this run before.
    pub(crate) fn suspect(&self) -> bool {
        self.has_past && self.with(Machine::suspect)
    }

    pub(crate) fn origin(self: &Arc<Self>) -> Origin {
        Origin {
            run: self.id,
            generation: self.generation,
            session: self.session.clone(),
            reach: self.kernel.reach.clone(),
            home: Arc::downgrade(self),
            lasts: limits::ATTEMPT_TIMEOUT,
            effect: Effect::Once,
        }
    }

    /// The outcome at `path`, once recorded, may refer to these.
    pub(crate) fn vouch(&self, path: &Path, artifacts: Vec<ArtifactId>) {
        if !artifacts.is_empty() {
            self.with(|machine| machine.refs.vouch(path, artifacts));
        }
    }

    /// Another worker has the run by now, or may have: nothing more is done here.
    pub(crate) fn lose(&self) {
        self.with(Machine::lose);
    }

    pub(crate) fn hold(&self, hold: Hold) {
        self.with(|machine| machine.hold(hold));
    }

    /// Turns a reading of the ticks into an instant.
    pub(crate) fn at(&self, ticks: u64) -> Timestamp {
        let nanos = self.ahead.load(Ordering::Relaxed).saturating_add(i64::try_from(ticks).unwrap_or(i64::MAX));
        Timestamp::from_micros(nanos.div_euclid(1_000))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at(self.kernel.env.clock.ticks())
    }

    /// Reads the wall clock anew; after a pause the ticks alone may have missed time.
    pub(crate) fn rebase(&self) {
        self.ahead.store(ahead((self.kernel.env.clock.now(), self.kernel.env.clock.ticks())), Ordering::Relaxed);
    }

    /// Adds to the journal.
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

    /// Ready once everything up to `mark` is durable. Registers nothing: the caller registers with [`Registration::register`].
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

    /// The same of a mark that somebody waits for already, so that it is on its way or will be.
    pub(crate) fn has_durable(&self, mark: u64) -> bool {
        self.with(|machine| machine.outbox().is_durable(mark))
    }

    /// Sends what is buffered, if anything is, without waiting for it: a body is about to stand still.
    pub(crate) fn pump(self: &Arc<Self>) {
        if let Some(commit) = self.with(Machine::next_commit) {
            self.send(commit);
        }
    }

    /// Sends a commit, and whatever else there is once it is answered.
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

    /// Whether the run has gone on for long enough without ever waiting, because the store wrote each commit at once: then
    /// the other tasks of its thread are next.
    fn is_turn_over(&self) -> bool {
        self.at_once.fetch_add(1, Ordering::Relaxed) % TURN == TURN - 1
    }

    /// Whether everything in it stands still and is parked.
    pub(crate) fn is_asleep(&self) -> bool {
        self.waited.load(Ordering::Acquire)
            && self.polled.load(Ordering::Acquire) == 0
            && self.awake.load(Ordering::Acquire) == 0
    }

    /// Whoever drives the run is woken when no other thread polls any branch of it, unless none does now.
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

    /// Whether it has to stay here on account of its keys: another worker that takes it up does not know of its places.
    pub(crate) fn is_bound_by_keys(&self) -> bool {
        self.kernel.lease.length.is_some() && !self.kernel.admission.keys.of(self.id).is_empty()
    }

    /// Whether the run has stopped for a while: its operations keep their places in the queues of keys.
    pub(crate) fn keeps_places(&self) -> bool {
        let is_paused = |machine: &mut Machine| {
            matches!(machine.stop(), Some(Stop::Suspended { .. } | Stop::Held(_) | Stop::Reload(_) | Stop::Lapsed))
        };
        self.is_halted() && self.with(is_paused)
    }

    /// Gives up a place once everything that the run has said so far is durable: until then the operation that had it may
    /// turn out not to be over.
    pub(crate) fn leave_queue(&self, turn: KeyTurn) {
        let left = self.with(|machine| {
            machine.leave_when_durable(turn);
            machine.take_left()
        });
        self.release(left);
    }

    fn release(&self, left: Vec<KeyTurn>) {
        for next in left.iter().filter_map(|turn| self.kernel.admission.keys.release(turn)) {
            self.kernel.nudge(next);
        }
    }

    /// Gives up the places of operations at or below a path that is left for good.
    pub(crate) fn leave_queues_below(&self, path: &Path) {
        for next in self.kernel.admission.keys.release_below(self.id, path) {
            self.kernel.nudge(next);
        }
    }

    /// Something in it waits for the mailbox or for a time.
    pub(crate) fn note_wait(&self) {
        self.waited.store(true, Ordering::Release);
    }

    pub(crate) fn pump_if_due(self: &Arc<Self>) {
        if self.with(|machine| machine.outbox().is_due()) {
            self.pump();
        }
    }

    /// The store answered the commit on its way; returns the next one, if it is to be sent now.
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

    /// The store failed where no commit of the run was on its way.
    pub(crate) fn failed(&self, error: StoreError) {
        self.with(|machine| machine.answered(Err(error)));
        self.wake();
    }

    /// Waits until everything that is known of the run so far is durable, or nobody can say any more.
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

    /// Wakes every future that waits for something to happen to the run.
    pub(crate) fn wake(&self) {
        let mut wakers: SmallVec<[Waker; 2]> = SmallVec::new();
        for waker in self.interest.lock().slots.iter_mut().filter_map(Option::take) {
            // What an operation waits for, its body and whoever drives the run wait for too, in one task.
            if wakers.iter().rev().take(2).all(|other| !other.will_wake(&waker)) {
                wakers.push(waker);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Fetches new mail. If it cannot be read now it is read later: whoever wrote it does not write again, and a run that
    /// is not suspended has no other way to learn of it.
    pub(crate) async fn look_for_mail(self: &Arc<Self>) {
        let Err(error) = self.fetch_mail().await else { return };
        self.kernel.troubled(Some(self.id), "a mailbox cannot be read", &error);
        if self.looks_again.swap(true, Ordering::AcqRel) {
            return;
        }
        let run = self.clone();
        self.kernel.env.spawn.spawn(Box::pin(async move {
            while !run.is_halted() {
                run.kernel.env.clock.sleep(limits::LOOK_AGAIN).await;
                run.looks_again.store(false, Ordering::Release);
                if run.fetch_mail().await.is_ok() || run.looks_again.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }));
    }

    /// Fetches new mail.
    async fn fetch_mail(&self) -> Result<(), StoreError> {
        let seen = self.with(|machine| machine.seen());
        let mail = self.kernel.store.mail(self.id, seen).await?;
        self.deliver(mail);
        Ok(())
    }

    /// New mail is here; wakes what waits for it.
    pub(crate) fn deliver(&self, mail: Vec<Mail>) {
        let now = self.now();
        self.with(|machine| mail.into_iter().for_each(|mail| machine.deliver(mail, now)));
        self.wake();
    }
}

/// Held while a branch with a task of its own is polled. Between two of its operations it holds nothing else, and is far
/// from standing still.
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

/// Held by what stands still and is not parked: a run with any of these is not suspended.
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
        // The last one tells whoever drives the run, which may stand still on another thread.
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

/// What a wall clock and ticks of the same moment differ by. Nanoseconds since 1970 fit until the year 2262.
fn ahead((wall, ticks): (Timestamp, u64)) -> i64 {
    wall.as_micros().saturating_mul(1_000).saturating_sub(i64::try_from(ticks).unwrap_or(i64::MAX))
}

/// A future's place among those that are woken when something happens to the run.
#[derive(Default)]
pub(crate) struct Registration(Option<(Arc<Run>, usize)>);

impl Registration {
    /// Asks to be woken, once, at the next event of the run.
    pub(crate) fn register(&mut self, run: &Arc<Run>, cx: &Context<'_>) {
        let mut interest = run.interest.lock();
        match &self.0 {
            Some((_, slot)) => match &mut interest.slots[*slot] {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                place => *place = Some(cx.waker().clone()),
            },
            None => {
                let slot = interest.free.pop().unwrap_or_else(|| {
                    interest.slots.push(None);
                    interest.slots.len() - 1
                });
                interest.slots[slot] = Some(cx.waker().clone());
                drop(interest);
                self.0 = Some((run.clone(), slot));
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((run, slot)) = self.0.take() {
            let mut interest = run.interest.lock();
            interest.slots[slot] = None;
            interest.free.push(slot);
        }
    }
}
