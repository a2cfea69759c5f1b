//! Branches: several bodies side by side in one run, each with its own operations.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::branch;
use windlass::inbox::{Doubt, Settlement};
use windlass::run::{Hold, RunState};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::{Ctx, Output, Tool, ToolCall, ToolError};
use windlass_core::Runtime;

use crate::crash::{check, once};
use crate::crash_parks::{HOUR, call, check_parked};
use crate::world::{Counter, Kind, World, on_every_store, tool};

/// Two branches with waits, calls and steps in each, and an operation before and after them.
fn trip(ledger: &Ledger) -> Vec<Tool> {
    let trip = Tool::durable_fn("trip", "books in two branches", |mut ctx: Ctx, _: Value| async move {
        ctx.call(call("begin")).await?;
        let train = branch("train", |mut ctx: Ctx| async move {
            ctx.call(call("seat")).await?;
            ctx.sleep(HOUR).await?;
            ctx.call(call("seat")).await?;
            Ok(1)
        });
        let hotel = branch("hotel", |mut ctx: Ctx| async move {
            let word: String = ctx.wait("manager").await?;
            ctx.call(call("room")).await?;
            Ok(word)
        });
        let (seats, word) = ctx.branches((train, hotel)).await?;
        ctx.call(call("end")).await?;
        Ok(json!([seats, word]))
    });
    let calls = ["begin", "seat", "room", "end"].map(|name| once(ledger, name));
    std::iter::once(trip).chain(calls).collect()
}

#[test]
fn a10_w01_branches_survive_every_crash_and_nothing_in_them_happens_twice() {
    let report = check_parked(|| {
        CrashMatrix::new(trip).call(call("trip")).outside(|outside| outside.answer("manager", json!("go")))
    });
    assert_eq!(report.outcome, json!([[1, "go"]]));
    let effects = ["begin", "seat", "room", "end"].map(|name| report.effects[name]);
    assert_eq!(effects, [1, 2, 1, 1]);
}

/// A branch that fails after a step which can be undone, beside one that succeeds.
fn failing(ledger: &Ledger) -> Vec<Tool> {
    let ledger = ledger.clone();
    vec![Tool::durable_fn("failing", "fails in one branch", move |mut ctx: Ctx, _: Value| {
        let ledger = ledger.clone();
        async move {
            let branches = [("good", true), ("bad", false)].map(|(name, succeeds)| {
                let ledger = ledger.clone();
                branch(name, move |mut ctx: Ctx| async move {
                    let (done, undone) = (ledger.clone(), ledger.clone());
                    ctx.step("book", move |attempt| {
                        let done = done.clone();
                        async move {
                            done.once(&format!("{name} booked"), &attempt.key()).await;
                            Ok(())
                        }
                    })
                    .undo(move |(), attempt| {
                        let undone = undone.clone();
                        async move {
                            undone.once(&format!("{name} undone"), &attempt.key()).await;
                            Ok(())
                        }
                    })
                    .await?;
                    if succeeds { Ok(name.to_owned()) } else { Err(ToolError::failed("no money")) }
                })
            });
            let results = ctx.branches(branches).settled().await;
            Ok(json!(results.map(|result| result.map_err(|error| error.to_string()))))
        }
    })]
}

#[test]
fn a10_a_branch_that_fails_undoes_its_own_steps_over_every_crash() {
    let settle = |ledger: &Ledger, key: &str, _: &Doubt| match ledger.happened(key) {
        true => Settlement::Happened(Ok(Output::value(json!(null)).into())),
        false => Settlement::DidNotHappen,
    };
    let report = check(|| CrashMatrix::new(failing).call(call("failing")).person(settle));
    assert_eq!(report.outcome[0][0], json!({"Ok": "good"}));
    assert!(report.outcome[0][1]["Err"].as_str().unwrap().contains("no money"), "{}", report.outcome);
    assert_eq!(report.effects["good booked"], 1);
    assert_eq!(report.effects["bad booked"], 1);
    assert_eq!(report.effects["bad undone"], 1);
    assert!(!report.effects.contains_key("good undone"));
}

fn outcome(world: &World, runtime: &Runtime, name: &'static str) -> Result<Value, String> {
    let runtime = runtime.clone();
    let outcome = world.run(async move { runtime.call(ToolCall::new(name, json!({}))).await.unwrap() });
    outcome.error().map_or_else(|| Ok(outcome.value().unwrap().clone()), |error| Err(error.to_string()))
}

