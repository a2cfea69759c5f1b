//! Parameters: how an argument is written into a path, a query or a header.

use serde_json::{Map, Value};
use windlass::ToolError;

use super::Problem;
use super::document::{DocumentView, Node};
use crate::encode;

/// The `in` of a parameter: the part of the request that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ParameterIn {
    Path,
    Query,
    Header,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Values joined with this separator. If exploded, each value of a list is a pair of its own.
    Joined(&'static str),
    /// `name[key]=value`.
    Deep,
    /// As JSON.
    Json,
}

/// A parameter of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its name as an argument of the tool.
    pub(crate) arg: String,
    /// Its name in the request.
    pub(crate) name: String,
    pub(crate) location: ParameterIn,
    pub(crate) required: bool,
    pub(crate) description: Option<String>,
    /// The pointer of its schema.
    pub(crate) schema: Option<String>,
    style: Style,
    explode: bool,
}

/// Headers that OpenAPI does not allow as parameters.
const IGNORED_HEADERS: [&str; 3] = ["accept", "content-type", "authorization"];

impl Parameter {
    /// Parses a parameter; none if it is one that is never sent.
    pub(crate) fn read(document: &DocumentView, node: Node<'_>) -> Result<Option<Self>, Problem> {
        let node = document.follow(node)?;
        let name = node.text("name").ok_or_else(|| node.problem("a parameter must have a `name`"))?.to_owned();
        let required = node.is("required");
        let location = match node.text("in") {
            Some("path") => ParameterIn::Path,
            Some("query") => ParameterIn::Query,
            Some("header") if IGNORED_HEADERS.contains(&name.to_ascii_lowercase().as_str()) => return Ok(None),
            Some("header") => ParameterIn::Header,
            Some("cookie") if !required => return Ok(None),
            Some("cookie") => {
                return Err(node.problem(format!("the cookie `{name}` is required, but cookies are not supported")));
            }
            _ => return Err(node.problem("`in` of a parameter must be path, query, header or cookie")),
        };
        if location == ParameterIn::Header {
            crate::http::header_name(&name).map_err(|problem| node.problem(problem))?;
        }
        let (schema, style, explode) = form(&node, location)?;
        let (arg, description) = (argument_name(&name), node.text("description").map(str::to_owned));
        Ok(Some(Self {
            arg,
            name,
            location,
            required: required || location == ParameterIn::Path,
            description,
            schema,
            style,
            explode,
        }))
    }

    /// The pairs of names and values for a query, encoded.
    pub(crate) fn pairs(&self, value: &Value) -> Result<Vec<(String, String)>, ToolError> {
        let name = encode::strict(&self.name);
        let one = |text: String| Ok(vec![(name.clone(), text)]);
        match (self.style, value) {
            (Style::Json, value) => one(encode::strict(&value.to_string())),
            (Style::Deep, Value::Object(map)) => {
                let mut pairs = Vec::new();
                map.iter().for_each(|(key, value)| deep(&format!("{}[{key}]", self.name), value, &mut pairs));
                Ok(pairs)
            }
            (_, Value::Array(items)) if self.explode => {
                items.iter().map(|item| Ok((name.clone(), encode::strict(&self.text(item)?)))).collect()
            }
            (_, Value::Object(map)) if self.explode => {
                map.iter().map(|(key, value)| Ok((encode::strict(key), encode::strict(&self.text(value)?)))).collect()
            }
            (Style::Joined(by), value) => one(self.joined(value, by, encode::strict)?),
            (Style::Deep, value) => one(encode::strict(&self.text(value)?)),
        }
    }

    /// Whether the argument, not the document, names its query parameters.
    pub(crate) fn names_itself(&self) -> bool {
        self.location == ParameterIn::Query && self.explode && matches!(self.style, Style::Joined(_))
    }

    /// The value for a path, encoded.
    pub(crate) fn in_path(&self, value: &Value) -> Result<String, ToolError> {
        crate::http::check_segment(&self.raw(value)?).map_err(|error| self.unfit(&error))?;
        match self.style {
            Style::Json => Ok(encode::strict(&value.to_string())),
            _ => self.joined(value, ",", encode::strict),
        }
    }

    /// The value, not encoded.
    pub(crate) fn raw(&self, value: &Value) -> Result<String, ToolError> {
        match self.style {
            Style::Json => Ok(value.to_string()),
            _ => self.joined(value, ",", str::to_owned),
        }
    }

    fn joined(&self, value: &Value, by: &str, write: fn(&str) -> String) -> Result<String, ToolError> {
        let pieces = match value {
            Value::Array(items) => items.iter().map(|item| Ok(write(&self.text(item)?))).collect(),
            Value::Object(map) => {
                let between = if self.explode { "=" } else { by };
                let pair =
                    |(key, item): (&String, &Value)| Ok(format!("{}{between}{}", write(key), write(&self.text(item)?)));
                map.iter().map(pair).collect()
            }
            value => self.text(value).map(|text| vec![write(&text)]),
        };
        Ok(pieces?.join(by))
    }

    fn text(&self, value: &Value) -> Result<String, ToolError> {
        scalar(value)
            .ok_or_else(|| ToolError::invalid(format!("/{}", self.arg), "must be a string, a number or a boolean here"))
    }

    fn unfit(&self, error: &ToolError) -> ToolError {
        match error {
            ToolError::InvalidArguments { violations } => {
                let message = violations.first().map(|violation| violation.message.clone()).unwrap_or_default();
                ToolError::invalid(format!("/{}", self.arg), message)
            }
            other => other.clone(),
        }
    }
}

/// The name of an argument, with the characters that model APIs accept.
fn argument_name(name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' }).collect();
    clean.trim_matches('_').chars().take(64).collect()
}

