//! Submits work, possibly more than once: with a key, in a session, one call or several as one run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Runtime, Start, finished};
use crate::begin::{Calls, NewRun, Refusals, batch_asked};
use crate::call::plan::{asked, resolve};
use crate::call::{Outcome, ToolCall};
use crate::driver::DrivenRun;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::run::drive::RunEnd;
use crate::run::machine::Stop;
use crate::run::record::{Asked, Event, Finished, OpKind, Record};
use crate::run::state::RunState;
use crate::store::{ArtifactId, Change, Commit, Creation, Guard, StoreError, Turn};
use crate::time::Times;
use crate::tool::artifact::mentioned_in;
use crate::tool::spec::Background;
use crate::tool::{ToolError, Toolbox};

/// The work of one run.
#[derive(Clone, Debug)]
pub enum Work {
    /// One call.
    Call(ToolCall),
    /// Several calls, at least one and at most [`limits::BATCH_CALLS`].
    Batch {
        /// The calls.
        calls: Vec<ToolCall>,
        /// After a failure, calls that have not started are skipped, and their outcomes say so.
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

    /// Checks the limits of a batch and bounds the size of its calls.
    pub(super) fn bounded(self) -> Result<Self> {
        Ok(match self {
            Self::Call(call) => Self::Call(call.bounded()),
            Self::Batch { calls, .. } if calls.is_empty() => {
                return Err(Error::Invalid("a batch needs at least one call".to_owned()));
            }
            Self::Batch { calls, .. } if calls.len() > limits::BATCH_CALLS => {
                let (count, most) = (calls.len(), limits::BATCH_CALLS);
                return Err(Error::TooLarge(format!("a batch of {count} calls is too large; the limit is {most}")));
            }
            Self::Batch { calls, stop_on_failure } => {
                Self::Batch { calls: calls.into_iter().map(ToolCall::bounded).collect(), stop_on_failure }
            }
        })
    }

    /// The artifacts that its arguments mention.
    fn artifacts(&self) -> Vec<ArtifactId> {
        self.calls().iter().flat_map(|call| mentioned_in(&call.args)).collect()
    }
}

/// Submitted work; see [`Runtime::submit`]. Dropping it before it was awaited starts nothing.
pub struct Submitted {
    runtime: Runtime,
    run: RunId,
    /// The work, if it has a key: another caller may be faster with the same key, and its run must do the same work.
    keyed: Option<(Work, Start)>,
    state: SubmitState,
}

enum SubmitState {
    /// Nothing has been done. The second field is the error if a tool does not run in the background.
    New(Box<NewRun>, Result<()>),
    /// This process drives it.
    Driven(DrivenRun, Calls),
    /// The run is in the store, wherever it is driven.
    Stored,
}

impl Runtime {
    /// Submits work as one run: with a key, in a session, as a turn. Unless the run already exists or has to wait in
    /// the store, nothing is done until the result is awaited with [`outcomes`](Submitted::outcomes), or with
    /// [`accepted`](Submitted::accepted) by a caller that does not wait for the end.
    ///
    /// The same key always means the same run.
    ///
    /// # Errors
    ///
    /// [`Error::KeyReused`] if the key was used for other work.
    pub async fn submit(&self, work: Work, how: Start) -> Result<Submitted> {
        match &how.session {
            Some(session) => {
                let tools = self.kernel.store.sessions().live_tools(session.clone()).await?;
                let toolbox = self.toolbox.in_session(tools);
                Self { kernel: self.kernel.clone(), toolbox }.submit_here(work, how).await
            }
            None => self.submit_here(work, how).await,
        }
    }