#[test]
fn a10_branches_overlap_and_return_their_results_in_the_order_of_the_set() {
    on_every_store(|world| {
        let body = |mut ctx: Ctx, _: Value| async move {
            let started = ctx.now();
            let branches = [3u64, 1, 2].map(|n| {
                branch(format!("b{n}"), move |mut ctx: Ctx| async move {
                    ctx.sleep(Duration::from_secs(n)).await?;
                    Ok(n)
                })
            });
            let values = ctx.branches(branches).await?;
            Ok(json!([values, ctx.now().since(started).as_secs()]))
        };
        let runtime = world.runtime([Tool::durable_fn("side_by_side", "sleeps", body)]);
        assert_eq!(outcome(&world, &runtime, "side_by_side"), Ok(json!([[3, 1, 2], 3])));
    });
}

#[test]
fn a10_the_first_error_in_order_is_returned_after_all_branches_have_ended() {
    let world = World::new(Kind::Memory);
    let ended = Counter::default();
    let count = ended.clone();
    let body = move |mut ctx: Ctx, _: Value| {
        let count = count.clone();
        async move {
            let fails = |name: &'static str, seconds| {
                let count = count.clone();
                branch(name, move |mut ctx: Ctx| async move {
                    ctx.sleep(Duration::from_secs(seconds)).await?;
                    count.add();
                    Err::<(), _>(ToolError::failed(name))
                })
            };
            ctx.branches(vec![fails("late", 9), fails("early", 1)]).await?;
            Ok(json!(null))
        }
    };
    let runtime = world.runtime([Tool::durable_fn("fails", "fails twice", body)]);
    assert!(outcome(&world, &runtime, "fails").unwrap_err().contains("late"));
    assert_eq!(ended.get(), 2);
}

#[test]
fn a10_a_branch_borrows_from_its_body_and_a_panic_in_it_is_its_own_error() {
    let world = World::new(Kind::Memory);
    let body = |mut ctx: Ctx, _: Value| async move {
        let text = "of the body".to_owned();
        let (reads, panics) = (
            branch("reads", |_: Ctx| async { Ok(text.len()) }),
            branch("panics", |_: Ctx| async { if text.is_empty() { Ok(()) } else { panic!("not today") } }),
        );
        let (read, panicked) = ctx.branches((reads, panics)).settled().await;
        Ok(json!([read?, panicked.unwrap_err().kind()]))
    };
    let runtime = world.runtime([Tool::durable_fn("borrows", "borrows", body)]);
    assert_eq!(outcome(&world, &runtime, "borrows"), Ok(json!([11, "panicked"])));
}

#[test]
fn a10_l05_cancelling_a_run_ends_the_waits_in_all_of_its_branches() {
    on_every_store(|world| {
        let body = |mut ctx: Ctx, _: Value| async move {
            let waits =
                |name: &'static str| branch(name, move |mut ctx: Ctx| async move { ctx.wait::<Value>(name).await });
            let results = ctx.branches(vec![waits("a"), waits("b")]).settled().await;
            let kinds: Vec<_> = results.iter().map(|result| result.as_ref().unwrap_err().kind().to_owned()).collect();
            assert_eq!(kinds, ["cancelled", "cancelled"]);
            ctx.call_json("clean_up", json!({})).await
        };
        let cleaned = Counter::default();
        let count = cleaned.clone();
        let clean_up = tool("clean_up", move |_| {
            count.add();
            async { Ok(1) }
        });
        let runtime = world.runtime([Tool::durable_fn("waits", "waits twice", body), clean_up]);
        let starter = runtime.clone();
        let run = world.run(async move { starter.start_call(ToolCall::new("waits", json!({}))).await.unwrap() });
        world.pass(Duration::from_secs(1));
        let canceller = runtime.clone();
        let outcome = world.run(async move {
            canceller.cancel(run, "ada", "enough").await.unwrap();
            canceller.attach(run).await.unwrap().remove(0)
        });
        assert_eq!((outcome.value(), cleaned.get()), (Some(&json!(1)), 1));
    });
}

