//! The tools that a session shows, and whose session it is, over HTTP.

use serde_json::{Value, json};

use crate::net::{Answer, Client};
use crate::world::World;

async fn put(client: &Client, path: &str, body: Value) -> Answer {
    client.send("PUT", path, &[("content-type", "application/json")], body.to_string().into()).await
}

fn names(list: &Value) -> Vec<String> {
    let name = |tool: &Value| tool["name"].as_str().or(tool["function"]["name"].as_str()).unwrap().to_owned();
    list["tools"].as_array().unwrap().iter().map(name).collect()
}

async fn user(world: &World, admin: Option<&Client>, name: &str) -> Client {
    let scopes = if admin.is_some() { json!(["read", "call"]) } else { json!(["admin", "read", "call"]) };
    let from = admin.unwrap_or(&world.client);
    let token = from.post("/v1/tokens", json!({"name": name, "scopes": scopes})).await.is(201);
    world.client.bearing(token["secret"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_b02_a_session_chooses_its_tools_over_http() {
    let world = World::new().await;
    let (client, tools) = (&world.client, "/v1/sessions/ada/tools");
    client.get(tools).await.refused(404, "not_found");
    put(client, tools, json!({"hide": ["add"]})).await.refused(404, "not_found");
    put(client, "/v1/sessions/ada", json!({})).await.is(201);
    let all = client.get("/v1/tools").await.is(200);
    let shown = client.get(tools).await.is(200);
    assert_eq!(shown["tools"].as_array().unwrap().len(), names(&all).len());
    assert_eq!((&shown["hidden"], shown.get("shown"), shown.get("unknown")), (&json!([]), None, None));

    let hidden = put(client, tools, json!({"hide": ["add", "not_yet"]})).await.is(200);
    assert_eq!((&hidden["hidden"], &hidden["unknown"]), (&json!(["add", "not_yet"]), &json!(["not_yet"])));
    assert_eq!(put(client, tools, json!({"hide": ["add", "not_yet"]})).await.is(200), hidden, "the same request again");
    assert!(!hidden["tools"].as_array().unwrap().contains(&json!("add")));
    for format in ["", "&format=openai", "&format=anthropic"] {
        let listed = client.get(&format!("/v1/tools?session=ada{format}")).await.is(200);
        assert_eq!(names(&listed).len() + 1, names(&all).len(), "{format}");
        assert!(!names(&listed).contains(&"add".to_owned()), "{format}");
        assert!(
            names(&client.get(&format!("/v1/tools?session=bob{format}")).await.is(200)).contains(&"add".to_owned())
        );
    }
    client.get("/v1/tools/add?session=ada").await.refused(404, "not_found");
    client.get("/v1/tools?session=ada&names=add").await.refused(404, "not_found");
    client.get("/v1/tools/add").await.is(200);
    let call = |session: &str| json!({"tool": "add", "args": {"a": 1, "b": 2}, "session": session});
    let refused = client.post("/v1/calls", call("ada")).await.is(200);
    let message = refused["outcome"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("session \"ada\" hides the tool `add`") && message.contains("show it"), "{message}");
    assert_eq!(client.post("/v1/calls", call("bob")).await.is(200)["outcome"]["value"], 3);
    let check = client.post("/v1/tools/add/check", json!({"args": {"a": 1, "b": 2}, "session": "ada"})).await.is(200);
    assert_eq!((&check["verdict"], check["why"].as_str().unwrap().contains("hides")), (&json!("refused"), true));

    let only = put(client, tools, json!({"only": ["add"], "reveal": ["steps"]})).await.is(200);
    assert_eq!((&only["shown"], &only["tools"]), (&json!(["add"]), &json!(["add", "steps"])));
    assert_eq!(names(&client.get("/v1/tools?session=ada").await.is(200)), ["add", "steps"]);
    assert_eq!(client.post("/v1/calls", call("ada")).await.is(200)["outcome"]["value"], 3);
    let reset = put(client, tools, json!({"reset": true})).await.is(200);
    assert_eq!(reset["tools"], shown["tools"]);
    for bad in [json!({}), json!({"hide": ["no name"]}), json!({"hid": ["add"]}), json!({"hide": "add"})] {
        put(client, tools, bad).await.refused(422, "invalid_request");
    }
    client.post("/v1/sessions/ada/close", json!({})).await.is(200);
    put(client, tools, json!({"reset": true})).await.refused(409, "session_closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn l20_l28_of_two_principals_that_create_a_session_at_once_one_gets_it() {
    let world = World::new().await;
    let admin = user(&world, None, "root").await;
    let (ada, bob) = (user(&world, Some(&admin), "ada").await, user(&world, Some(&admin), "bob").await);
    for round in 0..12 {
        let create = async |client: &Client| {
            let path = format!("/v1/sessions/s{round}");
            match round % 3 {
                0 => {
                    let call = json!({"tool": "add", "args": {"a": 1, "b": 2}, "session": format!("s{round}")});
                    client.post("/v1/calls", call).await.status
                }
                1 => put(client, &path, json!({})).await.status,
                _ => {
                    let opened = put(client, &path, json!({})).await.status;
                    let posted = client.post(&format!("{path}/messages"), json!({"text": "mine"})).await.status;
                    let set = put(client, &format!("{path}/data/x"), json!({"value": 1})).await.status;
                    let tools = put(client, &format!("{path}/tools"), json!({"hide": ["add"]})).await.status;
                    let all = [opened, posted, set, tools];
                    assert!(
                        all.iter().all(|status| *status < 300) || all.iter().all(|status| *status == 404),
                        "{all:?}"
                    );
                    opened
                }
            }
        };
        let (one, two) = tokio::join!(create(&ada), create(&bob));
        assert!((one < 300) != (two < 300) && one.max(two) == 404, "round {round}: {one} and {two}");
        let (owner, other) = if one < 300 { (&ada, &bob) } else { (&bob, &ada) };
        owner.get(&format!("/v1/sessions/s{round}")).await.is(200);
        other.get(&format!("/v1/sessions/s{round}")).await.refused(404, "not_found");
        other.get(&format!("/v1/sessions/s{round}/tools")).await.refused(404, "not_found");
        other.get(&format!("/v1/tools?session=s{round}")).await.refused(404, "not_found");
    }
}
