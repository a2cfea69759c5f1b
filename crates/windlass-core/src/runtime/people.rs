//! What people and other systems tell runs: settlements, cancellations, answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{PAGE, Question, Runtime};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy;
use crate::run::Registration;
use crate::run::parks;
use crate::run::record::{Event, Record, Recorded};
use crate::run::reply::Address;
use crate::run::state::{Blocked, Doubt, Park, RunInfo, RunState};
use serde_json::Value;

use crate::store::{Change, Commit, Filter, Guard, Message, Resolution, Settlement, StoreError};

/// How long an answer waits for the run that it is for to be in the store.
const ANSWER_EARLY: Duration = Duration::from_secs(1);

/// What became of an answer.
#[derive(Clone, Debug)]
pub enum Resolved {
    /// It is the answer. Durable.
    Accepted,
    /// Somebody answered before: this is what counts.
    Already(Recorded),
    /// The key is void.
    Revoked {
        /// Why.
        reason: String,
    },
}

/// Something that waits for a person or another system.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// Which run.
    pub run: RunId,
    /// What it runs.
    pub tool: Arc<str>,
    /// What waits, and for what.
    pub park: Park,
    /// The key that answers it, where a key does.
    pub key: Option<String>,
}

impl Runtime {
    /// Everything that waits for a settlement, oldest run first.
    pub async fn doubts(&self) -> Result<Vec<(RunId, Doubt)>> {
        let mut doubts = Vec::new();
        let mut after = None;
        loop {
            let page = self.kernel.store.list(Filter::Doubted, after, PAGE).await?;
            after = page.last().map(|info| info.run);
            doubts.extend(page.iter().flat_map(|info| info.doubts.iter().map(|doubt| (info.run, doubt.clone()))));
            if page.len() < PAGE {
                return Ok(doubts);
            }
        }
    }

    /// Settles a doubt. Durable when it returns; the run goes on at once if this runtime drives it.
    pub async fn settle(&self, run: RunId, path: &Path, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        self.settle_as(run, path, settlement, (by, reason), None).await
    }

    /// The same about exactly this doubt. Whoever says something about it first is who counts.
    pub async fn settle_once(&self, question: &Question, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        let Question { run, generation, path, .. } = question;
        let info = self.kernel.store.info(*run).await?.ok_or(StoreError::NoSuchRun(*run))?;
        Self::open_question(&info, question)?;
        let dedupe = format!("settle {generation} {path} {:?}", question.about);
        match self.settle_as(*run, path, settlement, (by, reason), Some(dedupe.into())).await {
            Err(Error::Store(StoreError::Duplicate { .. })) => Err(Error::Refused(format!(
                "somebody has settled the doubt at {path} of run {run} already; the first settlement counts"
            ))),
            settled => settled,
        }
    }

