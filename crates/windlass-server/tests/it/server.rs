//! Tools, administration, health and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tower::ServiceExt;
use windlass::tool::{Atomic, Body, Schemas, Source, ToolRef};
use windlass::{Call, Output, Tool, ToolError, ToolResult, ToolSpec};
use windlass_server::Options;

use crate::world::{World, builder};

#[tokio::test(flavor = "multi_thread")]
async fn l23_tools_are_listed_in_the_formats_of_model_apis() {
    let world = World::new().await;
    let tools = world.client.get("/v1/tools").await.is(200)["tools"].clone();
    let names: Vec<&str> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted() && names.contains(&"add"), "{names:?}");
    let pay = world.client.get("/v1/tools/pay").await.is(200);
    assert_eq!(
        (&pay["effect"], &pay["policy"]["approval"], &pay["durable"]),
        (&json!("once"), &json!("args.cents > 100"), &json!(false))
    );
    let openai = world.client.get("/v1/tools?format=openai").await.is(200);
    let add = openai["tools"].as_array().unwrap().iter().find(|tool| tool["function"]["name"] == "add").unwrap();
    assert_eq!((&add["type"], &add["function"]["parameters"]["required"]), (&json!("function"), &json!(["a", "b"])));
    let anthropic = world.client.get("/v1/tools?format=anthropic").await.is(200);
    let add = anthropic["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "add").unwrap();
    assert_eq!(add["input_schema"]["properties"]["a"]["type"], "integer");
    assert_eq!(world.client.get("/v1/tools?tag=none").await.is(200)["tools"], json!([]));
    world.client.get("/v1/tools?format=xml").await.refused(400, "bad_query");
}

struct Nothing;

impl Atomic for Nothing {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::ready(Ok(Output::value(json!(1)))))
    }
}

fn lazy(name: &str, schemas: impl Fn() -> ToolResult<Schemas> + Send + Sync + 'static) -> Tool {
    Tool::lazy(ToolSpec::new(name, "Of a document."), move |_| schemas(), Body::Atomic(Arc::new(Nothing)))
}

