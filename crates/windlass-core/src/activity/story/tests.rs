use serde_json::json;

use super::*;
use crate::run::record::{DoubtCause, Grant, Prepared, Settled, Settler};
use crate::run::state::Blocked;
use crate::time::Times;
use crate::tool::{Effect, Output, Schemas, ToolSpec};

const RUN: RunId = RunId::from_bytes([7; 16]);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn asked(kind: OpKind, name: &str, input: Value) -> Option<Asked> {
    Some(Asked::operation(kind, name.into(), Some(Arc::new(input)), Effect::Once))
}

fn record(path: &str, seconds: i64, asked: Option<Asked>, event: Event) -> Record {
    Record { path: path.parse().unwrap(), at: at(seconds), asked, event }
}

fn finished(result: Result<Value, ToolError>, millis: u64) -> Event {
    let total = millis * 1_000_000;
    Event::Finished(Finished {
        result: result.map(|value| Arc::new(Output::value(value))).map_err(Arc::new),
        told: None,
        attempts: 1,
        times: Times { queued: 0, running: total, total },
        settled: None,
    })
}

/// A tool with a secret and lines.
fn toolbox() -> Toolbox {
    let schema = json!({"type": "object", "properties": {"path": {}, "token": {"x-secret": true}}});
    let mut spec = ToolSpec::new("read", "");
    spec.about.narration.add("en", "Reading {path} with {token}", "Read {path}");
    spec.about.narration.add_failure("en", "Could not read {path}");
    let nothing = Tool::new("x", "", |_: Value| async { Ok(()) });
    let tool = Tool::lazy(spec, move |_| Ok(Schemas::input(schema.clone())), nothing.body().clone());
    let toolbox = Toolbox::new();
    toolbox.insert(tool).unwrap();
    toolbox
}

fn tell(story: &mut Story, seq: u64, record: &Record) -> Vec<Activity> {
    let toolbox = toolbox();
    let telling = Telling { run: RUN, parent: None, toolbox: &toolbox, locale: "en" };
    story.activities(seq, record, &telling).into_vec()
}

