//! Payloads out of line: values of records that fit in memory and are too large for a row.

use rusqlite::{Connection, params};
use windlass_core::limits;
use windlass_core::store::ArtifactId;

use super::pack::{Piece, broken};
use super::{find, insert_piece, reference, stretch};

/// Content that fits in memory, named and compressed.
#[derive(Debug)]
pub(in crate::sqlite) struct Payload {
    id: ArtifactId,
    size: i64,
    pieces: Vec<Piece>,
}

impl Payload {
    pub(in crate::sqlite) fn new(bytes: &[u8]) -> Self {
        let pieces = bytes.chunks(limits::ARTIFACT_PIECE).map(|piece| Piece::new(piece.to_vec())).collect();
        Self { id: ArtifactId::of(bytes), size: i64::try_from(bytes.len()).unwrap_or(i64::MAX), pieces }
    }

    /// What it takes, compressed.
    pub(in crate::sqlite) fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.body.len()).sum()
    }

    /// Its name.
    pub(in crate::sqlite) fn id(&self) -> ArtifactId {
        self.id
    }
}

/// Keeps what the records or messages of a run have out of line.
pub(in crate::sqlite) fn keep(connection: &Connection, run: i64, payloads: &[Payload]) -> rusqlite::Result<()> {
    for payload in payloads {
        let blob = put(connection, payload)?;
        reference(connection, run, blob, None)?;
    }
    Ok(())
}

/// Keeps content that fits in memory, inside the writer's transaction; the caller refers to it in the same one. Content
/// that is there already is not written again.
pub(super) fn put(connection: &Connection, payload: &Payload) -> rusqlite::Result<i64> {
    if let Some(blob) = find(connection, &payload.id)? {
        return Ok(blob);
    }
    connection
        .prepare_cached("INSERT INTO blobs (digest, size, sum) VALUES (?1, ?2, windlass_sum(?1, ?2, NULL, NULL))")?
        .execute(params![payload.id.as_bytes(), payload.size])?;
    let blob = connection.last_insert_rowid();
    for (number, piece) in payload.pieces.iter().enumerate() {
        insert_piece(connection, blob, i64::try_from(number).unwrap_or(i64::MAX), piece)?;
    }
    Ok(blob)
}

/// All of the content under this name, whoever asks; for what is known to fit in memory. What is not what its name says is
/// damaged.
pub(in crate::sqlite) fn read(connection: &Connection, artifact: &ArtifactId) -> rusqlite::Result<Option<Vec<u8>>> {
    let Some(blob) = find(connection, artifact)? else { return Ok(None) };
    let bytes = stretch(connection, blob, 0, i64::MAX)?;
    if ArtifactId::of(&bytes) == *artifact { Ok(Some(bytes)) } else { Err(broken(format!("{artifact} is damaged"))) }
}
