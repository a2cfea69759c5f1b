//! The kernel's front door: what the facade, the tests and other drivers use.

mod counted;
mod forks;
mod looking;
mod people;
mod recovery;
mod said;
mod submit;
mod tidying;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::activity::watchers::Watchers;
use crate::admit::Admission;
use crate::call::plan::resolve;
use crate::call::{Middleware, Outcome, Reach, ToolCall};
use crate::driver::Live;
use crate::env::{Env, RuntimeLimits};
use crate::error::{Error, Result};
use crate::id::{Mint, RunId};
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::policy::Policy;
use crate::roster::Stage;
use crate::run::drive::RunEnd;
use crate::run::machine::Machine;
use crate::run::record::{Event, OpKind, Record, Settled, Settler, Told};
use crate::run::reply::Signer;
use crate::run::state::{RunInfo, RunState};
use crate::spawn::Spawn;
use crate::store::{Counts, Filter, Store, StoreError, Turn};
use crate::time::Clock;
use crate::tool::projection::Lens;
use crate::tool::spec::Background;
use crate::tool::{Layers, NoLayer, Output, RegisterError, Tool, ToolError, Toolbox, from_output};
use crate::value::size;
use crate::watchdog::{Stuck, Watchdog};
use crate::worker::Lease;

pub use counted::{About, AskedCall, Counted, Question};
pub use people::{Awaited, Resolved};
pub use submit::{Submitted, Work};

/// Runs read from the store at a time.
const PAGE: usize = 256;
/// How often a run is looked at that should be driven here, before it is said to be elsewhere; and how soon again.
const LOOKS: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Drives calls and runs over a store. Cloning shares it.
#[derive(Clone)]
pub struct Runtime {
    kernel: Arc<Kernel>,
    toolbox: Toolbox,
}

/// How a run is started for whoever takes it up.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// At most one run is ever started under this key.
    pub key: Option<Arc<str>>,
    /// The session it belongs to.
    pub session: Option<Arc<str>>,
    /// Whether it is a turn of its session.
    pub turn: Turn,
}

impl Start {
    /// Under this key, and only once.
    pub fn key(key: impl Into<Arc<str>>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// In this session.
    pub fn session(session: impl Into<Arc<str>>) -> Self {
        Self { session: Some(session.into()), ..Self::default() }
    }
}

/// What a runtime is made of.
// Many fields: each is one choice of an embedder.
pub struct Config {
    /// Keeps the runs.
    pub store: Arc<dyn Store>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Runs tasks.
    pub spawn: Arc<dyn Spawn>,
    /// The tools; also where runs taken up from their journal find theirs.
    pub toolbox: Toolbox,
    /// Attempts in flight at once.
    pub in_flight: usize,
    /// Providers that tools needing a connection may count on.
    pub connections: Vec<String>,
    /// What governs every call, where neither it nor its tool says otherwise. See [`Policy::check`].
    pub policy: Policy,
    /// Whether somebody is there to be asked; decides what [`Policy::unattended`] means, and conditions see it.
    pub attended: bool,
    /// What sees every call, in this order on its way in and in reverse on its way out.
    pub middleware: Vec<Arc<dyn Middleware>>,
    /// The language people are told things in, such as `en` or `de-CH`.
    pub locale: String,
    /// How long a run only waits before it is suspended to the store; zero suspends at once.
    pub suspend_after: Duration,
    /// How long this worker is trusted to be alive without a word, where several share the store. `None` where one process
    /// owns it: then its runs can be claimed at any time, and nothing is polled for.
    pub lease: Option<Duration>,
    /// Largest artifact that is stored.
    pub artifact_bytes: u64,
    /// How often the store lets go of what it keeps no longer; `None` leaves that to whoever calls
    /// [`Runtime::tidy`]. Begins with [`Runtime::recover`].
    pub tidy_every: Option<Duration>,
    /// Makes run ids repeatable; `None` takes entropy from the machine.
    pub seed: Option<u64>,
    /// Whether runs are driven here. If not, runs can be looked at and told things, and new ones wait in the store: whoever
    /// opens it next drives them.
    pub drives: bool,
}

impl Config {
    /// The parts that have no default, and defaults for the rest.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, spawn: Arc<dyn Spawn>) -> Self {
        let toolbox = Toolbox::new();
        let in_flight = limits::ATTEMPTS_IN_FLIGHT;
        Self {
            store,
            clock,
            spawn,
            toolbox,
            in_flight,
            connections: Vec::new(),
            locale: "en".to_owned(),
            suspend_after: limits::SUSPEND_AFTER,
            policy: Policy::default(),
            lease: None,
            middleware: Vec::new(),
            attended: false,
            artifact_bytes: limits::ARTIFACT_BYTES,
            tidy_every: None,
            seed: None,
            drives: true,
        }
    }
}

