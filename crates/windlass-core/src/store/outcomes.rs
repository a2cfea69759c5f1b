//! The latest outcomes of a session's calls, for loop detection over separate calls.
//!
//! The owner of a run adds them with the commit that ends the run, so each run counts once and in the order in which
//! the runs end, whichever process drives them. What is kept of a session has a fixed size: digests of the latest
//! [`LOOP_WINDOW`] different calls and of their results.

use serde::{Deserialize, Serialize};

use crate::limits::{LOOP_MEMORY, LOOP_WINDOW};
use crate::time::Timestamp;

/// The outcome of a call, as far as loop detection compares outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenOutcome {
    /// The outcome can be compared with others.
    Compared {
        /// A digest of the tool's name and the arguments.
        call: u64,
        /// A digest of the result.
        result: u64,
    },
    /// The outcome counts as something new. Used where a digest would reveal something about a secret.
    New,
}

/// The latest outcomes of a session, or of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentOutcomes {
    /// When the latest of them was added.
    at: Timestamp,
    /// The newest last.
    calls: Vec<RecentCall>,
}

/// A call: its digest, the digest of its result, and how often it had that result since the last new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecentCall(u64, u64, u32);

impl RecentOutcomes {
    /// How often a call had the same result, with nothing new in between.
    pub fn repeats(&self, call: u64) -> u32 {
        self.calls.iter().find(|recent| recent.0 == call).map_or(0, |recent| recent.2)
    }

    /// Whether they are too old to count.
    pub fn is_past(&self, now: Timestamp) -> bool {
        now.since(self.at) > LOOP_MEMORY
    }

    /// Adds outcomes. What is past by then no longer counts.
    pub fn add(&mut self, at: Timestamp, outcomes: &[SeenOutcome]) {
        if self.is_past(at) {
            self.calls.clear();
        }
        self.at = self.at.max(at);
        outcomes.iter().for_each(|outcome| self.push(*outcome));
    }

    pub(crate) fn push(&mut self, outcome: SeenOutcome) {
        let SeenOutcome::Compared { call, result } = outcome else { return self.restart() };
        let known = self.calls.iter().position(|recent| recent.0 == call).map(|index| self.calls.remove(index));
        match known {
            Some(RecentCall(_, same, times)) if same == result => {
                self.calls.push(RecentCall(call, result, times.saturating_add(1)));
            }
            _ => {
                self.restart();
                if self.calls.len() >= LOOP_WINDOW {
                    self.calls.remove(0);
                }
                self.calls.push(RecentCall(call, result, 1));
            }
        }
    }

    /// Something is new, so the cycle before it made progress.
    fn restart(&mut self) {
        self.calls.iter_mut().for_each(|recent| recent.2 = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LOOP_LIMIT;

    fn seen(call: u64, result: u64) -> SeenOutcome {
        SeenOutcome::Compared { call, result }
    }

    /// How often call 0 repeated itself after these outcomes.
    fn repeats(outcomes: impl IntoIterator<Item = SeenOutcome>) -> u32 {
        let mut recent = RecentOutcomes::default();
        outcomes.into_iter().for_each(|outcome| recent.push(outcome));
        recent.repeats(0)
    }

    #[test]
    fn e13_the_same_call_with_the_same_result_is_a_loop() {
        assert_eq!(repeats((0..7).map(|_| seen(0, 7))), 7);
        assert!(repeats((0..100).map(|n| seen(0, n))) < LOOP_LIMIT, "a changing result is no loop");
        assert!(repeats((0..100).map(|n| seen(0, n / 4))) < LOOP_LIMIT);
    }

    #[test]
    fn e13_a_cycle_of_several_calls_is_a_loop() {
        assert!(repeats((0..20).map(|n| seen(n % 3, 1))) >= LOOP_LIMIT);
    }

    #[test]
    fn e13_a_new_result_in_between_ends_a_loop() {
        let edit_and_test = (0..100).map(|n| if n % 2 == 0 { seen(0, 1) } else { seen(1, n) });
        assert!(repeats(edit_and_test) < LOOP_LIMIT);
        let many = (0..100).map(|n| if n % 4 == 3 { seen(1, n) } else { seen(0, 1) });
        assert!(repeats(many) < LOOP_LIMIT);
        let incomparable = (0..100).map(|n| if n % 2 == 0 { seen(0, 1) } else { SeenOutcome::New });
        assert!(repeats(incomparable) < LOOP_LIMIT);
    }

    #[test]
    fn e13_old_outcomes_do_not_count() {
        let (mut recent, first) = (RecentOutcomes::default(), Timestamp::from_micros(1));
        recent.add(first, &[seen(0, 1); 5]);
        let last = first + LOOP_MEMORY;
        assert!(!recent.is_past(last) && recent.is_past(last + std::time::Duration::from_micros(1)));
        recent.add(last, &[seen(0, 1)]);
        assert_eq!(recent.repeats(0), 6);
        recent.add(last + LOOP_MEMORY * 2, &[seen(0, 1)]);
        assert_eq!(recent.repeats(0), 1);
    }

    #[test]
    fn e13_what_is_kept_is_bounded() {
        let mut recent = RecentOutcomes::default();
        (0..1_000).for_each(|n| recent.push(seen(n, 1)));
        assert_eq!(recent.calls.len(), LOOP_WINDOW);
    }
}
