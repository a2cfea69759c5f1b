//! Wrappers of a store: a wrapper implements [`Around`] with what it does differently, and everything else is passed
//! on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::Record;
use crate::run::state::RunInfo;
use crate::store::{
    Access, Answer, ArtifactId, Artifacts, Claimed, ClaimedDue, Commit, ConnectionAnswer, ConnectionInfo,
    ConnectionKey, ConnectionWrite, Connections, ConnectionsOf, Counts, DataEntry, DataKind, Driving, Due, Entry,
    FileInfo, FileQuery, FileUsage, Files, Filter, KeyPlace, Mail, Mailboxes, OnChange, Queries, RecentOutcomes,
    SessionCursor, SessionFilter, SessionInfo, SessionMessage, SessionPath, SessionSizes, SessionVerdict, SessionWrite,
    Sessions, SharedAdmission, Slot, SlotRequest, Store, StoreError, Stored, StoredConnection, Swept, Tidied, Upkeep,
    Upload, Verdict, WaitRequest,
};
use crate::time::{Clock, Timestamp};
use crate::tool::LiveTools;

/// The answer to a request to a store.
pub type Asked<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The kinds of requests to a store, besides commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Request {
    Claim,
    Release,
    ClaimDue,
    Renew(Duration),
    Due,
    KeyPlaces,
    Admission,
    Mail,
    Info,
    Journal,
    Page,
    Feed,
    List,
    Latest,
    Keyed,
    Told,
    Counts,
    Tidy,
    Purge,
    BeginUpload,
    AppendUpload,
    FinishUpload,
    ArtifactSize,
    ReadArtifact,
    Sweep,
    WriteSession,
    ReadSession,
    PurgeSession,
    WriteConnection,
    ReadConnection,
}

/// A wrapper of a store. Every type that implements this is a [`Store`].
pub trait Around: Send + Sync + 'static {
    /// The wrapped store.
    fn inner(&self) -> &dyn Store;

    /// Writes; see [`Driving::commit`].
    fn commit(&self, commit: Commit) -> Answer<()> {
        self.inner().commit(commit)
    }

    /// All other requests that may take time pass through this method.
    fn ask<'a, T: Send + 'a>(
        &'a self,
        _request: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        ask(self.inner())
    }

    /// Called after a run was claimed.
    fn claimed(&self, _run: RunId, _claimed: &Claimed) {}

    /// Called with the store's answer to a wait request; returns the answer to pass on.
    fn decided(&self, verdict: Verdict) -> Verdict {
        verdict
    }

    /// Whether the shared admission of the store is offered; see [`Driving::admission`].
    fn admits(&self) -> bool {
        true
    }

    /// Whether callbacks for changes are registered with the store; see [`Driving::on_change`].
    fn tells(&self) -> bool {
        true
    }
}

impl<A: Around> Driving for A {
    fn commit(&self, commit: Commit) -> Answer<()> {
        Around::commit(self, commit)
    }

    fn claim(&self, run: RunId, worker: WorkerId) -> Asked<'_, Claimed> {
        self.ask(Request::Claim, move |store| {
            Box::pin(async move {
                let claimed = store.claim(run, worker).await?;
                self.claimed(run, &claimed);
                Ok(claimed)
            })
        })
    }

    fn release(&self, run: RunId, epoch: u64) -> Asked<'_, ()> {
        self.ask(Request::Release, move |store| store.release(run, epoch))
    }

    fn claim_due(&self, worker: WorkerId, limit: usize) -> Asked<'_, ClaimedDue> {
        self.ask(Request::ClaimDue, move |store| {
            Box::pin(async move {
                let due = store.claim_due(worker, limit).await?;
                for (run, claimed) in &due.runs {
                    claimed.iter().for_each(|claimed| self.claimed(*run, claimed));
                }
                Ok(due)
            })
        })
    }

    fn renew(&self, worker: WorkerId, lease: Duration) -> Asked<'_, ()> {
        self.ask(Request::Renew(lease), move |store| store.renew(worker, lease))
    }

    fn on_change(&self, tell: &OnChange) {
        if self.tells() {
            self.inner().on_change(tell);
        }
    }

    fn admission(&self) -> Option<&dyn SharedAdmission> {
        self.inner().admission().filter(|_| self.admits()).map(|_| self as &dyn SharedAdmission)
    }

    fn key_places(&self) -> Asked<'_, Vec<(RunId, KeyPlace)>> {
        self.ask(Request::KeyPlaces, |store| store.key_places())
    }

    fn mail_of_many(&self, runs: Vec<(RunId, u64)>) -> Asked<'_, Mailboxes> {
        self.ask(Request::Mail, move |store| store.mail_of_many(runs))
    }

    fn mail(&self, run: RunId, after: u64) -> Asked<'_, Vec<Mail>> {
        self.ask(Request::Mail, move |store| store.mail(run, after))
    }
}

