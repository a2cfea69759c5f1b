//! The stages before a call's first attempt, in their fixed order: resolve, `before` middleware, validate, prepare,
//! connection, approval. Each passes the call on or ends it with an error. They are skipped for a call the journal knows:
//! it passed them before. Middleware and `prepare`, which most calls do not have, are in `prepare.rs`.

use std::sync::Arc;

use serde_json::Value;

use super::approve::{Guarded, is_guarded};
use super::batch::Barrier;
use super::child::{CallFuture, ToolSource};
use super::durable::Entry;
use super::execute::Execution;
use super::operation::{Operation, Written};
use super::prepare::Preparing;
use super::queue::Queue;
use super::request::{ToolCall, ToolRef};
use super::rules::Rules;
use crate::admit::Held;
use crate::path::Path;
use crate::policy::Resolved;
use crate::run::Run;
use crate::run::history::{Standing, State};
use crate::run::record::{Asked, OpKind, Prepared};
use crate::run::secrets::Places;
use crate::run::state::{Blocked, Hold};
use crate::tool::{Effect, Layers, NoLayer, Snapshot, Tool, ToolError, Toolbox, nearest};

/// What a call inherits from the body around it.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) toolbox: Toolbox,
    pub(crate) held: Option<Arc<Held>>,
}

impl Scope {
    /// A scope outside of every body.
    pub(crate) fn of(toolbox: Toolbox) -> Self {
        Self { toolbox, held: None }
    }

    /// Its toolbox, if that is not the runtime's own.
    pub(crate) fn layered(&self) -> Option<Toolbox> {
        self.toolbox.is_layered().then(|| self.toolbox.clone())
    }

    /// The scope of a call made in this one, where that differs: the call adds layers.
    pub(crate) fn of_call(&self, call: &ToolCall) -> Result<Option<Self>, NoLayer> {
        if call.layers.is_empty() {
            return Ok(None);
        }
        let toolbox = self.toolbox.with_layers(&call.layers)?;
        Ok(Some(Self { toolbox, held: self.held.clone() }))
    }
}

/// Where a call is to be made.
pub(crate) struct Place {
    pub(crate) path: Path,
    pub(crate) written: Written,
    pub(crate) barrier: Option<Barrier>,
}

impl Place {
    /// The root of a run: nobody but the journal would ask for it again.
    pub(crate) fn root() -> Self {
        Self { path: Path::root(), written: Written::WhenPending, barrier: None }
    }

    /// Inside a body, which asks again when it is entered again.
    pub(crate) fn inside(path: Path) -> Self {
        Self { path, written: Written::No, barrier: None }
    }
}

/// Turns a call into something that can be polled: finds its scope and its tool, and plans it there.
pub(crate) fn plan_in(run: &Arc<Run>, scope: &Scope, snapshot: &Snapshot, place: Place, call: ToolCall) -> CallFuture {
    match scope.of_call(&call) {
        Ok(None) => {
            let tool = tool_at(run, &place.path, snapshot, &call);
            plan(run, scope, place, call, tool)
        }
        Ok(Some(scope)) => {
            let snapshot = scope.toolbox.snapshot();
            let tool = tool_at(run, &place.path, &snapshot, &call);
            plan(run, &scope, place, call, tool)
        }
        Err(missing) => without_layer(run, scope, place, &call, &missing),
    }
}

/// The tool a call uses: what its name means now, or what it meant when the call was recorded.
pub(crate) fn tool_at<'s>(run: &Run, path: &Path, snapshot: &'s Snapshot, call: &ToolCall) -> Option<&'s Arc<Tool>> {
    let now = resolve(snapshot, &call.tool);
    let recorded = run.standing(path, |Standing { asked, .. }| {
        let is_call = asked.kind == OpKind::Call && !asked.unresolved;
        // Another name at this path is another operation, and its own tool shows where the code differs.
        (is_call && **asked.as_asked() == *call.tool.as_str()).then(|| asked.name.clone())
    });
    match recorded.flatten() {
        Some(id) if now.is_none_or(|tool| tool.spec().id.as_str() != &*id) => snapshot.by_id(&id),
        _ => now,
    }
}

/// A call through a layer that is not registered: refused if it is new, held if the journal knows it and has no outcome.
pub(crate) fn without_layer(
    run: &Arc<Run>,
    scope: &Scope,
    place: Place,
    call: &ToolCall,
    missing: &NoLayer,
) -> CallFuture {
    let layers = scope.toolbox.layers().and(&call.layers);
    let mut asked = asked(call, None, &layers);
    let known = run.standing(&place.path, |standing| {
        let finished = matches!(standing.state, State::Finished { .. });
        (standing.asked.clone(), finished || standing.asked.unresolved)
    });
    match known {
        Some((_, false)) => {
            run.hold(Hold::LayerMissing { path: place.path, layer: missing.0.to_string() });
            return CallFuture::Held;
        }
        // The machine answers it from its record, or says where the code differs.
        Some((recorded, true)) if recorded.same(&asked) => asked.name = recorded.name,
        _ => {}
    }
    let operation = Operation::new(place.path, asked, place.written);
    CallFuture::refused(run.clone(), operation, ToolError::unavailable(missing.to_string()))
}

