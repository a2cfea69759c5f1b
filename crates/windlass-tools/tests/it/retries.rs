//! Requests as tools: what is retried, what is in doubt, and what the result is.

use std::time::Duration;

use serde_json::{Value, json as value};
use windlass::inbox::Settlement;
use windlass::tool::Schemas;
use windlass::tool::spec::Retry;
use windlass::{Effect, Outcome, Tool, ToolCall, ToolSpec, Windlass};
use windlass_tools::http::{HappenedWhen, Request};
use windlass_tools::secret::{Reference, Secrets};

use crate::server::{Reply, Request as Received, Server, json, response};

/// Retries without delay.
const QUICKLY: Retry = Retry { attempts: 3, base: Duration::from_millis(1), cap: Duration::from_millis(1) };

fn tool(server: &Server, method: &str, target: &str) -> Tool {
    let request = Request::new(method, &server.url(target)).unwrap();
    let request = if method == "GET" { request } else { request.json(&value!("{args}")).unwrap() };
    finish(server, request)
}

fn finish(server: &Server, request: Request) -> Tool {
    let mut spec = ToolSpec::new("ask", "Asks the server");
    spec.effect = request.effect();
    spec.limits.retry = Some(QUICKLY);
    spec.limits.timeout = Some(Duration::from_secs(20));
    request.tool(server.client(), spec, Schemas::any())
}

async fn call(tool: Tool, args: Value) -> Outcome {
    let windlass = Windlass::in_memory().tool(tool).await.unwrap();
    windlass.call_json("ask", args).await.unwrap()
}

fn targets(server: &Server) -> Vec<String> {
    server.requests().iter().map(|received| format!("{} {}", received.method, received.target)).collect()
}

