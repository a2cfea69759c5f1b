//! Texts that several commands print.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use windlass::{Artifact, Content};
use windlass_server::wire::{Activity, Ending, Failure, Outcome, Run, RunState, Time, Violation};

use crate::out::Out;
use crate::style::{Tint, counted, duration, plain};
use crate::timeline::cause;

/// The note of a command on a file without a server, about what only a server does.
pub(super) const NO_SERVER: &str = "no server drives the runs of this file now; start one with `windlass serve`";

/// The state of a run and its colour. `runs list --state` accepts every text that this returns.
pub fn state(run: &Run) -> (Tint, String) {
    match (run.state, run.ending) {
        (RunState::Finished, Some(how)) => ending(how),
        (RunState::Finished, None) => (Tint::Dim, "finished".to_owned()),
        (RunState::Queued, _) => (Tint::Wait, "queued".to_owned()),
        (RunState::Running, _) if !run.doubts.is_empty() => (Tint::Doubt, "in doubt".to_owned()),
        (RunState::Suspended, _) if !run.doubts.is_empty() => (Tint::Doubt, "in doubt".to_owned()),
        (RunState::Running, _) => (Tint::Good, "running".to_owned()),
        (RunState::Suspended, _) => (Tint::Park, "suspended".to_owned()),
        (RunState::Held, _) => (Tint::Bad, "held".to_owned()),
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

/// How long ago something was, or how far ahead it is.
pub fn ago(at: Time, now: Time) -> String {
    let micros = now.as_micros().saturating_sub(at.as_micros());
    match u64::try_from(micros) {
        Ok(micros) if micros >= 1_000_000 => format!("{} ago", whole_seconds(micros)),
        Ok(_) => "now".to_owned(),
        Err(_) => format!("in {}", whole_seconds(micros.unsigned_abs())),
    }
}

/// A duration in whole seconds below a minute: `40 s`, `2 min 3 s`, `3 d 4 h`.
fn whole_seconds(micros: u64) -> String {
    match micros / 1_000_000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => duration(Duration::from_secs(seconds)),
    }
}

/// The current time.
pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    windlass::Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)).into()
}

/// An outcome for people: the value, or the failure.
pub(super) fn outcome(outcome: &Outcome, out: &Out) -> Vec<String> {
    let mut lines = match (&outcome.error, &outcome.value) {
        (Some(error), _) => failure(error, out),
        (None, Some(Value::String(text))) => text.lines().map(plain).collect(),
        // Only its content blocks count.
        (None, Some(Value::Null)) if !outcome.content.is_empty() => Vec::new(),
        (None, value) => pretty(value.as_ref().unwrap_or(&Value::Null)),
    };
    for block in outcome.content.iter().filter_map(|block| Content::deserialize(block).ok()) {
        match (block.as_text(), block.artifact()) {
            (Some(text), _) => lines.extend(text.lines().map(plain)),
            (None, Some(artifact)) => lines.push(out.dim(&media(&block, artifact))),
            (None, None) => {}
        }
    }
    lines
}

/// An image, audio or a file on one line: `[image: chart.png, image/png, 2048 bytes]`.
fn media(block: &Content, artifact: &Artifact) -> String {
    let kind = match block {
        Content::Image(_) => "image",
        Content::Audio(_) => "audio",
        _ => "file",
    };
    let name = artifact.name.iter().map(|name| format!("{}, ", plain(name))).collect::<String>();
    let stored = artifact.id().map(|id| format!(", artifact {id}")).unwrap_or_default();
    format!("[{kind}: {name}{}, {}{stored}]", plain(&artifact.media_type), counted(artifact.size(), "byte"))
}

fn failure(error: &Failure, out: &Out) -> Vec<String> {
    let message = unrepeated(&error.message, &error.violations);
    let code = error.code.as_deref().map(|code| format!(" ({})", plain(code))).unwrap_or_default();
    let head = format!("{}{code}: {}", out.style.paint(Tint::Bad, &plain(&error.kind)), plain(message));
    let data = error.data.iter().flat_map(|data| match data {
        Value::String(text) => text.lines().map(plain).collect(),
        data => pretty(data),
    });
    let data = data.map(|line| format!("    {line}"));
    std::iter::once(head).chain(violations(&error.violations)).chain(data).collect()
}

/// A message without the violations, which are listed below it.
pub(super) fn unrepeated<'m>(message: &'m str, violations: &[Violation]) -> &'m str {
    let listed = violations.first().and_then(|first| message.find(&first.message));
    listed.and_then(|at| message[..at].split_once(": ")).map_or(message, |(head, _)| head)
}

/// Violations, one per line.
pub(super) fn violations(violations: &[Violation]) -> impl Iterator<Item = String> {
    violations.iter().map(|violation| {
        let pointer = if violation.pointer.is_empty() { "the whole value" } else { violation.pointer.as_str() };
        format!("    {}: {}", plain(pointer), plain(&violation.message))
    })
}

/// Says by which key the other system knows an attempt.
pub(super) fn attempt_key(operation: &str, attempt: u32, key: &str) -> String {
    format!("attempt {attempt} of {} has the idempotency key {}", plain(operation), plain(key))
}

/// Indented JSON.
pub(super) fn pretty(value: &Value) -> Vec<String> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.lines().map(plain).collect()
}