/// How far the journal says a call got.
enum Known {
    Nothing,
    /// It was asked for, and may not have been checked yet; by this id, if it named a tool.
    Accepted(Option<Arc<str>>),
    /// What it is to do is settled; whether it may is not.
    Prepared(Arc<str>),
    /// It waits for a connection or an approval, or has just got it.
    Asking(Arc<str>),
    UnderWay(Arc<str>),
    Finished(Arc<str>),
    /// Something else stands there: asking for the call will tell.
    Else,
}

/// Turns a call into something that can be polled.
pub(crate) fn plan(
    run: &Arc<Run>,
    scope: &Scope,
    mut place: Place,
    mut call: ToolCall,
    tool: Option<&Arc<Tool>>,
) -> CallFuture {
    let mut asked = asked_so_far(&call, tool, &scope.toolbox.layers());
    let (known, prepared) = known(run, &place.path, &mut asked, tool);
    if let Known::Accepted(_) = known {
        place.written = Written::Accepted;
    }
    let refuse = |asked, error| {
        CallFuture::refused(run.clone(), Operation::new(place.path.clone(), asked, place.written), error)
    };
    if run.only_checks && matches!(known, Known::Nothing | Known::Accepted(_)) {
        // Neither middleware nor the tool is asked about a call that is not made.
        run.with(|machine| machine.ask(&place.path, &asked));
        return CallFuture::Held;
    }
    let (tool, policy, is_open) = match (tool, known) {
        (Some(tool), Known::Nothing | Known::Accepted(_))
            if !run.kernel.env.middleware.is_empty() || tool.preparer().is_some() =>
        {
            if !asked.secrets.is_empty() {
                asked.secrets = tool.secret_places(&call.args);
            }
            let operation = Operation::new(place.path, asked, place.written);
            let (run, scope) = (run.clone(), scope.clone());
            let preparing = Preparing::new(run, scope, place.barrier, operation, tool.clone(), call);
            return CallFuture::Preparing(Box::new(preparing));
        }
        (Some(tool), known) => {
            let policy = run.kernel.env.governs(tool, call.limits.as_deref());
            if matches!(known, Known::Nothing | Known::Accepted(_)) {
                let checked = check(tool, &call, &place.path, policy.as_deref().unwrap_or_else(|| tool.resolved()));
                if !asked.secrets.is_empty() {
                    // Whoever checked has asked for the schema. If it could not be had, it is not asked for again.
                    asked.secrets = tool.known_secret_places(&call.args);
                }
                if let Err(error) = checked {
                    return refuse(asked, error);
                }
            }
            let is_open = matches!(known, Known::Nothing | Known::Accepted(_) | Known::Prepared(_) | Known::Asking(_));
            (tool, policy, is_open)
        }
        (None, Known::Accepted(Some(name)) | Known::Prepared(name) | Known::Asking(name) | Known::UnderWay(name)) => {
            run.hold(Hold::ToolMissing { path: place.path, tool: name.to_string() });
            return CallFuture::Held;
        }
        (None, known) => {
            if let Known::Finished(name) = known {
                asked.name = name;
            }
            return refuse(asked, unknown(&scope.toolbox, &call.tool));
        }
    };
    let operation = Operation::new(place.path, asked, place.written);
    let mut payload = None;
    if let Some(prepared) = prepared {
        call.args = prepared.args.unwrap_or(call.args);
        payload = prepared.payload;
    }
    let ready = Ready { tool: tool.clone(), call, payload, barrier: place.barrier, policy };
    if is_open { ready.guarded(run, scope, operation) } else { ready.future(run, scope, operation) }
}

/// A call that passed its stages, with the arguments it is executed with.
pub(crate) struct Ready {
    pub(crate) tool: Arc<Tool>,
    pub(crate) call: ToolCall,
    pub(crate) payload: Option<Arc<Value>>,
    pub(crate) barrier: Option<Barrier>,
    /// What governs it, unless that is what its tool says by itself.
    pub(crate) policy: Option<Box<Resolved>>,
}

impl Ready {
    pub(crate) fn policy(&self) -> &Resolved {
        self.policy.as_deref().unwrap_or_else(|| self.tool.resolved())
    }

    /// The call with connection and approval before it, where it needs them.
    pub(crate) fn guarded(self, run: &Arc<Run>, scope: &Scope, operation: Operation) -> CallFuture {
        let asking = run.standing(&operation.path, |standing| standing.is_asking()).unwrap_or(false);
        if asking || is_guarded(run, &self) {
            return CallFuture::Guarded(Box::new(Guarded::new(run.clone(), scope.clone(), operation, self)));
        }
        self.future(run, scope, operation)
    }

