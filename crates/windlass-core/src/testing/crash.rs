//! The crash matrix: a scenario is run once undisturbed, then again and again, the process dying at another point each
//! time: before and after every commit, before and after every effect. The disk survives, everything else dies. The
//! outcome and the number of effects must not change.

mod ledger;
mod life;
mod outside;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::sim::{Idle, Sim, block_on};
use crate::call::ToolCall;
use crate::error::Error;
use crate::id::RunId;
use crate::run::state::Doubt;
use crate::runtime::{Config, Runtime};
use crate::store::{Filter, MemoryStore, Settlement, Store};
use crate::tool::Tool;
use ledger::Effects;
use life::{Life, Mortal};

pub use ledger::Ledger;
pub use outside::Outside;

/// Most turns of the outside and moves of time in one life; more means that none of them brings it to its end. A run that waits
/// for days is looked at every few seconds of them.
const ROUNDS: usize = 100_000;

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

type Tools = dyn Fn(&Ledger) -> Vec<Tool>;
type Person = dyn Fn(&Ledger, &str, &Doubt) -> Settlement;
type Script = dyn Fn(&Outside<'_>);
type Settings = dyn Fn(&mut Config);

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
///
/// Where a body waits, somebody outside has to answer:
///
/// ```
/// # use windlass_core::testing::CrashMatrix;
/// # use windlass_core::{call::ToolCall, ctx::Ctx, tool::Tool};
/// # use serde_json::{Value, json};
/// let body = |mut ctx: Ctx, _: Value| async move { ctx.wait::<String>("manager").await };
/// let report = CrashMatrix::new(move |_| vec![Tool::durable_fn("ask", "Asks the manager", body)])
///     .call(ToolCall::new("ask", json!({})))
///     .outside(|outside| outside.answer("manager", json!("yes")))
///     .run();
/// assert_eq!(report.outcome, json!(["yes"]));
/// ```
pub struct CrashMatrix {
    tools: Box<Tools>,
    calls: Vec<ToolCall>,
    disk: Box<dyn Fn() -> Box<dyn Disk>>,
    person: Option<Box<Person>>,
    outside: Option<Box<Script>>,
    settings: Vec<Box<Settings>>,
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
            outside: None,
            settings: Vec::new(),
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

    /// What the world outside does: it is asked whenever nothing can move without time passing, in every life again. If it
    /// does nothing new, time moves on.
    #[must_use]
    pub fn outside(mut self, script: impl Fn(&Outside<'_>) + 'static) -> Self {
        self.outside = Some(Box::new(script));
        self
    }

    /// Changes how the runtime is made: its policy, what it is connected to, how soon it suspends.
    #[must_use]
    pub fn config(mut self, settings: impl Fn(&mut Config) + 'static) -> Self {
        self.settings.push(Box::new(settings));
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
        let mut sim = Sim::new(self.seed);
        loop {
            let store = disk.open();
            let life = Arc::new(Life::new(sim.clone(), deaths.get(died).copied()));
            ledger.lives(Some(life.clone()));
            let outcome = self.live(&life, store, &ledger);
            ledger.lives(None);
            sim.bury();
            log.append(&mut life.close());
            // Whoever is told that no answer comes may want to do something about it.
            sim.bury();
            if let Some(outcome) = outcome {
                return Story { outcome, effects: ledger.effects(), log, deaths: died };
            }
            died += 1;
            log.push("-- the process died --".to_owned());
            sim = sim.later(self.seed);
        }
    }

    /// One life; `None` if it ended in death.
    fn live(&self, life: &Arc<Life>, store: Arc<dyn Store>, ledger: &Ledger) -> Option<Value> {
        let runtime = self.runtime(life, store, ledger);
        let result = Arc::new(Mutex::new(None));
        let main = {
            let (runtime, calls, slot) = (runtime.clone(), self.calls.clone(), result.clone());
            let known = block_on(outside::root(&runtime));
            async move {
                let outcome = perform(&runtime, known, calls).await;
                *slot.lock() = Some(outcome);
            }
        };
        crate::spawn::Spawn::spawn(&life.sim, Box::pin(main));
        let said = RefCell::default();
        for _ in 0..ROUNDS {
            let outside = || Outside { life, runtime: &runtime, ledger, said: &said, acted: Cell::new(false) };
            // Once the outcome is there, the runs that were started on the way end too.
            let has_ended = || result.lock().is_some() && block_on(all_ended(&runtime));
            let done = result.lock().is_none();
            match life.sim.run_now(|| done && result.lock().is_some()) {
                Idle::Killed => {
                    life.over();
                    return None;
                }
                _ if has_ended() => return result.lock().take(),
                Idle::Done => {}
                _ if self.turn(outside()) || self.settle(life, &runtime, ledger) || life.is_dead() => {}
                _ if life.sim.advance() => {}
                _ => {
                    let journals = block_on(journals(&runtime));
                    panic!("the scenario is stuck, nothing can move:\n  {}\n{journals}", life.told());
                }
            }
        }
        panic!("it goes on and on:\n  {}", life.told());
    }

    fn runtime(&self, life: &Arc<Life>, store: Arc<dyn Store>, ledger: &Ledger) -> Runtime {
        let sim = Arc::new(life.sim.clone());
        let mortal: Arc<dyn Store> = Arc::new(Mortal { inner: sim.attach(store), life: life.clone() });
        let mut config = Config::new(mortal, sim.clone(), sim);
        config.seed = Some(self.seed);
        for tool in (self.tools)(ledger) {
            if let Err(error) = config.toolbox.insert(tool) {
                panic!("{error}");
            }
        }
        self.settings.iter().for_each(|settings| settings(&mut config));
        Runtime::new(config)
    }

    /// The outside has a turn; true if it said anything new.
    fn turn(&self, outside: Outside<'_>) -> bool {
        let Some(script) = &self.outside else { return false };
        script(&outside);
        outside.acted.get()
    }

    /// A person looks at the doubts, before time passes; true if any could be settled.
    fn settle(&self, life: &Life, runtime: &Runtime, ledger: &Ledger) -> bool {
        let Some(person) = &self.person else { return false };
        let mut settled = false;
        for (run, doubt) in block_on(runtime.doubts()).unwrap_or_default() {
            let info = block_on(runtime.info(run)).ok().flatten();
            let generation = info.map_or(0, |info| info.generation);
            let key = crate::call::idempotency_key(run, generation, &doubt.path);
            let settlement = person(ledger, &key, &doubt);
            let runtime = runtime.clone();
            let told = life.sim.block_on(async move {
                runtime.settle(run, &doubt.path, settlement, "the matrix", "as the ledger says").await
            });
            // Refused where an attempt may still be running: looked at again later.
            settled |= matches!(told, Some(Ok(())));
        }
        settled
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
        // One call is a run of its own, several are a batch.
        None => match <[ToolCall; 1]>::try_from(calls) {
            Ok([call]) => runtime.call(call).await.map(|outcome| vec![outcome]),
            Err(calls) => runtime.batch(calls, false).await,
        },
    };
    match outcomes {
        Ok(outcomes) => outcomes.iter().map(crate::call::Outcome::for_model).collect(),
        Err(Error::Held { hold, .. }) => Value::String(format!("held: {hold}")),
        Err(error) => Value::String(error.to_string()),
    }
}

/// Whether every run is over, one way or another.
async fn all_ended(runtime: &Runtime) -> bool {
    for filter in [Filter::Queued, Filter::Running, Filter::Suspended] {
        if runtime.list(filter, None, 1).await.is_ok_and(|runs| !runs.is_empty()) {
            return false;
        }
    }
    true
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
