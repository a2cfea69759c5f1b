//! Reads the finished calls of a run, and of the other runs of its session, for conditions that need them.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::machine::Machine;
use super::record::Record;
use super::state::RunState;
use super::{Registration, Run};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::policy::{PastCall, finished_calls, joined};
use crate::store::{Filter, StoreError};

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

    /// The finished calls of the session's other runs and of this run, oldest first; `None` if they are not known, or too
    /// many.
    pub(crate) fn history_after(&self, of_session: SessionCalls) -> Option<Vec<PastCall>> {
        match of_session {
            SessionCalls::None => self.past_calls.finished().map(<[_]>::to_vec),
            SessionCalls::Known(calls) => joined(Some(calls), self.past_calls.finished()),
            SessionCalls::TooMany => None,
        }
    }

    /// Whether the finished calls of this run must be read first.
    pub(crate) fn must_recall(&self) -> bool {
        !self.past_calls.is_known()
    }
}

/// The finished calls of the other runs of a session.
pub(crate) enum SessionCalls {
    /// There is no session, or no other run.
    None,
    Known(Vec<PastCall>),
    /// More than a condition can look at, or some that cannot be read.
    TooMany,
}

impl Kernel {
    /// The finished calls of a session's runs except one, oldest first, as far as the store has their journals.
    pub(crate) async fn session_calls(
        &self,
        session: &Arc<str>,
        except: Option<RunId>,
    ) -> Result<SessionCalls, StoreError> {
        let mut runs = self.store.latest(Filter::session(session.clone()), None, limits::HISTORY_RUNS + 2).await?;
        runs.retain(|info| Some(info.run) != except && info.state != RunState::Queued);
        if runs.len() > limits::HISTORY_RUNS {
            return Ok(SessionCalls::TooMany);
        }
        let mut calls = Some(Vec::new());
        for info in runs.iter().rev() {
            let journal = match self.store.journal(info.run, 0).await {
                Ok(journal) => journal,
                // Retention has removed it.
                Err(StoreError::JournalGone(_) | StoreError::NoSuchRun(_)) => continue,
                Err(StoreError::Sealed { .. } | StoreError::Damaged { .. }) => return Ok(SessionCalls::TooMany),
                Err(error) => return Err(error),
            };
            calls = joined(calls, finished_calls(&journal).as_deref());
        }
        Ok(calls.map_or(SessionCalls::TooMany, SessionCalls::Known))
    }
}

/// Reads the finished calls of a run, and of the other runs of its session.
#[derive(Default)]
pub(crate) struct Recalling {
    own: Option<BoxFuture<'static, Result<Vec<Record>, StoreError>>>,
    of_session: Option<BoxFuture<'static, Result<SessionCalls, StoreError>>>,
}

impl Recalling {
    /// Ready with those of the session once the machine has those of the run.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        run: &Arc<Run>,
        registration: &mut Registration,
    ) -> Poll<SessionCalls> {
        registration.register(run, cx);
        match run.with(Machine::recall) {
            RecallSource::Known => {}
            RecallSource::Later => return Poll::Pending,
            RecallSource::Read(before) => {
                let reading = self.own.get_or_insert_with(|| {
                    let (kernel, id) = (run.kernel.clone(), run.id);
                    Box::pin(async move { kernel.store.journal(id, 0).await })
                });
                match std::task::ready!(reading.poll_unpin(cx)) {
                    Ok(mut journal) => {
                        journal.truncate(usize::try_from(before).unwrap_or(usize::MAX));
                        run.with(|machine| machine.past_calls.read(&journal));
                    }
                    Err(error) => return self.failed(run, error),
                }
            }
        }
        let Some(session) = run.session.clone() else { return Poll::Ready(SessionCalls::None) };
        let reading = self.of_session.get_or_insert_with(|| {
            let (kernel, id) = (run.kernel.clone(), run.id);
            Box::pin(async move { kernel.session_calls(&session, Some(id)).await })
        });
        match std::task::ready!(reading.poll_unpin(cx)) {
            Ok(calls) => Poll::Ready(calls),
            Err(error) => self.failed(run, error),
        }
    }

    /// No body sees the failure: the run is taken up again once the store can be read.
    fn failed(&mut self, run: &Run, error: StoreError) -> Poll<SessionCalls> {
        *self = Self::default();
        run.failed(error);
        Poll::Pending
    }
}
