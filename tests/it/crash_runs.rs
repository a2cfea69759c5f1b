//! The crash matrix over runs that use other runs, and over people: spawned, signalled, cancelled, approved, connected,
//! continued.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::inbox::Settlement;
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::{Reconciled, ToolRef};
use windlass::{Ctx, Output, Policy, RunId, Tool, ToolCall, ToolError, ToolResult};

use crate::crash::once;
use crate::crash_parks::{HOUR, call, check_parked};

/// Doubles a number after a while, and acts once in between.
fn double() -> Tool {
    Tool::durable_fn("double", "doubles slowly", |mut ctx: Ctx, args: Value| async move {
        ctx.sleep(HOUR).await?;
        ctx.call(call("act")).await?;
        Ok(json!(args["n"].as_i64().unwrap_or(0) * 2))
    })
}

fn parent(ledger: &Ledger) -> Vec<Tool> {
    let parent = Tool::durable_fn("parent", "spawns two", |mut ctx: Ctx, _: Value| async move {
        let to = || ToolRef::Name("double".into());
        let a: Handle<i64> = ctx.spawn(ToolCall::<i64>::to(to(), json!({"n": 1}))).await?;
        let b: Handle<i64> = ctx.spawn(ToolCall::<i64>::to(to(), json!({"n": 20}))).await?;
        // Joined in the other order: each answer belongs to its own operation.
        let (b, a) = (ctx.join(&b).await?, ctx.join(&a).await?);
        Ok(json!(a + b))
    });
    vec![parent, double(), once(ledger, "act")]
}

#[test]
fn l12_spawned_children_are_joined_over_every_crash() {
    let report = check_parked(|| CrashMatrix::new(parent).call(call("parent")));
    assert_eq!(report.outcome, json!([42]));
    assert_eq!(report.effects["act"], 2);
}

fn listener(_: &Ledger) -> Vec<Tool> {
    let listener = Tool::durable_fn("listener", "hears", |mut ctx: Ctx, _: Value| async move {
        let mut heard = Vec::new();
        for _ in 0..3 {
            heard.push(ctx.receive::<i64>("number").await?);
        }
        Ok(json!(heard))
    });
    vec![listener.signal::<i64>("number")]
}

#[test]
fn l13_the_nth_signal_answers_the_nth_receive_over_every_crash_and_redriven_ones_arrive_once() {
    let report = check_parked(|| {
        CrashMatrix::new(listener).call(call("listener")).outside(|outside| {
            outside.signal("number", json!(1), "a");
            // Sent again although it was acknowledged, like a sender that lost the acknowledgement.
            if let Some(run) = outside.root().filter(|_| outside.is_new("a again")) {
                outside.act(move |runtime| async move { runtime.signal(run, "number", json!(1), Some("a")).await });
            }
            outside.signal("number", json!(2), "b");
            outside.signal("number", json!(3), "c");
        })
    });
    assert_eq!(report.outcome, json!([[1, 2, 3]]));
}

#[test]
fn l13_a_body_that_signals_its_child_does_so_once_over_every_crash() {
    let report = check_parked(|| {
        let tools = |ledger: &Ledger| {
            let mut tools = listener(ledger);
            tools.push(Tool::durable_fn("speaker", "talks", |mut ctx: Ctx, _: Value| async move {
                let other = ctx.spawn(call("listener")).await?;
                for n in [4, 5, 6] {
                    ctx.signal(other.run(), "number", &n).await?;
                }
                ctx.join(&other).await
            }));
            tools
        };
        CrashMatrix::new(tools).call(call("speaker"))
    });
    assert_eq!(report.outcome, json!([[4, 5, 6]]));
}

/// Books two things, waits, and undoes them when it is cancelled.
fn saga(ledger: &Ledger) -> Vec<Tool> {
    let ledger = ledger.clone();
    vec![Tool::durable_fn("saga", "books", move |mut ctx: Ctx, _: Value| {
        let ledger = ledger.clone();
        async move {
            for name in ["seat", "room"] {
                let (done, undone) = (ledger.clone(), ledger.clone());
                ctx.step(name, move |a| {
                    let done = done.clone();
                    async move {
                        done.once(name, &a.key()).await;
                        Ok(name.to_owned())
                    }
                })
                .undo(move |what: String, a| {
                    let undone = undone.clone();
                    async move {
                        undone.once(&format!("no {what}"), &a.key()).await;
                        Ok(())
                    }
                })
                .await?;
            }
            ctx.sleep(HOUR).await?;
            Err::<Value, _>(ToolError::failed("no money"))
        }
    })]
}

/// Settles by the ledger; a step returns its own name.
fn books(ledger: &Ledger, key: &str, doubt: &windlass::inbox::Doubt) -> Settlement {
    let named = doubt.operation.split('"').nth(1).unwrap_or_default();
    let value = if named.starts_with("undo") { json!(null) } else { json!(named) };
    match ledger.happened(key) {
        true => Settlement::Happened(Ok(Output::value(value).into())),
        false => Settlement::DidNotHappen,
    }
}

