//! What an expression looks like, and whether that is within bounds.

use std::collections::BTreeSet;

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr};

use crate::limits;

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

/// Refuses what the library's parser could not take, before it sees it.
pub(crate) fn check_text(source: &str) -> Result<(), String> {
    if source.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    if source.len() > limits::EXPRESSION_BYTES {
        let (length, most) = (source.len(), limits::EXPRESSION_BYTES);
        return Err(format!("it is {length} bytes long, and {most} is the limit"));
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

/// The shape of a tree, or which node is wrong and why.
pub(crate) fn shape(root: &IdedExpr, variables: &[&'static str]) -> Result<Shape, (u64, String)> {
    let mut walk = Walk { known: variables, bound: Vec::new(), loops: 0, shape: Shape::default() };
    walk.visit(root, 1)?;
    Ok(walk.shape)
}

struct Walk<'e> {
    known: &'e [&'static str],
    /// Names that loops have bound around here.
    bound: Vec<&'e str>,
    /// Loops around here.
    loops: usize,
    shape: Shape,
}

type Visited = Result<(), (u64, String)>;

impl<'e> Walk<'e> {
    fn visit(&mut self, node: &'e IdedExpr, depth: usize) -> Visited {
        if depth > limits::EXPRESSION_DEPTH {
            return Err((node.id, "too many operators in a row; split it".to_owned()));
        }
        self.shape.depth = self.shape.depth.max(depth);
        let below = depth + 1;
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.name(node.id, name),
            Expr::Select(select) => self.visit(&select.operand, below),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.visit(element, below)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| self.entry(entry, below)),
            Expr::Struct(_) => Err((node.id, "there are no message types here".to_owned())),
            Expr::Call(call) => {
                let name = &call.func_name;
                // `optional.of(x)` names a function, not a variable.
                let namespace = |target: &IdedExpr| matches!(&target.expr, Expr::Ident(name) if name == "optional");
                if name.chars().all(char::is_alphanumeric) && !FUNCTIONS.contains(&name.as_str()) {
                    return Err((node.id, format!("there is no function `{name}`")));
                }
                if let Some(target) = call.target.as_deref().filter(|target| !namespace(target)) {
                    self.visit(target, below)?;
                }
                call.args.iter().try_for_each(|argument| self.visit(argument, below))
            }
            Expr::Comprehension(_) => self.comprehension(node, below),
        }
    }

    fn comprehension(&mut self, node: &'e IdedExpr, below: usize) -> Visited {
        let Expr::Comprehension(parts) = &node.expr else { return Ok(()) };
        self.visit(&parts.iter_range, below)?;
        self.visit(&parts.accu_init, below)?;
        self.loops += 1;
        if self.loops > limits::EXPRESSION_LOOPS {
            return Err((node.id, format!("more than {} loops within one another", limits::EXPRESSION_LOOPS)));
        }
        self.shape.loops = true;
        let bound = self.bound.len();
        self.bound.extend([parts.iter_var.as_str(), parts.accu_var.as_str()]);
        self.bound.extend(parts.iter_var2.as_deref());
        for part in [&parts.loop_cond, &parts.loop_step, &parts.result] {
            self.visit(part, below)?;
        }
        self.bound.truncate(bound);
        self.loops -= 1;
        Ok(())
    }

    fn entry(&mut self, entry: &'e IdedEntryExpr, below: usize) -> Visited {
        match &entry.expr {
            EntryExpr::StructField(field) => self.visit(&field.value, below),
            EntryExpr::MapEntry(entry) => {
                self.visit(&entry.key, below)?;
                self.visit(&entry.value, below)
            }
        }
    }

    fn name(&mut self, id: u64, name: &'e str) -> Visited {
        if self.bound.contains(&name) {
            return Ok(());
        }
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(known) = self.known.iter().find(|known| **known == name) {
            self.shape.variables.insert(known);
            return Ok(());
        }
        if TYPES.contains(&name) {
            return Ok(());
        }
        Err((id, format!("there is no `{name}`; an expression sees {}", self.known.join(", "))))
    }
}
