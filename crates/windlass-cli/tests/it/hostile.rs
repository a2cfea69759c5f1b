//! Invalid requests to a real server: each is refused clearly, and the server keeps serving.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::{Value, json};
use windlass_server::Limits;

use crate::http::Client;
use crate::world::{PATIENCE, Server, World, has, until};

/// More incomplete requests than a server without limits would survive.
const SLOW_CLIENTS: usize = 200;
const HUGE: usize = 100 << 20;
/// Fewer files than a server without limits would open.
const FILES: usize = 256;

/// Asserts that a request was refused with this status and problem.
#[track_caller]
fn refused(answer: &crate::http::Answer, status: u16, name: &str) {
    let problem = (answer.status, answer.body["type"].as_str().unwrap_or_default());
    assert_eq!(problem, (status, format!("urn:windlass:problem:{name}").as_str()), "{}", answer.body);
    assert!(answer.body["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{}", answer.body);
}

/// Asserts that the server still answers calls.
async fn serves(server: &Server, token: Option<&str>) {
    let mut client = token.map_or_else(|| Client::new(&server.url), |token| Client::bearing(&server.url, token));
    let call = json!({"tool": "echo", "args": {"text": "still here"}}).to_string();
    let answer = client.ask("POST", "/v1/calls", None, &call).await.unwrap();
    assert_eq!((answer.status, &answer.body["outcome"]["value"]["text"]), (200, &json!("still here")), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_invalid_requests_are_refused_with_a_problem() {
    let world = World::new();
    let server = world.serve(&[]);
    let mut client = Client::new(&server.url);
    for (body, status, name) in [
        ("{\"tool\": \"echo\",,}", 400, "malformed_json"),
        ("{\"tool\": \"ec", 400, "malformed_json"),
        ("{\"tol\": \"echo\"}", 422, "invalid_request"),
        ("{\"tool\": \"echo\", \"args\": 7}", 422, "invalid_request"),
        ("[]", 422, "invalid_request"),
    ] {
        refused(&client.ask("POST", "/v1/calls", None, body).await.unwrap(), status, name);
    }
    // Invalid arguments are an outcome of the call: the request itself is valid.
    let answer = client.ask("POST", "/v1/calls", None, r#"{"tool": "echo", "args": {"text": 7}}"#).await.unwrap();
    assert_eq!((answer.status, &answer.body["outcome"]["error"]["kind"]), (200, &json!("invalid_arguments")));
    let run = answer.body["run"].as_str().unwrap().to_owned();
    for path in ["/v1/runs?cursor=nonsense", "/v1/inbox?cursor=%00", &format!("/v1/runs/{run}/events?from=x.y")] {
        refused(&client.ask("GET", path, None, "").await.unwrap(), 400, "bad_cursor");
    }
    for key in ["two words", "k\u{7f}", &"k".repeat(256)] {
        let response = client.ask("POST", "/v1/calls", Some(key), r#"{"tool": "echo"}"#).await;
        // A key that is not a valid header value is refused by the client.
        if let Ok(answer) = response {
            assert_eq!(answer.status, 400, "{answer:?}");
        }
    }
    refused(&client.ask("GET", "/v1/runs/no-run", None, "").await.unwrap(), 400, "bad_run_id");
    serves(&server, None).await;
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_body_of_100_megabytes_is_refused_and_not_buffered() {
    let world = World::new();
    let server = world.serve(&[]);
    let before = resident(&server);
    let mut client = Client::new(&server.url);
    let answer = client.ask("POST", "/v1/calls", None, &" ".repeat(HUGE)).await.unwrap();
    refused(&answer, 413, "too_large");
    // The same without a content length.
    let mut socket = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    let head = "POST /v1/calls HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let host = format!("host: {}", server.url.trim_start_matches("http://"));
    socket.write_all(head.replace("host: localhost", &host).as_bytes()).unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    // The server may close the connection before everything is sent.
    let _ = (0..HUGE >> 20).try_for_each(|_| socket.write_all(&chunk));
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut start = [0; 12];
    if socket.read_exact(&mut start).is_ok() {
        assert_eq!(&start, b"HTTP/1.1 413");
    }
    serves(&server, None).await;
    assert!(resident(&server) < before + (32 << 20), "{} bytes, then {}", before, resident(&server));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_idle_connections_are_closed_when_open_files_run_short() {
    let world = World::new();
    let doctor = world.command_within(FILES, &["doctor"]).output().unwrap();
    has(&String::from_utf8(doctor.stdout).unwrap(), &["at most 256 open files", "128 connections instead of 4096"]);
    let server = world.serve_within(FILES);
    let address = server.url.trim_start_matches("http://");
    let idle: Vec<TcpStream> = (0..FILES * 2).map(|_| TcpStream::connect(address).unwrap()).collect();
    let began = Instant::now();
    for _ in 0..5 {
        serves(&server, None).await;
    }
    // Sooner than the timeout would close them.
    assert!(began.elapsed() < Limits::default().head_timeout, "{:?}", began.elapsed());
    drop(idle);
    serves(&server, None).await;
    assert_eq!(server.stop(), 0);
}

/// The resident memory of the server in bytes.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_slow_clients_delay_no_others_and_are_disconnected() {
    let world = World::new();
    let server = world.serve(&[]);
    let address = server.url.trim_start_matches("http://");
    let connect = |_| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"POST /v1/calls HTTP/1.1\r\nx-slow: ").unwrap();
        socket
    };
    let slow: Vec<TcpStream> = (0..SLOW_CLIENTS).map(connect).collect();
    serves(&server, None).await;
    for mut socket in slow {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        // Either a regular end of the stream or a reset.
        if let Err(error) = socket.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it was not disconnected");
        }
    }
    serves(&server, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_w02_forged_reply_keys_are_refused() {
    let world = World::new();
    let server = world.serve_demo();
    let run = world.ok(&["-q", "call", "ask_customer", "--args", r#"{"question": "Where to?"}"#, "--detach"]);
    let item = until("it waits", || world.json(&["inbox"])["items"].get(0).cloned());
    let (key, mut client) = (item["key"].as_str().unwrap().to_owned(), Client::new(&server.url));
    let mut changed = key.clone().into_bytes();
    for index in [0, changed.len() / 2, changed.len() - 2] {
        changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
    }
    let changed = String::from_utf8(changed).unwrap();
    for forged in [changed.as_str(), &key[1..], &key[..key.len() - 1], "nonsense", "%00", &"A".repeat(4_000)] {
        let answer = client.ask("POST", &format!("/v1/replies/{forged}"), None, r#"{"value": "Rome"}"#).await.unwrap();
        assert!((400..=404).contains(&answer.status), "{forged}: {answer:?}");
        assert!(answer.body["detail"].is_string(), "{answer:?}");
    }
    let run = run.trim();
    assert_ne!(world.json(&["runs", "show", run])["run"]["state"], "finished", "there is no answer yet");
    let answer = client.ask("POST", &format!("/v1/replies/{key}"), None, r#"{"value": "Oslo"}"#).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    until("it continues", || (world.json(&["runs", "show", run])["run"]["state"] == "finished").then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_token_without_the_scope_is_refused_with_its_name() {
    let world = World::new();
    let make =
        |name: &str, scopes: &str| world.ok(&["-q", "token", "create", name, "--scope", scopes]).trim().to_owned();
    let (all, reader) = (make("root", "read,call,approve,admin"), make("reader", "read"));
    let server = world.serve(&[]);
    let mut bearing = Client::bearing(&server.url, &reader);
    assert_eq!(bearing.ask("GET", "/v1/runs", None, "").await.unwrap().status, 200);
    for (method, path, body, scope) in [
        ("POST", "/v1/calls", r#"{"tool": "echo", "args": {"text": "x"}}"#, "call"),
        ("POST", "/v1/inbox/x/approve", "{}", "approve"),
        ("POST", "/v1/tokens", r#"{"name": "x", "scopes": ["admin"]}"#, "admin"),
        ("POST", "/v1/admin/tidy", "{}", "admin"),
    ] {
        let answer = bearing.ask(method, path, None, body).await.unwrap();
        refused(&answer, 403, "forbidden");
        assert_eq!(answer.body["scope"], scope, "{answer:?}");
    }
    for token in ["wlt1_000000000000_forged", "", &all[..all.len() - 1], &format!("{all}x")] {
        let answer = Client::bearing(&server.url, token).ask("GET", "/v1/runs", None, "").await.unwrap();
        refused(&answer, 401, "unauthorized");
    }
    let anonymous = Client::new(&server.url).ask("GET", "/v1/runs", None, "").await.unwrap();
    refused(&anonymous, 401, "unauthorized");
    serves(&server, Some(&all)).await;
}

#[test]
fn l23_a_damaged_file_is_named_and_not_changed() {
    let world = World::new();
    for text in ["a", "b", "c"] {
        world.ok(&["call", "echo", "--args", &json!({ "text": text }).to_string()]);
    }
    let good = std::fs::read(world.path("windlass.db")).unwrap();
    let mut scrambled = good.clone();
    scrambled.iter_mut().skip(4_096).enumerate().for_each(|(n, byte)| *byte = (n % 251) as u8);
    let mut beheaded = good.clone();
    beheaded[20..60].fill(b'x');
    for (bad, words) in [
        (scrambled, &["is damaged", "restore it from a backup"][..]),
        (good[..good.len() / 2].to_vec(), &["is damaged", "restore it from a backup"]),
        (beheaded, &["not a Windlass database", "move this file away"]),
    ] {
        std::fs::write(world.path("windlass.db"), &bad).unwrap();
        for args in [&["serve", "--listen", "127.0.0.1:0"][..], &["runs", "list"], &["call", "echo"]] {
            has(&world.fails(5, args), &[&["windlass.db"], words].concat());
        }
        assert!(std::fs::read(world.path("windlass.db")).unwrap() == bad, "it was written to");
        for name in ["windlass.db-wal", "windlass.db-shm"] {
            // Left by a command that opened the damaged file.
            let _ = std::fs::remove_file(world.path(name));
        }
    }
    std::fs::write(world.path("windlass.db"), &good).unwrap();
    let server = world.serve(&[]);
    let runs: Value = world.json(&["runs", "list"]);
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(3), "{runs}");
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_second_server_is_refused_and_the_first_goes_on() {
    let world = World::new();
    let server = world.serve(&[]);
    let port = server.url.trim_start_matches("http://").to_owned();
    // The same file on another port, another file on the same port, and both the same.
    has(&world.fails(5, &["serve", "--listen", "127.0.0.1:0"]), &["already served", &server.url]);
    has(&world.fails(5, &["--file", "other.db", "serve", "--listen", &port]), &[&port, "in use"]);
    has(&world.fails(5, &["serve", "--listen", &port]), &["already served", &server.url]);
    assert!(!world.path("other.db").exists(), "nothing was opened");
    serves(&server, None).await;
    assert_eq!(server.stop(), 0);
}
