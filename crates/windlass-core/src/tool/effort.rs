//! How much it takes to check a value against a schema, counted before it is done: nothing interrupts a validator.
//!
//! A step is one look of one keyword at one value, some tens of nanoseconds. References are followed and every branch is
//! counted, so a validator takes fewer steps than this finds.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value};

use super::patterns::Pattern;
use crate::limits::{
    CHECK_DEPTH, CHECK_STEPS, CHECK_STEPS_PER_BYTE, KEYWORD_BYTES, SCHEMA_BYTES, SCHEMA_PATH, VALUE_DEPTH,
};
use crate::value::size;

/// Keywords whose schemas look at the same value.
const HERE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const HERE: [&str; 4] = ["not", "if", "then", "else"];
const HERE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Those whose schemas look at every value of an object, and at every one of a list.
const MEMBERS: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];
const ELEMENTS: [&str; 4] = ["items", "additionalItems", "contains", "unevaluatedItems"];
/// Those that compare a value with what is written behind them, and read a text from its beginning to its end.
const COMPARED: [&str; 5] = ["enum", "const", "required", "dependentRequired", "dependencies"];
const TEXT_READERS: [&str; 4] = ["minLength", "maxLength", "contentEncoding", "contentMediaType"];
/// Those that have something compiled for each name.
const COMPILED_NAMES: [&str; 2] = ["dependentRequired", "dependencies"];
/// What a value of a schema takes wherever it stands, with the copies that a validator has of it; and how many there are of
/// its text. The place of a keyword is kept as text, too.
const VALUE_BYTES: usize = 128;
const TEXT_COPIES: usize = 4;
/// Bytes of text that a keyword reads in a step.
const READ_IN_A_STEP: usize = 16;
/// Steps of a division of fractions.
const DIVISION_STEPS: u64 = 8;
/// What a schema is found by, beside its place.
const ANCHORS: [&str; 2] = ["$anchor", "$dynamicAnchor"];
/// Schemas with an address of their own within one: every reference is looked for in all of them.
const MOST_IDS: usize = 64;
/// What is remembered while steps are counted: a few megabytes.
const MOST_KNOWN: usize = 100_000;

/// A schema as far as it says what looks at what.
#[derive(Default)]
pub(super) struct Effort {
    nodes: Vec<Node>,
    /// Most steps for each byte of a value; nothing if the schema refers to itself.
    weight: Option<u64>,
    /// Roughly what it takes in memory once it is compiled.
    pub(super) bytes: usize,
    /// Whether a pattern needs an engine that backtracks.
    pub(super) backtracks: bool,
}

/// What one subschema does with a value.
// Many fields: one for each kind of keyword that looks at values.
#[derive(Default)]
struct Node {
    /// Whether more than one other leads to it.
    shared: bool,
    /// Steps of its own.
    own: u64,
    /// Whether it reads texts to their end.
    reads: bool,
    pattern: Option<Pattern>,
    /// Whether it compares the items of a list.
    compares: bool,
    here: Vec<u32>,
    /// Whether it asks what those in `here` looked at, and so has them look once more.
    asks: bool,
    properties: FxHashMap<Box<str>, u32>,
    members: Vec<u32>,
    prefix: Vec<u32>,
    elements: Vec<u32>,
    /// What looks at the names of an object.
    names: Option<u32>,
    name_patterns: Vec<Pattern>,
}

/// Why a schema is not taken.
pub(super) enum TooMuch {
    /// It would take more memory.
    Memory,
    /// Its references make a path longer than may be followed.
    Path,
    /// A pattern that cannot be used.
    Pattern(String),
    /// It has more schemas with an address of their own than are looked through.
    Ids(usize),
}

impl Effort {
    pub(super) fn of(root: &Value) -> Result<Self, TooMuch> {
        let mut reading = Reading::new(root);
        if reading.bases.len() > MOST_IDS {
            return Err(TooMuch::Ids(MOST_IDS));
        }
        reading.intern(root)?;
        while let Some(schema) = reading.waiting.pop_front() {
            let node = reading.node(schema)?;
            reading.done.nodes.push(node);
        }
        let mut effort = reading.done;
        effort.count_askers()?;
        let into = effort.parents();
        effort.weight = effort.weigh(into.clone())?;
        effort.nodes.iter_mut().zip(into).for_each(|(node, count)| node.shared = count > 1);
        Ok(effort)
    }