#[test]
fn a10_l17_changed_branches_are_a_divergence_that_names_them() {
    let world = World::new(Kind::Memory);
    let waits = |names: &'static [&'static str]| {
        Tool::durable_fn("changes", "waits", move |mut ctx: Ctx, _: Value| async move {
            let wait = |name: &&'static str| branch(*name, |mut ctx: Ctx| async move { ctx.wait::<Value>("go").await });
            ctx.branches(names.iter().map(wait).collect::<Vec<_>>()).await.map(|values| json!(values))
        })
    };
    let first = world.runtime([waits(&["a", "b"])]);
    let starter = first.clone();
    let run = world.run(async move { starter.start_call(ToolCall::new("changes", json!({}))).await.unwrap() });
    world.pass(Duration::from_secs(1));
    drop(first);
    let world = world.restart();
    let second = world.runtime([waits(&["a", "c"])]);
    let reader = second.clone();
    let info = world.run(async move {
        reader.recover().await.unwrap();
        reader.cancel(run, "ada", "look").await.unwrap();
        let _held = reader.attach(run).await;
        reader.info(run).await.unwrap().unwrap()
    });
    let RunState::Held { hold } = &info.state else { panic!("{:?}", info.state) };
    let Hold::Diverged(divergence) = hold else { panic!("{hold}") };
    let text = divergence.to_string();
    assert!(text.contains("branch \"b\"") && text.contains("branch \"c\""), "{text}");
}

#[test]
fn a10_a_branch_cannot_continue_as_the_next_generation() {
    let world = World::new(Kind::Memory);
    let body = |mut ctx: Ctx, _: Value| async move {
        let tries = branch("tries", |mut ctx: Ctx| async move { ctx.continue_as::<Value>(json!({})).await });
        ctx.branches((tries,)).await.map(|(value,)| value)
    };
    let runtime =
        world.runtime([Tool::durable_fn("generations", "continues", body), tool("other", |_| async { Ok(1) })]);
    assert!(outcome(&world, &runtime, "generations").unwrap_err().contains("only the body at the root"));
}

/// Two branches: one waits for an answer that never comes, and cleans up when it is cancelled; the other one wins.
fn race(ledger: &Ledger) -> Vec<Tool> {
    let race = Tool::durable_fn("race", "takes the first", |mut ctx: Ctx, _: Value| async move {
        let loses = branch("loses", |mut ctx: Ctx| async move {
            ctx.call(call("lost")).await?;
            let told = ctx.wait::<Value>("nothing").await.unwrap_err();
            ctx.call(call("cleaned")).await?;
            Err::<String, _>(told)
        });
        let wins = branch("wins", |mut ctx: Ctx| async move {
            ctx.sleep(HOUR).await?;
            ctx.call(call("won")).await?;
            Ok("won".to_owned())
        });
        let first = ctx.branches([loses, wins]).any().await?;
        ctx.call(call("after")).await?;
        Ok(json!(first))
    });
    let calls = ["lost", "cleaned", "won", "after"].map(|name| once(ledger, name));
    std::iter::once(race).chain(calls).collect()
}

#[test]
fn a10_w01_a_race_of_branches_has_one_winner_and_its_loser_cleans_up_over_every_crash() {
    let report = check_parked(|| CrashMatrix::new(race).call(call("race")));
    assert_eq!(report.outcome, json!([[1, "won"]]));
    assert!(report.effects.len() == 4 && report.effects.values().all(|count| *count == 1), "{report:?}");
}

#[test]
fn a10_the_winner_of_a_race_is_the_first_that_succeeds_and_without_one_the_first_error_counts() {
    let world = World::new(Kind::Memory);
    let body = |mut ctx: Ctx, args: Value| async move {
        let succeeds = args["succeeds"].as_u64();
        let branches = (0..3u64).map(|n| {
            branch(format!("b{n}"), move |mut ctx: Ctx| async move {
                ctx.sleep(Duration::from_secs(9 - n)).await?;
                if succeeds == Some(n) { Ok(n) } else { Err(ToolError::failed(format!("no {n}"))) }
            })
        });
        let branches: Vec<_> = branches.collect();
        Ok(json!(ctx.branches(branches).any().await?))
    };
    let runtime = world.runtime([Tool::durable_fn("any", "races", body)]);
    let race = |args: Value| {
        let runtime = runtime.clone();
        let outcome = world.run(async move { runtime.call(ToolCall::new("any", args)).await.unwrap() });
        outcome.error().map_or_else(|| Ok(outcome.value().unwrap().clone()), |error| Err(error.to_string()))
    };
    assert_eq!(race(json!({"succeeds": 1})), Ok(json!([1, 1])), "a failed branch is no winner");
    assert!(race(json!({})).unwrap_err().contains("no 0"));
}

