//! What an evaluation may cost. The CEL library has no budget of its own, so an expression is rewritten when it is compiled
//! (see `tree.rs`): each mention of a variable and each turn of a loop is charged here. Loops can make values that are
//! larger than what they loop over, so an item is charged with all that it holds, each time it is named.

use std::cell::RefCell;
use std::sync::Arc;

use cel_core::{CelType, EvalError, FunctionDecl, MapKey, OptionalValue, OverloadDecl, Value};
use regex::{Regex, RegexBuilder};

use crate::limits;

/// Charges and returns the item of a loop. The lexer of the library knows no `@`, so no expression can name these.
pub(crate) const ITEM: &str = "@item";
/// Charges and returns what a loop has collected so far.
pub(crate) const COLLECTED: &str = "@collected";
/// Whether a map has a field. The library's own test takes any error for a no, and a condition must not be decided by one.
pub(crate) const HAS: &str = "@has";

/// Refuses a negative index, which the library counts from the end, and CEL does not have.
pub(crate) const INDEX: &str = "@index";

/// Bytes of a text that count as one value.
const TEXT_NODE: usize = 64;

/// Items that count as one value when a list is copied to be extended.
const COPIED_NODE: usize = 32;

/// What compiling a pattern of `matches` costs, as values looked at: about half a millisecond at the most.
const PATTERN_STEPS: u64 = 2_000;

/// Largest compiled pattern of `matches`.
const PATTERN_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Meter {
    left: u64,
    /// The pattern of `matches` that was used last: inside a loop it is the same each time.
    pattern: Option<(Arc<str>, Regex)>,
}

thread_local! {
    /// An evaluation begins and ends on one thread, and the functions of the library are handed nothing but arguments.
    static METER: RefCell<Meter> = RefCell::default();
}

/// Evaluates with a full budget. `None` if it was used up.
pub(crate) fn metered(evaluate: impl FnOnce() -> Value) -> Option<Value> {
    METER.set(Meter { left: limits::EXPRESSION_STEPS, pattern: None });
    let value = evaluate();
    let left = METER.take().left;
    (left > 0).then_some(value)
}

/// Takes from the budget. False once it is used up.
pub(crate) fn charge(steps: u64) -> bool {
    METER.with_borrow_mut(|meter| {
        meter.left = meter.left.saturating_sub(steps);
        meter.left > 0
    })
}

/// How much a text counts.
pub(crate) fn text_nodes(bytes: usize) -> u64 {
    1 + (bytes / TEXT_NODE) as u64
}

/// The functions that an expression is rewritten to use, and those that would cost too much as the library has them.
pub(crate) fn functions() -> [FunctionDecl; 5] {
    let pair = || vec![CelType::String, CelType::String];
    [
        function(ITEM, vec![CelType::Dyn], |args| charged(args, weigh)),
        function(COLLECTED, vec![CelType::Dyn], |args| charged(args, |value, _| copied(value))),
        function(INDEX, vec![CelType::Dyn], index),
        function(HAS, vec![CelType::Dyn, CelType::String], has),
        FunctionDecl::new("matches")
            .with_overload(OverloadDecl::function("matches", pair(), CelType::Bool).with_impl(matches))
            .with_overload(OverloadDecl::method("matches_string", pair(), CelType::Bool).with_impl(matches)),
    ]
}

fn function(name: &str, params: Vec<CelType>, run: impl Fn(&[Value]) -> Value + Send + Sync + 'static) -> FunctionDecl {
    FunctionDecl::new(name).with_overload(OverloadDecl::function(name, params, CelType::Dyn).with_impl(run))
}

fn charged(args: &[Value], cost: impl FnOnce(&Value, u64) -> u64) -> Value {
    let [value] = args else { return overload("loop") };
    let left = METER.with_borrow(|meter| meter.left);
    if charge(cost(value, left)) { value.clone() } else { used_up() }
}

/// How many values there are in `value`, as far as `most`.
fn weigh(value: &Value, most: u64) -> u64 {
    let sum = |items: &mut dyn Iterator<Item = &Value>| {
        let mut nodes = 1;
        for item in items {
            if nodes >= most {
                break;
            }
            nodes += weigh(item, most - nodes);
        }
        nodes
    };
    match value {
        Value::String(text) => text_nodes(text.len()),
        Value::Bytes(bytes) => text_nodes(bytes.len()),
        Value::List(items) => sum(&mut items.iter()),
        Value::Map(entries) => sum(&mut entries.values()),
        Value::Optional(OptionalValue::Some(inner)) => 1 + weigh(inner, most),
        _ => 1,
    }
}

fn copied(value: &Value) -> u64 {
    match value {
        Value::List(items) => 1 + (items.len() / COPIED_NODE) as u64,
        _ => 1,
    }
}

fn index(args: &[Value]) -> Value {
    match args {
        [Value::Int(index)] if *index < 0 => Value::error(EvalError::index_out_of_bounds(*index, 0)),
        [index] => index.clone(),
        _ => overload("index"),
    }
}

fn has(args: &[Value]) -> Value {
    let [value, Value::String(field)] = args else { return overload("has") };
    let value = match value {
        Value::Optional(OptionalValue::None) => return Value::Bool(false),
        Value::Optional(OptionalValue::Some(inner)) => inner,
        plain => plain,
    };
    match value {
        Value::Map(map) => Value::Bool(map.contains_key(&MapKey::String(field.clone()))),
        _ => Value::error(EvalError::field_not_found(field)),
    }
}

fn matches(args: &[Value]) -> Value {
    let [Value::String(text), Value::String(pattern)] = args else { return overload("matches") };
    let known =
        |meter: &Meter| meter.pattern.as_ref().filter(|(own, _)| own == pattern).map(|(_, regex)| regex.clone());
    let regex = match METER.with_borrow(known) {
        Some(regex) => regex,
        None if !charge(PATTERN_STEPS + text_nodes(pattern.len())) => return used_up(),
        None => match RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build() {
            Ok(regex) => {
                METER.with_borrow_mut(|meter| meter.pattern = Some((pattern.clone(), regex.clone())));
                regex
            }
            Err(error) => {
                let error = error.to_string();
                let problem = error.lines().last().unwrap_or_default();
                return Value::error(EvalError::invalid_argument(format!("`matches`: {problem}")));
            }
        },
    };
    if charge(text_nodes(text.len())) { Value::Bool(regex.is_match(text)) } else { used_up() }
}

fn overload(function: &str) -> Value {
    Value::error(EvalError::no_matching_overload(function))
}

/// [`metered`] makes nothing of it but that the budget was used up.
fn used_up() -> Value {
    Value::error(EvalError::internal("the budget is used up"))
}
