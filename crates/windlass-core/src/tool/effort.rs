//! How much it takes to check a value against a schema, counted before it is done: nothing interrupts a validator.
//!
//! A step is one look of one subschema at one value, some tens of nanoseconds. References are followed and every branch is
//! counted, so a validator takes fewer steps than this finds, unless it spends them on a regular expression.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use super::patterns::Pattern;
use crate::limits::{
    CHECK_DEPTH, CHECK_STEPS, CHECK_STEPS_PER_BYTE, SCHEMA_BYTES, SCHEMA_PATH, SUBSCHEMA_BYTES, VALUE_DEPTH,
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
#[derive(Default)]
struct Node {
    /// Whether more than one other leads to it.
    shared: bool,
    /// Steps of its own.
    own: u64,
    pattern: Option<Pattern>,
    /// Whether it compares the items of a list.
    compares: bool,
    here: Vec<u32>,
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
        reading.intern(root);
        while let Some(schema) = reading.waiting.pop_front() {
            let node = reading.node(schema)?;
            reading.done.bytes = reading.done.bytes.saturating_add(SUBSCHEMA_BYTES);
            reading.done.nodes.push(node);
            if reading.done.bytes > SCHEMA_BYTES {
                return Err(TooMuch::Memory);
            }
        }
        let mut effort = reading.done;
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
            return Ok(Some(weight));
        }
        // The compiler goes down every path once.
        match self.deepest() <= SCHEMA_PATH {
            true => Ok(None),
            false => Err(TooMuch::Path),
        }
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
        patterns.fold(self.own + u64::from(self.compares), u64::saturating_add)
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
        match value {
            Value::String(text) => node.pattern.map_or(Some(()), |pattern| self.take(pattern.steps(text.len()))),
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
        reading.name(root, VALUE_DEPTH * 2);
        reading
    }

    /// Finds whatever has a name within a schema.
    fn name(&mut self, value: &'s Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match value {
            Value::Object(map) => {
                if map.get("$id").is_some_and(Value::is_string) && !std::ptr::eq(value, self.bases[0]) {
                    self.bases.push(value);
                }
                for anchor in ANCHORS.iter().filter_map(|key| map.get(*key)?.as_str()) {
                    self.anchors.entry(anchor).or_default().push(value);
                }
                map.values().for_each(|value| self.name(value, depth));
            }
            Value::Array(items) => items.iter().for_each(|value| self.name(value, depth)),
            _ => {}
        }
    }

    fn intern(&mut self, schema: &'s Value) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(std::ptr::from_ref(schema)).or_insert_with(|| {
            self.waiting.push_back(schema);
            next
        })
    }

    fn all(&mut self, schemas: impl Iterator<Item = &'s Value>) -> Vec<u32> {
        schemas.filter(|schema| schema.is_object()).map(|schema| self.intern(schema)).collect()
    }

    fn node(&mut self, schema: &'s Value) -> Result<Node, TooMuch> {
        let mut node = Node { own: 1, ..Node::default() };
        let Some(map) = schema.as_object() else { return Ok(node) };
        let list = |key: &str| map.get(key).and_then(Value::as_array).into_iter().flatten();
        node.own += list("enum").count() as u64;
        node.compares = map.get("uniqueItems").is_some_and(|unique| *unique == Value::Bool(true));
        let here = HERE_LISTS.iter().flat_map(|key| list(key)).chain(HERE.iter().filter_map(|key| map.get(*key)));
        node.here = self.all(here.chain(HERE_MAPS.iter().flat_map(|key| values(map, key))));
        for target in REFERENCES.iter().filter_map(|key| map.get(*key)?.as_str()) {
            let found = self.targets(target);
            // What is not here is one of the schemas of schemas, which the validator has itself.
            node.own += if found.is_empty() { 64 } else { 0 };
            node.here.extend(found);
        }
        if map.keys().any(|key| key.starts_with("unevaluated")) {
            // What else looked at the value is asked once more.
            node.here.extend_from_within(..);
        }
        for (name, schema) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if schema.is_object() {
                node.properties.insert(name.as_str().into(), self.intern(schema));
            }
        }
        let by_pattern = values(map, "patternProperties");
        node.members = self.all(MEMBERS.iter().filter_map(|key| map.get(*key)).chain(by_pattern));
        node.prefix = list("prefixItems").map(|schema| self.intern(schema)).collect();
        let elements = ELEMENTS.iter().filter_map(|key| map.get(*key));
        node.elements = self.all(elements.chain(list("items")));
        node.names = map.get("propertyNames").filter(|schema| schema.is_object()).map(|schema| self.intern(schema));
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
        self.done.bytes = self.done.bytes.saturating_add(pattern.bytes);
        self.done.backtracks |= pattern.backtracks;
        self.patterns.insert(text, pattern);
        Ok(pattern)
    }

    /// Everything a reference may lead to: which base it counts from is not looked at.
    fn targets(&mut self, target: &str) -> Vec<u32> {
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