impl Runtime {
    /// A runtime. It takes up no earlier runs until [`recover`](Runtime::recover).
    pub fn new(config: Config) -> Self {
        let signer = Arc::new(Signer::new(config.store.secret()));
        let watchers = Arc::new(Watchers::new(config.clock.clone()));
        let mint = config.seed.map_or_else(Mint::from_entropy, Mint::seeded);
        let lease = Lease::new(mint.worker(), config.lease);
        let env = Env {
            clock: config.clock,
            spawn: config.spawn,
            mint: Arc::new(mint),
            toolbox: config.toolbox.clone(),
            is_silent: config.policy == Policy::default(),
            policy: config.policy,
            attended: config.attended,
            connections: config.connections,
            middleware: config.middleware,
            locale: config.locale,
            limits: RuntimeLimits {
                suspend_after: config.suspend_after,
                tidy_every: config.tidy_every,
                artifact_bytes: config.artifact_bytes,
            },
        };
        let kernel = Kernel {
            env,
            admission: Admission::new(config.in_flight),
            store: config.store,
            lease,
            roster: Default::default(),
            rest: Default::default(),
            reach: Arc::new(Reach { signer, watchers }),
            watchdog: Default::default(),
            loops: Default::default(),
            on_threads: Default::default(),
            drives: config.drives,
            closed: false.into(),
        };
        Self { kernel: Arc::new(kernel), toolbox: config.toolbox }
    }

    /// The tools calls are resolved in.
    pub fn toolbox(&self) -> &Toolbox {
        &self.toolbox
    }

    /// The same runtime through the layer of this name, on top of the layers it has; see [`Toolbox::layer`].
    pub fn layer(&self, name: &str) -> std::result::Result<Self, RegisterError> {
        Ok(Self { kernel: self.kernel.clone(), toolbox: self.toolbox.layer(name)? })
    }

    /// The same through a layer of its own; see [`Toolbox::unnamed_layer`].
    #[must_use]
    pub fn unnamed_layer(&self) -> Self {
        Self { kernel: self.kernel.clone(), toolbox: self.toolbox.unnamed_layer() }
    }

    /// The same through layers that must be there already.
    pub fn in_layers(&self, layers: &Layers) -> std::result::Result<Self, NoLayer> {
        Ok(Self { kernel: self.kernel.clone(), toolbox: self.toolbox.with_layers(layers)? })
    }

    /// Makes one call and waits for its outcome, which is durable by then. Dropping the future after its first poll
    /// does not stop the run.
    pub async fn call(&self, call: ToolCall) -> Result<Outcome> {
        let id = call.id.clone();
        let (drive, lens) = self.kernel.start_call(&self.toolbox, call, &Start::default())?;
        let run = drive.run.id;
        let end = self.kernel.drive(drive).await;
        if self.goes_on(&end) {
            return self.attach(run).await?.pop().ok_or(Error::Elsewhere { run });
        }
        let told = finished(run, end)?.pop().ok_or(Error::Elsewhere { run })?;
        Ok(outcome(run, Path::root(), id, told, lens))
    }

