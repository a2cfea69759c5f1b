//! The builder of a runtime.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::policy::Policy;
use windlass_core::store::{FileLimits, Retention};
use windlass_core::tool::Tool;
use windlass_core::{BreakerPolicy, Config, Drives, Error, Refresh, Result, Runtime, limits};
use windlass_store::{Durability, Options, SqliteStore};

use crate::executor::{self, TokioClock, TokioSpawn};
use crate::store::{MemoryStore, Store};
use crate::tool::{Middleware, RegisterError};
use crate::watchdog::WatchdogThread;
use crate::{Toolbox, Windlass};

pub use windlass_store::OpenError;

/// Builds and opens a runtime: `.await` opens it.
///
/// Awaiting opens the store, registers the tools and layers, and recovers the store's runs. Dropping the future opens
/// nothing, or closes the store again.
///
/// # Errors
///
/// [`Error::Open`] if the store cannot be opened or [`before_runs`](Builder::before_runs) fails; [`Error::Invalid`] for
/// a setting or policy that cannot work; an error for a tool or layer that is refused.
#[must_use = "nothing is opened until this is awaited"]
pub struct Builder {
    source: Source,
    durability: Durability,
    shared: bool,
    retention: Retention,
    tools: Vec<Tool>,
    layers: Vec<(String, Fill)>,
    toolbox: Toolbox,
    connections: Vec<String>,
    refresh: BTreeMap<String, Arc<dyn Refresh>>,
    policy: Policy,
    middleware: Vec<Arc<dyn Middleware>>,
    in_flight: usize,
    session_runs: u64,
    breaker: BreakerPolicy,
    unfinished_runs: u64,
    watchdog: Duration,
    locale: String,
    attended: bool,
    suspend_after: Duration,
    lease: Option<Duration>,
    artifact_bytes: u64,
    session_files: FileLimits,
    drives: Drives,
    before_runs: Option<Before>,
}

/// Sets what a layer adds and hides.
type Fill = Box<dyn FnOnce(&Toolbox) -> std::result::Result<(), RegisterError> + Send>;

/// Runs after the store was opened and before its runs are recovered.
type Before = Box<dyn FnOnce() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> + Send>;

/// The store to open.
enum Source {
    File(PathBuf),
    Memory,
    Store(Arc<dyn Store>),
}

impl Builder {
    pub(crate) fn file(path: &Path) -> Self {
        Self::new(Source::File(path.to_owned()))
    }

    pub(crate) fn memory() -> Self {
        Self::new(Source::Memory)
    }

