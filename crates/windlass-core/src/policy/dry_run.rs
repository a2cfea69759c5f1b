//! What would become of a call, found out without running anything.

use std::fmt;
use std::sync::Arc;

use super::Policy;
use super::facts::{PastCall, Session};
use super::resolved::{EffectivePolicy, Need};
use crate::attribution::Attribution;
use crate::call::approve::{GuardContext, MissingGuard, approval, connection};
use crate::call::plan::{check_asked, resolve, unknown};
use crate::call::rules::key_of;
use crate::call::{BeforeOutcome, Middleware, MiddlewareCall, ToolCall};
use crate::id::RunId;
use crate::path::Path;
use crate::tool::{Tool, ToolError, Toolbox};

/// A call that might be made, and the circumstances it might be made in.
#[derive(Clone, Debug)]
pub struct Hypothetical {
    /// The call.
    pub call: ToolCall,
    /// The id of its session, if it has one.
    pub session: Option<String>,
    /// Who its run would act for.
    pub principal: Option<String>,
    /// What would cause its run.
    pub cause: Option<String>,
    /// Whether a person is available for approvals.
    pub attended: bool,
    /// Calls of the same run that have finished, oldest first. A runtime adds those of the session.
    pub history: Vec<PastCall>,
    /// Providers there is a connection to.
    pub connections: Vec<String>,
    /// Whether the tool's own `prepare` is asked. Only a runtime asks it.
    pub prepare: bool,
}

impl Hypothetical {
    /// A call with the session, the principal and the cause that it names itself, without a history or connections.
    pub fn new(mut call: ToolCall) -> Self {
        let how = call.take_start();
        let text = |text: Option<Arc<str>>| text.map(|text| text.to_string());
        Self {
            call,
            session: text(how.session),
            principal: text(how.principal),
            cause: text(how.cause),
            attended: false,
            history: Vec::new(),
            connections: Vec::new(),
            prepare: true,
        }
    }
}

/// What would become of one call.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// What the call names.
    pub tool: String,
    /// What would happen.
    pub verdict: Verdict,
    /// What governs the call; `None` if there is no such tool.
    pub policy: Option<Box<EffectivePolicy>>,
    /// The key that the call would queue under.
    pub key: Option<Arc<str>>,
    /// Whether the tool has a `prepare` that was not asked. It may still refuse the call, answer it or change its
    /// arguments.
    pub unprepared: bool,
}

/// What would happen to a call.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It would run.
    Runs,
    /// Middleware or the tool's `prepare` would answer it, without an attempt.
    Answered,
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
/// are enough, so that a policy can be tested like any other code. A runtime also knows its middleware, the session's
/// history and loops, and asks the tool's `prepare`: [`Runtime::predict`](crate::Runtime::predict).
pub fn dry_run(toolbox: &Toolbox, runtime: &Policy, calls: &[Hypothetical]) -> Vec<Prediction> {
    let dry_run = DryRun { toolbox, policy: runtime, middleware: &[] };
    let predict = |case: &Hypothetical| match dry_run.enter(case) {
        Ok(entered) => entered.guarded(case, Some(&case.history)),
        Err(prediction) => *prediction,
    };
    calls.iter().map(predict).collect()
}

/// What the fate of a call depends on, besides the call.
pub(crate) struct DryRun<'a> {
    pub(crate) toolbox: &'a Toolbox,
    pub(crate) policy: &'a Policy,
    pub(crate) middleware: &'a [Arc<dyn Middleware>],
}

