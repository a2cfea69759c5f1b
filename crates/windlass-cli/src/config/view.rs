//! Reading a table whose shape was checked. What has the wrong shape was reported there and counts as not written here, so
//! that the rest of the file is still looked at.

use std::time::Duration;

use super::keys::Section;
use super::shape::join;
use super::tree::{Entry, Item, Node, Span, Table};
use super::units;

/// A table and what it may have.
pub(crate) struct View<'t> {
    pub(crate) table: &'t Table,
    pub(crate) section: &'static Section,
    /// Where it stands: `tool.weather`.
    pub(crate) path: String,
    /// The key that leads to it.
    pub(crate) at: Span,
}

static NOTHING: Table = Table(Vec::new());

impl<'t> View<'t> {
    pub(crate) fn root(table: &'t Table, section: &'static Section) -> Self {
        Self { table, section, path: String::new(), at: 0..0 }
    }

    /// What stands at a key. The table of keys must have it.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'t Entry> {
        debug_assert!(self.section.get(key).is_some(), "the table of keys has no `{key}` in `{}`", self.path);
        #[cfg(test)]
        asked::note(self.section, key);
        self.table.get(key)
    }

    /// The place of a key, or of the table itself where the key is not written.
    pub(crate) fn place(&self, key: &str) -> Span {
        self.table.get(key).map_or(self.at.clone(), |entry| entry.at.clone())
    }

    pub(crate) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// A table below this one; an empty one where it is not written.
    pub(crate) fn below(&self, key: &'static str, section: &'static Section) -> View<'t> {
        self.within(key, section).unwrap_or_else(|| View {
            table: &NOTHING,
            section,
            path: self.path_of(key),
            at: self.at.clone(),
        })
    }

    /// A table below this one, if it is written.
    pub(crate) fn within(&self, key: &'static str, section: &'static Section) -> Option<View<'t>> {
        let entry = self.get(key)?;
        Some(View { table: entry.node.table()?, section, path: self.path_of(key), at: entry.at.clone() })
    }

    /// The tables of a table whose keys the writer chooses.
    pub(crate) fn each(&self, key: &'static str, section: &'static Section) -> Vec<(&'t str, View<'t>)> {
        let entries = self.entries(key).iter();
        let view = |entry: &'t Entry| {
            let path = join(&self.path_of(key), &entry.key);
            Some((entry.key.as_str(), View { table: entry.node.table()?, section, path, at: entry.at.clone() }))
        };
        entries.filter_map(view).collect()
    }

    /// The entries of a table whose keys the writer chooses.
    pub(crate) fn entries(&self, key: &'static str) -> &'t [Entry] {
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

/// Which keys were read, so that a test can tell that every key of the table is.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::Section;

    thread_local! {
        static ASKED: RefCell<BTreeSet<(usize, &'static str)>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(crate) fn note(section: &'static Section, key: &'static str) {
        ASKED.with_borrow_mut(|asked| asked.insert((std::ptr::from_ref(section) as usize, key)));
    }

    pub(crate) fn was(section: &'static Section, key: &'static str) -> bool {
        ASKED.with_borrow(|asked| asked.contains(&(std::ptr::from_ref(section) as usize, key)))
    }
}
