//! Waiting for the end of a run, as far as the wait can be part of a cycle.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::park::ParkPlan;
use super::shared::SharedWait;
use crate::path::Path;
use crate::run::Run;
use crate::run::state::Blocked;
use crate::store::Wants;

/// The wait of one operation for the end of a run. Dropping it ends the wait, unless the run stopped only for a while.
pub(crate) struct EndWait {
    run: Arc<Run>,
    path: Path,
    registry: WaitRegistry,
}

/// Where waits are searched for cycles.
enum WaitRegistry {
    Local(Result<(), String>),
    Shared(Box<SharedWait>),
}

impl EndWait {
    /// `None` if something other than the end of the run can end the wait.
    pub(crate) fn of(run: &Arc<Run>, path: &Path, plan: &ParkPlan) -> Option<Self> {
        let (Blocked::Child { run: awaited }, Some(held), None) = (&plan.on, &plan.held, plan.within) else {
            return None;
        };
        let admission = &run.kernel.admission;
        let registry = if admission.is_shared {
            WaitRegistry::Shared(Box::new(SharedWait::new(run, path, Wants::End(*awaited), held.clone())))
        } else {
            WaitRegistry::Local(admission.keys.await_end(&(run.id, path.clone()), *awaited, held.clone()))
        };
        Some(Self { run: run.clone(), path: path.clone(), registry })
    }

    /// Ready once the operation may wait. An error names a cycle.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        match &mut self.registry {
            WaitRegistry::Local(answer) => Poll::Ready(answer.clone()),
            WaitRegistry::Shared(shared_wait) => shared_wait.poll(cx),
        }
    }
}

impl Drop for EndWait {
    fn drop(&mut self) {
        match &mut self.registry {
            _ if self.run.keeps_places() => {}
            WaitRegistry::Local(_) => self.run.kernel.admission.keys.stop_waiting(&(self.run.id, self.path.clone())),
            WaitRegistry::Shared(shared_wait) => shared_wait.withdraw(),
        }
    }
}
