//! New runs: turns submitted calls into a run that has not been polled yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attribution::Attribution;
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::call::loops::{CountedCall, CountedCalls};
use crate::call::operation::{Operation, RecordState};
use crate::call::plan::{CallSite, Scope, asked, plan, resolve, without_layer};
use crate::call::{Outcome, OutcomeCall, ToolCall, ToolRef};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::drive::{Drive, Root};
use crate::run::machine::Machine;
use crate::run::record::{Asked, OpKind, OpOutcome};
use crate::run::{Belongs, Run};
use crate::runtime::{Start, Work};
use crate::store::{Creation, Turn};
use crate::tool::projection::ModelView;
use crate::tool::{Effect, Layers, Tool, ToolError, Toolbox};

impl Kernel {
    fn fresh(self: &Arc<Self>, tool: Arc<str>, how: &Start) -> Result<Arc<Run>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if !self.drives.any() {
            let why = "this runtime drives no runs; start the call instead, for the process that drives them";
            return Err(Error::NotDriving(why.to_owned()));
        }
        let base = (self.env.clock.now(), self.env.clock.ticks());
        let id = self.env.mint.run(base.0);
        self.drives.add(id);
        let belongs = Belongs {
            session: how.session.clone(),
            is_turn: false,
            attribution: Attribution::shared(how.principal.as_ref(), how.cause.as_ref()),
        };
        let (worker, most) = (self.lease.worker, Some(self.env.limits.session_runs));
        let creation = Creation { worker, turn: Turn::No, most, ..how.creation(tool, base.0) };
        Ok(Run::new(self.clone(), id, base, belongs, Machine::create(id, creation)))
    }

    /// Builds a run from submitted work that this process drives from its first poll on. It is in no store yet, and is not
    /// a turn. `refused` says for each call why it is refused; empty if none is.
    pub(crate) fn new_run(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        work: Work,
        how: &Start,
        refused: Refusals,
    ) -> Result<NewRun> {
        match work {
            Work::Call(call) => self.run_of_call(toolbox, call, how, refused),
            Work::Batch { calls, stop_on_failure } => self.run_of_batch(toolbox, calls, stop_on_failure, how, refused),
        }
    }

    fn run_of_call(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        call: ToolCall,
        how: &Start,
        refused: Refusals,
    ) -> Result<NewRun> {
        let mut scope = Scope::of(toolbox.clone());
        let missing = match scope.of_call(&call) {
            Ok(own) => {
                scope = own.unwrap_or(scope);
                None
            }
            Err(missing) => Some(missing),
        };
        let snapshot = scope.toolbox.snapshot();
        let tool = resolve(&snapshot, &call.tool).filter(|_| missing.is_none());
        let has_reader = how.session.is_some() && snapshot.has_reader();
        let root = self.root_call(&call, tool, has_reader);
        let run = self.fresh(root.call.tool.clone(), how)?;
        let rewriting = self.may_rewrite(tool).then(|| run.clone());
        let counted = counted(how, &refused, [(&call, tool)].into_iter());
        let future = match (missing, refused.into_iter().next().flatten()) {
            (Some(missing), _) => without_layer(&run, &scope, CallSite::root(), &call, &missing),
            (None, Some(error)) => {
                let asked = asked(&call, tool, &scope.toolbox.layers());
                let operation = Operation::new(Path::root(), asked, RecordState::WhenPending);
                CallFuture::refused(run.clone(), operation, error)
            }
            (None, None) => plan(&run, &scope, CallSite::root(), call, tool),
        };
        Ok(NewRun {
            drive: Drive::new(run, Root::Call(future)).counting(counted),
            calls: Calls { rewriting, kind: CallsKind::One(root) },
        })
    }

    fn run_of_batch(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        calls: Vec<ToolCall>,
        stop_on_failure: bool,
        how: &Start,
        refused: Refusals,
    ) -> Result<NewRun> {
        let run = self.fresh("batch".into(), how)?;
        run.with(|machine| machine.outbox().reserve(calls.len() + 2));
        let scope = Scope::of(toolbox.clone());
        let asked = batch_asked(calls.len(), stop_on_failure, &toolbox.layers());
        let mut batch = Batch::new(run.clone(), Path::root(), scope, calls, stop_on_failure);
        batch.enter(asked);
        let counted = counted(how, &refused, batch.calls());
        for (index, error) in refused.into_iter().enumerate().filter_map(|(index, error)| Some((index, error?))) {
            batch.refuse(index, error);
        }
        let rewriting = batch.calls().any(|(_, tool)| self.may_rewrite(tool)).then(|| run.clone());
        let has_reader = how.session.is_some() && toolbox.snapshot().has_reader();
        let roots = batch.calls().map(|(call, tool)| self.root_call(call, tool, has_reader)).collect();
        let calls = Calls { rewriting, kind: CallsKind::Batch(roots) };
        batch.accept();
        Ok(NewRun { drive: Drive::new(run, Root::Batch(batch)).counting(counted), calls })
    }

    fn root_call(&self, call: &ToolCall, tool: Option<&Arc<Tool>>, has_reader: bool) -> RootCall {
        let name = match &call.tool {
            ToolRef::Name(name) => name.clone(),
            ToolRef::Id(id) => id.shared(),
        };
        let id = tool.map_or_else(|| name.clone(), |tool| tool.spec().id.shared());
        let (args, metadata, found) = (call.args.clone(), call.metadata.clone(), tool.cloned());
        let called = OutcomeCall { tool: id, name, args, metadata, rewritten: None, found, secrets: None };
        let model_view = ModelView::of(tool, &call.args, (call.limits.as_deref(), &self.env.policy), has_reader);
        RootCall { id: call.id.clone(), call: called, model_view }
    }

    /// Whether a call of this tool may be executed with other arguments than it asks for.
    fn may_rewrite(&self, tool: Option<&Arc<Tool>>) -> bool {
        !self.env.middleware.is_empty() || tool.is_some_and(|tool| tool.preparer().is_some())
    }
}

