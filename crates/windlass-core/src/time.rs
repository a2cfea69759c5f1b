//! Time: instants that are recorded, durations that are measured, and the clock that both come from.

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

    /// The time from `earlier` to this instant, or zero if this one is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates: a huge delay means "never", not an instant in the past.
    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// In UTC, to the second: `2026-09-21T14:13:20Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000_000);
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01. Years start in March here, so that the leap day is the last
/// day of a year and all eras of 400 years are alike.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let shifted = if month < 10 { month + 3 } else { month - 9 };
    let new_year = i64::from(shifted <= 2);
    (era * 400 + year + new_year, shifted, day - (153 * month + 2) / 5 + 1)
}

/// A duration for people, in its two largest units: `2 h 59 min`.
pub(crate) fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [("d", seconds / 86_400), ("h", seconds / 3_600 % 24), ("min", seconds / 60 % 60), ("s", seconds % 60)];
    let parts: Vec<String> = units
        .iter()
        .skip_while(|(_, count)| *count == 0)
        .take(2)
        .filter(|(_, count)| *count > 0)
        .map(|(unit, count)| format!("{count} {unit}"))
        .collect();
    if parts.is_empty() { format!("{} ms", duration.as_millis()) } else { parts.join(" ") }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

/// The runtime's only source of time. One implementation is the machine's clock, another a test's virtual one.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, for recorded instants. It may jump.
    fn now(&self) -> Timestamp;

    /// A monotonic reading in nanoseconds from an arbitrary start, for durations.
    fn ticks(&self) -> u64;

    /// Resolves once `duration` has passed on the monotonic clock. Dropping it cancels the timer.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// How the time of a call was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Nanoseconds spent waiting for permits, keys, the call's turn in a batch, retry delays and people.
    pub queued: u64,
    /// Nanoseconds spent in attempts, as far as recorded: the duration of an attempt whose process died is not known.
    /// For a durable body, the time from its entry to its end; its operations have times of their own.
    pub running: u64,
    /// Nanoseconds from the request to the outcome. Never less than the sum of the other two.
    pub total: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w12_instants_are_written_in_utc_to_the_second() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_790_000_000, "2026-09-21T14:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp::from_micros(seconds * 1_000_000).to_string(), text);
        }
        assert!(!Timestamp::from_micros(i64::MAX).to_string().is_empty() && i64::MIN < 0);
    }

    #[test]
    fn w12_durations_are_written_in_their_two_largest_units() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h"),
            (3_605_000, "1 h"),
            (10_740_000, "2 h 59 min"),
            (200_000_000, "2 d 7 h"),
        ] {
            assert_eq!(words(Duration::from_millis(millis)), text);
        }
    }
}
