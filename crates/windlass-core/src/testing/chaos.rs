//! The simulator: workers that die, freeze and lose the store, and clients that start runs and answer them, all at
//! random and determined by one seed. A model of the guarantees checks the result.

mod clients;
mod clock;
mod link;
mod model;
mod plant;
mod rng;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;

use super::crash::{Disk, MemoryDisk};
use super::sim::{Sim, block_on};
use crate::id::RunId;
use crate::run::record::{Event, Recorded};
use crate::run::reply::Signer;
use crate::run::state::RunState;
use crate::runtime::{Config, Runtime};
use crate::spawn::Spawn;
use crate::store::{Access, Filter, Store};
use crate::time::{Clock, Timestamp};
use crate::tool::{Artifact, ToolError};
use clients::{Clients, WantedRun};
use clock::WorkerClock;
use link::{LinkedStore, WorkerLink};
use model::Model;
use plant::{Plant, planted};
use rng::Rng;

/// How many random steps happen before failures stop.
const STEPS: u64 = 160;
/// How long all runs have to end once nothing fails any more, in nanoseconds. Shorter than the deadlines of the waits,
/// so that a lost wake-up is not hidden by a timeout.
const TIME_TO_END: u64 = 600_000_000_000;
/// How far time moves if no worker has a timer.
const STEP: u64 = 3_000_000_000;
/// How long a worker that does not renew its lease keeps its runs.
const LEASE: Duration = Duration::from_secs(10);

/// A random history of a few workers, determined by a seed.
///
/// ```
/// use windlass_core::testing::Chaos;
/// let story = Chaos::seed(7).run();
/// assert!(story.runs > 0);
/// assert_eq!(story.log, Chaos::seed(7).run().log, "a seed determines the history");
/// ```
///
/// It uses a store in memory, or a [`disk`](Chaos::disk) of your own, on which the same seed must lead to the same
/// history.
pub struct Chaos {
    seed: u64,
    disk: Box<dyn Fn() -> Box<dyn Disk>>,
    /// Whether the store may notify workers of changes.
    notifies: bool,
}

/// What happened in a simulation.
#[derive(Clone, Debug)]
pub struct Story {
    /// The log, line by line.
    pub log: Vec<String>,
    /// The number of runs.
    pub runs: usize,
    /// The violated guarantees; empty if there are none.
    pub problems: Vec<String>,
}

impl Chaos {
    /// The simulation with this seed.
    pub fn seed(seed: u64) -> Self {
        Self { seed, disk: Box::new(|| Box::new(MemoryDisk::default())), notifies: true }
    }

    /// Keeps the journals on this disk instead of in memory. A single worker opens it, and its successor opens it again
    /// after its death. Several workers share the store that was opened at the start. With a disk, no worker is
    /// notified of changes, and each has its own admission: stores differ in this, and the history must be the same on
    /// all of them.
    #[must_use]
    pub fn disk<D: Disk + 'static>(mut self, disk: impl Fn() -> D + 'static) -> Self {
        self.disk = Box::new(move || Box::new(disk()));
        self.notifies = false;
        self
    }

    /// Runs the simulation.
    ///
    /// # Panics
    ///
    /// If a guarantee was violated; the message contains the seed and the log.
    pub fn run(&self) -> Story {
        let story = self.story();
        assert!(
            story.problems.is_empty(),
            "seed {} violated a guarantee:\n  {}\nwhat happened:\n{}",
            self.seed,
            story.problems.join("\n  "),
            story.log.join("\n")
        );
        story
    }

    /// Runs the simulation and returns violations instead of panicking.
    pub fn story(&self) -> Story {
        let disk = (self.disk)();
        let mut world = World::new(self.seed, &*disk, self.notifies);
        world.inject_failures();
        world.stop_failures();
        world.check_results();
        let runs = world.all_runs().len();
        world.workers.iter().flatten().for_each(Worker::discard);
        Story { log: world.model.log(), runs, problems: world.model.problems() }
    }
}

struct World<'d> {
    seed: u64,
    rng: Rng,
    /// The shared clock; it runs no tasks.
    clock: Sim,
    disk: &'d dyn Disk,
    /// Whether the store may notify workers of changes.
    notifies: bool,
    store: Option<Arc<dyn Store>>,
    model: Arc<Model>,
    clients: Clients,
    workers: Vec<Option<Worker>>,
    /// How many workers there have been.
    started: u64,
}

