//! The times at which the steps of a run returned, recorded by its body.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The times at which a body was entered and at which each of its steps returned.
#[derive(Debug, Clone)]
pub struct Run(Vec<Instant>);

impl Run {
    /// Records that the body is entered now.
    #[must_use]
    pub fn enter(steps: u32) -> Self {
        let mut marks = Vec::with_capacity(steps as usize + 1);
        marks.push(Instant::now());
        Self(marks)
    }

    /// Records that the next step returned now.
    pub fn answered(&mut self) {
        self.0.push(Instant::now());
    }

    /// The number of steps that returned.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// How long each step took.
    pub fn laps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.0.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0]))
    }

    /// The time at which the first step returned.
    #[must_use]
    pub fn first_answer(&self) -> Option<Instant> {
        self.0.get(1).copied()
    }
}

/// Collects the times of all bodies.
#[derive(Debug, Clone, Default)]
pub struct Marks(Arc<Mutex<Vec<Run>>>);

impl Marks {
    /// Adds the times of a run, at its end.
    pub fn leave(&self, run: Run) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    /// Removes and returns the times of all runs.
    ///
    /// # Errors
    ///
    /// When they are not `runs` runs of `steps` steps.
    pub fn collect(&self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let left = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let whole = left.iter().filter(|run| run.steps() == steps as usize).count();
        anyhow::ensure!(
            left.len() == runs && whole == runs,
            "{whole} of {} runs made {steps} steps, instead of {runs}",
            left.len()
        );
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_the_times_between_steps() {
        let begin = Instant::now();
        let run = Run([0, 5, 7].map(|ms| begin + Duration::from_millis(ms)).to_vec());
        assert_eq!(run.laps().map(|lap| lap.as_millis()).collect::<Vec<_>>(), [5, 2]);
        assert_eq!(run.first_answer(), Some(begin + Duration::from_millis(5)));
        assert_eq!(run.steps(), 2);
    }

    #[test]
    fn missing_and_incomplete_runs_are_errors() {
        let marks = Marks::default();
        let mut run = Run::enter(1);
        run.answered();
        marks.leave(run);
        marks.leave(Run::enter(1));
        let message = marks.collect(2, 1).unwrap_err().to_string();
        assert!(message.contains("1 of 2 runs"), "{message}");
        assert!(marks.collect(0, 1).unwrap().is_empty());
    }
}
