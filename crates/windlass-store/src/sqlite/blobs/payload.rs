//! Payloads out of line: values of records that fit in memory and are too large for a row.

use rusqlite::{Connection, params};
use windlass_core::limits;
use windlass_core::store::ArtifactId;

use super::pack::Piece;
use super::{find, insert_piece, stretch};

/// Content that fits in memory, named and compressed.
pub(in crate::sqlite) struct Packed {
    id: ArtifactId,
    size: i64,
    pieces: Vec<Piece>,
}

impl Packed {
    pub(in crate::sqlite) fn new(bytes: &[u8]) -> Self {
        let pieces = bytes.chunks(limits::ARTIFACT_PIECE).map(|piece| Piece::new(piece.to_vec())).collect();
        Self { id: ArtifactId::of(bytes), size: i64::try_from(bytes.len()).unwrap_or(i64::MAX), pieces }
    }

    /// Its name.
    pub(in crate::sqlite) fn id(&self) -> ArtifactId {
        self.id
    }
}

/// Keeps content that fits in memory, inside the writer's transaction; the caller refers to it in the same one. Content
/// that is there already is not written again.
pub(in crate::sqlite) fn put(connection: &Connection, packed: &Packed) -> rusqlite::Result<i64> {
    if let Some(blob) = find(connection, &packed.id)? {
        return Ok(blob);
    }
    connection
        .prepare_cached("INSERT INTO blobs (digest, size) VALUES (?1, ?2)")?
        .execute(params![packed.id.as_bytes(), packed.size])?;
    let blob = connection.last_insert_rowid();
    for (number, piece) in packed.pieces.iter().enumerate() {
        insert_piece(connection, blob, i64::try_from(number).unwrap_or(i64::MAX), piece)?;
    }
    Ok(blob)
}

/// All of the content under this name, whoever asks; for what is known to fit in memory.
pub(in crate::sqlite) fn read(connection: &Connection, artifact: &ArtifactId) -> rusqlite::Result<Option<Vec<u8>>> {
    let Some(blob) = find(connection, artifact)? else { return Ok(None) };
    stretch(connection, blob, 0, i64::MAX).map(Some)
}
