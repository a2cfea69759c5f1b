//! Sessions (L20): opened, shown, written to, closed and purged, from outside and from inside of tools.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::Start;
use windlass::session::{Author, NewMessage, SessionFilter, SessionMessage, UnfinishedRuns};
use windlass::store::StoreError;
use windlass::tool::{Incoming, Middleware, Outgoing, Preparation};
use windlass::{Call, Ctx, Effect, Error, Output, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::{Runtime, Session};

use crate::world::{Counter, Kind, World, on_every_store};

const MOMENT: Duration = Duration::from_secs(1);

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

fn result(world: &World, runtime: &Runtime, call: ToolCall) -> Result<Value, Error> {
    let runtime = runtime.clone();
    let outcome = world.run(async move { runtime.call(call).await })?;
    outcome.result.map(|output| output.value.clone()).map_err(|error| Error::Tool((*error).clone()))
}

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({})).session("ada")
}

fn waiting() -> Tool {
    Tool::durable_fn("waiting", "waits", |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("an answer").await })
}

fn is_closed<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Store(StoreError::SessionClosed { session })) if &*session == "ada")
}

#[test]
fn l20_a_session_is_opened_shown_listed_and_survives_a_restart() {
    on_every_store(|world| {
        let runtime = world.runtime([]);
        with(&world, &runtime, |ada| async move {
            assert!(ada.open(Some("Trip"), Some("ada@example.org")).await.unwrap());
            assert!(!ada.open(None, None).await.unwrap(), "it is open already");
            let taken = ada.open(None, Some("bob")).await.unwrap_err();
            assert!(matches!(&taken, Error::Conflict(why) if why.contains("another owner")), "{taken}");
            ada.set_title(Some("Journey")).await.unwrap();
            assert_eq!(ada.post(says("hello")).await.unwrap().position, 1);
            let twice = says("once").dedupe("k");
            let (first, again) = (ada.post(twice.clone()).await.unwrap(), ada.post(twice).await.unwrap());
            assert_eq!((first.position, first.repeated, again.position, again.repeated), (2, false, 2, true));
        });
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([]);
        with(&world, &runtime, |ada| async move {
            let info = ada.info().await.unwrap().unwrap();
            assert_eq!((info.title.as_deref(), info.owner.as_deref()), (Some("Journey"), Some("ada@example.org")));
            assert_eq!((info.messages, info.closed), (2, None));
            assert_eq!(texts(&ada.messages(0, 9).await.unwrap()), ["hello", "once"]);
            assert_eq!(texts(&ada.last_messages(1).await.unwrap()), ["once"]);
            assert_eq!(texts(&ada.last_messages(9).await.unwrap()), ["hello", "once"]);
        });
        let listed = runtime.clone();
        let open = SessionFilter { open: Some(true), ..SessionFilter::default() };
        let sessions = world.run(async move { listed.sessions(open, None, 9).await }).unwrap();
        assert_eq!(sessions.iter().map(|session| &*session.name).collect::<Vec<_>>(), ["ada"]);
    });
}

#[test]
fn l20_hostile_input_is_refused_with_a_clear_error() {
    on_every_store(|world| {
        let runtime = world.runtime([]);
        let nameless = runtime.clone();
        world.run(async move {
            for name in ["", "a\0b", "a\nb", &"x".repeat(256)] {
                let error = nameless.session(name).open(None, None).await.unwrap_err();
                assert!(matches!(&error, Error::Invalid(why) if why.contains("name of a session")), "{error}");
            }
        });
        with(&world, &runtime, |ada| async move {
            for error in [
                ada.post(says("x")).await.unwrap_err(),
                ada.set_title(Some("T")).await.unwrap_err(),
                ada.set("a", &1).await.unwrap_err(),
                ada.close("over", UnfinishedRuns::Leave).await.unwrap_err(),
            ] {
                assert!(matches!(&error, Error::NotFound(why) if why.contains("no session \"ada\"")), "{error}");
            }
            assert!(matches!(ada.purge().await, Err(Error::Store(StoreError::NoSession { .. }))));
            assert_eq!((ada.info().await.unwrap(), ada.messages(0, 9).await.unwrap()), (None, Vec::new()));
            ada.open(None, None).await.unwrap();
            let huge = ada.post(says(&"x".repeat(300 << 10))).await.unwrap_err();
            assert!(matches!(&huge, Error::TooLarge(why) if why.contains("262144 bytes")), "{huge}");
            let titled = ada.set_title(Some("a\0")).await.unwrap_err();
            assert!(matches!(&titled, Error::Invalid(why) if why.contains("title")), "{titled}");
            ada.post(says("a \0 in a text is kept")).await.unwrap();
            assert_eq!(texts(&ada.last_messages(1).await.unwrap()), ["a \0 in a text is kept"]);
        });
    });
}

