//! One run as a document, from one store to another.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::{Resolution, Settlement};
use windlass::run::record::{Asked, Event, Finished, OpKind, Record};
use windlass::run::{Ending, Filter, Hold, RunState, Times};
use windlass::{Ctx, Effect, Error, Output, RunId, Timestamp, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::store::{Change, Commit, Creation, Guard};

use crate::world::{Counter, Kind, World};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

/// Tests from each kind of store to the other.
fn across(test: impl Fn(World, World)) {
    test(World::new(Kind::Memory), World::new(Kind::Sqlite));
    test(World::new(Kind::Sqlite), World::new(Kind::Memory));
}

fn export(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    world.run(async move { runtime.export(run).await }).unwrap()
}

fn import(world: &World, runtime: &Runtime, document: &str) -> Result<RunId, Error> {
    let (runtime, document) = (runtime.clone(), document.to_owned());
    world.run(async move { runtime.import(&document).await })
}

fn state(world: &World, runtime: &Runtime, run: RunId) -> RunState {
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await }).unwrap().unwrap().state
}

fn resume(world: &World, runtime: &Runtime, run: RunId) {
    let runtime = runtime.clone();
    world.run(async move { runtime.resume(run).await }).unwrap();
    world.pass(MOMENT);
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    world.run(async move { runtime.attach(run).await }).unwrap()[0].for_model()
}

/// One effect, a signal, and a sleep of an hour.
fn job(effects: &Counter) -> Tool {
    let effects = effects.clone();
    Tool::durable_fn("job", "", move |mut ctx: Ctx, _: Value| {
        let effects = effects.clone();
        async move {
            let n: u32 = ctx.step("act", |_| async { Ok(effects.add()) }).await?;
            let who: String = ctx.wait("who").await?;
            ctx.sleep(HOUR).await?;
            Ok(json!([n, who, ctx.random()]))
        }
    })
}

