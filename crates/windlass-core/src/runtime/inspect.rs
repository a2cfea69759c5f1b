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
use crate::tool::{Layers, ToolError};

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
