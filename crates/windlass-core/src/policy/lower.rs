//! Facts as the CEL library sees them. Texts are borrowed.

use std::collections::HashMap;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt};
use cel::common::value::Val;
use serde_json::Value;

use super::facts::{Facts, PastCall};
use crate::tool::{Effect, ToolSpec};

/// Bytes of a text that count as one value.
const TEXT_NODE: usize = 64;

/// A value and about how much there is of it.
pub(crate) struct Lowered<'v> {
    pub(crate) value: Box<dyn Val + 'v>,
    pub(crate) nodes: u64,
    /// How deep it is nested.
    pub(crate) depth: usize,
}

/// The variable of this name.
pub(crate) fn lower<'v>(name: &str, facts: &Facts<'v>) -> Result<Lowered<'v>, String> {
    match name {
        "args" => Ok(json(facts.args)),
        "tool" => Ok(facts.tool.map_or_else(null, tool)),
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

fn tool(spec: &ToolSpec) -> Lowered<'_> {
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

fn past(call: &PastCall) -> Lowered<'_> {
    map([("tool", text(&call.tool)), ("args", json(&call.args)), ("ok", truth(call.ok))])
}

fn json(value: &Value) -> Lowered<'_> {
    match value {
        Value::Null => null(),
        Value::Bool(value) => truth(*value),
        // A plain number in an expression is a signed one, and CEL does not calculate with mixed kinds.
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => one(CelInt::from(number)),
            (_, Some(number), _) => one(CelUInt::from(number)),
            (_, _, Some(number)) => one(CelDouble::from(number)),
            _ => null(),
        },
        Value::String(value) => text(value),
        Value::Array(values) => list(values.iter().map(json)),
        Value::Object(values) => map(values.iter().map(|(key, value)| (key.as_str(), json(value)))),
    }
}

fn map<'v>(entries: impl IntoIterator<Item = (&'v str, Lowered<'v>)>) -> Lowered<'v> {
    let (mut nodes, mut depth) = (1, 1);
    let entries: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = entries
        .into_iter()
        .map(|(key, entry)| {
            nodes += entry.nodes;
            depth = depth.max(1 + entry.depth);
            (CelMapKey::String(CelString::from(key)), entry.value)
        })
        .collect();
    Lowered { value: Box::new(CelMap::from(entries)), nodes, depth }
}

fn list<'v>(entries: impl Iterator<Item = Lowered<'v>>) -> Lowered<'v> {
    let (mut nodes, mut depth) = (1, 1);
    let entries: Vec<Box<dyn Val + 'v>> = entries
        .map(|entry| {
            nodes += entry.nodes;
            depth = depth.max(1 + entry.depth);
            entry.value
        })
        .collect();
    Lowered { value: Box::new(CelList::from(entries)), nodes, depth }
}

fn text(value: &str) -> Lowered<'_> {
    Lowered { value: Box::new(CelString::from(value)), nodes: 1 + (value.len() / TEXT_NODE) as u64, depth: 1 }
}

fn truth<'v>(value: bool) -> Lowered<'v> {
    one(CelBool::from(value))
}

fn null<'v>() -> Lowered<'v> {
    one(CelNull)
}

fn one<'v>(value: impl Val + 'v) -> Lowered<'v> {
    Lowered { value: Box::new(value), nodes: 1, depth: 1 }
}
