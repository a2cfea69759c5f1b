//! The words of the picture.

use serde_json::Value;
use windlass_server::wire::Activity;

use crate::style::{Tint, counted};

/// Whether an operation of this kind does nothing but wait.
pub(super) fn parks(operation: &str) -> bool {
    matches!(operation, "wait" | "sleep" | "first" | "answer" | "receive" | "join")
}

/// An operation that is no call, as people say it.
pub(super) fn named(operation: &str, name: &str) -> String {
    match operation {
        "batch" => counted(name, "call"),
        "steps" => counted(name, "step"),
        "sleep" => "sleep".to_owned(),
        "wait" => format!("wait for {name}"),
        "first" => format!("first of {name}"),
        "answer" => format!("answer to the wait at {name}"),
        "signal" => format!("sends {name}"),
        "cancel" => format!("cancels run {name}"),
        "receive" => format!("signal {name}"),
        "join" => format!("end of run {name}"),
        _ => name.to_owned(),
    }
}

/// Arguments in a few words: `city=Oslo cents=12000`.
pub(super) fn brief(args: Option<&Value>) -> String {
    let short = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match args {
        None | Some(Value::Null) => String::new(),
        Some(Value::Object(fields)) => {
            let pairs: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", short(value))).collect();
            pairs.join(" ")
        }
        Some(other) => short(other),
    }
}

/// What is worth a sentence of its own, with a sign.
pub(super) fn sentence(activity: &Activity, name: &str) -> Option<((Tint, char), String)> {
    let field = |field: &str| activity.detail.get(field);
    let text = |name: &str| said(field(name));
    let failure = |part: &str| field("failure").and_then(|failure| failure[part].as_str()).unwrap_or_default();
    let failed = !failure("kind").is_empty();
    Some(match activity.kind.as_str() {
        "run_recovered" => ((Tint::Bad, '✕'), "the process that drove it died; it goes on in another".to_owned()),
        "run_resumed" => ((Tint::Good, '↻'), "taken up again by hand".to_owned()),
        "run_restored" => ((Tint::Doubt, '↻'), "restored from a backup of its store".to_owned()),
        "run_forked" => ((Tint::Dim, '⑂'), format!("forked from run {} at {}", text("from"), text("cut"))),
        "run_continued" => {
            ((Tint::Dim, '↻'), format!("continues as generation {}, with a fresh journal", text("generation")))
        }
        "run_cancelled" => ((Tint::Bad, '✗'), format!("cancelled by {}: {}", text("by"), text("reason"))),
        "run_held" => ((Tint::Bad, '‖'), format!("held: {}", text("sentence"))),
        "keys_revoked" => ((Tint::Dim, '·'), format!("its reply keys are void: {}", text("reason"))),
        "run_finished" if text("ending") == "ok" => return None,
        "run_finished" => {
            let how = match text("ending").as_str() {
                "cancelled" => "ended as cancelled",
                "lost" => "was lost with its owner",
                _ => "failed",
            };
            let why = if failed { format!(": {}", failure("message")) } else { String::new() };
            ((Tint::Bad, '✗'), format!("the run {how}{why}"))
        }
        "attempt_failed" => {
            ((Tint::Bad, '✗'), format!("{name}: attempt {} failed: {}", text("attempt"), failure("message")))
        }
        "call_finished" | "operation_finished" if failed => {
            ((Tint::Bad, '✗'), format!("{name}: {}: {}", failure("kind"), failure("message")))
        }
        "in_doubt" => ((Tint::Doubt, '?'), format!("{name} is in doubt: {}", cause(&text("cause"), &text("said")))),
        "settled" => {
            let (by, reason) = (text("by"), text("reason"));
            ((Tint::Good, '✓'), format!("{name}: the doubt was settled by {}: {reason}", settler(&by)))
        }
        "parked" => ((Tint::Park, '…'), parked(field("on")?, name)?),
        "granted" => ((Tint::Good, '✓'), format!("{name}: approved by {}: {}", text("by"), text("reason"))),
        _ => return None,
    })
}

/// A field as text. One with a name in it, such as `{"person": "ada"}`, is that name.
fn said(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => said(fields.values().next()),
        Some(other) => other.to_string(),
    }
}

/// Why an attempt is in doubt, with what it said itself.
pub(crate) fn cause(cause: &str, said: &str) -> String {
    let cause = match cause {
        "worker_lost" => "the process died in the middle of it",
        "timed_out" => "it ran out of time",
        "cancelled" => "it was cancelled in the middle",
        "restored" => "the store was restored from a backup, and it may have happened after that",
        "unclear" => "it could not tell itself",
        other => other,
    };
    if said.is_empty() { cause.to_owned() } else { format!("{cause}: {said}") }
}

fn settler(by: &str) -> &str {
    match by {
        "tool" => "the tool itself",
        "reply" => "whoever had its reply key",
        by => by,
    }
}

fn parked(on: &Value, name: &str) -> Option<String> {
    let text = |field: &str| on[field].as_str().unwrap_or_default();
    match text("kind") {
        "approval" => Some(format!("{name} waits for approval: {}", text("why"))),
        "connection" => Some(format!("{name} waits for a connection to {}", text("provider"))),
        "input" => Some(format!("an answer is waited for: {}", text("name"))),
        _ => None,
    }
}