    /// Submits work with the tools of this runtime, which are those that the session shows.
    async fn submit_here(&self, work: Work, how: Start) -> Result<Submitted> {
        let work = work.bounded()?;
        how.check()?;
        let stored = |run| Submitted { runtime: self.clone(), run, keyed: None, state: SubmitState::Stored };
        if let Some(key) = &how.key
            && let Some(run) = self.kernel.store.keyed(key.clone()).await?
        {
            Box::pin(self.check_same(run, &work, &how)).await?;
            Box::pin(self.ensure_claimed(run)).await?;
            return Ok(stored(run));
        }
        if !self.kernel.admission.unfinished.has_credit() {
            Box::pin(self.kernel.admit_run()).await?;
        }
        // A turn waits in the store, and artifacts in arguments must be referenced before the run starts. A runtime
        // that drives no runs leaves the run for a process that does.
        let waits = || how.turn != Turn::No || !work.artifacts().is_empty();
        let refused = match &how.session {
            Some(session) => Box::pin(self.continued_loops(session, &work)).await?,
            None => Refusals::new(),
        };
        let only_continues_loops = !refused.is_empty() && refused.iter().all(Option::is_some);
        if !self.kernel.drives.any() || (waits() && !only_continues_loops) {
            let (run, existed) = Box::pin(self.begin(&work, &how, &refused)).await?;
            if existed {
                Box::pin(self.check_same(run, &work, &how)).await?;
            }
            return Ok(stored(run));
        }
        let background = work.calls().iter().try_for_each(|call| background(&self.toolbox, call).map(drop));
        let keyed = how.key.is_some().then(|| (work.clone(), how.clone()));
        let new = self.kernel.new_run(&self.toolbox, work, &how, refused)?;
        let run = new.drive.run.id;
        Ok(Submitted { runtime: self.clone(), run, keyed, state: SubmitState::New(Box::new(new), background) })
    }

    /// Starts one call, as the call says: with a key, in a session, as a turn. Durable when it returns.
    pub async fn start_call(&self, mut call: ToolCall) -> Result<RunId> {
        let how = call.take_start();
        self.start_work(Work::Call(call), how).await
    }

    /// Starts one call: with a key, in a session, as a turn. Durable when it returns.
    pub async fn start_with(&self, call: ToolCall, how: Start) -> Result<RunId> {
        self.start_work(Work::Call(call), how).await
    }

    /// Starts several calls as one run: with a key, in a session, as a turn. Durable when it returns.
    pub async fn start_batch(&self, calls: Vec<ToolCall>, stop_on_failure: bool, how: Start) -> Result<RunId> {
        self.start_work(Work::Batch { calls, stop_on_failure }, how).await
    }

    async fn start_work(&self, work: Work, how: Start) -> Result<RunId> {
        let toolbox = self.kernel.toolbox_in(&self.toolbox, how.session.as_ref()).await?;
        for call in work.calls() {
            background(&toolbox, call)?;
        }
        self.submit(work, how).await?.accepted().await
    }

    /// For each call, why it is refused, if it would only continue a loop of its session.
    async fn continued_loops(&self, session: &Arc<str>, work: &Work) -> Result<Refusals> {
        Ok(self.kernel.loop_refusals(Some(session), &self.toolbox.snapshot(), work.calls()).await?)
    }

    /// Writes a queued run, for any worker to claim. Returns whether its key had a run already. Calls that are refused
    /// have their outcome from the beginning.
    async fn begin(&self, work: &Work, how: &Start, refused: &[Option<ToolError>]) -> Result<(RunId, bool)> {
        if self.kernel.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let at = self.kernel.env.clock.now();
        let run = self.kernel.env.mint.run(at);
        self.kernel.drives.add(run);
        let (tool, records) = self.first_records(work, at, refused);
        let most = Some(self.kernel.env.limits.session_runs);
        let creation = Creation { most, ..how.creation(tool, at) };
        let mut changes = vec![Change::Start { run, creation, records }];
        // The artifacts in its arguments are kept for as long as the run is.
        let artifacts = work.artifacts();
        if !artifacts.is_empty() {
            changes.push(Change::Refer { run, artifacts, by: run });
        }
        match self.kernel.store.commit(Commit { guard: Guard::Outsider, changes }).get().await {
            Ok(()) => {
                self.kernel.reach.watchers.changed(run, how.session.as_ref());
                self.kernel.nudge(run);
                Ok((run, false))
            }
            Err(StoreError::KeyTaken { run }) => {
                self.ensure_claimed(run).await?;
                Ok((run, true))
            }
            Err(
                error @ (StoreError::KeySpent { .. }
                | StoreError::SessionClosed { .. }
                | StoreError::NoSession { .. }
                | StoreError::SessionFull { .. }
                | StoreError::Busy { .. }),
            ) => Err(error.into()),
            Err(error) => {
                // The run may have been written.
                self.kernel.nudge(run);
                Err(error.into())
            }
        }
    }

    /// Makes sure that an existing run is claimed: the process that wrote it may not know that it did.
    async fn ensure_claimed(&self, run: RunId) -> Result<()> {
        if let Some(info) = self.kernel.store.info(run).await? {
            self.adopt_and_recover(&info).await?;
            if info.state == RunState::Queued {
                self.kernel.nudge(run);
            }
        }
        Ok(())
    }

