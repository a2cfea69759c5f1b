//! What a run was sent and how it answered, from durable facts alone: its row, its mailbox and its journal.

use std::sync::Arc;

use serde_json::Value;

use super::Runtime;
use super::messages::ReplyResult;
use crate::error::Result;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::record::{Event, Finished, OpKind, Record};
use crate::run::secrets::Places;
use crate::run::state::{Blocked, RunInfo, RunState};
use crate::store::{Mail, Message, StoreError};
use crate::tool::Output;

/// The durable facts about a run. They are read in the order in which they move: what has left the row or the mailbox
/// by the time it is read is in the journal, which is read last. So nothing is missed while the run goes on.
pub(super) struct RunFacts {
    pub(super) info: RunInfo,
    pub(super) mail: Vec<Mail>,
    /// The records of all generations; empty if the journal is no longer kept.
    journal: Vec<Record>,
}

impl Runtime {
    /// Reads the durable facts about a run.
    pub(super) async fn facts(&self, run: RunId) -> Result<RunFacts> {
        let store = &self.kernel.store;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let mail = store.mail(run, 0).await?;
        let journal = match store.journal(run, 0).await {
            Err(StoreError::JournalGone(_)) => Vec::new(),
            journal => journal?,
        };
        Ok(RunFacts { info, mail, journal })
    }
}

impl Kernel {
    /// Where the value that the operation at `path` returns contains secrets. Only calls return secrets. An operation
    /// without a record may be one, so all of its value counts as secret.
    pub(super) fn secrets_of(
        &self,
        session: Option<&Arc<str>>,
        journal: &[Record],
        path: &Path,
        value: &Value,
    ) -> Places {
        let asked = journal.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
        let Some(asked) = asked else { return Places::whole(value) };
        let mut output = Output::value(value.clone());
        match self.tool_of(asked, session) {
            Some(tool) if asked.kind == OpKind::Call => tool.mark_secrets(&mut output),
            None if asked.kind == OpKind::Call => output.secrets = Places::whole(value),
            _ => {}
        }
        output.secrets
    }
}

impl Kernel {
    /// Marks the secrets in an output that a person gives the operation at `path`, if its tool is known here.
    pub(super) fn mark_given(&self, session: Option<&Arc<str>>, journal: &[Record], path: &Path, output: &mut Output) {
        let asked = journal.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
        let asked = asked.filter(|asked| asked.kind == OpKind::Call);
        if let Some(tool) = asked.and_then(|asked| self.tool_of(asked, session)) {
            tool.mark_secrets(output);
        }
    }
}

impl RunFacts {
    /// The records of one generation.
    pub(super) fn generation(&self, generation: u32) -> &[Record] {
        let mut all = self.journal.chunk_by(|_, next| !matches!(next.event, Event::Continued { .. }));
        let is_it = |records: &&[Record]| match records.first().map(|first| &first.event) {
            Some(Event::Continued { generation: of, .. }) => *of == generation,
            _ => generation == 0,
        };
        all.find(is_it).unwrap_or_default()
    }

    /// The result of the park that a reply key belongs to, if it has ended or was answered.
    pub(super) fn closed(&self, generation: u32, path: &Path) -> Option<ReplyResult> {
        let revoked = |reason: &str| Some(ReplyResult::Revoked { reason: reason.to_owned() });
        let journal = self.generation(generation);
        let waiting = match wait_of(journal, path) {
            Ok(waiting) => waiting,
            Err(closed) => return Some(closed),
        };
        if self.info.generation != generation {
            return revoked("the run continued with its next generation");
        }
        if matches!(self.info.state, RunState::Finished { .. }) {
            return revoked("the run has ended");
        }
        let above = |at: &Path| at.depth() < waiting.depth() && waiting.positions().starts_with(at.positions());
        if journal.iter().any(|record| matches!(record.event, Event::Finished(_)) && above(&record.path)) {
            return revoked("the operation that waited for it has ended");
        }
        let at = key_of(journal, path);
        let first = self.mail.iter().find_map(|mail| match &mail.message {
            Message::Resolve { path: told, generation: of, resolution, secrets } if told == at && *of == generation => {
                let mut first = resolution.clone().into_result();
                if let (Ok(output), false) = (&mut first, secrets.is_empty()) {
                    Arc::make_mut(output).secrets = secrets.clone();
                }
                Some(first)
            }
            _ => None,
        });
        if let Some(first) = first {
            return Some(ReplyResult::Already(first));
        }
        match journal.iter().any(|record| matches!(record.event, Event::Revoked { .. })) {
            true => revoked("its session was closed"),
            false => None,
        }
    }
}

/// The result of a park according to the journal.
pub(super) fn recorded(journal: &[Record], path: &Path) -> Option<ReplyResult> {
    wait_of(journal, path).err()
}

/// The operation that waits for the reply key made at `path`, or what closed the key. A body can wait for the same event
/// several times. The first answer counts for all of them, and without one the key is open while any of them waits.
fn wait_of<'j>(journal: &'j [Record], path: &'j Path) -> Result<&'j Path, ReplyResult> {
    let name = path.to_string();
    let asks_again = |record: &Record| {
        record.asked.as_ref().is_some_and(|asked| asked.kind == OpKind::Answer && *asked.name == *name)
    };
    let again = journal.iter().filter(|record| asks_again(record)).map(|record| &record.path);
    let reason = |record: &'j Record| match &record.event {
        Event::Cancelled { reason, .. } | Event::CancelledBelow { reason } => Some(reason.as_str()),
        _ => None,
    };
    let cancelled: Vec<&str> = journal.iter().filter_map(reason).collect();
    let (mut waiting, mut closed) = (None, None);
    for wait in std::iter::once(path).chain(again) {
        match finished(journal, wait) {
            Some(finished) if finished.is_answer(cancelled.iter().copied()) => {
                return Err(ReplyResult::Already(finished.result.clone()));
            }
            Some(finished) => closed = Some(finished),
            None => waiting = Some(wait),
        }
    }
    match (waiting, closed) {
        (None, Some(finished)) => Err(match finished.revocation() {
            Some(reason) => ReplyResult::Revoked { reason: reason.to_owned() },
            None => ReplyResult::Already(finished.result.clone()),
        }),
        (waiting, _) => Ok(waiting.unwrap_or(path)),
    }
}

fn finished<'j>(journal: &'j [Record], path: &Path) -> Option<&'j Finished> {
    journal.iter().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path == *path => Some(finished),
        _ => None,
    })
}

/// The path at which the reply key for the wait at `path` was created.
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
    use crate::run::record::{OpOutcome, Settled, Settler};
    use crate::time::{Times, Timestamp};
    use crate::tool::ToolError;

    #[test]
    fn l08_a_revoked_key_is_recognized_by_its_record_and_not_by_the_text_of_an_answer() {
        let error = ToolError::Cancelled { reason: "revoked: text of the answer".to_owned() };
        let outcome = OpOutcome { result: Err(Arc::new(error)), at: Timestamp::default(), times: Times::default() };
        let mut record = finished(&Path::root(), &outcome);
        assert!(matches!(recorded(&[record.clone()], &Path::root()), Some(ReplyResult::Already(_))));
        let Event::Finished(ended) = &mut record.event else { panic!("it is the end") };
        ended.settled = Some(Box::new(Settled { by: Settler::Revocation, reason: "closed".to_owned() }));
        let closed = recorded(&[record], &Path::root());
        assert!(matches!(closed, Some(ReplyResult::Revoked { reason }) if reason == "closed"));
    }
}
