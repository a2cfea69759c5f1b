//! How long finished runs are kept.

use std::time::Duration;

use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// How long a store keeps what nobody needs any more. [`Duration::MAX`] means for ever.
///
/// Unfinished runs are never touched. A finished one is kept whole as long as it has an open doubt, and as long as the run
/// that spawned it is kept whole; its row is kept as long as that run's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long a finished run keeps its journal, counted from its end. Then only a summary is left: what it ran, when and
    /// how it ended, its key and its session.
    pub full: Duration,
    /// How long the summary is kept after that.
    pub summary: Duration,
    /// How long the key of a run that is gone stays taken after that.
    pub keys: Duration,
}

impl Default for Retention {
    /// A month to look into what happened, half a year to know that it did, and another one in which a request that is
    /// repeated is not taken for a new one.
    fn default() -> Self {
        Self { full: 30 * DAY, summary: 180 * DAY, keys: 180 * DAY }
    }
}

/// What was due at a moment: whatever happened at or before these times. Nothing where it is kept for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Runs that ended by then keep only their summary.
    pub full: Option<Timestamp>,
    /// Runs that ended by then go.
    pub summary: Option<Timestamp>,
    /// Keys of runs that went by then are free.
    pub keys: Option<Timestamp>,
}

impl Retention {
    /// Nothing ever goes by itself.
    pub const FOREVER: Self = Self { full: Duration::MAX, summary: Duration::MAX, keys: Duration::MAX };

    /// What is due at `now`.
    pub fn cutoffs(&self, now: Timestamp) -> Cutoffs {
        Cutoffs {
            full: before(now, self.full),
            summary: before(now, self.full.saturating_add(self.summary)),
            keys: before(now, self.keys),
        }
    }
}

fn before(now: Timestamp, kept: Duration) -> Option<Timestamp> {
    let micros = i64::try_from(kept.as_micros()).ok()?;
    now.as_micros().checked_sub(micros).map(Timestamp::from_micros)
}

/// What one slice of tidying came to; see [`Upkeep::tidy`](super::Upkeep::tidy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Runs of which only the summary is left now.
    pub summarized: usize,
    /// Runs that are gone now.
    pub removed: usize,
    /// Whether there is more to do at once.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w09_what_is_due_counts_from_the_end_and_for_ever_is_never_due() {
        let at = |days: u64| Timestamp::default() + days as u32 * DAY;
        let due = Retention::default().cutoffs(at(500));
        assert_eq!((due.full, due.summary, due.keys), (Some(at(470)), Some(at(290)), Some(at(320))));
        let never = Cutoffs { full: None, summary: None, keys: None };
        assert_eq!(Retention::FOREVER.cutoffs(at(500)), never);
        let summaries = Retention { full: DAY, ..Retention::FOREVER }.cutoffs(at(500));
        assert_eq!(summaries, Cutoffs { full: Some(at(499)), ..never });
        let lasting = Retention { full: Duration::MAX, ..Retention::default() }.cutoffs(at(500));
        assert_eq!((lasting.full, lasting.summary), (None, None), "a row goes after its journal");
    }
}