struct Worker {
    sim: Sim,
    link: Arc<WorkerLink>,
    runtime: Runtime,
    frozen: bool,
    clock: Arc<WorkerClock>,
    /// Whether it has recovered the runs of earlier workers. Before that, it does not know which keys are held.
    recovered: Arc<AtomicBool>,
}

impl Worker {
    /// Whether it can run.
    fn is_awake(&self) -> bool {
        !self.frozen && !self.link.is_dead()
    }

    fn discard(&self) {
        self.sim.bury();
        self.link.close();
        // A waiter that learns that no answer comes may spawn a task.
        self.sim.bury();
    }
}

impl<'d> World<'d> {
    fn new(seed: u64, disk: &'d dyn Disk, notifies: bool) -> Self {
        let clock = Sim::new(seed);
        let model = Arc::new(Model::new(clock.clone()));
        let mut rng = Rng::new(seed);
        let count = 1 + usize::from(rng.one_in(2));
        let clients = Clients { model: model.clone(), wanted: Arc::default() };
        let workers = (0..count).map(|_| None).collect();
        let mut world = Self { seed, rng, clock, disk, notifies, store: None, model, clients, workers, started: 0 };
        (0..count).for_each(|slot| world.start_worker(slot));
        world
    }

    /// The store of the first worker, or of the latest one if there is only one at a time.
    fn store(&self) -> Arc<dyn Store> {
        match &self.store {
            Some(store) => store.clone(),
            None => panic!("no worker has been started"),
        }
    }

    /// Whether there is one worker at a time. It knows that its predecessor is dead; several workers have only their
    /// leases.
    fn is_alone(&self) -> bool {
        self.workers.len() == 1
    }

    fn start_worker(&mut self, slot: usize) {
        self.started += 1;
        let seed = self.seed.wrapping_mul(1_000).wrapping_add(self.started);
        let sim = self.clock.beside(seed);
        let name = format!("worker {}", self.started);
        let link = Arc::new(WorkerLink::new(name, sim.clone(), self.model.clone(), Rng::new(seed)));
        if self.is_alone() {
            // The process that had it open is dead.
            self.store = None;
        }
        let store = self.store.get_or_insert_with(|| self.disk.open()).clone();
        let linked = LinkedStore { store, link: link.clone(), notifies: self.notifies };
        let clock = Arc::new(WorkerClock::new(sim.clone()));
        let mut config = Config::new(Arc::new(linked), clock.clone(), Arc::new(sim.clone()));
        config.seed = Some(seed);
        if !self.is_alone() {
            config.lease = Some(LEASE);
        }
        if self.rng.one_in(2) {
            config.suspend_after = Duration::ZERO;
        }
        for tool in tools::tools(&link) {
            if let Err(error) = config.toolbox.insert(tool) {
                panic!("{error}");
            }
        }
        let runtime = Runtime::new(config);
        #[cfg(test)]
        if planted(Plant::ForgetRequests) {
            runtime.kernel().roster.ignore_claims();
        }
        let recovered = Arc::new(AtomicBool::new(false));
        let (recovering, timer, done) = (runtime.clone(), sim.clone(), recovered.clone());
        sim.spawn(Box::pin(async move {
            while recovering.recover().await.is_err() {
                timer.sleep(Duration::from_secs(1)).await;
            }
            done.store(true, Ordering::Release);
        }));
        self.model.log_line(format!("{} starts", link.name));
        self.workers[slot] = Some(Worker { sim, link, runtime, frozen: false, clock, recovered });
    }

    /// Injects failures and lets clients act.
    fn inject_failures(&mut self) {
        for _ in 0..STEPS {
            match self.rng.below(100) {
                0..=1 => self.kill_one(),
                2..=3 => self.freeze_one(),
                4..=8 => self.unfreeze_one(),
                9 => self.jump_clock(),
                10 => self.disconnect_one(),
                11 => self.stall_one(),
                12..=30 => self.act(),
                _ => self.work(),
            }
            self.replace_dead_workers();
        }
    }

    fn pick_slot(&mut self) -> usize {
        usize::try_from(self.rng.below(self.workers.len() as u64)).unwrap_or(0)
    }

    fn kill_one(&mut self) {
        let slot = self.pick_slot();
        if let Some(worker) = &self.workers[slot] {
            self.model.log_line(format!("{} is killed", worker.link.name));
            worker.link.kill();
        }
    }

