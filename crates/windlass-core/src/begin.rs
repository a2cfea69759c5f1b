//! New runs: what is made of calls that are handed in, before anything of them is polled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::call::ToolCall;
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::call::operation::{Operation, Written};
use crate::call::plan::{Place, Scope, asked, plan, resolve, without_layer};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::run::Run;
use crate::run::drive::{Drive, Root};
use crate::run::machine::Machine;
use crate::run::record::{Asked, Event, OpKind};
use crate::runtime::Start;
use crate::store::Creation;
use crate::tool::projection::Lens;
use crate::tool::{Effect, Layers, Toolbox};

impl Kernel {
    fn fresh(self: &Arc<Self>, tool: Arc<str>, how: &Start) -> Result<Arc<Run>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if !self.drives {
            let why = "this runtime drives no runs; start the call instead (`start_with`), for whoever does";
            return Err(Error::NotDriving(why.to_owned()));
        }
        let base = (self.env.clock.now(), self.env.clock.ticks());
        let id = self.env.mint.run(base.0);
        let (key, session) = (how.key.clone(), how.session.clone());
        let creation = Creation { tool, at: base.0, worker: self.lease.worker, key, session, ..Creation::default() };
        Ok(Run::new(self.clone(), id, base, (how.session.clone(), false), Machine::create(id, creation)))
    }

    /// A new run of one call, not polled yet. It is no turn.
    pub(crate) fn start_call(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        call: ToolCall,
        how: &Start,
    ) -> Result<(Drive, Lens)> {
        let call = call.bounded();
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
        let lens = Lens::of(tool, &call.args, (call.limits.as_deref(), &self.env.policy));
        let run = self.fresh(name, how)?;
        let refused = self.loop_refusals(how.session.as_ref(), &snapshot, [&call]);
        self.loop_asked(how.session.as_ref(), run.id, [&call], &refused);
        let future = match (missing, refused.into_iter().next().flatten()) {
            (Some(missing), _) => without_layer(&run, &scope, Place::root(), &call, &missing),
            (None, Some(error)) => {
                let asked = asked(&call, tool, &scope.toolbox.layers());
                let operation = Operation::new(Path::root(), asked, Written::WhenPending);
                CallFuture::refused(run.clone(), operation, error)
            }
            (None, None) => plan(&run, &scope, Place::root(), call, tool),
        };
        Ok((Drive::new(run, Root::Call(future)), lens))
    }

    /// A new run of several calls, not polled yet.
    pub(crate) fn start_batch(
        self: &Arc<Self>,
        toolbox: &Toolbox,
        calls: Vec<ToolCall>,
        stop_on_failure: bool,
        how: &Start,
    ) -> Result<(Drive, Vec<Lens>)> {
        if calls.len() > limits::BATCH_CALLS {
            let (count, most) = (calls.len(), limits::BATCH_CALLS);
            return Err(Error::TooLarge(format!("a batch of {count} calls is too large; the limit is {most}")));
        }
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
        let lenses = batch.lenses();
        batch.accept();
        Ok((Drive::new(run, Root::Batch(batch)), lenses))
    }
}

pub(crate) fn batch_asked(count: usize, stop_on_failure: bool, layers: &Layers) -> Asked {
    let input = stop_on_failure.then(|| Arc::new(serde_json::json!({"stop_on_failure": true})));
    let asked = Asked::operation(OpKind::Batch, count.to_string().into(), input, Effect::Readonly);
    Asked { layers: layers.clone(), ..asked }
}
