//! A runtime that drives nothing: it reads a file and sends messages to its runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use windlass::run::{Filter, RunState};
use windlass::{Error, Tool, ToolCall, Windlass};

/// A tool that needs approval, and counts how often it ran.
fn charge(ran: &Arc<AtomicU64>) -> Tool {
    let ran = ran.clone();
    let tool = Tool::new("charge", "charges a card", move |args: Value| {
        ran.fetch_add(1, Ordering::SeqCst);
        async move { Ok(args) }
    });
    tool.approval_when("args.cents > 100")
}

fn call(cents: u64) -> ToolCall {
    ToolCall::new("charge", json!({"cents": cents}))
}

#[tokio::test]
async fn w02_a_decision_about_an_undriven_run_counts_once_it_is_driven() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let ran = Arc::new(AtomicU64::new(0));
    let driving = Windlass::open(&file).tool(charge(&ran)).await.unwrap();
    let asks = driving.start(call(500).key("asks")).await.unwrap().id();
    while driving.inbox().waiting().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    driving.shutdown().await.unwrap();

    let idle = Windlass::open(&file).tool(charge(&ran)).idle().await.unwrap();
    let epoch = idle.run(asks).info().await.unwrap().epoch;
    let inbox = idle.inbox().waiting().await.unwrap();
    idle.inbox().approve(&inbox[0], "ada", "fine").await.unwrap();
    let queued = idle.start(call(1).key("queued")).await.unwrap().id();
    let handed_in = idle.start(call(3)).await.unwrap().id();
    for error in [idle.call(call(2)).await.unwrap_err(), idle.run(asks).resume().await.unwrap_err()] {
        assert!(matches!(&error, Error::NotDriving(_)), "{error}");
    }
    assert_eq!(idle.run(queued).info().await.unwrap().state, RunState::Queued);
    let looked_at = idle.list(Filter::default(), None, 9).await.unwrap();
    assert_eq!(looked_at.len(), 3, "what was refused left nothing behind");
    idle.shutdown().await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0, "nothing ran");

    let driving = Windlass::open(&file).tool(charge(&ran)).await.unwrap();
    assert_eq!(driving.run(asks).outcome().await.unwrap().value(), Some(&json!({"cents": 500})));
    assert_eq!(driving.run(queued).outcome().await.unwrap().value(), Some(&json!({"cents": 1})));
    assert_eq!(driving.run(handed_in).outcome().await.unwrap().value(), Some(&json!({"cents": 3})));
    assert_eq!(ran.load(Ordering::SeqCst), 3);
    assert!(driving.run(asks).info().await.unwrap().epoch > epoch, "looking took no lease");
    driving.shutdown().await.unwrap();
}
