//! Retention, and runs whose store was restored from a backup.

use std::path::Path as File;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use windlass::inbox::{Resolution, Settlement};
use windlass::run::record::DoubtCause;
use windlass::run::{RunState, Start};
use windlass::store::{Durability, Retention, SqliteStore, StoreError};
use windlass::tool::Reconciled;
use windlass::{Call, Ctx, Error, RunId, Tool, ToolCall, Windlass};
use windlass_core::testing::{Sim, block_on};
use windlass_core::time::Clock;
use windlass_core::{Config, Runtime};

use crate::world::{World, on_every_store, tool};

const DAY: Duration = Duration::from_secs(24 * 3_600);
const MOMENT: Duration = Duration::from_secs(1);

#[test]
fn w09_a_finished_run_is_removed_after_its_time_and_its_key_stays_taken() {
    on_every_store(|world| {
        let mut config = world.config([tool("add", |_| async { Ok(json!(3)) })]);
        config.tidy_every = Some(DAY / 2);
        let runtime = Runtime::new(config);
        let add = || ToolCall::new("add", json!({}));
        let starting = runtime.clone();
        let run = world.run(async move {
            starting.recover().await.unwrap();
            let run = starting.start_with(add(), Start::key("once and for all")).await.unwrap();
            starting.attach(run).await.unwrap();
            run
        });
        let ask = |world: &World| {
            let runtime = runtime.clone();
            world.run(async move {
                let again = runtime.start_with(add(), Start::key("once and for all")).await;
                (runtime.info(run).await.unwrap(), runtime.attach(run).await, again)
            })
        };
        world.pass(29 * DAY);
        let (info, outcome, again) = ask(&world);
        assert!(info.unwrap().ended.is_some());
        assert_eq!(outcome.unwrap()[0].value(), Some(&json!(3)));
        assert_eq!(again.unwrap(), run);

        world.pass(2 * DAY);
        let (info, outcome, again) = ask(&world);
        assert!(matches!(info.unwrap().state, RunState::Finished { .. }), "a summary is left");
        let Err(Error::Store(gone)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(gone, StoreError::JournalGone(run));
        assert_eq!(again.unwrap(), run, "and has the key");
        let explaining = runtime.clone();
        let sentence = world.run(async move { explaining.explain(run).await }).unwrap().sentence;
        assert!(sentence.ends_with("succeeded."), "{sentence}");

        world.pass(181 * DAY);
        let (info, _, again) = ask(&world);
        assert_eq!(info, None);
        let refused = again.unwrap_err().to_string();
        assert!(refused.contains(&format!("the key belonged to run {run}, which is no longer kept")), "{refused}");

        world.pass(181 * DAY);
        let (_, _, again) = ask(&world);
        assert_ne!(again.unwrap(), run, "the key is free");
    });
}

#[test]
fn w09_one_run_is_purged_and_a_running_one_is_not() {
    on_every_store(|world| {
        let waits = Tool::durable_fn("waits", "waits", |mut ctx: Ctx, _: Value| async move {
            let word: Value = ctx.wait("word").await?;
            Ok(word)
        });
        let runtime = world.runtime([waits]);
        let run = runtime.start_unconfirmed(ToolCall::new("waits", json!({}))).unwrap();
        world.pass(MOMENT);
        let purge = || {
            let runtime = runtime.clone();
            world.run(async move { runtime.purge(run).await })
        };
        let refused = purge().unwrap_err().to_string();
        assert!(refused.contains("is not finished") && refused.contains("cancel it first"), "{refused}");
        let cancelling = runtime.clone();
        world.run(async move {
            cancelling.cancel(run, "ann", "not needed").await.unwrap();
            cancelling.attach(run).await.unwrap();
        });
        purge().unwrap();
        assert!(matches!(purge(), Err(Error::Store(StoreError::NoSuchRun(gone))) if gone == run));
    });
}

#[tokio::test]
async fn w09_the_builder_says_how_long_runs_are_kept_and_backs_up() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("app.db"), directory.path().join("copy.db"));
    let add = || Tool::new("add", "adds", |_: Value| async { Ok(json!(3)) });
    let none = Retention { full: Duration::ZERO, summary: Duration::ZERO, keys: Duration::ZERO, ..Retention::FOREVER };
    let windlass = Windlass::open(&path).retention(none).tool(add()).await.unwrap();
    let run = windlass.call_json("add", json!({})).await.unwrap().run;
    windlass.file().unwrap().backup(&copy).await.unwrap();
    let again = windlass.file().unwrap().backup(&copy).await.unwrap_err().to_string();
    assert!(again.contains("overwrites nothing"), "{again}");
    let done = windlass.tidy().await.unwrap();
    assert_eq!((done.summarized, done.removed), (1, 1));
    assert_eq!(windlass.runtime().info(run).await.unwrap(), None);
    windlass.shutdown().await.unwrap();
    let report = windlass::store::check_file(&copy, |_, _| {}).unwrap();
    assert!(report.is_fine(), "{report}");
    let restored = Windlass::open(&copy).retention(Retention::FOREVER).tool(add()).await.unwrap();
    restored.tidy().await.unwrap();
    assert_eq!(restored.run(run).outcome().await.unwrap().value(), Some(&json!(3)));
    let memory = Windlass::in_memory().retention(none).tool(add()).await.unwrap();
    memory.call_json("add", json!({})).await.unwrap();
    assert_eq!(memory.tidy().await.unwrap().removed, 1);
    assert!(memory.file().is_none(), "nothing to back up");
}