#[test]
fn l05_a_failed_body_undoes_each_step_once_whatever_crashes() {
    let report = check_parked(|| CrashMatrix::new(saga).call(call("saga")).person(books));
    assert!(report.outcome[0].to_string().contains("no money"), "{report:?}");
    assert!(report.effects.len() == 4 && report.effects.values().all(|count| *count == 1), "{report:?}");
}

#[test]
fn l05_a_cancelled_body_undoes_each_step_once_whatever_crashes() {
    let report = check_parked(|| {
        CrashMatrix::new(saga).call(call("saga")).person(books).outside(|outside| {
            if outside.ledger().count("room") == 1 {
                outside.cancel("rain");
            }
        })
    });
    assert!(report.outcome[0].to_string().contains("rain"), "{report:?}");
    assert!(report.effects.len() == 4 && report.effects.values().all(|count| *count == 1), "{report:?}");
}

#[test]
fn l05_cancelling_a_parent_cancels_its_children_over_every_crash() {
    let report =
        check_parked(|| CrashMatrix::new(parent).call(call("parent")).outside(|outside| outside.cancel("enough")));
    assert!(report.outcome[0].to_string().contains("enough"), "{report:?}");
    assert!(!report.effects.contains_key("act"), "{report:?}");
}

fn charge(ledger: &Ledger) -> Vec<Tool> {
    vec![once(ledger, "charge").approval_when("args.cents > 100")]
}