/// The pointer of a parameter's schema, and how its value is written.
fn form(node: &Node<'_>, location: ParameterIn) -> Result<(Option<String>, Style, bool), Problem> {
    if let Some(content) = node.get("content") {
        let (media_type, media) =
            content.children().into_iter().next().ok_or_else(|| content.problem("`content` has no media type"))?;
        if !super::body::is_json(&media_type) {
            return Err(content.problem(format!("a parameter in `{media_type}` is not supported; only JSON is")));
        }
        return Ok((media.get("schema").map(|schema| schema.pointer), Style::Json, false));
    }
    let explode = node.value.get("explode").and_then(Value::as_bool);
    let style = match (location, node.text("style")) {
        (ParameterIn::Query, None | Some("form"))
        | (ParameterIn::Path | ParameterIn::Header, None | Some("simple")) => Style::Joined(","),
        (ParameterIn::Query, Some("spaceDelimited")) => Style::Joined("%20"),
        (ParameterIn::Query, Some("pipeDelimited")) => Style::Joined("%7C"),
        (ParameterIn::Query, Some("deepObject")) => Style::Deep,
        (_, Some(other)) => return Err(node.problem(format!("the style `{other}` is not supported here"))),
    };
    let default = location == ParameterIn::Query && matches!(node.text("style"), None | Some("form"));
    Ok((node.get("schema").map(|schema| schema.pointer), style, explode.unwrap_or(default)))
}

/// The text of a value that is not a list or an object.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        _ => None,
    }
}

/// Writes `name[key]=value` at any depth; element `n` of a list is `name[n]`.
pub(crate) fn deep(name: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| deep(&format!("{name}[{key}]"), value, pairs)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, value)| deep(&format!("{name}[{n}]"), value, pairs));
        }
        value => pairs.push((encode::strict(name), encode::strict(&scalar(value).unwrap_or_default()))),
    }
}

/// Encodes an object as a form.
pub(crate) fn form_of(map: &Map<String, Value>) -> String {
    let mut pairs = Vec::new();
    for (name, value) in map {
        match value {
            // A list of plain values repeats its name, as is usual in forms.
            Value::Array(items) if items.iter().all(|item| scalar(item).is_some()) => {
                items.iter().for_each(|item| deep(name, item, &mut pairs));
            }
            value => deep(name, value, &mut pairs),
        }
    }
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameter(json: Value) -> Parameter {
        let document = super::super::tests::view(&json!({"openapi": "3.1.0", "p": json}));
        let node = document.at("#/p").unwrap();
        Parameter::read(&document, node).unwrap().unwrap()
    }

    #[test]
    fn values_are_written_in_their_style() {
        let (list, object) = (json!(["a", "b&c", 3]), json!({"r": 1, "g": "x y"}));
        for (style, explode, value, expected) in [
            ("form", None, &json!("a b"), "p=a%20b"),
            ("form", None, &list, "p=a&p=b%26c&p=3"),
            ("form", Some(false), &list, "p=a,b%26c,3"),
            ("form", None, &object, "g=x%20y&r=1"),
            ("form", Some(false), &object, "p=g,x%20y,r,1"),
            ("spaceDelimited", None, &list, "p=a%20b%26c%203"),
            ("pipeDelimited", None, &list, "p=a%7Cb%26c%7C3"),
            ("deepObject", Some(true), &object, "p%5Bg%5D=x%20y&p%5Br%5D=1"),
            ("deepObject", Some(true), &json!({"a": {"b": [1]}}), "p%5Ba%5D%5Bb%5D%5B0%5D=1"),
        ] {
            let mut json = json!({"name": "p", "in": "query", "style": style, "schema": {}});
            if let Some(explode) = explode {
                json["explode"] = Value::Bool(explode);
            }
            let pairs = parameter(json).pairs(value).unwrap();
            let text: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(text.join("&"), expected, "{style} {explode:?} {value}");
        }
        let path = parameter(json!({"name": "p", "in": "path", "required": true, "schema": {}}));
        assert_eq!(path.in_path(&list).unwrap(), "a,b%26c,3");
        assert_eq!(path.in_path(&json!("a/b")).unwrap(), "a%2Fb");
        assert_eq!(path.in_path(&json!("..")).unwrap_err().kind(), "invalid_arguments");
        let json = parameter(json!({"name": "p", "in": "query", "content": {"application/json": {"schema": {}}}}));
        assert_eq!(json.pairs(&json!({"a": 1})).unwrap(), [("p".to_owned(), "%7B%22a%22%3A1%7D".to_owned())]);
    }

    #[test]
    fn parameters_that_are_not_supported_are_reported() {
        for (json, expected) in [
            (json!({"in": "query"}), "#/p: a parameter must have a `name`"),
            (json!({"name": "x", "in": "body"}), "#/p: `in` of a parameter must be"),
            (json!({"name": "x", "in": "path", "style": "matrix"}), "#/p: the style `matrix` is not supported"),
            (json!({"name": "x", "in": "cookie", "required": true}), "#/p: the cookie `x` is required"),
            (json!({"name": "Host", "in": "header"}), "#/p: `host` belongs to the connection"),
            (
                json!({"name": "x", "in": "query", "content": {"text/xml": {}}}),
                "#/p/content: a parameter in `text/xml`",
            ),
            (json!({"$ref": "#/nowhere"}), "#/p: `#/nowhere` does not exist"),
            (json!({"$ref": "other.yaml#/x"}), "#/p: `other.yaml#/x` is in another document"),
            (json!({"$ref": "#/p"}), "#/p: the references form a cycle"),
        ] {
            let document = super::super::tests::view(&json!({"openapi": "3.0.3", "p": json}));
            let problem = Parameter::read(&document, document.at("#/p").unwrap()).unwrap_err().to_string();
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}