    /// Makes several calls and waits for their outcomes, in order. One failure does not stop the others, unless
    /// `stop_on_failure`: then calls not yet started are skipped and say so.
    pub async fn batch(&self, calls: Vec<ToolCall>, stop_on_failure: bool) -> Result<Vec<Outcome>> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = calls.iter().map(|call| call.id.clone()).collect();
        let (drive, lenses) = self.kernel.start_batch(&self.toolbox, calls, stop_on_failure, &Start::default())?;
        let run = drive.run.id;
        let end = self.kernel.drive(drive).await;
        if self.goes_on(&end) {
            return self.attach(run).await;
        }
        let told = finished(run, end)?;
        let rows = told.into_iter().zip(ids).zip(lenses).enumerate();
        Ok(rows.map(|(i, ((told, id), lens))| outcome(run, Path::root().child(i as u32), id, told, lens)).collect())
    }

    /// Whether a run has more to come than the end of its drive: it rests, or somebody else has it by now, perhaps in this
    /// very process.
    fn goes_on(&self, end: &RunEnd) -> bool {
        let is_elsewhere = matches!(end, RunEnd::Elsewhere) && !self.kernel.closed.load(Ordering::Acquire);
        end.is_rest() || is_elsewhere
    }

    /// Starts one call and returns its run at once; the run goes on whatever becomes of the caller. The store is told of
    /// it, and may not have answered yet: [`attach`](Runtime::attach) waits for its end.
    pub fn start(&self, call: ToolCall) -> Result<RunId> {
        self.background(&call)?;
        let (drive, _) = self.kernel.start_call(&self.toolbox, call, &Start::default())?;
        Ok(self.kernel.accept(drive)?.run.id)
    }

    /// Starts one call for whoever takes it up: under a key, in a session, as a turn. Durable when it returns. With a key
    /// it is idempotent: the same key always names the same run, whatever call comes with it later.
    pub async fn start_with(&self, call: ToolCall, how: Start) -> Result<RunId> {
        let call = call.bounded();
        self.background(&call)?;
        Ok(self.begin(&Work::Call(call), &how).await?.0)
    }

    /// The tool a call in the background names, if it may run there.
    fn background(&self, call: &ToolCall) -> Result<Option<Arc<Tool>>> {
        let toolbox = self.toolbox.with_layers(&call.layers).ok();
        let tool = toolbox.and_then(|toolbox| resolve(&toolbox.snapshot(), &call.tool).cloned());
        match &tool {
            Some(tool) if tool.spec().guards.background == Background::Never => {
                let name = &tool.spec().name;
                Err(Error::Invalid(format!("`{name}` does not run in the background: call it and wait")))
            }
            _ => Ok(tool),
        }
    }

    /// Waits for a run's end, wherever it is by now, and returns the outcomes of its root calls: one, or those of a
    /// batch.
    pub async fn attach(&self, run: RunId) -> Result<Vec<Outcome>> {
        // The owner under which nobody here was seen to drive it, and how often.
        let mut undriven: Option<(u64, u32)> = None;
        loop {
            match self.kernel.roster.stage(run) {
                Stage::Queued(settled) | Stage::Taking(settled) => {
                    settled.wait().await;
                    continue;
                }
                Stage::Live(live) => match live.completion.wait().await {
                    RunEnd::Finished(_) => {}
                    // Another owner may have it by now, perhaps in this very process.
                    RunEnd::Elsewhere if !self.kernel.closed.load(Ordering::Acquire) => {}
                    // It is taken up again once the store answers, and its end is known then.
                    RunEnd::Unknown(_) if !self.kernel.closed.load(Ordering::Acquire) => continue,
                    end if end.is_rest() => {}
                    end => return finished(run, end).map(|_| Vec::new()),
                },
                Stage::Resting => {}
            }
            let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
            match info.state {
                RunState::Finished { .. } => {
                    let journal = people::current(self.kernel.store.journal(run, 0).await?);
                    return Ok(self.outcomes(run, &journal));
                }
                RunState::Held { hold } => return Err(Error::Held { run, hold }),
                _ if self.live(run).is_some() => {}
                _ if self.kernel.closed.load(Ordering::Acquire) => return Err(Error::Elsewhere { run }),
                RunState::Running if matches!(self.kernel.roster.stage(run), Stage::Resting) => {
                    match self.kernel.lease.look_around() {
                        // Another worker drives it.
                        Some(look) => self.kernel.env.clock.sleep(look).await,
                        // It may have ended since it was read, or be about to be known here, on a thread that stands still
                        // for a moment. If it runs on, nobody here did that.
                        None => match undriven {
                            Some((epoch, LOOKS)) if epoch == info.epoch => return Err(Error::Elsewhere { run }),
                            Some((epoch, looks)) if epoch == info.epoch => {
                                undriven = Some((epoch, looks + 1));
                                self.kernel.env.clock.sleep(LOOK_PAUSE).await;
                            }
                            _ => undriven = Some((info.epoch, 1)),
                        },
                    }
                }
                RunState::Running | RunState::Suspended { .. } | RunState::Queued => self.kernel.outlast(run).await?,
            }
        }
    }

    /// The outcomes of a run's root calls, from its journal.
    fn outcomes(&self, run: RunId, journal: &[Record]) -> Vec<Outcome> {
        let asked_at = |path: &Path| journal.iter().find_map(|r| r.asked.as_ref().filter(|_| r.path == *path));
        let batch = asked_at(&Path::root()).is_some_and(|asked| asked.kind == OpKind::Batch);
        let finished = journal.iter().filter(|record| record.path.depth() == usize::from(batch));
        let mut found: Vec<Outcome> = finished
            .filter_map(|record| {
                let Event::Finished(finished) = &record.event else { return None };
                let first = journal.iter().find(|first| first.path == record.path).unwrap_or(record);
                let told = Told { result: finished.answer(), at: record.at, times: finished.took(record.at, first.at) };
                let asked = asked_at(&record.path);
                let tool = asked.and_then(|asked| self.kernel.tool_of(asked));
                let args = asked.and_then(|asked| asked.input.clone()).unwrap_or_default();
                let own = asked.and_then(|asked| asked.limits.as_deref());
                let lens = Lens::of(tool.as_ref(), &args, (own, &self.kernel.env.policy));
                let id = asked.and_then(|asked| asked.call_id.clone());
                Some(outcome(run, record.path.clone(), id, told, lens))
            })
            .collect();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    fn live(&self, run: RunId) -> Option<Live> {
        self.kernel.roster.live(run)
    }

    /// Takes up one run again: a held one whose cause is gone, or one that another owner left. Deaths before this no
    /// longer count.
    pub async fn resume(&self, run: RunId) -> Result<()> {
        if self.live(run).is_some() {
            return Ok(());
        }
        if !self.kernel.drives {
            return Err(Error::NotDriving(format!(
                "this runtime drives no runs; resume run {run} where runs are driven"
            )));
        }
        if self.kernel.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.refuse_half_imported(run).await?;
        if let Some(live) = self.kernel.resume(run).await? {
            live.run.flush().await;
        }
        Ok(())
    }

    /// Ends a held run with an outcome from outside: the way out where no code will ever fit its journal. Attempts of it
    /// that may have happened stay in the list of doubts. Durable when it returns.
    pub async fn finish_by_hand(
        &self,
        run: RunId,
        result: std::result::Result<Output, ToolError>,
        by: &str,
        reason: &str,
    ) -> Result<()> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if !matches!(info.state, RunState::Held { .. }) {
            return Err(Error::Conflict(format!("run {run} is not held; only a held run is finished by hand")));
        }
        let settled = Settled { by: Settler::Person(by.to_owned()), reason: reason.to_owned() };
        if let Ok(output) = &result {
            output.clone().plain("a person").map_err(|error| Error::Invalid(error.to_string()))?;
            size::shallow(&output.value, "the outcome").map_err(Error::Invalid)?;
        }
        let result = result.map(Arc::new).map_err(Arc::new);
        match self.kernel.finish_by_hand(run, result, settled).await? {
            Some(RunEnd::Finished(_)) => Ok(()),
            Some(RunEnd::Unknown(source)) => Err(Error::Unknown { run, source }),
            _ => Err(Error::Elsewhere { run }),
        }
    }

    /// A run's state.
    pub async fn info(&self, run: RunId) -> Result<Option<RunInfo>> {
        Ok(self.kernel.store.info(run).await?)
    }

    /// Runs that match, oldest first, at most `limit`, after the run `after`.
    pub async fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        Ok(self.kernel.store.list(filter, after, limit).await?)
    }

    /// The same, newest first: before the run `before`, or from the newest on.
    pub async fn latest(&self, filter: Filter, before: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        Ok(self.kernel.store.latest(filter, before, limit).await?)
    }

    /// How many runs there are. Walks over all of them: for whoever looks now and then.
    pub async fn counts(&self) -> Result<Counts> {
        Ok(self.kernel.store.counts().await?)
    }

    /// A run's journal.
    pub async fn journal(&self, run: RunId) -> Result<Vec<Record>> {
        Ok(self.kernel.store.journal(run, 0).await?)
    }

    /// A piece of a run's journal: at most `limit` records from the record `from` on.
    pub async fn journal_page(&self, run: RunId, from: u64, limit: usize) -> Result<Vec<Record>> {
        Ok(self.kernel.store.page(run, from, limit).await?)
    }

    /// Looks for bodies that never yield, without keeping the runtime alive.
    pub fn observer(&self) -> Observer {
        Observer(self.kernel.watchdog.clone())
    }

    /// Takes no new calls and starts no new attempts, waits a while for the attempts in flight, then lets go of every run
    /// in good order and says so in the store: whoever opens it next goes on with them, and none counts as having killed
    /// the process. Attempts that are still in flight by then are dropped; a `once` attempt among them is in doubt, as
    /// after a crash. The store is closed: a file can be opened again at once.
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        let kernel = &self.kernel;
        kernel.closed.store(true, Ordering::Release);
        let mut patience = patience;
        while kernel.admission.permits.in_use() > 0 && !patience.is_zero() {
            let nap = patience.min(limits::DRAIN_LOOK);
            kernel.env.clock.sleep(nap).await;
            patience -= nap;
        }
        let mut failed = None;
        for Live { run, completion } in kernel.roster.all_live() {
            run.with(Machine::release);
            completion.wait().await;
            run.flush().await;
            let epoch = run.with(|machine| machine.outbox().epoch());
            // One that cannot be released counts as having died; the others must not.
            if let Err(error) = kernel.store.release(run.id, epoch).await {
                failed.get_or_insert(error);
            }
        }
        kernel.forget_all();
        kernel.store.close().await;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Looks for bodies that never yield.
