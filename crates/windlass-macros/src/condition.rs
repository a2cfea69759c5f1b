//! Checks approval conditions at compile time: brackets, quotes, words of other languages, and the arguments they name.
//! The kernel compiles the same CEL text when the tool is registered.

/// The arguments that a condition names (`cents` for `args.cents`), or why it is not a condition.
pub(crate) fn arguments(source: &str) -> Result<Vec<String>, String> {
    let tokens = tokens(source)?;
    check_brackets(&tokens)?;
    for (index, token) in tokens.iter().enumerate() {
        let is_field = index > 0 && tokens[index - 1] == Token::Sign('.');
        match token {
            Token::Word(word) if !is_field => {
                if let Some(right) = CEL_WORDS.iter().find(|(wrong, _)| wrong == word).map(|(_, right)| right) {
                    return Err(format!("CEL writes `{right}` instead of `{word}`"));
                }
            }
            Token::Sign('=') => return Err("CEL compares with `==`".to_owned()),
            _ => {}
        }
    }
    let named = tokens.windows(3).enumerate().filter_map(|(index, window)| match window {
        [Token::Word(args), Token::Sign('.'), Token::Word(name)] => {
            let is_field = index > 0 && tokens[index - 1] == Token::Sign('.');
            // `args.size()` is a function of all arguments.
            let is_call = tokens.get(index + 3) == Some(&Token::Sign('('));
            (args == "args" && !is_field && !is_call).then(|| name.clone())
        }
        _ => None,
    });
    Ok(named.collect())
}

/// Words of other languages, and what CEL has instead.
const CEL_WORDS: &[(&str, &str)] = &[("and", "&&"), ("or", "||"), ("not", "!"), ("None", "null"), ("nil", "null")];

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// An operator of two characters, a number or a literal: nothing here depends on which.
    Other,
    Sign(char),
}

fn tokens(source: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = source.trim();
    if rest.is_empty() {
        return Err("it is empty".to_owned());
    }
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\'' | '"' => {
                tokens.push(Token::Other);
                literal(rest, first)?
            }
            '_' | 'a'..='z' | 'A'..='Z' => {
                let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..word].to_owned()));
                word
            }
            '0'..='9' => {
                tokens.push(Token::Other);
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len())
            }
            _ if ["==", "!=", "<=", ">=", "&&", "||"].iter().any(|sign| rest.starts_with(sign)) => {
                tokens.push(Token::Other);
                2
            }
            sign => {
                tokens.extend((!sign.is_whitespace()).then_some(Token::Sign(sign)));
                sign.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Ok(tokens)
}

/// The length of a literal with its quotes.
fn literal(text: &str, quote: char) -> Result<usize, String> {
    let triple = String::from_iter([quote; 3]);
    if let Some(inside) = text.strip_prefix(&triple) {
        return inside.find(&triple).map(|end| end + 6).ok_or_else(|| format!("a quote `{triple}` is not closed"));
    }
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Ok(index + 1),
            _ => {}
        }
    }
    Err(format!("a quote `{quote}` is not closed"))
}

fn check_brackets(tokens: &[Token]) -> Result<(), String> {
    let mut open = Vec::new();
    for token in tokens {
        match token {
            Token::Sign(sign @ ('(' | '[' | '{')) => open.push(*sign),
            Token::Sign(sign @ (')' | ']' | '}')) => {
                let matching = match sign {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop() != Some(matching) {
                    return Err(format!("`{sign}` closes nothing"));
                }
            }
            _ => {}
        }
    }
    open.pop().map_or(Ok(()), |sign| Err(format!("`{sign}` is not closed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_a_condition_are_found() {
        for (source, named) in [
            ("args.cents > 10000", vec!["cents"]),
            ("args.a == 'args.b' && session.user.args.c != args.d[0].e", vec!["a", "d"]),
            ("size(args.list) >= 2 || args.size() > 3 || !has(args.x)", vec!["list", "x"]),
            (r#"args.text.contains("it's") ? true : history.exists(h, h.tool == 'x')"#, vec!["text"]),
            (r"args.text == 'it\'s' && args.other", vec!["text", "other"]),
        ] {
            assert_eq!(arguments(source), Ok(named.into_iter().map(str::to_owned).collect()), "{source}");
        }
    }

    #[test]
    fn bad_conditions_are_refused() {
        for (source, word) in [
            (" ", "empty"),
            ("args.cents = 5", "`==`"),
            ("args.a > 1 and args.b > 2", "`&&` instead of `and`"),
            ("not args.a", "`!` instead of `not`"),
            ("(args.a > 1", "`(` is not closed"),
            ("args.a > 1)", "`)` closes nothing"),
            ("args.a == 'x", "quote `'` is not closed"),
        ] {
            let problem = arguments(source).unwrap_err();
            assert!(problem.contains(word), "{source}: {problem}");
        }
    }
}
