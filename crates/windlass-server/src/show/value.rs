//! Values of the kernel as JSON, with instants and durations as the API writes them.

use serde::Serialize;
use serde_json::{Map, Value};
use windlass::Timestamp;

use crate::wire::Time;

/// Where the kernel's own values have instants. What tools and people say is below other names.
const INSTANTS: [&str; 8] = ["at", "since", "until", "retry_at", "over_by", "wake", "created", "ended"];

/// What is somebody else's, and shown as it is.
const FOREIGN: [&str; 9] = ["args", "value", "input", "result", "told", "payload", "content", "raw", "shown"];

/// A value of the kernel as an object; empty if it is none.
pub(crate) fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value).map(instants) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// A value of the kernel that says by a word which kind it is, and the rest of it.
pub(crate) fn tagged(value: &impl Serialize, tag: &str) -> (String, Map<String, Value>) {
    let mut rest = object(value);
    (word(rest.remove(tag)), rest)
}

/// A value of the kernel that is one word.
pub(crate) fn word(value: Option<Value>) -> String {
    match value {
        Some(Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}

/// Microseconds become RFC 3339, and the kernel's nanoseconds milliseconds.
fn instants(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(instants).collect()),
        Value::Object(map) => Value::Object(map.into_iter().map(|(key, value)| of(key, value)).collect()),
        other => other,
    }
}

fn of(key: String, value: Value) -> (String, Value) {
    if FOREIGN.contains(&key.as_str()) {
        return (key, value);
    }
    let value = match value.as_i64() {
        Some(micros) if INSTANTS.contains(&key.as_str()) => {
            Value::String(Time::from(Timestamp::from_micros(micros)).to_string())
        }
        _ if key == "times" => times(value),
        _ => instants(value),
    };
    (key, value)
}

fn times(value: Value) -> Value {
    let Value::Object(map) = value else { return value };
    let milliseconds = |(key, value): (String, Value)| match value.as_u64() {
        Some(nanos) => (format!("{key}_ms"), (nanos as f64 / 1e6).into()),
        None => (key, value),
    };
    Value::Object(map.into_iter().map(milliseconds).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn l23_the_kernels_instants_are_written_out_and_what_others_say_is_left_alone() {
        let kernel = json!({"until": 1_790_000_000_000_000i64, "args": {"until": 5}, "on": {"since": 0, "run": "r"},
                            "times": {"queued": 1_500_000, "running": 0, "total": 2_000_000}, "attempt": 1});
        let shown = json!({"until": "2026-09-21T14:13:20Z", "args": {"until": 5},
                           "on": {"since": "1970-01-01T00:00:00Z", "run": "r"},
                           "times": {"queued_ms": 1.5, "running_ms": 0.0, "total_ms": 2.0}, "attempt": 1});
        assert_eq!(instants(kernel), shown);
    }
}
