//! Watching runs: live, late, again after a restart, one run or a session, with the runs they start.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Activity, Cursor, Happening, Position, Start};
use windlass::{Call, Ctx, Output, RunId, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::Runtime;

use crate::world::{Kind, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

pub(crate) fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// Reports progress, and continues a little later.
fn slow() -> Tool {
    Tool::with_call("slow", "takes a while", |call: Call, _: Value| async move {
        call.progress("half way");
        pause().await;
        Ok(json!(1))
    })
}

/// Yields to other tasks.
async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Steps, emits, calls, sleeps, and ends.
fn job() -> Tool {
    let job = Tool::durable_fn("job", "does a bit of everything", |mut ctx: Ctx, _: Value| async move {
        ctx.progress("begun");
        ctx.step("reserve", |_| async { Ok(1) }).await?;
        ctx.emit("stage", &"reserved")?;
        let _: Value = ctx.call(call("slow")).await?;
        ctx.sleep(HOUR).await?;
        ctx.progress("woken");
        ctx.emit("stage", &"done")?;
        ctx.log("ending");
        Ok(json!("done"))
    });
    job.event::<String>("stage")
}

fn tools() -> [Tool; 2] {
    [job(), slow()]
}

/// All events from a position to the run's end.
pub(crate) async fn read(runtime: Runtime, run: RunId, from: Cursor) -> Vec<Activity> {
    let mut watch = runtime.watch(run, from).await.expect("the run is there");
    let mut all = Vec::new();
    while let Some(activity) = watch.next().await {
        all.push(activity.expect("the store answers"));
    }
    all
}

pub(crate) fn recorded(all: &[Activity]) -> Vec<Activity> {
    all.iter().filter(|activity| activity.position != Position::Live).cloned().collect()
}

pub(crate) fn place(activity: &Activity) -> Cursor {
    match activity.position {
        Position::Recorded(cursor) => cursor,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn kinds(all: &[Activity]) -> Vec<String> {
    let kind = |activity: &Activity| {
        let json = serde_json::to_value(activity).expect("activities are JSON");
        json["kind"].as_str().expect("a kind").to_owned()
    };
    all.iter().map(kind).collect()
}

pub(crate) fn recover(world: &World, runtime: &Runtime) {
    let runtime = runtime.clone();
    world.run(async move { runtime.recover().await }).expect("the store answers");
}

#[test]
fn l23_a_run_is_watched_live_in_order_from_its_start_to_its_end() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let run = runtime.start_unconfirmed(call("job")).unwrap();
        let live = world.run(read(runtime.clone(), run, Cursor::START));
        let durable = recorded(&live);
        let expected = [
            "run_started",
            "call_started",
            "operation_started",
            "attempt_started",
            "operation_finished",
            "emitted",
            "call_started",
            "attempt_started",
            "call_finished",
            "operation_started",
            "parked",
            "operation_finished",
            "emitted",
            "call_finished",
            "run_finished",
        ];
        assert_eq!(kinds(&durable), expected);
        // Progress comes between the start and the end of the operation that reports it.
        let said: Vec<usize> = (0..live.len()).filter(|at| live[*at].position == Position::Live).collect();
        let words = said.iter().map(|at| format!("{:?}", live[*at].what)).collect::<Vec<_>>().join(" ");
        assert!(["woken", "ending"].iter().all(|word| words.contains(word)), "{words}");
        for at in said {
            let of_it = |other: &Activity| other.path == live[at].path && other.position != Position::Live;
            assert!(live[..at].iter().any(of_it) && live[at..].iter().any(of_it), "{:?}", live[at]);
        }
        assert!(durable.windows(2).all(|pair| place(&pair[0]) < place(&pair[1])), "in order, each once");
        let Happening::CallFinished { times, .. } = &durable[durable.len() - 2].what else { panic!("{durable:?}") };
        assert!(Duration::from_nanos(times.total) >= HOUR, "with its duration: {times:?}");
        let late = world.run(read(runtime, run, Cursor::START));
        assert_eq!(late, durable, "who comes late sees the same, without what was said to those who were there");
    });
}

#[test]
fn b12_a_reader_resumes_from_any_position_without_gaps() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let run = runtime.start_unconfirmed(call("job")).unwrap();
        let all = recorded(&world.run(read(runtime.clone(), run, Cursor::START)));
        for (seen, activity) in all.iter().enumerate() {
            let rest = world.run(read(runtime.clone(), run, place(activity).next()));
            assert_eq!(rest, all[seen + 1..], "after {activity:?}");
            let rest = world.run(read(runtime.clone(), run, place(activity)));
            assert_eq!(rest, all[seen..], "from {activity:?}");
        }
    });
}

