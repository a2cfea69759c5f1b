//! The stages before a call's first attempt, in their fixed order: resolve, validate, connection, approval. Each passes
//! the call on or ends it with an error. They are skipped for a call the journal knows: it passed them before.

use std::sync::Arc;

use serde_json::Value;

use super::batch::Barrier;
use super::child::{CallFuture, ToolSource};
use super::durable::Entry;
use super::execute::{Execution, Operation};
use super::queue::Queue;
use super::request::{ToolCall, ToolRef};
use super::rules::Rules;
use crate::admit::Held;
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::run::Run;
use crate::run::history::State;
use crate::run::record::{Asked, OpKind};
use crate::run::state::Hold;
use crate::tool::spec::Approval;
use crate::tool::{Effect, Snapshot, Tool, ToolError, Toolbox};
use crate::value::size::{self, TooBig};

/// What a call inherits from the body around it.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) toolbox: Toolbox,
    pub(crate) held: Option<Arc<Held>>,
}

/// Turns a call into something that can be polled.
pub(crate) fn plan(
    run: &Arc<Run>,
    scope: &Scope,
    path: Path,
    call: ToolCall,
    tool: Option<&Arc<Tool>>,
    barrier: Option<Barrier>,
) -> CallFuture {
    let known = run.standing(&path, |standing| {
        (standing.asked.kind, standing.asked.name.clone(), matches!(standing.state, State::Finished { .. }))
    });
    let mut asked = asked(&call, tool);
    let tool = match (tool, known) {
        (Some(tool), None) => match check(&run.kernel, tool, &call, &path) {
            Ok(()) => tool,
            Err(error) => return CallFuture::refused(run.clone(), Operation::new(path, asked), error),
        },
        (Some(tool), Some((_, name, _))) => {
            // A tool that took over another's id answers for it.
            if tool.spec().aliases.iter().any(|alias| alias.as_str() == &*name) {
                asked.name = name;
            }
            tool
        }
        (None, None) => {
            let error = unknown(&scope.toolbox, &call.tool);
            return CallFuture::refused(run.clone(), Operation::new(path, asked), error);
        }
        (None, Some((kind, name, finished))) => {
            if kind == OpKind::Call && !finished {
                run.hold(Hold::ToolMissing { path, tool: name.to_string() });
                return CallFuture::Held;
            }
            if kind == OpKind::Call {
                asked.name = name;
            }
            let error = unknown(&scope.toolbox, &call.tool);
            return CallFuture::refused(run.clone(), Operation::new(path, asked), error);
        }
    };
    let operation = Operation::new(path, asked);
    if tool.is_durable() {
        return CallFuture::Durable(Box::new(Entry::new(run.clone(), operation, tool.clone(), call, scope.clone())));
    }
    let rules = Rules::of_tool(tool, &call.args, &call.limits);
    let source = ToolSource { tool: tool.clone(), args: call.args, id: call.id };
    let queue = Queue::new(scope.held.clone(), barrier);
    CallFuture::Atomic(Execution::new(run.clone(), operation, rules, source, queue))
}

/// The tool a call names.
pub(crate) fn resolve<'s>(snapshot: &'s Snapshot, tool: &ToolRef) -> Option<&'s Arc<Tool>> {
    match tool {
        ToolRef::Name(name) => snapshot.by_name(name),
        ToolRef::Id(id) => snapshot.by_id(id.as_str()),
    }
}

/// The call as it is recorded: by the tool's id where there is a tool, by what was asked for where there is none.
pub(crate) fn asked(call: &ToolCall, tool: Option<&Arc<Tool>>) -> Asked {
    let (name, effect) = match tool {
        // A durable body's own operations have effects; entering it has none.
        Some(tool) if tool.is_durable() => (tool.spec().id.shared(), Effect::Readonly),
        Some(tool) => (tool.spec().id.shared(), tool.spec().effect),
        None => (call.tool.as_str().into(), Effect::Once),
    };
    let limits = (call.limits != Default::default()).then(|| Box::new(call.limits));
    Asked { kind: OpKind::Call, name, input: Some(call.args.clone()), call_id: call.id.clone(), effect, limits }
}

fn check(kernel: &Kernel, tool: &Tool, call: &ToolCall, path: &Path) -> Result<(), ToolError> {
    if path.depth() > limits::CALL_DEPTH {
        let most = limits::CALL_DEPTH;
        return Err(ToolError::failed(format!("calls are nested more than {most} deep; a tool may be calling itself")));
    }
    if let Some(message) = &call.broken {
        return Err(ToolError::invalid("", message.to_string()));
    }
    validate(tool, &call.args)?;
    let guards = &tool.spec().guards;
    if let Some(provider) = &guards.connection
        && !kernel.connections.iter().any(|connected| connected == &**provider)
    {
        return Err(ToolError::ConnectionRequired { provider: provider.to_string() });
    }
    match guards.approval {
        Approval::Never => Ok(()),
        Approval::Always | Approval::When(_) => Err(ToolError::denied(format!(
            "calls of `{}` need approval, and nobody can approve them here",
            tool.spec().name
        ))),
    }
}

fn validate(tool: &Tool, args: &Value) -> Result<(), ToolError> {
    match size::check(args, limits::ARGUMENT_BYTES) {
        Ok(()) => tool.contract()?.check_arguments(args),
        Err(TooBig::Bytes) => Err(ToolError::invalid(
            "",
            format!("larger than {} bytes; pass large content as an artifact", limits::ARGUMENT_BYTES),
        )),
        Err(TooBig::Depth) => Err(ToolError::invalid("", format!("nested deeper than {}", limits::VALUE_DEPTH))),
    }
}

/// Names the near miss, where there is one.
fn unknown(toolbox: &Toolbox, tool: &ToolRef) -> ToolError {
    let wanted = tool.as_str();
    let kind = if matches!(tool, ToolRef::Id(_)) { "with the id" } else { "named" };
    let names: Vec<Arc<str>> = toolbox.tools().iter().map(|tool| tool.spec().name.clone()).collect();
    let near = names.iter().map(|name| (distance(wanted, name), name)).min();
    let hint = match near {
        Some((distance, name)) if distance <= 1 + wanted.len() / 4 => format!("; did you mean `{name}`?"),
        _ => String::new(),
    };
    let shown: String = wanted.chars().take(80).collect();
    ToolError::unavailable(format!("there is no tool {kind} `{shown}`{hint}"))
}

/// How many single-character edits lie between two names; names are short, so the plain table will do.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(128).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
