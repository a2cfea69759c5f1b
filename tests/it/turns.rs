//! Turns of sessions (L20, B11): settings, waking messages, turns by id, limits, events, and waiting until idle.

use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use windlass::run::Start;
use windlass::session::{
    Author, NewMessage, SessionEvent, SessionMessage, SessionPosition, SettingsChange, TurnPolicy, UnfinishedRuns,
    Wake, WakePolicy,
};
use windlass::store::StoreError;
use windlass::tool::spec::Background;
use windlass::{Call, Ctx, Effect, Error, Output, RunId, Tool, ToolCall};
use windlass_core::time::Clock;
use windlass_core::{Runtime, Session};

use crate::world::{World, on_every_store, tool};

const MOMENT: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn says(text: &str) -> NewMessage {
    NewMessage::text(Author::User, text)
}

fn texts(messages: &[SessionMessage]) -> Vec<String> {
    messages.iter().map(SessionMessage::text).collect()
}

/// Runs something with a session.
fn with<T, Fut>(world: &World, runtime: &Runtime, act: impl FnOnce(Session) -> Fut) -> T
where
    T: Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    world.run(act(runtime.session("ada")))
}

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({})).session("ada")
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].for_model()
}

fn with_agent() -> SettingsChange {
    SettingsChange::default().agent("agent")
}

/// Answers the message that woke it, in the name of the session's model.
fn agent() -> Tool {
    Tool::durable_fn("agent", "answers", |mut ctx: Ctx, args: Value| async move {
        let position = args["message"].as_u64().unwrap_or_default();
        let woke = ctx.session().messages(position - 1, 1).await?;
        let model = ctx.session().model().await?.unwrap_or_default();
        ctx.session().post(NewMessage::text(Author::Agent, format!("{model}: {}", woke[0].text()))).await?;
        Ok(json!([args["session"], position]))
    })
}

fn waiting() -> Tool {
    Tool::durable_fn("waiting", "waits", |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("an answer").await })
}

#[test]
fn l20_l28_a_waking_message_starts_a_turn_of_the_agent() {
    on_every_store(|world| {
        let runtime = world.runtime([agent()]);
        let (first, second) = with(&world, &runtime, |ada| async move {
            let ada = ada.acting_for("ada@example.org");
            ada.open_with(Some("Trip"), None, with_agent().model("m-1")).await.unwrap();
            assert_eq!(ada.post(says("a note")).await.unwrap().run, None, "a message does not wake by itself");
            let first = ada.post(says("hello").wake().dedupe("k")).await.unwrap();
            let again = ada.post(says("hello").wake().dedupe("k")).await.unwrap();
            assert_eq!((again.run, again.position, again.repeated), (first.run, 2, true));
            let second = ada.post(says("more").waking(Wake::Queue)).await.unwrap();
            (first.run.unwrap(), second.run.unwrap())
        });
        assert_eq!(outcome(&world, &runtime, second), json!(["ada", 3]));
        assert_eq!(outcome(&world, &runtime, first), json!(["ada", 2]));
        let info = runtime.clone();
        let info = world.run(async move { info.info(first).await }).unwrap().unwrap();
        assert_eq!(
            (info.cause.as_deref(), info.principal.as_deref(), info.session.as_deref()),
            (Some("message 2"), Some("ada@example.org"), Some("ada"))
        );
        with(&world, &runtime, |ada| async move {
            let said = texts(&ada.messages(0, 9).await.unwrap());
            assert_eq!(said, ["a note", "hello", "more", "m-1: hello", "m-1: more"]);
            ada.configure(SettingsChange::default().wake(WakePolicy::User)).await.unwrap();
            assert!(ada.post(says("by policy")).await.unwrap().run.is_some());
            assert!(ada.post(says("quiet").waking(Wake::No)).await.unwrap().run.is_none());
        });
    });
}

