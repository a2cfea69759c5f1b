//! Doubts: how they arise, how they are settled, and that no attempt overlaps an earlier one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::tool::Reconciled;
use windlass::tool::spec::OnDoubt;
use windlass::{Ctx, Effect, Error, Outcome, Path, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::run::record::{DoubtCause, Event, Settler};
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, on_every_store, tool};

/// A once tool whose first attempt never returns.
fn hangs_once(acted: &Counter) -> Tool {
    let acted = acted.clone();
    tool("act", move |_| {
        let n = acted.add();
        async move {
            if n == 1 {
                std::future::pending::<()>().await;
            }
            Ok(json!({"attempt": n}))
        }
    })
    .timeout(Duration::from_millis(100))
}

/// Starts a run and waits until nothing more happens.
fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(ToolCall::new(name, json!({}))).unwrap();
    let waiting = runtime.clone();
    world.sim.block_on(async move { waiting.attach(run).await.map(|_| ()) });
    run
}

fn settle(world: &World, runtime: &Runtime, run: RunId, settlement: Settlement) -> Result<Outcome, Error> {
    let runtime = runtime.clone();
    world.run(async move {
        let (_, doubt) = runtime.doubts().await?.remove(0);
        runtime.settle(run, &doubt.path, settlement, "ann", "looked it up").await?;
        Ok(runtime.attach(run).await?.remove(0))
    })
}

#[test]
fn w01_a_person_says_it_happened() {
    on_every_store(|world| {
        let acted = Counter::default();
        let runtime = world.runtime([hangs_once(&acted)]);
        let run = start(&world, &runtime, "act");
        let result = Settlement::Happened(Ok(Arc::new(json!({"found": true}).into())));
        let outcome = settle(&world, &runtime, run, result).unwrap();
        assert_eq!(outcome.value(), Some(&json!({"found": true})));
        assert_eq!(acted.get(), 1);
        let journal = world.run(async move { runtime.journal(run).await.unwrap() });
        let Some(Event::Finished(finished)) = journal.last().map(|record| &record.event) else { panic!("{journal:?}") };
        let settled = finished.settled.as_ref().expect("who settled it is in the journal");
        assert_eq!((&settled.by, settled.reason.as_str()), (&Settler::Person("ann".into()), "looked it up"));
    });
}

#[test]
fn w01_a_person_says_it_did_not_happen_and_it_runs_again() {
    on_every_store(|world| {
        let acted = Counter::default();
        let runtime = world.runtime([hangs_once(&acted)]);
        let run = start(&world, &runtime, "act");
        let outcome = settle(&world, &runtime, run, Settlement::DidNotHappen).unwrap();
        assert_eq!(outcome.value(), Some(&json!({"attempt": 2})));
        let doubts = world.run(async move { runtime.doubts().await.unwrap() });
        assert!(doubts.is_empty(), "{doubts:?}");
    });
}

#[test]
fn w01_a_person_gives_up_and_the_body_gets_an_in_doubt_error() {
    on_every_store(|world| {
        let acted = Counter::default();
        let runtime = world.runtime([hangs_once(&acted)]);
        let run = start(&world, &runtime, "act");
        let outcome = settle(&world, &runtime, run, Settlement::GiveUp).unwrap();
        assert!(matches!(outcome.error(), Some(ToolError::InDoubt { .. })), "{outcome:?}");
        assert_eq!(acted.get(), 1);
    });
}

#[test]
fn w01_policy_fails_or_reruns_without_a_person() {
    on_every_store(|world| {
        for (policy, expected) in [(OnDoubt::Fail, "in_doubt"), (OnDoubt::Rerun, "ok")] {
            let acted = Counter::default();
            let runtime = world.runtime([hangs_once(&acted).on_doubt(policy)]);
            let outcome = world.run(async move { runtime.call(ToolCall::new("act", json!({}))).await.unwrap() });
            assert_eq!(outcome.error().map_or("ok", ToolError::kind), expected);
        }
    });
}

