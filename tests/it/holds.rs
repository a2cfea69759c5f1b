//! Held runs: divergence, versions, missing tools, undecodable records, abandoned operations, crash loops.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Hold, RunState};
use windlass::{Ctx, Effect, Error, RunId, Tool, ToolCall};
use windlass_core::Runtime;

use crate::world::{Counter, Kind, World, on_every_store, tool};

type Body = fn(Ctx) -> futures_util::future::BoxFuture<'static, windlass::ToolResult<Value>>;

/// A durable tool `job` with this body.
fn job(body: Body) -> Tool {
    Tool::durable_fn("job", "", move |ctx: Ctx, _: Value| body(ctx))
}

/// Old code: two steps, then it waits for ever.
fn old_code(mut ctx: Ctx) -> futures_util::future::BoxFuture<'static, windlass::ToolResult<Value>> {
    Box::pin(async move {
        let a: u32 = ctx.step("reserve", |_| async { Ok(1) }).input(&json!({"to": "Oslo"})).await?;
        let b: u32 = ctx.step("pay", |_| async { Ok(2) }).await?;
        ctx.step("wait", |_| std::future::pending::<windlass::ToolResult<()>>()).idempotent().await?;
        Ok(json!([a, b]))
    })
}

/// Runs the old code until it waits, kills the process, and starts the new code on the same disk.
fn upgrade(
    world: World,
    old: Body,
    new: impl IntoIterator<Item = Tool>,
) -> (World, Runtime, RunId, Result<Value, Error>) {
    let runtime = world.runtime([job(old)]);
    let run = runtime.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
    world.pass(Duration::from_secs(1));
    drop(runtime);
    let world = world.restart();
    let runtime = world.runtime(new);
    let driving = runtime.clone();
    let ended = world.run(async move {
        driving.recover().await?;
        Ok(driving.attach(run).await?.remove(0).for_model())
    });
    (world, runtime, run, ended)
}

fn held(result: &Result<Value, Error>) -> String {
    match result {
        Err(Error::Held { hold, .. }) => hold.to_string(),
        other => panic!("not held: {other:?}"),
    }
}

#[test]
fn w04_a_parked_run_resumes_under_changed_but_matching_code() {
    on_every_store(|world| {
        let (_, _, _, ended) = upgrade(
            world,
            old_code,
            [job(|mut ctx| {
                Box::pin(async move {
                    let a: u32 = ctx.step("reserve", |_| async { Ok(100) }).input(&json!({"to": "Oslo"})).await?;
                    let b: u32 = ctx.step("pay", |_| async { Ok(200) }).await?;
                    ctx.step("wait", |_| async { Ok(()) }).idempotent().await?;
                    let c: u32 = ctx.step("thank", |_| async { Ok(3) }).await?;
                    Ok(json!([a, b, c]))
                })
            })],
        );
        assert_eq!(ended.unwrap(), json!([1, 2, 3]), "recorded steps answer, new ones run");
    });
}

#[test]
fn w04_l22_a_diverging_body_is_held_and_continues_with_matching_code() {
    on_every_store(|world| {
        let swapped: Body = |mut ctx| {
            Box::pin(async move {
                ctx.step("reserve", |_| async { Ok(1) }).input(&json!({"to": "Oslo"})).await?;
                ctx.step("thank", |_| async { Ok(3) }).await?;
                Ok(json!(null))
            })
        };
        let (world, runtime, run, ended) = upgrade(world, old_code, [job(swapped)]);
        let text = held(&ended);
        assert!(
            text.contains("diverged at 1: the journal has step \"pay\", the code asks for step \"thank\""),
            "{text}"
        );
        assert!(text.contains("deploy code that fits"), "{text}");
        drop(runtime);
        // Restarting with the same code changes nothing, however often: a held run is not a crash loop.
        let mut world = world;
        for _ in 0..5 {
            world = world.restart();
            let runtime = world.runtime([job(swapped)]);
            let again = world.run(async move {
                runtime.recover().await?;
                runtime.attach(run).await
            });
            assert!(matches!(again, Err(Error::Held { hold: Hold::Diverged(_), .. })), "{again:?}");
        }
        let world = world.restart();
        let runtime = world.runtime([job(|mut ctx| {
            Box::pin(async move {
                ctx.step("reserve", |_| async { Ok(1) }).input(&json!({"to": "Oslo"})).await?;
                ctx.step("pay", |_| async { Ok(2) }).await?;
                ctx.step("wait", |_| async { Ok(()) }).idempotent().await?;
                Ok(json!("done"))
            })
        })]);
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.value(), Some(&json!("done")));
    });
}

