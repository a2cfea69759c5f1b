//! A small disk that fills and is freed repeatedly, under one caller and under many. No accepted work is lost, no
//! charge is made twice, and the store works again soon after there is room.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::run::{Filter, Start};
use windlass::store::{Health, SqliteStore};
use windlass::tool::Reconciled;
use windlass::{Call, Ctx, RunId, Tool, ToolCall, Windlass};
use windlass_store::Options;

use super::from_env;
use crate::fault::{Means, in_child};
use crate::kill_mixed::Dice;
use crate::recovery::{fill, mounts};

/// How often a disk fills in a story.
const FILLS: usize = 3;
/// How soon a store must work again after there is room.
const SOON: Duration = Duration::from_secs(5);
/// Extra time for busy machines.
const GRACE: Duration = Duration::from_secs(15);
/// How long accepted work may take after that.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of every charge, as the outside world has it.
type Charged = Arc<Mutex<Vec<String>>>;

fn tools(charged: &Charged) -> [Tool; 2] {
    let (acts, knows) = (charged.clone(), charged.clone());
    let charge = Tool::with_call("charge", "once", move |call: Call, _: Value| {
        acts.lock().push(call.idempotency_key().to_string());
        async { Ok(json!("charged")) }
    })
    .reconcile(move |call| {
        let happened = knows.lock().contains(&call.idempotency_key().to_string());
        async move { Ok(if happened { Reconciled::Happened(json!("charged")) } else { Reconciled::DidNotHappen }) }
    });
    let order = Tool::durable_fn("order", "two charges", |mut ctx: Ctx, _: Value| async move {
        let first = ctx.call_json("charge", json!({"n": 1, "for": "x".repeat(900)})).await?;
        Ok(json!([first, ctx.call_json("charge", json!({"n": 2})).await?]))
    });
    [charge, order]
}

/// Places one order after the other, and repeats orders that were not accepted under the same key.
async fn caller(windlass: Windlass, number: u64, over: Arc<AtomicBool>, count: Arc<AtomicUsize>) -> Vec<RunId> {
    let mut accepted = Vec::new();
    for n in 0.. {
        if over.load(Ordering::Acquire) {
            break;
        }
        let run = loop {
            let how = Start::key(format!("c{number}.{n}"));
            match windlass.runtime().start_with(ToolCall::<Value>::new("order", json!({})), how).await {
                Ok(run) => break run,
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        accepted.push(run);
        count.fetch_add(1, Ordering::AcqRel);
        let outcome = loop {
            match windlass.runtime().attach(run).await {
                Ok(mut outcomes) => break outcomes.remove(0),
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        assert_eq!(outcome.for_model(), json!(["charged", "charged"]), "{run}");
    }
    accepted
}

async fn wait_for(what: &str, limit: Duration, mut is: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    begun.elapsed()
}

/// One story: this many callers on a disk that fills and is freed.
async fn story(dir: &Path, seed: u64, callers: u64) -> Duration {
    let (path, filler, charged) = (dir.join(format!("{seed}.db")), dir.join("filler"), Charged::default());
    let mut options = Options::default();
    options.inline_writes = true;
    let store = Arc::new(SqliteStore::open_with(&path, options).expect("the store opens"));
    let builder = Windlass::with_store(store.clone());
    let builder = tools(&charged).into_iter().fold(builder, windlass::Builder::tool);
    let windlass = builder.await.expect("the runtime opens");
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let work = |number| tokio::spawn(caller(windlass.clone(), number, over.clone(), count.clone()));
    let working: Vec<_> = (0..callers).map(work).collect();
    let (mut dice, mut slowest) = (Dice::new(seed), Duration::ZERO);
    for _ in 0..FILLS {
        let before = count.load(Ordering::Acquire) + dice.below(12);
        wait_for("work is accepted", PATIENCE, || count.load(Ordering::Acquire) > before).await;
        fill(&filler);
        wait_for("the fault is met", PATIENCE, || store.health() != Health::Fine).await;
        // Lists meet the fault too, and some faults last for more than one attempt.
        for _ in 0..dice.below(4) {
            drop(windlass.list(Filter::inbox(), None, 9).await);
            tokio::time::sleep(Duration::from_millis(dice.below(700) as u64)).await;
        }
        std::fs::remove_file(&filler).expect("room again");
        let took = wait_for("the store works again", SOON + GRACE, || store.health() == Health::Fine).await;
        slowest = slowest.max(took);
    }
    over.store(true, Ordering::Release);
    let mut accepted = BTreeSet::new();
    for caller in working {
        let runs =
            tokio::time::timeout(PATIENCE, caller).await.expect("accepted work ends").expect("a caller ends well");
        accepted.extend(runs);
    }
    let listed = windlass.list(Filter::default(), None, 100_000).await.expect("the runs");
    let listed: BTreeSet<RunId> = listed.iter().map(|info| info.run).collect();
    assert_eq!(listed, accepted, "lost or doubled");
    let mut keys = charged.lock().clone();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((all, keys.len()), (2 * accepted.len(), all), "every charge once");
    windlass.shutdown().await.expect("it closes");
    drop(store);
    for end in ["", "-wal", "-lock"] {
        let _ = std::fs::remove_file(dir.join(format!("{seed}.db{end}")));
    }
    slowest
}

fn stories(test: &str, callers: u64) {
    in_child(test, Means::Mounts, |broken| {
        if !mounts(&broken.dir, "24m") {
            return;
        }
        let executor = tokio::runtime::Runtime::new().expect("an executor");
        let mut slowest = Duration::ZERO;
        let disks = from_env("WINDLASS_SOAK_DISKS", 1);
        for seed in 1..=disks {
            slowest = slowest.max(executor.block_on(story(&broken.dir, seed, callers)));
        }
        println!("{disks} disks under {callers} callers: nothing lost, nothing doubled, after at most {slowest:?}");
        assert!(slowest < SOON || disks == 1, "the store took {slowest:?} to work again");
    });
}

#[test]
fn w08_a_small_disk_fills_and_is_freed_under_one_caller() {
    stories("soak::disk::w08_a_small_disk_fills_and_is_freed_under_one_caller", 1);
}

#[test]
fn w08_a_small_disk_fills_and_is_freed_under_many_callers() {
    stories("soak::disk::w08_a_small_disk_fills_and_is_freed_under_many_callers", 16);
}
