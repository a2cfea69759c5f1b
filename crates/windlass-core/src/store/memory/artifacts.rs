//! Artifacts in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::super::{
    Access, ArtifactHasher, ArtifactId, Artifacts, Change, Creation, StoreError, Stored, Swept, Upload, check_piece,
    no_upload,
};
use super::{Inner, MemoryStore, ready};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

/// The artifacts, their references and the uploads in progress.
#[derive(Default)]
pub(super) struct ArtifactTable {
    blobs: BTreeMap<ArtifactId, Blob>,
    /// The claims by the time when they end.
    ends: BTreeSet<(Timestamp, ArtifactId, Access)>,
    of_runs: BTreeMap<RunId, BTreeSet<ArtifactId>>,
    uploads: BTreeMap<Upload, OpenUpload>,
    last: u64,
}

#[derive(Default)]
struct Blob {
    size: u64,
    media_type: Option<Arc<str>>,
    pieces: Vec<Vec<u8>>,
    /// The uploaders, and until when each upload alone keeps the content.
    claims: BTreeMap<Access, Timestamp>,
    /// The runs that refer to it, and who may read it because of each: a session, or a family by its first run.
    refs: BTreeMap<RunId, Access>,
    /// The sessions with files that have this content, and the number of those files.
    files: BTreeMap<Arc<str>, u64>,
}

/// An upload in progress.
struct OpenUpload {
    by: Access,
    until: Timestamp,
    hasher: ArtifactHasher,
    size: u64,
    pieces: Vec<Vec<u8>>,
}

impl ArtifactTable {
    /// Drops all uploads in progress, because their processes are dead.
    pub(super) fn owners_died(&mut self) {
        self.uploads.clear();
    }

    fn begin(&mut self, by: Access, until: Timestamp) -> Upload {
        self.last += 1;
        let upload = Upload(self.last);
        let open = OpenUpload { by, until, hasher: ArtifactHasher::default(), size: 0, pieces: Vec::new() };
        self.uploads.insert(upload, open);
        upload
    }

    fn append(&mut self, upload: Upload, piece: Vec<u8>) -> Result<(), StoreError> {
        let open = self.uploads.get_mut(&upload).ok_or_else(no_upload)?;
        check_piece(open.size, piece.len())?;
        open.hasher.update(&piece);
        open.size += piece.len() as u64;
        open.pieces.push(piece);
        Ok(())
    }

    fn finish(&mut self, upload: Upload, media_type: Arc<str>) -> Result<Stored, StoreError> {
        let OpenUpload { by, until, hasher, size, pieces } = self.uploads.remove(&upload).ok_or_else(no_upload)?;
        let id = hasher.finish();
        let blob = self.blobs.entry(id).or_insert_with(|| Blob { size, pieces, ..Blob::default() });
        blob.media_type.get_or_insert(media_type);
        by.holders().into_iter().for_each(|holder| self.claim(id, holder, until));
        Ok(Stored { id, size })
    }

