//! The crash matrix: a scenario is run once undisturbed, then again and again, the process dying at another point each
//! time: before and after every commit, before and after every effect. The disk survives, everything else dies. The
//! outcome and the number of effects must not change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

use super::reads::*;
use super::sim::{Idle, Sim, block_on};
use crate::call::ToolCall;
use crate::error::Error;
use crate::run::state::Doubt;
use crate::runtime::{Config, Runtime};
use crate::store::{Answer, Commit, MemoryStore, Promise, Settlement, Store, Ticket};
use crate::tool::Tool;

/// Most rounds of settling doubts in one life; more means that settling moves nothing.
const SETTLE_ROUNDS: usize = 100;

/// What survives a crash: opened once for every life of the process.
pub trait Disk {
    /// Opens the store. Whoever had it open before is dead.
    fn open(&self) -> Arc<dyn Store>;
}

/// A disk in memory.
#[derive(Default)]
pub struct MemoryDisk(MemoryStore);

impl Disk for MemoryDisk {
    fn open(&self) -> Arc<dyn Store> {
        self.0.owners_died();
        Arc::new(self.0.clone())
    }
}

/// The world outside: counts effects, and outlives the process.
#[derive(Clone)]
pub struct Ledger(Arc<Outside>);

struct Outside {
    effects: Mutex<BTreeMap<String, Effects>>,
    keys: Mutex<BTreeSet<String>>,
    life: Mutex<Option<Arc<Life>>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Effects {
    once: bool,
    count: u32,
}

impl Ledger {
    fn new() -> Self {
        Self(Arc::new(Outside { effects: Mutex::default(), keys: Mutex::default(), life: Mutex::new(None) }))
    }

    /// An effect that must happen exactly as often as in the undisturbed run, done under an idempotency key.
    pub async fn once(&self, name: &str, key: &str) {
        self.effect(name, Some(key)).await;
    }

    /// An effect that may be repeated when a crash falls between its start and its record.
    pub async fn repeatable(&self, name: &str) {
        self.effect(name, None).await;
    }

    async fn effect(&self, name: &str, key: Option<&str>) {
        let life = self.0.life.lock().clone();
        if let Some(life) = &life {
            life.pass(&format!("before effect {name}")).await;
        }
        self.note(name, key);
        if let Some(life) = &life {
            life.pass(&format!("after effect {name}")).await;
        }
    }

    fn note(&self, name: &str, key: Option<&str>) {
        let mut effects = self.0.effects.lock();
        let entry = effects.entry(name.to_owned()).or_default();
        entry.once |= key.is_some();
        entry.count += 1;
        self.0.keys.lock().extend(key.map(str::to_owned));
    }

    /// Whether a once effect happened under this key: what a tool's `reconcile` asks the outside for.
    pub fn happened(&self, key: &str) -> bool {
        self.0.keys.lock().contains(key)
    }

    /// How often an effect has happened so far.
    pub fn count(&self, name: &str) -> u32 {
        self.0.effects.lock().get(name).map_or(0, |effects| effects.count)
    }
}

/// One life of the process.
struct Life {
    sim: Sim,
    die_at: Option<usize>,
    passed: AtomicUsize,
    dead: AtomicBool,
    buried: AtomicBool,
    log: Mutex<Vec<String>>,
    /// Answers that never come.
    graves: Mutex<Vec<Promise<()>>>,
}

impl Life {
    /// Counts a point; true if the process dies at it.
    fn dies(&self, what: &str) -> bool {
        if self.dead.load(Ordering::Acquire) {
            // The poll in which the process died cannot be cut short, but nothing in it reaches the outside any more.
            // Whatever comes after that poll is a ghost.
            if self.buried.load(Ordering::Acquire) {
                self.log.lock().push(format!("AFTER DEATH: {what}"));
            }
            return true;
        }
        let index = self.passed.fetch_add(1, Ordering::AcqRel);
        self.log.lock().push(what.to_owned());
        if self.die_at != Some(index) {
            return false;
        }
        self.dead.store(true, Ordering::Release);
        self.sim.kill();
        true
    }

