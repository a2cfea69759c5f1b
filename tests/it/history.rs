//! The history of a session in conditions, and dry runs that say what the call does.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::tool::spec::{Approval, KeyExpression};
use windlass::tool::{Incoming, Middleware, Preparation};
use windlass::{Call, Ctx, Effect, Policy, Tool, ToolCall, ToolError, ToolResult, limits};
use windlass_core::policy::{Hypothetical, Prediction, Unattended, Verdict};
use windlass_core::{Config, Runtime};

use crate::world::{Kind, World, on_every_store, tool};

/// The third successful payment of a session needs approval.
const TWO_PAID: &str = "history.filter(h, h.tool == 'pay' && h.ok).size() >= 2";

fn pay() -> Tool {
    let pay =
        tool(
            "pay",
            |args| async move { if args["fails"] == true { Err(ToolError::failed("no money")) } else { Ok(args) } },
        );
    pay.approval_when(TWO_PAID)
}

/// Pays twice in one run.
fn twice() -> Tool {
    Tool::durable_fn("twice", "pays twice", |mut ctx: Ctx, _: Value| async move {
        ctx.call_json("pay", json!({"n": 1})).await?;
        ctx.call_json("pay", json!({"n": 2})).await
    })
}

/// Starts a call and tells what became of it: what it waits for, or how it ended.
fn happens(world: &World, runtime: &Runtime, call: ToolCall) -> String {
    let (starter, reader, waiter) = (runtime.clone(), runtime.clone(), runtime.clone());
    let run = world.run(async move { starter.start_call(call).await }).unwrap();
    world.pass(Duration::from_millis(100));
    let info = world.run(async move { reader.info(run).await }).unwrap().unwrap();
    match info.parks.first().map(|park| &park.on) {
        Some(Blocked::Connection { provider, .. }) => format!("waits for {provider}"),
        Some(Blocked::Approval { why, .. }) => format!("waits for approval: {why}"),
        Some(Blocked::Key { key }) => format!("waits for the key {key}"),
        Some(other) => format!("{other:?}"),
        None => {
            let outcome = world.run(async move { waiter.attach(run).await }).unwrap().remove(0);
            outcome.error().map_or_else(|| "ok".to_owned(), ToString::to_string)
        }
    }
}

fn predict(world: &World, runtime: &Runtime, call: ToolCall) -> Prediction {
    let runtime = runtime.clone();
    world.run(async move { runtime.predict(Hypothetical::new(call)).await }).unwrap()
}

/// What a dry run predicts, in the words of [`happens`].
fn predicted(world: &World, runtime: &Runtime, call: ToolCall) -> String {
    match predict(world, runtime, call).verdict {
        Verdict::Runs | Verdict::Answered => "ok".to_owned(),
        Verdict::NeedsConnection { provider, .. } => format!("waits for {provider}"),
        Verdict::NeedsApproval(need) => format!("waits for approval: {need}"),
        Verdict::Refused(error) => error.to_string(),
    }
}

fn in_session(session: &str, n: u32) -> ToolCall {
    ToolCall::new("pay", json!({"n": n})).session(session)
}

#[test]
fn w07_history_covers_separate_calls_of_a_session_also_after_a_restart() {
    on_every_store(|world| {
        let runtime = world.runtime([pay(), twice()]);
        let asks = |text: String| text.starts_with("waits for approval");
        assert_eq!(happens(&world, &runtime, in_session("s", 1)), "ok");
        let failing = ToolCall::new("pay", json!({"fails": true})).session("s");
        assert!(happens(&world, &runtime, failing).contains("no money"), "it does not count");
        assert_eq!(happens(&world, &runtime, in_session("s", 2)), "ok");
        assert!(asks(happens(&world, &runtime, in_session("s", 3))), "the third in the session");
        assert_eq!(happens(&world, &runtime, in_session("other", 4)), "ok", "another session");
        assert_eq!(happens(&world, &runtime, ToolCall::new("pay", json!({"n": 5}))), "ok", "no session");

        // Calls inside of a run count together with those of the other runs of the session.
        assert_eq!(happens(&world, &runtime, in_session("both", 6)), "ok");
        assert!(asks(happens(&world, &runtime, ToolCall::new("twice", json!({})).session("both"))));
        assert_eq!(happens(&world, &runtime, ToolCall::new("twice", json!({})).session("alone")), "ok");

        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([pay(), twice()]);
        assert!(asks(happens(&world, &runtime, in_session("s", 7))), "the store has the history");
    });
}