#[test]
fn b12_a_stream_continues_after_a_restart_without_duplicates() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let run = runtime.start_unconfirmed(call("job")).unwrap();
        let watching = runtime.clone();
        let (mut seen, cursor) = world.run(async move {
            let mut watch = watching.watch(run, Cursor::START).await.unwrap();
            let mut seen = Vec::new();
            while seen.len() < 7 {
                seen.push(watch.next().await.unwrap().unwrap());
            }
            (seen, watch.cursor())
        });
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools());
        recover(&world, &runtime);
        let rest = world.run(read(runtime.clone(), run, cursor));
        let said = format!("{rest:?}");
        assert!(said.contains("woken") && !said.contains("begun"), "what was said before the crash is not said again");
        seen.extend(rest);
        let whole = world.run(read(runtime, run, Cursor::START));
        assert_eq!(recorded(&seen), whole);
        assert_eq!(kinds(&whole).iter().filter(|kind| *kind == "emitted").count(), 2);
    });
}

#[test]
fn l23_a_session_is_watched_in_one_order_over_all_its_runs() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let starting = runtime.clone();
        let mut watch = runtime.watch_session("s", Cursor::START);
        let (runs, all, cursors) = world.run(async move {
            let mut runs = Vec::new();
            for _ in 0..2 {
                runs.push(starting.start_with(call("job"), Start::session("s")).await.unwrap());
            }
            starting.start_with(call("job"), Start::session("another")).await.unwrap();
            let (mut all, mut cursors, mut ended, mut said) = (Vec::new(), Vec::new(), 0, 0);
            while ended < 2 {
                let activity = watch.next().await.unwrap().unwrap();
                ended += u32::from(matches!(activity.what, Happening::RunFinished { .. }));
                if activity.position == Position::Live {
                    said += u32::from(format!("{:?}", activity.what).contains("woken"));
                } else {
                    all.push(activity);
                    cursors.push(watch.cursor());
                }
            }
            assert_eq!(said, 2, "what is said live is heard too");
            (runs, all, cursors)
        });
        for run in &runs {
            let own: Vec<Activity> = all.iter().filter(|activity| activity.run == *run).cloned().collect();
            assert_eq!(own, world.run(read(runtime.clone(), *run, Cursor::START)), "each as if it were alone");
        }
        let order: Vec<RunId> = all.iter().map(|activity| activity.run).collect();
        let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes > 1, "they interleave: {order:?}");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools());
        for (seen, cursor) in cursors.into_iter().enumerate() {
            let mut watch = runtime.watch_session("s", cursor);
            let left = all.len() - seen - 1;
            let rest = world.run(async move {
                let mut rest = Vec::new();
                while rest.len() < left {
                    rest.push(watch.next().await.unwrap().unwrap());
                }
                rest
            });
            assert_eq!(rest, all[seen + 1..]);
        }
    });
}

/// Many steps, then it ends.
fn long() -> Tool {
    Tool::durable_fn("long", "many steps", |mut ctx: Ctx, _: Value| async move {
        for n in 0..1_000 {
            ctx.step("count", move |_| async move { Ok(n) }).readonly().await?;
        }
        Ok(json!(null))
    })
}

#[test]
fn l23_a_slow_watcher_blocks_no_run_and_misses_nothing() {
    on_every_store(|world| {
        let runtime = world.runtime([long()]);
        let run = runtime.start_unconfirmed(call("long")).unwrap();
        let watching = runtime.clone();
        let count = world.run(async move {
            let mut watch = watching.watch(run, Cursor::START).await.unwrap();
            watch.next().await.unwrap().unwrap();
            watching.attach(run).await.unwrap();
            let mut count = 1;
            while let Some(activity) = watch.next().await {
                activity.unwrap();
                count += 1;
            }
            count
        });
        assert_eq!(count, 2 + 2 * 1_000 + 2);
    });
}

