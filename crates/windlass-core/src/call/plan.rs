//! The stages before a call's first attempt, in their fixed order: resolve, `before` middleware, validate, prepare,
//! connection, approval. Each passes the call on or ends it with an error. They are skipped for a call that the journal
//! records, because it passed them before. Middleware and `prepare`, which most calls lack, are in `prepare.rs`.

use std::sync::Arc;

use serde_json::Value;

use super::approve::{GuardedCall, is_guarded};
use super::batch::Barrier;
use super::child::{CallFuture, ToolSource};
use super::durable::DurableCall;
use super::execute::Execution;
use super::operation::{Operation, RecordState};
use super::prepare::Preparing;
use super::queue::AttemptQueue;
use super::request::{ToolCall, ToolRef};
use super::rules::Rules;
use crate::admit::HeldKey;
use crate::path::Path;
use crate::policy::EffectivePolicy;
use crate::run::Run;
use crate::run::history::RecordedOp;
use crate::run::record::{Asked, OpKind, Prepared};
use crate::run::replay::{CallProgress, call_progress};
use crate::run::secrets::Places;
use crate::run::state::Hold;
use crate::tool::{Effect, Layers, NoLayer, Snapshot, Tool, ToolError, Toolbox, nearest};

/// What a call inherits from the body around it.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) toolbox: Toolbox,
    pub(crate) held: Option<Arc<HeldKey>>,
    /// The tool of the run's root body, inside of it: only the signals that this tool declares reach the run.
    pub(crate) root: Option<Arc<Tool>>,
}

impl Scope {
    /// A scope outside of every body.
    pub(crate) fn of(toolbox: Toolbox) -> Self {
        Self { toolbox, held: None, root: None }
    }

    /// Its toolbox, if that is not the runtime's own.
    pub(crate) fn layered(&self) -> Option<Toolbox> {
        self.toolbox.is_scoped().then(|| self.toolbox.clone())
    }

    /// The scope of a call made in this one, if it differs because the call adds layers.
    pub(crate) fn of_call(&self, call: &ToolCall) -> Result<Option<Self>, NoLayer> {
        if call.layers.is_empty() {
            return Ok(None);
        }
        let toolbox = self.toolbox.with_layers(&call.layers)?;
        Ok(Some(Self { toolbox, ..self.clone() }))
    }
}

/// The position of a call: its path, its record state and its batch.
pub(crate) struct CallSite {
    pub(crate) path: Path,
    pub(crate) written: RecordState,
    pub(crate) barrier: Option<Barrier>,
}

impl CallSite {
    /// The root of a run. Only the journal would ask for it again.
    pub(crate) fn root() -> Self {
        Self { path: Path::root(), written: RecordState::WhenPending, barrier: None }
    }

    /// A position inside a body, which asks again when it is entered again.
    pub(crate) fn inside(path: Path) -> Self {
        Self { path, written: RecordState::No, barrier: None }
    }
}

/// Why a call inside of a run cannot have a key or a session of its own.
pub(crate) const NOT_A_ROOT_CALL: &str = "a key, a session, a turn, a principal or a cause belongs to a whole run: set it on the \
    call or batch that starts the run, not on a call inside of it";

/// Turns a call into a future: finds its scope and its tool, and plans it there.
pub(crate) fn plan_in(
    run: &Arc<Run>,
    scope: &Scope,
    snapshot: &Snapshot,
    site: CallSite,
    call: ToolCall,
) -> CallFuture {
    if call.start.is_some() {
        let asked = asked(&call, resolve(snapshot, &call.tool), &scope.toolbox.layers());
        let operation = Operation::new(site.path, asked, site.written);
        return CallFuture::refused(run.clone(), operation, ToolError::failed(NOT_A_ROOT_CALL));
    }
    match scope.of_call(&call) {
        Ok(None) => {
            let tool = tool_at(run, &site.path, snapshot, &call);
            plan(run, scope, site, call, tool)
        }
        Ok(Some(scope)) => {
            let snapshot = scope.toolbox.snapshot();
            let tool = tool_at(run, &site.path, &snapshot, &call);
            plan(run, &scope, site, call, tool)
        }
        Err(missing) => without_layer(run, scope, site, &call, &missing),
    }
}

