//! Tests of the simulator: it finds every planted bug.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::plant::{Plant, plant};
use super::*;
use crate::call::ToolCall;
use crate::store::MemoryStore;
use crate::tool::{Reconciled, Tool};

/// Within how many seeds a bug must be found.
const SEEDS: u64 = 1_000;

/// Checks that the bug is found, and for the right reason.
fn finds(bug: Plant, problem: &str) {
    plant(Some(bug));
    let tells = |seed: &u64| Chaos::seed(*seed).story().problems.iter().any(|found| found.contains(problem));
    let found = (1..=SEEDS).find(tells);
    plant(None);
    let Some(seed) = found else { panic!("{bug:?} is not found within {SEEDS} seeds") };
    println!("{bug:?} is found by seed {seed}");
}

#[test]
fn w11_a_skipped_intent_is_found() {
    finds(Plant::SkipIntent, "must happen once");
}

#[test]
fn w11_an_answer_before_its_commit_is_found() {
    finds(Plant::AnswerEarly, "not recorded");
}

#[test]
fn w11_a_stale_epoch_that_is_accepted_is_found() {
    finds(Plant::StaleEpoch, "is in force");
}

#[test]
fn w11_a_lost_examined_position_is_found() {
    finds(Plant::LoseExamined, "never ends");
}

#[test]
fn w11_a_key_reused_across_generations_is_found() {
    finds(Plant::ReuseKeys, "must happen once");
}

#[test]
fn w11_a_doubt_that_is_hidden_after_a_claim_is_found() {
    finds(Plant::ForgetDoubts, "is in doubt but is not listed");
}

#[test]
fn w11_a_wake_up_that_the_roster_loses_is_found() {
    finds(Plant::ForgetRequests, "never ends");
}

#[test]
fn w11_e18_a_clock_that_stands_still_with_its_worker_is_found() {
    finds(Plant::StandingClock, "must happen once");
}

#[test]
fn w11_e09_a_key_that_shared_admission_grants_twice_is_found() {
    finds(Plant::DoubleGrant, "held the till at the same time");
}

#[test]
fn w11_a_seed_determines_the_history() {
    for seed in 1..=20 {
        assert_eq!(Chaos::seed(seed).story().log, Chaos::seed(seed).story().log, "seed {seed}");
    }
}

/// Has an effect after a while; `reconcile` tells whether it happened.
fn slow(sim: &Sim, acted: &Arc<AtomicU32>) -> Tool {
    let (clock, act, asked) = (sim.clone(), acted.clone(), acted.clone());
    let tool = Tool::new("slow", "acts", move |_: Value| {
        let (clock, acted) = (clock.clone(), act.clone());
        async move {
            clock.sleep(Duration::from_secs(1)).await;
            acted.fetch_add(1, Ordering::Relaxed);
            Ok(json!("done"))
        }
    });
    tool.reconcile(move |_| {
        let happened = asked.load(Ordering::Relaxed) > 0;
        async move { Ok(if happened { Reconciled::Happened(json!("done")) } else { Reconciled::DidNotHappen }) }
    })
}

#[test]
fn w01_a_worker_that_unfreezes_does_not_continue_an_attempt_that_others_consider_over() {
    let (store, acted) = (MemoryStore::new(), Arc::new(AtomicU32::new(0)));
    let worker = |sim: &Sim, seed| {
        let mut config = Config::new(Arc::new(store.clone()), Arc::new(sim.clone()), Arc::new(sim.clone()));
        config.seed = Some(seed);
        config.toolbox.insert(slow(sim, &acted)).unwrap();
        Runtime::new(config)
    };
    let frozen = Sim::new(1);
    let other = frozen.beside(2);
    let first = worker(&frozen, 1);
    let run = first.start_unconfirmed(ToolCall::new("slow", json!({}))).unwrap();
    // It freezes in the middle of its attempt, for longer than the attempt may take.
    while frozen.step() {}
    other.pass_to(120_000_000_000);
    let second = worker(&other, 2);
    let ended = other.block_on(async move {
        second.recover().await.unwrap();
        second.attach(run).await
    });
    assert!(matches!(ended, Some(Ok(_))), "{ended:?}");
    frozen.fire_due_timers();
    while frozen.step() || frozen.advance() {}
    assert_eq!(acted.load(Ordering::Relaxed), 1);
}