    /// Keeps content until then, even if nothing refers to it.
    fn claim(&mut self, id: ArtifactId, holder: Access, until: Timestamp) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let before = blob.claims.get(&holder).copied();
        let until = before.map_or(until, |before| before.max(until));
        blob.claims.insert(holder.clone(), until);
        if let Some(before) = before {
            self.ends.remove(&(before, id, holder.clone()));
        }
        self.ends.insert((until, id, holder));
    }

    /// A file of the session has this content from now on.
    pub(super) fn add_file(&mut self, id: ArtifactId, session: &Arc<str>) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            *blob.files.entry(session.clone()).or_default() += 1;
        }
    }

    /// A file of the session no longer has this content. Its readers may read it until then.
    pub(super) fn remove_file(&mut self, id: ArtifactId, session: &Arc<str>, until: Option<Timestamp>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(count) = blob.files.get_mut(session) else { return };
        *count -= 1;
        if *count == 0 {
            blob.files.remove(session);
            if let Some(until) = until {
                self.claim(id, Access::Session(session.clone()), until);
            }
        }
        self.collect(id);
    }

    fn refer(&mut self, run: RunId, artifact: ArtifactId, scope: &Access) {
        if let Some(blob) = self.blobs.get_mut(&artifact) {
            blob.refs.insert(run, scope.clone());
            self.of_runs.entry(run).or_default().insert(artifact);
        }
    }

    /// Removes the references of a run that is no longer kept.
    pub(super) fn forget(&mut self, run: RunId) {
        for artifact in self.of_runs.remove(&run).unwrap_or_default() {
            if let Some(blob) = self.blobs.get_mut(&artifact) {
                blob.refs.remove(&run);
            }
            self.collect(artifact);
        }
    }

    /// Deletes content that has neither references nor claims.
    fn collect(&mut self, artifact: ArtifactId) -> bool {
        let is_loose = |blob: &Blob| blob.refs.is_empty() && blob.claims.is_empty() && blob.files.is_empty();
        let loose = self.blobs.get(&artifact).is_some_and(is_loose);
        loose && self.blobs.remove(&artifact).is_some()
    }

    pub(super) fn sweep(&mut self, now: Timestamp, limit: usize) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..limit {
            let Some((_, artifact, by)) = self.ends.first().filter(|(until, ..)| *until <= now).cloned() else { break };
            self.ends.pop_first();
            if let Some(blob) = self.blobs.get_mut(&artifact) {
                blob.claims.remove(&by);
            }
            swept.collected += u64::from(self.collect(artifact));
        }
        swept.more = self.ends.first().is_some_and(|(until, ..)| *until <= now);
        swept
    }
}

impl Inner {
    /// Who may read what a run refers to: its session, or without one its family, identified by the earliest ancestor
    /// that is still known. `creation` describes a run that does not exist yet.
    fn scope(&self, run: RunId, creation: Option<&Creation>) -> Access {
        let mut at = run;
        let (mut session, mut parent) = match (creation, self.runs.get(&run)) {
            (Some(creation), _) => (creation.session.clone(), creation.parent.as_ref().map(|parent| parent.0)),
            (None, Some(entry)) => (entry.session.clone(), entry.parent.as_ref().map(|parent| parent.0)),
            (None, None) => (None, None),
        };
        while let (None, Some(above)) = (&session, parent) {
            at = above;
            let Some(entry) = self.runs.get(&above) else { break };
            (session, parent) = (entry.session.clone(), entry.parent.as_ref().map(|parent| parent.0));
        }
        session.map_or(Access::Run(at), Access::Session)
    }

    /// The content, if it exists and the reader has access.
    fn readable(&self, artifact: ArtifactId, by: &Access, creation: Option<&Creation>) -> Result<&Blob, StoreError> {
        let missing = StoreError::NoArtifact { artifact };
        let Some(blob) = self.artifacts.blobs.get(&artifact) else { return Err(missing) };
        let has_file = |scope: &Access| matches!(scope, Access::Session(name) if blob.files.contains_key(name));
        let shown = |scope: &Access| {
            blob.claims.contains_key(scope) || blob.refs.values().any(|seen| seen == scope) || has_file(scope)
        };
        let may = match by {
            Access::Owner => true,
            Access::Session(_) => shown(by),
            Access::Principal { name, session } => {
                let acts_for = |run: &RunId| self.runs.get(run).is_some_and(|row| row.principal.as_ref() == Some(name));
                let own = Access::Principal { name: name.clone(), session: None };
                (blob.claims.contains_key(&own) || blob.refs.keys().any(acts_for))
                    && session.clone().is_none_or(|session| shown(&Access::Session(session)))
            }
            Access::Run(run) => {
                let is_child = |other: &RunId| {
                    let parent = self.runs.get(other).and_then(|entry| entry.parent.as_ref());
                    parent.is_some_and(|parent| parent.0 == *run)
                };
                blob.claims.contains_key(by)
                    || shown(&self.scope(*run, creation))
                    || blob.refs.keys().any(|other| other == run || is_child(other))
            }
        };
        if may { Ok(blob) } else { Err(missing) }
    }

