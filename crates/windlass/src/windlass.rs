//! The runtime as programs use it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::activity::{Cursor, Watch};
use windlass_core::call::{Outcome, ToolCall};
use windlass_core::policy::{Hypothetical, Prediction};
use windlass_core::run::state::RunInfo;
use windlass_core::store::{
    Access, Counts, Filter, SessionCursor, SessionFilter, SessionInfo, Store, Swept, Tidied, Turn,
};
use windlass_core::tool::{Artifact, Layers, NoLayer, RegisterError, Toolbox};
use windlass_core::{ArtifactReader, ArtifactWriter, Checks, Result, RunId, Runtime, Session, Start, Stuck, limits};
use windlass_store::SqliteStore;

use crate::file::File;
use crate::handle::RunHandle;
use crate::kept::Connections;
use crate::open::Builder;
use crate::people::Inbox;
use crate::watchdog::WatchdogThread;

/// A durable tool runtime. Cloning shares it.
///
/// Runs outlive it: dropping it stops driving them, and the next process that opens the file continues them.
/// [`shutdown`](Windlass::shutdown) does the same cleanly: it waits for attempts in flight.
#[derive(Clone)]
pub struct Windlass {
    pub(crate) runtime: Runtime,
    pub(crate) watchdog: Arc<WatchdogThread>,
    /// `None` where the store is not a file.
    pub(crate) file: Option<Arc<SqliteStore>>,
}

impl Windlass {
    /// Opens, or creates, a database file: `Windlass::open("app.db").tool(add).await?`. Awaiting it takes up the runs
    /// an earlier process left.
    pub fn open(path: impl AsRef<std::path::Path>) -> Builder {
        Builder::file(path.as_ref())
    }

    /// Keeps everything in memory: the same semantics, until the process ends.
    pub fn in_memory() -> Builder {
        Builder::memory()
    }

    /// Uses a store of your own.
    pub fn with_store(store: Arc<dyn Store>) -> Builder {
        Builder::store(store)
    }

