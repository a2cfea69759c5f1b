//! Content that is too large for a row: artifacts, and large values of records and messages ("payloads"). Content is
//! stored once, under its digest, in pieces that are compressed one by one.
//!
//! A blob is kept as long as a run or a session file refers to it or an unexpired claim holds it. References are rows that are written
//! with the record that uses them; only the writer deletes blobs. A blob without references and claims becomes an
//! orphan, as does an upload whose process died, and orphans are deleted piece by piece.

mod access;
mod files;
mod payload;
mod piece;
mod purge;
mod references;
mod store;
mod upload;

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::limits;
use windlass_core::store::{ArtifactHasher, ArtifactId, Swept};
use windlass_core::time::Timestamp;

use super::checksum;

pub(super) use files::{readable, release};
pub(super) use payload::{Payload, keep, read as read_payload};
pub(super) use purge::unreference_run;
pub(super) use references::{ReferenceRequest, check, refer};
pub(super) use store::schedule_orphan_cleanup;
pub(super) use upload::{BlobJob, BlobOutcome, Uploads, work};

/// - `blobs.digest` is the name of the content, and null while the content is not, or no longer, complete. Then
///   `opening` is the opening of the file in which it is being uploaded, or zero. Such rows are orphans once that
///   opening is over.
/// - `blobs.media_type` is the media type of an artifact, from its first upload.
/// - `pieces.length` is the length before compression; a body of that length is not compressed.
/// - `refs.run` is `runs.id`. `refs.scope` is the session or the family of runs that may read the blob as an artifact.
///   It is null for payloads, which cannot be read as artifacts.
/// - `claims` keep blobs until a time although no run refers to them yet, or any more.
pub(super) const DDL: &str = "
CREATE TABLE blobs (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    digest  BLOB UNIQUE,
    size    INTEGER NOT NULL,
    opening INTEGER,
    CHECK ((digest IS NULL) = (opening IS NOT NULL))
) STRICT;
CREATE INDEX blobs_unfinished ON blobs (opening) WHERE digest IS NULL;

