//! Sessions over HTTP: open, show, list, messages, data, secrets, close, purge.

use serde_json::{Value, json};

use crate::net::Answer;
use crate::world::World;

async fn put(world: &World, path: &str, body: Value) -> Answer {
    world.client.send("PUT", path, &[("content-type", "application/json")], body.to_string().into()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_a_session_is_opened_shown_listed_closed_and_purged() {
    let world = World::new().await;
    let ada = "/v1/sessions/ada";
    world.client.get(ada).await.refused(404, "not_found");
    let opened = put(&world, ada, json!({"title": "Trip", "owner": "ada@example.org"})).await.is(201);
    assert_eq!((&opened["session"], &opened["title"], &opened["messages"]), (&json!("ada"), &json!("Trip"), &json!(0)));
    assert_eq!(put(&world, ada, json!({"title": "Journey"})).await.is(200)["title"], "Journey");
    let taken = put(&world, ada, json!({"owner": "bob"})).await.refused(409, "conflict");
    assert_eq!(taken["title"], "Conflict with the session's state");
    let shown = world.client.get(ada).await.is(200);
    assert_eq!((&shown["title"], &shown["owner"]), (&json!("Journey"), &json!("ada@example.org")));
    // A run brings its session into being.
    let call = |session: &str| json!({"tool": "steps", "args": {"n": 1}, "session": session});
    world.client.post("/v1/calls", call("bob")).await.is(200);
    let page = world.client.get("/v1/sessions?limit=1").await.is(200);
    assert_eq!(page["sessions"][0]["session"], "bob");
    let next = page["next"].as_str().unwrap();
    let rest = world.client.get(&format!("/v1/sessions?limit=9&cursor={next}")).await.is(200);
    assert_eq!((&rest["sessions"][0]["session"], rest.get("next")), (&json!("ada"), None));
    world.client.get("/v1/sessions?cursor=nonsense").await.refused(400, "bad_cursor");

    world.client.delete(ada).await.refused(409, "session_open");
    let closed = world.client.post(&format!("{ada}/close"), json!({"reason": "over"})).await.is(200);
    assert_eq!((&closed["reason"], &closed["unfinished_runs"]), (&json!("over"), &json!(0)));
    assert!(closed["closed"].is_string());
    world.client.post("/v1/calls", call("ada")).await.refused(409, "session_closed");
    world
        .client
        .post("/v1/batches", json!({"calls": [{"tool": "steps"}], "session": "ada"}))
        .await
        .refused(409, "session_closed");
    world.client.post(&format!("{ada}/messages"), json!({"text": "late"})).await.refused(409, "session_closed");
    put(&world, &format!("{ada}/data/a"), json!({"value": 1})).await.refused(409, "session_closed");
    put(&world, ada, json!({})).await.refused(409, "session_closed");
    let names =
        |page: Value| page["sessions"].as_array().unwrap().iter().map(|s| s["session"].clone()).collect::<Vec<_>>();
    assert_eq!(names(world.client.get("/v1/sessions?state=open").await.is(200)), ["bob"]);
    assert_eq!(names(world.client.get("/v1/sessions?state=closed&owner=ada@example.org").await.is(200)), ["ada"]);
    world.client.delete(ada).await.is(204);
    world.client.get(ada).await.refused(404, "not_found");
    world.client.delete(ada).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_messages_are_posted_once_and_read_in_pages() {
    let world = World::new().await;
    let messages = "/v1/sessions/ada/messages";
    world.client.post(messages, json!({"text": "x"})).await.refused(404, "not_found");
    world.client.get(messages).await.refused(404, "not_found");
    put(&world, "/v1/sessions/ada", json!({})).await.is(201);
    let first = world.client.post_as("k", messages, json!({"text": "hello", "cause": "turn 1"})).await.is(201);
    assert_eq!((&first["position"], &first["repeated"]), (&json!(1), &json!(false)));
    let again = world.client.post_as("k", messages, json!({"text": "hello", "cause": "turn 1"})).await.is(200);
    assert_eq!((&again["position"], &again["repeated"], &again["at"]), (&json!(1), &json!(true), &first["at"]));
    let block = json!({"type": "image", "media_type": "image/png", "data": "AQID"});
    let mixed = json!({"author": "agent", "content": [{"type": "text", "text": "look"}, block]});
    assert_eq!(world.client.post(messages, mixed).await.is(201)["position"], 2);
    world.client.post(messages, json!({"author": "system", "text": "bye"})).await.is(201);
    let page = world.client.get(&format!("{messages}?limit=2")).await.is(200);
    assert_eq!(page["next"], 2);
    let (one, two) = (&page["messages"][0], &page["messages"][1]);
    assert_eq!(
        (&one["author"], &one["cause"], &one["content"]),
        (&json!("user"), &json!("turn 1"), &json!([{"type": "text", "text": "hello"}]))
    );
    assert_eq!((&two["author"], &two["content"][1]["media_type"]), (&json!("agent"), &json!("image/png")));
    let rest = world.client.get(&format!("{messages}?after=2")).await.is(200);
    assert_eq!((&rest["messages"][0]["author"], rest.get("next")), (&json!("system"), None));
    let last = world.client.get(&format!("{messages}?last=1")).await.is(200);
    assert_eq!((last["messages"].as_array().unwrap().len(), &last["messages"][0]["position"]), (1, &json!(3)));
    world.client.get(&format!("{messages}?last=1&after=1")).await.refused(400, "bad_query");
    world.client.get(&format!("{messages}?limit=0")).await.refused(400, "bad_query");
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_hostile_messages_and_names_are_refused_by_name() {
    let world = World::new().await;
    put(&world, "/v1/sessions/ada", json!({})).await.is(201);
    let messages = "/v1/sessions/ada/messages";
    for body in [
        json!({}),
        json!({"text": "x", "content": []}),
        json!({"content": []}),
        json!({"content": [{"type": "video"}]}),
        json!({"content": [{"type": "file", "artifact": format!("b3:{}", "0".repeat(64)), "size": 1, "media_type": "a/b"}]}),
        json!({"text": "x", "cause": "a\u{0}b"}),
        json!({"text": "x", "cause": ""}),
    ] {
        world.client.post(messages, body).await.refused(422, "invalid_request");
    }
    let huge = world.client.post(messages, json!({"text": "x".repeat(300 << 10)})).await.refused(413, "too_large");
    assert!(huge["detail"].as_str().unwrap().contains("at most 262144 bytes"), "{huge}");
    for name in ["a%00b", "a%0Ab", &"x".repeat(256)] {
        put(&world, &format!("/v1/sessions/{name}"), json!({})).await.refused(422, "invalid_request");
        world.client.get(&format!("/v1/sessions/{name}")).await.refused(422, "invalid_request");
    }
    for title in ["".to_owned(), "a\nb".to_owned(), "x".repeat(301)] {
        put(&world, "/v1/sessions/ada", json!({"title": title})).await.refused(422, "invalid_request");
    }
    world.client.post("/v1/sessions/unknown/close", json!({})).await.refused(404, "not_found");
    put(&world, "/v1/sessions/ada/data/a%00b", json!({"value": 1})).await.refused(422, "invalid_request");
    put(&world, "/v1/sessions/ada/data/a", json!({"value": "x".repeat(70_000)})).await.refused(413, "too_large");
    assert_eq!(world.client.get("/v1/sessions/ada").await.is(200)["messages"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn e27_data_is_read_back_and_secrets_are_listed_by_name_only() {
    let world = World::new().await;
    put(&world, "/v1/sessions/ada", json!({})).await.is(201);
    let (data, secrets) = ("/v1/sessions/ada/data", "/v1/sessions/ada/secrets");
    put(&world, &format!("{data}/cart"), json!({"value": {"items": [1]}})).await.is(204);
    put(&world, &format!("{data}/empty"), json!({"value": null})).await.is(204);
    put(&world, &format!("{secrets}/token"), json!({"value": "s3cret-value"})).await.is(204);
    assert_eq!(
        world.client.get(&format!("{data}/cart")).await.is(200),
        json!({"name": "cart", "value": {"items": [1]}})
    );
    assert_eq!(world.client.get(&format!("{data}/empty")).await.is(200)["value"], Value::Null);
    let listed = world.client.get(data).await.is(200);
    assert_eq!((&listed["names"][0]["name"], &listed["names"][1]["name"]), (&json!("cart"), &json!("empty")));
    let listed = world.client.get(secrets).await.is(200);
    assert_eq!((listed["names"].as_array().unwrap().len(), &listed["names"][0]["name"]), (1, &json!("token")));
    assert!(!listed.to_string().contains("s3cret"));
    let refused = world.client.get(&format!("{secrets}/token")).await;
    assert_eq!(refused.status, 405, "a secret cannot be read");
    let bad = put(&world, &format!("{secrets}/token"), json!({"value": "s3cret-value", "extra": 1})).await;
    assert!(!String::from_utf8_lossy(&bad.body).contains("s3cret"), "{bad:?}");
    world.client.get(&format!("{data}/token")).await.refused(404, "not_found");
    world.client.delete(&format!("{data}/cart")).await.is(204);
    world.client.delete(&format!("{data}/cart")).await.refused(404, "not_found");
    world.client.delete(&format!("{secrets}/token")).await.is(204);
    world.client.delete(&format!("{secrets}/token")).await.refused(404, "not_found");
    world.client.get("/v1/sessions/unknown/data").await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_closing_a_session_cancels_its_runs_if_asked() {
    let world = World::new().await;
    let started = world
        .client
        .post("/v1/calls", json!({"tool": "ask", "args": {}, "session": "ada", "wait_ms": 0}))
        .await
        .is(202);
    let run = started["run"].as_str().unwrap().to_owned();
    world.run_in(&run, "suspended").await;
    world.client.delete("/v1/sessions/ada").await.refused(409, "session_open");
    let closed = world.client.post("/v1/sessions/ada/close", json!({"cancel": true})).await.is(200);
    assert_eq!((&closed["unfinished_runs"], &closed["reason"]), (&json!(1), &json!("no reason given")));
    world.run_in(&run, "finished").await;
    world.client.delete("/v1/sessions/ada").await.is(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_l28_a_session_of_another_principal_looks_missing() {
    let world = World::new().await;
    let made =
        world.client.post("/v1/tokens", json!({"name": "root", "scopes": ["admin", "read", "call"]})).await.is(201);
    let root = world.client.bearing(made["secret"].as_str().unwrap());
    let mut clients = Vec::new();
    for name in ["ada", "bob"] {
        let made = root.post("/v1/tokens", json!({"name": name, "scopes": ["read", "call"]})).await.is(201);
        clients.push(root.bearing(made["secret"].as_str().unwrap()));
    }
    let (ada, bob) = (&clients[0], &clients[1]);
    let headers = [("content-type", "application/json")];
    let opened = ada.send("PUT", "/v1/sessions/trip", &headers, "{\"owner\": \"bob\"}".into()).await.is(201);
    assert_eq!(opened["owner"], "ada", "a token opens sessions for its own principal");
    let call = json!({"tool": "steps", "args": {"n": 1}, "session": "work"});
    ada.post("/v1/calls", call.clone()).await.is(200);
    bob.post("/v1/calls", call.clone()).await.refused(404, "not_found");
    ada.post("/v1/sessions/work/messages", json!({"text": "hello"})).await.is(201);
    for name in ["trip", "work"] {
        let path = format!("/v1/sessions/{name}");
        assert_eq!(ada.get(&path).await.is(200)["owner"], "ada");
        bob.get(&path).await.refused(404, "not_found");
        bob.get(&format!("{path}/messages")).await.refused(404, "not_found");
        bob.post(&format!("{path}/messages"), json!({"text": "x"})).await.refused(404, "not_found");
        bob.get(&format!("{path}/secrets")).await.refused(404, "not_found");
        bob.post(&format!("{path}/close"), json!({})).await.refused(404, "not_found");
        bob.send("PUT", &path, &headers, "{}".into()).await.refused(404, "not_found");
        assert_eq!(root.get(&path).await.is(200)["owner"], "ada", "an admin sees it");
    }
    bob.post("/v1/calls", call.clone()).await.refused(404, "not_found");
    bob.post("/v1/batches", json!({"calls": [call], "session": "work"})).await.refused(422, "invalid_request");
    bob.post("/v1/batches", json!({"calls": [{"tool": "steps"}], "session": "work"})).await.refused(404, "not_found");
    assert_eq!(bob.get("/v1/sessions").await.is(200)["sessions"], json!([]));
    assert_eq!(bob.get("/v1/sessions?owner=ada").await.is(200)["sessions"], json!([]));
    assert_eq!(ada.get("/v1/sessions").await.is(200)["sessions"].as_array().unwrap().len(), 2);
}