fn named(list: &Value, name: &str) -> Value {
    list["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn l03_a_list_compiles_no_schemas_and_survives_a_tool_without_schemas() {
    let world = World::new().await;
    let insert = |name: &str, fails: bool| {
        let schemas = move || match fails {
            true => Err(ToolError::unavailable("nothing at `#/nowhere`")),
            // Not a valid schema: a list does not compile it.
            false => Ok(Schemas::input(json!({"type": "strin"}))),
        };
        world.windlass.toolbox().insert(lazy(name, schemas)).unwrap();
    };
    insert("broken", true);
    insert("fine", false);
    let listed = world.client.get("/v1/tools?schemas=all").await.is(200);
    let fine = named(&listed, "fine");
    assert_eq!((&fine["input_schema"]["type"], &fine["unavailable"]), (&json!("strin"), &Value::Null));
    assert!(named(&listed, "broken")["unavailable"].as_str().unwrap().contains("nothing at `#/nowhere`"), "{listed}");
    assert!(named(&listed, "add").get("unavailable").is_none());
    let openai = world.client.get("/v1/tools?format=openai&schemas=all").await.is(200).to_string();
    assert!(openai.contains("\"fine\"") && !openai.contains("\"broken\""), "a model does not get tools it cannot call");
    world.client.get("/v1/tools/broken").await.refused(503, "tool_unavailable");
}

/// Finds `unlisted`, and lists nothing because it fails.
struct Failing;

impl Source for Failing {
    fn list(&self) -> ToolResult<Vec<Tool>> {
        Err(ToolError::unavailable("connection refused"))
    }

    fn find(&self, tool: &ToolRef) -> ToolResult<Option<Tool>> {
        Ok((tool.as_str() == "unlisted").then(|| lazy("unlisted", || Ok(Schemas::any()))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l03_a_list_in_any_format_loads_only_the_schemas_that_it_is_asked_for_and_names_failed_sources() {
    let world = World::new().await;
    let toolbox = world.windlass.toolbox();
    let loaded = Arc::new(AtomicUsize::new(0));
    let counted = |name: &str| {
        let loaded = loaded.clone();
        lazy(name, move || {
            loaded.fetch_add(1, Ordering::Relaxed);
            Ok(Schemas::input(json!({"type": "object", "required": ["x"]})))
        })
    };
    toolbox.mount("document", ["first", "second"].map(counted)).unwrap();
    toolbox.mount_source("github", Failing).unwrap();
    for format in ["windlass", "openai", "anthropic"] {
        let listed = world.client.get(&format!("/v1/tools?format={format}")).await.is(200);
        let text = listed["tools"].to_string();
        assert!(text.contains("\"first\"") && text.contains("\"add\""), "{listed}");
        assert_eq!(listed["failed_sources"], json!([{"source": "github", "message": "connection refused"}]));
        assert_eq!(text.contains("is not loaded"), format != "windlass", "{listed}");
        assert_eq!(loaded.load(Ordering::Relaxed), 0, "{format}");
    }
    let listed = world.client.get("/v1/tools").await.is(200);
    assert_eq!(named(&listed, "first").get("input_schema"), None);
    assert!(named(&listed, "add")["input_schema"].is_object(), "a schema that is there is shown");
    let some = world.client.get("/v1/tools?names=first,add,unlisted").await.is(200);
    assert_eq!(some["tools"].as_array().map(Vec::len), Some(3), "{some}");
    assert_eq!(named(&some, "first")["input_schema"]["required"], json!(["x"]));
    assert!(named(&some, "unlisted")["input_schema"].is_object(), "{some}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    let all = world.client.get("/v1/tools?format=anthropic&schemas=all").await.is(200);
    assert_eq!(named(&all, "second")["input_schema"]["required"], json!(["x"]));
    world.client.get("/v1/tools?names=first,nothing").await.refused(404, "not_found");
    let outcome = world.client.post("/v1/calls", json!({"tool": "unlisted", "args": {}})).await.is(200);
    assert_eq!(outcome["outcome"]["value"], 1, "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn w07_a_check_predicts_a_call_without_making_it() {
    let world = World::new().await;
    let check = |tool: &'static str, args: Value| {
        let client = world.client.clone();
        async move { client.post(&format!("/v1/tools/{tool}/check"), json!({"args": args})).await.is(200) }
    };
    let dear = check("pay", json!({"cents": 500})).await;
    assert_eq!(
        (&dear["verdict"], &dear["valid"], &dear["effect"]),
        (&json!("needs_approval"), &json!(true), &json!("once"))
    );
    assert!(dear["why"].as_str().unwrap().contains("args.cents > 100"), "{dear}");
    assert_eq!(check("pay", json!({"cents": 5})).await["verdict"], "runs");
    let invalid = check("add", json!({"a": "x"})).await;
    assert_eq!(
        (&invalid["verdict"], &invalid["valid"], invalid["violations"].as_array().unwrap().len()),
        (&json!("refused"), &json!(false), 2)
    );
    let unconnected = check("mail", json!({})).await;
    assert_eq!((&unconnected["verdict"], &unconnected["error"]), (&json!("needs_connection"), &Value::Null));
    assert!(unconnected["why"].as_str().unwrap().contains("`post`"), "{unconnected}");
    assert_eq!(world.client.get("/v1/runs").await.is(200)["runs"], json!([]));
    assert_eq!(world.ledger.count(), 0);
    world.client.post("/v1/tools/none/check", json!({})).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_health_readiness_and_metrics() {
    let world = World::new().await;
    world.call("add", json!({"a": 1, "b": 1})).await;
    world.call("fail", json!({})).await;
    let run = world.start("ask", json!({})).await;
    world.run_in(&run, "suspended").await;
    world.client.get("/nowhere").await.refused(404, "not_found");
    let health = world.client.get("/v1/health").await.is(200);
    assert_eq!((&health["status"], &health["problems"]), (&json!("ok"), &json!([])));
    assert_eq!(world.client.get("/v1/ready").await.is(200), json!({"ready": true}));
    assert_eq!(world.client.get("/").await.is(200)["name"], "windlass");
    let metrics = world.client.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("text/plain"), "{metrics:?}");
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        "windlass_runs{state=\"suspended\"} 1",
        "windlass_runs{state=\"finished\"} 2",
        "windlass_queue_depth 0",
        "windlass_inbox 1",
        "windlass_store_healthy 1",
        "windlass_calls_total{tool=\"add\",outcome=\"ok\"} 1",
        "windlass_calls_total{tool=\"fail\",outcome=\"failed\"} 1",
        "windlass_attempt_seconds_count 2",
        "windlass_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"404\"} 1",
        "windlass_http_requests_total{method=\"POST\",route=\"/v1/calls\",status=\"200\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_tidy_check_and_backup() {
    let world = World::new().await;
    world.call("charge", json!({})).await;
    let tidied = world.client.post("/v1/admin/tidy", json!({})).await.is(200);
    assert_eq!(tidied["removed"], 0);
    let checked = world.client.post("/v1/admin/check", json!({})).await.is(200);
    assert_eq!(checked, json!({"ok": true, "problems": []}));
    let to = world.path("copy.db");
    let body = json!({"to": to.to_str().unwrap()});
    world.client.post("/v1/admin/backup", body.clone()).await.is(200);
    assert!(to.exists());
    world.client.post("/v1/admin/backup", body).await.refused(409, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_the_configuration_is_reloaded_on_request() {
    let mut options = Options::default();
    options.reload = Some(std::sync::Arc::new(|| {
        Box::pin(async {
            Ok(windlass_server::wire::ReloadResponse { tools: 3, changes: vec!["`x` is new".to_owned()] })
        })
    }));
    let world = World::with(options).await;
    let answer = world.client.post("/v1/admin/reload", json!({})).await.is(200);
    assert_eq!(answer, json!({"tools": 3, "changes": ["`x` is new"]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_the_router_answers_without_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let windlass = builder(&dir.path().join("app.db"), &Default::default()).await.unwrap();
    let mut options = Options::default();
    options.trusted = true;
    let router = windlass_server::router(windlass.clone(), options).unwrap();
    let request = axum::http::Request::post("/v1/calls")
        .header("content-type", "application/json")
        .body(axum::body::Body::from(json!({"tool": "add", "args": {"a": 2, "b": 2}}).to_string()))
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["outcome"]["value"], 4);
    windlass.shutdown().await.unwrap();
    let request = axum::http::Request::post("/v1/calls")
        .header("content-type", "application/json")
        .body(axum::body::Body::from(json!({"tool": "add"}).to_string()))
        .unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 503, "the runtime is shut down");
}

/// Model APIs allow fewer characters in a name than a toolbox does.
#[tokio::test(flavor = "multi_thread")]
async fn l23_a_tool_name_with_a_dot_is_mapped_for_model_apis_and_back() {
    let world = World::new().await;
    let long = format!("{}.b", "a".repeat(62));
    for name in ["math.add", "math_add", "math.sub", long.as_str()] {
        let own = name.to_owned();
        let tool = windlass::Tool::new(name, "says its name", move |_: Value| {
            let own = own.clone();
            async move { Ok(json!(own)) }
        });
        world.windlass.toolbox().insert(tool.effect(windlass::Effect::Readonly)).unwrap();
    }
    let openai = world.client.get("/v1/tools?format=openai").await.is(200);
    let openai = openai["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].clone());
    let anthropic = world.client.get("/v1/tools?format=anthropic").await.is(200);
    let anthropic = anthropic["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone());
    let (openai, anthropic): (Vec<Value>, Vec<Value>) = (openai.collect(), anthropic.collect());
    assert_eq!(openai, anthropic);
    let known = world.client.get("/v1/tools").await.is(200)["tools"].clone();
    for (tool, offered) in known.as_array().unwrap().iter().zip(&openai) {
        let (name, offered) = (tool["name"].as_str().unwrap(), offered.as_str().unwrap());
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        assert!((1..=64).contains(&offered.len()) && offered.chars().all(fits), "{offered}");
        assert_eq!(offered == name, !name.contains('.'), "{name}: {offered}");
        if !name.starts_with("math") && name != long {
            continue;
        }
        let call = json!({"tool": offered, "args": {}});
        let answer = world.client.post("/v1/calls", call.clone()).await.is(200);
        assert_eq!(answer["outcome"]["value"], name);
        let run = answer["run"].as_str().unwrap().to_owned();
        assert_eq!(
            world.client.get(&format!("/v1/runs/{run}")).await.is(200)["tool"],
            name,
            "the run has the original name"
        );
        let batch = world.client.post("/v1/batches", json!({"calls": [call]})).await.is(200);
        assert_eq!(batch["outcomes"][0]["value"], name);
        assert_eq!(world.client.get(&format!("/v1/tools/{offered}")).await.is(200)["name"], name);
        let check = world.client.post(&format!("/v1/tools/{offered}/check"), json!({"args": {}})).await.is(200);
        assert_eq!((&check["tool"], &check["verdict"]), (&json!(name), &json!("runs")));
    }
}
