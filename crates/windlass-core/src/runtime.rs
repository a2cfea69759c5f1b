//! The public interface of the kernel, for the facade, tests and other drivers.

mod connections;
mod counted;
mod facts;
mod forks;
mod inspect;
mod messages;
mod recovery;
mod retention;
mod session_files;
mod session_turns;
mod sessions;
mod submit;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::activity::watchers::Watchers;
use crate::admit::{Admission, BreakerPolicy, Breakers, UnfinishedRunLimit};
use crate::attribution::check_attribution;
use crate::begin::NewRun;
use crate::call::{Middleware, Outcome, Reach, ToolCall};
use crate::connections::{Providers, Refresh};
use crate::driver::DrivenRun;
use crate::drives::Drives;
use crate::env::{Env, RuntimeLimits};
use crate::error::{Error, Result};
use crate::id::{Mint, RunId};
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::policy::Policy;
use crate::roster::RunStage;
use crate::run::drive::RunEnd;
use crate::run::machine::Machine;
use crate::run::record::{OpOutcome, Record, Settled, Settler};
use crate::run::reply::Signer;
use crate::run::state::{RunInfo, RunState};
use crate::spawn::Spawn;
use crate::store::{Counts, Creation, FileLimits, Filter, Store, StoreError, Turn};
use crate::time::{Clock, Timestamp, words};
use crate::tool::{Layers, NoLayer, Output, RegisterError, ToolError, Toolbox, from_output};
use crate::value::size;
use crate::watchdog::{Stuck, Watchdog};
use crate::worker::Lease;

pub use connections::Connect;
pub use counted::{About, AskedCall, Counted, Question};
pub use inspect::RecordedBatch;
pub use messages::{Awaited, ReplyResult};
pub(crate) use session_files::file_error;
pub use session_files::{FileWriter, SessionFiles};
pub use session_turns::{ContextReport, ContextSection, Unfinished};
pub(crate) use sessions::unexpected as unexpected_answer;
pub use sessions::{Posted, Session, UnfinishedRuns};
pub use submit::{Submitted, Work};

/// How many runs are read from the store at once.
const PAGE: usize = 256;
/// How often a run that should be driven here is checked before it is reported as driven elsewhere, and the pause
/// between.
const CHECKS: u32 = 5;
const CHECK_PAUSE: Duration = Duration::from_millis(10);

/// Drives calls and runs over a store. Clones share the runtime.
#[derive(Clone)]
pub struct Runtime {
    kernel: Arc<Kernel>,
    toolbox: Toolbox,
}

/// How a run is submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// At most one run is ever started with this key.
    pub key: Option<Arc<str>>,
    /// The session it belongs to.
    pub session: Option<Arc<str>>,
    /// Who it acts for.
    pub principal: Option<Arc<str>>,
    /// What caused it, as given.
    pub cause: Option<Arc<str>>,
    /// Whether it is a turn of its session.
    pub turn: Turn,
    /// Whether its session must belong to its principal. The session of another one looks missing.
    pub own_session: bool,
}

