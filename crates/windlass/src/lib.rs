#![doc = include_str!("docs/crate.md")]

#[cfg(feature = "testing")]
mod disk;
mod executor;
mod open;
mod watch;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use open::{Builder, OpenError};
pub use windlass_core::activity::{self, Activity, Cursor, Happening, Position, Trace, Watch};
pub use windlass_core::call::{
    Attempt, Call, Command, Incoming, Middleware, Outcome, Outgoing, Preparation, ToolCall, ToolRef, batch_identity,
};
pub use windlass_core::ctx::{Ctx, First2, First3, First4, Handle, OpenWait, Step, park, step};
pub use windlass_core::explain::{self, Explanation};
pub use windlass_core::policy::{self, Policy};
pub use windlass_core::run::record;
pub use windlass_core::run::state::{Blocked, Divergence, Doubt, Ending, Hold, Park, RunInfo, RunState};
pub use windlass_core::store::{
    Access, ArtifactId, Artifacts, Counts, Driving, Filter, MemoryStore, Queries, Resolution, Retention, Settlement,
    Store, StoreError, Stored, Swept, Tidied, Turn, Upkeep,
};
pub use windlass_core::time::{Times, Timestamp};
pub use windlass_core::tool::budget::Page;
pub use windlass_core::tool::view::Projection;
pub use windlass_core::tool::{
    Artifact, Atomic, Body, Content, Data, Durable, Effect, Layers, NoLayer, Output, Reconciled, RegisterError, Reply,
    Schemas, Tool, ToolError, ToolResult, ToolSpec, Toolbox,
};
pub use windlass_core::troubles;
pub use windlass_core::{
    About, ArtifactError, ArtifactReader, ArtifactWriter, AskedCall, Awaited, Change, Check, Checks, Comparison,
    Counted, Cut, Departure, Difference, Differs, Digest, Error, Path, Question, Resolved, Result, RunId, Start, Stuck,
    Submitted, ToolId, Work, limits, read_json, tool as tools,
};
pub use windlass_macros::tool;
pub use windlass_store::{
    Claim, Durability, Health, Holder, Report, SqliteStore, check_file, claim, forbidden, holder,
};

use windlass_core::Runtime;

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Artifact, Attempt, Call, Content, Ctx, Effect, First2, First3, Handle, Outcome, Output, Preparation,
        Reconciled, Reply, Resolution, Start, Tool, ToolCall, ToolError, ToolResult, ToolSpec, Toolbox, Windlass, park,
        step, tool,
    };
    pub use serde_json::{Value, json};
}

/// Testing your tools: the crash matrix and its parts. Needs the feature `testing`.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::disk::SqliteDisk;
    pub use windlass_core::testing::*;
}

/// What generated code refers to. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use {schemars, serde, serde_json, windlass_core as core};
}

/// A durable tool runtime. Cloning shares it.
///
/// Runs outlive it: dropping it lets go of them where they stand, and whoever opens the file next goes on with them.
/// [`shutdown`](Windlass::shutdown) does the same in good order.
#[derive(Clone)]
pub struct Windlass {
    runtime: Runtime,
    watch: Arc<watch::Watch>,
    /// Nothing where the store is no file.
    file: Option<Arc<SqliteStore>>,
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

