//! A run, from outside.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::activity::{Cursor, Trace, Watch};
use windlass_core::call::Outcome;
use windlass_core::explain::Explanation;
use windlass_core::run::record::Record;
use windlass_core::run::state::RunInfo;
use windlass_core::store::StoreError;
use windlass_core::tool::budget::Page;
use windlass_core::tool::{Artifact, Layers, Output, ToolResult};
use windlass_core::{Check, Comparison, Cut, Error, ForkChange, Path, Result, RunId, Runtime};

/// A run: wait for its end, look at it, tell it something. Cloning it shares the run; dropping it changes nothing.
///
/// `T` is what the output of its call decodes to. [`Windlass::start`](crate::Windlass::start) returns one, and
/// [`Windlass::run`](crate::Windlass::run) gives one for any run, also of an earlier process. Awaiting it waits for the end:
///
/// ```
/// # use windlass::prelude::*;
/// # /// Add two numbers.
/// # #[tool(effect = readonly)]
/// # async fn add(a: f64, b: f64) -> ToolResult<f64> { Ok(a + b) }
/// # #[tokio::main]
/// # async fn main() -> windlass::Result<()> {
/// # let windlass = Windlass::in_memory().tool(add).await?;
/// let run = windlass.start(add::call(2.0, 3.0).key("sum-1")).await?; // in the store when this returns
/// let sum: f64 = run.clone().await?;
/// assert_eq!(sum, 5.0);
/// assert_eq!(windlass.run(run.id()).outcome().await?.for_model(), json!(5.0));
/// # Ok(())
/// # }
/// ```
pub struct RunHandle<T = Value> {
    runtime: Runtime,
    id: RunId,
    output: PhantomData<fn() -> T>,
}

impl<T> RunHandle<T> {
    pub(crate) fn new(runtime: Runtime, id: RunId) -> Self {
        Self { runtime, id, output: PhantomData }
    }

    /// The run's id: what to keep if the run is to be found again.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Waits for the end of the run, wherever it is driven, and returns the outcome of its call. A failed call is an
    /// [`Outcome`] with an error. Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] when the run is held, [`Error::Invalid`] for a batch, which has several outcomes.
    pub async fn outcome(&self) -> Result<Outcome> {
        let mut outcomes = self.outcomes().await?;
        match (outcomes.pop(), outcomes.is_empty()) {
            (Some(outcome), true) if outcome.path.is_root() => Ok(outcome),
            (Some(_), _) => Err(Error::Invalid(format!("run {} is a batch: ask for its `outcomes`", self.id))),
            (None, _) => Err(Error::Elsewhere { run: self.id }),
        }
    }

    /// The outcomes of a batch: those of its calls, in order. One for any other run.
    pub async fn outcomes(&self) -> Result<Vec<Outcome>> {
        self.runtime.attach(self.id).await
    }

    /// Its state, what it waits for, its doubts.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoSuchRun`] when there is no such run, or no longer.
    pub async fn info(&self) -> Result<RunInfo> {
        let info = self.runtime.info(self.id).await?;
        info.ok_or_else(|| StoreError::NoSuchRun(self.id).into())
    }

    /// The layers that its tools are resolved in.
    pub async fn layers(&self) -> Result<Layers> {
        self.runtime.layers_of(self.id).await
    }

    /// Why the run does not continue, and what would move it; of a finished run, how it ended.
    pub async fn explain(&self) -> Result<Explanation> {
        self.runtime.explain(self.id).await
    }

    /// Watches the run: what it did from a position on, then what it does, in order and without gaps, to its end. A watch
    /// continues after a restart at the [`cursor`](Watch::cursor) of an earlier one.
    pub async fn watch(&self, from: Cursor) -> Result<Watch> {
        self.runtime.watch(self.id, from).await
    }

    /// Everything recorded about the run and the runs it started, as a tree.
    pub async fn trace(&self) -> Result<Trace> {
        self.runtime.trace(self.id).await
    }

    /// Its journal: every record, in order.
    pub async fn journal(&self) -> Result<Vec<Record>> {
        self.runtime.journal(self.id).await
    }

    /// A part of its journal: at most `limit` records from the record `from` on.
    pub async fn journal_page(&self, from: u64, limit: usize) -> Result<Vec<Record>> {
        self.runtime.journal_page(self.id, from, limit).await
    }

    /// A part of what the operation at `path` returned, as text: at most `limit` bytes from `offset` on. What a model is told
    /// to use when its view of an output was cut.
    pub async fn read_output(&self, path: &Path, offset: usize, limit: usize) -> Result<Page> {
        self.runtime.read_output(self.id, path, offset, limit).await
    }