#[test]
fn w01_reconcile_settles_a_doubt_before_a_person_is_asked() {
    on_every_store(|world| {
        for (found, expected) in
            [(Reconciled::Happened(json!("found")), json!("found")), (Reconciled::DidNotHappen, json!({"attempt": 2}))]
        {
            let acted = Counter::default();
            let answer = found.clone();
            let act = hangs_once(&acted).reconcile(move |_| {
                let answer = answer.clone();
                async move { Ok(answer) }
            });
            let runtime = world.runtime([act]);
            let outcome = world.run(async move { runtime.call(ToolCall::new("act", json!({}))).await.unwrap() });
            assert_eq!(outcome.value(), Some(&expected), "{found:?}");
        }
    });
}

#[test]
fn w01_a_reconcile_that_fails_panics_or_hangs_leaves_it_to_policy() {
    let world = World::new(Kind::Memory);
    type Answer = futures_util::future::BoxFuture<'static, windlass::ToolResult<Reconciled<Value>>>;
    let answers: [fn() -> Answer; 4] = [
        || Box::pin(async { Ok(Reconciled::Unknown) }),
        || Box::pin(async { Err(ToolError::failed("the provider is down")) }),
        || Box::pin(async { panic!("reconcile panics") }),
        || Box::pin(std::future::pending()),
    ];
    for answer in answers {
        let acted = Counter::default();
        let act = hangs_once(&acted).on_doubt(OnDoubt::Fail).reconcile(move |_| answer());
        let runtime = world.runtime([act]);
        let outcome = world.run(async move { runtime.call(ToolCall::new("act", json!({}))).await.unwrap() });
        assert_eq!(outcome.error().map(ToolError::kind), Some("in_doubt"));
        assert_eq!(acted.get(), 1);
    }
}

#[test]
fn w01_a_settlement_without_a_doubt_is_refused_with_the_open_doubts() {
    let world = World::new(Kind::Memory);
    let acted = Counter::default();
    let runtime = world.runtime([hangs_once(&acted)]);
    let run = start(&world, &runtime, "act");
    let error = world.run(async move {
        let path: Path = "3/1".parse().unwrap();
        runtime.settle(run, &path, Settlement::GiveUp, "ann", "typo").await.unwrap_err().to_string()
    });
    assert_eq!(error, format!("nothing is in doubt at 3/1 of run {run}; open doubts: /"));
}

#[test]
fn w01_a_doubt_keeps_its_key_but_not_the_session() {
    on_every_store(|world| {
        let acted = Counter::default();
        let key = || windlass::tool::spec::KeyExpression::parse("'account'").unwrap();
        let runtime = world.runtime([
            hangs_once(&acted).key(key()),
            hangs_once(&Counter::default()).with(|spec| {
                spec.name = "exclusive".into();
                spec.id = "exclusive".into();
            }),
            tool("keyed", |_| async { Ok("ran") }).key(key()).effect(Effect::Idempotent),
            tool("next", |_| async { Ok("ran") }).effect(Effect::Idempotent),
        ]);
        let batch = {
            let runtime = runtime.clone();
            let calls = vec![ToolCall::new("exclusive", json!({})), ToolCall::new("next", json!({}))];
            async move { runtime.batch(calls, false).await.map(|_| ()) }
        };
        assert!(world.sim.block_on(batch).is_none(), "the batch waits for its doubt");
        let reader = runtime.clone();
        let journal = world.run(async move {
            let (run, _) = reader.doubts().await.unwrap().remove(0);
            reader.journal(run).await.unwrap()
        });
        let next_ran = journal.iter().any(|r| r.path.to_string() == "1" && matches!(r.event, Event::Finished(_)));
        assert!(next_ran, "an exclusive call in doubt does not hold back the calls behind it");

        let run = start(&world, &runtime, "act");
        let blocked = runtime.clone();
        let keyed = async move { blocked.call(ToolCall::new("keyed", json!({}))).await.map(|_| ()) };
        assert!(world.sim.block_on(keyed).is_none(), "the key stays with the doubt");
        let settling = runtime.clone();
        world.run(async move {
            let result = Settlement::Happened(Ok(Arc::new(json!(1).into())));
            settling.settle(run, &Path::root(), result, "ann", "found it").await.unwrap();
            settling.attach(run).await.unwrap();
            settling.call(ToolCall::new("keyed", json!({}))).await.unwrap()
        });
    });
}

