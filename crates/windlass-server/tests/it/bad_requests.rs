//! Malformed requests and misbehaving clients: each gets a problem, and the server continues to work.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass_server::Options;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn l23_malformed_json_is_refused_with_its_position() {
    let world = World::new().await;
    let send = |text: &'static str| {
        let client = world.client.clone();
        async move { client.send("POST", "/v1/calls", &[("content-type", "application/json")], text.into()).await }
    };
    let problem = send("{\"tool\":\n  \"add\",,}").await.refused(400, "malformed_json");
    assert_eq!((&problem["line"], &problem["column"]), (&json!(2), &json!(9)));
    for text in ["", "{", "nul", "\u{0}", "{\"tool\": \"a\"} x"] {
        send(text).await.refused(400, "malformed_json");
    }
    let deep: &'static str =
        Box::leak(format!("{{\"tool\":\"add\",\"args\":{}{}}}", "[".repeat(500), "]".repeat(500)).into_boxed_str());
    send(deep).await.refused(400, "malformed_json");
    let near = send("{\"tol\": \"add\"}").await.refused(422, "invalid_request");
    assert!(
        near["detail"].as_str().unwrap().contains("line 1")
            && near["detail"].as_str().unwrap().contains("did you mean `tool`?"),
        "{near}"
    );
    for text in [
        "{}",
        "[]",
        "[\"add\"]",
        "7",
        "{\"tool\": 7}",
        "{\"tool\": \"add\", \"args\": []}",
        "{\"tool\": \"\"}",
        "{\"tool\": \"add\", \"wait_ms\": -1}",
    ] {
        send(text).await.refused(422, "invalid_request");
    }
    let raw =
        world.client.send("POST", "/v1/calls", &[("content-type", "application/json")], vec![0xff, 0xfe].into()).await;
    raw.refused(400, "malformed_json");
    world.call("add", json!({"a": 1, "b": 1})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_every_refusal_is_a_problem() {
    let world = World::new().await;
    world.client.get("/nowhere").await.refused(404, "not_found");
    world.client.get("/v1/runs/x/y/z").await.refused(404, "not_found");
    let wrong = world.client.send("PUT", "/v1/runs", &[], "".into()).await;
    assert!(wrong.header("allow").contains("GET"), "{wrong:?}");
    wrong.refused(405, "method_not_allowed");
    world.client.get("/v1/calls").await.refused(405, "method_not_allowed");
    world.client.send("BREW", "/v1/calls", &[], "".into()).await.refused(405, "method_not_allowed");
    world.client.send("POST", "/v1/calls", &[], "{}".into()).await.refused(415, "unsupported_media_type");
    world.client.get("/v1/tools/nothing").await.refused(404, "not_found");
    world.client.get("/v1/artifacts/x").await.refused(400, "bad_artifact_id");
    world.client.get(&format!("/v1/artifacts/b3:{}", "0".repeat(64))).await.refused(404, "not_found");
    world.client.get("/v1/tools/%ff").await.refused(400, "bad_path");
    world.client.post("/v1/admin/reload", json!({})).await.refused(409, "no_config_file");
    world.client.post("/v1/admin/backup", json!({"to": "relative"})).await.refused(422, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_too_large_body_is_refused_and_the_client_reads_the_problem() {
    let world = World::new().await;
    let headers = [("content-type", "application/json")];
    let huge = vec![b' '; 100 << 20];
    let problem = world.client.send("POST", "/v1/calls", &headers, huge.into()).await.refused(413, "too_large");
    assert_eq!(problem["limit"], 4 << 20);
    // The same without a content length.
    let mut socket = tokio::net::TcpStream::connect(world.client.address).await.unwrap();
    let head = format!(
        "POST /v1/calls HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        world.client.address
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let chunk = [format!("{:x}\r\n", 1 << 20).as_bytes(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..6 {
        socket.write_all(&chunk).await.unwrap();
    }
    socket.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = vec![0u8; 4096];
    let count = tokio::time::timeout(crate::net::TIMEOUT, socket.read(&mut answer)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&answer[..count]).into_owned();
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    let large = json!({"tool": "charge", "args": {"x": "y".repeat(2 << 20)}});
    let outcome = world.client.post("/v1/calls", large).await.is(200);
    assert_eq!(outcome["outcome"]["error"]["kind"], "invalid_arguments");
    world.call("add", json!({"a": 1, "b": 1})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_slow_senders_are_disconnected_and_delay_no_other_client() {
    let mut options = Options::default();
    options.limits.head_timeout = Duration::from_millis(300);
    options.limits.body_timeout = Duration::from_millis(300);
    options.limits.connections = 32;
    let world = World::with(options).await;
    let mut slow_senders = Vec::new();
    for _ in 0..30 {
        let mut socket = tokio::net::TcpStream::connect(world.client.address).await.unwrap();
        socket.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
        slow_senders.push(socket);
    }
    world.call("add", json!({"a": 1, "b": 1})).await;
    for mut socket in slow_senders {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(crate::net::TIMEOUT, socket.read_to_end(&mut rest))
            .await
            .expect("the connection is closed");
        let text = String::from_utf8_lossy(&rest).into_owned();
        assert!(read.is_err() || text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    }
    let mut socket = tokio::net::TcpStream::connect(world.client.address).await.unwrap();
    let head = format!(
        "POST /v1/calls HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        world.client.address
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(crate::net::TIMEOUT, socket.read_to_end(&mut rest))
        .await
        .expect("the connection is closed")
        .unwrap();
    let text = String::from_utf8_lossy(&rest).into_owned();
    assert!(text.starts_with("HTTP/1.1 408") && text.contains("body_timeout"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_connection_above_the_limit_waits_for_a_permit() {
    let mut options = Options::default();
    options.limits.connections = 2;
    // Longer than the test: idle connections are closed because others need their permits.
    options.limits.head_timeout = crate::net::TIMEOUT * 2;
    let world = World::with(options).await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        idle.push(tokio::net::TcpStream::connect(world.client.address).await.unwrap());
    }
    world.call("add", json!({"a": 1, "b": 1})).await;
    // A connection that was used and is idle now is closed too.
    let mut used = tokio::net::TcpStream::connect(world.client.address).await.unwrap();
    let head = format!("GET /v1/ready HTTP/1.1\r\nhost: {}\r\n\r\n", world.client.address);
    used.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    used.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    world.call("add", json!({"a": 1, "b": 1})).await;
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_client_above_its_rate_gets_a_retry_after_header() {
    let mut options = Options::default();
    options.limits.requests_per_second = 5;
    let world = World::with(options).await;
    for _ in 0..30 {
        world.client.get("/v1/health").await.is(200);
    }
    let made = world.client.post("/v1/tokens", json!({"name": "root", "scopes": ["admin", "read"]})).await.is(201);
    let bearer = world.client.bearing(made["secret"].as_str().unwrap());
    let mut refused = None;
    for _ in 0..30 {
        let answer = bearer.get("/v1/runs").await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("thirty requests are more than the burst of ten");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=2).contains(&wait), "{refused:?}");
    refused.refused(429, "too_many_requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_bytes_that_are_not_http_do_no_harm() {
    let world = World::new().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut socket = tokio::net::TcpStream::connect(world.client.address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        drop(tokio::time::timeout(crate::net::TIMEOUT, socket.read_to_end(&mut rest)).await.expect("it ends"));
        let text = String::from_utf8_lossy(&rest).into_owned();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.0 4"), "{text}");
    }
    world.call("add", json!({"a": 1, "b": 1})).await;
}
