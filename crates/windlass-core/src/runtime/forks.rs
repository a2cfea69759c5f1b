//! Uses of a run's journal besides driving the run: forks, comparisons, checks against new code, and exported
//! documents.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::{PAGE, Runtime, messages};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::replay_check::{self, Checks};
use crate::run::check::Check;
use crate::run::compare::{Comparison, compare};
use crate::run::fork::{self, Cut, Original, fork};
use crate::run::record::{Asked, Event, Record};
use crate::run::refs::referred;
use crate::run::secrets::Places;
use crate::run::state::{Hold, RunState};
use crate::store::{Change, Commit, Creation, Filter, Guard, StoreError};
use crate::transfer;
use crate::value::size;

/// How many first records are searched for where a fork came from. A fork of forks begins with one record for each of
/// them.
const FORKS_KEPT: usize = 64;

impl Runtime {
    /// Creates a run that starts with what this one had finished before the cut, and continues from there with the
    /// current code. It has another id, and so other idempotency keys, reply keys, random numbers and children after
    /// the cut. The original is not changed, even while it runs. Durable when it returns; a worker continues it like
    /// any queued run.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if an attempt before the cut may have taken effect and its outcome is unknown. A `readonly`
    /// or `idempotent` attempt in flight is made again, like everything that is not finished.
    pub async fn fork(&self, run: RunId, at: Cut, change: Option<fork::ForkChange>) -> Result<RunId> {
        self.fork_under(None, run, at, change).await
    }

    /// Like [`fork`](Runtime::fork), with a key: the same key with the same run and cut returns the same fork. For
    /// anything else it is refused with [`Error::KeyReused`].
    pub async fn fork_under(
        &self,
        key: Option<Arc<str>>,
        run: RunId,
        at: Cut,
        mut change: Option<fork::ForkChange>,
    ) -> Result<RunId> {
        let kernel = &self.kernel;
        if kernel.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let replaced = match &change {
            Some(fork::ForkChange::Input(args)) => size::check_depth(args, "the new input"),
            Some(fork::ForkChange::Outcome { result: Ok(output), .. }) => {
                size::check_depth(&output.value, "the outcome")
            }
            _ => Ok(()),
        };
        replaced.map_err(Error::Invalid)?;
        let info = kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if let Some(key) = &key
            && let Some(existing) = kernel.store.keyed(key.clone()).await?
        {
            return self.same_fork(existing, run, &at).await;
        }
        if !kernel.admission.unfinished.has_credit() {
            kernel.admit_run().await?;
        }
        let journal = messages::current(kernel.store.journal(run, 0).await?);
        if let (Some(fork::ForkChange::Outcome { result: Ok(output), .. }), Cut::At(path)) = (&mut change, &at) {
            kernel.mark_given(info.session.as_ref(), &journal, path, output);
        }
        let original = Original { run, generation: generation(&journal), journal };
        let now = kernel.env.clock.now();
        let check = |asked: &Asked, args: &Value| self.check_replaced(asked, args, info.session.as_ref());
        let records = fork(&original, &at, change, now, check).map_err(Error::Conflict)?;
        let forked = kernel.env.mint.run(now);
        kernel.drives.add(forked);
        let (tool, session, principal, cause) = (info.tool, info.session, info.principal, info.cause);
        let most = Some(kernel.env.limits.session_runs);
        let creation = Creation { tool, at: now, session, principal, cause, key, most, ..Creation::default() };
        let artifacts: Vec<_> = referred(&records).collect();
        let mut changes = vec![Change::Start { run: forked, creation, records }];
        if !artifacts.is_empty() {
            changes.push(Change::Refer { run: forked, artifacts, by: run });
        }
        match kernel.store.commit(Commit { guard: Guard::Outsider, changes }).get().await {
            Err(StoreError::KeyTaken { run: existing }) => return self.same_fork(existing, run, &at).await,
            answer => answer?,
        }
        kernel.nudge(forked);
        Ok(forked)
    }

    /// The run that has the key, if it is this fork.
    async fn same_fork(&self, existing: RunId, of: RunId, at: &Cut) -> Result<RunId> {
        let first = match self.kernel.store.page(existing, 0, FORKS_KEPT).await {
            // Only the summary is left, so it cannot be compared.
            Err(StoreError::JournalGone(_)) => return Ok(existing),
            records => records?,
        };
        // A fork of a fork begins with the origins of both.
        let last = first.iter().rev().find_map(|record| match &record.event {
            Event::Forked { from, cut, .. } => Some((*from, cut.clone())),
            _ => None,
        });
        let same_cut = |cut: &Cut| *cut == *at || (*cut == Cut::Start && matches!(at, Cut::At(path) if path.is_root()));
        match last {
            Some((from, cut)) if from == of && same_cut(&cut) => Ok(existing),
            Some((from, cut)) => {
                Err(Error::KeyReused { run: existing, what: format!("it is a fork of run {from} at {cut}") })
            }
            None => Err(Error::KeyReused { run: existing, what: "it is not a fork".to_owned() }),
        }
    }

