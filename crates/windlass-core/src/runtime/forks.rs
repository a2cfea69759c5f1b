//! What can be made of a run's journal beside the run: forks, comparisons, checks against new
//! code, documents.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::{PAGE, Runtime, people};
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

/// Runs in a row that one was forked from, and that are looked at.
const FORKS_KEPT: usize = 64;

impl Runtime {
    /// Makes a run that begins with what this one had finished before the cut, and goes on from there under the code of
    /// today: another id, so other idempotency keys, reply keys, random numbers and children from the cut on. The original
    /// is not touched, whatever it is doing. Durable when it returns; whoever takes up queued runs goes on with it.
    ///
    /// Refused if an attempt before the cut may have happened and its outcome is not known. A `readonly` or `idempotent`
    /// attempt that is in flight is made anew, like everything else that is not finished.
    pub async fn fork(&self, run: RunId, at: Cut, change: Option<fork::Change>) -> Result<RunId> {
        self.fork_under(None, run, at, change).await
    }

    /// The same under a key: forking again under it, at the same place, returns the same fork.
    pub async fn fork_under(
        &self,
        key: Option<Arc<str>>,
        run: RunId,
        at: Cut,
        change: Option<fork::Change>,
    ) -> Result<RunId> {
        let kernel = &self.kernel;
        if kernel.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let replaced = match &change {
            Some(fork::Change::Input(args)) => size::shallow(args, "what it is forked with"),
            Some(fork::Change::Outcome { result: Ok(output), .. }) => size::shallow(&output.value, "the outcome"),
            _ => Ok(()),
        };
        replaced.map_err(Error::Invalid)?;
        let info = kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if let Some(key) = &key
            && let Some(there) = kernel.store.keyed(key.clone()).await?
        {
            return self.same_fork(there, run, &at).await;
        }
        let journal = people::current(kernel.store.journal(run, 0).await?);
        let original = Original { run, generation: generation(&journal), journal };
        let now = kernel.env.clock.now();
        let check = |asked: &Asked, args: &Value| self.check_replaced(asked, args);
        let records = fork(&original, &at, change, now, check).map_err(Error::Conflict)?;
        let forked = kernel.env.mint.run(now);
        let creation = Creation { tool: info.tool, at: now, session: info.session, key, ..Creation::default() };
        let artifacts: Vec<_> = referred(&records).collect();
        let mut changes = vec![Change::Start { run: forked, creation, records }];
        if !artifacts.is_empty() {
            changes.push(Change::Refer { run: forked, artifacts, by: run });
        }
        match kernel.store.commit(Commit { guard: Guard::Outsider, changes }).get().await {
            Err(StoreError::KeyTaken { run: there }) => return self.same_fork(there, run, &at).await,
            answer => answer?,
        }
        kernel.nudge(forked);
        Ok(forked)
    }

    /// The run that has the key, if it is this fork.
    async fn same_fork(&self, there: RunId, of: RunId, at: &Cut) -> Result<RunId> {
        let first = match self.kernel.store.page(there, 0, FORKS_KEPT).await {
            // Too old to be compared.
            Err(StoreError::JournalGone(_)) => return Ok(there),
            records => records?,
        };
        // Forks of forks begin with where those came from.
        let last = first.iter().rev().find_map(|record| match &record.event {
            Event::Forked { from, cut, .. } => Some((*from, cut.clone())),
            _ => None,
        });
        let same_cut = |cut: &Cut| *cut == *at || (*cut == Cut::Start && matches!(at, Cut::At(path) if path.is_root()));
        match last {
            Some((from, cut)) if from == of && same_cut(&cut) => Ok(there),
            Some((from, cut)) => {
                Err(Error::KeyReused { run: there, what: format!("it is a fork of run {from} at {cut}") })
            }
            None => Err(Error::KeyReused { run: there, what: "it is no fork".to_owned() }),
        }
    }