#[test]
fn w10_an_imported_run_is_held_until_it_is_resumed() {
    across(|here, there| {
        let effects = Counter::default();
        let source = here.runtime([job(&effects)]);
        let run = source.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        here.pass(MOMENT);
        let document = export(&here, &source, run);
        assert_eq!(document["windlass_run"], 1);
        let target = there.runtime([job(&effects)]);
        assert_eq!(import(&there, &target, &document.to_string()).unwrap(), run);
        let text = match state(&there, &target, run) {
            RunState::Held { hold } => hold.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(text.contains("the original was suspended") && text.contains("then resume"), "{text}");
        // Neither time nor a restart makes it continue.
        there.pass(2 * HOUR);
        let recovering = target.clone();
        there.run(async move { recovering.recover().await }).unwrap();
        assert!(matches!(state(&there, &target, run), RunState::Held { hold: Hold::Imported { missing: 0, .. } }));
        let again = import(&there, &target, &document.to_string());
        assert!(matches!(&again, Err(Error::Exists { run: there }) if *there == run), "{again:?}");
        // The key of the other store is void here; the inbox has a new one.
        let inbox = |world: &World, runtime: &Runtime| {
            let runtime = runtime.clone();
            world.run(async move { runtime.inbox().await }).unwrap().remove(0).key.unwrap()
        };
        let (old, new) = (inbox(&here, &source), inbox(&there, &target));
        let (a, b) = (target.clone(), target.clone());
        let said = || Resolution::Ok { value: json!("bob") };
        let (first, second) = (said(), said());
        assert!(there.run(async move { a.resolve(&old, first).await }).is_err());
        there.run(async move { b.resolve(&new, second).await }).unwrap();
        resume(&there, &target, run);
        let moved = outcome(&there, &target, run);
        assert_eq!((&moved[0], &moved[1]), (&json!(1), &json!("bob")));
        assert_eq!(effects.get(), 1, "what was recorded is not done again");
    });
}

#[test]
fn w10_a_finished_run_is_imported_unchanged() {
    across(|here, there| {
        let effects = Counter::default();
        let effect = |effects: &Counter| {
            let effects = effects.clone();
            Tool::durable_fn("quick", "", move |mut ctx: Ctx, _: Value| {
                let effects = effects.clone();
                async move { Ok(json!(ctx.step("act", |_| async { Ok(effects.add()) }).await?)) }
            })
        };
        let source = here.runtime([effect(&effects)]);
        let run = source.start_unconfirmed(ToolCall::new("quick", json!({}))).unwrap();
        here.pass(MOMENT);
        let document = export(&here, &source, run);
        let target = there.runtime([effect(&effects)]);
        import(&there, &target, &document.to_string()).unwrap();
        assert_eq!(state(&there, &target, run), RunState::Finished { ending: Ending::Ok });
        assert_eq!(outcome(&there, &target, run), json!(1));
        assert_eq!(export(&there, &target, run), document, "and could go on travelling");
        assert_eq!(effects.get(), 1);
    });
}

#[test]
fn w10_w01_an_imported_attempt_without_a_result_is_in_doubt() {
    across(|here, there| {
        let stuck = || {
            Tool::durable_fn("stuck", "", |mut ctx: Ctx, _: Value| async move {
                ctx.step("pay", |_| std::future::pending::<windlass::ToolResult<u32>>()).await.map(|n| json!(n))
            })
        };
        let source = here.runtime([stuck()]);
        let run = source.start_unconfirmed(ToolCall::new("stuck", json!({}))).unwrap();
        here.pass(MOMENT);
        let document = export(&here, &source, run);
        let target = there.runtime([stuck()]);
        import(&there, &target, &document.to_string()).unwrap();
        resume(&there, &target, run);
        let looking = target.clone();
        let doubts = there.run(async move { looking.doubts().await }).unwrap();
        assert_eq!((doubts.len(), doubts[0].1.path.to_string().as_str()), (1, "0"));
        let settling = target.clone();
        there.run(async move {
            let happened = Settlement::Happened(Ok(std::sync::Arc::new(Output::value(json!(9)))));
            settling.settle(run, &"0".parse().unwrap(), happened, "ann", "saw it").await.unwrap();
        });
        assert_eq!(outcome(&there, &target, run), json!(9));
    });
}

/// Continues for ever, or until it gets a signal to stop.
fn rounds() -> Tool {
    Tool::durable_fn("rounds", "", |mut ctx: Ctx, args: Value| async move {
        let round = args["round"].as_u64().unwrap_or(0);
        if round == 2 {
            let last: String = ctx.receive("end").await?;
            return Ok(json!([round, last]));
        }
        ctx.step("round", |_| async { Ok(round) }).await?;
        ctx.continue_as(json!({"round": round + 1})).await
    })
    .signal::<String>("end")
}

#[test]
fn w10_all_generations_and_the_mail_are_exported_and_a_broken_import_is_completed() {
    across(|here, there| {
        let source = here.runtime([rounds()]);
        let run = source.start_unconfirmed(ToolCall::new("rounds", json!({}))).unwrap();
        here.pass(MOMENT);
        let document = export(&here, &source, run);
        assert_eq!(document["generation"], 2);
        // The import dies after its first commit.
        let journal: Vec<Record> = serde_json::from_value(document["journal"].clone()).unwrap();
        let second =
            journal.iter().skip(1).position(|record| matches!(record.event, Event::Continued { .. })).unwrap() + 1;
        let hold = Hold::Imported { was: "suspended".into(), missing: 2 };
        let creation = Creation { tool: "rounds".into(), ..Creation::default() };
        let changes = vec![
            Change::Create(creation),
            Change::Append(journal[..second].to_vec()),
            Change::State(RunState::Held { hold }),
        ];
        let store = there.store.clone();
        let guard = Guard::Owner { run, epoch: 1, expected_seq: 0 };
        there.run(async move { store.commit(Commit { guard, changes }).get().await }).unwrap();
        let target = there.runtime([rounds()]);
        let resuming = target.clone();
        let early = there.run(async move { resuming.resume(run).await });
        assert!(matches!(&early, Err(error) if error.to_string().contains("import the same document")), "{early:?}");
        let mut other = document.clone();
        other["journal"][0]["at"] = json!(1);
        let strange = import(&there, &target, &other.to_string());
        assert!(matches!(&strange, Err(Error::Conflict(why)) if why.contains("another document")), "{strange:?}");
        let mut mailed = document.clone();
        mailed["mail"] = json!([{"type": "signal", "name": "end", "value": "bye"}]);
        import(&there, &target, &mailed.to_string()).unwrap();
        resume(&there, &target, run);
        assert_eq!(outcome(&there, &target, run), json!([2, "bye"]));
        let looking = target.clone();
        let info = there.run(async move { looking.list(Filter::default(), None, 9).await }).unwrap().remove(0);
        assert_eq!(info.generation, 2);
    });
}

#[test]
fn w10_an_invalid_document_is_refused_with_the_path_of_the_problem() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([]);
    let mut good = golden();
    let text = good.to_string();
    assert!(import(&world, &runtime, &text).is_ok());
    good["run"] = json!("00000000-0000-7000-8000-000000000002");
    for (pointer, value, words) in [
        ("/windlass_run", json!(2), "version 2"),
        ("/journal", json!([]), "at least one record"),
        ("/journal/0/path", json!("3"), "journal[0]: a journal begins at the root"),
        ("/journal/1/asked", json!(null), "journal[1]: the first record at 0"),
        ("/journal/1/event/type", json!("frobbed"), "unknown variant `frobbed`"),
        ("/generation", json!(4), "generation: the document says 4"),
        ("/state", json!({"state": "dreaming"}), "dreaming"),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        let refused = import(&world, &runtime, &bad.to_string());
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains(words)), "{pointer}: {refused:?}");
    }
    for (text, words) in [("", "not JSON"), ("[1, 2", "line 1 column"), ("{}", "windlass_run"), ("7", "windlass_run")] {
        let refused = import(&world, &runtime, text);
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains(words)), "{text}: {refused:?}");
    }
    let listing = runtime.clone();
    assert_eq!(world.run(async move { listing.list(Filter::default(), None, 9).await }).unwrap().len(), 1);
}

