//! Converts the schemas of a document to self-contained JSON Schema 2020-12: references are inlined, recursive ones
//! become definitions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Problem;
use super::document::{DocumentView, Node, escaped};

/// Deepest nesting of schemas.
const DEPTH: usize = 64;
/// With more schemas than this, references become definitions: inlined again and again they would exhaust the memory.
const INLINE_LIMIT: usize = 2_000;

/// The use of a schema. Properties that only the server sets are left out of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

/// Converts the schemas of one tool, which share their definitions.
pub(crate) struct Converter<'d> {
    document: &'d DocumentView,
    side: Side,
    inline: bool,
    /// Names by pointer, and definitions by name.
    names: BTreeMap<String, String>,
    definitions: BTreeMap<String, Value>,
    recursive: BTreeMap<String, bool>,
    count: usize,
}

const ONE: [&str; 12] = [
    "items",
    "additionalProperties",
    "additionalItems",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
const MANY: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const NAMED: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Keywords of documents rather than schemas, or without meaning once references are resolved.
const DROPPED: [&str; 12] = [
    "$ref",
    "$defs",
    "definitions",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$schema",
    "$comment",
    "discriminator",
    "xml",
    "externalDocs",
    "nullable",
];

/// Creates schemas, with references inlined if the result stays small.
pub(crate) fn convert<T>(
    document: &DocumentView,
    side: Side,
    make: impl Fn(&mut Converter<'_>) -> Result<T, Problem>,
) -> Result<(T, Map<String, Value>), Problem> {
    let mut converter = Converter::new(document, side, true);
    let mut made = make(&mut converter);
    if converter.count > INLINE_LIMIT {
        converter = Converter::new(document, side, false);
        made = make(&mut converter);
    }
    Ok((made?, converter.definitions.into_iter().collect()))
}

impl<'d> Converter<'d> {
    fn new(document: &'d DocumentView, side: Side, inline: bool) -> Self {
        let (names, definitions, recursive) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { document, side, inline, names, definitions, recursive, count: 0 }
    }

    /// A schema that is self-contained, except for the definitions.
    pub(crate) fn schema(&mut self, node: &Node<'_>) -> Result<Value, Problem> {
        self.convert(node, 0)
    }

    fn convert(&mut self, node: &Node<'_>, depth: usize) -> Result<Value, Problem> {
        self.count += 1;
        if depth > DEPTH {
            return Err(node.problem(format!("schemas are nested more than {DEPTH} levels deep")));
        }
        if self.inline && self.count > INLINE_LIMIT {
            // The conversion starts again with definitions, and this result is discarded.
            return Ok(Value::Bool(true));
        }
        let map = match node.value {
            Value::Bool(_) => return Ok(node.value.clone()),
            Value::Object(map) => map,
            _ => return Err(node.problem("a schema must be an object or a boolean")),
        };
        for keyword in ["$dynamicRef", "$recursiveRef"] {
            if map.contains_key(keyword) {
                return Err(node.problem(format!("`{keyword}` is not supported; use `$ref`")));
            }
        }
        let Some(reference) = map.get("$ref") else { return self.plain(node, map, depth) };
        let target = self.reference(reference, node, depth)?;
        let beside = self.plain(node, map, depth)?;
        Ok(match beside {
            // OpenAPI 3.0 ignores everything beside a reference.
            Value::Object(beside) if !self.document.is_old() && !beside.is_empty() => with_beside(target, beside),
            _ => target,
        })
    }

    fn reference(&mut self, reference: &Value, node: &Node<'_>, depth: usize) -> Result<Value, Problem> {
        let target = self.document.target(reference, &node.pointer)?;
        if self.is_recursive(&target.pointer) && self.leads_back(&target.pointer, directly) {
            return Err(target.problem("the schema refers directly to itself, so no value can be checked against it"));
        }
        if self.inline && !self.is_recursive(&target.pointer) {
            return self.convert(&target, depth + 1);
        }
        if let Some(name) = self.names.get(&target.pointer) {
            return Ok(json!({"$ref": format!("#/$defs/{name}")}));
        }
        let name = self.name(&target.pointer);
        self.names.insert(target.pointer.clone(), name.clone());
        // A definition starts at depth zero: it is not nested in what refers to it.
        let definition = self.convert(&target, 0)?;
        self.definitions.insert(name.clone(), definition);
        Ok(json!({"$ref": format!("#/$defs/{name}")}))
    }

    /// A unique name for a definition.
    fn name(&self, pointer: &str) -> String {
        let last = pointer.rsplit('/').next().unwrap_or_default();
        let base: String = last.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
        let taken: BTreeSet<&String> = self.names.values().collect();
        let mut name = base.clone();
        let mut n = 2;
        while taken.contains(&name) {
            name = format!("{base}_{n}");
            n += 1;
        }
        name
    }

    /// Whether a schema refers to itself, directly or through others.
    fn is_recursive(&mut self, pointer: &str) -> bool {
        if let Some(is_recursive) = self.recursive.get(pointer) {
            return *is_recursive;
        }
        let found = self.leads_back(pointer, anywhere);
        self.recursive.insert(pointer.to_owned(), found);
        found
    }

    /// Whether the references that `collect` finds lead from a schema back to itself.
    fn leads_back(&self, pointer: &str, collect: fn(&Value, &mut Vec<Value>)) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = vec![pointer.to_owned()];
        let mut found = false;
        while let Some(from) = next.pop() {
            let mut references = Vec::new();
            if let Some(node) = self.document.at(&from) {
                collect(node.value, &mut references);
            }
            for reference in references {
                // A missing target is reported where the reference is followed.
                let Ok(target) = self.document.target(&reference, &from) else { continue };
                found |= target.pointer == pointer;
                if seen.insert(target.pointer.clone()) {
                    next.push(target.pointer);
                }
            }
        }
        found
    }

    fn plain(&mut self, node: &Node<'_>, map: &Map<String, Value>, depth: usize) -> Result<Value, Problem> {
        let mut out = Map::new();
        for (key, value) in map {
            let below = Node { value, pointer: format!("{}/{}", node.pointer, escaped(key)) };
            let key = key.as_str();
            if DROPPED.contains(&key) || (key.starts_with("x-") && key != "x-secret") {
                continue;
            }
            let converted = if ONE.contains(&key) {
                self.convert(&below, depth + 1)?
            } else if MANY.contains(&key) {
                self.list(&below, depth)?
            } else if NAMED.contains(&key) {
                self.named(&below, depth)?
            } else if key == "example" {
                out.entry("examples").or_insert_with(|| json!([value]));
                continue;
            } else {
                value.clone()
            };
            out.insert(key.to_owned(), converted);
        }
        if self.side == Side::Request {
            without_read_only(&mut out);
        }
        Ok(if self.document.is_old() { modern(out, map) } else { Value::Object(out) })
    }

    fn list(&mut self, node: &Node<'_>, depth: usize) -> Result<Value, Problem> {
        if !node.value.is_array() {
            return Err(node.problem("must be a list of schemas"));
        }
        let items = node.children().into_iter().map(|(_, item)| self.convert(&item, depth + 1));
        Ok(Value::Array(items.collect::<Result<_, _>>()?))
    }

    fn named(&mut self, node: &Node<'_>, depth: usize) -> Result<Value, Problem> {
        if !node.value.is_object() {
            return Err(node.problem("must be an object of schemas"));
        }
        let mut out = Map::new();
        for (name, item) in node.children() {
            out.insert(name, self.convert(&item, depth + 1)?);
        }
        Ok(Value::Object(out))
    }
}

/// References to schemas of the same value, not of a part of it.
fn directly(value: &Value, references: &mut Vec<Value>) {
    let Value::Object(map) = value else { return };
    references.extend(map.get("$ref").filter(|reference| reference.is_string()).cloned());
    for key in ["not", "if", "then", "else"] {
        map.get(key).into_iter().for_each(|schema| directly(schema, references));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        map.get(key).and_then(Value::as_array).into_iter().flatten().for_each(|schema| directly(schema, references));
    }
}

/// Every reference in a value.
pub(crate) fn anywhere(value: &Value, references: &mut Vec<Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| anywhere(item, references)),
        Value::Object(map) => {
            references.extend(map.get("$ref").filter(|reference| reference.is_string()).cloned());
            map.values().for_each(|item| anywhere(item, references));
        }
        _ => {}
    }
}

