//! Lists of names in messages.

/// Formats names as "`a`, `b` and `c`".
pub(crate) fn listed<'w>(words: impl IntoIterator<Item = &'w str>, last: &str) -> String {
    let mut words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match words.pop() {
        None => "nothing".to_owned(),
        Some(only) if words.is_empty() => only,
        Some(end) => format!("{} {last} {end}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_with_commas_and_a_conjunction() {
        assert_eq!(listed([], "and"), "nothing");
        assert_eq!(listed(["a"], "and"), "`a`");
        assert_eq!(listed(["a", "b", "c"], "or"), "`a`, `b` or `c`");
    }
}
