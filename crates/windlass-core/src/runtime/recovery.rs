//! Recovers runs that an earlier owner left.

use std::collections::BTreeSet;

use super::{PAGE, Runtime};
use crate::driver::DrivenRun;
use crate::drives::DriveScope;
use crate::error::Result;
use crate::id::RunId;
use crate::limits;
use crate::roster::{RunStage, TakeUpCause};
use crate::run::drive::RunEnd;
use crate::run::state::{RunInfo, RunState};
use crate::store::Filter;

/// Runs that an earlier owner left.
#[derive(Default)]
struct LeftRuns {
    taken: Vec<DrivenRun>,
    later: Vec<RunId>,
    /// A process died with them before.
    suspects: Vec<RunId>,
    /// A run that is held as soon as it is driven is listed twice.
    seen: BTreeSet<RunId>,
}

impl Runtime {
    /// Recovers every run that an earlier owner left: unfinished ones, and held ones, which the current code may be
    /// able to continue, except crash loops and imports. Returns their number once the first of them are driven. The
    /// rest follow at a limited rate, after new calls. Runs that a process died with before come last, one at a time.
    /// Suspended runs are claimed when they are due. Also starts the renewal of the lease and the removal of old runs,
    /// if they are configured. A runtime that drives only its own runs recovers none here.
    pub async fn recover(&self) -> Result<usize> {
        if !self.kernel.drives.any() {
            return Ok(0);
        }
        self.kernel.begin_lease().await?;
        self.kernel.restore_places().await?;
        if !matches!(self.kernel.drives, DriveScope::All) {
            return Ok(0);
        }
        if let Some(every) = self.kernel.env.limits.tidy_every {
            self.kernel.begin_retention(every);
        }
        let mut left = LeftRuns::default();
        for filter in [Filter::running(), Filter::held()] {
            self.take_up_listed(filter, &mut left).await?;
        }
        Ok(self.take_up_rest(left).await)
    }

    /// Makes a run and the unfinished runs that it spawned runs of this runtime, if it drives only its own. Of the
    /// spawned ones, those that an earlier owner left continue; the run itself is left to the caller.
    pub(super) async fn adopt(&self, run: RunId) -> Result<()> {
        if !self.kernel.drives.add(run) {
            return Ok(());
        }
        let (mut left, mut parents) = (LeftRuns::default(), vec![run]);
        while let Some(parent) = parents.pop() {
            let mut after = None;
            loop {
                let filter = Filter { parent: Some(parent), ..Filter::default() };
                let page = self.kernel.store.list(filter, after, PAGE).await?;
                after = page.last().map(|info| info.run);
                for info in page.iter().filter(|info| !matches!(info.state, RunState::Finished { .. })) {
                    self.kernel.drives.add(info.run);
                    parents.push(info.run);
                    self.take_up_left(info, &mut left).await;
                }
                if page.len() < PAGE {
                    break;
                }
            }
        }
        self.take_up_rest(left).await;
        Ok(())
    }

    /// The same for a run that continues as if it had been recovered.
    pub(super) async fn adopt_and_recover(&self, info: &RunInfo) -> Result<()> {
        self.adopt(info.run).await?;
        if !matches!(self.kernel.drives, DriveScope::All) {
            let mut left = LeftRuns::default();
            self.take_up_left(info, &mut left).await;
            self.take_up_rest(left).await;
        }
        Ok(())
    }

    async fn take_up_listed(&self, filter: Filter, left: &mut LeftRuns) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.kernel.store.list(filter.clone(), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            for info in &page {
                self.take_up_left(info, left).await;
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }

    /// Takes up a run now, or notes it for later. Does nothing if the run is not to be taken up before it is due.
    async fn take_up_left(&self, info: &RunInfo, left: &mut LeftRuns) {
        let is_left = match &info.state {
            RunState::Running => true,
            RunState::Held { hold } => !hold.needs_person(),
            RunState::Suspended { .. } => self.kernel.admission.keys.has_unnoticed_key(info.run),
            RunState::Queued | RunState::Finished { .. } => false,
        };
        if !is_left || self.is_here(info.run) || !left.seen.insert(info.run) {
            return;
        }
        if info.deaths > 0 {
            left.suspects.push(info.run);
        } else if left.taken.len() < limits::CLAIM_BATCH {
            left.taken.extend(self.take_up(info.run).await);
        } else {
            left.later.push(info.run);
        }
    }

    /// Takes up what was noted for later. Returns how many runs were found in total.
    async fn take_up_rest(&self, left: LeftRuns) -> usize {
        self.take_up_later(left.later, left.suspects);
        // What recovery found out, such as new doubts, is visible when this returns.
        for driven in left.taken {
            driven.run.flush().await;
        }
        left.seen.len()
    }

    /// Whether this process drives the run or certainly will. A run that is being claimed because of a message may
    /// still be left alone.
    fn is_here(&self, run: RunId) -> bool {
        matches!(self.kernel.roster.stage(run), RunStage::Driven(_) | RunStage::Queued(_))
    }

    /// Claims and drives a run. The task that fails tries again, so an error is ignored here: one run that cannot be
    /// read must not delay the others.
    async fn take_up(&self, run: RunId) -> Option<DrivenRun> {
        self.kernel.take_up(run, TakeUpCause::Recovery).await.ok().flatten()
    }

    /// Recovers the rest of the runs whenever attempts of new calls leave room, and then the suspects.
    fn take_up_later(&self, later: Vec<RunId>, suspects: Vec<RunId>) {
        let runtime = self.clone();
        later.iter().chain(&suspects).for_each(|run| self.kernel.roster.queue(*run));
        self.kernel.env.spawn.spawn(Box::pin(async move {
            runtime.kernel.take_up_due().await;
            for page in later.chunks(limits::CLAIM_BATCH) {
                runtime.kernel.pause_for_new_calls().await;
                for run in page {
                    runtime.take_up(*run).await;
                }
            }
            // One after the other, so that the next death identifies the run that caused it.
            for run in suspects {
                if let Some(driven) = runtime.take_up(run).await {
                    // A run that is parked in doubt has survived: it is unknown when the doubt will be settled.
                    runtime.survived(run, driven.completion.wait()).await;
                }
            }
        }));
    }

    /// Waits until a suspect has ended or is parked.
    async fn survived(&self, run: RunId, end: impl Future<Output = RunEnd> + Unpin) {
        let mut end = end;
        loop {
            let nap = self.kernel.env.clock.sleep(limits::WATCHDOG);
            match futures_util::future::select(end, nap).await {
                futures_util::future::Either::Left(_) => return,
                futures_util::future::Either::Right((_, rest)) => end = rest,
            }
            let Some(driven) = self.kernel.roster.driven(run) else { return };
            if driven.run.with(|machine| machine.is_parked()) {
                return;
            }
        }
    }
}
