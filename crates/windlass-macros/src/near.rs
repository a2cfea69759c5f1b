//! Suggestions for misspelt words.

/// The candidate closest to `word`, if it is close enough to be a typing error.
pub(crate) fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let farthest = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= farthest)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Words in backticks, with commas.
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_suggested_and_others_are_not() {
        let known = ["timeout", "title", "tags", "retries", "retry", "effect", "in_flight", "per_second"];
        for (word, expected) in [
            ("timout", Some("timeout")),
            ("time_out", Some("timeout")),
            ("effects", Some("effect")),
            ("inflight", Some("in_flight")),
            ("retrys", Some("retry")),
            ("tag", Some("tags")),
            ("per_minute", None),
            ("description", None),
            ("x", None),
        ] {
            assert_eq!(closest(word, known), expected, "{word}");
        }
    }
}
