//! Sizes, times and connections.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use windlass_tools::net::{Limits, NetError, Trouble};

use crate::server::{Names, Reply, Server, answer, bounded, get, json, send};

const SMALL: Limits =
    Limits { connect: Duration::from_secs(5), total: Duration::from_secs(20), answer: 100_000, redirects: 5 };

async fn trouble(reply: Reply, limits: Limits) -> NetError {
    let server = Server::start(move |_, _| reply.clone()).await;
    let client = bounded(server.rules(), Names::default(), limits);
    send(&client, "GET", server.url("/").parse().unwrap(), "").await.unwrap_err()
}

#[tokio::test]
async fn e26_an_answer_is_bounded_however_it_comes() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![0; 50_000_000]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 60_000, "the bomb itself is within the bound");
    let mut packed =
        format!("HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bomb.len()).into_bytes();
    packed.extend(bomb);
    let chunk = format!("{:x}\r\n{}\r\n", 4096, "x".repeat(4096));
    let chunked = format!("HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(30));
    for (reply, expected) in [
        (answer(200, "", &"x".repeat(100_001)), "larger than 100000 bytes"),
        (Reply::Raw(b"HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\nx".to_vec()), "larger than 100000 bytes"),
        (Reply::Raw(chunked.into_bytes()), "larger than 100000 bytes"),
        (Reply::Raw(packed), "larger than 100000 bytes once unpacked"),
        (answer(200, "content-encoding: br\r\n", "xyz"), "packed with `br`, which was not asked for"),
    ] {
        let error = trouble(reply, SMALL).await;
        assert_eq!(error.trouble, Trouble::Unusable, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let endless = trouble(Reply::Endless(b"HTTP/1.1 200 X\r\nx: ".to_vec()), SMALL).await;
    assert_eq!((endless.trouble, endless.sent), (Trouble::Broken, true), "an endless head: {endless}");
}

#[tokio::test]
async fn e26_an_answer_that_never_comes_is_not_waited_for() {
    let limits = Limits { total: Duration::from_millis(100), ..SMALL };
    for reply in [Reply::Silence, Reply::Raw(b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nhalf".to_vec())] {
        let error = trouble(reply, limits).await;
        assert_eq!((error.trouble, error.sent), (Trouble::TimedOut, true));
        assert!(error.to_string().ends_with("no answer within 100ms"), "{error}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer() {
    for bytes in ["", "HTTP/1.1 200", "HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nhalf", "SSH-2.0-x\r\n\r\n"] {
        let error = trouble(Reply::Cut(bytes.as_bytes().to_vec()), SMALL).await;
        assert_eq!((error.trouble, error.sent), (Trouble::Broken, true), "{bytes:?}: {error}");
    }
}

#[tokio::test]
async fn connections_are_kept_while_they_last() {
    let server = Server::start(|_, n| match n {
        5 => Reply::Cut(b"HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec()),
        _ => json(200, "1"),
    })
    .await;
    let client = server.client();
    for n in 1..=10 {
        get(&client, &server.url("/")).await.unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    let connections: Vec<usize> = server.asked().iter().map(|asked| asked.connection).collect();
    assert_eq!(connections, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
}

#[tokio::test]
async fn what_was_packed_comes_unpacked() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(b"hello").unwrap();
    let packed = packed.finish().unwrap();
    let mut bytes =
        format!("HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", packed.len()).into_bytes();
    bytes.extend(packed);
    let server = Server::start(move |_, _| Reply::Raw(bytes.clone())).await;
    let answer = get(&server.client(), &server.url("/")).await.unwrap();
    assert_eq!(&answer.body[..], b"hello");
    assert_eq!(server.asked()[0].headers["accept-encoding"], "gzip");
}
