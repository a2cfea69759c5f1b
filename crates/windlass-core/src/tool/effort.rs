//! Estimates how many steps it takes to check a value against a schema, before the check starts: a validator cannot be
//! interrupted.
//!
//! A step is one keyword that inspects one value, some tens of nanoseconds. References are followed and every branch is
//! counted, so the estimate is an upper bound of the steps that a validator takes.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value};

use super::patterns::PatternCost;
use crate::limits::{
    CHECK_DEPTH, CHECK_STEPS, CHECK_STEPS_PER_BYTE, KEYWORD_BYTES, SCHEMA_BYTES, SCHEMA_PATH, VALUE_DEPTH,
};
use crate::value::size;

/// Keywords whose subschemas inspect the same value.
const SAME_VALUE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SAME_VALUE: [&str; 4] = ["not", "if", "then", "else"];
const SAME_VALUE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose subschemas inspect every value of an object, and every item of a list.
const MEMBERS: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];
const ELEMENTS: [&str; 4] = ["items", "additionalItems", "contains", "unevaluatedItems"];
/// Keywords that compare a value with the JSON written in the schema, and keywords that read a text to its end.
const COMPARED: [&str; 5] = ["enum", "const", "required", "dependentRequired", "dependencies"];
const TEXT_READERS: [&str; 4] = ["minLength", "maxLength", "contentEncoding", "contentMediaType"];
/// Keywords for which the validator compiles something for each name.
const COMPILED_NAMES: [&str; 2] = ["dependentRequired", "dependencies"];
/// Memory for each JSON value of a schema, including the copies that a validator keeps, and the number of copies of its
/// text. The path of each keyword is kept as text too.
const VALUE_BYTES: usize = 128;
const TEXT_COPIES: usize = 4;
/// Bytes of text that a keyword reads in a step.
const READ_PER_STEP: usize = 16;
/// Steps for the exact division of `multipleOf`.
const DIVISION_STEPS: u64 = 8;
/// Keywords that name a schema for references, besides its path.
const ANCHORS: [&str; 2] = ["$anchor", "$dynamicAnchor"];
/// The most subschemas with an `$id`: every reference is looked up in all of them.
const MAX_IDS: usize = 64;
/// The most memoised results while steps are counted; they take a few megabytes.
const MAX_MEMO: usize = 100_000;

/// A schema reduced to which subschema inspects which value, with its estimated costs.
#[derive(Default)]
pub(super) struct CheckCost {
    nodes: Vec<SchemaNode>,
    /// The most steps per byte of a value; `None` if the schema refers to itself.
    weight: Option<u64>,
    /// Estimated memory of the compiled schema.
    pub(super) bytes: usize,
    /// Whether a pattern needs a backtracking engine.
    pub(super) backtracks: bool,
}

/// What one subschema does with a value.
// Many fields: one for each kind of keyword that inspects values.
#[derive(Default)]
struct SchemaNode {
    /// Whether several other nodes lead to it.
    shared: bool,
    /// Steps of its own keywords, without subschemas.
    own: u64,
    /// Whether it reads texts to their end.
    reads: bool,
    pattern: Option<PatternCost>,
    /// Whether it compares the items of a list with each other.
    compares: bool,
    /// Subschemas that inspect the same value.
    same_value: Vec<u32>,
    /// Whether it has an `unevaluated…` keyword, which evaluates the subschemas in `same_value` once more.
    unevaluated: bool,
    properties: FxHashMap<Box<str>, u32>,
    members: Vec<u32>,
    prefix: Vec<u32>,
    elements: Vec<u32>,
    /// The subschema that inspects the names of an object.
    names: Option<u32>,
    name_patterns: Vec<PatternCost>,
}

/// Why a schema is refused.
pub(super) enum SchemaRefusal {
    /// It would take too much memory.
    Memory,
    /// Its references lead through too many schemas.
    Path,
    /// A pattern cannot be used; the message says why.
    Pattern(String),
    /// It has more subschemas with an `$id` than this.
    Ids(usize),
}

