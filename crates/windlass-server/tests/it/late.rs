//! Answers that come twice, late, or in the middle of anything: each is told over HTTP what is true.

use serde_json::{Value, json};
use windlass::{Ctx, Tool, ToolCall, ToolError};

use crate::net::until;
use crate::world::World;

/// Runs of each kind: what is wrong here is wrong in a few of a thousand.
const RUNS: usize = 60;

/// A body with two calls at once of which nobody can tell whether they happened.
fn twins() -> [Tool; 2] {
    let unclear = Tool::new("unclear", "Cannot tell.", |_: Value| async {
        Err::<Value, _>(ToolError::in_doubt("the line went dead"))
    });
    let twins = Tool::durable_fn("twins", "two at once", |mut ctx: Ctx, _: Value| async move {
        let unclear = || ToolCall::<Value>::new("unclear", json!({}));
        let (a, b) = ctx.call_all((unclear(), unclear())).await?;
        Ok(json!([a, b]))
    });
    [unclear, twins]
}

async fn items(world: &World, run: &str, count: usize) -> Vec<Value> {
    until(|| async {
        let inbox = world.client.get(&format!("/v1/inbox?run={run}")).await.is(200);
        let items = inbox["items"].as_array().unwrap().clone();
        (items.len() == count).then_some(items)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn w01_l08_two_doubts_of_a_run_are_settled_one_right_after_the_other() {
    let world = World::new().await;
    for tool in twins() {
        world.windlass.toolbox().insert(tool).unwrap();
    }
    for n in 0..RUNS {
        let run = world.start("twins", json!({})).await;
        let mut said = Vec::new();
        for (index, item) in items(&world, &run, 2).await.iter().enumerate() {
            let settle = format!("/v1/inbox/{}/settle", item["id"].as_str().unwrap());
            let happened = json!({"settlement": "happened", "value": index, "reason": "looked"});
            let (own, other) = (format!("own-{n}-{index}"), format!("other-{n}-{index}"));
            said.push((settle, happened, own, other));
        }
        // Both before anything else, then each again under its own key, and a late one.
        for (settle, happened, own, _) in &said {
            world.client.post_as(own, settle, happened.clone()).await.is(200);
        }
        for (settle, happened, own, other) in &said {
            world.client.post_as(own, settle, happened.clone()).await.is(200);
            let late = json!({"settlement": "give_up", "reason": "late"});
            let problem = world.client.post_as(other, settle, late).await.refused(409, "already_decided");
            assert_eq!(problem["counted"], json!({"what": "happened", "by": "local", "reason": "looked"}));
        }
        let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
        assert_eq!(ended["outcomes"][0]["value"], json!([0, 1]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l08_of_two_answers_at_once_one_counts_and_the_other_is_told_which() {
    let world = World::new().await;
    for n in 0..RUNS {
        let run = world.start("ask", json!({})).await;
        let item = items(&world, &run, 1).await.remove(0);
        let reply = format!("/v1/replies/{}", item["key"].as_str().unwrap());
        let answer = format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap());
        // One by the key, the other by the inbox.
        let ways =
            [(format!("a{n}"), &reply, json!({"value": "a"})), (format!("b{n}"), &answer, json!({"value": "b"}))];
        let post =
            async |(key, path, body): &(String, &String, Value)| world.client.post_as(key, path, body.clone()).await;
        let (a, b) = tokio::join!(post(&ways[0]), post(&ways[1]));
        let (winner, loser, late) = if a.status == 200 { (&ways[0], &ways[1], b) } else { (&ways[1], &ways[0], a) };
        let terminal = json!({"value": winner.2["value"]});
        assert_eq!(late.refused(409, "already_resolved")["terminal"], terminal);
        post(winner).await.is(200);
        assert_eq!(post(loser).await.refused(409, "already_resolved")["terminal"], terminal);
        let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
        assert!(ended["outcomes"][0]["value"].to_string().contains(winner.2["value"].as_str().unwrap()), "{ended}");
        post(winner).await.is(200);
        assert_eq!(post(loser).await.refused(409, "already_resolved")["terminal"], terminal);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w07_a_check_says_that_a_call_waits_for_its_connection() {
    let world = World::new().await;
    let check = world.client.post("/v1/tools/mail/check", json!({"args": {}})).await.is(200);
    assert_eq!((&check["verdict"], &check["valid"]), (&json!("needs_connection"), &json!(true)), "{check}");
    let run = world.start("mail", json!({})).await;
    assert_eq!(items(&world, &run, 1).await[0]["kind"], "connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn l08_what_was_said_of_a_connection_is_confirmed_or_told_after_a_restart() {
    let mut world = World::new().await;
    for (n, (said, other, counted)) in [
        (json!({}), json!({"refused": "no"}), json!({"what": "connected", "by": "a person", "reason": ""})),
        (json!({"refused": "no"}), json!({}), json!({"what": "refused", "by": "a person", "reason": "no"})),
    ]
    .into_iter()
    .enumerate()
    {
        let run = world.start("mail", json!({})).await;
        let connect = format!("/v1/inbox/{}/connect", items(&world, &run, 1).await[0]["id"].as_str().unwrap());
        let (own, late) = (format!("own-{n}"), format!("late-{n}"));
        world.client.post_as(&own, &connect, said.clone()).await.is(200);
        world.run_in(&run, "finished").await;
        world = world.restart(windlass_server::Options::default()).await;
        world.client.post_as(&own, &connect, said).await.is(200);
        let problem = world.client.post_as(&late, &connect, other).await.refused(409, "already_decided");
        assert_eq!(problem["counted"], counted);
    }
}