CREATE TABLE pieces (
    blob   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    length INTEGER NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (blob, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE refs (
    run   INTEGER NOT NULL,
    blob  INTEGER NOT NULL,
    scope TEXT,
    PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX refs_by_blob ON refs (blob, scope);

CREATE TABLE claims (
    blob   INTEGER NOT NULL,
    holder TEXT NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (blob, holder)
) STRICT, WITHOUT ROWID;
CREATE INDEX claims_by_end ON claims (until);
";

/// The column that version 8 added. The checksums of intact rows now cover it too.
pub(super) const MEDIA_TYPES: &str = "
ALTER TABLE blobs ADD COLUMN media_type TEXT;
UPDATE blobs SET sum = windlass_sum(digest, size, opening, media_type) WHERE sum = windlass_sum(digest, size, opening);
";

/// The opening of an incomplete blob that is not being uploaded.
const NO_OPENING: i64 = 0;

const FIND: &str = "SELECT id FROM blobs WHERE digest = ?1";

/// The complete content with this name.
fn find(connection: &Connection, artifact: &ArtifactId) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached(FIND)?.query_row([artifact.as_bytes()], |row| row.get(0)).optional()
}

fn insert_piece(connection: &Connection, blob: i64, number: i64, piece: &piece::Piece) -> rusqlite::Result<()> {
    let sql = "INSERT INTO pieces (blob, number, length, body, sum)
               VALUES (?1, ?2, ?3, ?4, windlass_sum(?1, ?2, ?3, ?4))";
    connection.prepare_cached(sql)?.execute(params![blob, number, piece.length, piece.body])?;
    Ok(())
}

/// Adds a reference of a run to a blob. `scope` is who may read it as an artifact; `None` for a payload.
pub(super) fn reference(connection: &Connection, run: i64, blob: i64, scope: Option<&str>) -> rusqlite::Result<()> {
    let sql = "INSERT INTO refs (run, blob, scope, sum) VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))
               ON CONFLICT (run, blob) DO UPDATE SET scope = coalesce(scope, excluded.scope)";
    connection.prepare_cached(sql)?.execute(params![run, blob, scope])?;
    Ok(())
}

const PIECES: &str = "SELECT blob, number, length, body, sum FROM pieces
    WHERE blob = ?1 AND number BETWEEN ?2 AND ?3 ORDER BY number";

/// The content of the pieces from `first` to `last`.
fn read_pieces(connection: &Connection, blob: i64, first: i64, last: i64) -> rusqlite::Result<Vec<u8>> {
    let mut statement = connection.prepare_cached(PIECES)?;
    let mut rows = statement.query([blob, first, last])?;
    let mut bytes = Vec::new();
    while let Some(row) = rows.next()? {
        if !checksum::is_intact(row, 4)? {
            return Err(piece::damaged_blob(format!("piece {} of content {blob} is damaged", row.get::<_, i64>(1)?)));
        }
        piece::unpack(row.get_ref(3)?.as_blob()?, row.get(2)?, &mut bytes)?;
    }
    Ok(bytes)
}

const METADATA: &str = "SELECT digest, size, opening, media_type, sum FROM blobs WHERE id = ?1";

/// The size and the media type of a blob.
fn metadata(connection: &Connection, blob: i64) -> rusqlite::Result<(u64, Option<Arc<str>>)> {
    let mut statement = connection.prepare_cached(METADATA)?;
    statement.query_row([blob], |row| match checksum::is_intact(row, 4)? {
        true => Ok((u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0), row.get(3)?)),
        false => Err(piece::damaged_blob(format!("the row of content {blob} is damaged"))),
    })
}

/// Reads `length` bytes from `offset`, at most the length of a piece.
fn read_at(connection: &Connection, blob: i64, offset: u64, length: usize) -> rusqlite::Result<Vec<u8>> {
    let full = limits::ARTIFACT_PIECE;
    let left = usize::try_from(metadata(connection, blob)?.0.saturating_sub(offset)).unwrap_or(usize::MAX);
    let length = length.min(full).min(left);
    if length == 0 {
        return Ok(Vec::new());
    }
    let first = i64::try_from(offset / full as u64).unwrap_or(i64::MAX);
    let skip = usize::try_from(offset % full as u64).unwrap_or(full);
    let needs_next = skip + length > full;
    let mut bytes = read_pieces(connection, blob, first, first.saturating_add(i64::from(needs_next)))?;
    if bytes.len() < skip + length {
        return Err(piece::damaged_blob("pieces are missing".to_owned()));
    }
    bytes.drain(..skip);
    bytes.truncate(length);
    Ok(bytes)
}

/// Keeps a blob until then, even if no run refers to it.
fn claim(connection: &Connection, blob: i64, holder: &str, until: Timestamp) -> rusqlite::Result<()> {
    let sql = "INSERT INTO claims (blob, holder, until, sum) VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))
               ON CONFLICT (blob, holder) DO UPDATE SET until = max(until, excluded.until)";
    connection.prepare_cached(sql)?.execute(params![blob, holder, until.as_micros()])?;
    Ok(())
}

const ORPHAN: &str = "UPDATE blobs SET digest = NULL, opening = ?2
    WHERE id = ?1 AND digest IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM refs WHERE blob = ?1) AND NOT EXISTS (SELECT 1 FROM claims WHERE blob = ?1)
        AND NOT EXISTS (SELECT 1 FROM files WHERE blob = ?1)";

/// Makes a blob an orphan if it has no references and no claims, and is in no session file. From then on it is not found any more.
fn orphan(connection: &Connection, blob: i64) -> rusqlite::Result<()> {
    connection.prepare_cached(ORPHAN)?.execute([blob, NO_OPENING])?;
    Ok(())
}

const EXPIRED_CLAIMS: &str = "SELECT blob, holder FROM claims WHERE until <= ?1 ORDER BY until LIMIT ?2";

