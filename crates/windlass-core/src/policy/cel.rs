//! The one place that knows the CEL library. It parses and evaluates by deep recursion with large frames, and a stack that
//! overflows takes the process with it. So everything is bounded before it is handed over: length and nesting of the
//! text, depth of the tree, loops within loops, what loops may look at and make; and what is not small runs on a stack of
//! its own.

use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;

use cel_core::parser::macros::STANDARD_MACROS;
use cel_core::parser::{MacroRegistry, ParseOptions, parse_with_options};
use cel_core::{Activation, Ast, Env, EvalError, EvalErrorKind, Program, Value};

use super::expression::BadExpression;
use super::facts::Facts;
use super::lower::{Lowered, lower};
use super::meter;
use super::tree::{self, Shape};
use crate::limits;

/// Variables an expression may use.
const VARIABLES: [&str; 6] = ["args", "tool", "caller", "cause", "session", "history"];

/// Macros an expression may use. The library has more: `cel.bind` and `optMap` write an argument twice, so that a short text
/// becomes a tree, or a value, without bound.
const MACROS: [&str; 7] = ["has", "all", "exists", "exists_one", "existsOne", "map", "filter"];

/// What an expression may need, were it nothing but brackets, in a build without optimisation: 30 KiB for each. Reserved, not
/// touched: only what is used costs memory.
const STACK: usize = 48 << 20;

/// Trees up to this depth (`args.a > 1 && args.b` has 4) over values up to the other depth are evaluated on the caller's
/// stack, in less than 200 KiB; a thread costs a hundred times what they do.
const SHALLOW: (usize, usize) = (16, 32);

/// Longest text of a problem.
const PROBLEM_CHARS: usize = 240;

/// Functions are looked up here.
static ENV: LazyLock<Env> = LazyLock::new(|| {
    Env::new().with_extension(cel_core::ext::optionals_extension()).with_extension(meter::functions())
});

pub(crate) struct Compiled {
    program: Program,
    shape: Shape,
}

impl Compiled {
    pub(crate) fn new(source: &str) -> Result<Self, BadExpression> {
        let bad = |problem: String| BadExpression::new(source, None, problem);
        tree::check_text(source).map_err(bad)?;
        on_own_stack(|| {
            let parsed = parse_with_options(source, ParseOptions::with_macros(macros()));
            if let Some(error) = parsed.errors.first() {
                let problem = clipped(&plain(source, &error.message, error.span.start));
                return Err(BadExpression::new(source, position(source, error.span.start), problem));
            }
            let mut root = parsed.ast.ok_or_else(|| bad("it does not parse".to_owned()))?;
            let shape = tree::shape(&mut root, &VARIABLES)
                .map_err(|(start, problem)| BadExpression::new(source, position(source, start), problem))?;
            let program = ENV.program(&Ast::new_unchecked(root, source)).map_err(|error| bad(error.to_string()))?;
            Ok(Self { program, shape })
        })
        .unwrap_or_else(|problem| Err(bad(problem)))
    }

    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.shape.variables.contains(variable)
    }

    pub(crate) fn condition(&self, facts: &Facts<'_>) -> Result<bool, String> {
        match self.run(facts)? {
            Value::Bool(holds) => Ok(holds),
            other => Err(format!("it gives {}, not true or false", kind(&other))),
        }
    }

    pub(crate) fn text(&self, facts: &Facts<'_>) -> Result<String, String> {
        match self.run(facts)? {
            Value::String(text) => Ok(text.as_ref().to_owned()),
            Value::Int(number) => Ok(number.to_string()),
            Value::UInt(number) => Ok(number.to_string()),
            Value::Double(number) => Ok(number.to_string()),
            Value::Bool(truth) => Ok(truth.to_string()),
            Value::Null => Ok("null".to_owned()),
            other => Err(format!("it gives {}, not a text; pick a part of it, or use string()", kind(&other))),
        }
    }

    fn run(&self, facts: &Facts<'_>) -> Result<Value, String> {
        let scope = Scope::new(&self.shape, facts)?;
        let evaluate = || meter::metered(|| self.program.eval(&scope));
        let result = if self.shape.depth <= SHALLOW.0 && scope.depth() <= SHALLOW.1 {
            std::panic::catch_unwind(AssertUnwindSafe(evaluate)).map_err(|_| panicked())
        } else {
            on_own_stack(evaluate)
        };
        match result? {
            Some(Value::Error(error)) => Err(explain(&error)),
            Some(value) => Ok(value),
            None => Err("it looks at too much, too often; loop over less, or ask for approval always".to_owned()),
        }
    }
}

