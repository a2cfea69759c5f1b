//! Policy: every field about attempts works at each of the three levels.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::tool::spec::{Approval, Deferral, OnDoubt, Retry};
use windlass::{Call, Ctx, Effect, Outcome, Policy, Tool, ToolCall, ToolError, Toolbox};
use windlass_core::Runtime;
use windlass_core::policy::{Expression, Hypothetical, Level, PastCall, Reason, Unattended, Verdict, dry_run};
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, on_every_store, tool};

const LEVELS: [Level; 3] = [Level::Runtime, Level::Tool, Level::Call];

fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

fn quiet() -> Policy {
    Policy::default()
}

/// A runtime with the tool, and the call, one of which has the policy.
fn at(level: Level, world: &World, tool: Tool, args: Value, policy: Policy) -> (Runtime, ToolCall) {
    let call = ToolCall::new(tool.spec().name.clone(), args);
    let own = |own: Level| if own == level { policy.clone() } else { quiet() };
    let mut config = world.config([tool.policy(own(Level::Tool))]);
    config.policy = own(Level::Runtime);
    (Runtime::new(config), call.policy(own(Level::Call)))
}

/// Makes the call on every store, with the policy at each level in turn.
fn on_each_level(make: impl Fn(&World) -> Tool, policy: Policy, check: impl Fn(Level, Outcome)) {
    for level in LEVELS {
        on_every_store(|world| {
            let (runtime, call) = at(level, &world, make(&world), json!({}), policy.clone());
            check(level, world.run(async move { runtime.call(call).await.unwrap() }));
        });
    }
}

fn error(outcome: &Outcome) -> String {
    outcome.error().map_or_else(|| "ok".to_owned(), ToString::to_string)
}

fn sleeper(world: &World) -> Tool {
    let sim = world.sim.clone();
    let nap = tool("nap", move |_| {
        let sim = sim.clone();
        async move {
            sim.sleep(Duration::from_millis(200)).await;
            Ok("slept")
        }
    });
    nap.effect(Effect::Readonly)
}

#[test]
fn b03_timeout_acts_at_every_level() {
    on_each_level(sleeper, Policy { timeout: millis(100), ..quiet() }, |level, outcome| {
        assert_eq!(error(&outcome), "timed_out: the attempt took longer than 100ms", "{level}");
    });
    on_each_level(sleeper, quiet(), |_, outcome| assert_eq!(error(&outcome), "ok"));
}

#[test]
fn b03_deadline_acts_at_every_level_on_both_kinds_of_body() {
    let policy = Policy { deadline: millis(100), ..quiet() };
    on_each_level(sleeper, policy.clone(), |level, outcome| {
        assert!(error(&outcome).starts_with("timed_out: "), "{level}: {}", error(&outcome));
    });
    let durable = |_: &World| {
        Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            ctx.step("endless", |_| std::future::pending::<windlass::ToolResult<()>>()).readonly().await
        })
    };
    on_each_level(durable, policy, |level, outcome| {
        assert_eq!(error(&outcome), "timed_out: the call's deadline passed", "{level}");
    });
}

#[test]
fn b03_retry_acts_at_every_level() {
    let tries = Counter::default();
    let flaky = |_: &World| {
        let tries = tries.clone();
        let flaky = tool("flaky", move |_| {
            tries.add();
            async { Err::<Value, _>(ToolError::failed("busy")) }
        });
        flaky.effect(Effect::Readonly)
    };
    on_each_level(flaky, Policy { retry: Some(Retry::attempts(3)), ..quiet() }, |_, _| {});
    assert_eq!(tries.get(), 3 * 6, "three attempts at three levels on two stores");
    on_each_level(flaky, quiet(), |_, _| {});
    assert_eq!(tries.get(), 3 * 6 + 6, "none is repeated unless policy says so");
}

