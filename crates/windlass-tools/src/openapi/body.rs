//! Bodies of requests and responses.

use bytes::Bytes;
use serde_json::Value;
use windlass::ToolError;

use super::Problem;
use super::document::{DocumentView, Node};
use super::parameter::form_of;

/// The request body of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) required: bool,
    pub(crate) description: Option<String>,
    /// The pointer of its schema.
    pub(crate) schema: Option<String>,
    /// `application/json`, another JSON type, or a form.
    pub(crate) media_type: String,
}

const FORM: &str = "application/x-www-form-urlencoded";

/// Whether a media type is JSON.
pub(crate) fn is_json(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json") || kind == "text/json"
}

/// The JSON media type of a `content` object, if it has one.
pub(crate) fn json_among<'d>(content: &Node<'d>) -> Option<(String, Node<'d>)> {
    let kinds = content.children();
    let plain = kinds.iter().find(|(kind, _)| kind == "application/json");
    plain.or_else(|| kinds.iter().find(|(kind, _)| is_json(kind))).cloned()
}

impl Body {
    pub(crate) fn read(document: &DocumentView, node: Node<'_>) -> Result<Self, Problem> {
        let node = document.follow(node)?;
        let content = node.get("content").ok_or_else(|| node.problem("a body must have `content`"))?;
        let form = || content.get(FORM).map(|media| (FORM.to_owned(), media));
        let anything = || content.get("*/*").map(|media| ("application/json".to_owned(), media));
        let Some((media_type, media)) = json_among(&content).or_else(form).or_else(anything) else {
            let kinds: Vec<String> = content.children().into_iter().map(|(kind, _)| format!("`{kind}`")).collect();
            let kinds = kinds.join(", ");
            return Err(content.problem(format!("a body in {kinds} is not supported; only JSON and forms are")));
        };
        let (required, description) = (node.is("required"), node.text("description").map(str::to_owned));
        Ok(Self { required, description, schema: media.get("schema").map(|schema| schema.pointer), media_type })
    }

    /// Encodes a body.
    pub(crate) fn write(&self, value: &Value) -> Result<Bytes, ToolError> {
        if self.media_type != FORM {
            return Ok(value.to_string().into());
        }
        match value {
            Value::Object(map) => Ok(form_of(map).into()),
            _ => Err(ToolError::invalid("/body", "must be an object: it is sent as a form")),
        }
    }
}
