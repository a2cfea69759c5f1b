//! What would become of a call, found out without running anything.

use std::fmt;
use std::sync::Arc;

use super::Policy;
use super::facts::{PastCall, Session};
use super::resolved::{EffectivePolicy, Need};
use crate::call::ToolCall;
use crate::call::approve::{GuardContext, MissingGuard, approval, connection};
use crate::call::plan::{check, resolve, unknown};
use crate::path::Path;
use crate::tool::{Tool, ToolError, Toolbox};

/// A call that might be made, and the circumstances it might be made in.
#[derive(Clone, Debug)]
pub struct Hypothetical {
    /// The call.
    pub call: ToolCall,
    /// The id of its session, if it has one.
    pub session: Option<String>,
    /// Whether a person is available for approvals.
    pub attended: bool,
    /// Calls of the same run that have finished, oldest first.
    pub history: Vec<PastCall>,
    /// Providers there is a connection to.
    pub connections: Vec<String>,
}

impl Hypothetical {
    /// A call without a session, a history or connections.
    pub fn new(call: ToolCall) -> Self {
        Self { call, session: None, attended: false, history: Vec::new(), connections: Vec::new() }
    }
}

/// What would become of one call.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// What the call names.
    pub tool: String,
    /// What would happen.
    pub verdict: Verdict,
}

/// What would happen to a call.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It would run, under these rules.
    Runs(Box<EffectivePolicy>),
    /// It would wait until a provider is connected.
    NeedsConnection {
        /// Which provider.
        provider: Arc<str>,
        /// What would become of it then.
        then: Box<Verdict>,
    },
    /// A person would have to approve it first.
    NeedsApproval(Need),
    /// It would end with this error, without an attempt.
    Refused(ToolError),
}

/// Tells for each call what would become of it, in order. Nothing runs, and nothing is recorded: a toolbox and a policy
/// are enough, so that a policy can be tested like any other code.
pub fn dry_run(toolbox: &Toolbox, runtime: &Policy, calls: &[Hypothetical]) -> Vec<Prediction> {
    let predict = |case: &Hypothetical| {
        let call = case.call.clone().bounded();
        let tool = call.tool().to_owned();
        let toolbox = match toolbox.with_layers(&call.layers) {
            Ok(toolbox) => toolbox,
            Err(missing) => {
                return Prediction { tool, verdict: Verdict::Refused(ToolError::unavailable(missing.to_string())) };
            }
        };
        let verdict = match resolve(&toolbox.snapshot(), &call.tool) {
            None => Verdict::Refused(unknown(&toolbox, &call.tool)),
            Some(tool) => {
                let rules = EffectivePolicy::of(runtime, tool.spec(), call.limits.as_deref());
                match check(tool, &call, &Path::root(), &rules) {
                    Err(error) => Verdict::Refused(error),
                    Ok(()) => leave(tool, &call, case, rules),
                }
            }
        };
        Prediction { tool, verdict }
    };
    calls.iter().map(predict).collect()
}

/// What stands between a sound call and its first attempt: as the call itself would find it.
fn leave(tool: &Tool, call: &ToolCall, case: &Hypothetical, rules: EffectivePolicy) -> Verdict {
    let session = Session { id: case.session.as_deref(), attended: case.attended };
    let around = GuardContext { connections: &case.connections, session, history: Some(&case.history) };
    let lacked = connection(tool, &rules, &around);
    let connected = match approval(tool, &call.args, &rules, &around) {
        None => Verdict::Runs(Box::new(rules)),
        Some(MissingGuard::Asks(need)) => Verdict::NeedsApproval(need),
        Some(MissingGuard::Refused(error)) => Verdict::Refused(error),
    };
    match lacked {
        None => connected,
        Some(MissingGuard::Asks(provider)) => Verdict::NeedsConnection { provider, then: Box::new(connected) },
        Some(MissingGuard::Refused(error)) => Verdict::Refused(error),
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.tool, self.verdict)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs(_) => f.write_str("would run"),
            Self::NeedsConnection { provider, then } => {
                write!(f, "would wait for a connection to `{provider}`, and then {then}")
            }
            Self::NeedsApproval(need) => write!(f, "would need approval: {need}"),
            Self::Refused(error) => write!(f, "would be refused: {error}"),
        }
    }
}
