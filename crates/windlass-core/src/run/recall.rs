//! Makes the finished calls of a run known, for the first condition that looks at them.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::machine::Machine;
use super::record::Record;
use super::{Registration, Run};
use crate::policy::PastCall;
use crate::store::StoreError;

/// Where the finished calls of a run are to be had.
enum Recall {
    Known,
    /// In the journal: this many records, and what the machine noted after them.
    Read(u64),
    /// A commit is on its way: whether the journal has its records is not known yet.
    Later,
}

impl Machine {
    fn recall(&mut self) -> Recall {
        if self.past_calls.is_known() {
            return Recall::Known;
        }
        if self.past_calls.wanted().is_none() {
            if self.outbox.is_sending() {
                return Recall::Later;
            }
            self.past_calls.want(self.outbox.seq(), self.outbox.unsent().iter());
        }
        self.past_calls.wanted().map_or(Recall::Known, Recall::Read)
    }

    /// Calls of this run that have finished, oldest first; nothing where they are not known.
    pub(crate) fn past_calls(&self) -> Option<&[PastCall]> {
        self.past_calls.finished()
    }

    /// Whether no condition of this run has asked for its finished calls before.
    pub(crate) fn must_recall(&self) -> bool {
        !self.past_calls.is_known()
    }
}

/// Reads what the journal has of a run's finished calls.
#[derive(Default)]
pub(crate) struct Recalling(Option<BoxFuture<'static, Result<Vec<Record>, StoreError>>>);

impl Recalling {
    /// Ready once the machine knows them.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, run: &Arc<Run>, registration: &mut Registration) -> Poll<()> {
        registration.register(run, cx);
        let before = match run.with(Machine::recall) {
            Recall::Known => return Poll::Ready(()),
            Recall::Later => return Poll::Pending,
            Recall::Read(before) => before,
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
            // No body hears of it: the run is taken up anew once the store can be read.
            Err(error) => {
                self.0 = None;
                run.failed(error);
                Poll::Pending
            }
        }
    }
}