impl CheckCost {
    pub(super) fn of(root: &Value) -> Result<Self, SchemaRefusal> {
        let mut reader = SchemaReader::new(root);
        if reader.bases.len() > MAX_IDS {
            return Err(SchemaRefusal::Ids(MAX_IDS));
        }
        reader.intern(root)?;
        while let Some(schema) = reader.waiting.pop_front() {
            let node = reader.node(schema)?;
            reader.done.nodes.push(node);
        }
        let mut cost = reader.done;
        cost.count_unevaluated_copies()?;
        let into = cost.parents();
        cost.weight = cost.weigh(into.clone())?;
        cost.nodes.iter_mut().zip(into).for_each(|(node, count)| node.shared = count > 1);
        Ok(cost)
    }

    /// Whether checking a value takes an acceptable number of steps.
    pub(super) fn allows(&self, value: &Value) -> bool {
        let most = CHECK_STEPS.checked_div(self.weight.unwrap_or(0)).unwrap_or(0);
        if size::check(value, usize::try_from(most).unwrap_or(usize::MAX)).is_ok() {
            return true;
        }
        let bytes = size::of(value) as u64;
        self.takes_at_most(value, CHECK_STEPS.saturating_add(bytes.saturating_mul(CHECK_STEPS_PER_BYTE)))
    }

    /// Whether checking a value takes at most this many steps.
    pub(super) fn takes_at_most(&self, value: &Value, steps: u64) -> bool {
        StepCounter { nodes: &self.nodes, left: steps, memo: FxHashMap::default() }
            .spend(0, value, CHECK_DEPTH)
            .is_some()
    }

    /// The most steps per byte of a value: the number of subschemas with every reference written out. `None` for a
    /// recursive schema, where that number is infinite.
    fn weigh(&self, mut into: Vec<usize>) -> Result<Option<u64>, SchemaRefusal> {
        // A reference to the root is a cycle too.
        let (mut ready, mut seen, mut weight) = (vec![0u32], 0, 0u64);
        if into.first().is_some_and(|count| *count > 0) {
            ready.clear();
        }
        let (mut occurrences, mut depths) = (vec![0u64; self.nodes.len()], vec![0usize; self.nodes.len()]);
        occurrences[0] = 1;
        while let Some(at) = ready.pop() {
            let (node, at) = (&self.nodes[at as usize], at as usize);
            seen += 1;
            weight = weight.saturating_add(occurrences[at].saturating_mul(node.steps_per_byte()));
            if depths[at] > SCHEMA_PATH {
                return Err(SchemaRefusal::Path);
            }
            for next in node.next() {
                let (occurrences_here, depth_below) = (occurrences[at], depths[at] + 1);
                let next_at = next as usize;
                occurrences[next_at] = occurrences[next_at].saturating_add(occurrences_here);
                depths[next_at] = depths[next_at].max(depth_below);
                into[next_at] -= 1;
                if into[next_at] == 0 {
                    ready.push(next);
                }
            }
        }
        if seen == self.nodes.len() {
            // The cost of `unevaluated…` keywords depends on where the subschemas are, so there is no bound per byte.
            return Ok(self.nodes.iter().all(|node| !node.unevaluated).then_some(weight));
        }
        // The compiler follows every path once.
        match self.deepest() <= SCHEMA_PATH {
            true => Ok(None),
            false => Err(SchemaRefusal::Path),
        }
    }

    /// Adds the memory of `unevaluated…` keywords: each has a copy of every subschema that inspects the same value.
    fn count_unevaluated_copies(&mut self) -> Result<(), SchemaRefusal> {
        for start in 0..self.nodes.len() {
            if !self.nodes[start].unevaluated {
                continue;
            }
            let (mut seen, mut path) = (FxHashSet::default(), vec![start as u32]);
            while let Some(at) = path.pop() {
                for next in &self.nodes[at as usize].same_value {
                    if seen.insert(*next) {
                        grow(&mut self.bytes, KEYWORD_BYTES)?;
                        path.push(*next);
                    }
                }
            }
        }
        Ok(())
    }

    /// How many nodes lead to each node.
    fn parents(&self) -> Vec<usize> {
        let mut into = vec![0usize; self.nodes.len()];
        self.nodes.iter().flat_map(SchemaNode::next).for_each(|next| into[next as usize] += 1);
        into
    }