    pub(crate) fn store(store: Arc<dyn Store>) -> Self {
        Self::new(Source::Store(store))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            durability: Durability::default(),
            shared: false,
            retention: Retention::default(),
            tools: Vec::new(),
            layers: Vec::new(),
            toolbox: Toolbox::new(),
            connections: Vec::new(),
            refresh: BTreeMap::new(),
            policy: Policy::default(),
            middleware: Vec::new(),
            in_flight: limits::ATTEMPTS_IN_FLIGHT,
            session_runs: limits::SESSION_RUNS,
            breaker: BreakerPolicy::default(),
            unfinished_runs: limits::UNFINISHED_RUNS,
            watchdog: limits::WATCHDOG,
            locale: "en".to_owned(),
            attended: false,
            suspend_after: limits::SUSPEND_AFTER,
            lease: None,
            artifact_bytes: limits::ARTIFACT_BYTES,
            session_files: FileLimits::default(),
            drives: Drives::All,
            before_runs: None,
        }
    }

    /// Registers a tool. A tool that is refused makes opening fail.
    pub fn tool(mut self, tool: impl Into<Tool>) -> Self {
        self.tools.push(tool.into());
        self
    }

    /// Uses an existing toolbox. The tools of this builder are added to it.
    pub fn toolbox(mut self, toolbox: Toolbox) -> Self {
        self.toolbox = toolbox;
        self
    }

    /// Registers a layer and fills it: `fill` adds tools to the layer, or hides tools below it; see
    /// [`Windlass::layer`]. Runs that were called through the layer are recovered with it. A layer that is refused
    /// makes opening fail.
    pub fn layer(
        mut self,
        name: &str,
        fill: impl FnOnce(&Toolbox) -> std::result::Result<(), RegisterError> + Send + 'static,
    ) -> Self {
        self.layers.push((name.to_owned(), Box::new(fill)));
        self
    }

    /// Sets what a power failure may lose; see [`Durability`]. Only for files.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Lets other programs read the file while it is open, such as SQLite's own shell. Without this, the file is locked
    /// for other processes, and commits are cheaper. Only for files.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Sets how long finished runs are kept; see [`Retention`]. The default is a month with the journal, and half a
    /// year more as a summary. For files and memory; a store of your own has its own retention.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Declares that this provider is connected, for tools that need a connection to it and read no credential.
    pub fn connection(mut self, provider: impl Into<String>) -> Self {
        self.connections.push(provider.into());
        self
    }

    /// Sets how expired connections to this provider are refreshed: one at a time for each of them. If that fails, a
    /// person is asked to connect again, with the reason.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::prelude::*;
    /// use windlass::connections::{ExpiredConnection, Refreshed};
    /// # async fn ask_provider(old: &str) -> Result<String, String> { Ok(old.to_owned()) }
    ///
    /// # async fn example() -> windlass::Result<()> {
    /// let refresh = |expired: ExpiredConnection| async move {
    ///     let token = ask_provider(expired.credential.expose()).await?;
    ///     Ok(Refreshed::new(token).expires_in(Duration::from_secs(3600)))
    /// };
    /// let windlass = Windlass::in_memory().refresh_connection("github", refresh).await?;
    /// # windlass.shutdown().await
    /// # }
    /// ```
    pub fn refresh_connection(mut self, provider: impl Into<String>, refresh: impl Refresh) -> Self {
        self.refresh.insert(provider.into(), Arc::new(refresh));
        self
    }

    /// Sets the policy for every call, which the tool or the call itself can override; see [`Policy`]. A policy that
    /// cannot work makes opening fail.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Adds middleware, which sees every call: in the order of registration before the call, in reverse order after it.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Sets the most attempts that run at once. Must be at least one.
    pub fn in_flight(mut self, attempts: usize) -> Self {
        self.in_flight = attempts;
        self
    }

    /// Sets the most unfinished runs of a session that sets no limit of its own, at least one and at most
    /// [`limits::SESSION_RUNS_MAX`].
    pub fn session_runs(mut self, runs: u64) -> Self {
        self.session_runs = runs;
        self
    }

    /// Sets when circuit breakers open and close, instead of the defaults of [`BreakerPolicy`].
    pub fn breaker(mut self, policy: BreakerPolicy) -> Self {
        self.breaker = policy;
        self
    }

    /// Sets from how many unfinished runs on new work is refused, instead of [`limits::UNFINISHED_RUNS`]. Must be at
    /// least one.
    pub fn unfinished_runs(mut self, most: u64) -> Self {
        self.unfinished_runs = most;
        self
    }

    /// Sets how long a body may compute without yielding before a warning names it.
    pub fn watchdog(mut self, interval: Duration) -> Self {
        self.watchdog = interval;
        self
    }

    /// Declares that a person is present to be asked. Conditions see this as `session.attended`, and
    /// [`unattended`](Policy::unattended) does not apply.
    pub fn attended(mut self) -> Self {
        self.attended = true;
        self
    }

    /// Sets how long a run may wait in memory before it is suspended to the store, instead of
    /// [`limits::SUSPEND_AFTER`].
    pub fn suspend_after(mut self, time: Duration) -> Self {
        self.suspend_after = time;
        self
    }

    /// Makes this one of several runtimes that share a store. The others consider it dead when it has not renewed its
    /// lease for this long. Only for stores that can be shared.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// Sets the largest artifact that may be stored, instead of [`limits::ARTIFACT_BYTES`].
    pub fn artifact_bytes(mut self, bytes: u64) -> Self {
        self.artifact_bytes = bytes;
        self
    }

    /// Sets the limits for the files of each session. A session that has more than a lowered limit keeps its files.
    pub fn session_files(mut self, limits: FileLimits) -> Self {
        self.session_files = limits;
        self
    }

    /// Opens the store for reading and for sending messages to runs, without driving any: what is started, decided or
    /// answered here takes effect when another process drives the store. Calls and
    /// [`RunHandle::resume`](crate::RunHandle::resume) are refused.
    pub fn idle(mut self) -> Self {
        self.drives = Drives::Nothing;
        self
    }

    /// Opens the store for the runs that are called, started or resumed through this runtime, and the runs those spawn.
    /// The other runs of the store are not claimed: they stay exactly as they are for the next process that drives
    /// them. A run that waits for one of them, for a key or a turn, waits until then; [`explain`](crate::RunHandle::explain)
    /// names it.
    pub fn own_runs_only(mut self) -> Self {
        self.drives = Drives::Own;
        self
    }

    /// Calls a function once this process owns the store, before any of its runs is recovered. It is not called if
    /// another process has the file open. Use it to clean up what a dead owner left behind, such as commands that still
    /// run. If it fails, opening fails with [`Error::Open`].
    pub fn before_runs<E>(mut self, prepare: impl FnOnce() -> std::result::Result<(), E> + Send + 'static) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.before_runs = Some(Box::new(|| prepare().map_err(Into::into)));
        self
    }

    /// Sets the language of narration lines, such as `de-CH`. The default is English.
    pub fn locale(mut self, locale: impl Into<String>) -> Self {
        self.locale = locale.into();
        self
    }

    async fn open(self) -> Result<Windlass> {
        if self.in_flight == 0 {
            return Err(Error::Invalid("in_flight(0) would never let an attempt start; use at least 1".to_owned()));
        }
        if !(1..=limits::SESSION_RUNS_MAX).contains(&self.session_runs) {
            let (runs, most) = (self.session_runs, limits::SESSION_RUNS_MAX);
            return Err(Error::Invalid(format!("session_runs({runs}) is not possible; use 1 to {most}")));
        }
        if self.unfinished_runs == 0 {
            return Err(Error::Invalid("unfinished_runs(0) would refuse all work; use at least 1".to_owned()));
        }
        if self.breaker.successes == 0 || self.breaker.open_for.is_zero() {
            let problem = "a breaker needs at least one success to close, and stays open for some time";
            return Err(Error::Invalid(problem.to_owned()));
        }
        self.policy.check().map_err(|problem| Error::Invalid(problem.to_string()))?;
        if self.lease.is_some_and(|lease| lease < limits::SHORTEST_LEASE) {
            let least = limits::SHORTEST_LEASE;
            let problem = format!("a lease shorter than {least:?} ends between two renewals; use a longer one");
            return Err(Error::Invalid(problem));
        }
        for tool in self.tools {
            self.toolbox.insert(tool)?;
        }
        for (name, fill) in self.layers {
            fill(&self.toolbox.layer(&name)?)?;
        }
        let mut file = None;
        let store: Arc<dyn Store> = match self.source {
            Source::Store(store) => store,
            Source::Memory => Arc::new(MemoryStore::keeping(self.retention)),
            Source::File(path) => {
                let mut options = Options::from(self.durability);
                options.retention = self.retention;
                options.shared = self.shared;
                options.inline_writes = executor::has_threads_to_spare();
                let opened = SqliteStore::open_with(&path, options);
                let opened = Arc::new(opened.map_err(|error| Error::Open(Box::new(error)))?);
                file = Some(opened.clone());
                opened
            }
        };
        if let Some(prepare) = self.before_runs {
            prepare().map_err(Error::Open)?;
        }
        let mut config = Config::new(store, Arc::new(TokioClock::new()), Arc::new(TokioSpawn::current()));
        config.toolbox = self.toolbox;
        config.in_flight = self.in_flight;
        config.session_runs = self.session_runs;
        config.breaker = self.breaker;
        config.unfinished_runs = self.unfinished_runs;
        config.connections = self.connections;
        config.refresh = self.refresh;
        config.policy = self.policy;
        config.middleware = self.middleware;
        config.locale = self.locale;
        config.attended = self.attended;
        config.suspend_after = self.suspend_after;
        config.lease = self.lease;
        config.artifact_bytes = self.artifact_bytes;
        config.files = self.session_files;
        config.drives = self.drives;
        config.tidy_every = Some(limits::TIDY_EVERY);
        let runtime = Runtime::new(config);
        let watchdog = WatchdogThread::start(&runtime, self.watchdog)
            .map_err(|error| Error::System(format!("the watchdog thread could not be started: {error}").into()))?;
        runtime.recover().await?;
        Ok(Windlass { runtime, watchdog: Arc::new(watchdog), file })
    }
}

impl IntoFuture for Builder {
    type Output = Result<Windlass>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// # Panics
    ///
    /// If it is awaited outside of a tokio runtime.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
