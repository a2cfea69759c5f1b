//! Parameters: how an argument is written into a path, a query or a header.

use serde_json::{Map, Value};
use windlass::ToolError;

use super::Problem;
use super::document::{Reading, Spot};
use crate::encode;

/// Where a parameter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Path,
    Query,
    Header,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Pieces joined with this; each value of a list alone if it is exploded.
    Joined(&'static str),
    /// `name[key]=value`.
    Deep,
    /// As JSON.
    Json,
}

/// A parameter of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// What the argument is called.
    pub(crate) arg: String,
    /// What the server calls it.
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) required: bool,
    pub(crate) description: Option<String>,
    /// Where its schema stands.
    pub(crate) schema: Option<String>,
    style: Style,
    explode: bool,
}

/// Headers that are not parameters, whatever a document says.
const NO_PARAMETERS: [&str; 3] = ["accept", "content-type", "authorization"];

impl Parameter {
    /// Reads a parameter; nothing if it is one that is never sent.
    pub(crate) fn read(document: &Reading, spot: Spot<'_>) -> Result<Option<Self>, Problem> {
        let spot = document.follow(spot)?;
        let name = spot.text("name").ok_or_else(|| spot.problem("a parameter has a `name`"))?.to_owned();
        let required = spot.is("required");
        let place = match spot.text("in") {
            Some("path") => Place::Path,
            Some("query") => Place::Query,
            Some("header") if NO_PARAMETERS.contains(&name.to_ascii_lowercase().as_str()) => return Ok(None),
            Some("header") => Place::Header,
            Some("cookie") if !required => return Ok(None),
            Some("cookie") => {
                return Err(spot.problem(format!("the cookie `{name}` is required, and cookies are not sent")));
            }
            _ => return Err(spot.problem("a parameter is `in` path, query, header or cookie")),
        };
        if place == Place::Header {
            crate::http::header_name(&name).map_err(|problem| spot.problem(problem))?;
        }
        let (schema, style, explode) = form(&spot, place)?;
        let (arg, description) = (argument_name(&name), spot.text("description").map(str::to_owned));
        Ok(Some(Self {
            arg,
            name,
            place,
            required: required || place == Place::Path,
            description,
            schema,
            style,
            explode,
        }))
    }

    /// Pairs of names and values for a query, encoded.
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

    /// Whether its pairs are named by the argument and not by the document.
    pub(crate) fn names_itself(&self) -> bool {
        self.place == Place::Query && self.explode && matches!(self.style, Style::Joined(_))
    }

    /// The value in a path, encoded.
    pub(crate) fn in_path(&self, value: &Value) -> Result<String, ToolError> {
        crate::http::check_segment(&self.raw(value)?).map_err(|error| self.unfit(&error))?;
        match self.style {
            Style::Json => Ok(encode::strict(&value.to_string())),
            _ => self.joined(value, ",", encode::strict),
        }
    }

    /// The value as it is.
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
        scalar(value).ok_or_else(|| {
            ToolError::invalid(format!("/{}", self.arg), "only texts, numbers and booleans can be written here")
        })
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

/// What an argument is called: model APIs take few characters.
fn argument_name(name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' }).collect();
    clean.trim_matches('_').chars().take(64).collect()
}

/// Where the schema of a parameter stands, and how its value is written.
fn form(spot: &Spot<'_>, place: Place) -> Result<(Option<String>, Style, bool), Problem> {
    if let Some(content) = spot.get("content") {
        let (media_type, media) =
            content.children().into_iter().next().ok_or_else(|| content.problem("it names no media type"))?;
        if !super::body::is_json(&media_type) {
            return Err(content.problem(format!("a parameter in `{media_type}` is not written; JSON is")));
        }
        return Ok((media.get("schema").map(|schema| schema.pointer), Style::Json, false));
    }
    let explode = spot.value.get("explode").and_then(Value::as_bool);
    let style = match (place, spot.text("style")) {
        (Place::Query, None | Some("form")) | (Place::Path | Place::Header, None | Some("simple")) => {
            Style::Joined(",")
        }
        (Place::Query, Some("spaceDelimited")) => Style::Joined("%20"),
        (Place::Query, Some("pipeDelimited")) => Style::Joined("%7C"),
        (Place::Query, Some("deepObject")) => Style::Deep,
        (_, Some(other)) => return Err(spot.problem(format!("the style `{other}` is not written here"))),
    };
    let usual = place == Place::Query && matches!(spot.text("style"), None | Some("form"));
    Ok((spot.get("schema").map(|schema| schema.pointer), style, explode.unwrap_or(usual)))
}

/// A value that is one text.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        _ => None,
    }
}

/// `name[key]=value`, at any depth; the n-th of a list is `name[n]`.
pub(crate) fn deep(name: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| deep(&format!("{name}[{key}]"), value, pairs)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, value)| deep(&format!("{name}[{n}]"), value, pairs));
        }
        value => pairs.push((encode::strict(name), encode::strict(&scalar(value).unwrap_or_default()))),
    }
}

/// A form made of an object.
pub(crate) fn form_of(map: &Map<String, Value>) -> String {
    let mut pairs = Vec::new();
    for (name, value) in map {
        match value {
            // A list of plain values repeats its name, as forms do.
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
        let document = super::super::tests::reading(&json!({"openapi": "3.1.0", "p": json}));
        let spot = document.at("#/p").unwrap();
        Parameter::read(&document, spot).unwrap().unwrap()
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
    fn parameters_that_cannot_be_written_are_named() {
        for (json, expected) in [
            (json!({"in": "query"}), "#/p: a parameter has a `name`"),
            (json!({"name": "x", "in": "body"}), "#/p: a parameter is `in`"),
            (json!({"name": "x", "in": "path", "style": "matrix"}), "#/p: the style `matrix`"),
            (json!({"name": "x", "in": "cookie", "required": true}), "#/p: the cookie `x` is required"),
            (json!({"name": "Host", "in": "header"}), "#/p: `host` belongs to the connection"),
            (
                json!({"name": "x", "in": "query", "content": {"text/xml": {}}}),
                "#/p/content: a parameter in `text/xml`",
            ),
            (json!({"$ref": "#/nowhere"}), "#/p: there is nothing at `#/nowhere`"),
            (json!({"$ref": "other.yaml#/x"}), "#/p: `other.yaml#/x` is in another document"),
            (json!({"$ref": "#/p"}), "#/p: the references go round in a circle"),
        ] {
            let document = super::super::tests::reading(&json!({"openapi": "3.0.3", "p": json}));
            let problem = Parameter::read(&document, document.at("#/p").unwrap()).unwrap_err().to_string();
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}
