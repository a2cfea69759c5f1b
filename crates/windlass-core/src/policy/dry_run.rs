//! What would become of a call, found out without running anything.

use std::fmt;

use super::Policy;
use super::facts::{Facts, PastCall, Session};
use super::resolved::{Need, Resolved};
use crate::call::ToolCall;
use crate::call::plan::{checked, resolve, unknown};
use crate::tool::{ToolError, Toolbox};

/// A call that might be made, and the circumstances it might be made in.
#[derive(Clone, Debug)]
pub struct Hypothetical {
    /// The call.
    pub call: ToolCall,
    /// The id of its session, if it has one.
    pub session: Option<String>,
    /// Whether somebody is there to be asked.
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
    Runs(Box<Resolved>),
    /// Somebody would have to approve it first.
    NeedsApproval(Need),
    /// It would end with this error, without an attempt.
    Refused(ToolError),
}

/// Tells for each call what would become of it, in order. Nothing runs, and nothing is recorded: a toolbox and a policy
/// are enough, so that a policy can be tested like any other code.
pub fn dry_run(toolbox: &Toolbox, runtime: &Policy, calls: &[Hypothetical]) -> Vec<Prediction> {
    let snapshot = toolbox.snapshot();
    let predict = |case: &Hypothetical| {
        let call = case.call.clone().bounded();
        let verdict = match resolve(&snapshot, &call.tool) {
            None => Verdict::Refused(unknown(toolbox, &call.tool)),
            Some(tool) => {
                let rules = Resolved::of(runtime, tool.spec(), call.limits.as_deref());
                let session = Session { id: case.session.as_deref(), attended: case.attended };
                let facts = Facts { args: &call.args, tool: Some(tool.spec()), session, history: Some(&case.history) };
                match checked(tool, &call, &case.connections) {
                    Err(error) => Verdict::Refused(error),
                    Ok(()) => match rules.approval(&facts) {
                        Some(need) => Verdict::NeedsApproval(need),
                        None => Verdict::Runs(Box::new(rules)),
                    },
                }
            }
        };
        Prediction { tool: case.call.tool().to_owned(), verdict }
    };
    calls.iter().map(predict).collect()
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
            Self::NeedsApproval(need) => write!(f, "would need approval: {need}"),
            Self::Refused(error) => write!(f, "would be refused: {error}"),
        }
    }
}