    async fn pass(&self, what: &str) {
        if self.dies(what) {
            std::future::pending::<()>().await;
        }
    }

    fn never(&self) -> Ticket<()> {
        let (promise, ticket) = Promise::pair();
        self.graves.lock().push(promise);
        ticket
    }
}

/// The store as a process sees it whose life may end at any commit.
struct Mortal {
    inner: Arc<dyn Store>,
    life: Arc<Life>,
}

impl Store for Mortal {
    fn commit(&self, commit: Commit) -> Answer<()> {
        // After its death a process still unwinds here; what it says no longer reaches the disk.
        if self.life.dead.load(Ordering::Acquire) || self.life.dies("before commit") {
            return Answer::Wait(self.life.never());
        }
        match self.inner.commit(commit) {
            Answer::Ready(_) if self.life.dies("after commit") => Answer::Wait(self.life.never()),
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Wait(ticket) => {
                let (promise, outer) = Promise::pair();
                let life = self.life.clone();
                ticket.then(move |answer| {
                    if life.dead.load(Ordering::Acquire) || life.dies("after commit") {
                        life.graves.lock().push(promise);
                    } else {
                        promise.answer(answer);
                    }
                });
                Answer::Wait(outer)
            }
        }
    }

    delegate_reads!(inner, std::convert::identity);
}

type Tools = dyn Fn(&Ledger) -> Vec<Tool>;
type Person = dyn Fn(&Ledger, &str, &Doubt) -> Settlement;

/// Runs a scenario of your own tools through every crash.
///
/// ```
/// # use windlass_core::testing::CrashMatrix;
/// # use windlass_core::{call::ToolCall, tool::{Tool, Reconciled}};
/// # use serde_json::{Value, json};
/// CrashMatrix::new(|ledger| {
///     let (effect, record) = (ledger.clone(), ledger.clone());
///     let charge = Tool::with_call("charge", "Charges a card", move |call, _: Value| {
///         let ledger = effect.clone();
///         async move { ledger.once("charge", &call.idempotency_key()).await; Ok(json!("receipt")) }
///     });
///     vec![charge.reconcile(move |call| {
///         let happened = record.happened(&call.idempotency_key());
///         async move { Ok(if happened { Reconciled::Happened(json!("receipt")) } else { Reconciled::DidNotHappen }) }
///     })]
/// })
/// .call(ToolCall::new("charge", json!({})))
/// .run();
/// ```
pub struct CrashMatrix {
    tools: Box<Tools>,
    calls: Vec<ToolCall>,
    disk: Box<dyn Fn() -> Box<dyn Disk>>,
    person: Option<Box<Person>>,
    crashes: usize,
    seed: u64,
}

/// What the matrix saw.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many crash points the undisturbed run has.
    pub points: usize,
    /// How many disturbed runs were made.
    pub runs: usize,
    /// What the undisturbed run returned, as a model sees it.
    pub outcome: Value,
    /// Its points, in order.
    pub log: Vec<String>,
    /// Its effects.
    pub effects: BTreeMap<String, u32>,
}

/// How one whole history, from the first life to the outcome, went.
struct Story {
    outcome: Value,
    effects: BTreeMap<String, Effects>,
    log: Vec<String>,
    deaths: usize,
}

impl CrashMatrix {
    /// A matrix over the tools that `tools` makes; it is called anew for every life of the process.
    pub fn new(tools: impl Fn(&Ledger) -> Vec<Tool> + 'static) -> Self {
        Self {
            tools: Box::new(tools),
            calls: Vec::new(),
            disk: Box::new(|| Box::new(MemoryDisk::default())),
            person: None,
            crashes: 1,
            seed: 1,
        }
    }

    /// What the process is asked to do; several calls are one batch.
    #[must_use]
    pub fn call<T>(mut self, call: ToolCall<T>) -> Self {
        self.calls.push(call.untyped());
        self
    }

