//! One runtime: its store, clock and executor, what its attempts share, and the runs it drives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::admit::{Keys, Permits};
use crate::call::Attempt;
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::call::loops::sessions::SessionLoops;
use crate::call::operation::{Operation, Written};
use crate::call::plan::{Place, Scope, asked, plan, resolve, without_layer};
use crate::call::{Middleware, Reach, ToolCall};
use crate::driver::Live;
use crate::error::{Error, Result};
use crate::id::{Mint, RunId, WorkerId};
use crate::limits;
use crate::path::Path;
use crate::policy::{Policy, Resolved};
use crate::rest::Rest;
use crate::roster::Roster;
use crate::run::Run;
use crate::run::drive::{Drive, Root};
use crate::run::keep::Kept;
use crate::run::machine::Machine;
use crate::run::record::{Asked, Event, OpKind};
use crate::runtime::Start;
use crate::session::Sessions;
use crate::spawn::Spawn;
use crate::store::{Creation, Store};
use crate::time::Clock;
use crate::tool::projection::Lens;
use crate::tool::{Effect, Layers, Tool, Toolbox};
use crate::watchdog::Watchdog;
use crate::worker::Lease;

pub(crate) struct Kernel {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    /// What runs that are taken up from their journal find their tools in.
    pub(crate) toolbox: Toolbox,
    pub(crate) permits: Arc<Permits>,
    pub(crate) keys: Arc<Keys>,
    /// Keys that runs of an earlier process held, until those runs are driven again.
    pub(crate) kept: Kept,
    pub(crate) connections: Vec<String>,
    /// What governs every call, where neither it nor its tool says otherwise.
    pub(crate) policy: Policy,
    /// Whether that says nothing.
    pub(crate) is_silent: bool,
    /// Whether somebody is there to be asked.
    pub(crate) attended: bool,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    /// The language people are told things in.
    pub(crate) locale: String,
    pub(crate) watchdog: Watchdog,
    pub(crate) mint: Mint,
    /// Who owns the runs this process drives.
    pub(crate) worker: WorkerId,
    pub(crate) lease: Lease,
    /// Exclusivity among the attempts of a session's runs.
    pub(crate) sessions: Sessions,
    /// What sessions were told lately.
    pub(crate) loops: SessionLoops,
    /// The runs this process has to do with.
    pub(crate) roster: Roster<Live>,
    /// When the next suspended run is due, and what was told of a store that fails.
    pub(crate) rest: Rest,
    /// How long a run only waits before it is suspended.
    pub(crate) suspend_after: std::time::Duration,
    /// How often the store lets go of what it keeps no longer.
    pub(crate) tidy_every: Option<std::time::Duration>,
    pub(crate) reach: Arc<Reach>,
    /// Whether runs are driven here; see [`Config::drives`](crate::Config::drives).
    pub(crate) drives: bool,
    pub(crate) closed: AtomicBool,
    /// Attempts on threads of their own, which may outlive whoever waited for them, and the taking up of their run.
    pub(crate) on_threads: Mutex<Vec<Attempt>>,
    /// Largest artifact that is stored.
    pub(crate) artifact_bytes: u64,
}

impl Kernel {
    /// Whether a thread that cannot be interrupted is still at an attempt of this operation.
    pub(crate) fn is_on_thread(&self, run: RunId, path: &Path) -> bool {
        let mut attempts = self.on_threads.lock();
        attempts.retain(Attempt::is_on_thread);
        attempts.iter().any(|attempt| attempt.run() == run && attempt.path() == path)
    }

    /// What governs a call of this tool, unless that is [what the tool says by itself](crate::tool::Tool::resolved): most
    /// calls and most runtimes say nothing.
    pub(crate) fn governs(&self, tool: &Tool, call: Option<&Policy>) -> Option<Box<Resolved>> {
        (!self.is_silent || call.is_some()).then(|| Box::new(Resolved::of(&self.policy, tool.spec(), call)))
    }

    fn fresh(self: &Arc<Self>, tool: Arc<str>, how: &Start) -> Result<Arc<Run>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if !self.drives {
            let why = "this runtime drives no runs; start the call instead (`start_with`), for whoever does";
            return Err(Error::NotDriving(why.to_owned()));
        }
        let base = (self.clock.now(), self.clock.ticks());
        let id = self.mint.run(base.0);
        let (key, session) = (how.key.clone(), how.session.clone());
        let creation = Creation { tool, at: base.0, worker: self.worker, key, session, ..Creation::default() };
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
        let lens = Lens::of(tool, &call.args, (call.limits.as_deref(), &self.policy));
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