#[test]
fn l23_a_watch_of_a_run_at_rest_waits_without_a_timer_and_dropping_it_is_harmless() {
    on_every_store(|world| {
        let forever = Tool::durable_fn("forever", "waits", |mut ctx: Ctx, _: Value| async move {
            let value: Value = ctx.wait("boss").await?;
            Ok(value)
        });
        let runtime = world.runtime([forever]);
        let run = runtime.start_unconfirmed(call("forever")).unwrap();
        world.pass(MOMENT);
        let watching = runtime.clone();
        let seen = world.sim.block_on(async move {
            let mut watch = watching.watch(run, Cursor::START).await.unwrap();
            while let Some(activity) = watch.next().await {
                activity.unwrap();
            }
        });
        assert_eq!(seen, None, "nothing moves any more, and no timer makes it seem so");
        let key = runtime.clone();
        let answer = windlass::inbox::Resolution::Ok { value: json!(1) };
        let outcome = world.run(async move {
            drop(key.watch(run, Cursor::START).await.unwrap());
            let key_text = key.inbox().await.unwrap().remove(0).key.unwrap();
            key.resolve(&key_text, answer).await.unwrap();
            key.attach(run).await.unwrap()
        });
        assert_eq!(outcome[0].result.as_ref().unwrap().value, json!(1));
    });
}

#[test]
fn l23_a_watch_may_poll_a_run_that_another_process_drives() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime(tools());
    let other = windlass_core::Runtime::new(world.another(tools()));
    let run = runtime.start_unconfirmed(call("job")).unwrap();
    let all = world.run(async move {
        let mut watch = loop {
            match other.watch(run, Cursor::START).await {
                Ok(watch) => break watch.look_every(MOMENT),
                Err(_) => pause().await,
            }
        };
        let mut all = Vec::new();
        while let Some(activity) = watch.next().await {
            all.push(activity.unwrap());
        }
        all
    });
    assert_eq!(kinds(&all).last().unwrap(), "run_finished");
}

#[test]
fn l23_watching_a_missing_run_is_an_error() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let unknown = RunId::from_bytes([9; 16]);
        let refused = world.run(async move { runtime.watch(unknown, Cursor::START).await.err() }).unwrap().to_string();
        assert!(refused.contains(&unknown.to_string()) && refused.contains("start it first"), "{refused}");
    });
}

#[test]
fn l23_a_shutdown_ends_a_watch_with_a_position_to_resume_from() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let run = runtime.start_unconfirmed(call("job")).unwrap();
        world.pass(MOMENT);
        let (last, after, place) = world.run(async move {
            let mut watch = runtime.watch(run, Cursor::START).await.unwrap();
            runtime.shutdown(MOMENT).await.unwrap();
            let mut last = watch.next().await.unwrap();
            while last.is_ok() {
                last = watch.next().await.unwrap();
            }
            (last.unwrap_err(), watch.next().await.is_none(), watch.cursor())
        });
        assert!(matches!(last, windlass::Error::Closed), "{last}");
        assert!(after && place > Cursor::START, "{place:?}");
    });
}

/// Emits its arguments, around a wait.
fn emitter(first: &'static str) -> Tool {
    let tool = Tool::durable_fn("emitter", "emits", move |mut ctx: Ctx, _: Value| async move {
        ctx.emit("said", &first)?;
        ctx.sleep(HOUR).await?;
        ctx.emit("said", &"bye")?;
        Ok(json!(null))
    });
    tool.event::<String>("said")
}

