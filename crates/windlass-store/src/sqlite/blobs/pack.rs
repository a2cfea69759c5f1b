//! Pieces of content, compressed where that helps. Done by whoever submits: the writer is the one thread everybody waits
//! for.

use rusqlite::types::Type;
use windlass_core::limits;

/// One piece as the file has it.
#[derive(Debug)]
pub(in crate::sqlite) struct Piece {
    /// Before compression.
    pub(super) length: u32,
    /// Compressed if it is shorter than that.
    pub(super) body: Vec<u8>,
}

impl Piece {
    /// `bytes` is at most a piece.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let compressed = lz4_flex::block::compress(&bytes);
        let body = if compressed.len() < bytes.len() { compressed } else { bytes };
        Self { length, body }
    }
}

/// Puts a piece behind `bytes` as it was before it was packed.
pub(super) fn unpack(body: &[u8], length: u32, bytes: &mut Vec<u8>) -> rusqlite::Result<()> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if body.len() == length {
        bytes.extend_from_slice(body);
        return Ok(());
    }
    if length > limits::ARTIFACT_PIECE {
        return Err(broken(format!("a piece of {length} bytes is longer than any")));
    }
    let unpacked =
        lz4_flex::block::decompress(body, length).map_err(|error| broken(format!("a piece is damaged: {error}")))?;
    bytes.extend_from_slice(&unpacked);
    Ok(())
}

pub(super) fn broken(problem: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(1, Type::Blob, problem.into())
}

#[cfg(test)]
mod tests {
    use windlass_core::store::ArtifactId;

    use super::*;

    #[test]
    fn l16_a_piece_is_compressed_if_that_helps_and_comes_back_as_it_was() {
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
    fn l16_a_damaged_piece_is_said_to_be() {
        let piece = Piece::new(vec![7; 1_000]);
        for (body, length) in [(&piece.body[..3], 1_000), (&piece.body[..], 999), (&piece.body[..], u32::MAX)] {
            let mut bytes = Vec::new();
            assert!(unpack(body, length, &mut bytes).is_err(), "{length}");
        }
    }
}
