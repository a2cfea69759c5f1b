//! Uploads: what the process knows of one in progress, and what the writer does for it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use windlass_core::limits;
use windlass_core::store::{Access, ArtifactHasher, StoreError, Stored, Swept, Upload, check_piece, no_upload};
use windlass_core::time::Timestamp;

use super::super::table::Trouble;
use super::pack::Piece;
use super::{NOBODY, access, claim, clear, find, sweep};

/// What the writer is asked to do.
pub(in crate::sqlite) enum Step {
    /// The first piece of an upload has no blob yet.
    Piece {
        blob: Option<i64>,
        number: i64,
        piece: Piece,
    },
    Finish {
        blob: Option<i64>,
        stored: Stored,
        media_type: Arc<str>,
        by: Access,
        until: Timestamp,
    },
    Abandon {
        blob: i64,
    },
    Sweep {
        now: Timestamp,
        limit: usize,
    },
    /// Clears left-overs, whatever the time is.
    Tidy,
}

impl Step {
    /// How much content it carries.
    pub(in crate::sqlite) fn bytes(&self) -> usize {
        if let Self::Piece { piece, .. } = self { piece.body.len() } else { 0 }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::sqlite) enum Done {
    /// The blob that the upload is, or is to be.
    Written(i64),
    Swept(Swept),
}

/// Does one step, inside the transaction of its group.
pub(in crate::sqlite) fn work(connection: &Connection, opening: i64, step: &Step) -> Result<Done, Trouble> {
    match step {
        Step::Piece { blob, number, piece } => {
            let blob = open(connection, *blob, opening)?;
            super::insert_piece(connection, blob, *number, piece)?;
            Ok(Done::Written(blob))
        }
        Step::Finish { blob, stored, media_type, by, until } => {
            let own = open(connection, *blob, opening)?;
            // Somebody may have been faster, or have had it for long.
            let there = find(connection, &stored.id)?;
            match there {
                Some(_) => give_up(connection, own)?,
                None => name(connection, own, stored)?,
            }
            let blob = there.unwrap_or(own);
            connection.prepare_cached(TYPED)?.execute(params![blob, media_type])?;
            claim(connection, blob, &access::holder(by), *until)?;
            Ok(Done::Written(blob))
        }
        Step::Abandon { blob } => {
            give_up(connection, *blob)?;
            Ok(Done::Written(*blob))
        }
        Step::Sweep { now, limit } => Ok(Done::Swept(sweep(connection, *now, opening, *limit)?)),
        Step::Tidy => Ok(Done::Swept(clear(connection, opening, limits::ARTIFACT_SWEEP)?)),
    }
}

const OPEN: &str = "SELECT EXISTS (SELECT 1 FROM blobs WHERE id = ?1 AND digest IS NULL AND opening = ?2)";

const TYPED: &str = "UPDATE blobs SET media_type = ?2 WHERE id = ?1 AND media_type IS NULL";

/// The blob of an upload: a new one for its first step. Refuses to go on with one that is over.
fn open(connection: &Connection, blob: Option<i64>, opening: i64) -> Result<i64, Trouble> {
    let Some(blob) = blob else {
        connection
            .prepare_cached("INSERT INTO blobs (size, opening, sum) VALUES (0, ?1, windlass_sum(NULL, 0, ?1, NULL))")?
            .execute([opening])?;
        return Ok(connection.last_insert_rowid());
    };
    let open: bool = connection.prepare_cached(OPEN)?.query_row([blob, opening], |row| row.get(0))?;
    if open { Ok(blob) } else { Err(no_upload().into()) }
}

/// All of it is there: from now on it is found.
fn name(connection: &Connection, blob: i64, stored: &Stored) -> rusqlite::Result<()> {
    let size = i64::try_from(stored.size).unwrap_or(i64::MAX);
    let sql = "UPDATE blobs SET digest = ?2, size = ?3, opening = NULL WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![blob, stored.id.as_bytes(), size])?;
    Ok(())
}

fn give_up(connection: &Connection, blob: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE blobs SET opening = ?2 WHERE id = ?1 AND digest IS NULL";
    connection.prepare_cached(sql)?.execute([blob, NOBODY])?;
    Ok(())
}

/// Uploads of this process. Beginning one writes nothing: it has a blob once its first piece is written.
#[derive(Default)]
pub(in crate::sqlite) struct Uploads(Mutex<Open>);

#[derive(Default)]
struct Open {
    last: u64,
    all: HashMap<Upload, State>,
}

struct State {
    by: Access,
    until: Timestamp,
    hasher: ArtifactHasher,
    size: u64,
    blob: Option<i64>,
    /// Pieces that were submitted, and those of them that are written.
    submitted: i64,
    written: i64,
}

impl Uploads {
    pub(super) fn begin(&self, by: Access, until: Timestamp) -> Upload {
        let mut open = self.0.lock();
        open.last += 1;
        let upload = Upload(open.last);
        let hasher = ArtifactHasher::default();
        open.all.insert(upload, State { by, until, hasher, size: 0, blob: None, submitted: 0, written: 0 });
        upload
    }

    /// The next piece, on its way to the file.
    pub(super) fn submit(&self, upload: Upload, piece: Vec<u8>) -> Result<Step, StoreError> {
        let (blob, number) = {
            let mut open = self.0.lock();
            let state = open.all.get_mut(&upload).ok_or_else(no_upload)?;
            check_piece(state.size, piece.len())?;
            state.must_be_written()?;
            state.hasher.update(&piece);
            state.size += piece.len() as u64;
            state.submitted += 1;
            (state.blob, state.submitted - 1)
        };
        Ok(Step::Piece { blob, number, piece: Piece::new(piece) })
    }

    pub(super) fn written(&self, upload: Upload, blob: i64) {
        if let Some(state) = self.0.lock().all.get_mut(&upload) {
            state.written += 1;
            state.blob = Some(blob);
        }
    }

    /// Ends an upload, if all of it is written.
    pub(super) fn end(&self, upload: Upload, media_type: Arc<str>) -> Result<(Step, Stored), StoreError> {
        let mut open = self.0.lock();
        open.all.get(&upload).ok_or_else(no_upload)?.must_be_written()?;
        let State { by, until, hasher, size, blob, .. } = open.all.remove(&upload).ok_or_else(no_upload)?;
        let stored = Stored { id: hasher.finish(), size };
        Ok((Step::Finish { blob, stored, media_type, by, until }, stored))
    }

    /// Gives an upload up; returns what there is of it.
    pub(super) fn abandon(&self, upload: Upload) -> Option<Step> {
        let blob = self.0.lock().all.remove(&upload)?.blob?;
        Some(Step::Abandon { blob })
    }
}

impl State {
    fn must_be_written(&self) -> Result<(), StoreError> {
        if self.written == self.submitted {
            return Ok(());
        }
        Err(StoreError::Invalid("a piece of the upload before this was not written; abandon it".to_owned()))
    }
}
