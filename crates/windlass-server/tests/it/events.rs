//! Event streams: ordered, resumable without gaps, with exactly one terminator.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::{Ctx, Effect, Tool, ToolError};
use windlass_server::Options;

use crate::net::{Event, until};
use crate::world::World;

fn recorded(events: &[Event]) -> Vec<(String, String)> {
    let with_id = events.iter().filter_map(|event| Some((event.id.clone()?, event.name.clone())));
    with_id.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_a_stream_has_all_events_in_order_and_exactly_one_end() {
    let world = World::new().await;
    let run = world.call("steps", json!({"n": 3})).await["run"].as_str().unwrap().to_owned();
    let events = world.client.events(&format!("/v1/runs/{run}/events"), &[]).await.rest().await;
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!((names[0], names[names.len() - 2], names[names.len() - 1]), ("run_started", "run_finished", "end"));
    assert_eq!(names.iter().filter(|name| **name == "end").count(), 1);
    let end = events.last().unwrap();
    assert_eq!((&end.id, &end.data["reason"]), (&None, &json!("finished")));
    assert!(
        events[..events.len() - 1].iter().all(|event| event.data["kind"] == event.name && event.data["run"] == run)
    );
    let positions: Vec<(u64, u64)> = recorded(&events)
        .iter()
        .map(|(id, _)| id.split_once('.').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())).unwrap())
        .collect();
    assert!(positions.is_sorted() && positions.windows(2).all(|pair| pair[0] != pair[1]), "{positions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b12_a_reader_resumes_at_any_position_without_a_gap() {
    let world = World::new().await;
    let run = world.call("steps", json!({"n": 4})).await["run"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events");
    let all = recorded(&world.client.events(&path, &[]).await.rest().await);
    for (index, (id, _)) in all.iter().enumerate() {
        let rest = world.client.events(&path, &[("last-event-id", id)]).await.rest().await;
        assert_eq!(recorded(&rest), all[index + 1..], "after {id}");
        let from = world.client.events(&format!("{path}?from={id}"), &[]).await.rest().await;
        assert_eq!(recorded(&from), all[index..], "from {id}");
    }
    let (mut seen, mut from, mut ended) = (Vec::new(), "0.0".to_owned(), false);
    while !ended {
        let address = format!("{path}?limit=3&from={from}");
        let page = world.client.send("GET", &address, &[("accept", "application/json")], "".into());
        let page = page.await.is(200);
        seen.extend(
            page["events"].as_array().unwrap().iter().map(|event| event["position"].as_str().unwrap().to_owned()),
        );
        (from, ended) = (page["next"].as_str().unwrap().to_owned(), page["ended"].as_bool().unwrap());
    }
    assert_eq!(seen, all.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    world.client.send("GET", &path, &[("last-event-id", "nonsense")], "".into()).await.refused(400, "bad_cursor");
}

#[tokio::test(flavor = "multi_thread")]
async fn b12_a_reader_resumes_after_a_restart_of_the_server() {
    let mut world = World::new().await;
    let run = world.start("ask", json!({})).await;
    let path = format!("/v1/runs/{run}/events");
    let mut stream = world.client.events(&path, &[]).await;
    stream.until("parked").await;
    world.begin_stop();
    let first = stream.rest().await;
    let end = first.last().expect("an end event");
    assert_eq!((end.name.as_str(), &end.data["reason"]), ("end", &json!("shutdown")));
    let next = end.data["next"].as_str().unwrap().to_owned();
    let world = world.restart(Options::default()).await;
    let mut stream = world.client.events(&format!("{path}?from={next}"), &[]).await;
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap()), json!({"value": 1})).await.is(200);
    let mut rest = vec![stream.next().await.unwrap()];
    rest.extend(stream.rest().await);
    assert!(
        rest.iter().all(|event| event.name != "run_started" && event.name != "parked"),
        "an event was repeated: {rest:?}"
    );
    assert_eq!(rest[rest.len() - 1].data["reason"], "finished");
    let whole = recorded(&world.client.events(&path, &[]).await.rest().await);
    assert_eq!(whole.len(), whole.iter().collect::<std::collections::BTreeSet<_>>().len());
    let tail: Vec<_> = recorded(&rest);
    assert_eq!(whole[whole.len() - tail.len()..], tail, "no event is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_stream_follows_a_run_and_sends_heartbeats() {
    let mut options = Options::default();
    options.limits.heartbeat = Duration::from_millis(20);
    let world = World::with(options).await;
    let run = world.start("ask", json!({})).await;
    let mut stream = world.client.events(&format!("/v1/runs/{run}/events"), &[]).await;
    stream.until("parked").await;
    while stream.comments < 2 {
        stream.read().await.expect("the stream continues");
    }
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap()), json!({"value": 1})).await.is(200);
    let finished = stream.until("run_finished").await;
    assert_eq!(finished.data["ending"], "ok");
    assert_eq!(stream.next().await.unwrap().name, "end");
    assert_eq!(stream.next().await, None, "`end` is the last event");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_session_is_watched_across_its_runs() {
    let world = World::new().await;
    let mut stream = world.client.events("/v1/sessions/s/events", &[]).await;
    for cents in 0..3 {
        let call = json!({"tool": "charge", "args": {"cents": cents}, "session": "s"});
        world.client.post("/v1/calls", call).await.is(200);
    }
    let (mut ids, mut runs) = (Vec::new(), std::collections::BTreeSet::new());
    while runs.len() < 3 {
        let event = stream.until("run_finished").await;
        ids.push(event.id.unwrap());
        runs.insert(event.data["run"].as_str().unwrap().to_owned());
    }
    drop(stream);
    let mut again = world.client.events("/v1/sessions/s/events", &[("last-event-id", &ids[1])]).await;
    let next = again.until("run_finished").await;
    assert_eq!(next.id.unwrap(), ids[2], "it resumes after the last event");
}

