//! Regular expressions of schemas: how large they are, and how long one may take.

use jsonschema::PatternOptions;
use regex_automata::dfa::dense;
use regex_automata::util::syntax;
use serde_json::json;

use crate::limits::{BACKTRACKS, PATTERN_BYTES};

/// Sizes a compiled pattern is measured by, each four times the one before.
const SMALLEST: usize = PATTERN_BYTES >> 10;

/// Steps for each byte of text in the worst case: with that many bytes of automaton each.
const BYTES_A_STEP: usize = 512;

/// Longest pattern, as text: what is longer takes more once it is compiled than it may, and long to find that out.
const PATTERN_CHARS: usize = PATTERN_BYTES >> 6;

/// An automaton of this size has so few states that the engine remembers each: then it reads as many bytes in a step.
const REMEMBERED_BYTES: usize = 128 << 10;
const READ_IN_A_STEP: usize = 8;

/// A pattern without repetitions that are counted is about as large as its text.
const PLAIN_CHARS: usize = 32;

/// What a pattern takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Roughly what it takes in memory.
    pub(super) bytes: usize,
    /// Whether it looks around or refers back, which takes an engine that tries one way after the other.
    pub(super) backtracks: bool,
    /// Whether the states of its automaton are few.
    few_states: bool,
    /// Groups within one another: each may look ahead as far as the text goes.
    groups: u32,
    chars: usize,
}

impl Pattern {
    /// Fails with a sentence if it cannot be used.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let of = |bytes, backtracks: bool| {
            let few_states = !backtracks && has_few_states(text);
            Ok(Self { bytes, backtracks, few_states, groups: groups(text), chars: text.len() })
        };
        let refused = || {
            let text: String = text.chars().take(200).collect();
            format!(
                "the pattern `{text}` is no regular expression, or takes more than {PATTERN_BYTES} bytes once it is compiled"
            )
        };
        if text.len() > PATTERN_CHARS {
            return Err(refused());
        }
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
            Err(_) => Err(refused()),
        }
    }

    /// Most steps with a text of so many bytes. As long as the text is short, few places of the pattern are reached.
    pub(super) fn steps(self, length: usize) -> u64 {
        if self.backtracks {
            // Only failures are counted by the engine: what goes well may read the rest of the text each time.
            let rest = (1 + length / 16) as u64;
            return (BACKTRACKS.max(length) as u64).saturating_mul(rest.saturating_pow(1 + self.groups));
        }
        if self.few_states {
            return 1 + (length / READ_IN_A_STEP) as u64;
        }
        let reached = (length.saturating_mul(self.chars) / 16).min(self.bytes / BYTES_A_STEP).max(1);
        (length as u64).saturating_mul(reached as u64)
    }

    /// The same for each byte, whatever the length; more than there may be where that cannot be said.
    pub(super) fn most_per_byte(self) -> u64 {
        match (self.backtracks, self.few_states) {
            (true, _) => u64::MAX,
            (false, true) => 1,
            (false, false) => (self.bytes / BYTES_A_STEP).max(1) as u64,
        }
    }
}

/// Whether all states of an automaton that matches the pattern can be had at once. Where it is written otherwise than the
/// engine writes it, they cannot.
fn has_few_states(text: &str) -> bool {
    let built = |unicode: bool| {
        let config = dense::Config::new()
            .dfa_size_limit(Some(REMEMBERED_BYTES))
            .determinize_size_limit(Some(REMEMBERED_BYTES * 4));
        let syntax = syntax::Config::new().unicode(unicode).utf8(unicode);
        dense::Builder::new().configure(config).syntax(syntax).build(text).is_ok()
    };
    built(false) || built(true)
}

/// Most brackets within one another; those that stand for themselves are counted too.
fn groups(text: &str) -> u32 {
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
        // Base64 and the like: few states, however long the text.
        for text in ["^[A-Za-z0-9+/=]*$", "^[^\"]+@[^\"]+$", "^\\w+( \\w+)*$", "^\\d{4}-\\d{2}-\\d{2}T.*Z$"] {
            assert!(steps(text, 1 << 20) <= 1 << 18, "{text}: {}", steps(text, 1 << 20));
        }
        // What an engine cannot remember it works out for every byte, and looking ahead from every byte is quadratic.
        assert!(steps("(a|b)*a(a|b){40}c", 1 << 20) >= 16 << 20);
        assert!(steps("^(?:(?=.*!)a)+$", 1 << 14) >= 1 << 28);
        assert!(steps("^(?=.*[0-9])(?=.*[a-z]).{8,}$", 24) <= 50_000);
        assert!(Pattern::of(&"a".repeat(100_000)).is_err());
        assert!(Pattern::of("^(\\p{L}{100}){100}$").is_err() && Pattern::of("(").is_err());
    }
}
