//! Collects why a run waits: from its row, its journal, and what this process has in memory about it.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Explanation, Move, RunEnd, Why, sentence};
use crate::activity::{Failure, OpenOperation, OpenOperations};
use crate::call::idempotency_key;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits::{CLEAN_UP, EXPLAINED_DEPTH, WATCH_PAGE};
use crate::path::Path;
use crate::policy::EffectivePolicy;
use crate::roster::RunStage;
use crate::run::record::{Event, OpKind};
use crate::run::state::{Blocked, RunInfo, RunState};
use crate::store::{Filter, Message, StoreError};
use crate::time::Timestamp;
use crate::tool::Layers;

/// Explains runs as of one moment.
pub(crate) struct Explainer<'a> {
    pub(crate) kernel: &'a Kernel,
    /// The current time.
    pub(crate) now: Timestamp,
    /// Whether only runs of the same principal are named.
    pub(crate) only_own: bool,
}

/// The state of a run according to its journal.
#[derive(Default)]
struct JournalState {
    operations: OpenOperations,
    failure: Option<Failure>,
    layers: Layers,
}

impl Explainer<'_> {
    pub(crate) fn explain(&self, run: RunId, depth: usize) -> BoxFuture<'_, Result<Explanation>> {
        Box::pin(async move {
            let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
            let journal = match self.journal(run).await {
                // The summary also tells how the run ended, and its state why it is held.
                Err(Error::Store(
                    StoreError::JournalGone(_) | StoreError::Sealed { .. } | StoreError::Damaged { .. },
                )) => JournalState::default(),
                journal => journal?,
            };
            if let RunState::Finished { ending } = info.state {
                let sentence = sentence::finished(&info, &RunEnd { ending, failure: journal.failure });
                let sentence = sentence::with_layers(sentence, &journal.layers);
                return Ok(explanation(info, journal.layers, sentence, Vec::new()));
            }
            let mut moves = self.moves(&info, &journal.operations, depth).await?;
            moves.iter_mut().for_each(|one| one.idempotency_key = key(&info, &journal.operations, one));
            let sentence = sentence::with_layers(sentence::unfinished(&info, &moves), &journal.layers);
            Ok(explanation(info, journal.layers, sentence, moves))
        })
    }

    /// Reads the journal page by page and keeps the operations that have not ended.
    async fn journal(&self, run: RunId) -> Result<JournalState> {
        let mut journal = JournalState::default();
        let mut from = 0;
        loop {
            let page = self.kernel.store.page(run, from, WATCH_PAGE).await?;
            if let Some(asked) = page.iter().find_map(|record| record.asked.as_ref()).filter(|_| from == 0) {
                journal.layers = asked.layers.clone();
            }
            from += page.len() as u64;
            for record in &page {
                journal.operations.note(record);
                if let (true, Event::Finished(finished)) = (record.path.is_root(), &record.event) {
                    journal.failure = finished.answer().as_ref().err().map(|error| Failure::of(error));
                }
            }
            if page.len() < WATCH_PAGE {
                return Ok(journal);
            }
        }
    }

    async fn moves(&self, info: &RunInfo, operations: &OpenOperations, depth: usize) -> Result<Vec<Move>> {
        let run = info.run;
        let whole = |why| vec![self.reason(Path::root(), why)];
        match &info.state {
            RunState::Held { hold } => return Ok(whole(Why::Held { hold: hold.clone() })),
            RunState::Queued => {
                let why = self.queued(info).await?;
                let left_alone = match &why {
                    Why::Queued { behind, .. } if self.kernel.drives.any() => {
                        behind.iter().copied().find(|run| self.leaves_alone(*run))
                    }
                    _ => None,
                };
                let mut moves = whole(why);
                moves.extend(left_alone.map(|run| self.reason(Path::root(), Why::NotDriven { run: Some(run) })));
                moves.extend(self.in_mailbox(info).await?);
                return Ok(moves);
            }
            _ => {}
        }
        let mut moves = Vec::new();
        if let Some(cancelled) = operations.cancelled() {
            let (by, reason, until) = (cancelled.by.clone(), cancelled.reason.clone(), cancelled.at + CLEAN_UP);
            moves.push(self.reason(Path::root(), Why::CleaningUp { by, reason, until }));
        }
        for doubt in &info.doubts {
            let (operation, attempt) = (doubt.operation.clone(), doubt.attempt);
            let (cause, over_by, said) = (doubt.cause, doubt.over_by, doubt.said.clone());
            let why = Why::InDoubt { operation, attempt, cause, over_by, said };
            moves.push(self.reason(doubt.path.clone(), why));
        }
        let mut keys = self.kernel.admission.keys.waits_of(run);
        for park in &info.parks {
            if let Blocked::Key { key } = &park.on {
                // The admission of this process knows which operation holds the key, if the run is driven here.
                let index = keys.iter().position(|wait| wait.path == park.path);
                let wait = index.map(|index| keys.remove(index));
                let holder = wait.and_then(|wait| wait.holder);
                moves.extend(self.queued_for_key(info, park.path.clone(), key.clone(), holder).await?);
                continue;
            }
            let child = match park.on {
                Blocked::Child { run } if depth < EXPLAINED_DEPTH && self.may_name(info, run).await? => {
                    self.explain(run, depth + 1).await.ok()
                }
                _ => None,
            };
            let why = Why::Waits {
                operation: park.operation.clone(),
                on: park.on.clone(),
                since: park.since,
                until: park.until,
                child: child.map(Box::new),
            };
            moves.push(self.reason(park.path.clone(), why));
            if let Blocked::Child { run } = park.on
                && self.kernel.drives.any()
                && self.leaves_alone(run)
            {
                moves.push(self.reason(park.path.clone(), Why::NotDriven { run: Some(run) }));
            }
        }
        // A run that is not driven here waits for what its row says.
        keys.retain(|_| self.kernel.roster.driven(run).is_some());
        for wait in keys {
            // An operation in doubt that is queued for its key again waits for its settlement, not for the key.
            if moves.iter().all(|other: &Move| other.path != wait.path) {
                moves.extend(self.queued_for_key(info, wait.path, wait.key, wait.holder).await?);
            }
        }
        let breakers = &self.kernel.admission.breakers;
        for (path, target) in breakers.waits_of(run) {
            let left = breakers.open_for(&target, self.kernel.env.clock.ticks());
            let until = left.map(|left| self.now + left);
            moves.push(self.reason(path, Why::Breaker { target, until }));
        }
        if info.state == RunState::Running {
            moves.extend(self.driven(info, operations, &moves));
        }
        moves.extend(self.in_mailbox(info).await?);
        Ok(moves)
    }

    /// Whether this process is the only one that could drive the run, and does not.
    fn leaves_alone(&self, run: RunId) -> bool {
        self.kernel.lease.length.is_none() && !self.kernel.drives.includes(run)
    }

    async fn queued_for_key(
        &self,
        info: &RunInfo,
        path: Path,
        key: Arc<str>,
        holder: Option<(RunId, Path)>,
    ) -> Result<Vec<Move>> {
        let left_alone = holder.as_ref().map(|(run, _)| *run).filter(|run| self.leaves_alone(*run));
        let other_principal = match &holder {
            Some((run, _)) => !self.may_name(info, *run).await?,
            None => false,
        };
        let holder = holder.filter(|_| !other_principal);
        let mut moves = vec![self.reason(path.clone(), Why::Key { key, holder, other_principal })];
        // Only for a run that is driven: otherwise the run itself is left alone.
        if self.kernel.drives.any() {
            let named = |run: RunId| Some(run).filter(|_| !other_principal);
            moves.extend(left_alone.map(|run| self.reason(path, Why::NotDriven { run: named(run) })));
        }
        Ok(moves)
    }

    /// Whether the explanation of a run may name another one.
    async fn may_name(&self, info: &RunInfo, other: RunId) -> Result<bool> {
        if !self.only_own || info.run == other {
            return Ok(true);
        }
        Ok(self.kernel.store.info(other).await?.is_some_and(|other| other.principal == info.principal))
    }

    /// The messages that wait for a process that drives the run.
    async fn in_mailbox(&self, info: &RunInfo) -> Result<Vec<Move>> {
        if !self.leaves_alone(info.run) {
            return Ok(Vec::new());
        }
        let mail = match self.kernel.store.mail(info.run, 0).await {
            // The state of the run says what is damaged.
            Err(StoreError::Sealed { .. } | StoreError::Damaged { .. }) => Vec::new(),
            mail => mail?,
        };
        let awaited = mail.iter().filter_map(|mail| awaited(info, &mail.message));
        Ok(awaited.map(|(path, message)| self.reason(path, Why::InMailbox { message })).collect())
    }

    async fn queued(&self, info: &RunInfo) -> Result<Why> {
        let Some(session) = &info.session else {
            return Ok(Why::Queued { session: None, behind: Vec::new(), others: 0 });
        };
        let (mut behind, mut others, mut after) = (Vec::new(), 0, None);
        loop {
            let page = self.kernel.store.list(Filter::session(session.clone()), after, WATCH_PAGE).await?;
            after = page.last().map(|info| info.run);
            let older = |other: &&RunInfo| other.run < info.run && !matches!(other.state, RunState::Finished { .. });
            for other in page.iter().filter(older) {
                match self.only_own && other.principal != info.principal {
                    true => others += 1,
                    false => behind.push(other.run),
                }
            }
            if page.len() < WATCH_PAGE || after.is_some_and(|after| after >= info.run) {
                return Ok(Why::Queued { session: Some(session.clone()), behind, others });
            }
        }
    }

    /// The operations in progress, except those that are already known to wait.
    fn driven(&self, info: &RunInfo, operations: &OpenOperations, waiting: &[Move]) -> Vec<Move> {
        let run = info.run;
        match self.kernel.roster.stage(run) {
            RunStage::Queued(_) => return vec![self.reason(Path::root(), Why::Suspect)],
            RunStage::NotDriven if self.leaves_alone(run) => return vec![self.reason(Path::root(), Why::OwnerGone)],
            RunStage::NotDriven => return vec![self.reason(Path::root(), Why::Elsewhere)],
            RunStage::TakingUp(_) | RunStage::Driven(_) => {}
        }
        let below = |path: &Path, other: &Path| other != path && other.positions().starts_with(path.positions());
        let waits = |path: &Path| waiting.iter().any(|other| !other.path.is_root() && below(path, &other.path));
        let listed = |path: &Path| {
            waiting.iter().any(|other| other.path == *path && !matches!(other.why, Why::CleaningUp { .. }))
        };
        let leaf = |path: &Path| !operations.open().keys().any(|other| below(path, other)) && !waits(path);
        let open = operations.open().iter().filter(|(path, _)| leaf(path) && !listed(path));
        open.map(|(path, open)| self.in_progress(info.session.as_ref(), path, open)).collect()
    }

    fn in_progress(&self, session: Option<&Arc<str>>, path: &Path, open: &OpenOperation) -> Move {
        let operation = open.asked.to_string();
        let why = match open.attempt {
            Some(attempting) => Why::Attempt {
                operation,
                attempt: attempting.attempt,
                since: attempting.since,
                over_by: attempting.over_by,
            },
            None => Why::AtWork { operation, since: open.since },
        };
        let timeout = match open.asked.kind {
            OpKind::Call if !open.entered => self.kernel.tool_of(&open.asked, session).map(|tool| {
                EffectivePolicy::of(&self.kernel.env.policy, tool.spec(), open.asked.limits.as_deref()).timeout
            }),
            _ => None,
        };
        let sentence = sentence::in_progress(path, &why, timeout, self.now);
        Move { path: path.clone(), sentence, idempotency_key: None, why }
    }

    fn reason(&self, path: Path, why: Why) -> Move {
        let sentence = sentence::of(&path, &why, self.now);
        Move { path, sentence, idempotency_key: None, why }
    }
}

