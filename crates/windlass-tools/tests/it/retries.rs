//! Requests as tools: what is repeated, what is in doubt, and what is told.

use std::time::Duration;

use serde_json::{Value, json as value};
use windlass::tools::spec::Retry;
use windlass::{Effect, Outcome, Schemas, Settlement, Tool, ToolCall, ToolSpec, Windlass};
use windlass_tools::http::{HappenedWhen, Request};
use windlass_tools::secret::{Reference, Secrets};

use crate::server::{Asked, Reply, Server, answer, json};

/// Retries at once.
const AT_ONCE: Retry = Retry { attempts: 3, base: Duration::from_millis(1), cap: Duration::from_millis(1) };

fn tool(server: &Server, method: &str, target: &str) -> Tool {
    let request = Request::new(method, &server.url(target)).unwrap();
    let request = if method == "GET" { request } else { request.json(&value!("{args}")).unwrap() };
    finish(server, request)
}

fn finish(server: &Server, request: Request) -> Tool {
    let mut spec = ToolSpec::new("ask", "Asks the server");
    spec.effect = request.effect();
    spec.limits.retry = Some(AT_ONCE);
    spec.limits.timeout = Some(Duration::from_secs(20));
    request.tool(server.client(), spec, Schemas::any())
}

async fn call(tool: Tool, args: Value) -> Outcome {
    let windlass = Windlass::in_memory().tool(tool).await.unwrap();
    windlass.call_json("ask", args).await.unwrap()
}

fn targets(server: &Server) -> Vec<String> {
    server.asked().iter().map(|asked| format!("{} {}", asked.method, asked.target)).collect()
}

