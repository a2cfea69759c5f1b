//! Words that several commands use.

use std::time::Duration;

use serde_json::Value;
use windlass_server::wire::{Activity, Ending, Failure, Outcome, Run, State, Time, Violation};

use crate::out::Out;
use crate::style::{Tint, plain, took};
use crate::timeline::cause;

/// Where a run stands, in a word, and its colour.
pub fn state(run: &Run) -> (Tint, String) {
    match (run.state, run.ending) {
        (State::Finished, Some(how)) => ending(how),
        (State::Finished, None) => (Tint::Dim, "finished".to_owned()),
        (State::Queued, _) => (Tint::Wait, "queued".to_owned()),
        (State::Running, _) if !run.doubts.is_empty() => (Tint::Doubt, "in doubt".to_owned()),
        (State::Suspended, _) if !run.doubts.is_empty() => (Tint::Doubt, "in doubt".to_owned()),
        (State::Running, _) => (Tint::Good, "running".to_owned()),
        (State::Suspended, _) => (Tint::Park, "suspended".to_owned()),
        (State::Held, _) => (Tint::Bad, "held".to_owned()),
    }
}

/// How a run ended.
pub fn ending(ending: Ending) -> (Tint, String) {
    match ending {
        Ending::Ok => (Tint::Good, "ok".to_owned()),
        Ending::Failed => (Tint::Bad, "failed".to_owned()),
        Ending::Cancelled => (Tint::Wait, "cancelled".to_owned()),
        Ending::Lost => (Tint::Bad, "lost".to_owned()),
    }
}

/// How long ago something was.
pub fn ago(at: Time, now: Time) -> String {
    let micros = now.as_micros().saturating_sub(at.as_micros());
    match u64::try_from(micros) {
        Ok(micros) if micros >= 1_000_000 => format!("{} ago", took(Duration::from_secs(micros / 1_000_000))),
        Ok(_) => "now".to_owned(),
        Err(_) => format!("in {}", took(Duration::from_micros(micros.unsigned_abs()))),
    }
}

/// The moment.
pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    windlass::Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)).into()
}

/// An outcome for people: the value, or how it failed.
pub(super) fn outcome(outcome: &Outcome, out: &Out) -> Vec<String> {
    match (&outcome.error, &outcome.value) {
        (Some(error), _) => failure(error, out),
        (None, Some(Value::String(text))) => text.lines().map(plain).collect(),
        (None, value) => pretty(value.as_ref().unwrap_or(&Value::Null)),
    }
}

fn failure(error: &Failure, out: &Out) -> Vec<String> {
    let message = unrepeated(&error.message, &error.violations);
    let head = format!("{}: {}", out.style.paint(Tint::Bad, &plain(&error.kind)), plain(message));
    std::iter::once(head).chain(violations(&error.violations)).collect()
}

/// A message without what it says of the violations that are listed below it.
pub(super) fn unrepeated<'m>(message: &'m str, violations: &[Violation]) -> &'m str {
    let listed = violations.first().and_then(|first| message.find(&first.message));
    listed.and_then(|at| message[..at].split_once(": ")).map_or(message, |(head, _)| head)
}

/// Each on a line of its own, under what they are about.
pub(super) fn violations(violations: &[Violation]) -> impl Iterator<Item = String> {
    violations.iter().map(|violation| {
        let pointer = if violation.pointer.is_empty() { "the whole" } else { violation.pointer.as_str() };
        format!("    {}: {}", plain(pointer), plain(&violation.message))
    })
}

/// JSON on lines of its own.
pub(super) fn pretty(value: &Value) -> Vec<String> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.lines().map(plain).collect()
}

/// One thing that happened, on one line.
pub fn activity_line(activity: &Activity, out: &Out) -> Option<String> {
    let (tint, what) = happened(activity)?;
    let at = activity.at.to_string();
    let clock = at.split('T').nth(1).unwrap_or(&at).trim_end_matches('Z');
    let clock: String = clock.chars().take("00:00:00.000".len()).collect();
    let path = activity.path.to_string();
    let path = if path == "/" { String::new() } else { path };
    Some(format!("{}  {path:<6} {}", out.dim(&format!("{clock:<12}")), out.style.paint(tint, &plain(&what))))
}

