//! The table of keys as a JSON Schema, for completion and checks in editors.

use serde_json::{Map, Value, json};

use super::keys::{Key, Kind, Section};
use super::shape::meanings;
use super::table::ROOT;

/// The JSON Schema of a config file.
pub fn schema() -> Value {
    let mut schema = object(&ROOT);
    if let Value::Object(schema) = &mut schema {
        schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        schema.insert("title".to_owned(), json!("windlass.toml"));
    }
    schema
}

fn object(section: &'static Section) -> Value {
    let properties: Map<String, Value> = section.keys().map(|key| (key.name.to_owned(), documented(key))).collect();
    let required: Vec<&str> = section.keys().filter(|key| key.required).map(|key| key.name).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn documented(key: &'static Key) -> Value {
    let mut schema = schema_of(&key.kind);
    let choices = match &key.kind {
        Kind::Choice(choices) => format!("\n\n{}", meanings(choices)),
        Kind::List(Kind::Choice(choices)) => format!("\n\n{}", meanings(choices)),
        _ => String::new(),
    };
    schema["description"] = json!(format!("{}{choices}", key.doc));
    schema
}

fn schema_of(kind: &'static Kind) -> Value {
    match kind {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Integer { least, most } if *most == i64::MAX => json!({"type": "integer", "minimum": least}),
        Kind::Integer { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
        Kind::String(form) => match form.pattern {
            Some(pattern) => json!({"type": "string", "pattern": pattern}),
            None => json!({"type": "string"}),
        },
        Kind::Choice(choices) => json!({"enum": choices.iter().map(|choice| choice.word).collect::<Vec<_>>()}),
        Kind::List(kind) => json!({"type": "array", "items": schema_of(kind)}),
        Kind::Table(section) => object(section),
        Kind::Map(form, kind) => {
            let mut schema = json!({"type": "object", "additionalProperties": schema_of(kind)});
            if let Some(pattern) = form.pattern {
                schema["propertyNames"] = json!({"pattern": pattern});
            }
            schema
        }
        Kind::Either(kinds) => json!({"anyOf": kinds.iter().map(schema_of).collect::<Vec<_>>()}),
        Kind::Json => json!({}),
    }
}