/// Tools that see and change the settings of their session.
fn setting_tools() -> Vec<Tool> {
    let look = Tool::with_call("look", "looks", |call: Call, _: Value| async move {
        let Some(session) = call.session() else { return Ok(json!(null)) };
        Ok(json!(session.model().await?))
    });
    let change = Tool::durable_fn("change", "changes", |mut ctx: Ctx, _: Value| async move {
        let before = ctx.session().settings().await?.agent;
        let unknown = ctx.session().configure(SettingsChange::default().agent("nothing")).await.unwrap_err();
        ctx.session().configure(SettingsChange::default().model("m-2").turns(TurnPolicy::Refuse)).await?;
        Ok(json!([before, unknown.to_string(), ctx.session().model().await?]))
    });
    let attended = tool("attended", |_| async { Ok(json!(1)) });
    let attended = attended.with(|spec| spec.guards.background = Background::Never);
    vec![agent(), look.effect(Effect::Readonly), change, attended]
}

#[test]
fn l20_settings_are_checked_kept_and_seen_by_tools() {
    on_every_store(|world| {
        let runtime = world.runtime(setting_tools());
        with(&world, &runtime, |ada| async move {
            let refused = ada.open_with(None, None, SettingsChange::default().agent("nothing")).await.unwrap_err();
            assert!(refused.to_string().contains("no tool `nothing`"), "{refused}");
            assert!(ada.info().await.unwrap().is_none(), "nothing is opened");
            let refused = ada.open_with(None, None, SettingsChange::default().agent("attended")).await.unwrap_err();
            assert!(refused.to_string().contains("background"), "{refused}");
            ada.open_with(None, None, with_agent().model("m-1").window(8_000)).await.unwrap();
            let refused = ada.configure(SettingsChange::default().window(0)).await.unwrap_err();
            assert!(matches!(refused, Error::Invalid(why) if why.contains("the window")));
        });
        let made = runtime.clone();
        let run = world.run(async move { made.start_call(call("change")).await }).unwrap();
        let changed = outcome(&world, &runtime, run);
        assert_eq!((&changed[0], &changed[2]), (&json!("agent"), &json!("m-2")));
        assert!(changed[1].as_str().is_some_and(|why| why.contains("no tool `nothing`")), "{changed}");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(setting_tools());
        let made = runtime.clone();
        let run = world.run(async move { made.start_call(call("look")).await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run), json!("m-2"));
        with(&world, &runtime, |ada| async move {
            let settings = ada.settings().await.unwrap();
            assert_eq!((settings.window, settings.turns), (Some(8_000), TurnPolicy::Refuse));
            let removed = SettingsChange { agent: Some(None), ..SettingsChange::default() };
            ada.configure(removed).await.unwrap();
            let posted = ada.post(says("up").wake()).await.unwrap();
            assert_eq!(posted.run, None, "there is no agent");
            assert!(ada.messages(0, 1).await.unwrap()[0].woke);
        });
    });
}

#[test]
fn l20_a_body_starts_turns_by_their_id() {
    on_every_store(|world| {
        let work = Tool::durable_fn("work", "works", |mut ctx: Ctx, args: Value| async move {
            ctx.session().post(says(&format!("work {}", args["n"]))).await?;
            Ok(args["n"].clone())
        });
        let front = Tool::durable_fn("front", "starts turns", |mut ctx: Ctx, _: Value| async move {
            let work = |n| ToolCall::<Value>::new("work", json!({"n": n}));
            let first = ctx.session().start_turn("t1", work(1)).await?;
            let same = ctx.session().start_turn("t1", work(9)).await?;
            let second = ctx.session().start_turn("t2", work(2)).await?;
            let unknown = ctx.session().start_turn("t3", ToolCall::<Value>::new("nothing", json!({}))).await;
            let unnamed = ctx.session().start_turn("", work(3)).await.unwrap_err().to_string();
            let done = (ctx.join(&second).await?, ctx.join(&first).await?);
            Ok(json!([first.run() == same.run(), done, unknown.unwrap_err().kind(), unnamed]))
        });
        let runtime = world.runtime([work, front]);
        let made = runtime.clone();
        let how = Start { principal: Some("ada".into()), ..Start::session("ada") };
        let run = world.run(async move { made.start_with(ToolCall::new("front", json!({})), how).await }).unwrap();
        let result = outcome(&world, &runtime, run);
        assert_eq!((&result[0], &result[1]), (&json!(true), &json!([2, 1])));
        assert_eq!(result[2], "unavailable");
        assert!(result[3].as_str().is_some_and(|why| why.contains("id of a turn")), "{result}");
        let listed = runtime.clone();
        let runs = world.run(async move { listed.list(windlass::run::Filter::tool("work"), None, 9).await }).unwrap();
        let mut causes: Vec<_> = runs.iter().filter_map(|run| run.cause.as_deref()).collect();
        causes.sort_unstable();
        assert_eq!(causes, ["t1", "t2"]);
        assert!(runs.iter().all(|run| run.principal.as_deref() == Some("ada")));
    });
}

