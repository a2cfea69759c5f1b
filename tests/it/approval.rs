//! Approvals are grants that are consumed, and connections are requested once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::{Awaited, Blocked};
use windlass::policy::Unattended;
use windlass::run::RunState;
use windlass::run::record::Event;
use windlass::tool::spec::Approval;
use windlass::{Ctx, Policy, RunId, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::Runtime;

use crate::world::{Counter, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

/// Charges once, with approval above a hundred.
fn charge(charged: &Counter) -> Tool {
    let charged = charged.clone();
    let tool = Tool::new("charge", "charges a card", move |args: Value| {
        charged.add();
        async move { Ok(json!({"charged": args["cents"]})) }
    });
    tool.approval_when("args.cents > 100")
}

fn call(cents: u64) -> ToolCall {
    ToolCall::new("charge", json!({"cents": cents}))
}

fn start(world: &World, runtime: &Runtime, call: ToolCall) -> RunId {
    let run = runtime.start_unconfirmed(call).expect("it starts");
    world.pass(MOMENT);
    run
}

fn inbox(world: &World, runtime: &Runtime) -> Vec<Awaited> {
    let runtime = runtime.clone();
    world.run(async move { runtime.inbox().await }).expect("the store answers")
}

fn decide(world: &World, runtime: &Runtime, item: &Awaited, granted: bool) -> windlass::Result<()> {
    let Blocked::Approval { digest, .. } = item.park.on.clone() else { panic!("{item:?}") };
    let (runtime, run, path) = (runtime.clone(), item.run, item.park.path.clone());
    world.run(async move { runtime.decide(run, &path, &digest, granted, ("ada", "looked at it")).await })
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn is_suspended(world: &World, runtime: &Runtime, run: RunId) -> bool {
    let runtime = runtime.clone();
    let info = world.run(async move { runtime.info(run).await }).expect("the store answers").expect("the run is there");
    matches!(info.state, RunState::Suspended { .. })
}

#[test]
fn e07_a_call_parks_for_approval_and_the_grant_says_who_and_why() {
    on_every_store(|world| {
        let charged = Counter::default();
        let runtime = world.runtime([charge(&charged)]);
        let small = start(&world, &runtime, call(50));
        assert_eq!(outcome(&world, &runtime, small).unwrap(), json!({"charged": 50}), "no approval needed");
        let run = start(&world, &runtime, call(500));
        assert!(is_suspended(&world, &runtime, run), "it waits and costs a row");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([charge(&charged)]);
        let item = inbox(&world, &runtime).remove(0);
        let Blocked::Approval { why, .. } = &item.park.on else { panic!("{item:?}") };
        assert!(why.contains("args.cents > 100"), "{why}");
        assert_eq!(charged.get(), 1);
        decide(&world, &runtime, &item, true).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!({"charged": 500}));
        assert_eq!(charged.get(), 2);
        let again = runtime.clone();
        let journal = world.run(async move { again.journal(run).await }).unwrap();
        let grant = journal.iter().find_map(|record| match &record.event {
            Event::Granted(grant) => Some(grant.clone()),
            _ => None,
        });
        let grant = grant.expect("the grant is recorded");
        assert_eq!((&*grant.by, &*grant.reason), ("ada", "looked at it"));
    });
}

#[test]
fn e07_a_denied_call_is_not_made() {
    on_every_store(|world| {
        let charged = Counter::default();
        let runtime = world.runtime([charge(&charged)]);
        let run = start(&world, &runtime, call(500));
        let item = inbox(&world, &runtime).remove(0);
        decide(&world, &runtime, &item, false).unwrap();
        let error = outcome(&world, &runtime, run).unwrap_err().to_string();
        assert_eq!(error, "denied: denied by ada: looked at it");
        assert_eq!(charged.get(), 0);
        assert!(inbox(&world, &runtime).is_empty());
    });
}

#[test]
fn w02_a_grant_is_single_use_and_bound_to_its_arguments() {
    on_every_store(|world| {
        let charged = Counter::default();
        let runtime = world.runtime([charge(&charged)]);
        let (cheap, dear) = (start(&world, &runtime, call(500)), start(&world, &runtime, call(90_000)));
        let items = inbox(&world, &runtime);
        let (cheap_item, mut dear_item) = (items[0].clone(), items[1].clone());
        assert_eq!((cheap_item.run, dear_item.run), (cheap, dear));
        // The decision about one call does not apply to another.
        dear_item.park.on = cheap_item.park.on.clone();
        let error = decide(&world, &runtime, &dear_item, true).unwrap_err().to_string();
        assert!(error.contains("other arguments") && error.contains("decide again"), "{error}");
        decide(&world, &runtime, &cheap_item, true).unwrap();
        let error = decide(&world, &runtime, &cheap_item, true).unwrap_err().to_string();
        assert!(error.contains("already") || error.contains("nothing at"), "{error}");
        assert_eq!(outcome(&world, &runtime, cheap).unwrap(), json!({"charged": 500}));
        let error = decide(&world, &runtime, &cheap_item, true).unwrap_err().to_string();
        assert!(error.contains("look at the inbox again"), "{error}");
        assert_eq!(charged.get(), 1);
        // The next call with the same arguments needs a new approval.
        let again = start(&world, &runtime, call(500));
        assert_eq!(inbox(&world, &runtime).len(), 2);
        assert!(is_suspended(&world, &runtime, again));
    });
}

#[test]
fn w02_an_expired_grant_is_requested_again() {
    on_every_store(|world| {
        let charged = Counter::default();
        let make = |world: &World| {
            let mut config = world.config([charge(&charged)]);
            config.policy = Policy { grant_valid: Some(HOUR), ..Policy::default() };
            Runtime::new(config)
        };
        let runtime = make(&world);
        let run = start(&world, &runtime, call(500));
        let item = inbox(&world, &runtime).remove(0);
        drop(runtime);
        // Decided while no runtime drives the run.
        let world = world.restart();
        let deciding = make(&world);
        let Blocked::Approval { digest, .. } = item.park.on.clone() else { panic!("{item:?}") };
        let path = item.park.path.clone();
        let message = windlass_core::store::Message::Decide {
            since: None,
            generation: 0,
            path,
            digest,
            granted: true,
            by: "ada".into(),
            reason: "fine".into(),
            until: windlass_core::time::Clock::now(&world.sim) + HOUR,
        };
        let change = windlass_core::store::Change::Mail { run, message, dedupe: None };
        let commit =
            windlass_core::store::Commit { guard: windlass_core::store::Guard::Outsider, changes: vec![change] };
        let store = world.store.clone();
        world.run(async move { store.commit(commit).get().await }).unwrap();
        world.pass(2 * HOUR);
        let again = deciding.clone();
        world.run(async move { again.recover().await }).unwrap();
        world.pass(MOMENT);
        assert!(is_suspended(&world, &deciding, run), "the grant is void");
        assert_eq!(charged.get(), 0);
        drop(deciding);
        // Also after another restart: the earlier decision belongs to the first request.
        let world = world.restart();
        world.pass(3 * HOUR);
        let deciding = make(&world);
        let again = deciding.clone();
        world.run(async move { again.recover().await }).unwrap();
        let item = inbox(&world, &deciding).remove(0);
        decide(&world, &deciding, &item, true).unwrap();
        assert_eq!(outcome(&world, &deciding, run).unwrap(), json!({"charged": 500}));
    });
}

#[test]
fn w02_a_call_without_an_approval_is_denied() {
    on_every_store(|world| {
        let charged = Counter::default();
        // Without a decision, it is denied after a time.
        let runtime = world.runtime([charge(&charged)]);
        let run = start(&world, &runtime, call(500));
        let error = outcome(&world, &runtime, run).unwrap_err().to_string();
        assert!(
            error.starts_with("denied: no decision was made in time") && error.contains("args.cents > 100"),
            "{error}"
        );
        // Unattended, it is denied at once if the policy says so.
        let mut config = world.config([charge(&charged)]);
        config.seed = Some(99);
        config.policy = Policy { unattended: Some(Unattended::Deny), ..Policy::default() };
        let runtime = Runtime::new(config);
        let again = runtime.clone();
        let outcome = world.run(async move { again.call(call(500)).await }).unwrap();
        assert!(outcome.error().unwrap().to_string().contains("is unattended"), "{outcome:?}");
        assert_eq!(charged.get(), 0);
    });
}

#[test]
fn w07_conditions_see_the_history_of_the_run() {
    on_every_store(|world| {
        let charged = Counter::default();
        let tool = {
            let charged = charged.clone();
            Tool::new("charge", "charges", move |_: Value| {
                let n = charged.add();
                async move { Ok(n) }
            })
            .approval_when("history.filter(c, c.tool == 'charge' && c.ok).size() >= 2")
        };
        let shopper = Tool::durable_fn("shopper", "charges three times", |mut ctx: Ctx, _: Value| async move {
            for cents in [1, 2, 3] {
                ctx.call(call(cents)).await?;
            }
            Ok(json!("done"))
        });
        let runtime = world.runtime([tool, shopper]);
        let run = start(&world, &runtime, ToolCall::new("shopper", json!({})));
        assert_eq!(charged.get(), 2, "the third needs approval");
        let item = inbox(&world, &runtime).remove(0);
        decide(&world, &runtime, &item, true).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("done"));
        assert_eq!(charged.get(), 3);
    });
}

#[test]
fn e07_durable_tools_wait_for_approval_before_they_are_entered() {
    on_every_store(|world| {
        let entered = Counter::default();
        let counted = entered.clone();
        let body = Tool::durable_fn("body", "is entered", move |mut ctx: Ctx, _: Value| {
            let counted = counted.clone();
            async move {
                ctx.step("enter", |_| async { Ok(counted.add()) }).await?;
                Ok(json!(1))
            }
        });
        let runtime = world.runtime([body.with(|spec| spec.guards.approval = Approval::Always)]);
        let run = start(&world, &runtime, ToolCall::new("body", json!({})));
        assert_eq!(entered.get(), 0);
        let item = inbox(&world, &runtime).remove(0);
        decide(&world, &runtime, &item, true).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(1));
    });
}