#[test]
fn a10_a_loser_that_may_have_acted_is_in_doubt_and_the_race_does_not_wait_for_a_person() {
    on_every_store(|world| {
        let stuck = tool("stuck", |_| std::future::pending::<windlass::ToolResult<Value>>());
        let body = |mut ctx: Ctx, _: Value| async move {
            let acts = branch("acts", |mut ctx: Ctx| async move { ctx.call_json("stuck", json!({})).await });
            let wins = branch("wins", |mut ctx: Ctx| async move {
                ctx.sleep(Duration::from_secs(1)).await?;
                Ok(json!("won"))
            });
            let began = ctx.now();
            let first = ctx.branches([acts, wins]).any().await?;
            Ok(json!([first, ctx.now().since(began).as_secs()]))
        };
        let runtime = world.runtime([Tool::durable_fn("race", "races", body), stuck]);
        let caller = runtime.clone();
        let outcome = world.run(async move { caller.call(ToolCall::new("race", json!({}))).await.unwrap() });
        assert_eq!(outcome.value().unwrap()[0], json!([1, "won"]));
        assert!(outcome.value().unwrap()[1].as_u64().unwrap() < 20, "{outcome:?}");
        let reader = runtime.clone();
        let info = world.run(async move { reader.info(outcome.run).await.unwrap().unwrap() });
        assert_eq!(info.doubts.len(), 1, "{info:?}");
        assert_eq!(info.doubts[0].path.to_string(), "0/0/0");
    });
}

#[test]
fn a10_a_loser_that_does_not_clean_up_in_time_is_cut_off() {
    let world = World::new(Kind::Memory);
    let body = |mut ctx: Ctx, _: Value| async move {
        let lingers = branch("lingers", |mut ctx: Ctx| async move {
            let _told = ctx.wait::<Value>("nothing").await;
            ctx.wait::<u32>("never").await
        });
        let wins = branch("wins", |mut ctx: Ctx| async move {
            ctx.sleep(Duration::from_secs(1)).await?;
            Ok(7)
        });
        let began = ctx.now();
        let first = ctx.branches([lingers, wins]).any().await?;
        Ok(json!([first, ctx.now().since(began).as_secs()]))
    };
    let runtime = world.runtime([Tool::durable_fn("race", "races", body)]);
    assert_eq!(outcome(&world, &runtime, "race"), Ok(json!([[1, 7], 31])));
}

#[test]
fn l05_every_body_of_a_batch_is_told_of_a_cancellation() {
    on_every_store(|world| {
        let told = Counter::default();
        let count = told.clone();
        let member = Tool::durable_fn("member", "works in small pieces", move |mut ctx: Ctx, _: Value| {
            let count = count.clone();
            async move {
                loop {
                    if let Err(error) = ctx.sleep(Duration::from_secs(1)).await {
                        count.add();
                        return Err::<Value, _>(error);
                    }
                }
            }
        });
        let body = |mut ctx: Ctx, _: Value| async move {
            let calls =
                vec![ToolCall::<Value>::new("member", json!({"n": 1})), ToolCall::new("member", json!({"n": 2}))];
            ctx.call_all(calls).await.map(|values| json!(values))
        };
        let runtime = world.runtime([Tool::durable_fn("parent", "calls two", body), member]);
        let starter = runtime.clone();
        let run = world.run(async move { starter.start_call(ToolCall::new("parent", json!({}))).await.unwrap() });
        world.pass(Duration::from_millis(1_500));
        let canceller = runtime.clone();
        let outcome = world.run(async move {
            canceller.cancel(run, "ada", "enough").await.unwrap();
            canceller.attach(run).await.unwrap().remove(0)
        });
        assert!(outcome.error().unwrap().to_string().contains("enough"), "{outcome:?}");
        assert_eq!(told.get(), 2);
    });
}