#[test]
fn l20_the_unfinished_runs_of_a_session_are_limited() {
    on_every_store(|world| {
        let mut config = world.config([agent(), waiting(), tool("quick", |_| async { Ok(json!(1)) })]);
        config.session_runs = 2;
        let runtime = Runtime::new(config);
        let start = |name: &str| {
            let (runtime, call) = (runtime.clone(), call(name));
            world.run(async move { runtime.start_call(call).await })
        };
        let first = start("waiting").unwrap();
        start("waiting").unwrap();
        let is_full = |error: &Error, most: u64| {
            let text = error.to_string();
            let named = text.contains(&first.to_string()) && text.contains("wait for one of them");
            matches!(error, Error::Store(StoreError::SessionFull { most: limit, .. }) if *limit == most) && named
        };
        let refused = start("waiting").unwrap_err();
        assert!(is_full(&refused, 2), "{refused}");
        let called = runtime.clone();
        let refused = world.run(async move { called.call(call("waiting")).await }).unwrap_err();
        assert!(is_full(&refused, 2), "{refused}");
        let turn = runtime.clone();
        let refused = world.run(async move { turn.start_call(call("waiting").as_turn()).await }).unwrap_err();
        assert!(is_full(&refused, 2), "{refused}");
        let called = runtime.clone();
        world.run(async move { called.start_call(ToolCall::new("waiting", json!({})).session("bob")).await }).unwrap();
        let with_first = with(&world, &runtime, move |ada| async move {
            ada.open_with(None, None, with_agent()).await.unwrap();
            let refused = ada.post(says("hello").wake()).await.unwrap_err();
            assert!(ada.messages(0, 9).await.unwrap().is_empty(), "it is not posted");
            ada.configure(SettingsChange::default().unfinished_runs(3)).await.unwrap();
            ada.post(says("hello").wake()).await.unwrap();
            refused
        });
        assert!(is_full(&with_first, 2), "{with_first}");
        world.pass(MOMENT);
        start("waiting").unwrap();
        let refused = start("waiting").unwrap_err();
        assert!(is_full(&refused, 3), "{refused}");
    });
}

#[test]
fn l20_l25_turns_of_commands_are_queued_over_the_limit() {
    on_every_store(|world| {
        let note = |_: Value| async { Ok(Output::value(json!(1)).post(says("a note").waking(Wake::Refuse))) };
        let mut config = world.config([agent(), waiting(), Tool::new("note", "notes", note)]);
        config.session_runs = 2;
        let runtime = Runtime::new(config);
        with(&world, &runtime, |ada| async move { ada.open_with(None, None, with_agent()).await }).unwrap();
        let made = runtime.clone();
        let holder = world.run(async move { made.start_call(call("waiting").as_turn()).await }).unwrap();
        let made = runtime.clone();
        world.run(async move { made.call(call("note")).await }).unwrap();
        let made = runtime.clone();
        world.run(async move { made.call(call("note")).await }).unwrap_err();
        let queued = with(&world, &runtime, |ada| async move { ada.messages(0, 9).await }).unwrap()[0].run.unwrap();
        let ended = runtime.clone();
        world.run(async move { ended.cancel(holder, "ada", "enough").await }).unwrap();
        assert_eq!(outcome(&world, &runtime, queued), json!(["ada", 1]), "it follows the turn before it");
    });
}

