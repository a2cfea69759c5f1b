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

/// A toolbox with a tool that has a secret argument and narration.
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

fn activities_of(operations: &mut OpenOperations, seq: u64, record: &Record) -> Vec<Activity> {
    let toolbox = toolbox();
    let policy = Policy::default();
    let context = ActivityContext {
        run: RUN,
        parent: None,
        attribution: None,
        toolbox: &toolbox,
        session: None,
        locale: "en",
        policy: &policy,
    };
    operations.activities(seq, record, &context).into_vec()
}

/// The kinds of the activities of a journal.
fn kinds(journal: &[Record]) -> Vec<String> {
    let mut operations = OpenOperations::default();
    let found = journal.iter().zip(0..).flat_map(|(record, seq)| activities_of(&mut operations, seq, record));
    found.map(|activity| serde_json::to_value(&activity).unwrap()["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn l23_every_record_has_its_activities() {
    let call = || asked(OpKind::Call, "read", json!({}));
    let step = || asked(OpKind::Step, "pay", json!(null));
    let error = || Arc::new(ToolError::failed("no"));
    let soon = at(100);
    let grant = Grant { digest: String::new(), by: "ada".into(), reason: "fine".into(), until: soon };
    let parked = Event::Parked { on: Blocked::Time, until: Some(soon), attempt: 0 };
    let doubted = Event::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by: soon, said: None };
    let settled = Event::Settled { attempt: 1, by: Settler::Policy, reason: "rerun".into() };
    let prepared = Event::Prepared(Prepared { args: Some(Arc::new(json!({}))), ..Prepared::default() });
    let cancelled = Event::Cancelled { by: "ada".into(), reason: "enough".into() };
    let again = Event::Continued { generation: 1, children: Vec::new(), cancelled_at_end: Vec::new() };
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
fn l23_a_call_with_one_record_starts_before_it_ends() {
    let record = record("0", 10, asked(OpKind::Call, "read", json!({})), finished(Ok(json!(1)), 2_000));
    let found = activities_of(&mut OpenOperations::default(), 4, &record);
    assert_eq!((found[0].at, found[1].at), (at(8), at(10)));
    let positions: Vec<Position> = found.iter().map(|activity| activity.position).collect();
    let position = |index| Position::Recorded(Cursor { record: 4, index });
    assert_eq!(positions, [position(0), position(1)]);
    let Happening::CallFinished { times, .. } = &found[1].what else { panic!("{found:?}") };
    assert_eq!(times.total, 2_000_000_000);
}

#[test]
fn e12_narration_and_arguments_of_calls_contain_no_secrets() {
    let args = json!({"path": "AGENTS.md", "token": "hunter2"});
    let mut operations = OpenOperations::default();
    let started =
        activities_of(&mut operations, 0, &record("0", 1, asked(OpKind::Call, "read", args), Event::Accepted));
    let Happening::CallStarted { args, line, .. } = &started[0].what else { panic!("{started:?}") };
    assert_eq!(line.as_deref(), Some("Reading AGENTS.md with •••"));
    assert_eq!(args, &Some(json!({"path": "AGENTS.md", "token": "•••"})));
    // The record of the end does not contain the arguments.
    let failed =
        activities_of(&mut operations, 1, &record("0", 3, None, finished(Err(ToolError::failed("no")), 2_000)));
    let Happening::CallFinished { line, failure, .. } = &failed[0].what else { panic!("{failed:?}") };
    assert_eq!(line.as_deref(), Some("Could not read AGENTS.md"));
    assert_eq!(failure.as_ref().map(|failure| failure.kind.as_str()), Some("failed"));
    let all = serde_json::to_string(&(started, failed)).unwrap();
    assert!(!all.contains("hunter2"), "{all}");
    let unknown = record("1", 1, asked(OpKind::Call, "gone", json!({"token": "hunter2"})), Event::Accepted);
    let found = format!("{:?}", activities_of(&mut operations, 2, &unknown));
    assert!(!found.contains("hunter2"), "without the schema every argument may be secret: {found}");
}

#[test]
fn e03_an_internal_error_is_shown_by_its_correlation_id() {
    let mut error = ToolError::internal("password=hunter2");
    if let ToolError::Internal(internal) = &mut error {
        internal.correlation = "c-1".to_owned();
    }
    let journal = record("/", 1, asked(OpKind::Call, "read", json!({})), finished(Err(error), 1));
    let found = serde_json::to_string(&activities_of(&mut OpenOperations::default(), 0, &journal)).unwrap();
    assert!(found.contains("c-1") && !found.contains("hunter2"), "{found}");
}

#[test]
fn l23_a_wait_lasts_from_its_first_record_to_its_last() {
    let mut operations = OpenOperations::default();
    let parked = Event::Parked { on: Blocked::Time, until: None, attempt: 0 };
    activities_of(&mut operations, 0, &record("0", 10, asked(OpKind::Wait, "boss", json!(null)), parked));
    let found = activities_of(&mut operations, 1, &record("0", 25, None, finished(Ok(json!(1)), 0)));
    let Happening::OperationFinished { times, .. } = &found[0].what else { panic!("{found:?}") };
    assert_eq!(times.total, 15_000_000_000);
    assert!(operations.open().is_empty());
}

#[test]
fn l23_operations_below_an_end_are_closed_and_a_settlement_is_reported() {
    let mut operations = OpenOperations::default();
    activities_of(&mut operations, 0, &record("/", 1, asked(OpKind::Call, "read", json!({})), Event::Entered));
    let step = asked(OpKind::Step, "pay", json!(null));
    activities_of(&mut operations, 1, &record("0", 2, step, Event::Intended { attempt: 1, over_by: at(9) }));
    assert_eq!(operations.open().len(), 2);
    activities_of(&mut operations, 2, &record("/", 3, None, finished(Ok(json!(1)), 1)));
    assert!(operations.open().is_empty());
    let Event::Finished(mut end) = finished(Ok(json!(1)), 1) else { panic!("an end") };
    end.settled = Some(Box::new(Settled { by: Settler::Person("ada".into()), reason: "saw it".into() }));
    let found = activities_of(&mut operations, 3, &record("0", 4, None, Event::Finished(end)));
    assert!(matches!(&found[..], [Activity { what: Happening::Settled { .. }, .. }]), "{found:?}");
}

#[test]
fn b12_activities_survive_being_sent_as_json() {
    let record = record("0", 10, asked(OpKind::Call, "read", json!({"path": "a"})), finished(Ok(json!(1)), 5));
    let found = activities_of(&mut OpenOperations::default(), 3, &record);
    let sent = serde_json::to_string(&found).unwrap();
    let back: Vec<Activity> = serde_json::from_str(&sent).unwrap();
    assert_eq!(back, found);
    assert!(sent.contains(r#""position":{"recorded":{"record":3,"index":0}}"#), "{sent}");
}

fn key_of(activity: &Activity) -> Option<String> {
    serde_json::to_value(activity).unwrap()["idempotency_key"].as_str().map(str::to_owned)
}

#[test]
fn w12_attempts_with_effects_and_doubts_carry_their_idempotency_key() {
    let doubted = || Event::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by: at(100), said: None };
    let call = |effect| Some(Asked { effect, ..asked(OpKind::Call, "read", json!({})).unwrap() });
    let mut operations = OpenOperations::default();
    for (effect, has_key) in [(Effect::Once, true), (Effect::Idempotent, true), (Effect::Readonly, false)] {
        let said = activities_of(&mut operations, 0, &record("2/0", 1, call(effect), Event::Attempting { attempt: 1 }));
        let expected = has_key.then(|| format!("{RUN}.0.2.0"));
        assert_eq!(said.iter().map(key_of).collect::<Vec<_>>(), [expected.clone(), expected], "{effect:?}");
    }
    let said = activities_of(&mut operations, 1, &record("2/0", 2, None, doubted()));
    assert_eq!(key_of(&said[0]), Some(format!("{RUN}.0.2.0")), "whatever its effect is now");
    let sleep = asked(OpKind::Sleep, "sleep", json!(null));
    assert_eq!(key_of(&activities_of(&mut operations, 2, &record("3", 3, sleep, Event::Accepted))[0]), None);

    let again = Event::Continued { generation: 4, children: Vec::new(), cancelled_at_end: Vec::new() };
    activities_of(&mut operations, 3, &record("/", 4, asked(OpKind::Call, "read", json!({})), again));
    let intended = || Event::Intended { attempt: 1, over_by: at(100) };
    let said = activities_of(&mut operations, 4, &record("0", 5, asked(OpKind::Step, "pay", json!(null)), intended()));
    assert_eq!(key_of(&said[1]), Some(format!("{RUN}.4.0")));
    assert_eq!(operations.idempotency_key(RUN, &"0".parse().unwrap()), Some(format!("{RUN}.4.0")));
}

#[test]
fn w12_copied_attempts_of_a_fork_keep_the_keys_of_the_run_that_made_them() {
    let (first, second) = (RunId::from_bytes([1; 16]), RunId::from_bytes([2; 16]));
    let cut = crate::run::fork::Cut::End;
    let header = |from, generation, copied| Event::Forked { from, generation, cut: cut.clone(), copied };
    let step = |path: &str| record(path, 2, asked(OpKind::Step, "pay", json!(null)), finished(Ok(json!(1)), 1));
    let mut operations = OpenOperations::default();
    activities_of(&mut operations, 0, &record("/", 1, asked(OpKind::Call, "read", json!({})), header(first, 3, 1)));
    activities_of(&mut operations, 1, &record("/", 1, None, header(second, 0, 2)));
    let keys: Vec<_> = ["0", "1", "2"].map(|path| key_of(&activities_of(&mut operations, 2, &step(path))[0])).into();
    assert_eq!(keys, [format!("{first}.3.0"), format!("{second}.0.1"), format!("{RUN}.0.2")].map(Some));
}

#[test]
fn e05_the_end_of_a_call_carries_its_value_within_the_output_budget() {
    let told = |value: Value| {
        let call = asked(OpKind::Call, "read", json!({"path": "a"}));
        activities_of(&mut OpenOperations::default(), 0, &record("/", 1, call, finished(Ok(value), 1)))
    };
    for value in [json!({"n": 1}), Value::Null] {
        let said = told(value.clone());
        let (call, run) = (&said[2].what, &said[3].what);
        assert!(
            matches!(call, Happening::CallFinished { value: Some(shown), shortened: false, .. } if *shown == value)
        );
        assert!(matches!(run, Happening::RunFinished { value: Some(shown), shortened: false, .. } if *shown == value));
        let read: Activity = serde_json::from_value(serde_json::to_value(&said[3]).unwrap()).unwrap();
        assert_eq!(read, said[3]);
    }
    let said = told(json!("x".repeat(crate::limits::OUTPUT_BUDGET * 2)));
    let Happening::CallFinished { value: Some(Value::String(text)), shortened: true, .. } = &said[2].what else {
        panic!("{said:?}")
    };
    assert!(text.len() <= crate::limits::OUTPUT_BUDGET && text.contains("windlass runs output"), "{}", text.len());
}
