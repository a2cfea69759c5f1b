//! Calls for whoever asks from outside, perhaps more than once: under a key, in a session, one call or several as one run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Runtime, Start, finished, outcome};
use crate::begin::batch_asked;
use crate::call::plan::{asked, resolve};
use crate::call::{Outcome, ToolCall};
use crate::driver::Live;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::run::drive::{Drive, RunEnd};
use crate::run::machine::Stop;
use crate::run::record::{Asked, Event, OpKind, Record};
use crate::run::state::RunState;
use crate::store::{ArtifactId, Change, Commit, Creation, Guard, StoreError, Turn};
use crate::tool::artifact::mentioned_in;
use crate::tool::projection::Lens;

/// What is to be done as one run.
#[derive(Clone, Debug)]
pub enum Work {
    /// One call.
    Call(ToolCall),
    /// Several calls, of which there must be at least one.
    Batch {
        /// The calls.
        calls: Vec<ToolCall>,
        /// After a failure, calls not yet started are skipped and say so.
        stop_on_failure: bool,
    },
}

impl Work {
    fn calls(&self) -> &[ToolCall] {
        match self {
            Self::Call(call) => std::slice::from_ref(call),
            Self::Batch { calls, .. } => calls,
        }
    }

    fn bounded(self) -> Result<Self> {
        Ok(match self {
            Self::Call(call) => Self::Call(call.bounded()),
            Self::Batch { calls, .. } if calls.is_empty() || calls.len() > limits::BATCH_CALLS => {
                let (count, most) = (calls.len(), limits::BATCH_CALLS);
                return Err(Error::TooLarge(format!("a batch of {count} calls cannot be made; it has 1 to {most}")));
            }
            Self::Batch { calls, stop_on_failure } => {
                Self::Batch { calls: calls.into_iter().map(ToolCall::bounded).collect(), stop_on_failure }
            }
        })
    }

    /// The artifacts its arguments mention.
    fn artifacts(&self) -> Vec<ArtifactId> {
        self.calls().iter().flat_map(|call| mentioned_in(&call.args)).collect()
    }
}

/// Work that was handed in; see [`Runtime::submit`].
pub struct Submitted {
    runtime: Runtime,
    run: RunId,
    /// What the work was, to be compared with what its key belongs to.
    work: Work,
    how: Start,
    standing: Standing,
}

enum Standing {
    /// Nothing was done yet.
    Fresh(Box<Drive>, Vec<Lens>),
    /// This process drives it.
    Driven(Live, Vec<Lens>),
    /// It is in the store, wherever it is driven.
    Stored,
}

impl Runtime {
    /// Hands in work: one run, under a key, in a session, as a turn. Nothing is done until the answer is awaited:
    /// [`outcomes`](Submitted::outcomes), or [`accepted`](Submitted::accepted) for whoever does not wait.
    ///
    /// The same key always names the same run. Unlike [`start_with`](Runtime::start_with) this refuses a key that was used
    /// for other work, with [`Error::KeyReused`].
    pub async fn submit(&self, work: Work, how: Start) -> Result<Submitted> {
        let work = work.bounded()?;
        if let Some(key) = &how.key
            && let Some(run) = self.kernel.store.keyed(key.clone()).await?
        {
            Box::pin(self.check_same(run, &work, how.session.as_ref())).await?;
            Box::pin(self.look_after(run)).await?;
            return Ok(Submitted { runtime: self.clone(), run, work, how, standing: Standing::Stored });
        }
        // A turn waits in the store, and what an argument refers to is the run's before it begins. Where nothing is driven,
        // all there is to do is to leave it for whoever does.
        let waits = || how.turn != Turn::No || !work.artifacts().is_empty();
        if !self.kernel.drives || (waits() && !self.is_in_vain(&work, &how)) {
            let (run, existed) = Box::pin(self.begin(&work, &how)).await?;
            if existed {
                Box::pin(self.check_same(run, &work, how.session.as_ref())).await?;
            }
            return Ok(Submitted { runtime: self.clone(), run, work, how, standing: Standing::Stored });
        }
        let (drive, lenses) = match &work {
            Work::Call(call) => {
                let (drive, lens) = self.kernel.start_call(&self.toolbox, call.clone(), &how)?;
                (drive, vec![lens])
            }
            Work::Batch { calls, stop_on_failure } => {
                self.kernel.start_batch(&self.toolbox, calls.clone(), *stop_on_failure, &how)?
            }
        };
        let run = drive.run.id;
        Ok(Submitted { runtime: self.clone(), run, work, how, standing: Standing::Fresh(Box::new(drive), lenses) })
    }

