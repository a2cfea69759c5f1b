//! Finds the secrets in a call's arguments: the values that the schema marks as secret, at any depth.

use serde_json::Value;

use super::Output;
use crate::limits::VALUE_DEPTH;
use crate::run::secrets::Places;

/// The text shown instead of a secret.
pub(crate) const HIDDEN: &str = "•••";

/// Keywords with lists of schemas for the same value.
const COMBINATORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Keywords with a schema that applies to the same value under a condition.
const CONDITIONALS: [&str; 3] = ["if", "then", "else"];

/// Keywords with a schema for every item of a list.
const EVERY_ITEM: [&str; 3] = ["items", "unevaluatedItems", "contains"];

/// Finds secrets by the schema they belong to.
pub(crate) struct Secrets<'s> {
    /// The whole schema, which local references are resolved in.
    pub(crate) root: &'s Value,
}

impl<'s> Secrets<'s> {
    /// The locations of the secrets in a value.
    pub(crate) fn find(&self, value: &Value, schemas: &[&'s Value]) -> Places {
        let mut found = Vec::new();
        self.look(value, schemas, &mut String::new(), &mut found);
        Places::new(found)
    }

    /// Whether the schemas for the location of a JSON pointer mark that location, or anything below it, as secret. It
    /// does not look at values.
    pub(crate) fn may_mark_at(&self, pointer: &str) -> bool {
        let mut all = Vec::new();
        self.collect(self.root, &mut all, VALUE_DEPTH);
        for step in pointer.split('/').skip(1) {
            let key = step.replace("~1", "/").replace("~0", "~");
            let below: Vec<&Value> = all
                .iter()
                .flat_map(|schema| property_schemas(schema, &key).into_iter().chain(item_schemas(schema)))
                .collect();
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
                    let below: Vec<&Value> = all.iter().flat_map(|schema| property_schemas(schema, key)).collect();
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

    /// Collects every schema that applies to the same value. Circular references end at the depth limit.
    fn collect(&self, schema: &'s Value, all: &mut Vec<&'s Value>, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if all.iter().any(|seen| std::ptr::eq(*seen, schema)) {
            return;
        }
        all.push(schema);
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| self.root.pointer(pointer)) {
            self.collect(target, all, depth);
        }
        let lists = COMBINATORS.iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
        let single = CONDITIONALS.iter().filter_map(|key| schema.get(key));
        let by_property =
            schema.get("dependentSchemas").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
        for further in lists.chain(single).chain(by_property) {
            self.collect(further, all, depth);
        }
    }
}

impl super::Tool {
    /// Arguments with their secrets replaced, for display. `None` if the schema could not be loaded: then no argument
    /// may be shown.
    pub fn without_secrets(&self, args: &Value) -> Option<Value> {
        let mut clean = args.clone();
        self.contract().ok()?.secret_places(args).hide(&mut clean);
        Some(clean)
    }

    /// The locations of secrets in arguments. All arguments count as secret if the schema could not be loaded.
    pub(crate) fn secret_places(&self, args: &Value) -> Places {
        self.contract().map_or_else(|_| Places::whole(args), |contract| contract.secret_places(args))
    }

    /// Like [`secret_places`](Self::secret_places), but does not load a schema that has not been needed before.
    pub(crate) fn secret_places_if_compiled(&self, args: &Value) -> Places {
        self.contract.if_compiled().map_or_else(|| Places::whole(args), |contract| contract.secret_places(args))
    }

    /// Marks the secrets in the value of an output of this tool. If its schemas cannot be loaded, all of it counts as
    /// one.
    pub(crate) fn mark_secrets(&self, output: &mut Output) {
        let value = &output.value;
        let places = self.contract().map_or_else(|_| Places::whole(value), |contract| contract.output_secrets(value));
        if !places.is_empty() {
            output.secrets = places;
        }
    }

    /// Whether its arguments may contain secrets.
    pub(crate) fn takes_secrets(&self) -> bool {
        self.contract().map_or(true, super::Contract::takes_secrets)
    }
}

/// The schemas that apply to the property `key`.
pub(crate) fn property_schemas<'s>(schema: &'s Value, key: &str) -> Vec<&'s Value> {
    match schema.get("properties").and_then(|properties| properties.get(key)) {
        Some(own) => vec![own],
        // Patterns are not matched against the name: hiding one value too many is better than one too few.
        None => {
            let patterns =
                schema.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
            let rest = ["additionalProperties", "unevaluatedProperties"].into_iter().filter_map(|key| schema.get(key));
            patterns.chain(rest).collect()
        }
    }
}

/// The schemas that apply to any item of a list.
fn item_schemas(schema: &Value) -> impl Iterator<Item = &Value> {
    let every = EVERY_ITEM.iter().filter_map(|key| schema.get(key));
    every.chain(schema.get("prefixItems").and_then(Value::as_array).into_iter().flatten())
}

/// Whether a schema marks anything as secret.
pub(crate) fn marks_secrets(schema: &Value) -> bool {
    any(schema, &is_secret)
}

/// Like [`marks_secrets`], for a part of a schema. References are not followed; each counts as a mark.
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
        let mut clean = value;
        Secrets { root: &schema }.find(&clean, &[&schema]).hide(&mut clean);
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
    fn e12_circular_schemas_end() {
        let schema = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
        check(schema, json!({"a": 1}), json!({"a": 1}));
    }
}