fn macros() -> MacroRegistry {
    let mut registry = MacroRegistry::new();
    STANDARD_MACROS.iter().filter(|own| MACROS.contains(&own.name)).for_each(|own| registry.register(own.clone()));
    registry
}

/// The variables an expression uses.
struct Scope {
    variables: Vec<(&'static str, Lowered)>,
}

impl Scope {
    fn new(shape: &Shape, facts: &Facts<'_>) -> Result<Self, String> {
        let mut variables = Vec::new();
        for name in VARIABLES.into_iter().filter(|name| shape.variables.contains(name)) {
            let value = lower(name, facts)?;
            if shape.loops && value.nodes > limits::EXPRESSION_NODES {
                let most = limits::EXPRESSION_NODES;
                return Err(format!("`{name}` has more than {most} values, which is too much to loop over"));
            }
            variables.push((name, value));
        }
        Ok(Self { variables })
    }

    fn depth(&self) -> usize {
        self.variables.iter().map(|(_, value)| value.depth).max().unwrap_or(0)
    }
}

impl Activation for Scope {
    /// Looking at a variable costs what it holds, so that a loop over it inside a loop over it comes to an end.
    fn resolve(&self, name: &str) -> Option<Value> {
        let (_, value) = self.variables.iter().find(|(own, _)| *own == name)?;
        meter::charge(value.nodes).then(|| value.value.clone())
    }
}

/// Does something that needs more stack than a caller may have.
fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("windlass-cel".to_owned()).stack_size(STACK);
        let running =
            thread.spawn_scoped(scope, work).map_err(|error| format!("there is no thread for it: {error}"))?;
        running.join().map_err(|_| panicked())
    })
}

fn panicked() -> String {
    "the CEL library panicked; write it more simply".to_owned()
}

/// A problem of the parser, which names tokens as the library has them, with what is written there instead.
fn plain(source: &str, problem: &str, start: usize) -> String {
    let rest = source.get(start..).unwrap_or_default();
    let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let written = match rest.chars().next() {
        None => "the end".to_owned(),
        Some(first) => format!("`{}`", &rest[..word.max(first.len_utf8())]),
    };
    match problem.split_once(", found ") {
        Some((expected, _)) => format!("{expected}, found {written}"),
        None if problem.starts_with("unexpected token:") => format!("unexpected {written}"),
        None => problem.to_owned(),
    }
}

/// Line and column of a byte.
fn position(source: &str, start: usize) -> Option<(usize, usize)> {
    let before = source.get(..start)?;
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Some((line, column))
}

fn explain(error: &EvalError) -> String {
    let message = error.message.as_str();
    let subject = message.rsplit(": ").next().unwrap_or(message);
    match error.kind {
        EvalErrorKind::KeyNotFound => {
            clipped(&format!("there is no `{}`; ask first with has(…)", subject.trim_matches('"')))
        }
        EvalErrorKind::FieldNotFound => {
            clipped(&format!("only maps have fields, and `{subject}` is asked of something else"))
        }
        EvalErrorKind::NoMatchingOverload => {
            let operator = subject.trim_matches('_');
            clipped(&format!("`{operator}` does not take these; convert first, with int(), double() or string()"))
        }
        EvalErrorKind::UnknownFunction => clipped(&format!("`{subject}` does not take these arguments")),
        EvalErrorKind::TypeMismatch => clipped(&format!("{message}; convert first, with int(), double() or string()")),
        EvalErrorKind::Overflow => clipped(&format!("{message}: a number overflows; compare instead of computing")),
        EvalErrorKind::DivisionByZero | EvalErrorKind::ModuloByZero => "it divides by zero".to_owned(),
        EvalErrorKind::IndexOutOfBounds => "an index is out of bounds; ask for size() first".to_owned(),
        _ => clipped(message),
    }
}

fn clipped(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(PROBLEM_CHARS).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        Value::Int(_) | Value::UInt(_) | Value::Double(_) => "a number",
        Value::String(_) => "a text",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "a truth value",
        Value::Null => "null",
        _ => "something else",
    }
}