#[test]
fn l09_l22_a_steps_input_is_part_of_its_identity() {
    on_every_store(|world| {
        let (_, _, _, ended) = upgrade(
            world,
            old_code,
            [job(|mut ctx| {
                Box::pin(async move {
                    ctx.step("reserve", |_| async { Ok(1) }).input(&json!({"to": "Rome"})).await?;
                    Ok(json!(null))
                })
            })],
        );
        let text = held(&ended);
        assert!(text.contains("/to: recorded \"Oslo\", asked \"Rome\""), "{text}");
    });
}

#[test]
fn l22_a_body_that_returns_too_early_is_held() {
    on_every_store(|world| {
        let (_, _, _, ended) = upgrade(
            world,
            old_code,
            [job(|mut ctx| {
                Box::pin(async move {
                    ctx.step("reserve", |_| async { Ok(1) }).input(&json!({"to": "Oslo"})).await?;
                    Ok(json!("early"))
                })
            })],
        );
        let text = held(&ended);
        assert!(
            text.contains("diverged at 1: the journal has step \"pay\"") && text.contains("the body returned"),
            "{text}"
        );
    });
}

#[test]
fn w04_version_takes_the_old_branch_for_old_journals_and_the_new_one_for_new_runs() {
    let new: Body = |mut ctx| {
        Box::pin(async move {
            let a: u32 = ctx.step("reserve", |_| async { Ok(1) }).input(&json!({"to": "Oslo"})).await?;
            let discounted = ctx.version("discount");
            let b: u32 = match discounted {
                true => ctx.step("pay with discount", |_| async { Ok(20) }).await?,
                false => ctx.step("pay", |_| async { Ok(2) }).await?,
            };
            ctx.step("wait", |_| async { Ok(()) }).idempotent().await?;
            Ok(json!([a, b, ctx.version("discount") == discounted]))
        })
    };
    on_every_store(|world| {
        let (world, runtime, _, ended) = upgrade(world, old_code, [job(new)]);
        assert_eq!(ended.unwrap(), json!([1, 2, true]), "an old journal takes the old branch");
        let outcome = world.run(async move { runtime.call(ToolCall::new("job", json!({}))).await.unwrap() });
        assert_eq!(outcome.value(), Some(&json!([1, 20, true])), "a new run takes the new one");
    });
}

#[test]
fn w04_version_has_the_same_result_when_the_body_is_entered_again() {
    let waits: Body = |mut ctx| {
        Box::pin(async move {
            let new = ctx.version("discount");
            ctx.step("wait", |_| std::future::pending::<windlass::ToolResult<()>>()).idempotent().await?;
            Ok(json!(new))
        })
    };
    let goes_on: Body = |mut ctx| {
        Box::pin(async move {
            let new = ctx.version("discount");
            ctx.step("wait", |_| async { Ok(()) }).idempotent().await?;
            Ok(json!(new))
        })
    };
    on_every_store(|world| {
        let (_, _, _, ended) = upgrade(world, waits, [job(goes_on)]);
        assert_eq!(ended.unwrap(), json!(true));
    });
}

#[test]
fn w04_a_removed_tool_holds_the_run_and_an_alias_continues_it() {
    on_every_store(|world| {
        let (world, runtime, run, ended) = upgrade(world, old_code, []);
        let text = held(&ended);
        assert!(text.contains("tool missing: / calls `job`, which is not registered"), "{text}");
        drop(runtime);
        let world = world.restart();
        let renamed = job(|_| Box::pin(async { Ok(json!("x")) })).with(|spec| {
            spec.name = "work".into();
            spec.id = "work".into();
            spec.aliases.push("job".into());
        });
        let runtime = world.runtime([renamed]);
        let again = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await
        });
        assert!(
            held(&again.map(|_| Value::Null)).contains("diverged at 0"),
            "found by its alias, and then it diverges"
        );
    });
}

#[test]
fn w04_a_recorded_value_that_does_not_decode_holds_the_run() {
    on_every_store(|world| {
        let (_, _, _, ended) = upgrade(
            world,
            old_code,
            [job(|mut ctx| {
                Box::pin(async move {
                    let text: String =
                        ctx.step("reserve", |_| async { Ok(String::new()) }).input(&json!({"to": "Oslo"})).await?;
                    Ok(json!(text))
                })
            })],
        );
        let text = held(&ended);
        assert!(text.contains("undecodable record at 0: invalid type: integer `1`, expected a string"), "{text}");
    });
}

