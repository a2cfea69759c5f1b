//! Ranges of run ids.

use windlass::RunId;

use crate::refusal::{ApiResult, Refusal};

/// A range of run ids, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdRange {
    first: u128,
    last: u128,
}

impl IdRange {
    /// Every id.
    pub(super) const ALL: Self = Self { first: 0, last: u128::MAX };

    /// The part of it with ids of runs that were created between these times, in microseconds. An id begins with the
    /// milliseconds of its creation, in 48 bits, so the caller still compares the times themselves.
    pub(super) fn created(self, from: Option<i64>, before: Option<i64>) -> Self {
        let edge = |micros: i64| u128::from(micros.div_euclid(1_000).clamp(0, (1 << 48) - 1).unsigned_abs()) << 80;
        let first = from.map_or(0, edge);
        let last = before.map_or(u128::MAX, |before| edge(before) | ((1 << 80) - 1));
        Self { first: self.first.max(first), last: self.last.min(last) }
    }

    /// The ids that start with a prefix. Ignores hyphens and case.
    pub(super) fn of_prefix(text: &str) -> ApiResult<Self> {
        let bad = || {
            let detail = "query: `prefix` is not the beginning of a run id; use 1 to 32 hexadecimal digits";
            Refusal::bad_request("bad_query", detail)
        };
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.is_empty() || digits.len() > 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let padded = |fill: char| {
            let padded: String = digits.chars().chain(std::iter::repeat(fill)).take(32).collect();
            u128::from_str_radix(&padded, 16).map_err(|_| bad())
        };
        Ok(Self { first: padded('0')?, last: padded('f')? })
    }

    pub(super) fn matches(&self, run: RunId) -> bool {
        (self.first..=self.last).contains(&u128::from_be_bytes(*run.as_bytes()))
    }

    /// The id right before the range in a list; `None` if the range starts at the first id.
    pub(super) fn edge(&self, newest_first: bool) -> Option<RunId> {
        let edge = if newest_first { self.last.checked_add(1) } else { self.first.checked_sub(1) };
        edge.map(|edge| RunId::from_bytes(edge.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b13_a_time_is_a_range_of_ids() {
        let at = |millis: u64| {
            let mut bytes = [0x77; 16];
            bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
            RunId::from_bytes(bytes)
        };
        let range = IdRange::ALL.created(Some(5_000_999), Some(7_000_001));
        for (millis, inside) in [(4_999, false), (5_000, true), (6_000, true), (7_000, true), (7_001, false)] {
            assert_eq!(range.matches(at(millis)), inside, "{millis}");
        }
        assert!(IdRange::ALL.created(Some(-5), None).matches(at(0)));
        assert_eq!(IdRange::ALL.created(None, Some(i64::MAX)), IdRange::ALL);
        assert_eq!((IdRange::ALL.edge(true), IdRange::ALL.edge(false)), (None, None));
    }

    #[test]
    fn a_prefix_is_a_range_of_ids() {
        let prefix = IdRange::of_prefix("0198-C2").unwrap();
        for (id, inside) in [
            ("0198c200-0000-0000-0000-000000000000", true),
            ("0198c2ff-ffff-ffff-ffff-ffffffffffff", true),
            ("0198c1ff-ffff-ffff-ffff-ffffffffffff", false),
            ("0198c300-0000-0000-0000-000000000000", false),
        ] {
            assert_eq!(prefix.matches(id.parse().unwrap()), inside, "{id}");
        }
        assert_eq!(prefix.edge(true).map(|id| id.to_string()).as_deref(), Some("0198c300-0000-0000-0000-000000000000"));
        assert_eq!(
            prefix.edge(false).map(|id| id.to_string()).as_deref(),
            Some("0198c1ff-ffff-ffff-ffff-ffffffffffff")
        );
        assert_eq!(
            (IdRange::of_prefix("ff").unwrap().edge(true), IdRange::of_prefix("0").unwrap().edge(false)),
            (None, None)
        );
        for bad in ["", "-", "xyz", "0198 c2", &"0".repeat(33)] {
            assert!(IdRange::of_prefix(bad).is_err(), "{bad}");
        }
    }
}
