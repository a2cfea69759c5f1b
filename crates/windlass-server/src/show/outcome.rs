//! What calls came to.

use serde_json::Value;
use windlass::{Outcome, ToolError};

use crate::wire;

/// How a call failed, as anyone outside may know it.
pub(crate) fn failure(error: &ToolError) -> wire::Failure {
    let seen = windlass::activity::Failure::of(error);
    let violations = match error {
        ToolError::InvalidArguments { violations } => violations.iter().map(violation).collect(),
        _ => Vec::new(),
    };
    let code = error.code().map(str::to_owned);
    wire::Failure { kind: seen.kind, message: seen.message, code, violations, retryable: seen.retryable }
}

pub(crate) fn violation(violation: &windlass::tools::Violation) -> wire::Violation {
    wire::Violation { pointer: violation.pointer.clone(), message: violation.message.clone() }
}

pub(crate) fn outcome(outcome: &Outcome) -> wire::Outcome {
    let (value, content, error) = match &outcome.result {
        Ok(output) => {
            let blocks = output.content.iter().filter_map(|block| serde_json::to_value(block).ok());
            (Some(output.value.clone()), blocks.collect(), None)
        }
        Err(error) => (None, Vec::new(), Some(failure(error))),
    };
    let shown = value.as_ref().and_then(|value: &Value| {
        let shown = outcome.for_model();
        (shown != *value).then_some(shown)
    });
    let milliseconds = |nanos: u64| nanos as f64 / 1e6;
    let times = wire::Times {
        queued_ms: milliseconds(outcome.times.queued),
        running_ms: milliseconds(outcome.times.running),
        total_ms: milliseconds(outcome.times.total),
    };
    let call_id = outcome.id.as_deref().map(str::to_owned);
    wire::Outcome { path: outcome.path.clone(), call_id, value, content, shown, error, times }
}

pub(crate) fn outcomes(outcomes: &[Outcome]) -> Vec<wire::Outcome> {
    outcomes.iter().map(outcome).collect()
}
