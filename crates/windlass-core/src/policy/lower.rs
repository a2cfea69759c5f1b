//! Facts as the CEL library sees them.

use std::sync::Arc;

use cel_core::{MapKey, Value as Cel, ValueMap};
use serde_json::Value;

use super::facts::{Facts, PastCall};
use super::meter::text_nodes;
use crate::tool::{Effect, ToolSpec};

/// A value and about how much there is of it.
pub(crate) struct Lowered {
    pub(crate) value: Cel,
    pub(crate) nodes: u64,
    /// How deep it is nested.
    pub(crate) depth: usize,
}

/// The variable of this name.
pub(crate) fn lower(name: &str, facts: &Facts<'_>) -> Result<Lowered, String> {
    match name {
        "args" => Ok(json(facts.args)),
        "tool" => Ok(facts.tool.map_or_else(null, tool)),
        "caller" => Ok(facts.caller.map_or_else(null, text)),
        "cause" => Ok(facts.cause.map_or_else(null, text)),
        "session" => {
            let id = facts.session.id.map_or_else(null, text);
            Ok(map([("id", id), ("attended", truth(facts.session.attended))]))
        }
        _ => {
            let history = facts.history.ok_or("`history` is not known here, or too long")?;
            Ok(list(history.iter().map(past)))
        }
    }
}

fn tool(spec: &ToolSpec) -> Lowered {
    let effect = match spec.effect {
        Effect::Readonly => "readonly",
        Effect::Idempotent => "idempotent",
        Effect::Once => "once",
    };
    map([
        ("name", text(&spec.name)),
        ("id", text(spec.id.as_str())),
        ("effect", text(effect)),
        ("destructive", truth(spec.hints.destructive)),
        ("open_world", truth(spec.hints.open_world)),
        ("tags", list(spec.about.tags.iter().map(|tag| text(tag)))),
    ])
}

fn past(call: &PastCall) -> Lowered {
    let tool = Lowered { value: Cel::String(call.tool.clone()), nodes: text_nodes(call.tool.len()), depth: 1 };
    map([("tool", tool), ("args", json(&call.args)), ("ok", truth(call.ok))])
}

fn json(value: &Value) -> Lowered {
    match value {
        Value::Null => null(),
        Value::Bool(value) => truth(*value),
        // A plain number in an expression is a signed one, and CEL does not calculate with mixed kinds.
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => one(Cel::Int(number)),
            (_, Some(number), _) => one(Cel::UInt(number)),
            (_, _, Some(number)) => one(Cel::Double(number)),
            _ => null(),
        },
        Value::String(value) => text(value),
        Value::Array(values) => list(values.iter().map(json)),
        Value::Object(values) => map(values.iter().map(|(key, value)| (key.as_str(), json(value)))),
    }
}

fn map<'v>(entries: impl IntoIterator<Item = (&'v str, Lowered)>) -> Lowered {
    let (mut nodes, mut depth) = (1, 1);
    let entries = entries.into_iter().map(|(key, entry)| {
        nodes += entry.nodes;
        depth = depth.max(1 + entry.depth);
        (MapKey::from(key), entry.value)
    });
    let value = Cel::Map(Arc::new(ValueMap::from_entries(entries)));
    Lowered { value, nodes, depth }
}

fn list(entries: impl Iterator<Item = Lowered>) -> Lowered {
    let (mut nodes, mut depth) = (1, 1);
    let entries = entries.map(|entry| {
        nodes += entry.nodes;
        depth = depth.max(1 + entry.depth);
        entry.value
    });
    let value = Cel::List(entries.collect());
    Lowered { value, nodes, depth }
}

fn text(value: &str) -> Lowered {
    Lowered { value: Cel::String(value.into()), nodes: text_nodes(value.len()), depth: 1 }
}

fn truth(value: bool) -> Lowered {
    one(Cel::Bool(value))
}

fn null() -> Lowered {
    one(Cel::Null)
}

fn one(value: Cel) -> Lowered {
    Lowered { value, nodes: 1, depth: 1 }
}