impl Start {
    /// With this key, at most once.
    pub fn key(key: impl Into<Arc<str>>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// In this session.
    pub fn session(session: impl Into<Arc<str>>) -> Self {
        Self { session: Some(session.into()), ..Self::default() }
    }

    fn check(&self) -> Result<()> {
        self.principal.iter().try_for_each(|principal| check_attribution("principal", principal))?;
        self.cause.iter().try_for_each(|cause| check_attribution("cause", cause))
    }

    /// The description of a run without an owner that is started like this.
    pub(crate) fn creation(&self, tool: Arc<str>, at: Timestamp) -> Creation {
        let Self { key, session, principal, cause, turn, own_session } = self.clone();
        Creation { tool, at, key, session, principal, cause, turn, own_session, ..Creation::default() }
    }
}

/// The settings of a runtime.
// Many fields: one for each choice of the embedding program.
pub struct Config {
    /// The store that keeps the runs.
    pub store: Arc<dyn Store>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The executor of tasks.
    pub spawn: Arc<dyn Spawn>,
    /// The tools. Recovered runs find their tools here too.
    pub toolbox: Toolbox,
    /// The most attempts that run at once.
    pub in_flight: usize,
    /// Providers that are connected without a connection in the store, for tools that need one.
    pub connections: Vec<String>,
    /// How expired connections are refreshed, by provider.
    pub refresh: BTreeMap<String, Arc<dyn Refresh>>,
    /// The policy for every call, which the tool or the call can override. See [`Policy::check`].
    pub policy: Policy,
    /// Whether a person is present to be asked. If so, [`Policy::unattended`] does not apply. Conditions can use it.
    pub attended: bool,
    /// Middleware, which sees every call: in this order before it, in reverse order after it.
    pub middleware: Vec<Arc<dyn Middleware>>,
    /// The language of narration lines, such as `en` or `de-CH`.
    pub locale: String,
    /// How long a run may wait in memory before it is suspended to the store; zero suspends at once.
    pub suspend_after: Duration,
    /// For several workers that share the store: how long this worker is considered alive after it renewed its lease.
    /// `None` if one process owns the store; then its runs can be claimed at any time, and nothing is polled for.
    pub lease: Option<Duration>,
    /// The largest artifact that may be stored, in bytes.
    pub artifact_bytes: u64,
    /// The limits for the files of a session.
    pub files: FileLimits,
    /// How often what need not be kept is removed from the store, starting with [`Runtime::recover`]. `None` leaves
    /// that to calls of [`Runtime::tidy`].
    pub tidy_every: Option<Duration>,
    /// Makes run ids repeatable, for tests; `None` uses the system's entropy.
    pub seed: Option<u64>,
    /// Which runs of the store this runtime drives.
    pub drives: Drives,
    /// The most unfinished runs of a session that sets no limit of its own.
    pub session_runs: u64,
    /// When circuit breakers open and close.
    pub breaker: BreakerPolicy,
    /// Unfinished runs of the store from which on new work from outside is refused ([`Error::Overloaded`]).
    pub unfinished_runs: u64,
}

impl Config {
    /// A configuration with these parts, and defaults for the rest.
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
            refresh: BTreeMap::new(),
            locale: "en".to_owned(),
            suspend_after: limits::SUSPEND_AFTER,
            policy: Policy::default(),
            lease: None,
            middleware: Vec::new(),
            attended: false,
            artifact_bytes: limits::ARTIFACT_BYTES,
            files: FileLimits::default(),
            tidy_every: None,
            seed: None,
            drives: Drives::All,
            session_runs: limits::SESSION_RUNS,
            breaker: BreakerPolicy::default(),
            unfinished_runs: limits::UNFINISHED_RUNS,
        }
    }
}

impl Runtime {
    /// Creates a runtime. It recovers no earlier runs until [`recover`](Runtime::recover) is called.
    pub fn new(config: Config) -> Self {
        config.store.use_clock(config.clock.clone());
        let signer = Arc::new(Signer::new(config.store.secret()));
        let watchers = Arc::new(Watchers::new(config.clock.clone()));
        let mint = config.seed.map_or_else(Mint::from_entropy, Mint::seeded);
        let lease = Lease::new(mint.worker(), config.lease);
        let env = Env {
            clock: config.clock,
            spawn: config.spawn,
            mint: Arc::new(mint),
            toolbox: config.toolbox.clone(),
            is_policy_empty: config.policy == Policy::default(),
            policy: config.policy,
            attended: config.attended,
            providers: Arc::new(Providers::new(config.connections, config.refresh)),
            middleware: config.middleware,
            locale: config.locale,
            limits: RuntimeLimits {
                suspend_after: config.suspend_after,
                tidy_every: config.tidy_every,
                artifact_bytes: config.artifact_bytes,
                files: config.files,
                session_runs: config.session_runs,
            },
        };
        let is_shared = lease.length.is_some() && config.store.admission().is_some();
        let reach = Arc::new(Reach { signer, watchers, store: config.store.clone() });
        let mut admission = Admission::new(config.in_flight, is_shared);
        admission.breakers = Breakers::new(config.breaker);
        admission.unfinished = UnfinishedRunLimit::new(config.unfinished_runs);
        let kernel = Kernel {
            env,
            admission,
            store: config.store,
            lease,
            roster: Default::default(),
            undriven: Default::default(),
            reach,
            watchdog: Default::default(),
            on_threads: Default::default(),
            drives: config.drives.into(),
            closed: false.into(),
        };
        Self { kernel: Arc::new(kernel), toolbox: config.toolbox }
    }

    /// The tools that calls are resolved in.
    pub fn toolbox(&self) -> &Toolbox {
        &self.toolbox
    }

    /// This runtime with the layer of this name on top of its layers; see [`Toolbox::layer`].
    pub fn layer(&self, name: &str) -> std::result::Result<Self, RegisterError> {
        Ok(Self { kernel: self.kernel.clone(), toolbox: self.toolbox.layer(name)? })
    }

    /// This runtime with a new unnamed layer on top; see [`Toolbox::unnamed_layer`].
    #[must_use]
    pub fn unnamed_layer(&self) -> Self {
        Self { kernel: self.kernel.clone(), toolbox: self.toolbox.unnamed_layer() }
    }