/// The effects that the outside world has seen, with their keys.
type Ledger = Arc<Mutex<Vec<(String, String)>>>;

fn seen(ledger: &Ledger) -> Vec<String> {
    ledger.lock().iter().map(|(name, _)| name.clone()).collect()
}

/// A process on a file.
struct Life {
    sim: Sim,
    store: Arc<SqliteStore>,
    runtime: Runtime,
}

impl Life {
    fn on(file: &File, tools: Vec<Tool>) -> Self {
        let sim = Sim::new(1);
        let store = Arc::new(SqliteStore::open_with(file, Durability::Relaxed).unwrap());
        let clock = Arc::new(sim.clone());
        let mut config = Config::new(sim.attach(store.clone()), clock.clone(), clock);
        config.seed = Some(7);
        for tool in tools {
            config.toolbox.insert(tool).unwrap();
        }
        let life = Self { runtime: Runtime::new(config), sim, store };
        let runtime = life.runtime.clone();
        life.run(async move { runtime.recover().await }).unwrap();
        life.pass(MOMENT);
        life
    }

    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(future).expect("the simulation comes to an end")
    }

    fn pass(&self, time: Duration) {
        let sim = self.sim.clone();
        self.run(async move { sim.sleep(time).await });
    }

    fn start(&self, name: &str) -> RunId {
        let run = self.runtime.start_unconfirmed(ToolCall::new(name, json!({}))).unwrap();
        self.pass(MOMENT);
        run
    }

    fn key(&self) -> String {
        let runtime = self.runtime.clone();
        self.run(async move { runtime.inbox().await }).unwrap().remove(0).key.unwrap()
    }

    fn answer(&self, key: &str) -> Result<(), Error> {
        let (runtime, key) = (self.runtime.clone(), key.to_owned());
        let answered = self.run(async move { runtime.resolve(&key, Resolution::Ok { value: json!("go") }).await });
        self.pass(MOMENT);
        answered.map(|_| ())
    }

    /// The operation of the only doubt; none if there is no doubt.
    fn doubt(&self) -> Option<String> {
        let runtime = self.runtime.clone();
        let doubts = self.run(async move { runtime.doubts().await }).unwrap();
        assert!(doubts.len() <= 1, "{doubts:?}");
        doubts.first().map(|(_, doubt)| {
            assert_eq!(doubt.cause, DoubtCause::Restored);
            doubt.operation.clone()
        })
    }

    fn settle(&self, settlement: Settlement) {
        let runtime = self.runtime.clone();
        self.run(async move {
            let (run, doubt) = runtime.doubts().await.unwrap().remove(0);
            runtime.settle(run, &doubt.path, settlement, "ann", "looked it up").await.unwrap();
        });
        self.pass(MOMENT);
    }

    fn outcome(&self, run: RunId) -> Value {
        let runtime = self.runtime.clone();
        let outcomes = self.run(async move { runtime.attach(run).await }).unwrap();
        outcomes[0].value().cloned().unwrap_or_else(|| panic!("{outcomes:?}"))
    }

    fn end(self) {
        self.sim.bury();
    }
}

fn happened(value: Value) -> Settlement {
    Settlement::Happened(Ok(Arc::new(value.into())))
}

/// Acts, waits for an answer, and acts three times more.
fn trip(ledger: &Ledger) -> Tool {
    let ledger = ledger.clone();
    Tool::durable_fn("trip", "acts", move |mut ctx: Ctx, _: Value| {
        let ledger = ledger.clone();
        async move {
            let mut said = Vec::new();
            for name in ["one", "two", "three", "four"] {
                let step = |attempt: windlass::Attempt| {
                    ledger.lock().push((name.to_owned(), attempt.key()));
                    async move { Ok(json!(name)) }
                };
                let value: Value = ctx.step(name, step).await?;
                said.push(value);
                if name == "one" {
                    let _: Value = ctx.wait("word").await?;
                }
            }
            Ok(json!(said))
        }
    })
}

