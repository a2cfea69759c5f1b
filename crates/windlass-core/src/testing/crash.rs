//! The crash matrix: a scenario runs once undisturbed, then again and again, with the process dying at another point
//! each time: before and after every commit, before and after every effect. Only the disk survives. The outcome and the
//! number of effects must stay the same.

mod ledger;
mod life;
mod outside;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::sim::{Sim, SimStop, block_on};
use crate::call::ToolCall;
use crate::error::Error;
use crate::id::RunId;
use crate::run::state::Doubt;
use crate::runtime::{Config, Runtime};
use crate::store::{Filter, MemoryStore, Settlement, Store};
use crate::tool::Tool;
use ledger::EffectCount;
use life::{MortalStore, ProcessLife};

pub use ledger::Ledger;
pub use outside::Outside;

/// The most turns of the outside and moves of time in one life of the process. If they are exceeded, the scenario does
/// not end. A run that waits for days needs many, because time moves a few seconds at a time.
const ROUNDS: usize = 100_000;

/// What survives a crash. It is opened once for every life of the process.
pub trait Disk {
    /// Opens the store. The process that had it open before is dead.
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

/// Runs a scenario with your own tools through every crash.
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
/// If a body waits, the outside has to answer:
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
    stop_on_failure: bool,
}

/// The result of a crash matrix.
#[derive(Clone, Debug)]
pub struct Report {
    /// The number of crash points of the undisturbed run.
    pub points: usize,
    /// The number of runs with crashes.
    pub runs: usize,
    /// The outcome of the undisturbed run, as a model sees it.
    pub outcome: Value,
    /// The crash points of the undisturbed run, in order.
    pub log: Vec<String>,
    /// The effects of the undisturbed run, and how often each happened.
    pub effects: BTreeMap<String, u32>,
}

/// One history from the first life of the process to the outcome.
struct CrashHistory {
    outcome: Value,
    effects: BTreeMap<String, EffectCount>,
    log: Vec<String>,
    deaths: usize,
}

