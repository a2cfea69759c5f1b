//! Forks and crashes: the process dies before or after every commit of a fork, and the result does not change.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::run::{Cut, Filter, ForkChange};
use windlass::store::Store;
use windlass::tool::{Reconciled, ToolRef};
use windlass::{Call, Ctx, RunId, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::store::{Answer, Commit, Promise};
use windlass_core::testing::Around;

use crate::world::{Kind, World};

/// A store that stops after a number of commits: to the process it looks as if it had died there.
struct Dying {
    inner: Arc<dyn Store>,
    left: AtomicI64,
    /// Whether the last commit is written and only its acknowledgement is lost.
    written: bool,
    graves: Mutex<Vec<Promise<()>>>,
}

impl Dying {
    fn is_dead(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }
}

impl Around for Dying {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 0 {
            return self.inner.commit(commit);
        }
        let (promise, ticket) = Promise::pair();
        if left == 0 && self.written {
            let written = self.inner.commit(commit);
            let done = futures_util::FutureExt::now_or_never(written.get());
            assert!(!matches!(done, Some(Err(_))), "{done:?}");
        }
        self.graves.lock().push(promise);
        Answer::Wait(ticket)
    }
}

/// The outside world: which effects happened, under which key.
type Ledger = Arc<Mutex<Vec<(String, String)>>>;

/// A tool that must not be repeated and can find out whether it happened.
fn once(ledger: &Ledger, name: &'static str) -> Tool {
    let (acts, looks) = (ledger.clone(), ledger.clone());
    Tool::with_call(name, "acts", move |call: Call, args: Value| {
        acts.lock().push((name.to_owned(), call.idempotency_key()));
        async move { Ok(json!(args["n"].as_i64().unwrap_or(0) + 1)) }
    })
    .reconcile(move |call: Call| {
        let key = call.idempotency_key();
        let n = call.args()["n"].as_i64().unwrap_or(0) + 1;
        let happened = looks.lock().iter().any(|(_, other)| *other == key);
        async move { Ok(if happened { Reconciled::Happened(json!(n)) } else { Reconciled::DidNotHappen }) }
    })
}

fn tools(ledger: &Ledger) -> Vec<Tool> {
    let chain = Tool::durable_fn("chain", "", |mut ctx: Ctx, _: Value| async move {
        let mut n = 0;
        for name in ["a", "b", "c"] {
            n = ctx.call(ToolCall::to(ToolRef::Name(name.into()), json!({"n": n}))).await?;
        }
        Ok(json!(n))
    });
    vec![chain, once(ledger, "a"), once(ledger, "b"), once(ledger, "c")]
}

async fn fork_of(runtime: &Runtime, original: RunId) -> RunId {
    let runs = runtime.list(Filter::default(), None, 9).await.unwrap();
    match runs.iter().find(|info| info.run != original) {
        Some(info) => info.run,
        None => {
            let change = ForkChange::Input(json!({"n": 40}));
            runtime.fork(original, Cut::At("1".parse().unwrap()), Some(change)).await.unwrap()
        }
    }
}

/// Forks a finished run, dying at the commit after `commits`. Returns whether there was such a commit.
fn story(kind: Kind, commits: i64, written: bool) -> bool {
    let ledger = Ledger::default();
    let world = World::new(kind);
    let runtime = world.runtime(tools(&ledger));
    let first = runtime.clone();
    let original = world.run(async move { first.call(ToolCall::new("chain", json!({}))).await }).unwrap().run;
    drop(runtime);
    let world = world.restart();
    let (inner, left, graves) = (world.store.clone(), AtomicI64::new(commits), Mutex::default());
    let dying = Arc::new(Dying { inner, left, written, graves });
    let mut config = world.config(tools(&ledger));
    config.store = dying.clone();
    let runtime = Runtime::new(config);
    let mortal = runtime.clone();
    world.sim.block_on(async move {
        let forked = fork_of(&mortal, original).await;
        let _ = mortal.attach(forked).await;
    });
    let died = dying.is_dead();
    drop(runtime);
    world.sim.bury();
    // The waiters for these answers are gone; each keeps the store open.
    let graves = std::mem::take(&mut *dying.graves.lock());
    drop(graves);
    drop(dying);
    let world = world.restart();
    let runtime = world.runtime(tools(&ledger));
    let (value, runs) = world.run(async move {
        runtime.recover().await.unwrap();
        let forked = fork_of(&runtime, original).await;
        let outcome = runtime.attach(forked).await.unwrap().remove(0);
        (outcome.for_model(), runtime.list(Filter::default(), None, 9).await.unwrap().len())
    });
    let place = format!("{kind:?}, dying at commit {commits}, written: {written}");
    assert_eq!((value, runs), (json!(42), 2), "{place}");
    let mut effects: Vec<String> = ledger.lock().iter().map(|(name, _)| name.clone()).collect();
    effects.sort();
    assert_eq!(effects, ["a", "b", "b", "c", "c"], "{place}");
    died
}

#[test]
fn w10_w11_a_fork_survives_every_crash() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        for written in [false, true] {
            let deaths = (0..).take_while(|commits| story(kind, *commits, written)).count();
            assert!(deaths >= 4, "only {deaths} commits: the fork, two intents, the end");
        }
    }
}