/// What a message is, and the path of the waiting operation it is for; `None` if no operation waits for it.
fn awaited(info: &RunInfo, message: &Message) -> Option<(Path, String)> {
    let parked = |is_for: &dyn Fn(&Path, &Blocked) -> bool| {
        info.parks.iter().find(|park| is_for(&park.path, &park.on)).map(|park| park.path.clone())
    };
    Some(match message {
        Message::Cancel { by, reason } => (Path::root(), format!("the cancellation by {by} ({reason})")),
        Message::Settle { path, generation, by, .. } => {
            let is_open = *generation == info.generation && info.doubts.iter().any(|doubt| doubt.path == *path);
            (is_open.then(|| path.clone())?, format!("the settlement by {by}"))
        }
        Message::Decide { path, generation, granted, by, .. } => {
            let at = parked(&|at, on| at == path && matches!(on, Blocked::Approval { .. }));
            let what = if *granted { "approval" } else { "denial" };
            (at.filter(|_| *generation == info.generation)?, format!("the {what} by {by}"))
        }
        Message::Resolve { path, generation, .. } => {
            let is_for = |at: &Path, on: &Blocked| matches!(on, Blocked::Input { at: reply, .. } if reply.as_ref().unwrap_or(at) == path);
            (parked(&is_for).filter(|_| *generation == info.generation)?, "an answer".to_owned())
        }
        Message::Signal { name, .. } => {
            let at = parked(&|_, on| matches!(on, Blocked::Signal { name: wanted } if wanted == name));
            (at?, format!("the signal \"{name}\""))
        }
        Message::Connect { provider, refused } => {
            let at = parked(&|_, on| matches!(on, Blocked::Connection { provider: wanted, .. } if wanted == provider));
            let what = if refused.is_some() { "the refusal to connect" } else { "the connection of" };
            (at?, format!("{what} {provider}"))
        }
        _ => return None,
    })
}

/// The idempotency key of the attempts that a move is about.
fn key(info: &RunInfo, operations: &OpenOperations, one: &Move) -> Option<String> {
    match &one.why {
        Why::InDoubt { .. } => Some(idempotency_key(info.run, info.generation, &one.path)),
        Why::Attempt { .. } | Why::AtWork { .. } | Why::Waits { on: Blocked::Retry, .. } => {
            operations.idempotency_key(info.run, &one.path)
        }
        _ => None,
    }
}

fn explanation(info: RunInfo, layers: Layers, sentence: String, moves: Vec<Move>) -> Explanation {
    let RunInfo { run, tool, state, principal, cause, .. } = info;
    Explanation { run, tool, state, layers, principal, cause, sentence, moves }
}
