//! Expressions in CEL: conditions of approvals and keys of calls. Compiled once, when a tool or a policy is made; a call
//! only evaluates.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(feature = "cel")]
use super::cel::Compiled;
use super::facts::Facts;
#[cfg(not(feature = "cel"))]
use super::no_cel::Compiled;

/// Characters of an expression that an error repeats.
const SHOWN_CHARS: usize = 160;

/// An expression in [CEL](https://cel.dev) over `args`, `tool`, `caller`, `cause`, `session` and `history`: see [`Facts`]. Cloning shares what
/// was compiled; two are equal if they were written alike.
///
/// Timestamps and durations are not part of it: what is decided must not depend on when it is looked at.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Expression {
    source: Arc<str>,
    compiled: Result<Arc<Compiled>, Arc<BadExpression>>,
}

/// An expression that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadExpression {
    /// The expression, shortened.
    pub expression: String,
    /// Line and column, counted from one, where they are known.
    pub position: Option<(usize, usize)>,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for BadExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expression `{}`", self.expression)?;
        if let Some((line, column)) = self.position {
            write!(f, ", line {line}, column {column}")?;
        }
        let ways = "write a condition in CEL on args, tool, caller, cause, session or history, such as \
                    `args.cents > 10000`";
        write!(f, ": {}; {ways}", self.problem)
    }
}

impl Expression {
    /// Compiles an expression, or says what is wrong with it.
    pub fn parse(source: &str) -> Result<Self, BadExpression> {
        let expression = Self::from(source);
        match expression.check() {
            Ok(()) => Ok(expression),
            Err(bad) => Err(bad.clone()),
        }
    }

    /// What is wrong with it, if anything. One that is wrong can be kept, so that it is refused where it can be refused
    /// with a name; evaluating it fails.
    pub fn check(&self) -> Result<(), &BadExpression> {
        self.compiled.as_ref().map(|_| ()).map_err(|bad| &**bad)
    }

    /// The text it was made from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether evaluating it needs [`Facts::history`], which is expensive to collect.
    pub fn uses_history(&self) -> bool {
        self.compiled.as_ref().is_ok_and(|compiled| compiled.uses("history"))
    }

    /// Whether it looks at nothing but the arguments, the caller and the cause, which are the same for every attempt.
    pub(crate) fn can_be_key(&self) -> bool {
        let others = ["tool", "session", "history"];
        self.compiled.as_ref().is_ok_and(|compiled| !others.iter().any(|name| compiled.uses(name)))
    }

    /// Whether the condition holds. Anything but a clear yes or no is an error that names the expression; the
    /// caller must treat it as the cautious answer.
    pub fn evaluate(&self, facts: &Facts<'_>) -> Result<bool, String> {
        self.try_compiled(|compiled| compiled.condition(facts))
    }

    /// The text it gives: a text as it is; numbers, truth values and null as they are written.
    pub fn text(&self, facts: &Facts<'_>) -> Result<String, String> {
        self.try_compiled(|compiled| compiled.text(facts))
    }

    fn try_compiled<T>(&self, evaluate: impl FnOnce(&Compiled) -> Result<T, String>) -> Result<T, String> {
        let compiled = self.compiled.as_ref().map_err(|bad| bad.to_string())?;
        evaluate(compiled).map_err(|problem| format!("expression `{}`: {problem}", shown(&self.source)))
    }
}

impl BadExpression {
    pub(crate) fn new(source: &str, position: Option<(usize, usize)>, problem: impl Into<String>) -> Self {
        Self { expression: shown(source), position, problem: problem.into() }
    }
}

fn shown(source: &str) -> String {
    let mut shown: String = source.chars().take(SHOWN_CHARS).collect();
    if shown.len() < source.len() {
        shown.push('…');
    }
    shown
}

/// Compiles what may be wrong; see [`Expression::check`].
impl From<&str> for Expression {
    fn from(source: &str) -> Self {
        Self { source: source.into(), compiled: Compiled::new(source).map(Arc::new).map_err(Arc::new) }
    }
}

impl From<String> for Expression {
    fn from(source: String) -> Self {
        Self::from(source.as_str())
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> Self {
        expression.source().to_owned()
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.source)
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.source))
    }
}

#[cfg(test)]
mod tests;