#[test]
fn b03_grace_acts_at_every_level() {
    // Longer than the default grace, and within the configured one.
    let slow_to_stop = |world: &World| {
        let sim = world.sim.clone();
        let slow = Tool::with_call("slow", "", move |call: Call, _: Value| {
            let sim = sim.clone();
            async move {
                call.cancelled().await;
                sim.sleep(Duration::from_millis(200)).await;
                Ok("saved what I had")
            }
        });
        slow.effect(Effect::Readonly).timeout(Duration::from_millis(100))
    };
    on_each_level(slow_to_stop, Policy { grace: millis(500), ..quiet() }, |level, outcome| {
        assert_eq!(outcome.value(), Some(&json!("saved what I had")), "{level}");
    });
    on_each_level(slow_to_stop, quiet(), |_, outcome| assert!(error(&outcome).starts_with("timed_out")));
}

#[test]
fn b03_heartbeat_acts_at_every_level() {
    on_each_level(sleeper, Policy { heartbeat: millis(100), ..quiet() }, |level, outcome| {
        assert_eq!(error(&outcome), "timed_out: no heartbeat for 100ms", "{level}");
    });
}

#[test]
fn b03_on_doubt_acts_at_every_level() {
    let acted = Counter::default();
    let hangs_once = |_: &World| {
        let acted = acted.clone();
        let act = tool("act", move |_| {
            let first = acted.add() % 2 == 1;
            async move {
                match first {
                    true => std::future::pending().await,
                    false => Ok("acted"),
                }
            }
        });
        act.timeout(Duration::from_millis(100))
    };
    on_each_level(hangs_once, Policy { on_doubt: Some(OnDoubt::Rerun), ..quiet() }, |level, outcome| {
        assert_eq!(outcome.value(), Some(&json!("acted")), "{level}");
    });
    assert_eq!(acted.get(), 12);
    let hangs = |_: &World| {
        let hangs = tool("hangs", |_| std::future::pending::<windlass::ToolResult<()>>());
        hangs.timeout(Duration::from_millis(100))
    };
    on_each_level(hangs, Policy { on_doubt: Some(OnDoubt::Fail), ..quiet() }, |level, outcome| {
        assert!(error(&outcome).starts_with("in_doubt: "), "{level}: {}", error(&outcome));
    });
}

#[test]
fn b03_max_depth_acts_at_every_level() {
    for level in LEVELS {
        on_every_store(|world| {
            let policy = Policy { max_depth: Some(0), ..quiet() };
            let own = |own: Level| if own == level { policy.clone() } else { quiet() };
            let leaf = tool("leaf", |_| async { Ok("reached") }).policy(own(Level::Tool));
            let call = ToolCall::new("leaf", json!({})).policy(own(Level::Call));
            let outer = Tool::durable_fn("outer", "", move |mut ctx: Ctx, _: Value| {
                let call = call.clone();
                async move { ctx.call(call).await }
            });
            let mut config = world.config([leaf, outer]);
            config.policy = own(Level::Runtime);
            let runtime = Runtime::new(config);
            let outcome = world.run(async move { runtime.call(ToolCall::new("outer", json!({}))).await.unwrap() });
            assert!(error(&outcome).contains("nested more than 0 deep"), "{level}: {}", error(&outcome));
        });
    }
}

#[test]
fn b03_the_call_overrides_the_tool_which_overrides_the_runtime() {
    let world = World::new(Kind::Memory);
    let timeout = |time: u64| Policy { timeout: millis(time), ..quiet() };
    let mut config = world.config([sleeper(&world).policy(timeout(100))]);
    config.policy = timeout(10);
    let runtime = Runtime::new(config);
    let outcomes = world.run(async move {
        let call = |policy| ToolCall::new("nap", json!({})).policy(policy);
        runtime.batch(vec![call(quiet()), call(timeout(300)), call(timeout(20))], false).await.unwrap()
    });
    let seen: Vec<String> = outcomes.iter().map(error).collect();
    let timed_out = |time: u64| format!("timed_out: the attempt took longer than {time}ms");
    assert_eq!(seen, [timed_out(100), "ok".to_owned(), timed_out(20)]);
}