fn mail(sent: &Counter) -> Tool {
    let sent = sent.clone();
    let tool = Tool::new("mail", "sends", move |_: Value| {
        let n = sent.add();
        async move { Ok(n) }
    });
    tool.with(|spec| spec.guards.connection = Some("post".into()))
}

#[test]
fn e06_a_connection_is_requested_once_for_all_waiting_calls() {
    on_every_store(|world| {
        let sent = Counter::default();
        let runtime = world.runtime([mail(&sent)]);
        let runs = [(); 3].map(|()| start(&world, &runtime, ToolCall::new("mail", json!({}))));
        let again = runtime.clone();
        let wanted = world.run(async move { again.connections_wanted().await }).unwrap();
        assert_eq!(
            wanted.into_iter().collect::<Vec<_>>(),
            [(windlass::connections::ConnectionKey::new("post", None), runs.to_vec())]
        );
        let again = runtime.clone();
        assert_eq!(world.run(async move { again.connect("post", None).await }).unwrap(), 3);
        for run in runs {
            outcome(&world, &runtime, run).unwrap();
        }
        assert_eq!(sent.get(), 3);
    });
}

#[test]
fn e06_a_refused_or_missing_connection_fails_the_call() {
    on_every_store(|world| {
        let sent = Counter::default();
        let runtime = world.runtime([mail(&sent)]);
        let run = start(&world, &runtime, ToolCall::new("mail", json!({})));
        let again = runtime.clone();
        world.run(async move { again.connect("post", Some("no stamps")).await }).unwrap();
        let error = outcome(&world, &runtime, run).unwrap_err().to_string();
        assert_eq!(error, "denied: the connection to post was refused: no stamps");
        let run = start(&world, &runtime, ToolCall::new("mail", json!({})));
        let error = outcome(&world, &runtime, run).unwrap_err();
        assert!(matches!(error, ToolError::ConnectionRequired { .. }), "{error}");
        assert_eq!(sent.get(), 0);
    });
}

