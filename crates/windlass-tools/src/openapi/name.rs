//! Names of tools, and patterns that select operations.

use std::collections::BTreeSet;

/// Longest name of a tool.
const LONGEST: usize = 64;

/// A valid name that is not taken yet.
pub(crate) fn unique(wanted: &str, taken: &mut BTreeSet<String>) -> String {
    let base = legal(wanted);
    let mut name = base.clone();
    let mut n = 2;
    while !taken.insert(name.clone()) {
        let end = format!("_{n}");
        name = format!("{}{end}", &base[..base.len().min(LONGEST - end.len())]);
        n += 1;
    }
    name
}

/// Reduces a name to letters, digits, `_` and `-`, and to the longest length.
pub(crate) fn legal(wanted: &str) -> String {
    let mut name = String::new();
    for c in wanted.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || c == '-' => name.push(c),
            _ if name.ends_with('_') || name.is_empty() => {}
            _ => name.push('_'),
        }
    }
    name.truncate(LONGEST);
    let name = name.trim_end_matches('_');
    if name.is_empty() { "operation".to_owned() } else { name.to_owned() }
}

/// Whether a text matches a pattern in which `*` matches anything.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let end = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    left.len() >= end.len() && left.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_and_unique() {
        let mut taken = BTreeSet::new();
        let long = "x".repeat(80);
        for (wanted, expected) in [
            ("listPets", "listPets"),
            ("list.pets/all", "list_pets_all"),
            ("list pets all", "list_pets_all_2"),
            ("{}", "operation"),
            ("__a__", "a"),
            ("pets-list", "pets-list"),
            (&long, &"x".repeat(64)),
            (&long, &format!("{}_2", "x".repeat(62))),
        ] {
            assert_eq!(unique(wanted, &mut taken), expected, "{wanted}");
        }
    }

    #[test]
    fn patterns_match() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("list*", "listPets", true),
            ("*Pets", "listPets", true),
            ("l*t*s", "listPets", true),
            ("list", "listPets", false),
            ("a*a", "a", false),
            ("*a*", "bab", true),
            ("GET /pets*", "GET /pets/{id}", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