#[test]
fn l20_a_closed_session_refuses_calls_starts_turns_and_writes_by_name() {
    on_every_store(|world| {
        let effects = Counter::default();
        let counted = effects.clone();
        let act = Tool::new("act", "acts", move |_: Value| {
            let counted = counted.clone();
            async move { Ok(counted.add()) }
        });
        let runtime = world.runtime([act, waiting()]);
        assert_eq!(result(&world, &runtime, call("act")).unwrap(), json!(1));
        let before = runtime.clone();
        let known = world.run(async move { before.start_call(call("act").key("known")).await }).unwrap();
        world.pass(MOMENT);
        with(&world, &runtime, |ada| async move { ada.close("over", UnfinishedRuns::Leave).await.unwrap() });
        for refused in [call("act"), call("act").as_turn(), call("act").as_turn_or_refuse(), call("act").key("new")] {
            assert!(is_closed(result(&world, &runtime, refused)));
        }
        let starting = runtime.clone();
        assert!(is_closed(world.run(async move { starting.start_call(call("waiting")).await })));
        let batch = runtime.clone();
        let calls = vec![ToolCall::new("act", json!({})), ToolCall::new("act", json!({}))];
        assert!(is_closed(world.run(async move { batch.batch_with(calls, false, Start::session("ada")).await })));
        assert_eq!(effects.get(), 2, "no refused call had an effect");
        let again = runtime.clone();
        let same = world.run(async move { again.start_call(call("act").key("known")).await }).unwrap();
        assert_eq!(same, known, "a repeated request gets its run");
        with(&world, &runtime, |ada| async move {
            assert!(is_closed(ada.post(says("late")).await));
            assert!(is_closed(ada.set("a", &1).await) && is_closed(ada.set_secret("a", "x").await));
            assert!(is_closed(ada.delete("a").await) && is_closed(ada.set_title(None).await));
            assert!(is_closed(ada.open(None, None).await));
            assert_eq!(ada.close("again", UnfinishedRuns::Leave).await.unwrap(), 0, "closing is idempotent");
            assert_eq!(&*ada.info().await.unwrap().unwrap().closed.unwrap().reason, "over");
        });
    });
}

#[test]
fn l20_closing_leaves_or_cancels_unfinished_runs() {
    on_every_store(|world| {
        for (runs, kind) in [(UnfinishedRuns::Leave, "failed"), (UnfinishedRuns::Cancel, "cancelled")] {
            let name = format!("{runs:?}");
            let nap = Tool::durable_fn("nap", "sleeps", |mut ctx: Ctx, _: Value| async move {
                ctx.sleep(MOMENT * 60).await?;
                Ok(json!("awake"))
            });
            let runtime = world.runtime([waiting(), nap]);
            let (starting, session) = (runtime.clone(), name.clone());
            let [waits, naps] = world.run(async move {
                let start = |tool| starting.start_call(ToolCall::new(tool, json!({})).session(session.as_str()));
                [start("waiting").await.unwrap(), start("nap").await.unwrap()]
            });
            world.pass(MOMENT);
            let closing = runtime.session(name.as_str());
            assert_eq!(world.run(async move { closing.close("over", runs).await }).unwrap(), 2);
            let attaching = runtime.clone();
            let [waited, napped] = world.run(async move {
                let outcome = async |run| attaching.attach(run).await.unwrap().remove(0).result;
                [outcome(waits).await, outcome(naps).await]
            });
            let error = waited.unwrap_err();
            assert!(error.to_string().contains("was closed: over"), "{runs:?}: {error}");
            match runs {
                UnfinishedRuns::Leave => assert_eq!(napped.unwrap().value, json!("awake")),
                UnfinishedRuns::Cancel => assert_eq!(napped.unwrap_err().kind(), kind),
            }
        }
    });
}

#[test]
fn l20_w09_a_session_is_purged_after_its_runs_have_ended() {
    on_every_store(|world| {
        let runtime = world.runtime([waiting()]);
        let starting = runtime.clone();
        let run = world.run(async move { starting.start_call(call("waiting")).await }).unwrap();
        world.pass(MOMENT);
        with(&world, &runtime, |ada| async move {
            ada.post(says("hello")).await.unwrap();
            assert!(matches!(ada.purge().await, Err(Error::Store(StoreError::SessionOpen { .. }))));
        });
        // Closed in the store only, as if the process died before it told the runs.
        let change = windlass_core::store::SessionChange::Close { reason: "over".into() };
        let at = windlass_core::time::Timestamp::default();
        let write = windlass_core::store::SessionWrite::outside("ada".into(), at, change);
        let store = world.store.clone();
        world.run(async move { store.sessions().write_session(write).await }).unwrap().unwrap();
        with(&world, &runtime, move |ada| async move {
            let busy = ada.purge().await.unwrap_err();
            assert!(matches!(busy, Error::Store(StoreError::SessionBusy { run: busy, .. }) if busy == run));
            assert_eq!(ada.close("again", UnfinishedRuns::Cancel).await.unwrap(), 1, "told now");
        });
        world.pass(MOMENT);
        with(&world, &runtime, |ada| async move {
            ada.purge().await.unwrap();
            assert_eq!(ada.messages(0, 9).await.unwrap(), []);
        });
    });
}