#[tokio::test]
async fn l17_a_repeatable_request_is_retried_with_the_same_key() {
    for (method, effect) in [("GET", Effect::Readonly), ("PUT", Effect::Idempotent), ("DELETE", Effect::Idempotent)] {
        for first in [
            response(503, "retry-after: 0\r\n", "busy"),
            response(429, "", ""),
            response(500, "", ""),
            Reply::Cut(vec![]),
        ] {
            let failing = first.clone();
            let server =
                Server::start(move |_, n| if n < 3 { failing.clone() } else { json(200, r#"{"ok": true}"#) }).await;
            let outcome = call(tool(&server, method, "/x"), value!({"a": 1})).await;
            assert_eq!(outcome.value(), Some(&value!({"ok": true})), "{method} {first:?}: {outcome:?}");
            let keys: Vec<_> =
                server.requests().iter().map(|received| received.headers.get("idempotency-key").cloned()).collect();
            assert_eq!(keys.len(), 3);
            assert_eq!(keys[0].is_some(), effect != Effect::Readonly, "{method}");
            assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        }
    }
}

#[tokio::test]
async fn l17_a_delay_requested_by_the_server_is_observed() {
    let server =
        Server::start(|_, n| if n == 1 { response(429, "retry-after: 1\r\n", "") } else { json(200, "1") }).await;
    let before = std::time::Instant::now();
    let outcome = call(tool(&server, "GET", "/x"), value!({})).await;
    assert_eq!(outcome.value(), Some(&value!(1)));
    assert!(before.elapsed() >= Duration::from_secs(1), "the tool's own delay is a millisecond");
}

#[tokio::test]
async fn w01_a_once_request_is_sent_once_whatever_the_response() {
    for (reply, expected) in [
        (response(503, "retry-after: 0\r\n", "busy"), "failed"),
        (response(429, "", ""), "failed"),
        (response(500, "", "oops"), "failed"),
        (response(400, "", "no"), "failed"),
        (response(401, "", "who"), "denied"),
        (response(404, "", ""), "failed"),
    ] {
        let server = Server::start(move |_, _| reply.clone()).await;
        let outcome = call(tool(&server, "POST", "/charge"), value!({})).await;
        assert_eq!(outcome.error().map(|error| error.kind()), Some(expected), "{outcome:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn w01_a_once_request_without_a_response_is_in_doubt_and_reconciled() {
    for reply in [
        Reply::Cut(vec![]),
        Reply::Cut(b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\n".to_vec()),
        response(502, "", "bad gateway"),
        response(504, "", ""),
    ] {
        let server = Server::start(move |received: &Received, _| match received.method.as_str() {
            "POST" => reply.clone(),
            _ => json(200, r#"{"id": "ch_1"}"#),
        })
        .await;
        let look = Request::new("GET", &server.url("/charges?key={key}")).unwrap();
        let tool = look.reconcile(server.client(), tool(&server, "POST", "/charges"), HappenedWhen::default());
        let outcome = call(tool, value!({})).await;
        assert_eq!(outcome.value(), Some(&value!({"id": "ch_1"})), "{outcome:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), 2, "sent once, reconciled once: {requests:?}");
        let key = &requests[0].headers["idempotency-key"];
        assert_eq!(requests[1].target, format!("/charges?key={key}"), "by the same idempotency key");
    }
}

#[tokio::test]
async fn w01_a_doubt_that_reconciling_leaves_open_waits_for_a_person() {
    let server =
        Server::start(|received, _| if received.method == "POST" { Reply::Cut(vec![]) } else { json(500, "1") }).await;
    let look = Request::new("GET", &server.url("/charges/{key}")).unwrap();
    let tool = look.reconcile(server.client(), tool(&server, "POST", "/charges"), HappenedWhen::default());
    let windlass = Windlass::in_memory().tool(tool).await.unwrap();
    let run = windlass.start(ToolCall::<Value>::new("ask", value!({}))).await.unwrap().id();
    let looked = async {
        loop {
            match windlass.inbox().doubts().await.unwrap().pop() {
                Some((_, doubt)) if server.requests().len() == 2 => break doubt,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let doubt = tokio::time::timeout(Duration::from_secs(20), looked).await.expect("in doubt, and reconciled");
    assert_eq!(doubt.cause.to_string(), "the attempt itself could not tell");
    let result = Settlement::Happened(Ok(std::sync::Arc::new(value!("found").into())));
    windlass.inbox().settle(run, &doubt.path, result, "ann", "looked it up").await.unwrap();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.value(), Some(&value!("found")));
    assert_eq!(targets(&server).iter().filter(|received| received.starts_with("POST")).count(), 1);
}

#[tokio::test]
async fn l17_a_once_request_that_was_not_sent_is_retried() {
    // A port that is bound, but on which no process listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let rules = windlass_tools::net::Rules { allow: vec![format!("127.0.0.1:{port}").parse().unwrap()], ports: None };
    let client = crate::server::client(rules, crate::server::Names::default());
    let mut spec = ToolSpec::new("ask", "Asks a closed port");
    spec.limits.retry = Some(QUICKLY);
    let request = Request::new("POST", &format!("http://127.0.0.1:{port}/")).unwrap();
    let windlass = Windlass::in_memory().tool(request.tool(client, spec, Schemas::any())).await.unwrap();
    let run = windlass.start(ToolCall::<Value>::new("ask", value!({}))).await.unwrap().id();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    let error = outcome.error().unwrap();
    assert!(error.kind() == "failed" && error.to_string().contains("refused"), "{error}");
    let journal = windlass.runtime().journal(run).await.unwrap();
    let failed = journal.iter().filter(|record| matches!(record.event, windlass::run::record::Event::Failed { .. }));
    assert_eq!(failed.count(), 2, "the third failure ended the call");
}

#[tokio::test]
async fn e26_secrets_are_redacted_from_responses() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "s3cr3t/k+y\n").unwrap();
    let secrets = Secrets::new([("api".to_owned(), Reference::File(dir.path().join("key")))]);
    for status in [200, 400, 403] {
        // It echoes the whole request.
        let server = Server::start(move |received, _| {
            let echo = value!({"headers": received.headers, "target": received.target, "body": received.body});
            json(status, &echo.to_string())
        })
        .await;
        let request = Request::new("POST", &server.url("/{args.path}?key=${secret:api}"))
            .and_then(|request| request.header("Authorization", "Bearer ${secret:api}"))
            .and_then(|request| request.json(&value!({"key": "${secret:api}", "n": "{args.n}"})))
            .unwrap()
            .secrets(secrets.clone());
        let windlass = Windlass::in_memory().tool(finish(&server, request)).await.unwrap();
        let run = windlass.start(ToolCall::<Value>::new("ask", value!({"path": "a/b", "n": 5}))).await.unwrap().id();
        let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
        let received = server.requests().remove(0);
        assert_eq!(received.target, "/a%2Fb?key=s3cr3t%2Fk%2By");
        assert_eq!(received.headers["authorization"], "Bearer s3cr3t/k+y");
        assert_eq!(received.body, r#"{"key":"s3cr3t/k+y","n":5}"#);
        let journal =
            format!("{outcome:?} {}", serde_json::to_string(&windlass.runtime().journal(run).await.unwrap()).unwrap());
        assert!(!journal.contains("s3cr3t"), "{journal}");
        assert!(journal.contains("[secret api]"), "{journal}");
    }
}

#[tokio::test]
async fn a_replaced_secret_is_used_by_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let server = Server::start(|_, _| json(200, "1")).await;
    let request = Request::new("GET", &server.url("/")).unwrap().header("x-key", "${secret:api}").unwrap();
    let secrets = Secrets::new([("api".to_owned(), Reference::File(path.clone()))]);
    let windlass = Windlass::in_memory().tool(finish(&server, request.secrets(secrets))).await.unwrap();
    let outcome = windlass.call_json("ask", value!({})).await.unwrap();
    assert!(outcome.error().unwrap().to_string().starts_with("unavailable: secret `api`: file:"), "{outcome:?}");
    for key in ["first", "second"] {
        std::fs::write(&path, key).unwrap();
        windlass.call_json("ask", value!({"n": key})).await.unwrap();
    }
    let keys: Vec<String> = server.requests().iter().map(|received| received.headers["x-key"].clone()).collect();
    assert_eq!(keys, ["first", "second"]);
}

#[tokio::test]
async fn responses_are_json_text_or_files() {
    let large = "\u{1}".repeat(100_000);
    let big = large.clone();
    let server = Server::start(move |received, _| match received.target.as_str() {
        "/json" => response(200, "content-type: application/problem+json; charset=utf-8\r\n", r#"{"a": [1]}"#),
        "/text" => response(200, "content-type: text/plain\r\n", "héllo"),
        "/broken" => response(200, "content-type: application/json\r\n", "{nope"),
        "/empty" => response(204, "", ""),
        "/png" => response(200, "content-type: image/png\r\n", "\u{1}PNG"),
        "/large" => response(200, "content-type: application/zip\r\n", &big),
        other => panic!("{other}"),
    })
    .await;
    for (target, expected) in [
        ("/json", value!({"a": [1]})),
        ("/text", value!("héllo")),
        ("/broken", value!("{nope")),
        ("/empty", value!(null)),
        ("/png", value!({"media_type": "image/png", "size": 4})),
        ("/large", value!({"media_type": "application/zip", "size": 100_000})),
    ] {
        let windlass = Windlass::in_memory().tool(tool(&server, "GET", target)).await.unwrap();
        let outcome = windlass.call_json("ask", value!({})).await.unwrap();
        assert_eq!(outcome.value(), Some(&expected), "{target}");
        let output = outcome.result.as_ref().unwrap();
        let file = output.content.first().and_then(|content| content.artifact());
        match target {
            "/png" => assert_eq!(file.unwrap().bytes(), Some(&b"\x01PNG"[..])),
            "/large" => {
                let reader = windlass.open_artifact(file.unwrap(), windlass::store::Access::Owner).await.unwrap();
                assert_eq!(reader.whole(1 << 20).await.unwrap(), large.as_bytes());
            }
            _ => assert!(output.content.is_empty()),
        }
    }
}

#[tokio::test]
async fn requested_headers_are_part_of_the_result() {
    let server =
        Server::start(|_, _| response(201, "x-total: 7\r\nx-other: 1\r\ncontent-type: text/plain\r\n", "hi")).await;
    let request = Request::new("POST", &server.url("/")).unwrap().show_headers(["X-Total"]).unwrap();
    let outcome = call(finish(&server, request), value!({})).await;
    assert_eq!(outcome.value(), Some(&value!({"status": 201, "headers": {"x-total": "7"}, "body": "hi"})));
}

#[tokio::test]
async fn e29_the_json_body_of_an_error_response_is_the_value_of_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "hunter2-hunter2").unwrap();
    let secrets = Secrets::new([("KEY".to_owned(), Reference::File(file))]);
    let server = Server::start(|_, n| match n {
        1 => json(422, r#"{"code": "bad_seat", "seen": ["hunter2-hunter2"], "row": 7}"#),
        2 => response(422, "content-type: text/plain\r\n", "no JSON"),
        _ => json(500, &value!({"list": "x".repeat(100_000)}).to_string()),
    })
    .await;
    let request = Request::new("GET", &server.url("/seat")).unwrap();
    let request = request.header("Authorization", "Bearer ${secret:KEY}").unwrap().secrets(secrets);
    let tool = finish(&server, request);
    let windlass = Windlass::in_memory().tool(tool.retry(Retry::attempts(1))).await.unwrap();
    let mut errors = Vec::new();
    for n in 0..3 {
        let outcome = windlass.call_json("ask", value!({"n": n})).await.unwrap();
        errors.push(outcome.for_model()["error"].clone());
    }
    let [first, second, third] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!((&first["code"], &first["data"]["row"]), (&value!("http_422"), &value!(7)));
    assert!(!first.to_string().contains("hunter2"), "{first}");
    assert_eq!(second["data"], Value::Null);
    let cut = third["data"].as_str().unwrap();
    assert!(cut.len() <= windlass::limits::ERROR_BYTES && cut.contains("of 100011 bytes omitted here"), "{cut}");
}

#[tokio::test]
async fn e06_a_401_waits_for_the_provider_that_the_tool_names() {
    let server = Server::start(|_, n| if n == 1 { response(401, "", "") } else { json(200, r#""sent""#) }).await;
    let request = Request::new("POST", &server.url("/mail")).unwrap().connection_on_401("post");
    let windlass = Windlass::in_memory().tool(finish(&server, request)).await.unwrap();
    let run = windlass.start(ToolCall::new("ask", value!({}))).await.unwrap();
    let mut watch = run.watch(windlass::run::Cursor::START).await.unwrap();
    while let Some(activity) = watch.next().await {
        if let windlass::run::Happening::Parked { .. } = activity.unwrap().what {
            windlass.inbox().connect("post").await.unwrap();
        }
    }
    assert_eq!(run.outcome().await.unwrap().value(), Some(&value!("sent")));
    let keys: Vec<_> = server.requests().iter().map(|received| received.headers["idempotency-key"].clone()).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "both attempts have the key of the call: {keys:?}");
    let plain = tool(&Server::start(|_, _| response(401, "", "")).await, "GET", "/x");
    assert_eq!(call(plain, value!({})).await.error().map(windlass::ToolError::kind), Some("denied"));
}
