//! When the steps of a run were answered, told by its body.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When a body was entered, and when each of its steps was answered.
#[derive(Debug, Clone)]
pub struct Run(Vec<Instant>);

impl Run {
    /// Says that the body is entered now.
    #[must_use]
    pub fn enter(steps: u32) -> Self {
        let mut marks = Vec::with_capacity(steps as usize + 1);
        marks.push(Instant::now());
        Self(marks)
    }

    /// Says that the next step was answered now.
    pub fn answered(&mut self) {
        self.0.push(Instant::now());
    }

    /// How many steps were answered.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// How long each step took.
    pub fn laps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.0.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0]))
    }

    /// When the first step was answered.
    #[must_use]
    pub fn first_answer(&self) -> Option<Instant> {
        self.0.get(1).copied()
    }
}

/// Where bodies leave what they noted.
#[derive(Debug, Clone, Default)]
pub struct Marks(Arc<Mutex<Vec<Run>>>);

impl Marks {
    /// Leaves a run's notes here, at its end.
    pub fn leave(&self, run: Run) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    /// Everything that was left here, which is nothing afterwards.
    ///
    /// # Errors
    ///
    /// When it is not so many runs of so many steps.
    pub fn collect(&self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let left = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let whole = left.iter().filter(|run| run.steps() == steps as usize).count();
        anyhow::ensure!(
            left.len() == runs && whole == runs,
            "{whole} of {} runs took {steps} steps, and {runs} should have",
            left.len()
        );
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_the_times_between_answers() {
        let begin = Instant::now();
        let run = Run([0, 5, 7].map(|ms| begin + Duration::from_millis(ms)).to_vec());
        assert_eq!(run.laps().map(|lap| lap.as_millis()).collect::<Vec<_>>(), [5, 2]);
        assert_eq!(run.first_answer(), Some(begin + Duration::from_millis(5)));
        assert_eq!(run.steps(), 2);
    }

    #[test]
    fn runs_that_are_missing_or_cut_short_are_noticed() {
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
