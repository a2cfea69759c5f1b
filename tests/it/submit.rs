//! Work submitted from outside: under a key, awaited or not, and submitted again.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::{About, Question, Settlement};
use windlass::run::{Cut, ForkChange, RunState, Start, Work};
use windlass::{Effect, Error, Outcome, RunId, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::testing::Fault;

use crate::world::{Counter, World, on_every_store, tool};

fn counting(name: &str, done: &Counter) -> Tool {
    let done = done.clone();
    tool(name, move |args: Value| {
        let done = done.clone();
        async move { Ok(json!({"n": done.add(), "args": args})) }
    })
}

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

fn keyed(key: &str) -> Start {
    Start::key(key.to_owned())
}

fn outcomes(world: &World, runtime: &Runtime, work: Work, how: Start) -> Result<(RunId, Vec<Outcome>), Error> {
    let runtime = runtime.clone();
    world.run(async move { runtime.submit(work, how).await?.outcomes().await })
}

fn accepted(world: &World, runtime: &Runtime, work: Work, how: Start) -> Result<RunId, Error> {
    let runtime = runtime.clone();
    world.run(async move { runtime.submit(work, how).await?.accepted().await })
}

#[test]
fn l12_the_same_request_under_the_same_key_is_the_same_run() {
    for effect in [Effect::Once, Effect::Idempotent, Effect::Readonly] {
        on_every_store(|world| {
            let done = Counter::default();
            let runtime = world.runtime([counting("count", &done).effect(effect)]);
            let work = || Work::Call(call("count", json!({"a": 1})));
            let (run, first) = outcomes(&world, &runtime, work(), keyed("k")).unwrap();
            let (again, second) = outcomes(&world, &runtime, work(), keyed("k")).unwrap();
            assert_eq!((again, second[0].value()), (run, first[0].value()));
            assert_eq!(accepted(&world, &runtime, work(), keyed("k")).unwrap(), run);
            assert_eq!(done.get(), 1, "{effect:?}: a recorded result is never run again");
            drop((runtime, first, second));
            let world = world.restart();
            let runtime = world.runtime([counting("count", &done).effect(effect)]);
            assert_eq!(outcomes(&world, &runtime, work(), keyed("k")).unwrap().0, run);
            assert_eq!(done.get(), 1);
        });
    }
}

#[test]
fn l12_requests_that_race_under_one_key_are_one_run() {
    on_every_store(|world| {
        let done = Counter::default();
        let runtime = world.runtime([counting("count", &done)]);
        let race = runtime.clone();
        let all = world.run(async move {
            let mut submitted = Vec::new();
            for _ in 0..5 {
                submitted.push(race.submit(Work::Call(call("count", json!({}))), keyed("k")).await.unwrap());
            }
            let waiting = submitted.iter_mut().map(|one| one.outcomes());
            futures_util::future::join_all(waiting).await
        });
        let runs: Vec<RunId> = all.into_iter().map(|one| one.unwrap().0).collect();
        assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
        assert_eq!(done.get(), 1, "none but the one in the store was attempted");
    });
}

#[test]
fn l12_a_key_that_belongs_to_other_work_is_refused() {
    on_every_store(|world| {
        let done = Counter::default();
        let runtime = world.runtime([counting("count", &done), counting("other", &done)]);
        let work = |tool: &str, args| Work::Call(call(tool, args));
        let (run, _) = outcomes(&world, &runtime, work("count", json!({"a": 1})), keyed("k")).unwrap();
        let batch = |n: i64| Work::Batch {
            calls: vec![call("count", json!({"a": 1})), call("other", json!({"n": n}))],
            stop_on_failure: false,
        };
        let refused = |work, how| match outcomes(&world, &runtime, work, how) {
            Err(Error::KeyReused { run, what }) => (run, what),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(work("count", json!({"a": 2})), keyed("k")).0, run);
        let (_, what) = refused(work("other", json!({"a": 1})), keyed("k"));
        assert!(what.contains("it runs `count`, not `other`"), "{what}");
        refused(batch(1), keyed("k"));
        let (_, what) = refused(work("count", json!({"a": 1})), Start { session: Some("s".into()), ..keyed("k") });
        assert!(what.contains("session"), "{what}");
        let (several, results) = outcomes(&world, &runtime, batch(1), keyed("b")).unwrap();
        assert_eq!((results.len(), results[1].path.to_string()), (2, "1".to_owned()));
        assert_eq!(outcomes(&world, &runtime, batch(1), keyed("b")).unwrap().0, several);
        assert!(refused(batch(2), keyed("b")).1.contains("at 1"));
        refused(work("count", json!({"a": 1})), keyed("b"));
        assert_eq!(done.get(), 3);
    });
}

#[test]
fn l12_a_batch_is_started_under_a_key_for_any_worker() {
    on_every_store(|world| {
        let done = Counter::default();
        let runtime = world.runtime([counting("count", &done)]);
        let start = |runtime: &Runtime| {
            let runtime = runtime.clone();
            let calls = vec![call("count", json!({"n": 1})).with_id("c1"), call("count", json!({"n": 2}))];
            world.run(async move { runtime.start_batch(calls, true, keyed("b")).await }).unwrap()
        };
        let run = start(&runtime);
        assert_eq!(start(&runtime), run);
        let attached = runtime.clone();
        let results = world.run(async move { attached.attach(run).await }).unwrap();
        assert_eq!((results.len(), results[0].id.as_deref()), (2, Some("c1")));
        assert_eq!(start(&runtime), run);
        assert_eq!(done.get(), 2);
    });
}

#[test]
fn l13_submit_returns_once_the_run_is_in_the_store() {
    on_every_store(|world| {
        let done = Counter::default();
        let slow = |done: &Counter, sim: windlass_core::testing::Sim| {
            let done = done.clone();
            tool("slow", move |_: Value| {
                let (done, sim) = (done.clone(), sim.clone());
                async move {
                    windlass_core::time::Clock::sleep(&sim, Duration::from_secs(9)).await;
                    Ok(done.add())
                }
            })
            .effect(Effect::Readonly)
        };
        let runtime = world.runtime([slow(&done, world.sim.clone())]);
        let submitting = runtime.clone();
        let patient = runtime.clone();
        let sim = world.sim.clone();
        let run = world.run(async move {
            let mut submitted = submitting.submit(Work::Call(call("slow", json!({}))), keyed("k")).await.unwrap();
            let nap = windlass_core::time::Clock::sleep(&sim, Duration::from_secs(1));
            {
                let waited = std::pin::pin!(submitted.outcomes());
                let first = futures_util::future::select(waited, nap).await;
                assert!(matches!(first, futures_util::future::Either::Right(_)), "it takes longer");
            }
            submitted.accepted().await.unwrap()
        });
        let info = runtime.clone();
        let state = world.run(async move { info.info(run).await }).unwrap().unwrap().state;
        assert_eq!(state, RunState::Running);
        let results = world.run(async move { patient.attach(run).await }).unwrap();
        assert_eq!((results[0].value(), done.get()), (Some(&json!(1)), 1));
    });
}

#[test]
fn w08_a_commit_without_an_answer_is_not_repeated() {
    on_every_store(|world| {
        let done = Counter::default();
        let faulty = std::sync::Arc::new(windlass_core::testing::FaultyStore::new(world.store.clone()));
        let mut config = world.config([counting("count", &done).effect(Effect::Idempotent)]);
        config.store = faulty.clone();
        let runtime = Runtime::new(config);
        let work = || Work::Call(call("count", json!({})));
        faulty.fail_after(0, Fault::AnswerLost);
        let first = outcomes(&world, &runtime, work(), keyed("k"));
        let run = match first {
            Err(Error::Unknown { run, .. }) => run,
            other => panic!("{other:?}"),
        };
        let (again, _) = outcomes(&world, &runtime, work(), keyed("k")).unwrap();
        assert_eq!((again, done.get()), (run, 1));
    });
}

#[test]
fn w10_a_fork_under_a_key_is_made_once() {
    on_every_store(|world| {
        let done = Counter::default();
        let runtime = world.runtime([counting("count", &done)]);
        let (run, _) = outcomes(&world, &runtime, Work::Call(call("count", json!({}))), keyed("call")).unwrap();
        let fork = |key: &'static str, at: Cut, change: Option<ForkChange>| {
            let runtime = runtime.clone();
            world.run(async move { runtime.fork_under(Some(key.into()), run, at, change).await })
        };
        let first = fork("f", Cut::Start, Some(ForkChange::Input(json!({"x": 1})))).unwrap();
        assert_eq!(fork("f", Cut::Start, Some(ForkChange::Input(json!({"x": 1})))).unwrap(), first);
        assert_ne!(fork("g", Cut::Start, None).unwrap(), first);
        assert!(matches!(fork("f", Cut::End, None), Err(Error::KeyReused { run, .. }) if run == first));
        assert!(matches!(fork("call", Cut::Start, None), Err(Error::KeyReused { run: other, .. }) if other == run));
        let reused = outcomes(&world, &runtime, Work::Call(call("count", json!({"x": 1}))), keyed("f"));
        assert!(matches!(reused, Err(Error::KeyReused { .. })), "{reused:?}");
    });
}

