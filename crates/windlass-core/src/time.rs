//! Time: instants that are recorded, durations that are measured, and the clock both come from.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// A recorded instant: microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates: a huge delay means "never", not a wrapped instant in the past.
    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

/// The runtime's only source of time. One implementation is the machine's clock, another a test's virtual one.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, for instants that are recorded. May jump.
    fn now(&self) -> Timestamp;

    /// A monotonic reading in nanoseconds from an arbitrary start, for durations.
    fn ticks(&self) -> u64;

    /// Resolves once `duration` has passed on the monotonic clock. Dropping it cancels the timer.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Where a call's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Nanoseconds spent waiting for permits, keys, its turn in a batch, retry delays and settlements.
    pub queued: u64,
    /// Nanoseconds spent in attempts.
    pub running: u64,
    /// Nanoseconds from being asked to having an outcome. Never less than the other two together.
    pub total: u64,
}
