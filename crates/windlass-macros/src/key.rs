//! Checks the grammar of concurrency keys at compile time: a literal (`'printer'`), an argument (`args.account`), the
//! principal or cause of the run (`caller`, `cause`), or several of these joined with `+`. The kernel parses the same text when the tool is created. Any other CEL expression
//! is checked there only.

/// Characters that such a key cannot have outside of its literals, but a CEL expression can.
const CEL: [char; 14] = ['?', '(', '[', '{', '=', '<', '>', '!', '&', '|', '*', '/', '%', '"'];

/// The arguments that a key names (their first step: `account` for `args.account.id`), or why it is invalid.
pub(crate) fn arguments(source: &str) -> Result<Vec<&str>, &'static str> {
    match pieces(source) {
        Err(_) if source.contains(CEL) => Ok(Vec::new()),
        result => result,
    }
}

fn pieces(source: &str) -> Result<Vec<&str>, &'static str> {
    let mut named = Vec::new();
    let mut rest = source.trim();
    loop {
        if let Some(open) = rest.strip_prefix('\'') {
            (_, rest) = open.split_once('\'').ok_or("the quote is not closed")?;
        } else {
            let (word, after) = rest.split_at(rest.find('+').unwrap_or(rest.len()));
            let mut steps = word.trim().split('.');
            match (steps.next(), steps.clone().next()) {
                (Some("args"), _) => {}
                (Some("caller" | "cause"), None) => {
                    rest = after;
                    match rest.strip_prefix('+') {
                        Some(next) => rest = next.trim_start(),
                        None => return Ok(named),
                    }
                    continue;
                }
                _ => return Err("it starts with neither a quote nor `args.`"),
            }
            let first = steps.next().filter(|step| !step.is_empty()).ok_or("the argument has no name")?;
            let rest_of_path: Vec<&str> = steps.collect();
            if rest_of_path.contains(&"") {
                return Err("the argument has no name");
            }
            let strange = |c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-');
            if first.contains(strange) || rest_of_path.iter().any(|step| step.contains(strange)) {
                return Err("an argument's name has only letters, digits, `_` and `-`");
            }
            named.push(first);
            rest = after;
        }
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(named);
        }
        rest = rest.strip_prefix('+').ok_or("pieces are joined with `+`")?.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_a_key_are_found() {
        let none: [&str; 0] = [];
        assert_eq!(arguments("'printer'"), Ok(none.to_vec()));
        assert_eq!(arguments("args.account"), Ok(vec!["account"]));
        assert_eq!(arguments("'of ' + caller + args.b + cause"), Ok(vec!["b"]));
        assert_eq!(arguments(" 'a+b-' + args.account.id+args.b + 'c' "), Ok(vec!["account", "b"]));
    }

    #[test]
    fn other_cel_expressions_are_left_to_the_kernel() {
        for source in ["args.a == 1 ? 'x' : args.b", "args.list[0]", "string(args.a)"] {
            assert_eq!(arguments(source), Ok(Vec::new()), "{source}");
        }
    }

    #[test]
    fn bad_keys_are_refused() {
        for (source, word) in [
            ("", "neither"),
            ("'open", "not closed"),
            ("account", "neither"),
            ("caller +", "neither"),
            ("caller.name", "neither"),
            ("args", "no name"),
            ("args.", "no name"),
            ("args.a.", "no name"),
            ("args.a + ", "neither"),
            ("'a' 'b'", "joined"),
            ("args.a b", "letters"),
        ] {
            let problem = arguments(source).unwrap_err();
            assert!(problem.contains(word), "{source}: {problem}");
        }
    }
}