#[test]
fn w01_a_doubt_survives_a_crash_and_its_settlement_may_wait_in_the_mailbox() {
    on_every_store(|world| {
        let acted = Counter::default();
        let runtime = world.runtime([hangs_once(&acted)]);
        let run = start(&world, &runtime, "act");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([hangs_once(&acted)]);
        let outcome = {
            let runtime = runtime.clone();
            world.run(async move {
                let (found, doubt) = runtime.doubts().await.unwrap().remove(0);
                assert_eq!(found, run);
                // No runtime drives the run yet: the settlement waits in its mailbox.
                let result = Settlement::Happened(Ok(Arc::new(json!("by mail").into())));
                runtime.settle(run, &doubt.path, result, "ann", "over night").await.unwrap();
                runtime.recover().await.unwrap();
                runtime.attach(run).await.unwrap().remove(0)
            })
        };
        assert_eq!(outcome.value(), Some(&json!("by mail")));
        assert_eq!(acted.get(), 1);
    });
}

/// Two runtimes share a store; the second takes over while the first may still be alive.
#[test]
fn w01_did_not_happen_counts_once_the_old_attempt_cannot_be_alive() {
    let world = World::new(Kind::Memory);
    let acted = Counter::default();
    let slow = hangs_once(&acted).timeout(Duration::from_secs(60));
    let first = world.runtime([slow]);
    let run = first.start_unconfirmed(ToolCall::new("act", json!({}))).unwrap();
    let sim = world.sim.clone();
    world.run(async move { sim.sleep(Duration::from_millis(10)).await });
    assert_eq!(acted.get(), 1, "the first worker's attempt is in flight");

    let second = world.runtime([hangs_once(&acted).timeout(Duration::from_secs(60))]);
    let sim = world.sim.clone();
    let (refused, outcome) = world.run(async move {
        second.resume(run).await.unwrap();
        sim.sleep(Duration::from_secs(1)).await;
        let early = second.settle(run, &Path::root(), Settlement::DidNotHappen, "ann", "sure").await;
        let refused = early.unwrap_err().to_string();
        sim.sleep(Duration::from_secs(60)).await;
        second.settle(run, &Path::root(), Settlement::DidNotHappen, "ann", "sure").await.unwrap();
        (refused, second.attach(run).await.unwrap().remove(0))
    });
    assert!(refused.contains("may still be running") && refused.contains("did not happen"), "{refused}");
    assert_eq!(outcome.value(), Some(&json!({"attempt": 2})));
}

#[test]
fn w01_an_early_negative_reconcile_is_repeated() {
    let world = World::new(Kind::Memory);
    let (acted, asked) = (Counter::default(), Counter::default());
    let make = |acted: &Counter, asked: &Counter| {
        let (happens_late, asked) = (asked.clone(), asked.clone());
        hangs_once(acted).timeout(Duration::from_secs(60)).reconcile(move |_| {
            asked.add();
            // The effect of the old attempt arrives after the first reconciliation.
            let found =
                if happens_late.get() > 1 { Reconciled::Happened(json!("late")) } else { Reconciled::DidNotHappen };
            async move { Ok(found) }
        })
    };
    let first = world.runtime([make(&acted, &asked)]);
    let run = first.start_unconfirmed(ToolCall::new("act", json!({}))).unwrap();
    let sim = world.sim.clone();
    world.run(async move { sim.sleep(Duration::from_millis(10)).await });
    let second = world.runtime([make(&acted, &asked)]);
    let outcome = world.run(async move {
        second.resume(run).await.unwrap();
        second.attach(run).await.unwrap().remove(0)
    });
    assert_eq!(outcome.value(), Some(&json!("late")));
    assert_eq!((acted.get(), asked.get()), (1, 2), "attempted once, asked twice");
}

#[test]
fn w01_a_step_in_doubt_is_settled_by_a_person_and_the_body_goes_on() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                let first: u32 = ctx.step("first", |_| async { Ok(1) }).await?;
                let second: u32 = ctx
                    .step("second", |_| std::future::pending::<windlass::ToolResult<u32>>())
                    .timeout(Duration::from_millis(5))
                    .await?;
                Ok(json!(first + second))
            })
        };
        let runtime = world.runtime([body()]);
        let run = start(&world, &runtime, "body");
        let outcome = settle(&world, &runtime, run, Settlement::Happened(Ok(Arc::new(json!(41).into())))).unwrap();
        assert_eq!(outcome.value(), Some(&json!(42)));
    });
}