/// Deletes a slice of what is no longer needed: expired claims, then orphans.
pub(super) fn sweep(connection: &Connection, now: Timestamp, opening: i64, limit: usize) -> rusqlite::Result<Swept> {
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(EXPIRED_CLAIMS)?;
    let ended: Vec<(i64, String)> = statement
        .query_map([now.as_micros(), most], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (blob, holder) in &ended {
        connection
            .prepare_cached("DELETE FROM claims WHERE blob = ?1 AND holder = ?2")?
            .execute(params![blob, holder])?;
        orphan(connection, *blob)?;
    }
    let mut swept = delete_orphans(connection, opening, limit)?;
    swept.more |= ended.len() >= limit;
    Ok(swept)
}

/// Whether there is anything to delete.
pub(super) fn is_due(connection: &Connection, now: Timestamp, opening: i64) -> rusqlite::Result<bool> {
    let ended = connection.prepare_cached(EXPIRED_CLAIMS)?.exists([now.as_micros(), 1])?;
    Ok(ended || find_orphan(connection, opening)?.is_some())
}

const FIND_ORPHAN: &str = "SELECT id FROM blobs WHERE digest IS NULL AND opening < ?1 LIMIT 1";

/// An orphan: an upload of an earlier opening, or content without references and claims.
fn find_orphan(connection: &Connection, opening: i64) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached(FIND_ORPHAN)?.query_row([opening], |row| row.get(0)).optional()
}

const DELETE_PIECES: &str = "DELETE FROM pieces
    WHERE blob = ?1 AND number IN (SELECT number FROM pieces WHERE blob = ?1 ORDER BY number LIMIT ?2)";

/// Deletes orphans, at most `limit` pieces.
fn delete_orphans(connection: &Connection, opening: i64, limit: usize) -> rusqlite::Result<Swept> {
    let mut swept = Swept::default();
    let mut left = limit;
    while let Some(blob) = find_orphan(connection, opening)? {
        if left == 0 {
            swept.more = true;
            break;
        }
        let most = i64::try_from(left).unwrap_or(i64::MAX);
        let cleared = connection.prepare_cached(DELETE_PIECES)?.execute([blob, most])?;
        if cleared < left {
            connection.prepare_cached("DELETE FROM blobs WHERE id = ?1")?.execute([blob])?;
            swept.collected += 1;
        }
        // Every blob counts at least as one piece.
        left = left.saturating_sub(cleared.max(1));
    }
    Ok(swept)
}

/// Content that does not match its digest: its name and the problem. Reads all content, a piece at a time.
pub(super) fn damaged(connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut statement = connection.prepare("SELECT id, digest, size FROM blobs WHERE digest IS NOT NULL")?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (blob, stated): (i64, i64) = (row.get(0)?, row.get(2)?);
        let name = row.get::<_, [u8; 32]>(1).map(ArtifactId::from_bytes);
        let shown = name.as_ref().map_or_else(|_| blob.to_string(), ToString::to_string);
        let problem = match (name, digest(connection, blob)) {
            (Ok(name), Ok((digest, size))) if digest == name && size == u64::try_from(stated).unwrap_or(0) => continue,
            (_, Ok(_)) => "does not match its digest".to_owned(),
            (_, Err(error)) => format!("cannot be read: {error}"),
        };
        found.push((shown, problem));
    }
    Ok(found)
}

/// The digest and the size of a blob's pieces.
fn digest(connection: &Connection, blob: i64) -> rusqlite::Result<(ArtifactId, u64)> {
    let (mut hasher, mut size, mut after) = (ArtifactHasher::default(), 0, -1);
    let mut next = connection.prepare_cached("SELECT min(number) FROM pieces WHERE blob = ?1 AND number > ?2")?;
    while let Some(number) = next.query_row([blob, after], |row| row.get::<_, Option<i64>>(0))? {
        let piece = read_pieces(connection, blob, number, number)?;
        hasher.update(&piece);
        size += piece.len() as u64;
        after = number;
    }
    Ok((hasher.finish(), size))
}

#[cfg(test)]
mod tests;
