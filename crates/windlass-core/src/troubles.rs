//! Saying what keeps failing without filling the log: a line when a cause is first met, then at most one a minute with how
//! often it was met, and one when it is over. A full disk is met by every run and every caller, many times a second.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// How long a cause that was told is only counted.
const REMINDER: Duration = Duration::from_secs(60);

/// Causes that are told apart. Those beyond it are told as one.
const CAUSES: usize = 64;

/// What was told of the troubles of one part of the program.
#[derive(Debug)]
pub struct Troubles {
    heard: Mutex<BTreeMap<String, Heard>>,
}

#[derive(Debug)]
struct Heard {
    /// When the last line about it was written.
    said: Duration,
    /// How often it was met since.
    untold: u64,
    /// It was told, and not that it is over.
    told: bool,
}

impl Heard {
    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.said) >= REMINDER
    }
}

impl Troubles {
    /// Nothing was met yet.
    pub const fn new() -> Self {
        Self { heard: Mutex::new(BTreeMap::new()) }
    }

    /// A trouble was met, at a time by any clock that only goes forward. If a line about it is due, returns how often it was met
    /// without one since the last.
    pub fn met(&self, cause: &str, now: Duration) -> Option<u64> {
        let mut heard = self.heard.lock();
        if !heard.contains_key(cause) && heard.len() >= CAUSES {
            heard.retain(|_, known| known.told || !known.is_due(now));
        }
        // The name of no cause stands for all that are too many.
        let cause = if heard.contains_key(cause) || heard.len() < CAUSES { cause } else { "" };
        let Some(known) = heard.get_mut(cause) else {
            heard.insert(cause.to_owned(), Heard { said: now, untold: 0, told: true });
            return Some(0);
        };
        if !known.is_due(now) {
            known.untold += 1;
            return None;
        }
        (known.said, known.told) = (now, true);
        Some(std::mem::take(&mut known.untold))
    }

    /// A trouble is over. If that it is there was the last that was told of it, returns how often it was met since.
    pub fn over(&self, cause: &str) -> Option<u64> {
        let mut heard = self.heard.lock();
        let known = heard.get_mut(cause).filter(|known| known.told)?;
        known.told = false;
        Some(known.untold)
    }

    /// The same for all of them at once.
    pub fn all_over(&self) -> Option<u64> {
        let mut heard = self.heard.lock();
        let told = heard.values_mut().filter(|known| known.told);
        told.fold(None, |sum, known| {
            known.told = false;
            Some(sum.unwrap_or(0) + known.untold)
        })
    }
}

impl Default for Troubles {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w08_a_cause_is_told_once_then_once_a_minute_with_a_count() {
        let (troubles, begin) = (Troubles::new(), Duration::from_secs(7));
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(troubles.met("full", at(0)), Some(0));
        let told: Vec<u64> = (1..=150).filter_map(|second| troubles.met("full", at(second))).collect();
        assert_eq!(told, [59, 59], "a minute and two");
        assert_eq!(troubles.met("gone", at(30)), Some(0), "another cause is told at once");
        assert_eq!((troubles.over("full"), troubles.over("full")), (Some(30), None), "and its end once");
    }

    #[test]
    fn w08_a_cause_that_comes_and_goes_is_not_told_every_time() {
        let (troubles, begin) = (Troubles::new(), Duration::from_secs(7));
        assert_eq!(troubles.met("full", begin), Some(0));
        assert_eq!(troubles.all_over(), Some(0));
        assert_eq!(troubles.met("full", begin + Duration::from_secs(1)), None);
        assert_eq!(troubles.all_over(), None, "whose beginning was not told has no end");
        assert_eq!(troubles.met("full", begin + REMINDER), Some(1));
        assert_eq!(troubles.all_over(), Some(0));
    }

    #[test]
    fn w08_a_thousand_causes_are_told_as_a_few() {
        let (troubles, begin) = (Troubles::new(), Duration::from_secs(7));
        let told = (0..1_000).filter(|number| troubles.met(&number.to_string(), begin).is_some()).count();
        assert!(told <= CAUSES + 1, "{told}");
        assert!(troubles.heard.lock().len() <= CAUSES + 1);
        // Those that are over make room.
        troubles.all_over();
        assert_eq!(troubles.met("new", begin + REMINDER), Some(0));
    }
}