    /// This runtime with these layers on top, which must be registered.
    pub fn in_layers(&self, layers: &Layers) -> std::result::Result<Self, NoLayer> {
        Ok(Self { kernel: self.kernel.clone(), toolbox: self.toolbox.with_layers(layers)? })
    }

    /// Makes one call and waits for its outcome, which is durable when this returns.
    ///
    /// Dropping the future after its first poll does not stop the run. A failed call is an [`Outcome`] with an error;
    /// this returns `Err` only if the outcome is not known here: the run is held, the store failed, or another process
    /// drives it.
    pub async fn call(&self, mut call: ToolCall) -> Result<Outcome> {
        let (run, mut outcomes) = match call.start {
            None => self.run(Work::Call(call)).await?,
            Some(_) => {
                let how = call.take_start();
                Box::pin(self.submit(Work::Call(call), how)).await?.run_to_end().await?
            }
        };
        outcomes.pop().ok_or(Error::Elsewhere { run })
    }

    /// Makes several calls as one run and waits for their outcomes, which are durable when this returns and in the
    /// order of the calls. A failure does not stop the others, unless `stop_on_failure` is set: then calls that have
    /// not started are skipped, and their outcomes say so. At most [`limits::BATCH_CALLS`]. Dropping the future does
    /// not stop the run.
    pub async fn batch(&self, calls: Vec<ToolCall>, stop_on_failure: bool) -> Result<Vec<Outcome>> {
        self.batch_with(calls, stop_on_failure, Start::default()).await
    }