    pub(crate) fn future(self, run: &Arc<Run>, scope: &Scope, operation: Operation) -> CallFuture {
        let rules = (!self.tool.is_durable()).then(|| Rules::of_tool(&self.tool, &self.call.args, self.policy()));
        let Self { tool, call, payload, barrier, .. } = self;
        let Some(rules) = rules else {
            let entry = Entry::new(run.clone(), operation, tool, call, scope.clone(), payload);
            return CallFuture::Durable(Box::new(entry.in_batch(barrier.is_some())));
        };
        let source = ToolSource { tool, args: call.args, id: call.id, payload, layered: scope.layered() };
        let queue = Queue::new(scope.held.clone(), barrier);
        CallFuture::Atomic(Execution::new(run.clone(), operation, rules, source, queue))
    }
}

/// Looks a call up in the journal. A tool that took over another's id asks under the name that was recorded.
fn known(run: &Run, path: &Path, asked: &mut Asked, tool: Option<&Arc<Tool>>) -> (Known, Option<Prepared>) {
    let found = run.standing(path, |standing| {
        let name = &standing.asked.name;
        if tool.is_some_and(|tool| tool.spec().aliases.iter().any(|alias| alias.as_str() == &**name)) {
            asked.name = name.clone();
        }
        let known = match &standing.state {
            _ if standing.asked.kind != OpKind::Call => Known::Else,
            State::Accepted => Known::Accepted((!standing.asked.unresolved).then(|| name.clone())),
            State::Prepared => Known::Prepared(name.clone()),
            State::Granted(_) | State::Parked { on: Blocked::Approval { .. } | Blocked::Connection { .. }, .. } => {
                Known::Asking(name.clone())
            }
            State::Finished { .. } => Known::Finished(name.clone()),
            _ => Known::UnderWay(name.clone()),
        };
        (known, standing.prepared.clone())
    });
    found.unwrap_or((Known::Nothing, None))
}

/// The tool a call names.
pub(crate) fn resolve<'s>(snapshot: &'s Snapshot, tool: &ToolRef) -> Option<&'s Arc<Tool>> {
    match tool {
        ToolRef::Name(name) => snapshot.by_name(name),
        ToolRef::Id(id) => snapshot.by_id(id.as_str()),
    }
}

/// The call as it is recorded: by the tool's id where there is a tool, by what was asked for where there is none.
pub(crate) fn asked(call: &ToolCall, tool: Option<&Arc<Tool>>, layers: &Layers) -> Asked {
    let mut asked = asked_so_far(call, tool, layers);
    if !asked.secrets.is_empty() {
        asked.secrets = secret_places(tool, &call.args);
    }
    asked
}

/// The same, with everything secret if the tool's schema was not needed yet.
fn asked_so_far(call: &ToolCall, tool: Option<&Arc<Tool>>, layers: &Layers) -> Asked {
    let (name, effect) = match tool {
        // A durable body's own operations have effects; entering it has none.
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
        secrets: tool.map_or_else(|| Places::whole(&call.args), |tool| tool.known_secret_places(&call.args)),
    }
}

/// Where secrets stand in the arguments of a call. Where nobody can tell, all of them are one.
pub(crate) fn secret_places(tool: Option<&Arc<Tool>>, args: &Value) -> Places {
    tool.map_or_else(|| Places::whole(args), |tool| tool.secret_places(args))
}

/// Refuses what a look at the call and its tool is enough to refuse.
pub(crate) fn check(tool: &Tool, call: &ToolCall, path: &Path, policy: &Resolved) -> Result<(), ToolError> {
    check_asked(tool, call, path, policy)?;
    tool.contract()?.check_arguments(&call.args)
}

/// Refuses what no arguments could make right.
pub(crate) fn check_asked(tool: &Tool, call: &ToolCall, path: &Path, policy: &Resolved) -> Result<(), ToolError> {
    let most = policy.max_depth;
    if path.depth() > most {
        return Err(ToolError::failed(format!("calls are nested more than {most} deep; a tool may be calling itself")));
    }
    if let Some(message) = &call.broken {
        return Err(ToolError::invalid("", message.to_string()));
    }
    match call.limits.as_ref().map(|policy| policy.check()) {
        Some(Err(problem)) => {
            Err(ToolError::failed(format!("this call of `{}` has a bad {problem}", tool.spec().name)))
        }
        _ => Ok(()),
    }
}

/// Names the near miss, where there is one.
pub(crate) fn unknown(toolbox: &Toolbox, tool: &ToolRef) -> ToolError {
    let wanted = tool.as_str();
    let names: Vec<Arc<str>> = toolbox.tools().iter().map(|tool| tool.spec().name.clone()).collect();
    let near = nearest(wanted, names.iter().map(|name| &**name));
    let hint = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    let shown: String = wanted.chars().take(80).collect();
    ToolError::unavailable(format!("there is no tool `{shown}`{hint}"))
}
