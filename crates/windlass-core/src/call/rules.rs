//! The rules for the attempts of one operation, derived from the spec and the policy.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::admit::Gate;
use crate::attribution::Attribution;
use crate::limits;
use crate::policy::{EffectivePolicy, Facts, Unattended};
use crate::tool::spec::{Concurrency, OnDoubt, Retry};
use crate::tool::{Effect, Retryable, Tool, ToolError};

pub(crate) struct Rules {
    pub(crate) effect: Effect,
    pub(crate) timeout: Duration,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) deadline: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) never_retry: bool,
    pub(crate) on_doubt: OnDoubt,
    pub(crate) lane: Lane,
    /// How long a person is waited for, and whether at all. A step has the runtime's rules.
    pub(crate) asking: Option<(Duration, Unattended)>,
    /// Everything it returns is secret.
    pub(crate) secret: bool,
    /// It is a compensation, which a cancellation does not stop.
    pub(crate) compensates: bool,
}

/// Where an attempt queues.
#[derive(Clone, Default)]
pub(crate) struct Lane {
    pub(crate) key: Option<Arc<str>>,
    pub(crate) session: SessionMode,
    pub(crate) gate: Option<Arc<Gate>>,
    /// The target whose breaker lets its attempts through.
    pub(crate) target: Option<Arc<str>>,
    /// Whether the first attempt waits for the breaker. A repeated attempt always does.
    pub(crate) waits_for_target: bool,
}

/// How an attempt relates to the others of its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SessionMode {
    /// A step: it does not queue in the session.
    #[default]
    Apart,
    Parallel,
    Exclusive,
}

impl Rules {
    /// The rules for a call of an atomic tool.
    pub(crate) fn of_tool(tool: &Tool, args: &Value, for_whom: Option<&Attribution>, policy: &EffectivePolicy) -> Self {
        let spec = tool.spec();
        Self {
            effect: spec.effect,
            timeout: policy.timeout,
            heartbeat: policy.heartbeat,
            grace: policy.grace,
            deadline: policy.deadline,
            retry: policy.retry,
            never_retry: spec.hints.destructive,
            on_doubt: policy.on_doubt,
            lane: Lane {
                key: key_of(tool, args, for_whom),
                session: session_of(tool),
                gate: tool.gate(),
                target: spec.guards.breaker.target().cloned(),
                waits_for_target: policy.retry.is_some(),
            },
            asking: Some((policy.approval_within, policy.unattended)),
            secret: false,
            compensates: false,
        }
    }

    /// The number of attempts there may be, as far as known beforehand.
    pub(crate) fn attempts(&self) -> u32 {
        self.retry.map_or(1, |retry| retry.attempts)
    }

    /// The delay before the next attempt, or `None` if the failure is final.
    ///
    /// A failure that is declared safe to repeat is repeated, within the tool's limit or a modest default. Any other
    /// failure is repeated only if the tool asks for retries and its effect class allows repeated attempts.
    pub(crate) fn retry_after(&self, error: &ToolError, attempt: u32, jitter: f64) -> Option<Duration> {
        if self.never_retry {
            return None;
        }
        let (policy, asked) = match error {
            ToolError::Failed { retry: Retryable::Yes, .. } => (self.retry.unwrap_or(Retry::attempts(3)), None),
            ToolError::Failed { retry: Retryable::After(delay), .. } => {
                (self.retry.unwrap_or(Retry::attempts(3)), Some(*delay))
            }
            // It is not known whether it happened, but attempts of this class may be repeated anyway.
            ToolError::InDoubt { .. } if self.effect != Effect::Once => {
                (self.retry.unwrap_or(Retry::attempts(3)), None)
            }
            ToolError::Failed { .. } | ToolError::Internal(_) | ToolError::TimedOut { .. }
                if self.effect != Effect::Once =>
            {
                (self.retry?, None)
            }
            _ => return None,
        };
        if attempt >= policy.attempts {
            return None;
        }
        Some(asked.unwrap_or_else(|| backoff(policy, attempt, jitter)))
    }
}