    /// Whether checking a value takes no more than it may.
    pub(super) fn allows(&self, value: &Value) -> bool {
        let most = CHECK_STEPS.checked_div(self.weight.unwrap_or(0)).unwrap_or(0);
        if size::check(value, usize::try_from(most).unwrap_or(usize::MAX)).is_ok() {
            return true;
        }
        let bytes = size::of(value) as u64;
        self.takes_at_most(value, CHECK_STEPS.saturating_add(bytes.saturating_mul(CHECK_STEPS_PER_BYTE)))
    }

    /// Whether checking a value takes no more than so many steps.
    pub(super) fn takes_at_most(&self, value: &Value, steps: u64) -> bool {
        Counting { nodes: &self.nodes, left: steps, known: FxHashMap::default() }.spend(0, value, CHECK_DEPTH).is_some()
    }

    /// Steps for each byte of a value: as many as there are subschemas when every reference is written out. Nothing where
    /// there is no end to that.
    fn weigh(&self, mut into: Vec<usize>) -> Result<Option<u64>, TooMuch> {
        // A reference to the root makes a circle, too.
        let (mut ready, mut seen, mut weight) = (vec![0u32], 0, 0u64);
        if into.first().is_some_and(|count| *count > 0) {
            ready.clear();
        }
        let (mut places, mut paths) = (vec![0u64; self.nodes.len()], vec![0usize; self.nodes.len()]);
        places[0] = 1;
        while let Some(at) = ready.pop() {
            let (node, at) = (&self.nodes[at as usize], at as usize);
            seen += 1;
            weight = weight.saturating_add(places[at].saturating_mul(node.steps_per_byte()));
            if paths[at] > SCHEMA_PATH {
                return Err(TooMuch::Path);
            }
            for next in node.next() {
                let (places_here, path_here) = (places[at], paths[at] + 1);
                let next_at = next as usize;
                places[next_at] = places[next_at].saturating_add(places_here);
                paths[next_at] = paths[next_at].max(path_here);
                into[next_at] -= 1;
                if into[next_at] == 0 {
                    ready.push(next);
                }
            }
        }
        if seen == self.nodes.len() {
            // What an asker has others do depends on where they stand.
            return Ok(self.nodes.iter().all(|node| !node.asks).then_some(weight));
        }
        // The compiler goes down every path once.
        match self.deepest() <= SCHEMA_PATH {
            true => Ok(None),
            false => Err(TooMuch::Path),
        }
    }

    /// What asks others has a copy of each, and of what they lead to.
    fn count_askers(&mut self) -> Result<(), TooMuch> {
        for asker in 0..self.nodes.len() {
            if !self.nodes[asker].asks {
                continue;
            }
            let (mut seen, mut path) = (FxHashSet::default(), vec![asker as u32]);
            while let Some(at) = path.pop() {
                for next in &self.nodes[at as usize].here {
                    if seen.insert(*next) {
                        grow(&mut self.bytes, KEYWORD_BYTES)?;
                        path.push(*next);
                    }
                }
            }
        }
        Ok(())
    }

    /// How many lead to each.
    fn parents(&self) -> Vec<usize> {
        let mut into = vec![0usize; self.nodes.len()];
        self.nodes.iter().flat_map(Node::next).for_each(|next| into[next as usize] += 1);
        into
    }

    /// The longest path of a walk that enters everything once.
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

impl Node {
    fn next(&self) -> impl Iterator<Item = u32> {
        let lists = self.here.iter().chain(&self.members).chain(&self.prefix).chain(&self.elements);
        lists.chain(self.properties.values()).chain(&self.names).copied()
    }

    fn steps_per_byte(&self) -> u64 {
        let patterns = self.pattern.iter().chain(&self.name_patterns).map(|pattern| pattern.most_per_byte());
        let own = self.own + u64::from(self.compares) + u64::from(self.reads) + u64::from(!self.properties.is_empty());
        patterns.fold(own, u64::saturating_add)
    }
}

/// Steps that are being counted.
struct Counting<'e> {
    nodes: &'e [Node],
    left: u64,
    /// What a subschema that several lead to did with a value: where each of them leads to it anew, that is many times.
    known: FxHashMap<(u32, *const Value), u64>,
}