#[test]
fn l20_a_body_reads_the_same_messages_again_whatever_was_posted_meanwhile() {
    on_every_store(|world| {
        let reads = || {
            Tool::durable_fn("reads", "reads", |mut ctx: Ctx, _: Value| async move {
                let read = ctx.session().last_messages(2).await?;
                ctx.sleep(MOMENT * 3_600).await?;
                let now = ctx.session().messages(0, 100).await?;
                Ok(json!([texts(&read), texts(&now)]))
            })
        };
        let runtime = world.runtime([reads()]);
        with(&world, &runtime, |ada| async move {
            ada.open(None, None).await.unwrap();
            for text in ["one", "two", "three"] {
                ada.post(says(text)).await.unwrap();
            }
        });
        let starting = runtime.clone();
        let run = world.run(async move { starting.start_call(call("reads")).await }).unwrap();
        world.pass(MOMENT);
        let journal = runtime.clone();
        let journal = world.run(async move { journal.journal(run).await }).unwrap();
        let text = serde_json::to_string(&journal).unwrap();
        assert!(
            text.contains("\"count\":2") && !text.contains("three"),
            "the record has the range, not the text: {text}"
        );
        with(&world, &runtime, |ada| async move { ada.post(says("four")).await.unwrap() });
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([reads()]);
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.for_model(), json!([["two", "three"], ["one", "two", "three", "four"]]));
    });
}

#[test]
fn l20_a_run_whose_messages_are_gone_is_held() {
    let world = World::new(Kind::Memory);
    let reads = || {
        Tool::durable_fn("reads", "reads", |mut ctx: Ctx, _: Value| async move {
            let read = ctx.session().messages(0, 9).await?;
            ctx.sleep(MOMENT * 3_600).await?;
            Ok(json!(texts(&read)))
        })
    };
    let runtime = world.runtime([reads()]);
    with(&world, &runtime, |ada| async move {
        ada.open(None, None).await.unwrap();
        ada.post(says("hello")).await.unwrap();
    });
    let starting = runtime.clone();
    let run = world.run(async move { starting.start_call(call("reads")).await }).unwrap();
    world.pass(MOMENT);
    let exporting = runtime.clone();
    let document = world.run(async move { exporting.export(run).await }).unwrap();
    // Another store has a session of that name with other messages.
    let elsewhere = World::new(Kind::Sqlite);
    let runtime = elsewhere.runtime([reads()]);
    with(&elsewhere, &runtime, |ada| async move {
        ada.open(None, None).await.unwrap();
        ada.post(says("not this one")).await.unwrap();
    });
    let error = elsewhere.run(async move {
        let run = runtime.import(&document.to_string()).await.unwrap();
        runtime.resume(run).await.unwrap();
        runtime.attach(run).await.unwrap_err()
    });
    assert!(error.to_string().contains("missing messages at 0"), "{error}");
}

#[test]
fn l20_a_body_without_a_session_gets_a_clear_error() {
    on_every_store(|world| {
        let lost = Tool::durable_fn("lost", "talks into nothing", |mut ctx: Ctx, _: Value| async move {
            assert_eq!(ctx.session().name(), None);
            let errors: [ToolError; 3] = [
                ctx.session().post(says("x")).await.unwrap_err(),
                ctx.session().messages(0, 1).await.unwrap_err(),
                ctx.session().get::<Value>("a").await.unwrap_err(),
            ];
            let huge = ctx.session().post(says(&"x".repeat(300 << 10))).await.unwrap_err();
            Ok(json!([errors.map(|error| error.to_string()), huge.to_string()]))
        });
        let runtime = world.runtime([lost]);
        let value = result(&world, &runtime, ToolCall::new("lost", json!({}))).unwrap();
        for error in value[0].as_array().unwrap() {
            assert!(error.as_str().unwrap().contains("belongs to no session; start it in one"), "{value}");
        }
        assert!(value[1].as_str().unwrap().contains("at most 262144 bytes"), "{value}");
    });
}

