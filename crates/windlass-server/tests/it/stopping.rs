//! Stopping in good order.

use std::time::Duration;

use serde_json::json;
use windlass_server::Options;

use crate::net::until;
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn l23_whoever_waits_is_answered_and_runs_go_on_later() {
    let mut world = World::new().await;
    let waiting = world.client.clone();
    let call = json!({"tool": "ask", "wait_ms": 60_000});
    let asked = tokio::spawn(async move { waiting.post_as("k", "/v1/calls", call).await });
    let attached = until(|| async {
        let page = world.client.get("/v1/runs?state=suspended").await.is(200);
        page["runs"].as_array().unwrap().first().map(|run| run["id"].as_str().unwrap().to_owned())
    })
    .await;
    let begun = tokio::time::Instant::now();
    world.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "nobody is waited for who only waits");
    let accepted = asked.await.unwrap().is(202);
    assert_eq!(accepted["run"], attached);
    let world = world.restart_stopped(Options::default()).await;
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap()), json!({"value": 1})).await.is(200);
    let again = world.client.post_as("k", "/v1/calls", json!({"tool": "ask", "wait_ms": 10_000})).await.is(200);
    assert_eq!((&again["run"], &again["outcome"]["value"]), (&json!(attached), &json!({"said": 1})));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_request_under_way_is_finished_and_new_ones_are_not_taken() {
    let mut world = World::new().await;
    let waiting = world.client.clone();
    let asked = tokio::spawn(async move {
        waiting.post("/v1/calls", json!({"tool": "slow", "args": {"ms": 200}, "wait_ms": 0})).await
    });
    let run = asked.await.unwrap().is(202)["run"].as_str().unwrap().to_owned();
    world.stop().await;
    assert!(tokio::net::TcpStream::connect(world.client.address).await.is_err(), "nobody listens any more");
    let world = world.restart_stopped(Options::default()).await;
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], "done");
}
