//! Policy: the fields about people and models work at each of the three levels too.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::policy::Unattended;
use windlass::tool::spec::Approval;
use windlass::{Ctx, Effect, Policy, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::policy::Level;
use windlass_core::time::Clock;

use crate::world::{World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// A runtime with the tool, and the call, one of which has the policy.
fn at(level: Level, world: &World, tool: Tool, policy: Policy) -> (Runtime, ToolCall) {
    let call = ToolCall::new(tool.spec().name.clone(), json!({}));
    let own = |own: Level| if own == level { policy.clone() } else { Policy::default() };
    let mut config = world.config([tool.policy(own(Level::Tool))]);
    config.policy = own(Level::Runtime);
    (Runtime::new(config), call.policy(own(Level::Call)))
}

fn on_each_level(policy: Policy, tool: fn() -> Tool, check: impl Fn(Level, World, Runtime, ToolCall)) {
    for level in [Level::Runtime, Level::Tool, Level::Call] {
        on_every_store(|world| {
            let (runtime, call) = at(level, &world, tool(), policy.clone());
            check(level, world, runtime, call);
        });
    }
}

fn plain() -> Tool {
    Tool::new("plain", "reads", |_: Value| async { Ok("a line\n".repeat(1_000)) }).effect(Effect::Readonly)
}

fn guarded() -> Tool {
    plain().with(|spec| spec.guards.approval = Approval::Always)
}

fn denied(world: &World, runtime: Runtime, call: ToolCall) -> (String, Duration) {
    let before = world.sim.now();
    let outcome = world.run(async move { runtime.call(call).await.unwrap() });
    let error = outcome.error().map_or_else(|| "ok".to_owned(), ToString::to_string);
    (error, world.sim.now().since(before))
}

#[test]
fn b03_approval_and_approval_within_act_at_every_level() {
    let policy = Policy { approval: Some(Approval::Always), approval_within: Some(HOUR), ..Policy::default() };
    on_each_level(policy, plain, |level, world, runtime, call| {
        let (error, took) = denied(&world, runtime, call);
        assert!(error.starts_with("denied: no decision was made in time"), "{level:?}: {error}");
        assert!(took >= HOUR && took < HOUR + MINUTE, "{level:?}: {took:?}");
    });
}

#[test]
fn b03_unattended_acts_at_every_level() {
    let policy = Policy { unattended: Some(Unattended::Deny), ..Policy::default() };
    on_each_level(policy, guarded, |level, world, runtime, call| {
        let (error, took) = denied(&world, runtime, call);
        assert!(error.contains("is unattended") && took < MINUTE, "{level:?}: {error} after {took:?}");
    });
}

#[test]
fn b03_grant_valid_acts_at_every_level() {
    let policy = Policy { grant_valid: Some(MINUTE), ..Policy::default() };
    on_each_level(policy, guarded, |level, world, runtime, call| {
        let run = runtime.start_unconfirmed(call).unwrap();
        world.pass(MINUTE);
        let (decide, now) = (runtime.clone(), world.sim.now());
        let journal = world.run(async move {
            let item = decide.inbox().await.unwrap().remove(0);
            let Blocked::Approval { digest, .. } = &item.park.on else { panic!("{item:?}") };
            decide.decide(run, &item.park.path, digest, true, ("ada", "fine")).await.unwrap();
            decide.attach(run).await.unwrap();
            decide.journal(run).await.unwrap()
        });
        let until = journal.iter().find_map(|record| match &record.event {
            windlass::run::record::Event::Granted(grant) => Some(grant.until),
            _ => None,
        });
        assert_eq!(until, Some(now + MINUTE), "{level:?}");
    });
}

#[test]
fn b03_output_budget_acts_at_every_level() {
    let policy = Policy { output_budget: Some(500), ..Policy::default() };
    on_each_level(policy, plain, |level, world, runtime, call| {
        let outcome = world.run(async move { runtime.call(call).await.unwrap() });
        assert_eq!(outcome.value().unwrap().as_str().unwrap().len(), 7_000, "{level:?}: the caller has all of it");
        let shown = outcome.for_model().to_string().len();
        assert!(shown < 1_000, "{level:?}: the model sees {shown} bytes");
    });
}

#[test]
fn b03_loop_limit_acts_at_every_level() {
    for level in [Level::Runtime, Level::Tool, Level::Call] {
        on_every_store(|world| {
            let policy = Policy { loop_limit: Some(2), ..Policy::default() };
            let own = |own: Level| if own == level { policy.clone() } else { Policy::default() };
            let called = own(Level::Call);
            let looping = Tool::durable_fn("looping", "goes round", move |mut ctx: Ctx, _: Value| {
                let called = called.clone();
                async move {
                    let mut times = 0;
                    while ctx.call(ToolCall::new("plain", json!({})).policy(called.clone())).await.is_ok() {
                        times += 1;
                    }
                    Ok(times)
                }
            });
            let mut config = world.config([plain().policy(own(Level::Tool)), looping]);
            config.policy = own(Level::Runtime);
            let runtime = Runtime::new(config);
            let outcome = world.run(async move { runtime.call(ToolCall::new("looping", json!({}))).await.unwrap() });
            assert_eq!(outcome.value(), Some(&json!(2)), "{level:?}");
        });
    }
}
