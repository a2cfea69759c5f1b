//! Taking up what an earlier owner left.

use std::collections::BTreeSet;

use super::{PAGE, Runtime};
use crate::driver::Live;
use crate::error::Result;
use crate::id::RunId;
use crate::limits;
use crate::roster::{Cause, Stage};
use crate::run::drive::RunEnd;
use crate::run::record::Event;
use crate::run::state::RunState;
use crate::store::Filter;

impl Runtime {
    /// Takes up every run that an earlier owner left: unfinished ones, and held ones except crash loops and imports, which code
    /// that fits may now move. Returns their number once the first of them are under way; the rest follow at a bounded
    /// rate, behind new calls, and runs that a process died with before come last, one at a time. Suspended runs are taken
    /// up when they are due.
    pub async fn recover(&self) -> Result<usize> {
        if !self.kernel.drives {
            return Ok(0);
        }
        self.kernel.begin_lease().await?;
        if let Some(every) = self.kernel.env.limits.tidy_every {
            self.kernel.begin_tidying(every);
        }
        self.restore_keys().await?;
        let (mut suspects, mut later) = (Vec::new(), Vec::new());
        let mut taken = Vec::new();
        // A run that is held as soon as it is taken up shows up in the second listing too.
        let mut seen = BTreeSet::new();
        for filter in [Filter::Running, Filter::Held] {
            let mut after = None;
            loop {
                let page = self.kernel.store.list(filter.clone(), after, PAGE).await?;
                after = page.last().map(|info| info.run);
                for info in &page {
                    let stays = matches!(&info.state, RunState::Held { hold } if hold.needs_person());
                    if stays || self.is_here(info.run) || !seen.insert(info.run) {
                        continue;
                    }
                    // A run's first successor cannot know of an earlier death.
                    if info.epoch > 1 && self.died_before(info.run).await {
                        suspects.push(info.run);
                        continue;
                    }
                    if taken.len() < limits::TAKEN_UP_AT_ONCE {
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
        // What recovery found out, such as new doubts, can be looked at once this returns.
        for live in taken {
            live.run.flush().await;
        }
        Ok(seen.len())
    }

    /// Gives unfinished runs their places in the queues of keys back, before any of them goes on. Where several workers share
    /// the store, a run that another one drives has its place there.
    async fn restore_keys(&self) -> Result<()> {
        if self.kernel.lease.length.is_none() {
            let mut places = self.kernel.store.key_places().await?;
            places.retain(|(run, _)| !self.is_here(*run));
            self.kernel.admission.keys.restore(places).into_iter().for_each(|run| self.kernel.nudge(run));
        }
        Ok(())
    }

    async fn died_before(&self, run: RunId) -> bool {
        match self.kernel.store.journal(run, 0).await {
            Ok(journal) => journal.iter().any(|record| matches!(record.event, Event::Recovered)),
            // One run that cannot be read must not keep the others from going on. Whoever takes it up says what is wrong.
            Err(error) => {
                self.kernel.troubled(Some(run), "a journal cannot be read", &error);
                false
            }
        }
    }

    /// Whether this process drives the run, or will for certain: one that is being taken up for mail may be left alone.
    fn is_here(&self, run: RunId) -> bool {
        matches!(self.kernel.roster.stage(run), Stage::Live(_) | Stage::Queued(_))
    }

    /// An error is tried again by the task that met it: one run that cannot be read must not keep the others from going on.
    async fn take_up(&self, run: RunId) -> Option<Live> {
        self.kernel.take_up(run, Cause::Recovery).await.ok().flatten()
    }

    /// Takes up the rest of the runs, whenever attempts of new calls leave room, and then the suspects.
    fn take_up_later(&self, later: Vec<RunId>, suspects: Vec<RunId>) {
        let runtime = self.clone();
        later.iter().chain(&suspects).for_each(|run| self.kernel.roster.queue(*run));
        self.kernel.env.spawn.spawn(Box::pin(async move {
            runtime.kernel.take_up_due().await;
            for page in later.chunks(limits::TAKEN_UP_AT_ONCE) {
                runtime.kernel.room().await;
                for run in page {
                    runtime.take_up(*run).await;
                }
            }
            // One after the other, so that the next death names the right one.
            for run in suspects {
                if let Some(live) = runtime.take_up(run).await {
                    // Parked in doubt counts as survived: nobody can say when it is settled.
                    runtime.survived(run, live.completion.wait()).await;
                }
            }
        }));
    }

    async fn survived(&self, run: RunId, end: impl Future<Output = RunEnd> + Unpin) {
        let mut end = end;
        loop {
            let nap = self.kernel.env.clock.sleep(limits::WATCHDOG);
            match futures_util::future::select(end, nap).await {
                futures_util::future::Either::Left(_) => return,
                futures_util::future::Either::Right((_, rest)) => end = rest,
            }
            let Some(live) = self.kernel.roster.live(run) else { return };
            if live.run.with(|machine| machine.is_parked()) {
                return;
            }
        }
    }
}
