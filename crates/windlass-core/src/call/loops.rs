//! Loop detection: the same call with the same result, over and over, with nothing new in between. It considers the
//! call **and** the result, so polling a job that changes is not a loop.
//!
//! Within one body, the calls are counted that it makes by name, as a model makes them. A typed call (`charge::call(…)`)
//! is written by a programmer and is not counted. Everything follows from recorded outcomes, in the order in which the
//! body received them, so a body that is entered again after a crash meets the same refusals. The calls of a batch are
//! judged by the outcomes before the batch, and counted in its order once it is over, whichever of them ended first.
//!
//! Agents outside of the runtime submit each of their calls as a run of its own. Those are counted by session, in the
//! order in which the runs end. The store keeps the outcomes ([`RecentOutcomes`]), so they count for every process that
//! uses the store. A call is judged when it is submitted by name; a typed call is never refused. A call under a key that
//! was used before is not a new call, and a call that was accepted is made: neither is judged. Calls in progress do not
//! count. A session without outcomes for [`LOOP_MEMORY`](crate::limits::LOOP_MEMORY) starts over: a loop is quick, and a
//! client that repeats the same call only now and then must not be refused for the lifetime of the session.
//!
//! The cost of a submitted call with a session is two digests, one read of a small row, and a write of it in the commit
//! that ends the run. A call without a session pays one branch.

use std::sync::Arc;

use super::batch::was_skipped;
use super::plan::secret_places;
use super::request::{ToolCall, ToolRef};
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::policy::Policy;
use crate::run::Run;
use crate::run::record::{Asked, OpKind, OpOutcome, Recorded};
use crate::store::{RecentOutcomes, SeenOutcome, StoreError};
use crate::tool::{Snapshot, Tool, ToolError};
use crate::value::digest::Encoder;

/// The code of the error that a call is refused with.
const CODE: &str = "loop";

/// Identifies a call for loop detection.
#[derive(Clone)]
pub(crate) struct LoopKey {
    tool: Arc<str>,
    digest: u64,
    /// The call's own limit for repetitions.
    limit: Option<u32>,
}

impl LoopKey {
    /// `None` for a call that is never refused.
    pub(crate) fn of(call: &ToolCall) -> Option<Self> {
        match &call.tool {
            ToolRef::Name(name) => {
                let limit = call.limits.as_ref().and_then(|policy| policy.loop_limit);
                Some(Self { tool: name.clone(), digest: call_digest(name, &call.args), limit })
            }
            ToolRef::Id(_) => None,
        }
    }

    /// Why this call is refused, if it would only continue a loop. `limit` returns how often a tool may be called with
    /// the same result, if the call itself sets no limit.
    fn refusal(&self, recent: &RecentOutcomes, limit: impl FnOnce(&str) -> u32) -> Option<ToolError> {
        let (tool, times) = (&self.tool, recent.repeats(self.digest));
        if times == 0 || times < self.limit.unwrap_or_else(|| limit(tool)) {
            return None;
        }
        let message = format!(
            "refused: `{tool}` was called {times} times with these arguments and returned the same each time, with \
             nothing new in between; call it with other arguments, do something else first, or finish with what you have"
        );
        Some(ToolError::rejected(CODE, message))
    }
}

/// How often a tool may be called with the same result, if the call itself sets no limit.
pub(crate) fn limit(runtime: &Policy, snapshot: &Snapshot, tool: &str) -> u32 {
    let own = snapshot.by_name(tool).and_then(|tool| tool.spec().limits.loop_limit);
    own.or(runtime.loop_limit).unwrap_or(limits::LOOP_LIMIT)
}

/// The latest outcomes of a body.
#[derive(Default)]
pub(crate) struct Loops(RecentOutcomes);

impl Loops {
    /// See [`LoopKey::refusal`].
    pub(crate) fn refusal(&self, key: &LoopKey, limit: impl FnOnce(&str) -> u32) -> Option<ToolError> {
        key.refusal(&self.0, limit)
    }

    /// Adds an outcome. Refusals by loop detection must not be added: they would make the next call look new.
    pub(crate) fn note(&mut self, key: &LoopKey, result: &Recorded) {
        self.0.push(SeenOutcome::Compared { call: key.digest, result: digest(result) });
    }
}

/// How the outcome of a root call counts in its session.
#[derive(Clone, Copy)]
pub(crate) enum CountedCall {
    /// The call is not made.
    No,
    /// The digest of the call.
    Yes(u64),
    /// The arguments contain secrets, and the store must not learn a digest of those.
    Secret,
}

impl CountedCall {
    /// A call that is made now.
    pub(crate) fn of(call: &ToolCall, tool: Option<&Arc<Tool>>) -> Self {
        match secret_places(tool, &call.args).is_empty() {
            true => Self::Yes(call_digest(call.tool.as_str(), &call.args)),
            false => Self::Secret,
        }
    }

    /// A call that is recorded. If it was refused, its outcome says so.
    fn recorded(asked: &Asked) -> Self {
        let null = serde_json::Value::Null;
        match asked.secrets.is_empty() {
            true => Self::Yes(call_digest(asked.as_asked(), asked.input.as_deref().unwrap_or(&null))),
            false => Self::Secret,
        }
    }

