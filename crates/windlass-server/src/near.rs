//! Near misses: what somebody probably meant who wrote a name that nobody knows.

/// `; did you mean …?` for a message of the parser that names what was expected; nothing where no name is near.
pub(crate) fn near(message: &str) -> String {
    let Some(begin) = message.find("unknown ") else { return String::new() };
    let mut quoted = message[begin..].split('`').skip(1).step_by(2);
    let (Some(wrong), expected) = (quoted.next(), quoted) else { return String::new() };
    let nearest = expected.map(|name| (distance(wrong, name), name)).min();
    match nearest {
        Some((distance, name)) if distance <= 1 + wrong.len() / 4 => format!("; did you mean `{name}`?"),
        _ => String::new(),
    }
}

/// How many single-character edits lie between two names; both are short.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(128).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_named() {
        let message = "unknown field `tol`, expected one of `tool`, `args`, `session`";
        assert_eq!(near(message), "; did you mean `tool`?");
        assert_eq!(near("unknown field `zzz`, expected `tool` or `args`"), "");
        assert_eq!(near("missing field `tool`"), "");
        assert_eq!(
            near("unknown variant `aproval`, expected one of `approval`, `doubt`"),
            "; did you mean `approval`?"
        );
    }
}
