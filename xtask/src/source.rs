//! Rust source with everything that is not code blanked out.
//!
//! A test in a comment proves nothing, and the word `fn` in a string is not a function.

/// `source` with the insides of comments, strings and character literals replaced by spaces.
///
/// Line breaks stay, so line numbers do too. Never fails: an unterminated literal blanks the rest.
pub(crate) fn code_only(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (kept, blanked) = next_piece(rest, first);
        out.push_str(&rest[..kept]);
        out.extend(rest[kept..kept + blanked].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[kept + blanked..];
    }
    out
}

/// How many bytes at the start of `rest` are code, and how many after those are not. At least one byte in all.
fn next_piece(rest: &str, first: char) -> (usize, usize) {
    if rest.starts_with("//") {
        return (0, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (0, block_comment(rest));
    }
    match first {
        '"' => (0, string(rest)),
        '\'' => match char_literal(rest) {
            Some(length) => (0, length),
            None => (1, 0),
        },
        _ if is_word(first) => {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let raw = if matches!(&rest[..end], "r" | "br" | "cr") { raw_string(&rest[end..]) } else { 0 };
            (end, raw)
        }
        _ => (first.len_utf8(), 0),
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Length of the block comment `rest` starts with; they nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of the string literal `rest` starts with.
fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of the raw string whose `r` stands right before `rest`; zero if there is none (`r#type` is an identifier).
fn raw_string(rest: &str) -> usize {
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if !rest[hashes..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 1;
    rest[start..].find(&close).map_or(rest.len(), |at| start + at + close.len())
}

/// Length of the character literal `rest` starts with; none if it is a lifetime.
fn char_literal(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, inner) = chars.next()?;
    if inner == '\\' {
        // The escaped character itself may be a quote.
        chars.next()?;
        return chars.find(|&(_, c)| c == '\'').map(|(at, _)| at + 1);
    }
    chars.next().filter(|&(_, c)| c == '\'').map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blanks are squeezed so that the tables below stay readable.
    #[track_caller]
    fn check(source: &str, expected: &str) {
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count(), "line numbers moved");
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn comments_are_blanked() {
        check("a // fn b\nc", "a c");
        check("a /* fn\n /* nested */ b */ c", "a c");
        check("a / b", "a / b");
        check("a /* never closed fn b", "a");
    }

    #[test]
    fn strings_are_blanked() {
        check(r#"a("fn b", b"x", c"y")"#, "a( , b , c )");
        check(r#"a("quote \" fn b \\") c"#, "a( ) c");
        check("a(r\"\\\") c", "a(r ) c");
        check("a(r##\"x \"# fn b\"##) c", "a(r ) c");
        check("br#\"fn b\"# c", "br c");
        check("\"// no comment\" c", "c");
    }

    #[test]
    fn characters_are_blanked_and_lifetimes_stay() {
        check(r"m('x', '\'', '\\', '\u{1F600}', 'é') c", "m( , , , , ) c");
        check("m('\"') c '\"'", "m( ) c");
        check("fn f<'a>(x: &'a str) -> &'static str", "fn f<'a>(x: &'a str) -> &'static str");
    }

    #[test]
    fn raw_identifiers_are_code() {
        check("r#type + her\"x\"", "r#type + her");
    }
}
