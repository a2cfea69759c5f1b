//! A run and the runs it started, as a tree.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;

use super::{Activity, Story, Telling};
use crate::error::Result;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits::{CALL_DEPTH, TRACE_ACTIVITIES, WATCH_PAGE};
use crate::path::Path;
use crate::run::state::RunInfo;
use crate::store::{Filter, StoreError};

/// Everything recorded about a run, and below it about the runs it started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// Which run.
    pub run: RunId,
    /// What it runs.
    pub tool: Arc<str>,
    /// The run that started it, and at which path of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<(RunId, Path)>>,
    /// What happened, in order.
    pub activities: Vec<Activity>,
    /// The runs it started, oldest first.
    pub children: Vec<Trace>,
    /// There is more than is shown: see [`limits::TRACE_ACTIVITIES`](crate::limits::TRACE_ACTIVITIES). Watch the runs one by
    /// one to see all of it.
    pub cut: bool,
}

impl Trace {
    /// Every activity of the tree; those of a run come where the activity that started it stands.
    pub fn flat(&self) -> Vec<&Activity> {
        let mut flat: Vec<&Activity> = self.activities.iter().collect();
        // From the last one on, so that each finds its place among this run's own.
        for child in self.children.iter().rev() {
            let place = self.place_of(child, &flat);
            flat.splice(place..place, child.flat());
        }
        flat
    }

    /// Behind what was last said where the child was started; of one that an outcome started, behind that outcome.
    fn place_of(&self, child: &Self, flat: &[&Activity]) -> usize {
        let at = child.parent.as_ref().map_or(&[][..], |parent| parent.1.positions());
        let said = |positions: &[u32]| {
            let there = |activity: &&Activity| activity.run == self.run && activity.path.positions() == positions;
            flat.iter().rposition(there)
        };
        let nearest = (0..=at.len()).rev().find_map(|depth| said(&at[..depth]));
        nearest.map_or(flat.len(), |place| place + 1)
    }
}

/// Collects the tree, within a budget.
pub(crate) struct Tracer<'a> {
    pub(crate) kernel: &'a Kernel,
    left: usize,
}

impl<'a> Tracer<'a> {
    pub(crate) fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, left: TRACE_ACTIVITIES }
    }

    pub(crate) async fn trace(&mut self, run: RunId) -> Result<Trace> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        self.of(info, 0).await
    }

    fn of(&mut self, info: RunInfo, depth: usize) -> BoxFuture<'_, Result<Trace>> {
        Box::pin(async move {
            let run = info.run;
            let (activities, mut cut) = self.activities(&info).await?;
            let mut children = Vec::new();
            let mut after = None;
            while depth < CALL_DEPTH && self.left > 0 {
                let page = self.kernel.store.list(Filter::Children(run), after, WATCH_PAGE).await?;
                let full = page.len() == WATCH_PAGE;
                after = page.last().map(|info| info.run);
                for child in page {
                    children.push(self.of(child, depth + 1).await?);
                }
                if !full {
                    break;
                }
            }
            cut |= self.left == 0;
            Ok(Trace { run, tool: info.tool, parent: info.parent, activities, children, cut })
        })
    }

    async fn activities(&mut self, info: &RunInfo) -> Result<(Vec<Activity>, bool)> {
        let mut story = Story::default();
        let telling = Telling {
            run: info.run,
            parent: info.parent.as_deref(),
            toolbox: &self.kernel.env.toolbox,
            locale: &self.kernel.env.locale,
        };
        let (mut all, mut seq) = (Vec::new(), 0);
        loop {
            let page = self.kernel.store.page(info.run, seq, WATCH_PAGE).await?;
            for record in &page {
                let said = story.activities(seq, record, &telling);
                seq += 1;
                if said.len() > self.left {
                    self.left = 0;
                    return Ok((all, true));
                }
                self.left -= said.len();
                all.extend(said);
            }
            if page.len() < WATCH_PAGE {
                return Ok((all, false));
            }
        }
    }
}
