//! Reading runs, and commands on them.

use serde_json::json;

use crate::net::until;
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn w12_a_run_explains_why_it_does_not_continue() {
    let world = World::new().await;
    let run = world.start("ask", json!({"name": "the boss"})).await;
    let shown = world.run_in(&run, "suspended").await;
    assert_eq!(shown["parks"][0]["on"], json!({"kind": "input", "name": "the boss"}));
    assert!(shown["sentence"].as_str().unwrap().contains("when \"the boss\" is answered"), "{shown}");
    assert!(shown["created"].as_str().unwrap().ends_with('Z') && shown.get("outcomes").is_none());
    let why = world.client.get(&format!("/v1/runs/{run}/explain")).await.is(200);
    assert_eq!((&why["moves"][0]["why"], &why["moves"][0]["on"]["kind"]), (&json!("waits"), &json!("input")));
    assert!(why["moves"][0]["since"].as_str().unwrap().ends_with('Z'), "{why}");
    let unknown = "01900000-0000-7000-8000-000000000000";
    for path in ["", "/outcome", "/output", "/events", "/journal", "/trace", "/explain", "/export"] {
        world.client.get(&format!("/v1/runs/{unknown}{path}")).await.refused(404, "not_found");
        world.client.get(&format!("/v1/runs/7{path}")).await.refused(400, "bad_run_id");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l27_a_client_waits_for_the_end_of_a_run_that_another_client_started() {
    let world = World::new().await;
    let run = world.start("ask", json!({"name": "the boss"})).await;
    world.run_in(&run, "suspended").await;
    let (other, path) = (world.client.clone(), format!("/v1/runs/{run}/outcome?wait_ms=30000"));
    let waiting = tokio::spawn(async move { other.get(&path).await });
    let item = world.client.get("/v1/inbox").await.is(200)["items"][0].clone();
    let reply = format!("/v1/replies/{}", item["key"].as_str().unwrap());
    world.client.post(&reply, json!({"value": "yes"})).await.is(200);
    let ended = waiting.await.unwrap().is(200);
    let late = world.client.get(&format!("/v1/runs/{run}/outcome")).await.is(200);
    assert_eq!(ended["outcomes"], late["outcomes"], "the same after the end");
    assert_eq!(ended["outcomes"][0]["path"], "/");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_journal_is_read_in_pages_and_a_trace_as_a_tree() {
    let world = World::new().await;
    let answer = world.call("steps", json!({"n": 5})).await;
    let run = answer["run"].as_str().unwrap();
    let whole = world.client.get(&format!("/v1/runs/{run}/journal")).await.is(200);
    let all = whole["records"].as_array().unwrap().clone();
    assert!(all.len() > 5 && whole["next"].is_null());
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.client.get(&format!("/v1/runs/{run}/journal?limit=2{after}")).await.is(200);
        seen.extend(page["records"].as_array().unwrap().clone());
        match page["next"].as_u64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, all);
    assert_eq!(all[0]["asked"]["input"], json!({"n": 5}));
    let trace = world.client.get(&format!("/v1/runs/{run}/trace")).await.is(200);
    let kinds: Vec<&str> =
        trace["activities"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("run_started", "run_finished"));
}

#[tokio::test(flavor = "multi_thread")]
async fn e12_secret_arguments_are_hidden_except_in_an_export() {
    let world = World::new().await;
    let run = world.start("pay", json!({"cents": 500, "pin": "hunter2"})).await;
    let item = world.item().await;
    assert_eq!(item["args"], json!({"cents": 500, "pin": "•••"}));
    for path in ["", "/journal", "/trace", "/explain"] {
        let text = world.client.get(&format!("/v1/runs/{run}{path}")).await.is(200).to_string();
        assert!(!text.contains("hunter2"), "{path}: {text}");
    }
    let exported = world.client.get(&format!("/v1/runs/{run}/export")).await.is(200).to_string();
    assert!(exported.contains("hunter2"), "an export includes secrets");
}

#[tokio::test(flavor = "multi_thread")]
async fn l05_a_run_is_cancelled_once_under_a_key() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    world.run_in(&run, "suspended").await;
    let path = format!("/v1/runs/{run}/cancel");
    world.client.post_as("c1", &path, json!({"reason": "enough"})).await.is(202);
    let ended = world.run_in(&run, "finished").await;
    assert_eq!(ended["ending"], "cancelled");
    world.client.post_as("c1", &path, json!({"reason": "enough"})).await.is(202);
    world.client.post_as("c2", &path, json!({})).await.refused(409, "finished");
    let journal = world.client.get(&format!("/v1/runs/{run}/journal")).await.is(200).to_string();
    assert!(journal.contains("\"by\":\"local\"") && journal.contains("enough"), "{journal}");
    let bare = world.start("ask", json!({})).await;
    let answer = world.client.send("POST", &format!("/v1/runs/{bare}/cancel"), &[], "".into()).await;
    assert_eq!(answer.status, 202, "a cancellation needs no body");
}

#[tokio::test(flavor = "multi_thread")]
async fn w10_a_run_is_forked_and_compared() {
    let world = World::new().await;
    let run = world.call("charge", json!({"cents": 1})).await["run"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/fork");
    let fork = json!({"at": "start", "change": {"input": {"cents": 2}}});
    let first = world.client.post_as("f", &path, fork.clone()).await.is(201);
    assert_eq!(world.client.post_as("f", &path, fork).await.is(201), first);
    world.client.post_as("f", &path, json!({"at": "end"})).await.refused(422, "key_reused");
    let forked = first["run"].as_str().unwrap();
    let ended = world.client.get(&format!("/v1/runs/{forked}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"]["of"], 2);
    let compared = world.client.get(&format!("/v1/runs/{run}/compare/{forked}")).await.is(200);
    assert_eq!((&compared["first"]["what"], &compared["first"]["path"]), (&json!("asked"), &json!("/")));
    assert!(compared["first"]["differences"][0].as_str().unwrap().contains("/cents"), "{compared}");
    for bad in [
        json!({"at": "x"}),
        json!({"at": "start", "change": {}}),
        json!({"at": "start", "change": {"input": {}, "value": 1}}),
    ] {
        world.client.post(&path, bad).await.refused(422, "invalid_request");
    }
    world.client.post(&path, json!({"at": "9/9"})).await.refused(409, "conflict");
    let checked = world.client.post(&format!("/v1/runs/{run}/replay-check"), json!({})).await.is(200);
    assert_eq!(checked["fits"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn w09_a_run_is_exported_purged_imported_resumed_and_finished_by_hand() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    world.run_in(&run, "suspended").await;
    let document = world.client.get(&format!("/v1/runs/{run}/export")).await.is(200);
    world.client.delete(&format!("/v1/runs/{run}")).await.refused(409, "not_finished");
    world.client.post("/v1/runs/import", document.clone()).await.refused(409, "run_exists");
    world.client.post(&format!("/v1/runs/{run}/cancel"), json!({})).await.is(202);
    world.run_in(&run, "finished").await;
    world.client.delete(&format!("/v1/runs/{run}")).await.is(204);
    world.client.get(&format!("/v1/runs/{run}")).await.refused(404, "not_found");
    world.client.delete(&format!("/v1/runs/{run}")).await.refused(404, "not_found");

    let imported = world.client.post_as("i", "/v1/runs/import", document.clone()).await.is(201);
    assert_eq!((&imported["run"], &imported["state"]), (&json!(run), &json!("held")));
    assert_eq!(world.client.post_as("i", "/v1/runs/import", document).await.is(201)["run"], run);
    let held = world.client.get(&format!("/v1/runs/{run}")).await.is(200);
    assert_eq!(held["hold"]["reason"], "imported");
    assert!(held["hold"]["sentence"].as_str().unwrap().contains("then resume"), "{held}");
    let finish = json!({"value": {"said": "by hand"}, "reason": "there will be no answer"});
    let path = format!("/v1/runs/{run}/finish");
    let done = world.client.post_as("h", &path, finish.clone()).await.is(200);
    assert_eq!((&done["state"], &done["outcomes"][0]["value"]), (&json!("finished"), &json!({"said": "by hand"})));
    world.client.post_as("h", &path, finish.clone()).await.is(200);
    world.client.post(&path, finish).await.refused(409, "conflict");
    world.client.post(&path, json!({"reason": "?"})).await.refused(422, "invalid_request");
    world.client.post(&format!("/v1/runs/{run}/resume"), json!({})).await.refused(409, "finished");
    world.client.post("/v1/runs/import", json!({"windlass_run": 9})).await.refused(422, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_an_imported_run_continues_when_it_is_resumed() {
    let (here, there) = (World::new().await, World::new().await);
    let run = here.start("ask", json!({})).await;
    here.run_in(&run, "suspended").await;
    let document = here.client.get(&format!("/v1/runs/{run}/export")).await.is(200);
    there.client.post("/v1/runs/import", document).await.is(201);
    let path = format!("/v1/runs/{run}/resume");
    assert_eq!(there.client.send("POST", &path, &[], "".into()).await.status, 202);
    until(|| async {
        let run = there.client.get(&format!("/v1/runs/{run}")).await.is(200);
        (run["state"] == "suspended").then_some(())
    })
    .await;
    let again = there.client.send("POST", &path, &[], "".into()).await.refused(409, "conflict");
    assert!(again["detail"].as_str().unwrap().contains("the run is not held"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_an_undeclared_signal_is_refused() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    let answer = world.client.post(&format!("/v1/runs/{run}/signals/go"), json!({"value": 1})).await;
    assert!([409, 422].contains(&answer.status), "{answer:?}");
    let unknown = "01900000-0000-7000-8000-000000000000";
    world.client.post(&format!("/v1/runs/{unknown}/signals/go"), json!({})).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn w10_a_value_at_the_depth_limit_is_accepted_and_returned() {
    let world = World::new().await;
    // The object around it and the value itself are levels too.
    let nested = |levels: usize| (1..levels).fold(json!(7), |inner, _| json!([inner]));
    let cents = nested(windlass::limits::VALUE_DEPTH - 2);
    let charged = world.call("charge", json!({"cents": cents})).await;
    let run = charged["run"].as_str().unwrap().to_owned();
    let shown = world.client.get(&format!("/v1/runs/{run}/outcome")).await.is(200);
    assert!(shown.to_string().contains("[[[[7]]]]"), "{shown}");
    let document = world.client.get(&format!("/v1/runs/{run}/export")).await.is(200);
    world.client.delete(&format!("/v1/runs/{run}")).await;
    assert_eq!(world.client.post("/v1/runs/import", document).await.is(201)["run"], run);
    let waits = world.start("ask", json!({})).await;
    let item = world.item().await;
    let path = format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap());
    let deeper = nested(windlass::limits::VALUE_DEPTH + 1);
    world.client.post(&path, json!({"value": deeper})).await.refused(422, "invalid_request");
    world.client.post(&path, json!({"value": cents})).await.is(200);
    assert_eq!(world.run_in(&waits, "finished").await["state"], "finished");
    let far = nested(1_000);
    world
        .client
        .post("/v1/calls", json!({"tool": "charge", "args": {"cents": far}}))
        .await
        .refused(400, "malformed_json");
}
