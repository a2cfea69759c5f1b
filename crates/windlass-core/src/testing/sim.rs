//! A single-thread executor that is seeded and whose clock is virtual: the same seed runs the same way again, and time
//! moves only when nothing else can.

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

/// Where virtual time begins: some moment in 2026, so that instants look like instants.
const EPOCH: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// The executor. Cloning shares it.
#[derive(Clone)]
pub struct Sim(Arc<Inner>);

struct Inner {
    tasks: Mutex<Tasks>,
    ready: Mutex<Ready>,
    /// By time, and then by age.
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    nanos: Arc<AtomicU64>,
    /// Answers that other threads owe, in the order they were asked for; time stands still until they come, and they are
    /// delivered in that order, so that another thread's speed decides nothing.
    owed: Mutex<BTreeMap<u64, Option<Delivery>>>,
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

/// Tasks that want to be polled: in no order that matters, each once.
#[derive(Default)]
struct Ready {
    tasks: Vec<u64>,
    known: BTreeSet<u64>,
}

impl Ready {
    fn add(&mut self, task: u64) {
        if self.known.insert(task) {
            self.tasks.push(task);
        }
    }

    fn take(&mut self, choice: u64) -> Option<u64> {
        let index = usize::try_from(choice % (self.tasks.len() as u64).max(1)).unwrap_or(0);
        let task = (index < self.tasks.len()).then(|| self.tasks.swap_remove(index))?;
        self.known.remove(&task);
        Some(task)
    }
}

/// What brought a [`Sim::run`] to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The condition holds.
    Done,
    /// Nothing can move any more unless time does.
    Quiet,
    /// Nothing can move any more.
    Stuck,
    /// It was killed.
    Killed,
}

impl Sim {
    /// An executor whose choices follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with_clock(seed, Arc::default())
    }

    /// The executor of a later process: its clock goes on from here.
    #[must_use]
    pub fn later(&self, seed: u64) -> Self {
        Self::with_clock(seed, Arc::new(AtomicU64::new(self.ticks())))
    }

    /// The executor of another process at the same time: they share the clock.
    #[must_use]
    pub(crate) fn beside(&self, seed: u64) -> Self {
        Self::with_clock(seed, self.0.nanos.clone())
    }

    fn with_clock(seed: u64, nanos: Arc<AtomicU64>) -> Self {
        Self(Arc::new(Inner {
            tasks: Mutex::default(),
            ready: Mutex::default(),
            timers: Mutex::default(),
            nanos,
            owed: Mutex::default(),
            random: Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            thread: Mutex::default(),
            killed: AtomicBool::new(false),
        }))
    }

    /// Runs `future`, and everything spawned meanwhile, until it is done. `None` if nothing can move any more.
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

    /// Runs tasks until `done` says so or nothing can move.
    pub(crate) fn run(&self, done: impl Fn() -> bool) -> Idle {
        loop {
            match self.run_now(&done) {
                Idle::Quiet if self.advance() => {}
                Idle::Quiet => return Idle::Stuck,
                idle => return idle,
            }
        }
    }

    /// The same, as far as it goes without time passing.
    pub(crate) fn run_now(&self, done: impl Fn() -> bool) -> Idle {
        loop {
            if self.0.killed.load(Ordering::Acquire) {
                return Idle::Killed;
            }
            if done() {
                return Idle::Done;
            }
            if !self.step() {
                return Idle::Quiet;
            }
        }
    }

    /// Does one thing, if there is one that can be done now.
    pub(crate) fn step(&self) -> bool {
        *self.0.thread.lock() = Some(std::thread::current());
        if let Some(id) = self.pick() {
            self.poll(id);
        } else if let Some(delivery) = self.oldest_owed() {
            delivery();
        } else {
            return false;
        }
        true
    }

    /// Whether anything can be done now.
    pub(crate) fn is_ready(&self) -> bool {
        !self.0.ready.lock().tasks.is_empty() || !self.0.owed.lock().is_empty()
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

    /// Rings every timer whose time has come.
    pub(crate) fn ring(&self) {
        let now = self.ticks();
        let mut timers = self.0.timers.lock();
        let later = timers.split_off(&(now + 1, 0));
        let due = std::mem::replace(&mut *timers, later);
        drop(timers);
        due.into_values().for_each(Waker::wake);
    }

    /// When the next timer rings.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.0.timers.lock().first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves time, unless it is later already.
    pub(crate) fn pass_to(&self, nanos: u64) {
        self.0.nanos.fetch_max(nanos, Ordering::AcqRel);
    }

    /// Stops everything where it stands: no task is ever polled again.
    pub(crate) fn kill(&self) {
        self.0.killed.store(true, Ordering::Release);
    }

    /// How many tasks have not ended.
    pub fn tasks(&self) -> usize {
        self.0.tasks.lock().all.len()
    }

    /// Drops all tasks where they stand.
    pub fn bury(&self) {
        *self.0.thread.lock() = Some(std::thread::current());
        loop {
            let tasks = std::mem::take(&mut self.0.tasks.lock().all);
            let none = tasks.is_empty();
            // What is dropped may spawn, and what is spawned may keep all of it alive.
            drop(tasks);
            // What other threads still owe is waited for and thrown away, so that nothing of this process is left in them.
            match self.oldest_owed() {
                Some(delivery) => drop(delivery),
                None if none => return,
                None => {}
            }
        }
    }

    /// The store as tasks of this executor must see it: answers from other threads come in a fixed order.
    pub fn attach(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Attached { store, sim: self.clone() })
    }

    /// Waits until every answer that is owed is there, delivered or not.
    fn catch_up(&self) {
        *self.0.thread.lock() = Some(std::thread::current());
        while self.0.owed.lock().values().any(Option::is_none) {
            std::thread::park();
        }
    }

    /// Waits for the oldest answer that is owed.
    fn oldest_owed(&self) -> Option<Delivery> {
        loop {
            {
                let mut owed = self.0.owed.lock();
                let mut oldest = owed.first_entry()?;
                if let Some(delivery) = oldest.get_mut().take() {
                    oldest.remove();
                    return Some(delivery);
                }
            }
            // Whoever pays unparks this thread.
            std::thread::park();
        }
    }

    fn owe<T: Send + 'static>(&self, ticket: Ticket<T>) -> Ticket<T> {
        let (promise, outer) = Promise::pair();
        let id = {
            let mut tasks = self.0.tasks.lock();
            tasks.next += 1;
            tasks.next
        };
        self.0.owed.lock().insert(id, None);
        let inner = self.0.clone();
        ticket.then(move |answer| {
            inner.owed.lock().insert(id, Some(Box::new(move || promise.answer(answer))));
            if let Some(thread) = &*inner.thread.lock() {
                thread.unpark();
            }
        });
        outer
    }
}

/// See [`Sim::attach`].
struct Attached {
    store: Arc<dyn Store>,
    sim: Sim,
}

impl Around for Attached {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        match self.store.commit(commit) {
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Wait(ticket) => Answer::Wait(self.sim.owe(ticket)),
        }
    }

    /// Everything that was told to the store is written by the time it is looked at, and the answer is waited for on the spot:
    /// what a look finds does not depend on how fast another thread is, and the process sees no time pass.
    fn ask<'a, T: Send + 'a>(
        &'a self,
        _: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        self.sim.catch_up();
        Box::pin(std::future::ready(block_on(ask(&*self.store))))
    }
}

struct TaskWaker {
    id: u64,
    sim: Arc<Inner>,
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
    sim: Arc<Inner>,
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

/// Runs one future on this thread to its end, without an executor: for reading from stores in tests.
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