    /// Where the journal is kept, instead of memory.
    #[must_use]
    pub fn disk<D: Disk + 'static>(mut self, disk: impl Fn() -> D + 'static) -> Self {
        self.disk = Box::new(move || Box::new(disk()));
        self
    }

    /// Settles doubts that neither the tool nor its policy settles; the text is the attempt's idempotency key.
    #[must_use]
    pub fn person(mut self, person: impl Fn(&Ledger, &str, &Doubt) -> Settlement + 'static) -> Self {
        self.person = Some(Box::new(person));
        self
    }

    /// How many crashes one history may have. Two means: after every crash, every crash of the recovery too.
    #[must_use]
    pub fn crashes(mut self, crashes: usize) -> Self {
        self.crashes = crashes;
        self
    }

    /// The seed of the executor's choices.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the whole matrix.
    ///
    /// # Panics
    ///
    /// If an outcome or a count of effects differs from the undisturbed run, if an effect happens after death, if the
    /// scenario itself differs between two undisturbed runs, or if it cannot come to its end. The message names the
    /// crash.
    pub fn run(&self) -> Report {
        let reference = self.story(&[]);
        let again = self.story(&[]);
        assert_eq!(
            reference.log, again.log,
            "the scenario is nondeterministic: two undisturbed runs took different steps"
        );
        let mut runs = 0;
        self.explore(&mut Vec::new(), &reference, &mut runs);
        let effects = reference.effects.iter().map(|(name, effects)| (name.clone(), effects.count)).collect();
        Report { points: reference.log.len(), runs, outcome: reference.outcome, log: reference.log, effects }
    }

    fn explore(&self, deaths: &mut Vec<usize>, reference: &Story, runs: &mut usize) {
        for point in 0.. {
            deaths.push(point);
            let story = self.story(deaths);
            // The last life ended before it came to this point: there are no further ones.
            let exhausted = story.deaths < deaths.len();
            if !exhausted {
                *runs += 1;
                self.compare(deaths, reference, &story);
                if deaths.len() < self.crashes {
                    self.explore(deaths, reference, runs);
                }
            }
            deaths.pop();
            if exhausted {
                return;
            }
        }
    }

    fn compare(&self, deaths: &[usize], reference: &Story, story: &Story) {
        let place = || format!("dying at points {deaths:?}; what happened:\n  {}", story.log.join("\n  "));
        assert_eq!(story.outcome, reference.outcome, "another outcome when {}", place());
        if let Some(line) = story.log.iter().find(|line| line.contains("AFTER DEATH")) {
            panic!("{line} when {}", place());
        }
        for (name, expected) in &reference.effects {
            let found = story.effects.get(name).copied().unwrap_or_default();
            let most = if expected.once { expected.count } else { expected.count + story.deaths as u32 };
            assert!(
                found.count >= expected.count && found.count <= most,
                "effect {name} happened {} times instead of {} when {}",
                found.count,
                expected.count,
                place()
            );
        }
    }

    /// One history: a life for every death, and one more.
    fn story(&self, deaths: &[usize]) -> Story {
        let disk = (self.disk)();
        let ledger = Ledger::new();
        let mut log = Vec::new();
        let mut died = 0;
        for life in 0.. {
            let store = disk.open();
            let sim = Sim::new(self.seed);
            let life = Arc::new(Life {
                sim: sim.clone(),
                die_at: deaths.get(life).copied(),
                passed: AtomicUsize::new(0),
                dead: AtomicBool::new(false),
                buried: AtomicBool::new(false),
                log: Mutex::default(),
                graves: Mutex::default(),
            });
            *ledger.0.life.lock() = Some(life.clone());
            let outcome = self.live(&sim, &life, store, &ledger);
            *ledger.0.life.lock() = None;
            sim.bury();
            log.append(&mut life.log.lock());
            life.graves.lock().clear();
            match outcome {
                Some(outcome) => {
                    let effects = ledger.0.effects.lock().clone();
                    return Story { outcome, effects, log, deaths: died };
                }
                None => {
                    died += 1;
                    log.push("-- the process died --".to_owned());
                }
            }
        }
        unreachable!("a life without a death to come ends with an outcome")
    }

    /// One life; `None` if it ended in death.
    fn live(&self, sim: &Sim, life: &Arc<Life>, store: Arc<dyn Store>, ledger: &Ledger) -> Option<Value> {
        let mortal: Arc<dyn Store> = Arc::new(Mortal { inner: sim.attach(store.clone()), life: life.clone() });
        let mut config = Config::new(mortal, Arc::new(sim.clone()), Arc::new(sim.clone()));
        config.seed = Some(self.seed);
        for tool in (self.tools)(ledger) {
            if let Err(error) = config.toolbox.insert(tool) {
                panic!("{error}");
            }
        }
        let runtime = Runtime::new(config);
        let main = {
            let (runtime, calls) = (runtime.clone(), self.calls.clone());
            let known = block_on(store.list(Filter::All, None, 2)).unwrap_or_default();
            assert!(known.len() < 2, "a scenario is one run; its tools started others");
            let known = known.first().map(|info| info.run);
            async move { perform(&runtime, known, calls).await }
        };
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        crate::spawn::Spawn::spawn(
            sim,
            Box::pin(async move {
                let outcome = main.await;
                *slot.lock() = Some(outcome);
            }),
        );
        for _ in 0..SETTLE_ROUNDS {
            match sim.run(|| result.lock().is_some()) {
                Idle::Killed => {
                    life.buried.store(true, Ordering::Release);
                    return None;
                }
                Idle::Done => return result.lock().take(),
                Idle::Stuck => self.settle(sim, life, &runtime, ledger),
            }
        }
        panic!("settling the doubts moved nothing:\n  {}", life.log.lock().join("\n  "));
    }

    /// A person looks at the inbox.
    fn settle(&self, sim: &Sim, life: &Life, runtime: &Runtime, ledger: &Ledger) {
        let doubts = block_on(runtime.doubts()).unwrap_or_default();
        let log = || life.log.lock().join("\n  ");
        let Some(person) = self.person.as_ref().filter(|_| !doubts.is_empty()) else {
            let journals = block_on(journals(runtime));
            panic!("the scenario is stuck: {} doubts, nothing can move:\n  {}\n{journals}", doubts.len(), log())
        };
        for (run, doubt) in doubts {
            let key = crate::call::idempotency_key(run, 0, &doubt.path);
            let settlement = person(ledger, &key, &doubt);
            let runtime = runtime.clone();
            let settled = sim.block_on(async move {
                runtime.settle(run, &doubt.path, settlement, "the matrix", "as the ledger says").await
            });
            if let Some(Err(error)) = settled {
                panic!("the settlement was refused: {error}\n  {}", log());
            }
        }
    }
}

/// What the process does in each life: go on with the run it finds, or start it.
async fn perform(runtime: &Runtime, known: Option<RunId>, calls: Vec<ToolCall>) -> Value {
    let outcomes = match known {
        Some(run) => {
            if let Err(error) = runtime.recover().await {
                return Value::String(format!("recovery failed: {error}"));
            }
            runtime.attach(run).await
        }
        None => runtime.batch_or_call(calls).await,
    };
    match outcomes {
        Ok(outcomes) => outcomes.iter().map(crate::call::Outcome::for_model).collect(),
        Err(Error::Held { hold, .. }) => Value::String(format!("held: {hold}")),
        Err(error) => Value::String(error.to_string()),
    }
}

/// Every run with its journal, for a person who has to find out why nothing moves.
async fn journals(runtime: &Runtime) -> String {
    let mut text = String::new();
    for info in runtime.list(Filter::All, None, 8).await.unwrap_or_default() {
        text.push_str(&format!("  run {} {:?}\n", info.run, info.state));
        for record in runtime.journal(info.run).await.unwrap_or_default() {
            text.push_str(&format!("    {} {:?}\n", record.path, record.event));
        }
    }
    text
}