/// Counts the calls of each session.
struct Seen(Counter);

impl Middleware for Seen {
    fn before(&self, call: &mut Incoming<'_>) -> ToolResult<()> {
        assert_eq!(call.session(), Some("ada"));
        self.0.add();
        Ok(())
    }

    fn after(&self, call: &mut Outgoing<'_>) -> ToolResult<()> {
        assert_eq!(call.session(), Some("ada"));
        self.0.add();
        Ok(())
    }
}

#[test]
fn l20_l25_an_atomic_body_reads_its_session_and_posts_with_its_outcome() {
    on_every_store(|world| {
        let reply = Tool::with_call("reply", "answers the last message", |call: Call, _: Value| async move {
            let session = call.session().expect("it is in one");
            assert_eq!(session.name(), "ada");
            let title = session.info().await?.and_then(|info| info.title);
            let last = session.last_messages(1).await?;
            let (mood, token) = (session.get::<String>("mood").await?, session.secret("token").await?);
            let text = format!("re: {} ({mood:?})", texts(&last).join(""));
            assert_eq!((token.as_deref(), call.prepared()), (Some("s3cret"), Some(&json!(2))));
            Ok(Output::value(json!([title, texts(&last)])).post(NewMessage::text(Author::Tool, text)))
        })
        .effect(Effect::Readonly)
        .prepare(|call: Call| async move {
            let count = call.session().expect("it is in one").messages(0, 9).await?.len();
            Ok(Preparation::freeze(json!(count)))
        });
        let seen = Counter::default();
        let mut config = world.config([reply]);
        config.middleware.push(std::sync::Arc::new(Seen(seen.clone())));
        let runtime = Runtime::new(config);
        with(&world, &runtime, |ada| async move {
            ada.open(Some("Trip"), None).await.unwrap();
            ada.post(says("first")).await.unwrap();
            ada.post(says("how are you?")).await.unwrap();
            ada.set("mood", &"fine").await.unwrap();
            ada.set_secret("token", "s3cret").await.unwrap();
        });
        assert_eq!(result(&world, &runtime, call("reply")).unwrap(), json!(["Trip", ["how are you?"]]));
        let last = with(&world, &runtime, |ada| async move { ada.last_messages(1).await.unwrap().remove(0) });
        assert_eq!((last.position, last.author, &*last.text()), (3, Author::Tool, "re: how are you? (Some(\"fine\"))"));
        assert_eq!(seen.get(), 2);
    });
}

#[test]
fn l20_l25_a_message_of_an_outcome_to_a_closed_session_is_left_out_and_the_outcome_counts() {
    on_every_store(|world| {
        let late = Tool::with_call("late", "posts late", |call: Call, _: Value| async move {
            let run = call.run();
            Ok(Output::value(json!(run.to_string())).post(says("too late")))
        });
        let around = Tool::durable_fn("around", "closes first", |mut ctx: Ctx, _: Value| async move {
            ctx.session().close("over").await?;
            ctx.call_json("late", json!({})).await
        });
        let bare = Tool::new("bare", "posts into nothing", |_: Value| async {
            Ok(Output::value(json!(1)).post(says("nowhere")))
        });
        let runtime = world.runtime([late, around, bare]);
        assert!(result(&world, &runtime, call("around")).unwrap().is_string());
        assert_eq!(with(&world, &runtime, |ada| async move { ada.messages(0, 9).await.unwrap() }), []);
        let error = result(&world, &runtime, ToolCall::new("bare", json!({}))).unwrap_err();
        assert!(matches!(&error, Error::Tool(ToolError::Internal { .. })), "{error}");
    });
}

#[test]
fn l20_two_bodies_that_write_at_once_lose_no_message() {
    on_every_store(|world| {
        let talk = Tool::durable_fn("talk", "talks", |mut ctx: Ctx, args: Value| async move {
            for n in 0..5 {
                ctx.session().post(says(&format!("{}{n}", args["who"]))).await?;
            }
            Ok(json!(null))
        });
        let runtime = world.runtime([talk]);
        let talking = runtime.clone();
        world.run(async move {
            let mut runs = Vec::new();
            for who in 0..4 {
                let call = ToolCall::new("talk", json!({"who": who})).session("ada");
                runs.push(talking.start_call(call).await.unwrap());
            }
            for run in runs {
                talking.attach(run).await.unwrap();
            }
        });
        let messages = with(&world, &runtime, |ada| async move { ada.messages(0, 99).await.unwrap() });
        let positions: Vec<u64> = messages.iter().map(|message| message.position).collect();
        assert_eq!(positions, (1..=20).collect::<Vec<u64>>());
        let mut all = texts(&messages);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 20);
    });
}