    /// Makes one typed call. The result is durable when this returns. Dropping the future after its first poll does not
    /// stop the run.
    pub async fn call<T: DeserializeOwned + 'static>(&self, call: ToolCall<T>) -> Result<T> {
        windlass_core::decode(&self.runtime.call(call.untyped()).await?)
    }

    /// Makes one call as a model makes it: by name, with arguments nobody checked yet. A call that fails is an
    /// [`Outcome`] with an error, not an `Err`.
    pub async fn call_json(&self, name: &str, args: Value) -> Result<Outcome> {
        self.runtime.call(ToolCall::new(name, args)).await
    }

    /// Makes several calls; their outcomes come back in order.
    pub fn batch(&self, calls: impl IntoIterator<Item = ToolCall>) -> BatchCall<'_> {
        BatchCall { windlass: self, calls: calls.into_iter().collect(), stop_on_failure: false }
    }

    /// Starts one call and returns its run at once. See [`attach`](Windlass::attach).
    pub fn start<T>(&self, call: ToolCall<T>) -> Result<RunId> {
        self.runtime.start(call.untyped())
    }

    /// Starts one call under a key, in a session or as a turn of one. Durable when it returns; the same key always names
    /// the same run.
    pub async fn start_with<T>(&self, call: ToolCall<T>, how: Start) -> Result<RunId> {
        self.runtime.start_with(call.untyped(), how).await
    }

    /// Starts several calls as one run under a key, in a session or as a turn of one. Durable when it returns; the same key
    /// always names the same run.
    pub async fn start_batch(
        &self,
        calls: impl IntoIterator<Item = ToolCall>,
        stop_on_failure: bool,
        how: Start,
    ) -> Result<RunId> {
        self.runtime.start_batch(calls.into_iter().collect(), stop_on_failure, how).await
    }

    /// Hands in work for somebody who may wait for its outcome, or not, and who may ask again under the same key. Refuses a
    /// key that was used for other work ([`Error::KeyReused`]).
    pub async fn submit(&self, work: Work, how: Start) -> Result<Submitted> {
        self.runtime.submit(work, how).await
    }

    /// Waits for the end of a run, also of one that an earlier process started, and returns the outcomes of its root
    /// calls: one, or those of a batch.
    pub async fn attach(&self, run: RunId) -> Result<Vec<Outcome>> {
        self.runtime.attach(run).await
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

    /// The same through a layer of its own without a name, which ends with the last handle to it. Runs that were called
    /// through it are held after a restart.
    #[must_use]
    pub fn unnamed_layer(&self) -> Self {
        self.with(self.runtime.unnamed_layer())
    }

    /// The same through layers that are registered.
    ///
    /// # Errors
    ///
    /// When one of them is not.
    pub fn in_layers(&self, layers: &Layers) -> std::result::Result<Self, NoLayer> {
        Ok(self.with(self.runtime.in_layers(layers)?))
    }

    fn with(&self, runtime: Runtime) -> Self {
        Self { runtime, watch: self.watch.clone(), file: self.file.clone() }
    }

    /// The run that a key belongs to.
    pub async fn keyed(&self, key: &str) -> Result<Option<RunId>> {
        self.runtime.keyed(key).await
    }

    /// The layers that a run was called through.
    pub async fn layers_of(&self, run: RunId) -> Result<Layers> {
        self.runtime.layers_of(run).await
    }

    /// Everything that waits for somebody to settle whether it happened.
    pub async fn doubts(&self) -> Result<Vec<(RunId, Doubt)>> {
        self.runtime.doubts().await
    }

    /// Settles a doubt: it happened, it did not, or nobody can tell. Durable when it returns.
    pub async fn settle(&self, run: RunId, path: &Path, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        self.runtime.settle(run, path, settlement, by, reason).await
    }

    /// Settles exactly this doubt, unless somebody has already: the first settlement counts, and
    /// [`counted`](Windlass::counted) says which that was. Durable when it returns.
    pub async fn settle_once(&self, question: &Question, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        self.runtime.settle_once(question, settlement, by, reason).await
    }

    /// What counts as the answer to a question that a person is, or was, asked; nothing if it is still open.
    pub async fn counted(&self, question: &Question) -> Result<Option<Counted>> {
        self.runtime.counted(question).await
    }

    /// What became of the wait or the pending call at this place of a run, if it is over or answered: what an answer to it would
    /// be told.
    pub async fn resolved(&self, run: RunId, generation: u32, path: &Path) -> Result<Option<Resolved>> {
        self.runtime.resolved(run, generation, path).await
    }

    /// The calls that stand at these paths of a run; nothing where none does.
    pub async fn asked_calls(&self, run: RunId, paths: &[Path]) -> Result<Vec<Option<AskedCall>>> {
        self.runtime.asked_calls(run, paths).await
    }

    /// Cancels a run: attempts in flight are asked to stop, and a durable body is told by the outcome of the operation
    /// it stands in. Durable when it returns.
    pub async fn cancel(&self, run: RunId, by: &str, reason: &str) -> Result<()> {
        self.runtime.cancel(run, by, reason).await
    }

    /// The same under a key: cancelling again under it is harmless.
    pub async fn cancel_under(&self, key: Option<&str>, run: RunId, by: &str, reason: &str) -> Result<()> {
        self.runtime.cancel_under(key, run, by, reason).await
    }

    /// Answers a wait or a pending call by its reply key. The first answer counts, an early one is kept, a late one is
    /// told what counted. Durable when it returns.
    pub async fn resolve(&self, key: &str, resolution: Resolution) -> Result<Resolved> {
        self.runtime.resolve(key, resolution).await
    }

    /// Sends a signal that the run's tool declared. With a `key`, sending it again is harmless. Durable when it returns.
    pub async fn signal(&self, run: RunId, name: &str, value: Value, key: Option<&str>) -> Result<()> {
        self.runtime.signal(run, name, value, key).await
    }

    /// Everything that waits for a person or another system: inputs, approvals, connections.
    pub async fn inbox(&self) -> Result<Vec<Awaited>> {
        self.runtime.inbox().await
    }

    /// What of one run waits for a person or another system, beside doubts.
    pub fn awaited(&self, info: &RunInfo) -> Vec<Awaited> {
        self.runtime.awaited(info)
    }

    /// Lets a call be made that waits for approval: exactly the one this item of the inbox is about, once. Durable when it
    /// returns.
    pub async fn approve(&self, item: &Awaited, by: &str, reason: &str) -> Result<()> {
        self.decide(item, true, by, reason).await
    }

    /// Denies a call that waits for approval. Durable when it returns.
    pub async fn deny(&self, item: &Awaited, by: &str, reason: &str) -> Result<()> {
        self.decide(item, false, by, reason).await
    }

    async fn decide(&self, item: &Awaited, granted: bool, by: &str, reason: &str) -> Result<()> {
        let Blocked::Approval { digest, .. } = &item.park.on else {
            return Err(Error::Conflict(format!("{} does not wait for approval", item.park.operation)));
        };
        self.runtime.decide(item.run, &item.park.path, digest, granted, (by, reason)).await
    }

    /// Says that a provider is connected now, or why it will not be, to every run that waits for it. Returns how many.
    pub async fn connect(&self, provider: &str, refused: Option<&str>) -> Result<usize> {
        self.runtime.connect(provider, refused).await
    }

    /// The same under a key: a run that was told under it is not told again.
    pub async fn connect_under(&self, key: Option<&str>, provider: &str, refused: Option<&str>) -> Result<usize> {
        self.runtime.connect_under(key, provider, refused).await
    }

    /// The providers that somebody must connect before runs can go on, each once, with the runs that wait for it.
    pub async fn connections_wanted(&self) -> Result<std::collections::BTreeMap<Arc<str>, Vec<RunId>>> {
        self.runtime.connections_wanted().await
    }

    /// Voids every reply key of a session's runs. Returns how many runs that concerns.
    pub async fn close_session(&self, session: &str, reason: &str) -> Result<usize> {
        self.runtime.close_session(session, reason).await
    }

    /// Takes up a held run again, once its cause is gone.
    pub async fn resume(&self, run: RunId) -> Result<()> {
        self.runtime.resume(run).await
    }

    /// Ends a held run with an outcome from outside: the way out where no code will ever fit its journal.
    pub async fn finish_by_hand(&self, run: RunId, result: ToolResult<Output>, by: &str, reason: &str) -> Result<()> {
        self.runtime.finish_by_hand(run, result, by, reason).await
    }

    /// Makes a run that begins with what this one had finished before the cut, with something changed there if need be, and
    /// goes on under the code of today. The original is not touched. Durable when it returns.
    pub async fn fork(&self, run: RunId, at: Cut, change: Option<Change>) -> Result<RunId> {
        self.runtime.fork(run, at, change).await
    }

    /// The same under a key: forking again under it, at the same place, returns the same fork.
    pub async fn fork_under(&self, key: Option<&str>, run: RunId, at: Cut, change: Option<Change>) -> Result<RunId> {
        self.runtime.fork_under(key.map(Arc::from), run, at, change).await
    }

    /// Where two runs differ: usually a run and a fork of it.
    pub async fn compare(&self, a: RunId, b: RunId) -> Result<Comparison> {
        self.runtime.compare(a, b).await
    }

    /// Runs a run's journal against the code of today, without touching the store and without performing anything.
    pub async fn replay_check(&self, run: RunId) -> Result<Check> {
        self.runtime.replay_check(run).await
    }

    /// The same for every run that matches.
    pub async fn replay_check_all(&self, filter: Filter) -> Result<Checks> {
        self.runtime.replay_check_all(filter).await
    }

    /// A run as a versioned JSON document, for another store. The run itself stays as it is.
    pub async fn export(&self, run: RunId) -> Result<Value> {
        self.runtime.export(run).await
    }

    /// Puts an exported run into this store, under its id: finished, or held until somebody resumes it who has made sure that
    /// the original will not go on. Durable when it returns.
    pub async fn import(&self, document: &str) -> Result<RunId> {
        self.runtime.import(document).await
    }

    /// A run's state.
    pub async fn info(&self, run: RunId) -> Result<Option<RunInfo>> {
        self.runtime.info(run).await
    }

    /// Runs that match, oldest first, at most `limit`, after the run `after`.
    pub async fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        self.runtime.list(filter, after, limit).await
    }

    /// The same, newest first: before the run `before`, or from the newest on.
    pub async fn latest(&self, filter: Filter, before: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>> {
        self.runtime.latest(filter, before, limit).await
    }

    /// How many runs there are. Walks over all of them: for whoever looks now and then.
    pub async fn counts(&self) -> Result<Counts> {
        self.runtime.counts().await
    }

    /// How the store is: whether it takes commits, and whether its file is whole as far as is known.
    pub fn health(&self) -> Health {
        self.file.as_ref().map_or(Health::Fine, |file| file.health())
    }

    /// Checks the whole database file while work goes on, blocking its thread for as long as reading the file takes; nothing where
    /// the store is no file. [`health`](Self::health) tells what it found, and no longer what was found before.
    pub fn check(&self) -> Result<Option<Report>> {
        let checked = self.file.as_ref().map(|file| file.check(|_, _| {}));
        checked.transpose().map_err(|error| Error::System(Box::new(error)))
    }

    /// The database file, its links followed; nothing where the store is no file.
    pub fn file(&self) -> Option<&std::path::Path> {
        self.file.as_ref().map(|file| file.path())
    }

    /// Says beside the database file where this process answers, for whoever finds the file in use; see [`holder`].
    pub fn announce(&self, address: Option<&str>) -> Result<()> {
        match &self.file {
            Some(file) => file.announce(address).map_err(|error| Error::System(Box::new(error))),
            None => Ok(()),
        }
    }

    /// A piece of a run's journal: at most `limit` records from the record `from` on.
    pub async fn journal_page(&self, run: RunId, from: u64, limit: usize) -> Result<Vec<record::Record>> {
        self.runtime.journal_page(run, from, limit).await
    }

    /// A run's journal: every record, in order.
    pub async fn journal(&self, run: RunId) -> Result<Vec<record::Record>> {
        self.runtime.journal(run).await
    }

    /// Watches a run: what it did from a place on, then what it does, in order, without gaps, to its end. Watching goes on
    /// after a restart at the [`cursor`](Watch::cursor) of an earlier watch.
    pub async fn watch(&self, run: RunId, from: Cursor) -> Result<Watch> {
        self.runtime.watch(run, from).await
    }

    /// Watches every run of a session, in one order.
    pub fn watch_session(&self, session: impl Into<Arc<str>>, from: Cursor) -> Watch {
        self.runtime.watch_session(session, from)
    }

    /// Everything recorded about a run and the runs it started, as a tree.
    pub async fn trace(&self, run: RunId) -> Result<Trace> {
        self.runtime.trace(run).await
    }

    /// Why a run does not go on, and what would move it; of a finished one, how it ended.
    pub async fn explain(&self, run: RunId) -> Result<Explanation> {
        self.runtime.explain(run).await
    }

    /// What would become of a call that is made here now; nothing is run, and nothing is recorded.
    pub fn predict(&self, case: policy::Hypothetical) -> policy::Prediction {
        self.runtime.predict(case)
    }

    /// A piece of what the operation at `path` returned, as text: at most `limit` bytes from `offset` on. What a model is
    /// told to use when its view of an output was cut.
    pub async fn read_output(&self, run: RunId, path: &Path, offset: usize, limit: usize) -> Result<Page> {
        self.runtime.read_output(run, path, offset, limit).await
    }

    /// All of what the operation at `path` returned: the original the tool kept beside its value, or else the value itself.
    pub async fn artifact(&self, run: RunId, path: &Path) -> Result<Artifact> {
        self.runtime.artifact(run, path).await
    }

    /// Stores an artifact for a session from outside, for a run of it to be started with
    /// ([`start_with`](Windlass::start_with)) within [`limits::ARTIFACT_GRACE`]; that run keeps it from then on.
    pub fn new_artifact(&self, session: impl Into<Arc<str>>, media_type: impl Into<String>) -> ArtifactWriter {
        self.runtime.new_artifact(session, media_type)
    }

    /// Reads an artifact on somebody's behalf: a session's, a run's, or as the owner of the store, who may read
    /// everything.
    pub async fn open_artifact(&self, artifact: &Artifact, by: Access) -> Result<ArtifactReader> {
        self.runtime.open_artifact(artifact, by).await
    }

    /// Collects a slice of the artifacts that nobody needs any more; says whether there is more to collect. Storing one
    /// does the same, so that only a program that purges runs and stores nothing has a reason to.
    pub async fn sweep_artifacts(&self) -> Result<Swept> {
        self.runtime.sweep_artifacts().await
    }

    /// Lets go of everything that is kept no longer by now; see [`Retention`]. Happens by itself every minute
    /// ([`limits::TIDY_EVERY`]), a little at a time. Dropping the future leaves the rest for the next time.
    pub async fn tidy(&self) -> Result<Tidied> {
        self.runtime.tidy().await
    }

    /// Forgets one finished run at once: its journal, its mail, its row; its key stays taken as if the run had gone by
    /// itself. Refused for a run that is not finished, and for one with open doubts. What it said to other runs is theirs,
    /// and stays.
    ///
    /// When it returns nothing of it can be read any more. In a database file its bytes are overwritten; older copies of
    /// them may be in the log beside it (`-wal`) until that is written anew, at the latest when the file is closed.
    /// Dropping the future may leave it half done; purging it again does the rest.
    pub async fn purge(&self, run: RunId) -> Result<()> {
        self.runtime.purge(run).await
    }

    /// Writes a copy of the database file while work goes on; it appears when it is whole. Overwrites nothing. Opening the
    /// copy restores it: whatever unfinished runs may have done after it was taken is in doubt, and reply keys are void; see
    /// [`SqliteStore::backup`]. Dropping the future does not stop it.
    pub async fn backup(&self, to: impl AsRef<std::path::Path>) -> Result<()> {
        let Some(file) = &self.file else {
            let why = "only a database file can be backed up; this runtime keeps its runs elsewhere";
            return Err(Error::Invalid(why.to_owned()));
        };
        file.backup(to).await.map_err(|error| match error {
            windlass_store::BackupError::Exists { .. } | windlass_store::BackupError::Damaged { .. } => {
                Error::Conflict(error.to_string())
            }
            error => Error::System(Box::new(error)),
        })
    }

    /// Where the keys are that secrets in the database file are sealed with, if there were any secrets yet. They are in no
    /// backup: keep a copy of this file somewhere else.
    pub fn key_file(&self) -> Option<&std::path::Path> {
        self.file.as_ref()?.key_file()
    }

    /// Bodies that never yield, as of the watchdog's last look.
    pub fn stuck(&self) -> Vec<Stuck> {
        self.watch.stuck()
    }

    /// Takes no new calls, waits a while ([`limits::DRAIN`]) for attempts in flight, lets go of every run in good order
    /// and closes the store. Whoever opens it next goes on with the runs.
    pub async fn shutdown(&self) -> Result<()> {
        self.shutdown_within(limits::DRAIN).await
    }

    /// The same with another patience: attempts still in flight after it are dropped, and a `once` attempt among them is
    /// in doubt.
    pub async fn shutdown_within(&self, patience: Duration) -> Result<()> {
        self.runtime.shutdown(patience).await
    }
}

/// Several calls to be made; see [`Windlass::batch`].
#[must_use = "a batch does nothing until it is awaited"]
pub struct BatchCall<'w> {
    windlass: &'w Windlass,
    calls: Vec<ToolCall>,
    stop_on_failure: bool,
}

impl BatchCall<'_> {
    /// After a failure, calls not yet started are skipped and say so.
    pub fn stop_on_failure(mut self) -> Self {
        self.stop_on_failure = true;
        self
    }
}

impl<'w> IntoFuture for BatchCall<'w> {
    type Output = Result<Vec<Outcome>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'w>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.windlass.runtime.batch(self.calls, self.stop_on_failure).await })
    }
}
