//! The simulator: workers that die, freeze and lose the store, an outside that asks and answers, all of it at random and
//! all of it following from one seed; and a model of the promise that says what must not be.

mod dice;
mod line;
mod model;
mod outside;
mod plant;
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
use dice::Dice;
use line::{Line, Wire};
use model::Model;
use outside::{Errand, Outside};

/// Things that happen before it calms down.
const TURNS: u64 = 160;
/// How long it has to come to an end once nothing fails any more, in nanoseconds; shorter than the deadlines of what
/// waits, so that a wake-up that was lost is not made good by one.
const CALM: u64 = 600_000_000_000;
/// How far time goes if no worker that is awake waits for any.
const STEP: u64 = 3_000_000_000;
/// How long a worker that says nothing keeps its runs.
const LEASE: Duration = Duration::from_secs(10);

/// One story of a small world of workers, told by a seed.
///
/// ```
/// use windlass_core::testing::Chaos;
/// let story = Chaos::seed(7).run();
/// assert!(story.runs > 0);
/// assert_eq!(story.log, Chaos::seed(7).run().log, "a seed tells the same story again");
/// ```
///
/// It is told on a store in memory, or on a [`disk`](Chaos::disk) of your own, where the same seed must tell the same story.
pub struct Chaos {
    seed: u64,
    disk: Box<dyn Fn() -> Box<dyn Disk>>,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Story {
    /// Line by line.
    pub log: Vec<String>,
    /// How many runs there were.
    pub runs: usize,
    /// What broke the promise; nothing, if it was kept.
    pub problems: Vec<String>,
}

impl Chaos {
    /// The story that follows from this seed.
    pub fn seed(seed: u64) -> Self {
        Self { seed, disk: Box::new(|| Box::new(MemoryDisk::default())) }
    }

    /// Where the journals are kept, instead of memory. A worker that is alone opens it, and whoever comes after its death
    /// opens it again; workers beside one another share what was opened at the beginning.
    #[must_use]
    pub fn disk<D: Disk + 'static>(mut self, disk: impl Fn() -> D + 'static) -> Self {
        self.disk = Box::new(move || Box::new(disk()));
        self
    }

    /// Tells the story.
    ///
    /// # Panics
    ///
    /// If the promise was broken; the message names the seed and tells what happened.
    pub fn run(&self) -> Story {
        let story = self.story();
        assert!(
            story.problems.is_empty(),
            "seed {} broke the promise:\n  {}\nwhat happened:\n{}",
            self.seed,
            story.problems.join("\n  "),
            story.log.join("\n")
        );
        story
    }

    /// Tells the story and leaves the judgement to the caller.
    pub fn story(&self) -> Story {
        let disk = (self.disk)();
        let mut world = World::new(self.seed, &*disk);
        world.rage();
        world.calm_down();
        world.judge();
        let runs = world.all_runs().len();
        world.workers.iter().flatten().for_each(Worker::bury);
        Story { log: world.model.log(), runs, problems: world.model.problems() }
    }
}

struct World<'d> {
    seed: u64,
    dice: Dice,
    /// Never runs anything: it is the clock of all.
    clock: Sim,
    disk: &'d dyn Disk,
    store: Option<Arc<dyn Store>>,
    model: Arc<Model>,
    outside: Outside,
    workers: Vec<Option<Worker>>,
    /// How many workers there have been.
    born: u64,
}

struct Worker {
    sim: Sim,
    line: Arc<Line>,
    runtime: Runtime,
    frozen: bool,
    /// Whether it has taken up what an earlier worker left. Only then does it know which keys are held.
    recovered: Arc<AtomicBool>,
}

impl Worker {
    /// Whether it can do anything.
    fn is_awake(&self) -> bool {
        !self.frozen && !self.line.is_dead()
    }

    fn bury(&self) {
        self.sim.bury();
        self.line.close();
        // Whoever is told that no answer comes may want to do something about it.
        self.sim.bury();
    }
}

