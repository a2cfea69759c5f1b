//! Calls and batches: with and without waiting, and repeated under a key.

use serde_json::json;
use windlass::limits;
use windlass_server::Options;

use crate::net::until;
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn w12_a_202_response_says_why_there_is_no_outcome_and_what_the_run_waits_for() {
    let world = World::new().await;
    let call = json!({"tool": "pay", "args": {"cents": 500}, "wait_ms": 0});
    let first = world.client.post_as("k", "/v1/calls", call.clone()).await.is(202);
    let run = first["run"].as_str().unwrap();
    world.run_in(run, "suspended").await;
    let accepted = world.client.post_as("k", "/v1/calls", call).await.is(202);
    let outcome = world.client.get(&format!("/v1/runs/{run}/outcome")).await.is(202);
    for answer in [&accepted, &outcome] {
        assert_eq!((&answer["run"], &answer["state"]), (&json!(run), &json!("suspended")));
        let sentence = answer["sentence"].as_str().unwrap();
        assert!(sentence.contains("approve or deny this call of `pay`"), "{sentence}");
        let [one] = answer["moves"].as_array().unwrap().as_slice() else { panic!("{answer}") };
        assert_eq!((&one["path"], &one["why"], &one["on"]["kind"]), (&json!("/"), &json!("waits"), &json!("approval")));
        assert!(answer.get("access").is_none(), "no token is needed here: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_call_is_answered_with_its_outcome_even_if_it_failed() {
    let world = World::new().await;
    let answer = world.call("add", json!({"a": 1, "b": 2})).await;
    assert_eq!(answer["outcome"]["value"], 3);
    assert!(answer["outcome"]["times"]["total_ms"].as_f64().unwrap() >= 0.0);
    let failed = world.call("fail", json!({})).await;
    let error = &failed["outcome"]["error"];
    assert_eq!(
        (&error["kind"], &error["code"], &error["message"]),
        (&json!("failed"), &json!("no_luck"), &json!("not today"))
    );
    let invalid = world.call("add", json!({"a": "x"})).await;
    assert_eq!(invalid["outcome"]["error"]["kind"], "invalid_arguments");
    assert_eq!(invalid["outcome"]["error"]["violations"].as_array().unwrap().len(), 2);
    let unknown = world.call("ad", json!({})).await;
    assert_eq!(unknown["outcome"]["error"]["message"], "there is no tool `ad`; did you mean `add`?");
    let named = world.client.post("/v1/calls", json!({"tool": "add", "args": {"a": 1, "b": 1}, "call_id": "c1"})).await;
    assert_eq!(named.is(200)["outcome"]["call_id"], "c1");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_slow_call_is_accepted_and_its_outcome_is_read_later() {
    let world = World::new().await;
    let answer = world.client.post("/v1/calls", json!({"tool": "slow", "args": {"ms": 300}, "wait_ms": 1})).await;
    let location = answer.header("location").to_owned();
    let accepted = answer.is(202);
    assert_eq!(location, format!("/v1/runs/{}", accepted["run"].as_str().unwrap()));
    assert_eq!(world.client.get(&format!("{location}/outcome")).await.status, 202);
    let ended = world.client.get(&format!("{location}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!((&ended["run"], &ended["outcomes"][0]["value"]), (&accepted["run"], &json!("done")));
    let run = world.client.get(&location).await.is(200);
    assert_eq!(
        (&run["state"], &run["ending"], &run["outcomes"][0]["value"]),
        (&json!("finished"), &json!("ok"), &json!("done"))
    );
    assert!(run["sentence"].as_str().unwrap().contains("succeeded"), "{run}");
    world.client.post("/v1/calls", json!({"tool": "add", "wait_ms": 300_001})).await.refused(422, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_batch_is_one_run_with_outcomes_in_order() {
    let world = World::new().await;
    let calls = json!({"calls": [
        {"tool": "add", "args": {"a": 1, "b": 1}, "call_id": "x"}, {"tool": "fail"},
        {"tool": "charge", "args": {"cents": 5}},
    ]});
    let answer = world.client.post("/v1/batches", calls.clone()).await.is(200);
    let outcomes = answer["outcomes"].as_array().unwrap();
    assert_eq!((outcomes.len(), &outcomes[0]["call_id"], &outcomes[0]["value"]), (3, &json!("x"), &json!(2)));
    assert_eq!((&outcomes[1]["error"]["kind"], &outcomes[2]["path"]), (&json!("failed"), &json!("2")));
    let stopped = json!({"calls": [{"tool": "fail"}, {"tool": "charge"}], "stop_on_failure": true});
    let answer = world.client.post("/v1/batches", stopped).await.is(200);
    assert_eq!(answer["outcomes"][1]["error"]["kind"], "cancelled");
    assert_eq!(world.ledger.count(), 1);
    world.client.post("/v1/batches", json!({"calls": []})).await.refused(422, "invalid_request");
    let first = world.client.post_as("b", "/v1/batches", calls.clone()).await.is(200);
    let again = world.client.post_as("b", "/v1/batches", calls).await.is(200);
    assert_eq!((&first["run"], world.ledger.count()), (&again["run"], 2));
    let other = json!({"calls": [{"tool": "charge"}]});
    world.client.post_as("b", "/v1/batches", other).await.refused(422, "key_reused");
}

#[tokio::test(flavor = "multi_thread")]
async fn l12_a_key_makes_a_call_once_also_across_a_restart() {
    let world = World::new().await;
    let call = json!({"tool": "charge", "args": {"cents": 5}});
    let first = world.client.post_as("order-1", "/v1/calls", call.clone()).await.is(200);
    let again = world.client.post_as("order-1", "/v1/calls", call.clone()).await.is(200);
    assert_eq!(first["run"], again["run"]);
    assert_eq!(first["outcome"]["value"], again["outcome"]["value"]);
    let problem = world
        .client
        .post_as("order-1", "/v1/calls", json!({"tool": "charge", "args": {"cents": 6}}))
        .await
        .refused(422, "key_reused");
    assert_eq!(problem["run"], first["run"]);
    world.client.post_as("order-1", "/v1/calls", json!({"tool": "add"})).await.refused(422, "key_reused");
    let world = world.restart(Options::default()).await;
    let later = world.client.post_as("order-1", "/v1/calls", call.clone()).await.is(200);
    assert_eq!((&later["run"], world.ledger.count()), (&first["run"], 1));
    for key in ["", "with space", "ü", &"k".repeat(256)] {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let answer = world.client.send("POST", "/v1/calls", &headers, call.to_string().into()).await;
        answer.refused(400, "bad_key");
    }
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn l12_concurrent_requests_with_one_key_get_one_run() {
    let world = World::new().await;
    let ask = || {
        let client = world.client.clone();
        async move { client.post_as("k", "/v1/calls", json!({"tool": "charge", "args": {"cents": 1}})).await.is(200) }
    };
    let answers = futures_util::future::join_all((0..32).map(|_| ask())).await;
    assert!(answers.iter().all(|answer| answer["run"] == answers[0]["run"]));
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn l13_the_outcome_of_a_run_is_read_after_a_restart() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    world.run_in(&run, "suspended").await;
    let world = world.restart(Options::default()).await;
    let item = world.item().await;
    let path = format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap());
    world.client.post(&path, json!({"value": "hi"})).await.is(200);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], json!({"said": "hi"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_calls_with_a_session_are_listed_in_it() {
    let world = World::new().await;
    let call = json!({"tool": "charge", "args": {}, "session": "s 1"});
    let answer = world.client.post("/v1/calls", call).await.is(200);
    let runs = world.client.get("/v1/runs?session=s%201").await.is(200);
    assert_eq!((runs["runs"].as_array().unwrap().len(), &runs["runs"][0]["id"]), (1, &answer["run"]));
    world.client.post("/v1/calls", json!({"tool": "add", "session": ""})).await.refused(422, "invalid_request");
    let events =
        world.client.send("GET", "/v1/sessions/s%201/events", &[("accept", "application/json")], "".into()).await;
    let page = events.is(200);
    assert!(page["events"].as_array().unwrap().iter().all(|event| event["run"] == answer["run"]), "{page}");
    until(|| async { (world.ledger.count() == 1).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e13_the_same_call_repeated_in_one_session_is_refused() {
    let world = World::new().await;
    let call = |session: &str| json!({"tool": "add", "args": {"a": 1, "b": 2}, "session": session});
    for n in 0..limits::LOOP_LIMIT {
        let answer = world.client.post_as(&format!("k{n}"), "/v1/calls", call("s")).await.is(200);
        assert_eq!(answer["outcome"]["value"], 3, "{answer}");
    }
    let refused = world.client.post("/v1/calls", call("s")).await.is(200);
    let error = &refused["outcome"]["error"];
    assert_eq!(error["kind"], "failed");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("refused: `add` was called 5 times") && message.contains("do something else"),
        "{message}"
    );
    assert_eq!(error["code"], "loop");
    // The store keeps the count, so another server continues it.
    let world = world.restart(Options::default()).await;
    assert_eq!(world.client.post("/v1/calls", call("s")).await.is(200)["outcome"]["error"]["code"], "loop");
    // A repeated request with a key is not a new call.
    let again = world.client.post_as("k0", "/v1/calls", call("s")).await.is(200);
    assert_eq!(again["outcome"]["value"], 3, "{again}");
    let batch = json!({"session": "s", "calls": [
        {"tool": "add", "args": {"a": 1, "b": 2}}, {"tool": "add", "args": {"a": 2, "b": 2}}
    ]});
    let outcomes = world.client.post("/v1/batches", batch).await.is(200)["outcomes"].clone();
    assert_eq!((&outcomes[0]["error"]["kind"], &outcomes[1]["value"]), (&json!("failed"), &json!(4)));
    // The session has made another call meanwhile, and other sessions are not affected.
    for session in ["s", "another"] {
        assert_eq!(world.client.post("/v1/calls", call(session)).await.is(200)["outcome"]["value"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l04_a_batch_is_answered_with_the_identity_of_its_records() {
    let world = World::new().await;
    let calls = json!([{"tool": "add", "args": {"a": 1, "b": 2}, "call_id": "c1"}, {"tool": "nothing"}]);
    let first = world.client.post("/v1/batches", json!({ "calls": calls })).await.is(200);
    let identity = first["identity"].as_str().expect("an identity").to_owned();
    let again = world.client.post("/v1/batches", json!({ "calls": calls })).await.is(200);
    assert_eq!(again["identity"], identity.as_str(), "the same calls");
    let other = json!([{"tool": "add", "args": {"a": 1, "b": 3}, "call_id": "c1"}, {"tool": "nothing"}]);
    let other = world.client.post("/v1/batches", json!({ "calls": other })).await.is(200);
    assert_ne!(other["identity"], identity.as_str());
    let run = first["run"].as_str().unwrap();
    let read = world.client.get(&format!("/v1/runs/{run}/outcome")).await.is(200);
    assert_eq!((&read["identity"], &read["settled"]), (&json!(identity), &json!([0, 1])));
    let trace = world.client.get(&format!("/v1/runs/{run}/trace")).await.is(200).to_string();
    assert!(trace.contains(&identity), "{trace}");
    let one = world.call("add", json!({"a": 1, "b": 2})).await;
    let read = world.client.get(&format!("/v1/runs/{}/outcome", one["run"].as_str().unwrap())).await.is(200);
    assert_eq!((read.get("identity"), read.get("settled")), (None, None));
}
