//! Near misses: what somebody probably meant who wrote a name that nobody knows.

use windlass::tools::nearest;

/// `; did you mean …?` for a message of the parser that names what was expected; nothing where no name is near.
pub(crate) fn near(message: &str) -> String {
    let Some(begin) = message.find("unknown ") else { return String::new() };
    let mut quoted = message[begin..].split('`').skip(1).step_by(2);
    let (Some(wrong), expected) = (quoted.next(), quoted) else { return String::new() };
    nearest(wrong, expected).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
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