/// One activity on one line.
pub fn activity_line(activity: &Activity, out: &Out) -> Option<String> {
    let (tint, what) = describe(activity)?;
    let at = activity.at.to_string();
    let clock = at.split('T').nth(1).unwrap_or(&at).trim_end_matches('Z');
    let clock: String = clock.chars().take("00:00:00.000".len()).collect();
    let path = activity.path.to_string();
    let path = if path == "/" { String::new() } else { path };
    Some(format!("{}  {path:<6} {}", out.dim(&format!("{clock:<12}")), out.style.paint(tint, &plain(&what))))
}

fn describe(activity: &Activity) -> Option<(Tint, String)> {
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
    let with_key = |what: String| match field("idempotency_key").and_then(Value::as_str) {
        Some(key) => format!("{what} (idempotency key {key})"),
        None => what,
    };
    // The line for people, or else what happened.
    let narrated = |what: String| if line.is_empty() { what } else { line.clone() };
    let total = field("times").and_then(|times| times["total_ms"].as_f64()).unwrap_or(0.0);
    let took = duration(Duration::from_secs_f64((total / 1e3).max(0.0)));
    Some(match activity.kind.as_str() {
        "run_started" => (Tint::Bold, "run recorded in the store".to_owned()),
        "run_recovered" => (Tint::Bad, "the process that drove the run died; another process drives it now".to_owned()),
        "run_resumed" => (Tint::Good, "resumed by hand".to_owned()),
        "run_restored" => (Tint::Doubt, "restored from a backup of its store".to_owned()),
        "run_forked" => (Tint::Dim, format!("forked from run {} at {}", text("from"), text("cut"))),
        "run_continued" => (Tint::Dim, format!("generation {} begins, with a new journal", text("generation"))),
        "run_cancelled" => (Tint::Bad, format!("cancelled by {}: {}", text("by"), text("reason"))),
        "run_held" => (Tint::Bad, format!("held: {}", text("sentence"))),
        "keys_revoked" => (Tint::Dim, format!("reply keys revoked: {}", text("reason"))),
        "run_finished" if failed.is_some() => (Tint::Bad, format!("run finished ({}): {message}", text("ending"))),
        "run_finished" => (Tint::Good, format!("run finished ({})", text("ending"))),
        "call_started" => (Tint::Plain, narrated(format!("{} started", text("tool")))),
        "call_finished" if failed.is_some() => {
            (Tint::Bad, format!("{}: {message}", narrated(format!("{} failed", text("tool")))))
        }
        "call_finished" => (Tint::Good, format!("{} in {took}", narrated(format!("{} done", text("tool"))))),
        "operation_started" => (Tint::Plain, format!("{} {} started", text("operation"), text("name"))),
        "operation_finished" if failed.is_some() => {
            (Tint::Bad, format!("{} {} failed: {message}", text("operation"), text("name")))
        }
        "operation_finished" => (Tint::Good, format!("{} {} done in {took}", text("operation"), text("name"))),
        "attempt_started" => (Tint::Plain, with_key(format!("attempt {} started", text("attempt")))),
        "attempt_failed" => (Tint::Bad, format!("attempt {} failed: {message}; it will be retried", text("attempt"))),
        "in_doubt" => (Tint::Doubt, with_key(format!("in doubt: {}", cause(&text("cause"), &text("said"))))),
        "settled" => (Tint::Good, format!("settled by {}: {}", text("by"), text("reason"))),
        "parked" => (Tint::Park, parked(field("on")?, &line)),
        "granted" => (Tint::Good, format!("approved by {}: {}", text("by"), text("reason"))),
        "emitted" => (Tint::Plain, format!("event {}: {}", text("name"), text("value"))),
        "spawned" => (Tint::Plain, format!("started {} as run {}", text("tool"), text("child"))),
        "progress" | "logged" => (Tint::Dim, text("message")),
        "call_prepared" => return None,
        other => (Tint::Dim, other.to_owned()),
    })
}

fn parked(on: &Value, line: &str) -> String {
    let text = |field: &str| on[field].as_str().unwrap_or_default();
    let narrated = |what: &str, about: &str| format!("{}: {about}", if line.is_empty() { what } else { line });
    match text("kind") {
        "approval" => narrated("waits for approval", text("why")),
        "connection" => narrated("waits for a connection", text("provider")),
        "input" => narrated("waits for an answer", text("name")),
        "signal" => format!("waits for the signal {}", text("name")),
        "child" => format!("waits for run {}", text("run")),
        "time" => "sleeps".to_owned(),
        "retry" => "waits for its next attempt".to_owned(),
        "key" => format!("waits for key {}", text("key")),
        other => format!("waits for {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_in_whole_seconds() {
        let at = |seconds: f64| -> Time { windlass::Timestamp::from_micros((seconds * 1e6) as i64).into() };
        let now = at(1_000.0);
        for (seconds, text) in [
            (999.5, "now"),
            (960.0, "40 s ago"),
            (959.2, "40 s ago"),
            (877.0, "2 min 3 s ago"),
            (1_005.5, "in 5 s"),
            (8_200.0, "in 2 h 0 min"),
        ] {
            assert_eq!(ago(at(seconds), now), text);
        }
    }
}