impl CrashMatrix {
    /// A matrix for the tools that `tools` creates. The function is called again for every life of the process.
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
            stop_on_failure: false,
        }
    }

    /// Adds a call that the process makes; several calls are one batch.
    #[must_use]
    pub fn call<T>(mut self, call: ToolCall<T>) -> Self {
        self.calls.push(call.untyped());
        self
    }

    /// Makes the calls as a batch that stops on the first failure.
    #[must_use]
    pub fn stop_on_failure(mut self) -> Self {
        self.stop_on_failure = true;
        self
    }

    /// Keeps the journal on this disk instead of in memory.
    #[must_use]
    pub fn disk<D: Disk + 'static>(mut self, disk: impl Fn() -> D + 'static) -> Self {
        self.disk = Box::new(move || Box::new(disk()));
        self
    }

    /// Sets the function that settles doubts which neither the tool nor its policy settles. It gets the idempotency key
    /// of the attempt.
    #[must_use]
    pub fn person(mut self, person: impl Fn(&Ledger, &str, &Doubt) -> Settlement + 'static) -> Self {
        self.person = Some(Box::new(person));
        self
    }

    /// Sets what the outside does. The script runs whenever nothing can happen without time passing, in every life
    /// again. If it does nothing new, time moves on.
    #[must_use]
    pub fn outside(mut self, script: impl Fn(&Outside<'_>) + 'static) -> Self {
        self.outside = Some(Box::new(script));
        self
    }

    /// Changes the configuration of the runtime, such as its policy, its connections, or how soon it suspends.
    #[must_use]
    pub fn config(mut self, settings: impl Fn(&mut Config) + 'static) -> Self {
        self.settings.push(Box::new(settings));
        self
    }

    /// Sets how many crashes one history may have. With two, every crash is followed by every crash of the recovery.
    #[must_use]
    pub fn crashes(mut self, crashes: usize) -> Self {
        self.crashes = crashes;
        self
    }

    /// Sets the seed of the executor's choices.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs all histories.
    ///
    /// # Panics
    ///
    /// If an outcome or a count of effects differs from the undisturbed run, if an effect happens after the death of
    /// its process, if two undisturbed runs differ, or if the scenario does not end. The message names the crash.
    pub fn run(&self) -> Report {
        let reference = self.history(&[]);
        let again = self.history(&[]);
        assert_eq!(
            reference.log, again.log,
            "the scenario is not deterministic: two undisturbed runs took different steps"
        );
        let mut runs = 0;
        self.explore(&mut Vec::new(), &reference, &mut runs);
        let effects = reference.effects.iter().map(|(name, effects)| (name.clone(), effects.count)).collect();
        Report { points: reference.log.len(), runs, outcome: reference.outcome, log: reference.log, effects }
    }

    fn explore(&self, deaths: &mut Vec<usize>, reference: &CrashHistory, runs: &mut usize) {
        for point in 0.. {
            deaths.push(point);
            let history = self.history(deaths);
            // The last life ended before it reached this point, so there are no further points.
            let exhausted = history.deaths < deaths.len();
            if !exhausted {
                *runs += 1;
                self.compare(deaths, reference, &history);
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

    fn compare(&self, deaths: &[usize], reference: &CrashHistory, history: &CrashHistory) {
        let context = || format!("dying at points {deaths:?}; what happened:\n  {}", history.log.join("\n  "));
        assert_eq!(history.outcome, reference.outcome, "another outcome when {}", context());
        if let Some(line) = history.log.iter().find(|line| line.contains("AFTER DEATH")) {
            panic!("{line} when {}", context());
        }
        for (name, expected) in &reference.effects {
            let found = history.effects.get(name).copied().unwrap_or_default();
            let most = if expected.once { expected.count } else { expected.count + history.deaths as u32 };
            assert!(
                found.count >= expected.count && found.count <= most,
                "effect {name} happened {} times instead of {} when {}",
                found.count,
                expected.count,
                context()
            );
        }
    }

    /// Runs one history: a life for every death, and one more.
    fn history(&self, deaths: &[usize]) -> CrashHistory {
        let disk = (self.disk)();
        let ledger = Ledger::new();
        let mut log = Vec::new();
        let mut died = 0;
        let mut sim = Sim::new(self.seed);
        loop {
            let store = disk.open();
            let life = Arc::new(ProcessLife::new(sim.clone(), deaths.get(died).copied()));
            ledger.set_life(Some(life.clone()));
            let outcome = self.run_life(&life, store, &ledger);
            ledger.set_life(None);
            sim.bury();
            log.append(&mut life.close());
            // A waiter that learns that no answer comes may spawn a task.
            sim.bury();
            if let Some(outcome) = outcome {
                return CrashHistory { outcome, effects: ledger.effects(), log, deaths: died };
            }
            died += 1;
            log.push("-- the process died --".to_owned());
            sim = sim.later(self.seed);
        }
    }

    /// Runs one life; `None` if it ended in death.
    fn run_life(&self, life: &Arc<ProcessLife>, store: Arc<dyn Store>, ledger: &Ledger) -> Option<Value> {
        let runtime = self.runtime(life, store, ledger);
        let result = Arc::new(Mutex::new(None));
        let main = {
            let (runtime, slot) = (runtime.clone(), result.clone());
            let calls = (self.calls.clone(), self.stop_on_failure);
            let root = block_on(outside::root(&runtime));
            async move {
                let outcome = perform(&runtime, root, calls).await;
                *slot.lock() = Some(outcome);
            }
        };
        crate::spawn::Spawn::spawn(&life.sim, Box::pin(main));
        let done_before = RefCell::default();
        for _ in 0..ROUNDS {
            let outside =
                || Outside { life, runtime: &runtime, ledger, done_before: &done_before, acted: Cell::new(false) };
            // After the outcome, the runs that were started on the way must end too.
            let has_ended = || result.lock().is_some() && block_on(all_ended(&runtime));
            let done = result.lock().is_none();
            match life.sim.run_now(|| done && result.lock().is_some()) {
                SimStop::Killed => {
                    life.last_poll_ended();
                    return None;
                }
                _ if has_ended() => return result.lock().take(),
                SimStop::Done => {}
                _ if self.turn(outside()) || self.settle(life, &runtime, ledger) || life.is_dead() => {}
                _ if life.sim.advance() => {}
                _ => {
                    let journals = block_on(journals(&runtime));
                    panic!("the scenario is stuck and nothing can happen:\n  {}\n{journals}", life.log_text());
                }
            }
        }
        panic!("the scenario does not end:\n  {}", life.log_text());
    }

    fn runtime(&self, life: &Arc<ProcessLife>, store: Arc<dyn Store>, ledger: &Ledger) -> Runtime {
        let sim = Arc::new(life.sim.clone());
        let mortal: Arc<dyn Store> = Arc::new(MortalStore { inner: sim.attach(store), life: life.clone() });
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

    /// Gives the outside a turn; true if it did anything new.
    fn turn(&self, outside: Outside<'_>) -> bool {
        let Some(script) = &self.outside else { return false };
        script(&outside);
        outside.acted.get()
    }

    /// Lets the person settle doubts before time passes; true if any was settled.
    fn settle(&self, life: &ProcessLife, runtime: &Runtime, ledger: &Ledger) -> bool {
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
            // Refused while the attempt may still be running; tried again later.
            settled |= matches!(told, Some(Ok(())));
        }
        settled
    }
}

/// What the process does in each life: continue the run it finds, or start it.
async fn perform(runtime: &Runtime, root: Option<RunId>, (calls, stops): (Vec<ToolCall>, bool)) -> Value {
    let outcomes = match root {
        Some(run) => {
            if let Err(error) = runtime.recover().await {
                return Value::String(format!("recovery failed: {error}"));
            }
            runtime.attach(run).await
        }
        // One call is a run of its own, several are a batch.
        None => match <[ToolCall; 1]>::try_from(calls) {
            Ok([call]) => runtime.call(call).await.map(|outcome| vec![outcome]),
            Err(calls) => runtime.batch(calls, stops).await,
        },
    };
    match outcomes {
        Ok(outcomes) => outcomes.iter().map(crate::call::Outcome::for_model).collect(),
        Err(Error::Held { hold, .. }) => Value::String(format!("held: {hold}")),
        Err(error) => Value::String(error.to_string()),
    }
}

/// Whether every run has ended or is held.
async fn all_ended(runtime: &Runtime) -> bool {
    for filter in [Filter::queued(), Filter::running(), Filter::suspended()] {
        if runtime.list(filter, None, 1).await.is_ok_and(|runs| !runs.is_empty()) {
            return false;
        }
    }
    true
}

/// Every run with its journal, to find out why the scenario is stuck.
async fn journals(runtime: &Runtime) -> String {
    let mut text = String::new();
    for info in runtime.list(Filter::default(), None, 8).await.unwrap_or_default() {
        text.push_str(&format!("  run {} {:?}\n", info.run, info.state));
        for record in runtime.journal(info.run).await.unwrap_or_default() {
            text.push_str(&format!("    {} {:?}\n", record.path, record.event));
        }
    }
    text
}