    fn seen(self, result: &Recorded) -> Option<SeenOutcome> {
        let is_refusal = |error: &Arc<ToolError>| error.code() == Some(CODE);
        match self {
            Self::No => None,
            _ if was_skipped(result) || result.as_ref().is_err_and(is_refusal) => None,
            Self::Yes(call) if !has_secrets(result) => Some(SeenOutcome::Compared { call, result: digest(result) }),
            Self::Yes(_) | Self::Secret => Some(SeenOutcome::New),
        }
    }
}

/// The root calls of a run that count in its session; none for a run that was spawned or forked.
pub(crate) type CountedCalls = Vec<CountedCall>;

/// The outcomes that the end of a run adds to its session.
pub(crate) fn seen(calls: &[CountedCall], outcomes: &[OpOutcome]) -> Vec<SeenOutcome> {
    calls.iter().zip(outcomes).filter_map(|(call, outcome)| call.seen(&outcome.result)).collect()
}

/// The counted calls of a run that was taken up.
pub(crate) fn recorded_calls(run: &Run) -> CountedCalls {
    if run.session.is_none() || run.with(|machine| machine.is_spawned()) || !run.origins.is_empty() {
        return Vec::new();
    }
    let root = Path::root();
    match run.recorded_op(&root, |op| (op.asked.kind, op.asked.name.parse(), CountedCall::recorded(&op.asked))) {
        Some((OpKind::Call, _, call)) => vec![call],
        Some((OpKind::Batch, Ok(count), _)) => {
            let call = |index: u32| run.recorded_op(&root.child(index), |op| CountedCall::recorded(&op.asked));
            (0..count).map(|index| call(index).unwrap_or(CountedCall::No)).collect()
        }
        _ => Vec::new(),
    }
}

impl Kernel {
    /// For each of the calls submitted together in a session, why it is refused, if it would only continue a loop. Empty
    /// without a session.
    pub(crate) async fn loop_refusals(
        &self,
        session: Option<&Arc<str>>,
        snapshot: &Snapshot,
        calls: &[ToolCall],
    ) -> Result<Vec<Option<ToolError>>, StoreError> {
        let Some(session) = session else { return Ok(Vec::new()) };
        let keys: Vec<_> = calls.iter().map(LoopKey::of).collect();
        if keys.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let recent = self.store.sessions().recent_outcomes(session.clone()).await?;
        if recent.is_past(self.env.clock.now()) {
            return Ok(Vec::new());
        }
        let limit = |tool: &str| limit(&self.env.policy, snapshot, tool);
        Ok(keys.iter().map(|key| key.as_ref()?.refusal(&recent, limit)).collect())
    }
}

fn call_digest(tool: &str, args: &serde_json::Value) -> u64 {
    let mut encoder = Encoder::new();
    encoder.text(tool);
    encoder.value(args);
    encoder.finish().short()
}

fn has_secrets(result: &Recorded) -> bool {
    result.as_ref().is_ok_and(|output| !output.secrets.is_empty())
}

/// The same digest for results with the same content. Correlation ids differ from call to call and are ignored.
fn digest(result: &Recorded) -> u64 {
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
    encoder.finish().short()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::Output;

    #[test]
    fn e13_the_loop_limit_is_the_number_of_calls_that_are_made() {
        let key = LoopKey::of(&ToolCall::new("look", json!({}))).unwrap();
        let mut loops = Loops::default();
        for _ in 0..limits::LOOP_LIMIT {
            assert!(loops.refusal(&key, |_| limits::LOOP_LIMIT).is_none());
            loops.note(&key, &Ok(Arc::new(Output::value(json!(7)))));
        }
        let refused = loops.refusal(&key, |_| limits::LOOP_LIMIT).unwrap();
        assert_eq!(refused.code(), Some(CODE));
        assert!(LoopKey::of(&ToolCall::by_id("look", json!({}))).is_none(), "a typed call is never refused");
    }

    #[test]
    fn e13_failures_that_differ_in_their_correlation_only_are_the_same() {
        let panicked = |n: u32| Err(Arc::new(ToolError::Panicked { correlation: n.to_string() }));
        assert_eq!(digest(&panicked(1)), digest(&panicked(2)));
        let failed = |text: &str| Err(Arc::new(ToolError::failed(text)));
        assert_ne!(digest(&failed("a")), digest(&failed("b")));
    }

    #[test]
    fn e13_the_store_learns_no_digest_of_a_secret() {
        use crate::run::secrets::Places;
        let plain: Recorded = Ok(Arc::new(Output::value(json!("x"))));
        let mut secret = Output::value(json!("x"));
        secret.secrets = Places::whole(&secret.value);
        assert!(matches!(CountedCall::Yes(1).seen(&plain), Some(SeenOutcome::Compared { call: 1, .. })));
        assert_eq!(CountedCall::Yes(1).seen(&Ok(Arc::new(secret))), Some(SeenOutcome::New));
        assert_eq!(CountedCall::Secret.seen(&plain), Some(SeenOutcome::New));
        assert_eq!(CountedCall::No.seen(&plain), None);
    }
}
