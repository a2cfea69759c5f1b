//! Bytes too large for a row of their own kind: artifacts, and payloads out of line. Content is kept once, under its
//! digest, in pieces that are compressed one by one.
//!
//! A blob lives as long as a run refers to it or a claim on it has not ended. References are rows, written with the record
//! that uses them; only the writer deletes. Nothing here decides on its own that something can go: a blob that nobody
//! holds becomes a left-over, like an upload whose process died, and left-overs are cleared piece by piece.

mod access;
mod pack;
mod payload;
mod purge;
mod refer;
mod store;
mod upload;

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::limits;
use windlass_core::store::{ArtifactHasher, ArtifactId, Swept};
use windlass_core::time::Timestamp;

use super::sum;

pub(super) use payload::{Payload, keep, read as read_payload};
pub(super) use purge::unreference_run;
pub(super) use refer::{Refers, check, refer};
pub(super) use store::tidy;
pub(super) use upload::{Done, Step, Uploads, work};

/// - `blobs.digest` is the content's name, and missing while the content is not, or no longer, all there: then `opening`
///   says under which opening of the file it is being uploaded, zero if by nobody any more. Such rows are left-overs once
///   that opening is over.
/// - `blobs.media_type` is what an artifact was said to be when it was uploaded first.
/// - `pieces.length` is the length before compression; a body of that length is not compressed.
/// - `refs.run` is `runs.id`. `refs.scope` is to whom the reference shows the blob as an artifact: a session, or a family of
///   runs. Nothing for payloads out of line, which are nobody's to ask for.
/// - `claims` keep what nobody refers to yet, or did until a moment ago, until a time.
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

/// What version 8 added. The checksums of rows that are sound cover it, too.
pub(super) const MEDIA_TYPES: &str = "
ALTER TABLE blobs ADD COLUMN media_type TEXT;
UPDATE blobs SET sum = windlass_sum(digest, size, opening, media_type) WHERE sum = windlass_sum(digest, size, opening);
";

/// Under which opening a blob stands that nobody uploads any more.
const NOBODY: i64 = 0;

const FIND: &str = "SELECT id FROM blobs WHERE digest = ?1";

/// The content under this name, if all of it is there.
fn find(connection: &Connection, artifact: &ArtifactId) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached(FIND)?.query_row([artifact.as_bytes()], |row| row.get(0)).optional()
}

fn insert_piece(connection: &Connection, blob: i64, number: i64, piece: &pack::Piece) -> rusqlite::Result<()> {
    let sql = "INSERT INTO pieces (blob, number, length, body, sum)
               VALUES (?1, ?2, ?3, ?4, windlass_sum(?1, ?2, ?3, ?4))";
    connection.prepare_cached(sql)?.execute(params![blob, number, piece.length, piece.body])?;
    Ok(())
}

/// Says that a run refers to a blob: `scope` is to whom that shows it, nothing for a payload.
pub(super) fn reference(connection: &Connection, run: i64, blob: i64, scope: Option<&str>) -> rusqlite::Result<()> {
    let sql = "INSERT INTO refs (run, blob, scope, sum) VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))
               ON CONFLICT (run, blob) DO UPDATE SET scope = coalesce(scope, excluded.scope)";
    connection.prepare_cached(sql)?.execute(params![run, blob, scope])?;
    Ok(())
}

const PIECES: &str = "SELECT blob, number, length, body, sum FROM pieces
    WHERE blob = ?1 AND number BETWEEN ?2 AND ?3 ORDER BY number";

/// The pieces from `first` to `last`, put together.
fn stretch(connection: &Connection, blob: i64, first: i64, last: i64) -> rusqlite::Result<Vec<u8>> {
    let mut statement = connection.prepare_cached(PIECES)?;
    let mut rows = statement.query([blob, first, last])?;
    let mut bytes = Vec::new();
    while let Some(row) = rows.next()? {
        if !sum::is_sound(row, 4)? {
            return Err(pack::broken(format!("piece {} of content {blob} is damaged", row.get::<_, i64>(1)?)));
        }
        pack::unpack(row.get_ref(3)?.as_blob()?, row.get(2)?, &mut bytes)?;
    }
    Ok(bytes)
}

const ABOUT: &str = "SELECT digest, size, opening, media_type, sum FROM blobs WHERE id = ?1";

/// How many bytes it has, and what it was said to be.
fn about(connection: &Connection, blob: i64) -> rusqlite::Result<(u64, Option<Arc<str>>)> {
    let mut statement = connection.prepare_cached(ABOUT)?;
    statement.query_row([blob], |row| match sum::is_sound(row, 4)? {
        true => Ok((u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0), row.get(3)?)),
        false => Err(pack::broken(format!("the row of content {blob} is damaged"))),
    })
}

