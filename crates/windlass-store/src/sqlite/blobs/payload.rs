//! Payloads: values of records and messages that fit into memory but are too large for a row.

use rusqlite::{Connection, params};
use windlass_core::limits;
use windlass_core::store::ArtifactId;

use super::piece::{Piece, damaged_blob};
use super::{find, insert_piece, read_pieces, reference};

/// Content that fits into memory, named and compressed.
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

    /// The compressed size.
    pub(in crate::sqlite) fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.body.len()).sum()
    }

    /// The name of the content.
    pub(in crate::sqlite) fn id(&self) -> ArtifactId {
        self.id
    }
}

/// Stores the payloads of a run's records or messages.
pub(in crate::sqlite) fn keep(connection: &Connection, run: i64, payloads: &[Payload]) -> rusqlite::Result<()> {
    for payload in payloads {
        let blob = put(connection, payload)?;
        reference(connection, run, blob, None)?;
    }
    Ok(())
}

/// Stores content within the writer's transaction; the caller adds a reference in the same one. Existing content is not
/// written again.
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

/// The complete content with this name, without an access check; for content that fits into memory. Fails if it does
/// not match its name.
pub(in crate::sqlite) fn read(connection: &Connection, artifact: &ArtifactId) -> rusqlite::Result<Option<Vec<u8>>> {
    let Some(blob) = find(connection, artifact)? else { return Ok(None) };
    let bytes = read_pieces(connection, blob, 0, i64::MAX)?;
    if ArtifactId::of(&bytes) == *artifact {
        Ok(Some(bytes))
    } else {
        Err(damaged_blob(format!("{artifact} is damaged")))
    }
}
