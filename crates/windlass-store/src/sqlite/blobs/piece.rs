//! Pieces of content, compressed where that makes them smaller. Compressed on the submitting thread, because every run
//! waits for the writer.

use rusqlite::types::Type;
use windlass_core::limits;

/// A piece as it is stored.
#[derive(Debug)]
pub(in crate::sqlite) struct Piece {
    /// Length before compression.
    pub(super) length: u32,
    /// Compressed if it is shorter than `length`.
    pub(super) body: Vec<u8>,
}

impl Piece {
    /// `bytes` is at most [`limits::ARTIFACT_PIECE`] long.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let compressed = lz4_flex::block::compress(&bytes);
        let body = if compressed.len() < bytes.len() { compressed } else { bytes };
        Self { length, body }
    }
}

/// Appends the decompressed piece to `bytes`.
pub(super) fn unpack(body: &[u8], length: u32, bytes: &mut Vec<u8>) -> rusqlite::Result<()> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if body.len() == length {
        bytes.extend_from_slice(body);
        return Ok(());
    }
    if length > limits::ARTIFACT_PIECE {
        return Err(damaged_blob(format!("a piece of {length} bytes is longer than the limit")));
    }
    let unpacked = lz4_flex::block::decompress(body, length)
        .map_err(|error| damaged_blob(format!("a piece is damaged: {error}")))?;
    bytes.extend_from_slice(&unpacked);
    Ok(())
}

pub(super) fn damaged_blob(problem: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(1, Type::Blob, problem.into())
}

#[cfg(test)]
mod tests {
    use windlass_core::store::ArtifactId;

    use super::*;

    #[test]
    fn l16_a_piece_is_compressed_if_that_makes_it_smaller_and_unpacks_to_the_same_bytes() {
        let noise: Vec<u8> = ArtifactId::of(b"noise").as_bytes().to_vec();
        for (bytes, smaller) in [(vec![7; limits::ARTIFACT_PIECE], true), (noise, false), (vec![1], false)] {
            let piece = Piece::new(bytes.clone());
            assert_eq!(piece.body.len() < bytes.len(), smaller);
            let mut back = vec![9];
            unpack(&piece.body, piece.length, &mut back).unwrap();
            assert_eq!(back[1..], bytes);
        }
    }

    #[test]
    fn l16_unpacking_a_damaged_piece_is_an_error() {
        let piece = Piece::new(vec![7; 1_000]);
        for (body, length) in [(&piece.body[..3], 1_000), (&piece.body[..], 999), (&piece.body[..], u32::MAX)] {
            let mut bytes = Vec::new();
            assert!(unpack(body, length, &mut bytes).is_err(), "{length}");
        }
    }
}
