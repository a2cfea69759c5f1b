//! The crash matrix over all kinds of calls and bodies, on both stores.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::testing::{CrashMatrix, Ledger, MemoryDisk, Report};
use windlass::tool::Reconciled;
use windlass::tool::spec::{OnDoubt, Retry};
use windlass::{Call, Ctx, Effect, Tool, ToolCall, ToolError, step};

use crate::world::ScratchDisk;

/// Runs a matrix in memory and on SQLite; both must have the same outcome.
pub(crate) fn check(matrix: impl Fn() -> CrashMatrix) -> Report {
    let memory = matrix().disk(MemoryDisk::default).run();
    let sqlite = on_sqlite(matrix());
    assert_eq!(memory.outcome, sqlite.outcome);
    assert_eq!(memory.effects, sqlite.effects);
    memory
}

/// Runs a matrix on files, one for each history.
pub(crate) fn on_sqlite(matrix: CrashMatrix) -> Report {
    matrix.disk(ScratchDisk::new).run()
}

fn readonly(ledger: &Ledger, name: &'static str) -> Tool {
    let ledger = ledger.clone();
    Tool::new(name, "reads", move |args: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.repeatable(name).await;
            Ok(json!({"read": args}))
        }
    })
    .effect(Effect::Readonly)
}

fn idempotent(ledger: &Ledger, name: &'static str) -> Tool {
    let ledger = ledger.clone();
    Tool::new(name, "sets", move |args: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.repeatable(name).await;
            Ok(json!({"set": args}))
        }
    })
    .effect(Effect::Idempotent)
}

/// A tool that must not be repeated and can find out whether it happened.
pub(crate) fn once(ledger: &Ledger, name: &'static str) -> Tool {
    let unsettled = once_unsettled(ledger, name);
    let ledger = ledger.clone();
    unsettled.reconcile(move |call| {
        let happened = ledger.happened(&call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!({"done": name})) } else { Reconciled::DidNotHappen }) }
    })
}

fn once_unsettled(ledger: &Ledger, name: &'static str) -> Tool {
    let ledger = ledger.clone();
    Tool::with_call(name, "acts", move |call: Call, _: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.once(name, &call.idempotency_key()).await;
            Ok(json!({"done": name}))
        }
    })
}

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({"n": 1}))
}

#[test]
fn e08_atomic_calls_of_each_class_survive_every_crash() {
    let report = check(|| CrashMatrix::new(|l| vec![readonly(l, "read")]).call(call("read")).crashes(2));
    assert_eq!(report.effects["read"], 1);
    let report = check(|| CrashMatrix::new(|l| vec![idempotent(l, "set")]).call(call("set")).crashes(2));
    assert_eq!(report.effects["set"], 1);
    let report = check(|| CrashMatrix::new(|l| vec![once(l, "act")]).call(call("act")).crashes(2));
    assert_eq!(report.effects["act"], 1);
    let commits = report.log.iter().filter(|point| *point == "before commit").count();
    assert_eq!(commits, 2, "one once call costs two commits: {:?}", report.log);
}

#[test]
fn e08_l04_mixed_batches_survive_every_crash() {
    let names = ["r1", "o1", "i1", "r2", "o2", "i2", "r3", "o3"];
    let report = check(|| {
        let tools = |l: &Ledger| {
            vec![
                readonly(l, "r1"),
                once(l, "o1"),
                idempotent(l, "i1"),
                readonly(l, "r2"),
                once(l, "o2"),
                idempotent(l, "i2"),
                readonly(l, "r3"),
                once(l, "o3"),
            ]
        };
        names.iter().fold(CrashMatrix::new(tools), |matrix, name| matrix.call(call(name)))
    });
    assert_eq!(report.outcome.as_array().map(Vec::len), Some(8));
    assert!(report.effects.values().all(|count| *count == 1), "{:?}", report.effects);
}

fn leaf(ledger: &Ledger) -> Tool {
    let ledger = ledger.clone();
    Tool::durable_fn("leaf", "third level", move |mut ctx: Ctx, _: Value| {
        let ledger = ledger.clone();
        async move {
            let l = &ledger;
            let n: u32 = ctx
                .step("look", |_| async move {
                    l.repeatable("look").await;
                    Ok(3)
                })
                .readonly()
                .await?;
            let m: u32 = ctx
                .step("put", |_| async move {
                    l.repeatable("put").await;
                    Ok(n + 1)
                })
                .idempotent()
                .input(&n)
                .await?;
            Ok(json!(m))
        }
    })
}

fn middle() -> Tool {
    Tool::durable_fn("middle", "second level", |mut ctx: Ctx, _: Value| async move {
        let leaf = ctx.call_json("leaf", json!({})).await?;
        let (acted, read) = ctx.call_all((call("act"), call("read"))).await?;
        Ok(json!([leaf, acted, read]))
    })
}

fn outer() -> Tool {
    Tool::durable_fn("outer", "first level", |mut ctx: Ctx, _: Value| async move {
        let pairs = ctx
            .steps_all((
                step("left", |_| async { Ok(1) }).readonly(),
                step("right", |_| async { Ok("two".to_owned()) }).idempotent(),
            ))
            .await?;
        let middle = ctx.call_json("middle", json!({})).await?;
        let failed = ctx.call_json("fails", json!({})).await;
        Ok(json!([pairs, middle, failed.is_err(), ctx.random() == ctx.random()]))
    })
}

fn fails() -> Tool {
    Tool::new("fails", "always fails", |_: Value| async { Err::<Value, _>(ToolError::failed("no \"luck\"")) })
        .effect(Effect::Readonly)
}

