//! Mailboxes: which message is taken, and what it does to a run that sleeps.

use rusqlite::{Connection, params};
use windlass_core::store::StoreError;

use super::super::blobs;
use super::super::decide::{self, AT_ONCE, Head, Owner};
use super::super::job::{self, Letter, Phase, Start, Write};
use super::super::log::signed;
use super::{Table, Trouble};

pub(in crate::sqlite) const KNOWN: &str = "SELECT 1 FROM mail WHERE run = ?1 AND dedupe = ?2";

impl Table<'_> {
    /// Returns the mail that is taken. One message that is not refuses an outsider's commit; an owner's goes without it.
    /// `starts` are the runs the same commit starts.
    pub(super) fn check_mail<'w>(
        &mut self,
        write: &'w Write,
        owner: Option<Owner>,
        starts: &[&Start],
    ) -> Result<Vec<&'w Letter>, Trouble> {
        let mut taken: Vec<&Letter> = Vec::new();
        for letter in &write.mail {
            let own = owner.is_some_and(|owner| owner.run == letter.run);
            let is_new = (own && write.create.is_some()) || starts.iter().any(|start| start.run == letter.run);
            let answer = if own && write.finishes() {
                Err(StoreError::Finished(letter.run).into())
            } else if let Some(refused) = repeats(letter, &taken) {
                Err(refused.into())
            } else if is_new {
                Ok(())
            } else {
                self.takes(letter)
            };
            match answer {
                Ok(()) => taken.push(letter),
                Err(Trouble::Refused(error)) if owner.is_some() && is_about_addressee(&error) => {
                    tracing::debug!(%error, "an owner's message was left out");
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(taken)
    }

    fn takes(&mut self, letter: &Letter) -> Result<(), Trouble> {
        let connection = self.connection;
        let run = letter.run;
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?;
        if let Some(dedupe) = &letter.dedupe
            && connection.prepare_cached(KNOWN)?.exists(params![head.id, dedupe])?
        {
            return Err(StoreError::Duplicate { run, dedupe: dedupe.clone() }.into());
        }
        Ok(decide::mail(run, head, letter.settles.as_ref())?)
    }

    pub(super) fn deliver(&mut self, letter: &Letter) -> Result<(), Trouble> {
        let connection = self.connection;
        let head = self.head(letter.run)?.ok_or(StoreError::NoSuchRun(letter.run))?;
        head.mail += 1;
        connection
            .prepare_cached(
                "INSERT INTO mail (run, position, dedupe, body, sum)
                 VALUES (?1, ?2, ?3, ?4, windlass_sum(?1, ?2, ?3, ?4))",
            )?
            .execute(params![head.id, signed(head.mail), letter.dedupe, letter.text.body])?;
        blobs::keep(connection, head.id, &letter.text.payloads)?;
        let wake = (head.phase == Phase::Suspended).then_some(AT_ONCE);
        connection
            .prepare_cached("UPDATE runs SET mail = ?2, wake = coalesce(?3, wake) WHERE id = ?1")?
            .execute(params![head.id, signed(head.mail), wake])?;
        if head.phase == Phase::Finished
            && let Some((path, attempt)) = &letter.settles
        {
            // Nobody drives the run any more: the settlement itself closes the doubt, and stays as its annotation.
            head.doubts.retain(|doubt| doubt.path != *path || doubt.attempt != *attempt);
            connection
                .prepare_cached("UPDATE runs SET doubts = ?2 WHERE id = ?1")?
                .execute(params![head.id, job::encode_list(&head.doubts)?])?;
        }
        Ok(())
    }
}

/// Forgets what messages said. Their rows stay, so that neither positions nor dedupe keys are ever used again.
pub(super) fn consume(connection: &Connection, head: &Head, positions: &[u64]) -> rusqlite::Result<()> {
    if positions.is_empty() {
        return Ok(());
    }
    let mut update = connection.prepare_cached("UPDATE mail SET body = NULL WHERE run = ?1 AND position = ?2")?;
    for position in positions {
        update.execute(params![head.id, signed(*position)])?;
    }
    Ok(())
}

/// The same commit may bring a message twice.
fn repeats(letter: &Letter, taken: &[&Letter]) -> Option<StoreError> {
    let dedupe = letter.dedupe.as_ref()?;
    let same = |other: &&Letter| other.run == letter.run && other.dedupe.as_ref() == Some(dedupe);
    taken.iter().any(same).then(|| StoreError::Duplicate { run: letter.run, dedupe: dedupe.clone() })
}

/// Whether it is the addressee that does not take a message, rather than the file that cannot be read.
fn is_about_addressee(error: &StoreError) -> bool {
    matches!(error, StoreError::NoSuchRun(_) | StoreError::Finished(_) | StoreError::Duplicate { .. })
}