impl<'d> World<'d> {
    fn new(seed: u64, disk: &'d dyn Disk) -> Self {
        let clock = Sim::new(seed);
        let model = Arc::new(Model::new(clock.clone()));
        let mut dice = Dice::new(seed);
        let count = 1 + usize::from(dice.one_in(2));
        let outside = Outside { model: model.clone(), errands: Arc::default() };
        let mut world = Self { seed, dice, clock, disk, store: None, model, outside, workers: Vec::new(), born: 0 };
        world.workers.resize_with(count, || None);
        (0..count).for_each(|slot| world.hire(slot));
        world
    }

    /// The store that was opened for the first worker, or for the latest one that is alone.
    fn store(&self) -> Arc<dyn Store> {
        match &self.store {
            Some(store) => store.clone(),
            None => panic!("a world has had a worker"),
        }
    }

    /// A lone worker knows that whoever was there before it is dead; one among others has only its lease.
    fn is_alone(&self) -> bool {
        self.workers.len() == 1
    }

    fn hire(&mut self, slot: usize) {
        self.born += 1;
        let seed = self.seed.wrapping_mul(1_000).wrapping_add(self.born);
        let sim = self.clock.beside(seed);
        let name = format!("worker {}", self.born);
        let line = Arc::new(Line::new(name, sim.clone(), self.model.clone(), Dice::new(seed)));
        if self.is_alone() {
            // Whoever had it open is dead and buried.
            self.store = None;
        }
        let store = self.store.get_or_insert_with(|| self.disk.open()).clone();
        let wire = Wire { store, line: line.clone() };
        let mut config = Config::new(Arc::new(wire), Arc::new(sim.clone()), Arc::new(sim.clone()));
        config.seed = Some(seed);
        if !self.is_alone() {
            config.lease = Some(LEASE);
        }
        if self.dice.one_in(2) {
            config.suspend_after = Duration::ZERO;
        }
        for tool in tools::tools(&line) {
            if let Err(error) = config.toolbox.insert(tool) {
                panic!("{error}");
            }
        }
        let runtime = Runtime::new(config);
        #[cfg(test)]
        if plant::planted(plant::Plant::ForgetRequests) {
            runtime.kernel().roster.forget_requests();
        }
        let recovered = Arc::new(AtomicBool::new(false));
        let (recovering, clock, done) = (runtime.clone(), sim.clone(), recovered.clone());
        sim.spawn(Box::pin(async move {
            while recovering.recover().await.is_err() {
                clock.sleep(Duration::from_secs(1)).await;
            }
            done.store(true, Ordering::Release);
        }));
        self.model.say(format!("{} begins", line.name));
        self.workers[slot] = Some(Worker { sim, line, runtime, frozen: false, recovered });
    }

    /// Everything that can go wrong does.
    fn rage(&mut self) {
        for _ in 0..TURNS {
            match self.dice.below(100) {
                0..=1 => self.cut_one(),
                2..=3 => self.freeze_one(),
                4..=8 => self.thaw_one(),
                9 => self.jump(),
                10 => self.lose_the_store(),
                11..=30 => self.act(),
                _ => self.work(),
            }
            self.bury_the_dead();
        }
    }

    fn pick_slot(&mut self) -> usize {
        usize::try_from(self.dice.below(self.workers.len() as u64)).unwrap_or(0)
    }

    fn cut_one(&mut self) {
        let slot = self.pick_slot();
        if let Some(worker) = &self.workers[slot] {
            self.model.say(format!("{} is killed", worker.line.name));
            worker.line.cut();
        }
    }

    fn freeze_one(&mut self) {
        let slot = self.pick_slot();
        if let Some(worker) = &mut self.workers[slot] {
            self.model.say(format!("{} freezes", worker.line.name));
            worker.frozen = true;
        }
    }

    fn thaw_one(&mut self) {
        let slot = self.pick_slot();
        if let Some(worker) = self.workers[slot].as_mut().filter(|worker| worker.frozen) {
            self.model.say(format!("{} thaws", worker.line.name));
            worker.frozen = false;
            worker.sim.ring();
        }
    }

    fn jump(&mut self) {
        let far = [1_000, 60_000, 200_000, 5_000_000][usize::try_from(self.dice.below(4)).unwrap_or(0)];
        let millis = self.dice.below(far);
        self.model.say(format!("the clock jumps {millis} ms"));
        self.pass_to(self.clock.ticks() + millis * 1_000_000);
    }

