//! For testing tools and stores: a seeded executor with a virtual clock, and the crash matrix.

/// The read side of a store that passes everything on to another; `$how` is applied to each answer.
macro_rules! delegate_reads {
    ($inner:ident, $how:path) => {
        fn claim(&self, run: RunId, by: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>> {
            $how(self.$inner.claim(run, by))
        }

        fn renew(&self, worker: WorkerId, until: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
            $how(self.$inner.renew(worker, until))
        }

        fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
            $how(self.$inner.due(now, limit))
        }

        fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>> {
            $how(self.$inner.feed(session, after, limit))
        }

        fn secret(&self) -> [u8; 32] {
            self.$inner.secret()
        }

        fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
            $how(self.$inner.release(run, epoch))
        }

        fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
            $how(self.$inner.info(run))
        }

        fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
            $how(self.$inner.journal(run, from))
        }

        fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
            $how(self.$inner.page(run, from, limit))
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

        fn latest(
            &self,
            filter: Filter,
            before: Option<RunId>,
            limit: usize,
        ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
            $how(self.$inner.latest(filter, before, limit))
        }

        fn keyed(&self, key: Arc<str>) -> BoxFuture<'_, Result<Option<RunId>, StoreError>> {
            $how(self.$inner.keyed(key))
        }

        fn told(&self, run: RunId, dedupe: Arc<str>) -> BoxFuture<'_, Result<bool, StoreError>> {
            $how(self.$inner.told(run, dedupe))
        }

        fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
            $how(self.$inner.counts())
        }

        fn tidy(&self, now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
            $how(self.$inner.tidy(now))
        }

        fn purge(&self, run: RunId, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
            $how(self.$inner.purge(run, now))
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            $how(self.$inner.close())
        }
    };
}

/// The artifacts of a store that passes everything on to another; `$how` is applied to each answer.
macro_rules! delegate_artifacts {
    ($inner:ident, $how:path) => {
        fn begin(&self, by: Access, until: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>> {
            $how(self.$inner.artifacts().begin(by, until))
        }

        fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>> {
            $how(self.$inner.artifacts().append(upload, piece))
        }

        fn finish(&self, upload: Upload) -> BoxFuture<'_, Result<Stored, StoreError>> {
            $how(self.$inner.artifacts().finish(upload))
        }

        delegate_artifacts!(reads $inner, $how);
    };
    (reads $inner:ident, $how:path) => {
        fn abandon(&self, upload: Upload) {
            self.$inner.artifacts().abandon(upload);
        }

        fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>> {
            $how(self.$inner.artifacts().size(artifact, by))
        }

        fn read(
            &self,
            artifact: ArtifactId,
            by: Access,
            offset: u64,
            length: usize,
        ) -> BoxFuture<'_, Result<Vec<u8>, StoreError>> {
            $how(self.$inner.artifacts().read(artifact, by, offset, length))
        }

        fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
            $how(self.$inner.artifacts().sweep(now, limit))
        }
    };
}

/// What the read side names.
mod reads {
    pub(super) use futures_util::future::BoxFuture;

    pub(super) use crate::id::{RunId, WorkerId};
    pub(super) use crate::run::record::Record;
    pub(super) use crate::run::state::RunInfo;
    pub(super) use crate::store::{
        Access, ArtifactId, Artifacts, Claimant, Claimed, Counts, Due, Entry, Filter, Mail, StoreError, Stored, Swept,
        Tidied, Upload,
    };
    pub(super) use crate::time::Timestamp;
}

pub(crate) mod chaos;
mod crash;
mod faulty;
mod sim;
pub mod store_suite;
mod watched;

pub use chaos::{Chaos, Story};
pub use crash::{CrashMatrix, Disk, Ledger, MemoryDisk, Outside, Report};
pub use faulty::{Fault, FaultyStore};
pub use sim::{Sim, block_on};
pub use watched::Watched;
