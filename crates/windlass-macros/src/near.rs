//! Which word a misspelt one stands for.

/// The candidate closest to `word`, if it is close enough to be a slip of the pen.
pub(crate) fn miss<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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
    fn near_misses_are_found_and_far_ones_are_not() {
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
            assert_eq!(miss(word, known), expected, "{word}");
        }
    }
}
