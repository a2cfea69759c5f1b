//! What tells an operation from how it was: a changed document is taken up while it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::document::{Document, Spot, decoded};
use super::schema::anywhere;

/// What concerns every operation of a document.
const COMMON: [&str; 2] = ["#/servers", "#/security"];

/// Hashes operations together with all they refer to, without making their schemas.
pub(crate) struct Revisions<'d> {
    document: &'d Document,
    /// By number of part: its hash, and the parts it refers to.
    known: BTreeMap<usize, (u64, Vec<usize>)>,
}

impl<'d> Revisions<'d> {
    pub(crate) fn new(document: &'d Document) -> Self {
        Self { document, known: BTreeMap::new() }
    }

    /// The revision of an operation of a path item.
    pub(crate) fn of(&mut self, item: &Spot<'_>, method: &str) -> u64 {
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
                next.extend(self.look(part).1.iter().copied());
            }
        }
        for part in seen {
            self.look(part).0.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn look(&mut self, part: usize) -> &(u64, Vec<usize>) {
        if !self.known.contains_key(&part) {
            let text = self.document.text(part);
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            self.known.insert(part, (hasher.finish(), self.references(&value)));
        }
        &self.known[&part]
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
