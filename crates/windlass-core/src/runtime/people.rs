//! What people and other systems tell runs: settlements, cancellations, answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{About, PAGE, Question, Runtime, said};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy;
use crate::run::Registration;
use crate::run::record::{Event, Record, Recorded};
use crate::run::reply::Address;
use crate::run::state::{Blocked, Doubt, Park, RunInfo, RunState};
use serde_json::Value;

use crate::store::{Change, Commit, Filter, Guard, Message, Resolution, Settlement, StoreError};
use crate::value::size;

/// How often the facts are looked at while they change: a message that is refused has left something to be seen.
const LOOKS: usize = 4;
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

    /// Settles a doubt: the first settlement counts. Durable when it returns; the run goes on at once
    /// if this runtime drives it.
    pub async fn settle(&self, run: RunId, path: &Path, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let doubt = info.doubts.iter().find(|doubt| doubt.path == *path).ok_or_else(|| {
            let open: Vec<String> = info.doubts.iter().map(|doubt| doubt.path.to_string()).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            Error::Conflict(format!("nothing is in doubt at {path} of run {run}; open doubts: {open}"))
        })?;
        self.settle_doubt(&info, doubt, settlement, (by, reason)).await
    }

    /// The same about exactly this doubt, and not about a later attempt.
    pub async fn settle_once(&self, question: &Question, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        let run = question.run;
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        Self::open_question(&info, question)?;
        match info.doubts.iter().find(|doubt| doubt.path == question.path) {
            Some(doubt) => self.settle_doubt(&info, doubt, settlement, (by, reason)).await,
            None => Err(Error::Conflict(format!("nothing is in doubt at {} of run {run}", question.path))),
        }
    }

    async fn settle_doubt(
        &self,
        info: &RunInfo,
        doubt: &Doubt,
        settlement: Settlement,
        (by, reason): (&str, &str),
    ) -> Result<()> {
        let (run, generation, path, attempt) = (info.run, info.generation, &doubt.path, doubt.attempt);
        if let Settlement::Happened(Ok(output)) = &settlement {
            size::shallow(&output.value, "the outcome").map_err(Error::Invalid)?;
        }
        let wait = doubt.over_by.since(self.kernel.env.clock.now());
        if matches!(settlement, Settlement::DidNotHappen) && !wait.is_zero() {
            return Err(Error::StillRunning { run, path: path.clone(), wait });
        }
        let message = Message::Settle {
            path: path.clone(),
            generation,
            attempt,
            settlement,
            by: by.to_owned(),
            reason: reason.to_owned(),
        };
        let dedupe = format!("settle {generation} {path} {:?}", About::Doubt(attempt));
        let is_this = |message: &Message| {
            matches!(message, Message::Settle { path: at, generation: of, attempt: n, .. }
                if at == path && *of == generation && *n == attempt)
        };
        self.say_first(run, message, dedupe, is_this, &format!("the doubt at {path} of run {run}")).await
    }

    /// Says something that counts if it is said first; refused if something else came before it.
    async fn say_first(
        &self,
        run: RunId,
        message: Message,
        dedupe: String,
        is_this: impl Fn(&Message) -> bool,
        what: &str,
    ) -> Result<()> {
        let late = || Err(Error::Conflict(format!("{what} is decided already; the first word counts")));
        match self.post(run, message, Some(dedupe.into())).await {
            Err(StoreError::Duplicate { .. }) => late(),
            Ok(()) if self.is_missed(run, is_this).await? => late(),
            posted => posted.map_err(Error::from),
        }
    }

    /// Whether a run that this runtime drives was through with the matter before it looked at what was just written: then
    /// what counts is in the journal by the time this returns, and the message stays where it is.
    async fn is_missed(&self, run: RunId, is_this: impl Fn(&Message) -> bool) -> Result<bool> {
        let Some(live) = self.live(run) else { return Ok(false) };
        if !live.run.with(|machine| machine.has_passed_by(&is_this)) {
            return Ok(false);
        }
        // Not for ever: an attempt may answer itself before anything of it can be written.
        let flushed = std::pin::pin!(live.run.flush());
        futures_util::future::select(flushed, self.kernel.env.clock.sleep(ANSWER_EARLY)).await;
        Ok(self.kernel.store.mail(run, 0).await?.iter().any(|mail| is_this(&mail.message)))
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
        self.kernel.notify(run).await;
        Ok(())
    }

    /// Sends a signal that the run's tool declared. The Nth signal of a name answers the Nth receive. With a `key`, sending
    /// it again is harmless: it arrives once. Durable when it returns; refused by a finished run.
    pub async fn signal(&self, run: RunId, name: &str, value: Value, key: Option<&str>) -> Result<()> {
        size::shallow(&value, "the signal").map_err(Error::Invalid)?;
        self.arrived(run).await;
        let dedupe: Option<Arc<str>> = key.map(|key| format!("signal {key}").into());
        self.kernel.check_signal(run, name, &value).await?.map_err(Error::Tool)?;
        let message = Message::Signal { name: name.into(), value: Arc::new(value) };
        match self.post(run, message, dedupe).await {
            Ok(()) | Err(StoreError::Duplicate { .. }) => Ok(()),
            Err(StoreError::Finished(run)) => {
                Err(Error::Conflict(format!("run {run} is finished and receives nothing any more; start another one")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a wait or a pending call by its reply key. The first answer counts; one that comes before anybody waits is
    /// kept. Durable when it returns.
    pub async fn resolve(&self, key: &str, resolution: Resolution) -> Result<Resolved> {
        if let Resolution::Ok { value } = &resolution {
            size::shallow(value, "the answer").map_err(Error::Invalid)?;
        }
        let Address { run, generation, path } = self.kernel.reach.signer.open(key).ok_or_else(|| {
            let shown: String = key.chars().take(80).collect();
            Error::NotFound(format!(
                "{shown:?} is not a reply key of this store; use the key exactly as it was handed out"
            ))
        })?;
        self.until_stored(run).await;
        let is_this = |message: &Message| matches!(message, Message::Resolve { path: at, generation: of, .. } if *at == path && *of == generation);
        for _ in 0..LOOKS {
            if let Some(closed) = self.said(run).await?.closed(generation, &path) {
                return Ok(closed);
            }
            let message = Message::Resolve { path: path.clone(), generation, resolution: resolution.clone() };
            let dedupe = format!("resolve {generation} {path}");
            match self.post(run, message, Some(dedupe.into())).await {
                Ok(()) if self.is_missed(run, is_this).await? => {
                    let ended = said::recorded(self.said(run).await?.generation(generation), &path);
                    return Ok(ended.unwrap_or(Resolved::Accepted));
                }
                Ok(()) => return Ok(Resolved::Accepted),
                // Something happened since: what it was is in the store by now.
                Err(StoreError::Duplicate { .. } | StoreError::Finished(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Unavailable(format!("what counts at {path} of run {run} cannot be told; ask again")).into())
    }

    /// What became of the wait or the pending call at this place, if it is over or answered: what an answer to it would be
    /// told.
    pub async fn resolved(&self, run: RunId, generation: u32, path: &Path) -> Result<Option<Resolved>> {
        Ok(self.said(run).await?.closed(generation, path))
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
        futures_util::future::select(std::pin::pin!(stored), self.kernel.env.clock.sleep(ANSWER_EARLY)).await;
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
        let Some(Blocked::Approval { digest: asked, .. }) = park.map(|park| &park.on) else {
            return Err(Error::Conflict(format!(
                "nothing at {path} of run {run} waits for approval; look at the inbox again"
            )));
        };
        if asked != digest {
            return Err(Error::Conflict(format!(
                "the call at {path} of run {run} has other arguments than those decided about; look at them and decide again"
            )));
        }
        let valid = self.grant_valid(run, path).await?;
        let message = Message::Decide {
            path: path.clone(),
            generation: info.generation,
            digest: digest.to_owned(),
            since: park.map(|park| park.since),
            granted,
            by: by.to_owned(),
            reason: reason.to_owned(),
            until: self.kernel.env.clock.now() + valid,
        };
        let (generation, since) = (info.generation, park.map(|park| park.since));
        let dedupe = format!("decide {generation} {path} {since:?}");
        let is_this = |message: &Message| {
            matches!(message, Message::Decide { path: at, generation: of, digest: about, .. }
                if at == path && *of == generation && about == digest)
        };
        self.say_first(run, message, dedupe, is_this, &format!("the call at {path} of run {run}")).await
    }

    /// How long a grant for this call is valid: what the call itself says is in its record.
    async fn grant_valid(&self, run: RunId, path: &Path) -> Result<Duration> {
        let journal = current(self.kernel.store.journal(run, 0).await?);
        let asked = journal.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
        let own = asked.and_then(|asked| asked.limits.as_deref());
        Ok(match asked.and_then(|asked| self.kernel.tool_of(asked)) {
            Some(tool) => policy::Resolved::of(&self.kernel.env.policy, tool.spec(), own).grant_valid,
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
