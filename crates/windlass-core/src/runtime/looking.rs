//! Looking at runs: what happens in them, what happened, and why one does not go on.

use std::sync::Arc;

use super::Runtime;
use crate::activity::trace::Tracer;
use crate::activity::watchers::Whom;
use crate::activity::{Cursor, Trace, Watch};
use crate::error::{Error, Result};
use crate::explain::{Explanation, Looker};
use crate::id::RunId;
use crate::limits;
use crate::policy::{Hypothetical, Prediction, Verdict, dry_run};
use crate::tool::{Layers, ToolError};

impl Runtime {
    /// Watches a run from a place on: first what the store has, then what comes, in order, without gaps, to the run's end.
    /// A watch that goes on at the [`cursor`](Watch::cursor) of an earlier one, in this process or another, misses nothing
    /// and sees nothing twice. Refused for a run that is not in the store.
    pub async fn watch(&self, run: RunId, from: Cursor) -> Result<Watch> {
        // Listening begins first, so that nothing is missed while the run is looked for.
        let watch = self.watching(Whom::Run(run), from);
        self.arrived(run).await;
        if self.kernel.store.info(run).await?.is_none() {
            return Err(Error::NotFound(format!(
                "there is no run {run} to watch; start it first, and watch it by the id that `start` returned"
            )));
        }
        Ok(watch)
    }

    /// Watches every run of a session, in the order in which the store took their records. It has no end; of a session
    /// that has no runs yet it shows the first one.
    pub fn watch_session(&self, session: impl Into<Arc<str>>, from: Cursor) -> Watch {
        self.watching(Whom::Session(session.into()), from)
    }

    /// Where workers share the store, what another one writes is seen at the next look.
    fn watching(&self, whom: Whom, from: Cursor) -> Watch {
        let watch = Watch::new(self.kernel.clone(), whom, from);
        match self.kernel.lease.look() {
            Some(look) => watch.look_every(look.min(limits::WATCH_LOOK)),
            None => watch,
        }
    }

    /// Everything recorded about a run and about the runs it started, as a tree.
    pub async fn trace(&self, run: RunId) -> Result<Trace> {
        Tracer::new(&self.kernel).trace(run).await
    }

    /// Where a run stands and what would move it; of a finished one, how it ended.
    pub async fn explain(&self, run: RunId) -> Result<Explanation> {
        self.arrived(run).await;
        let looker = Looker { kernel: &self.kernel, now: self.kernel.env.clock.now() };
        looker.explain(run, 0).await
    }

    /// The run that a key belongs to.
    pub async fn keyed(&self, key: &str) -> Result<Option<RunId>> {
        Ok(self.kernel.store.keyed(key.into()).await?)
    }

    /// The layers that a run was called through.
    pub async fn layers_of(&self, run: RunId) -> Result<Layers> {
        self.arrived(run).await;
        Ok(self.kernel.layers_of(run).await?)
    }

    /// What would become of a call that is made here now; nothing is run, and nothing is recorded.
    pub fn predict(&self, mut case: Hypothetical) -> Prediction {
        case.attended |= self.kernel.env.attended;
        case.connections.extend(self.kernel.env.connections.iter().cloned());
        let tool = case.call.tool().to_owned();
        let refused = || Prediction { tool, verdict: Verdict::Refused(ToolError::unavailable("nothing was asked")) };
        dry_run(&self.toolbox, &self.kernel.env.policy, &[case]).pop().unwrap_or_else(refused)
    }

    /// What was started a moment ago may still be on its way to the store.
    pub(super) async fn arrived(&self, run: RunId) {
        if let Some(live) = self.live(run) {
            live.run.flush().await;
        }
    }
}
