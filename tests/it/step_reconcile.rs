//! The `reconcile` of a step: it settles doubts about the step's attempts in the same order as that of a tool.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::Reconciled;
use windlass::tool::spec::OnDoubt;
use windlass::{Ctx, Outcome, Tool, ToolCall, ToolError, ToolResult, step};
use windlass_core::Runtime;
use windlass_core::run::record::{DoubtCause, Event, Settler};
use windlass_core::time::Clock;

use crate::crash::check;
use crate::world::{Counter, Kind, World, on_every_store};

const TIMEOUT: Duration = Duration::from_millis(100);

type Found = BoxFuture<'static, ToolResult<Reconciled<u32>>>;
type Find = fn() -> Found;

/// A body with one `once` step whose first attempt never returns.
fn pays(acted: &Counter, policy: OnDoubt, find: Find) -> Tool {
    let acted = acted.clone();
    Tool::durable_fn("pays", "", move |mut ctx: Ctx, _: Value| {
        let acted = acted.clone();
        async move {
            let attempt = |_| {
                let n = acted.add();
                async move { if n == 1 { std::future::pending().await } else { Ok(n) } }
            };
            let paid = ctx.step("pay", attempt).timeout(TIMEOUT).on_doubt(policy).reconcile(|_| find());
            Ok(json!(paid.await?))
        }
    })
}

fn call_pays(world: &World, runtime: &Runtime) -> Outcome {
    let runtime = runtime.clone();
    world.run(async move { runtime.call(ToolCall::new("pays", json!({}))).await.unwrap() })
}

#[test]
fn l09_w01_a_steps_reconcile_settles_its_doubt() {
    on_every_store(|world| {
        let cases: [(Find, u32, u32); 2] = [
            (|| Box::pin(async { Ok(Reconciled::Happened(77)) }), 77, 1),
            (|| Box::pin(async { Ok(Reconciled::DidNotHappen) }), 2, 2),
        ];
        for (find, value, attempts) in cases {
            let acted = Counter::default();
            let runtime = world.runtime([pays(&acted, OnDoubt::Ask, find)]);
            let outcome = call_pays(&world, &runtime);
            assert_eq!((outcome.value(), acted.get()), (Some(&json!(value)), attempts));
            let run = outcome.run;
            let journal = world.run(async move { runtime.journal(run).await.unwrap() });
            let settled = journal.iter().find_map(|record| match &record.event {
                Event::Settled { by, reason, .. } => Some((by.clone(), reason.clone())),
                Event::Finished(ended) => ended.settled.as_ref().map(|by| (by.by.clone(), by.reason.clone())),
                _ => None,
            });
            assert_eq!(settled, Some((Settler::Tool, "the step's reconcile".to_owned())), "it is on record");
        }
    });
}

#[test]
fn l09_w01_a_steps_reconcile_that_does_not_know_leaves_it_to_policy() {
    let world = World::new(Kind::Memory);
    let cases: [Find; 4] = [
        || Box::pin(async { Ok(Reconciled::Unknown) }),
        || Box::pin(async { Err(ToolError::failed("the bank is down")) }),
        || Box::pin(async { panic!("reconcile panics") }),
        || Box::pin(std::future::pending()),
    ];
    for find in cases {
        let acted = Counter::default();
        let runtime = world.runtime([pays(&acted, OnDoubt::Fail, find)]);
        let outcome = call_pays(&world, &runtime);
        assert_eq!(outcome.error().map(ToolError::kind), Some("in_doubt"));
        let rerun = Counter::default();
        let runtime = world.runtime([pays(&rerun, OnDoubt::Rerun, find)]);
        let outcome = call_pays(&world, &runtime);
        assert_eq!((outcome.value(), acted.get(), rerun.get()), (Some(&json!(2)), 1, 2));
    }
}

/// A body whose step never returns, and whose `reconcile` counts how often it is asked. From the second time on it finds
/// what the old attempt did late.
fn hangs(acted: &Counter, asked: &Counter, first: Reconciled<u32>) -> Tool {
    let (acted, asked) = (acted.clone(), asked.clone());
    Tool::durable_fn("pays", "", move |mut ctx: Ctx, _: Value| {
        let (acted, asked, first) = (acted.clone(), asked.clone(), first.clone());
        async move {
            let attempt = |_| {
                acted.add();
                std::future::pending::<ToolResult<u32>>()
            };
            let find = |_| {
                let found = if asked.add() > 1 { Reconciled::Happened(9) } else { first.clone() };
                async move { Ok(found) }
            };
            Ok(json!(ctx.step("pay", attempt).timeout(Duration::from_secs(60)).reconcile(find).await?))
        }
    })
}