#[test]
fn l09_l21_l22_a_durable_body_three_deep_survives_every_crash() {
    let report = check(|| {
        CrashMatrix::new(|l| vec![outer(), middle(), leaf(l), once(l, "act"), readonly(l, "read"), fails()])
            .call(call("outer"))
    });
    assert_eq!(report.outcome[0][1], json!([4, {"done": "act"}, {"read": {"n": 1}}]));
    assert!(report.runs >= 16, "{report:?}");
}

#[test]
fn l09_a_durable_body_survives_a_second_crash_during_every_recovery() {
    check(|| CrashMatrix::new(|l| vec![leaf(l)]).call(call("leaf")).crashes(2));
}

#[test]
fn l17_a_retry_with_delays_survives_every_crash() {
    let report = check(|| {
        CrashMatrix::new(|l| {
            let ledger = l.clone();
            let flaky = Tool::with_call("flaky", "fails twice", move |call: Call, _: Value| {
                let ledger = ledger.clone();
                async move {
                    ledger.repeatable("try").await;
                    if call.number() < 3 {
                        return Err(ToolError::retry_after("busy", Duration::from_secs(5)));
                    }
                    Ok(json!({"attempt": call.number()}))
                }
            });
            vec![flaky.effect(Effect::Idempotent).retry(Retry::attempts(4))]
        })
        .call(call("flaky"))
    });
    assert_eq!(report.outcome[0], json!({"attempt": 3}));
}

#[test]
fn w01_doubts_settled_by_a_person_as_the_ledger_says() {
    let report = check(|| {
        CrashMatrix::new(|l| vec![once_unsettled(l, "act")])
            .call(call("act"))
            .person(|ledger, key, _| match ledger.happened(key) {
                false => Settlement::DidNotHappen,
                true => Settlement::Happened(Ok(Arc::new(json!({"done": "act"}).into()))),
            })
            .crashes(2)
    });
    assert_eq!(report.effects["act"], 1);
}

#[test]
fn w01_doubts_settled_by_policy() {
    // `rerun`: the owner accepts a repetition, so the effect may happen twice.
    check(|| {
        CrashMatrix::new(|l| vec![idempotent(l, "act").effect(Effect::Once).on_doubt(OnDoubt::Rerun)]).call(call("act"))
    });
}

#[test]
fn l22_a_chain_of_once_steps_costs_one_commit_more_than_it_has_steps() {
    let report = check(|| {
        CrashMatrix::new(|l| {
            let ledger = l.clone();
            vec![Tool::durable_fn("chain", "five steps", move |mut ctx: Ctx, _: Value| {
                let ledger = ledger.clone();
                async move {
                    let mut sum = 0;
                    for n in 0..5 {
                        let l = &ledger;
                        let name = format!("step {n}");
                        sum += ctx
                            .step(name, |a| async move {
                                l.once("step", &a.key()).await;
                                Ok(n)
                            })
                            .await?;
                    }
                    Ok(json!(sum))
                }
            })]
        })
        .call(call("chain"))
        .person(|ledger, key, doubt| match ledger.happened(key) {
            true => Settlement::Happened(Ok(Arc::new(json!(doubt.path.positions()[0]).into()))),
            false => Settlement::DidNotHappen,
        })
    });
    let commits = report.log.iter().filter(|point| *point == "before commit").count();
    assert_eq!(commits, 6, "{:?}", report.log);
    assert_eq!(report.outcome, json!([10]));
}

#[test]
fn e09_nested_exclusive_and_keyed_calls_survive_every_crash_without_a_deadlock() {
    use windlass::tool::spec::KeyExpression;
    let key = || KeyExpression::parse("'account'").expect("a key");
    check(|| {
        CrashMatrix::new(move |l| {
            let outer = Tool::durable_fn("transfer", "holds the account", |mut ctx: Ctx, _: Value| async move {
                let (a, b) = ctx.call_all((call("debit"), call("debit2"))).await?;
                let c = ctx.call(call("note")).await?;
                Ok(json!([a, b, c]))
            });
            vec![outer.key(key()), once(l, "debit").key(key()), once(l, "debit2").key(key()), once(l, "note")]
        })
        .call(call("transfer"))
        .call(call("transfer"))
    });
}

#[test]
fn l22_a_body_that_races_operations_by_hand_is_held_at_the_same_path_after_every_crash() {
    let report = check(|| {
        CrashMatrix::new(|l| {
            let ledger = l.clone();
            vec![Tool::durable_fn("racing", "drops an operation", move |mut ctx: Ctx, _: Value| {
                let ledger = ledger.clone();
                async move {
                    let l = &ledger;
                    ctx.step("fine", |_| async move {
                        l.repeatable("fine").await;
                        Ok(1)
                    })
                    .idempotent()
                    .await?;
                    let mut dropped = Box::pin(std::future::IntoFuture::into_future(
                        ctx.step("dropped", |_| std::future::pending::<windlass::ToolResult<()>>()).readonly(),
                    ));
                    std::future::poll_fn(|cx| {
                        let _pending = dropped.as_mut().poll(cx);
                        std::task::Poll::Ready(())
                    })
                    .await;
                    drop(dropped);
                    ctx.step("never", |a| async move {
                        l.once("never", &a.key()).await;
                        Ok(2)
                    })
                    .await
                }
            })]
        })
        .call(call("racing"))
        .crashes(2)
    });
    let outcome = report.outcome.as_str().unwrap_or_default();
    assert!(outcome.starts_with("held: abandoned operation at path 1: the body started step \"dropped\""), "{outcome}");
    assert!(!report.effects.contains_key("never"));
}
