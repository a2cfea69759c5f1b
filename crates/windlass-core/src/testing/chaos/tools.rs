//! The tools of the simulated world, one of every kind.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::link::WorkerLink;
use crate::call::{Attempt, Call, ToolCall, ToolRef};
use crate::ctx::{Ctx, First2, Handle, park};
use crate::id::RunId;
use crate::tool::spec::Approval;
use crate::tool::{Artifact, Effect, Reconciled, Reply, Tool, ToolError, ToolResult};

const HOUR: Duration = Duration::from_secs(3_600);

/// The tools that clients start.
pub(super) const NAMES: &[&str] = &[
    "look", "set", "pay", "send", "manager", "listener", "parent", "saga", "counter", "guarded", "office", "archive",
    "twins", "shift", "press",
];

/// The session of every run of `press`, whose attempts exclude each other.
pub(super) const SESSION: &str = "shop";

/// How many numbers `listener` and `counter` receive.
pub(super) const NUMBERS: usize = 3;

pub(super) fn tools(link: &Arc<WorkerLink>) -> Vec<Tool> {
    let guarded = reconciled(link, "guarded").with(|spec| spec.guards.approval = Approval::Always);
    vec![
        atomic(link, "look", false).effect(Effect::Readonly),
        atomic(link, "set", false).effect(Effect::Idempotent),
        reconciled(link, "pay"),
        atomic(link, "send", true),
        guarded,
        office(link),
        manager(),
        listener(),
        parent(),
        napper(),
        saga(link),
        counter(),
        archive(link),
        twins(),
        shift(),
        press(link),
    ]
}

fn call(name: &str) -> ToolCall {
    ToolCall::<Value>::to(ToolRef::Name(name.into()), json!({}))
}

fn atomic(link: &Arc<WorkerLink>, name: &'static str, once: bool) -> Tool {
    let link = link.clone();
    Tool::with_call(name, "acts", move |call: Call, _: Value| {
        let link = link.clone();
        async move {
            link.effect(name, &call.idempotency_key(), once).await;
            Ok(json!("done"))
        }
    })
}

fn reconciled(link: &Arc<WorkerLink>, name: &'static str) -> Tool {
    let tool = atomic(link, name, true);
    let link = link.clone();
    tool.reconcile(move |call| link.find(&call.idempotency_key()))
}

impl WorkerLink {
    /// Whether the effect under this key happened.
    fn find(&self, key: &str) -> Ready<ToolResult<Reconciled<Value>>> {
        let happened = self.model.happened(key);
        ready(Ok(if happened { Reconciled::Happened(json!("done")) } else { Reconciled::DidNotHappen }))
    }
}

/// Holds the key `till` while it acts, sleeps, and acts again.
fn shift() -> Tool {
    let tool = Tool::durable_fn("shift", "holds the till", |mut ctx: Ctx, _: Value| async move {
        ctx.call(call("pay")).await?;
        ctx.sleep(Duration::from_secs(60)).await?;
        ctx.call(call("set")).await?;
        Ok(json!("done"))
    });
    tool.key("'till'".into())
}

/// One attempt at a time in its session, and at most five per second.
fn press(link: &Arc<WorkerLink>) -> Tool {
    let tool = atomic(link, "press", false).effect(Effect::Idempotent);
    tool.with(|spec| {
        spec.limits.in_flight = Some(1);
        spec.limits.per_second = Some(5);
    })
}

/// Answers later, with the reply key it hands out.
fn office(link: &Arc<WorkerLink>) -> Tool {
    let link = link.clone();
    Tool::with_call("office", "asks", move |call: Call, _: Value| {
        let link = link.clone();
        async move {
            link.model.hand_out(call.run(), call.reply_key());
            link.effect("office", &call.idempotency_key(), true).await;
            Ok(Reply::<Value>::later().within(2 * HOUR))
        }
    })
}

/// The content that `archive` stores for a run.
pub(super) fn archived(run: RunId) -> Vec<u8> {
    format!("what run {run} made").into_bytes()
}

/// Stores an artifact, acts, and returns the artifact.
fn archive(link: &Arc<WorkerLink>) -> Tool {
    let link = link.clone();
    Tool::durable_fn("archive", "stores, and acts", move |mut ctx: Ctx, _: Value| {
        let link = link.clone();
        async move {
            let store = move |a: Attempt| {
                let link = link.clone();
                async move {
                    let bytes = archived(a.run());
                    let mut file = a.new_artifact("text/plain");
                    file.write(&bytes[..5]).await?;
                    link.effect("archive", &a.key(), false).await;
                    file.write(&bytes[5..]).await?;
                    Ok(file.finish().await?)
                }
            };
            let stored: Artifact = ctx.step("store", store).idempotent().await?;
            ctx.call(call("pay")).await?;
            Ok(json!(stored))
        }
    })
}

