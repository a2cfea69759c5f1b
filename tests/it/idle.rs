//! A runtime that drives nothing: for looking at a file and for telling its runs things.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use windlass::{Error, Filter, RunState, Start, Tool, ToolCall, Windlass, Work};

/// A tool that asks first, and counts how often it ran.
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
async fn w02_what_is_told_to_runs_of_a_file_nobody_drives_counts_when_somebody_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let ran = Arc::new(AtomicU64::new(0));
    let driving = Windlass::open(&file).tool(charge(&ran)).await.unwrap();
    let asks = driving.start_with(call(500), Start::key("asks")).await.unwrap();
    while driving.inbox().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    driving.shutdown().await.unwrap();

    let idle = Windlass::open(&file).tool(charge(&ran)).idle().await.unwrap();
    let epoch = idle.info(asks).await.unwrap().unwrap().epoch;
    let inbox = idle.inbox().await.unwrap();
    idle.approve(&inbox[0], "ada", "fine").await.unwrap();
    let queued = idle.start_with(call(1), Start::key("queued")).await.unwrap();
    let handed_in = idle.submit(Work::Call(call(3)), Start::default()).await.unwrap().accepted().await.unwrap();
    for error in [idle.call(call(2)).await.unwrap_err(), idle.resume(asks).await.unwrap_err()] {
        assert!(matches!(&error, Error::NotDriving(_)), "{error}");
    }
    assert_eq!(idle.info(queued).await.unwrap().unwrap().state, RunState::Queued);
    let looked_at = idle.list(Filter::All, None, 9).await.unwrap();
    assert_eq!(looked_at.len(), 3, "what was refused left nothing behind");
    idle.shutdown().await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0, "nothing ran");

    let driving = Windlass::open(&file).tool(charge(&ran)).await.unwrap();
    assert_eq!(driving.attach(asks).await.unwrap()[0].value(), Some(&json!({"cents": 500})));
    assert_eq!(driving.attach(queued).await.unwrap()[0].value(), Some(&json!({"cents": 1})));
    assert_eq!(driving.attach(handed_in).await.unwrap()[0].value(), Some(&json!({"cents": 3})));
    assert_eq!(ran.load(Ordering::SeqCst), 3);
    assert!(driving.info(asks).await.unwrap().unwrap().epoch > epoch, "looking took no lease");
    driving.shutdown().await.unwrap();
}
