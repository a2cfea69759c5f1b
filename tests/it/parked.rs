//! Very many runs that only wait. Their memory is measured in the benchmark's package, which can count allocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::{Ctx, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::testing::Sim;

use crate::world::{Kind, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const RUNS: usize = 20_000;

/// Counts how often it ended, and the most tasks there were when it was entered.
#[derive(Clone, Default)]
struct Ends {
    signalled: Arc<AtomicUsize>,
    timed_out: Arc<AtomicUsize>,
    most_tasks: Arc<AtomicUsize>,
}

fn patient(sim: &Sim, ends: &Ends) -> Tool {
    let (sim, ends) = (sim.clone(), ends.clone());
    let patient = Tool::durable_fn("patient", "waits", move |mut ctx: Ctx, _: Value| {
        ends.most_tasks.fetch_max(sim.tasks(), Ordering::Relaxed);
        let ends = ends.clone();
        async move {
            match ctx.receive::<u32>("go").within(HOUR).await {
                Ok(_) => ends.signalled.fetch_add(1, Ordering::Relaxed),
                Err(ToolError::TimedOut { .. }) => ends.timed_out.fetch_add(1, Ordering::Relaxed),
                Err(error) => return Err(error),
            };
            Ok(json!("done"))
        }
    });
    patient.signal::<u32>("go")
}

#[test]
fn w03_twenty_thousand_parked_runs_have_no_tasks_and_are_continued_a_few_at_a_time() {
    let world = World::new(Kind::Memory);
    let ends = Ends::default();
    let mut config = world.config([patient(&world.sim, &ends)]);
    config.suspend_after = Duration::ZERO;
    let runtime = Runtime::new(config);
    let mut runs: Vec<RunId> = Vec::new();
    while runs.len() < RUNS {
        runs.extend(
            (0..200).map(|_| runtime.start_unconfirmed(ToolCall::new("patient", json!({}))).expect("it starts")),
        );
        world.pass(Duration::from_millis(1));
        assert_eq!(world.sim.tasks(), 1, "the alarm, and nothing for any of {} runs", runs.len());
    }
    ends.most_tasks.store(0, Ordering::Relaxed);

    // Some of them are woken, spread over all.
    let chosen: Vec<RunId> = runs.iter().step_by(1_999).copied().collect();
    for run in &chosen {
        let (runtime, run) = (runtime.clone(), *run);
        world.run(async move { runtime.signal(run, "go", json!(1), None).await }).expect("it takes the signal");
    }
    world.pass(Duration::from_millis(1));
    assert_eq!(ends.signalled.load(Ordering::Relaxed), chosen.len());
    assert_eq!(world.sim.tasks(), 1);

    // All others are woken by time, at once.
    world.pass(2 * HOUR);
    assert_eq!(ends.timed_out.load(Ordering::Relaxed), RUNS - chosen.len());
    let most = ends.most_tasks.load(Ordering::Relaxed);
    assert!(most < 200, "{most} tasks at once");
}

#[test]
fn w03_a_runtime_that_is_shut_down_leaves_no_task_behind_for_its_timers() {
    on_every_store(|world| {
        let sleeper = Tool::durable_fn("sleeper", "sleeps long", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(Duration::from_secs(86_400)).await?;
            Ok(json!(null))
        });
        let runtime = world.runtime([sleeper]);
        runtime.start_unconfirmed(ToolCall::new("sleeper", json!({}))).unwrap();
        world.pass(Duration::from_secs(1));
        let closing = runtime.clone();
        world.run(async move { closing.shutdown(Duration::ZERO).await }).unwrap();
        world.pass(Duration::from_secs(120));
        assert_eq!(world.sim.tasks(), 0, "a handle of the runtime must not keep it busy");
        drop(runtime);
    });
}
