//! Regular expressions in schemas: how much memory one takes, and how many steps a match may take.

use jsonschema::PatternOptions;
use regex_automata::dfa::dense;
use regex_automata::util::syntax;
use serde_json::json;

use crate::limits::{PATTERN_BACKTRACKS, PATTERN_BYTES};

/// The smallest size limit with which a pattern is compiled to measure it. Each further try has four times the limit.
const SMALLEST_LIMIT: usize = PATTERN_BYTES >> 10;

/// In the worst case, matching takes one step per byte of text for every this many bytes of automaton.
const BYTES_PER_STEP: usize = 512;

/// Longest pattern text. A longer one would exceed the size limit once compiled, and take long to find that out.
const PATTERN_CHARS: usize = PATTERN_BYTES >> 6;

/// The engine keeps all states of an automaton of this size in memory. Then it reads `READ_PER_STEP` bytes per step.
const CACHED_BYTES: usize = 128 << 10;
const READ_PER_STEP: usize = 8;

/// Up to this length, a pattern without counted repetitions compiles to about the size of its text.
const PLAIN_CHARS: usize = 32;

/// The cost of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatternCost {
    /// Estimated memory in bytes.
    pub(super) bytes: usize,
    /// Whether it has lookarounds or backreferences, which need a backtracking engine.
    pub(super) backtracks: bool,
    /// Whether its automaton has few states.
    few_states: bool,
    /// Depth of nested groups. Each level may look ahead to the end of the text.
    group_depth: u32,
    chars: usize,
}

impl PatternCost {
    /// Estimates a pattern. Fails with a message if it cannot be used.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let of = |bytes, backtracks: bool| {
            let few_states = !backtracks && has_few_states(text);
            Ok(Self { bytes, backtracks, few_states, group_depth: group_depth(text), chars: text.len() })
        };
        let refused = || {
            let text: String = text.chars().take(200).collect();
            format!(
                "the pattern `{text}` is not a regular expression, or takes more than {PATTERN_BYTES} bytes compiled"
            )
        };
        if text.len() > PATTERN_CHARS {
            return Err(refused());
        }
        if text.len() <= PLAIN_CHARS && !text.contains('{') && is_linear(text, PATTERN_BYTES) {
            return of(SMALLEST_LIMIT * 4, false);
        }
        let mut size = SMALLEST_LIMIT;
        while size <= PATTERN_BYTES {
            if is_linear(text, size) {
                return of(size, false);
            }
            size *= 4;
        }
        let options = PatternOptions::fancy_regex().backtrack_limit(PATTERN_BACKTRACKS).size_limit(PATTERN_BYTES);
        let schema = json!({ "pattern": text });
        let built = jsonschema::draft202012::options().with_pattern_options(options).build(&schema);
        match built {
            Ok(_) => of(PATTERN_BYTES >> 4, true),
            Err(_) => Err(refused()),
        }
    }

    /// The most steps for a text of `length` bytes. A short text reaches only a part of the pattern.
    pub(super) fn steps(self, length: usize) -> u64 {
        if self.backtracks {
            // The engine counts only failed branches. A successful one may read the rest of the text each time.
            let rest = (1 + length / 16) as u64;
            return (PATTERN_BACKTRACKS.max(length) as u64).saturating_mul(rest.saturating_pow(1 + self.group_depth));
        }
        if self.few_states {
            return 1 + (length / READ_PER_STEP) as u64;
        }
        let reached = (length.saturating_mul(self.chars) / 16).min(self.bytes / BYTES_PER_STEP).max(1);
        (length as u64).saturating_mul(reached as u64)
    }

    /// The most steps per byte for a text of any length; `u64::MAX` if there is no such bound.
    pub(super) fn most_per_byte(self) -> u64 {
        match (self.backtracks, self.few_states) {
            (true, _) => u64::MAX,
            (false, true) => 1,
            (false, false) => (self.bytes / BYTES_PER_STEP).max(1) as u64,
        }
    }
}

/// Whether the automaton of the pattern fits in memory with all its states. False if its syntax differs from that of
/// the engine.
fn has_few_states(text: &str) -> bool {
    let built = |unicode: bool| {
        let config =
            dense::Config::new().dfa_size_limit(Some(CACHED_BYTES)).determinize_size_limit(Some(CACHED_BYTES * 4));
        let syntax = syntax::Config::new().unicode(unicode).utf8(unicode);
        dense::Builder::new().configure(config).syntax(syntax).build(text).is_ok()
    };
    built(false) || built(true)
}

/// The depth of nested parentheses. Escaped ones count too, so this is an upper bound.
fn group_depth(text: &str) -> u32 {
    let (mut open, mut most) = (0u32, 0);
    for byte in text.bytes() {
        match byte {
            b'(' => open += 1,
            b')' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// Whether a linear-time engine compiles the pattern within a size limit.
fn is_linear(text: &str, size: usize) -> bool {
    let options = PatternOptions::regex().size_limit(size);
    jsonschema::draft202012::options().with_pattern_options(options).build(&json!({ "pattern": text })).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e25_the_cost_of_a_pattern_is_estimated() {
        let steps = |text: &str, length| PatternCost::of(text).unwrap().steps(length);
        assert!(steps("^[a-z]+$", 1 << 20) <= 32 << 20);
        assert!(steps("^[a-z0-9-]{1,64}$", 40) < 40 * 64);
        assert!(steps("^(?:(a|aa)\\1?)+$", 1) >= 10_000);
        // Base64 and similar: few states, however long the text.
        for text in ["^[A-Za-z0-9+/=]*$", "^[^\"]+@[^\"]+$", "^\\w+( \\w+)*$", "^\\d{4}-\\d{2}-\\d{2}T.*Z$"] {
            assert!(steps(text, 1 << 20) <= 1 << 18, "{text}: {}", steps(text, 1 << 20));
        }
        // States that do not fit in memory are computed for every byte, and looking ahead from every byte is quadratic.
        assert!(steps("(a|b)*a(a|b){40}c", 1 << 20) >= 16 << 20);
        assert!(steps("^(?:(?=.*!)a)+$", 1 << 14) >= 1 << 28);
        assert!(steps("^(?=.*[0-9])(?=.*[a-z]).{8,}$", 24) <= 50_000);
        assert!(PatternCost::of(&"a".repeat(100_000)).is_err());
        assert!(PatternCost::of("^(\\p{L}{100}){100}$").is_err() && PatternCost::of("(").is_err());
    }
}
