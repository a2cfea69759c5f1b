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
    let finished = journal.iter().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path == *path => Some(finished),
        _ => None,
    })?;
    Some(match finished.revocation() {
        Some(reason) => Resolved::Revoked { reason: reason.to_owned() },
        None => Resolved::Already(finished.result.clone()),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::park::finished;
    use crate::run::record::{Settled, Settler, Told};
    use crate::time::{Times, Timestamp};
    use crate::tool::ToolError;

    #[test]
    fn l08_a_void_key_is_known_by_its_record_and_not_by_the_words_of_an_answer() {
        let error = ToolError::Cancelled { reason: "revoked: so says the answer".to_owned() };
        let told = Told { result: Err(Arc::new(error)), at: Timestamp::default(), times: Times::default() };
        let mut record = finished(&Path::root(), &told);
        assert!(matches!(recorded(&[record.clone()], &Path::root()), Some(Resolved::Already(_))));
        let Event::Finished(ended) = &mut record.event else { panic!("it is the end") };
        ended.settled = Some(Box::new(Settled { by: Settler::Revocation, reason: "closed".to_owned() }));
        let closed = recorded(&[record], &Path::root());
        assert!(matches!(closed, Some(Resolved::Revoked { reason }) if reason == "closed"));
    }
}