#[test]
fn e07_cancelling_a_call_that_waits_for_approval_ends_it() {
    on_every_store(|world| {
        let charged = Counter::default();
        let runtime = world.runtime([charge(&charged)]);
        let run = start(&world, &runtime, call(500));
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "never mind").await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap_err().kind(), "cancelled");
        assert_eq!(charged.get(), 0);
        assert!(inbox(&world, &runtime).is_empty());
    });
}

#[test]
fn w07_a_condition_sees_history_from_before_it_was_registered() {
    on_every_store(|world| {
        let paid = Counter::default();
        let charge = Tool::new("charge", "charges", |_: Value| async { Ok(json!(1)) });
        let here: Arc<OnceLock<Runtime>> = Arc::default();
        let (counted, place) = (paid.clone(), here.clone());
        // Registers the first tool of this process whose condition reads the history, while a run is in progress.
        let install = Tool::new("install", "brings a tool", move |_: Value| {
            let counted = counted.clone();
            let pay = Tool::new("pay", "pays", move |_: Value| {
                let n = counted.add();
                async move { Ok(n) }
            });
            let pay = pay.approval_when("history.exists(c, c.tool == 'charge')");
            place.get().expect("there is a runtime").toolbox().insert(pay).expect("it fits");
            async { Ok(()) }
        });
        let shopper = Tool::durable_fn("shopper", "charges and pays", |mut ctx: Ctx, _: Value| async move {
            for call in [call(1), ToolCall::new("install", json!({})), ToolCall::new("pay", json!({}))] {
                ctx.call(call).await?;
            }
            Ok(json!("done"))
        });
        let runtime = world.runtime([charge, install, shopper]);
        let _ = here.set(runtime.clone());
        let run = start(&world, &runtime, ToolCall::new("shopper", json!({})));
        assert_eq!(paid.get(), 0, "it needs approval");
        let item = inbox(&world, &runtime).remove(0);
        decide(&world, &runtime, &item, true).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("done"));
        assert_eq!(paid.get(), 1);
    });
}

