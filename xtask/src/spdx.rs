//! Licence expressions: can this one be met with only the licences on a list?

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

/// Whether `expression` can be satisfied by licences in `allowed`.
///
/// Understands `OR` and the old `/`, `AND` (binding tighter), `WITH`, parentheses and a trailing `+`. A licence with an
/// exception must be listed together with it: an exception changes the terms.
pub(crate) fn satisfiable(expression: &str, allowed: &BTreeSet<String>) -> Result<bool> {
    let mut parser = Parser { tokens: tokens(expression), at: 0, allowed };
    ensure!(!parser.tokens.is_empty(), "the licence expression is empty");
    let answer = parser.any()?;
    match parser.peek() {
        None => Ok(answer),
        Some(token) => bail!("`{token}` is not expected there in `{expression}`"),
    }
}

fn tokens(expression: &str) -> Vec<String> {
    let mut spaced = expression.to_owned();
    for mark in ["(", ")", "/"] {
        spaced = spaced.replace(mark, &format!(" {mark} "));
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Parser<'a> {
    tokens: Vec<String>,
    at: usize,
    allowed: &'a BTreeSet<String>,
}

impl Parser<'_> {
    fn any(&mut self) -> Result<bool> {
        let mut answer = self.all()?;
        while self.take("OR") || self.take("/") {
            answer |= self.all()?;
        }
        Ok(answer)
    }

    fn all(&mut self) -> Result<bool> {
        let mut answer = self.one()?;
        while self.take("AND") {
            answer &= self.one()?;
        }
        Ok(answer)
    }

    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let answer = self.any()?;
            ensure!(self.take(")"), "a parenthesis is not closed");
            return Ok(answer);
        }
        let licence = self.name()?;
        if self.take("WITH") {
            let exception = self.name()?;
            return Ok(self.allowed.contains(&format!("{licence} WITH {exception}")));
        }
        // "This version or any later": the version named is one way to meet it.
        Ok(self.allowed.contains(licence.trim_end_matches('+')))
    }

    fn name(&mut self) -> Result<String> {
        let Some(token) = self.peek() else { bail!("a licence is missing at the end") };
        let operator = matches!(token, "(" | ")" | "/") || ["OR", "AND", "WITH"].iter().any(|op| is(token, op));
        ensure!(!operator, "`{token}` stands where a licence should");
        let name = token.to_owned();
        self.at += 1;
        Ok(name)
    }

    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn take(&mut self, token: &str) -> bool {
        let there = self.peek().is_some_and(|next| is(next, token));
        self.at += usize::from(there);
        there
    }
}

/// Published manifests write operators in any case.
fn is(token: &str, operator: &str) -> bool {
    token.eq_ignore_ascii_case(operator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(expression: &str) -> Result<bool, String> {
        let allowed = ["MIT", "Apache-2.0", "ISC", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        satisfiable(expression, &allowed.map(str::to_owned).into()).map_err(|error| error.to_string())
    }

    #[test]
    fn satisfiable_expressions() {
        for expression in [
            "MIT",
            "MIT OR Apache-2.0",
            "GPL-3.0-only OR MIT",
            "MIT/GPL-2.0",
            "Apache-2.0 AND ISC",
            "(MIT OR GPL-3.0-only) AND Unicode-3.0",
            "GPL-3.0-only OR MIT AND ISC",
            "GPL-3.0-only OR (AGPL-3.0-only OR (ISC))",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
            "Apache-2.0+",
            "gpl or MIT",
        ] {
            assert_eq!(judge(expression), Ok(true), "{expression}");
        }
    }

    #[test]
    fn unsatisfiable_expressions() {
        for expression in [
            "AGPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR ISC) AND GPL-3.0-only",
            "MIT AND GPL-3.0-only OR GPL-2.0-only",
            "GPL-2.0-only WITH Classpath-exception-2.0",
            "MIT WITH LLVM-exception",
            "mit",
        ] {
            assert_eq!(judge(expression), Ok(false), "{expression}");
        }
    }

    #[test]
    fn malformed_expressions_say_what_is_wrong() {
        for (expression, complaint) in [
            ("", "the licence expression is empty"),
            ("MIT OR", "a licence is missing at the end"),
            ("OR MIT", "`OR` stands where a licence should"),
            ("(MIT", "a parenthesis is not closed"),
            ("MIT)", "`)` is not expected there in `MIT)`"),
            ("MIT ISC", "`ISC` is not expected there in `MIT ISC`"),
            ("MIT WITH", "a licence is missing at the end"),
        ] {
            assert_eq!(judge(expression), Err(complaint.to_owned()), "{expression}");
        }
    }
}