/// The error of a store without shared admission.
fn none<'a, T: Send + 'a>() -> Asked<'a, T> {
    let problem = "the store does not keep admission".to_owned();
    Box::pin(std::future::ready(Err(StoreError::Invalid(problem))))
}

impl<A: Around> SharedAdmission for A {
    fn request(&self, request: WaitRequest) -> Asked<'_, Verdict> {
        self.ask(Request::Admission, move |store| {
            let verdict = store.admission().map_or_else(none, |all| all.request(request));
            Box::pin(async move { Ok(self.decided(verdict.await?)) })
        })
    }

    fn withdraw(&self, run: RunId, path: Path) -> Asked<'_, ()> {
        self.ask(Request::Admission, move |store| store.admission().map_or_else(none, |all| all.withdraw(run, path)))
    }

    fn enter(&self, request: SlotRequest) -> Asked<'_, Slot> {
        self.ask(Request::Admission, move |store| store.admission().map_or_else(none, |all| all.enter(request)))
    }

    fn leave(&self, worker: WorkerId, slot: u64) -> Asked<'_, ()> {
        self.ask(Request::Admission, move |store| store.admission().map_or_else(none, |all| all.leave(worker, slot)))
    }
}

impl<A: Around> Queries for A {
    fn due(&self, limit: usize) -> Asked<'_, Due> {
        self.ask(Request::Due, move |store| store.due(limit))
    }

    fn info(&self, run: RunId) -> Asked<'_, Option<RunInfo>> {
        self.ask(Request::Info, move |store| store.info(run))
    }

    fn journal(&self, run: RunId, from: u64) -> Asked<'_, Vec<Record>> {
        self.ask(Request::Journal, move |store| store.journal(run, from))
    }

    fn page(&self, run: RunId, from: u64, limit: usize) -> Asked<'_, Vec<Record>> {
        self.ask(Request::Page, move |store| store.page(run, from, limit))
    }

    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> Asked<'_, Vec<Entry>> {
        self.ask(Request::Feed, move |store| store.feed(session, after, limit))
    }

    fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Asked<'_, Vec<RunInfo>> {
        self.ask(Request::List, move |store| store.list(filter, after, limit))
    }

    fn latest(&self, filter: Filter, before: Option<RunId>, limit: usize) -> Asked<'_, Vec<RunInfo>> {
        self.ask(Request::Latest, move |store| store.latest(filter, before, limit))
    }

    fn keyed(&self, key: Arc<str>) -> Asked<'_, Option<RunId>> {
        self.ask(Request::Keyed, move |store| store.keyed(key))
    }

    fn told(&self, run: RunId, dedupe: Arc<str>) -> Asked<'_, bool> {
        self.ask(Request::Told, move |store| store.told(run, dedupe))
    }

    fn unfinished(&self, limit: u64) -> Asked<'_, Counts> {
        self.ask(Request::Counts, move |store| store.unfinished(limit))
    }

    fn counts(&self) -> Asked<'_, Counts> {
        self.ask(Request::Counts, move |store| store.counts())
    }
}

impl<A: Around> Upkeep for A {
    fn tidy(&self, now: Timestamp) -> Asked<'_, Tidied> {
        self.ask(Request::Tidy, move |store| store.tidy(now))
    }

    fn purge(&self, run: RunId, now: Timestamp) -> Asked<'_, ()> {
        self.ask(Request::Purge, move |store| store.purge(run, now))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner().close()
    }
}

impl<A: Around> Store for A {
    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn sessions(&self) -> &dyn Sessions {
        self
    }

    fn connections(&self) -> &dyn Connections {
        self
    }

    fn secret(&self) -> [u8; 32] {
        self.inner().secret()
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.inner().use_clock(clock);
    }
}

