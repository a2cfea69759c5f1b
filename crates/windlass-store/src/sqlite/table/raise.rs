//! Runs that have no row yet get one, because something needs it.

use windlass_core::RunId;

use super::super::decide::Owner;
use super::super::job::Write;
use super::{Table, Trouble};

impl Table<'_> {
    /// Writes the row of a run, if it has none.
    pub(in crate::sqlite) fn raise(&mut self, run: RunId) -> rusqlite::Result<()> {
        match self.heads.get(&run).map(|head| head.id) {
            Some(id) => self.write_row(id),
            // What is not known in memory has a row, or is not there.
            None => Ok(()),
        }
    }

    /// Writes the rows of the runs that have ended and have none, or of all that have none.
    pub(in crate::sqlite) fn raise_many(&mut self, all: bool) -> rusqlite::Result<()> {
        self.young.ids(all).into_iter().try_for_each(|id| self.write_row(id))
    }

    /// Writes the rows of the runs that a commit is about.
    pub(super) fn raise_named(&mut self, write: &Write, owner: Option<Owner>) -> Result<(), Trouble> {
        if self.young.is_empty() {
            return Ok(());
        }
        // Who may read what a run refers to is asked of the rows of its whole family.
        if !write.refers.is_empty() {
            return Ok(self.raise_many(true)?);
        }
        let named = owner.map(|owner| owner.run).into_iter().chain(write.mail.iter().map(|letter| letter.run));
        named.into_iter().try_for_each(|run| Ok(self.raise(run)?))
    }

    fn write_row(&mut self, id: i64) -> rusqlite::Result<()> {
        let Some(run) = self.young.run(id) else { return Ok(()) };
        // What has no row is remembered. If it were not, the file would be opened again, and tell.
        let head = self.heads.get(&run).ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        if self.young.write(self.connection, self.opening, &head.journal())? {
            self.end.saved(id);
            self.resting.push(run);
        }
        Ok(())
    }
}
