//! How long finished runs are kept.

use std::time::Duration;

use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// How long a store keeps finished runs. [`Duration::MAX`] means for ever.
///
/// Unfinished runs are never removed. A finished run keeps its journal while it has an open doubt, and while the run
/// that spawned it keeps its own; its row is kept while that run's row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long a finished run keeps its journal, counted from its end. After that only a summary is kept: its tool,
    /// when and how it ended, its key and its session.
    pub full: Duration,
    /// How long the summary is kept after that.
    pub summary: Duration,
    /// How long the key of a removed run stays taken after that.
    pub keys: Duration,
    /// How long a closed session keeps its messages, data and secrets, counted from its closing and until its last run
    /// has ended. An open session keeps them.
    pub sessions: Duration,
}

impl Default for Retention {
    /// A month to inspect what happened, half a year to know that it happened, and another half year in which a
    /// repeated request is not taken for a new one. A closed session is kept as long as the journals of its runs.
    fn default() -> Self {
        Self { full: 30 * DAY, summary: 180 * DAY, keys: 180 * DAY, sessions: 30 * DAY }
    }
}

/// The times at or before which something is due for removal; `None` if it is kept for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Runs that ended by then keep only their summary.
    pub full: Option<Timestamp>,
    /// Runs that ended by then are removed.
    pub summary: Option<Timestamp>,
    /// Keys of runs that were removed by then are free.
    pub keys: Option<Timestamp>,
    /// Sessions that were closed by then lose their content.
    pub sessions: Option<Timestamp>,
}

impl Retention {
    /// Keeps everything for ever; runs can still be purged.
    pub const FOREVER: Self =
        Self { full: Duration::MAX, summary: Duration::MAX, keys: Duration::MAX, sessions: Duration::MAX };

    /// The cutoffs at `now`.
    pub fn cutoffs(&self, now: Timestamp) -> Cutoffs {
        Cutoffs {
            full: before(now, self.full),
            summary: before(now, self.full.saturating_add(self.summary)),
            keys: before(now, self.keys),
            sessions: before(now, self.sessions),
        }
    }
}

fn before(now: Timestamp, kept: Duration) -> Option<Timestamp> {
    let micros = i64::try_from(kept.as_micros()).ok()?;
    now.as_micros().checked_sub(micros).map(Timestamp::from_micros)
}

/// The result of one call of [`Upkeep::tidy`](super::Upkeep::tidy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// The number of runs that lost their journal.
    pub summarized: usize,
    /// The number of runs that were removed.
    pub removed: usize,
    /// Whether more can be removed now.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w09_cutoffs_count_from_the_end_and_what_is_kept_for_ever_is_never_due() {
        let at = |days: u64| Timestamp::default() + days as u32 * DAY;
        let due = Retention::default().cutoffs(at(500));
        assert_eq!((due.full, due.summary, due.keys), (Some(at(470)), Some(at(290)), Some(at(320))));
        assert_eq!(due.sessions, Some(at(470)));
        let never = Cutoffs { full: None, summary: None, keys: None, sessions: None };
        assert_eq!(Retention::FOREVER.cutoffs(at(500)), never);
        let summaries = Retention { full: DAY, ..Retention::FOREVER }.cutoffs(at(500));
        assert_eq!(summaries, Cutoffs { full: Some(at(499)), ..never });
        let lasting = Retention { full: Duration::MAX, ..Retention::default() }.cutoffs(at(500));
        assert_eq!((lasting.full, lasting.summary), (None, None), "a row is removed only after its journal");
    }
}
