//! Putting a runtime together.

use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::policy::Policy;
use windlass_core::store::Retention;
use windlass_core::tool::Tool;
use windlass_core::{Config, Error, Result, Runtime, limits};
use windlass_store::{Durability, Options, SqliteStore};

use crate::executor::{self, TokioClock, TokioSpawn};
use crate::watch::Watch;
use crate::{MemoryStore, Middleware, RegisterError, Store, Toolbox, Windlass};

pub use windlass_store::OpenError;

/// A runtime to be opened: await it.
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
    policy: Policy,
    middleware: Vec<Arc<dyn Middleware>>,
    in_flight: usize,
    watchdog: Duration,
    locale: String,
    attended: bool,
    suspend_after: Duration,
    lease: Option<Duration>,
    artifact_bytes: u64,
    drives: bool,
    before_runs: Option<Before>,
}

/// Says what a layer adds and hides.
type Fill = Box<dyn FnOnce(&Toolbox) -> std::result::Result<(), RegisterError> + Send>;

/// What happens between owning the store and taking up its runs.
type Before = Box<dyn FnOnce() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> + Send>;

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
            policy: Policy::default(),
            middleware: Vec::new(),
            in_flight: limits::ATTEMPTS_IN_FLIGHT,
            watchdog: limits::WATCHDOG,
            locale: "en".to_owned(),
            attended: false,
            suspend_after: limits::SUSPEND_AFTER,
            lease: None,
            artifact_bytes: limits::ARTIFACT_BYTES,
            drives: true,
            before_runs: None,
        }
    }

    /// Registers a tool. A bad one is refused when the builder is awaited.
    pub fn tool(mut self, tool: impl Into<Tool>) -> Self {
        self.tools.push(tool.into());
        self
    }

    /// Uses a toolbox made elsewhere; tools of this builder are added to it.
    pub fn toolbox(mut self, toolbox: Toolbox) -> Self {
        self.toolbox = toolbox;
        self
    }

    /// Registers a layer, with what it adds to the tools below it or hides of them; see [`Windlass::layer`]. Runs that were
    /// called through it are recovered with it. What is refused is refused when the builder is awaited.
    pub fn layer(
        mut self,
        name: &str,
        fill: impl FnOnce(&Toolbox) -> std::result::Result<(), RegisterError> + Send + 'static,
    ) -> Self {
        self.layers.push((name.to_owned(), Box::new(fill)));
        self
    }

    /// What a power cut may lose; see [`Durability`]. Only for files.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Lets other programs read the file while it is open, such as SQLite's own shell. Otherwise it is kept to this process:
    /// others are told that it is locked, and commits take fewer steps. Only for files.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// How long finished runs are kept; a month whole and half a year as a summary unless set, see [`Retention`]. For files
    /// and for memory; a store of your own has its own.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Says that tools which need a connection to this provider have it.
    pub fn connection(mut self, provider: impl Into<String>) -> Self {
        self.connections.push(provider.into());
        self
    }

    /// What governs every call, where neither it nor its tool says otherwise; see [`Policy`]. One that cannot work is
    /// refused when the builder is awaited.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Lets middleware see every call: in the order of registration before it, in reverse after it.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Most attempts in flight at once. Must be at least one.
    pub fn in_flight(mut self, attempts: usize) -> Self {
        self.in_flight = attempts;
        self
    }

    /// How long a body may compute without yielding before it is named.
    pub fn watchdog(mut self, interval: Duration) -> Self {
        self.watchdog = interval;
        self
    }

    /// Says that somebody is there to be asked; conditions see it as `session.attended`, and
    /// [`unattended`](Policy::unattended) no longer applies.
    pub fn attended(mut self) -> Self {
        self.attended = true;
        self
    }

    /// How long a run only waits before it is suspended to the store, instead of [`limits::SUSPEND_AFTER`].
    pub fn suspend_after(mut self, time: Duration) -> Self {
        self.suspend_after = time;
        self
    }

    /// Makes this one of several runtimes that share a store, trusted to be alive for this long after its last word. Only
    /// for stores that can be shared.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// Largest artifact that is stored, instead of [`limits::ARTIFACT_BYTES`].
    pub fn artifact_bytes(mut self, bytes: u64) -> Self {
        self.artifact_bytes = bytes;
        self
    }

    /// Opens the store to look at runs and to tell them things, and drives none: what was started, decided or answered
    /// here takes effect where the store is opened next. Calls and [`resume`](Windlass::resume) are refused.
    pub fn idle(mut self) -> Self {
        self.drives = false;
        self
    }

    /// Does something when this process owns the store, and before any of its runs is taken up: a file that another process
    /// has open is refused before this is called. The place for ending what a dead owner left behind, such as the commands
    /// that still run. If it fails, the store is not opened, and the error is [`Error::Open`].
    pub fn before_runs<E>(mut self, prepare: impl FnOnce() -> std::result::Result<(), E> + Send + 'static) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.before_runs = Some(Box::new(|| prepare().map_err(Into::into)));
        self
    }

    /// The language people are told things in, such as `de-CH`; English unless set.
    pub fn locale(mut self, locale: impl Into<String>) -> Self {
        self.locale = locale.into();
        self
    }

    async fn open(self) -> Result<Windlass> {
        if self.in_flight == 0 {
            return Err(Error::Invalid("in_flight(0) would never let an attempt start; use at least 1".to_owned()));
        }
        self.policy.check().map_err(|problem| Error::Invalid(problem.to_string()))?;
        if self.lease.is_some_and(|lease| lease < limits::SHORTEST_LEASE) {
            let least = limits::SHORTEST_LEASE;
            return Err(Error::Invalid(format!("a lease shorter than {least:?} ends between two renewals; use more")));
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
                options.here = executor::has_threads_to_spare();
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
        config.connections = self.connections;
        config.policy = self.policy;
        config.middleware = self.middleware;
        config.locale = self.locale;
        config.attended = self.attended;
        config.suspend_after = self.suspend_after;
        config.lease = self.lease;
        config.artifact_bytes = self.artifact_bytes;
        config.drives = self.drives;
        config.tidy_every = Some(limits::TIDY_EVERY);
        let runtime = Runtime::new(config);
        let watch = Watch::start(&runtime, self.watchdog)
            .map_err(|error| Error::System(format!("the watchdog's thread cannot be started: {error}").into()))?;
        runtime.recover().await?;
        Ok(Windlass { runtime, watch: Arc::new(watch), file })
    }
}

impl IntoFuture for Builder {
    type Output = Result<Windlass>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// # Panics
    ///
    /// Awaited outside of a tokio runtime.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
