//! Loop detection: the same call with the same result, over and over, with nothing new in between. It considers the
//! call **and** the result, so polling a job that changes is not a loop.
//!
//! Loops are counted within one body, over the calls that it makes by name, as a model makes them. A typed call
//! (`charge::call(…)`) is written by a programmer and is not counted. Calls that are submitted from outside are counted
//! by session, see [`sessions`]. Everything here follows from recorded outcomes, in the order in which the body
//! received them, so a body that is entered again after a crash meets the same refusals. The calls of a batch are
//! judged by the outcomes before the batch, and counted in its order once it is over, whichever of them ended first.
//!
//! The cost is two digests for a call by name inside a durable body, which is little compared with its record, or for a
//! call that is submitted with a session. Other root calls and typed calls pay one branch. A body keeps at most
//! [`WINDOW`] entries of fixed size.

pub(crate) mod sessions;

use std::sync::Arc;

use super::request::{ToolCall, ToolRef};
use crate::limits;
use crate::policy::Policy;
use crate::run::record::Recorded;
use crate::tool::{Snapshot, ToolError};
use crate::value::Digest;
use crate::value::digest::Encoder;

/// Number of different calls among which a repetition is noticed. Models usually repeat cycles of two or three calls.
const WINDOW: usize = 8;

/// Identifies a call for loop detection.
#[derive(Clone)]
pub(crate) struct LoopKey {
    tool: Arc<str>,
    args: Digest,
    /// The call's own limit for repetitions.
    limit: Option<u32>,
}

impl PartialEq for LoopKey {
    fn eq(&self, other: &Self) -> bool {
        self.tool == other.tool && self.args == other.args
    }
}

impl LoopKey {
    /// `None` for a call that is not counted.
    pub(crate) fn of(call: &ToolCall) -> Option<Self> {
        match &call.tool {
            ToolRef::Name(name) => {
                let limit = call.limits.as_ref().and_then(|policy| policy.loop_limit);
                Some(Self { tool: name.clone(), args: Digest::of(&call.args), limit })
            }
            ToolRef::Id(_) => None,
        }
    }
}

/// How often a tool may be called with the same result, if the call itself sets no limit.
pub(crate) fn limit(runtime: &Policy, snapshot: &Snapshot, tool: &str) -> u32 {
    let own = snapshot.by_name(tool).and_then(|tool| tool.spec().limits.loop_limit);
    own.or(runtime.loop_limit).unwrap_or(limits::LOOP_LIMIT)
}

struct SeenCall {
    key: LoopKey,
    result: Digest,
    /// How often, since the last new result.
    times: u32,
}

/// The latest outcomes of a body, the newest last.
#[derive(Default)]
pub(crate) struct Loops(Vec<SeenCall>);

impl Loops {
    /// Why this call is refused, if it would only continue a loop. `limit` returns how often a tool may be called with
    /// the same result, if the call itself sets no limit.
    pub(crate) fn refusal(&self, key: &LoopKey, limit: impl FnOnce(&str) -> u32) -> Option<ToolError> {
        let seen = self.0.iter().find(|seen| seen.key == *key)?;
        if seen.times < key.limit.unwrap_or_else(|| limit(&key.tool)) {
            return None;
        }
        let (tool, times) = (&key.tool, seen.times);
        Some(ToolError::failed(format!(
            "refused: `{tool}` was called {times} times with these arguments and returned the same each time, with \
             nothing new in between; call it with other arguments, do something else first, or finish with what you have"
        )))
    }

    /// Adds an outcome. Refusals by loop detection must not be added: they would make the next call look new.
    pub(crate) fn note(&mut self, key: LoopKey, result: &Recorded) {
        let result = digest(result);
        let known = self.0.iter().position(|seen| seen.key == key);
        match known.map(|index| self.0.remove(index)) {
            Some(seen) if seen.result == result => {
                let times = seen.times.saturating_add(1);
                self.0.push(SeenCall { times, ..seen });
            }
            _ => {
                // Something new: the cycle before it made progress.
                self.0.iter_mut().for_each(|seen| seen.times = 0);
                if self.0.len() == WINDOW {
                    self.0.remove(0);
                }
                self.0.push(SeenCall { key, result, times: 1 });
            }
        }
    }
}

/// The same digest for results with the same content. Correlation ids differ from call to call and are ignored.
fn digest(result: &Recorded) -> Digest {
    let mut encoder = Encoder::new();
    match result {
        Ok(output) => {
            encoder.value(&output.value);
            if !output.content.is_empty() {
                encoder.value(&serde_json::to_value(&output.content).unwrap_or_default());
            }
        }
        Err(error) => {
            encoder.text(error.kind());
            if !matches!(**error, ToolError::Internal(_) | ToolError::Panicked { .. }) {
                encoder.text(&error.to_string());
            }
        }
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::Output;

    fn key(tool: &str, n: u32) -> LoopKey {
        LoopKey::of(&ToolCall::new(tool, json!({"n": n}))).unwrap()
    }

    /// Whether the next call `a` is refused after these outcomes of `(tool, result)`.
    fn refused(outcomes: impl IntoIterator<Item = (&'static str, u32)>) -> bool {
        let mut loops = Loops::default();
        for (tool, result) in outcomes {
            loops.note(key(tool, 0), &Ok(Arc::new(Output::value(json!(result)))));
        }
        loops.refusal(&key("a", 0), |_| limits::LOOP_LIMIT).is_some()
    }

    #[test]
    fn e13_the_same_call_with_the_same_result_is_a_loop() {
        let times = |n: u32| (0..n).map(|_| ("a", 7));
        assert!(!refused(times(limits::LOOP_LIMIT - 1)));
        assert!(refused(times(limits::LOOP_LIMIT)));
        assert!(refused(times(limits::LOOP_LIMIT + 9)), "it stays a loop");
    }

    #[test]
    fn e13_a_changing_result_is_no_loop() {
        assert!(!refused((0..100).map(|n| ("a", n))));
        assert!(!refused((0..100).map(|n| ("a", n / (limits::LOOP_LIMIT - 1)))));
    }

    #[test]
    fn e13_a_cycle_of_several_calls_is_a_loop() {
        assert!(refused((0..20).map(|n| (["a", "b", "c"][n % 3], 1))));
    }

    #[test]
    fn e13_a_new_result_in_between_ends_a_loop() {
        assert!(!refused((0..100).map(|n| if n % 2 == 0 { ("a", 1) } else { ("b", n) })), "edit, test, edit, test");
        let many = (0..100).map(|n| if n % 4 == 3 { ("b", n) } else { ("a", 1) });
        assert!(!refused(many));
    }

    #[test]
    fn e13_what_is_kept_is_bounded() {
        let mut loops = Loops::default();
        for n in 0..1_000 {
            loops.note(key("a", n), &Ok(Arc::default()));
        }
        assert_eq!(loops.0.len(), WINDOW);
    }

    #[test]
    fn e13_failures_that_differ_in_their_correlation_only_are_the_same() {
        let panicked = |n: u32| Err(Arc::new(ToolError::Panicked { correlation: n.to_string() }));
        assert_eq!(digest(&panicked(1)), digest(&panicked(2)));
        let failed = |text: &str| Err(Arc::new(ToolError::failed(text)));
        assert_ne!(digest(&failed("a")), digest(&failed("b")));
    }
}