#[tokio::test]
async fn l17_what_may_be_repeated_is_repeated_with_one_key() {
    for (method, effect) in [("GET", Effect::Readonly), ("PUT", Effect::Idempotent), ("DELETE", Effect::Idempotent)] {
        for first in
            [answer(503, "retry-after: 0\r\n", "busy"), answer(429, "", ""), answer(500, "", ""), Reply::Cut(vec![])]
        {
            let failing = first.clone();
            let server =
                Server::start(move |_, n| if n < 3 { failing.clone() } else { json(200, r#"{"ok": true}"#) }).await;
            let outcome = call(tool(&server, method, "/x"), value!({"a": 1})).await;
            assert_eq!(outcome.value(), Some(&value!({"ok": true})), "{method} {first:?}: {outcome:?}");
            let keys: Vec<_> =
                server.asked().iter().map(|asked| asked.headers.get("idempotency-key").cloned()).collect();
            assert_eq!(keys.len(), 3);
            assert_eq!(keys[0].is_some(), effect != Effect::Readonly, "{method}");
            assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        }
    }
}

#[tokio::test]
async fn l17_a_delay_the_server_asks_for_is_kept() {
    let server =
        Server::start(|_, n| if n == 1 { answer(429, "retry-after: 1\r\n", "") } else { json(200, "1") }).await;
    let before = std::time::Instant::now();
    let outcome = call(tool(&server, "GET", "/x"), value!({})).await;
    assert_eq!(outcome.value(), Some(&value!(1)));
    assert!(before.elapsed() >= Duration::from_secs(1), "the tool's own delay is a millisecond");
}

#[tokio::test]
async fn w01_a_once_request_is_sent_once_whatever_it_is_answered() {
    for (reply, expected) in [
        (answer(503, "retry-after: 0\r\n", "busy"), "failed"),
        (answer(429, "", ""), "failed"),
        (answer(500, "", "oops"), "failed"),
        (answer(400, "", "no"), "failed"),
        (answer(401, "", "who"), "denied"),
        (answer(404, "", ""), "failed"),
    ] {
        let server = Server::start(move |_, _| reply.clone()).await;
        let outcome = call(tool(&server, "POST", "/charge"), value!({})).await;
        assert_eq!(outcome.error().map(|error| error.kind()), Some(expected), "{outcome:?}");
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn w01_a_once_request_without_an_answer_is_in_doubt_and_settled_by_asking() {
    for reply in [
        Reply::Cut(vec![]),
        Reply::Cut(b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\n".to_vec()),
        answer(502, "", "bad gateway"),
        answer(504, "", ""),
    ] {
        let server = Server::start(move |asked: &Asked, _| match asked.method.as_str() {
            "POST" => reply.clone(),
            _ => json(200, r#"{"id": "ch_1"}"#),
        })
        .await;
        let look = Request::new("GET", &server.url("/charges?key={key}")).unwrap();
        let tool = look.reconcile(server.client(), tool(&server, "POST", "/charges"), HappenedWhen::default());
        let outcome = call(tool, value!({})).await;
        assert_eq!(outcome.value(), Some(&value!({"id": "ch_1"})), "{outcome:?}");
        let asked = server.asked();
        assert_eq!(asked.len(), 2, "sent once, asked about once: {asked:?}");
        let key = &asked[0].headers["idempotency-key"];
        assert_eq!(asked[1].target, format!("/charges?key={key}"), "by the key it was sent under");
    }
}

#[tokio::test]
async fn w01_what_nobody_can_tell_waits_for_a_person() {
    let server =
        Server::start(|asked, _| if asked.method == "POST" { Reply::Cut(vec![]) } else { json(500, "1") }).await;
    let look = Request::new("GET", &server.url("/charges/{key}")).unwrap();
    let tool = look.reconcile(server.client(), tool(&server, "POST", "/charges"), HappenedWhen::default());
    let windlass = Windlass::in_memory().tool(tool).await.unwrap();
    let run = windlass.start(ToolCall::<Value>::new("ask", value!({}))).unwrap();
    let looked = async {
        loop {
            match windlass.doubts().await.unwrap().pop() {
                Some((_, doubt)) if server.asked().len() == 2 => break doubt,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let doubt = tokio::time::timeout(Duration::from_secs(20), looked).await.expect("in doubt, and asked about");
    assert_eq!(doubt.cause.to_string(), "the attempt itself could not tell");
    let result = Settlement::Happened(Ok(std::sync::Arc::new(value!("found").into())));
    windlass.settle(run, &doubt.path, result, "ann", "looked it up").await.unwrap();
    let outcome = windlass.attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.value(), Some(&value!("found")));
    assert_eq!(targets(&server).iter().filter(|asked| asked.starts_with("POST")).count(), 1);
}

#[tokio::test]
async fn l17_a_once_request_that_was_never_sent_is_tried_again() {
    // A port that is taken and that nobody listens on.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let rules = windlass_tools::net::Rules { allow: vec![format!("127.0.0.1:{port}").parse().unwrap()], ports: None };
    let client = crate::server::client(rules, crate::server::Names::default());
    let mut spec = ToolSpec::new("ask", "Asks nobody");
    spec.limits.retry = Some(AT_ONCE);
    let request = Request::new("POST", &format!("http://127.0.0.1:{port}/")).unwrap();
    let windlass = Windlass::in_memory().tool(request.tool(client, spec, Schemas::any())).await.unwrap();
    let run = windlass.start(ToolCall::<Value>::new("ask", value!({}))).unwrap();
    let outcome = windlass.attach(run).await.unwrap().remove(0);
    let error = outcome.error().unwrap();
    assert!(error.kind() == "failed" && error.to_string().contains("refused"), "{error}");
    let journal = windlass.journal(run).await.unwrap();
    let failed = journal.iter().filter(|record| matches!(record.event, windlass::record::Event::Failed { .. }));
    assert_eq!(failed.count(), 2, "and the last one ended the call");
}

#[tokio::test]
async fn e26_no_secret_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "s3cr3t/k+y\n").unwrap();
    let secrets = Secrets::new([("api".to_owned(), Reference::File(dir.path().join("key")))]);
    for status in [200, 400, 403] {
        // It repeats everything it is told.
        let server = Server::start(move |asked, _| {
            let echo = value!({"headers": asked.headers, "target": asked.target, "body": asked.body});
            json(status, &echo.to_string())
        })
        .await;
        let request = Request::new("POST", &server.url("/{args.path}?key=${secret:api}"))
            .and_then(|request| request.header("Authorization", "Bearer ${secret:api}"))
            .and_then(|request| request.json(&value!({"key": "${secret:api}", "n": "{args.n}"})))
            .unwrap()
            .secrets(secrets.clone());
        let windlass = Windlass::in_memory().tool(finish(&server, request)).await.unwrap();
        let run = windlass.start(ToolCall::<Value>::new("ask", value!({"path": "a/b", "n": 5}))).unwrap();
        let outcome = windlass.attach(run).await.unwrap().remove(0);
        let asked = server.asked().remove(0);
        assert_eq!(asked.target, "/a%2Fb?key=s3cr3t%2Fk%2By");
        assert_eq!(asked.headers["authorization"], "Bearer s3cr3t/k+y");
        assert_eq!(asked.body, r#"{"key":"s3cr3t/k+y","n":5}"#);
        let journal = format!("{outcome:?} {}", serde_json::to_string(&windlass.journal(run).await.unwrap()).unwrap());
        assert!(!journal.contains("s3cr3t"), "{journal}");
        assert!(journal.contains("[secret api]"), "{journal}");
    }
}

#[tokio::test]
async fn a_secret_that_is_replaced_is_used_at_once() {
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
    let keys: Vec<String> = server.asked().iter().map(|asked| asked.headers["x-key"].clone()).collect();
    assert_eq!(keys, ["first", "second"]);
}

#[tokio::test]
async fn answers_are_json_text_or_files() {
    let large = "\u{1}".repeat(100_000);
    let big = large.clone();
    let server = Server::start(move |asked, _| match asked.target.as_str() {
        "/json" => answer(200, "content-type: application/problem+json; charset=utf-8\r\n", r#"{"a": [1]}"#),
        "/text" => answer(200, "content-type: text/plain\r\n", "héllo"),
        "/broken" => answer(200, "content-type: application/json\r\n", "{nope"),
        "/empty" => answer(204, "", ""),
        "/png" => answer(200, "content-type: image/png\r\n", "\u{1}PNG"),
        "/large" => answer(200, "content-type: application/zip\r\n", &big),
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
                let reader = windlass.open_artifact(file.unwrap(), windlass::Access::Owner).await.unwrap();
                assert_eq!(reader.whole(1 << 20).await.unwrap(), large.as_bytes());
            }
            _ => assert!(output.content.is_empty()),
        }
    }
}

#[tokio::test]
async fn headers_of_interest_are_part_of_the_result() {
    let server =
        Server::start(|_, _| answer(201, "x-total: 7\r\nx-other: 1\r\ncontent-type: text/plain\r\n", "hi")).await;
    let request = Request::new("POST", &server.url("/")).unwrap().show_headers(["X-Total"]).unwrap();
    let outcome = call(finish(&server, request), value!({})).await;
    assert_eq!(outcome.value(), Some(&value!({"status": 201, "headers": {"x-total": "7"}, "body": "hi"})));
}