    fn freeze_one(&mut self) {
        let slot = self.pick_slot();
        if let Some(worker) = &mut self.workers[slot] {
            self.model.log_line(format!("{} freezes", worker.link.name));
            worker.frozen = true;
        }
    }

    fn unfreeze_one(&mut self) {
        let slot = self.pick_slot();
        if let Some(worker) = self.workers[slot].as_mut().filter(|worker| worker.frozen) {
            self.model.log_line(format!("{} unfreezes", worker.link.name));
            worker.frozen = false;
            worker.sim.fire_due_timers();
        }
    }

    /// Stops a worker for longer than its lease, while the others go on: they take over its runs. Then it goes on where it
    /// was, without knowing that.
    fn stall_one(&mut self) {
        let slot = self.pick_slot();
        let nanos = u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
        let stalled = nanos + self.rng.below(20 * nanos);
        let Some(worker) = self.workers[slot].as_mut().filter(|worker| worker.is_awake()) else { return };
        self.model.log_line(format!("{} stands still for {} ms", worker.link.name, stalled / 1_000_000));
        worker.frozen = true;
        let until = self.clock.ticks() + stalled;
        while self.clock.ticks() < until {
            let awake = self.workers.iter().flatten().filter(|worker| worker.is_awake());
            if awake.filter(|worker| worker.sim.step()).count() == 0 {
                self.advance();
            }
        }
        if let Some(worker) = self.workers[slot].as_mut() {
            self.model.log_line(format!("{} goes on", worker.link.name));
            if planted(Plant::StandingClock) {
                worker.clock.lag(stalled);
            }
            worker.frozen = false;
            worker.sim.fire_due_timers();
        }
    }

    fn jump_clock(&mut self) {
        let far = [1_000, 60_000, 200_000, 5_000_000][usize::try_from(self.rng.below(4)).unwrap_or(0)];
        let millis = self.rng.below(far);
        self.model.log_line(format!("the clock jumps {millis} ms"));
        self.pass_to(self.clock.ticks() + millis * 1_000_000);
    }

    fn disconnect_one(&mut self) {
        let slot = self.pick_slot();
        let until = self.clock.ticks() + self.rng.below(20_000_000_000);
        if let Some(worker) = &self.workers[slot] {
            self.model.log_line(format!("{} cannot reach the store", worker.link.name));
            worker.link.fail_until(until);
        }
    }

    /// A client sends a request through some worker.
    fn act(&mut self) {
        let slot = self.pick_slot();
        let (choice, kind) = (self.rng.next_number(), self.rng.below(20));
        let wanted = self.clients.wanted.lock().clone();
        let index = usize::try_from(choice % (wanted.len() as u64).max(1)).unwrap_or(0);
        let Some(worker) = self.workers[slot].as_ref().filter(|worker| worker.is_awake()) else { return };
        let (runtime, clients, sim) = (worker.runtime.clone(), self.clients.clone(), &worker.sim);
        let tool = self.rng.pick(tools::NAMES).copied().unwrap_or("pay");
        let may_start = |tool: &str| tool != "shift" || worker.recovered.load(Ordering::Acquire);
        match kind {
            0..=4 if may_start(tool) => {
                let mut wanted = self.clients.wanted.lock();
                wanted.push(WantedRun { tool, run: None, sent: 0, cancelled: false });
                let index = wanted.len() - 1;
                drop(wanted);
                sim.spawn(Box::pin(clients.start(runtime, index)));
            }
            5 => {
                let tool = ["look", "set", "pay"][usize::try_from(choice % 3).unwrap_or(0)];
                sim.spawn(Box::pin(clients.call(runtime, tool, self.store())));
            }
            6..=11 if !wanted.is_empty() => {
                if wanted[index].run.is_none() {
                    if !may_start(wanted[index].tool) {
                        return;
                    }
                    sim.spawn(Box::pin(clients.start(runtime, index)));
                } else if matches!(wanted[index].tool, "listener" | "counter") {
                    sim.spawn(Box::pin(clients.signal(runtime, index)));
                }
            }
            12..=16 => sim.spawn(Box::pin(clients.answer_one(runtime, choice))),
            17..=18 => sim.spawn(Box::pin(clients.settle_one(runtime, choice))),
            _ if choice.is_multiple_of(2) => sim.spawn(Box::pin(clients.answer_late(runtime, choice))),
            _ if choice.is_multiple_of(3) => {
                if let Some(run) = wanted.get(index).and_then(|wanted_run| wanted_run.run) {
                    self.clients.wanted.lock()[index].cancelled = true;
                    sim.spawn(Box::pin(clients.cancel(runtime, run)));
                }
            }
            _ => {}
        }
    }

