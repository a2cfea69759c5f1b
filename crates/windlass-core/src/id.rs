//! Identifiers of runs, workers and tools.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::time::Timestamp;

/// Identifies one run permanently. Sorts by the time the run was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Uuid);

impl RunId {
    /// The id as 16 bytes, for stores.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The id that a store kept as bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RunId {
    type Err = uuid::Error;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Uuid::from_str(s).map(Self)
    }
}

/// Identifies one worker: a runtime that drives runs. The default means "no worker".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

impl WorkerId {
    /// The worker that a store kept under this number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number, for stores.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The stable identity of a tool, used by the journal, by grants and by calls by id. A tool may be renamed; its id
/// stays.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolId(Arc<str>);

impl ToolId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ToolId {
    pub(crate) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }
}

impl std::borrow::Borrow<str> for ToolId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<S: Into<Arc<str>>> From<S> for ToolId {
    fn from(s: S) -> Self {
        Self(s.into())
    }
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Generates run ids: version 7 UUIDs from the runtime's clock and a seeded generator. A simulation repeats exactly,
/// and an ordinary process pays for entropy once, not once a run.
pub(crate) struct Mint(Mutex<u128>);

impl Mint {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Mutex::new(u128::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1))
    }

    pub(crate) fn from_entropy() -> Self {
        Self(Mutex::new(Uuid::new_v4().as_u128() | 1))
    }

    pub(crate) fn run(&self, now: Timestamp) -> RunId {
        // PCG-style: a 128-bit congruential state, its high half folded into the ten random bytes.
        let bits = {
            let mut state = self.0.lock();
            *state = state.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(0x5851_f42d_4c95_7f2d);
            *state ^ (*state >> 64)
        };
        let bytes = bits.to_le_bytes();
        let mut random = [0u8; 10];
        random.copy_from_slice(&bytes[..10]);
        at(now, &random)
    }

    pub(crate) fn worker(&self) -> WorkerId {
        let bytes = self.run(Timestamp::default()).0.as_u128() as u64;
        // Zero means "no worker".
        WorkerId(bytes | 1)
    }
}

impl RunId {
    /// The id of a run that another one starts. It is the same whenever it is started from the same operation.
    pub(crate) fn derived(from: &str, now: Timestamp) -> Self {
        let hash = blake3::hash(from.as_bytes());
        let mut random = [0u8; 10];
        random.copy_from_slice(&hash.as_bytes()[..10]);
        at(now, &random)
    }
}

fn at(now: Timestamp, random: &[u8; 10]) -> RunId {
    let millis = u64::try_from(now.as_micros() / 1_000).unwrap_or(0);
    RunId(uuid::Builder::from_unix_timestamp_millis(millis, random).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_mints_the_same_ids_again() {
        let ids = |seed| {
            let mint = Mint::seeded(seed);
            (0..4).map(|_| mint.run(Timestamp::from_micros(1_000))).collect::<Vec<_>>()
        };
        assert_eq!(ids(7), ids(7));
        assert_ne!(ids(7), ids(8));
        let mut distinct = ids(7);
        distinct.dedup();
        assert_eq!(distinct.len(), 4);
    }
}