/// Polls an operation once and drops it.
async fn abandon<F: Future>(operation: F) {
    let mut operation = Box::pin(operation);
    std::future::poll_fn(|cx| {
        let _pending = operation.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
}

#[test]
fn l22_a_body_that_races_operations_by_hand_is_held_with_the_path_named() {
    let racing: Body = |mut ctx| {
        Box::pin(async move {
            ctx.step("fine", |_| async { Ok(1) }).await?;
            abandon(std::future::IntoFuture::into_future(
                ctx.step("slow", |_| std::future::pending::<windlass::ToolResult<()>>()).readonly(),
            ))
            .await;
            let after: u32 = ctx.step("after", |_| async { Ok(2) }).await?;
            Ok(json!(after))
        })
    };
    on_every_store(|world| {
        let runtime = world.runtime([job(racing)]);
        let ended = world.run(async move { runtime.call(ToolCall::new("job", json!({}))).await });
        let text = held(&ended.map(|_| Value::Null));
        assert!(text.contains("abandoned operation at path 1: the body started step \"slow\""), "{text}");
    });
}

#[test]
fn l22_an_operation_that_was_never_polled_leaves_no_trace() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([job(|mut ctx| {
        Box::pin(async move {
            drop(ctx.step("never awaited", |_| async { windlass::ToolResult::Ok(0) }));
            let real: u32 = ctx.step("real", |_| async { Ok(7) }).await?;
            Ok(json!(real))
        })
    })]);
    let journal = world.run(async move {
        let outcome = runtime.call(ToolCall::new("job", json!({}))).await.unwrap();
        runtime.journal(outcome.run).await.unwrap()
    });
    let names: Vec<_> = journal.iter().filter_map(|r| r.asked.as_ref()).map(|asked| asked.to_string()).collect();
    assert_eq!(names, ["call of tool `job`", "step \"real\""]);
}

/// A process that dies with every attempt.
#[test]
fn w12_a_body_that_kills_the_process_each_time_is_held_as_a_crash_loop() {
    on_every_store(|mut world| {
        let attempts = Counter::default();
        let killer = |attempts: &Counter| {
            let attempts = attempts.clone();
            tool("killer", move |_| {
                attempts.add();
                std::future::pending::<windlass::ToolResult<()>>()
            })
            .effect(Effect::Idempotent)
            .timeout(Duration::from_secs(10_000))
        };
        let runtime = world.runtime([killer(&attempts)]);
        let run = runtime.start_unconfirmed(ToolCall::new("killer", json!({}))).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        for life in 1..=3 {
            assert_eq!(attempts.get(), life, "every life makes the attempt, and dies of it");
            world = world.restart();
            let runtime = world.runtime([killer(&attempts)]);
            let recovering = runtime.clone();
            world.run(async move { recovering.recover().await.unwrap() });
            world.pass(Duration::from_secs(1));
        }
        let runtime = world.runtime([]);
        let ended = world.run(async move { runtime.attach(run).await });
        let text = held(&ended.map(|_| Value::Null));
        assert!(text.contains("crash loop: the process died 3 times with / in flight"), "{text}");
        assert_eq!(attempts.get(), 3);
        // It stays held over restarts, until an operator resumes it.
        let world = world.restart();
        let fixed = tool("killer", |_| async { Ok("fixed") }).effect(Effect::Idempotent);
        let runtime = world.runtime([fixed]);
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            let info = runtime.info(run).await.unwrap().unwrap();
            assert!(matches!(info.state, RunState::Held { .. }), "{info:?}");
            runtime.resume(run).await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.value(), Some(&json!("fixed")));
    });
}

#[test]
fn w04_a_held_run_can_be_finished_by_hand_and_its_doubts_stay_visible() {
    on_every_store(|world| {
        let hangs: Body = |mut ctx| {
            Box::pin(async move {
                ctx.step("reserve", |_| async { Ok(1) }).await?;
                ctx.step("pay", |_| std::future::pending::<windlass::ToolResult<()>>()).await?;
                Ok(json!(null))
            })
        };
        let (world, runtime, run, ended) = upgrade(
            world,
            hangs,
            [job(|mut ctx| {
                Box::pin(async move {
                    ctx.step("something else", |_| async { Ok(1) }).await?;
                    Ok(json!(null))
                })
            })],
        );
        assert!(held(&ended).contains("diverged at 0"));
        let (outcome, doubts, again) = world.run(async move {
            let result = Ok(json!({"refunded": true}).into());
            runtime.finish_by_hand(run, result, "ann", "refunded on the phone").await.unwrap();
            let outcome = runtime.attach(run).await.unwrap().remove(0);
            let again = runtime.finish_by_hand(run, Ok(json!(1).into()), "ann", "again").await.unwrap_err();
            (outcome, runtime.doubts().await.unwrap(), again)
        });
        assert_eq!(outcome.value(), Some(&json!({"refunded": true})));
        assert_eq!(doubts.len(), 1, "{doubts:?}");
        assert_eq!((doubts[0].1.path.to_string().as_str(), doubts[0].1.operation.as_str()), ("1", "step \"pay\""));
        assert!(again.to_string().contains("only a held run is finished by hand"), "{again}");
    });
}

