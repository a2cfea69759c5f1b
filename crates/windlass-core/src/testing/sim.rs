//! A seeded single-thread executor with a virtual clock: the same seed runs the same way again, and time moves only
//! when no task can run.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;

use futures_util::future::BoxFuture;

use super::{Around, Asked, Request};
use crate::spawn::Spawn;
use crate::store::{Answer, Commit, Promise, Store, Ticket};
use crate::time::{Clock, Timestamp};

/// The start of virtual time: a moment in 2026, so that timestamps look realistic.
const EPOCH: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// A seeded executor and virtual clock. Clones share it.
#[derive(Clone)]
pub struct Sim(Arc<SimState>);

struct SimState {
    tasks: Mutex<Tasks>,
    ready: Mutex<ReadyTasks>,
    /// Timers by their time, and then by their age.
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    nanos: Arc<AtomicU64>,
    /// Answers that are expected from other threads, in the order of their requests. Time does not move until they
    /// arrive, and they are delivered in this order, so that the speed of other threads has no influence.
    expected_answers: Mutex<BTreeMap<u64, Option<Delivery>>>,
    random: Mutex<u64>,
    thread: Mutex<Option<Thread>>,
    killed: AtomicBool,
}

type Delivery = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Tasks {
    next: u64,
    all: BTreeMap<u64, BoxFuture<'static, ()>>,
}

/// Tasks to be polled, each once.
#[derive(Default)]
struct ReadyTasks {
    tasks: Vec<u64>,
    queued: BTreeSet<u64>,
}

impl ReadyTasks {
    fn add(&mut self, task: u64) {
        if self.queued.insert(task) {
            self.tasks.push(task);
        }
    }

    fn take(&mut self, choice: u64) -> Option<u64> {
        let index = usize::try_from(choice % (self.tasks.len() as u64).max(1)).unwrap_or(0);
        let task = (index < self.tasks.len()).then(|| self.tasks.swap_remove(index))?;
        self.queued.remove(&task);
        Some(task)
    }
}

/// Why [`Sim::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimStop {
    /// The condition is met.
    Done,
    /// No task can run unless time moves.
    Quiet,
    /// No task can run, and there is no timer.
    Stuck,
    /// The executor was killed.
    Killed,
}

