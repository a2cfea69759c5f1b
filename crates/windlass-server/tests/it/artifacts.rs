//! Artifacts: upload and download.

use serde_json::json;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn l16_an_artifact_is_uploaded_and_read_in_ranges() {
    let world = World::new().await;
    let content: Vec<u8> = (0..9_000_000u32).map(|n| (n % 251) as u8).collect();
    let path = "/v1/artifacts?session=s&name=big.bin";
    let stored = world.client.send("POST", path, &[("content-type", "image/x-big")], content.clone().into()).await;
    let location = stored.header("location").to_owned();
    let stored = stored.is(201);
    assert_eq!(
        (&stored["size"], &stored["media_type"], &stored["name"]),
        (&json!(content.len()), &json!("image/x-big"), &json!("big.bin"))
    );
    let again = world.client.send("POST", "/v1/artifacts?session=s", &[], content.clone().into()).await.is(201);
    assert_eq!(again["artifact"], stored["artifact"], "the same content has the same id");

    let whole = world.client.get(&location).await;
    assert_eq!((whole.status, whole.body.len(), whole.body[..] == content[..]), (200, content.len(), true));
    let tag = whole.header("etag").to_owned();
    assert_eq!(
        (tag.as_str(), whole.header("accept-ranges")),
        (format!("\"{}\"", stored["artifact"].as_str().unwrap()).as_str(), "bytes")
    );
    assert_eq!(whole.header("content-disposition"), "attachment");
    let part = world.client.send("GET", &location, &[("range", "bytes=1000000-1999999")], "".into()).await;
    assert_eq!((part.status, part.header("content-range")), (206, "bytes 1000000-1999999/9000000"));
    assert_eq!(part.body[..], content[1_000_000..2_000_000]);
    let tail = world.client.send("GET", &location, &[("range", "bytes=-5")], "".into()).await;
    assert_eq!(tail.body[..], content[content.len() - 5..]);
    let beyond = world.client.send("GET", &location, &[("range", "bytes=9000000-")], "".into()).await;
    assert_eq!(beyond.header("content-range"), "bytes */9000000");
    beyond.refused(416, "range_not_satisfiable");
    let cached = world.client.send("GET", &location, &[("if-none-match", &tag)], "".into()).await;
    assert_eq!((cached.status, cached.body.len()), (304, 0));
    let changed =
        world.client.send("GET", &location, &[("range", "bytes=0-1"), ("if-range", "\"other\"")], "".into()).await;
    assert_eq!((changed.status, changed.body.len()), (200, content.len()));
    let head = world.client.send("HEAD", &location, &[], "".into()).await;
    assert_eq!((head.status, head.header("content-length")), (200, "9000000"));
    let empty = world.client.send("POST", "/v1/artifacts?session=s", &[], "".into()).await.is(201);
    let empty = format!("/v1/artifacts/{}", empty["artifact"].as_str().unwrap());
    assert_eq!(world.client.get(&empty).await.body.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn e26_an_artifact_has_a_media_type_and_is_read_by_its_session_only() {
    let world = World::new().await;
    let store = async |session: &str, kind: &str, content: &'static str| {
        let path = format!("/v1/artifacts?session={session}");
        let stored = world.client.send("POST", &path, &[("content-type", kind)], content.into()).await;
        let location = stored.header("location").to_owned();
        (location, stored.is(201)["artifact"].as_str().unwrap().to_owned())
    };
    let (location, id) = store("mine", "text/csv; charset=utf-8", "a,b").await;
    let read = world.client.get(&location).await;
    assert_eq!(
        (read.status, &read.body[..], read.header("content-type")),
        (200, &b"a,b"[..], "text/csv; charset=utf-8")
    );
    assert_eq!((read.header("content-disposition"), read.header("x-content-type-options")), ("inline", "nosniff"));
    assert_eq!(world.client.get(&format!("/v1/artifacts/{id}?session=mine")).await.status, 200);
    world.client.get(&format!("/v1/artifacts/{id}?session=other")).await.refused(404, "not_found");
    world.client.get(&format!("/v1/artifacts/{id}?session=")).await.refused(422, "invalid_request");
    for odd in ["a%0Ab", "~~2o", "text", "/csv", "text/"] {
        let path = format!("/v1/artifacts/{id}?media_type={odd}");
        world.client.get(&path).await.refused(422, "invalid_request");
    }
    world.client.get(&format!("/v1/artifacts/{id}?sesion=mine")).await.refused(400, "bad_query");
    // The first media type is kept, also if the same bytes are stored again with another one.
    store("mine", "text/html", "a,b").await;
    let seen = async |query: &str| {
        let read = world.client.get(&format!("/v1/artifacts/{id}{query}")).await;
        [read.header("content-type"), read.header("content-disposition")].map(str::to_owned)
    };
    assert_eq!(seen("").await, ["text/csv; charset=utf-8", "inline"]);
    assert_eq!(seen("?media_type=text/html").await, ["text/html", "attachment"]);
    // Types that a browser might execute are sent as a download.
    for kind in ["text/html", "image/svg+xml", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "text/xml"] {
        let (location, _) = store("mine", kind, "<script>alert(1)</script>").await;
        let read = world.client.get(&location).await;
        assert_eq!((read.header("content-type"), read.header("content-disposition")), (kind, "attachment"));
        assert!(read.header("content-security-policy").contains("sandbox"), "{read:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l16_a_call_refers_to_a_stored_artifact_of_its_session() {
    let world = World::new().await;
    let stored =
        world.client.send("POST", "/v1/artifacts?session=s&media_type=text/csv", &[], "a,b".into()).await.is(201);
    let call = json!({"tool": "charge", "args": {"file": stored}, "session": "s"});
    world.client.post_as("k", "/v1/calls", call.clone()).await.is(200);
    world.client.post_as("k", "/v1/calls", call.clone()).await.is(200);
    assert_eq!(world.ledger.count(), 1);
    let mut foreign = call;
    foreign["session"] = json!("another");
    world.client.post("/v1/calls", foreign).await.refused(404, "not_found");
    world.client.send("POST", "/v1/artifacts", &[], "x".into()).await.refused(400, "bad_query");
    world.client.send("POST", "/v1/artifacts?session=", &[], "x".into()).await.refused(422, "invalid_request");
}