/// The document of a run that never changes.
fn golden() -> Value {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([]);
    let run: RunId = "00000000-0000-7000-8000-000000000001".parse().unwrap();
    let at = Timestamp::from_micros(1_790_000_000_123_456);
    let input = || Some(std::sync::Arc::new(json!({"to": "Oslo"})));
    let asked = |kind, name: &str| Asked::operation(kind, name.into(), input(), Effect::Readonly);
    let result = Ok(std::sync::Arc::new(Output::value(json!("seat 4"))));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
    let record = |path: &str, asked, event| Record { path: path.parse().unwrap(), at, asked, event };
    let records = vec![
        record("/", Some(asked(OpKind::Call, "book")), Event::Entered),
        record("0", Some(asked(OpKind::Step, "reserve")), Event::Finished(finished)),
    ];
    let creation = Creation { tool: "book".into(), at, session: Some("desk".into()), ..Creation::default() };
    let store = world.store.clone();
    let changes = vec![Change::Start { run, creation, records }];
    world.run(async move { store.commit(Commit { guard: Guard::Outsider, changes }).get().await }).unwrap();
    export(&world, &runtime, run)
}

#[test]
fn w10_the_document_matches_the_golden_file() {
    let path = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/run-v1.json");
    let found = format!("{:#}\n", golden());
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap());
}

/// Every path in a document.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| places(value, &format!("{at}/{key}"), all)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| places(value, &format!("{at}/{index}"), all));
        }
        _ => {}
    }
}

#[test]
fn w10_a_document_with_an_invalid_value_anywhere_is_refused_or_harmless() {
    let body = || {
        Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            ctx.step("one", |_| async { Ok(1) }).await?;
            let child = ctx.spawn(ToolCall::new("leaf", json!({}))).await?;
            ctx.join(&child).await?;
            ctx.call_all([ToolCall::new("leaf", json!({})), ToolCall::new("leaf", json!({}))]).await?;
            let _: Value = ctx.wait("a person").within(Duration::from_secs(60)).await?;
            Ok(json!(null))
        })
    };
    let leaf = || crate::world::tool("leaf", |_| async { Ok(json!({"x": 1.5})) });
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([body(), leaf()]);
    let run = runtime.start_unconfirmed(ToolCall::new("body", json!({"a": [1, null]}))).unwrap();
    world.pass(Duration::from_secs(1));
    let document = world.run(async move {
        runtime.signal(run, "unread", json!(1), None).await.ok();
        runtime.export(run).await.unwrap()
    });
    let mut all = Vec::new();
    places(&document, "", &mut all);
    let nonsense = [json!(null), json!(-1), json!("x"), json!([]), json!({}), json!(1e300), json!(u64::MAX)];
    let mut taken = 0;
    for place in &all {
        for (number, other) in nonsense.iter().enumerate() {
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = other.clone();
            if changed == document {
                continue;
            }
            let world = World::new(Kind::Memory);
            let runtime = world.runtime([body(), leaf()]);
            let text = changed.to_string();
            let importing = runtime.clone();
            let Ok(run) = world.run(async move { importing.import(&text).await }) else { continue };
            taken += 1;
            world.run(async move {
                let _ = runtime.explain(run).await;
                let _ = runtime.trace(run).await;
                let _ = runtime.inbox().await;
                let _ = runtime.replay_check(run).await;
                let _ = runtime.fork(run, windlass::run::Cut::End, None).await;
                let _ = runtime.export(run).await;
                let _ = runtime.resume(run).await;
            });
            world.pass(Duration::from_secs(100));
            let _ = number;
        }
    }
    assert!(taken > 0);
}

/// Nested lists of this many levels, with a number in the innermost.
fn nested(levels: usize) -> Value {
    (1..levels).fold(json!(7), |inner, _| json!([inner]))
}

