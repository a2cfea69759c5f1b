//! What of a call's arguments must not be shown: whatever the schema marks as secret, at any depth.

use serde_json::Value;

use crate::limits::VALUE_DEPTH;
use crate::run::secrets::Places;

/// What stands for a value that must not be shown.
pub(crate) const HIDDEN: &str = "•••";

/// Where schemas keep further schemas for the same value.
const ALSO: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// The same for schemas that hold for some values only.
const SOMETIMES: [&str; 3] = ["if", "then", "else"];

/// Where they keep schemas for every item of a list.
const EVERY_ITEM: [&str; 3] = ["items", "unevaluatedItems", "contains"];

/// Finds secrets by the schema they belong to.
pub(crate) struct Secrets<'s> {
    /// Where local references lead.
    pub(crate) root: &'s Value,
}

impl<'s> Secrets<'s> {
    /// The value without its secrets; `None` if it has none.
    pub(crate) fn redact(&self, value: &Value, schemas: &[&'s Value]) -> Option<Value> {
        let places = self.find(value, schemas);
        if places.is_empty() {
            return None;
        }
        let mut clean = value.clone();
        places.hide(&mut clean);
        Some(clean)
    }

    /// Where the secrets of a value stand.
    pub(crate) fn find(&self, value: &Value, schemas: &[&'s Value]) -> Places {
        let mut found = Vec::new();
        self.look(value, schemas, &mut String::new(), &mut found);
        Places::new(found)
    }

    /// Whether the schemas of the place a pointer names mark anything in it, or at it, as secret; whatever stands there.
    pub(crate) fn concern(&self, pointer: &str) -> bool {
        let mut all = Vec::new();
        self.collect(self.root, &mut all, VALUE_DEPTH);
        for step in pointer.split('/').skip(1) {
            let key = step.replace("~1", "/").replace("~0", "~");
            let below: Vec<&Value> =
                all.iter().flat_map(|schema| places(schema, &key).into_iter().chain(items(schema))).collect();
            all.clear();
            below.iter().for_each(|schema| self.collect(schema, &mut all, VALUE_DEPTH));
        }
        all.iter().any(|schema| may_mark(schema))
    }

    fn look(&self, value: &Value, schemas: &[&'s Value], at: &mut String, found: &mut Vec<String>) {
        let mut all = Vec::new();
        schemas.iter().for_each(|schema| self.collect(schema, &mut all, VALUE_DEPTH));
        if all.iter().any(|schema| is_secret(schema)) {
            return found.push(at.clone());
        }
        let length = at.len();
        match value {
            Value::Object(map) => {
                for (key, item) in map {
                    let below: Vec<&Value> = all.iter().flat_map(|schema| places(schema, key)).collect();
                    at.push('/');
                    at.push_str(&key.replace('~', "~0").replace('/', "~1"));
                    self.look(item, &below, at, found);
                    at.truncate(length);
                }
            }
            Value::Array(items) => {
                let below = all.iter().flat_map(|schema| EVERY_ITEM.iter().filter_map(|key| schema.get(key)));
                let below: Vec<&Value> = below.collect();
                for (index, item) in items.iter().enumerate() {
                    let mut below = below.clone();
                    below.extend(all.iter().filter_map(|schema| schema.get("prefixItems")?.get(index)));
                    at.push('/');
                    at.push_str(&index.to_string());
                    self.look(item, &below, at, found);
                    at.truncate(length);
                }
            }
            _ => {}
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
        let mut clean = args.clone();
        self.contract().ok()?.secret_places(args).hide(&mut clean);
        Some(clean)
    }

    /// Where secrets stand in arguments; all of them are one where the schema that would say so cannot be had.
    pub(crate) fn secret_places(&self, args: &Value) -> Places {
        self.contract().map_or_else(|_| Places::whole(args), |contract| contract.secret_places(args))
    }

    /// The same as far as the schema was needed before: nobody is asked for it.
    pub(crate) fn known_secret_places(&self, args: &Value) -> Places {
        self.contract.known().map_or_else(|| Places::whole(args), |contract| contract.secret_places(args))
    }

    /// Whether its arguments may have secrets.
    pub(crate) fn takes_secrets(&self) -> bool {
        self.contract().map_or(true, super::Contract::takes_secrets)
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

/// What a schema says about any item of a list.
fn items(schema: &Value) -> impl Iterator<Item = &Value> {
    let every = EVERY_ITEM.iter().filter_map(|key| schema.get(key));
    every.chain(schema.get("prefixItems").and_then(Value::as_array).into_iter().flatten())
}

/// Whether anything in a schema is marked as secret.
pub(crate) fn are_in(schema: &Value) -> bool {
    any(schema, &is_secret)
}

/// The same for a part of a schema: where a reference leads is not looked at, but taken for a mark.
fn may_mark(schema: &Value) -> bool {
    any(schema, &|part| is_secret(part) || part.get("$ref").is_some())
}

fn any(schema: &Value, what: &impl Fn(&Value) -> bool) -> bool {
    match schema {
        Value::Object(map) => what(schema) || map.values().any(|part| any(part, what)),
        Value::Array(list) => list.iter().any(|part| any(part, what)),
        _ => false,
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
