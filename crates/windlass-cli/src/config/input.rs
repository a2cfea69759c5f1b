//! The input and output of a tool, in short form or as a JSON Schema.

use serde_json::{Map, Value, json};
use windlass::tool::nearest;

use super::problem::Problem;
use super::tree::{Item, Node, Table, TableEntry};

const TYPES: [&str; 8] = ["string", "secret", "integer", "number", "boolean", "object", "array", "any"];

/// A schema and its position in the file.
pub(crate) struct WrittenSchema<'n> {
    pub(crate) json: Value,
    pub(crate) node: &'n Node,
    /// Whether it is written in short form, so that a pointer into the schema does not match the file.
    pub(crate) short: bool,
}

impl WrittenSchema<'_> {
    /// The value in the file that a JSON pointer into the schema is about.
    pub(crate) fn nearest(&self, pointer: &str) -> &Node {
        if !self.short {
            return self.node.nearest(pointer);
        }
        // `/properties/NAME/…` refers to the value at NAME.
        self.node.nearest(pointer.strip_prefix("/properties").unwrap_or_default())
    }
}

/// Reads `input` or `output`. In short form each entry is an argument; a table with `type = "object"` or a key that starts
/// with `$` is a JSON Schema.
pub(crate) fn read<'n>(entry: &'n TableEntry, path: &str, problems: &mut Vec<Problem>) -> Option<WrittenSchema<'n>> {
    let Some(table) = entry.node.table() else {
        let problem = format!("`{path}` must be a table, but is {}", entry.node.item.kind());
        let help = "write { city = \"string\", days = \"integer?\" }, or a JSON Schema with type = \"object\"";
        problems.push(Problem::error("wrong_type", &entry.node.span, problem).help(help));
        return None;
    };
    let is_object = table.get("type").is_some_and(|entry| entry.node.text() == Some("object"));
    if is_object || table.0.iter().any(|entry| entry.key.starts_with('$')) {
        return Some(WrittenSchema { json: table.json(), node: &entry.node, short: false });
    }
    if let Some(properties) = table.get("properties").filter(|entry| entry.node.table().is_some()) {
        let problem = format!("`{path}` looks like a JSON Schema but has no type");
        problems.push(Problem::error("bad_schema", &properties.at, problem).help("add type = \"object\""));
        return None;
    }
    Some(WrittenSchema { json: in_short(table, path, problems), node: &entry.node, short: true })
}

