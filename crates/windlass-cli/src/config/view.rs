//! Reads a table that was checked against the table of keys. A value of the wrong type was reported there and counts as
//! missing here, so that the rest of the file is still checked.

use std::time::Duration;

use super::keys::Section;
use super::shape::join;
use super::tree::{Item, Node, Span, Table, TableEntry};
use super::units;

/// A table and the keys it may have.
pub(crate) struct View<'t> {
    pub(crate) table: &'t Table,
    pub(crate) section: &'static Section,
    /// Its path: `tool.weather`.
    pub(crate) path: String,
    /// The position of its key.
    pub(crate) at: Span,
}

static EMPTY: Table = Table(Vec::new());

impl<'t> View<'t> {
    pub(crate) fn root(table: &'t Table, section: &'static Section) -> Self {
        Self { table, section, path: String::new(), at: 0..0 }
    }

    /// The entry of a key, which must be in the table of keys.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'t TableEntry> {
        debug_assert!(self.section.get(key).is_some(), "the table of keys has no `{key}` in `{}`", self.path);
        #[cfg(test)]
        reads::record(self.section, key);
        self.table.get(key)
    }

    /// The position of a key, or of the table itself if the key is missing.
    pub(crate) fn span_of(&self, key: &str) -> Span {
        self.table.get(key).map_or(self.at.clone(), |entry| entry.at.clone())
    }

    pub(crate) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// The table at a key; an empty one if the key is missing.
    pub(crate) fn below(&self, key: &'static str, section: &'static Section) -> View<'t> {
        self.within(key, section).unwrap_or_else(|| View {
            table: &EMPTY,
            section,
            path: self.path_of(key),
            at: self.at.clone(),
        })
    }

    /// The table at a key.
    pub(crate) fn within(&self, key: &'static str, section: &'static Section) -> Option<View<'t>> {
        let entry = self.get(key)?;
        Some(View { table: entry.node.table()?, section, path: self.path_of(key), at: entry.at.clone() })
    }

    /// The tables in a table whose keys the author chooses.
    pub(crate) fn each(&self, key: &'static str, section: &'static Section) -> Vec<(&'t str, View<'t>)> {
        let entries = self.entries(key).iter();
        let view = |entry: &'t TableEntry| {
            let path = join(&self.path_of(key), &entry.key);
            Some((entry.key.as_str(), View { table: entry.node.table()?, section, path, at: entry.at.clone() }))
        };
        entries.filter_map(view).collect()
    }

    /// The entries of a table whose keys the author chooses.
    pub(crate) fn entries(&self, key: &'static str) -> &'t [TableEntry] {
        self.get(key).and_then(|entry| entry.node.table()).map_or(&[], |table| &table.0)
    }

    pub(crate) fn text(&self, key: &'static str) -> Option<&'t str> {
        self.get(key)?.node.text()
    }

    pub(crate) fn texts(&self, key: &'static str) -> Vec<&'t str> {
        let list = self.get(key).and_then(|entry| entry.node.list()).unwrap_or_default();
        list.iter().filter_map(Node::text).collect()
    }

    pub(crate) fn flag(&self, key: &'static str) -> Option<bool> {
        match self.get(key)?.node.item {
            Item::Bool(truth) => Some(truth),
            _ => None,
        }
    }

    pub(crate) fn count<N: TryFrom<i64>>(&self, key: &'static str) -> Option<N> {
        match self.get(key)?.node.item {
            Item::Integer(number) => N::try_from(number).ok(),
            _ => None,
        }
    }

    pub(crate) fn counts<N: TryFrom<i64>>(&self, key: &'static str) -> Vec<N> {
        let list = self.get(key).and_then(|entry| entry.node.list()).unwrap_or_default();
        let number = |node: &Node| match node.item {
            Item::Integer(number) => N::try_from(number).ok(),
            _ => None,
        };
        list.iter().filter_map(number).collect()
    }

    pub(crate) fn duration(&self, key: &'static str) -> Option<Duration> {
        units::duration(self.text(key)?).ok()
    }

    pub(crate) fn size(&self, key: &'static str) -> Option<u64> {
        units::size(self.text(key)?).ok()
    }
}

/// Records which keys are read, so that a test can check that none is ignored.
#[cfg(test)]
pub(crate) mod reads {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::Section;

    thread_local! {
        static READ: RefCell<BTreeSet<(usize, &'static str)>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(crate) fn record(section: &'static Section, key: &'static str) {
        READ.with_borrow_mut(|read| read.insert((std::ptr::from_ref(section) as usize, key)));
    }

    pub(crate) fn contains(section: &'static Section, key: &'static str) -> bool {
        READ.with_borrow(|read| read.contains(&(std::ptr::from_ref(section) as usize, key)))
    }
}
