//! The body of a request: JSON, or a form.

use bytes::Bytes;
use serde_json::{Map, Value};
use windlass::ToolError;

use super::request::Problem;
use super::template::{Scope, Template};
use crate::encode;

/// The body. A JSON string that is a single placeholder (`"{args.x}"`) becomes the argument itself, with its type; as a
/// field of an object it is omitted if the argument is not given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    Json(Json),
    Form(Vec<(String, Template)>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Literal(Value),
    Text(Template),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses every string in a value as a template.
    pub(crate) fn parse(value: &Value, pointer: &str) -> Result<Self, Problem> {
        Ok(match value {
            Value::String(text) => {
                let template: Template = text.parse().map_err(|bad| Problem::at(pointer, bad))?;
                Self::Text(template)
            }
            Value::Array(items) => {
                let items = items.iter().enumerate().map(|(n, item)| Self::parse(item, &format!("{pointer}/{n}")));
                Self::List(items.collect::<Result<_, _>>()?)
            }
            Value::Object(map) => {
                let field = |(key, item): (&String, &Value)| {
                    let below = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                    Ok((key.clone(), Self::parse(item, &below)?))
                };
                Self::Object(map.iter().map(field).collect::<Result<_, Problem>>()?)
            }
            literal => Self::Literal(literal.clone()),
        })
    }

    /// The value; none if it is an argument that is not given.
    fn fill(&self, scope: &mut Scope<'_>) -> Result<Option<Value>, ToolError> {
        Ok(Some(match self {
            Self::Literal(value) => value.clone(),
            Self::Text(template) => match template.exact(scope) {
                Some(argument) => return Ok(argument.cloned()),
                None => Value::String(template.text(scope)?),
            },
            Self::List(items) => {
                let items = items.iter().map(|item| Ok(item.fill(scope)?.unwrap_or(Value::Null)));
                Value::Array(items.collect::<Result<_, ToolError>>()?)
            }
            Self::Object(fields) => {
                let mut map = Map::new();
                for (key, field) in fields {
                    if let Some(value) = field.fill(scope)? {
                        map.insert(key.clone(), value);
                    }
                }
                Value::Object(map)
            }
        }))
    }

    fn visit<'j>(&'j self, see: &mut Vec<&'j Template>) {
        match self {
            Self::Literal(_) => {}
            Self::Text(template) => see.push(template),
            Self::List(items) => items.iter().for_each(|item| item.visit(see)),
            Self::Object(fields) => fields.iter().for_each(|(_, field)| field.visit(see)),
        }
    }
}

impl Body {
    /// Its media type and bytes.
    pub(crate) fn fill(&self, scope: &mut Scope<'_>) -> Result<(&'static str, Bytes), ToolError> {
        match self {
            Self::Json(json) => {
                let value = json.fill(scope)?.unwrap_or(Value::Null);
                Ok(("application/json", value.to_string().into()))
            }
            Self::Form(fields) => {
                let mut pairs = Vec::new();
                for (name, value) in fields {
                    if let Some(value) = value.optional(scope)? {
                        pairs.push(format!("{}={}", encode::form(name), encode::form(&value)));
                    }
                }
                Ok(("application/x-www-form-urlencoded", pairs.join("&").into()))
            }
        }
    }

    pub(crate) fn templates(&self) -> Vec<&Template> {
        let mut templates = Vec::new();
        match self {
            Self::Json(json) => json.visit(&mut templates),
            Self::Form(fields) => templates.extend(fields.iter().map(|(_, value)| value)),
        }
        templates
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::secret::{Redactor, Secrets};

    fn fill(body: &Body, args: &Value) -> Result<String, ToolError> {
        let secrets = Secrets::default();
        let mut scope = Scope { args, key: "k", secrets: &secrets, seen: Redactor::default() };
        body.fill(&mut scope).map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap())
    }

    fn json_body(value: Value) -> Body {
        Body::Json(Json::parse(&value, "").unwrap())
    }

    #[test]
    fn an_argument_that_is_a_whole_value_keeps_its_type() {
        let args = json!({"n": 5, "list": [1, "two"], "o": {"deep": null}, "name": "Ann \"}"});
        let body = json_body(json!({
            "n": "{args.n}", "list": "{args.list}", "deep": "{args.o.deep}", "greeting": "Hi {args.name} {args.n}",
            "none": "{args.none}", "in_list": ["{args.none}", 1.5, true], "fix": null, "brace": "{{x}}"
        }));
        let sent: Value = serde_json::from_str(&fill(&body, &args).unwrap()).unwrap();
        assert_eq!(
            sent,
            json!({
                "n": 5, "list": [1, "two"], "deep": null, "greeting": "Hi Ann \"} 5", "in_list": [null, 1.5, true],
                "fix": null, "brace": "{x}"
            })
        );
        assert_eq!(fill(&json_body(json!("{args}")), &json!({"a": 1})).unwrap(), r#"{"a":1}"#);
        let error = fill(&json_body(json!({"x": "a {args.list}"})), &args).unwrap_err();
        assert!(error.to_string().contains("a list cannot be used here"), "{error}");
    }

    #[test]
    fn an_invalid_placeholder_in_a_body_is_located_by_a_pointer() {
        let problem = Json::parse(&json!({"a/b": [1, {"c": "{nope}"}]}), "body").unwrap_err();
        assert_eq!(problem.place, "body/a~1b/1/c");
    }

    proptest! {
        #[test]
        fn e26_an_argument_stays_within_its_placeholder_in_a_body(text in any::<String>()) {
            let args = json!({"x": text});
            let body = json_body(json!({"a": "{args.x}", "b": "<{args.x}>", "c": 1}));
            let sent: Value = serde_json::from_str(&fill(&body, &args).unwrap()).unwrap();
            prop_assert_eq!(sent, json!({"a": text, "b": format!("<{text}>"), "c": 1}));
            let form = Body::Form(vec![("f".to_owned(), "{args.x}".parse().unwrap()), ("g".to_owned(), "1".parse().unwrap())]);
            let sent = fill(&form, &args).unwrap();
            prop_assert_eq!(sent.matches('&').count(), 1);
            prop_assert_eq!(sent.matches('=').count(), 2);
        }
    }
}
