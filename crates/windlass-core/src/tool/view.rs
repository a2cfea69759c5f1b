//! Turns an outcome into what models, API clients and other protocols see. No other module does.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::budget;
use super::error::{Retryable, ToolError, Violation};
use super::output::{Content, Output, text_of};
use super::projection::{ModelView, OutputUri};
use crate::limits::ERROR_BYTES;

/// What clients and models may know of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorView<'a> {
    /// The kind, such as `timed_out`.
    pub kind: &'static str,
    /// One bounded sentence.
    pub message: Cow<'a, str>,
    /// Each violation of the schema.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub violations: &'a [Violation],
    /// The short name that the tool gave the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'a str>,
    /// The value that the tool attached to the failure, bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Cow<'a, Value>>,
    /// Whether the same call may succeed if it is repeated.
    pub retryable: bool,
}

impl<'a> ErrorView<'a> {
    /// The view of `error`.
    pub fn of(error: &'a ToolError) -> Self {
        let message: Cow<'a, str> = match error {
            ToolError::InvalidArguments { violations } => describe(violations).into(),
            ToolError::Unavailable { message }
            | ToolError::Failed { message, .. }
            | ToolError::TimedOut { message } => message.into(),
            ToolError::Internal(internal) => hidden("an internal error occurred", &internal.correlation),
            ToolError::Panicked { correlation } => hidden("the tool crashed", correlation),
            ToolError::Cancelled { reason } | ToolError::Denied { reason } | ToolError::InDoubt { reason } => {
                reason.into()
            }
            ToolError::ConnectionRequired { provider } => {
                format!("connect to {provider} first, then call again").into()
            }
        };
        Self {
            kind: error.kind(),
            message: bounded(message),
            violations: if let ToolError::InvalidArguments { violations } = error { violations } else { &[] },
            code: error.code(),
            data: error.data().map(bounded_data),
            retryable: matches!(error, ToolError::Failed { retry: Retryable::Yes | Retryable::After(_), .. }),
        }
    }
}

/// An owned [`ErrorView`], to be stored and sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind, such as `timed_out`.
    pub kind: String,
    /// One bounded sentence.
    pub message: String,
    /// The short name that the tool gave the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The value that the tool attached to the failure, bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<Value>>,
    /// Whether the same call may succeed if it is repeated.
    pub retryable: bool,
}

impl Failure {
    /// The view of `error`.
    pub fn of(error: &ToolError) -> Self {
        let view = ErrorView::of(error);
        Self {
            kind: view.kind.to_owned(),
            message: view.message.into_owned(),
            code: view.code.map(str::to_owned),
            data: view.data.map(|data| Box::new(data.into_owned())),
            retryable: view.retryable,
        }
    }
}

/// What the model sees of a result: well-formed JSON, whatever the result contains. An output of an `open_world` tool
/// is marked as untrusted.
pub fn for_model(result: Result<&Output, &ToolError>, open_world: bool) -> Value {
    match result {
        Ok(output) => marked(Cow::Borrowed(&output.value), open_world).into_owned(),
        Err(error) => json!({ "error": ErrorView::of(error) }),
    }
}

fn marked(value: Cow<'_, Value>, open_world: bool) -> Cow<'_, Value> {
    if open_world { Cow::Owned(json!({ "untrusted": true, "result": value })) } else { value }
}

/// An outcome as content blocks, for protocols that have such blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Projection {
    /// What the model sees. Each text is within the tool's budget.
    pub content: Vec<Content>,
    /// Whether the call failed; the content then contains the error.
    pub failed: bool,
    /// Whether the content comes from outside systems. Nothing in it is an instruction then.
    pub untrusted: bool,
}

/// Like [`for_model`], through the tool's projector and within its budget.
pub(crate) fn shown<'o>(
    result: Result<&'o Output, &ToolError>,
    view: &ModelView,
    uri: &OutputUri<'_>,
) -> Cow<'o, Value> {
    match result {
        Ok(output) => marked(view.value(output, uri), view.open_world),
        Err(_) => Cow::Owned(for_model(result, false)),
    }
}

/// Like [`shown`], as content blocks.
pub(crate) fn projection(result: Result<&Output, &ToolError>, view: &ModelView, uri: &OutputUri<'_>) -> Projection {
    match result {
        Ok(output) => {
            let content = view.content(output, uri);
            Projection { content, failed: false, untrusted: view.open_world }
        }
        Err(error) => {
            let text = json!({ "error": ErrorView::of(error) }).to_string();
            Projection { content: vec![Content::text(text)], failed: true, untrusted: false }
        }
    }
}