    /// All of what the operation at `path` returned: the original that the tool kept beside its value, or the value itself.
    pub async fn artifact(&self, path: &Path) -> Result<Artifact> {
        self.runtime.artifact(self.id, path).await
    }

    /// Cancels the run: attempts in flight are asked to stop, and a durable body is told by the outcome of the operation it
    /// waits in. `by` and `reason` are recorded. Durable once awaited.
    pub fn cancel(&self, by: &str, reason: &str) -> Act<'static, ()> {
        let (runtime, run, by, reason) = (self.runtime.clone(), self.id, by.to_owned(), reason.to_owned());
        Act::new(move |key| async move { runtime.cancel_under(key.as_deref(), run, &by, &reason).await })
    }

    /// Sends a signal that the run's tool declared. Durable once awaited. Without a [`key`](Act::key), sending it again sends
    /// a second signal.
    pub fn signal(&self, name: &str, value: Value) -> Act<'static, ()> {
        let (runtime, run, name) = (self.runtime.clone(), self.id, name.to_owned());
        Act::new(move |key| async move { runtime.signal(run, &name, value, key.as_deref()).await })
    }

    /// Forks the run: the new run starts with the operations that were finished before the cut, optionally with a change at
    /// that point, and continues with the current code. This run is not touched. Durable once awaited.
    pub fn fork(&self, at: Cut, change: Option<ForkChange>) -> Act<'static, RunHandle<T>>
    where
        T: 'static,
    {
        let (runtime, run) = (self.runtime.clone(), self.id);
        Act::new(move |key| async move {
            let fork = runtime.fork_under(key, run, at, change).await?;
            Ok(RunHandle::new(runtime, fork))
        })
    }

    /// Where this run and another one differ: usually a fork of it.
    pub async fn compare(&self, other: RunId) -> Result<Comparison> {
        self.runtime.compare(self.id, other).await
    }

    /// Replays the journal against the current code. Nothing is performed, and the store is not touched.
    pub async fn replay_check(&self) -> Result<Check> {
        self.runtime.replay_check(self.id).await
    }

    /// Takes up a held run again, once its cause is gone.
    pub async fn resume(&self) -> Result<()> {
        self.runtime.resume(self.id).await
    }

    /// Ends a held run with an outcome from outside: the way out where no code will ever fit its journal.
    pub async fn finish_by_hand(&self, result: ToolResult<Output>, by: &str, reason: &str) -> Result<()> {
        self.runtime.finish_by_hand(self.id, result, by, reason).await
    }

    /// The run as a versioned JSON document, for another store ([`Windlass::import`](crate::Windlass::import)). The run itself
    /// stays as it is.
    pub async fn export(&self) -> Result<Value> {
        self.runtime.export(self.id).await
    }

    /// Deletes the finished run at once: its journal, its mail, its row. Its key stays taken. Refused for a run that is not
    /// finished, and for one with open doubts. What it wrote to other runs is theirs, and stays.
    ///
    /// When this returns nothing of the run can be read any more. In a database file its bytes are overwritten; older copies of
    /// them may be in the write-ahead log beside it until that is checkpointed, at the latest when the file is closed.
    /// Dropping the future may leave the deletion half done; purging again does the rest.
    pub async fn purge(&self) -> Result<()> {
        self.runtime.purge(self.id).await
    }
}

impl<T> Clone for RunHandle<T> {
    fn clone(&self) -> Self {
        Self::new(self.runtime.clone(), self.id)
    }
}

impl<T> std::fmt::Debug for RunHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RunHandle").field(&self.id).finish()
    }
}

impl<T: DeserializeOwned + 'static> IntoFuture for RunHandle<T> {
    type Output = Result<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { windlass_core::decode(&self.outcome().await?) })
    }
}

/// Something that is written to the store: await it. With a [`key`](Act::key), doing it again is harmless.
#[must_use = "nothing is done until this is awaited"]
pub struct Act<'a, T> {
    key: Option<Arc<str>>,
    #[expect(clippy::type_complexity, reason = "named by the struct around it")]
    act: Box<dyn FnOnce(Option<Arc<str>>) -> Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>> + Send + 'a>,
}

impl<'a, T> Act<'a, T> {
    pub(crate) fn new<F>(act: impl FnOnce(Option<Arc<str>>) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'a,
    {
        Self { key: None, act: Box::new(move |key| Box::pin(act(key))) }
    }

    /// Makes it idempotent: a second one under the same key changes nothing.
    pub fn key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl<'a, T> IntoFuture for Act<'a, T> {
    type Output = Result<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        (self.act)(self.key)
    }
}
