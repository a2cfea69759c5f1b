//! Outcomes of calls.

use std::borrow::Cow;
use std::sync::Arc;

use windlass::{Content, Outcome, Output, ToolError};

use crate::wire;

/// The error of a call, without internal details.
pub(crate) fn failure(error: &ToolError) -> wire::Failure {
    let public = windlass::run::activity::Failure::of(error);
    let violations = match error {
        ToolError::InvalidArguments { violations } => violations.iter().map(violation).collect(),
        _ => Vec::new(),
    };
    let data = public.data.map(|data| *data);
    let (kind, message, code, retryable) = (public.kind, public.message, public.code, public.retryable);
    wire::Failure { kind, message, code, data, violations, retryable }
}

pub(crate) fn violation(violation: &windlass::tool::Violation) -> wire::Violation {
    wire::Violation { pointer: violation.pointer.clone(), message: violation.message.clone() }
}

pub(crate) fn outcome(outcome: Outcome) -> wire::Outcome {
    let mut outcome = outcome;
    if let Ok(output) = &mut outcome.result
        && let Cow::Owned(clean) = output.without_secrets()
    {
        *output = Arc::new(clean);
    }
    let shown = match outcome.shown() {
        Cow::Owned(shown) if outcome.value().is_some_and(|value| *value != shown) => Some(shown),
        _ => None,
    };
    let json = |blocks: &[Content]| blocks.iter().filter_map(|block| serde_json::to_value(block).ok()).collect();
    let shown_content = match &outcome.result {
        Ok(output) if !output.content.is_empty() => json(&outcome.projection().content),
        _ => Vec::new(),
    };
    let (value, content, error) = match outcome.result {
        Ok(output) => {
            // The only reference as a rule, so a large output is not copied.
            let Output { value, content, .. } = Arc::unwrap_or_clone(output);
            (Some(value), json(&content), None)
        }
        Err(error) => (None, Vec::new(), Some(failure(&error))),
    };
    let milliseconds = |nanos: u64| nanos as f64 / 1e6;
    let times = wire::Times {
        queued_ms: milliseconds(outcome.times.queued),
        running_ms: milliseconds(outcome.times.running),
        total_ms: milliseconds(outcome.times.total),
    };
    let call_id = outcome.id.as_deref().map(str::to_owned);
    let call = wire::OutcomeCall {
        tool: outcome.call.tool.to_string(),
        name: outcome.call.name.to_string(),
        args: outcome.call.shown_args(),
        executed: outcome.call.shown_executed(),
    };
    // It was JSON when it was accepted.
    let metadata = outcome.call.metadata.and_then(|metadata| wire::RawJson::new(metadata.as_str().to_owned()).ok());
    wire::Outcome { path: outcome.path, call_id, call, metadata, value, content, shown, shown_content, error, times }
}

pub(crate) fn outcomes(outcomes: Vec<Outcome>) -> Vec<wire::Outcome> {
    outcomes.into_iter().map(outcome).collect()
}