/// The tool of a call: what its name means now, or what it meant when the call was recorded.
pub(crate) fn tool_at<'s>(run: &Run, path: &Path, snapshot: &'s Snapshot, call: &ToolCall) -> Option<&'s Arc<Tool>> {
    let now = resolve(snapshot, &call.tool);
    let recorded = run.recorded_op(path, |RecordedOp { asked, .. }| {
        let is_call = asked.kind == OpKind::Call && !asked.unresolved;
        // Another name at this path is another operation. Its own tool is used to show where the code differs.
        (is_call && **asked.as_asked() == *call.tool.as_str()).then(|| asked.name.clone())
    });
    match recorded.flatten() {
        Some(id) if now.is_none_or(|tool| tool.spec().id.as_str() != &*id) => snapshot.by_id(&id),
        _ => now,
    }
}

/// A call through a layer that is not registered. It is refused if it is new, and held if the journal records it
/// without an outcome.
pub(crate) fn without_layer(
    run: &Arc<Run>,
    scope: &Scope,
    site: CallSite,
    call: &ToolCall,
    missing: &NoLayer,
) -> CallFuture {
    let layers = scope.toolbox.layers().and(&call.layers);
    let mut asked = asked(call, None, &layers);
    let recorded = run.recorded_op(&site.path, |op| {
        let is_finished = matches!(call_progress(op).0, CallProgress::Finished(_));
        (op.asked.clone(), is_finished || op.asked.unresolved)
    });
    match recorded {
        Some((_, false)) => {
            run.hold(Hold::LayerMissing { path: site.path, layer: missing.0.to_string() });
            return CallFuture::Held;
        }
        // The machine answers it from its record, or reports the divergence.
        Some((recorded, true)) if recorded.same(&asked) => asked.name = recorded.name,
        _ => {}
    }
    let operation = Operation::new(site.path, asked, site.written);
    CallFuture::refused(run.clone(), operation, ToolError::unavailable(missing.to_string()))
}

/// Turns a call into a future.
pub(crate) fn plan(
    run: &Arc<Run>,
    scope: &Scope,
    mut site: CallSite,
    mut call: ToolCall,
    tool: Option<&Arc<Tool>>,
) -> CallFuture {
    let mut asked = asked_so_far(&call, tool, &scope.toolbox.layers());
    let (progress, prepared) = progress(run, &site.path, &mut asked, tool);
    if let Some(CallProgress::Accepted(_)) = progress {
        site.written = RecordState::Accepted;
    }
    let is_unchecked = matches!(progress, None | Some(CallProgress::Accepted(_)));
    let refuse =
        |asked, error| CallFuture::refused(run.clone(), Operation::new(site.path.clone(), asked, site.written), error);
    if run.only_checks && is_unchecked {
        // A check asks neither middleware nor the tool about a call that is not made.
        run.with(|machine| machine.ask(&site.path, &asked));
        return CallFuture::Held;
    }
    let (tool, policy, is_open) = match (tool, progress) {
        (Some(tool), _) if is_unchecked && (!run.kernel.env.middleware.is_empty() || tool.preparer().is_some()) => {
            if !asked.secrets.is_empty() {
                asked.secrets = tool.secret_places(&call.args);
            }
            let operation = Operation::new(site.path, asked, site.written);
            let (run, scope) = (run.clone(), scope.clone());
            let preparing = Preparing::new(run, scope, site.barrier, operation, tool.clone(), call);
            return CallFuture::Preparing(Box::new(preparing));
        }
        (Some(tool), progress) => {
            let policy = run.kernel.env.policy_for(tool, call.limits.as_deref());
            if is_unchecked {
                let checked = check(tool, &call, &site.path, policy.as_deref().unwrap_or_else(|| tool.resolved()));
                if !asked.secrets.is_empty() {
                    // The check has compiled the schema. If that failed, it is not compiled again here.
                    asked.secrets = tool.secret_places_if_compiled(&call.args);
                }
                if let Err(error) = checked {
                    return refuse(asked, error);
                }
            }
            let is_open = is_unchecked || matches!(progress, Some(CallProgress::Prepared(_) | CallProgress::Asking(_)));
            (tool, policy, is_open)
        }
        (
            None,
            Some(
                CallProgress::Accepted(Some(name))
                | CallProgress::Prepared(name)
                | CallProgress::Asking(name)
                | CallProgress::UnderWay(name),
            ),
        ) => {
            run.hold(missing_tool(&scope.toolbox, site.path, &call.tool, &name));
            return CallFuture::Held;
        }
        (None, progress) => {
            if let Some(CallProgress::Finished(name)) = progress {
                asked.name = name;
            }
            return refuse(asked, unknown(&scope.toolbox, &call.tool));
        }
    };
    let operation = Operation::new(site.path, asked, site.written);
    let mut payload = None;
    if let Some(prepared) = prepared {
        call.args = prepared.args.unwrap_or(call.args);
        payload = prepared.payload;
    }
    let ready = ReadyCall { tool: tool.clone(), call, payload, barrier: site.barrier, policy };
    if is_open { ready.guarded(run, scope, operation) } else { ready.future(run, scope, operation) }
}

