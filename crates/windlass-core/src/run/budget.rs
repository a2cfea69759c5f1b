//! Limits of one run, beyond which it should continue in a new generation, and whether it is suspected of killing its
//! process.

use super::record::Recorded;
use super::state::Hold;
use crate::limits;
use crate::tool::Output;
use crate::value::size;

/// Attempts after a crash that are announced before they start, so that a body that kills the process is found.
const SUSPECT_ATTEMPTS: u32 = 64;

pub(super) struct Budget {
    operations: u64,
    /// Approximate size of its results in the journal.
    bytes: usize,
    suspect: u32,
    /// Whether every earlier owner is certainly dead.
    pub(super) owners_dead: bool,
    /// Whether the last owner shut down cleanly.
    pub(super) was_shut_down: bool,
}

impl Budget {
    pub(super) fn new(suspect: bool, owners_dead: bool, was_shut_down: bool) -> Self {
        let suspect = if suspect { SUSPECT_ATTEMPTS } else { 0 };
        Self { operations: 0, bytes: 0, suspect, owners_dead, was_shut_down }
    }

    /// Counts another operation. Returns the hold if the run may have no more.
    pub(super) fn add_operation(&mut self) -> Option<Hold> {
        self.operations += 1;
        if self.operations > limits::RUN_OPERATIONS {
            return Some(Hold::TooLong { operations: limits::RUN_OPERATIONS });
        }
        (self.bytes > limits::RUN_BYTES).then_some(Hold::TooBig { bytes: limits::RUN_BYTES })
    }

    /// Adds the size of a result. Most runs have a single operation, whose result is not measured.
    pub(super) fn add_result(&mut self, result: &Recorded) {
        if self.operations > 1
            && let Ok(output) = result
        {
            self.bytes = self.bytes.saturating_add(measure(output));
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect > 0
    }

    /// Whether the next attempt must be announced. Counts it.
    pub(super) fn must_announce_attempt(&mut self) -> bool {
        let suspect = self.suspect > 0;
        self.suspect = self.suspect.saturating_sub(1);
        suspect
    }
}

fn measure(output: &Output) -> usize {
    let blocks: usize = output.content.iter().map(|content| content.bytes()).sum();
    let raw = output.raw.as_ref().map_or(0, |raw| raw.inline_bytes());
    size::of(&output.value) + blocks + raw
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn l12_a_run_has_a_bounded_number_of_operations_and_bytes() {
        let mut budget = Budget::new(false, true, false);
        let result: Recorded = Ok(Arc::new(Output::value("x".repeat(1 << 20).into())));
        let mut took = 0;
        let hold = loop {
            if let Some(hold) = budget.add_operation() {
                break hold;
            }
            took += 1;
            budget.add_result(&result);
        };
        assert_eq!(hold, Hold::TooBig { bytes: limits::RUN_BYTES });
        assert!((256..300).contains(&took), "{took}");
        let mut budget = Budget::new(false, true, false);
        let hold = (0..=limits::RUN_OPERATIONS).find_map(|_| budget.add_operation());
        assert_eq!(hold, Some(Hold::TooLong { operations: limits::RUN_OPERATIONS }));
    }
}