#[test]
fn w07_a_session_with_too_many_runs_has_no_known_history_and_asks() {
    let world = World::new(Kind::Memory);
    let look = tool("look", |args| async move { Ok(args) }).effect(Effect::Readonly);
    let careful = tool("careful", |args| async move { Ok(args) }).approval_when("history.exists(h, h.tool == 'never')");
    let runtime = world.runtime([look, careful]);
    let caller = runtime.clone();
    world.run(async move {
        for n in 0..limits::HISTORY_RUNS {
            caller.call(ToolCall::new("look", json!({"n": n})).session("s")).await.unwrap();
        }
    });
    let careful = || ToolCall::new("careful", json!({})).session("s");
    assert_eq!(predicted(&world, &runtime, careful()), "ok");
    assert_eq!(happens(&world, &runtime, careful()), "ok");
    let expected = happens(&world, &runtime, careful());
    assert!(expected.contains("`history` is not known here, or too long"), "{expected}");
    assert_eq!(predicted(&world, &runtime, careful()), expected);
}

/// Rewrites, answers and refuses calls by their arguments.
struct Meddles;

impl Middleware for Meddles {
    fn before(&self, call: &mut Incoming<'_>) -> ToolResult<()> {
        match call.args()["meddle"].as_str() {
            Some("rewrite") => call.set_args(json!({"cents": 20_000})),
            Some("break") => call.set_args(json!({"cents": "many"})),
            Some("answer") => call.answer(json!("answered")),
            Some("refuse") if call.principal() == Some("guest") => return Err(ToolError::denied("not for guests")),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Charge {
    #[serde(rename = "cents", default)]
    _cents: u64,
    #[serde(rename = "meddle", default)]
    _meddle: Option<String>,
}

/// Prepares calls by their arguments, and by the messages of their session.
async fn prepares(call: Call) -> ToolResult<Preparation> {
    Ok(match call.args()["meddle"].as_str() {
        Some("raise") => Preparation::freeze(json!("kept")).with_args(json!({"cents": 20_000})),
        Some("spoil") => Preparation::go().with_args(json!({"cents": "many"})),
        Some("know") => Preparation::answer(json!("known")),
        Some("large") => Preparation::freeze(json!("x".repeat(limits::ARGUMENT_BYTES))),
        Some("panic") => panic!("not today"),
        Some("never") => std::future::pending().await,
        Some("read") => match call.session() {
            Some(session) => return Err(ToolError::denied(format!("not in {}", session.name()))),
            None => Preparation::go(),
        },
        _ => return Err(ToolError::denied(format!("not for {:?}", call.principal()))),
    })
}

/// A tool for every stage that a call passes.
fn staged(world: &World) -> Config {
    let charge = |name: &str| Tool::new(name, "takes cents", |_: Charge| async { Ok("charged") });
    let wired = |tool: Tool| tool.with(|spec| spec.guards.connection = Some("mail".into()));
    let strict = |tool: Tool| tool.with(|spec| spec.guards.unattended = Some(Unattended::Deny));
    let mut config = world.another([
        charge("charge").approval_when("args.cents > 10000"),
        charge("for_guests").approval_when("caller == 'guest' && cause.startsWith('mail/')"),
        charge("keyed").key(KeyExpression::parse("'of ' + caller").unwrap()),
        wired(charge("wired")),
        wired(charge("both").approval_when("session.id == 's'")),
        strict(charge("strict").approval_when("true")),
        strict(wired(charge("strict_wired"))),
        charge("undecided").approval_when("args.missing > 1"),
        charge("attended").approval_when("!session.attended"),
        charge("prepared").prepare(prepares).approval_when("args.cents > 10000"),
        tool("same", |_| async { Ok("the same") }).with(|spec| spec.limits.loop_limit = Some(2)),
        pay(),
    ]);
    config.middleware = vec![Arc::new(Meddles)];
    config
}

/// The calls that are made before, and the call that is predicted and made.
fn cases() -> Vec<(Vec<ToolCall>, ToolCall)> {
    let call = |name: &str, args: Value| ToolCall::new(name, args);
    let alone = |call: ToolCall| (Vec::new(), call);
    let same = || call("same", json!({})).session("s");
    let asks = Policy { approval: Some(Approval::When("args.cents == 7".into())), ..Policy::default() };
    let bad = Policy { approval: Some(Approval::When("args.cents ==".into())), ..Policy::default() };
    vec![
        alone(call("charge", json!({"cents": 5}))),
        alone(call("charge", json!({"cents": 20_000}))),
        alone(call("charge", json!({"cents": "many"}))),
        alone(call("charge", json!({"meddle": "rewrite"}))),
        alone(call("charge", json!({"meddle": "break"}))),
        alone(call("charge", json!({"meddle": "answer"}))),
        alone(call("charge", json!({"meddle": "refuse"}))),
        alone(call("charge", json!({"meddle": "refuse"})).principal("guest")),
        alone(call("charge", json!({"cents": 7})).policy(asks.clone())),
        alone(call("charge", json!({"cents": 8})).policy(asks)),
        alone(call("charge", json!({"cents": 8})).policy(bad)),
        alone(call("charge", json!("x".repeat(limits::ARGUMENT_BYTES)))),
        alone(call("charge", json!({})).metadata(json!("x".repeat(limits::METADATA_BYTES)))),
        alone(call("prepared", json!({"meddle": "raise"}))),
        alone(call("prepared", json!({"meddle": "spoil"}))),
        alone(call("prepared", json!({"meddle": "know"}))),
        alone(call("prepared", json!({"meddle": "large"}))),
        alone(call("prepared", json!({"meddle": "never"}))),
        alone(call("prepared", json!({"meddle": "read"}))),
        alone(call("prepared", json!({"meddle": "read"})).session("s")),
        alone(call("prepared", json!({})).principal("guest")),
        alone(call("for_guests", json!({})).principal("guest").cause("mail/7")),
        alone(call("for_guests", json!({})).principal("guest").cause("chat/7")),
        alone(call("for_guests", json!({})).principal("guest")),
        alone(call("for_guests", json!({})).principal("ada")),
        alone(call("for_guests", json!({}))),
        alone(call("wired", json!({}))),
        alone(call("both", json!({})).session("s")),
        alone(call("strict", json!({}))),
        alone(call("strict_wired", json!({}))),
        alone(call("undecided", json!({}))),
        alone(call("attended", json!({}))),
        alone(call("charg", json!({}))),
        alone(ToolCall::by_id("gone", json!({}))),
        alone(call("charge", json!({})).in_layer("nowhere")),
        (vec![same(), same()], same()),
        (vec![same()], same()),
        (vec![in_session("s", 1), in_session("s", 2)], in_session("s", 3)),
        (vec![in_session("s", 1), in_session("t", 2)], in_session("s", 3)),
        (vec![in_session("s", 1)], in_session("s", 2)),
    ]
}

#[test]
fn w07_a_dry_run_says_exactly_what_the_call_does() {
    let deny = Policy { unattended: Some(Unattended::Deny), ..Policy::default() };
    let once =
        Policy { approval: Some(Approval::When("tool.name == 'charge' && caller == null".into())), ..deny.clone() };
    for policy in [Policy::default(), deny, once] {
        for attended in [false, true] {
            for (number, (before, call)) in cases().into_iter().enumerate() {
                let world = World::new(Kind::Memory);
                let mut config = staged(&world);
                (config.policy, config.attended) = (policy.clone(), attended);
                let runtime = Runtime::new(config);
                for earlier in before {
                    happens(&world, &runtime, earlier);
                }
                let said = predicted(&world, &runtime, call.clone());
                let again = predicted(&world, &runtime, call.clone());
                let done = happens(&world, &runtime, call.clone());
                assert_eq!(
                    (&said, &again),
                    (&done, &done),
                    "case {number}: {call:?}, attended: {attended}, {policy:?}"
                );
            }
        }
    }
}

#[test]
fn w07_a_dry_run_survives_a_prepare_that_panics_and_asks_none_if_told_so() {
    let world = World::new(Kind::Memory);
    let runtime = Runtime::new(staged(&world));
    let call = |meddle: &str| ToolCall::new("prepared", json!({"meddle": meddle}));
    let said = predict(&world, &runtime, call("panic"));
    assert!(matches!(said.verdict, Verdict::Refused(ToolError::Panicked { .. })), "{said}");
    let unasked = Hypothetical { prepare: false, ..Hypothetical::new(call("panic")) };
    let said = world.run(async move { runtime.predict(unasked).await.unwrap() });
    assert!(matches!(said.verdict, Verdict::NeedsApproval(_)) && said.unprepared, "{said}");
}

#[test]
fn w07_a_dry_run_names_the_key_and_the_limits_of_the_call() {
    let world = World::new(Kind::Memory);
    let waits =
        Tool::durable_fn(
            "waits",
            "holds its key",
            |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("go").await },
        );
    let key = KeyExpression::parse("'of ' + caller + args.n").unwrap();
    let waits = waits.key(key).with(|spec| spec.limits.deadline = Some(Duration::from_secs(60)));
    let runtime = world.runtime([waits]);
    let call = || ToolCall::new("waits", json!({"n": 7})).principal("ada").timeout(Duration::from_secs(5));
    let said = predict(&world, &runtime, call());
    assert_eq!(said.key.as_deref(), Some("of ada7"));
    let policy = said.policy.unwrap();
    assert_eq!((policy.timeout, policy.deadline), (Duration::from_secs(5), Some(Duration::from_secs(60))));
    happens(&world, &runtime, call());
    assert_eq!(happens(&world, &runtime, call()), "waits for the key of ada7");
}
