//! A store that fails on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Around;
use crate::store::{Answer, Commit, Store, StoreError};

/// How a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused, and nothing is written.
    Refused,
    /// It is written, but the answer is lost.
    AnswerLost,
}

/// Passes everything on to another store, except for the commits that are set to fail. Counts commits.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    fault: Mutex<Option<(u64, Fault)>>,
    commits: AtomicU64,
}

impl FaultyStore {
    /// A store that does not fail yet.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, fault: Mutex::new(None), commits: AtomicU64::new(0) }
    }

    /// Makes the commit after the next `skip` commits fail.
    pub fn fail_after(&self, skip: u64, fault: Fault) {
        *self.fault.lock() = Some((skip, fault));
    }

    /// The number of commits so far.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    fn next_fault(&self) -> Option<Fault> {
        let mut fault = self.fault.lock();
        match &mut *fault {
            Some((0, _)) => fault.take().map(|(_, kind)| kind),
            Some((skip, _)) => {
                *skip -= 1;
                None
            }
            None => None,
        }
    }
}

impl Around for FaultyStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        let lost = || Answer::Ready(Err(StoreError::Unknown("an injected fault".to_owned())));
        match self.next_fault() {
            None => self.inner.commit(commit),
            Some(Fault::Refused) => lost(),
            Some(Fault::AnswerLost) => match self.inner.commit(commit) {
                Answer::Ready(_) => lost(),
                Answer::Wait(ticket) => {
                    let (promise, outer) = crate::store::Promise::pair();
                    ticket.then(move |_| promise.answer(Err(StoreError::Unknown("an injected fault".to_owned()))));
                    Answer::Wait(outer)
                }
            },
        }
    }
}
