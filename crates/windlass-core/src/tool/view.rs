//! The one place that turns an outcome into what the model, the API and other protocols see.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use super::error::{Retryable, ToolError, Violation};
use super::output::Output;
use crate::limits::ERROR_CHARS;

/// What anyone outside the process may know of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorView<'a> {
    /// The kind, such as `timed_out`.
    pub kind: &'static str,
    /// One bounded sentence.
    pub message: Cow<'a, str>,
    /// Each violation of the schema.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub violations: &'a [Violation],
    /// Whether calling again may help without changing anything.
    pub retryable: bool,
}

impl<'a> ErrorView<'a> {
    /// The outside of `error`.
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
            retryable: matches!(error, ToolError::Failed { retry: Retryable::Yes | Retryable::After(_), .. }),
        }
    }
}

/// What the model sees of a result, as JSON that is well-formed whatever the result contains.
pub fn for_model(result: Result<&Output, &ToolError>, open_world: bool) -> Value {
    match result {
        Ok(output) if open_world => json!({ "untrusted": true, "result": output.value }),
        Ok(output) => output.value.clone(),
        Err(error) => json!({ "error": ErrorView::of(error) }),
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

/// At most [`ERROR_CHARS`] characters, cut at a character and saying so.
pub(crate) fn bounded(text: Cow<'_, str>) -> Cow<'_, str> {
    match text.char_indices().nth(ERROR_CHARS) {
        Some((cut, _)) => format!("{}… ({} more characters)", &text[..cut], text[cut..].chars().count()).into(),
        None => text,
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
        assert_eq!(internal.chain(), ["password=hunter2"], "the log gets the whole chain");
    }

    #[test]
    fn long_messages_are_cut_at_a_character_and_say_so() {
        let error = ToolError::failed("ü".repeat(ERROR_CHARS + 10));
        let view = ErrorView::of(&error);
        assert!(view.message.ends_with("… (10 more characters)"));
    }
}
