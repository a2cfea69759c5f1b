//! Recovers runs that an earlier owner left.

use std::collections::BTreeSet;

use super::{PAGE, Runtime};
use crate::driver::DrivenRun;
use crate::error::Result;
use crate::id::RunId;
use crate::limits;
use crate::roster::{RunStage, TakeUpCause};
use crate::run::drive::RunEnd;
use crate::run::state::RunState;
use crate::store::Filter;

impl Runtime {
    /// Recovers every run that an earlier owner left: unfinished ones, and held ones, which the current code may be
    /// able to continue, except crash loops and imports. Returns their number once the first of them are driven. The
    /// rest follow at a limited rate, after new calls. Runs that a process died with before come last, one at a time.
    /// Suspended runs are claimed when they are due. Also starts the renewal of the lease and the removal of old runs,
    /// if they are configured.
    pub async fn recover(&self) -> Result<usize> {
        if !self.kernel.drives {
            return Ok(0);
        }
        self.kernel.begin_lease().await?;
        if let Some(every) = self.kernel.env.limits.tidy_every {
            self.kernel.begin_retention(every);
        }
        self.kernel.restore_places().await?;
        let (mut suspects, mut later) = (Vec::new(), Vec::new());
        let mut taken = Vec::new();
        // A run that is held as soon as it is driven appears in the second listing too.
        let mut seen = BTreeSet::new();
        for filter in [Filter::running(), Filter::held()] {
            let mut after = None;
            loop {
                let page = self.kernel.store.list(filter.clone(), after, PAGE).await?;
                after = page.last().map(|info| info.run);
                for info in &page {
                    let stays = matches!(&info.state, RunState::Held { hold } if hold.needs_person());
                    if stays || self.is_here(info.run) || !seen.insert(info.run) {
                        continue;
                    }
                    if info.deaths > 0 {
                        suspects.push(info.run);
                        continue;
                    }
                    if taken.len() < limits::CLAIM_BATCH {
                        taken.extend(self.take_up(info.run).await);
                    } else {
                        later.push(info.run);
                    }
                }
                if page.len() < PAGE {
                    break;
                }
            }
        }
        self.take_up_later(later, suspects);
        // What recovery found out, such as new doubts, is visible when this returns.
        for driven in taken {
            driven.run.flush().await;
        }
        Ok(seen.len())
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
