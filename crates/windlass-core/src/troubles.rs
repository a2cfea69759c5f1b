//! Rate-limits log lines about failures that keep happening: one line when a cause is first met, then at most one a
//! minute with a count, and one when it is over. A full disk, for instance, is met by every run and every caller, many
//! times a second.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// How long a cause is only counted after a line about it was logged.
const REMINDER: Duration = Duration::from_secs(60);

/// How many causes are kept apart. Further causes are counted as one.
const CAUSES: usize = 64;

/// The log state of the failures in one part of the program.
#[derive(Debug)]
pub struct Troubles {
    causes: Mutex<BTreeMap<String, LoggedCause>>,
}

#[derive(Debug)]
struct LoggedCause {
    /// When the last line about it was logged.
    logged_at: Duration,
    /// How often it was met since then.
    unlogged: u64,
    /// Its beginning was logged, and its end was not.
    is_open: bool,
}

impl LoggedCause {
    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.logged_at) >= REMINDER
    }
}

impl Troubles {
    /// A limiter that has met no failure yet.
    pub const fn new() -> Self {
        Self { causes: Mutex::new(BTreeMap::new()) }
    }

    /// A failure was met, at a time by any monotonic clock. If a line about it is due, returns how often it was met
    /// without a line since the last one.
    pub fn met(&self, cause: &str, now: Duration) -> Option<u64> {
        let mut causes = self.causes.lock();
        if !causes.contains_key(cause) && causes.len() >= CAUSES {
            causes.retain(|_, cause_state| cause_state.is_open || !cause_state.is_due(now));
        }
        // The empty name collects all causes beyond the limit.
        let cause = if causes.contains_key(cause) || causes.len() < CAUSES { cause } else { "" };
        let Some(cause_state) = causes.get_mut(cause) else {
            causes.insert(cause.to_owned(), LoggedCause { logged_at: now, unlogged: 0, is_open: true });
            return Some(0);
        };
        if !cause_state.is_due(now) {
            cause_state.unlogged += 1;
            return None;
        }
        (cause_state.logged_at, cause_state.is_open) = (now, true);
        Some(std::mem::take(&mut cause_state.unlogged))
    }

    /// A failure is over. If its beginning was logged and its end was not, returns how often it was met since the last
    /// line.
    pub fn over(&self, cause: &str) -> Option<u64> {
        let mut causes = self.causes.lock();
        let cause_state = causes.get_mut(cause).filter(|cause_state| cause_state.is_open)?;
        cause_state.is_open = false;
        Some(cause_state.unlogged)
    }

    /// Like [`over`](Self::over), for all causes at once.
    pub fn all_over(&self) -> Option<u64> {
        let mut causes = self.causes.lock();
        let logged = causes.values_mut().filter(|cause_state| cause_state.is_open);
        logged.fold(None, |sum, cause_state| {
            cause_state.is_open = false;
            Some(sum.unwrap_or(0) + cause_state.unlogged)
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
    fn w08_a_cause_is_logged_once_then_once_a_minute_with_a_count() {
        let (troubles, begin) = (Troubles::new(), Duration::from_secs(7));
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(troubles.met("full", at(0)), Some(0));
        let logged: Vec<u64> = (1..=150).filter_map(|second| troubles.met("full", at(second))).collect();
        assert_eq!(logged, [59, 59], "a minute and two");
        assert_eq!(troubles.met("gone", at(30)), Some(0), "another cause is logged at once");
        assert_eq!((troubles.over("full"), troubles.over("full")), (Some(30), None), "and its end once");
    }

    #[test]
    fn w08_a_cause_that_comes_and_goes_is_not_logged_every_time() {
        let (troubles, begin) = (Troubles::new(), Duration::from_secs(7));
        assert_eq!(troubles.met("full", begin), Some(0));
        assert_eq!(troubles.all_over(), Some(0));
        assert_eq!(troubles.met("full", begin + Duration::from_secs(1)), None);
        assert_eq!(troubles.all_over(), None, "no end is logged without a beginning");
        assert_eq!(troubles.met("full", begin + REMINDER), Some(1));
        assert_eq!(troubles.all_over(), Some(0));
    }

    #[test]
    fn w08_a_thousand_causes_are_logged_as_a_few() {
        let (troubles, begin) = (Troubles::new(), Duration::from_secs(7));
        let logged = (0..1_000).filter(|number| troubles.met(&number.to_string(), begin).is_some()).count();
        assert!(logged <= CAUSES + 1, "{logged}");
        assert!(troubles.causes.lock().len() <= CAUSES + 1);
        // Causes that are over make room.
        troubles.all_over();
        assert_eq!(troubles.met("new", begin + REMINDER), Some(0));
    }
}
