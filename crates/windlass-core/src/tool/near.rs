//! Suggests the intended word for a misspelt one.

/// Words longer than this are not compared: the comparison costs more than the suggestion helps.
const MAX_WORD_BYTES: usize = 64;

/// The word most similar to `written`, if it is similar enough to be meant: at most a third of the characters, at most
/// three, and never all of them may differ. Case is ignored.
pub fn nearest<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if written.len() > MAX_WORD_BYTES {
        return None;
    }
    let letters = written.chars().count();
    let most = letters.div_ceil(3).min(3).min(letters.saturating_sub(1));
    let fold = written.to_lowercase();
    let short = words.into_iter().filter(|word| word.len() <= MAX_WORD_BYTES);
    let ranked = short.map(|word| (strsim::osa_distance(&fold, &word.to_lowercase()), word));
    ranked.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_found_and_others_are_not() {
        let words = ["timeout", "deadline", "effect", "tags", "y"];
        for (written, meant) in [
            ("timout", Some("timeout")),
            ("time_out", Some("timeout")),
            ("efefct", Some("effect")),
            ("Effect", Some("effect")),
            ("tag", Some("tags")),
            ("concurrency", None),
            ("x", None),
            ("Y", Some("y")),
            ("", None),
        ] {
            assert_eq!(nearest(written, words), meant, "{written}");
        }
    }
}
