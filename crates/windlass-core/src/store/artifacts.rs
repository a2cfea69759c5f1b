//! The store's side of artifacts: bytes under the digest of what they are, streamed in and out in pieces.
//!
//! An artifact is kept as long as a run refers to it, or whoever uploaded it may still come to. Whether it may be read
//! depends on who asks, never on knowing its name: another session's content cannot be reached by guessing its digest.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::StoreError;
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

/// Names content by what it is: the same bytes have the same name wherever they come from. Printed as `b3:` and the 64
/// hexadecimal digits of their BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactId([u8; 32]);

impl ArtifactId {
    /// The name of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = ArtifactHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest, for stores.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name a store kept as bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Names content that comes in pieces.
#[derive(Clone, Default)]
pub struct ArtifactHasher(blake3::Hasher);

impl ArtifactHasher {
    /// The next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The name of everything so far.
    pub fn finish(&self) -> ArtifactId {
        ArtifactId(*self.0.finalize().as_bytes())
    }
}

/// How the name of an artifact begins: says which digest it is.
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

/// A text that names no artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no artifact: that is `b3:` and 64 hexadecimal digits")]
pub struct BadArtifactId(String);

impl FromStr for ArtifactId {
    type Err = BadArtifactId;

    fn from_str(text: &str) -> Result<Self, BadArtifactId> {
        let bad = || BadArtifactId(text.chars().take(80).collect());
        let digits = text.strip_prefix(PREFIX).ok_or_else(bad)?.as_bytes();
        // Upper case would be a second name for the same thing.
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
    /// The program that owns the store: it may read everything.
    Owner,
    /// A session: it may read what was uploaded for it and what its runs refer to.
    Session(Arc<str>),
    /// A run: it may read what it uploaded and what it, its session or the runs it spawned refer to; without a session,
    /// what its family refers to: the runs that spawned it, and all that those spawned.
    Run(RunId),
}

/// An upload in progress. Means nothing to another opening of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Upload(pub u64);

/// Content that is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub id: ArtifactId,
    /// How many bytes.
    pub size: u64,
}

/// What a [sweep](Artifacts::sweep) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Artifacts, and uploads that were given up, that are gone now.
    pub collected: u64,
    /// Whether there is more to collect already.
    pub more: bool,
}

/// Keeps artifacts. Part of a [`Store`](super::Store).
///
/// The contract, checked by `testing::store_suite`:
/// - an upload is not visible before it is finished, and survives the process from then on;
/// - what is finished is kept at least as long as its upload asked for, and as long as a run refers to it
///   ([`Change::Refer`](super::Change::Refer)), whoever else uploaded the same or let go of it;
/// - what nobody refers to or claims, and what a process that died left half uploaded, is collected by
///   [`sweep`](Artifacts::sweep);
/// - whoever may not read an artifact is told the same as if it were not there.
pub trait Artifacts: Send + Sync {
    /// Begins an upload. Once it is finished, its content is kept until `until` although nobody refers to it.
    fn begin(&self, by: Access, until: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>>;

    /// Adds a piece: [`limits::ARTIFACT_PIECE`] bytes, or fewer if it is the last one. Answered when it is written, which is
    /// what holds back whoever is faster than the disk. After an error, or if the future is dropped, the upload can only be
    /// abandoned.
    fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Ends an upload: the content has a name and is durable when this is answered. The media type is kept with content that
    /// has none yet: the same bytes that are uploaded again keep what they were first said to be.
    fn finish(&self, upload: Upload, media_type: Arc<str>) -> BoxFuture<'_, Result<Stored, StoreError>>;

    /// Gives an upload up. It is collected later.
    fn abandon(&self, upload: Upload);

    /// How many bytes an artifact has. [`StoreError::NoArtifact`] if it is not there for the caller.
    fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// What an artifact was said to be when it was uploaded first; nothing where that was not kept.
    /// [`StoreError::NoArtifact`] if it is not there for whoever asks.
    fn media_type(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<Option<Arc<str>>, StoreError>>;

    /// Bytes of an artifact from `offset` on: at most `length` and at most [`limits::ARTIFACT_PIECE`] of them, none beyond
    /// its end. [`StoreError::NoArtifact`] if it is not there for whoever asks.
    fn read(
        &self,
        artifact: ArtifactId,
        by: Access,
        offset: u64,
        length: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, StoreError>>;

    /// Collects what is not needed any more, a slice of about `limit` pieces at a time, so that nobody waits for long.
    fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>>;
}

/// Whether a piece may follow `size` bytes of an upload. Every store keeps pieces of one size, so that a place in the
/// content says which piece it is in.
pub fn check_piece(size: u64, piece: usize) -> Result<(), StoreError> {
    let full = limits::ARTIFACT_PIECE as u64;
    if piece == 0 || piece > limits::ARTIFACT_PIECE {
        let most = limits::ARTIFACT_PIECE;
        return Err(StoreError::Invalid(format!("a piece of {piece} bytes; a piece has 1 to {most} bytes")));
    }
    if !size.is_multiple_of(full) {
        return Err(StoreError::Invalid("another piece after one that was not full".to_owned()));
    }
    Ok(())
}

/// The error for an upload that is not, or no longer, in progress.
pub fn no_upload() -> StoreError {
    StoreError::Invalid("there is no such upload in progress; begin a new one".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l16_a_name_is_read_back_and_nothing_else_is_one() {
        let id = ArtifactId::of(b"windlass");
        let text = id.to_string();
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(serde_json::from_str::<ArtifactId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        let empty = "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(ArtifactId::of(b"").to_string(), empty, "the digest everybody else computes");
        for bad in ["", "b3:", "b3:00", &text[3..], &text[..66], &text.to_uppercase(), &format!("{text}0")] {
            assert!(bad.parse::<ArtifactId>().is_err(), "{bad}");
        }
        assert!(format!("b3:{}", "é".repeat(32)).parse::<ArtifactId>().is_err());
    }
}
