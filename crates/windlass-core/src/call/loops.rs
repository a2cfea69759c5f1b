//! Loops: the same call with the same result, over and over, with nothing new in between. Looks at the call **and** the
//! result, so polling a job that changes is no loop.
//!
//! Counted within one body, over the calls it makes by name, as a model makes them; a typed call (`charge::call(…)`) is a
//! program's own, and its loops its author's business. Calls that are handed in from outside count by their session, see
//! [`sessions`]. Everything here follows from recorded outcomes, taken in the order
//! in which the body was told: entered again after a crash, a body meets the same refusals. The calls of a batch are
//! judged by what was told before the batch, and counted in its order once it is over, whichever of them ended first.
//!
//! What it costs: two digests for a call by name inside a durable body, which are little beside the record that is written
//! for it, or for a call that is handed in with a session. Other root calls and typed calls pay one branch. A body keeps [`WINDOW`] entries of fixed size.

pub(crate) mod sessions;

use std::sync::Arc;

use super::request::{ToolCall, ToolRef};
use crate::limits;
use crate::policy::Policy;
use crate::run::record::Recorded;
use crate::tool::{Snapshot, ToolError};
use crate::value::Digest;
use crate::value::digest::Encoder;

/// Different calls among which a repetition is noticed: models go round in circles of two or three calls, hardly of more.
const WINDOW: usize = 8;

/// Which call.
#[derive(Clone)]
pub(crate) struct Key {
    tool: Arc<str>,
    args: Digest,
    /// The call's own word on how often is too often.
    limit: Option<u32>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.tool == other.tool && self.args == other.args
    }
}

impl Key {
    /// `None` for a call that is not looked at.
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

/// How often a tool may be called in vain, where the call itself does not say.
pub(crate) fn limit(runtime: &Policy, snapshot: &Snapshot, tool: &str) -> u32 {
    let own = snapshot.by_name(tool).and_then(|tool| tool.spec().limits.loop_limit);
    own.or(runtime.loop_limit).unwrap_or(limits::LOOP_LIMIT)
}

struct Seen {
    key: Key,
    result: Digest,
    /// How often, since anything new happened.
    times: u32,
}

/// What a body was told lately, the latest last.
#[derive(Default)]
pub(crate) struct Loops(Vec<Seen>);

impl Loops {
    /// Why this call is not made, if it would only go on with a loop.
    /// `limit` says how often a tool may be called in vain, where the call itself does not.
    pub(crate) fn refusal(&self, key: &Key, limit: impl FnOnce(&str) -> u32) -> Option<ToolError> {
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

    /// The body is told an outcome. A refusal of ours is no outcome: it must not make the next call look new.
    pub(crate) fn note(&mut self, key: Key, result: &Recorded) {
        let result = digest(result);
        let known = self.0.iter().position(|seen| seen.key == key);
        match known.map(|index| self.0.remove(index)) {
            Some(seen) if seen.result == result => {
                let times = seen.times.saturating_add(1);
                self.0.push(Seen { times, ..seen });
            }
            _ => {
                // Something new: whatever went round before has led somewhere.
                self.0.iter_mut().for_each(|seen| seen.times = 0);
                if self.0.len() == WINDOW {
                    self.0.remove(0);
                }
                self.0.push(Seen { key, result, times: 1 });
            }
        }
    }
}

/// The same for results that say the same. Correlation ids differ from call to call, and say nothing.
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

    fn key(tool: &str, n: u32) -> Key {
        Key::of(&ToolCall::new(tool, json!({"n": n}))).unwrap()
    }

    /// Whether the next call `a` is refused after these outcomes of `(tool, result)`.
    fn refused(told: impl IntoIterator<Item = (&'static str, u32)>) -> bool {
        let mut loops = Loops::default();
        for (tool, result) in told {
            loops.note(key(tool, 0), &Ok(Arc::new(Output::value(json!(result)))));
        }
        loops.refusal(&key("a", 0), |_| limits::LOOP_LIMIT).is_some()
    }

    #[test]
    fn e13_the_same_call_with_the_same_result_is_a_loop() {
        let times = |n: u32| (0..n).map(|_| ("a", 7));
        assert!(!refused(times(limits::LOOP_LIMIT - 1)));
        assert!(refused(times(limits::LOOP_LIMIT)));
        assert!(refused(times(limits::LOOP_LIMIT + 9)), "and stays one");
    }

    #[test]
    fn e13_a_changing_result_is_no_loop() {
        assert!(!refused((0..100).map(|n| ("a", n))));
        assert!(!refused((0..100).map(|n| ("a", n / (limits::LOOP_LIMIT - 1)))));
    }

    #[test]
    fn e13_going_round_in_a_circle_of_several_calls_is_a_loop() {
        assert!(refused((0..20).map(|n| (["a", "b", "c"][n % 3], 1))));
    }

    #[test]
    fn e13_something_new_in_between_ends_a_loop() {
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
