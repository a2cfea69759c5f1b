//! Mailboxes: which messages are accepted, and how they wake suspended runs.

use rusqlite::{Connection, params};
use windlass_core::RunId;
use windlass_core::store::{Message, StoreError};

use super::super::blobs;
use super::super::decide::{self, AT_ONCE, OwnerGuard, RunHead};
use super::super::job::{self, PendingMessage, RunPhase, Start, Write};
use super::super::log::signed;
use super::{JobError, WriteTx};

pub(in crate::sqlite) const HAS_DEDUPE_KEY: &str = "SELECT 1 FROM mail WHERE run = ?1 AND dedupe = ?2";

impl WriteTx<'_> {
    /// Returns the accepted messages. A refused message fails an outsider's commit; an owner's commit is written
    /// without it. `starts` are the runs that the same commit starts.
    pub(super) fn check_mail<'w>(
        &mut self,
        write: &'w Write,
        owner: Option<OwnerGuard>,
        starts: &[&Start],
    ) -> Result<Vec<&'w PendingMessage>, JobError> {
        let mut taken: Vec<&PendingMessage> = Vec::new();
        for message in &write.mail {
            let own = owner.is_some_and(|owner| owner.run == message.run);
            let is_new = (own && write.create.is_some()) || starts.iter().any(|start| start.run == message.run);
            let answer = if own && write.finishes() {
                Err(StoreError::Finished(message.run).into())
            } else if let Some(refused) = repeats(message, &taken) {
                Err(refused.into())
            } else if is_new {
                Ok(())
            } else {
                self.takes(message)
            };
            match answer {
                Ok(()) => taken.push(message),
                Err(JobError::Refused(error)) if owner.is_some() && is_refused_by_recipient(&error) => {
                    tracing::debug!(%error, "a message of an owner was refused and left out");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    pub(in crate::sqlite) fn takes(&mut self, message: &PendingMessage) -> Result<(), JobError> {
        let connection = self.connection;
        let run = message.run;
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?;
        if let Some(dedupe) = &message.dedupe
            && connection.prepare_cached(HAS_DEDUPE_KEY)?.exists(params![head.id, dedupe])?
        {
            return Err(StoreError::Duplicate { run, dedupe: dedupe.clone() }.into());
        }
        Ok(decide::mail(run, head, message.settles.as_ref())?)
    }

    pub(in crate::sqlite) fn deliver(&mut self, message: &PendingMessage) -> Result<(), JobError> {
        let connection = self.connection;
        let head = self.head(message.run)?.ok_or(StoreError::NoSuchRun(message.run))?;
        head.mail += 1;
        connection
            .prepare_cached(
                "INSERT INTO mail (run, position, dedupe, body, sum)
                 VALUES (?1, ?2, ?3, ?4, windlass_sum(?1, ?2, ?3, ?4))",
            )?
            .execute(params![head.id, signed(head.mail), message.dedupe, message.text.body])?;
        blobs::keep(connection, head.id, &message.text.payloads)?;
        let wake = (head.phase == RunPhase::Suspended).then_some(AT_ONCE);
        connection
            .prepare_cached("UPDATE runs SET mail = ?2, wake = coalesce(?3, wake) WHERE id = ?1")?
            .execute(params![head.id, signed(head.mail), wake])?;
        if head.phase == RunPhase::Finished
            && let Some((path, attempt)) = &message.settles
        {
            // No owner drives the run any more, so the settlement itself closes the doubt and stays as its annotation.
            head.doubts.retain(|doubt| doubt.path != *path || doubt.attempt != *attempt);
            connection
                .prepare_cached("UPDATE runs SET doubts = ?2 WHERE id = ?1")?
                .execute(params![head.id, job::encode_list(&head.doubts)?])?;
        }
        Ok(())
    }
}

pub(in crate::sqlite) const UNREAD: &str = "SELECT body FROM mail WHERE run = ?1 AND body IS NOT NULL";
/// How the text of a [`Message::Await`] begins.
const AWAIT: &str = r#"{"type":"await""#;

impl WriteTx<'_> {
    /// Tells the runs that wait for the end of a run that it has finished.
    pub(super) fn notify_awaiting(&mut self, finished: RunId, id: i64) -> Result<(), JobError> {
        let mut awaiting = Vec::new();
        let mut statement = self.connection.prepare_cached(UNREAD)?;
        let mut rows = statement.query([id])?;
        while let Some(row) = rows.next()? {
            let body = row.get_ref(0)?.as_str().unwrap_or_default();
            if body.starts_with(AWAIT)
                && let Ok(Message::Await { by }) = serde_json::from_str(body)
            {
                awaiting.push(by);
            }
        }
        for run in awaiting {
            let message = PendingMessage::over(run, finished)?;
            match self.takes(&message) {
                Ok(()) => self.deliver(&message)?,
                // It has ended, or was told before.
                Err(JobError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Deletes the text of messages. Their rows stay, so that neither positions nor dedupe keys are used again.
pub(super) fn consume(connection: &Connection, head: &RunHead, positions: &[u64]) -> rusqlite::Result<()> {
    if positions.is_empty() {
        return Ok(());
    }
    let mut update = connection.prepare_cached("UPDATE mail SET body = NULL WHERE run = ?1 AND position = ?2")?;
    for position in positions {
        update.execute(params![head.id, signed(*position)])?;
    }
    Ok(())
}

/// Whether the same commit has a message with the same dedupe key already.
fn repeats(message: &PendingMessage, taken: &[&PendingMessage]) -> Option<StoreError> {
    let dedupe = message.dedupe.as_ref()?;
    let same = |other: &&PendingMessage| other.run == message.run && other.dedupe.as_ref() == Some(dedupe);
    taken.iter().any(same).then(|| StoreError::Duplicate { run: message.run, dedupe: dedupe.clone() })
}

/// Whether the recipient refuses the message, as opposed to a failure to read the file.
fn is_refused_by_recipient(error: &StoreError) -> bool {
    matches!(error, StoreError::NoSuchRun(_) | StoreError::Finished(_) | StoreError::Duplicate { .. })
}