#[test]
fn w09_w01_effects_after_the_backup_are_in_doubt() {
    let directory = TempDir::new().unwrap();
    let (file, copy) = (directory.path().join("app.db"), directory.path().join("copy.db"));
    let ledger = Ledger::default();
    let life = Life::on(&file, vec![trip(&ledger)]);
    let run = life.start("trip");
    block_on(life.store.backup(&copy)).unwrap();
    let old_key = life.key();
    life.answer(&old_key).unwrap();
    assert_eq!(life.outcome(run), json!(["one", "two", "three", "four"]));
    assert_eq!(seen(&ledger), ["one", "two", "three", "four"]);
    life.end();

    let life = Life::on(&copy, vec![trip(&ledger)]);
    assert!(life.answer(&old_key).is_err(), "it was handed out by another file");
    life.answer(&life.key()).unwrap();
    assert_eq!(life.doubt().as_deref(), Some("step \"two\""));
    life.settle(happened(json!("two, by hand")));
    assert_eq!(life.doubt().as_deref(), Some("step \"three\""), "if that happened, the next may have too");
    assert_eq!(seen(&ledger).len(), 4, "nothing was done so far");
    life.end();

    // The same after a restart in the middle of it.
    let life = Life::on(&copy, vec![trip(&ledger)]);
    assert_eq!(life.doubt().as_deref(), Some("step \"three\""));
    // The clock of this process begins again; the doubt is from a later time.
    life.pass(60 * MOMENT);
    life.settle(Settlement::DidNotHappen);
    assert_eq!(life.doubt(), None, "and if this did not happen, nothing after it did");
    assert_eq!(life.outcome(run), json!(["one", "two, by hand", "three", "four"]));
    assert_eq!(seen(&ledger), ["one", "two", "three", "four", "three", "four"]);
    life.end();
}

/// Acts once, and can reconcile.
fn charge(ledger: &Ledger) -> Tool {
    let (acts, looks) = (ledger.clone(), ledger.clone());
    Tool::with_call("charge", "acts", move |call: Call, args: Value| {
        acts.lock().push((args["for"].as_str().unwrap_or_default().to_owned(), call.idempotency_key()));
        async move { Ok(json!("charged")) }
    })
    .reconcile(move |call: Call| {
        let found = looks.lock().iter().any(|(_, key)| *key == call.idempotency_key());
        async move { Ok(if found { Reconciled::Happened(json!("charged")) } else { Reconciled::DidNotHappen }) }
    })
}

#[test]
fn w09_w01_reconcile_settles_effects_after_the_backup() {
    let directory = TempDir::new().unwrap();
    let (file, copy) = (directory.path().join("app.db"), directory.path().join("copy.db"));
    let ledger = Ledger::default();
    // Continues in a second generation, after two charges at the same time.
    let shop = || {
        Tool::durable_fn("shop", "charges", |mut ctx: Ctx, args: Value| async move {
            if args["second"] != true {
                let _: Value = ctx.wait("word").await?;
                let of = |what: &str| ToolCall::new("charge", json!({"for": what}));
                ctx.call_all([of("a"), of("b")]).await?;
                return ctx.continue_as::<Value>(json!({"second": true})).await;
            }
            let charged: Value = ctx.call(ToolCall::new("charge", json!({"for": "c"}))).await?;
            Ok(charged)
        })
    };
    let life = Life::on(&file, vec![shop(), charge(&ledger)]);
    let run = life.start("shop");
    block_on(life.store.backup(&copy)).unwrap();
    life.answer(&life.key()).unwrap();
    assert_eq!(life.outcome(run), json!("charged"));
    assert_eq!(seen(&ledger), ["a", "b", "c"]);
    life.end();
    // As if the last charge had never arrived.
    ledger.lock().pop();

    let life = Life::on(&copy, vec![shop(), charge(&ledger)]);
    life.answer(&life.key()).unwrap();
    assert_eq!(life.outcome(run), json!("charged"));
    assert_eq!((seen(&ledger), life.doubt()), (vec!["a".into(), "b".into(), "c".into()], None), "each once");
    life.end();
}

#[test]
fn w09_w01_a_run_that_is_spawned_again_asks_a_person() {
    let directory = TempDir::new().unwrap();
    let (file, copy) = (directory.path().join("app.db"), directory.path().join("copy.db"));
    let ledger = Ledger::default();
    let shop = || {
        Tool::durable_fn("shop", "spawns", |mut ctx: Ctx, _: Value| async move {
            let _: Value = ctx.wait("word").await?;
            let child = ctx.spawn(ToolCall::new("charge", json!({"for": "a"}))).await?;
            let charged: Value = ctx.join(&child).await?;
            Ok(charged)
        })
    };
    let life = Life::on(&file, vec![shop(), charge(&ledger)]);
    let run = life.start("shop");
    block_on(life.store.backup(&copy)).unwrap();
    life.answer(&life.key()).unwrap();
    assert_eq!(life.outcome(run), json!("charged"));
    life.end();

    let life = Life::on(&copy, vec![shop(), charge(&ledger)]);
    life.pass(DAY);
    life.answer(&life.key()).unwrap();
    assert_eq!(life.doubt().as_deref(), Some("call of tool `charge`"), "its tool would look for another key");
    life.settle(happened(json!("charged, says the bank")));
    assert_eq!(life.outcome(run), json!("charged, says the bank"));
    assert_eq!(seen(&ledger), ["a"]);
    life.end();
}
