//! Limits on size and time, and reuse of connections.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use windlass_tools::net::{Limits, NetError, NetErrorKind};

use crate::server::{Names, Reply, Server, bounded, get, json, response, send};

const SMALL: Limits =
    Limits { connect: Duration::from_secs(5), total: Duration::from_secs(20), answer: 100_000, redirects: 5 };

async fn error(reply: Reply, limits: Limits) -> NetError {
    let server = Server::start(move |_, _| reply.clone()).await;
    let client = bounded(server.rules(), Names::default(), limits);
    send(&client, "GET", server.url("/").parse().unwrap(), "").await.unwrap_err()
}

#[tokio::test]
async fn e26_a_response_is_limited_in_size_in_every_encoding() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![0; 50_000_000]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 60_000, "compressed, it is within the limit");
    let mut compressed =
        format!("HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bomb.len()).into_bytes();
    compressed.extend(bomb);
    let chunk = format!("{:x}\r\n{}\r\n", 4096, "x".repeat(4096));
    let chunked = format!("HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(30));
    for (reply, expected) in [
        (response(200, "", &"x".repeat(100_001)), "larger than 100000 bytes"),
        (Reply::Raw(b"HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\nx".to_vec()), "larger than 100000 bytes"),
        (Reply::Raw(chunked.into_bytes()), "larger than 100000 bytes"),
        (Reply::Raw(compressed), "larger than 100000 bytes after decompression"),
        (response(200, "content-encoding: br\r\n", "xyz"), "the encoding `br`, which was not requested"),
    ] {
        let error = error(reply, SMALL).await;
        assert_eq!(error.kind, NetErrorKind::Unusable, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let endless = error(Reply::Endless(b"HTTP/1.1 200 X\r\nx: ".to_vec()), SMALL).await;
    assert_eq!((endless.kind, endless.sent), (NetErrorKind::Broken, true), "an endless head: {endless}");
}

#[tokio::test]
async fn e26_a_missing_response_times_out() {
    let limits = Limits { total: Duration::from_millis(100), ..SMALL };
    for reply in [Reply::Silence, Reply::Raw(b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nhalf".to_vec())] {
        let error = error(reply, limits).await;
        assert_eq!((error.kind, error.sent), (NetErrorKind::TimedOut, true));
        assert!(error.to_string().ends_with("no response within 100ms"), "{error}");
    }
}

#[tokio::test]
async fn an_incomplete_response_is_an_error() {
    for bytes in ["", "HTTP/1.1 200", "HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nhalf", "SSH-2.0-x\r\n\r\n"] {
        let error = error(Reply::Cut(bytes.as_bytes().to_vec()), SMALL).await;
        assert_eq!((error.kind, error.sent), (NetErrorKind::Broken, true), "{bytes:?}: {error}");
    }
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::start(|_, n| match n {
        5 => Reply::Cut(b"HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec()),
        _ => json(200, "1"),
    })
    .await;
    let client = server.client();
    for n in 1..=10 {
        get(&client, &server.url("/")).await.unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    let connections: Vec<usize> = server.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
}

#[tokio::test]
async fn a_compressed_response_is_decompressed() {
    let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
    compressed.write_all(b"hello").unwrap();
    let compressed = compressed.finish().unwrap();
    let mut bytes = format!("HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", compressed.len())
        .into_bytes();
    bytes.extend(compressed);
    let server = Server::start(move |_, _| Reply::Raw(bytes.clone())).await;
    let response = get(&server.client(), &server.url("/")).await.unwrap();
    assert_eq!(&response.body[..], b"hello");
    assert_eq!(server.requests()[0].headers["accept-encoding"], "gzip");
}
