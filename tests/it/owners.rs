//! Ownership: every write of a superseded owner is refused, and its body stops.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::{Ctx, Error, Tool, ToolCall};
use windlass_core::time::Clock;

use crate::world::{Counter, World, on_every_store};

fn long_job(world: &World, effects: &Counter) -> Tool {
    let (sim, effects) = (world.sim.clone(), effects.clone());
    Tool::durable_fn("job", "", move |mut ctx: Ctx, _: Value| {
        let (sim, effects) = (sim.clone(), effects.clone());
        async move {
            for n in 0..10u32 {
                let (sim, effects) = (&sim, &effects);
                ctx.step(format!("step {n}"), |_| async move {
                    sim.sleep(Duration::from_secs(1)).await;
                    effects.add();
                    Ok(n)
                })
                .idempotent()
                .await?;
            }
            Ok(json!("done"))
        }
    })
}

#[test]
fn l22_an_owner_that_lost_its_run_cannot_write_and_its_body_stops() {
    on_every_store(|world| {
        let (first_effects, second_effects) = (Counter::default(), Counter::default());
        let first = world.runtime([long_job(&world, &first_effects)]);
        let second = world.runtime([long_job(&world, &second_effects)]);
        let run = first.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        world.pass(Duration::from_millis(3_500));
        assert_eq!(first_effects.get(), 3);
        let (outcome, old) = world.run(async move {
            second.resume(run).await.unwrap();
            let old = first.attach(run).await;
            (second.attach(run).await.unwrap().remove(0), old)
        });
        assert_eq!(outcome.value(), Some(&json!("done")));
        assert!(matches!(old, Err(Error::Elsewhere { .. })), "the old owner is told: {old:?}");
        assert_eq!(first_effects.get(), 4, "the attempt in flight ended; its record was refused, and nothing followed");
        assert_eq!(second_effects.get(), 7, "the new owner repeats what has no record");
    });
}

#[test]
fn a_clean_shutdown_releases_runs_and_the_next_process_continues_them() {
    on_every_store(|world| {
        let effects = Counter::default();
        let runtime = world.runtime([long_job(&world, &effects)]);
        let run = runtime.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        world.pass(Duration::from_millis(2_500));
        let (closing, refused) = (runtime.clone(), runtime.clone());
        world.run(async move { closing.shutdown(windlass::limits::DRAIN).await.unwrap() });
        let error = world.run(async move { refused.call(ToolCall::new("job", json!({}))).await.unwrap_err() });
        assert!(error.to_string().contains("shut down"), "{error}");
        assert_eq!(effects.get(), 3, "the attempt in flight was waited for, and no other started");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([long_job(&world, &effects)]);
        let (outcome, journal) = world.run(async move {
            runtime.recover().await.unwrap();
            let outcome = runtime.attach(run).await.unwrap().remove(0);
            (outcome, runtime.journal(run).await.unwrap())
        });
        assert_eq!(outcome.value(), Some(&json!("done")));
        assert_eq!(effects.get(), 10, "nothing was repeated");
        let died = journal.iter().any(|record| matches!(record.event, windlass_core::run::record::Event::Recovered));
        assert!(!died, "an orderly shutdown does not count as a death");
    });
}