/// Waits for an answer or two hours, then acts.
fn manager() -> Tool {
    Tool::durable_fn("manager", "waits, and acts", |mut ctx: Ctx, _: Value| async move {
        let word = match ctx.wait::<u64>("word").within(2 * HOUR).await {
            Err(ToolError::TimedOut { .. }) => None,
            word => Some(word?),
        };
        ctx.call(call("pay")).await?;
        Ok(json!(word))
    })
}

/// Makes two calls at once whose doubts only a person can settle.
fn twins() -> Tool {
    Tool::durable_fn("twins", "sends twice", |mut ctx: Ctx, _: Value| async move {
        let (a, b) = ctx.call_all((call("send"), call("send"))).await?;
        Ok(json!([a, b]))
    })
}

fn listener() -> Tool {
    let listener = Tool::durable_fn("listener", "hears", |mut ctx: Ctx, _: Value| async move {
        let mut heard = Vec::new();
        for _ in 0..NUMBERS {
            heard.push(ctx.receive::<u64>("number").await?);
            ctx.call(call("pay")).await?;
        }
        Ok(json!(heard))
    });
    listener.signal::<u64>("number")
}

fn napper() -> Tool {
    Tool::durable_fn("napper", "sleeps, and acts", |mut ctx: Ctx, args: Value| async move {
        ctx.sleep(Duration::from_secs(args["seconds"].as_u64().unwrap_or(1))).await?;
        ctx.call(call("pay")).await?;
        Ok(args["seconds"].clone())
    })
}

fn parent() -> Tool {
    Tool::durable_fn("parent", "spawns two", |mut ctx: Ctx, _: Value| async move {
        let nap = |seconds: u64| ToolCall::<u64>::to(ToolRef::Name("napper".into()), json!({"seconds": seconds}));
        let short: Handle<u64> = ctx.spawn(nap(1)).await?;
        let long: Handle<u64> = ctx.spawn(nap(20)).await?;
        let first = ctx.first((short.park(), park::sleep(Duration::from_secs(5)))).await?;
        let short = match first {
            First2::A(seconds) => seconds,
            First2::B(()) => ctx.join(&short).await?,
        };
        // Awaited like a run that another one started.
        let long = Handle::<u64>::of(long.run());
        Ok(json!(short + ctx.join(&long).await?))
    })
}

/// Performs two steps, and undoes them if it is answered with an odd number.
fn saga(link: &Arc<WorkerLink>) -> Tool {
    let link = link.clone();
    Tool::durable_fn("saga", "does and undoes", move |mut ctx: Ctx, _: Value| {
        let link = link.clone();
        async move {
            for name in ["seat", "room"] {
                let (done, undone, known) = (link.clone(), link.clone(), link.clone());
                let step = ctx.step(name, move |a| {
                    let link = done.clone();
                    async move {
                        link.effect(name, &a.key(), true).await;
                        Ok(json!("done"))
                    }
                });
                let step = step.undo(move |_: Value, a| {
                    let link = undone.clone();
                    async move {
                        link.effect(&format!("no {name}"), &a.key(), true).await;
                        Ok(())
                    }
                });
                // One of them can be asked whether it happened; doubts about the other need a person.
                match name {
                    "room" => step.reconcile(move |a| known.find(&a.key())).await?,
                    _ => step.await?,
                };
            }
            let word = ctx.wait::<u64>("verdict").within(HOUR).await?;
            if word % 2 == 1 { Err(ToolError::failed("odd")) } else { Ok(json!(word)) }
        }
    })
}

/// Receives one number in each generation.
fn counter() -> Tool {
    let counter = Tool::durable_fn("counter", "counts", |mut ctx: Ctx, args: Value| async move {
        let mut heard: Vec<Value> = args["heard"].as_array().cloned().unwrap_or_default();
        heard.push(json!(ctx.receive::<u64>("number").await?));
        ctx.call(call("pay")).await?;
        if heard.len() < NUMBERS { ctx.continue_as(json!({"heard": heard})).await } else { Ok(json!(heard)) }
    });
    counter.signal::<u64>("number")
}