#[test]
fn l11_emitting_something_else_on_replay_is_a_divergence() {
    on_every_store(|world| {
        let runtime = world.runtime([emitter("hello")]);
        let run = runtime.start_unconfirmed(call("emitter")).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([emitter("good day")]);
        recover(&world, &runtime);
        let attaching = runtime.clone();
        let error = world.run(async move {
            let sleeping = attaching.attach(run);
            sleeping.await.unwrap_err().to_string()
        });
        assert!(error.contains("diverged") && error.contains("good day"), "{error}");
        let watching = runtime.clone();
        let held = world.run(async move {
            let mut watch = watching.watch(run, Cursor::START).await.unwrap();
            loop {
                if let Happening::RunHeld { sentence, .. } = watch.next().await.unwrap().unwrap().what {
                    return sentence;
                }
            }
        });
        assert!(held.contains("diverged"), "a watcher sees it: {held}");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([emitter("hello")]);
        recover(&world, &runtime);
        let all = recorded(&world.run(read(runtime, run, Cursor::START)));
        let emitted: Vec<(u64, Value)> = all
            .iter()
            .filter_map(|activity| match &activity.what {
                Happening::Emitted { value, .. } => Some((place(activity).record, value.clone())),
                _ => None,
            })
            .collect();
        assert_eq!(emitted.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(), [json!("hello"), json!("bye")]);
        assert!(emitted[0].0 < emitted[1].0, "each has its sequence in the run");
    });
}

#[test]
fn l19_a_trace_shows_child_calls_and_child_runs_where_they_were_started() {
    on_every_store(|world| {
        let parent = Tool::durable_fn("parent", "spawns", |mut ctx: Ctx, _: Value| async move {
            ctx.step("before", |_| async { Ok(1) }).await?;
            let child = ctx.spawn(call("job")).await?;
            let value: Value = ctx.join(&child).await?;
            Ok(value)
        });
        let [job, slow] = tools();
        let runtime = world.runtime([parent, job, slow]);
        let run = runtime.start_unconfirmed(call("parent")).unwrap();
        let all = world.run(read(runtime.clone(), run, Cursor::START));
        let spawned = all.iter().find_map(|activity| match &activity.what {
            Happening::Spawned { child, .. } => Some((*child, activity.path.clone())),
            _ => None,
        });
        let (child, path) = spawned.expect("the child was spawned");
        let of_child = world.run(read(runtime.clone(), child, Cursor::START));
        let parent_of = Some(Box::new((run, path.clone())));
        assert!(of_child.iter().all(|activity| activity.parent == parent_of), "each names where it belongs");
        assert!(of_child.iter().any(|activity| activity.path.to_string() == "2"), "and its own path");
        let trace = world.run(async move { runtime.trace(run).await }).unwrap();
        assert!(!trace.cut);
        assert_eq!(recorded(&all), trace.activities);
        assert_eq!(trace.children.len(), 1);
        assert_eq!(recorded(&of_child), trace.children[0].activities);
        let flat = trace.flat();
        let at = flat.iter().position(|activity| matches!(activity.what, Happening::Spawned { .. })).unwrap();
        assert_eq!(flat[at + 1].run, child, "the child's activities follow its start");
        assert_eq!(flat.len(), all.len() + of_child.len());
    });
}

#[test]
fn l23_internal_errors_are_hidden_from_watchers() {
    on_every_store(|world| {
        let leaky = Tool::new("leaky", "fails", |_: Value| async {
            Err::<(), ToolError>(std::io::Error::other("password=hunter2").into())
        });
        let runtime = world.runtime([leaky]);
        let run = runtime.start_unconfirmed(call("leaky")).unwrap();
        let all = world.run(read(runtime, run, Cursor::START));
        let said = serde_json::to_string(&all).unwrap();
        assert!(said.contains("correlation id") && !said.contains("hunter2"), "{said}");
    });
}

