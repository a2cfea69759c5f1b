//! Session files: upload, download, compare-and-set, hostile paths and limits.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use windlass::session::FileLimits;
use windlass_server::{Options, serve};

use crate::net::{Answer, Client};
use crate::world::{Ledger, World, builder};

async fn opened() -> World {
    let world = World::new().await;
    open(&world.client, "ada").await;
    world
}

async fn open(client: &Client, session: &str) {
    client.send("PUT", &format!("/v1/sessions/{session}"), &[], "".into()).await.is(201);
}

fn url(path: &str) -> String {
    format!("/v1/sessions/ada/files/{path}")
}

async fn put(client: &Client, path: &str, headers: &[(&str, &str)], content: impl Into<Bytes>) -> Answer {
    client.send("PUT", &url(path), headers, content.into()).await
}

/// The paths of a list.
fn paths(page: &Value) -> Vec<&str> {
    page["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_a_file_is_written_listed_read_and_deleted_over_http() {
    let world = opened().await;
    let client = &world.client;
    let made = put(client, "notes/rome.md", &[], "# Rome\nnight train\n").await;
    let tag = made.header("etag").to_owned();
    let made = made.is(201);
    assert_eq!((&made["path"], &made["kind"], &made["size"]), (&json!("/notes/rome.md"), &json!("file"), &json!(19)));
    assert_eq!((&made["encoding"], &made["readonly"]), (&json!("text"), &json!(false)));
    assert_eq!(tag, format!("\"{}\"", made["hash"].as_str().unwrap()));
    let again = put(client, "workspace/notes/rome.md", &[], "# Rome\n").await.is(200);
    assert_eq!((&again["path"], &again["created"]), (&made["path"], &made["created"]), "the same file");
    assert_eq!(put(client, "data.bin", &[], &b"a\0b"[..]).await.is(201)["encoding"], "base64");
    assert_eq!(put(client, "a%20b%20%C3%A9%25", &[], "x").await.is(201)["path"], "/a b é%");
    assert_eq!(&client.get(&url("a%20b%20%C3%A9%25")).await.body[..], b"x");

    let list = async |query: &str| client.get(&format!("/v1/sessions/ada/files{query}")).await;
    assert_eq!(paths(&list("").await.is(200)), ["/a b é%", "/data.bin", "/notes"]);
    assert_eq!(paths(&list("?directory=notes").await.is(200)), ["/notes/rome.md"]);
    assert_eq!(list("?recursive=true").await.is(200)["files"].as_array().unwrap().len(), 4);
    let first = list("?limit=2").await.is(200);
    assert_eq!(first["next"], "/data.bin");
    let rest = list("?limit=2&after=/data.bin").await.is(200);
    assert_eq!((paths(&rest), rest.get("next")), (vec!["/notes"], None));
    list("?directory=nowhere").await.refused(404, "not_found");
    list("?directory=data.bin").await.refused(409, "not_directory");
    list("?directory=../x").await.refused(400, "bad_path");
    list("?limit=0").await.refused(400, "bad_query");
    list("?dir=x").await.refused(400, "bad_query");

    let search = async |query: &str| client.get(&format!("/v1/sessions/ada/files-search?{query}")).await;
    let found = search("pattern=rome&ignore_case=true&paths=*.md").await.is(200);
    assert_eq!(found["matches"], json!([{"path": "/notes/rome.md", "line": 1, "text": "# Rome"}]));
    assert_eq!((&found["complete"], &found["files"]), (&json!(true), &json!(1)));
    search("pattern=(").await.refused(400, "bad_query");
    search("pattern=x&directory=..").await.refused(400, "bad_path");

    assert_eq!(put(client, "deep/empty?directory=true", &[], "").await.is(201)["kind"], "directory");
    put(client, "deep/empty?directory=true", &[], "").await.is(200);
    put(client, "deep/empty?directory=true", &[], "content").await.refused(400, "bad_query");
    put(client, "deep/empty", &[], "x").await.refused(409, "is_directory");
    put(client, "data.bin/x", &[], "x").await.refused(409, "not_directory");
    client.get(&url("deep")).await.refused(409, "is_directory");
    client.get(&url("none")).await.refused(404, "not_found");
    client.delete(&url("deep")).await.refused(409, "directory_not_empty");
    client.delete(&url("deep?recursive=true")).await.is(204);
    client.delete(&url("deep?recursive=true")).await.refused(404, "not_found");
    client.delete(&url("data.bin")).await.is(204);
    client.get(&url("data.bin")).await.refused(404, "not_found");

    // A session that does not exist, and one that is closed.
    client.send("PUT", "/v1/sessions/bob/files/x", &[], "x".into()).await.refused(404, "not_found");
    client.get("/v1/sessions/bob/files").await.refused(404, "not_found");
    client.post("/v1/sessions/ada/close", json!({})).await.is(200);
    put(client, "late", &[], "x").await.refused(409, "session_closed");
    client.delete(&url("notes/rome.md")).await.refused(409, "session_closed");
    assert_eq!(client.get(&url("notes/rome.md")).await.status, 200, "it can still be read");
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_a_large_file_is_streamed_and_read_in_ranges() {
    let world = opened().await;
    let content: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let made = put(&world.client, "big.bin", &[], content.clone()).await;
    let tag = made.header("etag").to_owned();
    assert_eq!(made.is(201)["size"], content.len());
    let get = async |headers: &[(&str, &str)]| world.client.send("GET", &url("big.bin"), headers, "".into()).await;
    let whole = get(&[]).await;
    assert_eq!((whole.status, whole.body[..] == content[..]), (200, true));
    assert_eq!((whole.header("etag"), whole.header("accept-ranges")), (tag.as_str(), "bytes"));
    assert_eq!(
        (whole.header("content-disposition"), whole.header("cache-control")),
        ("attachment", "private, no-cache")
    );
    assert!(whole.header("content-security-policy").contains("sandbox"));
    let part = get(&[("range", "bytes=1000000-3999999")]).await;
    assert_eq!((part.status, part.header("content-range")), (206, "bytes 1000000-3999999/5000000"));
    assert!(part.body[..] == content[1_000_000..4_000_000]);
    let tail = get(&[("range", "bytes=-5"), ("if-range", &tag)]).await;
    assert_eq!((tail.status, &tail.body[..]), (206, &content[content.len() - 5..]));
    assert_eq!(get(&[("range", "bytes=-5"), ("if-range", "\"other\"")]).await.status, 200);
    let beyond = get(&[("range", "bytes=5000000-")]).await;
    assert_eq!(beyond.header("content-range"), "bytes */5000000");
    beyond.refused(416, "range_not_satisfiable");
    for list in [tag.clone(), "*".to_owned(), format!("\"x\", W/{tag}")] {
        let cached = get(&[("if-none-match", &list)]).await;
        assert_eq!((cached.status, cached.body.len(), cached.header("etag")), (304, 0, tag.as_str()), "{list}");
    }
    let head = world.client.send("HEAD", &url("big.bin"), &[], "".into()).await;
    assert_eq!((head.status, head.header("content-length"), head.header("etag")), (200, "5000000", tag.as_str()));
    assert_eq!(world.client.send("HEAD", &url("none"), &[], "".into()).await.status, 404);
    put(&world.client, "big.bin", &[], "").await.is(200);
    let empty = get(&[("if-none-match", &tag)]).await;
    assert_eq!((empty.status, empty.body.len()), (200, 0), "the content has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_of_two_uploads_on_the_same_base_one_is_refused_with_the_current_hash() {
    let world = opened().await;
    let client = &world.client;
    let new = [("if-none-match", "*")];
    let base = put(client, "plan", &new, "base").await;
    let tag = base.header("etag").to_owned();
    let base = base.is(201);
    let refused = put(client, "plan", &new, "other").await;
    assert_eq!(refused.header("etag"), tag);
    assert_eq!(refused.refused(412, "file_stale")["hash"], base["hash"]);
    for round in 0..10 {
        let tag = client.get(&url("plan")).await.header("etag").to_owned();
        let condition = [("if-match", tag.as_str())];
        let (one, two) = (format!("one {round}"), format!("two {round}"));
        let (first, second) =
            tokio::join!(put(client, "plan", &condition, one.clone()), put(client, "plan", &condition, two.clone()));
        let (winner, loser, kept) = if first.status == 200 { (first, second, one) } else { (second, first, two) };
        let hash = winner.is(200)["hash"].clone();
        assert_eq!(loser.refused(412, "file_stale")["hash"], hash);
        assert_eq!(client.get(&url("plan")).await.body, kept);
    }
    client.send("DELETE", &url("plan"), &[("if-match", &tag)], "".into()).await.refused(412, "file_stale");
    let gone = put(client, "missing", &[("if-match", &tag)], "x").await.refused(412, "file_stale");
    assert_eq!(gone["hash"], Value::Null);
    client.get(&url("missing")).await.refused(404, "not_found");
    for bad in [
        vec![("if-match", "*")],
        vec![("if-match", "b3:12")],
        vec![("if-match", "\"x\"")],
        vec![("if-match", "\"a\", \"b\"")],
        vec![("if-none-match", "\"x\"")],
        vec![("if-none-match", "*"), ("if-match", &tag)],
        vec![("if-match", &tag), ("if-match", &tag)],
    ] {
        put(client, "plan", &bad, "x").await.refused(400, "bad_precondition");
    }
    let tag = client.get(&url("plan")).await.header("etag").to_owned();
    client.send("DELETE", &url("plan"), &[("if-match", &tag)], "".into()).await.is(204);
}

/// Paths as a URL has them, none of which names a file.
const HOSTILE: [&str; 40] = [
    "..",
    "../x",
    "%2e%2e",
    "%2E%2E/x",
    "%2e%2e%2fx",
    "..%2fx",
    "..%2F..%2Fetc%2Fpasswd",
    "../../../etc/passwd",
    "a/../x",
    "a/..",
    "a/%2e%2e/x",
    "a/.%2e/x",
    "a%2f..%2fx",
    "a/./x",
    "a/%2e/x",
    "workspace/../x",
    "workspace%2f..%2fx",
    "./../x",
    "a//x",
    "a%2f%2fx",
    "//x",
    "%2f%2fx",
    "a%00",
    "%00",
    "a%00.txt",
    "a%0a",
    "a%0d%0ax",
    "a%1b%5b31m",
    "a%7f",
    "..%5cx",
    "a%5c..%5cx",
    "%5c%5cserver%5cshare",
    "C:%5cwindows",
    "a%E2%80%AEtxt.exe",
    "a%ff",
    "%c0%ae%c0%ae/x",
    "%c0%af",
    ".background/x",
    "workspace/.background",
    "workspace/workspace",
];

#[tokio::test(flavor = "multi_thread")]
async fn e15_no_spelling_of_a_url_leaves_the_tree_of_the_session() {
    let world = opened().await;
    open(&world.client, "eve").await;
    put(&world.client, "x", &[], "of ada").await.is(201);
    for path in HOSTILE {
        for (method, query) in [("GET", ""), ("PUT", ""), ("PUT", "?directory=true"), ("DELETE", "?recursive=true")] {
            let path = format!("/v1/sessions/eve/files/{path}{query}");
            let body = if method == "PUT" && query.is_empty() { "hostile" } else { "" };
            let answer = world.client.send(method, &path, &[], body.into()).await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!text.contains("of ada"), "{method} {path}: {text}");
            answer.refused(400, "bad_path");
        }
    }
    for long in ["n".repeat(256), "d/".repeat(64) + "x", "n/".repeat(600) + "x"] {
        let answer = world.client.send("PUT", &format!("/v1/sessions/eve/files/{long}"), &[], "x".into()).await;
        answer.refused(400, "bad_path");
    }
    // Decoded once: these are names.
    for (path, name) in [("%252e%252e", "/%2e%2e"), ("%252e%252e%252fx", "/%2e%2e%2fx"), ("%2500", "/%00")] {
        let path = format!("/v1/sessions/eve/files/{path}");
        assert_eq!(world.client.send("PUT", &path, &[], "x".into()).await.is(201)["path"], name);
        world.client.delete(&path).await.is(204);
    }
    // No route, or a session of another name.
    for path in ["/v1/sessions/eve/../ada/files/x", "/v1/sessions/eve%2f..%2fada/files/x", "/v1/sessions/eve/files/"] {
        let answer = world.client.get(path).await;
        assert!(!String::from_utf8_lossy(&answer.body).contains("of ada"));
        answer.refused(404, "not_found");
    }
    let left = world.client.get("/v1/sessions/eve/files?recursive=true").await.is(200);
    assert_eq!(left["files"], json!([]), "nothing was written");
    assert_eq!(world.client.get(&url("x")).await.body, "of ada");
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_an_upload_beyond_a_limit_is_refused_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let limits = FileLimits { file_bytes: 1_000, session_bytes: 1_500, count: 4 };
    let windlass = builder(&dir.path().join("app.db"), &Ledger::default()).session_files(limits).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(listener.local_addr().unwrap());
    let serving = tokio::spawn(serve(listener, windlass, Options::default(), std::future::pending::<()>()));
    open(&client, "ada").await;
    let bytes = |count: usize| vec![b'x'; count];
    put(&client, "a", &[], bytes(1_000)).await.is(201);
    let large = put(&client, "b", &[], bytes(1_001)).await.refused(413, "file_too_large");
    assert_eq!(large["limit"], 1_000);
    let full = put(&client, "b", &[], bytes(600)).await.refused(409, "session_full");
    assert_eq!((&full["limit"], &full["used"]), (&json!(1_500), &json!(1_000)));
    put(&client, "b", &[], bytes(500)).await.is(201);
    put(&client, "c?directory=true", &[], "").await.is(201);
    put(&client, "d", &[], "").await.is(201);
    let many = put(&client, "e", &[], "").await.refused(409, "session_full");
    assert_eq!(many["limit"], 4);
    client.get(&url("e")).await.refused(404, "not_found");
    client.delete(&url("a")).await.is(204);
    put(&client, "e", &[], bytes(1_000)).await.is(201);
    serving.abort();
}
