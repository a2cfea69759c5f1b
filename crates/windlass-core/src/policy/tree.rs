//! What an expression looks like, and whether that is within bounds. On the way it is rewritten so that evaluating it is
//! charged: see `meter.rs`.

use std::collections::BTreeSet;

use cel_core::{ComprehensionData, Expr, Spanned, SpannedExpr};

use super::meter;
use crate::limits;

/// What the library calls the values that its loops collect. An expression that named them would not be charged rightly.
const COLLECTED: &str = "__result__";

/// Types that may be named, as in `type(args.n) == int`.
const TYPES: [&str; 9] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];

/// Functions there are, besides operators and macros. A misspelt one is refused when it is written, not when it is called.
const FUNCTIONS: [&str; 21] = [
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "hasValue",
    "int",
    "matches",
    "none",
    "of",
    "ofNonZeroValue",
    "optional",
    "or",
    "orValue",
    "size",
    "startsWith",
    "string",
    "type",
    "uint",
    "value",
];

/// What must be known of an expression before it is evaluated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Which of the variables it uses.
    pub(crate) variables: BTreeSet<&'static str>,
    pub(crate) depth: usize,
    /// Whether it loops: `all`, `exists`, `exists_one`, `map`, `filter`.
    pub(crate) loops: bool,
}

/// Refuses what the library's parser could not take, before it sees it. Nesting that hides behind the quote of a raw text or
/// a comment is not seen here: the parser's stack is large enough for any text of this length.
pub(crate) fn check_text(source: &str) -> Result<(), String> {
    if source.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    if source.len() > limits::EXPRESSION_BYTES {
        let (length, most) = (source.len(), limits::EXPRESSION_BYTES);
        return Err(format!("it is {length} bytes long, and {most} is the limit"));
    }
    if source.contains(COLLECTED) {
        return Err(format!("`{COLLECTED}` is a name of the CEL library; choose another"));
    }
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut quote = None;
    let mut escaped = false;
    for c in source.chars() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            // A condition nests without brackets: each arm holds the rest.
            (None, '(' | '[' | '{' | '?') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    if deepest > limits::EXPRESSION_NESTING {
        let most = limits::EXPRESSION_NESTING;
        return Err(format!("it nests {deepest} deep, and {most} is the limit"));
    }
    Ok(())
}

/// A problem, and the byte of the text where it is.
type Problem = (usize, String);

/// The shape of a tree, or what is wrong with it.
pub(crate) fn shape(root: &mut SpannedExpr, variables: &[&'static str]) -> Result<Shape, Problem> {
    let mut walk = Walk { known: variables, bound: Vec::new(), loops: 0, shape: Shape::default() };
    walk.visit(root, 1)?;
    Ok(walk.shape)
}

struct Walk<'k> {
    known: &'k [&'static str],
    /// Names that loops have bound around here.
    bound: Vec<String>,
    /// Loops around here.
    loops: usize,
    shape: Shape,
}

