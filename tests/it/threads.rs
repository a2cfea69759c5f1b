//! Real threads: CPU-bound bodies, bodies that never yield, many concurrent callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Start, Work};
use windlass::store::{Durability, SqliteStore};
use windlass::{Ctx, Effect, Tool, ToolCall, Windlass};
use windlass_store::Options;

use crate::world::{Counter, tool};

/// Computes until it is stopped, without yielding.
fn spins(name: &str, stop: &Arc<AtomicBool>) -> Tool {
    let stop = stop.clone();
    tool(name, move |_| {
        let stop = stop.clone();
        async move {
            while !stop.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            Ok("stopped")
        }
    })
    .effect(Effect::Readonly)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_never_yields_is_logged_and_others_continue() {
    let stop = Arc::new(AtomicBool::new(false));
    let windlass = Windlass::in_memory()
        .watchdog(Duration::from_millis(20))
        .tool(spins("spinner", &stop))
        .tool(tool("other", |_| async { Ok("ran") }).effect(Effect::Readonly))
        .await
        .unwrap();
    let spinning = tokio::spawn({
        let windlass = windlass.clone();
        async move { windlass.call_json("spinner", json!({})).await.unwrap() }
    });
    let named = loop {
        if let Some(stuck) = windlass.stuck().pop() {
            break stuck;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(named.name, "spinner");
    let other = windlass.call_json("other", json!({})).await.unwrap();
    assert_eq!(other.value(), Some(&json!("ran")), "other threads go on");
    stop.store(true, Ordering::Release);
    assert_eq!(spinning.await.unwrap().value(), Some(&json!("stopped")));
}

#[tokio::test(flavor = "current_thread")]
async fn e09_cpu_bound_bodies_never_block_the_others() {
    // One thread for everything else: the test ends only if the body runs on a separate thread.
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = stop.clone();
    let windlass = Windlass::in_memory()
        .tool(spins("compute", &stop).with(|spec| spec.hints.cpu_bound = true))
        .tool(
            tool("stop", move |_| {
                stopper.store(true, Ordering::Release);
                async { Ok("told it") }
            })
            .effect(Effect::Readonly),
        )
        .await
        .unwrap();
    let calls = ["compute", "stop"].map(|name| ToolCall::new(name, json!({})));
    let outcomes = windlass.batch(calls).await.unwrap();
    assert_eq!(outcomes[0].value(), Some(&json!("stopped")));
    assert_eq!(outcomes[1].value(), Some(&json!("told it")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l24_a_panic_of_a_cpu_bound_body_is_a_failed_call() {
    let boom = tool("boom", |_| async { if true { panic!("on a thread") } else { Ok(()) } });
    let windlass = Windlass::in_memory().tool(boom.with(|spec| spec.hints.cpu_bound = true)).await.unwrap();
    let outcome = windlass.call_json("boom", json!({})).await.unwrap();
    assert_eq!(outcome.error().map(windlass::ToolError::kind), Some("panicked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w08_many_runs_at_once_on_one_file_each_happen_once() {
    let dir = tempfile::tempdir().unwrap();
    let acted = Counter::default();
    let count = acted.clone();
    let act = tool("act", move |args| {
        let n = count.add();
        async move {
            tokio::task::yield_now().await;
            Ok(json!([args["n"], n > 0]))
        }
    });
    let job = Tool::durable_fn("job", "", |mut ctx: Ctx, args: Value| async move {
        let look = ctx.step("look", |_| async { Ok(1) }).readonly().await?;
        let (a, b) = ctx.call_all((ToolCall::new("act", args.clone()), ToolCall::new("act", args))).await?;
        Ok(json!([look, a, b]))
    });
    let path = dir.path().join("app.db");
    let windlass = Windlass::open(&path).tool(act).tool(job).await.unwrap();
    let runs: Vec<_> = (0..100)
        .map(|n| {
            let windlass = windlass.clone();
            tokio::spawn(async move { windlass.call_json("job", json!({"n": n})).await.unwrap() })
        })
        .collect();
    for (n, run) in runs.into_iter().enumerate() {
        let outcome = run.await.unwrap();
        assert_eq!(outcome.value(), Some(&json!([1, [n, true], [n, true]])));
    }
    assert_eq!(acted.get(), 200);
    windlass.shutdown().await.unwrap();
}

#[tokio::test]
async fn dropping_a_call_does_not_stop_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let (started, release) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (signal, gate) = (started.clone(), release.clone());
    let slow = tool("slow", move |_| {
        let (signal, gate) = (signal.clone(), gate.clone());
        async move {
            signal.notify_one();
            gate.notified().await;
            Ok("finished all the same")
        }
    });
    let windlass = Windlass::open(dir.path().join("app.db")).tool(slow).await.unwrap();
    {
        let call = windlass.call_json("slow", json!({}));
        tokio::select! {
            biased;
            _ = call => panic!("it cannot be done yet"),
            () = started.notified() => {}
        }
    }
    release.notify_one();
    let run = windlass.list(windlass::run::Filter::default(), None, 10).await.unwrap()[0].run;
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.value(), Some(&json!("finished all the same")));
}

#[tokio::test(flavor = "current_thread")]
async fn w08_a_run_with_inline_commits_yields_to_other_tasks() {
    const STEPS: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    // This thread writes inline, and everything else here runs on it too.
    let mut options = Options::from(Durability::Relaxed);
    options.inline_writes = true;
    let store = Arc::new(SqliteStore::open_with(folder.path().join("app.db"), options).unwrap());
    let steps = Tool::durable_fn("steps", "Takes steps", |mut ctx: Ctx, _: Value| async move {
        for number in 0..STEPS {
            ctx.step("step", |_| async move { Ok(number) }).await?;
        }
        Ok(())
    });
    let windlass = Windlass::with_store(store).tool(steps).await.unwrap();
    let (turns, over) = (Counter::default(), Arc::new(AtomicBool::new(false)));
    let other = tokio::spawn({
        let (turns, over) = (turns.clone(), over.clone());
        async move {
            while !over.load(Ordering::Acquire) {
                turns.add();
                tokio::task::yield_now().await;
            }
        }
    });
    windlass.call_json("steps", json!({})).await.unwrap();
    over.store(true, Ordering::Release);
    other.await.unwrap();
    assert!(turns.get() as usize >= STEPS / 16, "{} turns in {STEPS} steps", turns.get());
}

#[tokio::test(flavor = "current_thread")]
async fn l12_work_continues_without_its_caller() {
    let (begun, done) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let waits = {
        let (begun, done) = (begun.clone(), done.clone());
        tool("waits", move |_| {
            let (begun, done) = (begun.clone(), done.clone());
            async move {
                begun.notify_one();
                done.notified().await;
                Ok("done")
            }
        })
    };
    let windlass = Windlass::in_memory().tool(waits).await.unwrap();
    let work = Work::Call(ToolCall::new("waits", json!({})));
    let mut submitted = windlass.runtime().submit(work, Start::key("k")).await.unwrap();
    tokio::select! {
        biased;
        _ = submitted.outcomes() => panic!("it was not allowed to end yet"),
        () = begun.notified() => {}
    }
    drop(submitted);
    done.notify_one();
    let again = windlass.runtime().submit(Work::Call(ToolCall::new("waits", json!({}))), Start::key("k")).await;
    let (_, outcomes) = again.unwrap().outcomes().await.unwrap();
    assert_eq!(outcomes[0].value(), Some(&json!("done")), "the same attempt, which had no waiter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l08_an_answer_before_the_run_is_stored_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, mut handed) = tokio::sync::mpsc::unbounded_channel();
    let (go, gone) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let asks = {
        let go = go.clone();
        Tool::with_call("asks", "Asks a person", move |call: windlass::Call, _: Value| {
            let (keys, go) = (keys.clone(), go.clone());
            async move {
                keys.send(call.reply_key()).unwrap();
                // A readonly call is not in the store before it waits or ends.
                go.notified().await;
                Ok(windlass::tool::Reply::<Value>::later())
            }
        })
        .effect(Effect::Readonly)
    };
    let windlass = Windlass::open(folder.path().join("app.db")).tool(asks).await.unwrap();
    let calling = tokio::spawn({
        let windlass = windlass.clone();
        async move { windlass.call_json("asks", json!({})).await.unwrap() }
    });
    let key = handed.recv().await.unwrap();
    let answering = tokio::spawn({
        let (windlass, gone) = (windlass.clone(), gone.clone());
        async move {
            gone.notify_one();
            windlass.inbox().resolve(&key, windlass::inbox::Resolution::Ok { value: json!("yes") }).await
        }
    });
    gone.notified().await;
    go.notify_one();
    answering.await.unwrap().unwrap();
    assert_eq!(calling.await.unwrap().value(), Some(&json!("yes")));
}