impl DryRun<'_> {
    /// Whether the policy of this call looks at `history`.
    pub(crate) fn uses_history(&self, case: &Hypothetical) -> bool {
        let toolbox = self.toolbox.with_layers(&case.call.layers).ok();
        let tool = toolbox.and_then(|toolbox| resolve(&toolbox.snapshot(), &case.call.tool).cloned());
        tool.is_some_and(|tool| {
            EffectivePolicy::of(self.policy, tool.spec(), case.call.limits.as_deref()).uses_history()
        })
    }

    /// The stages up to the check of the arguments, as in `call/plan.rs`. The error is the prediction for a call that ends
    /// there.
    pub(crate) fn enter(&self, case: &Hypothetical) -> Result<EnteredCall, Box<Prediction>> {
        let call = case.call.clone().bounded();
        let name = call.tool().to_owned();
        let toolbox = match self.toolbox.with_layers(&call.layers) {
            Ok(toolbox) => toolbox,
            Err(missing) => {
                return Err(Box::new(Prediction::refused(name, ToolError::unavailable(missing.to_string()))));
            }
        };
        let found = resolve(&toolbox.snapshot(), &call.tool).cloned();
        let Some(tool) = found else { return Err(Box::new(Prediction::refused(name, unknown(&toolbox, &call.tool)))) };
        let shared = |text: &Option<String>| text.as_deref().map(Arc::from);
        let for_whom = Attribution { principal: shared(&case.principal), cause: shared(&case.cause) };
        let policy = EffectivePolicy::of(self.policy, tool.spec(), call.limits.as_deref());
        let unprepared = tool.preparer().is_some();
        let mut entered = EnteredCall { name, tool, call, for_whom, policy, unprepared };
        match self.check(&mut entered, case.session.as_deref()) {
            Ok(None) => Ok(entered),
            Ok(Some(verdict)) => Err(Box::new(entered.ends(verdict))),
            Err(error) => Err(Box::new(entered.ends(Verdict::Refused(error)))),
        }
    }

    /// Asks middleware, and checks the arguments that it leaves.
    fn check(&self, entered: &mut EnteredCall, session: Option<&str>) -> Result<Option<Verdict>, ToolError> {
        let EnteredCall { tool, call, for_whom, policy, .. } = entered;
        let path = Path::root();
        check_asked(tool, call, &path, policy)?;
        let asked = call.args.clone();
        let entrance = MiddlewareCall {
            middleware: self.middleware,
            run: RunId::from_bytes([0; 16]),
            attribution: Some(for_whom),
            path: &path,
            tool,
            args: &asked,
            id: call.id.as_deref(),
            session,
        };
        match entrance.before()? {
            BeforeOutcome::Open(args) => call.args = args,
            BeforeOutcome::Answered(_) => return Ok(Some(Verdict::Answered)),
        }
        tool.contract()?.check_arguments(&call.args)?;
        Ok(None)
    }
}

/// A hypothetical call whose tool is known and whose arguments fit.
pub(crate) struct EnteredCall {
    name: String,
    pub(crate) tool: Arc<Tool>,
    pub(crate) call: ToolCall,
    pub(crate) for_whom: Attribution,
    pub(crate) policy: EffectivePolicy,
    /// Whether the tool has a `prepare` that was not asked.
    pub(crate) unprepared: bool,
}

impl EnteredCall {
    /// What would become of the call: the guards before its first attempt, as the call itself would find them.
    pub(crate) fn guarded(self, case: &Hypothetical, history: Option<&[PastCall]>) -> Prediction {
        let verdict = leave(&self.tool, &self.call, case, (&self.for_whom, history), &self.policy);
        self.ends(verdict)
    }

    /// The prediction with this verdict.
    pub(crate) fn ends(self, verdict: Verdict) -> Prediction {
        let key = key_of(&self.tool, &self.call.args, Some(&self.for_whom));
        let policy = Some(Box::new(self.policy));
        Prediction { tool: self.name, verdict, policy, key, unprepared: self.unprepared }
    }
}

/// What stands between a sound call and its first attempt: as the call itself would find it.
fn leave(
    tool: &Tool,
    call: &ToolCall,
    case: &Hypothetical,
    (for_whom, history): (&Attribution, Option<&[PastCall]>),
    policy: &EffectivePolicy,
) -> Verdict {
    let session = Session { id: case.session.as_deref(), attended: case.attended };
    let around = GuardContext { connections: &case.connections, attribution: Some(for_whom), session, history };
    let lacked = connection(tool, policy, &around);
    let connected = match approval(tool, &call.args, policy, &around) {
        None => Verdict::Runs,
        Some(MissingGuard::Asks(need)) => Verdict::NeedsApproval(need),
        Some(MissingGuard::Refused(error)) => Verdict::Refused(error),
    };
    match lacked {
        None => connected,
        Some(MissingGuard::Asks(provider)) => Verdict::NeedsConnection { provider, then: Box::new(connected) },
        Some(MissingGuard::Refused(error)) => Verdict::Refused(error),
    }
}

impl Prediction {
    /// A call that is refused before its tool is known.
    pub(crate) fn refused(tool: String, error: ToolError) -> Self {
        Self { tool, verdict: Verdict::Refused(error), policy: None, key: None, unprepared: false }
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
            Self::Runs => f.write_str("would run"),
            Self::Answered => f.write_str("would be answered without an attempt"),
            Self::NeedsConnection { provider, then } => {
                write!(f, "would wait for a connection to `{provider}`, and then {then}")
            }
            Self::NeedsApproval(need) => write!(f, "would need approval: {need}"),
            Self::Refused(error) => write!(f, "would be refused: {error}"),
        }
    }
}