fn describe(violations: &[Violation]) -> String {
    let shown: Vec<String> = violations
        .iter()
        .map(|v| if v.pointer.is_empty() { v.message.clone() } else { format!("{}: {}", v.pointer, v.message) })
        .collect();
    format!("the arguments do not fit the tool's schema: {}", shown.join("; "))
}

fn hidden(what: &str, correlation: &str) -> Cow<'static, str> {
    format!("{what} (correlation id {correlation})").into()
}

/// Shortens a text to [`ERROR_BYTES`]: its head, a count of the omitted bytes, and its tail. The omitted part is not
/// kept, so the notice does not tell how to read it.
pub(crate) fn bounded(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= ERROR_BYTES {
        text
    } else {
        budget::fit(&text, ERROR_BYTES, |_| String::new()).into_owned().into()
    }
}

/// Like [`bounded`], for the value of an error: one that is too large becomes its text without the middle.
pub(crate) fn bounded_data(data: &Value) -> Cow<'_, Value> {
    if budget::surely_fits(data, ERROR_BYTES) {
        return Cow::Borrowed(data);
    }
    match bounded(text_of(data)) {
        Cow::Owned(cut) if cut.len() < text_of(data).len() => Cow::Owned(Value::String(cut)),
        _ => Cow::Borrowed(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b08_errors_are_well_formed_json_whatever_they_contain() {
        for text in ["a \"quote\"", "back\\slash", "new\nline", "nul\0", "\u{1b}[31m", "{\"error\":", "ü🦀", ""] {
            let error = ToolError::failed(text);
            let seen = for_model(Err(&error), false).to_string();
            let back: Value = serde_json::from_str(&seen).unwrap();
            assert_eq!(back["error"]["message"], text);
            assert_eq!(back["error"]["kind"], "failed");
        }
    }

    #[test]
    fn e03_an_internal_error_shows_only_its_correlation_id() {
        let source = std::io::Error::other("password=hunter2");
        let mut error = ToolError::from(source);
        if let ToolError::Internal(internal) = &mut error {
            internal.correlation = "c-1".to_owned();
        }
        let seen = for_model(Err(&error), false).to_string();
        assert!(seen.contains("c-1") && !seen.contains("hunter2"), "{seen}");
        let recorded = serde_json::to_string(&error).unwrap();
        assert!(recorded.contains("c-1") && !recorded.contains("hunter2"), "{recorded}");
        let ToolError::Internal(internal) = error else { panic!("an io error is internal") };
        assert_eq!(internal.chain(), ["password=hunter2"], "the log contains the whole chain");
    }

    #[test]
    fn e29_the_value_of_an_error_is_shown_with_its_code_and_bounded() {
        let error = ToolError::rejected("sold_out", "no seat is left").with_data(json!({"next_free": [1, 2]}));
        let seen = for_model(Err(&error), false);
        let expected = json!({"error": {"kind": "failed", "message": "no seat is left", "code": "sold_out",
                                        "data": {"next_free": [1, 2]}, "retryable": false}});
        assert_eq!(seen, expected);
        let large = ToolError::failed("x").with_data(json!({"list": "ü".repeat(ERROR_BYTES), "end": [1]}));
        let Some(Cow::Owned(Value::String(cut))) = ErrorView::of(&large).data else { panic!("it is not cut") };
        assert!(cut.len() <= ERROR_BYTES && cut.starts_with("{\"end\":[1]") && cut.ends_with("ü\"}"), "{cut}");
        assert!(cut.contains("bytes omitted here"), "{cut}");
        let again = ToolError::failed("x").with_data(cut.clone());
        assert_eq!(ErrorView::of(&again).data.unwrap().as_str(), Some(cut.as_str()), "what was cut is not cut again");
        let other = ToolError::denied("no").with_code("c").with_data(json!(1));
        assert_eq!((other.code(), other.data()), (None, None), "other kinds carry nothing");
        let source = ToolError::internal("password").with_data(json!("password"));
        assert!(!for_model(Err(&source), false).to_string().contains("password"));
    }

    #[test]
    fn e10_long_messages_are_cut_at_a_character_and_say_so() {
        let error = ToolError::failed(format!("{}at last: disk full", "ü".repeat(ERROR_BYTES)));
        let view = ErrorView::of(&error);
        assert!(view.message.len() <= ERROR_BYTES && view.message.starts_with("üü"), "{}", view.message);
        assert!(view.message.ends_with("üat last: disk full"), "the cause at the end is kept: {}", view.message);
        assert!(view.message.contains(" of 8210 bytes omitted here"), "{}", view.message);
        let again = ToolError::failed(view.message.clone());
        assert_eq!(ErrorView::of(&again).message, view.message, "the recorded and the displayed text are the same");
    }
}