#[test]
fn b03_a_calls_policy_outlives_a_crash() {
    on_every_store(|world| {
        let tries = Counter::default();
        let make = |world: &World| {
            let (sim, tries) = (world.sim.clone(), tries.clone());
            let hangs = tool("hangs", move |_| {
                tries.add();
                let sim = sim.clone();
                async move {
                    sim.sleep(Duration::from_secs(3_000)).await;
                    Ok("slept")
                }
            });
            hangs.effect(Effect::Idempotent)
        };
        let policy = Policy {
            timeout: Some(Duration::from_secs(1_000)),
            retry: Some(Retry::attempts(2)),
            approval: Some(Approval::When("args.n == 1".into())),
            ..quiet()
        };
        let runtime = world.runtime([make(&world)]);
        let run = runtime.start_unconfirmed(ToolCall::new("hangs", json!({"n": 2})).policy(policy.clone())).unwrap();
        world.pass(Duration::from_secs(10));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([make(&world)]);
        let (outcome, journal) = world.run(async move {
            runtime.recover().await.unwrap();
            let outcome = runtime.attach(run).await.unwrap().remove(0);
            (outcome, runtime.journal(run).await.unwrap())
        });
        assert_eq!(error(&outcome), "timed_out: the attempt took longer than 1000s");
        assert_eq!(tries.get(), 3, "one before the crash, and two by the call's own policy");
        let kept = journal[0].asked.as_ref().and_then(|asked| asked.limits.as_deref());
        assert_eq!(kept, Some(&policy));
    });
}

#[test]
fn b03_a_bad_policy_is_refused_at_every_level() {
    let world = World::new(Kind::Memory);
    let bad = Policy { approval: Some(Approval::When("args.".into())), ..quiet() };
    let refused = Toolbox::new().insert(sleeper(&world).policy(bad.clone())).unwrap_err().to_string();
    assert!(refused.starts_with("tool `nap`: policy: approval: expression `args.`, line 1, column 6: "), "{refused}");
    let runtime = world.runtime([sleeper(&world)]);
    let call = ToolCall::new("nap", json!({})).policy(bad);
    let outcome = world.run(async move { runtime.call(call).await.unwrap() });
    assert!(error(&outcome).contains("this call of `nap` has an invalid policy: approval: "), "{}", error(&outcome));
}

#[tokio::test]
async fn b03_the_builder_takes_a_policy_and_refuses_a_bad_one() {
    let hangs = || tool("hangs", |_| std::future::pending::<windlass::ToolResult<()>>()).effect(Effect::Readonly);
    let policy = Policy { timeout: millis(10), ..quiet() };
    let windlass = windlass::Windlass::in_memory().tool(hangs()).policy(policy).await.unwrap();
    let outcome = windlass.call_json("hangs", json!({})).await.unwrap();
    assert_eq!(error(&outcome), "timed_out: the attempt took longer than 10ms");
    let bad = Policy { loop_limit: Some(0), ..quiet() };
    let refused = windlass::Windlass::in_memory().policy(bad).await.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("policy: a `loop_limit` of zero"), "{refused}");
}

#[test]
fn w07_a_key_that_does_not_compile_is_refused_at_registration() {
    let world = World::new(Kind::Memory);
    let keyed = |key: &str| Toolbox::new().insert(sleeper(&world).key(key.into())).map(|_| ());
    assert_eq!(keyed("args.a == 1 ? 'x' : args.b"), Ok(()));
    let refused = keyed("args.a == ").unwrap_err().to_string();
    assert!(refused.starts_with("tool `nap`: key expression `args.a == `: "), "{refused}");
}

#[test]
fn w07_a_call_that_does_not_meet_the_condition_needs_no_approval() {
    on_every_store(|world| {
        let ran = Counter::default();
        let count = ran.clone();
        let charge = tool("charge", move |_| {
            count.add();
            async { Ok("charged") }
        });
        let runtime = world.runtime([charge.approval_when("args.cents > 10000")]);
        let outcomes = world.run(async move {
            let args = [json!({"cents": 5}), json!({"cents": 20_000}), json!({})];
            runtime.batch(args.map(|args| ToolCall::new("charge", args)).to_vec(), false).await.unwrap()
        });
        assert_eq!(error(&outcomes[0]), "ok");
        let held = "the tool asks for it when `args.cents > 10000`, which holds";
        assert!(error(&outcomes[1]).ends_with(held), "{}", error(&outcomes[1]));
        assert!(error(&outcomes[2]).contains("there is no `cents`"), "fails closed: {}", error(&outcomes[2]));
        assert_eq!(ran.get(), 1);
    });
}

