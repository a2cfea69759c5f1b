//! The activities of a run and of the runs it started, as a tree.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;

use super::{Activity, ActivityContext, Happening, OpenOperations};
use crate::attribution::Attribution;
use crate::call::identity::RecordedBatches;
use crate::error::Result;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits::{CALL_DEPTH, TRACE_ACTIVITIES, TRACE_VALUE_BYTES, WATCH_PAGE};
use crate::path::Path;
use crate::run::record::OpKind;
use crate::run::state::RunInfo;
use crate::store::{Filter, StoreError};
use crate::value::size;

/// All recorded activities of a run and, as children, of the runs it started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// The run.
    pub run: RunId,
    /// The id of its tool, or `batch`.
    pub tool: Arc<str>,
    /// The run that started it, and the path of the operation that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<(RunId, Path)>>,
    /// Its activities, in order.
    pub activities: Vec<Activity>,
    /// The runs it started, oldest first.
    pub children: Vec<Trace>,
    /// Whether activities were left out; see [`limits::TRACE_ACTIVITIES`](crate::limits::TRACE_ACTIVITIES). Watch the
    /// runs one by one to see all of them.
    pub cut: bool,
}

impl Trace {
    /// All activities of the tree. Those of a child follow the activity that started it.
    pub fn flat(&self) -> Vec<&Activity> {
        let mut flat: Vec<&Activity> = self.activities.iter().collect();
        // Backwards, so that the index of each child refers to this run's own activities.
        for child in self.children.iter().rev() {
            let index = self.index_after_start_of(child, &flat);
            flat.splice(index..index, child.flat());
        }
        flat
    }

    /// The index after the last activity at the path that started the child, or at the nearest path above it that has
    /// one.
    fn index_after_start_of(&self, child: &Self, flat: &[&Activity]) -> usize {
        let at = child.parent.as_ref().map_or(&[][..], |parent| parent.1.positions());
        let last_at = |positions: &[u32]| {
            let is_there = |activity: &&Activity| activity.run == self.run && activity.path.positions() == positions;
            flat.iter().rposition(is_there)
        };
        let nearest = (0..=at.len()).rev().find_map(|depth| last_at(&at[..depth]));
        nearest.map_or(flat.len(), |index| index + 1)
    }
}

/// Collects the tree, up to a number of activities.
pub(crate) struct Tracer<'a> {
    pub(crate) kernel: &'a Kernel,
    left: usize,
    /// Bytes of values that may still be shown.
    value_bytes: usize,
}

impl<'a> Tracer<'a> {
    pub(crate) fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, left: TRACE_ACTIVITIES, value_bytes: TRACE_VALUE_BYTES }
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
                let page = self.kernel.store.list(Filter::children(run), after, WATCH_PAGE).await?;
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
        let mut operations = OpenOperations::default();
        let attribution = Attribution::of(info);
        let context = ActivityContext {
            run: info.run,
            attribution: attribution.as_deref(),
            parent: info.parent.as_deref(),
            toolbox: &self.kernel.env.toolbox,
            session: info.session.as_ref(),
            locale: &self.kernel.env.locale,
            policy: &self.kernel.env.policy,
        };
        let (mut all, mut seq) = (Vec::new(), 0);
        let mut batches = RecordedBatches::default();
        loop {
            let page = self.kernel.store.page(info.run, seq, WATCH_PAGE).await?;
            for record in &page {
                batches.note(record);
                let mut said = operations.activities(seq, record, &context);
                seq += 1;
                if said.len() > self.left {
                    self.left = 0;
                    return Ok((all, true));
                }
                self.left -= said.len();
                said.iter_mut().for_each(|activity| self.bound_value(&mut activity.what));
                all.extend(said);
            }
            if page.len() < WATCH_PAGE {
                all.iter_mut().for_each(|activity| identify(activity, &batches));
                return Ok((all, false));
            }
        }
    }

    /// Leaves out a value for which there is no room.
    fn bound_value(&mut self, what: &mut Happening) {
        let (Happening::CallFinished { value, shortened, .. } | Happening::RunFinished { value, shortened, .. }) = what
        else {
            return;
        };
        let bytes = value.as_ref().map_or(0, size::of);
        if bytes > self.value_bytes {
            (*value, *shortened) = (None, true);
        } else {
            self.value_bytes -= bytes;
        }
    }
}

/// Sets the identity of a batch, which its calls decide.
fn identify(activity: &mut Activity, batches: &RecordedBatches) {
    if let Happening::OperationStarted { operation: OpKind::Batch, identity, .. } = &mut activity.what {
        *identity = batches.identity(&activity.path);
    }
}