impl Sim {
    /// An executor whose choices are determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with_clock(seed, Arc::default())
    }

    /// The executor of a later process: its clock continues from here.
    #[must_use]
    pub fn later(&self, seed: u64) -> Self {
        Self::with_clock(seed, Arc::new(AtomicU64::new(self.ticks())))
    }

    /// The executor of another process at the same time: the two share the clock.
    #[must_use]
    pub fn beside(&self, seed: u64) -> Self {
        Self::with_clock(seed, self.0.nanos.clone())
    }

    fn with_clock(seed: u64, nanos: Arc<AtomicU64>) -> Self {
        Self(Arc::new(SimState {
            tasks: Mutex::default(),
            ready: Mutex::default(),
            timers: Mutex::default(),
            nanos,
            expected_answers: Mutex::default(),
            random: Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            thread: Mutex::default(),
            killed: AtomicBool::new(false),
        }))
    }

    /// Runs `future` and everything it spawns until it is done. `None` if it cannot make progress any more.
    pub fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        self.spawn(Box::pin(async move {
            let value = future.await;
            *slot.lock() = Some(value);
        }));
        self.run(|| result.lock().is_some());
        result.lock().take()
    }

    /// Runs tasks until `done` returns true or no task can run.
    pub(crate) fn run(&self, done: impl Fn() -> bool) -> SimStop {
        loop {
            match self.run_now(&done) {
                SimStop::Quiet if self.advance() => {}
                SimStop::Quiet => return SimStop::Stuck,
                idle => return idle,
            }
        }
    }

    /// Like [`run`](Self::run), without moving time.
    pub(crate) fn run_now(&self, done: impl Fn() -> bool) -> SimStop {
        loop {
            if self.0.killed.load(Ordering::Acquire) {
                return SimStop::Killed;
            }
            if done() {
                return SimStop::Done;
            }
            if !self.step() {
                return SimStop::Quiet;
            }
        }
    }

    /// Polls one task or delivers one answer. Returns false if there is none.
    pub fn step(&self) -> bool {
        *self.0.thread.lock() = Some(std::thread::current());
        if let Some(id) = self.pick() {
            self.poll(id);
        } else if let Some(delivery) = self.next_answer() {
            delivery();
        } else {
            return false;
        }
        true
    }

    /// Whether there is a task to poll or an expected answer.
    pub(crate) fn is_ready(&self) -> bool {
        !self.0.ready.lock().tasks.is_empty() || !self.0.expected_answers.lock().is_empty()
    }

    fn pick(&self) -> Option<u64> {
        let mut ready = self.0.ready.lock();
        if ready.tasks.is_empty() {
            return None;
        }
        let choice = self.random();
        ready.take(choice)
    }

    fn random(&self) -> u64 {
        let mut state = self.0.random.lock();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn poll(&self, id: u64) {
        let Some(mut task) = self.0.tasks.lock().all.remove(&id) else { return };
        let waker = Waker::from(Arc::new(TaskWaker { id, sim: self.0.clone() }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.0.tasks.lock().all.insert(id, task);
        }
    }

    /// Moves time to the next timer.
    pub(crate) fn advance(&self) -> bool {
        let Some(((at, _), waker)) = self.0.timers.lock().pop_first() else { return false };
        self.0.nanos.fetch_max(at, Ordering::AcqRel);
        waker.wake();
        true
    }

    /// Wakes every timer whose time has come.
    pub fn fire_due_timers(&self) {
        let now = self.ticks();
        let mut timers = self.0.timers.lock();
        let later = timers.split_off(&(now + 1, 0));
        let due = std::mem::replace(&mut *timers, later);
        drop(timers);
        due.into_values().for_each(Waker::wake);
    }

    /// The time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.0.timers.lock().first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves time forward to this point; no effect if it is later already.
    pub(crate) fn pass_to(&self, nanos: u64) {
        self.0.nanos.fetch_max(nanos, Ordering::AcqRel);
    }

    /// Kills the executor: no task is polled again.
    pub(crate) fn kill(&self) {
        self.0.killed.store(true, Ordering::Release);
    }

    /// The number of tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.0.tasks.lock().all.len()
    }

    /// Drops all tasks, as if the process died.
    pub fn bury(&self) {
        *self.0.thread.lock() = Some(std::thread::current());
        loop {
            let tasks = std::mem::take(&mut self.0.tasks.lock().all);
            let none = tasks.is_empty();
            // A task that is dropped may spawn others, which may keep all of them alive.
            drop(tasks);
            // Wait for expected answers and drop them, so that no other thread still works for this process.
            match self.next_answer() {
                Some(delivery) => drop(delivery),
                None if none => return,
                None => {}
            }
        }
    }

    /// Wraps a store for the tasks of this executor: answers from other threads are delivered in a fixed order.
    pub fn attach(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(AttachedStore { store, sim: self.clone() })
    }

    /// Waits until all expected answers have arrived, delivered or not.
    fn wait_for_answers(&self) {
        *self.0.thread.lock() = Some(std::thread::current());
        while self.0.expected_answers.lock().values().any(Option::is_none) {
            std::thread::park();
        }
    }

    /// Waits for the oldest expected answer and removes it.
    fn next_answer(&self) -> Option<Delivery> {
        loop {
            {
                let mut expected_answers = self.0.expected_answers.lock();
                let mut oldest = expected_answers.first_entry()?;
                if let Some(delivery) = oldest.get_mut().take() {
                    oldest.remove();
                    return Some(delivery);
                }
            }
            // The thread that answers unparks this one.
            std::thread::park();
        }
    }

    fn expect_answer<T: Send + 'static>(&self, ticket: Ticket<T>) -> Ticket<T> {
        let (promise, outer) = Promise::pair();
        let id = {
            let mut tasks = self.0.tasks.lock();
            tasks.next += 1;
            tasks.next
        };
        self.0.expected_answers.lock().insert(id, None);
        let inner = self.0.clone();
        ticket.then(move |answer| {
            inner.expected_answers.lock().insert(id, Some(Box::new(move || promise.answer(answer))));
            if let Some(thread) = &*inner.thread.lock() {
                thread.unpark();
            }
        });
        outer
    }
}

/// See [`Sim::attach`].
struct AttachedStore {
    store: Arc<dyn Store>,
    sim: Sim,
}

impl Around for AttachedStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        match self.store.commit(commit) {
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Wait(ticket) => Answer::Wait(self.sim.expect_answer(ticket)),
        }
    }

    /// Waits until everything submitted before is written, and waits for the answer on the spot: what is read does not
    /// depend on the speed of other threads, and no virtual time passes.
    fn ask<'a, T: Send + 'a>(
        &'a self,
        _: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        self.sim.wait_for_answers();
        Box::pin(std::future::ready(block_on(ask(&*self.store))))
    }
}

struct TaskWaker {
    id: u64,
    sim: Arc<SimState>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.sim.ready.lock().add(self.id);
    }
}

impl Spawn for Sim {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let id = {
            let mut tasks = self.0.tasks.lock();
            tasks.next += 1;
            let id = tasks.next;
            tasks.all.insert(id, task);
            id
        };
        self.0.ready.lock().add(id);
    }

    fn spawn_cpu(&self, task: BoxFuture<'static, ()>) {
        self.spawn(task);
    }
}

impl Clock for Sim {
    fn now(&self) -> Timestamp {
        EPOCH + Duration::from_nanos(self.ticks())
    }

    fn ticks(&self) -> u64 {
        self.0.nanos.load(Ordering::Acquire)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Box::pin(Sleep { sim: self.0.clone(), at: self.ticks().saturating_add(nanos), id: None })
    }
}

struct Sleep {
    sim: Arc<SimState>,
    at: u64,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.sim.nanos.load(Ordering::Acquire) >= self.at {
            return Poll::Ready(());
        }
        let id = match self.id {
            Some(id) => id,
            None => {
                let mut tasks = self.sim.tasks.lock();
                tasks.next += 1;
                tasks.next
            }
        };
        self.id = Some(id);
        self.sim.timers.lock().insert((self.at, id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.sim.timers.lock().remove(&(self.at, id));
        }
    }
}

/// Runs one future to its end on this thread, without an executor. For reading from stores in tests.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