    /// The name of the run and its first records, which contain the requested calls.
    fn first_records(
        &self,
        work: &Work,
        at: crate::time::Timestamp,
        refused: &[Option<ToolError>],
    ) -> (Arc<str>, Vec<Record>) {
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
        let mut records: Vec<Record> = asked.into_iter().map(record).collect();
        let path = |index: u32| if is_batch { Path::root().child(index) } else { Path::root() };
        records.extend((0..).zip(refused).filter_map(|(index, error)| {
            let result = Err(Arc::new(error.clone()?));
            let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
            Some(Record { path: path(index), at, asked: None, event: Event::Finished(finished) })
        }));
        (name, records)
    }

    /// The requested calls with their paths: the root first, and the calls of a batch below it.
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
                let below = (0u32..).zip(calls).map(|(index, call)| (Path::root().child(index), of(call)));
                let root = batch_asked(calls.len(), *stop_on_failure, &layers);
                std::iter::once((Path::root(), root)).chain(below).collect()
            }
        }
    }

    /// Refuses a key whose run does other work.
    async fn check_same(&self, run: RunId, work: &Work, how: &Start) -> Result<()> {
        let reused = |what: String| Err(Error::KeyReused { run, what });
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let wanted = self.asked(work);
        let Some((_, root)) = wanted.first() else { return Ok(()) };
        let name = if root.kind == OpKind::Batch { "batch" } else { &root.name };
        let is_other = *info.tool != *name && !self.is_alias(&root.name, &info.tool);
        let other = || reused(format!("it runs `{}`, not `{name}`", info.tool));
        if info.session != how.session {
            return reused("it belongs to another session".to_owned());
        }
        if info.principal != how.principal {
            return reused("it acts for another principal".to_owned());
        }
        // A fork has a key of its own, and `fork_under` compares it.
        let records = match self.kernel.store.page(run, 0, wanted.len()).await {
            // The summary contains no more than the id of the tool.
            Err(StoreError::JournalGone(_)) if is_other => return other(),
            Err(StoreError::JournalGone(_)) => return Ok(()),
            records => records?,
        };
        if let Some(Event::Forked { from, .. }) = records.first().map(|record| &record.event) {
            return reused(format!("it is a fork of run {from}"));
        }
        let records = if wanted.len() == 1 { records } else { self.kernel.store.journal(run, 0).await? };
        for (path, wanted) in &wanted {
            let existing = records.iter().find_map(|record| record.asked.as_ref().filter(|_| record.path == *path));
            let same = |existing: &Asked| {
                let renamed = self.is_alias(&wanted.name, &existing.name);
                let mut named =
                    if renamed { Asked { name: wanted.name.clone(), ..existing.clone() } } else { existing.clone() };
                // The root of a batch has no layers of its own; its calls are compared with theirs.
                if wanted.kind == OpKind::Batch {
                    named.layers = wanted.layers.clone();
                }
                named.same(wanted)
            };
            if !existing.is_some_and(same) {
                // A name may mean another tool by now, so the request is compared, not what it resolves to.
                if path.is_root()
                    && is_other
                    && existing.is_none_or(|existing| existing.as_asked() != wanted.as_asked())
                {
                    return other();
                }
                let place = if path.is_root() { String::new() } else { format!(" at {path}") };
                return reused(format!("its {wanted}{place} is another call, or has other arguments"));
            }
        }
        Ok(())
    }

    /// Whether the tool with this id has that name as an alias.
    fn is_alias(&self, id: &str, name: &str) -> bool {
        let tool = self.toolbox.by_id(id);
        tool.is_some_and(|tool| tool.spec().aliases.iter().any(|alias| alias.as_str() == name))
    }
}

