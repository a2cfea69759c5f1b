//! The child's tools: each records in the ledger what it does, under the tag of its job.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::{First2, Handle};
use windlass::tool::spec::{Approval, OnDoubt, Retry};
use windlass::tool::{Reconciled, Reply, ToolRef};
use windlass::{Call, Ctx, Effect, Tool, ToolCall, ToolError, park};

use super::plan::NUMBERS;
use crate::kill::LedgerFile;

const MOMENT: Duration = Duration::from_millis(2);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn tools(ledger: &LedgerFile) -> Vec<Tool> {
    let approved = |tool: Tool| tool.with(|spec| spec.guards.approval = Approval::Always);
    vec![
        atomic(ledger, "look").effect(Effect::Readonly),
        set(ledger),
        reconciled(ledger, "pay"),
        atomic(ledger, "send"),
        atomic(ledger, "retell").on_doubt(OnDoubt::Rerun),
        atomic(ledger, "wobble"),
        atomic(ledger, "risky"),
        approved(reconciled(ledger, "guarded")),
        approved(atomic(ledger, "forbidden")),
        office(ledger),
        chain(),
        waiter(),
        parent(),
        napper(),
        listener(),
        saga(ledger, "saga"),
        saga(ledger, "storm"),
    ]
}

fn tag(args: &Value) -> String {
    args["tag"].as_str().expect("every job has a tag").to_owned()
}

fn call(name: &str, tag: &str) -> ToolCall {
    ToolCall::new(name, json!({ "tag": tag }))
}

/// Acts, and returns its name.
fn atomic(ledger: &LedgerFile, name: &'static str) -> Tool {
    let ledger = ledger.clone();
    Tool::with_call(name, "acts", move |call: Call, args: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.effect(&format!("{name}:{}", tag(&args)), &call.idempotency_key());
            Ok(json!(name))
        }
    })
}

fn reconciled(ledger: &LedgerFile, name: &'static str) -> Tool {
    let tool = atomic(ledger, name);
    let ledger = ledger.clone();
    tool.reconcile(move |call| {
        let happened = ledger.happened(&format!("{name}:{}", tag(call.args())), &call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!(name)) } else { Reconciled::DidNotHappen }) }
    })
}

/// Fails at first.
fn set(ledger: &LedgerFile) -> Tool {
    let ledger = ledger.clone();
    let set = Tool::with_call("set", "sets", move |call: Call, args: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.effect(&format!("set:{}", tag(&args)), &call.idempotency_key());
            match call.number() {
                1 => Err(ToolError::retry_after("busy", MOMENT)),
                _ => Ok(json!("set")),
            }
        }
    });
    set.effect(Effect::Idempotent).retry(Retry::attempts(20))
}

/// Its answer comes later.
fn office(ledger: &LedgerFile) -> Tool {
    let ledger = ledger.clone();
    let office = Tool::with_call("office", "asks", move |call: Call, args: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.effect(&format!("office:{}", tag(&args)), &call.idempotency_key());
            Ok(Reply::<Value>::later().within(HOUR))
        }
    });
    office.effect(Effect::Idempotent)
}

fn chain() -> Tool {
    Tool::durable_fn("chain", "one after the other", |mut ctx: Ctx, args: Value| async move {
        let tag = tag(&args);
        let counted: u32 = ctx.step("count", |_| async { Ok(3) }).readonly().await?;
        let set = ctx.call(call("set", &tag)).await?;
        let (paid, seen) = ctx.call_all((call("pay", &tag), call("look", &tag))).await?;
        let sent = ctx.call(call("send", &tag)).await?;
        Ok(json!([counted, set, paid, seen, sent]))
    })
}

fn waiter() -> Tool {
    Tool::durable_fn("waiter", "waits in every way", |mut ctx: Ctx, args: Value| async move {
        let word: String = ctx.wait("a word").within(HOUR).await?;
        ctx.sleep(MOMENT).await?;
        let paid = ctx.call(call("pay", &tag(&args))).await?;
        let second = match ctx.first((park::wait::<String>("another"), park::sleep(HOUR))).await? {
            First2::A(word) => word,
            First2::B(()) => "no answer".to_owned(),
        };
        Ok(json!([word, second, paid]))
    })
}

fn napper() -> Tool {
    Tool::durable_fn("napper", "sleeps, and acts", |mut ctx: Ctx, args: Value| async move {
        ctx.sleep(MOMENT).await?;
        ctx.call(call("pay", &tag(&args))).await?;
        Ok(json!(1))
    })
}

fn parent() -> Tool {
    Tool::durable_fn("parent", "spawns two", |mut ctx: Ctx, args: Value| async move {
        let napper = |n: u32| {
            let args = json!({ "tag": format!("{}.{n}", tag(&args)) });
            ToolCall::<u32>::to(ToolRef::Name("napper".into()), args)
        };
        let first: Handle<u32> = ctx.spawn(napper(1)).await?;
        let second: Handle<u32> = ctx.spawn(napper(2)).await?;
        let one = match ctx.first((first.park(), park::sleep(MOMENT))).await? {
            First2::A(one) => one,
            First2::B(()) => ctx.join(&first).await?,
        };
        Ok(json!(one + ctx.join(&second).await?))
    })
}

/// One generation for each number.
fn listener() -> Tool {
    let listener = Tool::durable_fn("listener", "hears", |mut ctx: Ctx, args: Value| async move {
        let tag = tag(&args);
        let mut heard: Vec<Value> = args["heard"].as_array().cloned().unwrap_or_default();
        heard.push(json!(ctx.receive::<u64>("number").await?));
        ctx.call(call("pay", &format!("{tag}.{}", heard.len() - 1))).await?;
        match heard.len() as u64 {
            NUMBERS => Ok(json!(heard)),
            _ => ctx.continue_as(json!({ "tag": tag, "heard": heard })).await,
        }
    });
    listener.signal::<u64>("number")
}

/// Books a seat and a room; in a storm both are undone.
fn saga(ledger: &LedgerFile, name: &'static str) -> Tool {
    let ledger = ledger.clone();
    Tool::durable_fn(name, "does and undoes", move |mut ctx: Ctx, args: Value| {
        let ledger = ledger.clone();
        let tag = tag(&args);
        let act = move |what: &str, key: String| {
            ledger.effect(&format!("{what}:{tag}"), &key);
            std::future::ready(Ok(()))
        };
        async move {
            let (done, undone) = (act.clone(), act.clone());
            let seat = ctx.step("seat", move |a| done("seat", a.key()));
            seat.undo(move |(), a| undone("no seat", a.key())).await?;
            let (done, undone) = (act.clone(), act);
            let room = ctx.step("room", move |a| done("room", a.key())).idempotent();
            room.undo_idempotent(move |(), a| undone("no room", a.key())).await?;
            if name == "storm" { Err(ToolError::failed("no ship sails")) } else { Ok(json!("booked")) }
        }
    })
}