    fn lose_the_store(&mut self) {
        let slot = self.pick_slot();
        let until = self.clock.ticks() + self.dice.below(20_000_000_000);
        if let Some(worker) = &self.workers[slot] {
            self.model.say(format!("{} cannot reach the store", worker.line.name));
            worker.line.fail_until(until);
        }
    }

    /// The outside does something, by way of some worker.
    fn act(&mut self) {
        let slot = self.pick_slot();
        let (choice, kind) = (self.dice.roll(), self.dice.below(20));
        let errands = self.outside.errands.lock().clone();
        let index = usize::try_from(choice % (errands.len() as u64).max(1)).unwrap_or(0);
        let Some(worker) = self.workers[slot].as_ref().filter(|worker| worker.is_awake()) else { return };
        let (runtime, outside, sim) = (worker.runtime.clone(), self.outside.clone(), &worker.sim);
        let tool = self.dice.pick(tools::NAMES).copied().unwrap_or("pay");
        let may_start = |tool: &str| tool != "shift" || worker.recovered.load(Ordering::Acquire);
        match kind {
            0..=4 if may_start(tool) => {
                let mut errands = self.outside.errands.lock();
                errands.push(Errand { tool, run: None, sent: 0, cancelled: false });
                let index = errands.len() - 1;
                drop(errands);
                sim.spawn(Box::pin(outside.start(runtime, index)));
            }
            5 => {
                let tool = ["look", "set", "pay"][usize::try_from(choice % 3).unwrap_or(0)];
                sim.spawn(Box::pin(outside.call(runtime, tool, self.store())));
            }
            6..=11 if !errands.is_empty() => {
                if errands[index].run.is_none() {
                    if !may_start(errands[index].tool) {
                        return;
                    }
                    sim.spawn(Box::pin(outside.start(runtime, index)));
                } else if matches!(errands[index].tool, "listener" | "counter") {
                    sim.spawn(Box::pin(outside.signal(runtime, index)));
                }
            }
            12..=16 => sim.spawn(Box::pin(outside.answer_one(runtime, choice))),
            17..=18 => sim.spawn(Box::pin(outside.settle_one(runtime, choice))),
            _ if choice.is_multiple_of(2) => sim.spawn(Box::pin(outside.answer_late(runtime, choice))),
            _ if choice.is_multiple_of(3) => {
                if let Some(run) = errands.get(index).and_then(|errand| errand.run) {
                    self.outside.errands.lock()[index].cancelled = true;
                    sim.spawn(Box::pin(outside.cancel(runtime, run)));
                }
            }
            _ => {}
        }
    }

    /// Some worker does some of what it can do now; if none can, time passes.
    fn work(&mut self) {
        let slot = self.pick_slot();
        let steps = 1 + self.dice.below(12);
        let done = match &self.workers[slot] {
            Some(worker) => (0..steps).take_while(|_| worker.is_awake() && worker.sim.step()).count(),
            None => 0,
        };
        if done == 0 {
            self.advance();
        }
    }

