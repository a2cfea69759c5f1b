//! Bodies that find out that they need a connection (E06): the call waits like one that declares it, and is attempted
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::policy::Unattended;
use windlass::run::record::Event;
use windlass::testing::{CrashMatrix, Ledger};
use windlass::{Call, Ctx, Policy, RunId, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::Runtime;

use crate::crash_parks::{call, check_parked};
use crate::world::{Counter, World, on_every_store};

const MOMENT: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The outside world: whether it accepts this program, and how often it was asked and has acted.
#[derive(Clone, Default)]
struct Post {
    accepts: Arc<AtomicBool>,
    asked: Counter,
    sent: Counter,
}

impl Post {
    fn send(&self) -> ToolResult<u32> {
        self.asked.add();
        match self.accepts.load(Ordering::SeqCst) {
            true => Ok(self.sent.add()),
            false => Err(ToolError::connection_required("post")),
        }
    }

    fn tools(&self) -> [Tool; 2] {
        let (post, in_step) = (self.clone(), self.clone());
        let mail = Tool::new("mail", "sends, once", move |_: Value| std::future::ready(post.send()));
        let trip = Tool::durable_fn("trip", "sends in a step, and in a call", move |mut ctx: Ctx, _: Value| {
            let post = in_step.clone();
            async move {
                let first = ctx.step("send", |_| std::future::ready(post.send())).await?;
                let second: Value = ctx.call_json("mail", json!({})).await?;
                Ok(json!([first, second]))
            }
        });
        [mail, trip]
    }
}

fn start(world: &World, runtime: &Runtime, tool: &str) -> RunId {
    let run = runtime.start_unconfirmed(ToolCall::new(tool, json!({}))).expect("it starts");
    world.pass(MOMENT);
    run
}

fn connect(world: &World, runtime: &Runtime, refused: Option<&'static str>) -> usize {
    let runtime = runtime.clone();
    let notified = world.run(async move { runtime.connect("post", refused).await }).expect("the store answers");
    world.pass(MOMENT);
    notified
}

fn wanted(world: &World, runtime: &Runtime) -> Vec<(String, usize)> {
    let runtime = runtime.clone();
    let wanted = world.run(async move { runtime.connections_wanted().await }).expect("the store answers");
    wanted.into_iter().map(|(wanted, runs)| (wanted.provider.to_string(), runs.len())).collect()
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

#[test]
fn e06_a_body_that_needs_a_connection_parks_and_is_attempted_again() {
    on_every_store(|world| {
        let post = Post::default();
        let runtime = world.runtime(post.tools());
        let runs = [(); 3].map(|()| start(&world, &runtime, "mail"));
        assert_eq!(wanted(&world, &runtime), [("post".to_owned(), 3)], "asked once for the provider");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(post.tools());
        assert_eq!(wanted(&world, &runtime), [("post".to_owned(), 3)], "also after a restart");
        post.accepts.store(true, Ordering::SeqCst);
        assert_eq!(connect(&world, &runtime, None), 3);
        for run in runs {
            outcome(&world, &runtime, run).unwrap();
            let again = runtime.clone();
            let journal = world.run(async move { again.journal(run).await }).unwrap();
            let attempts: Vec<u32> = journal
                .iter()
                .filter_map(|record| match &record.event {
                    Event::Intended { attempt, .. } => Some(*attempt),
                    Event::Parked { on: Blocked::Connection { .. }, attempt, .. } => Some(10 + attempt),
                    Event::Finished(finished) => Some(20 + finished.attempts),
                    _ => None,
                })
                .collect();
            assert_eq!(attempts, [1, 11, 2, 22], "the journal has both attempts, and what ended the first");
        }
        assert_eq!((post.asked.get(), post.sent.get()), (6, 3));
    });
}

#[test]
fn e06_a_connection_that_does_not_help_is_asked_for_again() {
    on_every_store(|world| {
        let post = Post::default();
        let runtime = world.runtime(post.tools());
        let run = start(&world, &runtime, "trip");
        assert_eq!(connect(&world, &runtime, None), 1);
        assert_eq!(post.asked.get(), 2, "one attempt for each connection");
        assert_eq!(wanted(&world, &runtime).len(), 1, "the old message does not answer the new question");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(post.tools());
        world.pass(MOMENT);
        assert_eq!(post.asked.get(), 2, "nor does it after a restart");
        post.accepts.store(true, Ordering::SeqCst);
        connect(&world, &runtime, None);
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!([1, 2]));
    });
}

#[test]
fn e06_a_refused_late_or_unattended_connection_of_a_body_fails_the_call() {
    on_every_store(|world| {
        let post = Post::default();
        let runtime = world.runtime(post.tools());
        let run = start(&world, &runtime, "mail");
        connect(&world, &runtime, Some("no stamps"));
        let error = outcome(&world, &runtime, run).unwrap_err().to_string();
        assert_eq!(error, "denied: the connection to post was refused: no stamps");
        let run = start(&world, &runtime, "trip");
        world.pass(2 * DAY);
        let error = outcome(&world, &runtime, run).unwrap_err();
        assert!(matches!(error, ToolError::ConnectionRequired { .. }), "{error}");
        assert_eq!(post.asked.get(), 2);
        let mut config = world.another(post.tools());
        config.attended = false;
        config.policy = Policy { unattended: Some(Unattended::Deny), ..Policy::default() };
        let runtime = Runtime::new(config);
        for tool in ["mail", "trip"] {
            let run = start(&world, &runtime, tool);
            let error = outcome(&world, &runtime, run).unwrap_err();
            assert!(matches!(error, ToolError::ConnectionRequired { .. }), "{tool}: {error}");
        }
        assert_eq!((post.asked.get(), post.sent.get()), (4, 0));
    });
}

#[test]
fn e06_a_body_gets_its_connection_whatever_crashes() {
    let tools = |ledger: &Ledger| {
        let ledger = ledger.clone();
        let mail = Tool::with_call("mail", "sends, once", move |call: Call, _: Value| {
            let ledger = ledger.clone();
            async move {
                if ledger.look_up("connected").is_none() {
                    return Err(ToolError::connection_required("post"));
                }
                ledger.once("mail", &call.idempotency_key()).await;
                Ok(json!("sent"))
            }
        });
        let both = Tool::durable_fn("both", "sends two", |mut ctx: Ctx, _: Value| async move {
            let (a, b) = ctx.call_all((call("mail"), call("mail"))).await?;
            Ok(json!([a, b]))
        });
        vec![mail, both]
    };
    let report = check_parked(|| {
        CrashMatrix::new(tools)
            .call(call("both"))
            .outside(|outside| {
                if !outside.inbox().is_empty() {
                    outside.ledger().write_down("connected", "yes");
                    outside.connect("post", None);
                }
            })
            .person(|ledger, key, _| match ledger.happened(key) {
                true => windlass::inbox::Settlement::Happened(Ok(Arc::new(windlass::Output::value(json!("sent"))))),
                false => windlass::inbox::Settlement::DidNotHappen,
            })
    });
    assert_eq!(report.outcome, json!([["sent", "sent"]]));
    assert_eq!(report.effects["mail"], 2);
}