/// Combines a schema with the keywords beside the reference to it.
fn with_beside(target: Value, beside: Map<String, Value>) -> Value {
    let remarks = ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"];
    let only_remarks = beside.keys().all(|key| remarks.contains(&key.as_str()));
    match target {
        Value::Object(mut target) if only_remarks => {
            target.extend(beside);
            Value::Object(target)
        }
        target => {
            let mut whole = beside;
            let mut all = vec![target];
            all.extend(whole.remove("allOf").and_then(|all| all.as_array().cloned()).unwrap_or_default());
            whole.insert("allOf".to_owned(), all.into());
            Value::Object(whole)
        }
    }
}

/// Removes properties that only the server sets.
fn without_read_only(schema: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    let gone: Vec<String> =
        properties.iter().filter(|(_, property)| property["readOnly"] == true).map(|(name, _)| name.clone()).collect();
    gone.iter().for_each(|name| _ = properties.remove(name));
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| !gone.iter().any(|gone| name == gone));
    }
}

/// Converts a schema of 3.0 to 2020-12.
fn modern(mut schema: Map<String, Value>, original: &Map<String, Value>) -> Value {
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match schema.get(exclusive) {
            Some(Value::Bool(true)) => match schema.remove(bound) {
                Some(value) => _ = schema.insert(exclusive.to_owned(), value),
                None => _ = schema.remove(exclusive),
            },
            Some(Value::Bool(false)) => _ = schema.remove(exclusive),
            _ => {}
        }
    }
    if original.get("nullable") != Some(&Value::Bool(true)) {
        return Value::Object(schema);
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    match schema.get("type") {
        Some(Value::String(kind)) => {
            let kinds = json!([kind, "null"]);
            schema.insert("type".to_owned(), kinds);
            Value::Object(schema)
        }
        _ if MANY.iter().any(|key| schema.contains_key(*key)) => json!({"anyOf": [schema, {"type": "null"}]}),
        _ => Value::Object(schema),
    }
}