    /// Lets a worker run a few tasks; if it has none to run, time passes.
    fn work(&mut self) {
        let slot = self.pick_slot();
        let steps = 1 + self.rng.below(12);
        let done = match &self.workers[slot] {
            Some(worker) => (0..steps).take_while(|_| worker.is_awake() && worker.sim.step()).count(),
            None => 0,
        };
        if done == 0 {
            self.advance();
        }
    }

    /// Moves time to the next timer, if no running worker has a task to run.
    fn advance(&mut self) {
        let awake = || self.workers.iter().flatten().filter(|worker| worker.is_awake());
        if awake().any(|worker| worker.sim.is_ready()) {
            return;
        }
        let step = self.clock.ticks() + STEP;
        self.pass_to(awake().filter_map(|worker| worker.sim.next_timer()).fold(step, u64::min));
    }

    fn pass_to(&mut self, ticks: u64) {
        self.clock.pass_to(ticks);
        self.workers.iter().flatten().filter(|worker| !worker.frozen).for_each(|worker| worker.sim.fire_due_timers());
    }

    fn replace_dead_workers(&mut self) {
        for slot in 0..self.workers.len() {
            let dead = self.workers[slot].take_if(|worker| worker.link.is_dead());
            if let Some(worker) = dead {
                worker.discard();
            }
            if self.workers[slot].is_none() && self.rng.one_in(3) {
                self.start_worker(slot);
            }
        }
    }

    fn all_runs(&self) -> Vec<crate::run::state::RunInfo> {
        block_on(self.store().list(Filter::default(), None, 10_000)).unwrap_or_default()
    }

    /// Stops injecting failures and lets the clients help: all runs must end.
    fn stop_failures(&mut self) {
        self.model.log_line("-- no more failures --".to_owned());
        for slot in 0..self.workers.len() {
            match &mut self.workers[slot] {
                Some(worker) => {
                    worker.frozen = false;
                    worker.sim.fire_due_timers();
                }
                None => self.start_worker(slot),
            }
        }
        self.workers.iter().flatten().for_each(|worker| worker.link.stop_failures());
        let over_by = self.clock.ticks() + TIME_TO_END;
        while self.clock.ticks() < over_by {
            let quiet = self.workers.iter().flatten().filter(|worker| worker.sim.step()).count() == 0;
            if !quiet {
                continue;
            }
            if self.is_over() {
                return;
            }
            self.send_help();
            self.advance();
        }
        for info in self.all_runs() {
            if !matches!(info.state, RunState::Finished { .. }) {
                let (name, tool, state, parks) = (self.model.name(info.run), &info.tool, &info.state, &info.parks);
                self.model.problem(format!("{name}, {tool}, never ends: {state:?}, waits for {parks:?}"));
            }
        }
    }

    fn is_over(&self) -> bool {
        let open = [Filter::queued(), Filter::running(), Filter::suspended(), Filter::held()];
        let none = |filter| block_on(self.store().list(filter, None, 1)).is_ok_and(|runs| runs.is_empty());
        open.into_iter().all(none) && self.clients.wanted.lock().iter().all(|wanted_run| wanted_run.run.is_some())
    }

    /// Lets the clients do everything that runs may wait for.
    fn send_help(&self) {
        // A worker that has not recovered might start a run for a key before it knows the key's holder.
        let recovered = |worker: &&Worker| worker.recovered.load(Ordering::Acquire);
        if let Some(worker) = self.workers.iter().flatten().find(recovered) {
            worker.sim.spawn(Box::pin(self.clients.clone().help(worker.runtime.clone())));
            while worker.sim.step() {}
        }
    }

    /// Compares the result of every run with what is allowed.
    fn check_results(&self) {
        for info in self.all_runs() {
            let journal = block_on(self.store().journal(info.run, 0)).unwrap_or_default();
            self.model.compare(info.run, &journal);
            self.model.compare_told(info.run, &journal, &Signer::new(self.store().secret()));
        }
        self.check_shifts();
        let wanted = self.clients.wanted.lock().clone();
        for wanted_run in wanted {
            let Some(run) = wanted_run.run.filter(|_| !wanted_run.cancelled) else { continue };
            let Some(result) = self.result_of(run) else { continue };
            if let Err(problem) = self.check_result(&wanted_run, run, &result) {
                self.model.problem(format!(
                    "{}, {}: {problem}; its result is {result:?}",
                    self.model.name(run),
                    wanted_run.tool
                ));
            }
        }
    }