pub struct Observer(Watchdog);

impl Observer {
    /// Bodies that have not yielded since the last time this was asked; see [`limits::WATCHDOG`].
    pub fn stuck(&self) -> Vec<Stuck> {
        self.0.look()
    }
}

fn finished(run: RunId, end: RunEnd) -> Result<Vec<Told>> {
    match end {
        RunEnd::Finished(told) => Ok(told),
        RunEnd::Held(hold) => Err(Error::Held { run, hold }),
        RunEnd::Unknown(source) => Err(Error::Unknown { run, source }),
        RunEnd::Elsewhere | RunEnd::Suspended { .. } | RunEnd::Continued => Err(Error::Elsewhere { run }),
    }
}

fn outcome(run: RunId, path: Path, id: Option<Arc<str>>, told: Told, lens: Lens) -> Outcome {
    Outcome { run, path, id, result: told.result, times: told.times, lens }
}

/// Decodes an outcome: its value, or the whole of it where `T` is [`Output`].
pub fn decode<T: DeserializeOwned + 'static>(outcome: &Outcome) -> Result<T> {
    match &outcome.result {
        Ok(output) => {
            from_output(output).map_err(|problem| Error::Decode { run: outcome.run, problem: problem.to_string() })
        }
        Err(error) => Err(Error::Tool((**error).clone())),
    }
}

impl Runtime {
    pub(crate) fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }
}
