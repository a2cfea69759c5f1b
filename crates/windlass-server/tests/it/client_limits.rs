//! Limits of one client on memory, time and connections.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use windlass_server::{Limits, Options};

use crate::net::{Client, TIMEOUT, until};
use crate::world::World;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Peak of the resident memory since the last call.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Sends a request and reads only the status of the response.
async fn unread(world: &World, path: &str, more: &str) -> (u16, TcpStream) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut socket = socket.connect(world.client.address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{more}\r\n", world.client.address);
    socket.write_all(head.as_bytes()).await.unwrap();
    (status(&mut socket).await, socket)
}

async fn status(socket: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    tokio::time::timeout(TIMEOUT, socket.read_exact(&mut line)).await.expect("a response in time").unwrap();
    std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}

async fn rest(mut socket: TcpStream) -> String {
    let mut text = Vec::new();
    tokio::time::timeout(TIMEOUT, socket.read_to_end(&mut text)).await.expect("a response in time").unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// Two clients with a token each.
async fn two(world: &World) -> (String, Client, Client) {
    let scopes = ["admin", "read", "call"];
    let first = world.client.post("/v1/tokens", json!({"name": "first", "scopes": scopes})).await.is(201);
    let secret = first["secret"].as_str().unwrap().to_owned();
    let client = world.client.bearing(&secret);
    let second = client.post("/v1/tokens", json!({"name": "second", "scopes": scopes})).await.is(201);
    let second = world.client.bearing(second["secret"].as_str().unwrap());
    (format!("authorization: Bearer {secret}\r\n"), client, second)
}

async fn run_of(client: &Client, tool: &str, args: Value, session: &str) -> String {
    let call = json!({"tool": tool, "args": args, "session": session});
    client.post("/v1/calls", call).await.is(200)["run"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_readers_that_read_nothing_take_little_memory() {
    let world = World::new().await;
    run_of(&world.client, "steps", json!({"n": 130, "pad": 40_000}), "s").await;
    let before = resident();
    peak();
    let mut readers = Vec::new();
    for _ in 0..40 {
        let (status, mut socket) = unread(&world, "/v1/sessions/s/events", "").await;
        let mut some = [0; 1_024];
        // Its first events have arrived, so a page was read for it.
        socket.read_exact(&mut some).await.unwrap();
        readers.push((status, socket));
    }
    let taken = peak().max(resident()).saturating_sub(before);
    assert!(readers.iter().all(|(status, _)| *status == 200));
    assert!(taken < 80 << 20, "{} MB for forty readers", taken >> 20);
    world.client.get("/v1/runs").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_unread_responses_are_limited_per_client() {
    let mut options = Options::default();
    options.limits.in_flight_bytes = 20 << 20;
    let world = World::with(options).await;
    let (bearer, first, second) = two(&world).await;
    let run = run_of(&first, "big", json!({"bytes": 6 << 20}), "s").await;
    let path = format!("/v1/runs/{run}/outcome");
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(unread(&world, &path, &bearer).await);
    }
    let given = held.iter().filter(|(status, _)| *status == 200).count();
    assert!((1..=3).contains(&given), "{given} of 8");
    let refused = first.get(&path).await;
    assert_eq!(refused.header("retry-after"), "1");
    refused.refused(503, "too_many_bytes");
    // Small responses and those of the other client are sent.
    first.get("/v1/health").await.is(200);
    second.get(&path).await.is(200);
    // A call that was made is not refused: its outcome can be read later.
    let large = first.post("/v1/calls", json!({"tool": "big", "args": {"bytes": 6 << 20}})).await.is(202);
    assert_eq!(large["state"], "finished");
    let run = large["run"].as_str().unwrap().to_owned();
    drop(held);
    let path = format!("/v1/runs/{run}/outcome");
    until(|| async { (first.get(&path).await.status == 200).then_some(()) }).await;
    until(|| async {
        let text = first.get("/metrics").await.body;
        String::from_utf8_lossy(&text).contains("windlass_http_in_flight_bytes 0\n").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_concurrent_unread_responses_take_bounded_memory() {
    let mut options = Options::default();
    options.limits.in_flight_bytes = 16 << 20;
    let world = World::with(options).await;
    let run = run_of(&world.client, "steps", json!({"n": 40, "pad": 100_000}), "s").await;
    let paths = [format!("/v1/runs/{run}/journal?limit=1000"), format!("/v1/runs/{run}/export")];
    for path in paths {
        let before = resident();
        peak();
        let asked = (0..40).map(|_| unread(&world, &path, ""));
        let answers = futures_util::future::join_all(asked).await;
        let taken = peak().saturating_sub(before);
        assert!(answers.iter().any(|(status, _)| *status == 200), "{path}");
        assert!(answers.iter().all(|(status, _)| [200, 503].contains(status)), "{path}");
        assert!(taken < 80 << 20, "{path}: {} MB for forty responses", taken >> 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_a_page_of_large_items_ends_early_with_the_position_of_the_next() {
    let world = World::new().await;
    let run = run_of(&world.client, "steps", json!({"n": 20, "pad": 600_000}), "s").await;
    let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let answer = world.client.get(&format!("/v1/runs/{run}/journal?limit=1000{after}")).await;
        assert!(answer.body.len() < 8 << 20, "{}", answer.body.len());
        let page = answer.is(200);
        seen.extend(page["records"].as_array().unwrap().iter().map(|record| record["seq"].as_u64().unwrap()));
        pages += 1;
        match page["next"].as_u64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert!(pages >= 3 && seen == (0..seen.len() as u64).collect::<Vec<_>>(), "{pages} {seen:?}");
    let (mut from, mut pages, mut events) = ("0.0".to_owned(), 0, 0);
    loop {
        let accept = [("accept", "application/json")];
        let answer = world
            .client
            .send("GET", &format!("/v1/runs/{run}/events?limit=1000&from={from}"), &accept, Default::default())
            .await;
        assert!(answer.body.len() < 8 << 20, "{}", answer.body.len());
        let page = answer.is(200);
        (pages, events) = (pages + 1, events + page["events"].as_array().unwrap().len());
        page["next"].as_str().unwrap().clone_into(&mut from);
        if page["ended"] == true {
            break;
        }
    }
    assert!(pages >= 3 && events > 40, "{pages} {events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_incomplete_requests_of_one_address_leave_room_for_another() {
    let mut options = Options::default();
    options.limits.connections = 16;
    let world = World::with(options).await;
    let mut half = Vec::new();
    for _ in 0..64 {
        let mut socket = TcpStream::connect(world.client.address).await.unwrap();
        // The server may have closed the connection already.
        drop(socket.write_all(b"POST /v1/calls HTTP/1.1\r\nx-slow: ").await);
        half.push(socket);
    }
    let began = Instant::now();
    for from in ["127.0.0.2", "127.0.0.1"] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let mut socket = socket.connect(world.client.address).await.unwrap();
        let head = format!("GET /v1/ready HTTP/1.1\r\nhost: {}\r\n\r\n", world.client.address);
        socket.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(status(&mut socket).await, 200, "{from}");
    }
    // Before the head of an incomplete request times out.
    assert!(began.elapsed() < Limits::default().head_timeout, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_a_large_unread_event_counts_against_the_quota() {
    let mut options = Options::default();
    options.limits.in_flight_bytes = 4 << 20;
    let world = World::with(options).await;
    let (bearer, first, _) = two(&world).await;
    let run = run_of(&first, "steps", json!({"n": 4, "pad": 3 << 20}), "s").await;
    let path = format!("/v1/runs/{run}/events");
    let (status, socket) = unread(&world, &path, &bearer).await;
    assert_eq!(status, 200);
    // When the first reader is stuck within an event, there is no quota for another one.
    let next = until(|| async {
        let events = first.events(&path, &[]).await.rest().await;
        let end = events.last().expect("an end event");
        let next = end.data["next"].as_str().unwrap().to_owned();
        (end.name == "end" && end.data["reason"] == "slow").then_some(next)
    })
    .await;
    drop(socket);
    until(|| async {
        let events = first.events(&format!("{path}?from={next}"), &[]).await.rest().await;
        let whole = events.iter().any(|event| event.data.to_string().len() > 3 << 20);
        (events.last().expect("an end event").data["reason"] == "finished" && whole).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_streams_of_one_client_leave_room_for_other_requests() {
    let mut options = Options::default();
    options.limits.connections = 16;
    let world = World::with(options).await;
    let (bearer, first, second) = two(&world).await;
    let mut streams = Vec::new();
    for n in 0..16 {
        let (status, socket) = unread(&world, "/v1/sessions/s/events", &bearer).await;
        assert_eq!(status, if n < 4 { 200 } else { 429 }, "stream {n}");
        streams.push(socket);
    }
    let refused =
        rest(unread(&world, "/v1/sessions/s/events", &format!("{bearer}connection: close\r\n")).await.1).await;
    assert!(refused.contains("too_many_streams") && refused.to_lowercase().contains("retry-after: 1"), "{refused}");
    second.get("/v1/runs").await.is(200);
    first.get("/v1/runs").await.is(200);
    assert_eq!(unread(&world, "/v1/sessions/s/events", &second_bearer(&second)).await.0, 200);
    drop(streams);
    until(|| async { (unread(&world, "/v1/sessions/s/events", &bearer).await.0 == 200).then_some(()) }).await;
}

fn second_bearer(client: &Client) -> String {
    format!("authorization: Bearer {}\r\n", client.token())
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_waiting_requests_of_one_client_leave_room_for_others() {
    let mut options = Options::default();
    // High enough that the limit closes no idle connection of the test itself.
    options.limits.connections = 64;
    let world = World::with(options).await;
    let (bearer, first, second) = two(&world).await;
    let call = json!({"tool": "slow", "args": {"ms": 600_000}, "wait_ms": 0});
    let run = first.post("/v1/calls", call).await.is(202);
    let path = format!("/v1/runs/{}/outcome?wait_ms=300000", run["run"].as_str().unwrap());
    let mut waiting = Vec::new();
    for _ in 0..48 {
        let mut socket = TcpStream::connect(world.client.address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{bearer}\r\n", world.client.address);
        socket.write_all(head.as_bytes()).await.unwrap();
        waiting.push(socket);
    }
    until(|| async {
        let answer = first.get("/v1/runs").await;
        (answer.status == 429).then(|| answer.refused(429, "too_many_concurrent_requests"))
    })
    .await;
    second.get("/v1/runs").await.is(200);
    let run = run["run"].as_str().unwrap();
    second.post(&format!("/v1/runs/{run}/cancel"), json!({})).await.is(202);
    until(|| async { (first.get("/v1/runs").await.status == 200).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_slow_request_bodies_are_limited_per_client() {
    let mut options = Options::default();
    options.limits.in_flight_bytes = 8 << 20;
    let world = World::with(options).await;
    let (bearer, first, second) = two(&world).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(world.client.address).await.unwrap();
        let head = format!(
            "POST /v1/calls HTTP/1.1\r\nhost: {}\r\n{bearer}content-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
            world.client.address,
            4 << 20,
            " ".repeat(100_000)
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        slow.push(socket);
    }
    let large = json!({"tool": "charge", "args": {"x": "y".repeat(100_000)}});
    until(|| async {
        let answer = first.post("/v1/calls", large.clone()).await;
        (answer.status == 503).then(|| answer.refused(503, "too_many_bytes"))
    })
    .await;
    second.post("/v1/calls", large.clone()).await.is(200);
    first.post("/v1/calls", json!({"tool": "charge", "args": {}})).await.is(200);
    drop(slow);
    until(|| async { (first.post("/v1/calls", large.clone()).await.status == 200).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_tool_schemas_that_take_too_much_memory_are_refused() {
    let world = World::new().await;
    let tool = |n: usize| {
        let property = |p: usize| (format!("property_{p}"), json!({"type": "string", "minLength": 1}));
        let all: Map<String, Value> = (0..250).map(property).collect();
        json!({"name": format!("t{n}"), "description": "d", "input_schema": {"type": "object", "properties": all}})
    };
    let tools: Vec<Value> = (0..256).map(tool).collect();
    let body = json!({"tools": tools, "everywhere": true});
    assert!(body.to_string().len() > 2_600_000);
    let before = resident();
    let problem = world.client.post("/v1/clients", body).await.refused(413, "schemas_too_large");
    assert_eq!(problem["limit"], Limits::default().schema_bytes);
    let taken = resident().saturating_sub(before);
    assert!(taken < 150 << 20, "{} MB", taken >> 20);
    world.client.get("/v1/tools/t0").await.refused(404, "not_found");
    // All clients together have a limit of their own.
    let some = |n: usize| json!({"tools": (n * 40..n * 40 + 40).map(tool).collect::<Vec<_>>(), "everywhere": true});
    let mut clients = 0;
    let refused = loop {
        let answer = world.client.post("/v1/clients", some(clients)).await;
        if answer.status != 201 {
            break answer;
        }
        clients += 1;
    };
    assert!((2..=5).contains(&clients), "{clients}");
    refused.refused(409, "limit_reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_arguments_that_are_slow_to_check_do_not_delay_other_calls() {
    let world = World::new().await;
    let mut defs = Map::new();
    for n in 0..30 {
        let next = format!("#/$defs/d{}", n + 1);
        defs.insert(format!("d{n}"), json!({"anyOf": [{"$ref": next, "type": "array"}, {"$ref": next}]}));
    }
    defs.insert("d30".to_owned(), json!({"required": ["x"]}));
    let schema = json!({"type": "object", "$defs": defs, "$ref": "#/$defs/d0"});
    let tools =
        json!({"tools": [{"name": "slow_check", "description": "d", "input_schema": schema}], "everywhere": true});
    world.client.post("/v1/clients", tools).await.is(201);
    let begun = Instant::now();
    let checks = (0..8).map(|_| world.call("slow_check", json!({"all": "x".repeat(9_000)})));
    let (outcomes, sum) =
        tokio::join!(futures_util::future::join_all(checks), world.call("add", json!({"a": 1, "b": 1})));
    assert_eq!(sum["outcome"]["value"], 2);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for outcome in outcomes {
        let error = &outcome["outcome"]["error"];
        assert_eq!(error["kind"], "invalid_arguments", "{outcome}");
        assert!(error["violations"][0]["message"].as_str().unwrap().contains("too long"), "{outcome}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e26_a_request_with_two_hosts_or_a_foreign_host_is_refused() {
    let world = World::new().await;
    let address = world.client.address;
    let ask = async |target: &str, hosts: &[&str]| {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let hosts: String = hosts.iter().map(|host| format!("host: {host}\r\n")).collect();
        let head = format!("GET {target} HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let status = status(&mut socket).await;
        (status, rest(socket).await)
    };
    let ours = address.to_string();
    for (target, hosts, expected, name) in [
        ("/v1/ready".to_owned(), &[&*ours, "evil.example"][..], 400, "multiple_hosts"),
        ("/v1/ready".to_owned(), &[&*ours, &*ours], 400, "multiple_hosts"),
        ("http://evil.example/v1/ready".to_owned(), &[&*ours], 421, "host_not_allowed"),
        (format!("http://{ours}/v1/ready"), &["evil.example"], 421, "host_not_allowed"),
        (format!("http://{ours}/v1/ready"), &[&*ours], 200, "ready"),
        ("/v1/ready".to_owned(), &[&*ours], 200, "ready"),
    ] {
        let (status, text) = ask(&target, hosts).await;
        assert!(status == expected && text.contains(name), "{target} {hosts:?}: {status} {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e25_an_artifact_with_a_too_large_content_length_is_refused_before_it_is_sent() {
    let world = World::new().await;
    for expect in ["", "expect: 100-continue\r\n"] {
        let mut socket = TcpStream::connect(world.client.address).await.unwrap();
        let head = format!(
            "POST /v1/artifacts?session=s HTTP/1.1\r\nhost: {}\r\n{expect}content-length: {}\r\n\r\n",
            world.client.address,
            (1u64 << 30) + 1
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let status = status(&mut socket).await;
        let text = rest(socket).await;
        assert!(status == 413 && text.contains("too_large") && text.contains("1073741824"), "{status} {text}");
    }
}