#[test]
fn w07_a_condition_of_a_call_sees_the_whole_history_of_its_run() {
    on_every_store(|world| {
        let paid = Counter::default();
        let counted = paid.clone();
        let charge = Tool::new("charge", "charges", |_: Value| async { Ok(json!(1)) });
        let pay = Tool::new("pay", "pays", move |_: Value| {
            let n = counted.add();
            async move { Ok(n) }
        });
        // Registered before any expression is created; the call itself creates the first, while the run is in progress.
        let shopper = Tool::durable_fn("shopper", "charges and pays", |mut ctx: Ctx, _: Value| async move {
            for cents in [1, 2, 3] {
                ctx.call(call(cents)).await?;
            }
            let condition = format!("history.filter(c, c.tool == 'charge').size() == {}", 3);
            let asks = Policy { approval: Some(Approval::When(condition.as_str().into())), ..Policy::default() };
            ctx.call(ToolCall::new("pay", json!({})).policy(asks.clone())).await?;
            // From here on the history is collected as it happens.
            ctx.call(call(4)).await?;
            ctx.call(ToolCall::new("pay", json!({})).policy(asks)).await?;
            Ok(json!("done"))
        });
        let runtime = world.runtime([charge, pay, shopper]);
        let run = start(&world, &runtime, ToolCall::new("shopper", json!({})));
        assert_eq!(paid.get(), 0, "three charges: the first payment needs approval");
        let item = inbox(&world, &runtime).remove(0);
        decide(&world, &runtime, &item, true).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("done"), "four charges: the second does not");
        assert_eq!(paid.get(), 2);
    });
}
