//! Detects which operations of a document have changed when it is loaded again.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::document::{Document, Node, decoded};
use super::schema::anywhere;

/// Parts that every operation of a document depends on.
const COMMON: [&str; 2] = ["#/servers", "#/security"];

/// Hashes operations together with everything they refer to, without creating their schemas.
pub(crate) struct Revisions<'d> {
    document: &'d Document,
    /// By index of a part: its hash, and the parts it refers to.
    hashed: BTreeMap<usize, (u64, Vec<usize>)>,
}

impl<'d> Revisions<'d> {
    pub(crate) fn new(document: &'d Document) -> Self {
        Self { document, hashed: BTreeMap::new() }
    }

    /// The revision of an operation in a path item.
    pub(crate) fn of(&mut self, item: &Node<'_>, method: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut next: Vec<usize> = COMMON.iter().filter_map(|pointer| self.part(pointer)).collect();
        for key in [method, "parameters", "servers"] {
            let Some(value) = item.value.get(key) else { continue };
            (key, value.to_string()).hash(&mut hasher);
            next.extend(self.references(value));
        }
        let mut seen = BTreeSet::new();
        while let Some(part) = next.pop() {
            if seen.insert(part) {
                next.extend(self.hash_part(part).1.iter().copied());
            }
        }
        for part in seen {
            self.hash_part(part).0.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn hash_part(&mut self, part: usize) -> &(u64, Vec<usize>) {
        if !self.hashed.contains_key(&part) {
            let text = self.document.text(part);
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            self.hashed.insert(part, (hasher.finish(), self.references(&value)));
        }
        &self.hashed[&part]
    }

    /// The parts a value refers to.
    fn references(&self, value: &Value) -> Vec<usize> {
        let mut references = Vec::new();
        anywhere(value, &mut references);
        let mut parts: Vec<usize> = references.iter().filter_map(|it| self.part(&decoded(it.as_str()?))).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    fn part(&self, pointer: &str) -> Option<usize> {
        self.document.part(pointer).map(|(part, _)| part)
    }
}
