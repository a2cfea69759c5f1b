//! The bound on unfinished runs of a store: work that would only be added to a long queue is refused instead.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::store::Counts;

/// Counts new runs between two reads of the store. After a read, a quarter of the remaining runs may be created before
/// the next one, so a store with few unfinished runs is read seldom. The read precedes the commit, so runs
/// that are created at the same moment may exceed the limit.
pub(crate) struct UnfinishedRunLimit {
    most: u64,
    credit: AtomicI64,
}

impl UnfinishedRunLimit {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, credit: AtomicI64::new(0) }
    }

    /// Whether a run may be created without reading the store.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.credit.fetch_sub(1, Ordering::Relaxed) > 0
    }

    /// Decides by what the store has.
    fn refill(&self, counts: &Counts) -> Result<()> {
        let Counts { queued, running, suspended, held, .. } = counts;
        let unfinished = queued + running + suspended + held;
        if unfinished >= self.most {
            self.credit.store(0, Ordering::Relaxed);
            return Err(Error::Overloaded(format!(
                "the store has {unfinished} unfinished runs, and at most {} are accepted: {queued} are queued, {running} \
                 running, {suspended} suspended, {held} held; wait until some have ended, answer what waits in the \
                 inbox, resume or cancel what is held, or raise `unfinished_runs`",
                self.most
            )));
        }
        let credit = (self.most - unfinished) / 4;
        self.credit.store(i64::try_from(credit).unwrap_or(i64::MAX), Ordering::Relaxed);
        Ok(())
    }
}

impl Kernel {
    /// Reads the store, and refuses work from outside if it has too many unfinished runs. What runs themselves start is not refused:
    /// it is part of work that was accepted.
    pub(crate) async fn admit_run(&self) -> Result<()> {
        let limit = &self.admission.unfinished;
        limit.refill(&self.store.unfinished(limit.most).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(queued: u64, held: u64) -> Counts {
        Counts { queued, held, ..Counts::default() }
    }

    #[test]
    fn e25_a_store_is_read_less_often_the_fewer_unfinished_runs_it_has() {
        let limit = UnfinishedRunLimit::new(100);
        assert!(!limit.has_credit(), "the first run reads the store");
        limit.refill(&counts(20, 0)).unwrap();
        assert_eq!((0..100).filter(|_| limit.has_credit()).count(), 20);
        limit.refill(&counts(99, 0)).unwrap();
        assert!(!limit.has_credit(), "every run reads the store near the limit");
        let error = limit.refill(&counts(90, 10)).unwrap_err().to_string();
        assert!(error.contains("100 unfinished runs") && error.contains("90 are queued"), "{error}");
        assert!(!limit.has_credit());
    }
}