    /// Whether none of the calls would be made, because each would only go on with a loop.
    fn is_in_vain(&self, work: &Work, how: &Start) -> bool {
        let refused = self.kernel.loop_refusals(how.session.as_ref(), &self.toolbox.snapshot(), work.calls());
        !refused.is_empty() && refused.iter().all(Option::is_some)
    }

    /// Starts several calls as one run for whoever takes it up: under a key, in a session, as a turn. Durable when it
    /// returns. With a key it is idempotent: the same key always names the same run, whatever calls come with it later.
    pub async fn start_batch(&self, calls: Vec<ToolCall>, stop_on_failure: bool, how: Start) -> Result<RunId> {
        let work = Work::Batch { calls, stop_on_failure }.bounded()?;
        for call in work.calls() {
            self.background(call)?;
        }
        Ok(self.begin(&work, &how).await?.0)
    }

    /// Writes a run for whoever takes it up; says whether its key had one already.
    pub(super) async fn begin(&self, work: &Work, how: &Start) -> Result<(RunId, bool)> {
        if self.kernel.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let at = self.kernel.env.clock.now();
        let run = self.kernel.env.mint.run(at);
        let (tool, records) = self.first_records(work, at);
        let creation = Creation {
            tool,
            at,
            key: how.key.clone(),
            session: how.session.clone(),
            turn: how.turn,
            ..Creation::default()
        };
        let mut changes = vec![Change::Start { run, creation, records }];
        // What it is started with is kept as long as it is.
        let artifacts = work.artifacts();
        if !artifacts.is_empty() {
            changes.push(Change::Refer { run, artifacts, by: run });
        }
        match self.kernel.store.commit(Commit { guard: Guard::Outsider, changes }).get().await {
            Ok(()) => {
                if self.kernel.drives {
                    self.kernel.loop_asked(how.session.as_ref(), run, work.calls(), &[]);
                }
                self.kernel.reach.watchers.changed(run, how.session.as_ref());
                self.kernel.nudge(run);
                Ok((run, false))
            }
            Err(StoreError::KeyTaken { run }) => {
                self.look_after(run).await?;
                Ok((run, true))
            }
            Err(error @ StoreError::KeySpent { .. }) => Err(error.into()),
            Err(error) => {
                // It may be there all the same.
                self.kernel.nudge(run);
                Err(error.into())
            }
        }
    }

    /// Whoever started a run may not have been told, and then nobody has taken it up.
    async fn look_after(&self, run: RunId) -> Result<()> {
        let info = self.kernel.store.info(run).await?;
        if info.is_some_and(|info| info.state == RunState::Queued) {
            self.kernel.nudge(run);
        }
        Ok(())
    }

    /// What a journal begins with that says what is to be done, and what the run is called.
    fn first_records(&self, work: &Work, at: crate::time::Timestamp) -> (Arc<str>, Vec<Record>) {
        let is_batch = matches!(work, Work::Batch { .. });
        let record = |(path, asked): (Path, Asked)| {
            let event = if is_batch && path.is_root() { Event::Entered } else { Event::Accepted };
            Record { path, at, asked: Some(asked), event }
        };
        let asked = self.asked(work);
        let name = match asked.first() {
            Some((_, root)) if !is_batch => root.name.clone(),
            _ => "batch".into(),
        };
        (name, asked.into_iter().map(record).collect())
    }