/// The tools of the dry runs; none of them may run.
fn toolbox() -> Toolbox {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Charge {
        #[allow(dead_code)]
        cents: u64,
    }
    let toolbox = Toolbox::new();
    let charge = Tool::new("charge", "", |_: Charge| async { panic!("a dry run ran") as windlass::ToolResult<()> });
    let never = |name| tool(name, |_| async { panic!("a dry run ran") as windlass::ToolResult<()> });
    toolbox.insert(charge.approval_when("args.cents > 10000")).unwrap();
    toolbox.insert(never("find").effect(Effect::Readonly)).unwrap();
    toolbox.insert(never("mail").with(|spec| spec.guards.connection = Some("mail".into()))).unwrap();
    toolbox.insert(never("drop").with(|spec| spec.guards.approval = Approval::Always)).unwrap();
    toolbox.insert(never("late").with(|spec| spec.about.deferral = Deferral::Always)).unwrap();
    toolbox
}

fn call(name: &str, args: Value) -> Hypothetical {
    Hypothetical::new(ToolCall::new(name, args))
}

#[test]
fn w07_a_dry_run_says_what_would_happen_without_running_anything() {
    let connected = Hypothetical { connections: vec!["mail".to_owned()], ..call("mail", json!({})) };
    let cases = [
        call("charge", json!({"cents": 5})),
        call("charge", json!({"cents": 20_000})),
        call("charge", json!({"cents": "many"})),
        call("chrage", json!({})),
        call("mail", json!({})),
        connected,
        call("drop", json!({})),
        call("late", json!({})),
    ];
    let seen: Vec<String> = dry_run(&toolbox(), &quiet(), &cases).iter().map(ToString::to_string).collect();
    assert_eq!(seen[0], "`charge` would run");
    assert_eq!(seen[1], "`charge` would need approval: the tool asks for it when `args.cents > 10000`, which holds");
    assert!(seen[2].starts_with("`charge` would be refused: invalid_arguments: "), "{}", seen[2]);
    assert_eq!(seen[3], "`chrage` would be refused: unavailable: there is no tool `chrage`; did you mean `charge`?");
    assert_eq!(seen[4], "`mail` would wait for a connection to `mail`, and then would run");
    assert_eq!(seen[5], "`mail` would run");
    assert_eq!(seen[6], "`drop` would need approval: the tool asks for it always");
    assert_eq!(seen[7], "`late` would run");
}

#[test]
fn w07_a_dry_run_points_at_bad_arguments() {
    let prediction = dry_run(&toolbox(), &quiet(), &[call("charge", json!({"cents": "many"}))]).remove(0);
    let Verdict::Refused(ToolError::InvalidArguments { violations }) = prediction.verdict else {
        panic!("{prediction}");
    };
    assert_eq!(violations[0].pointer, "/cents");
}

#[test]
fn w07_a_dry_run_sees_history_session_and_the_runtimes_policy() {
    let once = "tool.effect == 'once' && history.exists(h, h.tool == 'charge' && h.ok)";
    let runtime = Policy { approval: Some(Approval::When(once.into())), timeout: millis(70), ..quiet() };
    let past = |ok| vec![PastCall { tool: "charge".into(), args: json!({"cents": 1}).into(), ok }];
    let verdict = |case: Hypothetical| dry_run(&toolbox(), &runtime, &[case]).remove(0).verdict;
    let with = |history| Hypothetical { history, ..call("charge", json!({"cents": 5})) };
    let Verdict::NeedsApproval(need) = verdict(with(past(true))) else { panic!("the second charge needs approval") };
    assert_eq!(need.whose, Level::Runtime);
    assert_eq!(need.reason, Reason::Holds(Expression::from(once)));
    let prediction = dry_run(&toolbox(), &runtime, &[with(past(false))]).remove(0);
    assert!(matches!(prediction.verdict, Verdict::Runs), "a failed charge is no charge");
    assert_eq!(prediction.policy.map(|policy| policy.timeout), millis(70));
    assert!(matches!(verdict(Hypothetical { history: past(true), ..call("find", json!({})) }), Verdict::Runs));
    let attended = Policy { approval: Some(Approval::When("!session.attended".into())), ..quiet() };
    let alone = dry_run(&toolbox(), &attended, &[call("find", json!({}))]).remove(0).verdict;
    assert!(matches!(alone, Verdict::NeedsApproval(_)));
    let watched = Hypothetical { attended: true, ..call("find", json!({})) };
    assert!(matches!(dry_run(&toolbox(), &attended, &[watched]).remove(0).verdict, Verdict::Runs));
    let asks = Policy { approval: Some(Approval::Always), ..quiet() };
    let own = Hypothetical::new(ToolCall::new("find", json!({})).policy(asks));
    let Verdict::NeedsApproval(need) = verdict(own) else { panic!("the call asks") };
    assert_eq!(need.whose, Level::Call);
}