    /// Checks arguments that replace those of a recorded call, because the call is not validated or prepared again.
    /// Returns the locations of their secrets.
    fn check_replaced(
        &self,
        asked: &Asked,
        args: &Value,
        session: Option<&Arc<str>>,
    ) -> std::result::Result<Places, String> {
        let name = &asked.name;
        let Some(tool) = self.kernel.tool_of(asked, session) else {
            return Err(format!(
                "tool `{name}` is not registered here, so its arguments cannot be replaced; register it first"
            ));
        };
        if tool.preparer().is_some() {
            return Err(format!(
                "`{name}` prepares its calls, and replaced arguments would skip that; replace the outcome instead"
            ));
        }
        let refuse = |error| format!("these arguments do not fit `{name}`: {error}");
        tool.contract().and_then(|contract| contract.check_arguments(args)).map_err(refuse)?;
        Ok(tool.secret_places(args))
    }

    /// Finds where two runs differ, such as a run and a fork of it, by the journals of their latest generations.
    pub async fn compare(&self, a: RunId, b: RunId) -> Result<Comparison> {
        let (of_a, of_b) = (self.recent(a).await?, self.recent(b).await?);
        Ok(compare((a, &of_a), (b, &of_b)))
    }

    /// Replays a run's journal with the current code, without changing the store and without performing operations.
    /// Reports how far they fit, or why the run would be held. Bodies are entered, so their side effects outside of
    /// operations happen.
    pub async fn replay_check(&self, run: RunId) -> Result<Check> {
        let mut info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let journal = messages::current(self.kernel.store.journal(run, 0).await?);
        info.generation = generation(&journal);
        let tools = self.kernel.session_tools(info.session.as_ref()).await?;
        Ok(replay_check::check(&self.kernel, info, journal, tools))
    }

    /// Like [`replay_check`](Runtime::replay_check), for every run that matches, one after the other. It reads the runs
    /// page by page.
    pub async fn replay_check_all(&self, filter: Filter) -> Result<Checks> {
        let mut checks = Checks::default();
        let mut after = None;
        loop {
            let page = self.kernel.store.list(filter.clone(), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            let is_last = page.len() < PAGE;
            for mut info in page {
                let run = info.run;
                let journal = self.kernel.store.journal(run, 0).await.map(messages::current);
                let tools = self.kernel.session_tools(info.session.as_ref()).await?;
                let check = journal.map(|journal| {
                    info.generation = generation(&journal);
                    replay_check::check(&self.kernel, info, journal, tools)
                });
                checks.add(run, check);
            }
            if is_last {
                return Ok(checks);
            }
        }
    }

    /// Exports a run as a versioned JSON document: its journal, what it waits for, and its pending messages. The run is
    /// not changed.
    pub async fn export(&self, run: RunId) -> Result<Value> {
        transfer::export(&self.kernel, run).await
    }

    /// Imports an exported run into this store, under its id. A finished run is finished here too. Any other is held
    /// until an operator has made sure that the original will not continue, and resumes it. `once` attempts without a
    /// result are then in doubt, as after a crash. Reply keys of the original are not valid here, and the runs it
    /// spawned are not imported.
    ///
    /// Durable when it returns. A journal of several generations is written in several commits: if the import is
    /// interrupted, the run is held, and importing the same document again completes it.
    pub async fn import(&self, document: &str) -> Result<RunId> {
        transfer::import(&self.kernel, document).await
    }

    /// Refuses a run whose import is incomplete.
    pub(super) async fn refuse_half_imported(&self, run: RunId) -> Result<()> {
        match self.kernel.store.info(run).await?.map(|info| info.state) {
            Some(RunState::Held { hold: hold @ Hold::Imported { missing: 1.., .. } }) => Err(Error::Held { run, hold }),
            _ => Ok(()),
        }
    }

    async fn recent(&self, run: RunId) -> Result<Vec<Record>> {
        self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        Ok(messages::current(self.kernel.store.journal(run, 0).await?))
    }
}

/// The generation of a journal. It is taken from the journal itself, because the run may continue with its next
/// generation between two reads of the store.
fn generation(journal: &[Record]) -> u32 {
    match journal.first().map(|record| &record.event) {
        Some(Event::Continued { generation, .. }) => *generation,
        _ => 0,
    }
}
