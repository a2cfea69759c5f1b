//! What of a call's arguments must not be shown: whatever the schema marks as secret, at any depth.

use serde_json::Value;

use crate::limits::VALUE_DEPTH;

/// What stands for a value that must not be shown.
const HIDDEN: &str = "•••";

/// Where schemas keep further schemas for the same value.
const ALSO: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// The same for schemas that hold for some values only.
const SOMETIMES: [&str; 3] = ["if", "then", "else"];

/// Finds secrets by the schema they belong to.
pub(crate) struct Secrets<'s> {
    /// Where local references lead.
    pub(crate) root: &'s Value,
}

impl<'s> Secrets<'s> {
    /// The value without its secrets; `None` if it has none.
    pub(crate) fn redact(&self, value: &Value, schemas: &[&'s Value]) -> Option<Value> {
        let mut all = Vec::new();
        schemas.iter().for_each(|schema| self.collect(schema, &mut all, VALUE_DEPTH));
        if all.iter().any(|schema| is_secret(schema)) {
            return Some(Value::String(HIDDEN.to_owned()));
        }
        match value {
            Value::Object(map) => {
                let mut changed = None;
                for (key, item) in map {
                    let below: Vec<&Value> = all.iter().flat_map(|schema| places(schema, key)).collect();
                    if let Some(clean) = self.redact(item, &below) {
                        changed.get_or_insert_with(|| map.clone()).insert(key.clone(), clean);
                    }
                }
                changed.map(Value::Object)
            }
            Value::Array(items) => {
                let every = ["items", "unevaluatedItems", "contains"];
                let below = all.iter().flat_map(|schema| every.iter().filter_map(|key| schema.get(key)));
                let below: Vec<&Value> = below.collect();
                let mut changed = None;
                for (index, item) in items.iter().enumerate() {
                    let mut below = below.clone();
                    below.extend(all.iter().filter_map(|schema| schema.get("prefixItems")?.get(index)));
                    if let Some(clean) = self.redact(item, &below) {
                        changed.get_or_insert_with(|| items.clone())[index] = clean;
                    }
                }
                changed.map(Value::Array)
            }
            _ => None,
        }
    }

    /// Every schema that says something about the same value. A circle of references ends at the depth limit.
    fn collect(&self, schema: &'s Value, all: &mut Vec<&'s Value>, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if all.iter().any(|known| std::ptr::eq(*known, schema)) {
            return;
        }
        all.push(schema);
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| self.root.pointer(pointer)) {
            self.collect(target, all, depth);
        }
        let lists = ALSO.iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
        let single = SOMETIMES.iter().filter_map(|key| schema.get(key));
        let by_property =
            schema.get("dependentSchemas").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
        for further in lists.chain(single).chain(by_property) {
            self.collect(further, all, depth);
        }
    }
}

impl super::Tool {
    /// Arguments as others may see them; nothing where the schema that knows the secrets cannot be had.
    pub fn without_secrets(&self, args: &Value) -> Option<Value> {
        let root = self.contract().ok()?.input();
        Some(Secrets { root }.redact(args, &[root]).unwrap_or_else(|| args.clone()))
    }
}

/// What a schema says about the property `key`.
pub(crate) fn places<'s>(schema: &'s Value, key: &str) -> Vec<&'s Value> {
    match schema.get("properties").and_then(|properties| properties.get(key)) {
        Some(own) => vec![own],
        // Which pattern a name fits is not looked at: rather one value too many is hidden than one too few.
        None => {
            let patterns =
                schema.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
            let rest = ["additionalProperties", "unevaluatedProperties"].into_iter().filter_map(|key| schema.get(key));
            patterns.chain(rest).collect()
        }
    }
}

fn is_secret(schema: &Value) -> bool {
    schema["writeOnly"] == true || schema["x-secret"] == true || schema["format"] == "password"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, value: Value, expected: Value) {
        let clean = Secrets { root: &schema }.redact(&value, &[&schema]).unwrap_or(value);
        assert_eq!(clean, expected, "{schema}");
    }

    #[test]
    fn e12_secrets_are_found_at_any_depth_and_through_references() {
        for mark in [json!({"writeOnly": true}), json!({"x-secret": true}), json!({"format": "password"})] {
            let clean = json!({"a": "•••", "b": 2});
            check(json!({"properties": {"a": mark}}), json!({"a": 1, "b": 2}), clean.clone());
            let nested = json!({"properties": {"in": {"anyOf": [{"properties": {"a": mark}}, {"type": "null"}]}}});
            check(nested, json!({"in": {"a": {"x": 1}, "b": 2}}), json!({"in": clean}));
            let listed = json!({"properties": {"l": {"items": mark}}});
            check(listed, json!({"l": [1, 2]}), json!({"l": ["•••", "•••"]}));
            let pattern = json!({"patternProperties": {"^a": mark}, "properties": {"b": {}}});
            check(pattern, json!({"a": 1, "b": 2}), clean.clone());
            let sometimes = json!({"if": {"required": ["b"]}, "then": {"properties": {"a": mark}}});
            check(sometimes, json!({"a": 1, "b": 2}), clean.clone());
            let map = json!({"additionalProperties": mark, "properties": {"b": {}}});
            check(map, json!({"a": 1, "b": 2}), clean.clone());
            let by_reference = json!({"$defs": {"s": {"$ref": "#/$defs/t"}, "t": mark},
                                      "properties": {"a": {"$ref": "#/$defs/s"}}});
            check(by_reference, json!({"a": 1, "b": 2}), clean);
        }
    }

    #[test]
    fn e12_schemas_that_go_round_in_circles_end() {
        let schema = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
        check(schema, json!({"a": 1}), json!({"a": 1}));
    }
}
