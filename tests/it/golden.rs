//! Encodings that outlive a release: what is written today must be readable, with the same meaning, for ever.
//!
//! `WINDLASS_BLESS=1` writes the files again. A difference in review is a change of format and needs a new version.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::run::record::{Asked, DoubtCause, Event, Finished, OpKind, Prepared, Record, Settled, Settler};
use windlass::run::{Cut, Times};
use windlass::store::Digest;
use windlass::tool::{Layers, Metadata};
use windlass::{Artifact, Content, Effect, Output, Timestamp, ToolError};
use windlass_core::run::secrets::Places;
use windlass_core::store::Message;

/// Compares `lines` with a golden file, one JSON value per line.
fn check(name: &str, lines: &[Value]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the golden file is written");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file is there");
    for (expected, found) in golden.lines().zip(text.lines()) {
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(golden.lines().count(), lines.len(), "{name}");
}

fn record(path: &str, asked: Option<Asked>, event: Event) -> Record {
    Record { path: path.parse().expect("a path"), at: Timestamp::from_micros(1_790_000_000_123_456), asked, event }
}

fn asked(kind: OpKind, name: &str) -> Asked {
    Asked {
        kind,
        name: name.into(),
        called: None,
        unresolved: false,
        layers: Layers::default(),
        input: Some(Arc::new(json!({"to": "Zürich", "n": 0.1, "big": u64::MAX, "none": null}))),
        call_id: Some("call_7".into()),
        effect: Effect::Once,
        version: Some("2.1".into()),
        limits: Some(Box::new(windlass::Policy {
            timeout: Some(Duration::from_millis(1_500)),
            ..windlass::Policy::default()
        })),
        broken: None,
        metadata: None,
        secrets: Places::default(),
    }
}

fn finished(result: Result<Arc<Output>, Arc<ToolError>>) -> Finished {
    let times = Times { queued: 1, running: 2, total: 3 };
    Finished { result, told: None, attempts: 2, times, settled: None }
}

fn records() -> Vec<Record> {
    let over_by = Timestamp::from_micros(1_790_000_060_123_456);
    let output = Output::value(json!({"ok": true}))
        .with(Content::text("done"))
        .with(Content::Image(Artifact::new("image/png", [1u8, 2, 3].as_slice()).named("p.png")))
        .raw(Artifact::new("text/plain", b"raw".as_slice()));
    let settled = Some(Box::new(Settled { by: Settler::Person("ann".into()), reason: "saw the receipt".into() }));
    let told = Some(Err(Arc::new(ToolError::failed("does not fit"))));
    let errors = [
        ToolError::invalid("/to", "is not a city"),
        ToolError::unavailable("gone"),
        ToolError::retry_after("busy", Duration::from_secs(2)),
        ToolError::from(std::io::Error::other("hidden")),
        ToolError::TimedOut { message: "late".into() },
        ToolError::Cancelled { reason: "stop".into() },
        ToolError::denied("no"),
        ToolError::ConnectionRequired { provider: "github".into() },
        ToolError::Panicked { correlation: "c".into() },
        ToolError::InDoubt { reason: "nobody knows".into() },
    ];
    let metadata = Metadata::raw(r#"{"signature" : "a+b=="}"#).ok();
    let described = Asked { metadata, ..asked(OpKind::Call, "x") };
    let mut records = vec![
        record("/", Some(asked(OpKind::Call, "book")), Event::Accepted),
        record("/", None, Event::Entered),
        record(
            "0",
            Some(Asked { broken: Some(Arc::new("too big".to_owned())), ..asked(OpKind::Call, "x") }),
            Event::Accepted,
        ),
        record("1", Some(asked(OpKind::Batch, "2")), Event::Entered),
        record("1", Some(described), Event::Accepted),
        record("1/0", Some(asked(OpKind::Step, "reserve seat")), Event::Attempting { attempt: 1 }),
        record("1/1", Some(asked(OpKind::Steps, "3")), Event::Intended { attempt: 2, over_by }),
        record("2", Some(asked(OpKind::Version, "discount")), Event::Entered),
        record("2", None, Event::Doubted { attempt: 1, cause: DoubtCause::WorkerLost, over_by, said: None }),
        record("2", None, Event::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by, said: None }),
        record("2", None, Event::Doubted { attempt: 1, cause: DoubtCause::Cancelled, over_by, said: None }),
        record("2", None, Event::Settled { attempt: 1, by: Settler::Tool, reason: "asked".into() }),
        record("2", None, Event::Settled { attempt: 1, by: Settler::Policy, reason: "rerun".into() }),
        record("/", None, Event::Recovered),
        record("/", None, Event::Resumed),
        record("/", None, Event::Cancelled { by: "ann".into(), reason: "enough".into() }),
        record("3", None, Event::Finished(Finished { settled, ..finished(Ok(Arc::new(output))) })),
        record("4", None, Event::Finished(Finished { told, ..finished(Ok(Arc::new(Output::default()))) })),
    ];
    let error = Arc::new(ToolError::retryable("busy"));
    records.push(record("5", None, Event::Failed { attempt: 1, error, retry_at: over_by }));
    records.extend(errors.into_iter().map(|error| record("6", None, Event::Finished(finished(Err(Arc::new(error)))))));
    let (args, payload) = (Some(Arc::new(json!({"to": "Bern"}))), Some(Arc::new(json!(null))));
    records.push(record(
        "7",
        Some(asked(OpKind::Call, "quote")),
        Event::Prepared(Prepared { args, payload, ..Prepared::default() }),
    ));
    records.push(record("8", None, Event::Prepared(Prepared::default())));
    let told = Some(Ok(Arc::new(Output::value(json!("redacted")))));
    records.push(record("9", None, Event::Finished(Finished { told, ..finished(Ok(Arc::new(Output::default()))) })));
    let from = "0195c2d0-0000-7000-8000-000000000001".parse().expect("a run");
    for cut in [Cut::Start, Cut::At("2/0".parse().expect("a path")), Cut::End] {
        let event = Event::Forked { from, generation: 1, cut, copied: 7 };
        records.push(record("/", Some(asked(OpKind::Call, "book")), event));
    }
    records.push(record("/", None, Event::Restored { renamed: false }));
    records.push(record("/", None, Event::Restored { renamed: true }));
    records.push(record("2", None, Event::Doubted { attempt: 1, cause: DoubtCause::Restored, over_by, said: None }));
    records.push(record("2", None, Event::Doubted { attempt: 1, cause: DoubtCause::Unclear, over_by, said: None }));
    let (cause, said) = (DoubtCause::Unclear, Some("the line went dead".into()));
    records.push(record("2", None, Event::Doubted { attempt: 1, cause, over_by, said }));
    let layers = ["guest".into(), "trial".into()].into_iter().collect();
    let scoped = Asked { called: Some("book a trip".into()), layers, ..asked(OpKind::Call, "book") };
    records.push(record("/", Some(scoped), Event::Accepted));
    let unknown = Asked { unresolved: true, ..asked(OpKind::Call, "bok") };
    records.push(record("/", Some(unknown), Event::Accepted));
    for by in [Settler::Refuser(Some("ann".into())), Settler::Refuser(None), Settler::Revocation] {
        let settled = Some(Box::new(Settled { by, reason: "no".into() }));
        let ended = Finished { settled, ..finished(Err(Arc::new(ToolError::denied("no")))) };
        records.push(record("10", None, Event::Finished(ended)));
    }
    records
}

