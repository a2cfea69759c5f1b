//! Journal records and events of the kernel as JSON, with times and durations in the format of the API.

use serde::Serialize;
use serde_json::{Map, Value};
use windlass::Timestamp;

use crate::wire::Time;

/// Fields of the kernel's values that contain a time.
const TIMES: [&str; 8] = ["at", "since", "until", "retry_at", "over_by", "wake", "created", "ended"];

/// Fields that contain values of tools and people, which are not converted.
const FOREIGN: [&str; 10] = ["args", "value", "input", "result", "told", "payload", "content", "raw", "shown", "data"];

/// A value of the kernel as a JSON object; empty if it is not one.
pub(crate) fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value).map(convert) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// The value of the tag of an internally tagged enum, and its other fields.
pub(crate) fn tagged(value: &impl Serialize, tag: &str) -> (String, Map<String, Value>) {
    let mut rest = object(value);
    (text(rest.remove(tag)), rest)
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::String(text)) => text,
        _ => "unknown".to_owned(),
    }
}

/// Converts times from microseconds to RFC 3339, and durations from nanoseconds to milliseconds.
fn convert(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(convert).collect()),
        Value::Object(map) => Value::Object(map.into_iter().map(|(key, value)| field(key, value)).collect()),
        other => other,
    }
}

fn field(key: String, value: Value) -> (String, Value) {
    if FOREIGN.contains(&key.as_str()) {
        return (key, value);
    }
    let value = match value.as_i64() {
        Some(micros) if TIMES.contains(&key.as_str()) => {
            Value::String(Time::from(Timestamp::from_micros(micros)).to_string())
        }
        _ if key == "times" => durations(value),
        _ => convert(value),
    };
    (key, value)
}

fn durations(value: Value) -> Value {
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
    fn l23_times_of_the_kernel_are_converted_and_values_of_tools_are_not() {
        let kernel = json!({"until": 1_790_000_000_000_000i64, "args": {"until": 5}, "on": {"since": 0, "run": "r"},
                            "times": {"queued": 1_500_000, "running": 0, "total": 2_000_000}, "attempt": 1});
        let shown = json!({"until": "2026-09-21T14:13:20Z", "args": {"until": 5},
                           "on": {"since": "1970-01-01T00:00:00Z", "run": "r"},
                           "times": {"queued_ms": 1.5, "running_ms": 0.0, "total_ms": 2.0}, "attempt": 1});
        assert_eq!(convert(kernel), shown);
    }
}
