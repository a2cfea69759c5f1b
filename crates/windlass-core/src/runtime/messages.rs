//! Messages from people and other systems to runs: settlements, cancellations, signals, answers, approvals.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{About, PAGE, Question, Runtime, facts};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy;
use crate::run::Registration;
use crate::run::record::{Event, Record, Recorded};
use crate::run::reply::Address;
use crate::run::secrets::Places;
use crate::run::state::{Blocked, Doubt, Park, RunInfo};
use serde_json::Value;

use crate::store::{Change, Commit, Filter, Guard, Message, Resolution, Settlement, StoreError};
use crate::value::size;

/// How often the state is read again after a message was refused because something changed meanwhile.
const TRIES: usize = 4;
/// How long an answer waits until the run it is for is in the store.
const ANSWER_EARLY: Duration = Duration::from_secs(1);

/// The result of an answer.
#[derive(Clone, Debug)]
pub enum ReplyResult {
    /// It is the answer. Durable.
    Accepted,
    /// There was an answer or an end before; this is the outcome that counts.
    Already(Recorded),
    /// The reply key is no longer valid.
    Revoked {
        /// Why.
        reason: String,
    },
}

/// An operation that waits for a person or another system.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// The run.
    pub run: RunId,
    /// The id of its tool, or `batch`.
    pub tool: Arc<str>,
    /// Who the run acts for.
    pub principal: Option<Arc<str>>,
    /// The operation, and what it waits for.
    pub park: Park,
    /// The reply key that answers it, if it is answered by one.
    pub key: Option<String>,
    /// The arguments of the call that waits, with secrets hidden, in the items of [`Runtime::inbox`]. `None` for other
    /// operations, and if the tool is not registered here or the journal cannot be read.
    pub args: Option<Value>,
}

