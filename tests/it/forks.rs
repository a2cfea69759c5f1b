//! Forks: the finished records of a run are the beginning of another, with something changed; and comparing the two.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::inbox::{Awaited, Blocked, Resolution};
use windlass::run::record::Event;
use windlass::run::{Cut, ForkChange, Hold, RunState};
use windlass::tool::ToolRef;
use windlass::{Ctx, Error, Output, RunId, Tool, ToolCall, ToolError, park, step};
use windlass_core::Runtime;

use crate::world::{Counter, World, on_every_store, tool};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

fn at(path: &str) -> Cut {
    Cut::At(path.parse().unwrap())
}

fn value(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    match &outcomes[0].result {
        Ok(output) => output.value.clone(),
        Err(error) => json!(error.to_string()),
    }
}

fn run(world: &World, runtime: &Runtime, call: ToolCall) -> RunId {
    let run = runtime.start_unconfirmed(call).unwrap();
    world.pass(MOMENT);
    run
}

fn try_fork(
    world: &World,
    runtime: &Runtime,
    run: RunId,
    cut: Cut,
    change: Option<ForkChange>,
) -> Result<RunId, Error> {
    let runtime = runtime.clone();
    world.run(async move { runtime.fork(run, cut, change).await })
}

fn fork(world: &World, runtime: &Runtime, run: RunId, cut: Cut, change: Option<ForkChange>) -> RunId {
    try_fork(world, runtime, run, cut, change).expect("the fork is made")
}