    /// The same as one run under a key, in a session or as a turn.
    pub async fn batch_with(&self, calls: Vec<ToolCall>, stop_on_failure: bool, how: Start) -> Result<Vec<Outcome>> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let work = Work::Batch { calls, stop_on_failure };
        if how == Start::default() {
            return Ok(self.run(work).await?.1);
        }
        Ok(Box::pin(self.submit(work, how)).await?.run_to_end().await?.1)
    }

    /// Creates a run for the work and waits for its end. A run that has to wait gets a task of its own, so that it
    /// continues even if the caller does not poll this future.
    async fn run(&self, work: Work) -> Result<(RunId, Vec<Outcome>)> {
        if !self.kernel.admission.unfinished.has_credit() {
            Box::pin(self.kernel.admit_run()).await?;
        }
        let NewRun { drive, calls, .. } =
            self.kernel.new_run(&self.toolbox, work.bounded()?, &Start::default(), Vec::new())?;
        let run = drive.run.id;
        let end = self.kernel.drive(drive).await;
        if self.goes_on(&end) {
            return Ok((run, self.attach(run).await?));
        }
        Ok((run, calls.outcomes(run, finished(run, end)?)))
    }

    /// Whether the run continues after this end of its drive: it is suspended, or another owner has claimed it,
    /// possibly in this process.
    fn goes_on(&self, end: &RunEnd) -> bool {
        let is_elsewhere = matches!(end, RunEnd::Elsewhere) && !self.kernel.closed.load(Ordering::Acquire);
        end.continues_later() || is_elsewhere
    }

    /// Starts one call and returns its run at once, before the store has confirmed it: unlike
    /// [`start_call`](Runtime::start_call), it may not be durable yet when this returns. For tests and benchmarks.
    pub fn start_unconfirmed(&self, call: ToolCall) -> Result<RunId> {
        submit::background(&self.toolbox, &call)?;
        let work = Work::Call(call).bounded()?;
        let NewRun { drive, .. } = self.kernel.new_run(&self.toolbox, work, &Start::default(), Vec::new())?;
        Ok(self.kernel.accept(drive)?.run.id)
    }

    /// Waits for the end of a run, wherever it is driven, and returns the outcomes of its root calls: one, or those of
    /// a batch. Dropping the future does not affect the run.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if the run is held; [`Error::Elsewhere`] if no runtime that shares this store with a lease
    /// drives it, or this runtime was shut down.
    pub async fn attach(&self, run: RunId) -> Result<Vec<Outcome>> {
        // The epoch at which no task of this process drove the run, and how often that was seen.
        let mut undriven: Option<(u64, u32)> = None;
        loop {
            match self.kernel.roster.stage(run) {
                RunStage::Queued(settled) | RunStage::TakingUp(settled) => {
                    settled.wait().await;
                    continue;
                }
                RunStage::Driven(driven) => match driven.completion.wait().await {
                    RunEnd::Finished(_) => {}
                    // Another owner may have it by now, possibly in this process.
                    RunEnd::Elsewhere if !self.kernel.closed.load(Ordering::Acquire) => {}
                    // It is claimed again once the store answers; its end is known then.
                    RunEnd::Unknown(_) if !self.kernel.closed.load(Ordering::Acquire) => continue,
                    end if end.continues_later() => {}
                    end => return finished(run, end).map(|_| Vec::new()),
                },
                RunStage::NotDriven => {}
            }
            let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
            match info.state {
                RunState::Finished { .. } => {
                    let journal = messages::current(self.kernel.store.journal(run, 0).await?);
                    return Ok(self.recorded_outcomes(&info, &journal));
                }
                RunState::Held { hold } => return Err(Error::Held { run, hold }),
                _ if self.driven(run).is_some() => {}
                _ if self.kernel.closed.load(Ordering::Acquire) => return Err(Error::Elsewhere { run }),
                RunState::Running if matches!(self.kernel.roster.stage(run), RunStage::NotDriven) => {
                    match self.kernel.lease.poll_interval() {
                        // Another worker drives it.
                        Some(interval) => self.kernel.env.clock.sleep(interval).await,
                        // It may be among the runs that are being claimed.
                        None if self.kernel.undriven.is_claiming() => {
                            self.kernel.env.clock.sleep(CHECK_PAUSE).await;
                        }
                        // It may have ended since its row was read, or a thread of this process may be about to
                        // register it. If the epoch stays the same, no task of this process drives it.
                        None => match undriven {
                            Some((epoch, CHECKS)) if epoch == info.epoch => return Err(Error::Elsewhere { run }),
                            Some((epoch, checks)) if epoch == info.epoch => {
                                undriven = Some((epoch, checks + 1));
                                self.kernel.env.clock.sleep(CHECK_PAUSE).await;
                            }
                            _ => undriven = Some((info.epoch, 1)),
                        },
                    }
                }
                RunState::Running | RunState::Suspended { .. } | RunState::Queued => {
                    self.kernel.wait_for_end(run).await?
                }
            }
        }
    }

    fn driven(&self, run: RunId) -> Option<DrivenRun> {
        self.kernel.roster.driven(run)
    }

    /// Continues one run: a held one whose cause was removed, or one that its owner left. Earlier deaths of its owners
    /// no longer count. What it found out at its start, such as new doubts, is durable when this returns.
    pub async fn resume(&self, run: RunId) -> Result<()> {
        if self.driven(run).is_some() {
            return Ok(());
        }
        if !self.kernel.drives.any() {
            return Err(Error::NotDriving(format!(
                "this runtime drives no runs; resume run {run} in a process that does"
            )));
        }
        if self.kernel.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.refuse_half_imported(run).await?;
        self.adopt(run).await?;
        if let Some(driven) = self.kernel.resume(run).await? {
            driven.run.flush().await;
        }
        Ok(())
    }

    /// Ends a held run with an outcome from outside, for a journal that no code will ever fit. Attempts that may have
    /// taken effect stay in the list of doubts. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if the run is not held.
    pub async fn finish_by_hand(
        &self,
        run: RunId,
        mut result: std::result::Result<Output, ToolError>,
        by: &str,
        reason: &str,
    ) -> Result<()> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if !matches!(info.state, RunState::Held { .. }) {
            return Err(Error::Conflict(format!("run {run} is not held; only a held run is finished by hand")));
        }
        let settled = Settled { by: Settler::Person(by.to_owned()), reason: reason.to_owned() };
        if let Ok(output) = &mut result {
            output.clone().refuse_atomic_only("a person").map_err(|error| Error::Invalid(error.to_string()))?;
            size::check_depth(&output.value, "the outcome").map_err(Error::Invalid)?;
            // A run is finished by hand also if its journal can no longer be read.
            if let Ok(journal) = self.kernel.store.journal(run, 0).await {
                let session = info.session.as_ref();
                self.kernel.mark_given(session, &messages::current(journal), &Path::root(), output);
            }
        }
        let result = result.map(Arc::new).map_err(Arc::new);
        match self.kernel.finish_by_hand(run, result, settled).await? {
            Some(RunEnd::Finished(_)) => Ok(()),
            Some(RunEnd::Unknown(source)) => Err(Error::Unknown { run, source }),
            _ => Err(Error::Elsewhere { run }),
        }
    }

    /// The state of a run; `None` if there is no such run.
    pub async fn info(&self, run: RunId) -> Result<Option<RunInfo>> {
        Ok(self.kernel.store.info(run).await?)
    }

    /// Runs that match the filter, oldest first, at most `limit`, after the run `after`.
    pub async fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        Ok(self.kernel.store.list(filter, after, limit).await?)
    }

    /// Like [`list`](Runtime::list), newest first: before the run `before`, or from the newest on.
    pub async fn latest(&self, filter: Filter, before: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        Ok(self.kernel.store.latest(filter, before, limit).await?)
    }

    /// The number of runs by state. It reads all of them, so it is meant for occasional use.
    pub async fn counts(&self) -> Result<Counts> {
        Ok(self.kernel.store.counts().await?)
    }

    /// The journal of a run, over all generations.
    pub async fn journal(&self, run: RunId) -> Result<Vec<Record>> {
        Ok(self.kernel.store.journal(run, 0).await?)
    }

    /// A part of a run's journal: at most `limit` records from the record `from` on.
    pub async fn journal_page(&self, run: RunId, from: u64, limit: usize) -> Result<Vec<Record>> {
        Ok(self.kernel.store.page(run, from, limit).await?)
    }

    /// An observer that finds bodies that never yield. It does not keep the runtime alive.
    pub fn observer(&self) -> Observer {
        Observer(self.kernel.watchdog.clone())
    }

    /// Waits for the attempts in flight, at most this long.
    async fn drain(&self, patience: Duration) {
        let (kernel, in_flight) = (&self.kernel, || self.kernel.admission.permits.in_use());
        if in_flight() == 0 {
            return;
        }
        let busy = || -> Vec<String> {
            let is_busy = |driven: &DrivenRun| !driven.run.with(|machine| machine.is_parked());
            kernel
                .roster
                .all_driven()
                .iter()
                .filter(|driven| is_busy(driven))
                .map(|driven| driven.run.id.to_string())
                .collect()
        };
        let (attempts, runs) = (in_flight(), busy().join(", "));
        tracing::warn!(attempts, runs, "the shutdown waits up to {} for attempts in flight", words(patience));
        let began = kernel.env.clock.ticks();
        let left = || patience.saturating_sub(Duration::from_nanos(kernel.env.clock.ticks().saturating_sub(began)));
        while in_flight() > 0 && !left().is_zero() {
            kernel.env.clock.sleep(left().min(limits::DRAIN_POLL)).await;
        }
        if in_flight() > 0 {
            let (attempts, runs) = (in_flight(), busy().join(", "));
            tracing::warn!(attempts, runs, "the shutdown drops attempts in flight; `once` attempts will be in doubt");
        }
    }

    /// Shuts down cleanly. Takes no new calls, starts no new attempts, and waits up to `patience` for the attempts in
    /// flight. Then it stops driving its runs and records that in the store, so that the next process continues them
    /// and none counts as having killed this one. Attempts that are still in flight are dropped; a `once` attempt among
    /// them is in doubt, as after a crash. Finally the store is closed; a file can be opened again at once.
    ///
    /// # Errors
    ///
    /// The first error of the store. The other runs are still released, and the store is closed.
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        let kernel = &self.kernel;
        kernel.closed.store(true, Ordering::Release);
        self.drain(patience).await;
        let mut failed = None;
        for DrivenRun { run, completion } in kernel.roster.all_driven() {
            run.with(Machine::release);
            completion.wait().await;
            run.flush().await;
            let epoch = run.with(|machine| machine.outbox().epoch());
            // A run that cannot be released counts as left by a dead owner; continue with the others.
            if let Err(error) = kernel.store.release(run.id, epoch).await {
                failed.get_or_insert(error);
            }
        }
        kernel.forget_all();
        kernel.store.close().await;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Finds bodies that never yield.
pub struct Observer(Watchdog);

impl Observer {
    /// Bodies that have not yielded since the last call; see [`limits::WATCHDOG`].
    pub fn stuck(&self) -> Vec<Stuck> {
        self.0.look()
    }
}

/// The results of a run that has ended here.
fn finished(run: RunId, end: RunEnd) -> Result<Vec<OpOutcome>> {
    match end {
        RunEnd::Finished(outcomes) => Ok(outcomes),
        RunEnd::Held(hold) => Err(Error::Held { run, hold }),
        RunEnd::Unknown(source) => Err(Error::Unknown { run, source }),
        RunEnd::Elsewhere | RunEnd::Suspended { .. } | RunEnd::Continued => Err(Error::Elsewhere { run }),
    }
}

/// Decodes the value of an outcome, or returns the whole output if `T` is [`Output`].
///
/// # Errors
///
/// [`Error::Tool`] if the call failed; [`Error::Decode`] if `T` does not fit the value.
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
