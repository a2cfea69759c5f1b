//! For whom requests act, and which runs, items and artifacts a token sees.

use serde_json::{Value, json};
use windlass::{ToolCall, Windlass};

use crate::net::{Client, until};
use crate::world::World;

/// Scopes of a token that may do everything except manage the server.
const USER: [&str; 3] = ["read", "call", "approve"];

/// Tokens of a server: an administrator, two users, a second token of the first user, and one that names others.
struct Tokens {
    admin: Client,
    ada: Client,
    bob: Client,
    ada_too: Client,
    proxy: Client,
}

impl Tokens {
    async fn of(client: &Client) -> Self {
        let admin = json!({"name": "root", "scopes": ["admin", "read", "call", "approve", "impersonate"]});
        let admin = client.post("/v1/tokens", admin).await.is(201);
        assert_eq!(admin["principal"], "root", "by default the name");
        let admin = client.bearing(admin["secret"].as_str().unwrap());
        let make = async |name: &str, principal: Option<&str>, more: &[&str]| {
            let scopes = [&USER[..], more].concat();
            let mut request = json!({"name": name, "scopes": scopes});
            if let Some(principal) = principal {
                request["principal"] = json!(principal);
            }
            admin.bearing(admin.post("/v1/tokens", request).await.is(201)["secret"].as_str().unwrap())
        };
        let (ada, bob) = (make("ada", None, &[]).await, make("bob", None, &[]).await);
        let ada_too = make("laptop", Some("ada"), &[]).await;
        let proxy = make("proxy", None, &["impersonate"]).await;
        Self { admin, ada, bob, ada_too, proxy }
    }
}

/// Starts a run that waits for an answer, in the session `s`.
async fn ask(client: &Client, cause: &str) -> String {
    let call = json!({"tool": "ask", "session": "s", "cause": cause, "wait_ms": 0});
    client.post("/v1/calls", call).await.is(202)["run"].as_str().unwrap().to_owned()
}

async fn library_run(windlass: &Windlass) -> String {
    windlass.start(ToolCall::new("ask", json!({})).session("s")).await.unwrap().id().to_string()
}

/// The item of a run, once it has one.
async fn item(admin: &Client, run: &str) -> Value {
    until(|| async {
        let page = admin.get(&format!("/v1/inbox?run={run}")).await.is(200);
        page["items"].as_array().unwrap().first().cloned()
    })
    .await
}

