//! Clean shutdown.

use std::time::Duration;

use serde_json::json;
use windlass_server::Options;

use crate::net::until;
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_shutdown_answers_waiting_requests_and_runs_continue_after_a_restart() {
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
    assert!(begun.elapsed() < Duration::from_secs(10), "a waiting request does not delay the shutdown");
    let accepted = asked.await.unwrap().is(202);
    assert_eq!(accepted["run"], attached);
    let world = world.restart_stopped(Options::default()).await;
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap()), json!({"value": 1})).await.is(200);
    let again = world.client.post_as("k", "/v1/calls", json!({"tool": "ask", "wait_ms": 10_000})).await.is(200);
    assert_eq!((&again["run"], &again["outcome"]["value"]), (&json!(attached), &json!({"said": 1})));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_shutdown_refuses_connections_and_runs_continue_after_a_restart() {
    let mut world = World::new().await;
    let waiting = world.client.clone();
    let asked = tokio::spawn(async move {
        waiting.post("/v1/calls", json!({"tool": "slow", "args": {"ms": 200}, "wait_ms": 0})).await
    });
    let run = asked.await.unwrap().is(202)["run"].as_str().unwrap().to_owned();
    world.stop().await;
    assert!(tokio::net::TcpStream::connect(world.client.address).await.is_err(), "the server no longer listens");
    let world = world.restart_stopped(Options::default()).await;
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], "done");
}
