//! Client tools.

use serde_json::json;
use windlass_server::Options;

use crate::net::until;
use crate::world::World;

fn screen_tool() -> serde_json::Value {
    json!({"tools": [{"name": "screen", "description": "What is on the screen.", "effect": "readonly",
        "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": false}}], "everywhere": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_a_call_is_sent_to_its_client_which_answers_by_reply_key() {
    let world = World::new().await;
    let client = world.client.post("/v1/clients", screen_tool()).await.is(201);
    assert_eq!(client["tools"], json!(["screen"]));
    let path = format!("/v1/clients/{}/calls", client["client"].as_str().unwrap());
    let mut calls = world.client.events(&path, &[]).await;
    let asking = world.client.clone();
    let asked =
        tokio::spawn(async move { asking.post("/v1/calls", json!({"tool": "screen", "args": {"x": 1}})).await });
    let call = calls.until("call").await.data;
    assert_eq!((&call["tool"], &call["args"], &call["path"]), (&json!("screen"), &json!({"x": 1}), &json!("/")));
    assert!(call["until"].is_string());
    let key = call["key"].as_str().unwrap();
    world.client.post(&format!("/v1/replies/{key}"), json!({"value": {"pixels": 7}})).await.is(200);
    let answer = asked.await.unwrap().is(200);
    assert_eq!((&answer["run"], &answer["outcome"]["value"]), (&call["run"], &json!({"pixels": 7})));
    let refused = world.client.post(&format!("/v1/replies/{key}"), json!({"value": 2})).await;
    refused.refused(409, "already_resolved");
    let invalid = world.call("screen", json!({"y": 1})).await;
    assert_eq!(invalid["outcome"]["error"]["kind"], "invalid_arguments", "the call is not sent to the client");
    let listed = world.client.get("/v1/tools/screen").await.is(200);
    assert_eq!(listed["effect"], "readonly");
    world.client.delete(&format!("/v1/clients/{}", client["client"].as_str().unwrap())).await.is(204);
    let end = calls.until("end").await;
    assert_eq!(end.data["reason"], "removed");
    world.client.get("/v1/tools/screen").await.refused(404, "not_found");
    world.client.get(&path).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_a_client_that_reconnects_gets_its_pending_calls() {
    let world = World::new().await;
    let client = world.client.post_as("me", "/v1/clients", screen_tool()).await.is(201);
    let path = format!("/v1/clients/{}/calls", client["client"].as_str().unwrap());
    let run = world.start("screen", json!({"x": 3})).await;
    world.run_in(&run, "suspended").await;
    let mut first = world.client.events(&path, &[]).await;
    let call = first.until("call").await.data;
    drop(first);
    let again = world.client.events(&path, &[]).await.until("call").await.data;
    assert_eq!((&again["key"], &again["args"]), (&call["key"], &json!({"x": 3})));

    let world = world.restart(Options::default()).await;
    world.client.get(&path).await.refused(404, "not_found");
    let back = world.client.post_as("me", "/v1/clients", screen_tool()).await.is(201);
    assert_eq!(back["client"], client["client"], "the same key is the same client");
    let call = world.client.events(&path, &[]).await.until("call").await.data;
    assert_eq!(call["run"], run);
    let key = call["key"].as_str().unwrap();
    world
        .client
        .post(&format!("/v1/replies/{key}"), json!({"error": {"code": "off", "message": "it is off"}}))
        .await
        .is(200);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["error"]["code"], "off");
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_a_run_held_for_a_client_tool_continues_when_the_client_registers_again() {
    let world = World::new().await;
    world.client.post_as("me", "/v1/clients", screen_tool()).await.is(201);
    let run = world.start("screen", json!({})).await;
    world.run_in(&run, "suspended").await;
    let waiting = world.client.get("/v1/inbox?client_calls=true").await.is(200);
    let key = waiting["items"][0]["key"].as_str().unwrap().to_owned();
    let world = world.restart(Options::default()).await;
    world.client.post(&format!("/v1/replies/{key}"), json!({"value": 5})).await.is(200);
    let held = world.run_in(&run, "held").await;
    assert_eq!(held["hold"]["reason"], "tool_missing");
    world.client.post_as("me", "/v1/clients", screen_tool()).await.is(201);
    let ended = world.client.get(&format!("/v1/runs/{run}/outcome?wait_ms=10000")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_a_call_of_a_client_tool_is_in_the_inbox_only_if_no_client_has_the_tool() {
    let world = World::new().await;
    let client = world.client.post("/v1/clients", screen_tool()).await.is(201);
    let run = world.start("screen", json!({"x": 3})).await;
    world.run_in(&run, "suspended").await;
    let asked = world.start("ask", json!({"name": "screen"})).await;
    world.run_in(&asked, "suspended").await;
    let runs = async |path: &str| -> Vec<String> {
        let page = world.client.get(path).await.is(200);
        page["items"].as_array().unwrap().iter().map(|item| item["run"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(runs("/v1/inbox").await, [asked.as_str()], "a wait with the name of a tool is in the inbox");
    assert_eq!(runs(&format!("/v1/inbox?run={run}")).await, [""; 0]);
    assert_eq!(runs("/v1/inbox?client_calls=true").await, [run.as_str(), asked.as_str()]);
    let many = json!({"action": "answer", "filter": {}, "value": 1});
    let answered = world.client.post("/v1/inbox", many).await.is(200);
    assert_eq!(answered["results"].as_array().unwrap().len(), 1, "{answered}");
    // An answered item stays in the inbox until its run continues.
    world.run_in(&asked, "finished").await;
    let explained = world.client.get(&format!("/v1/runs/{run}/explain")).await.is(200);
    assert!(explained["sentence"].as_str().unwrap().contains("when \"screen\" is answered"), "{explained}");
    world.client.delete(&format!("/v1/clients/{}", client["client"].as_str().unwrap())).await.is(204);
    assert_eq!(runs("/v1/inbox").await, [run.as_str()], "no client has the tool");
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_a_call_that_no_client_answers_in_time_fails() {
    let world = World::new().await;
    let mut tools = screen_tool();
    tools["tools"][0]["deadline_ms"] = json!(50);
    world.client.post("/v1/clients", tools).await.is(201);
    let answer = world.call("screen", json!({})).await;
    assert_eq!(answer["outcome"]["error"]["kind"], "timed_out", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_invalid_client_tools_are_refused() {
    let world = World::new().await;
    let tool = |change: serde_json::Value| {
        let mut tool = json!({"name": "t", "description": "d"});
        tool.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"tools": [tool], "everywhere": true})
    };
    world.client.post("/v1/clients", tool(json!({"name": "add"}))).await.refused(409, "tool_exists");
    for bad in [
        json!({"name": "no good"}),
        json!({"effect": "maybe"}),
        json!({"deadline_ms": 0}),
        json!({"input_schema": {"type": "strin"}}),
        json!({"color": 1}),
    ] {
        world.client.post("/v1/clients", tool(bad)).await.refused(422, "invalid_request");
    }
    world.client.post("/v1/clients", json!({"tools": [], "everywhere": true})).await.refused(422, "invalid_request");
    until(|| async { (world.client.get("/v1/tools/t").await.status == 404).then_some(()) }).await;
    let admin = world.client.post("/v1/tokens", json!({"name": "root", "scopes": ["admin", "call"]})).await.is(201);
    let admin = world.client.bearing(admin["secret"].as_str().unwrap());
    let mine = admin.post("/v1/clients", screen_tool()).await.is(201);
    let other = admin.post("/v1/tokens", json!({"name": "other", "scopes": ["call"]})).await.is(201);
    let other = world.client.bearing(other["secret"].as_str().unwrap());
    let path = format!("/v1/clients/{}", mine["client"].as_str().unwrap());
    other.get(&format!("{path}/calls")).await.refused(404, "not_found");
    other.delete(&path).await.refused(404, "not_found");
}