    /// The longest path of a depth-first walk that enters every node once.
    fn deepest(&self) -> usize {
        let (mut entered, mut deepest) = (vec![false; self.nodes.len()], 0);
        let below = |at: u32| self.nodes[at as usize].next().collect::<Vec<u32>>().into_iter();
        entered[0] = true;
        let mut path = vec![below(0)];
        while let Some(left) = path.last_mut() {
            match left.next() {
                Some(next) if !std::mem::replace(&mut entered[next as usize], true) => path.push(below(next)),
                Some(_) => {}
                None => drop(path.pop()),
            }
            deepest = deepest.max(path.len());
        }
        deepest
    }
}

impl SchemaNode {
    fn next(&self) -> impl Iterator<Item = u32> {
        let lists = self.same_value.iter().chain(&self.members).chain(&self.prefix).chain(&self.elements);
        lists.chain(self.properties.values()).chain(&self.names).copied()
    }

    fn steps_per_byte(&self) -> u64 {
        let patterns = self.pattern.iter().chain(&self.name_patterns).map(|pattern| pattern.most_per_byte());
        let own = self.own + u64::from(self.compares) + u64::from(self.reads) + u64::from(!self.properties.is_empty());
        patterns.fold(own, u64::saturating_add)
    }
}

/// Counts the steps of one check against a budget.
struct StepCounter<'e> {
    nodes: &'e [SchemaNode],
    left: u64,
    /// Steps of a shared node for a value. Each of its parents leads to it, so the same pair occurs many times.
    memo: FxHashMap<(u32, *const Value), u64>,
}

impl StepCounter<'_> {
    fn take(&mut self, steps: u64) -> Option<()> {
        self.left = self.left.checked_sub(steps)?;
        Some(())
    }

    /// Subtracts the steps that a subschema takes for a value; `None` if too few are left.
    fn spend(&mut self, at: u32, value: &Value, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let node = self.nodes.get(at as usize)?;
        if !node.shared {
            return self.look(node, value, depth);
        }
        let key = (at, std::ptr::from_ref(value));
        if let Some(steps) = self.memo.get(&key) {
            return self.take(*steps);
        }
        let before = self.left;
        self.look(node, value, depth)?;
        if self.memo.len() < MAX_MEMO {
            self.memo.insert(key, before - self.left);
        }
        Some(())
    }

    fn look(&mut self, node: &SchemaNode, value: &Value, depth: usize) -> Option<()> {
        self.take(node.own)?;
        node.same_value.iter().try_for_each(|next| self.spend(*next, value, depth))?;
        if node.unevaluated {
            self.spend_unevaluated(node, value, depth)?;
        }
        match value {
            Value::String(text) => {
                if node.reads {
                    self.take((text.len() / READ_PER_STEP) as u64)?;
                }
                node.pattern.map_or(Some(()), |pattern| self.take(pattern.steps(text.len())))
            }
            Value::Array(items) => {
                if node.compares {
                    self.take(size::of(value) as u64)?;
                }
                for (index, item) in items.iter().enumerate() {
                    let own = node.prefix.get(index);
                    own.into_iter().chain(&node.elements).try_for_each(|next| self.spend(*next, item, depth))?;
                }
                Some(())
            }
            Value::Object(map) => {
                if !node.properties.is_empty() {
                    self.take(map.len() as u64)?;
                }
                for (key, item) in map {
                    self.look_at_name(node, key, depth)?;
                    let own = node.properties.get(key.as_str());
                    own.into_iter().chain(&node.members).try_for_each(|next| self.spend(*next, item, depth))?;
                }
                Some(())
            }
            _ => Some(()),
        }
    }

    /// Adds the steps of an `unevaluated…` keyword: every subschema for the same value is evaluated again, recursively.
    fn spend_unevaluated(&mut self, node: &SchemaNode, value: &Value, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.take(1 + items(value) as u64)?;
        for next in &node.same_value {
            self.spend(*next, value, depth)?;
            self.spend_unevaluated(self.nodes.get(*next as usize)?, value, depth)?;
        }
        Some(())
    }

    fn look_at_name(&mut self, node: &SchemaNode, name: &str, depth: usize) -> Option<()> {
        let patterns = node.name_patterns.iter().map(|pattern| pattern.steps(name.len()));
        self.take(patterns.fold(0, u64::saturating_add))?;
        let Some(names) = node.names else { return Some(()) };
        // The next name may have the same address as this one, so its steps must not be memoised.
        let memo = std::mem::take(&mut self.memo);
        let spent = self.spend(names, &Value::String(name.to_owned()), depth);
        self.memo = memo;
        spent
    }
}