/// base·2ⁿ⁻¹, capped, and spread over its upper half so that clients that failed together do not return together.
fn backoff(policy: Retry, attempt: u32, jitter: f64) -> Duration {
    let doubled = policy.base.saturating_mul(1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(policy.cap).mul_f64(0.5 + jitter / 2.0)
}

/// The key that a call of this tool queues under.
pub(crate) fn key_of(tool: &Tool, args: &Value, for_whom: Option<&Attribution>) -> Option<Arc<str>> {
    let Concurrency::Keyed(expression) = &tool.spec().guards.concurrency else { return None };
    let caller = for_whom.and_then(|for_whom| for_whom.principal.as_deref());
    let cause = for_whom.and_then(|for_whom| for_whom.cause.as_deref());
    Some(expression.evaluate(&Facts { caller, cause, ..Facts::of_args(args) }).into())
}

/// How a call of this tool relates to the others of its session and batch.
pub(crate) fn session_of(tool: &Tool) -> SessionMode {
    match &tool.spec().guards.concurrency {
        Concurrency::Exclusive => SessionMode::Exclusive,
        Concurrency::Parallel | Concurrency::Keyed(_) => SessionMode::Parallel,
        Concurrency::Auto if tool.is_durable() || tool.spec().effect == Effect::Readonly => SessionMode::Parallel,
        Concurrency::Auto => SessionMode::Exclusive,
    }
}

impl Default for Rules {
    /// The rules of a step, unless it sets others.
    fn default() -> Self {
        Self {
            effect: Effect::Once,
            timeout: limits::ATTEMPT_TIMEOUT,
            heartbeat: None,
            grace: limits::CANCEL_GRACE,
            deadline: None,
            retry: None,
            never_retry: false,
            on_doubt: OnDoubt::Ask,
            lane: Lane::default(),
            asking: None,
            secret: false,
            compensates: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(effect: Effect, retry: Option<Retry>, error: &ToolError, attempt: u32) -> Option<u128> {
        let rules = Rules { effect, retry, ..Rules::default() };
        rules.retry_after(error, attempt, 1.0).map(|delay| delay.as_millis())
    }

    #[test]
    fn l17_retry_is_off_unless_the_failure_or_the_tool_says_it_is_safe() {
        let (plain, safe) = (ToolError::failed("x"), ToolError::retryable("x"));
        let tool = Some(Retry::attempts(3));
        assert_eq!(delay(Effect::Readonly, None, &plain, 1), None);
        assert_eq!(delay(Effect::Once, tool, &plain, 1), None, "a once tool's failure must say so itself");
        assert_eq!(delay(Effect::Readonly, tool, &plain, 1), Some(500));
        assert_eq!(delay(Effect::Once, None, &safe, 1), Some(500));
        let unclear = ToolError::in_doubt("no answer");
        assert_eq!(delay(Effect::Idempotent, None, &unclear, 1), Some(500), "it may be repeated anyway");
        assert_eq!(delay(Effect::Once, tool, &unclear, 1), None);
        assert_eq!(delay(Effect::Readonly, tool, &ToolError::denied("no"), 1), None);
        assert_eq!(delay(Effect::Readonly, tool, &ToolError::Panicked { correlation: String::new() }, 1), None);
    }

    #[test]
    fn l17_delays_double_up_to_the_cap_or_are_what_the_failure_asks_for() {
        let retry = Some(Retry { attempts: 99, base: Duration::from_millis(100), cap: Duration::from_secs(1) });
        let plain = ToolError::failed("x");
        let delays: Vec<_> = (1..=6).map(|n| delay(Effect::Readonly, retry, &plain, n).unwrap()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(delay(Effect::Readonly, retry, &plain, 80), Some(1_000), "a huge attempt number does not overflow");
        let asked = ToolError::retry_after("busy", Duration::from_secs(7));
        assert_eq!(delay(Effect::Once, retry, &asked, 1), Some(7_000));
        assert_eq!(delay(Effect::Readonly, Some(Retry::attempts(2)), &plain, 2), None, "attempts are bounded");
    }
}