#[test]
fn e12_an_error_about_a_secret_does_not_reveal_it() {
    on_every_store(|world| {
        struct Nothing;
        impl windlass::tool::Atomic for Nothing {
            fn attempt(&self, _: windlass::Call) -> futures_util::future::BoxFuture<'static, ToolResult<Output>> {
                Box::pin(std::future::ready(Ok(Output::default())))
            }
        }
        let pin = json!({"type": "integer", "writeOnly": true});
        let open = json!({"type": "integer"});
        let login = json!({"type": "object", "properties": {"pin": pin, "n": open}, "required": ["pin"]});
        let schemas = windlass::tool::Schemas::input(json!({"type": "object", "properties": {"login": login}}));
        let runtime = world.runtime([Tool::atomic(windlass::ToolSpec::new("login", ""), schemas, Nothing)]);
        let args = json!({"login": {"pin": "hunter2", "n": "five"}});
        let run = runtime.start_unconfirmed(ToolCall::new("login", args)).unwrap();
        let all = world.run(read(runtime.clone(), run, Cursor::START));
        let said = serde_json::to_string(&all).unwrap();
        assert!(said.contains("/login/pin") && said.contains("five") && !said.contains("hunter2"), "{said}");
        let run = runtime.start_unconfirmed(ToolCall::new("login", json!({"login": [{"pin": "hunter2"}]}))).unwrap();
        let said = serde_json::to_string(&world.run(read(runtime, run, Cursor::START))).unwrap();
        assert!(said.contains("/login") && !said.contains("hunter2"), "{said}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l23_on_real_threads_every_watcher_sees_every_run_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let [job, slow] = [hasty(), slow()];
    let windlass = windlass::Windlass::open(dir.path().join("watch.db")).tool(job).tool(slow).await.unwrap();
    let watchers = (0..20).map(|_| {
        let windlass = windlass.clone();
        tokio::spawn(async move {
            let run = windlass.start(call("hasty")).await.unwrap().id();
            let watch = windlass.runtime().watch(run, Cursor::START).await.unwrap();
            let all: Vec<_> = futures_util::StreamExt::collect(watch.stream()).await;
            let all: Vec<Activity> = all.into_iter().map(Result::unwrap).collect();
            let again = windlass.runtime().trace(run).await.unwrap();
            assert_eq!(recorded(&all), again.activities);
            kinds(&again.activities).pop()
        })
    });
    for watcher in watchers.collect::<Vec<_>>() {
        assert_eq!(watcher.await.unwrap().as_deref(), Some("run_finished"));
    }
    windlass.shutdown().await.unwrap();
}

/// A few steps and calls, without a pause.
fn hasty() -> Tool {
    Tool::durable_fn("hasty", "does not wait", |mut ctx: Ctx, _: Value| async move {
        for n in 0..5 {
            ctx.step("count", move |_| async move { Ok(n) }).await?;
            ctx.progress("counted");
            let _: Value = ctx.call(call("slow")).await?;
        }
        Ok(json!(null))
    })
}

#[test]
fn b12_sequences_continue_over_generations_and_a_batch_is_one_run() {
    on_every_store(|world| {
        let rounds = Tool::durable_fn("rounds", "goes round", |mut ctx: Ctx, args: Value| async move {
            let n = args["n"].as_i64().unwrap_or(0);
            ctx.step("count", move |_| async move { Ok(n) }).await?;
            if n < 2 { ctx.continue_as(json!({"n": n + 1})).await } else { Ok(json!(n)) }
        });
        let runtime = world.runtime([rounds, slow()]);
        let run = runtime.start_unconfirmed(ToolCall::new("rounds", json!({"n": 0}))).unwrap();
        let all = recorded(&world.run(read(runtime.clone(), run, Cursor::START)));
        assert_eq!(kinds(&all).iter().filter(|kind| *kind == "run_continued").count(), 2);
        assert_eq!(kinds(&all).iter().filter(|kind| *kind == "run_started").count(), 1);
        assert!(all.windows(2).all(|pair| place(&pair[0]) < place(&pair[1])), "in order, each once");
        for (seen, activity) in all.iter().enumerate() {
            assert_eq!(world.run(read(runtime.clone(), run, place(activity))), all[seen..]);
        }
        let calling = runtime.clone();
        let outcomes = world.run(async move { calling.batch(vec![call("slow"), call("slow")], false).await }).unwrap();
        let all = world.run(read(runtime, outcomes[0].run, Cursor::START));
        let ended: Vec<String> = all
            .iter()
            .filter(|activity| matches!(activity.what, Happening::CallFinished { .. }))
            .map(|activity| activity.path.to_string())
            .collect();
        assert_eq!(ended, ["0", "1"], "each call at its path");
        assert_eq!(kinds(&all).last().unwrap(), "run_finished");
    });
}