/// The result of a call in a runtime with this policy: what it is parked for, or how it ended.
fn actual(policy: &Policy, attended: bool, name: &str) -> String {
    let world = World::new(Kind::Memory);
    let mut config = world.config([]);
    (config.policy, config.attended) = (policy.clone(), attended);
    for tool in guarded_tools() {
        config.toolbox.insert(tool).unwrap();
    }
    let runtime = Runtime::new(config);
    let run = runtime.start_unconfirmed(ToolCall::new(name, json!({}))).unwrap();
    world.pass(Duration::from_millis(100));
    let reader = runtime.clone();
    let info = world.run(async move { reader.info(run).await }).unwrap().unwrap();
    if let Some(park) = info.parks.first() {
        return match &park.on {
            windlass::inbox::Blocked::Connection { provider, .. } => format!("waits for {provider}"),
            windlass::inbox::Blocked::Approval { why, .. } => format!("waits for approval: {why}"),
            other => format!("{other:?}"),
        };
    }
    error(&world.run(async move { runtime.attach(run).await }).unwrap().remove(0))
}

/// The result that a dry run predicts, in the same terms.
fn predicted(policy: &Policy, attended: bool, name: &str) -> String {
    let toolbox = Toolbox::new();
    for tool in guarded_tools() {
        toolbox.insert(tool).unwrap();
    }
    let case = Hypothetical { attended, ..call(name, json!({})) };
    match dry_run(&toolbox, policy, &[case]).remove(0).verdict {
        Verdict::Runs | Verdict::Answered => "ok".to_owned(),
        Verdict::NeedsConnection { provider, .. } => format!("waits for {provider}"),
        Verdict::NeedsApproval(need) => format!("waits for approval: {need}"),
        Verdict::Refused(error) => error.to_string(),
    }
}

/// A tool for every kind of guard.
fn guarded_tools() -> Vec<Tool> {
    let open = |name| tool(name, |_| async { Ok("done") });
    let asks = |tool: Tool| tool.with(|spec| spec.guards.approval = Approval::Always);
    let wired = |tool: Tool| tool.with(|spec| spec.guards.connection = Some("mail".into()));
    let strict = |tool: Tool| tool.with(|spec| spec.guards.unattended = Some(Unattended::Deny));
    vec![
        open("open"),
        asks(open("asks")),
        wired(open("wired")),
        asks(wired(open("both"))),
        strict(asks(open("strict_asks"))),
        strict(wired(open("strict_wired"))),
        open("undecided").approval_when("args.missing > 1"),
        open("attended").approval_when("!session.attended"),
    ]
}

#[test]
fn w07_a_dry_run_predicts_exactly_what_the_call_does() {
    let deny = Policy { unattended: Some(Unattended::Deny), ..quiet() };
    for policy in [quiet(), deny] {
        for attended in [false, true] {
            for door in guarded_tools() {
                let name = &*door.spec().name;
                let (said, done) = (predicted(&policy, attended, name), actual(&policy, attended, name));
                assert_eq!(said, done, "`{name}`, attended: {attended}, {:?}", policy.unattended);
            }
        }
    }
}
