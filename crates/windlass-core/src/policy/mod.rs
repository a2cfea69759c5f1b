//! Policy: what governs calls, in one object that a runtime, a tool and a call may each have.
//!
//! A call's policy overrides its tool's, which overrides the runtime's, field by field; [`EffectivePolicy`] is what is left.
//! Approval alone works the other way: each level can demand it, and none can remove it. [`dry_run`](fn@dry_run)
//! predicts what would become of a call.

#[cfg(feature = "cel")]
mod cel;
mod dry_run;
mod expression;
mod facts;
#[cfg(feature = "cel")]
mod lower;
#[cfg(feature = "cel")]
mod meter;
#[cfg(not(feature = "cel"))]
mod no_cel;
mod past;
mod resolved;
#[cfg(feature = "cel")]
mod tree;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use dry_run::{DryRun, EnteredCall};
pub use dry_run::{Hypothetical, Prediction, Verdict, dry_run};
pub use expression::{BadExpression, Expression};
pub use facts::{Facts, PastCall, Session};
pub(crate) use past::{PastCalls, finished_calls, joined};
pub use resolved::{Demand, EffectivePolicy, Level, Need, Reason};

use crate::tool::ToolSpec;
use crate::tool::spec::{Approval, OnDoubt, Retry};

/// What governs a call. A field that is `None` leaves it to the next level: call, then tool, then runtime, then the default.
///
/// A call's policy is about that call; what a durable body does below it has its own. Steps set their own limits where they
/// are written.
///
/// ```
/// # use std::time::Duration;
/// # use windlass_core::policy::Policy;
/// let careful = Policy { timeout: Some(Duration::from_secs(5)), loop_limit: Some(3), ..Policy::default() };
/// # assert!(careful.check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
// Many fields: each is one setting that people write, and a flat list is how they write it.
pub struct Policy {
    /// Longest one attempt may run. By default a minute; an hour for a tool with the long-running hint. A durable body has
    /// no attempts: only its steps and calls do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Longest the call may take in all, queueing and retries included. By default there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// Repetition of failed attempts. By default only of failures that say it is safe. A destructive tool is never
    /// retried, whatever this says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How long an attempt that was asked to stop may still take. By default 50 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
    /// An attempt that has not called `heartbeat` for this long counts as timed out. By default nothing is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Duration>,
    /// What happens to a doubt that neither the mailbox nor the tool's `reconcile` settles. By default a person is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_doubt: Option<OnDoubt>,
    /// Which calls need approval. The demands of all levels add up: a level may ask for approval where another does not,
    /// and none can take back what another asks for. `Never` asks for nothing. By default nothing is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// How long a call waits for its approval. By default 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_within: Option<Duration>,
    /// What becomes of a call that needs approval in an unattended session. By default it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    /// How long a grant is valid once given. By default an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant_valid: Option<Duration>,
    /// Bytes of text the model is shown of one output. By default 32 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_budget: Option<usize>,
    /// Identical calls with identical results in a row, of one body or handed in for one session, before the next is refused.
    /// By default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loop_limit: Option<u32>,
    /// How deep in a run the call may stand. By default 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<usize>,
}

/// What becomes of a call that needs approval in an unattended session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unattended {
    /// It waits, for as long as approvals wait: a person may look later.
    #[default]
    Wait,
    /// It ends `denied` at once.
    Deny,
}

/// A policy that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy: {problem}")]
pub struct BadPolicy {
    problem: String,
}

