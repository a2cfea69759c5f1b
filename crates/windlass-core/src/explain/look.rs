//! Gathers what is known of a run: its row, its journal, and what this process knows of it in memory.

use futures_util::future::BoxFuture;

use super::{End, Explanation, Move, Why, sentence};
use crate::activity::{Failure, Open, Story};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits::{CLEAN_UP, EXPLAINED_DEPTH, WATCH_PAGE};
use crate::path::Path;
use crate::policy::Resolved;
use crate::roster::Stage;
use crate::run::record::{Event, OpKind};
use crate::run::state::{Blocked, RunInfo, RunState};
use crate::store::{Filter, StoreError};
use crate::time::Timestamp;
use crate::tool::Layers;

/// Looks at runs.
pub(crate) struct Looker<'a> {
    pub(crate) kernel: &'a Kernel,
    /// When.
    pub(crate) now: Timestamp,
}

/// What the journal says of the present.
#[derive(Default)]
struct Present {
    story: Story,
    failure: Option<Failure>,
    layers: Layers,
}

impl Looker<'_> {
    pub(crate) fn explain(&self, run: RunId, depth: usize) -> BoxFuture<'_, Result<Explanation>> {
        Box::pin(async move {
            let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
            let present = match self.present(run).await {
                // How it ended is in its summary too, and why it is held in its state.
                Err(Error::Store(
                    StoreError::JournalGone(_) | StoreError::Sealed { .. } | StoreError::Damaged { .. },
                )) => Present::default(),
                present => present?,
            };
            if let RunState::Finished { ending } = info.state {
                let sentence = sentence::finished(&info, &End { ending, failure: present.failure });
                let sentence = sentence::through(sentence, &present.layers);
                let (tool, state, layers) = (info.tool, info.state, present.layers);
                return Ok(Explanation { run, tool, state, layers, sentence, moves: Vec::new() });
            }
            let moves = self.moves(&info, &present.story, depth).await?;
            let sentence = sentence::through(sentence::whole(&info, &moves), &present.layers);
            Ok(Explanation { run, tool: info.tool, state: info.state, layers: present.layers, sentence, moves })
        })
    }

    /// Reads the journal a page at a time and keeps what has not ended.
    async fn present(&self, run: RunId) -> Result<Present> {
        let mut present = Present::default();
        let mut from = 0;
        loop {
            let page = self.kernel.store.page(run, from, WATCH_PAGE).await?;
            if let Some(asked) = page.iter().find_map(|record| record.asked.as_ref()).filter(|_| from == 0) {
                present.layers = asked.layers.clone();
            }
            from += page.len() as u64;
            for record in &page {
                present.story.note(record);
                if let (true, Event::Finished(finished)) = (record.path.is_root(), &record.event) {
                    present.failure = finished.answer().as_ref().err().map(|error| Failure::of(error));
                }
            }
            if page.len() < WATCH_PAGE {
                return Ok(present);
            }
        }
    }

    async fn moves(&self, info: &RunInfo, story: &Story, depth: usize) -> Result<Vec<Move>> {
        let run = info.run;
        let whole = |why| vec![self.say(Path::root(), why)];
        match &info.state {
            RunState::Held { hold } => return Ok(whole(Why::Held { hold: hold.clone() })),
            RunState::Queued => return Ok(whole(self.queued(info).await?)),
            _ => {}
        }
        let mut moves = Vec::new();
        if let Some(cancelled) = story.cancelled() {
            let (by, reason, until) = (cancelled.by.clone(), cancelled.reason.clone(), cancelled.at + CLEAN_UP);
            moves.push(self.say(Path::root(), Why::CleaningUp { by, reason, until }));
        }
        for doubt in &info.doubts {
            let (operation, attempt) = (doubt.operation.clone(), doubt.attempt);
            let (cause, over_by, said) = (doubt.cause, doubt.over_by, doubt.said.clone());
            let why = Why::InDoubt { operation, attempt, cause, over_by, said };
            moves.push(self.say(doubt.path.clone(), why));
        }
        let mut keys = self.kernel.admission.keys.waits_of(run);
        for park in &info.parks {
            if let Blocked::Key { key } = &park.on {
                // This process knows which operation has it, if the run is driven here.
                let known = keys.iter().position(|wait| wait.path == park.path).map(|known| keys.remove(known));
                let why = Why::Key { key: key.clone(), holder: known.and_then(|wait| wait.holder) };
                moves.push(self.say(park.path.clone(), why));
                continue;
            }
            let child = match park.on {
                Blocked::Child { run } if depth < EXPLAINED_DEPTH => self.explain(run, depth + 1).await.ok(),
                _ => None,
            };
            let why = Why::Waits {
                operation: park.operation.clone(),
                on: park.on.clone(),
                since: park.since,
                until: park.until,
                child: child.map(Box::new),
            };
            moves.push(self.say(park.path.clone(), why));
        }
        // A run that is not driven waits for what its row says.
        keys.retain(|_| self.kernel.roster.live(run).is_some());
        for wait in keys {
            // A doubt that queues for its key again does not wait for it.
            if moves.iter().all(|other: &Move| other.path != wait.path) {
                moves.push(self.say(wait.path, Why::Key { key: wait.key, holder: wait.holder }));
            }
        }
        if info.state == RunState::Running {
            moves.extend(self.driven(run, story, &moves));
        }
        Ok(moves)
    }

    async fn queued(&self, info: &RunInfo) -> Result<Why> {
        let Some(session) = &info.session else { return Ok(Why::Queued { session: None, behind: Vec::new() }) };
        let (mut behind, mut after) = (Vec::new(), None);
        loop {
            let page = self.kernel.store.list(Filter::Session(session.clone()), after, WATCH_PAGE).await?;
            after = page.last().map(|info| info.run);
            let older = |other: &&RunInfo| other.run < info.run && !matches!(other.state, RunState::Finished { .. });
            behind.extend(page.iter().filter(older).map(|info| info.run));
            if page.len() < WATCH_PAGE || after.is_some_and(|after| after >= info.run) {
                return Ok(Why::Queued { session: Some(session.clone()), behind });
            }
        }
    }

    /// What is under way, beside what is known to wait.
    fn driven(&self, run: RunId, story: &Story, waiting: &[Move]) -> Vec<Move> {
        match self.kernel.roster.stage(run) {
            Stage::Queued(_) => return vec![self.say(Path::root(), Why::Suspect)],
            Stage::Resting => return vec![self.say(Path::root(), Why::Elsewhere)],
            Stage::Taking(_) | Stage::Live(_) => {}
        }
        let below = |path: &Path, other: &Path| other != path && other.positions().starts_with(path.positions());
        let waits = |path: &Path| waiting.iter().any(|other| !other.path.is_root() && below(path, &other.path));
        let known = |path: &Path| {
            waiting.iter().any(|other| other.path == *path && !matches!(other.why, Why::CleaningUp { .. }))
        };
        let leaf = |path: &Path| !story.open().keys().any(|other| below(path, other)) && !waits(path);
        let open = story.open().iter().filter(|(path, _)| leaf(path) && !known(path));
        open.map(|(path, open)| self.at_work(path, open)).collect()
    }

    fn at_work(&self, path: &Path, open: &Open) -> Move {
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
            OpKind::Call if !open.entered => self
                .kernel
                .tool_of(&open.asked)
                .map(|tool| Resolved::of(&self.kernel.env.policy, tool.spec(), open.asked.limits.as_deref()).timeout),
            _ => None,
        };
        let sentence = sentence::at_work(path, &why, timeout, self.now);
        Move { path: path.clone(), sentence, why }
    }

    fn say(&self, path: Path, why: Why) -> Move {
        let sentence = sentence::of(&path, &why, self.now);
        Move { path, sentence, why }
    }
}
