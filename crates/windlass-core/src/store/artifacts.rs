//! The store's side of artifacts: content addressed by its digest, uploaded and read in pieces.
//!
//! An artifact is kept for as long as a run refers to it, and until the time that its upload asked for. Whether it may
//! be read depends on the reader, never on knowing its id: guessing a digest does not reveal the content of another
//! session.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::StoreError;
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

/// Identifies content by its BLAKE3 digest: equal bytes have equal ids. Printed as `b3:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactId([u8; 32]);

impl ArtifactId {
    /// The id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = ArtifactHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest, for stores.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The id with this digest, for stores.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Computes the id of content that arrives in pieces.
#[derive(Clone, Default)]
pub struct ArtifactHasher(blake3::Hasher);

impl ArtifactHasher {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The id of all pieces so far.
    pub fn finish(&self) -> ArtifactId {
        ArtifactId(*self.0.finalize().as_bytes())
    }
}

/// Prefix of every id. It names the digest algorithm.
const PREFIX: &str = "b3:";

impl fmt::Display for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an artifact id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an artifact id (expected `b3:` and 64 hexadecimal digits)")]
pub struct BadArtifactId(String);

impl FromStr for ArtifactId {
    type Err = BadArtifactId;

    fn from_str(text: &str) -> Result<Self, BadArtifactId> {
        let bad = || BadArtifactId(text.chars().take(80).collect());
        let digits = text.strip_prefix(PREFIX).ok_or_else(bad)?.as_bytes();
        // Upper case would be a second id for the same content.
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(bad());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = (value(pair[0]).ok_or_else(bad)?, value(pair[1]).ok_or_else(bad)?);
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for ArtifactId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ArtifactId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// On whose behalf an artifact is stored or read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The program that owns the store. It may read everything.
    Owner,
    /// A session. It may read what was uploaded for it and what its runs refer to.
    Session(Arc<str>),
    /// A principal. It may read what was uploaded for it, and what the runs that act for it refer to; with a session,
    /// only what that session may read too. What it uploads for a session can be used by the runs of the session.
    Principal {
        /// Its name.
        name: Arc<str>,
        /// The session it reads or uploads for.
        session: Option<Arc<str>>,
    },
    /// A run. It may read what it uploaded, and what it, its session or the runs it spawned refer to. Without a session
    /// it may read what its family refers to: its ancestors, and all runs that those spawned.
    Run(RunId),
}

impl Access {
    /// The holders of what is uploaded on its behalf.
    pub fn holders(&self) -> Vec<Self> {
        match self {
            Self::Principal { name, session } => {
                let principal = Self::Principal { name: name.clone(), session: None };
                std::iter::once(principal).chain(session.clone().map(Self::Session)).collect()
            }
            other => vec![other.clone()],
        }
    }
}

/// An upload in progress. Valid only in the process that began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Upload(pub u64);

/// Content in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its id.
    pub id: ArtifactId,
    /// Its number of bytes.
    pub size: u64,
}

/// The result of a [sweep](Artifacts::sweep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of artifacts and abandoned uploads that were deleted.
    pub collected: u64,
    /// Whether more can be deleted now.
    pub more: bool,
}

/// The artifacts of a [`Store`](super::Store).
///
/// The contract, checked by `testing::store_suite`:
/// - an upload is not visible before it is finished, and survives the process from then on;
/// - finished content is kept at least until the time that its upload asked for, and for as long as a run refers to it
///   ([`Change::Refer`](super::Change::Refer)), whatever other uploaders of the same content do;
/// - [`sweep`](Artifacts::sweep) deletes content without references whose time has passed, and unfinished uploads of
///   processes that died;
/// - a reader without access gets the same answer as if the artifact did not exist.
pub trait Artifacts: Send + Sync {
    /// Begins an upload. Once finished, its content is kept until `until` even if no run refers to it.
    fn begin(&self, by: Access, until: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>>;

    /// Appends a piece: [`limits::ARTIFACT_PIECE`] bytes, or fewer if it is the last one. The future completes when the
    /// piece is written, which slows down a client that is faster than the disk. After an error, or if the future is
    /// dropped, the upload can only be abandoned.
    fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Finishes an upload. The content has an id and is durable when the future completes. The media type is kept only
    /// if the content has none yet: content that is uploaded again keeps its first media type.
    fn finish(&self, upload: Upload, media_type: Arc<str>) -> BoxFuture<'_, Result<Stored, StoreError>>;

    /// Gives up an upload. Its bytes are deleted later.
    fn abandon(&self, upload: Upload);

    /// The number of bytes of an artifact. [`StoreError::NoArtifact`] if it does not exist or the reader has no access.
    fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The media type that the first upload of an artifact stated; `None` if it was not kept.
    /// [`StoreError::NoArtifact`] if it does not exist or the reader has no access.
    fn media_type(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<Option<Arc<str>>, StoreError>>;

    /// Bytes of an artifact from `offset` on: at most `length`, at most [`limits::ARTIFACT_PIECE`], and none beyond its
    /// end. [`StoreError::NoArtifact`] if it does not exist or the reader has no access.
    fn read(
        &self,
        artifact: ArtifactId,
        by: Access,
        offset: u64,
        length: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, StoreError>>;

    /// Deletes what is no longer needed: about `limit` pieces per call, so that no other request waits long.
    fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>>;
}

/// Checks whether a piece may follow `size` bytes of an upload. All pieces except the last have the same size, so that
/// an offset determines the piece it is in.
pub fn check_piece(size: u64, piece: usize) -> Result<(), StoreError> {
    let full = limits::ARTIFACT_PIECE as u64;
    if piece == 0 || piece > limits::ARTIFACT_PIECE {
        let most = limits::ARTIFACT_PIECE;
        return Err(StoreError::Invalid(format!("a piece of {piece} bytes was sent; a piece has 1 to {most} bytes")));
    }
    if !size.is_multiple_of(full) {
        let problem = "a piece was sent after one that was not full; only the last piece may be smaller";
        return Err(StoreError::Invalid(problem.to_owned()));
    }
    Ok(())
}

/// The error for an upload that does not exist or is no longer in progress.
pub fn no_upload() -> StoreError {
    StoreError::Invalid("the upload is not in progress; begin a new one".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l16_an_artifact_id_is_parsed_back_and_other_texts_are_refused() {
        let id = ArtifactId::of(b"windlass");
        let text = id.to_string();
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(serde_json::from_str::<ArtifactId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        let empty = "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(ArtifactId::of(b"").to_string(), empty, "the digest that other BLAKE3 implementations compute");
        for bad in ["", "b3:", "b3:00", &text[3..], &text[..66], &text.to_uppercase(), &format!("{text}0")] {
            assert!(bad.parse::<ArtifactId>().is_err(), "{bad}");
        }
        assert!(format!("b3:{}", "é".repeat(32)).parse::<ArtifactId>().is_err());
    }
}