fn happened(activity: &Activity) -> Option<(Tint, String)> {
    let field = |name: &str| activity.detail.get(name);
    let text = |name: &str| match field(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => fields.values().next().and_then(Value::as_str).unwrap_or_default().to_owned(),
        Some(other) if !other.is_null() => other.to_string(),
        _ => String::new(),
    };
    let failed = field("failure").filter(|failure| !failure.is_null());
    let message = failed.and_then(|failure| failure["message"].as_str()).unwrap_or_default();
    let line = text("line");
    let named = |name: String| if line.is_empty() { name } else { format!("{name}: {line}") };
    let total = field("times").and_then(|times| times["total_ms"].as_f64()).unwrap_or(0.0);
    let took = took(Duration::from_secs_f64((total / 1e3).max(0.0)));
    Some(match activity.kind.as_str() {
        "run_started" => (Tint::Bold, "the run is in the store".to_owned()),
        "run_recovered" => (Tint::Bad, "the process that drove it died; it goes on in another".to_owned()),
        "run_resumed" => (Tint::Good, "taken up again by hand".to_owned()),
        "run_restored" => (Tint::Doubt, "restored from a backup of its store".to_owned()),
        "run_forked" => (Tint::Dim, format!("forked from run {} at {}", text("from"), text("cut"))),
        "run_continued" => (Tint::Dim, format!("generation {}, with a fresh journal", text("generation"))),
        "run_cancelled" => (Tint::Bad, format!("cancelled by {}: {}", text("by"), text("reason"))),
        "run_held" => (Tint::Bad, format!("held: {}", text("sentence"))),
        "keys_revoked" => (Tint::Dim, format!("reply keys are void: {}", text("reason"))),
        "run_finished" if failed.is_some() => (Tint::Bad, format!("the run ended: {}: {message}", text("ending"))),
        "run_finished" => (Tint::Good, format!("the run ended: {}", text("ending"))),
        "call_started" => (Tint::Plain, named(format!("{} begins", text("tool")))),
        "call_finished" if failed.is_some() => (Tint::Bad, format!("{} failed: {message}", text("tool"))),
        "call_finished" => (Tint::Good, named(format!("{} done in {took}", text("tool")))),
        "operation_started" => (Tint::Plain, format!("{} {} begins", text("operation"), text("name"))),
        "operation_finished" if failed.is_some() => {
            (Tint::Bad, format!("{} {} failed: {message}", text("operation"), text("name")))
        }
        "operation_finished" => (Tint::Good, format!("{} {} done in {took}", text("operation"), text("name"))),
        "attempt_started" => (Tint::Plain, format!("attempt {}", text("attempt"))),
        "attempt_failed" => (Tint::Bad, format!("attempt {} failed: {message}; it is tried again", text("attempt"))),
        "in_doubt" => (Tint::Doubt, format!("in doubt: {}", cause(&text("cause"), &text("said")))),
        "settled" => (Tint::Good, format!("settled by {}: {}", text("by"), text("reason"))),
        "parked" => (Tint::Park, parked(field("on")?)),
        "granted" => (Tint::Good, format!("approved by {}: {}", text("by"), text("reason"))),
        "emitted" => (Tint::Plain, format!("event {}: {}", text("name"), text("value"))),
        "spawned" => (Tint::Plain, format!("starts {} as run {}", text("tool"), text("child"))),
        "progress" | "logged" => (Tint::Dim, text("message")),
        "call_prepared" => return None,
        other => (Tint::Dim, other.to_owned()),
    })
}

fn parked(on: &Value) -> String {
    let text = |field: &str| on[field].as_str().unwrap_or_default();
    match text("kind") {
        "approval" => format!("waits for approval: {}", text("why")),
        "connection" => format!("waits for a connection to {}", text("provider")),
        "input" => format!("waits for an answer: {}", text("name")),
        "signal" => format!("waits for the signal {}", text("name")),
        "child" => format!("waits for run {}", text("run")),
        "time" => "sleeps".to_owned(),
        "retry" => "waits for its next attempt".to_owned(),
        "key" => format!("waits for key {}", text("key")),
        other => format!("waits for {other}"),
    }
}
