//! Client tools.

use serde_json::{Value, json};
use windlass_server::Options;

use crate::net::{Client, until};
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

async fn called(client: &Client, session: Option<&str>) -> Value {
    let mut call = json!({"tool": "screen", "args": {"x": 1}, "wait_ms": 100});
    if let Some(session) = session {
        call["session"] = json!(session);
    }
    client.post("/v1/calls", call).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_client_tools_belong_to_the_session_that_brings_them() {
    let world = World::new().await;
    let client = &world.client;
    let in_session = |session: &str| {
        let mut tools = screen_tool();
        tools["everywhere"] = json!(false);
        tools["session"] = json!(session);
        tools
    };
    let mut neither = screen_tool();
    neither.as_object_mut().unwrap().remove("everywhere");
    let problem = client.post("/v1/clients", neither).await.refused(422, "invalid_request");
    assert!(problem["detail"].as_str().unwrap().contains("`session`"), "{problem}");
    let mut both = in_session("ada");
    both["everywhere"] = json!(true);
    client.post("/v1/clients", both).await.refused(422, "invalid_request");

    let first = client.post("/v1/clients", in_session("ada")).await.is(201);
    assert_eq!((&first["session"], &first["tools"]), (&json!("ada"), &json!(["screen"])));
    client.get("/v1/sessions/ada").await.is(200);
    // Listings, calls and checks of others do not know the tool.
    let has = async |query: &str| {
        let list = client.get(&format!("/v1/tools{query}")).await.is(200);
        list["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "screen")
    };
    assert_eq!((has("").await, has("?session=ada").await, has("?session=bob").await), (false, true, false));
    client.get("/v1/tools/screen").await.refused(404, "not_found");
    client.get("/v1/tools/screen?session=ada").await.is(200);
    client.post("/v1/tools/screen/check", json!({"args": {}, "session": "bob"})).await.refused(404, "not_found");
    let check = client.post("/v1/tools/screen/check", json!({"args": {}, "session": "ada"})).await.is(200);
    assert_eq!(check["verdict"], "runs");
    for session in [None, Some("bob")] {
        let refused = called(client, session).await;
        let error = &refused["outcome"]["error"];
        assert_eq!(error["kind"], "unavailable", "{refused}");
        assert!(error["message"].as_str().unwrap().contains("there is no tool `screen`"), "{refused}");
    }

    // Another session has a tool of the same name; each call is sent to the client of its own session.
    let second = client.post("/v1/clients", in_session("bob")).await.is(201);
    client.post("/v1/clients", in_session("ada")).await.refused(409, "tool_exists");
    client.post("/v1/clients", screen_tool()).await.refused(409, "tool_exists");
    let reader = async |registered: &Value| {
        client.events(&format!("/v1/clients/{}/calls", registered["client"].as_str().unwrap()), &[]).await
    };
    let (mut of_ada, mut of_bob) = (reader(&first).await, reader(&second).await);
    let (ada, bob) = (called(client, Some("ada")).await, called(client, Some("bob")).await);
    let (to_ada, to_bob) = (of_ada.until("call").await.data, of_bob.until("call").await.data);
    assert_eq!((&to_ada["run"], &to_bob["run"]), (&ada["run"], &bob["run"]));
    for (call, value) in [(&to_bob, "b"), (&to_ada, "a")] {
        let path = format!("/v1/replies/{}", call["key"].as_str().unwrap());
        client.post(&path, json!({"value": value})).await.is(200);
    }
    for (run, value) in [(&ada, "a"), (&bob, "b")] {
        let path = format!("/v1/runs/{}/outcome?wait_ms=30000", run["run"].as_str().unwrap());
        assert_eq!(client.get(&path).await.is(200)["outcomes"][0]["value"], value);
    }
    // A pending call of one session is not sent to a later client of the other.
    let pending = called(client, Some("ada")).await;
    let mut again = reader(&second).await;
    let third = called(client, Some("bob")).await;
    assert_eq!(again.until("call").await.data["run"], third["run"]);
    assert_eq!(of_ada.until("call").await.data["run"], pending["run"]);
    // The journal shows the arguments, because the tool of that session is known.
    let journal = client.get(&format!("/v1/runs/{}/journal", pending["run"].as_str().unwrap())).await.is(200);
    assert_eq!(journal["records"][0]["asked"]["input"], json!({"x": 1}), "{journal}");
    client.delete(&format!("/v1/clients/{}", first["client"].as_str().unwrap())).await.is(204);
    assert_eq!((has("?session=ada").await, has("?session=bob").await), (false, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_l28_a_client_brings_no_tools_to_a_session_of_another_principal() {
    let world = World::new().await;
    let make = async |from: &Client, name: &str, scopes: Value| {
        let token = from.post("/v1/tokens", json!({"name": name, "scopes": scopes})).await.is(201);
        world.client.bearing(token["secret"].as_str().unwrap())
    };
    let admin = make(&world.client, "root", json!(["admin", "call", "read"])).await;
    let ada = make(&admin, "ada", json!(["call", "read"])).await;
    let bob = make(&admin, "bob", json!(["call", "read"])).await;
    let tools = |session: &str| json!({"session": session, "tools": [{"name": "screen", "description": "d", "effect": "readonly"}]});
    ada.post("/v1/clients", tools("mine")).await.is(201);
    bob.post("/v1/clients", tools("mine")).await.refused(404, "not_found");
    bob.post("/v1/calls", json!({"tool": "screen", "session": "mine"})).await.refused(404, "not_found");
    // The session is purged, and its name is given to another principal: the client does not see that one's calls.
    admin.post("/v1/sessions/mine/close", json!({})).await.is(200);
    admin.delete("/v1/sessions/mine").await.is(204);
    let answer = bob.post("/v1/calls", json!({"tool": "screen", "session": "mine", "wait_ms": 5000})).await.is(200);
    assert_eq!(answer["outcome"]["error"]["kind"], "unavailable", "{answer}");
}
