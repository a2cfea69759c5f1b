//! The inbox: approvals, doubts, inputs, connections, and answers by reply key.

use std::time::Instant;

use serde_json::{Value, json};
use windlass::{Tool, ToolError};
use windlass_server::Options;

use crate::net::until;
use crate::world::World;

fn id(item: &Value) -> String {
    item["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn w02_a_call_is_approved_once_and_a_late_decision_gets_the_first() {
    let world = World::new().await;
    let run = world.start("pay", json!({"cents": 500})).await;
    let item = world.item().await;
    assert_eq!((&item["kind"], &item["run"], &item["tool"]), (&json!("approval"), &json!(run), &json!("pay")));
    assert!(item["why"].as_str().unwrap().contains("args.cents > 100"), "{item}");
    assert!(item["sentence"].as_str().unwrap().contains("approve or deny"), "{item}");
    assert!(item.get("idempotency_key").is_none(), "no attempt was made: {item}");
    let (approve, deny) = (format!("/v1/inbox/{}/approve", id(&item)), format!("/v1/inbox/{}/deny", id(&item)));
    world.client.post_as("a1", &approve, json!({"reason": "it is fine"})).await.is(200);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], json!({"paid": 1}));
    world.client.post_as("a1", &approve, json!({"reason": "it is fine"})).await.is(200);
    let late = world.client.post_as("d1", &deny, json!({"reason": "no"})).await.refused(409, "already_decided");
    assert_eq!(late["first_decision"], json!({"decision": "approved", "by": "local", "reason": "it is fine"}));
    world.client.post(&approve, json!({"reason": "it is fine"})).await.refused(409, "already_decided");
    assert_eq!(world.ledger.count(), 1);
    let journal = world.client.get(&format!("/v1/runs/{run}/journal")).await.is(200).to_string();
    assert!(journal.contains("\"type\":\"granted\"") && journal.contains("\"by\":\"local\""), "{journal}");
    world
        .client
        .post(&format!("/v1/inbox/{}/settle", id(&item)), json!({"settlement": "give_up", "reason": "?"}))
        .await
        .refused(409, "wrong_action");
    world.client.post("/v1/inbox/nothing/approve", json!({})).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn w02_a_denied_call_is_not_made_and_its_run_ends() {
    let world = World::new().await;
    let run = world.start("pay", json!({"cents": 500})).await;
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/deny", id(&item)), json!({"reason": "too dear"})).await.is(200);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    let error = &ended["outcomes"][0]["error"];
    assert_eq!((&error["kind"], &error["message"]), (&json!("denied"), &json!("denied by local: too dear")));
    let late =
        world.client.post(&format!("/v1/inbox/{}/approve", id(&item)), json!({})).await.refused(409, "already_decided");
    assert_eq!(late["first_decision"], json!({"decision": "denied", "by": "local", "reason": "too dear"}));
    assert_eq!(world.ledger.count(), 0);
    let cheap = world.call("pay", json!({"cents": 5})).await;
    assert_eq!(cheap["outcome"]["value"], json!({"paid": 1}), "it needs no approval");
}

