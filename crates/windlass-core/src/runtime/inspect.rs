//! Inspecting runs: their activities, traces, layers and explanations.

use std::sync::Arc;

use super::Runtime;
use crate::activity::trace::Tracer;
use crate::activity::watchers::WatchTarget;
use crate::activity::{Cursor, Trace, Watch};
use crate::error::{Error, Result};
use crate::explain::{Explainer, Explanation};
use crate::id::RunId;
use crate::limits;
use crate::policy::{Hypothetical, Prediction, Verdict, dry_run};
use crate::run::record::{Event, OpKind, Record};
use crate::tool::{Layers, ToolError};
use crate::value::Digest;

/// What the journal says about a batch that is a run of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedBatch {
    /// The digest of its calls; see [`batch_identity`](crate::call::batch_identity). `None` in a journal of an earlier
    /// version.
    pub identity: Option<Digest>,
    /// The indices of the calls that have ended, in the order in which their ends were recorded. The order is that of
    /// the journal, so calls that ended before a crash come first.
    pub settled: Vec<u32>,
}

impl RecordedBatch {
    fn of(journal: &[Record]) -> Option<Self> {
        let asked = journal.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path.is_root()))?;
        let ended = journal.iter().filter(|record| matches!(record.event, Event::Finished(_)));
        let index = |record: &Record| match record.path.positions() {
            [index] => Some(*index),
            _ => None,
        };
        Some(Self { identity: asked.identity.as_deref().copied(), settled: ended.filter_map(index).collect() })
    }
}

impl Runtime {
    /// Watches a run from a cursor on: first what the store has, then what happens, in order and without gaps, until
    /// the run ends. A watch that starts at the [`cursor`](Watch::cursor) of an earlier one, in this process or
    /// another, misses nothing and sees nothing twice.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the run is not in the store.
    pub async fn watch(&self, run: RunId, from: Cursor) -> Result<Watch> {
        // Subscribe first, so that no change is missed while the run is looked up.
        let watch = self.watching(WatchTarget::Run(run), from);
        self.arrived(run).await;
        if self.kernel.store.info(run).await?.is_none() {
            return Err(Error::NotFound(format!(
                "there is no run {run} to watch; start it first, and watch it by the id that `start` returned"
            )));
        }
        Ok(watch)
    }

    /// Watches every run of a session, in the order in which the store accepted their records. It never ends. The
    /// session need not have runs yet.
    pub fn watch_session(&self, session: impl Into<Arc<str>>, from: Cursor) -> Watch {
        self.watching(WatchTarget::Session(session.into()), from)
    }

    /// Creates a watch. If workers share the store, it polls for what other workers write.
    fn watching(&self, target: WatchTarget, from: Cursor) -> Watch {
        let watch = Watch::new(self.kernel.clone(), target, from);
        match self.kernel.lease.renew_interval() {
            Some(look) => watch.look_every(look.min(limits::WATCH_POLL)),
            None => watch,
        }
    }

    /// Everything recorded about a run and the runs it started, as a tree.
    pub async fn trace(&self, run: RunId) -> Result<Trace> {
        Tracer::new(&self.kernel).trace(run).await
    }

    /// What is recorded about a run of a batch; `None` for a run of one call.
    pub async fn recorded_batch(&self, run: RunId) -> Result<Option<RecordedBatch>> {
        let first = self.kernel.store.page(run, 0, 1).await?;
        let is_batch = |record: &Record| record.asked.as_ref().is_some_and(|asked| asked.kind == OpKind::Batch);
        if !first.first().is_some_and(is_batch) {
            return Ok(None);
        }
        Ok(RecordedBatch::of(&self.kernel.store.journal(run, 0).await?))
    }

    /// The recorded identity of a run of a batch; `None` for a run of one call.
    pub(crate) async fn batch_identity(&self, run: RunId) -> Result<Option<Digest>> {
        let first = self.kernel.store.page(run, 0, 1).await?;
        Ok(first.into_iter().find_map(|record| record.asked?.identity).map(|identity| *identity))
    }

    /// Why a run waits and what would make it continue; for a finished run, how it ended.
    pub async fn explain(&self, run: RunId) -> Result<Explanation> {
        self.arrived(run).await;
        let explainer = Explainer { kernel: &self.kernel, now: self.kernel.env.clock.now() };
        explainer.explain(run, 0).await
    }

    /// The run that has this key, if it is still kept.
    pub async fn keyed(&self, key: &str) -> Result<Option<RunId>> {
        Ok(self.kernel.store.keyed(key.into()).await?)
    }

    /// The layers that a run was called through.
    pub async fn layers_of(&self, run: RunId) -> Result<Layers> {
        self.arrived(run).await;
        Ok(self.kernel.layers_of(run).await?)
    }

    /// Predicts what would happen to a call that is made here now. Nothing is run or recorded.
    pub fn predict(&self, mut case: Hypothetical) -> Prediction {
        case.attended |= self.kernel.env.attended;
        case.connections.extend(self.kernel.env.connections.iter().cloned());
        let tool = case.call.tool().to_owned();
        let refused = || Prediction { tool, verdict: Verdict::Refused(ToolError::unavailable("there is no call")) };
        dry_run(&self.toolbox, &self.kernel.env.policy, &[case]).pop().unwrap_or_else(refused)
    }

    /// Waits until a run that was started a moment ago is in the store.
    pub(super) async fn arrived(&self, run: RunId) {
        if let Some(driven) = self.driven(run) {
            driven.run.flush().await;
        }
    }
}
