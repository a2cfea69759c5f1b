//! The texts of the timeline.

use serde_json::Value;
use windlass_server::wire::Activity;

use crate::style::{Tint, counted};

/// Whether an operation of this kind only waits.
pub(super) fn parks(operation: &str) -> bool {
    matches!(operation, "wait" | "sleep" | "first" | "answer" | "receive" | "join")
}

/// The label of an operation that is not a call.
pub(super) fn label(operation: &str, name: &str) -> String {
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

/// Whether a line for people begins with the name of the tool, as one without a template does. Name and arguments are
/// shown anyway.
pub(super) fn is_made_of(line: &str, tool: &str) -> bool {
    let title = tool.replace(['_', '-', '.'], " ").to_lowercase();
    let rest = line.to_lowercase();
    rest.strip_prefix(&title).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// Arguments in short form: `city=Oslo cents=12000`.
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

/// The note for an activity that deserves one, with its sign.
pub(super) fn sentence(activity: &Activity, name: &str) -> Option<((Tint, char), String)> {
    let field = |field: &str| activity.detail.get(field);
    let text = |name: &str| field_text(field(name));
    let failure = |part: &str| field("failure").and_then(|failure| failure[part].as_str()).unwrap_or_default();
    let failed = !failure("kind").is_empty();
    Some(match activity.kind.as_str() {
        "run_recovered" => {
            ((Tint::Bad, '✕'), "the process that drove the run died; another process drives it now".to_owned())
        }
        "run_resumed" => ((Tint::Good, '↻'), "resumed by hand".to_owned()),
        "run_restored" => ((Tint::Doubt, '↻'), "restored from a backup of its store".to_owned()),
        "run_forked" => ((Tint::Dim, '⑂'), format!("forked from run {} at {}", text("from"), text("cut"))),
        "run_continued" => {
            ((Tint::Dim, '↻'), format!("continues as generation {}, with a new journal", text("generation")))
        }
        "run_cancelled" => ((Tint::Bad, '✗'), format!("cancelled by {}: {}", text("by"), text("reason"))),
        "run_held" => ((Tint::Bad, '‖'), format!("held: {}", text("sentence"))),
        "keys_revoked" => ((Tint::Dim, '·'), format!("its reply keys are revoked: {}", text("reason"))),
        "run_finished" if text("ending") == "ok" => return None,
        "run_finished" => {
            let how = match text("ending").as_str() {
                "cancelled" => "was cancelled",
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
            ((Tint::Good, '✓'), format!("{name}: doubt settled by {}: {reason}", settler(&by)))
        }
        "parked" => ((Tint::Park, '…'), parked(field("on")?, name)?),
        "granted" => ((Tint::Good, '✓'), format!("{name}: approved by {}: {}", text("by"), text("reason"))),
        _ => return None,
    })
}

/// A field as text. An object such as `{"person": "ada"}` becomes its first value.
fn field_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => field_text(fields.values().next()),
        Some(other) => other.to_string(),
    }
}

/// Why an attempt is in doubt, with the attempt's own message.
pub(crate) fn cause(cause: &str, message: &str) -> String {
    let cause = match cause {
        "worker_lost" => "the process died during the attempt",
        "shut_down" => "a shutdown interrupted the attempt",
        "timed_out" => "the attempt timed out",
        "cancelled" => "the attempt was cancelled while it ran",
        "restored" => "the store was restored from a backup that may be older than the attempt",
        "unclear" => "the tool could not determine whether it happened",
        other => other,
    };
    if message.is_empty() { cause.to_owned() } else { format!("{cause}: {message}") }
}

fn settler(by: &str) -> &str {
    match by {
        "tool" => "the tool itself",
        "reply" => "a reply with its key",
        by => by,
    }
}

fn parked(on: &Value, name: &str) -> Option<String> {
    let text = |field: &str| on[field].as_str().unwrap_or_default();
    match text("kind") {
        "approval" => Some(format!("{name} waits for approval: {}", text("why"))),
        "connection" => Some(format!("{name} waits for a connection to {}", text("provider"))),
        "input" => Some(format!("{name} waits for an answer: {}", text("name"))),
        _ => None,
    }
}
