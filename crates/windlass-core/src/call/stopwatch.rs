//! Measures how the time of an operation is spent.

use crate::run::spent::EarlierTime;
use crate::time::{Times, Timestamp};

pub(crate) struct Stopwatch {
    /// The ticks when it was asked for, or taken up again.
    pub(super) asked: u64,
    /// The time that had passed by then.
    pub(super) earlier: EarlierTime,
    running: u64,
    pub(super) deadline: Option<Timestamp>,
    /// When the attempt in flight must be asked to stop, so that it is over by the time its intent promises.
    pub(super) stop_by: Option<Timestamp>,
}

impl Stopwatch {
    pub(super) fn new(asked: u64) -> Self {
        Self { asked, earlier: EarlierTime::default(), running: 0, deadline: None, stop_by: None }
    }

    /// Adds an attempt that ran between these tick readings.
    pub(super) fn ran(&mut self, started: u64, ended: u64) {
        self.running = self.running.saturating_add(ended.saturating_sub(started));
    }

    /// The times of an operation that has its outcome.
    pub(super) fn times(&self, ticks: u64) -> Times {
        self.earlier.and(ticks.saturating_sub(self.asked), self.running)
    }
}