fn charging(script: fn(&windlass::testing::Outside<'_>)) -> CrashMatrix {
    CrashMatrix::new(charge).call(ToolCall::new("charge", json!({"cents": 500}))).outside(script)
}

#[test]
fn e07_w02_an_approval_is_granted_once_whatever_crashes() {
    let report = check_parked(|| charging(|outside| outside.decide(true)).crashes(2));
    assert_eq!(report.outcome, json!([{"done": "charge"}]));
    assert_eq!(report.effects["charge"], 1);
}

#[test]
fn e07_a_denied_call_is_not_made_whatever_crashes() {
    let report = check_parked(|| charging(|outside| outside.decide(false)).crashes(2));
    assert!(report.outcome[0].to_string().contains("denied by the outside"), "{report:?}");
    assert!(report.effects.is_empty(), "{report:?}");
}

#[test]
fn w02_an_approval_that_is_not_given_expires_whatever_crashes() {
    let report = check_parked(|| charging(|outside| assert!(outside.time() < 25 * HOUR)).crashes(2));
    assert!(report.outcome[0].to_string().contains("no decision was made in time"), "{report:?}");
    assert!(report.effects.is_empty(), "{report:?}");
}

#[test]
fn w02_a_void_grant_is_requested_again_whatever_crashes() {
    let report = check_parked(|| {
        charging(|outside| outside.decide(true)).config(|config| {
            config.suspend_after = Duration::ZERO;
            config.policy = Policy { grant_valid: Some(Duration::from_secs(1)), ..Policy::default() };
        })
    });
    assert_eq!(report.outcome, json!([{"done": "charge"}]));
}

#[test]
fn e06_a_connection_is_made_whatever_crashes() {
    let tools = |ledger: &Ledger| {
        let mail = once(ledger, "mail").with(|spec| spec.guards.connection = Some("post".into()));
        let both = Tool::durable_fn("both", "sends two", |mut ctx: Ctx, _: Value| async move {
            let (a, b) = ctx.call_all((call("mail"), call("mail"))).await?;
            Ok(json!([a, b]))
        });
        vec![mail, both]
    };
    let report =
        check_parked(|| CrashMatrix::new(tools).call(call("both")).outside(|outside| outside.connect("post", None)));
    assert_eq!(report.outcome, json!([[{"done": "mail"}, {"done": "mail"}]]));
    assert_eq!(report.effects["mail"], 2);
    let report = check_parked(|| {
        CrashMatrix::new(tools).call(call("mail")).outside(|outside| outside.connect("post", Some("no stamps")))
    });
    assert!(report.outcome[0].to_string().contains("no stamps"), "{report:?}");
    assert!(report.effects.is_empty());
}

#[test]
fn l12_three_generations_each_act_once_whatever_crashes() {
    let tools = |ledger: &Ledger| {
        let counter = Tool::durable_fn("counter", "counts", |mut ctx: Ctx, args: Value| async move {
            let n = args["n"].as_i64().unwrap_or(0);
            let add: i64 = ctx.receive("add").await?;
            ctx.call(call("act")).await?;
            if n + add >= 12 { Ok(json!(n + add)) } else { ctx.continue_as(json!({"n": n + add})).await }
        });
        vec![counter.signal::<i64>("add"), once(ledger, "act")]
    };
    let report = check_parked(|| {
        CrashMatrix::new(tools).call(call("counter")).outside(|outside| {
            for (n, key) in [(3, "a"), (4, "b"), (5, "c")] {
                outside.signal("add", json!(n), key);
            }
        })
    });
    assert_eq!(report.outcome, json!([12]));
    assert_eq!(report.effects["act"], 3, "each generation has keys of its own");
}

#[test]
fn l11_events_and_l25_commands_happen_with_the_outcome_or_not_at_all() {
    let tools = |ledger: &Ledger| {
        let (acting, asked) = (ledger.clone(), ledger.clone());
        let output = |to: &Value| -> windlass::ToolResult<Output> {
            let to: RunId = serde_json::from_value(to.clone())?;
            let started = ToolCall::new("double", json!({"n": 3}));
            Ok(Output::value(json!("done")).signal(to, "number", json!(5)).start(started).emit("acted", json!(1)))
        };
        let act = Tool::with_call("cause", "causes work", move |call: windlass::Call, args: Value| {
            let ledger = acting.clone();
            async move {
                ledger.once("cause", &call.idempotency_key()).await;
                output(&args["to"])
            }
        });
        let act = act.reconcile(move |call| {
            let happened = asked.happened(&call.idempotency_key());
            async move {
                Ok(if happened { Reconciled::Happened(output(&call.args()["to"])?) } else { Reconciled::DidNotHappen })
            }
        });
        let listener = Tool::durable_fn("ear", "hears one", |mut ctx: Ctx, _: Value| async move {
            let heard = ctx.receive::<i64>("number").await?;
            ctx.call(call("act")).await?;
            Ok(json!(heard))
        });
        let outer = Tool::durable_fn("outer", "causes", |mut ctx: Ctx, _: Value| async move {
            ctx.emit("begun", &1)?;
            let ear = ctx.spawn(call("ear")).await?;
            let caused = ctx.call(ToolCall::new("cause", json!({"to": ear.run()}))).await?;
            ctx.emit("begun", &2)?;
            Ok(json!([caused, ctx.join(&ear).await?]))
        });
        let outer = outer.event::<i64>("begun");
        vec![outer, act.event::<Value>("acted"), listener.signal::<i64>("number"), double(), once(ledger, "act")]
    };
    let report = check_parked(|| CrashMatrix::new(tools).call(call("outer")));
    assert_eq!(report.outcome, json!([["done", 5]]));
    assert_eq!((report.effects["cause"], report.effects["act"]), (1, 2));
}

/// Books one leg of a trip; the second one fails afterwards.
fn leg(ledger: &Ledger) -> Tool {
    let ledger = ledger.clone();
    let leg = Tool::durable_fn("leg", "books a leg", move |mut ctx: Ctx, args: Value| {
        let ledger = ledger.clone();
        async move {
            let name = args["name"].as_str().unwrap_or_default().to_owned();
            ctx.emit("booking", &name)?;
            book(&ledger, &name, |step| ctx.steps_all([step])).await?;
            let child = ctx.spawn(call("nap")).await?;
            if name == "b" { Err(ToolError::failed("full")) } else { ctx.join(&child).await }
        }
    });
    leg.event::<String>("booking")
}

type BoxedStep = windlass::ctx::Step<
    'static,
    Box<dyn FnMut(windlass::Attempt) -> BoxFuture<'static, ToolResult<String>> + Send>,
    String,
>;

/// A step that can be undone; each direction is one effect.
fn book<R>(ledger: &Ledger, name: &str, make: impl FnOnce(BoxedStep) -> R) -> R {
    let (done, undone, name) = (ledger.clone(), ledger.clone(), name.to_owned());
    let attempt: Box<dyn FnMut(windlass::Attempt) -> BoxFuture<'static, ToolResult<String>> + Send> = {
        let name = name.clone();
        Box::new(move |a: windlass::Attempt| {
            let (done, name) = (done.clone(), name.clone());
            Box::pin(async move {
                done.once(&name, &a.key()).await;
                Ok(name)
            })
        })
    };
    make(windlass::step(name, attempt).undo(move |what: String, a| {
        let undone = undone.clone();
        async move {
            undone.once(&format!("no {what}"), &a.key()).await;
            Ok(())
        }
    }))
}

#[test]
fn l05_nested_and_parallel_bodies_undo_their_own_steps_once_whatever_crashes() {
    let tools = |ledger: &Ledger| {
        let own = ledger.clone();
        let trip = Tool::durable_fn("trip", "books a trip", move |mut ctx: Ctx, _: Value| {
            let ledger = own.clone();
            async move {
                let leg = |name: &str| ToolCall::new("leg", json!({ "name": name }));
                let legs = ctx.call_all([leg("a"), leg("b")]).settled().await;
                assert!(legs[0].is_ok() && legs[1].is_err());
                let steps = [book(&ledger, "c", |step| step), book(&ledger, "d", |step| step)];
                ctx.steps_all(steps).await?;
                Err::<Value, _>(ToolError::failed("rain"))
            }
        });
        let nap = Tool::durable_fn("nap", "sleeps", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(HOUR).await?;
            Ok(json!(null))
        });
        vec![trip, leg(ledger), nap]
    };
    let report = check_parked(|| CrashMatrix::new(tools).call(call("trip")).person(books));
    let expected: Vec<(String, u32)> =
        ["a", "b", "c", "d", "no b", "no c", "no d"].iter().map(|name| ((*name).to_owned(), 1)).collect();
    assert_eq!(report.effects.into_iter().collect::<Vec<_>>(), expected);
}