    /// Checks that only one `shift` ran at a time: a body holds its key from its first record to its last.
    fn check_shifts(&self) {
        if !self.is_alone() && !self.notifies {
            return;
        }
        let shifts = self.all_runs().into_iter().filter(|info| &*info.tool == "shift");
        let mut spans: Vec<(Timestamp, Timestamp, RunId)> = shifts
            .filter_map(|info| {
                let journal = block_on(self.store().journal(info.run, 0)).ok()?;
                let mut root = journal.iter().filter(|record| record.path.is_root());
                let entered = root.find(|record| matches!(record.event, Event::Entered))?.at;
                let ended = root.find(|record| matches!(record.event, Event::Finished(_))).map(|record| record.at);
                Some((entered, ended.unwrap_or_else(|| self.clock.now()), info.run))
            })
            .collect();
        spans.sort_unstable();
        for pair in spans.windows(2) {
            if let [(_, ended, first), (entered, _, second)] = pair
                && entered < ended
            {
                let (first, second) = (self.model.name(*first), self.model.name(*second));
                self.model.problem(format!("{first} and {second} held the till at the same time"));
            }
        }
    }

    fn result_of(&self, run: RunId) -> Option<Recorded> {
        let journal = block_on(self.store().journal(run, 0)).ok()?;
        journal.iter().rev().find_map(|record| match &record.event {
            Event::Finished(finished) if record.path.is_root() => Some(finished.answer()),
            _ => None,
        })
    }

    fn check_result(&self, wanted_run: &WantedRun, run: RunId, result: &Recorded) -> Result<(), String> {
        let count = |name: &str| self.model.count(run, name);
        let expect = |right: bool, what: &str| if right { Ok(()) } else { Err(what.to_owned()) };
        let value = result.as_ref().ok().map(|output| &output.value);
        match wanted_run.tool {
            "look" | "set" | "press" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                expect(value.is_some() || timed_out, "it must succeed or time out")
            }
            "pay" | "send" => expect(value.is_some() && count(wanted_run.tool) == 1, "it must happen once"),
            "listener" | "counter" => {
                let right = value == Some(&serde_json::json!([0, 1, 2]));
                expect(right && count("pay") == tools::NUMBERS, "it must receive every number once and in order")
            }
            "shift" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                expect(count("pay") == 1 && (value.is_some() || timed_out), "it must act once")
            }
            "twins" => expect(value.is_some() && count("send") == 2, "both must happen once"),
            "parent" => expect(value == Some(&serde_json::json!(21)), "it must join both children"),
            "manager" => {
                expect(value.is_some() && count("pay") == 1, "it must act once")?;
                let answer = value.filter(|value| !value.is_null());
                expect(answer.is_none_or(|value| self.model.was_answered(run, value)), "no client sent this answer")
            }
            "office" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                let answered = value.is_some_and(|value| self.model.was_answered(run, value));
                expect(timed_out || answered, "it must end with its answer or time out")
            }
            "guarded" => {
                let agreed = clients::agrees(run);
                expect(count("guarded") == usize::from(value.is_some()), "it must act if and only if it succeeds")?;
                expect(agreed || value.is_none(), "no client approved it")
            }
            "saga" => {
                let done = ["seat", "room"].map(|name| (count(name), count(&format!("no {name}"))));
                let right = if value.is_some() { [(1, 0); 2] } else { [(1, 1); 2] };
                expect(done == right, "its steps must be undone if and only if it failed")
            }
            "archive" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                expect(timed_out || self.is_archived(run, value), "the artifact it returned must be readable")
            }
            _ => Ok(()),
        }
    }

    fn is_archived(&self, run: RunId, value: Option<&serde_json::Value>) -> bool {
        let artifact = value.and_then(|value| Artifact::deserialize(value).ok());
        let Some(id) = artifact.and_then(|artifact| artifact.id()) else { return false };
        let store = self.store();
        let read = store.artifacts().read(id, Access::Run(run), 0, usize::MAX);
        block_on(read).is_ok_and(|bytes| bytes == tools::archived(run))
    }
}
