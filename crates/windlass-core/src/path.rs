//! The path of an operation in its run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

/// The path of a call or operation in its run: zero-based positions from the root down. `2/0` is the first child of the
/// third operation; the root call itself is written `/`.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(SmallVec<[u32; 6]>);

/// Written by hand, because the derived one copies position by position, and every record has a path.
impl Clone for Path {
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

impl Path {
    /// The path of the root call.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of the child at `index`.
    pub fn child(&self, index: u32) -> Self {
        let mut path = self.clone();
        path.0.push(index);
        path
    }

    /// The path of the parent, or `None` for the root call.
    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(SmallVec::from_slice(above)))
    }

    /// How many calls or operations are above this path.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// The positions from the root down.
    pub fn positions(&self) -> &[u32] {
        &self.0
    }

    /// Whether this is the root call's path.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.0.split_first() else { return f.write_str("/") };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|n| write!(f, "/{n}"))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for text that is not a path.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a valid path: write zero-based numbers separated by slashes, such as `2/0`, or `/` for the root call"
)]
pub struct BadPath(String);

impl FromStr for Path {
    type Err = BadPath;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if s == "/" {
            return Ok(Self::root());
        }
        s.split('/').map(|n| n.parse::<u32>()).collect::<Result<_, _>>().map(Self).map_err(|_| BadPath(s.to_owned()))
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["/", "0", "2/0", "4294967295/1/2/3/4/5/6/7"] {
            assert_eq!(text.parse::<Path>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for text in ["", "a", "1//2", "-1", "1/", "4294967296"] {
            let error = text.parse::<Path>().unwrap_err().to_string();
            assert!(error.contains("such as `2/0`"), "{text}: {error}");
        }
    }
}