#[test]
fn e08_a_looser_effect_class_does_not_apply_to_attempts_already_begun() {
    on_every_store(|world| {
        let attempts = Counter::default();
        let told = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let make = |effect: Effect, attempts: &Counter| {
            let (attempts, told) = (attempts.clone(), told.clone());
            let act = Tool::with_call("act", "", move |call: windlass::Call, _: Value| {
                attempts.add();
                told.lock().push(call.effect());
                std::future::pending::<windlass::ToolResult<()>>()
            });
            act.effect(effect)
        };
        let runtime = world.runtime([make(Effect::Once, &attempts)]);
        let run = runtime.start_unconfirmed(ToolCall::new("act", json!({}))).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([make(Effect::Readonly, &attempts)]);
        let driving = runtime.clone();
        let doubts = world.run(async move {
            driving.recover().await.unwrap();
            driving.doubts().await.unwrap()
        });
        assert_eq!(doubts.len(), 1, "in doubt although the tool is readonly by now");
        // Settled as not having happened, it is attempted again, with the original effect class.
        let journal = world.run(async move {
            let verdict = windlass::inbox::Settlement::DidNotHappen;
            runtime.settle(run, &windlass::Path::root(), verdict, "ann", "looked").await.unwrap();
            runtime.journal(run).await.unwrap()
        });
        world.pass(Duration::from_secs(1));
        assert_eq!(attempts.get(), 2, "{journal:?}");
        assert_eq!(*told.lock(), [Effect::Once, Effect::Once], "and the body is told so");
        let reader = world.runtime([]);
        let journal = world.run(async move { reader.journal(run).await.unwrap() });
        let last = journal.last().map(|record| format!("{:?}", record.event)).unwrap_or_default();
        assert!(last.starts_with("Intended { attempt: 2"), "{journal:?}");
    });
}

#[test]
fn l22_a_body_that_awaits_outside_its_context_is_held_with_advice() {
    on_every_store(|world| {
        let sim = world.sim.clone();
        let outside = Tool::durable_fn("outside", "sleeps on its own", move |mut ctx: Ctx, _: Value| {
            let sim = sim.clone();
            async move {
                ctx.step("fine", |_| async { Ok(1) }).await?;
                windlass_core::time::Clock::sleep(&sim, std::time::Duration::from_secs(1)).await;
                Ok(json!(1))
            }
        });
        let runtime = world.runtime([outside]);
        let error = world.run(async move { runtime.call(ToolCall::new("outside", json!({}))).await }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("await outside ctx") && text.contains("move it into `ctx.step(…)`"), "{text}");
    });
}

#[test]
fn w04_a_held_run_whose_claim_was_lost_while_it_was_finished_by_hand_is_held_again() {
    on_every_store(|world| {
        let runtime = world.runtime([job(old_code)]);
        let run = runtime.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let store = crate::shaky::Shaky::new(world.store.clone());
        let mut config = world.config([]);
        config.store = store.clone();
        let runtime = Runtime::new(config);
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(Duration::from_secs(1));
        let state = |runtime: &Runtime| {
            let runtime = runtime.clone();
            world.run(async move { runtime.info(run).await.unwrap().unwrap().state })
        };
        assert!(matches!(state(&runtime), RunState::Held { .. }));
        let by_hand = |runtime: &Runtime| {
            let runtime = runtime.clone();
            world.run(async move { runtime.finish_by_hand(run, Ok(json!(7).into()), "ann", "done").await })
        };
        // The store claims the run, but the answer is lost.
        store.claim.store(1, std::sync::atomic::Ordering::SeqCst);
        assert!(matches!(by_hand(&runtime), Err(Error::Store(_))));
        world.pass(Duration::from_secs(60));
        assert!(matches!(state(&runtime), RunState::Held { .. }), "{:?}", state(&runtime));
        by_hand(&runtime).unwrap();
        assert!(matches!(state(&runtime), RunState::Finished { .. }));
    });
}