/// What a journal says, each as its kind.
fn kinds(journal: &[Record]) -> Vec<String> {
    let mut story = Story::default();
    let said = journal.iter().zip(0..).flat_map(|(record, seq)| tell(&mut story, seq, record));
    said.map(|activity| serde_json::to_value(&activity).unwrap()["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn l23_every_record_says_what_happened() {
    let call = || asked(OpKind::Call, "read", json!({}));
    let step = || asked(OpKind::Step, "pay", json!(null));
    let error = || Arc::new(ToolError::failed("no"));
    let soon = at(100);
    let grant = Grant { digest: String::new(), by: "ada".into(), reason: "fine".into(), until: soon };
    let parked = Event::Parked { on: Blocked::Time, until: Some(soon), attempt: 0 };
    let doubted = Event::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by: soon, said: None };
    let settled = Event::Settled { attempt: 1, by: Settler::Policy, reason: "rerun".into() };
    let prepared = Event::Prepared(Prepared { args: Some(Arc::new(json!({}))), payload: None });
    let cancelled = Event::Cancelled { by: "ada".into(), reason: "enough".into() };
    let again = Event::Continued { generation: 1, children: Vec::new() };
    let spawned = finished(Ok(json!({"run": RUN})), 0);
    let table: Vec<(&str, Option<Asked>, Event, &[&str])> = vec![
        ("/", call(), Event::Accepted, &["run_started", "call_started"]),
        ("/", call(), Event::Entered, &["run_started", "call_started"]),
        ("/", asked(OpKind::Batch, "2", json!(null)), Event::Entered, &["run_started", "operation_started"]),
        ("0", call(), Event::Accepted, &["call_started"]),
        ("0", call(), prepared, &["call_started", "call_prepared"]),
        ("0", call(), Event::Attempting { attempt: 1 }, &["call_started", "attempt_started"]),
        ("0", step(), Event::Intended { attempt: 1, over_by: soon }, &["operation_started", "attempt_started"]),
        ("0", None, Event::Failed { attempt: 1, error: error(), retry_at: soon }, &["attempt_failed"]),
        ("0", None, doubted, &["in_doubt"]),
        ("0", None, settled, &["settled"]),
        ("0", asked(OpKind::Sleep, "sleep", json!(null)), parked, &["operation_started", "parked"]),
        ("0", None, Event::Granted(grant), &["granted"]),
        ("0", call(), finished(Ok(json!(1)), 5), &["call_started", "call_finished"]),
        ("0", step(), finished(Ok(json!(1)), 5), &["operation_started", "operation_finished"]),
        ("/", call(), finished(Ok(json!(1)), 5), &["run_started", "call_started", "call_finished", "run_finished"]),
        ("0", asked(OpKind::Emit, "step", json!(3)), finished(Ok(json!(null)), 0), &["emitted"]),
        ("0", asked(OpKind::Spawn, "read", json!({})), spawned, &["spawned"]),
        ("0", asked(OpKind::Version, "v2", json!(null)), Event::Entered, &[]),
        ("/", None, Event::Recovered, &["run_recovered"]),
        ("/", None, Event::Resumed, &["run_resumed"]),
        ("/", None, Event::Restored { renamed: false }, &["run_restored"]),
        ("/", call(), again, &["run_continued", "call_started"]),
        ("/", None, Event::Revoked { reason: "over".into() }, &["keys_revoked"]),
        ("/", None, cancelled, &["run_cancelled"]),
    ];
    for (path, asked, event, expected) in table {
        let record = record(path, 10, asked, event);
        assert_eq!(kinds(std::slice::from_ref(&record)), expected, "{record:?}");
    }
}

#[test]
fn l23_a_call_that_never_waited_begins_before_its_end() {
    let record = record("0", 10, asked(OpKind::Call, "read", json!({})), finished(Ok(json!(1)), 2_000));
    let said = tell(&mut Story::default(), 4, &record);
    assert_eq!((said[0].at, said[1].at), (at(8), at(10)));
    let places: Vec<Position> = said.iter().map(|activity| activity.position).collect();
    let place = |index| Position::Recorded(Cursor { record: 4, index });
    assert_eq!(places, [place(0), place(1)]);
    let Happening::CallFinished { times, .. } = &said[1].what else { panic!("{said:?}") };
    assert_eq!(times.total, 2_000_000_000);
}

#[test]
fn e12_lines_ride_on_calls_and_secrets_are_in_neither() {
    let args = json!({"path": "AGENTS.md", "token": "hunter2"});
    let mut story = Story::default();
    let started = tell(&mut story, 0, &record("0", 1, asked(OpKind::Call, "read", args), Event::Accepted));
    let Happening::CallStarted { args, line, .. } = &started[0].what else { panic!("{started:?}") };
    assert_eq!(line.as_deref(), Some("Reading AGENTS.md with •••"));
    assert_eq!(args, &Some(json!({"path": "AGENTS.md", "token": "•••"})));
    // The end is another record, which does not name the arguments.
    let failed = tell(&mut story, 1, &record("0", 3, None, finished(Err(ToolError::failed("no")), 2_000)));
    let Happening::CallFinished { line, failure, .. } = &failed[0].what else { panic!("{failed:?}") };
    assert_eq!(line.as_deref(), Some("Could not read AGENTS.md"));
    assert_eq!(failure.as_ref().map(|failure| failure.kind.as_str()), Some("failed"));
    let all = serde_json::to_string(&(started, failed)).unwrap();
    assert!(!all.contains("hunter2"), "{all}");
    let unknown = record("1", 1, asked(OpKind::Call, "gone", json!({"token": "hunter2"})), Event::Accepted);
    let said = format!("{:?}", tell(&mut story, 2, &unknown));
    assert!(!said.contains("hunter2"), "nobody knows what of it is secret: {said}");
}

#[test]
fn e03_an_internal_error_is_shown_by_its_correlation_id() {
    let mut error = ToolError::internal("password=hunter2");
    if let ToolError::Internal(internal) = &mut error {
        internal.correlation = "c-1".to_owned();
    }
    let journal = record("/", 1, asked(OpKind::Call, "read", json!({})), finished(Err(error), 1));
    let said = serde_json::to_string(&tell(&mut Story::default(), 0, &journal)).unwrap();
    assert!(said.contains("c-1") && !said.contains("hunter2"), "{said}");
}

#[test]
fn l23_a_wait_lasts_from_its_first_record_to_its_last() {
    let mut story = Story::default();
    let parked = Event::Parked { on: Blocked::Time, until: None, attempt: 0 };
    tell(&mut story, 0, &record("0", 10, asked(OpKind::Wait, "boss", json!(null)), parked));
    let said = tell(&mut story, 1, &record("0", 25, None, finished(Ok(json!(1)), 0)));
    let Happening::OperationFinished { times, .. } = &said[0].what else { panic!("{said:?}") };
    assert_eq!(times.total, 15_000_000_000);
    assert!(story.open().is_empty());
}

#[test]
fn l23_what_is_open_below_an_end_is_over_and_who_settled_it_is_said() {
    let mut story = Story::default();
    tell(&mut story, 0, &record("/", 1, asked(OpKind::Call, "read", json!({})), Event::Entered));
    let step = asked(OpKind::Step, "pay", json!(null));
    tell(&mut story, 1, &record("0", 2, step, Event::Intended { attempt: 1, over_by: at(9) }));
    assert_eq!(story.open().len(), 2);
    tell(&mut story, 2, &record("/", 3, None, finished(Ok(json!(1)), 1)));
    assert!(story.open().is_empty());
    let Event::Finished(mut end) = finished(Ok(json!(1)), 1) else { panic!("an end") };
    end.settled = Some(Box::new(Settled { by: Settler::Person("ada".into()), reason: "saw it".into() }));
    let said = tell(&mut story, 3, &record("0", 4, None, Event::Finished(end)));
    assert!(matches!(&said[..], [Activity { what: Happening::Settled { .. }, .. }]), "{said:?}");
}

#[test]
fn b12_activities_survive_being_sent_as_json() {
    let record = record("0", 10, asked(OpKind::Call, "read", json!({"path": "a"})), finished(Ok(json!(1)), 5));
    let said = tell(&mut Story::default(), 3, &record);
    let sent = serde_json::to_string(&said).unwrap();
    let back: Vec<Activity> = serde_json::from_str(&sent).unwrap();
    assert_eq!(back, said);
    assert!(sent.contains(r#""position":{"recorded":{"record":3,"index":0}}"#), "{sent}");
}
