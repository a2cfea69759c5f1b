//! Percentiles of times.

use std::time::Duration;

/// Sorted times.
#[derive(Debug, Clone, Default)]
pub struct Sorted(Vec<Duration>);

impl Sorted {
    /// Sorts times.
    #[must_use]
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The shortest time that `percent` percent of all do not exceed; zero if there is none.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (self.0.len() as f64 * percent / 100.0).ceil() as usize;
        self.0.get(rank.max(1) - 1).or(self.0.last()).copied().unwrap_or_default()
    }

    /// The same in microseconds.
    #[must_use]
    pub fn us(&self, percent: f64) -> f64 {
        self.percentile(percent).as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(times: &[u64], percent: f64, expected: u64) {
        let sorted = Sorted::new(times.iter().map(|&ms| Duration::from_millis(ms)).collect());
        assert_eq!(sorted.percentile(percent), Duration::from_millis(expected));
    }

    #[test]
    fn percentiles_are_measured_times() {
        let hundred: Vec<u64> = (1..=100).rev().collect();
        check(&hundred, 50.0, 50);
        check(&hundred, 99.0, 99);
        check(&hundred, 100.0, 100);
        check(&hundred, 0.0, 1);
        check(&[7, 3], 50.0, 3);
        check(&[7, 3], 99.0, 7);
        check(&[], 50.0, 0);
    }
}
