//! One request and its answer, as an attempt.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use windlass::{Artifact, Call, Content, Effect, Output, ToolError, ToolResult};

use super::status;
use crate::net::{Answer, Client, HeaderName, HeaderValue, Method, NetError, Outgoing, Trouble};
use crate::secret::Redactor;

/// How much of an answer that failed is shown.
const EXCERPT: usize = 600;
/// Largest answer that is neither JSON nor text and is kept in the record; larger ones are stored beside it.
const INLINE: usize = 64 * 1024;

/// What there is to an exchange besides the request.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// Where the idempotency key goes.
    pub(crate) key_header: HeaderName,
    /// Headers of the answer that are part of the result.
    pub(crate) shown: Vec<HeaderName>,
}

impl Default for Exchange {
    fn default() -> Self {
        Self { key_header: HeaderName::from_static("idempotency-key"), shown: Vec::new() }
    }
}

/// Sends a request and makes an outcome of what comes back. No secret that was sent is in it.
pub(crate) async fn exchange(
    client: &Client,
    call: &Call,
    outgoing: Outgoing,
    how: &Exchange,
    seen: &Redactor,
) -> ToolResult<Output> {
    let method = outgoing.method.clone();
    let answer = send(client, call, outgoing, how).await.map_err(|error| without_answer(&error, call.effect()));
    let result = match answer {
        Ok(answer) => match failure(&method, &answer, call.effect()) {
            Some(error) => Err(error),
            None => output(call, &method, &answer, how, seen).await.map_err(|error| unkept(error, call.effect())),
        },
        Err(error) => Err(error),
    };
    result.map_err(|error| {
        let error = redacted(error, seen);
        if let ToolError::InDoubt { reason } = &error {
            call.progress(reason);
        }
        error
    })
}

pub(super) async fn send(
    client: &Client,
    call: &Call,
    mut outgoing: Outgoing,
    how: &Exchange,
) -> Result<Answer, NetError> {
    if call.effect() != Effect::Readonly
        && let Ok(key) = HeaderValue::from_str(&call.idempotency_key())
    {
        outgoing.headers.entry(how.key_header.clone()).or_insert(key);
    }
    client.send(outgoing).await
}

/// What it means that there is no answer.
fn without_answer(error: &NetError, effect: Effect) -> ToolError {
    let message = error.to_string();
    match (error.trouble, error.sent) {
        (Trouble::Refused, false) => ToolError::denied(message),
        // Nothing has happened, for certain.
        (_, false) => ToolError::retryable(message),
        (_, true) if effect == Effect::Once => ToolError::in_doubt(message),
        (Trouble::Refused, true) => ToolError::denied(message),
        (Trouble::Unusable, true) => ToolError::failed(message),
        (_, true) if effect == Effect::Readonly => ToolError::retryable(message),
        (_, true) => ToolError::in_doubt(message),
    }
}

/// What it means that an answer came and could not be kept.
fn unkept(error: ToolError, effect: Effect) -> ToolError {
    match effect {
        Effect::Once => ToolError::in_doubt(format!("it was done, but its answer could not be kept: {error}")),
        _ => error,
    }
}

fn failure(method: &Method, answer: &Answer, effect: Effect) -> Option<ToolError> {
    if answer.status.is_success() {
        return None;
    }
    let text = String::from_utf8_lossy(&answer.body);
    let excerpt: String = text.trim().chars().take(EXCERPT).collect();
    let said = if excerpt.is_empty() { String::new() } else { format!(": {excerpt}") };
    let message = format!("{method} {} answered {}{said}", answer.url.place(), answer.status);
    status::error_of(answer.status, effect, status::delay_of(&answer.headers, SystemTime::now()), message)
}

fn redacted(error: ToolError, seen: &Redactor) -> ToolError {
    let clean = |text: String| seen.redact(&text).into_owned();
    match error {
        ToolError::Failed { message, retry, code } => ToolError::Failed { message: clean(message), retry, code },
        ToolError::Denied { reason } => ToolError::Denied { reason: clean(reason) },
        ToolError::InDoubt { reason } => ToolError::InDoubt { reason: clean(reason) },
        ToolError::Unavailable { message } => ToolError::Unavailable { message: clean(message) },
        other => other,
    }
}

/// The output an answer is: JSON as it is, text as text, anything else as a file.
async fn output(call: &Call, method: &Method, answer: &Answer, how: &Exchange, seen: &Redactor) -> ToolResult<Output> {
    let mut output = if *method == Method::HEAD || answer.body.is_empty() {
        Output::value(Value::Null)
    } else if let Some(value) = readable(answer) {
        Output::value(value)
    } else {
        file(call, answer).await?
    };
    if !how.shown.is_empty() || *method == Method::HEAD {
        output.value = json!({"status": answer.status.as_u16(), "headers": shown(answer, how), "body": output.value});
    }
    seen.redact_value(&mut output.value);
    Ok(output)
}

fn shown(answer: &Answer, how: &Exchange) -> Map<String, Value> {
    let all = how.shown.is_empty();
    let names = answer.headers.keys().filter(|name| all || how.shown.contains(name));
    names
        .map(|name| {
            let values = answer.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
            (name.to_string(), Value::from(values.collect::<Vec<_>>().join(", ")))
        })
        .collect()
}

/// The media type of an answer, without its parameters.
fn media_type(answer: &Answer) -> String {
    let text = answer.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn json_of(answer: &Answer) -> Option<Value> {
    let media_type = media_type(answer);
    let is_json = media_type == "application/json" || media_type.ends_with("+json") || media_type == "text/json";
    is_json.then(|| serde_json::from_slice(&answer.body).ok()).flatten()
}

fn readable(answer: &Answer) -> Option<Value> {
    if let Some(value) = json_of(answer) {
        return Some(value);
    }
    let kind = media_type(answer);
    let is_text = kind.is_empty()
        || kind.starts_with("text/")
        || kind.ends_with("+xml")
        || kind.ends_with("json")
        || matches!(kind.as_str(), "application/xml" | "application/javascript" | "application/x-www-form-urlencoded");
    let text = std::str::from_utf8(&answer.body).ok().map(|text| Value::from(text.trim_start_matches('\u{feff}')));
    match text {
        Some(text) if is_text => Some(text),
        // Another encoding: most of it can be read.
        None if kind.starts_with("text/") => Some(String::from_utf8_lossy(&answer.body).into()),
        _ => None,
    }
}

async fn file(call: &Call, answer: &Answer) -> ToolResult<Output> {
    let media_type = Some(media_type(answer)).filter(|kind| !kind.is_empty());
    let media_type = media_type.unwrap_or_else(|| "application/octet-stream".to_owned());
    let artifact = if answer.body.len() <= INLINE {
        Artifact::new(media_type.clone(), answer.body.as_ref())
    } else {
        let mut writer = call.new_artifact(media_type.clone());
        writer.write(&answer.body).await?;
        writer.finish().await?
    };
    let value = json!({"media_type": media_type, "size": answer.body.len()});
    let content = match media_type.split('/').next() {
        Some("image") => Content::Image(artifact),
        Some("audio") => Content::Audio(artifact),
        _ => Content::File(artifact),
    };
    Ok(Output::value(value).with(content))
}