fn in_short(table: &Table, path: &str, problems: &mut Vec<Problem>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for entry in &table.0 {
        match one(&entry.node) {
            Ok((schema, optional)) => {
                properties.insert(entry.key.clone(), schema);
                if !optional {
                    required.push(Value::String(entry.key.clone()));
                }
            }
            Err(mut problem) => {
                problem.message = format!("`{path}.{}`: {}", entry.key, problem.message);
                problems.push(problem);
            }
        }
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// The schema of one argument, and whether it is optional.
fn one(node: &Node) -> Result<(Value, bool), Problem> {
    match &node.item {
        Item::String(text) => parse_type(text).map_err(|(problem, near)| {
            let problem = Problem::error("bad_schema", &node.span, problem);
            let problem = problem
                .help(format!("the types are {}; append [] for a list, ? for an optional argument", TYPES.join(", ")));
            match near {
                Some(near) => problem.label(format!("did you mean \"{near}\"?")),
                None => problem,
            }
        }),
        Item::List(words) if !words.is_empty() => {
            Ok((json!({"enum": words.iter().map(Node::json).collect::<Vec<_>>()}), false))
        }
        Item::Table(schema) => Ok((schema.json(), schema.get("default").is_some())),
        other => {
            let problem = format!("{} is not a type", other.kind());
            let help = "write a type such as \"string\", a list of the allowed values, or a JSON Schema";
            Err(Problem::error("bad_schema", &node.span, problem).help(help))
        }
    }
}

/// Parses a type with its description: `integer?: how many days`.
fn parse_type(text: &str) -> Result<(Value, bool), (String, Option<&'static str>)> {
    let (kind, description) = match text.split_once(':') {
        Some((kind, description)) => (kind.trim(), Some(description.trim())),
        None => (text.trim(), None),
    };
    let (kind, optional) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
    let (kind, list) = kind.strip_suffix("[]").map_or((kind, false), |kind| (kind, true));
    let mut schema = match kind {
        "string" | "integer" | "number" | "boolean" | "object" | "array" => json!({"type": kind}),
        "secret" => json!({"type": "string", "writeOnly": true}),
        "any" => json!({}),
        other => return Err((format!("`{other}` is not a type"), nearest(other, TYPES))),
    };
    if list {
        schema = json!({"type": "array", "items": schema});
    }
    if let Some(description) = description.filter(|description| !description.is_empty()) {
        schema["description"] = json!(description);
    }
    Ok((schema, optional))
}

/// Whether a schema has an argument. A schema that is open or too complex to decide counts as having every argument.
pub(crate) fn has_argument(schema: &Value, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    let complex = ["$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if"];
    let Some(schema) = schema.as_object() else { return true };
    if complex.iter().any(|word| schema.contains_key(*word)) {
        return true;
    }
    match schema.get("properties").and_then(|properties| properties.get(first)) {
        Some(property) => rest.is_empty() || has_argument(property, rest),
        None => !schema.contains_key("properties") && schema.get("additionalProperties") != Some(&Value::Bool(false)),
    }
}

/// The names of a schema's arguments.
pub(crate) fn arguments(schema: &Value) -> Vec<&str> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flat_map(|properties| properties.keys().map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn schema(text: &str) -> (Value, Vec<String>) {
        let (table, _) = tree::parse(text);
        let mut problems = Vec::new();
        let written = read(&table.0[0], "input", &mut problems);
        let json = written.map_or(Value::Null, |written| written.json);
        (json, problems.into_iter().map(|problem| problem.message).collect())
    }

    #[test]
    fn the_short_form_becomes_a_schema() {
        let text = r#"input = { city = "string: Where", days = "integer?", tags = "string[]?", unit = ["c", "f"], pin = "secret",
            box = { type = "array", items = { type = "number" } }, n = { type = "integer", default = 3 }, x = "any" }"#;
        let (found, problems) = schema(text);
        assert_eq!(problems, [] as [String; 0]);
        let properties = json!({
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "unit": {"enum": ["c", "f"]},
            "pin": {"type": "string", "writeOnly": true},
            "box": {"type": "array", "items": {"type": "number"}},
            "n": {"type": "integer", "default": 3},
            "x": {},
        });
        assert_eq!(found["properties"], properties);
        assert_eq!(found["required"], json!(["city", "unit", "pin", "box", "x"]));
        assert_eq!(found["additionalProperties"], json!(false));
    }

    #[test]
    fn a_json_schema_is_used_unchanged() {
        let (found, problems) = schema("[input]\ntype = \"object\"\nproperties.city.type = \"string\"");
        assert_eq!(problems, [] as [String; 0]);
        assert_eq!(found, json!({"type": "object", "properties": {"city": {"type": "string"}}}));
    }

    #[test]
    fn every_invalid_type_is_reported() {
        let (_, problems) = schema(r#"input = { a = "sting", b = 7, c = [] }"#);
        let expected = [
            "`input.a`: `sting` is not a type",
            "`input.b`: an integer is not a type",
            "`input.c`: a list is not a type",
        ];
        assert_eq!(problems, expected);
        let (_, problems) = schema("[input]\nproperties.city.type = \"string\"");
        assert_eq!(problems, ["`input` looks like a JSON Schema but has no type"]);
    }

    #[test]
    fn a_missing_argument_is_found_in_closed_schemas() {
        let closed = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}});
        assert!(has_argument(&closed, &["a"]) && has_argument(&closed, &["a", "b"]));
        assert!(!has_argument(&closed, &["c"]) && !has_argument(&closed, &["a", "c"]));
        assert!(has_argument(&json!({"type": "object"}), &["c"]), "an open schema has everything");
        assert!(!has_argument(&json!({"type": "object", "additionalProperties": false}), &["c"]));
        assert!(has_argument(&json!({"allOf": []}), &["c"]), "too complex to decide");
    }
}