    /// What the work asks for, and where: the root first, and the calls of a batch below it.
    fn asked(&self, work: &Work) -> Vec<(Path, Asked)> {
        let (snapshot, layers) = (self.toolbox.snapshot(), self.toolbox.layers());
        let of = |call: &ToolCall| match self.toolbox.with_layers(&call.layers) {
            Ok(toolbox) if !call.layers.is_empty() => {
                asked(call, resolve(&toolbox.snapshot(), &call.tool), &toolbox.layers())
            }
            Ok(_) => asked(call, resolve(&snapshot, &call.tool), &layers),
            Err(_) => asked(call, None, &layers.and(&call.layers)),
        };
        match work {
            Work::Call(call) => vec![(Path::root(), of(call))],
            Work::Batch { calls, stop_on_failure } => {
                let root = (Path::root(), batch_asked(calls.len(), *stop_on_failure, &layers));
                let below = (0u32..).zip(calls).map(|(index, call)| (Path::root().child(index), of(call)));
                std::iter::once(root).chain(below).collect()
            }
        }
    }

    /// Refuses a key whose run does something else.
    async fn check_same(&self, run: RunId, work: &Work, session: Option<&Arc<str>>) -> Result<()> {
        let reused = |what: String| Err(Error::KeyReused { run, what });
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let wanted = self.asked(work);
        let Some((_, root)) = wanted.first() else { return Ok(()) };
        let name = if root.kind == OpKind::Batch { "batch" } else { &root.name };
        let is_other = *info.tool != *name && !self.is_alias(&root.name, &info.tool);
        let other = || reused(format!("it runs `{}`, not `{name}`", info.tool));
        if info.session.as_ref() != session {
            return reused("it belongs to another session".to_owned());
        }
        // A fork has a key of its own, and whoever made it compares that.
        let records = match self.kernel.store.page(run, 0, wanted.len()).await {
            // What is left of it says no more than the id of its tool.
            Err(StoreError::JournalGone(_)) if is_other => return other(),
            Err(StoreError::JournalGone(_)) => return Ok(()),
            records => records?,
        };
        if let Some(Event::Forked { from, .. }) = records.first().map(|record| &record.event) {
            return reused(format!("it is a fork of run {from}"));
        }
        let records = if wanted.len() == 1 { records } else { self.kernel.store.journal(run, 0).await? };
        for (path, wanted) in &wanted {
            let there = records.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
            let same = |there: &Asked| {
                let renamed = self.is_alias(&wanted.name, &there.name);
                let mut named =
                    if renamed { Asked { name: wanted.name.clone(), ..there.clone() } } else { there.clone() };
                // The calls of a batch have the layers that it is made through.
                if wanted.kind == OpKind::Batch {
                    named.layers = wanted.layers.clone();
                }
                named.same(wanted)
            };
            if !there.is_some_and(same) {
                // A name may mean another tool by now: what was asked for is compared, not what it means.
                if path.is_root() && is_other && there.is_none_or(|there| there.as_asked() != wanted.as_asked()) {
                    return other();
                }
                let place = if path.is_root() { String::new() } else { format!(" at {path}") };
                return reused(format!(
                    "the {wanted}{place} is not what it was asked for with, or has other arguments"
                ));
            }
        }
        Ok(())
    }

    /// Whether the tool with this id was known by that name before.
    fn is_alias(&self, id: &str, name: &str) -> bool {
        let tool = self.toolbox.by_id(id);
        tool.is_some_and(|tool| tool.spec().aliases.iter().any(|alias| alias.as_str() == name))
    }
}