#[test]
fn l20_a_session_is_waited_for_until_it_is_idle() {
    on_every_store(|world| {
        let sleeps = Tool::durable_fn("sleeps", "sleeps", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(HOUR).await?;
            Ok(json!(1))
        });
        let runtime = world.runtime([sleeps, waiting()]);
        with(&world, &runtime, |ada| async move {
            ada.wait_idle(Duration::ZERO).await.unwrap();
            ada.open(None, None).await.unwrap();
            ada.wait_idle(Duration::ZERO).await.unwrap();
        });
        let made = runtime.clone();
        world.run(async move { made.start_call(call("sleeps")).await }).unwrap();
        let before = world.sim.now();
        with(&world, &runtime, |ada| async move { ada.wait_idle(2 * HOUR).await }).unwrap();
        let took = world.sim.now().since(before);
        assert!(took >= HOUR && took < HOUR + MOMENT, "told at once, not by polling: {took:?}");
        let made = runtime.clone();
        let run = world.run(async move { made.start_call(call("waiting")).await }).unwrap();
        world.pass(MOMENT);
        let late = with(&world, &runtime, |ada| async move { ada.wait_idle(HOUR).await }).unwrap_err();
        let text = late.to_string();
        assert!(matches!(late, Error::NotIdle(_)), "{text}");
        assert!(text.contains(&run.to_string()) && text.contains("an answer") && text.contains("\"ada\""), "{text}");
        let unfinished = with(&world, &runtime, |ada| async move { ada.unfinished_after(Duration::ZERO).await });
        assert_eq!(unfinished.unwrap().iter().map(|unfinished| unfinished.run).collect::<Vec<_>>(), [run]);
        with(&world, &runtime, |ada| async move { ada.close("over", UnfinishedRuns::Cancel).await }).unwrap();
        with(&world, &runtime, |ada| async move { ada.wait_idle(HOUR).await }).unwrap();
    });
}

#[test]
fn l20_a_report_says_what_fills_the_context() {
    on_every_store(|world| {
        let runtime = world.runtime([agent(), waiting()]);
        with(&world, &runtime, |ada| async move {
            assert!(matches!(ada.context().await, Err(Error::NotFound(_))));
            ada.open_with(None, None, SettingsChange::default().model("m-1").window(1_000)).await.unwrap();
            let empty = ada.context().await.unwrap();
            assert_eq!((empty.sections[0].tokens, empty.sections[2].tokens), (0, 0));
            assert_eq!((empty.sections[1].name, empty.sections[1].items), ("tools", 2));
            ada.post(says(&"x".repeat(4_000))).await.unwrap();
            ada.set("cart", &json!([1, 2, 3])).await.unwrap();
            ada.set_secret("token", "s3cret").await.unwrap();
            let report = ada.context().await.unwrap();
            assert_eq!((report.model.as_deref(), report.window), (Some("m-1"), Some(1_000)));
            let [messages, tools, data] = &report.sections[..] else { panic!("{report:?}") };
            assert!((4_000..4_100).contains(&messages.bytes) && messages.tokens == messages.bytes.div_ceil(4));
            assert_eq!((messages.items, data.items, data.bytes), (1, 1, 7), "secrets are never part of it");
            assert_eq!(report.input_tokens, messages.tokens + tools.tokens + data.tokens);
            assert!(report.used_percent().is_some_and(|used| used >= 100), "{report:?}");
        });
    });
}

/// The events of a session from a position on, each with the position after it.
fn events(world: &World, runtime: &Runtime, from: SessionPosition) -> Vec<(String, SessionPosition)> {
    let (mut watch, sim) = (runtime.session("ada").watch(from), world.sim.clone());
    world.run(async move {
        let mut seen = Vec::new();
        loop {
            let mut late = sim.sleep(MOMENT);
            let next = std::future::poll_fn(|cx| match Box::pin(watch.next()).poll_unpin(cx) {
                std::task::Poll::Pending => late.poll_unpin(cx).map(|()| None),
                ready => ready.map(Some),
            });
            let shown = match next.await.flatten() {
                None => return seen,
                Some(Ok(SessionEvent::Message(message))) => format!("message {} {}", message.position, message.text()),
                Some(Ok(SessionEvent::Activity(activity))) => {
                    let kind = serde_json::to_value(&activity.what).unwrap()["kind"].clone();
                    if matches!(activity.position, windlass::run::Position::Live) {
                        continue;
                    }
                    format!("{} {} {kind}", activity.run, activity.path)
                }
                Some(other) => panic!("{other:?}"),
            };
            seen.push((shown, watch.position()));
        }
    })
}

