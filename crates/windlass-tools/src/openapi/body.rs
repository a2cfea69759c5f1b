//! Bodies of requests and answers.

use bytes::Bytes;
use serde_json::Value;
use windlass::ToolError;

use super::Problem;
use super::document::{Reading, Spot};
use super::parameter::form_of;

/// What an operation takes as its body.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) required: bool,
    pub(crate) description: Option<String>,
    /// Where its schema stands.
    pub(crate) schema: Option<String>,
    /// `application/json`, another kind of JSON, or a form.
    pub(crate) media_type: String,
}

const FORM: &str = "application/x-www-form-urlencoded";

/// Whether a media type is JSON.
pub(crate) fn is_json(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json") || kind == "text/json"
}

/// The JSON among the media types of something, if there is any.
pub(crate) fn json_among<'d>(content: &Spot<'d>) -> Option<(String, Spot<'d>)> {
    let kinds = content.children();
    let plain = kinds.iter().find(|(kind, _)| kind == "application/json");
    plain.or_else(|| kinds.iter().find(|(kind, _)| is_json(kind))).cloned()
}

impl Body {
    pub(crate) fn read(document: &Reading, spot: Spot<'_>) -> Result<Self, Problem> {
        let spot = document.follow(spot)?;
        let content = spot.get("content").ok_or_else(|| spot.problem("a body has `content`"))?;
        let form = || content.get(FORM).map(|media| (FORM.to_owned(), media));
        let anything = || content.get("*/*").map(|media| ("application/json".to_owned(), media));
        let Some((media_type, media)) = json_among(&content).or_else(form).or_else(anything) else {
            let kinds: Vec<String> = content.children().into_iter().map(|(kind, _)| format!("`{kind}`")).collect();
            return Err(content.problem(format!("a body in {} is not sent, only JSON and forms are", kinds.join(", "))));
        };
        let (required, description) = (spot.is("required"), spot.text("description").map(str::to_owned));
        Ok(Self { required, description, schema: media.get("schema").map(|schema| schema.pointer), media_type })
    }

    /// The bytes of a body.
    pub(crate) fn write(&self, value: &Value) -> Result<Bytes, ToolError> {
        if self.media_type != FORM {
            return Ok(value.to_string().into());
        }
        match value {
            Value::Object(map) => Ok(form_of(map).into()),
            _ => Err(ToolError::invalid("/body", "a form is an object")),
        }
    }
}
