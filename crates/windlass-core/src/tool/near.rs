//! Which word a misspelt one stands for.

/// Longer words than this are no misspelt ones, and cost more to compare than they help.
const LONGEST: usize = 64;

/// The word that is nearest to what was written, if one is near enough to be meant: a third of it may differ, and never all.
pub fn nearest<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if written.len() > LONGEST {
        return None;
    }
    let letters = written.chars().count();
    let most = letters.div_ceil(3).min(3).min(letters.saturating_sub(1));
    let fold = written.to_lowercase();
    let short = words.into_iter().filter(|word| word.len() <= LONGEST);
    let ranked = short.map(|word| (strsim::osa_distance(&fold, &word.to_lowercase()), word));
    ranked.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_found_and_what_is_far_is_not() {
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
