//! Tokens and their scopes, layers, host names and origins.

use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::{Ctx, Tool, ToolCall};
use windlass_server::{Options, serve};

use crate::net::{Client, until};
use crate::world::{World, builder};

async fn token(client: &Client, name: &str, scopes: &[&str]) -> Value {
    client.post("/v1/tokens", json!({"name": name, "scopes": scopes})).await.is(201)
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_each_scope_allows_its_routes_only() {
    let world = World::new().await;
    let run = world.call("charge", json!({})).await["run"].as_str().unwrap().to_owned();
    let admin = token(&world.client, "root", &["admin"]).await;
    let admin = world.client.bearing(admin["secret"].as_str().unwrap());
    let mut bearers = Vec::new();
    for scope in ["read", "call", "approve"] {
        let made = token(&admin, scope, &[scope]).await;
        bearers.push((scope, admin.bearing(made["secret"].as_str().unwrap())));
    }
    bearers.push(("admin", admin.clone()));
    let requests: [(&str, &str, &str, Value); 22] = [
        ("read", "GET", "/v1/runs", Value::Null),
        ("read", "GET", "/v1/tools", Value::Null),
        ("read", "GET", "/v1/inbox", Value::Null),
        ("read", "GET", "/metrics", Value::Null),
        ("read", "GET", &format!("/v1/runs/{run}/journal"), Value::Null),
        ("read", "GET", "/v1/artifacts/x", Value::Null),
        ("read", "POST", "/v1/tools/add/check", json!({})),
        ("call", "POST", "/v1/calls", json!({"tool": "add"})),
        ("call", "POST", "/v1/batches", json!({"calls": [{"tool": "add"}]})),
        ("call", "POST", &format!("/v1/runs/{run}/cancel"), json!({})),
        ("call", "POST", "/v1/clients", json!({"tools": [], "everywhere": true})),
        ("call", "POST", "/v1/artifacts?session=s", json!({})),
        ("approve", "POST", "/v1/inbox/x/approve", json!({})),
        ("approve", "POST", "/v1/inbox", json!({"action": "approve", "ids": []})),
        ("approve", "POST", "/v1/connections/x", json!({})),
        ("admin", "GET", "/v1/tokens", Value::Null),
        ("admin", "POST", &format!("/v1/runs/{run}/finish"), json!({"value": 1, "reason": "?"})),
        ("admin", "POST", &format!("/v1/runs/{run}/resume"), json!({})),
        ("admin", "GET", &format!("/v1/runs/{run}/export"), Value::Null),
        ("admin", "POST", "/v1/admin/tidy", json!({})),
        ("admin", "POST", "/v1/admin/check", json!({})),
        ("admin", "DELETE", "/v1/runs/01900000-0000-7000-8000-000000000000", Value::Null),
    ];
    for (scope, method, path, body) in &requests {
        let headers = [("content-type", "application/json")];
        let text = if body.is_null() { String::new() } else { body.to_string() };
        for (own, bearer) in &bearers {
            let answer = bearer.send(method, path, &headers, text.clone().into()).await;
            if own == scope {
                assert!(![401, 403].contains(&answer.status), "{own} {method} {path}: {answer:?}");
            } else {
                let problem = answer.refused(403, "forbidden");
                assert_eq!(problem["scope"], *scope, "{own} {method} {path}");
            }
        }
        let anonymous = world.client.send(method, path, &headers, text.clone().into()).await;
        assert_eq!(anonymous.header("www-authenticate"), "Bearer realm=\"windlass\"");
        anonymous.refused(401, "unauthorized");
        world
            .client
            .bearing("wlt1_000000000000_forged")
            .send(method, path, &headers, text.into())
            .await
            .refused(401, "unauthorized");
    }
    for public in ["/v1/health", "/v1/ready", "/openapi.json", "/"] {
        world.client.get(public).await.is(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w07_a_check_executes_no_code_of_the_tool_for_a_token_that_only_reads() {
    let world = World::new().await;
    let refuses = |_| async { Err(windlass::ToolError::denied("not today")) };
    let tool = Tool::new("quoted", "asks for a quote first", |_: Value| async { Ok(1) }).prepare(refuses);
    world.windlass.toolbox().insert(tool).unwrap();
    let admin = token(&world.client, "root", &["admin"]).await;
    let admin = world.client.bearing(admin["secret"].as_str().unwrap());
    let bearer = |made: Value| admin.bearing(made["secret"].as_str().unwrap());
    let reader = bearer(token(&admin, "reader", &["read"]).await);
    let caller = bearer(token(&admin, "caller", &["read", "call"]).await);
    let check = |client: Client| async move { client.post("/v1/tools/quoted/check", json!({})).await.is(200) };
    let (unasked, asked) = (check(reader).await, check(caller).await);
    assert_eq!((&unasked["verdict"], &unasked["unprepared"]), (&json!("runs"), &json!(true)));
    assert_eq!((&asked["verdict"], &asked["unprepared"]), (&json!("refused"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_the_journal_records_who_decided_and_reply_keys_need_the_approve_scope() {
    let world = World::new().await;
    let admin = token(&world.client, "root", &["admin", "read"]).await;
    let admin = world.client.bearing(admin["secret"].as_str().unwrap());
    let boss = json!({"name": "the boss", "scopes": ["approve", "read"], "principal": "agent"});
    let boss = admin.post("/v1/tokens", boss).await.is(201);
    let boss = world.client.bearing(boss["secret"].as_str().unwrap());
    let agent = token(&admin, "agent", &["call"]).await;
    let agent = world.client.bearing(agent["secret"].as_str().unwrap());
    let run = agent.post("/v1/calls", json!({"tool": "pay", "args": {"cents": 500}, "wait_ms": 0})).await.is(202);
    let run = run["run"].as_str().unwrap().to_owned();
    agent.post("/v1/calls", json!({"tool": "ask", "wait_ms": 0})).await.is(202);
    let items = crate::net::until(|| async {
        let page = boss.get("/v1/inbox").await.is(200);
        (page["items"].as_array().unwrap().len() == 2).then(|| page["items"].clone())
    })
    .await;
    let shown = admin.get("/v1/inbox").await.is(200);
    assert!(items.as_array().unwrap().iter().any(|item| item["key"].is_string()));
    assert!(shown["items"].as_array().unwrap().iter().all(|item| item.get("key").is_none()), "{shown}");
    let approval = items.as_array().unwrap().iter().find(|item| item["kind"] == "approval").unwrap();
    boss.post(&format!("/v1/inbox/{}/approve", approval["id"].as_str().unwrap()), json!({"reason": "ok"}))
        .await
        .is(200);
    let journal = crate::net::until(|| async {
        let journal = boss.get(&format!("/v1/runs/{run}/journal")).await.is(200).to_string();
        journal.contains("granted").then_some(journal)
    })
    .await;
    assert!(journal.contains("\"by\":\"the boss\""), "{journal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_tokens_are_listed_without_secrets_revoked_and_survive_a_restart() {
    let world = World::new().await;
    world.client.post("/v1/tokens", json!({"name": "ci", "scopes": ["read"]})).await.refused(409, "admin_required");
    let made = world.client.post_as("t", "/v1/tokens", json!({"name": "root", "scopes": ["admin"]})).await.is(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    let admin = world.client.bearing(&secret);
    let again = admin.post_as("t", "/v1/tokens", json!({"name": "root", "scopes": ["admin"]})).await;
    assert_eq!(again.refused(409, "already_created")["id"], made["id"]);
    let reader = token(&admin, "reader", &["read"]).await;
    let list = admin.get("/v1/tokens").await.is(200);
    assert_eq!(list["tokens"].as_array().unwrap().len(), 2);
    assert!(!list.to_string().contains("secret") && !list.to_string().contains(&secret));
    let stored = std::fs::read_to_string(world.path("app.db-tokens")).unwrap();
    assert!(!stored.contains(&secret), "{stored}");
    for bad in [
        json!({"name": "", "scopes": ["read"]}),
        json!({"name": "x", "scopes": []}),
        json!({"name": "x", "scopes": ["all"]}),
        json!({"name": "x", "scopes": ["read"], "expires": "2001-01-01T00:00:00Z"}),
        json!({"name": "x", "scopes": ["read"], "ttl": 5}),
    ] {
        admin.post("/v1/tokens", bad).await.refused(422, "invalid_request");
    }
    let world = world.restart(Options::default()).await;
    let admin = world.client.bearing(&secret);
    let bearer = world.client.bearing(reader["secret"].as_str().unwrap());
    bearer.get("/v1/runs").await.is(200);
    admin.delete(&format!("/v1/tokens/{}", reader["id"].as_str().unwrap())).await.is(204);
    bearer.get("/v1/runs").await.refused(401, "unauthorized");
    admin.delete("/v1/tokens/zz").await.refused(404, "not_found");
    admin.delete(&format!("/v1/tokens/{}", made["id"].as_str().unwrap())).await.is(204);
    world.client.get("/v1/runs").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_foreign_host_names_and_origins_are_refused() {
    let mut options = Options::default();
    options.allowed_hosts = vec!["windlass.test".to_owned()];
    options.allowed_origins = vec!["https://app.example".to_owned()];
    let world = World::with(options).await;
    let port = world.client.address.port();
    for host in
        ["evil.example", &format!("evil.example:{port}"), "127.0.0.1", "localhost:1", &format!("10.0.0.1:{port}"), ""]
    {
        world.client.send("GET", "/v1/health", &[("host", host)], "".into()).await.refused(421, "host_not_allowed");
    }
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "windlass.test".to_owned()] {
        world.client.send("GET", "/v1/health", &[("host", &host)], "".into()).await.is(200);
    }
    for origin in ["http://evil.example", "null", "https://app.example.evil", "http://localhost:1"] {
        let answer = world.client.send("GET", "/v1/runs", &[("origin", origin)], "".into()).await;
        assert_eq!(answer.header("access-control-allow-origin"), "");
        answer.refused(403, "origin_not_allowed");
    }
    let own = format!("http://{}", world.client.address);
    let answer = world.client.send("GET", "/v1/runs", &[("origin", &own)], "".into()).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, ""));
    let listed = world.client.send("GET", "/v1/runs", &[("origin", "https://app.example")], "".into()).await;
    assert_eq!((listed.status, listed.header("access-control-allow-origin")), (200, "https://app.example"));
    let headers = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let preflight = world.client.send("OPTIONS", "/v1/calls", &headers, "".into()).await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-methods")), (204, "GET, POST, PUT, DELETE"));
    let closed = world.client.send("OPTIONS", "/v1/calls", &[("origin", &own)], "".into()).await;
    assert_eq!(closed.header("access-control-allow-methods"), "");
    // A foreign page can send plain text without a preflight request, but not JSON.
    let form =
        world.client.send("POST", "/v1/calls", &[("content-type", "text/plain")], "{\"tool\":\"charge\"}".into()).await;
    form.refused(415, "unsupported_media_type");
    assert_eq!(world.ledger.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_server_for_other_machines_does_not_start_without_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let windlass = builder(&dir.path().join("app.db"), &Default::default()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = serve(listener, windlass.clone(), Options::default(), std::future::pending()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("token create") && refused.to_string().contains("127.0.0.1"), "{refused}");
    windlass.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_process_that_finds_the_file_in_use_learns_the_address_of_the_server() {
    let mut world = World::new().await;
    world.client.get("/v1/ready").await.is(200);
    let path = world.path("app.db");
    let address = format!("http://{}", world.client.address);
    let holder = windlass::store::file_owner(&path).unwrap().expect("the file is in use");
    assert_eq!((holder.pid, holder.address), (Some(std::process::id()), Some(address.clone())));
    match windlass::Windlass::open(&path).await.err().expect("the file is in use") {
        windlass::Error::Open(error) => match error.downcast_ref::<windlass::OpenError>() {
            Some(windlass::OpenError::InUse { address: found, .. }) => assert_eq!(*found, Some(address)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    world.stop().await;
    assert_eq!(windlass::store::file_owner(&path).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn b02_a_token_bound_to_a_layer_sees_and_calls_through_it_only() {
    let world = World::new().await;
    let guest = world.windlass.layer("guest").unwrap();
    guest.toolbox().show_only(["add"]);
    world.windlass.layer("other").unwrap();
    let admin = token(&world.client, "root", &["admin", "read", "call"]).await;
    let admin = world.client.bearing(admin["secret"].as_str().unwrap());
    let bound = json!({"name": "bot", "scopes": ["read", "call"], "layer": "guest", "principal": "root"});
    let made = admin.post("/v1/tokens", bound).await.is(201);
    assert_eq!(made["layer"], "guest");
    let bot = admin.bearing(made["secret"].as_str().unwrap());

    let names = |list: Value| -> Vec<String> {
        list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(bot.get("/v1/tools").await.is(200)), ["add"]);
    assert_eq!(names(admin.get("/v1/tools?layer=guest").await.is(200)), ["add"]);
    assert!(names(admin.get("/v1/tools").await.is(200)).len() > 1);
    bot.get("/v1/tools/charge").await.refused(404, "not_found");
    bot.post("/v1/tools/charge/check", json!({})).await.refused(404, "not_found");

    let hidden = bot.post("/v1/calls", json!({"tool": "charge"})).await.is(200);
    assert_eq!(hidden["outcome"]["error"]["kind"], "unavailable");
    let called = bot.post("/v1/calls", json!({"tool": "add", "args": {"a": 1, "b": 2}})).await.is(200);
    let run = bot.get(&format!("/v1/runs/{}", called["run"].as_str().unwrap())).await.is(200);
    assert_eq!(run["layers"], json!(["guest"]));
    for layer in ["other", "gone"] {
        bot.post("/v1/calls", json!({"tool": "add", "layer": layer})).await.refused(403, "forbidden");
    }
    admin.post("/v1/calls", json!({"tool": "add", "layer": "gone"})).await.refused(409, "layer_not_found");

    // A run outside of the layer cannot be forked.
    let outside = admin.post("/v1/calls", json!({"tool": "add", "args": {"a": 1, "b": 2}})).await.is(200);
    let fork = |run: &Value| format!("/v1/runs/{}/fork", run["run"].as_str().unwrap());
    bot.post(&fork(&outside), json!({"at": "start"})).await.refused(403, "forbidden");
    bot.post(&fork(&called), json!({"at": "start"})).await.is(201);

    // Client tools of the token are mounted in its layer.
    let tools = json!({"tools": [{"name": "mine", "description": "Mine."}], "everywhere": true});
    bot.post("/v1/clients", tools).await.is(201);
    assert_eq!(names(bot.get("/v1/tools").await.is(200)), ["add", "mine"]);
    admin.get("/v1/tools/mine").await.refused(404, "not_found");

    world.windlass.toolbox().remove_layer("guest");
    bot.get("/v1/tools").await.refused(409, "layer_not_found");
    bot.post("/v1/calls", json!({"tool": "add"})).await.refused(409, "layer_not_found");
    let unbound = json!({"name": "boss", "scopes": ["admin"], "layer": "guest"});
    admin.post("/v1/tokens", unbound).await.refused(422, "invalid_request");
}

/// A durable tool that waits for a signal. With `below`, it spawns itself through that layer instead.
fn waits() -> Tool {
    Tool::durable_fn("waits", "Waits for a signal.", |mut ctx: Ctx, args: Value| async move {
        if let Some(layer) = args["below"].as_str() {
            let mut call: ToolCall<Value> = ToolCall::new("waits", json!({}));
            call = call.in_layer(layer);
            let started: Handle<Value> = ctx.spawn(call).await?;
            return Ok(json!(started.run().to_string()));
        }
        let signal: Value = ctx.receive("go").await?;
        Ok(signal)
    })
    .signal_schema("go", json!({}))
}

#[tokio::test(flavor = "multi_thread")]
async fn b02_a_token_bound_to_a_layer_acts_on_runs_of_exactly_that_layer() {
    let world = World::new().await;
    world.windlass.toolbox().insert(waits()).unwrap();
    world.windlass.layer("guest").unwrap();
    world.windlass.layer("super").unwrap();
    let scopes = ["admin", "read", "call", "approve"];
    let admin = token(&world.client, "root", &scopes).await;
    let admin = world.client.bearing(admin["secret"].as_str().unwrap());
    let bound = json!({"name": "bot", "scopes": scopes[1..], "layer": "guest", "principal": "root"});
    let bot = admin.post("/v1/tokens", bound).await.is(201);
    let bot = admin.bearing(bot["secret"].as_str().unwrap());

    let start = async |layer: Option<&str>, tool: &str, args: Value| {
        let mut call = json!({"tool": tool, "args": args, "wait_ms": 0});
        if let Some(layer) = layer {
            call["layer"] = json!(layer);
        }
        admin.post("/v1/calls", call).await.is(202)["run"].as_str().unwrap().to_owned()
    };
    let stacked = async |lower: &str, upper: &str| {
        let call = json!({"tool": "waits", "args": {"below": upper}, "layer": lower});
        admin.post("/v1/calls", call).await.is(200)["outcome"]["value"].as_str().unwrap().to_owned()
    };
    let own = start(Some("guest"), "waits", json!({})).await;
    let above = stacked("guest", "super").await;
    let layers = admin.get(&format!("/v1/runs/{above}")).await.is(200)["layers"].clone();
    assert_eq!(layers, json!(["guest", "super"]));
    let others = [start(None, "waits", json!({})).await, above, stacked("super", "guest").await];

    let acts = |run: &str| {
        [
            (format!("/v1/runs/{run}/fork"), json!({"at": "start"}), 201),
            (format!("/v1/runs/{run}/replay-check"), json!({}), 200),
            (format!("/v1/runs/{run}/signals/go"), json!({"value": 1}), 202),
            (format!("/v1/runs/{run}/cancel"), json!({}), 202),
        ]
    };
    for run in &others {
        for (path, body, _) in acts(run) {
            bot.post(&path, body).await.refused(403, "forbidden");
        }
        bot.get(&format!("/v1/runs/{run}")).await.is(200);
    }
    let mut forks = Vec::new();
    // The run ends with the signal, so it is not cancelled.
    for (path, body, status) in acts(&own).into_iter().take(3) {
        let answer = bot.post(&path, body).await.is(status);
        forks.extend(answer["from"].as_str().map(|_| answer["run"].as_str().unwrap().to_owned()));
    }
    // A fork has the layers of the original.
    let fork = admin.get(&format!("/v1/runs/{}", forks[0])).await.is(200);
    assert_eq!(fork["layers"], json!(["guest"]));
    bot.post(&format!("/v1/runs/{}/cancel", forks[0]), json!({})).await.is(202);
    bot.post(&format!("/v1/runs/{}/cancel", "00000000-0000-7000-8000-000000000009"), json!({}))
        .await
        .refused(404, "not_found");

    // Decisions are limited to the layer too. A connection affects the runs of all layers.
    let (inside, outside) = (start(Some("guest"), "ask", json!({})).await, start(None, "ask", json!({})).await);
    for (run, allowed) in [(&outside, false), (&inside, true)] {
        let item = item(&admin, run).await;
        let answer = bot.post(&format!("/v1/inbox/{item}/answer"), json!({"value": 1})).await;
        if allowed {
            answer.is(200)
        } else {
            answer.refused(403, "forbidden")
        };
    }
    let mail = start(Some("guest"), "mail", json!({})).await;
    let item = item(&admin, &mail).await;
    bot.post(&format!("/v1/inbox/{item}/connect"), json!({})).await.refused(403, "forbidden");
    bot.post("/v1/connections/post", json!({})).await.refused(403, "forbidden");
    admin.post(&format!("/v1/inbox/{item}/connect"), json!({})).await.is(200);
}

async fn item(client: &Client, run: &str) -> String {
    until(|| async {
        let page = client.get(&format!("/v1/inbox?run={run}")).await.is(200);
        Some(page["items"].as_array().unwrap().first()?["id"].as_str().unwrap().to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn b02_l12_a_repeated_request_with_a_key_is_answered_after_its_layer_was_removed() {
    let world = World::new().await;
    world.windlass.layer("guest").unwrap().toolbox().show_only(["add"]);
    world.client.get("/v1/tools/add?layer=guest").await.is(200);
    world.client.get("/v1/tools/charge?layer=guest").await.refused(404, "not_found");
    let call = json!({"tool": "add", "args": {"a": 1, "b": 2}, "layer": "guest"});
    let batch = json!({"calls": [{"tool": "add", "args": {"a": 1, "b": 2}}], "layer": "guest"});
    let first = world.client.post_as("k", "/v1/calls", call.clone()).await.is(200);
    let several = world.client.post_as("b", "/v1/batches", batch.clone()).await.is(200);
    let explained = world.client.get(&format!("/v1/runs/{}/explain", first["run"].as_str().unwrap())).await.is(200);
    assert_eq!(explained["layers"], json!(["guest"]));
    assert!(explained["sentence"].as_str().unwrap().ends_with("(called through guest)"), "{explained}");

    world.windlass.toolbox().remove_layer("guest");
    assert_eq!(world.client.post_as("k", "/v1/calls", call.clone()).await.is(200), first);
    assert_eq!(world.client.post_as("b", "/v1/batches", batch).await.is(200), several);
    let mut other = call.clone();
    other["args"]["a"] = json!(7);
    world.client.post_as("k", "/v1/calls", other).await.refused(422, "key_reused");
    world.client.post_as("new", "/v1/calls", call).await.refused(409, "layer_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_token_that_may_only_call_reads_the_runs_of_its_own_calls_only() {
    let world = World::new().await;
    let root = token(&world.client, "root", &["admin"]).await;
    let root = world.client.bearing(root["secret"].as_str().unwrap());
    // They act for one principal, so that they see the same runs.
    let bearer = async |name: &str, scopes: &[&str]| {
        let request = json!({"name": name, "scopes": scopes, "principal": "team"});
        root.bearing(root.post("/v1/tokens", request).await.is(201)["secret"].as_str().unwrap())
    };
    let (ann, ben) = (bearer("ann", &["call"]).await, bearer("ben", &["call"]).await);
    let (reader, approver) = (bearer("reader", &["read", "call"]).await, bearer("approver", &["approve"]).await);
    let pay = json!({"tool": "pay", "args": {"cents": 500}, "wait_ms": 0});
    let batch = json!({"calls": [{"tool": "ask"}], "wait_ms": 0});
    let mut locations = Vec::new();
    for (client, path, body) in [(&ann, "/v1/calls", &pay), (&ann, "/v1/batches", &batch), (&ben, "/v1/calls", &pay)] {
        let answer = client.post(path, body.clone()).await;
        let location = answer.header("location").to_owned();
        let accepted = answer.is(202);
        let (run, access) = (accepted["run"].as_str().unwrap(), accepted["access"].as_str().unwrap());
        assert_eq!(location, format!("/v1/runs/{run}?access={access}"));
        locations.push((run.to_owned(), access.to_owned()));
    }
    let [(own, own_access), (batch, batch_access), (other, other_access)] = locations.try_into().unwrap();
    let plain = reader.post("/v1/calls", pay.clone()).await;
    let location = plain.header("location").to_owned();
    assert_eq!(location, format!("/v1/runs/{}", plain.is(202)["run"].as_str().unwrap()), "it needs no permission");

    for run in [&own, &batch, &other] {
        until(|| async {
            let shown = reader.get(&format!("/v1/runs/{run}")).await.is(200);
            (shown["state"] == "suspended").then_some(())
        })
        .await;
    }
    let nothing = "01900000-0000-7000-8000-000000000000";
    for (run, access, readers) in [
        (&own, Some(&own_access), "ann reader"),
        (&batch, Some(&batch_access), "ann reader"),
        (&other, Some(&other_access), "ben reader"),
        (&own, None, "reader"),
        (&other, None, "reader"),
        (&own, Some(&other_access), "reader"),
        (&other, Some(&own_access), "reader"),
        (&own, Some(&String::new()), "reader"),
        (&own, Some(&own_access[1..].to_owned()), "reader"),
    ] {
        let query = access.map(|access| format!("?access={access}")).unwrap_or_default();
        for (name, client) in
            [("ann", &ann), ("ben", &ben), ("reader", &reader), ("approver", &approver), ("root", &root)]
        {
            for (path, status) in [("", 200), ("/outcome", 202)] {
                let answer = client.get(&format!("/v1/runs/{run}{path}{query}")).await;
                if readers.contains(name) {
                    assert_eq!(answer.is(status)["state"], "suspended", "{name} {path} {query}");
                } else {
                    assert_eq!(answer.refused(403, "forbidden")["scope"], "read", "{name} {path} {query}");
                }
            }
            for path in ["/events", "/journal", "/trace", "/explain", "/export"] {
                let allowed = if path == "/export" { name == "root" } else { name == "reader" };
                if !allowed {
                    client.get(&format!("/v1/runs/{run}{path}")).await.refused(403, "forbidden");
                }
            }
        }
        world.client.get(&format!("/v1/runs/{run}{query}")).await.refused(401, "unauthorized");
    }
    ann.get(&format!("/v1/runs/{nothing}?access={own_access}")).await.refused(403, "forbidden");
    ann.get("/v1/runs").await.refused(403, "forbidden");
    // Tokens with the scope `call` may cancel other runs, but do not get to read them by that.
    let cancelled = ann.post(&format!("/v1/runs/{other}/cancel"), json!({})).await.is(202);
    assert!(cancelled.get("access").is_none(), "{cancelled}");

    // The permission survives a restart, and gives access to the outcome.
    let world = world.restart(Options::default()).await;
    let (ann, reader) = (world.client.bearing(ann.token()), world.client.bearing(reader.token()));
    let approver = world.client.bearing(approver.token());
    let item = item(&reader, &own).await;
    approver.post(&format!("/v1/inbox/{item}/approve"), json!({})).await.is(200);
    let ended = ann.get(&format!("/v1/runs/{own}/outcome?wait_ms=10000&access={own_access}")).await.is(200);
    assert_eq!(ended["outcomes"][0]["value"], json!({"paid": 1}));
    // A permission is that of a token, not of a name.
    let root = world.client.bearing(root.token());
    let list = root.get("/v1/tokens").await.is(200);
    let id = list["tokens"].as_array().unwrap().iter().find(|token| token["name"] == "ann").unwrap()["id"].clone();
    root.delete(&format!("/v1/tokens/{}", id.as_str().unwrap())).await.is(204);
    ann.get(&format!("/v1/runs/{own}?access={own_access}")).await.refused(401, "unauthorized");
    let again = json!({"name": "ann", "scopes": ["call"], "principal": "team"});
    let again = root.post("/v1/tokens", again).await.is(201);
    let again = world.client.bearing(again["secret"].as_str().unwrap());
    again.get(&format!("/v1/runs/{own}?access={own_access}")).await.refused(403, "forbidden");
}
