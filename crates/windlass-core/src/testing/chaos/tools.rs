//! The tools of the simulated world: one of every kind, each acting on the outside where it says so.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::line::Line;
use crate::call::{Attempt, Call, ToolCall, ToolRef};
use crate::ctx::{Ctx, First2, Handle, park};
use crate::id::RunId;
use crate::tool::spec::Approval;
use crate::tool::{Artifact, Effect, Reconciled, Reply, Tool, ToolError};

const HOUR: Duration = Duration::from_secs(3_600);

/// What the outside may ask for.
pub(super) const NAMES: &[&str] = &[
    "look", "set", "pay", "send", "manager", "listener", "parent", "saga", "counter", "guarded", "office", "archive",
    "twins", "shift",
];

/// How many numbers whoever receives some receives.
pub(super) const NUMBERS: usize = 3;

pub(super) fn tools(line: &Arc<Line>) -> Vec<Tool> {
    let guarded = reconciled(line, "guarded").with(|spec| spec.guards.approval = Approval::Always);
    vec![
        atomic(line, "look", false).effect(Effect::Readonly),
        atomic(line, "set", false).effect(Effect::Idempotent),
        reconciled(line, "pay"),
        atomic(line, "send", true),
        guarded,
        office(line),
        manager(),
        listener(),
        parent(),
        napper(),
        saga(line),
        counter(),
        archive(line),
        twins(),
        shift(),
    ]
}

fn call(name: &str) -> ToolCall {
    ToolCall::<Value>::to(ToolRef::Name(name.into()), json!({}))
}

fn atomic(line: &Arc<Line>, name: &'static str, once: bool) -> Tool {
    let line = line.clone();
    Tool::with_call(name, "acts", move |call: Call, _: Value| {
        let line = line.clone();
        async move {
            line.effect(name, &call.idempotency_key(), once).await;
            Ok(json!("done"))
        }
    })
}

fn reconciled(line: &Arc<Line>, name: &'static str) -> Tool {
    let tool = atomic(line, name, true);
    let line = line.clone();
    tool.reconcile(move |call| {
        let happened = line.model.happened(&call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!("done")) } else { Reconciled::DidNotHappen }) }
    })
}

/// Holds the till while it acts, sleeps, and acts again.
fn shift() -> Tool {
    let tool = Tool::durable_fn("shift", "holds the till", |mut ctx: Ctx, _: Value| async move {
        ctx.call(call("pay")).await?;
        ctx.sleep(Duration::from_secs(60)).await?;
        ctx.call(call("set")).await?;
        Ok(json!("done"))
    });
    tool.key("'till'".into())
}

/// Its answer comes later, by the key it hands out.
fn office(line: &Arc<Line>) -> Tool {
    let line = line.clone();
    Tool::with_call("office", "asks", move |call: Call, _: Value| {
        let line = line.clone();
        async move {
            line.model.hand_out(call.run(), call.reply_key());
            line.effect("office", &call.idempotency_key(), true).await;
            Ok(Reply::<Value>::later().within(2 * HOUR))
        }
    })
}

/// What `archive` stores in a run.
pub(super) fn archived(run: RunId) -> Vec<u8> {
    format!("what run {run} made").into_bytes()
}

/// Stores something, acts, and returns what it stored.
fn archive(line: &Arc<Line>) -> Tool {
    let line = line.clone();
    Tool::durable_fn("archive", "stores, and acts", move |mut ctx: Ctx, _: Value| {
        let line = line.clone();
        async move {
            let store = move |a: Attempt| {
                let line = line.clone();
                async move {
                    let bytes = archived(a.run());
                    let mut file = a.new_artifact("text/plain");
                    file.write(&bytes[..5]).await?;
                    line.effect("archive", &a.key(), false).await;
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

/// Two at once that only a person can settle.
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
        Ok(json!(short + ctx.join(&long).await?))
    })
}

/// Does two things, and undoes them if it is told an odd number.
fn saga(line: &Arc<Line>) -> Tool {
    let line = line.clone();
    Tool::durable_fn("saga", "does and undoes", move |mut ctx: Ctx, _: Value| {
        let line = line.clone();
        async move {
            for name in ["seat", "room"] {
                let (done, undone) = (line.clone(), line.clone());
                ctx.step(name, move |a| {
                    let line = done.clone();
                    async move {
                        line.effect(name, &a.key(), true).await;
                        Ok(json!("done"))
                    }
                })
                .undo(move |_: Value, a| {
                    let line = undone.clone();
                    async move {
                        line.effect(&format!("no {name}"), &a.key(), true).await;
                        Ok(())
                    }
                })
                .await?;
            }
            let word = ctx.wait::<u64>("verdict").within(HOUR).await?;
            if word % 2 == 1 { Err(ToolError::failed("odd")) } else { Ok(json!(word)) }
        }
    })
}

/// One generation for each number.
fn counter() -> Tool {
    let counter = Tool::durable_fn("counter", "counts", |mut ctx: Ctx, args: Value| async move {
        let mut heard: Vec<Value> = args["heard"].as_array().cloned().unwrap_or_default();
        heard.push(json!(ctx.receive::<u64>("number").await?));
        ctx.call(call("pay")).await?;
        if heard.len() < NUMBERS { ctx.continue_as(json!({"heard": heard})).await } else { Ok(json!(heard)) }
    });
    counter.signal::<u64>("number")
}
