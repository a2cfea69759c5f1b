//! What is left when call, tool and runtime have had their say.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

use super::expression::Expression;
use super::facts::Facts;
use super::{Policy, Unattended};
use crate::limits;
use crate::tool::ToolSpec;
use crate::tool::spec::{Approval, OnDoubt, Retry};

/// The plain values that govern one call.
#[derive(Clone, Debug, PartialEq, Eq)]
// Many fields: the settings of [`Policy`](super::Policy), one for one.
pub struct EffectivePolicy {
    /// See [`Policy::timeout`].
    pub timeout: Duration,
    /// See [`Policy::deadline`].
    pub deadline: Option<Duration>,
    /// See [`Policy::retry`].
    pub retry: Option<Retry>,
    /// See [`Policy::grace`].
    pub grace: Duration,
    /// See [`Policy::heartbeat`].
    pub heartbeat: Option<Duration>,
    /// See [`Policy::on_doubt`].
    pub on_doubt: OnDoubt,
    /// Who asks for approval, and of which calls; see [`Policy::approval`].
    pub demands: SmallVec<[Demand; 1]>,
    /// See [`Policy::approval_within`].
    pub approval_within: Duration,
    /// See [`Policy::unattended`].
    pub unattended: Unattended,
    /// See [`Policy::grant_valid`].
    pub grant_valid: Duration,
    /// See [`Policy::output_budget`].
    pub output_budget: usize,
    /// See [`Policy::loop_limit`].
    pub loop_limit: u32,
    /// See [`Policy::max_depth`].
    pub max_depth: usize,
}

/// Who has a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The runtime, for every call.
    Runtime,
    /// The tool.
    Tool,
    /// The call.
    Call,
}

/// That approval is asked for: of every call, or of those for which a condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whose demand.
    pub whose: Level,
    /// Of which calls; `None` means every one.
    pub when: Option<Expression>,
}

/// Why a call needs approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Whose demand it is.
    pub whose: Level,
    /// What makes it one.
    pub reason: Reason,
}

/// What makes a call need approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every call does.
    Always,
    /// The condition holds for it.
    Holds(Expression),
    /// Whether the condition holds cannot be told, so it counts as if it did.
    Undecided {
        /// The condition.
        condition: Expression,
        /// Why it cannot be told.
        problem: String,
    },
}

impl EffectivePolicy {
    /// What governs a call of this tool.
    pub fn of(runtime: &Policy, tool: &ToolSpec, call: Option<&Policy>) -> Self {
        let tool = tool.policy();
        let silent = Policy::default();
        let call = call.unwrap_or(&silent);
        let demands = [(Level::Runtime, runtime), (Level::Tool, &tool), (Level::Call, call)]
            .into_iter()
            .filter_map(|(whose, policy)| Demand::of(whose, policy.approval.as_ref()))
            .collect();
        Self {
            timeout: call.timeout.or(tool.timeout).or(runtime.timeout).unwrap_or(limits::ATTEMPT_TIMEOUT),
            deadline: call.deadline.or(tool.deadline).or(runtime.deadline),
            retry: call.retry.or(tool.retry).or(runtime.retry),
            grace: call.grace.or(tool.grace).or(runtime.grace).unwrap_or(limits::CANCEL_GRACE),
            heartbeat: call.heartbeat.or(tool.heartbeat).or(runtime.heartbeat),
            on_doubt: call.on_doubt.or(tool.on_doubt).or(runtime.on_doubt).unwrap_or_default(),
            demands,
            approval_within: (call.approval_within.or(tool.approval_within).or(runtime.approval_within))
                .unwrap_or(limits::APPROVAL_WITHIN),
            unattended: call.unattended.or(tool.unattended).or(runtime.unattended).unwrap_or_default(),
            grant_valid: call.grant_valid.or(tool.grant_valid).or(runtime.grant_valid).unwrap_or(limits::GRANT_VALID),
            output_budget: (call.output_budget.or(tool.output_budget).or(runtime.output_budget))
                .unwrap_or(limits::OUTPUT_BUDGET),
            loop_limit: call.loop_limit.or(tool.loop_limit).or(runtime.loop_limit).unwrap_or(limits::LOOP_LIMIT),
            max_depth: call.max_depth.or(tool.max_depth).or(runtime.max_depth).unwrap_or(limits::CALL_DEPTH),
        }
    }

    /// Whether [`EffectivePolicy::approval`] needs [`Facts::history`], which is expensive to collect.
    pub fn uses_history(&self) -> bool {
        self.demands.iter().any(|demand| demand.when.as_ref().is_some_and(Expression::uses_history))
    }

    /// Why this call needs approval, or `None` if it does not. Fails closed: a condition that cannot be decided asks.
    pub fn approval(&self, facts: &Facts<'_>) -> Option<Need> {
        self.demands.iter().find_map(|demand| demand.need(facts))
    }
}

impl Demand {
    fn of(whose: Level, approval: Option<&Approval>) -> Option<Self> {
        match approval? {
            Approval::Never => None,
            Approval::Always => Some(Self { whose, when: None }),
            Approval::When(condition) => Some(Self { whose, when: Some(condition.clone()) }),
        }
    }

    fn need(&self, facts: &Facts<'_>) -> Option<Need> {
        let reason = match &self.when {
            None => Reason::Always,
            Some(condition) => match condition.evaluate(facts) {
                Ok(false) => return None,
                Ok(true) => Reason::Holds(condition.clone()),
                Err(problem) => Reason::Undecided { condition: condition.clone(), problem },
            },
        };
        Some(Need { whose: self.whose, reason })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runtime => "the runtime",
            Self::Tool => "the tool",
            Self::Call => "the call",
        })
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = self.whose;
        match &self.reason {
            Reason::Always => write!(f, "{whose} asks for it always"),
            Reason::Holds(condition) => write!(f, "{whose} asks for it when `{condition}`, which holds"),
            Reason::Undecided { problem, .. } => {
                write!(f, "{whose} asks for it on a condition that cannot be decided: {problem}")
            }
        }
    }
}