impl Submitted {
    /// Waits until the run is in the store and returns it. From then on it continues, whatever the caller does.
    /// Dropping the future loses nothing; it can be called again.
    pub async fn accepted(&mut self) -> Result<RunId> {
        if let SubmitState::New(..) = self.state {
            let SubmitState::New(new, background) = std::mem::replace(&mut self.state, SubmitState::Stored) else {
                return Ok(self.run);
            };
            background?;
            let NewRun { drive, calls, .. } = *new;
            // A batch sends its records when it is polled, so it gets its task first.
            let driven = match calls.is_batch() {
                true => self.runtime.kernel.accept(drive)?,
                false => self.runtime.kernel.accept_durably(drive).await?,
            };
            self.state = SubmitState::Driven(driven, calls);
        }
        if let SubmitState::Driven(driven, _) = &self.state {
            driven.run.flush().await;
            let stop = driven.run.with(|machine| machine.stop().cloned());
            if let Some(Stop::Reload(error)) = stop {
                self.handle_first_commit_error(*error).await?;
            }
        }
        Ok(self.run)
    }

    /// Waits for the outcomes of the root calls: one, or those of the batch. They are durable when this returns.
    /// Dropping the future does not stop the run; this can be called again, or [`accepted`](Submitted::accepted)
    /// instead.
    pub async fn outcomes(&mut self) -> Result<(RunId, Vec<Outcome>)> {
        let end = match std::mem::replace(&mut self.state, SubmitState::Stored) {
            SubmitState::New(new, _) => {
                // This future drives the run. If it is dropped, the run gets a task of its own.
                let inline = self.runtime.kernel.drive_inline(Box::new(new.drive));
                self.state = SubmitState::Driven(inline.driven(), new.calls);
                inline.await
            }
            SubmitState::Driven(driven, calls) => {
                let completion = driven.completion.clone();
                self.state = SubmitState::Driven(driven, calls);
                completion.wait().await
            }
            SubmitState::Stored => return self.attached().await,
        };
        let SubmitState::Driven(_, calls) = std::mem::replace(&mut self.state, SubmitState::Stored) else {
            return self.attached().await;
        };
        self.concluded(end, calls).await
    }

    /// The same for a caller that may stop polling: a run that has to wait gets a task of its own.
    pub(super) async fn run_to_end(mut self) -> Result<(RunId, Vec<Outcome>)> {
        let SubmitState::New(new, _) = std::mem::replace(&mut self.state, SubmitState::Stored) else {
            return self.attached().await;
        };
        let NewRun { drive, calls, .. } = *new;
        let end = self.runtime.kernel.drive(drive).await;
        self.concluded(end, calls).await
    }

    async fn concluded(&mut self, end: RunEnd, calls: Calls) -> Result<(RunId, Vec<Outcome>)> {
        match end {
            end if self.runtime.goes_on(&end) => self.attached().await,
            RunEnd::Unknown(error) => {
                Box::pin(self.handle_first_commit_error(error)).await?;
                self.attached().await
            }
            end => Ok((self.run, calls.outcomes(self.run, finished(self.run, end)?))),
        }
    }

    /// The outcomes according to the store. Boxed, like every rare case here, to keep the future of every call small.
    async fn attached(&mut self) -> Result<(RunId, Vec<Outcome>)> {
        Ok((self.run, Box::pin(self.runtime.attach(self.run)).await?))
    }

    /// Handles the error that the first commit of the run was answered with.
    async fn handle_first_commit_error(&mut self, error: StoreError) -> Result<()> {
        match (error, &self.keyed) {
            // Another caller was faster with the same key; its run is the one.
            (StoreError::KeyTaken { run }, Some((work, how))) => {
                self.runtime.check_same(run, work, how).await?;
                self.runtime.ensure_claimed(run).await?;
                (self.run, self.state) = (run, SubmitState::Stored);
                Ok(())
            }
            (
                error @ (StoreError::KeySpent { .. }
                | StoreError::SessionClosed { .. }
                | StoreError::NoSession { .. }
                | StoreError::SessionFull { .. }
                | StoreError::Unavailable(_)
                | StoreError::NoArtifact { .. }),
                _,
            ) => Err(error.into()),
            (source, _) => Err(Error::Unknown { run: self.run, source }),
        }
    }
}

/// Refuses a call in the background whose tool does not run there.
pub(super) fn background(toolbox: &Toolbox, call: &ToolCall) -> Result<()> {
    let toolbox = toolbox.with_layers(&call.layers).ok();
    let tool = toolbox.and_then(|toolbox| resolve(&toolbox.snapshot(), &call.tool).cloned());
    match &tool {
        Some(tool) if tool.spec().guards.background == Background::Never => {
            let name = &tool.spec().name;
            Err(Error::Invalid(format!("`{name}` does not run in the background: call it and wait")))
        }
        _ => Ok(()),
    }
}
