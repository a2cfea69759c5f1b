//! For testing tools and stores: a seeded executor with a virtual clock, and the crash matrix.

/// The read side of a store that passes everything on to another; `$how` is applied to each answer.
macro_rules! delegate_reads {
    ($inner:ident, $how:path) => {
        fn claim(&self, run: RunId) -> BoxFuture<'_, Result<Claimed, StoreError>> {
            $how(self.$inner.claim(run))
        }

        fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
            $how(self.$inner.release(run, epoch))
        }

        fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
            $how(self.$inner.info(run))
        }

        fn journal(&self, run: RunId) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
            $how(self.$inner.journal(run))
        }

        fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
            $how(self.$inner.mail(run, after))
        }

        fn list(
            &self,
            filter: Filter,
            after: Option<RunId>,
            limit: usize,
        ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
            $how(self.$inner.list(filter, after, limit))
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            $how(self.$inner.close())
        }
    };
}

/// What the read side names.
mod reads {
    pub(super) use futures_util::future::BoxFuture;

    pub(super) use crate::id::RunId;
    pub(super) use crate::run::record::Record;
    pub(super) use crate::run::state::RunInfo;
    pub(super) use crate::store::{Claimed, Filter, Mail, StoreError};
}

mod crash;
mod faulty;
mod sim;
pub mod store_suite;

pub use crash::{CrashMatrix, Disk, Ledger, MemoryDisk, Report};
pub use faulty::{Fault, FaultyStore};
pub use sim::{Sim, block_on};
