use serde_json::json;

use super::*;

/// The name of a keyword, a schema with `count` of it, and a value to check against it.
type Case = (&'static str, fn(usize) -> Value, fn(usize) -> Value);

fn named(count: usize, value: &Value) -> Value {
    (0..count).map(|n| (format!("name_{n}"), value.clone())).collect::<Map<String, Value>>().into()
}

fn listed(count: usize, value: &Value) -> Value {
    vec![value.clone(); count].into()
}

fn names(count: usize) -> Value {
    (0..count).map(|n| json!(format!("name_{n}"))).collect()
}

/// One case for each keyword of unbounded length.
fn cases() -> Vec<Case> {
    vec![
        ("allOf", |n| json!({"items": {"allOf": listed(n, &json!(true))}}), |n| listed(n, &json!({}))),
        ("anyOf", |n| json!({"items": {"anyOf": listed(n, &json!(false))}}), |n| listed(n, &json!({}))),
        ("oneOf", |n| json!({"items": {"oneOf": listed(n, &json!({}))}}), |n| listed(n, &json!({}))),
        ("enum", |n| json!({"items": {"enum": names(n)}}), |n| listed(n, &json!("x"))),
        ("enum of lists", |n| json!({"items": {"enum": listed(n, &json!([1]))}}), |n| listed(n, &json!([2]))),
        ("const", |n| json!({"items": {"const": names(n)}}), |n| listed(n, &json!([]))),
        ("required", |n| json!({"items": {"required": names(n)}}), |n| listed(n, &json!({}))),
        ("type", |n| json!({"items": {"type": ["object", "null"], "x": names(n)}}), |n| listed(n, &json!({}))),
        (
            "dependentRequired",
            |n| json!({"items": {"dependentRequired": named(n, &json!(["a"]))}}),
            |n| listed(n, &json!({})),
        ),
        ("dependencies", |n| json!({"items": {"dependencies": named(n, &json!(["a"]))}}), |n| listed(n, &json!({}))),
        (
            "dependentSchemas",
            |n| json!({"items": {"dependentSchemas": named(n, &json!(true))}}),
            |n| listed(n, &json!({})),
        ),
        ("properties", |n| json!({"properties": named(n, &json!(true))}), |n| named(n, &json!(1))),
        (
            "many properties",
            |n| json!({"allOf": listed(n / 16, &json!({"properties": named(16, &json!(true))}))}),
            |n| named(n, &json!(1)),
        ),
        ("patternProperties", |n| json!({"patternProperties": named(n, &json!(true))}), |n| named(n, &json!(1))),
        ("propertyNames", |n| json!({"allOf": listed(n, &json!({"propertyNames": true}))}), |n| named(n, &json!(1))),
        ("prefixItems", |n| json!({"prefixItems": listed(n, &json!(true))}), |n| listed(n, &json!(1))),
        ("items", |n| json!({"allOf": listed(n, &json!({"items": true}))}), |n| listed(n, &json!(1))),
        ("contains", |n| json!({"allOf": listed(n, &json!({"contains": false}))}), |n| listed(n, &json!(1))),
        ("uniqueItems", |n| json!({"allOf": listed(n, &json!({"uniqueItems": true}))}), |n| names(n)),
        (
            "unevaluatedProperties",
            |n| (0..n / 4).fold(json!(true), |next, _| json!({"allOf": [next], "unevaluatedProperties": true})),
            |n| named(n, &json!(1)),
        ),
        (
            "unevaluatedItems",
            |n| json!({"anyOf": listed(n, &json!({"unevaluatedItems": {"anyOf": [true]}}))}),
            |n| listed(n, &json!(1)),
        ),
        ("minLength", |n| json!({"allOf": listed(n, &json!({"minLength": 1}))}), |n| json!("x".repeat(n * 100))),
        ("pattern", |n| json!({"allOf": listed(n, &json!({"pattern": "^x*$"}))}), |n| json!("x".repeat(n * 100))),
        ("unknown", |n| json!({"x-own": named(n, &json!({"a": ["b"]}))}), |n| listed(n, &json!(1))),
    ]
}

fn steps(cost: &CheckCost, value: &Value) -> u64 {
    (0..20).map(|n| 1u64 << n).find(|steps| cost.takes_at_most(value, *steps)).unwrap_or(u64::MAX)
}

#[test]
fn e25_every_keyword_counts_in_memory_and_in_steps() {
    // In these cases the schema and the value grow together, one subschema per value, so the steps grow linearly.
    let linear = ["properties", "prefixItems", "type", "unknown"];
    for (name, schema, value) in cases() {
        let of = |count: usize| CheckCost::of(&schema(count)).ok().expect("it is taken");
        let (few, many) = (of(64), of(256));
        let text = schema(256).to_string().len() - schema(64).to_string().len();
        assert!(many.bytes - few.bytes >= text.max(192 * VALUE_BYTES / 4), "{name}: {} {}", few.bytes, many.bytes);
        if !linear.contains(&name) {
            let (few, many) = (steps(&few, &value(64)), steps(&many, &value(256)));
            assert!(many >= few.saturating_mul(8), "{name}: {few} {many}");
        }
        // A schema of the size of the largest request is refused, or its estimate is larger than its text.
        let schema = schema(if name == "unevaluatedProperties" { 480 } else { 100_000 });
        let text = schema.to_string().len();
        assert!(CheckCost::of(&schema).map_or(SCHEMA_BYTES, |cost| cost.bytes) > text, "{name}");
    }
}

#[test]
fn e25_the_path_of_a_subschema_counts_as_often_as_it_is_kept() {
    let long = json!({"properties": {"x".repeat(1 << 20): {"allOf": listed(100, &json!(true))}}});
    assert!(matches!(CheckCost::of(&long), Err(SchemaRefusal::Memory)));
    let long = json!({"properties": {"x".repeat(1 << 20): {"dependentRequired": named(100, &json!([]))}}});
    assert!(matches!(CheckCost::of(&long), Err(SchemaRefusal::Memory)));
}