#[tokio::test(flavor = "multi_thread")]
async fn w01_a_doubt_is_settled_by_a_person_and_the_first_settlement_counts() {
    let world = World::new().await;
    let run = world.start("hang", json!({"x": 1})).await;
    until(|| async {
        let journal = world.client.get(&format!("/v1/runs/{run}/journal")).await.is(200).to_string();
        journal.contains("intended").then_some(())
    })
    .await;
    // The shutdown drops attempts in flight, and a dropped `once` attempt is in doubt.
    world.windlass.shutdown_within(std::time::Duration::ZERO).await.unwrap();
    let world = world.restart(Options::default()).await;
    let item = world.item().await;
    assert_eq!((&item["kind"], &item["args"]), (&json!("doubt"), &json!({"x": 1})));
    // The idempotency key finds the attempt in the books of the other system, so it is shown wherever the doubt is.
    let key = json!(format!("{run}.0"));
    assert_eq!(item["idempotency_key"], key);
    let shown = world.client.get(&format!("/v1/runs/{run}")).await.is(200);
    assert_eq!(shown["doubts"][0]["idempotency_key"], key);
    let explained = world.client.get(&format!("/v1/runs/{run}/explain")).await.is(200);
    assert_eq!((&explained["moves"][0]["why"], &explained["moves"][0]["idempotency_key"]), (&json!("in_doubt"), &key));
    let trace = world.client.get(&format!("/v1/runs/{run}/trace")).await.is(200);
    for kind in ["call_started", "attempt_started", "in_doubt"] {
        let event = trace["activities"].as_array().unwrap().iter().find(|activity| activity["kind"] == kind).unwrap();
        assert_eq!(event["idempotency_key"], key, "{kind}");
    }
    let settle = format!("/v1/inbox/{}/settle", id(&item));
    for bad in [
        json!({"settlement": "happened"}),
        json!({"settlement": "maybe", "reason": "?"}),
        json!({"settlement": "give_up", "value": 1, "reason": "?"}),
    ] {
        world.client.post(&settle, bad).await.refused(422, "invalid_request");
    }
    let happened = json!({"settlement": "happened", "value": {"receipt": 7}, "reason": "the bank says so"});
    world.client.post_as("s", &settle, happened.clone()).await.is(200);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], json!({"receipt": 7}));
    world.client.post_as("s", &settle, happened).await.is(200);
    let late = json!({"settlement": "give_up", "reason": "late"});
    let problem = world.client.post_as("t", &settle, late).await.refused(409, "already_decided");
    assert_eq!(problem["first_decision"], json!({"decision": "happened", "by": "local", "reason": "the bank says so"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn b06_b09_the_time_for_an_approval_is_part_of_the_time_of_the_call() {
    let world = World::new().await;
    let run = world.start("pay", json!({"cents": 500})).await;
    let began = Instant::now();
    world.run_in(&run, "suspended").await;
    let item = world.item().await;
    let waited = began.elapsed().as_secs_f64() * 1e3;
    world.client.post(&format!("/v1/inbox/{}/approve", id(&item)), json!({})).await.is(200);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    let times = &ended["outcomes"][0]["times"];
    let milliseconds = |name: &str| times[name].as_f64().unwrap();
    assert!(milliseconds("total_ms") >= waited && milliseconds("queued_ms") >= waited, "{waited} ms, {times}");
    assert!(milliseconds("running_ms") >= 0.0, "{times}");
}

#[tokio::test(flavor = "multi_thread")]
async fn w01_the_report_of_an_unclear_attempt_is_in_the_inbox_and_in_the_run() {
    let world = World::new().await;
    let unclear = Tool::new("unclear", "Cannot tell.", |_: Value| async {
        Err::<Value, _>(ToolError::in_doubt("the line went dead"))
    });
    world.windlass.toolbox().insert(unclear).unwrap();
    let run = world.start("unclear", json!({})).await;
    let item = world.item().await;
    assert_eq!(item["why"], "the attempt itself could not tell: the line went dead");
    assert!(item["sentence"].as_str().unwrap().contains("could not tell: the line went dead"), "{item}");
    let shown = world.client.get(&format!("/v1/runs/{run}")).await.is(200);
    let doubt = &shown["doubts"][0];
    assert_eq!((&doubt["cause"], &doubt["said"]), (&json!("unclear"), &json!("the line went dead")));
    for of in ["journal", "explain", "trace"] {
        let text = world.client.get(&format!("/v1/runs/{run}/{of}")).await.is(200).to_string();
        assert!(text.contains("the line went dead"), "{of}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l07_an_input_is_answered_by_its_reply_key_and_a_forged_key_is_refused() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    let item = world.item().await;
    let key = item["key"].as_str().unwrap().to_owned();
    let (start, end) = key.split_at(key.len() - 3);
    let other = if end.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{start}{other}{}", &end[1..]);
    for bad in [forged.as_str(), "x", "wlk1_", "wlk1_AAAA", "%00"] {
        world.client.post(&format!("/v1/replies/{bad}"), json!({"value": 1})).await.refused(404, "not_found");
    }
    let reply = format!("/v1/replies/{key}");
    for bad in [json!({}), json!({"value": 1, "cancelled": true}), json!({"error": {"message": "x"}, "value": 1})] {
        world.client.post(&reply, bad).await.refused(422, "invalid_request");
    }
    assert_eq!(
        world.client.post_as("r", &reply, json!({"value": null})).await.is(200),
        json!({"resolved": "accepted"})
    );
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], json!({"said": null}));
    world.client.post_as("r", &reply, json!({"value": null})).await.is(200);
    let late = world.client.post(&reply, json!({"value": 2})).await.refused(409, "already_resolved");
    assert_eq!(late["first_answer"], json!({"value": null}));
    let answer = format!("/v1/inbox/{}/answer", id(&item));
    world.client.post(&answer, json!({"value": 2})).await.refused(409, "already_resolved");
}

#[tokio::test(flavor = "multi_thread")]
async fn l07_a_reply_key_of_a_finished_run_is_refused() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    let key = world.item().await["key"].as_str().unwrap().to_owned();
    world.client.post(&format!("/v1/runs/{run}/cancel"), json!({})).await.is(202);
    world.run_in(&run, "finished").await;
    let answer = world.client.post(&format!("/v1/replies/{key}"), json!({"value": 1})).await;
    assert!([409, 410].contains(&answer.status), "{answer:?}");
    world.client.delete(&format!("/v1/runs/{run}")).await.is(204);
    world.client.post(&format!("/v1/replies/{key}"), json!({"value": 1})).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_connection_lets_all_waiting_runs_continue() {
    let world = World::new().await;
    let runs = [world.start("mail", json!({})).await, world.start("mail", json!({})).await];
    let items = until(|| async {
        let page = world.client.get("/v1/inbox?kind=connection").await.is(200);
        let items = page["items"].as_array().unwrap().clone();
        (items.len() == 2).then_some(items)
    })
    .await;
    assert_eq!(items[0]["why"], "post");
    assert_eq!(world.client.post_as("c", "/v1/connections/post", json!({})).await.is(200)["runs"], 2);
    for run in runs {
        let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
        assert_eq!(ended["outcomes"][0]["value"], "sent");
    }
    assert_eq!(world.client.post("/v1/connections/unused", json!({"refused": "no"})).await.is(200)["runs"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn w02_a_bulk_decision_has_a_result_for_each_item() {
    let world = World::new().await;
    for cents in [200, 300, 400] {
        world.start("pay", json!({"cents": cents})).await;
    }
    world.start("ask", json!({})).await;
    let items = until(|| async {
        let page = world.client.get("/v1/inbox").await.is(200);
        let items = page["items"].as_array().unwrap().clone();
        (items.len() == 4).then_some(items)
    })
    .await;
    let kinds: Vec<&str> = items.iter().map(|item| item["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "approval").count(), 3);
    let input = items.iter().find(|item| item["kind"] == "input").unwrap();
    let approval = items.iter().find(|item| item["kind"] == "approval").unwrap();
    let named = json!({"action": "deny", "ids": [id(approval), id(input), "x"], "reason": "no"});
    let results = world.client.post("/v1/inbox", named).await.is(200)["results"].clone();
    let oks: Vec<bool> = results.as_array().unwrap().iter().map(|one| one["ok"].as_bool().unwrap()).collect();
    assert_eq!(oks, [true, false, false]);
    assert_eq!(results[1]["problem"]["type"], "urn:windlass:problem:wrong_action");
    until(|| async {
        let page = world.client.get("/v1/inbox?kind=approval").await.is(200);
        (page["items"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    assert!(world.client.get("/v1/inbox?kind=approval&limit=1").await.is(200)["next"].is_string());
    let all = json!({"action": "approve", "filter": {"tool": "pay"}, "reason": "all of them"});
    let results = world.client.post("/v1/inbox", all).await.is(200);
    assert_eq!(results["results"].as_array().unwrap().len(), 2);
    until(|| async { (world.ledger.count() == 2).then_some(()) }).await;
    for bad in [
        json!({"action": "approve"}),
        json!({"action": "approve", "ids": [], "filter": {}}),
        json!({"action": "approve", "ids": [], "settlement": "give_up"}),
    ] {
        world.client.post("/v1/inbox", bad).await.refused(422, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w02_the_inbox_is_listed_in_pages() {
    let world = World::new().await;
    for n in 0..5 {
        world.start("ask", json!({"name": format!("q{n}")})).await;
    }
    until(|| async {
        let page = world.client.get("/v1/inbox").await.is(200);
        (page["items"].as_array().unwrap().len() == 5).then_some(())
    })
    .await;
    let (mut seen, mut next) = (std::collections::BTreeSet::new(), String::new());
    loop {
        let page = world.client.get(&format!("/v1/inbox?limit=2{next}")).await.is(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["why"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
}