fn ids(page: &Value, list: &str, field: &str) -> Vec<String> {
    let mut ids: Vec<String> =
        page[list].as_array().unwrap().iter().map(|one| one[field].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// What the token sees of the session, the list and the inbox.
async fn seen(client: &Client) -> [Vec<String>; 3] {
    let runs = client.get("/v1/runs?session=s").await.is(200);
    let inbox = client.get("/v1/inbox?session=s").await.is(200);
    let events =
        client.send("GET", "/v1/sessions/s/events", &[("accept", "application/json")], "".into()).await.is(200);
    [ids(&runs, "runs", "id"), ids(&inbox, "items", "run"), ids(&events, "events", "run")]
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_a_token_sees_and_acts_on_the_runs_of_its_principal_only() {
    let world = World::new().await;
    let tokens = Tokens::of(&world.client).await;
    let of_ada = ask(&tokens.ada, "turn 1").await;
    // An administrator acts for bob: bob's own token finds no session of ada.
    let of_bob = ask(&tokens.admin.acting_for("bob"), "turn 2").await;
    let of_none = library_run(&world.windlass).await;
    let mut all = vec![of_ada.clone(), of_bob.clone(), of_none.clone()];
    all.sort();
    for run in &all {
        item(&tokens.admin, run).await;
    }
    let bearers: [(&str, Client, &[&String]); 6] = [
        ("root", tokens.admin.clone(), &[&of_ada, &of_bob, &of_none]),
        ("ada", tokens.ada.clone(), &[&of_ada]),
        ("the second token of ada", tokens.ada_too.clone(), &[&of_ada]),
        ("bob", tokens.bob.clone(), &[&of_bob]),
        ("proxy", tokens.proxy.clone(), &[]),
        ("proxy for ada", tokens.proxy.acting_for("ada"), &[&of_ada]),
    ];
    for (name, client, sees) in &bearers {
        let mut expected: Vec<String> = sees.iter().map(|run| (*run).clone()).collect();
        expected.sort();
        assert_eq!(seen(client).await, [expected.clone(), expected.clone(), expected], "{name}");
        for run in &all {
            let is_seen = sees.contains(&run);
            let of_item = item(&tokens.admin, run).await["id"].as_str().unwrap().to_owned();
            let own = sees.first().map_or(run, |own| *own);
            // Requests that change nothing, also where they are allowed.
            let requests = [
                ("GET", format!("/v1/runs/{run}"), Value::Null),
                ("GET", format!("/v1/runs/{run}/outcome"), Value::Null),
                ("GET", format!("/v1/runs/{run}/journal"), Value::Null),
                ("GET", format!("/v1/runs/{run}/events"), Value::Null),
                ("GET", format!("/v1/runs/{run}/trace"), Value::Null),
                ("GET", format!("/v1/runs/{run}/explain"), Value::Null),
                ("GET", format!("/v1/runs/{run}/compare/{own}"), Value::Null),
                ("GET", format!("/v1/runs/{own}/compare/{run}"), Value::Null),
                ("POST", format!("/v1/runs/{run}/replay-check"), json!({})),
                ("POST", format!("/v1/runs/{run}/signals/undeclared"), json!({})),
                ("GET", format!("/v1/inbox?run={run}"), Value::Null),
            ];
            for (method, path, body) in requests {
                let headers = [("accept", "application/json"), ("content-type", "application/json")];
                let text = if body.is_null() { String::new() } else { body.to_string() };
                let answer = client.send(method, &path, &headers, text.into()).await;
                match is_seen {
                    true => assert!(![401, 403, 404].contains(&answer.status), "{name} {method} {path}: {answer:?}"),
                    false => {
                        let problem = answer.refused(404, "not_found");
                        // The id of a run may contain the letters of a name.
                        let text = problem.to_string().replace(&run.to_string(), "");
                        let named = ["ada", "bob", "turn"].iter().any(|word| text.contains(word));
                        assert!(!named, "{name} {method} {path}: {problem}");
                    }
                }
            }
            // Requests that would change the run.
            if !is_seen {
                for (path, body) in [
                    (format!("/v1/runs/{run}/cancel"), json!({})),
                    (format!("/v1/runs/{run}/fork"), json!({"at": "start"})),
                    (format!("/v1/inbox/{of_item}/answer"), json!({"value": 1})),
                ] {
                    client.post(&path, body).await.refused(404, "not_found");
                }
                let bulk = json!({"action": "answer", "ids": [of_item], "value": 1});
                let result = client.post("/v1/inbox", bulk).await.is(200)["results"][0].clone();
                assert_eq!((&result["ok"], &result["problem"]["status"]), (&json!(false), &json!(404)), "{name}");
            }
        }
    }
    // Nothing above was answered or ended.
    for run in &all {
        assert_eq!(tokens.admin.get(&format!("/v1/runs/{run}")).await.is(200)["state"], "suspended");
    }
    // Many at once, and by reply key: the filter has only own items, and the key is a credential of its own.
    let bulk = json!({"action": "answer", "filter": {"session": "s"}, "value": "from ada"});
    let results = tokens.ada_too.post("/v1/inbox", bulk).await.is(200);
    assert_eq!(results["results"].as_array().unwrap().len(), 1, "{results}");
    assert_eq!(
        world.run_in_as(&tokens.ada, &of_ada, "finished").await["outcomes"][0]["value"],
        json!({"said": "from ada"})
    );
    let key = item(&tokens.admin, &of_bob).await["key"].as_str().unwrap().to_owned();
    world.client.post(&format!("/v1/replies/{key}"), json!({"value": "by key"})).await.is(200);
    let fork = tokens.ada.post(&format!("/v1/runs/{of_ada}/fork"), json!({"at": "start"})).await.is(201);
    let fork = tokens.ada.get(&format!("/v1/runs/{}", fork["run"].as_str().unwrap())).await.is(200);
    assert_eq!((&fork["principal"], &fork["cause"]), (&json!("ada"), &json!("turn 1")));
    tokens.ada.post(&format!("/v1/runs/{}/cancel", fork["id"].as_str().unwrap()), json!({})).await.is(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_a_server_without_tokens_sees_all_runs_and_names_no_principal_by_itself() {
    let world = World::new().await;
    let plain = world.call("charge", json!({})).await["run"].as_str().unwrap().to_owned();
    let run = world.client.get(&format!("/v1/runs/{plain}")).await.is(200);
    assert!(run.get("principal").is_none() && run.get("cause").is_none(), "{run}");
    let named = world.client.acting_for("Ådå");
    let call = json!({"tool": "charge", "cause": "turn 7"});
    let run = named.post_as("k", "/v1/calls", call).await.is(200)["run"].as_str().unwrap().to_owned();
    let run = world.client.get(&format!("/v1/runs/{run}")).await.is(200);
    assert_eq!([&run["principal"], &run["cause"], &run["key"]], [&json!("Ådå"), &json!("turn 7"), &json!("k")]);
    world.client.get("/v1/runs").await.is(200)["runs"].as_array().unwrap().len();
    let long = "x".repeat(256);
    for (principal, cause) in
        [("", "ok"), (long.as_str(), "ok"), ("ok", ""), ("ok", "a\nb"), ("ok", " x"), ("ok", &long)]
    {
        let client = world.client.acting_for(principal);
        let refused = client.post("/v1/calls", json!({"tool": "charge", "cause": cause})).await;
        let problem = refused.refused(422, "invalid_request");
        assert!(problem["detail"].as_str().unwrap().contains("1 to 255 visible characters"), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_naming_another_principal_needs_the_scope_impersonate() {
    let world = World::new().await;
    let tokens = Tokens::of(&world.client).await;
    let call = json!({"tool": "charge", "cause": "frame 3"});
    let refused = tokens.ada.acting_for("bob").post("/v1/calls", call.clone()).await.refused(403, "forbidden");
    assert_eq!(refused["scope"], "impersonate");
    tokens.ada.acting_for("bob").get("/v1/runs").await.refused(403, "forbidden");
    assert_eq!(world.ledger.count(), 0);
    let mut runs = Vec::new();
    for (client, principal) in [
        (tokens.ada.clone(), "ada"),
        (tokens.ada.acting_for("ada"), "ada"),
        (tokens.ada_too.clone(), "ada"),
        (tokens.proxy.clone(), "proxy"),
        (tokens.proxy.acting_for("bob"), "bob"),
        (tokens.admin.acting_for("bob"), "bob"),
    ] {
        let batch = json!({"calls": [{"tool": "charge"}], "cause": "frame 3"});
        let batch = client.post("/v1/batches", batch).await.is(200)["run"].as_str().unwrap().to_owned();
        let run = client.post("/v1/calls", call.clone()).await.is(200)["run"].as_str().unwrap().to_owned();
        for run in [batch, run] {
            let shown = client.get(&format!("/v1/runs/{run}")).await.is(200);
            assert_eq!((&shown["principal"], &shown["cause"]), (&json!(principal), &json!("frame 3")));
            runs.push((run, principal));
        }
    }
    for principal in ["ada", "bob", "proxy"] {
        let page = tokens.admin.get(&format!("/v1/runs?principal={principal}&cause=frame%203")).await.is(200);
        let mut expected: Vec<String> =
            runs.iter().filter(|(_, of)| *of == principal).map(|(run, _)| run.clone()).collect();
        expected.sort();
        assert_eq!(ids(&page, "runs", "id"), expected, "{principal}");
    }
    let other = tokens.ada.get("/v1/runs?principal=bob").await.is(200);
    assert_eq!(other, json!({"runs": [], "next": null}));
    // A token that may only make calls reads its own run by the permission, for every principal.
    let caller = json!({"name": "caller", "scopes": ["call", "impersonate"]});
    let caller = tokens.admin.post("/v1/tokens", caller).await.is(201);
    let caller = tokens.admin.bearing(caller["secret"].as_str().unwrap());
    let accepted = caller.acting_for("bob").post("/v1/calls", json!({"tool": "ask", "wait_ms": 0})).await.is(202);
    let (run, access) = (accepted["run"].as_str().unwrap(), accepted["access"].as_str().unwrap());
    assert_eq!(caller.get(&format!("/v1/runs/{run}?access={access}")).await.is(200)["principal"], "bob");
    caller.post(&format!("/v1/runs/{run}/cancel"), json!({})).await.refused(404, "not_found");
    caller.acting_for("bob").post(&format!("/v1/runs/{run}/cancel"), json!({})).await.is(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_a_key_of_another_principal_is_refused_without_its_run() {
    let world = World::new().await;
    let tokens = Tokens::of(&world.client).await;
    let call = json!({"tool": "charge"});
    let first = tokens.ada.post_as("k", "/v1/calls", call.clone()).await.is(200);
    assert_eq!(tokens.ada_too.post_as("k", "/v1/calls", call.clone()).await.is(200), first);
    let refused = tokens.bob.post_as("k", "/v1/calls", call.clone()).await.refused(422, "key_reused");
    assert!(refused.get("run").is_none() && !refused.to_string().contains(first["run"].as_str().unwrap()), "{refused}");
    let of_admin = tokens.admin.post_as("k", "/v1/calls", call).await.refused(422, "key_reused");
    assert_eq!(of_admin["run"], first["run"]);
    assert_eq!(world.ledger.count(), 1);
    assert_eq!(tokens.bob.get("/v1/runs?key=k").await.is(200)["runs"], json!([]));
    assert_eq!(ids(&tokens.ada.get("/v1/runs?key=k").await.is(200), "runs", "id"), [first["run"].as_str().unwrap()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_artifacts_and_connections_are_those_of_the_principal() {
    let world = World::new().await;
    let tokens = Tokens::of(&world.client).await;
    let store = async |client: &Client, text: &str| {
        let headers = [("content-type", "text/plain")];
        let stored = client.send("POST", "/v1/artifacts?session=s", &headers, text.to_owned().into()).await.is(201);
        format!("/v1/artifacts/{}", stored["artifact"].as_str().unwrap())
    };
    let (of_ada, of_root) = (store(&tokens.ada, "of ada").await, store(&tokens.admin, "of root").await);
    for session in ["", "?session=s"] {
        let of_ada = format!("{of_ada}{session}");
        assert_eq!(tokens.ada.get(&of_ada).await.status, 200);
        assert_eq!(tokens.ada_too.get(&of_ada).await.status, 200);
        assert_eq!(tokens.proxy.acting_for("ada").get(&of_ada).await.status, 200);
        assert_eq!(tokens.admin.get(&of_ada).await.status, 200);
        for client in [&tokens.bob, &tokens.proxy] {
            client.get(&of_ada).await.refused(404, "not_found");
            client.get(&format!("{of_root}{session}")).await.refused(404, "not_found");
        }
    }
    tokens.ada.get(&format!("{of_ada}?session=t")).await.refused(404, "not_found");

    let mail = async |client: &Client| {
        let call = json!({"tool": "mail", "wait_ms": 0});
        client.post("/v1/calls", call).await.is(202)["run"].as_str().unwrap().to_owned()
    };
    let (first, second) = (mail(&tokens.ada).await, mail(&tokens.bob).await);
    for run in [&first, &second] {
        item(&tokens.admin, run).await;
    }
    let connected = tokens.ada.post("/v1/connections/post", json!({})).await.is(200);
    assert_eq!(connected["runs"], 1);
    world.run_in_as(&tokens.ada, &first, "finished").await;
    let connected = tokens.bob.post("/v1/connections/post", json!({})).await.is(200);
    assert_eq!(connected["runs"], 1, "the run of bob still waited");
    world.run_in_as(&tokens.bob, &second, "finished").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b13_runs_are_listed_by_every_filter_with_cursors() {
    let world = World::new().await;
    let mut runs = Vec::new();
    for n in 0..6 {
        let client = world.client.acting_for(if n % 2 == 0 { "ada" } else { "bob" });
        let (tool, session) = (if n < 4 { "charge" } else { "fail" }, if n < 3 { "s" } else { "t" });
        let call = json!({"tool": tool, "session": session, "args": {"n": n}, "cause": format!("turn {}", n / 2)});
        let run =
            client.post_as(&format!("key-{n}"), "/v1/calls", call).await.is(200)["run"].as_str().unwrap().to_owned();
        runs.push(world.client.get(&format!("/v1/runs/{run}")).await.is(200));
    }
    let created = |n: usize| runs[n]["created"].as_str().unwrap().replace('+', "%2B");
    let listed = async |query: &str| -> Vec<usize> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = world.client.get(&format!("/v1/runs?order=oldest&limit=2&{query}{cursor}")).await.is(200);
            for run in page["runs"].as_array().unwrap() {
                found.push(runs.iter().position(|known| known["id"] == run["id"]).unwrap());
            }
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    };
    for (query, expected) in [
        ("principal=ada".to_owned(), vec![0, 2, 4]),
        ("principal=ada&state=ok".to_owned(), vec![0, 2]),
        ("principal=bob&session=s".to_owned(), vec![1]),
        ("cause=turn%201".to_owned(), vec![2, 3]),
        ("cause=turn%201&principal=bob".to_owned(), vec![3]),
        ("cause=turn%202&tool=charge".to_owned(), vec![]),
        ("key=key-3".to_owned(), vec![3]),
        ("key=key-3&principal=ada".to_owned(), vec![]),
        ("tool=fail&principal=bob".to_owned(), vec![5]),
        (format!("created_from={}", created(3)), vec![3, 4, 5]),
        (format!("created_before={}", created(3)), vec![0, 1, 2]),
        (format!("created_from={}&created_before={}&principal=ada", created(1), created(5)), vec![2, 4]),
    ] {
        assert_eq!(listed(&query).await, expected, "{query}");
        let newest = world.client.get(&format!("/v1/runs?{query}")).await.is(200);
        let count = newest["runs"].as_array().unwrap().len();
        assert_eq!(count, expected.len(), "{query}, newest first");
    }
    world.client.get("/v1/runs?created_from=yesterday").await.refused(400, "bad_query");
}

#[tokio::test(flavor = "multi_thread")]
async fn b13_l26_outcomes_carry_their_call_and_its_metadata_byte_for_byte() {
    let world = World::new().await;
    let raw = "{ \"b\":1.50e1, \"a\":[1,\n 2], \"a\":\"\\u00e9\\/\"}";
    let call = |metadata: &str| {
        format!(r#"{{"tool": "pay", "args": {{"cents": 5, "pin": "1234"}}, "call_id": "c1", "metadata": {metadata}}}"#)
    };
    let send = async |path: &str, body: String| {
        let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
        world.client.send("POST", path, &headers, body.into()).await
    };
    let text = |answer: &crate::net::Answer| String::from_utf8(answer.body.to_vec()).unwrap();
    let answer = send("/v1/calls", call(raw)).await;
    assert!(text(&answer).contains(&format!("\"metadata\":{raw}")), "{}", text(&answer));
    let answer = answer.is(200);
    let called = &answer["outcome"]["call"];
    assert_eq!((&called["tool"], &called["name"]), (&json!("pay"), &json!("pay")));
    assert_eq!(called["args"]["cents"], 5);
    assert!(!answer.to_string().contains("1234"), "the secret is hidden: {answer}");
    let run = answer["run"].as_str().unwrap().to_owned();
    let world_path = [format!("/v1/runs/{run}"), format!("/v1/runs/{run}/outcome")];
    for path in &world_path {
        let shown = text(&world.client.get(path).await);
        assert!(
            shown.contains(&format!("\"metadata\":{raw}")) && shown.contains("\"call\":{\"tool\":\"pay\""),
            "{shown}"
        );
    }
    let batch = format!(
        r#"{{"calls": [{{"tool": "add", "args": {{"a": 1, "b": 2}}, "metadata": {raw}}}, {{"tool": "none"}},
            {{"tool": "add", "metadata": null}}]}}"#
    );
    let headers = [("content-type", "application/json")];
    let answer = world.client.send("POST", "/v1/batches", &headers, batch.into()).await;
    assert!(text(&answer).contains(&format!("\"metadata\":{raw}")) && text(&answer).contains("\"metadata\":null"));
    let outcomes = answer.is(200)["outcomes"].clone();
    assert_eq!(outcomes[0]["call"], json!({"tool": "add", "name": "add", "args": {"a": 1, "b": 2}}));
    assert_eq!(
        outcomes[1]["call"],
        json!({"tool": "none", "name": "none"}),
        "arguments of an unknown tool are not shown"
    );
    let large = call(&format!("\"{}\"", "x".repeat(256 * 1024 - 1)));
    let refused = world.client.send("POST", "/v1/calls", &headers, large.into()).await.refused(422, "invalid_request");
    assert!(refused["detail"].as_str().unwrap().contains("`metadata` is too large"), "{refused}");

    // Also after a restart of the server.
    let world = world.restart(windlass_server::Options::default()).await;
    for path in &world_path {
        let shown = text(&world.client.get(path).await);
        assert!(shown.contains(&format!("\"metadata\":{raw}")), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_w07_a_check_is_made_for_the_principal_of_the_token() {
    let world = World::new().await;
    let guests = windlass::Tool::new("greet", "Greets.", |_: Value| async { Ok(json!("hello")) });
    world.windlass.toolbox().insert(guests.approval_when("caller == 'bob' && cause == 'mail'")).unwrap();
    let tokens = Tokens::of(&world.client).await;
    for (client, cause, verdict) in [
        (&tokens.bob, json!({"cause": "mail"}), "needs_approval"),
        (&tokens.bob, json!({}), "runs"),
        (&tokens.ada, json!({"cause": "mail"}), "runs"),
        (&tokens.proxy.acting_for("bob"), json!({"cause": "mail"}), "needs_approval"),
    ] {
        let checked = client.post("/v1/tools/greet/check", cause.clone()).await.is(200);
        assert_eq!(checked["verdict"], verdict, "{cause}");
        let mut call = json!({"tool": "greet", "wait_ms": 2_000});
        if let Some(cause) = cause.get("cause") {
            call["cause"] = cause.clone();
        }
        let made = client.post("/v1/calls", call).await;
        assert_eq!(made.status, if verdict == "runs" { 200 } else { 202 }, "the call does what the check says");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_an_explanation_names_no_run_of_another_principal() {
    let world = World::new().await;
    let tokens = Tokens::of(&world.client).await;
    let keyed = json!({"tool": "keyed", "wait_ms": 0});
    let first = tokens.ada.post("/v1/calls", keyed.clone()).await.is(202)["run"].as_str().unwrap().to_owned();
    item(&tokens.admin, &first).await;
    let second = tokens.bob.post("/v1/calls", keyed).await.is(202)["run"].as_str().unwrap().to_owned();
    world.run_in_as(&tokens.bob, &second, "suspended").await;
    let paths =
        [format!("/v1/runs/{second}/explain"), format!("/v1/runs/{second}"), format!("/v1/runs/{second}/outcome")];
    for path in &paths {
        let text = String::from_utf8(tokens.bob.get(path).await.body.to_vec()).unwrap();
        assert!(text.contains("which a run of another principal holds"), "{path}: {text}");
        assert!(!text.contains(&first), "{path}: {text}");
        let text = String::from_utf8(tokens.admin.get(path).await.body.to_vec()).unwrap();
        assert!(text.contains(&format!("which run {first} holds")), "{path}: {text}");
    }
    let why = tokens.bob.get(&paths[0]).await.is(200)["moves"][0].clone();
    assert_eq!((&why["why"], &why["other_principal"], why.get("holder")), (&json!("key"), &json!(true), None), "{why}");
    // The other principal's own run may be named.
    let third = tokens.ada.post("/v1/calls", json!({"tool": "keyed", "wait_ms": 0})).await.is(202);
    let third = world.run_in_as(&tokens.ada, third["run"].as_str().unwrap(), "suspended").await;
    assert!(third["sentence"].as_str().unwrap().contains(&first), "{third}");
}