/// Reads a schema from its root, along every keyword and reference.
struct SchemaReader<'s> {
    done: CheckCost,
    numbers: FxHashMap<*const Value, u32>,
    waiting: VecDeque<&'s Value>,
    /// The root and every subschema with an `$id`: the schemas that references are resolved in.
    bases: Vec<&'s Value>,
    anchors: FxHashMap<&'s str, Vec<&'s Value>>,
    patterns: FxHashMap<&'s str, PatternCost>,
}

impl<'s> SchemaReader<'s> {
    fn new(root: &'s Value) -> Self {
        let mut reader = Self {
            done: CheckCost::default(),
            numbers: FxHashMap::default(),
            waiting: VecDeque::new(),
            bases: vec![root],
            anchors: FxHashMap::default(),
            patterns: FxHashMap::default(),
        };
        reader.index(root, 0, VALUE_DEPTH * 2);
        reader
    }

    /// Finds every subschema with an `$id` or an anchor, and adds the memory of its text. `path_bytes`: the length of
    /// the path that leads here.
    fn index(&mut self, value: &'s Value, path_bytes: usize, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let text = value.as_str().map_or(0, str::len);
        let path = if value.is_object() || value.is_boolean() { path_bytes } else { 0 };
        self.add_bytes(VALUE_BYTES + TEXT_COPIES * text + path);
        match value {
            Value::Object(map) => {
                if map.get("$id").is_some_and(Value::is_string) && !std::ptr::eq(value, self.bases[0]) {
                    self.bases.push(value);
                }
                for anchor in ANCHORS.iter().filter_map(|key| map.get(*key)?.as_str()) {
                    self.anchors.entry(anchor).or_default().push(value);
                }
                for (key, value) in map {
                    self.add_bytes(TEXT_COPIES * key.len() + path_bytes);
                    self.index(value, path_bytes + key.len() + 1, depth);
                }
            }
            Value::Array(items) => items.iter().for_each(|value| self.index(value, path_bytes + 8, depth)),
            _ => {}
        }
    }

    /// Adds to the estimated memory. The limit is checked when the next subschema is added.
    fn add_bytes(&mut self, bytes: usize) {
        self.done.bytes = self.done.bytes.saturating_add(bytes);
    }

    fn intern(&mut self, schema: &'s Value) -> Result<u32, SchemaRefusal> {
        let next = self.numbers.len() as u32;
        if let Some(number) = self.numbers.get(&std::ptr::from_ref(schema)) {
            return Ok(*number);
        }
        let keywords = schema.as_object().map_or(0, Map::len);
        grow(&mut self.done.bytes, KEYWORD_BYTES.saturating_mul(keywords.max(1)))?;
        self.numbers.insert(std::ptr::from_ref(schema), next);
        self.waiting.push_back(schema);
        Ok(next)
    }

    fn all(&mut self, schemas: impl Iterator<Item = &'s Value>) -> Result<Vec<u32>, SchemaRefusal> {
        schemas.filter(|schema| is_schema(schema)).map(|schema| self.intern(schema)).collect()
    }