#[test]
fn l20_l23_the_events_of_a_session_resume_at_every_position() {
    on_every_store(|world| {
        let tools = || [agent(), waiting(), tool("quick", |_| async { Ok(json!(1)) })];
        let runtime = world.runtime(tools());
        with(&world, &runtime, |ada| async move {
            ada.open_with(None, None, with_agent().model("m")).await.unwrap();
            ada.post(says("one")).await.unwrap();
            ada.post(says("two").wake()).await.unwrap();
        });
        world.pass(MOMENT);
        let made = runtime.clone();
        world.run(async move { made.call(call("quick")).await }).unwrap();
        with(&world, &runtime, |ada| async move {
            ada.post(says("three").wake()).await.unwrap();
            ada.post(says("four")).await.unwrap();
        });
        world.pass(MOMENT);
        let all = events(&world, &runtime, SessionPosition::START);
        let said: Vec<&str> = all.iter().filter_map(|(event, _)| event.strip_prefix("message ")).collect();
        assert_eq!(said, ["1 one", "2 two", "3 m: two", "4 three", "5 four", "6 m: three"]);
        assert!(all.len() > 15, "{all:?}");
        let at = |text: &str| all.iter().position(|(event, _)| event.contains(text)).unwrap();
        assert!(at("2 two") < at("run_started"), "a message comes before the turn that it starts: {all:?}");
        let check = |world: &World, runtime: &Runtime| {
            for seen in 0..=all.len() {
                let from = if seen == 0 { SessionPosition::START } else { all[seen - 1].1 };
                let rest = events(world, runtime, from);
                let shown = |events: &[(String, SessionPosition)]| events.iter().map(|(e, _)| e.clone()).collect();
                let (mut rest, mut expected): (Vec<String>, Vec<String>) = (shown(&rest), shown(&all[seen..]));
                // Between messages and activities the order may differ where they have the same time.
                rest.sort();
                expected.sort();
                assert_eq!(rest, expected, "after {seen} events");
            }
        };
        check(&world, &runtime);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools());
        check(&world, &runtime);
    });
}

#[test]
fn l20_the_events_of_a_session_follow_what_happens_and_end_when_it_is_purged() {
    on_every_store(|world| {
        let runtime = world.runtime([agent()]);
        let (watched, sim) = (runtime.clone(), world.sim.clone());
        with(&world, &runtime, |ada| async move {
            let mut watch = watched.session("ada").watch(SessionPosition::START);
            assert!(watch.next().now_or_never().is_none(), "the session need not exist");
            ada.open(None, None).await.unwrap();
            ada.post(says("hello").wake()).await.unwrap();
            let Some(Ok(SessionEvent::Message(message))) = watch.next().await else { panic!("no message") };
            assert_eq!((message.text(), message.woke, message.run), ("hello".to_owned(), true, None));
            let position = watch.position();
            assert!(watch.next().now_or_never().is_none());
            ada.close("over", UnfinishedRuns::Leave).await.unwrap();
            assert!(watch.next().now_or_never().is_none(), "a closed session can be watched");
            ada.purge().await.unwrap();
            assert!(watch.next().await.is_none() && watch.next().await.is_none());
            let mut again = watched.session("ada").watch(position);
            assert!(again.next().await.is_none(), "a reader that reconnects gets the end too");
            sim.sleep(MOMENT).await;
            ada.open(None, None).await.unwrap();
            ada.post(says("one")).await.unwrap();
            ada.post(says("two")).await.unwrap();
            let mut again = watched.session("ada").watch(position);
            assert!(again.next().await.is_none(), "what follows belongs to another session");
        });
    });
}