    /// Makes one call and waits for its result, which is durable by then. `T` is what the tool returns. Dropping the future
    /// after its first poll does not stop the run.
    ///
    /// # Errors
    ///
    /// [`Error::Tool`](crate::Error::Tool) when the call failed; the other variants say what the caller does next.
    pub async fn call<T: DeserializeOwned + 'static>(&self, call: ToolCall<T>) -> Result<T> {
        windlass_core::decode(&self.runtime.call(call.untyped()).await?)
    }

    /// Makes one call as a model makes it: by name, with arguments that were not checked yet. A call that fails is an
    /// [`Outcome`] with an error, not an `Err`; [`Outcome::for_model`] is what the model is to see.
    pub async fn call_json(&self, name: &str, args: Value) -> Result<Outcome> {
        self.runtime.call(ToolCall::new(name, args)).await
    }

    /// Makes several calls as one run; their outcomes come back in order. See [`BatchCall`].
    pub fn batch(&self, calls: impl IntoIterator<Item = ToolCall>) -> BatchCall<'_> {
        let (calls, how) = (calls.into_iter().collect(), Start::default());
        BatchCall { windlass: self, calls, stop_on_failure: false, how }
    }

    /// Starts one call without waiting for its end. The run is in the store when this returns: if this
    /// process dies, another one continues it.
    pub async fn start<T>(&self, call: ToolCall<T>) -> Result<RunHandle<T>> {
        let run = self.runtime.start_call(call.untyped()).await?;
        Ok(RunHandle::new(self.runtime.clone(), run))
    }

    /// The run with this id, also one that an earlier process started. Nothing is looked up yet.
    pub fn run(&self, id: RunId) -> RunHandle {
        RunHandle::new(self.runtime.clone(), id)
    }

    /// The run that was started under this key.
    pub async fn run_by_key(&self, key: &str) -> Result<Option<RunHandle>> {
        Ok(self.runtime.keyed(key).await?.map(|id| self.run(id)))
    }

    /// Runs that match, oldest first, at most `limit`, after the run `after`.
    pub async fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        self.runtime.list(filter, after, limit).await
    }

    /// The same, newest first: before the run `before`, or from the newest on.
    pub async fn latest(&self, filter: Filter, before: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        self.runtime.latest(filter, before, limit).await
    }

    /// How many runs there are, by state. Walks over all of them, so do not ask often.
    pub async fn counts(&self) -> Result<Counts> {
        self.runtime.counts().await
    }

    /// What waits for a person or another system: approvals, inputs, connections, doubts.
    pub fn inbox(&self) -> Inbox {
        Inbox::new(self.runtime.clone())
    }

    /// The connections that are kept: listed and removed, never shown. They are made in the [`inbox`](Self::inbox).
    pub fn connections(&self) -> Connections {
        Connections::new(self.runtime.clone())
    }

    /// The database file. `None` where the store is not a file.
    pub fn file(&self) -> Option<File> {
        self.file.clone().map(File::new)
    }

    /// The tools calls are resolved in.
    pub fn toolbox(&self) -> &Toolbox {
        self.runtime.toolbox()
    }

    /// The same runtime through the layer of this name, on top of the layers it has. What is called through it sees its
    /// [`toolbox`](Windlass::toolbox), and so does everything below such a call, whenever it goes on: the layer's name is
    /// recorded with the call. A run is held while its layer is not registered, so register the layers that runs need
    /// before they are recovered: on the toolbox that is handed to [`Builder::toolbox`].
    ///
    /// # Errors
    ///
    /// When the name is not 1 to 64 of the characters `a-z`, `A-Z`, `0-9`, `_`, `-`, `.`.
    pub fn layer(&self, name: &str) -> std::result::Result<Self, RegisterError> {
        Ok(self.with(self.runtime.layer(name)?))
    }

    /// The same runtime through a layer of its own without a name, which ends with the last handle to it. Runs that were called
    /// through it are held after a restart.
    #[must_use]
    pub fn unnamed_layer(&self) -> Self {
        self.with(self.runtime.unnamed_layer())
    }

    /// The same runtime through layers that are registered.
    ///
    /// # Errors
    ///
    /// When one of them is not.
    pub fn in_layers(&self, layers: &Layers) -> std::result::Result<Self, NoLayer> {
        Ok(self.with(self.runtime.in_layers(layers)?))
    }

    fn with(&self, runtime: Runtime) -> Self {
        Self { runtime, watchdog: self.watchdog.clone(), file: self.file.clone() }
    }

    /// Watches every run of a session, in one order.
    pub fn watch_session(&self, session: impl Into<Arc<str>>, from: Cursor) -> Watch {
        self.runtime.watch_session(session, from)
    }

    /// The session with this name, which need not exist yet. Nothing is looked up yet.
    pub fn session(&self, name: impl Into<Arc<str>>) -> Session {
        self.runtime.session(name)
    }

    /// Sessions that match, newest first, at most `limit`: those before `before`, or from the newest on.
    pub async fn sessions(
        &self,
        filter: SessionFilter,
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Result<Vec<SessionInfo>> {
        self.runtime.sessions(filter, before, limit).await
    }

    /// Closes a session and leaves its unfinished runs, whose reply keys are void. Returns the number of those runs. See
    /// [`Session::close`].
    pub async fn close_session(&self, session: &str, reason: &str) -> Result<usize> {
        self.runtime.close_session(session, reason).await
    }

    /// Predicts what a call would do: be executed, be refused, or wait for approval or a connection. Runs and records
    /// nothing; only middleware is asked.
    pub async fn predict(&self, case: Hypothetical) -> Result<Prediction> {
        self.runtime.predict(case).await
    }

    /// Replays the journal of every run that matches against the current code, without performing anything.
    pub async fn replay_check_all(&self, filter: Filter) -> Result<Checks> {
        self.runtime.replay_check_all(filter).await
    }

    /// Puts an [exported](RunHandle::export) run into this store, under its id: finished, or held until an operator resumes it
    /// who has made sure that the original will not go on. Durable when it returns.
    pub async fn import(&self, document: &str) -> Result<RunId> {
        self.runtime.import(document).await
    }

    /// Uploads an artifact for a session. Start a run of the session that uses it within [`limits::ARTIFACT_GRACE`]; the run
    /// then keeps it.
    pub fn new_artifact(&self, session: impl Into<Arc<str>>, media_type: impl Into<String>) -> ArtifactWriter {
        self.runtime.new_artifact(session, media_type)
    }

    /// The same on behalf of any holder, such as a principal.
    pub fn new_artifact_by(&self, by: Access, media_type: impl Into<String>) -> ArtifactWriter {
        self.runtime.new_artifact_by(by, media_type)
    }

    /// Reads an artifact on behalf of a session or a run, or as the owner of the store, who may read everything.
    pub async fn open_artifact(&self, artifact: &Artifact, by: Access) -> Result<ArtifactReader> {
        self.runtime.open_artifact(artifact, by).await
    }

    /// Deletes some of the artifacts that nothing refers to any more; says whether there are more. Storing an artifact does the
    /// same, so only a program that purges runs and stores nothing needs this.
    pub async fn sweep_artifacts(&self) -> Result<Swept> {
        self.runtime.sweep_artifacts().await
    }

    /// Deletes everything whose retention is over; see [`Retention`](crate::store::Retention). Happens by itself every minute
    /// ([`limits::TIDY_EVERY`]), a little at a time. Dropping the future leaves the rest for the next time.
    pub async fn tidy(&self) -> Result<Tidied> {
        self.runtime.tidy().await
    }

    /// Bodies that never yield, as of the watchdog's last look.
    pub fn stuck(&self) -> Vec<Stuck> {
        self.watchdog.stuck()
    }

    /// Takes no new calls, waits a while ([`limits::DRAIN`]) for attempts in flight, stops driving its runs and closes the
    /// store. The next process that opens it continues the runs.
    pub async fn shutdown(&self) -> Result<()> {
        self.shutdown_within(limits::DRAIN).await
    }

    /// Like [`shutdown`](Windlass::shutdown), but waits at most `timeout` for attempts in flight. Attempts that are still
    /// running then are dropped; a `once` attempt among them is in doubt.
    pub async fn shutdown_within(&self, timeout: Duration) -> Result<()> {
        self.runtime.shutdown(timeout).await
    }

    /// The kernel's own interface, for servers and tools around Windlass. Not part of the stable interface.
    #[doc(hidden)]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// Several calls to be made as one run: await it for their outcomes, or [`start`](BatchCall::start) it. See
/// [`Windlass::batch`].
#[must_use = "a batch does nothing until it is awaited or started"]
pub struct BatchCall<'w> {
    windlass: &'w Windlass,
    calls: Vec<ToolCall>,
    stop_on_failure: bool,
    how: Start,
}