/// Returns its argument in its output, as the answer to a wait and as a signal.
fn deep() -> [Tool; 2] {
    let echo = Tool::new("echo", "", |args: Value| std::future::ready(Ok::<_, windlass::ToolError>(args)));
    let body = Tool::durable_fn("deep", "", |mut ctx: Ctx, args: Value| async move {
        let echoed: Value = ctx.call(ToolCall::new("echo", args)).await?;
        let answered: Value = ctx.wait("answer").await?;
        let told: Value = ctx.receive("news").await?;
        Ok(if echoed == answered && answered == told { echoed } else { json!("something was lost") })
    });
    [echo, body.signal::<Value>("news")]
}

#[test]
fn w10_a_value_at_the_depth_limit_is_read_back_from_everywhere() {
    for (here, there) in [(Kind::Sqlite, Kind::Sqlite), (Kind::Memory, Kind::Memory), (Kind::Sqlite, Kind::Memory)] {
        let (here, there) = (World::new(here), World::new(there));
        let value = json!({"deep": nested(windlass::limits::VALUE_DEPTH - 1)});
        let source = here.runtime(deep());
        let run = source.start_unconfirmed(ToolCall::new("deep", value.clone())).unwrap();
        here.pass(MOMENT);
        let (telling, told) = (source.clone(), value.clone());
        here.run(async move {
            telling.signal(run, "news", told.clone(), None).await?;
            let key = telling.inbox().await?[0].key.clone().expect("it waits for an answer");
            telling.resolve(&key, Resolution::Ok { value: told }).await
        })
        .unwrap();
        here.pass(MOMENT);
        // Once after it has ended, and once more after a restart.
        assert_eq!(outcome(&here, &source, run), value);
        drop(source);
        let here = here.restart();
        let source = here.runtime(deep());
        assert_eq!(outcome(&here, &source, run), value);
        let document = export(&here, &source, run).to_string();
        let target = there.runtime(deep());
        assert_eq!(import(&there, &target, &document).unwrap(), run);
        assert_eq!(outcome(&there, &target, run), value);
        let again = export(&there, &target, run).to_string();
        assert!(again.contains("[[[[7]]]]"), "it can go on from there");
        let forking = target.clone();
        let forked = there.run(async move { forking.fork(run, windlass::run::Cut::Start, None).await }).unwrap();
        assert!(export(&there, &target, forked).to_string().contains("[[[[7]]]]"), "the fork has it too");
    }
}

#[test]
fn w10_a_value_beyond_the_depth_limit_is_refused_on_entry() {
    let world = World::new(Kind::Sqlite);
    let most = windlass::limits::VALUE_DEPTH;
    let grow = Tool::new("grow", "", |levels: Value| {
        std::future::ready(Ok::<_, windlass::ToolError>(nested(levels["n"].as_u64().unwrap() as usize)))
    });
    let [_, body] = deep();
    let steps = Tool::durable_fn("steps", "", |mut ctx: Ctx, args: Value| async move {
        let input = nested(args["n"].as_u64().unwrap() as usize);
        ctx.step("act", |_| async { Ok(1) }).input(&input).await
    });
    let runtime = world.runtime([grow, body, steps]);
    let call = |tool: &str, n: usize| {
        let runtime = runtime.clone();
        let run = runtime.start_unconfirmed(ToolCall::new(tool, json!({"n": n}))).unwrap();
        world.run(async move { runtime.attach(run).await }).unwrap().remove(0)
    };
    assert_eq!(call("steps", most).value(), Some(&json!(1)));
    let error = call("steps", most + 1).error().unwrap().to_string();
    assert!(error.contains("its input is nested deeper than 128 levels"), "{error}");
    assert_eq!(call("grow", most).value(), Some(&nested(most)));
    let error = call("grow", most + 1).error().unwrap().to_string();
    assert!(error.contains("the output of `grow` is nested deeper than 128 levels"), "{error}");
    let run = runtime.start_unconfirmed(ToolCall::new("deep", json!({}))).unwrap();
    world.pass(MOMENT);
    let (telling, value) = (runtime.clone(), nested(most + 1));
    world.run(async move {
        let refused = telling.signal(run, "news", value.clone(), None).await;
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("the signal is nested")), "{refused:?}");
        let by_hand = telling.finish_by_hand(run, Ok(Output::value(value.clone())), "ada", "r").await;
        assert!(matches!(by_hand, Err(Error::Conflict(_))), "it is not held");
        let change = windlass_core::ForkChange::Input(value);
        let forked = telling.fork(run, windlass::run::Cut::Start, Some(change)).await;
        assert!(matches!(&forked, Err(Error::Invalid(why)) if why.contains("nested deeper")), "{forked:?}");
    });
}