/// A call that passed its stages, with the arguments it is executed with.
pub(crate) struct ReadyCall {
    pub(crate) tool: Arc<Tool>,
    pub(crate) call: ToolCall,
    pub(crate) payload: Option<Arc<Value>>,
    pub(crate) barrier: Option<Barrier>,
    /// Its policy, unless that is the tool's own.
    pub(crate) policy: Option<Box<EffectivePolicy>>,
}

impl ReadyCall {
    pub(crate) fn policy(&self) -> &EffectivePolicy {
        self.policy.as_deref().unwrap_or_else(|| self.tool.resolved())
    }

    /// The call with connection and approval before it, if it needs them.
    pub(crate) fn guarded(self, run: &Arc<Run>, scope: &Scope, operation: Operation) -> CallFuture {
        let asking = run.recorded_op(&operation.path, |op| op.is_asking()).unwrap_or(false);
        if asking || is_guarded(run, &self) {
            return CallFuture::Guarded(Box::new(GuardedCall::new(run.clone(), scope.clone(), operation, self)));
        }
        self.future(run, scope, operation)
    }

    pub(crate) fn future(self, run: &Arc<Run>, scope: &Scope, operation: Operation) -> CallFuture {
        let rules = (!self.tool.is_durable())
            .then(|| Rules::of_tool(&self.tool, &self.call.args, run.attribution.as_deref(), self.policy()));
        let Self { tool, call, payload, barrier, .. } = self;
        let Some(rules) = rules else {
            let entry = DurableCall::new(run.clone(), operation, tool, call, scope.clone(), payload);
            return CallFuture::Durable(Box::new(entry.in_batch(barrier.is_some())));
        };
        let source = ToolSource { tool, args: call.args, id: call.id, payload, layered: scope.layered() };
        let queue = AttemptQueue::new(scope.held.clone(), barrier);
        CallFuture::Atomic(Execution::new(run.clone(), operation, rules, source, queue))
    }
}

/// Looks up a call in the journal. A tool that took over another tool's id asks under the recorded name.
fn progress(
    run: &Run,
    path: &Path,
    asked: &mut Asked,
    tool: Option<&Arc<Tool>>,
) -> (Option<CallProgress>, Option<Prepared>) {
    let found = run.recorded_op(path, |op| {
        let name = &op.asked.name;
        if tool.is_some_and(|tool| tool.spec().aliases.iter().any(|alias| alias.as_str() == &**name)) {
            asked.name = name.clone();
        }
        call_progress(op)
    });
    found.map_or((None, None), |(progress, prepared)| (Some(progress), prepared))
}

/// The tool that a call names.
pub(crate) fn resolve<'s>(snapshot: &'s Snapshot, tool: &ToolRef) -> Option<&'s Arc<Tool>> {
    match tool {
        ToolRef::Name(name) => snapshot.by_name(name),
        ToolRef::Id(id) => snapshot.by_id(id.as_str()),
    }
}

/// The call in its recorded form: with the tool's id if there is a tool, and with the name that was asked for
/// otherwise.
pub(crate) fn asked(call: &ToolCall, tool: Option<&Arc<Tool>>, layers: &Layers) -> Asked {
    let mut asked = asked_so_far(call, tool, layers);
    if !asked.secrets.is_empty() {
        asked.secrets = secret_places(tool, &call.args);
    }
    asked
}