impl Submitted {
    /// The run, once it is in the store. From then on it goes on, whatever becomes of whoever asked.
    pub async fn accepted(&mut self) -> Result<RunId> {
        if let Standing::Fresh(..) = self.standing {
            for call in self.work.calls() {
                self.runtime.background(call)?;
            }
            self.detach()?;
        }
        if let Standing::Driven(live, _) = &self.standing {
            live.run.flush().await;
            let stop = live.run.with(|machine| machine.stop().cloned());
            if let Some(Stop::Reload(error)) = stop {
                self.follow(*error).await?;
            }
        }
        Ok(self.run)
    }

    /// Waits for the outcomes of the root calls: one, or those of the batch. They are durable by then. Dropping the future
    /// loses nothing: it can be awaited again, or [`accepted`](Submitted::accepted) instead.
    pub async fn outcomes(&mut self) -> Result<(RunId, Vec<Outcome>)> {
        let end = match std::mem::replace(&mut self.standing, Standing::Stored) {
            Standing::Fresh(drive, lenses) => self.drive(drive, lenses).await,
            Standing::Driven(live, lenses) => {
                let completion = live.completion.clone();
                self.standing = Standing::Driven(live, lenses);
                completion.wait().await
            }
            Standing::Stored => return self.attached().await,
        };
        let Standing::Driven(_, lenses) = std::mem::replace(&mut self.standing, Standing::Stored) else {
            return self.attached().await;
        };
        match end {
            end if self.runtime.goes_on(&end) => self.attached().await,
            RunEnd::Unknown(error) => {
                Box::pin(self.follow(error)).await?;
                self.attached().await
            }
            end => self.ended(end, &lenses),
        }
    }

    /// The outcomes as the store has them. Boxed, as all that is rare here: whoever waits for a call keeps room for what waiting
    /// for it may take.
    async fn attached(&mut self) -> Result<(RunId, Vec<Outcome>)> {
        Ok((self.run, Box::pin(self.runtime.attach(self.run)).await?))
    }

    /// Drives the run to its end. If this is dropped, it goes on without.
    async fn drive(&mut self, drive: Box<Drive>, lenses: Vec<Lens>) -> RunEnd {
        let here = self.runtime.kernel.here(drive);
        self.standing = Standing::Driven(here.live(), lenses);
        here.await
    }

    fn ended(&self, end: RunEnd, lenses: &[Lens]) -> Result<(RunId, Vec<Outcome>)> {
        let run = self.run;
        let told = finished(run, end)?;
        let is_batch = matches!(self.work, Work::Batch { .. });
        let rows = told.into_iter().zip(self.work.calls()).zip(lenses).zip(0u32..);
        let outcomes = rows.map(|(((told, call), lens), index)| {
            let path = if is_batch { Path::root().child(index) } else { Path::root() };
            outcome(run, path, call.id.clone(), told, lens.clone())
        });
        Ok((run, outcomes.collect()))
    }

    /// What its first commit was answered with, if not with success.
    async fn follow(&mut self, error: StoreError) -> Result<()> {
        match error {
            // Somebody was faster with the same key: that run is the one.
            StoreError::KeyTaken { run } => {
                self.runtime.check_same(run, &self.work, self.how.session.as_ref()).await?;
                self.runtime.look_after(run).await?;
                (self.run, self.standing) = (run, Standing::Stored);
                Ok(())
            }
            error @ (StoreError::KeySpent { .. } | StoreError::Unavailable(_) | StoreError::NoArtifact { .. }) => {
                Err(error.into())
            }
            source => Err(Error::Unknown { run: self.run, source }),
        }
    }

    /// Gives the run a task of its own, and tells the store of it before anything is done.
    fn detach(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.standing, Standing::Stored) {
            Standing::Fresh(drive, lenses) => {
                self.standing = Standing::Driven(self.runtime.kernel.accept(*drive)?, lenses);
            }
            other => self.standing = other,
        }
        Ok(())
    }
}