impl Runtime {
    /// All open doubts, oldest run first.
    pub async fn doubts(&self) -> Result<Vec<(RunId, Doubt)>> {
        let mut doubts = Vec::new();
        let mut after = None;
        loop {
            let page = self.kernel.store.list(Filter::in_doubt(), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            doubts.extend(page.iter().flat_map(|info| info.doubts.iter().map(|doubt| (info.run, doubt.clone()))));
            if page.len() < PAGE {
                return Ok(doubts);
            }
        }
    }

    /// Settles a doubt. The first settlement counts. Durable when it returns; the run continues at once if this runtime
    /// drives it.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if nothing is in doubt at the path or it is settled already; [`Error::StillRunning`] for
    /// [`Settlement::DidNotHappen`] while the attempt may still be running.
    pub async fn settle(&self, run: RunId, path: &Path, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let doubt = info.doubts.iter().find(|doubt| doubt.path == *path).ok_or_else(|| {
            let open: Vec<String> = info.doubts.iter().map(|doubt| doubt.path.to_string()).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            Error::Conflict(format!("nothing is in doubt at {path} of run {run}; open doubts: {open}"))
        })?;
        self.settle_doubt(&info, doubt, settlement, (by, reason)).await
    }

    /// Like [`settle`](Runtime::settle), for exactly this doubt, and not for a later attempt.
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
        mut settlement: Settlement,
        (by, reason): (&str, &str),
    ) -> Result<()> {
        let (run, generation, path, attempt) = (info.run, info.generation, &doubt.path, doubt.attempt);
        if let Settlement::Happened(Ok(output)) = &mut settlement {
            size::check_depth(&output.value, "the outcome").map_err(Error::Invalid)?;
            let journal = current(self.kernel.store.journal(run, 0).await?);
            let secrets = self.kernel.secrets_of(info.session.as_ref(), &journal, path, &output.value);
            if !secrets.is_empty() {
                Arc::make_mut(output).secrets = secrets;
            }
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
        self.send_first(run, message, dedupe, is_this, &format!("the doubt at {path} of run {run}")).await
    }

    /// Sends a message that counts only if it is the first one about its subject; refused otherwise.
    async fn send_first(
        &self,
        run: RunId,
        message: Message,
        dedupe: String,
        is_this: impl Fn(&Message) -> bool,
        what: &str,
    ) -> Result<()> {
        let late = || Err(Error::Conflict(format!("{what} is already decided; the first decision counts")));
        match self.post(run, message, Some(dedupe.into())).await {
            Err(StoreError::Duplicate { .. }) => late(),
            Ok(()) if self.came_too_late(run, is_this).await? => late(),
            posted => posted.map_err(Error::from),
        }
    }

    /// Whether a run that this runtime drives had finished the matter before it read the message that was just written.
    /// If so, the outcome that counts is in the journal when this returns, and the message stays unused.
    async fn came_too_late(&self, run: RunId, is_this: impl Fn(&Message) -> bool) -> Result<bool> {
        let Some(driven) = self.driven(run) else { return Ok(false) };
        if !driven.run.with(|machine| machine.has_passed_by(&is_this)) {
            return Ok(false);
        }
        // With a time limit: an attempt may answer itself before anything of it can be written.
        let flushed = std::pin::pin!(driven.run.flush());
        futures_util::future::select(flushed, self.kernel.env.clock.sleep(ANSWER_EARLY)).await;
        Ok(self.kernel.store.mail(run, 0).await?.iter().any(|mail| is_this(&mail.message)))
    }

    /// Cancels a run. Durable when it returns; attempts in flight are asked to stop at once if this runtime drives
    /// them.
    pub async fn cancel(&self, run: RunId, by: &str, reason: &str) -> Result<()> {
        self.cancel_under(None, run, by, reason).await
    }

    /// Like [`cancel`](Runtime::cancel), with a key: cancelling again with the same key has no effect, even after the
    /// run has ended.
    pub async fn cancel_under(&self, key: Option<&str>, run: RunId, by: &str, reason: &str) -> Result<()> {
        let message = Message::Cancel { by: by.to_owned(), reason: reason.to_owned() };
        let dedupe = key.map(|key| format!("cancel {key}").into());
        match self.post(run, message, dedupe).await {
            Ok(()) | Err(StoreError::Duplicate { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes to a run's mailbox and wakes the run.
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
            // The message may have been written.
            self.kernel.nudge(run);
        }
        answer?;
        self.kernel.notify(run).await;
        Ok(())
    }

    /// Sends a signal that the run's tool declares. The nth signal of a name is received by the nth receive of that
    /// name. With a `key`, sending it again has no effect. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if the run has ended; [`Error::Tool`] if the signal is not declared or does not fit its
    /// schema.
    pub async fn signal(&self, run: RunId, name: &str, value: Value, key: Option<&str>) -> Result<()> {
        size::check_depth(&value, "the signal").map_err(Error::Invalid)?;
        self.arrived(run).await;
        let dedupe: Option<Arc<str>> = key.map(|key| format!("signal {key}").into());
        self.kernel.check_signal(run, name, &value).await?.map_err(Error::Tool)?;
        let message = Message::Signal { name: name.into(), value: Arc::new(value) };
        match self.post(run, message, dedupe).await {
            Ok(()) | Err(StoreError::Duplicate { .. }) => Ok(()),
            Err(StoreError::Finished(run)) => {
                Err(Error::Conflict(format!("run {run} is finished and receives no more signals; start another one")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a wait or a pending call by its reply key. The first answer counts. An answer that comes before the
    /// operation waits is kept for it. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the key was not created by this store.
    pub async fn resolve(&self, key: &str, resolution: Resolution) -> Result<ReplyResult> {
        if let Resolution::Ok { value } = &resolution {
            size::check_depth(value, "the answer").map_err(Error::Invalid)?;
        }
        let Address { run, generation, path } = self.kernel.reach.signer.open(key).ok_or_else(|| {
            let shown: String = key.chars().take(80).collect();
            Error::NotFound(format!(
                "{shown:?} is not a reply key of this store; use the key exactly as it was handed out"
            ))
        })?;
        self.until_stored(run).await;
        let is_this = |message: &Message| matches!(message, Message::Resolve { path: at, generation: of, .. } if *at == path && *of == generation);
        for _ in 0..TRIES {
            let facts = self.facts(run).await?;
            if let Some(closed) = facts.closed(generation, &path) {
                return Ok(closed);
            }
            let secrets = match &resolution {
                Resolution::Ok { value } => {
                    let session = facts.info.session.as_ref();
                    self.kernel.secrets_of(session, facts.generation(generation), &path, value)
                }
                _ => Places::default(),
            };
            let resolution = resolution.clone();
            let message = Message::Resolve { path: path.clone(), generation, resolution, secrets };
            let dedupe = format!("resolve {generation} {path}");
            match self.post(run, message, Some(dedupe.into())).await {
                Ok(()) if self.came_too_late(run, is_this).await? => {
                    let ended = facts::recorded(self.facts(run).await?.generation(generation), &path);
                    return Ok(ended.unwrap_or(ReplyResult::Accepted));
                }
                Ok(()) => return Ok(ReplyResult::Accepted),
                // Something changed meanwhile; it is in the store by now.
                Err(StoreError::Duplicate { .. } | StoreError::Finished(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let problem = format!("the answer for {path} of run {run} was refused while the run changed; try again");
        Err(StoreError::Unavailable(problem).into())
    }

    /// The result of the wait or pending call at this path, if it has ended or was answered: what a further answer
    /// would return.
    pub async fn resolved(&self, run: RunId, generation: u32, path: &Path) -> Result<Option<ReplyResult>> {
        Ok(self.facts(run).await?.closed(generation, path))
    }

    /// Waits until a run is in the store. A reply key is handed out during an attempt, and its holder may be faster
    /// than the first commit of the run. With a time limit, because the attempt itself may be the one that answers.
    async fn until_stored(&self, run: RunId) {
        let Some(driven) = self.driven(run) else { return };
        let mut registration = Registration::default();
        let stored = std::future::poll_fn(|cx| {
            registration.register(&driven.run, cx);
            let is_over = driven.run.is_halted() || driven.run.with(|machine| machine.outbox().is_stored());
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        });
        futures_util::future::select(std::pin::pin!(stored), self.kernel.env.clock.sleep(ANSWER_EARLY)).await;
    }

    /// Approves or denies the call at `path` that waits for approval with exactly the arguments of this digest. An
    /// approval is valid for that call only, and expires after [`Policy::grant_valid`](crate::policy::Policy). The
    /// first decision counts. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if no call waits there, its arguments have another digest, or it is decided already.
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
                "the call at {path} of run {run} has other arguments than the decision; look at them and decide again"
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
        self.send_first(run, message, dedupe, is_this, &format!("the call at {path} of run {run}")).await
    }

    /// How long an approval of this call is valid. The record of the call contains its own setting.
    async fn grant_valid(&self, run: RunId, path: &Path) -> Result<Duration> {
        let journal = current(self.kernel.store.journal(run, 0).await?);
        let asked = journal.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
        let own = asked.and_then(|asked| asked.limits.as_deref());
        let session = self.kernel.session_of(run).await?;
        Ok(match asked.and_then(|asked| self.kernel.tool_of(asked, session.as_ref())) {
            Some(tool) => policy::EffectivePolicy::of(&self.kernel.env.policy, tool.spec(), own).grant_valid,
            None => own.and_then(|own| own.grant_valid).unwrap_or(limits::GRANT_VALID),
        })
    }

    /// Everything that waits for a person or another system, oldest run first: inputs, approvals and connections.
    /// Doubts are listed by [`doubts`](Runtime::doubts).
    pub async fn inbox(&self) -> Result<Vec<Awaited>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self.kernel.store.list(Filter::inbox(), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            for info in &page {
                let mut items = self.awaited(info);
                self.add_arguments(info.run, &mut items).await?;
                all.append(&mut items);
            }
            if page.len() < PAGE {
                return Ok(all);
            }
        }
    }

    async fn add_arguments(&self, run: RunId, items: &mut [Awaited]) -> Result<()> {
        let paths: Vec<Path> = items.iter().map(|item| item.park.path.clone()).collect();
        if paths.is_empty() {
            return Ok(());
        }
        let calls = match self.asked_calls(run, &paths).await {
            // The item is still listed. A decision about it is refused with this error.
            Err(Error::Store(StoreError::Sealed { .. } | StoreError::Damaged { .. })) => return Ok(()),
            calls => calls?,
        };
        items.iter_mut().zip(calls).for_each(|(item, call)| item.args = call.and_then(|call| call.shown));
        Ok(())
    }

    /// What in one run waits for a person or another system, except doubts.
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
                Awaited {
                    run,
                    tool: info.tool.clone(),
                    principal: info.principal.clone(),
                    park: park.clone(),
                    key,
                    args: None,
                }
            })
            .collect()
    }
}

/// The records of the current generation.
pub(super) fn current(mut journal: Vec<Record>) -> Vec<Record> {
    let last = journal.iter().rposition(|record| matches!(record.event, Event::Continued { .. }));
    journal.split_off(last.unwrap_or(0))
}
