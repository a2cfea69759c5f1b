//! The one place that knows the CEL library. It parses and evaluates by deep recursion with large frames, and a stack that
//! overflows takes the process with it. So everything is bounded before it is handed over: length and nesting of the
//! text, depth of the tree, loops within loops, what loops may look at; and what is not small runs on a stack of its own.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use cel::common::ast::SourceInfo;
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, ParseErrors, Program, Value};

use super::expression::BadExpression;
use super::facts::Facts;
use super::lower::{Lowered, lower};
use super::tree::{self, Shape};
use crate::limits;

/// Variables an expression may use.
const VARIABLES: [&str; 4] = ["args", "tool", "session", "history"];

/// What an expression may need, were everything as deep as it may be, in a build without optimisation. Reserved, not
/// touched: only what is used costs memory.
const STACK: usize = 16 << 20;

/// Trees up to this depth (`args.a > 1 && args.b` has 4) over values up to the other depth are evaluated where the caller
/// stands, in less than 200 KiB; a thread costs a hundred times what they do. Optimised frames are a fraction as large.
const SHALLOW: (usize, usize) = if cfg!(debug_assertions) { (4, 8) } else { (12, 16) };

/// Longest text of a problem.
const PROBLEM_CHARS: usize = 240;

/// Functions and macros are looked up here; making one costs more than most evaluations.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

pub(crate) struct Compiled {
    program: Program,
    shape: Shape,
}

impl Compiled {
    pub(crate) fn new(source: &str) -> Result<Self, BadExpression> {
        let bad = |problem: String| BadExpression::new(source, None, problem);
        tree::check_text(source).map_err(bad)?;
        on_own_stack(|| {
            let program = ENV.compile(source).map_err(|errors| syntax(source, &errors))?;
            let shape = tree::shape(program.expression(), &VARIABLES)
                .map_err(|(id, problem)| BadExpression::new(source, position(program.source_info(), id), problem))?;
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
            Value::String(text) => Ok(text.as_ref().clone()),
            Value::Int(number) => Ok(number.to_string()),
            Value::UInt(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            Value::Bool(truth) => Ok(truth.to_string()),
            Value::Null => Ok("null".to_owned()),
            other => Err(format!("it gives {}, not a text; pick a part of it, or use string()", kind(&other))),
        }
    }

    fn run(&self, facts: &Facts<'_>) -> Result<Value, String> {
        let scope = Scope::new(&self.shape, facts)?;
        let shallow = self.shape.depth <= SHALLOW.0 && scope.depth() <= SHALLOW.1;
        let result = if shallow {
            std::panic::catch_unwind(AssertUnwindSafe(|| self.execute(&scope))).map_err(|_| panicked())
        } else {
            on_own_stack(|| self.execute(&scope))
        };
        if scope.is_exhausted() {
            return Err("it looks at too much, too often; loop over less, or ask for approval always".to_owned());
        }
        result?
    }

    fn execute(&self, scope: &Scope<'_>) -> Result<Value, String> {
        let mut context = Context::with_env(ENV.clone());
        context.set_variable_resolver(scope);
        self.program.execute(&context).map_err(|error| explain(&error))
    }
}

/// The variables an expression uses, and how much more of them it may look at.
struct Scope<'v> {
    variables: Vec<(&'static str, Lowered<'v>)>,
    left: AtomicU64,
}

impl<'v> Scope<'v> {
    fn new(shape: &Shape, facts: &Facts<'v>) -> Result<Self, String> {
        let mut variables = Vec::new();
        for name in VARIABLES.into_iter().filter(|name| shape.variables.contains(name)) {
            let value = lower(name, facts)?;
            if shape.loops && value.nodes > limits::EXPRESSION_NODES {
                let most = limits::EXPRESSION_NODES;
                return Err(format!("`{name}` has more than {most} values, which is too much to loop over"));
            }
            variables.push((name, value));
        }
        Ok(Self { variables, left: limits::EXPRESSION_STEPS.into() })
    }

    fn depth(&self) -> usize {
        self.variables.iter().map(|(_, value)| value.depth).max().unwrap_or(0)
    }

    fn is_exhausted(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

impl VariableResolver for Scope<'_> {
    /// Looking at a variable costs what it holds, so that a loop over it inside a loop over it comes to an end.
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let name = variable.strip_prefix('.').unwrap_or(variable);
        let (_, value) = self.variables.iter().find(|(own, _)| *own == name)?;
        let left = self.left.load(Ordering::Relaxed).saturating_sub(value.nodes);
        self.left.store(left, Ordering::Relaxed);
        let value: &'b (dyn Val + 'b) = &*value.value;
        (left > 0).then_some(CowVal::Borrowed(value))
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

fn syntax(source: &str, errors: &ParseErrors) -> BadExpression {
    let Some(first) = errors.errors.first() else {
        return BadExpression::new(source, None, "it does not parse");
    };
    let place = |at: isize| usize::try_from(at).ok().filter(|at| *at > 0);
    let position = place(first.pos.0).zip(place(first.pos.1));
    // What would have been accepted instead is every token of the language.
    let problem = first.msg.split(" expecting {").next().unwrap_or_default();
    BadExpression::new(source, position, clipped(problem))
}

/// Line and column of a node.
fn position(info: &SourceInfo, id: u64) -> Option<(usize, usize)> {
    let (start, _) = info.offset_for(id)?;
    let before: Vec<char> = info.source.chars().take(start as usize).collect();
    let line = before.iter().filter(|c| **c == '\n').count() + 1;
    let column = before.iter().rev().take_while(|c| **c != '\n').count() + 1;
    Some((line, column))
}

fn explain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("there is no `{key}`; ask first with has(…)"),
        ExecutionError::NoSuchOverload(overload) => {
            clipped(&format!("{overload}; convert first, with int(), double() or string()"))
        }
        ExecutionError::UnsupportedBinaryOperator(name, a, b) => {
            format!("`{name}` does not take {} and {}; convert one of them first", kind(a), kind(b))
        }
        ExecutionError::ValuesNotComparable(a, b) => format!("{} and {} cannot be compared", kind(a), kind(b)),
        ExecutionError::Overflow(name, ..) => format!("`{name}` overflows; compare instead of computing"),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero".to_owned(),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds; ask for size() first".to_owned(),
        other => clipped(&other.to_string()),
    }
}

fn clipped(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(PROBLEM_CHARS).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "a list",
        Value::Map(_) | Value::Struct(_) => "a map",
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::String(_) => "a text",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "a truth value",
        Value::Null => "null",
        _ => "something else",
    }
}