    /// Refuses references to artifacts that do not exist or that the referring run may not read.
    pub(super) fn check_refs(&self, changes: &[Change], guarded: Option<RunId>) -> Result<(), StoreError> {
        for change in changes {
            let Change::Refer { run, artifacts, by } = change else { continue };
            if guarded != Some(*run) && started(changes, *run).is_none() {
                let why = "only the owner of a run, or the commit that starts it, may set what it refers to";
                return Err(StoreError::Invalid(why.to_owned()));
            }
            if guarded != Some(*run) && self.runs.contains_key(run) {
                continue;
            }
            let creation = created(changes, guarded, *by);
            for artifact in artifacts {
                self.readable(*artifact, &Access::Run(*by), creation)?;
            }
        }
        Ok(())
    }

    /// Adds references that have been checked.
    pub(super) fn refer(&mut self, run: RunId, artifacts: Vec<ArtifactId>) {
        let scope = self.scope(run, None);
        for artifact in artifacts {
            self.artifacts.refer(run, artifact, &scope);
        }
    }

    pub(super) fn may_read(&self, artifact: ArtifactId, by: &Access) -> bool {
        self.readable(artifact, by, None).is_ok()
    }

    fn read(&self, artifact: ArtifactId, by: &Access, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let blob = self.readable(artifact, by, None)?;
        let length = length.min(limits::ARTIFACT_PIECE);
        let Ok(offset) = usize::try_from(offset) else { return Ok(Vec::new()) };
        let (first, skip) = (offset / limits::ARTIFACT_PIECE, offset % limits::ARTIFACT_PIECE);
        // A range as long as a piece covers at most two of them.
        let bytes = blob.pieces.iter().skip(first).take(2).flatten();
        Ok(bytes.skip(skip).take(length).copied().collect())
    }
}

fn started(changes: &[Change], run: RunId) -> Option<&Creation> {
    changes.iter().find_map(|change| match change {
        Change::Start { run: other, creation, .. } if *other == run => Some(creation),
        _ => None,
    })
}

/// The description of a run that this commit creates.
fn created(changes: &[Change], guarded: Option<RunId>, run: RunId) -> Option<&Creation> {
    let own = changes.iter().find_map(|change| match change {
        Change::Create(creation) if guarded == Some(run) => Some(creation),
        _ => None,
    });
    own.or_else(|| started(changes, run))
}

impl Artifacts for MemoryStore {
    fn begin(&self, by: Access, until: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>> {
        ready(Ok(self.inner.lock().artifacts.begin(by, until)))
    }

    fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.inner.lock().artifacts.append(upload, piece))
    }

    fn finish(&self, upload: Upload, media_type: Arc<str>) -> BoxFuture<'_, Result<Stored, StoreError>> {
        ready(self.inner.lock().artifacts.finish(upload, media_type))
    }

    fn abandon(&self, upload: Upload) {
        self.inner.lock().artifacts.uploads.remove(&upload);
    }

    fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>> {
        ready(self.inner.lock().readable(artifact, &by, None).map(|blob| blob.size))
    }

    fn media_type(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<Option<Arc<str>>, StoreError>> {
        ready(self.inner.lock().readable(artifact, &by, None).map(|blob| blob.media_type.clone()))
    }

    fn read(
        &self,
        artifact: ArtifactId,
        by: Access,
        offset: u64,
        length: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, StoreError>> {
        ready(self.inner.lock().read(artifact, &by, offset, length))
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        ready(Ok(self.inner.lock().artifacts.sweep(now, limit)))
    }
}