    fn node(&mut self, schema: &'s Value) -> Result<SchemaNode, SchemaRefusal> {
        let mut node = SchemaNode { own: 1, ..SchemaNode::default() };
        let Some(map) = schema.as_object() else { return Ok(node) };
        let list = |key: &str| map.get(key).and_then(Value::as_array).into_iter().flatten();
        let compared = COMPARED.iter().filter_map(|key| map.get(*key)).map(|value| written(value, VALUE_DEPTH));
        node.own = compared.fold(map.len().max(1) as u64, u64::saturating_add);
        for value in COMPILED_NAMES.iter().flat_map(|key| values(map, key)).filter(|value| value.is_array()) {
            grow(&mut self.done.bytes, KEYWORD_BYTES + VALUE_BYTES * items(value))?;
        }
        if map.contains_key("multipleOf") {
            node.own += DIVISION_STEPS;
        }
        node.reads = TEXT_READERS.iter().any(|key| map.contains_key(*key));
        node.compares = map.get("uniqueItems").is_some_and(|unique| *unique == Value::Bool(true));
        let here = SAME_VALUE_LISTS.iter().flat_map(|key| list(key));
        let here = here.chain(SAME_VALUE.iter().filter_map(|key| map.get(*key)));
        node.same_value = self.all(here.chain(SAME_VALUE_MAPS.iter().flat_map(|key| values(map, key))))?;
        for target in REFERENCES.iter().filter_map(|key| map.get(*key)?.as_str()) {
            let found = self.targets(target)?;
            // A target outside of this schema is a meta-schema, which the validator contains.
            node.own += if found.is_empty() { 64 } else { 0 };
            node.same_value.extend(found);
        }
        node.unevaluated = map.keys().any(|key| key.starts_with("unevaluated"));
        for (name, schema) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if is_schema(schema) {
                node.properties.insert(name.as_str().into(), self.intern(schema)?);
            }
        }
        let by_pattern = values(map, "patternProperties");
        node.members = self.all(MEMBERS.iter().filter_map(|key| map.get(*key)).chain(by_pattern))?;
        node.prefix = list("prefixItems").map(|schema| self.intern(schema)).collect::<Result<_, _>>()?;
        let elements = ELEMENTS.iter().filter_map(|key| map.get(*key));
        node.elements = self.all(elements.chain(list("items")))?;
        let names = map.get("propertyNames").filter(|schema| is_schema(schema));
        node.names = names.map(|schema| self.intern(schema)).transpose()?;
        node.pattern = map.get("pattern").and_then(Value::as_str).map(|text| self.pattern(text)).transpose()?;
        for text in map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            node.name_patterns.push(self.pattern(text)?);
        }
        Ok(node)
    }

    fn pattern(&mut self, text: &'s str) -> Result<PatternCost, SchemaRefusal> {
        if let Some(pattern) = self.patterns.get(text) {
            return Ok(*pattern);
        }
        let pattern = PatternCost::of(text).map_err(SchemaRefusal::Pattern)?;
        grow(&mut self.done.bytes, pattern.bytes)?;
        self.done.backtracks |= pattern.backtracks;
        self.patterns.insert(text, pattern);
        Ok(pattern)
    }

    /// Every schema that a reference may lead to. Which base the reference is relative to is ignored.
    fn targets(&mut self, target: &str) -> Result<Vec<u32>, SchemaRefusal> {
        let (base, fragment) = target.split_once('#').unwrap_or((target, ""));
        let id = |schema: &&Value| schema.get("$id").and_then(Value::as_str).is_some_and(|id| id.ends_with(base));
        let found: Vec<&'s Value> = match fragment {
            "" => self.bases.iter().copied().filter(|schema| base.is_empty() || id(schema)).collect(),
            _ if fragment.starts_with('/') => {
                let pointer = decoded(fragment);
                self.bases.iter().filter_map(|schema| schema.pointer(&pointer)).collect()
            }
            _ => self.anchors.get(fragment).into_iter().flatten().copied().take(MAX_IDS).collect(),
        };
        self.all(found.into_iter())
    }
}

/// Adds to the estimated memory of a schema; fails if it is too much.
fn grow(bytes: &mut usize, more: usize) -> Result<(), SchemaRefusal> {
    *bytes = bytes.saturating_add(more);
    if *bytes > SCHEMA_BYTES { Err(SchemaRefusal::Memory) } else { Ok(()) }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// The number of direct items or members of a value.
fn items(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

/// The number of JSON values in a value, at any depth. Subschemas of `dependencies` are also counted where they are
/// read.
fn written(value: &Value, depth: usize) -> u64 {
    let Some(depth) = depth.checked_sub(1) else { return u64::from(u32::MAX) };
    let below: u64 = match value {
        Value::Array(items) => items.iter().map(|item| written(item, depth)).sum(),
        Value::Object(map) => map.values().map(|item| written(item, depth)).sum(),
        _ => 0,
    };
    below + 1
}

/// The values of a keyword that is a map.
fn values<'s>(map: &'s Map<String, Value>, key: &str) -> impl Iterator<Item = &'s Value> {
    map.get(key).and_then(Value::as_object).into_iter().flat_map(Map::values)
}

/// Decodes the percent-encoding of a URI fragment.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let code = (*first == b'%').then(|| behind.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
