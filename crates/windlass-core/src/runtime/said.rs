//! What a run was told and what came of it, from durable facts alone: its row, its mailbox and its journal.

use super::Runtime;
use super::people::Resolved;
use crate::error::Result;
use crate::id::RunId;
use crate::path::Path;
use crate::run::parks;
use crate::run::record::{Event, Record};
use crate::run::state::{Blocked, RunInfo, RunState};
use crate::store::{Mail, Message, StoreError};

/// Read in the order in which things move: what has left a list or the mailbox by the time that is read is in the journal,
/// which is read last. So nothing is missed while the run goes on.
pub(super) struct Said {
    pub(super) info: RunInfo,
    pub(super) mail: Vec<Mail>,
    /// Of all generations; nothing where it is no longer kept.
    journal: Vec<Record>,
}

impl Runtime {
    pub(super) async fn said(&self, run: RunId) -> Result<Said> {
        let store = &self.kernel.store;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let mail = store.mail(run, 0).await?;
        let journal = match store.journal(run, 0).await {
            Err(StoreError::JournalGone(_)) => Vec::new(),
            journal => journal?,
        };
        Ok(Said { info, mail, journal })
    }
}

impl Said {
    /// The records of one generation.
    pub(super) fn generation(&self, generation: u32) -> &[Record] {
        let mut all = self.journal.chunk_by(|_, next| !matches!(next.event, Event::Continued { .. }));
        let is_it = |records: &&[Record]| match records.first().map(|first| &first.event) {
            Some(Event::Continued { generation: of, .. }) => *of == generation,
            _ => generation == 0,
        };
        all.find(is_it).unwrap_or_default()
    }

    /// What a reply key's park came to, if it is over or answered.
    pub(super) fn closed(&self, generation: u32, path: &Path) -> Option<Resolved> {
        let revoked = |reason: &str| Some(Resolved::Revoked { reason: reason.to_owned() });
        let journal = self.generation(generation);
        if let Some(closed) = recorded(journal, path) {
            return Some(closed);
        }
        if self.info.generation != generation {
            return revoked("the run has gone on to its next generation");
        }
        if matches!(self.info.state, RunState::Finished { .. }) {
            return revoked("the run is over");
        }
        let above = |at: &Path| at.depth() < path.depth() && path.positions().starts_with(at.positions());
        if journal.iter().any(|record| matches!(record.event, Event::Finished(_)) && above(&record.path)) {
            return revoked("what waited for it has ended");
        }
        let at = key_of(journal, path);
        let first = self.mail.iter().find_map(|mail| match &mail.message {
            Message::Resolve { path: told, generation: of, resolution } if told == at && *of == generation => {
                Some(parks::resolved(resolution.clone()))
            }
            _ => None,
        });
        if let Some(first) = first {
            return Some(Resolved::Already(first));
        }
        match journal.iter().any(|record| matches!(record.event, Event::Revoked { .. })) {
            true => revoked("its session was closed"),
            false => None,
        }
    }
}

/// What the journal says a park came to.
pub(super) fn recorded(journal: &[Record], path: &Path) -> Option<Resolved> {
    let result = journal.iter().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path == *path => Some(&finished.result),
        _ => None,
    })?;
    Some(match result {
        Err(error) if is_revoked(error) => Resolved::Revoked { reason: error.to_string() },
        _ => Resolved::Already(result.clone()),
    })
}

/// Where the key was made that answers what waits at `path`.
fn key_of<'a>(journal: &'a [Record], path: &'a Path) -> &'a Path {
    let made_at = journal.iter().find_map(|record| match &record.event {
        Event::Parked { on: on @ Blocked::Input { .. }, .. } if record.path == *path => on.made_at(),
        _ => None,
    });
    made_at.unwrap_or(path)
}

fn is_revoked(error: &crate::tool::ToolError) -> bool {
    matches!(error, crate::tool::ToolError::Cancelled { reason } if reason.starts_with("revoked: "))
}
