//! A beginning of an id, as people type it.

use windlass::RunId;

use crate::refusal::{Answer, Refusal};

/// Every id that begins alike: a stretch of the order in which runs are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    first: u128,
    last: u128,
}

impl Prefix {
    /// Hyphens do not count, and neither does the case.
    pub(super) fn read(text: &str) -> Answer<Self> {
        let bad =
            || Refusal::bad_request("bad_query", "prefix is the beginning of a run's id: 1 to 32 hexadecimal digits");
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.is_empty() || digits.len() > 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let whole = |fill: char| {
            let padded: String = digits.chars().chain(std::iter::repeat(fill)).take(32).collect();
            u128::from_str_radix(&padded, 16).map_err(|_| bad())
        };
        Ok(Self { first: whole('0')?, last: whole('f')? })
    }

    pub(super) fn has(&self, run: RunId) -> bool {
        (self.first..=self.last).contains(&u128::from_be_bytes(*run.as_bytes()))
    }

    /// What stands right before the stretch in a list; nothing if the list begins with it.
    pub(super) fn edge(&self, newest_first: bool) -> Option<RunId> {
        let edge = if newest_first { self.last.checked_add(1) } else { self.first.checked_sub(1) };
        edge.map(|edge| RunId::from_bytes(edge.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_a_stretch_of_ids() {
        let prefix = Prefix::read("0198-C2").unwrap();
        for (id, inside) in [
            ("0198c200-0000-0000-0000-000000000000", true),
            ("0198c2ff-ffff-ffff-ffff-ffffffffffff", true),
            ("0198c1ff-ffff-ffff-ffff-ffffffffffff", false),
            ("0198c300-0000-0000-0000-000000000000", false),
        ] {
            assert_eq!(prefix.has(id.parse().unwrap()), inside, "{id}");
        }
        assert_eq!(prefix.edge(true).map(|id| id.to_string()).as_deref(), Some("0198c300-0000-0000-0000-000000000000"));
        assert_eq!(
            prefix.edge(false).map(|id| id.to_string()).as_deref(),
            Some("0198c1ff-ffff-ffff-ffff-ffffffffffff")
        );
        assert_eq!((Prefix::read("ff").unwrap().edge(true), Prefix::read("0").unwrap().edge(false)), (None, None));
        for bad in ["", "-", "xyz", "0198 c2", &"0".repeat(33)] {
            assert!(Prefix::read(bad).is_err(), "{bad}");
        }
    }
}
