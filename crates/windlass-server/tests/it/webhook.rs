//! The webhook: signed notifications, repeated until accepted and after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass_server::{Options, Webhook};

use crate::net::until;
use crate::world::World;

const SECRET: &[u8] = b"a secret of many bytes";

#[derive(Clone)]
struct Receiver {
    url: String,
    status: Arc<AtomicU16>,
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Receiver {
    async fn new(status: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?x=1", listener.local_addr().unwrap());
        let receiver = Self { url, status: Arc::new(status.into()), got: Arc::default() };
        let shared = receiver.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let shared = shared.clone();
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
                        shared.got.lock().push((parts.headers, body));
                        let mut response = hyper::Response::new(http_body_util::Full::new(Bytes::new()));
                        *response.status_mut() = StatusCode::from_u16(shared.status.load(Ordering::SeqCst)).unwrap();
                        Ok::<_, hyper::Error>(response)
                    }
                });
                let io = hyper_util::rt::TokioIo::new(stream);
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
            }
        });
        receiver
    }

    fn options(&self) -> Options {
        let fast = (Duration::from_millis(10), Duration::from_millis(40));
        let mut options = Options::default();
        options.webhook = Some(Webhook::new(&self.url, SECRET).unwrap().pace(Duration::from_millis(10), fast));
        options
    }

    async fn count(&self, at_least: usize) -> Vec<(HeaderMap, Value)> {
        until(|| async { (self.got.lock().len() >= at_least).then_some(()) }).await;
        let got = self.got.lock();
        got.iter().map(|(headers, body)| (headers.clone(), serde_json::from_slice(body).unwrap())).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w02_a_notification_is_sent_once_and_signed() {
    let receiver = Receiver::new(200).await;
    let world = World::with(receiver.options()).await;
    // Calls of client tools do not need a person.
    let tools = json!({"tools": [{"name": "screen", "description": "What is on the screen."}], "everywhere": true});
    world.client.post("/v1/clients", tools).await.is(201);
    let screen = world.start("screen", json!({})).await;
    world.run_in(&screen, "suspended").await;
    let run = world.start("pay", json!({"cents": 500, "pin": "1234"})).await;
    let (headers, sent) = receiver.count(1).await.remove(0);
    let item = world.item().await;
    assert_eq!(
        (&sent["event"], &sent["id"], &sent["item"]["run"]),
        (&json!("person_needed"), &item["id"], &json!(run))
    );
    assert_eq!(headers["windlass-id"], item["id"].as_str().unwrap());
    assert!(!sent.to_string().contains("1234") && sent["item"].get("key").is_none(), "{sent}");
    let signature = headers["windlass-signature"].to_str().unwrap();
    let (time, made) = signature.split_once(",v1=").unwrap();
    let body = receiver.got.lock()[0].1.clone();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(SECRET).unwrap();
    mac.update(time.strip_prefix("t=").unwrap().as_bytes());
    mac.update(b".");
    mac.update(&body);
    let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(made, expected);
    world.start("ask", json!({})).await;
    let sent = receiver.count(2).await;
    assert_eq!((sent.len(), &sent[1].1["item"]["kind"]), (2, &json!("input")), "no notification is repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn w02_a_notification_is_repeated_until_accepted_and_after_a_restart_with_the_same_id() {
    let receiver = Receiver::new(500).await;
    let world = World::with(receiver.options()).await;
    world.start("ask", json!({})).await;
    let sent = receiver.count(3).await;
    assert!(sent.iter().all(|(headers, _)| headers["windlass-id"] == sent[0].0["windlass-id"]));
    let world = world.restart(receiver.options()).await;
    let before = receiver.got.lock().len();
    let sent = receiver.count(before + 1).await;
    assert_eq!(sent[before].0["windlass-id"], sent[0].0["windlass-id"], "the same id after a restart");
    receiver.status.store(204, Ordering::SeqCst);
    until(|| async {
        let text = world.client.get("/metrics").await.body;
        String::from_utf8_lossy(&text).contains("windlass_webhooks_total{outcome=\"delivered\"} 1").then_some(())
    })
    .await;
}

#[tokio::test]
async fn w02_an_invalid_webhook_is_refused() {
    assert!(Webhook::new("ftp://x", SECRET).is_err());
    let short = Webhook::new("https://x", "short").err().unwrap().to_string();
    assert!(short.contains("16 bytes"), "{short}");
}
