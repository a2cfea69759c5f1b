//! How an operation's records account for its time: when it was asked for, and how long its attempts took. A new owner
//! adds to that, so the times of an outcome do not depend on how often its run was suspended.

use std::time::Duration;

use crate::time::{Times, Timestamp};

/// The time of an operation according to its journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpentTime {
    asked: Timestamp,
    running: Duration,
    /// When the attempt that may be running began.
    attempt: Option<Timestamp>,
}

/// What a record says about an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttemptMark {
    /// It is about to begin.
    Begins,
    /// It is over, or there was none.
    Over,
    /// Its owner was lost, or it did not begin: its duration is not known.
    Lost,
}

impl SpentTime {
    /// The operation was first recorded at this time.
    pub(crate) fn new(at: Timestamp, mark: AttemptMark) -> Self {
        let mut spent = Self { asked: at, running: Duration::ZERO, attempt: None };
        spent.note(at, mark);
        spent
    }

    /// Takes its next record into account.
    pub(crate) fn note(&mut self, at: Timestamp, mark: AttemptMark) {
        let began = self.attempt.take();
        match mark {
            AttemptMark::Begins => self.attempt = Some(at),
            AttemptMark::Over => {
                self.running = self.running.saturating_add(began.map_or(Duration::ZERO, |began| at.since(began)))
            }
            AttemptMark::Lost => {}
        }
    }

    /// The owner died, so the duration of its attempt is not known.
    pub(crate) fn died(&mut self) {
        self.attempt = None;
    }

    /// The time that had passed by `now`. The wall clock may have been set back since.
    pub(crate) fn by(&self, now: Timestamp) -> EarlierTime {
        let running = nanos(self.running);
        EarlierTime { total: nanos(now.since(self.asked)).max(running), running }
    }
}

/// Nanoseconds of an operation's time that passed before its measurement began: with earlier owners, while suspended,
/// or in the stages before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EarlierTime {
    pub(crate) total: u64,
    pub(crate) running: u64,
}

impl EarlierTime {
    /// Adds time spent waiting.
    #[must_use]
    pub(crate) fn waited(self, nanos: u64) -> Self {
        Self { total: self.total.saturating_add(nanos), ..self }
    }

    /// The times of an operation that took this much in addition.
    pub(crate) fn and(self, total: u64, running: u64) -> Times {
        let running = self.running.saturating_add(running);
        let total = self.total.saturating_add(total).max(running);
        Times { queued: total - running, running, total }
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::AttemptMark::{Begins, Lost, Over};
    use super::*;

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// Seconds `(total, running)` by then, after these records.
    fn by(now: i64, records: &[(i64, AttemptMark)]) -> (u64, u64) {
        let (first, rest) = records.split_first().unwrap();
        let mut spent = SpentTime::new(at(first.0), first.1);
        rest.iter().for_each(|(second, mark)| spent.note(at(*second), *mark));
        let EarlierTime { total, running } = spent.by(at(now));
        (total / 1_000_000_000, running / 1_000_000_000)
    }

    #[test]
    fn b09_the_time_of_attempts_is_the_time_between_their_records() {
        assert_eq!(by(9, &[(2, Over)]), (7, 0));
        assert_eq!(by(9, &[(2, Over), (3, Begins), (5, Over)]), (7, 2));
        assert_eq!(by(30, &[(2, Begins), (5, Over), (20, Begins), (21, Over), (25, Over)]), (28, 4));
    }

    #[test]
    fn b09_the_duration_of_a_lost_attempt_is_not_guessed() {
        assert_eq!(by(9, &[(2, Begins)]), (7, 0));
        assert_eq!(by(900, &[(2, Begins), (800, Lost)]), (898, 0));
        let mut spent = SpentTime::new(at(2), Begins);
        spent.died();
        spent.note(at(800), Over);
        assert_eq!(spent.by(at(900)).running, 0);
    }

    #[test]
    fn b09_no_time_is_negative_after_the_clock_was_set_back() {
        assert_eq!(by(1, &[(5, Over)]), (0, 0));
        assert_eq!(by(1, &[(5, Begins), (8, Over)]), (3, 3), "not less than the attempts took");
        assert_eq!(by(1, &[(8, Begins), (5, Over)]), (0, 0));
        let times = EarlierTime { total: 3, running: 3 }.and(2, 5);
        assert_eq!((times.queued, times.running, times.total), (0, 8, 8));
        let most = EarlierTime { total: u64::MAX, running: 0 }.waited(1).and(1, 0);
        assert_eq!((most.queued, most.total), (u64::MAX, u64::MAX));
    }
}