impl Counting<'_> {
    fn take(&mut self, steps: u64) -> Option<()> {
        self.left = self.left.checked_sub(steps)?;
        Some(())
    }

    /// Takes what a subschema does with a value from the steps that are left.
    fn spend(&mut self, at: u32, value: &Value, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let node = self.nodes.get(at as usize)?;
        if !node.shared {
            return self.look(node, value, depth);
        }
        let key = (at, std::ptr::from_ref(value));
        if let Some(known) = self.known.get(&key) {
            return self.take(*known);
        }
        let before = self.left;
        self.look(node, value, depth)?;
        if self.known.len() < MOST_KNOWN {
            self.known.insert(key, before - self.left);
        }
        Some(())
    }

    fn look(&mut self, node: &Node, value: &Value, depth: usize) -> Option<()> {
        self.take(node.own)?;
        node.here.iter().try_for_each(|next| self.spend(*next, value, depth))?;
        if node.asks {
            self.ask(node, value, depth)?;
        }
        match value {
            Value::String(text) => {
                if node.reads {
                    self.take((text.len() / READ_IN_A_STEP) as u64)?;
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

    /// What looks at the same value is asked what it looked at: each looks again, and is asked in turn.
    fn ask(&mut self, node: &Node, value: &Value, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.take(1 + items(value) as u64)?;
        for next in &node.here {
            self.spend(*next, value, depth)?;
            self.ask(self.nodes.get(*next as usize)?, value, depth)?;
        }
        Some(())
    }

    fn look_at_name(&mut self, node: &Node, name: &str, depth: usize) -> Option<()> {
        let patterns = node.name_patterns.iter().map(|pattern| pattern.steps(name.len()));
        self.take(patterns.fold(0, u64::saturating_add))?;
        let Some(names) = node.names else { return Some(()) };
        // The next name may stand where this one stood.
        let known = std::mem::take(&mut self.known);
        let spent = self.spend(names, &Value::String(name.to_owned()), depth);
        self.known = known;
        spent
    }
}

/// A schema that is being read, from its root on along every keyword and reference.
struct Reading<'s> {
    done: Effort,
    numbers: FxHashMap<*const Value, u32>,
    waiting: VecDeque<&'s Value>,
    /// The root, and whatever has an address of its own: where references begin.
    bases: Vec<&'s Value>,
    anchors: FxHashMap<&'s str, Vec<&'s Value>>,
    patterns: FxHashMap<&'s str, Pattern>,
}

impl<'s> Reading<'s> {
    fn new(root: &'s Value) -> Self {
        let mut reading = Self {
            done: Effort::default(),
            numbers: FxHashMap::default(),
            waiting: VecDeque::new(),
            bases: vec![root],
            anchors: FxHashMap::default(),
            patterns: FxHashMap::default(),
        };
        reading.name(root, 0, VALUE_DEPTH * 2);
        reading
    }

    /// Finds whatever has a name within a schema, and counts what it takes as text. `place`: bytes of the path that leads here.
    fn name(&mut self, value: &'s Value, place: usize, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let text = value.as_str().map_or(0, str::len);
        let path = if value.is_object() || value.is_boolean() { place } else { 0 };
        self.note(VALUE_BYTES + TEXT_COPIES * text + path);
        match value {
            Value::Object(map) => {
                if map.get("$id").is_some_and(Value::is_string) && !std::ptr::eq(value, self.bases[0]) {
                    self.bases.push(value);
                }
                for anchor in ANCHORS.iter().filter_map(|key| map.get(*key)?.as_str()) {
                    self.anchors.entry(anchor).or_default().push(value);
                }
                for (key, value) in map {
                    self.note(TEXT_COPIES * key.len() + place);
                    self.name(value, place + key.len() + 1, depth);
                }
            }
            Value::Array(items) => items.iter().for_each(|value| self.name(value, place + 8, depth)),
            _ => {}
        }
    }

    /// Adds to what the schema takes. Whether that is too much is seen when the next subschema is.
    fn note(&mut self, bytes: usize) {
        self.done.bytes = self.done.bytes.saturating_add(bytes);
    }

    fn intern(&mut self, schema: &'s Value) -> Result<u32, TooMuch> {
        let next = self.numbers.len() as u32;
        if let Some(known) = self.numbers.get(&std::ptr::from_ref(schema)) {
            return Ok(*known);
        }
        let keywords = schema.as_object().map_or(0, Map::len);
        grow(&mut self.done.bytes, KEYWORD_BYTES.saturating_mul(keywords.max(1)))?;
        self.numbers.insert(std::ptr::from_ref(schema), next);
        self.waiting.push_back(schema);
        Ok(next)
    }

    fn all(&mut self, schemas: impl Iterator<Item = &'s Value>) -> Result<Vec<u32>, TooMuch> {
        schemas.filter(|schema| is_schema(schema)).map(|schema| self.intern(schema)).collect()
    }

    fn node(&mut self, schema: &'s Value) -> Result<Node, TooMuch> {
        let mut node = Node { own: 1, ..Node::default() };
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
        let here = HERE_LISTS.iter().flat_map(|key| list(key)).chain(HERE.iter().filter_map(|key| map.get(*key)));
        node.here = self.all(here.chain(HERE_MAPS.iter().flat_map(|key| values(map, key))))?;
        for target in REFERENCES.iter().filter_map(|key| map.get(*key)?.as_str()) {
            let found = self.targets(target)?;
            // What is not here is one of the schemas of schemas, which the validator has itself.
            node.own += if found.is_empty() { 64 } else { 0 };
            node.here.extend(found);
        }
        node.asks = map.keys().any(|key| key.starts_with("unevaluated"));
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

    fn pattern(&mut self, text: &'s str) -> Result<Pattern, TooMuch> {
        if let Some(known) = self.patterns.get(text) {
            return Ok(*known);
        }
        let pattern = Pattern::of(text).map_err(TooMuch::Pattern)?;
        grow(&mut self.done.bytes, pattern.bytes)?;
        self.done.backtracks |= pattern.backtracks;
        self.patterns.insert(text, pattern);
        Ok(pattern)
    }

    /// Everything a reference may lead to: which base it counts from is not looked at.
    fn targets(&mut self, target: &str) -> Result<Vec<u32>, TooMuch> {
        let (base, fragment) = target.split_once('#').unwrap_or((target, ""));
        let id = |schema: &&Value| schema.get("$id").and_then(Value::as_str).is_some_and(|id| id.ends_with(base));
        let found: Vec<&'s Value> = match fragment {
            "" => self.bases.iter().copied().filter(|schema| base.is_empty() || id(schema)).collect(),
            _ if fragment.starts_with('/') => {
                let pointer = decoded(fragment);
                self.bases.iter().filter_map(|schema| schema.pointer(&pointer)).collect()
            }
            _ => self.anchors.get(fragment).into_iter().flatten().copied().take(MOST_IDS).collect(),
        };
        self.all(found.into_iter())
    }
}

/// Adds to what a schema takes, unless it is too much.
fn grow(bytes: &mut usize, more: usize) -> Result<(), TooMuch> {
    *bytes = bytes.saturating_add(more);
    if *bytes > SCHEMA_BYTES { Err(TooMuch::Memory) } else { Ok(()) }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// How many values are directly in one.
fn items(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

/// How many values are written, one within another. Subschemas of `dependencies` are counted where they are read, too.
fn written(value: &Value, depth: usize) -> u64 {
    let Some(depth) = depth.checked_sub(1) else { return u64::from(u32::MAX) };
    let below: u64 = match value {
        Value::Array(items) => items.iter().map(|item| written(item, depth)).sum(),
        Value::Object(map) => map.values().map(|item| written(item, depth)).sum(),
        _ => 0,
    };
    below + 1
}

/// The schemas of a keyword that has one for each name.
fn values<'s>(map: &'s Map<String, Value>, key: &str) -> impl Iterator<Item = &'s Value> {
    map.get(key).and_then(Value::as_object).into_iter().flat_map(Map::values)
}

/// A fragment of an address as it is meant.
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