fn refused(world: &World, runtime: &Runtime, run: RunId, cut: Cut, change: Option<ForkChange>) -> String {
    match try_fork(world, runtime, run, cut, change) {
        Err(Error::Conflict(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

fn journal(world: &World, runtime: &Runtime, run: RunId) -> Vec<windlass::run::record::Record> {
    let runtime = runtime.clone();
    world.run(async move { runtime.journal(run).await }).expect("the journal is there")
}

fn outcome(result: Value) -> ForkChange {
    ForkChange::Outcome { result: Ok(Output::value(result)), by: "ann".into(), reason: "what if".into() }
}

/// Adds one to its argument and counts its calls.
fn add(name: &str, count: &Counter) -> Tool {
    let count = count.clone();
    tool(name, move |args: Value| {
        let count = count.clone();
        async move {
            count.add();
            Ok(json!(args["n"].as_i64().unwrap_or(0) + 1))
        }
    })
}

/// Three calls, each with the result of the previous one.
fn chain() -> Tool {
    Tool::durable_fn("chain", "", |mut ctx: Ctx, args: Value| async move {
        let a: i64 = ctx.call(ToolCall::to(ToolRef::Name("a".into()), json!({"n": args["n"]}))).await?;
        let b: i64 = ctx.call(ToolCall::to(ToolRef::Name("b".into()), json!({"n": a}))).await?;
        let c: i64 = ctx.call(ToolCall::to(ToolRef::Name("c".into()), json!({"n": b}))).await?;
        Ok(json!([a, b, c]))
    })
}

fn chained(counts: &[Counter; 3]) -> Vec<Tool> {
    vec![chain(), add("a", &counts[0]), add("b", &counts[1]), add("c", &counts[2])]
}

fn counts(counts: &[Counter; 3]) -> [u32; 3] {
    [counts[0].get(), counts[1].get(), counts[2].get()]
}

#[test]
fn w10_a_fork_keeps_records_before_the_cut_and_repeats_the_rest() {
    on_every_store(|world| {
        let effects = <[Counter; 3]>::default();
        let runtime = world.runtime(chained(&effects));
        let original = run(&world, &runtime, call("chain", json!({"n": 0})));
        let before = journal(&world, &runtime, original);
        for (cut, expected) in
            [(Cut::Start, [2, 2, 2]), (at("1"), [2, 3, 3]), (at("2"), [2, 3, 4]), (Cut::End, [2, 3, 4])]
        {
            let forked = fork(&world, &runtime, original, cut.clone(), None);
            assert_ne!(forked, original);
            assert_eq!(value(&world, &runtime, forked), json!([1, 2, 3]), "{cut}");
            assert_eq!(counts(&effects), expected, "{cut}");
        }
        let after = journal(&world, &runtime, original);
        assert_eq!(format!("{before:?}"), format!("{after:?}"), "the original is not touched");
    });
}

#[test]
fn w10_the_arguments_of_a_call_are_changed_at_the_cut() {
    on_every_store(|world| {
        let effects = <[Counter; 3]>::default();
        let runtime = world.runtime(chained(&effects));
        let original = run(&world, &runtime, call("chain", json!({"n": 0})));
        let forked = fork(&world, &runtime, original, at("1"), Some(ForkChange::Input(json!({"n": 40}))));
        assert_eq!(value(&world, &runtime, forked), json!([1, 41, 42]));
        let again = fork(&world, &runtime, original, Cut::Start, Some(ForkChange::Input(json!({"n": 10}))));
        assert_eq!(value(&world, &runtime, again), json!([11, 12, 13]));
        let (a, b) = (runtime.clone(), runtime.clone());
        let compared = world.run(async move { a.compare(original, forked).await }).unwrap();
        let first = compared.first.clone().unwrap();
        assert_eq!((first.path.to_string().as_str(), first.what), ("1", windlass::run::Differs::Outcome), "{compared}");
        assert_eq!((compared.same, compared.differing), (1, 2), "{compared}");
        let compared = world.run(async move { b.compare(original, again).await }).unwrap();
        let text = compared.to_string();
        assert!(text.contains("first difference at / (asked for): call of tool `chain`"), "{text}");
        assert!(text.contains("/n: 0 and 10"), "{text}");
        assert_eq!(compared.b.outcome.unwrap().unwrap().value, json!([11, 12, 13]));
    });
}

#[test]
fn w10_an_outcome_is_changed_at_the_cut_with_its_author() {
    on_every_store(|world| {
        let effects = <[Counter; 3]>::default();
        let runtime = world.runtime(chained(&effects));
        let original = run(&world, &runtime, call("chain", json!({"n": 0})));
        let forked = fork(&world, &runtime, original, at("1"), Some(outcome(json!(100))));
        assert_eq!(value(&world, &runtime, forked), json!([1, 100, 101]));
        assert_eq!(counts(&effects), [1, 1, 2]);
        let settled = journal(&world, &runtime, forked).into_iter().find_map(|record| match record.event {
            Event::Finished(finished) if record.path.to_string() == "1" => finished.settled,
            _ => None,
        });
        let settled = settled.expect("the record says who settled it");
        assert_eq!((settled.by.to_string().as_str(), settled.reason.as_str()), ("ann", "what if"));
        let error = ForkChange::Outcome { result: Err(ToolError::failed("no")), by: "ann".into(), reason: "x".into() };
        let failed = fork(&world, &runtime, original, at("0"), Some(error));
        assert_eq!(value(&world, &runtime, failed), json!("failed: no"));
    });
}

#[test]
fn w10_invalid_changes_and_cuts_are_refused_with_advice() {
    on_every_store(|world| {
        let effects = <[Counter; 3]>::default();
        let mut tools = chained(&effects);
        tools.push(Tool::durable_fn("stepper", "", |mut ctx: Ctx, _: Value| async move {
            let a: u32 = ctx.step("one", |_| async { Ok(1) }).await?;
            Ok(json!(a))
        }));
        let runtime = world.runtime(tools);
        let original = run(&world, &runtime, call("chain", json!({"n": 0})));
        let steps = run(&world, &runtime, call("stepper", json!({})));
        let input = || Some(ForkChange::Input(json!({"n": 1})));
        for (run, cut, change, words) in [
            (original, at("7"), None, "never reached 7: the first operation it has not asked for is 3"),
            (original, at("1/0"), None, "no body at 1"),
            (original, Cut::End, input(), "name the path of an operation"),
            (original, at("3"), input(), "has not asked for anything at 3"),
            (original, Cut::Start, Some(outcome(json!(1))), "has no outcome yet"),
            (steps, at("0"), input(), "step \"one\" at 0"),
        ] {
            let reason = refused(&world, &runtime, run, cut, change);
            assert!(reason.contains(words), "{reason}");
        }
        let none = RunId::from_bytes([9; 16]);
        assert!(matches!(try_fork(&world, &runtime, none, Cut::End, None), Err(Error::Store(_))));
    });
}

#[test]
fn w10_an_open_intent_before_the_cut_refuses_the_fork() {
    on_every_store(|world| {
        let stuck = || {
            Tool::durable_fn("stuck", "", |mut ctx: Ctx, _: Value| async move {
                ctx.step("first", |_| async { Ok(1) }).await?;
                let two: (windlass::ToolResult<()>, windlass::ToolResult<u32>) = ctx
                    .steps_all((
                        step("pay", |_| std::future::pending::<windlass::ToolResult<()>>()),
                        step("note", |_| async { Ok(2) }),
                    ))
                    .settled()
                    .await;
                Ok(json!(two.1.ok()))
            })
        };
        let runtime = world.runtime([stuck()]);
        let original = run(&world, &runtime, call("stuck", json!({})));
        let reason = refused(&world, &runtime, original, Cut::End, None);
        assert!(reason.contains("step \"pay\" at 1/0") && reason.contains("settle it"), "{reason}");
        let reason = refused(&world, &runtime, original, at("1/1"), None);
        assert!(reason.contains("step \"pay\" at 1/0"), "{reason}");
        let forked = fork(&world, &runtime, original, at("1/0"), Some(outcome(json!(null))));
        assert_eq!(value(&world, &runtime, forked), json!(2));
    });
}

#[test]
fn w10_random_numbers_before_the_cut_are_the_originals_and_its_own_after_it() {
    on_every_store(|world| {
        let drawing = || {
            Tool::durable_fn("draw", "", |mut ctx: Ctx, _: Value| async move {
                let (a, me) = (ctx.random(), ctx.run());
                let open = ctx.open_wait::<Value>("later");
                let key = open.key().to_owned();
                ctx.step("a", |_| async { Ok(()) }).input(&json!([a, me, key])).await?;
                let b = ctx.uuid();
                ctx.step("b", |_| async { Ok(()) }).input(&b).await?;
                let c = ctx.random();
                ctx.step("c", |_| async { Ok(()) }).input(&c).await?;
                Ok(json!([a, b, c, me]))
            })
        };
        let runtime = world.runtime([drawing()]);
        let original = run(&world, &runtime, call("draw", json!({})));
        let first = value(&world, &runtime, original);
        let forked = fork(&world, &runtime, original, at("3"), None);
        let second = value(&world, &runtime, forked);
        let third = fork(&world, &runtime, forked, at("2"), None);
        let whole = fork(&world, &runtime, forked, Cut::End, None);
        assert_eq!((&first[0], &first[1], &first[3]), (&second[0], &second[1], &second[3]));
        assert_ne!(first[2], second[2], "from the cut on it draws its own");
        let fourth = value(&world, &runtime, third);
        assert_eq!(fourth[0], first[0]);
        assert_ne!(fourth[1], first[1]);
        assert_eq!(value(&world, &runtime, whole), second, "each part from the run that drew it");
        // The same after a crash and a second entry.
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([drawing()]);
        let again = fork(&world, &runtime, forked, Cut::End, None);
        assert_eq!(value(&world, &runtime, again), second);
    });
}

#[test]
fn w10_w04_a_diverged_run_is_forked_before_the_divergence() {
    on_every_store(|world| {
        let effects = <[Counter; 3]>::default();
        let waiting = Tool::durable_fn("job", "", |mut ctx: Ctx, _: Value| async move {
            let a: i64 = ctx.call(ToolCall::to(ToolRef::Name("a".into()), json!({"n": 1}))).await?;
            ctx.call::<i64>(ToolCall::to(ToolRef::Name("b".into()), json!({"n": 1}))).await?;
            ctx.sleep(HOUR).await?;
            Ok(json!(a))
        });
        let runtime = world.runtime([waiting, add("a", &effects[0]), add("b", &effects[1])]);
        let original = run(&world, &runtime, call("job", json!({})));
        drop(runtime);
        let world = world.restart();
        let changed = Tool::durable_fn("job", "", |mut ctx: Ctx, _: Value| async move {
            let a: i64 = ctx.call(ToolCall::to(ToolRef::Name("a".into()), json!({"n": 1}))).await?;
            let c: i64 = ctx.call(ToolCall::to(ToolRef::Name("c".into()), json!({"n": a}))).await?;
            Ok(json!([a, c]))
        });
        let runtime = world.runtime([changed, add("a", &effects[0]), add("c", &effects[2])]);
        world.pass(HOUR);
        let resumed = runtime.clone();
        world.run(async move { resumed.resume(original).await }).unwrap();
        let attached = runtime.clone();
        let held = world.run(async move { attached.attach(original).await });
        let Err(Error::Held { hold: Hold::Diverged(divergence), .. }) = held else { panic!("{held:?}") };
        assert!(divergence.to_string().contains("fork it at 1"), "{divergence}");
        let forked = fork(&world, &runtime, original, Cut::At(divergence.path), None);
        assert_eq!(value(&world, &runtime, forked), json!([2, 3]));
        assert_eq!(counts(&effects), [1, 1, 1]);
    });
}

#[test]
fn w10_parks_and_grants_are_not_copied() {
    on_every_store(|world| {
        let paid = Counter::default();
        let pay = add("pay", &paid).approval_when("true");
        let asks = Tool::durable_fn("asks", "", |mut ctx: Ctx, _: Value| async move {
            let who: String = ctx.wait("who").await?;
            let n: i64 = ctx.call(ToolCall::to(ToolRef::Name("pay".into()), json!({"n": 1}))).await?;
            ctx.sleep(HOUR).await?;
            Ok(json!([who, n]))
        });
        let mut config = world.config([asks, pay]);
        config.attended = true;
        let runtime = Runtime::new(config);
        let inbox = |run: RunId| -> Vec<Awaited> {
            let runtime = runtime.clone();
            let all = world.run(async move { runtime.inbox().await }).unwrap();
            all.into_iter().filter(|item| item.run == run).collect()
        };
        let answer = |run: RunId| {
            let item = inbox(run).remove(0);
            let runtime = runtime.clone();
            world.run(async move {
                match &item.park.on {
                    Blocked::Approval { digest, .. } => {
                        runtime.decide(run, &item.park.path, digest, true, ("ann", "fine")).await.unwrap();
                    }
                    _ => {
                        let said = Resolution::Ok { value: json!("bob") };
                        runtime.resolve(item.key.as_deref().unwrap(), said).await.unwrap();
                    }
                }
            });
            world.pass(MOMENT);
        };
        let original = run(&world, &runtime, call("asks", json!({})));
        let early = fork(&world, &runtime, original, Cut::End, None);
        world.pass(MOMENT);
        answer(original);
        assert_eq!(inbox(early).len(), 1, "the fork waits by a key of its own");
        answer(original);
        assert_eq!(paid.get(), 1);
        // The approved call is before the cut and finished; its grant applies to nothing else.
        let late = fork(&world, &runtime, original, at("1"), Some(ForkChange::Input(json!({"n": 50}))));
        world.pass(MOMENT);
        assert!(matches!(inbox(late)[0].park.on, Blocked::Approval { .. }), "it is asked for again");
        assert!(!journal(&world, &runtime, late).iter().any(|record| matches!(record.event, Event::Granted(_))));
        answer(late);
        assert_eq!(value(&world, &runtime, late), json!(["bob", 51]));
        let kept = fork(&world, &runtime, original, Cut::End, None);
        assert!(!journal(&world, &runtime, kept).iter().any(|record| matches!(record.event, Event::Granted(_))));
        assert_eq!(value(&world, &runtime, kept), json!(["bob", 2]));
        assert_eq!(paid.get(), 2);
    });
}

#[test]
fn l27_w10_a_fork_may_await_its_originals_children_and_is_not_their_parent() {
    on_every_store(|world| {
        let child = Tool::durable_fn("child", "", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(HOUR).await?;
            Ok(json!(7))
        });
        let parent = Tool::durable_fn("parent", "", |mut ctx: Ctx, _: Value| async move {
            let one: Handle<i64> = ctx.spawn(ToolCall::<i64>::to(ToolRef::Name("child".into()), json!({}))).await?;
            let two: Handle<i64> = ctx.spawn(ToolCall::<i64>::to(ToolRef::Name("child".into()), json!({}))).await?;
            let first = ctx.join(&one).await.map_err(|error| error.to_string());
            let both = ctx.first((park::wait::<i64>("never"), two.park())).await;
            Ok(json!([first.ok(), both.map(|_| 1).map_err(|error| error.to_string())]))
        });
        let runtime = world.runtime([parent, child]);
        let original = run(&world, &runtime, call("parent", json!({})));
        let unjoined = fork(&world, &runtime, original, Cut::End, None);
        assert_eq!(value(&world, &runtime, unjoined), json!([7, {"Ok": 1}]), "any run may wait for them");
        // Cancelling the fork does not affect the children.
        let again = fork(&world, &runtime, original, at("2"), None);
        let cancelling = runtime.clone();
        let _ = world.run(async move { cancelling.cancel(again, "ann", "enough").await });
        assert_eq!(value(&world, &runtime, original), json!([7, {"Ok": 1}]));
        let joined = fork(&world, &runtime, original, at("3"), None);
        let text = value(&world, &runtime, joined).to_string();
        assert!(text.starts_with("[7,"), "a finished join answers from its record: {text}");
        let anew = fork(&world, &runtime, original, at("0"), None);
        assert_eq!(value(&world, &runtime, anew), json!([7, {"Ok": 1}]), "children of its own");
    });
}

#[test]
fn w10_batches_and_nested_bodies_are_cut_in_the_middle() {
    on_every_store(|world| {
        let effects = <[Counter; 3]>::default();
        let outer = Tool::durable_fn("outer", "", |mut ctx: Ctx, _: Value| async move {
            let inner: Value = ctx.call(ToolCall::to(ToolRef::Name("chain".into()), json!({"n": 5}))).await?;
            Ok(json!({"inner": inner}))
        });
        let mut tools = chained(&effects);
        tools.push(outer);
        let runtime = world.runtime(tools);
        let original = run(&world, &runtime, call("outer", json!({})));
        let forked = fork(&world, &runtime, original, at("0/1"), Some(outcome(json!(50))));
        assert_eq!(value(&world, &runtime, forked), json!({"inner": [6, 50, 51]}));
        assert_eq!(counts(&effects), [1, 1, 2]);
        let batching = runtime.clone();
        let calls = vec![call("a", json!({"n": 1})), call("b", json!({"n": 2})), call("c", json!({"n": 3}))];
        let batch = world.run(async move { batching.batch(calls, false).await }).unwrap()[0].run;
        assert_eq!(counts(&effects), [2, 2, 3]);
        let forked = fork(&world, &runtime, batch, at("1"), Some(ForkChange::Input(json!({"n": 10}))));
        let attached = runtime.clone();
        let all = world.run(async move { attached.attach(forked).await }).unwrap();
        assert_eq!(all.iter().map(|outcome| outcome.for_model()).collect::<Value>(), json!([2, 11, 4]));
        assert_eq!(counts(&effects), [2, 3, 4]);
    });
}

#[test]
fn w10_a_running_run_is_forked_and_goes_on() {
    on_every_store(|world| {
        let slow = Tool::durable_fn("slow", "", |mut ctx: Ctx, _: Value| async move {
            let a: u32 = ctx.step("a", |_| async { Ok(1) }).await?;
            ctx.step("busy", |_| std::future::pending::<windlass::ToolResult<()>>()).await?;
            Ok(json!(a))
        });
        let runtime = world.runtime([slow]);
        let original = run(&world, &runtime, call("slow", json!({})));
        let forked = fork(&world, &runtime, original, at("1"), Some(outcome(json!(null))));
        assert_eq!(value(&world, &runtime, forked), json!(1));
        let looking = runtime.clone();
        let info = world.run(async move { looking.info(original).await }).unwrap().unwrap();
        assert_eq!(info.state, RunState::Running);
    });
}

#[test]
fn w10_an_open_wait_that_was_answered_after_the_cut_is_open_again() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("asks", "", |mut ctx: Ctx, _: Value| async move {
                let mut open = ctx.open_wait::<String>("who");
                let key = open.key().to_owned();
                ctx.step("send", |_| async { Ok(()) }).input(&key).await?;
                let who = ctx.answer(&mut open).await?;
                ctx.step("thank", |_| async { Ok(()) }).input(&who).await?;
                Ok(json!(who))
            })
        };
        let runtime = world.runtime([body()]);
        let answer = |run: RunId, name: &str| {
            let (runtime, name) = (runtime.clone(), json!(name));
            world.run(async move {
                let item = runtime.inbox().await.unwrap().into_iter().find(|item| item.run == run);
                let key = item.expect("it waits").key.unwrap();
                runtime.resolve(&key, Resolution::Ok { value: name }).await.unwrap();
            });
        };
        let original = run(&world, &runtime, call("asks", json!({})));
        answer(original, "bob");
        assert_eq!(value(&world, &runtime, original), json!("bob"));
        let forked = fork(&world, &runtime, original, at("2"), None);
        world.pass(MOMENT);
        answer(forked, "eve");
        assert_eq!(value(&world, &runtime, forked), json!("eve"));
        let kept = fork(&world, &runtime, original, at("3"), None);
        assert_eq!(value(&world, &runtime, kept), json!("bob"));
    });
}