/// Why calls that are submitted together are refused, in their order.
pub(crate) type Refusals = Vec<Option<ToolError>>;

/// The calls of a new run that count in its session.
fn counted<'c>(
    how: &Start,
    refused: &[Option<ToolError>],
    calls: impl Iterator<Item = (&'c ToolCall, Option<&'c Arc<Tool>>)>,
) -> CountedCalls {
    if how.session.is_none() {
        return Vec::new();
    }
    let is_refused = |index: usize| refused.get(index).is_some_and(Option::is_some);
    let call = |(index, (call, tool)): (usize, (&ToolCall, Option<&Arc<Tool>>))| match is_refused(index) {
        true => CountedCall::No,
        false => CountedCall::of(call, tool),
    };
    calls.enumerate().map(call).collect()
}

/// A run built from submitted work and not polled yet.
pub(crate) struct NewRun {
    pub(crate) drive: Drive,
    pub(crate) calls: Calls,
}

/// What the outcomes of a run's root calls need.
#[derive(Clone)]
pub(crate) struct Calls {
    /// The run, if the arguments of a call may be rewritten.
    rewriting: Option<Arc<Run>>,
    kind: CallsKind,
}

#[derive(Clone)]
enum CallsKind {
    One(RootCall),
    Batch(Vec<RootCall>),
}

/// What the outcome of a call needs: the id that the model gave it, the call itself, and how the model sees its output.
#[derive(Clone)]
struct RootCall {
    id: Option<Arc<str>>,
    call: OutcomeCall,
    model_view: ModelView,
}

impl Calls {
    pub(crate) fn is_batch(&self) -> bool {
        matches!(self.kind, CallsKind::Batch(_))
    }

    /// The outcomes, in the order of the calls.
    pub(crate) fn outcomes(self, run: RunId, ended: Vec<OpOutcome>) -> Vec<Outcome> {
        let rewriting = self.rewriting;
        let outcome = |path: Path, ended: OpOutcome, root: RootCall| {
            let RootCall { id, mut call, model_view } = root;
            call.rewritten = rewriting.as_ref().and_then(|run| run.with(|machine| machine.rewritten_args(&path)));
            Outcome { run, path, id, call, result: ended.result, times: ended.times, model_view }
        };
        match self.kind {
            CallsKind::One(root) => {
                ended.into_iter().next().map(|ended| outcome(Path::root(), ended, root)).into_iter().collect()
            }
            CallsKind::Batch(roots) => {
                let rows = (0u32..).zip(ended.into_iter().zip(roots));
                rows.map(|(index, (ended, root))| outcome(Path::root().child(index), ended, root)).collect()
            }
        }
    }
}

pub(crate) fn batch_asked(count: usize, stop_on_failure: bool, layers: &Layers) -> Asked {
    let input = stop_on_failure.then(|| Arc::new(serde_json::json!({"stop_on_failure": true})));
    let asked = Asked::operation(OpKind::Batch, count.to_string().into(), input, Effect::Readonly);
    Asked { layers: layers.clone(), ..asked }
}