/// A tool whose first attempt does not know whether it happened.
fn cannot_tell(acted: &Counter) -> Tool {
    let acted = acted.clone();
    tool("act", move |_| {
        let n = acted.add();
        async move {
            if n == 1 {
                return Err(ToolError::in_doubt("the line was cut before an answer came"));
            }
            Ok(json!({"attempt": n}))
        }
    })
    .timeout(Duration::from_secs(5))
}

#[test]
fn w01_an_attempt_that_cannot_tell_is_in_doubt_and_not_repeated() {
    on_every_store(|world| {
        let acted = Counter::default();
        let runtime = world.runtime([cannot_tell(&acted)]);
        let run = start(&world, &runtime, "act");
        let reader = runtime.clone();
        let (doubts, journal) =
            world.run(async move { (reader.doubts().await.unwrap(), reader.journal(run).await.unwrap()) });
        assert_eq!(doubts[0].1.cause.to_string(), "the attempt itself could not tell");
        let cause = journal.iter().find_map(|record| match record.event {
            Event::Doubted { cause, .. } => Some(cause),
            _ => None,
        });
        assert_eq!(cause, Some(DoubtCause::Unclear));
        assert_eq!(acted.get(), 1);
        let result = Settlement::Happened(Ok(Arc::new(json!("found").into())));
        assert_eq!(settle(&world, &runtime, run, result).unwrap().value(), Some(&json!("found")));
        assert_eq!(acted.get(), 1);
    });
}

#[test]
fn w01_the_message_of_an_attempt_in_doubt_is_kept_and_shown() {
    const SAID: &str = "the attempt itself could not tell: the line was cut before an answer came";
    on_every_store(|world| {
        let runtime = world.runtime([cannot_tell(&Counter::default())]);
        let run = start(&world, &runtime, "act");
        drop(runtime);
        // A later owner of the run knows it from the journal.
        let world = world.restart();
        let runtime = world.runtime([cannot_tell(&Counter::default())]);
        let recovering = runtime.clone();
        let (explained, doubts) = world.run(async move {
            recovering.recover().await.unwrap();
            (recovering.explain(run).await.unwrap(), recovering.doubts().await.unwrap())
        });
        assert!(explained.sentence.contains(SAID), "{}", explained.sentence);
        assert_eq!(doubts[0].1.why(), SAID);
        let error = settle(&world, &runtime, run, Settlement::GiveUp).unwrap().result.unwrap_err();
        assert_eq!(error.to_string(), format!("in_doubt: {SAID}; given up by ann: looked it up"));
    });
}

#[test]
fn w01_an_effect_started_by_an_attempt_may_happen_until_its_timeout() {
    let world = World::new(Kind::Memory);
    let (acted, asked) = (Counter::default(), Counter::default());
    let counted = asked.clone();
    let act = cannot_tell(&acted).reconcile(move |_| {
        counted.add();
        async move { Ok(Reconciled::<Value>::DidNotHappen) }
    });
    let runtime = world.runtime([act]);
    let before = world.sim.now();
    let outcome = world.run(async move { runtime.call(ToolCall::new("act", json!({}))).await.unwrap() });
    assert_eq!(outcome.value(), Some(&json!({"attempt": 2})));
    assert!(world.sim.now().since(before) >= Duration::from_secs(5), "the request may have been on its way that long");
    assert_eq!(asked.get(), 2, "and is asked about again then");
}

#[test]
fn l17_a_repeatable_attempt_in_doubt_is_retried() {
    let world = World::new(Kind::Memory);
    for effect in [Effect::Readonly, Effect::Idempotent] {
        let acted = Counter::default();
        let runtime = world.runtime([cannot_tell(&acted).effect(effect)]);
        let outcome = world.run(async move { runtime.call(ToolCall::new("act", json!({}))).await.unwrap() });
        assert_eq!(outcome.value(), Some(&json!({"attempt": 2})), "{effect:?}");
    }
}
