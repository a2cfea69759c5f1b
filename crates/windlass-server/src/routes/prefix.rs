//! Prefixes of run ids.

use windlass::RunId;

use crate::refusal::{ApiResult, Refusal};

/// A prefix of run ids, as the range of ids that start with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdPrefix {
    first: u128,
    last: u128,
}

impl IdPrefix {
    /// Ignores hyphens and case.
    pub(super) fn parse(text: &str) -> ApiResult<Self> {
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
    fn a_prefix_is_a_range_of_ids() {
        let prefix = IdPrefix::parse("0198-C2").unwrap();
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
            (IdPrefix::parse("ff").unwrap().edge(true), IdPrefix::parse("0").unwrap().edge(false)),
            (None, None)
        );
        for bad in ["", "-", "xyz", "0198 c2", &"0".repeat(33)] {
            assert!(IdPrefix::parse(bad).is_err(), "{bad}");
        }
    }
}
