//! Session files that an attempt changes together with its outcome.

use std::sync::Arc;

use super::Attempt;
use super::commands::Command;
use crate::artifacts::ArtifactWriter;
use crate::limits;
use crate::run::Run;
use crate::store::{
    ArtifactId, EditedContent, FileEdit, FileEncoding, RefusedEdit, SessionAnswer, SessionChange, SessionOperation,
    SessionPath, SessionRefusal, SessionWrite,
};
use crate::tool::{Effect, Output, ToolError, ToolResult};

/// Changes of session files that are made together with the outcome of an attempt; see [`Attempt::edit_files`].
///
/// The contents are stored first. [`stage`](FileEdits::stage) then decides which of the changes are made, and
/// [`Output::edits`] makes them part of the outcome.
pub struct FileEdits {
    attempt: Attempt,
    run: Arc<Run>,
    session: Arc<str>,
    edits: Vec<FileEdit>,
}

/// Changes of files that the outcome of this attempt can make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedEdits {
    made: Vec<FileEdit>,
    refused: Vec<UnmadeEdit>,
}

/// A change that is not made, with its content, which is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmadeEdit {
    /// The change.
    pub edit: FileEdit,
    /// Why it is not made.
    pub why: String,
}

/// The content of a file that is being stored for an edit. Holds one piece ([`limits::ARTIFACT_PIECE`]) in memory.
pub struct EditWriter<'e> {
    edits: &'e mut FileEdits,
    path: SessionPath,
    base: Option<ArtifactId>,
    artifact: ArtifactWriter,
    start: Vec<u8>,
}

impl Attempt {
    /// Changes files of its session together with its outcome: all contents are stored before, and the changes are made
    /// in the commit that records the outcome, or not at all. `None` if its run belongs to no session, or is no longer
    /// driven here.
    pub fn edit_files(&self) -> Option<FileEdits> {
        let run = self.home()?;
        let session = run.session.clone()?;
        Some(FileEdits { attempt: self.clone(), run, session, edits: Vec::new() })
    }
}

impl FileEdits {
    /// Replaces a file that had the content `base`, or creates one if that is `None`.
    pub fn write(&mut self, path: SessionPath, base: Option<ArtifactId>) -> EditWriter<'_> {
        // Beyond the limit of a file, so that the content of one that is too large can be fetched.
        let limit = self.run.kernel.env.limits.artifact_bytes;
        let artifact = ArtifactWriter::for_file_of(&self.attempt, self.session.clone(), limit);
        EditWriter { edits: self, path, base, artifact, start: Vec::new() }
    }

    /// Deletes a file that had the content `base`.
    pub fn delete(&mut self, path: SessionPath, base: ArtifactId) {
        self.edits.push(FileEdit { path, base: Some(base), content: None });
    }

    /// Decides which of the changes can be made: those of files that have not changed meanwhile, within the limits of
    /// the session. Until the outcome is recorded, other writes to these files are refused, so do this last.
    pub async fn stage(self) -> ToolResult<StagedEdits> {
        let Self { attempt, run, session, mut edits } = self;
        if edits.is_empty() {
            return Ok(StagedEdits { made: Vec::new(), refused: Vec::new() });
        }
        // Deletions make room.
        edits.sort_by(|a, b| (a.content.is_some(), &a.path).cmp(&(b.content.is_some(), &b.path)));
        if attempt.effect() == Effect::Readonly {
            return Err(ToolError::internal("a readonly tool changes no files; give it another effect"));
        }
        let epoch = run.with(|machine| machine.outbox().epoch());
        let by = Some(SessionOperation { run: run.id, epoch, key: attempt.key().into() });
        let change = SessionChange::Stage { edits: edits.clone(), limits: run.kernel.env.limits.files };
        let write = SessionWrite { by, ..SessionWrite::outside(session.clone(), run.now(), change) };
        let verdict = match run.kernel.store.sessions().write_session(write).await {
            Ok(verdict) => verdict,
            Err(error) => {
                run.failed(error);
                std::future::pending().await
            }
        };
        let refused = match verdict {
            Ok(SessionAnswer::Staged { refused }) => refused,
            Ok(answer) => return Err(ToolError::internal(crate::runtime::unexpected_answer(&answer))),
            Err(refusal) => {
                let unmade = |edit: &FileEdit| UnmadeEdit { edit: edit.clone(), why: refusal.sentence(&session) };
                let refused = edits.iter().map(unmade).collect();
                return Ok(StagedEdits { made: Vec::new(), refused });
            }
        };
        let why = |edit: &FileEdit| {
            let found: Option<&RefusedEdit> = refused.iter().find(|refused| refused.path == edit.path);
            found.map(|refused| SessionRefusal::File(refused.refusal.clone()).sentence(&session))
        };
        let mut staged = StagedEdits { made: Vec::new(), refused: Vec::new() };
        for edit in edits {
            match why(&edit) {
                Some(why) => staged.refused.push(UnmadeEdit { edit, why }),
                None => staged.made.push(edit),
            }
        }
        // The outcome may name what is not written, which keeps it.
        let unwritten = staged.refused.iter().filter_map(|unmade| unmade.edit.content);
        unwritten.for_each(|content| attempt.vouch(content.hash));
        Ok(staged)
    }
}

impl EditWriter<'_> {
    /// Adds bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> ToolResult<()> {
        let room = limits::TEXT_PROBE.saturating_sub(self.start.len());
        self.start.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(self.artifact.write(bytes).await?)
    }

    /// Completes the content. Without this, the file is not changed.
    pub async fn finish(self) -> ToolResult<()> {
        let Self { edits, path, base, artifact, start } = self;
        let stored = artifact.finish().await?.stored_content();
        let stored = stored.ok_or_else(|| ToolError::internal("the store returned no content"))?;
        // Unchanged content is no change.
        if base != Some(stored.id) {
            let encoding = FileEncoding::of(&start);
            let content = Some(EditedContent { hash: stored.id, size: stored.size, encoding });
            edits.edits.push(FileEdit { path, base, content });
        }
        Ok(())
    }
}

impl StagedEdits {
    /// The changes that are made with the outcome.
    pub fn made(&self) -> &[FileEdit] {
        &self.made
    }

    /// The changes that are not made, and why.
    pub fn refused(&self) -> &[UnmadeEdit] {
        &self.refused
    }
}

impl Output {
    /// Changes files of the session of the call together with this outcome. A session that is closed by then is not
    /// changed: the outcome is recorded all the same, and the store logs that.
    #[must_use]
    pub fn edits(mut self, staged: StagedEdits) -> Self {
        if !staged.made.is_empty() {
            self.commands.push(Command::Edit { edits: staged.made });
        }
        self
    }
}
