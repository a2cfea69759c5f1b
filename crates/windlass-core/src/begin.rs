//! New runs: turns submitted calls into a run that has not been polled yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attribution::Attribution;
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::call::operation::{Operation, RecordState};
use crate::call::plan::{CallSite, Scope, asked, plan, resolve, without_layer};
use crate::call::{Outcome, ToolCall};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::drive::{Drive, Root};
use crate::run::machine::Machine;
use crate::run::record::{Asked, Event, OpKind, OpOutcome};
use crate::run::{Belongs, Run};
use crate::runtime::{Start, Work};
use crate::store::{Creation, Turn};
use crate::tool::projection::ModelView;
use crate::tool::{Effect, Layers, Toolbox};

impl Kernel {
    fn fresh(self: &Arc<Self>, tool: Arc<str>, how: &Start) -> Result<Arc<Run>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if !self.drives {
            let why = "this runtime drives no runs; start the call instead, for the process that drives them";
            return Err(Error::NotDriving(why.to_owned()));
        }
        let base = (self.env.clock.now(), self.env.clock.ticks());
        let id = self.env.mint.run(base.0);
        let belongs = Belongs {
            session: how.session.clone(),
            is_turn: false,
            attribution: Attribution::shared(how.principal.as_ref(), how.cause.as_ref()),
        };
        let creation = Creation { worker: self.lease.worker, turn: Turn::No, ..how.creation(tool, base.0) };
        Ok(Run::new(self.clone(), id, base, belongs, Machine::create(id, creation)))
    }

    /// Builds a run from submitted work that this process drives from its first poll on. It is in no store yet, and is not
    /// a turn.
    pub(crate) fn new_run(self: &Arc<Self>, toolbox: &Toolbox, work: Work, how: &Start) -> Result<NewRun> {
        match work {
            Work::Call(call) => self.run_of_call(toolbox, call, how),
            Work::Batch { calls, stop_on_failure } => self.run_of_batch(toolbox, calls, stop_on_failure, how),
        }
    }

    fn run_of_call(self: &Arc<Self>, toolbox: &Toolbox, call: ToolCall, how: &Start) -> Result<NewRun> {
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
        let name = tool.map_or_else(|| call.tool.as_str().into(), |tool| tool.spec().id.shared());
        let model_view = ModelView::of(tool, &call.args, (call.limits.as_deref(), &self.env.policy));
        let id = call.id.clone();
        let run = self.fresh(name, how)?;
        let refused = self.loop_refusals(how.session.as_ref(), &snapshot, [&call]);
        self.loop_asked(how.session.as_ref(), run.id, [&call], &refused);
        let future = match (missing, refused.into_iter().next().flatten()) {
            (Some(missing), _) => without_layer(&run, &scope, CallSite::root(), &call, &missing),
            (None, Some(error)) => {
                let asked = asked(&call, tool, &scope.toolbox.layers());
                let operation = Operation::new(Path::root(), asked, RecordState::WhenPending);
                CallFuture::refused(run.clone(), operation, error)
            }
            (None, None) => plan(&run, &scope, CallSite::root(), call, tool),
        };
        Ok(NewRun { drive: Drive::new(run, Root::Call(future)), calls: Calls::One(id, model_view) })
    }

    fn run_of_batch(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        calls: Vec<ToolCall>,
        stop_on_failure: bool,
        how: &Start,
    ) -> Result<NewRun> {
        let ids: Vec<_> = calls.iter().map(|call| call.id.clone()).collect();
        let run = self.fresh("batch".into(), how)?;
        run.with(|machine| machine.outbox().reserve(calls.len() + 2));
        let scope = Scope::of(toolbox.clone());
        let asked = batch_asked(calls.len(), stop_on_failure, &toolbox.layers());
        run.append(&Path::root(), run.now(), Some(asked), Event::Entered);
        let refused = self.loop_refusals(how.session.as_ref(), &toolbox.snapshot(), &calls);
        self.loop_asked(how.session.as_ref(), run.id, &calls, &refused);
        let mut batch = Batch::new(run.clone(), Path::root(), scope, calls, stop_on_failure);
        for (index, error) in refused.into_iter().enumerate().filter_map(|(index, error)| Some((index, error?))) {
            batch.refuse(index, error);
        }
        let calls = Calls::Batch(ids.into_iter().zip(batch.model_views()).collect());
        batch.accept();
        Ok(NewRun { drive: Drive::new(run, Root::Batch(batch)), calls })
    }
}

/// A run built from submitted work and not polled yet.
pub(crate) struct NewRun {
    pub(crate) drive: Drive,
    pub(crate) calls: Calls,
}

/// What the outcomes of a run's root calls need: the id that the model gave each call, and how the model sees its
/// output.
#[derive(Clone)]
pub(crate) enum Calls {
    One(Option<Arc<str>>, ModelView),
    Batch(Vec<(Option<Arc<str>>, ModelView)>),
}

impl Calls {
    /// The outcomes, in the order of the calls.
    pub(crate) fn outcomes(self, run: RunId, ended: Vec<OpOutcome>) -> Vec<Outcome> {
        let outcome = |path, (ended, (id, model_view)): (OpOutcome, (Option<Arc<str>>, ModelView))| Outcome {
            run,
            path,
            id,
            result: ended.result,
            times: ended.times,
            model_view,
        };
        match self {
            Self::One(id, model_view) => ended
                .into_iter()
                .take(1)
                .map(|ended| outcome(Path::root(), (ended, (id.clone(), model_view.clone()))))
                .collect(),
            Self::Batch(calls) => {
                let rows = (0u32..).zip(ended.into_iter().zip(calls));
                rows.map(|(index, row)| outcome(Path::root().child(index), row)).collect()
            }
        }
    }
}

pub(crate) fn batch_asked(count: usize, stop_on_failure: bool, layers: &Layers) -> Asked {
    let input = stop_on_failure.then(|| Arc::new(serde_json::json!({"stop_on_failure": true})));
    let asked = Asked::operation(OpKind::Batch, count.to_string().into(), input, Effect::Readonly);
    Asked { layers: layers.clone(), ..asked }
}