impl<A: Around> Artifacts for A {
    fn begin(&self, by: Access, until: Timestamp) -> Asked<'_, Upload> {
        self.ask(Request::BeginUpload, move |store| store.artifacts().begin(by, until))
    }

    fn append(&self, upload: Upload, piece: Vec<u8>) -> Asked<'_, ()> {
        self.ask(Request::AppendUpload, move |store| store.artifacts().append(upload, piece))
    }

    fn finish(&self, upload: Upload, media_type: Arc<str>) -> Asked<'_, Stored> {
        self.ask(Request::FinishUpload, move |store| store.artifacts().finish(upload, media_type))
    }

    fn abandon(&self, upload: Upload) {
        self.inner().artifacts().abandon(upload);
    }

    fn size(&self, artifact: ArtifactId, by: Access) -> Asked<'_, u64> {
        self.ask(Request::ArtifactSize, move |store| store.artifacts().size(artifact, by))
    }

    fn media_type(&self, artifact: ArtifactId, by: Access) -> Asked<'_, Option<Arc<str>>> {
        self.ask(Request::ArtifactSize, move |store| store.artifacts().media_type(artifact, by))
    }

    fn read(&self, artifact: ArtifactId, by: Access, offset: u64, length: usize) -> Asked<'_, Vec<u8>> {
        self.ask(Request::ReadArtifact, move |store| store.artifacts().read(artifact, by, offset, length))
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> Asked<'_, Swept> {
        self.ask(Request::Sweep, move |store| store.artifacts().sweep(now, limit))
    }
}

impl<A: Around> Sessions for A {
    fn write_session(&self, write: SessionWrite) -> Asked<'_, SessionVerdict> {
        self.ask(Request::WriteSession, move |store| store.sessions().write_session(write))
    }

    fn session(&self, name: Arc<str>) -> Asked<'_, Option<SessionInfo>> {
        self.ask(Request::ReadSession, move |store| store.sessions().session(name))
    }

    fn live_tools(&self, name: Arc<str>) -> Asked<'_, Arc<LiveTools>> {
        self.ask(Request::ReadSession, move |store| store.sessions().live_tools(name))
    }

    fn list_sessions(
        &self,
        filter: SessionFilter,
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Asked<'_, Vec<SessionInfo>> {
        self.ask(Request::ReadSession, move |store| store.sessions().list_sessions(filter, before, limit))
    }

    fn session_messages(&self, name: Arc<str>, after: u64, limit: usize) -> Asked<'_, Vec<SessionMessage>> {
        self.ask(Request::ReadSession, move |store| store.sessions().session_messages(name, after, limit))
    }

    fn session_value(&self, session: Arc<str>, kind: DataKind, name: Arc<str>) -> Asked<'_, Option<Value>> {
        self.ask(Request::ReadSession, move |store| store.sessions().session_value(session, kind, name))
    }

    fn session_entries(&self, session: Arc<str>, kind: DataKind) -> Asked<'_, Vec<DataEntry>> {
        self.ask(Request::ReadSession, move |store| store.sessions().session_entries(session, kind))
    }

    fn recent_outcomes(&self, session: Arc<str>) -> Asked<'_, RecentOutcomes> {
        self.ask(Request::ReadSession, move |store| store.sessions().recent_outcomes(session))
    }

    fn unfinished_runs(&self, session: Arc<str>, limit: usize) -> Asked<'_, Vec<RunId>> {
        self.ask(Request::ReadSession, move |store| store.sessions().unfinished_runs(session, limit))
    }

    fn session_sizes(&self, session: Arc<str>) -> Asked<'_, SessionSizes> {
        self.ask(Request::ReadSession, move |store| store.sessions().session_sizes(session))
    }

    fn purge_session(&self, name: Arc<str>) -> Asked<'_, ()> {
        self.ask(Request::PurgeSession, move |store| store.sessions().purge_session(name))
    }
}

impl<A: Around> Files for A {
    fn file(&self, session: Arc<str>, path: SessionPath) -> Asked<'_, Option<FileInfo>> {
        self.ask(Request::ReadSession, move |store| store.sessions().file(session, path))
    }

    fn list_files(&self, session: Arc<str>, query: FileQuery) -> Asked<'_, Vec<FileInfo>> {
        self.ask(Request::ReadSession, move |store| store.sessions().list_files(session, query))
    }

    fn file_usage(&self, session: Arc<str>) -> Asked<'_, FileUsage> {
        self.ask(Request::ReadSession, move |store| store.sessions().file_usage(session))
    }
}

impl<A: Around> Connections for A {
    fn write_connection(&self, write: ConnectionWrite) -> Asked<'_, ConnectionAnswer> {
        self.ask(Request::WriteConnection, move |store| store.connections().write_connection(write))
    }

    fn connection(&self, key: ConnectionKey) -> Asked<'_, Option<StoredConnection>> {
        self.ask(Request::ReadConnection, move |store| store.connections().connection(key))
    }

    fn list_connections(&self, of: ConnectionsOf) -> Asked<'_, Vec<ConnectionInfo>> {
        self.ask(Request::ReadConnection, move |store| store.connections().list_connections(of))
    }
}
