//! One request and its response, as an attempt.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use windlass::{Call, Effect, Output, ToolError, ToolResult};

use super::status;
use crate::media;
use crate::net::{Client, HeaderName, HeaderValue, Method, NetError, NetErrorKind, Outgoing, Response};
use crate::secret::Redactor;

/// Characters that are shown of a failed response.
const EXCERPT: usize = 600;

/// Settings of an exchange besides the request.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// The header of the idempotency key.
    pub(crate) key_header: HeaderName,
    /// Headers of the response that are part of the result.
    pub(crate) shown: Vec<HeaderName>,
    /// The provider that has to be connected if the server answers 401.
    pub(crate) unauthorized: Option<String>,
}

impl Default for Exchange {
    fn default() -> Self {
        Self { key_header: HeaderName::from_static("idempotency-key"), shown: Vec::new(), unauthorized: None }
    }
}

/// Sends a request and turns the response into an outcome, without any secret that was sent.
pub(crate) async fn exchange(
    client: &Client,
    call: &Call,
    outgoing: Outgoing,
    how: &Exchange,
    seen: &Redactor,
) -> ToolResult<Output> {
    let method = outgoing.method.clone();
    let response = send(client, call, outgoing, how).await.map_err(|error| no_response(&error, call.effect()));
    let result = match response {
        Ok(response) => match failure(&method, &response, how, call.effect()) {
            Some(error) => Err(error),
            None => output(call, &method, &response, how, seen)
                .await
                .map_err(|error| media::not_stored(error, call.effect())),
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
) -> Result<Response, NetError> {
    if call.effect() != Effect::Readonly
        && let Ok(key) = HeaderValue::from_str(&call.idempotency_key())
    {
        outgoing.headers.entry(how.key_header.clone()).or_insert(key);
    }
    client.send(outgoing).await
}

/// The error for a request without a response.
fn no_response(error: &NetError, effect: Effect) -> ToolError {
    let message = error.to_string();
    match (error.kind, error.sent) {
        (NetErrorKind::Refused, false) => ToolError::denied(message),
        // The request certainly had no effect.
        (_, false) => ToolError::retryable(message),
        (_, true) if effect == Effect::Once => ToolError::in_doubt(message),
        (NetErrorKind::Refused, true) => ToolError::denied(message),
        (NetErrorKind::Unusable, true) => ToolError::failed(message),
        (_, true) if effect == Effect::Readonly => ToolError::retryable(message),
        (_, true) => ToolError::in_doubt(message),
    }
}

fn failure(method: &Method, response: &Response, how: &Exchange, effect: Effect) -> Option<ToolError> {
    if response.status.is_success() {
        return None;
    }
    if let (401, Some(provider)) = (response.status.as_u16(), &how.unauthorized) {
        return Some(ToolError::connection_required(provider));
    }
    let text = String::from_utf8_lossy(&response.body);
    let excerpt: String = text.trim().chars().take(EXCERPT).collect();
    let detail = if excerpt.is_empty() { String::new() } else { format!(": {excerpt}") };
    let message = format!("{method} {} answered {}{detail}", response.url.without_query(), response.status);
    let delay = status::delay_of(&response.headers, SystemTime::now());
    let error = status::error_of(response.status, effect, delay, message)?;
    Some(match json_of(response) {
        Some(body) => error.with_data(body),
        None => error,
    })
}

fn redacted(error: ToolError, seen: &Redactor) -> ToolError {
    let clean = |text: String| seen.redact(&text).into_owned();
    match error {
        ToolError::Failed { message, retry, code, mut data } => {
            data.iter_mut().for_each(|data| seen.redact_value(data));
            ToolError::Failed { message: clean(message), retry, code, data }
        }
        ToolError::Denied { reason } => ToolError::Denied { reason: clean(reason) },
        ToolError::InDoubt { reason } => ToolError::InDoubt { reason: clean(reason) },
        ToolError::Unavailable { message } => ToolError::Unavailable { message: clean(message) },
        other => other,
    }
}

/// The output for a response: JSON as it is, text as text, anything else as a file.
async fn output(
    call: &Call,
    method: &Method,
    response: &Response,
    how: &Exchange,
    seen: &Redactor,
) -> ToolResult<Output> {
    let mut output = if *method == Method::HEAD || response.body.is_empty() {
        Output::value(Value::Null)
    } else if let Some(value) = readable(response) {
        Output::value(value)
    } else {
        file(call, response).await?
    };
    if !how.shown.is_empty() || *method == Method::HEAD {
        output.value =
            json!({"status": response.status.as_u16(), "headers": shown(response, how), "body": output.value});
    }
    seen.redact_value(&mut output.value);
    Ok(output)
}

fn shown(response: &Response, how: &Exchange) -> Map<String, Value> {
    let all = how.shown.is_empty();
    let names = response.headers.keys().filter(|name| all || how.shown.contains(name));
    names
        .map(|name| {
            let values = response.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
            (name.to_string(), Value::from(values.collect::<Vec<_>>().join(", ")))
        })
        .collect()
}

/// The media type of a response, without its parameters.
fn media_type(response: &Response) -> String {
    let text = response.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn json_of(response: &Response) -> Option<Value> {
    let media_type = media_type(response);
    let is_json = media_type == "application/json" || media_type.ends_with("+json") || media_type == "text/json";
    is_json.then(|| serde_json::from_slice(&response.body).ok()).flatten()
}

fn readable(response: &Response) -> Option<Value> {
    if let Some(value) = json_of(response) {
        return Some(value);
    }
    let kind = media_type(response);
    let is_text = kind.is_empty()
        || kind.starts_with("text/")
        || kind.ends_with("+xml")
        || kind.ends_with("json")
        || matches!(kind.as_str(), "application/xml" | "application/javascript" | "application/x-www-form-urlencoded");
    let text = std::str::from_utf8(&response.body).ok().map(|text| Value::from(text.trim_start_matches('\u{feff}')));
    match text {
        Some(text) if is_text => Some(text),
        // Not UTF-8: replace what cannot be decoded.
        None if kind.starts_with("text/") => Some(String::from_utf8_lossy(&response.body).into()),
        _ => None,
    }
}

async fn file(call: &Call, response: &Response) -> ToolResult<Output> {
    let media_type = Some(media_type(response)).filter(|kind| !kind.is_empty());
    media::output(call, media_type.as_deref().unwrap_or("application/octet-stream"), &response.body).await
}