    /// Whether a call can be made with arguments that nobody asked for: it will not be checked or prepared again. Returns
    /// what of them is secret.
    fn check_replaced(&self, asked: &Asked, args: &Value) -> std::result::Result<Places, String> {
        let name = &asked.name;
        let Some(tool) = self.kernel.tool_of(asked) else {
            return Err(format!(
                "there is no tool `{name}` here, so its arguments cannot be replaced; register it first"
            ));
        };
        if tool.preparer().is_some() {
            return Err(format!(
                "`{name}` prepares its calls, and arguments replaced here would pass it by; replace the outcome instead"
            ));
        }
        let refuse = |error| format!("these arguments do not fit `{name}`: {error}");
        tool.contract().and_then(|contract| contract.check_arguments(args)).map_err(refuse)?;
        Ok(tool.secret_places(args))
    }

    /// Where two runs differ, each by the journal of its latest generation: usually a run and a fork of it.
    pub async fn compare(&self, a: RunId, b: RunId) -> Result<Comparison> {
        let (of_a, of_b) = (self.recent(a).await?, self.recent(b).await?);
        Ok(compare((a, &of_a), (b, &of_b)))
    }

    /// Runs a run's journal against the code of today, without touching the store and without performing anything: says
    /// how far they fit, or why the run would be held. Bodies are entered, so what they do outside of operations is done.
    pub async fn replay_check(&self, run: RunId) -> Result<Check> {
        let mut info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let journal = people::current(self.kernel.store.journal(run, 0).await?);
        info.generation = generation(&journal);
        Ok(replay_check::check(&self.kernel, info, journal))
    }

    /// The same for every run that matches, one after the other: a page of them is in memory at a time.
    pub async fn replay_check_all(&self, filter: Filter) -> Result<Checks> {
        let mut checks = Checks::default();
        let mut after = None;
        loop {
            let page = self.kernel.store.list(filter.clone(), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            let is_last = page.len() < PAGE;
            for mut info in page {
                let run = info.run;
                let journal = self.kernel.store.journal(run, 0).await.map(people::current);
                let check = journal.map(|journal| {
                    info.generation = generation(&journal);
                    replay_check::check(&self.kernel, info, journal)
                });
                checks.add(run, check);
            }
            if is_last {
                return Ok(checks);
            }
        }
    }

    /// A run as a versioned JSON document: its journal, what it waits for, what nobody has received yet. The run itself
    /// stays as it is.
    pub async fn export(&self, run: RunId) -> Result<Value> {
        transfer::export(&self.kernel, run).await
    }

    /// Puts an exported run into this store, under its id. A finished one is finished; any other is held until somebody has
    /// made sure that the original will not go on, and resumes it: `once` attempts without a result are in doubt then, as
    /// after a crash. Reply keys of the original are void here, and runs it spawned are not part of it.
    ///
    /// Durable when it returns. A journal of several generations is written one by one: an import that breaks off leaves
    /// the run held and is completed by importing the same document again.
    pub async fn import(&self, document: &str) -> Result<RunId> {
        transfer::import(&self.kernel, document).await
    }

    /// A journal that is not all there must not be gone on with.
    pub(super) async fn refuse_half_imported(&self, run: RunId) -> Result<()> {
        match self.kernel.store.info(run).await?.map(|info| info.state) {
            Some(RunState::Held { hold: hold @ Hold::Imported { missing: 1.., .. } }) => Err(Error::Held { run, hold }),
            _ => Ok(()),
        }
    }

    async fn recent(&self, run: RunId) -> Result<Vec<Record>> {
        self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        Ok(people::current(self.kernel.store.journal(run, 0).await?))
    }
}

/// Which generation a journal is of. A run may go on to its next one between two looks at the store, so the journal itself
/// is asked.
fn generation(journal: &[Record]) -> u32 {
    match journal.first().map(|record| &record.event) {
        Some(Event::Continued { generation, .. }) => *generation,
        _ => 0,
    }
}