/// `length` bytes from `offset` on, at most a piece of them.
fn read_at(connection: &Connection, blob: i64, offset: u64, length: usize) -> rusqlite::Result<Vec<u8>> {
    let full = limits::ARTIFACT_PIECE;
    let left = usize::try_from(about(connection, blob)?.0.saturating_sub(offset)).unwrap_or(usize::MAX);
    let length = length.min(full).min(left);
    if length == 0 {
        return Ok(Vec::new());
    }
    let first = i64::try_from(offset / full as u64).unwrap_or(i64::MAX);
    let skip = usize::try_from(offset % full as u64).unwrap_or(full);
    let needs_next = skip + length > full;
    let mut bytes = stretch(connection, blob, first, first.saturating_add(i64::from(needs_next)))?;
    if bytes.len() < skip + length {
        return Err(pack::broken("pieces are missing".to_owned()));
    }
    bytes.drain(..skip);
    bytes.truncate(length);
    Ok(bytes)
}

/// Keeps a blob until then, although nobody may refer to it.
fn claim(connection: &Connection, blob: i64, holder: &str, until: Timestamp) -> rusqlite::Result<()> {
    let sql = "INSERT INTO claims (blob, holder, until, sum) VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))
               ON CONFLICT (blob, holder) DO UPDATE SET until = max(until, excluded.until)";
    connection.prepare_cached(sql)?.execute(params![blob, holder, until.as_micros()])?;
    Ok(())
}

const LOOSEN: &str = "UPDATE blobs SET digest = NULL, opening = ?2
    WHERE id = ?1 AND digest IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM refs WHERE blob = ?1) AND NOT EXISTS (SELECT 1 FROM claims WHERE blob = ?1)";

/// Makes a blob that nobody holds a left-over: from now on nobody finds it.
fn loosen(connection: &Connection, blob: i64) -> rusqlite::Result<()> {
    connection.prepare_cached(LOOSEN)?.execute([blob, NOBODY])?;
    Ok(())
}

const ENDED: &str = "SELECT blob, holder FROM claims WHERE until <= ?1 ORDER BY until LIMIT ?2";

/// Collects a slice of what nobody needs any more: claims that have ended, then left-overs.
pub(super) fn sweep(connection: &Connection, now: Timestamp, opening: i64, limit: usize) -> rusqlite::Result<Swept> {
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(ENDED)?;
    let ended: Vec<(i64, String)> = statement
        .query_map([now.as_micros(), most], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (blob, holder) in &ended {
        connection
            .prepare_cached("DELETE FROM claims WHERE blob = ?1 AND holder = ?2")?
            .execute(params![blob, holder])?;
        loosen(connection, *blob)?;
    }
    let mut swept = clear(connection, opening, limit)?;
    swept.more |= ended.len() >= limit;
    Ok(swept)
}

/// Whether there is anything to collect.
pub(super) fn is_due(connection: &Connection, now: Timestamp, opening: i64) -> rusqlite::Result<bool> {
    let ended = connection.prepare_cached(ENDED)?.exists([now.as_micros(), 1])?;
    Ok(ended || left_over(connection, opening)?.is_some())
}

const LEFT: &str = "SELECT id FROM blobs WHERE digest IS NULL AND opening < ?1 LIMIT 1";

/// A left-over of an earlier opening, or of content that nobody holds.
fn left_over(connection: &Connection, opening: i64) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached(LEFT)?.query_row([opening], |row| row.get(0)).optional()
}

const CLEAR: &str = "DELETE FROM pieces
    WHERE blob = ?1 AND number IN (SELECT number FROM pieces WHERE blob = ?1 ORDER BY number LIMIT ?2)";

/// Clears left-overs, at most so many pieces.
fn clear(connection: &Connection, opening: i64, limit: usize) -> rusqlite::Result<Swept> {
    let mut swept = Swept::default();
    let mut left = limit;
    while let Some(blob) = left_over(connection, opening)? {
        if left == 0 {
            swept.more = true;
            break;
        }
        let most = i64::try_from(left).unwrap_or(i64::MAX);
        let cleared = connection.prepare_cached(CLEAR)?.execute([blob, most])?;
        if cleared < left {
            connection.prepare_cached("DELETE FROM blobs WHERE id = ?1")?.execute([blob])?;
            swept.collected += 1;
        }
        // A blob costs something, however small it is.
        left = left.saturating_sub(cleared.max(1));
    }
    Ok(swept)
}

/// Content that is not what its name says, by that name, with what is wrong. Reads all of it, a piece at a time.
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
            (_, Ok(_)) => "is not what its name says".to_owned(),
            (_, Err(error)) => format!("cannot be read: {error}"),
        };
        found.push((shown, problem));
    }
    Ok(found)
}

/// The name of what the pieces of a blob are together, and how much it is.
fn digest(connection: &Connection, blob: i64) -> rusqlite::Result<(ArtifactId, u64)> {
    let (mut hasher, mut size, mut after) = (ArtifactHasher::default(), 0, -1);
    let mut next = connection.prepare_cached("SELECT min(number) FROM pieces WHERE blob = ?1 AND number > ?2")?;
    while let Some(number) = next.query_row([blob, after], |row| row.get::<_, Option<i64>>(0))? {
        let piece = stretch(connection, blob, number, number)?;
        hasher.update(&piece);
        size += piece.len() as u64;
        after = number;
    }
    Ok((hasher.finish(), size))
}

#[cfg(test)]
mod tests;
