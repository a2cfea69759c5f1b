//! Reads the finished calls of a run for the first condition that needs them.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::machine::Machine;
use super::record::Record;
use super::{Registration, Run};
use crate::policy::PastCall;
use crate::store::StoreError;

/// Where the finished calls of a run are.
enum RecallSource {
    Known,
    /// In the journal: in this many records, and in what the machine noted after them.
    Read(u64),
    /// A commit is in flight, so it is not known yet whether the journal has its records.
    Later,
}

impl Machine {
    fn recall(&mut self) -> RecallSource {
        if self.past_calls.is_known() {
            return RecallSource::Known;
        }
        if self.past_calls.wanted().is_none() {
            if self.outbox.is_sending() {
                return RecallSource::Later;
            }
            self.past_calls.want(self.outbox.seq(), self.outbox.unsent().iter());
        }
        self.past_calls.wanted().map_or(RecallSource::Known, RecallSource::Read)
    }

    /// The finished calls of this run, oldest first; `None` if they have not been read.
    pub(crate) fn past_calls(&self) -> Option<&[PastCall]> {
        self.past_calls.finished()
    }

    /// Whether the finished calls of this run must be read first.
    pub(crate) fn must_recall(&self) -> bool {
        !self.past_calls.is_known()
    }
}

/// Reads a run's finished calls from the journal.
#[derive(Default)]
pub(crate) struct Recalling(Option<BoxFuture<'static, Result<Vec<Record>, StoreError>>>);

impl Recalling {
    /// Ready once the machine has them.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, run: &Arc<Run>, registration: &mut Registration) -> Poll<()> {
        registration.register(run, cx);
        let before = match run.with(Machine::recall) {
            RecallSource::Known => return Poll::Ready(()),
            RecallSource::Later => return Poll::Pending,
            RecallSource::Read(before) => before,
        };
        let reading = self.0.get_or_insert_with(|| {
            let (kernel, id) = (run.kernel.clone(), run.id);
            Box::pin(async move { kernel.store.journal(id, 0).await })
        });
        match std::task::ready!(reading.poll_unpin(cx)) {
            Ok(mut journal) => {
                journal.truncate(usize::try_from(before).unwrap_or(usize::MAX));
                run.with(|machine| machine.past_calls.read(&journal));
                Poll::Ready(())
            }
            // No body sees the failure: the run is taken up again once the store can be read.
            Err(error) => {
                self.0 = None;
                run.failed(error);
                Poll::Pending
            }
        }
    }
}