    async fn settle_as(
        &self,
        run: RunId,
        path: &Path,
        settlement: Settlement,
        (by, reason): (&str, &str),
        dedupe: Option<Arc<str>>,
    ) -> Result<()> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let doubt = info.doubts.iter().find(|doubt| doubt.path == *path).ok_or_else(|| {
            let open: Vec<String> = info.doubts.iter().map(|doubt| doubt.path.to_string()).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            Error::Refused(format!("nothing is in doubt at {path} of run {run}; open doubts: {open}"))
        })?;
        let wait = doubt.over_by.since(self.kernel.clock.now());
        if matches!(settlement, Settlement::DidNotHappen) && !wait.is_zero() {
            return Err(Error::Refused(format!(
                "the attempt at {path} of run {run} may still be running on a worker that was lost; \"it did not \
                 happen\" can be said in {wait:?}"
            )));
        }
        let message = Message::Settle {
            path: path.clone(),
            generation: info.generation,
            attempt: doubt.attempt,
            settlement,
            by: by.to_owned(),
            reason: reason.to_owned(),
        };
        Ok(self.post(run, message, dedupe).await?)
    }

    /// Cancels a run. Durable when it returns; attempts in flight are asked to stop at once if this runtime drives them.
    pub async fn cancel(&self, run: RunId, by: &str, reason: &str) -> Result<()> {
        self.cancel_under(None, run, by, reason).await
    }

    /// The same under a key: cancelling again under it is harmless, also when the run is over.
    pub async fn cancel_under(&self, key: Option<&str>, run: RunId, by: &str, reason: &str) -> Result<()> {
        let message = Message::Cancel { by: by.to_owned(), reason: reason.to_owned() };
        let dedupe = key.map(|key| format!("cancel {key}").into());
        match self.post(run, message, dedupe).await {
            Ok(()) | Err(StoreError::Duplicate { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes to a run's mailbox and sees to it that the run notices.
    pub(super) async fn post(
        &self,
        run: RunId,
        message: Message,
        dedupe: Option<Arc<str>>,
    ) -> std::result::Result<(), StoreError> {
        // A run that was started a moment ago may not be in the store yet.
        self.arrived(run).await;
        let changes = vec![Change::Mail { run, message, dedupe }];
        let answer = self.kernel.store.commit(Commit { guard: Guard::Outsider, changes }).get().await;
        if let Err(StoreError::Unknown(_)) = &answer {
            // It may be there all the same.
            self.kernel.nudge(run);
        }
        answer?;
        match self.kernel.notify(run) {
            Some(live) => live.run.look_for_mail().await,
            None => self.kernel.wake_up(run),
        }
        Ok(())
    }

    /// Sends a signal that the run's tool declared. The Nth signal of a name answers the Nth receive. With a `key`, sending
    /// it again is harmless: it arrives once. Durable when it returns; refused by a finished run.
    pub async fn signal(&self, run: RunId, name: &str, value: Value, key: Option<&str>) -> Result<()> {
        self.arrived(run).await;
        let dedupe: Option<Arc<str>> = key.map(|key| format!("signal {key}").into());
        self.kernel.check_signal(run, name, &value).await?.map_err(Error::Tool)?;
        let message = Message::Signal { name: name.into(), value: Arc::new(value) };
        match self.post(run, message, dedupe).await {
            Ok(()) | Err(StoreError::Duplicate { .. }) => Ok(()),
            Err(StoreError::Finished(run)) => {
                Err(Error::Refused(format!("run {run} is finished and receives nothing any more; start another one")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a wait or a pending call by its reply key. The first answer counts; one that comes before anybody waits is
    /// kept. Durable when it returns.
    pub async fn resolve(&self, key: &str, resolution: Resolution) -> Result<Resolved> {
        let Address { run, generation, path } = self.kernel.reach.signer.open(key).ok_or_else(|| {
            let shown: String = key.chars().take(80).collect();
            Error::Refused(format!(
                "{shown:?} is not a reply key of this store; use the key exactly as it was handed out"
            ))
        })?;
        self.until_stored(run).await;
        let dedupe: Arc<str> = format!("resolve {generation} {path}").into();
        if let Some(closed) = self.closed(run, generation, &path).await? {
            return Ok(closed);
        }
        let message = Message::Resolve { path: path.clone(), generation, resolution };
        match self.post(run, message, Some(dedupe)).await {
            Ok(()) => Ok(Resolved::Accepted),
            Err(StoreError::Duplicate { .. } | StoreError::Finished(_)) => {
                let closed = self.closed(run, generation, &path).await?;
                let gone = || Resolved::Revoked { reason: "the run is over".to_owned() };
                Ok(closed.unwrap_or_else(gone))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A key is handed out in the middle of an attempt, and whoever has it may be faster than the store that hears of the
    /// run. Not for ever: it may be the attempt itself that answers.
    async fn until_stored(&self, run: RunId) {
        let Some(live) = self.live(run) else { return };
        let mut registration = Registration::default();
        let stored = std::future::poll_fn(|cx| {
            registration.register(&live.run, cx);
            let is_over = live.run.is_halted() || live.run.with(|machine| machine.outbox().is_stored());
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        });
        futures_util::future::select(std::pin::pin!(stored), self.kernel.clock.sleep(ANSWER_EARLY)).await;
    }

    /// What a reply key's park came to, if it is over or answered.
    async fn closed(&self, run: RunId, generation: u32, path: &Path) -> Result<Option<Resolved>> {
        let store = &self.kernel.store;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let revoked = |reason: &str| Ok(Some(Resolved::Revoked { reason: reason.to_owned() }));
        if info.generation != generation {
            return revoked("the run has gone on to its next generation");
        }
        let journal = current(store.journal(run, 0).await?);
        if let Some(result) = result_at(&journal, path) {
            return Ok(Some(match &result {
                Err(error) if is_revoked(error) => Resolved::Revoked { reason: error.to_string() },
                _ => Resolved::Already(result),
            }));
        }
        if journal.iter().any(|record| matches!(record.event, Event::Revoked { .. })) {
            return revoked("its session was closed");
        }
        if matches!(info.state, RunState::Finished { .. }) {
            return revoked("the run is over");
        }
        let mail = store.mail(run, 0).await?;
        let first = mail.into_iter().find_map(|mail| match mail.message {
            Message::Resolve { path: at, generation: of, resolution } if at == *path && of == generation => {
                Some(parks::resolved(resolution))
            }
            _ => None,
        });
        Ok(first.map(Resolved::Already))
    }

    /// Decides about a call that waits for approval: the one at `path`, with exactly the arguments this digest stands for.
    /// A grant serves that call and no other, and is void after [`Policy::grant_valid`](crate::policy::Policy). The first
    /// decision counts. Durable when it returns.
    pub async fn decide(
        &self,
        run: RunId,
        path: &Path,
        digest: &str,
        granted: bool,
        (by, reason): (&str, &str),
    ) -> Result<()> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let park = info.parks.iter().find(|park| park.path == *path);
        let Some(Blocked::Approval { digest: asked, tool, .. }) = park.map(|park| &park.on) else {
            return Err(Error::Refused(format!(
                "nothing at {path} of run {run} waits for approval; look at the inbox again"
            )));
        };
        if asked != digest {
            return Err(Error::Refused(format!(
                "the call at {path} of run {run} has other arguments than those decided about; look at them and decide again"
            )));
        }
        let valid = self.grant_valid(run, path, tool).await?;
        let message = Message::Decide {
            path: path.clone(),
            generation: info.generation,
            digest: digest.to_owned(),
            granted,
            by: by.to_owned(),
            reason: reason.to_owned(),
            until: self.kernel.clock.now() + valid,
        };
        let dedupe = format!("decide {} {path} {:?}", info.generation, park.map(|park| park.since));
        match self.post(run, message, Some(dedupe.into())).await {
            Err(StoreError::Duplicate { .. }) => Err(Error::Refused(format!(
                "somebody has decided about the call at {path} of run {run} already; the first decision counts"
            ))),
            posted => posted.map_err(Error::from),
        }
    }

    /// How long a grant for this call is valid: what the call itself says is in its record.
    async fn grant_valid(&self, run: RunId, path: &Path, tool: &str) -> Result<Duration> {
        let journal = current(self.kernel.store.journal(run, 0).await?);
        let asked = journal.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
        let own = asked.and_then(|asked| asked.limits.as_deref());
        let snapshot = self.toolbox.snapshot();
        Ok(match snapshot.by_name(tool) {
            Some(tool) => policy::Resolved::of(&self.kernel.policy, tool.spec(), own).grant_valid,
            None => own.and_then(|own| own.grant_valid).unwrap_or(limits::GRANT_VALID),
        })
    }

    /// Says that a provider is connected now, or that it will not be, to every run that waits for it. Returns how many.
    pub async fn connect(&self, provider: &str, refused: Option<&str>) -> Result<usize> {
        self.connect_under(None, provider, refused).await
    }

    /// The same under a key: a run that was told under it is not told again.
    pub async fn connect_under(&self, key: Option<&str>, provider: &str, refused: Option<&str>) -> Result<usize> {
        let waits = |park: &Park| matches!(&park.on, Blocked::Connection { provider: wanted } if **wanted == *provider);
        let mut told = 0;
        let mut after = None;
        loop {
            let page = self.kernel.store.list(Filter::Inbox, after, PAGE).await?;
            after = page.last().map(|info| info.run);
            for info in page.iter().filter(|info| info.parks.iter().any(waits)) {
                let message = Message::Connect { provider: provider.into(), refused: refused.map(str::to_owned) };
                let dedupe = key.map(|key| format!("connect {provider} {key}").into());
                match self.post(info.run, message, dedupe).await {
                    Ok(()) | Err(StoreError::Duplicate { .. }) => told += 1,
                    Err(StoreError::Finished(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if page.len() < PAGE {
                return Ok(told);
            }
        }
    }

    /// The providers that somebody must connect before runs can go on, each once, with the runs that wait for it.
    pub async fn connections_wanted(&self) -> Result<BTreeMap<Arc<str>, Vec<RunId>>> {
        let mut wanted: BTreeMap<Arc<str>, Vec<RunId>> = BTreeMap::new();
        for item in self.inbox().await? {
            if let Blocked::Connection { provider } = &item.park.on {
                let runs = wanted.entry(provider.clone()).or_default();
                if !runs.contains(&item.run) {
                    runs.push(item.run);
                }
            }
        }
        Ok(wanted)
    }

    /// Everything that waits for a person or another system, oldest run first: inputs, approvals, connections. Doubts are
    /// listed by [`doubts`](Runtime::doubts).
    pub async fn inbox(&self) -> Result<Vec<Awaited>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self.kernel.store.list(Filter::Inbox, after, PAGE).await?;
            after = page.last().map(|info| info.run);
            all.extend(page.iter().flat_map(|info| self.awaited(info)));
            if page.len() < PAGE {
                return Ok(all);
            }
        }
    }

    /// What of one run waits for a person or another system, beside doubts.
    pub fn awaited(&self, info: &RunInfo) -> Vec<Awaited> {
        let (run, generation) = (info.run, info.generation);
        let waiting = info.parks.iter().filter(|park| park.on.needs_person());
        waiting
            .map(|park| {
                let key = match &park.on {
                    Blocked::Input { at, .. } => {
                        Some(self.kernel.reach.signer.sign(run, generation, at.as_ref().unwrap_or(&park.path)))
                    }
                    _ => None,
                };
                Awaited { run, tool: info.tool.clone(), park: park.clone(), key }
            })
            .collect()
    }

    /// Voids every reply key of a session's runs: whoever waits is told, and late answers are refused.
    pub async fn close_session(&self, session: &str, reason: &str) -> Result<usize> {
        let mut revoked = 0;
        let mut after = None;
        loop {
            let page = self.kernel.store.list(Filter::Session(session.into()), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            for info in page.iter().filter(|info| !matches!(info.state, RunState::Finished { .. })) {
                let message = Message::Revoke { reason: format!("session {session} was closed: {reason}") };
                match self.post(info.run, message, None).await {
                    Ok(()) => revoked += 1,
                    Err(StoreError::Finished(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if page.len() < PAGE {
                return Ok(revoked);
            }
        }
    }
}

/// The records of the current generation.
pub(super) fn current(mut journal: Vec<Record>) -> Vec<Record> {
    let last = journal.iter().rposition(|record| matches!(record.event, Event::Continued { .. }));
    journal.split_off(last.unwrap_or(0))
}

fn result_at(journal: &[Record], path: &Path) -> Option<Recorded> {
    journal.iter().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path == *path => Some(finished.answer()),
        _ => None,
    })
}

fn is_revoked(error: &crate::tool::ToolError) -> bool {
    matches!(error, crate::tool::ToolError::Cancelled { reason } if reason.starts_with("revoked: "))
}
