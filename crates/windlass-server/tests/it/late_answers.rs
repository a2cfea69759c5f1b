//! Repeated, late and concurrent decisions: the first one counts, and the others learn it.

use serde_json::{Value, json};
use windlass::{Ctx, Tool, ToolCall, ToolError};

use crate::net::until;
use crate::world::World;

/// Repetitions: a race shows in a few of a thousand.
const RUNS: usize = 60;

/// A durable tool with two concurrent calls that both end in doubt.
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
async fn w01_l08_two_doubts_of_a_run_are_settled_in_quick_succession() {
    let world = World::new().await;
    for tool in twins() {
        world.windlass.toolbox().insert(tool).unwrap();
    }
    for n in 0..RUNS {
        let run = world.start("twins", json!({})).await;
        let mut decisions = Vec::new();
        for (index, item) in items(&world, &run, 2).await.iter().enumerate() {
            let settle = format!("/v1/inbox/{}/settle", item["id"].as_str().unwrap());
            let happened = json!({"settlement": "happened", "value": index, "reason": "looked"});
            let (own, other) = (format!("own-{n}-{index}"), format!("other-{n}-{index}"));
            decisions.push((settle, happened, own, other));
        }
        // First both, then each again under its own key, and a late one under another key.
        for (settle, happened, own, _) in &decisions {
            world.client.post_as(own, settle, happened.clone()).await.is(200);
        }
        for (settle, happened, own, other) in &decisions {
            world.client.post_as(own, settle, happened.clone()).await.is(200);
            let late = json!({"settlement": "give_up", "reason": "late"});
            let problem = world.client.post_as(other, settle, late).await.refused(409, "already_decided");
            assert_eq!(problem["first_decision"], json!({"decision": "happened", "by": "local", "reason": "looked"}));
        }
        let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
        assert_eq!(ended["outcomes"][0]["value"], json!([0, 1]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l08_of_two_concurrent_answers_one_counts_and_the_other_gets_the_first() {
    let world = World::new().await;
    for n in 0..RUNS {
        let run = world.start("ask", json!({})).await;
        let item = items(&world, &run, 1).await.remove(0);
        let reply = format!("/v1/replies/{}", item["key"].as_str().unwrap());
        let answer = format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap());
        // One by reply key, the other by the inbox.
        let ways =
            [(format!("a{n}"), &reply, json!({"value": "a"})), (format!("b{n}"), &answer, json!({"value": "b"}))];
        let post =
            async |(key, path, body): &(String, &String, Value)| world.client.post_as(key, path, body.clone()).await;
        let (a, b) = tokio::join!(post(&ways[0]), post(&ways[1]));
        let (winner, loser, late) = if a.status == 200 { (&ways[0], &ways[1], b) } else { (&ways[1], &ways[0], a) };
        let first = json!({"value": winner.2["value"]});
        assert_eq!(late.refused(409, "already_resolved")["first_answer"], first);
        post(winner).await.is(200);
        assert_eq!(post(loser).await.refused(409, "already_resolved")["first_answer"], first);
        let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
        assert!(ended["outcomes"][0]["value"].to_string().contains(winner.2["value"].as_str().unwrap()), "{ended}");
        post(winner).await.is(200);
        assert_eq!(post(loser).await.refused(409, "already_resolved")["first_answer"], first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w07_a_check_predicts_that_a_call_waits_for_its_connection() {
    let world = World::new().await;
    let check = world.client.post("/v1/tools/mail/check", json!({"args": {}})).await.is(200);
    assert_eq!((&check["verdict"], &check["valid"]), (&json!("needs_connection"), &json!(true)), "{check}");
    let run = world.start("mail", json!({})).await;
    assert_eq!(items(&world, &run, 1).await[0]["kind"], "connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn l08_a_decision_about_a_connection_is_confirmed_or_refused_after_a_restart() {
    let mut world = World::new().await;
    for (n, (decision, other, first)) in [
        // The refusal first: a connection is kept, so a later call would not ask.
        (json!({"refused": "no"}), json!({}), json!({"decision": "refused", "by": "a person", "reason": "no"})),
        (json!({}), json!({"refused": "no"}), json!({"decision": "connected", "by": "a person", "reason": ""})),
    ]
    .into_iter()
    .enumerate()
    {
        let run = world.start("mail", json!({})).await;
        let connect = format!("/v1/inbox/{}/connect", items(&world, &run, 1).await[0]["id"].as_str().unwrap());
        let (own, late) = (format!("own-{n}"), format!("late-{n}"));
        world.client.post_as(&own, &connect, decision.clone()).await.is(200);
        world.run_in(&run, "finished").await;
        world = world.restart(windlass_server::Options::default()).await;
        world.client.post_as(&own, &connect, decision).await.is(200);
        let problem = world.client.post_as(&late, &connect, other).await.refused(409, "already_decided");
        assert_eq!(problem["first_decision"], first);
    }
}