impl BatchCall<'_> {
    /// After a failure, calls not yet started are skipped and say so.
    pub fn stop_on_failure(mut self) -> Self {
        self.stop_on_failure = true;
        self
    }

    /// Makes the batch idempotent: the same key always names the same run. See [`ToolCall::key`].
    pub fn key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.how.key = Some(key.into());
        self
    }

    /// The session its run belongs to.
    pub fn session(mut self, session: impl Into<Arc<str>>) -> Self {
        self.how.session = Some(session.into());
        self
    }

    /// Who its run acts for. See [`ToolCall::principal`].
    pub fn principal(mut self, principal: impl Into<Arc<str>>) -> Self {
        self.how.principal = Some(principal.into());
        self
    }

    /// What caused its run, as given. See [`ToolCall::cause`].
    pub fn cause(mut self, cause: impl Into<Arc<str>>) -> Self {
        self.how.cause = Some(cause.into());
        self
    }

    /// Makes its run a turn of its session: it waits for the turns before it.
    pub fn as_turn(mut self) -> Self {
        self.how.turn = Turn::Queue;
        self
    }

    /// Starts the batch without waiting for its end. Durable when it returns; [`RunHandle::outcomes`] waits for the end.
    pub async fn start(self) -> Result<RunHandle> {
        let Self { windlass, calls, stop_on_failure, how } = self;
        let run = windlass.runtime.start_batch(calls, stop_on_failure, how).await?;
        Ok(windlass.run(run))
    }
}

impl<'w> IntoFuture for BatchCall<'w> {
    type Output = Result<Vec<Outcome>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'w>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { windlass, calls, stop_on_failure, how } = self;
        Box::pin(async move { windlass.runtime.batch_with(calls, stop_on_failure, how).await })
    }
}