#[test]
fn records_match_the_golden_file_and_read_back_the_same() {
    let lines: Vec<Value> = records().iter().map(|record| serde_json::to_value(record).expect("JSON")).collect();
    check("records-v1.jsonl", &lines);
    for line in lines {
        let back: Record = serde_json::from_value(line.clone()).expect("a record");
        assert_eq!(serde_json::to_value(back).expect("JSON"), line);
    }
}

#[test]
fn messages_match_the_golden_file_and_read_back_the_same() {
    let settle = |settlement| Message::Settle {
        generation: 0,
        path: "2/0".parse().expect("a path"),
        attempt: 1,
        settlement,
        by: "ann".into(),
        reason: "looked it up".into(),
    };
    let messages = [
        settle(Settlement::Happened(Ok(Arc::new(Output::value(json!(1)))))),
        settle(Settlement::Happened(Err(Arc::new(ToolError::failed("refused"))))),
        settle(Settlement::DidNotHappen),
        settle(Settlement::GiveUp),
        Message::Cancel { by: "ann".into(), reason: "enough".into() },
        Message::Restored,
    ];
    let lines: Vec<Value> = messages.iter().map(|message| serde_json::to_value(message).expect("JSON")).collect();
    check("messages-v1.jsonl", &lines);
    for line in lines {
        let back: Message = serde_json::from_value(line.clone()).expect("a message");
        assert_eq!(serde_json::to_value(back).expect("JSON"), line);
    }
}

#[test]
fn digests_match_the_golden_file() {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(0.0),
        json!(-1),
        json!(u64::MAX),
        json!(0.1),
        json!(""),
        json!("Zürich 🦀"),
        json!([]),
        json!([1, [2, [3]]]),
        json!({}),
        json!({"b": 1, "a": {"d": null, "c": [true, false]}}),
    ];
    let lines: Vec<Value> = values.iter().map(|value| json!([value, Digest::of(value)])).collect();
    check("digests-v1.jsonl", &lines);
}