/// A body with operations of most kinds, whose inputs depend on its random numbers.
fn varied(effects: &Counter) -> Vec<Tool> {
    let body = Tool::durable_fn("varied", "", |mut ctx: Ctx, _: Value| async move {
        let drawn = ctx.random();
        let a: i64 = ctx.step("a", |_| async { Ok(1) }).input(&drawn).await?;
        let new = ctx.version("change");
        let open = ctx.open_wait::<Value>("never");
        let key = open.key().to_owned();
        let (b, c): (i64, i64) = ctx.call_all((to("b", json!({"n": a})), to("b", json!({"n": 5})))).await?;
        let drawn = (ctx.uuid(), key, ctx.run());
        let xy: (i64, i64) =
            ctx.steps_all((step("x", |_| async { Ok(2) }).input(&drawn), step("y", |_| async { Ok(3) }))).await?;
        let inner: i64 = ctx.call(to("inner", json!({"n": b + c}))).await?;
        let won = ctx.first((park::sleep(MOMENT), park::wait::<Value>("no answer"))).await;
        ctx.sleep(MOMENT).await?;
        let last: i64 = ctx.call(to("b", json!({"n": inner}))).await?;
        Ok(json!([a, new, b, c, xy, inner, won.is_ok(), last]))
    });
    let inner = Tool::durable_fn("inner", "", |mut ctx: Ctx, args: Value| async move {
        let drawn = ctx.random() % 1_000;
        let n: i64 = ctx.call(to("b", json!({"n": args["n"], "drawn": drawn}))).await?;
        let drawn = ctx.random();
        let m: i64 = ctx.call(to("b", json!({"n": n, "drawn": drawn}))).await?;
        Ok(json!(m))
    });
    vec![body, inner, add("b", effects)]
}