impl Walk<'_> {
    fn visit(&mut self, node: &mut SpannedExpr, depth: usize) -> Result<(), Problem> {
        let start = node.span.start;
        if depth > limits::EXPRESSION_DEPTH {
            return Err((start, "too many operators in a row; split it".to_owned()));
        }
        self.shape.depth = self.shape.depth.max(depth);
        let below = depth + 1;
        match &mut node.node {
            Expr::Null | Expr::Bool(_) | Expr::Int(_) | Expr::UInt(_) | Expr::Float(_) => Ok(()),
            Expr::String(_) | Expr::Bytes(_) => Ok(()),
            Expr::Ident(_) | Expr::RootIdent(_) => self.name(node),
            Expr::List(elements) => elements.iter_mut().try_for_each(|element| self.visit(&mut element.expr, below)),
            Expr::Map(entries) => entries.iter_mut().try_for_each(|entry| {
                self.visit(&mut entry.key, below)?;
                self.visit(&mut entry.value, below)
            }),
            Expr::Unary { expr, .. } | Expr::Member { expr, .. } => self.visit(expr, below),
            Expr::Binary { left, right, .. } => {
                self.visit(left, below)?;
                self.visit(right, below)
            }
            Expr::Ternary { cond, then_expr, else_expr } => {
                [cond, then_expr, else_expr].into_iter().try_for_each(|part| self.visit(part, below))
            }
            Expr::Index { expr, index, .. } => {
                self.visit(expr, below)?;
                self.visit(index, below)?;
                if !matches!(index.node, Expr::Int(_) | Expr::String(_)) {
                    let inner = Spanned::new(0, std::mem::replace(&mut index.node, Expr::Null), index.span.clone());
                    index.node = call(meter::INDEX, vec![inner]);
                }
                Ok(())
            }
            Expr::Call { expr, args } => {
                self.called(expr, below)?;
                args.iter_mut().try_for_each(|argument| self.visit(argument, below))
            }
            Expr::Struct { .. } => Err((start, "there are no message types here".to_owned())),
            Expr::Comprehension(parts) => self.comprehension(parts, start, below),
            Expr::MemberTestOnly { expr, field } => {
                self.visit(expr, below)?;
                let (span, field) = (node.span.clone(), Expr::String(std::mem::take(field)));
                let operand = std::mem::replace(&mut **expr, Spanned::new(0, Expr::Null, span.clone()));
                node.node = call(meter::HAS, vec![operand, Spanned::new(0, field, span)]);
                Ok(())
            }
            Expr::Bind { .. } | Expr::Error => Err((start, "it does not parse".to_owned())),
        }
    }

    /// What is called: the name of a function, or that of a method with what it is called on.
    fn called(&mut self, callee: &mut SpannedExpr, below: usize) -> Result<(), Problem> {
        let (name, at) = match &callee.node {
            Expr::Ident(name) | Expr::RootIdent(name) => (name, callee.span.start),
            Expr::Member { field, .. } => (field, callee.span.end.saturating_sub(field.len())),
            _ => return Err((callee.span.start, "only functions can be called".to_owned())),
        };
        if !FUNCTIONS.contains(&name.as_str()) {
            return Err((at, format!("there is no function `{name}`")));
        }
        match &mut callee.node {
            // `optional.of(x)` names a function, not a variable.
            Expr::Member { expr, .. } if !matches!(&expr.node, Expr::Ident(name) if name == "optional") => {
                self.visit(expr, below)
            }
            _ => Ok(()),
        }
    }

    fn comprehension(&mut self, parts: &mut ComprehensionData, start: usize, below: usize) -> Result<(), Problem> {
        self.visit(&mut parts.iter_range, below)?;
        self.visit(&mut parts.accu_init, below)?;
        self.loops += 1;
        if self.loops > limits::EXPRESSION_LOOPS {
            return Err((start, format!("more than {} loops within one another", limits::EXPRESSION_LOOPS)));
        }
        self.shape.loops = true;
        let bound = self.bound.len();
        self.bound.extend([parts.iter_var.clone(), parts.iter_var2.clone(), parts.accu_var.clone()]);
        for part in [&mut parts.loop_condition, &mut parts.loop_step, &mut parts.result] {
            self.visit(part, below)?;
        }
        self.bound.truncate(bound);
        self.loops -= 1;
        Ok(())
    }

    fn name(&mut self, node: &mut SpannedExpr) -> Result<(), Problem> {
        let (name, is_root) = match &node.node {
            Expr::Ident(name) => (name, false),
            Expr::RootIdent(name) => (name, true),
            _ => return Ok(()),
        };
        let inner = |node: &SpannedExpr| Spanned::new(0, node.node.clone(), node.span.clone());
        if !is_root && self.bound.contains(name) {
            let function = if name == COLLECTED { meter::COLLECTED } else { meter::ITEM };
            node.node = call(function, vec![inner(node)]);
            return Ok(());
        }
        if let Some(known) = self.known.iter().find(|known| **known == name) {
            self.shape.variables.insert(known);
            // Of a bare name with fields the library looks up each prefix as a variable of its own, at a cost each time.
            let constant = |expr| Box::new(Spanned::new(0, expr, node.span.clone()));
            node.node = Expr::Ternary {
                cond: constant(Expr::Bool(true)),
                then_expr: Box::new(inner(node)),
                else_expr: constant(Expr::Null),
            };
            return Ok(());
        }
        if !is_root && TYPES.contains(&name.as_str()) {
            return Ok(());
        }
        Err((node.span.start, format!("there is no `{name}`; an expression sees {}", self.known.join(", "))))
    }
}

fn call(function: &str, args: Vec<SpannedExpr>) -> Expr {
    let span = args.first().map_or(0..0, |argument| argument.span.clone());
    Expr::Call { expr: Box::new(Spanned::new(0, Expr::Ident(function.to_owned()), span)), args }
}
