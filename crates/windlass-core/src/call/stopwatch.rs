//! Where the time of an operation goes.

use crate::run::spent::Earlier;
use crate::time::{Times, Timestamp};

pub(crate) struct Stopwatch {
    /// The ticks when it was asked for, or taken up again.
    pub(super) asked: u64,
    /// What had passed by then.
    pub(super) earlier: Earlier,
    running: u64,
    pub(super) deadline: Option<Timestamp>,
    /// When the attempt in flight must be asked to stop, so that it is over when its intent says.
    pub(super) stop_by: Option<Timestamp>,
}

impl Stopwatch {
    pub(super) fn new(asked: u64) -> Self {
        Self { asked, earlier: Earlier::default(), running: 0, deadline: None, stop_by: None }
    }

    /// An attempt took from the one reading to the other.
    pub(super) fn ran(&mut self, started: u64, ended: u64) {
        self.running = self.running.saturating_add(ended.saturating_sub(started));
    }

    /// Where its time went, now that it has its outcome.
    pub(super) fn times(&self, ticks: u64) -> Times {
        self.earlier.and(ticks.saturating_sub(self.asked), self.running)
    }
}
