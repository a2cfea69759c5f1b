//! Lists with filters and cursors.

use serde_json::{Value, json};

use crate::world::World;

fn ids(page: &Value) -> Vec<String> {
    page["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_runs_are_listed_in_pages_in_either_order() {
    let world = World::new().await;
    let mut made = Vec::new();
    for n in 0..7 {
        let tool = if n % 2 == 0 { "add" } else { "charge" };
        let answer = world.call(tool, json!({"a": 1, "b": 1})).await;
        made.push(answer["run"].as_str().unwrap().to_owned());
    }
    let waiting = world.start("ask", json!({})).await;
    world.run_in(&waiting, "suspended").await;
    made.push(waiting.clone());
    // Runs of the same millisecond are ordered by their random part.
    made.sort();
    let newest: Vec<String> = made.iter().rev().cloned().collect();
    for (order, expected) in [("newest", &newest), ("oldest", &made)] {
        let (mut seen, mut next) = (Vec::new(), String::new());
        loop {
            let page = world.client.get(&format!("/v1/runs?order={order}&limit=3{next}")).await.is(200);
            seen.extend(ids(&page));
            match page["next"].as_str() {
                Some(cursor) => next = format!("&cursor={cursor}"),
                None => break,
            }
        }
        assert_eq!(seen, *expected, "{order}");
    }
    let charges = world.client.get("/v1/runs?tool=charge").await.is(200);
    assert_eq!(ids(&charges).len(), 3);
    for (query, count) in [
        ("state=finished", 7),
        ("state=finished&tool=add", 4),
        ("state=suspended", 1),
        ("state=inbox", 1),
        ("state=held", 0),
        ("state=suspended&tool=add", 0),
        ("tool=nothing", 0),
        ("session=none", 0),
        ("state=in_doubt", 0),
    ] {
        let page = world.client.get(&format!("/v1/runs?{query}")).await.is(200);
        assert_eq!(ids(&page).len(), count, "{query}");
    }
    // By a prefix of the id.
    for (order, expected) in [("newest", &newest), ("oldest", &made)] {
        for digits in [2, 13, 28, 36] {
            let prefix = &made[3][..digits];
            let fit: Vec<String> = expected.iter().filter(|run| run.starts_with(prefix)).cloned().collect();
            let page = world.client.get(&format!("/v1/runs?order={order}&prefix={prefix}")).await.is(200);
            assert_eq!((ids(&page), &page["next"]), (fit, &Value::Null), "{order} {prefix}");
        }
    }
    assert!(ids(&world.client.get("/v1/runs?prefix=ffff").await.is(200)).is_empty());
    let none = world.client.get(&format!("/v1/runs?parent={waiting}")).await.is(200);
    assert!(ids(&none).is_empty() && none["next"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_runs_are_listed_by_their_ending() {
    let world = World::new().await;
    let run = async |tool: &str| world.call(tool, json!({"a": 1, "b": 1})).await["run"].as_str().unwrap().to_owned();
    let (ok, failed) = (run("add").await, run("fail").await);
    let cancelled = world.start("ask", json!({})).await;
    world.client.post(&format!("/v1/runs/{cancelled}/cancel"), json!({})).await.is(202);
    world.run_in(&cancelled, "finished").await;
    world.start("ask", json!({})).await;
    for (query, expected) in [
        ("state=ok", vec![&ok]),
        ("state=failed", vec![&failed]),
        ("state=cancelled", vec![&cancelled]),
        ("state=lost", vec![]),
        ("state=ok&tool=add", vec![&ok]),
        ("state=ok&tool=fail", vec![]),
        ("state=finished&limit=3&order=oldest", vec![&ok, &failed, &cancelled]),
    ] {
        let mut listed = ids(&world.client.get(&format!("/v1/runs?{query}")).await.is(200));
        let mut expected: Vec<String> = expected.into_iter().cloned().collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_run_is_found_by_the_key_it_was_started_under() {
    let world = World::new().await;
    let call = json!({"tool": "add", "args": {"a": 1, "b": 1}});
    let run = world.client.post_as("order-7/a", "/v1/calls", call.clone()).await.is(200);
    world.client.post_as("order-8", "/v1/calls", call).await.is(200);
    let run = run["run"].as_str().unwrap();
    for (query, found) in [
        ("key=order-7%2Fa", true),
        ("key=order-7%2Fa&state=ok&tool=add", true),
        ("key=order-7%2Fa&state=failed", false),
        ("key=order-7%2Fa&prefix=ffff", false),
        ("key=order-7", false),
        ("key=", false),
    ] {
        let page = world.client.get(&format!("/v1/runs?{query}")).await.is(200);
        let expected: Vec<String> = found.then(|| run.to_owned()).into_iter().collect();
        assert_eq!((ids(&page), &page["next"]), (expected, &Value::Null), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_a_bad_cursor_or_query_is_refused() {
    let world = World::new().await;
    world.call("add", json!({"a": 1, "b": 1})).await;
    let run = world.call("add", json!({"a": 1, "b": 1})).await["run"].as_str().unwrap().to_owned();
    let next = world.client.get("/v1/runs?limit=1").await.is(200)["next"].as_str().unwrap().to_owned();
    assert_eq!(world.client.get(&format!("/v1/runs?limit=1&cursor={next}")).await.status, 200);
    for cursor in ["x", "", "n", &run, &format!("o{run}"), &format!("{next}0"), &next.to_uppercase(), "n%00"] {
        let answer = world.client.get(&format!("/v1/runs?cursor={cursor}")).await;
        answer.refused(400, "bad_cursor");
    }
    for query in [
        "limit=0",
        "limit=501",
        "limit=x",
        "limit=-1",
        "state=sleeping",
        "order=up",
        "colour=red",
        "limit=1&limit=2",
        "prefix=xyz",
    ] {
        world.client.get(&format!("/v1/runs?{query}")).await.refused(400, "bad_query");
    }
    let near = world.client.get("/v1/runs?sesion=s").await.refused(400, "bad_query");
    assert!(near["detail"].as_str().unwrap().contains("did you mean `session`?"), "{near}");
    world.client.get("/v1/runs?parent=7").await.refused(400, "bad_run_id");
    world.client.get("/v1/inbox?cursor=zzz").await.refused(400, "bad_cursor");
    world.client.get("/v1/inbox?kind=joy").await.refused(400, "bad_query");
    world.client.get(&format!("/v1/runs/{run}/journal?after=99999999999999999999")).await.refused(400, "bad_query");
    world.client.get(&format!("/v1/runs/{run}/journal?after=18446744073709551615")).await.refused(400, "bad_cursor");
    for from in ["x", "1", "1.x", "-1.0", "9223372036854775808.0"] {
        world.client.get(&format!("/v1/runs/{run}/events?from={from}")).await.refused(400, "bad_cursor");
    }
}