#[test]
fn l05_cancelling_under_a_key_is_harmless_the_second_time() {
    on_every_store(|world| {
        let waits = Tool::durable_fn("waits", "waits", |mut ctx: windlass::Ctx, _: Value| async move {
            let said: Value = ctx.wait("word").await?;
            Ok(said)
        });
        let runtime = world.runtime([waits]);
        let run = accepted(&world, &runtime, Work::Call(call("waits", json!({}))), Start::default()).unwrap();
        world.pass(Duration::from_secs(1));
        let cancel = |key: Option<&'static str>| {
            let runtime = runtime.clone();
            world.run(async move { runtime.cancel_under(key, run, "ada", "enough").await })
        };
        cancel(Some("c")).unwrap();
        world.pass(Duration::from_secs(1));
        cancel(Some("c")).unwrap();
        assert!(cancel(Some("d")).is_err(), "it is over, and this is another cancellation");
    });
}

#[test]
fn w01_the_first_settlement_counts_and_is_named() {
    let world = World::new(crate::world::Kind::Sqlite);
    let stuck = || tool("stuck", |_: Value| std::future::pending::<windlass::ToolResult<u32>>());
    let runtime = world.runtime([stuck()]);
    let run = accepted(&world, &runtime, Work::Call(call("stuck", json!({}))), keyed("k")).unwrap();
    drop(runtime);
    let world = world.restart();
    let runtime = world.runtime([stuck()]);
    let recovering = runtime.clone();
    world.run(async move { recovering.recover().await }).unwrap();
    world.pass(Duration::from_secs(120));
    let looking = runtime.clone();
    let (_, doubt) = world.run(async move { looking.doubts().await }).unwrap().remove(0);
    let question = |attempt| Question { run, generation: 0, path: doubt.path.clone(), about: About::Doubt(attempt) };
    let settle = |attempt: u32, by: &'static str| {
        let (runtime, question) = (runtime.clone(), question(attempt));
        world.run(async move { runtime.settle_once(&question, Settlement::GiveUp, by, "who knows").await })
    };
    let counted = |attempt: u32| {
        let (runtime, question) = (runtime.clone(), question(attempt));
        world.run(async move { runtime.counted(&question).await }).unwrap()
    };
    assert_eq!(counted(doubt.attempt), None);
    assert!(settle(doubt.attempt + 1, "ada").is_err(), "another attempt is another question");
    settle(doubt.attempt, "ada").unwrap();
    world.pass(Duration::from_secs(1));
    assert!(settle(doubt.attempt, "bob").is_err());
    let first = counted(doubt.attempt).unwrap();
    assert_eq!((first.what, &*first.by, &*first.reason), ("given_up", "ada", "who knows"));
}

#[test]
fn b06_a_waiting_caller_gets_the_timeout_of_a_missing_reply() {
    on_every_store(|world| {
        let asks =
            tool("asks", |_| async { Ok(windlass::tool::Reply::<Value>::later().within(Duration::from_millis(50))) });
        let runtime = world.runtime([asks]);
        let (_, outcomes) = outcomes(&world, &runtime, Work::Call(call("asks", json!({}))), Start::default()).unwrap();
        assert_eq!(outcomes[0].error().unwrap().kind(), "timed_out");
    });
}

#[test]
fn l12_starting_a_batch_returns_once_it_is_in_the_store() {
    on_every_store(|world| {
        let runtime = world.runtime([Tool::new("t", "", |_: Value| async { Ok(1) })]);
        let starting = runtime.clone();
        let calls = vec![ToolCall::new("t", json!({})), ToolCall::new("t", json!({}))];
        let run = world.run(async move { starting.start_batch(calls, false, Start::key("k")).await }).unwrap();
        let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
        assert_eq!(outcomes.len(), 2);
    });
}