#[test]
fn l09_w01_a_settlement_in_the_mailbox_comes_before_a_steps_reconcile() {
    on_every_store(|world| {
        let (acted, asked) = (Counter::default(), Counter::default());
        let runtime = world.runtime([hangs(&acted, &asked, Reconciled::Unknown)]);
        let run = runtime.start_unconfirmed(ToolCall::new("pays", json!({}))).unwrap();
        world.pass(Duration::from_secs(120));
        assert_eq!(asked.get(), 1, "the step was asked, and a person is asked next");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([hangs(&acted, &asked, Reconciled::Unknown)]);
        let outcome = world.run(async move {
            let (_, doubt) = runtime.doubts().await.unwrap().remove(0);
            assert_eq!((doubt.cause, doubt.operation.as_str()), (DoubtCause::TimedOut, "step \"pay\""));
            // No runtime drives the run yet: the settlement waits in its mailbox.
            let settlement = Settlement::Happened(Ok(Arc::new(json!(5).into())));
            runtime.settle(run, &doubt.path, settlement, "ann", "saw it").await.unwrap();
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.value(), Some(&json!(5)));
        assert_eq!((acted.get(), asked.get()), (1, 1), "neither the step nor its reconcile ran again");
    });
}

/// Two runtimes share a store; the second takes over while the first may still be alive.
#[test]
fn l09_w01_an_early_negative_reconcile_of_a_step_is_repeated() {
    let world = World::new(Kind::Memory);
    let (acted, asked) = (Counter::default(), Counter::default());
    let first = world.runtime([hangs(&acted, &asked, Reconciled::DidNotHappen)]);
    let run = first.start_unconfirmed(ToolCall::new("pays", json!({}))).unwrap();
    world.pass(Duration::from_millis(10));
    assert_eq!(acted.get(), 1, "the first worker's attempt is in flight");
    let second = world.runtime([hangs(&acted, &asked, Reconciled::DidNotHappen)]);
    let sim = world.sim.clone();
    let outcome = world.run(async move {
        second.resume(run).await.unwrap();
        let outcome = second.attach(run).await.unwrap().remove(0);
        (outcome, sim.now())
    });
    assert_eq!(outcome.0.value(), Some(&json!(9)), "the old attempt had happened after the first answer");
    assert_eq!((acted.get(), asked.get()), (1, 2), "attempted once, asked twice");
}

#[test]
fn l09_w01_a_step_that_may_be_repeated_does_not_ask_its_reconcile() {
    on_every_store(|world| {
        let asked = Counter::default();
        let count = asked.clone();
        let body = Tool::durable_fn("pays", "", move |mut ctx: Ctx, _: Value| {
            let asked = count.clone();
            async move {
                let hang = |_| std::future::pending::<ToolResult<u32>>();
                let find = |_| {
                    asked.add();
                    async { Ok(Reconciled::Happened(1)) }
                };
                let read = ctx.step("read", hang).timeout(TIMEOUT).readonly().reconcile(find).await;
                let set = ctx.step("set", hang).timeout(TIMEOUT).idempotent().reconcile(find).await;
                Ok(json!([read, set].map(|result| result.unwrap_err().kind())))
            }
        });
        let runtime = world.runtime([body]);
        let outcome = call_pays(&world, &runtime);
        assert_eq!(outcome.value(), Some(&json!(["timed_out", "timed_out"])));
        assert_eq!(asked.get(), 0);
    });
}

/// Acts in one step, in two parallel ones and in one with an undo. Each finds out itself whether it happened.
fn books(ledger: &Ledger) -> Vec<Tool> {
    let ledger = ledger.clone();
    let find = |ledger: Ledger, name: &'static str| {
        move |attempt: windlass::Attempt| {
            let happened = ledger.happened(&attempt.key());
            let found = if happened { Reconciled::Happened(name.to_owned()) } else { Reconciled::DidNotHappen };
            async move { Ok(found) }
        }
    };
    let act = |ledger: Ledger, name: &'static str| {
        move |attempt: windlass::Attempt| {
            let ledger = ledger.clone();
            async move {
                ledger.once(name, &attempt.key()).await;
                Ok(name.to_owned())
            }
        }
    };
    vec![Tool::durable_fn("books", "", move |mut ctx: Ctx, _: Value| {
        let one = |name| (act(ledger.clone(), name), find(ledger.clone(), name));
        let ((seat, found_seat), (room, found_room), (car, found_car)) = (one("seat"), one("room"), one("car"));
        async move {
            let seat = ctx.step("seat", seat).reconcile(found_seat).await?;
            let both = (step("room", room).reconcile(found_room), step("car", car).reconcile(found_car));
            let (room, car) = ctx.steps_all(both).await?;
            Ok(json!([seat, room, car]))
        }
    })]
}

#[test]
fn l09_w01_steps_that_can_be_asked_happen_once_over_every_crash() {
    let report = check(|| CrashMatrix::new(books).call(ToolCall::new("books", json!({}))));
    assert_eq!(report.outcome, json!([["seat", "room", "car"]]));
    assert_eq!(report.effects.values().copied().collect::<Vec<_>>(), [1, 1, 1]);
    assert!(report.runs >= 12, "{report:?}");
}

#[test]
fn l09_w01_steps_that_can_be_asked_survive_a_second_crash_during_every_recovery() {
    check(|| CrashMatrix::new(books).call(ToolCall::new("books", json!({}))).crashes(2));
}