    /// Time goes on to the next timer, if nobody who is awake has anything to do now.
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
        self.workers.iter().flatten().filter(|worker| !worker.frozen).for_each(|worker| worker.sim.ring());
    }

    fn bury_the_dead(&mut self) {
        for slot in 0..self.workers.len() {
            let dead = self.workers[slot].take_if(|worker| worker.line.is_dead());
            if let Some(worker) = dead {
                worker.bury();
            }
            if self.workers[slot].is_none() && self.dice.one_in(3) {
                self.hire(slot);
            }
        }
    }

    fn all_runs(&self) -> Vec<crate::run::state::RunInfo> {
        block_on(self.store().list(Filter::All, None, 10_000)).unwrap_or_default()
    }

    /// Nothing fails any more, and the outside does what it can: everything must come to its end.
    fn calm_down(&mut self) {
        self.model.say("-- it calms down --".to_owned());
        for slot in 0..self.workers.len() {
            match &mut self.workers[slot] {
                Some(worker) => {
                    worker.frozen = false;
                    worker.sim.ring();
                }
                None => self.hire(slot),
            }
        }
        self.workers.iter().flatten().for_each(|worker| worker.line.calm_down());
        let over_by = self.clock.ticks() + CALM;
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
        let open = [Filter::Queued, Filter::Running, Filter::Suspended, Filter::Held];
        let none = |filter| block_on(self.store().list(filter, None, 1)).is_ok_and(|runs| runs.is_empty());
        open.into_iter().all(none) && self.outside.errands.lock().iter().all(|errand| errand.run.is_some())
    }

    fn send_help(&self) {
        // One that has not recovered yet would start what waits for a key before it knows of the holder.
        let recovered = |worker: &&Worker| worker.recovered.load(Ordering::Acquire);
        if let Some(worker) = self.workers.iter().flatten().find(recovered) {
            worker.sim.spawn(Box::pin(self.outside.clone().help(worker.runtime.clone())));
            while worker.sim.step() {}
        }
    }

    /// Compares what came of every run with what must have come of it.
    fn judge(&self) {
        for info in self.all_runs() {
            let journal = block_on(self.store().journal(info.run, 0)).unwrap_or_default();
            self.model.compare(info.run, &journal);
            self.model.compare_told(info.run, &journal, &Signer::new(self.store().secret()));
        }
        self.judge_shifts();
        let errands = self.outside.errands.lock().clone();
        for errand in errands {
            let Some(run) = errand.run.filter(|_| !errand.cancelled) else { continue };
            let Some(result) = self.result_of(run) else { continue };
            if let Err(problem) = self.fits(&errand, run, &result) {
                self.model.problem(format!(
                    "{}, {}: {problem}; it came to {result:?}",
                    self.model.name(run),
                    errand.tool
                ));
            }
        }
    }

    /// One process has one shift at a time, whatever it went through: a body holds its key from its first record to its last.
    fn judge_shifts(&self) {
        if !self.is_alone() {
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
                self.model.problem(format!("{first} and {second} had the till at the same time"));
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

    fn fits(&self, errand: &Errand, run: RunId, result: &Recorded) -> Result<(), String> {
        let count = |name: &str| self.model.count(run, name);
        let expect = |right: bool, what: &str| if right { Ok(()) } else { Err(what.to_owned()) };
        let value = result.as_ref().ok().map(|output| &output.value);
        match errand.tool {
            "look" | "set" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                expect(value.is_some() || timed_out, "it must end well, or in time")
            }
            "pay" | "send" => expect(value.is_some() && count(errand.tool) == 1, "it must happen once"),
            "listener" | "counter" => {
                let right = value == Some(&serde_json::json!([0, 1, 2]));
                expect(right && count("pay") == tools::NUMBERS, "it must hear every number once and in order")
            }
            "shift" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                expect(count("pay") == 1 && (value.is_some() || timed_out), "it must act once")
            }
            "twins" => expect(value.is_some() && count("send") == 2, "both must happen once"),
            "parent" => expect(value == Some(&serde_json::json!(21)), "it must join both"),
            "manager" => {
                expect(value.is_some() && count("pay") == 1, "it must act once")?;
                let told = value.filter(|value| !value.is_null());
                expect(told.is_none_or(|value| self.model.was_answered(run, value)), "nobody said so")
            }
            "office" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                let answered = value.is_some_and(|value| self.model.was_answered(run, value));
                expect(timed_out || answered, "it must end with what it was answered, or in time")
            }
            "guarded" => {
                let agreed = outside::agrees(run);
                expect(count("guarded") == usize::from(value.is_some()), "it acts if and only if it says so")?;
                expect(agreed || value.is_none(), "nobody agreed to it")
            }
            "saga" => {
                let done = ["seat", "room"].map(|name| (count(name), count(&format!("no {name}"))));
                let right = if value.is_some() { [(1, 0); 2] } else { [(1, 1); 2] };
                expect(done == right, "what was done must be undone if and only if it failed")
            }
            "archive" => {
                let timed_out = matches!(result, Err(error) if matches!(**error, ToolError::TimedOut { .. }));
                expect(timed_out || self.is_archived(run, value), "what it returned must be there to read")
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