impl Policy {
    /// This policy where it says something, `base` where it does not. Approval is what either asks for.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        Self {
            timeout: self.timeout.or(base.timeout),
            deadline: self.deadline.or(base.deadline),
            retry: self.retry.or(base.retry),
            grace: self.grace.or(base.grace),
            heartbeat: self.heartbeat.or(base.heartbeat),
            on_doubt: self.on_doubt.or(base.on_doubt),
            approval: either(self.approval.as_ref(), base.approval.as_ref()),
            approval_within: self.approval_within.or(base.approval_within),
            unattended: self.unattended.or(base.unattended),
            grant_valid: self.grant_valid.or(base.grant_valid),
            output_budget: self.output_budget.or(base.output_budget),
            loop_limit: self.loop_limit.or(base.loop_limit),
            max_depth: self.max_depth.or(base.max_depth),
        }
    }

    /// Refuses what would let nothing through, or nothing in.
    pub fn check(&self) -> Result<(), BadPolicy> {
        let bad = |problem: String| Err(BadPolicy { problem });
        let times = [
            ("timeout", self.timeout),
            ("deadline", self.deadline),
            ("heartbeat", self.heartbeat),
            ("approval_within", self.approval_within),
            ("grant_valid", self.grant_valid),
        ];
        if let Some((name, _)) = times.iter().find(|(_, time)| time.is_some_and(|time| time.is_zero())) {
            return bad(format!("a `{name}` of zero would fail every call; leave it out for the default"));
        }
        if self.retry.is_some_and(|retry| retry.attempts == 0) {
            return bad("zero attempts would never run a call; one attempt means no retry".to_owned());
        }
        let counts =
            [("output_budget", self.output_budget), ("loop_limit", self.loop_limit.map(|limit| limit as usize))];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return bad(format!("a `{name}` of zero would let nothing through; leave it out for the default"));
        }
        match &self.approval {
            Some(Approval::When(condition)) => {
                condition.check().map_err(|problem| BadPolicy { problem: format!("approval: {problem}") })
            }
            _ => Ok(()),
        }
    }
}

/// What either of two asks for.
fn either(a: Option<&Approval>, b: Option<&Approval>) -> Option<Approval> {
    match (a, b) {
        (Some(Approval::Always), _) | (_, Some(Approval::Always)) => Some(Approval::Always),
        (Some(Approval::When(a)), Some(Approval::When(b))) if a != b => {
            // One that is too long for both does not compile, and then asks for every call.
            Some(Approval::When(format!("({a}) || ({b})", a = a.source(), b = b.source()).into()))
        }
        (Some(when @ Approval::When(_)), _) | (_, Some(when @ Approval::When(_))) => Some(when.clone()),
        (Some(Approval::Never), _) | (_, Some(Approval::Never)) => Some(Approval::Never),
        (None, None) => None,
    }
}

impl ToolSpec {
    /// The policy this tool asks for.
    pub fn policy(&self) -> Policy {
        let (limits, guards) = (&self.limits, &self.guards);
        let long = self.hints.long_running.then_some(crate::limits::LONG_ATTEMPT_TIMEOUT);
        Policy {
            timeout: limits.timeout.or(long),
            deadline: limits.deadline,
            retry: limits.retry,
            grace: limits.grace,
            heartbeat: limits.heartbeat,
            on_doubt: guards.on_doubt,
            approval: (guards.approval != Approval::Never).then(|| guards.approval.clone()),
            approval_within: guards.approval_within,
            unattended: guards.unattended,
            grant_valid: guards.grant_valid,
            output_budget: limits.output_budget,
            loop_limit: limits.loop_limit,
            max_depth: limits.max_depth,
        }
    }

    /// Takes over what a policy says; what it leaves open stays as it is.
    pub fn apply(&mut self, policy: Policy) {
        let timeout = policy.timeout.or(self.limits.timeout);
        let policy = policy.over(&self.policy());
        let (limits, guards) = (&mut self.limits, &mut self.guards);
        limits.timeout = timeout;
        limits.deadline = policy.deadline;
        limits.retry = policy.retry;
        limits.grace = policy.grace;
        limits.heartbeat = policy.heartbeat;
        limits.output_budget = policy.output_budget;
        limits.loop_limit = policy.loop_limit;
        limits.max_depth = policy.max_depth;
        guards.on_doubt = policy.on_doubt;
        guards.approval = policy.approval.unwrap_or_default();
        guards.approval_within = policy.approval_within;
        guards.unattended = policy.unattended;
        guards.grant_valid = policy.grant_valid;
    }
}

#[cfg(test)]
mod tests;
