//! Damaged data in the store is reported wherever it is read, and never returned.

use std::path::Path;

use serde_json::{Value, json};
use windlass_server::Options;

use crate::net::until;
use crate::world::World;

/// Replaces a text in the file by another of the same length. Returns the number of replacements.
fn replace(path: &Path, from: &str, to: &str) -> usize {
    let mut bytes = std::fs::read(path).unwrap();
    let positions: Vec<usize> =
        (0..=bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
    for at in &positions {
        bytes[*at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    std::fs::write(path, bytes).unwrap();
    positions.len()
}

async fn metric(world: &World) -> String {
    let text = String::from_utf8(world.client.get("/metrics").await.body.to_vec()).unwrap();
    text.lines().find(|line| line.starts_with("windlass_store_healthy")).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn w08_a_damaged_outcome_is_reported_until_a_check_finds_no_problem() {
    let mut world = World::new().await;
    let call = json!({"tool": "charge", "args": {"cents": 4711}});
    let done = world.client.post_as("once", "/v1/calls", call.clone()).await.is(200);
    let run = done["run"].as_str().unwrap().to_owned();
    let other = world.call("add", json!({"a": 1, "b": 2})).await["run"].as_str().unwrap().to_owned();
    world.stop().await;
    assert!(replace(&world.path("app.db"), "\"of\":4711", "\"of\":4712") > 0);
    let world = world.restart_stopped(Options::default()).await;

    for path in [format!("/v1/runs/{run}"), format!("/v1/runs/{run}/outcome")] {
        let problem = world.client.get(&path).await.refused(500, "damaged");
        assert_eq!(problem["run"], run.as_str(), "{problem}");
        assert!(
            problem["location"].as_str().unwrap().contains("position") && !problem.to_string().contains("4712"),
            "{problem}"
        );
    }
    let again = world.client.post_as("once", "/v1/calls", call).await.refused(500, "damaged");
    assert_eq!((again["run"].as_str(), world.ledger.count()), (Some(&*run), 1), "the call is not made again");
    world.client.get(&format!("/v1/runs/{other}")).await.is(200);

    let health = world.client.get("/v1/health").await.is(200);
    assert_eq!(health["status"], "damaged");
    let problem = health["problems"][0].as_str().unwrap();
    assert!(problem.contains(&run) && problem.contains("position") && problem.contains("restore"), "{problem}");
    assert_eq!(metric(&world).await, "windlass_store_healthy 0");
    assert_eq!(world.client.get("/v1/ready").await.is(200), json!({"ready": true}), "the other runs continue");
    let checked = world.client.post("/v1/admin/check", json!({})).await.is(200);
    assert!(checked["ok"] == false && checked["problems"].to_string().contains(&run), "{checked}");
    assert_eq!(world.client.get("/v1/health").await.is(200)["status"], "damaged");

    assert!(replace(&world.path("app.db"), "\"of\":4712", "\"of\":4711") > 0);
    assert_eq!(world.client.post("/v1/admin/check", json!({})).await.is(200)["ok"], true);
    assert_eq!(world.client.get("/v1/health").await.is(200)["status"], "ok");
    assert_eq!(metric(&world).await, "windlass_store_healthy 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn w08_a_run_whose_journal_is_damaged_is_held_and_can_be_finished_and_purged() {
    let mut world = World::new().await;
    let run = world.start("ask", json!({"name": "word", "why": "curious"})).await;
    world.run_in(&run, "suspended").await;
    world.stop().await;
    assert_eq!(replace(&world.path("app.db"), "\"curious\"", "\"furious\""), 1);
    let world = world.restart_stopped(Options::default()).await;
    let item = world.item().await;
    let answer = format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap());
    let problem = world.client.post(&answer, json!({"value": "hello"})).await.refused(500, "damaged");
    assert_eq!(problem["run"], run.as_str(), "{problem}");
    // The body does not see the damaged journal, whatever wakes the run.
    let woken = world.client.post(&format!("/v1/runs/{run}/cancel"), json!({"reason": "it is damaged"})).await;
    assert!(woken.status < 300, "{woken:?}");
    let held = until(|| async {
        let found = world.client.get(&format!("/v1/runs/{run}")).await.is(200);
        (found["state"] == "held").then_some(found)
    })
    .await;
    let sentence = held["sentence"].as_str().unwrap();
    assert!(sentence.contains("damaged") && sentence.contains(&run) && sentence.contains("position"), "{held}");
    let health: Value = world.client.get("/v1/health").await.is(200);
    assert!(health["status"] == "damaged" && health["problems"][0].as_str().unwrap().contains(&run), "{health}");

    let finish = json!({"value": null, "reason": "there is no backup"});
    for _ in 0..2 {
        let ended = world.client.post_as("f", &format!("/v1/runs/{run}/finish"), finish.clone()).await.is(200);
        assert_eq!(ended["state"], "finished", "{ended}");
        assert!(ended["sentence"].as_str().unwrap().contains("is damaged"), "{ended}");
    }
    let info = world.windlass.runtime().info(run.parse().unwrap()).await.unwrap().unwrap();
    assert!(matches!(info.state, windlass::run::RunState::Finished { .. }), "{info:?}");
    world.windlass.runtime().purge(run.parse().unwrap()).await.unwrap();
    assert_eq!(world.client.post("/v1/admin/check", json!({})).await.is(200), json!({"ok": true, "problems": []}));
    assert_eq!(world.client.get("/v1/health").await.is(200)["status"], "ok");
}