/// The text of a stream for a reader that reads nothing during the pause, and then everything.
async fn read_after(world: &World, path: &str, pause: Duration) -> String {
    // A small buffer, so that the stream blocks soon.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut socket = socket.connect(world.client.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", world.client.address);
    socket.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(pause).await;
    let mut text = Vec::new();
    loop {
        let mut buffer = [0u8; 65_536];
        let count = tokio::time::timeout(crate::net::TIMEOUT, socket.read(&mut buffer)).await.unwrap().unwrap();
        text.extend_from_slice(&buffer[..count]);
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(16)..]).into_owned();
        if count == 0 || tail.ends_with("0\r\n\r\n") {
            return String::from_utf8_lossy(&text).into_owned();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_slow_reader_is_disconnected_and_resumes_without_a_gap() {
    let mut options = Options::default();
    options.limits.slow_reader_timeout = Duration::from_millis(150);
    options.limits.write_timeout = Duration::from_secs(10);
    let world = World::with(options).await;
    let run = world.call("steps", json!({"n": 3_000, "pad": 3_000})).await["run"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events");
    // There is no event for a blocked stream, and a busy machine takes longer to get there, so longer pauses are tried.
    let mut pauses = [1_500, 6_000, 20_000].into_iter().map(Duration::from_millis);
    let (text, end) = loop {
        let pause = pauses.next().expect("a slow reader is disconnected");
        let text = read_after(&world, &path, pause).await;
        let end = text.rsplit("event: end\ndata: ").next().unwrap().lines().next().unwrap();
        let end: serde_json::Value = serde_json::from_str(end).unwrap();
        assert_eq!(text.matches("event: end").count(), 1);
        if end["reason"] == "slow" {
            break (text, end);
        }
    };
    let last =
        text.rmatch_indices("\nid: ").next().map(|(at, _)| text[at + 5..].lines().next().unwrap().to_owned()).unwrap();
    let rest = world.client.events(&format!("{path}?from={}", end["next"].as_str().unwrap()), &[]).await.rest().await;
    let behind = world.client.events(&path, &[("last-event-id", &last)]).await.rest().await;
    assert_eq!(recorded(&rest), recorded(&behind), "`next` is right after the last event");
    assert_eq!(rest[rest.len() - 1].data["reason"], "finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_many_readers_get_the_same_events() {
    let world = World::new().await;
    let run = world.start("ask", json!({})).await;
    let path = format!("/v1/runs/{run}/events");
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(world.client.events(&path, &[]).await);
    }
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap()), json!({"value": 1})).await.is(200);
    let all = futures_util::future::join_all(streams.into_iter().map(|stream| stream.rest())).await;
    assert!(all.iter().all(|events| recorded(events) == recorded(&all[0]) && events.last().unwrap().name == "end"));
    until(|| async {
        let text = world.client.get("/metrics").await.body;
        String::from_utf8_lossy(&text).contains("windlass_http_streams 0").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_the_end_of_a_call_and_of_a_run_carry_the_value_or_the_error() {
    let world = World::new().await;
    for (tool, args, value, failure) in
        [("add", json!({"a": 1, "b": 2}), json!(3), None), ("fail", json!({}), json!(null), Some("not today"))]
    {
        let run = world.call(tool, args).await["run"].as_str().unwrap().to_owned();
        let events = world.client.events(&format!("/v1/runs/{run}/events"), &[]).await.rest().await;
        for name in ["call_finished", "run_finished"] {
            let data = &events.iter().find(|event| event.name == name).unwrap().data;
            assert_eq!((&data["value"], data["failure"]["message"].as_str()), (&value, failure), "{name}: {data}");
            assert!(data.get("shortened").is_none(), "{data}");
        }
        let trace = world.client.get(&format!("/v1/runs/{run}/trace")).await.is(200);
        let recorded: Vec<_> = events[..events.len() - 1].iter().map(|event| event.data.clone()).collect();
        assert_eq!(trace["activities"], json!(recorded));
    }
    let bytes = windlass::limits::OUTPUT_BUDGET * 3;
    let run = world.call("big", json!({"bytes": bytes})).await["run"].as_str().unwrap().to_owned();
    let events = world.client.events(&format!("/v1/runs/{run}/events"), &[]).await.rest().await;
    let data = &events.iter().find(|event| event.name == "run_finished").unwrap().data;
    let text = data["value"].as_str().unwrap();
    assert!(text.len() < bytes && text.contains("read on with GET /v1/runs/"), "{} bytes", text.len());
    assert_eq!(data["shortened"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn l19_a_trace_of_many_large_values_leaves_the_last_ones_out() {
    let world = World::new().await;
    let calls: Vec<_> = (0..200).map(|_| json!({"tool": "big", "args": {"bytes": 30_000}})).collect();
    let run =
        world.client.post("/v1/batches", json!({"calls": calls})).await.is(200)["run"].as_str().unwrap().to_owned();
    let trace = world.client.get(&format!("/v1/runs/{run}/trace")).await.is(200);
    let ends: Vec<_> =
        trace["activities"].as_array().unwrap().iter().filter(|one| one["kind"] == "call_finished").collect();
    let shown = ends.iter().filter(|end| end["value"].is_string()).count();
    assert!((100..=windlass::limits::TRACE_VALUE_BYTES / 30_000).contains(&shown), "{shown}");
    let left_out = ends.iter().filter(|end| end.get("value").is_none() && end["shortened"] == true).count();
    assert_eq!((ends.len(), shown + left_out), (200, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_readonly_call_is_in_the_stream_when_it_starts_without_a_position() {
    let world = World::new().await;
    let (gate, opened) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(tokio::sync::Semaphore::new(0)));
    let (held, entered) = (gate.clone(), opened.clone());
    let look = Tool::new("look", "Waits for the test.", move |_: Value| {
        let (held, entered) = (held.clone(), entered.clone());
        async move {
            entered.add_permits(1);
            held.acquire().await.map(|permit| permit.forget()).map_err(|error| ToolError::failed(error.to_string()))?;
            Ok(json!(1))
        }
    });
    let look = look.effect(Effect::Readonly);
    let body = Tool::durable_fn("body", "Waits, then looks.", |mut ctx: Ctx, _: Value| async move {
        let _: Value = ctx.wait("go").await?;
        ctx.call_json("look", json!({})).await
    });
    world.windlass.toolbox().insert(look).unwrap();
    world.windlass.toolbox().insert(body).unwrap();
    let run = world.start("body", json!({})).await;
    let mut stream = world.client.events(&format!("/v1/runs/{run}/events"), &[]).await;
    stream.until("parked").await;
    let item = world.item().await;
    world.client.post(&format!("/v1/inbox/{}/answer", item["id"].as_str().unwrap()), json!({"value": 1})).await.is(200);
    let started = loop {
        let event = stream.next().await.expect("the stream goes on");
        assert_ne!(event.name, "call_finished", "{event:?}");
        if event.name == "call_started" && event.data["tool"] == "look" {
            break event;
        }
    };
    assert_eq!((&started.id, &started.data["path"]), (&None, &json!("1")), "live, so a reader cannot resume from it");
    opened.acquire().await.unwrap().forget();
    gate.add_permits(1);
    let rest = stream.rest().await;
    let again = rest.iter().find(|event| event.name == "call_started").expect("the recorded start");
    assert!(again.id.is_some() && again.data["path"] == "1", "{again:?}");
}