fn to<T>(name: &str, args: Value) -> ToolCall<T> {
    ToolCall::to(ToolRef::Name(name.into()), args)
}

#[test]
fn w10_a_run_can_be_forked_at_every_point_and_a_fork_at_every_point_too() {
    on_every_store(|world| {
        let effects = Counter::default();
        let runtime = world.runtime(varied(&effects));
        let original = run(&world, &runtime, call("varied", json!({})));
        let expected = value(&world, &runtime, original);
        let places = |run: RunId| -> Vec<Cut> {
            let mut paths: Vec<_> = journal(&world, &runtime, run).into_iter().map(|record| record.path).collect();
            paths.sort();
            paths.dedup();
            paths.into_iter().map(Cut::At).chain([Cut::Start, Cut::End]).collect()
        };
        let mut forks = 0;
        for cut in places(original) {
            let forked = match try_fork(&world, &runtime, original, cut.clone(), None) {
                Ok(forked) => forked,
                Err(Error::Conflict(why)) if why.contains("branch of the `first`") => continue,
                Err(error) => panic!("{cut}: {error}"),
            };
            assert_eq!(value(&world, &runtime, forked), expected, "{cut}");
            for again in places(forked).into_iter().step_by(3) {
                if let Ok(second) = try_fork(&world, &runtime, forked, again.clone(), None) {
                    assert_eq!(value(&world, &runtime, second), expected, "{cut}, then {again}");
                    forks += 1;
                }
            }
            forks += 1;
        }
        assert!(forks > 60, "only {forks} forks");
        let done = effects.get();
        let whole = fork(&world, &runtime, original, Cut::End, None);
        assert_eq!(value(&world, &runtime, whole), expected);
        assert_eq!(effects.get(), done, "nothing finished is done again");
    });
}

#[test]
fn w10_a_fork_begins_with_the_latest_generation() {
    on_every_store(|world| {
        let rounds = Tool::durable_fn("rounds", "", |mut ctx: Ctx, args: Value| async move {
            let round = args["round"].as_u64().unwrap_or(0);
            let drawn = ctx.random();
            let n: u64 = ctx.step("round", |_| async { Ok(round) }).input(&drawn).await?;
            if round < 2 {
                return ctx.continue_as(json!({"round": round + 1})).await;
            }
            Ok(json!([n, drawn]))
        });
        let runtime = world.runtime([rounds]);
        let original = run(&world, &runtime, call("rounds", json!({})));
        let expected = value(&world, &runtime, original);
        let forked = fork(&world, &runtime, original, Cut::End, None);
        assert_eq!(value(&world, &runtime, forked), expected);
        let first = journal(&world, &runtime, forked).remove(0);
        assert!(matches!(first.event, Event::Forked { from, generation: 2, .. } if from == original), "{first:?}");
        let anew = fork(&world, &runtime, original, Cut::Start, Some(ForkChange::Input(json!({"round": 1}))));
        assert_eq!(value(&world, &runtime, anew)[0], json!(2));
    });
}
