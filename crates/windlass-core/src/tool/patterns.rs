//! Regular expressions of schemas: how large they are, and how long one may take.

use jsonschema::PatternOptions;
use serde_json::json;

use crate::limits::{BACKTRACKS, PATTERN_BYTES};

/// Sizes a compiled pattern is measured by, each four times the one before.
const SMALLEST: usize = PATTERN_BYTES >> 10;

/// Steps for each byte of text in the worst case: with that many bytes of automaton each.
const BYTES_A_STEP: usize = 512;

/// A pattern without repetitions that are counted is about as large as its text.
const PLAIN_CHARS: usize = 32;

/// What a pattern takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Roughly what it takes in memory.
    pub(super) bytes: usize,
    /// Whether it looks around or refers back, which takes an engine that tries one way after the other.
    pub(super) backtracks: bool,
    chars: usize,
}

impl Pattern {
    /// Fails with a sentence if it cannot be used.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let of = |bytes, backtracks| Ok(Self { bytes, backtracks, chars: text.len() });
        if text.len() <= PLAIN_CHARS && !text.contains('{') && linear(text, PATTERN_BYTES) {
            return of(SMALLEST * 4, false);
        }
        let mut size = SMALLEST;
        while size <= PATTERN_BYTES {
            if linear(text, size) {
                return of(size, false);
            }
            size *= 4;
        }
        let options = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS).size_limit(PATTERN_BYTES);
        let schema = json!({ "pattern": text });
        let built = jsonschema::draft202012::options().with_pattern_options(options).build(&schema);
        match built {
            Ok(_) => of(PATTERN_BYTES >> 4, true),
            Err(_) => Err(format!(
                "the pattern `{text}` is no regular expression, or takes more than {PATTERN_BYTES} bytes once it is compiled"
            )),
        }
    }

    /// Most steps with a text of so many bytes. As long as the text is short, few places of the pattern are reached.
    pub(super) fn steps(self, length: usize) -> u64 {
        if self.backtracks {
            return BACKTRACKS as u64;
        }
        let reached = (length.saturating_mul(self.chars) / 16).min(self.bytes / BYTES_A_STEP).max(1);
        (length as u64).saturating_mul(reached as u64)
    }

    /// The same for each byte, whatever the length.
    pub(super) fn most_per_byte(self) -> u64 {
        if self.backtracks { BACKTRACKS as u64 } else { (self.bytes / BYTES_A_STEP).max(1) as u64 }
    }
}

/// Whether an engine whose time grows with the text alone takes the pattern, within a size.
fn linear(text: &str, size: usize) -> bool {
    let options = PatternOptions::regex().size_limit(size);
    jsonschema::draft202012::options().with_pattern_options(options).build(&json!({ "pattern": text })).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e25_a_pattern_says_what_it_takes() {
        let steps = |text: &str, length| Pattern::of(text).unwrap().steps(length);
        assert!(steps("^[a-z]+$", 1 << 20) <= 32 << 20);
        assert!(steps("^[a-z0-9-]{1,64}$", 40) < 40 * 64);
        assert!(steps("^(?:(a|aa)\\1?)+$", 1) >= 10_000);
        assert!(Pattern::of("^(\\p{L}{100}){100}$").is_err() && Pattern::of("(").is_err());
    }
}