/// Like [`asked`], but without loading the tool's schema: if that is not loaded yet, the whole input counts as secret.
fn asked_so_far(call: &ToolCall, tool: Option<&Arc<Tool>>, layers: &Layers) -> Asked {
    let (name, effect) = match tool {
        // The operations of a durable body have effects; entering it has none.
        Some(tool) if tool.is_durable() => (tool.spec().id.shared(), Effect::Readonly),
        Some(tool) => (tool.spec().id.shared(), tool.spec().effect),
        None => (call.tool.as_str().into(), Effect::Once),
    };
    let called = match &call.tool {
        ToolRef::Name(asked) if *asked != name => Some(asked.clone()),
        _ => None,
    };
    let version = tool.and_then(|tool| tool.spec().about.version.clone());
    Asked {
        kind: OpKind::Call,
        name,
        called,
        unresolved: tool.is_none(),
        layers: layers.clone(),
        input: Some(call.args.clone()),
        call_id: call.id.clone(),
        effect,
        version,
        limits: call.limits.clone(),
        broken: call.broken.clone(),
        metadata: call.metadata.clone(),
        secrets: tool.map_or_else(|| Places::whole(&call.args), |tool| tool.secret_places_if_compiled(&call.args)),
    }
}

/// Where the arguments of a call contain secrets. If that cannot be determined, all of them count as one.
pub(crate) fn secret_places(tool: Option<&Arc<Tool>>, args: &Value) -> Places {
    tool.map_or_else(|| Places::whole(args), |tool| tool.secret_places(args))
}

/// Refuses a call that is invalid by itself or for its tool.
pub(crate) fn check(tool: &Tool, call: &ToolCall, path: &Path, policy: &EffectivePolicy) -> Result<(), ToolError> {
    check_asked(tool, call, path, policy)?;
    tool.contract()?.check_arguments(&call.args)
}

/// Refuses a call that is invalid whatever its arguments are.
pub(crate) fn check_asked(
    tool: &Tool,
    call: &ToolCall,
    path: &Path,
    policy: &EffectivePolicy,
) -> Result<(), ToolError> {
    let most = policy.max_depth;
    if path.depth() > most {
        return Err(ToolError::failed(format!("calls are nested more than {most} deep; a tool may be calling itself")));
    }
    if let Some(message) = &call.broken {
        return Err(ToolError::invalid("", message.to_string()));
    }
    match call.limits.as_ref().map(|policy| policy.check()) {
        Some(Err(problem)) => {
            Err(ToolError::failed(format!("this call of `{}` has an invalid {problem}", tool.spec().name)))
        }
        _ => Ok(()),
    }
}

/// The hold for a recorded call without an outcome whose tool is not there, or is hidden by the session.
fn missing_tool(toolbox: &Toolbox, path: Path, asked: &ToolRef, id: &Arc<str>) -> Hold {
    let recorded = ToolRef::Id((**id).into());
    let tool = id.to_string();
    match toolbox.hiding_session(&recorded).or_else(|| toolbox.hiding_session(asked)) {
        Some(session) => Hold::ToolHidden { path, tool, session: session.to_string() },
        None => Hold::ToolMissing { path, tool },
    }
}

/// The error for an unknown tool: with the failure of a source that may have it, or with a similar name.
pub(crate) fn unknown(toolbox: &Toolbox, tool: &ToolRef) -> ToolError {
    let wanted = tool.as_str();
    if let Some(session) = toolbox.hiding_session(tool) {
        return ToolError::unavailable(format!(
            "session {session:?} hides the tool `{wanted}`; show it in the session's tools to call it"
        ));
    }
    if let Err(failure) = toolbox.snapshot().find(tool) {
        return ToolError::unavailable(format!("there is no tool `{wanted}` in the toolbox, and {failure}"));
    }
    let names: Vec<Arc<str>> = toolbox.tools().iter().map(|tool| tool.spec().name.clone()).collect();
    let near = nearest(wanted, names.iter().map(|name| &**name));
    let hint = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    let shown: String = wanted.chars().take(80).collect();
    ToolError::unavailable(format!("there is no tool `{shown}`{hint}"))
}
