//! Turns of sessions over HTTP: settings, waking messages, limits, events, idle and context.

use serde_json::{Value, json};
use windlass_server::Options;

use crate::net::{Answer, Client};
use crate::world::World;

const ADA: &str = "/v1/sessions/ada";

async fn put(world: &World, path: &str, body: Value) -> Answer {
    world.client.send("PUT", path, &[("content-type", "application/json")], body.to_string().into()).await
}

async fn page(client: &Client, from: Option<&str>) -> Value {
    let path = from.map_or(format!("{ADA}/events"), |from| format!("{ADA}/events?from={from}"));
    client.send("GET", &path, &[("accept", "application/json")], "".into()).await.is(200)
}

/// The answer to a question that the only waiting run asks.
async fn answer(world: &World) {
    let item = world.item().await;
    let path = format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap());
    world.client.post(&path, json!({"value": 1})).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_l28_a_message_with_wake_starts_a_run_and_the_answer_names_it() {
    let world = World::new().await;
    let unknown = put(&world, ADA, json!({"settings": {"agent": "nothing"}})).await.refused(422, "invalid_request");
    assert!(unknown["detail"].as_str().unwrap().contains("no tool `nothing`"), "{unknown}");
    put(&world, ADA, json!({"settings": {"agents": "steps"}})).await.refused(422, "invalid_request");
    let opened = put(&world, ADA, json!({"title": "Trip", "settings": {"agent": "steps", "model": "m-1"}})).await;
    let opened = opened.is(201);
    assert_eq!((&opened["settings"]["agent"], &opened["settings"]["model"]), (&json!("steps"), &json!("m-1")));
    let messages = format!("{ADA}/messages");
    let quiet = world.client.post(&messages, json!({"text": "a note"})).await.is(201);
    assert_eq!(quiet.get("run"), None, "a message does not wake by itself");
    let hello = json!({"text": "hello", "wake": true});
    let first = world.client.post_as("k", &messages, hello.clone()).await.is(201);
    let again = world.client.post_as("k", &messages, hello).await.is(200);
    assert_eq!((&again["run"], &again["repeated"]), (&first["run"], &json!(true)));
    let run = first["run"].as_str().unwrap();
    let shown = world.run_in(run, "finished").await;
    assert_eq!(
        (&shown["cause"], &shown["session"], &shown["tool"]),
        (&json!("message 2"), &json!("ada"), &json!("steps"))
    );
    let read = world.client.get(&messages).await.is(200);
    assert_eq!((&read["messages"][1]["woke"], &read["messages"][1]["run"]), (&json!(true), &first["run"]));
    assert_eq!(read["messages"][0].get("woke"), None);
    let bad = world.client.post(&messages, json!({"text": "x", "turn": "queue"})).await.refused(422, "invalid_request");
    assert!(bad["detail"].as_str().unwrap().contains("`wake`"), "{bad}");
    let changed = put(&world, ADA, json!({"settings": {"model": null, "wake": "user"}})).await.is(200);
    assert_eq!((changed["settings"].get("model"), &changed["settings"]["wake"]), (None, &json!("user")));
    assert!(world.client.post(&messages, json!({"text": "by policy"})).await.is(201)["run"].is_string());
    assert_eq!(world.client.post(&messages, json!({"text": "x", "wake": false})).await.is(201).get("run"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn b11_a_turn_is_refused_with_the_run_that_has_the_session_and_since_when() {
    let world = World::new().await;
    put(&world, ADA, json!({"settings": {"agent": "ask", "unfinished_runs": 2}})).await.is(201);
    let messages = format!("{ADA}/messages");
    let first = world.client.post(&messages, json!({"text": "one", "wake": true})).await.is(201);
    let refused = world.client.post(&messages, json!({"text": "two", "wake": true, "turn": "refuse"})).await;
    let refused = refused.refused(409, "busy");
    assert_eq!(refused["run"], first["run"]);
    assert!(refused["since"].as_str().unwrap().ends_with('Z'), "{refused}");
    let second = world.client.post(&messages, json!({"text": "two", "wake": true})).await.is(201);
    let full = world.client.post(&messages, json!({"text": "three", "wake": true})).await.refused(409, "session_full");
    assert_eq!((&full["limit"], &full["run"]), (&json!(2), &first["run"]));
    let call = json!({"tool": "ask", "session": "ada"});
    world.client.post("/v1/calls", call).await.refused(409, "session_full");
    assert_eq!(world.client.get(ADA).await.is(200)["messages"], 2, "what is refused is not posted");
    let explained = world.client.get(&format!("/v1/runs/{}/explain", second["run"].as_str().unwrap())).await.is(200);
    assert!(explained["sentence"].as_str().unwrap().contains(first["run"].as_str().unwrap()), "{explained}");

    let busy = world.client.get(&format!("{ADA}/idle")).await.is(200);
    assert_eq!(
        (&busy["idle"], &busy["unfinished"][0]["run"], &busy["more"]),
        (&json!(false), &first["run"], &json!(false))
    );
    world.client.get("/v1/sessions/bob/idle").await.refused(404, "not_found");
    world.client.get(&format!("{ADA}/idle?wait_ms=999999999")).await.refused(422, "invalid_request");
    let (client, idle) = (world.client.clone(), format!("{ADA}/idle?wait_ms=60000"));
    let waits = tokio::spawn(async move { client.get(&idle).await.is(200) });
    answer(&world).await;
    world.run_in(first["run"].as_str().unwrap(), "finished").await;
    answer(&world).await;
    assert_eq!(waits.await.unwrap()["idle"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_l23_the_stream_of_a_session_has_its_messages_and_resumes_at_every_event() {
    let world = World::new().await;
    put(&world, ADA, json!({"settings": {"agent": "steps"}})).await.is(201);
    let messages = format!("{ADA}/messages");
    let mut stream = world.client.events(&format!("{ADA}/events"), &[]).await;
    for text in ["one", "two", "three"] {
        world.client.post(&messages, json!({"text": text, "wake": text == "two"})).await.is(201);
    }
    let one = stream.until("message_posted").await;
    assert_eq!(
        (&one.data["message"]["content"][0]["text"], &one.data["kind"]),
        (&json!("one"), &json!("message_posted"))
    );
    let two = stream.until("message_posted").await;
    assert!(two.data["message"]["run"].is_string() && two.data["message"]["woke"] == true, "{}", two.data);
    stream.until("run_finished").await;
    drop(stream);
    let ids = |page: &Value| -> Vec<String> {
        page["events"].as_array().unwrap().iter().map(|event| event["position"].as_str().unwrap().to_owned()).collect()
    };
    let shown = |page: &Value| -> Vec<String> {
        let name = |event: &Value| format!("{}{}{}", event["kind"], event["message"]["position"], event["path"]);
        let mut all: Vec<String> = page["events"].as_array().unwrap().iter().map(name).collect();
        all.sort();
        all
    };
    let all = page(&world.client, None).await;
    let (positions, events) = (ids(&all), all["events"].as_array().unwrap().clone());
    assert!(positions.len() > 8, "{all}");
    let world = world.restart(Options::default()).await;
    for (index, id) in positions.iter().enumerate() {
        let rest = page(&world.client, Some(id)).await;
        let expected = json!({"events": events[index + 1..]});
        assert_eq!(shown(&rest), shown(&expected), "after {id}");
        let mut stream = world.client.events(&format!("{ADA}/events"), &[("last-event-id", id)]).await;
        if index + 1 < positions.len() {
            assert!(stream.next().await.unwrap().id.is_some());
        }
    }
    assert_eq!(page(&world.client, Some(all["next"].as_str().unwrap())).await["events"], json!([]));
    world.client.get(&format!("{ADA}/events?from=nonsense")).await.refused(400, "bad_cursor");

    let last = positions.last().unwrap();
    let mut stream = world.client.events(&format!("{ADA}/events"), &[("last-event-id", last)]).await;
    world.client.post(&format!("{ADA}/close"), json!({})).await.is(200);
    world.client.delete(ADA).await.is(204);
    let end = stream.until("end").await;
    assert_eq!(end.data["reason"], "purged");
    assert_eq!(stream.next().await, None);
    assert_eq!(page(&world.client, Some(last)).await["ended"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_the_context_of_a_session_is_reported() {
    let world = World::new().await;
    world.client.get(&format!("{ADA}/context")).await.refused(404, "not_found");
    put(&world, ADA, json!({"settings": {"model": "m-1", "window": 100_000}})).await.is(201);
    world.client.post(&format!("{ADA}/messages"), json!({"text": "x".repeat(400)})).await.is(201);
    let report = world.client.get(&format!("{ADA}/context")).await.is(200);
    assert_eq!((&report["model"], &report["window"]), (&json!("m-1"), &json!(100_000)));
    assert_eq!(report["sections"][0]["items"], 1);
    assert!(report["input_tokens"].as_u64().unwrap() > 100 && report["used_percent"].is_u64(), "{report}");
}
