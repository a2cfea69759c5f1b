//! The tool that every contender runs, and the calls made to it.

use serde_json::{Value, json};

/// The tool's name.
pub const NAME: &str = "search_orders";

/// The tool's description.
pub const DESCRIPTION: &str = "Searches the orders of a customer and returns how many there are";

/// A call as a model makes it.
#[derive(Debug, Clone)]
pub struct Call {
    /// The identifier the model gave to the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    pub arguments: Value,
}

/// The tool's parameters: JSON Schema 2020-12 with the shapes that tools commonly have, and only keywords that all
/// validators of the contenders support.
#[must_use]
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "query": { "type": "string", "minLength": 1, "description": "What to search for, in plain words" },
            "status": { "type": "string", "enum": ["open", "packed", "shipped", "delivered", "returned"] },
            "limit": { "type": "integer", "minimum": 1, "maximum": 1000 },
            "include_archived": { "type": "boolean" },
            "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 16 },
            "customer": {
                "type": "object",
                "properties": {
                    "id": { "type": "string" },
                    "name": { "type": "string" },
                    "country": { "type": "string", "minLength": 2, "maxLength": 2 },
                    "credit_limit": { "type": "number", "minimum": 0 }
                },
                "required": ["id", "country"],
                "additionalProperties": false
            }
        },
        "required": ["query", "status", "limit", "customer"],
        "additionalProperties": false
    })
}

/// Arguments that match the schema, about 500 bytes as text.
#[must_use]
pub fn arguments() -> Value {
    json!({
        "query": "orders of the last quarter that were split into more than one parcel and where the second parcel \
                  arrived at least three days after the first, with a note by the \
                  warehouse that explains the delay and names the carrier and the depot where it was held back",
        "status": "delivered",
        "limit": 50,
        "include_archived": false,
        "tags": ["express", "gift-wrapped", "fragile", "second-parcel"],
        "customer": {
            "id": "cus_7f3b2a90d4e14c55",
            "name": "Anneliese Brandt-Okonkwo",
            "country": "DE",
            "credit_limit": 12500.5
        }
    })
}

/// Arguments that do not match the schema, each with the reason.
#[must_use]
pub fn broken_arguments() -> Vec<(Value, &'static str)> {
    let broken = |pointer: &str, value: Value| {
        let mut arguments = arguments();
        if let Some(slot) = arguments.pointer_mut(pointer) {
            *slot = value;
        }
        arguments
    };
    let mut extra = arguments();
    extra["surprise"] = json!(true);
    vec![
        (broken("/limit", json!("many")), "a string for a number"),
        (broken("/status", json!("lost")), "a value outside of the enum"),
        (broken("/customer/country", json!(49)), "a number in the nested object"),
        (extra, "an undeclared property"),
    ]
}

/// The tool itself: it only reads, and does next to nothing.
#[must_use]
pub fn body(arguments: &Value) -> Value {
    let found = arguments.get("limit").and_then(Value::as_u64).unwrap_or(0) / 2;
    json!({ "found": found, "complete": true })
}

/// The call number `index` of a batch.
#[must_use]
pub fn call(index: usize) -> Call {
    Call { id: format!("call_{index:08}"), name: NAME.to_owned(), arguments: arguments() }
}

/// `batches` batches of `batch` calls each, as `convert` turns them into calls of the measured API.
pub fn batches<T>(batch: usize, batches: usize, convert: impl Fn(Call) -> T) -> Vec<Vec<T>> {
    (0..batches).map(|number| (0..batch).map(|index| convert(call(number * batch + index))).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_match_the_schema_and_have_the_documented_size() {
        assert!(jsonschema::draft202012::is_valid(&schema(), &arguments()));
        let length = arguments().to_string().len();
        assert!((450..=550).contains(&length), "{length} bytes");
    }

    #[test]
    fn broken_arguments_do_not_match_the_schema() {
        for (broken, why) in broken_arguments() {
            assert!(!jsonschema::draft202012::is_valid(&schema(), &broken), "{why}");
        }
    }
}
