//! An operation before it starts: its path, what was asked for, and what the journal has of it.

use std::sync::Arc;

use crate::activity::ActivityContext;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, Event, OpKind};
use crate::time::Timestamp;
use crate::tool::Effect;

/// An operation, and what is known of it before it starts.
pub(crate) struct Operation {
    pub(crate) path: Path,
    pub(crate) kind: OpKind,
    pub(crate) name: Arc<str>,
    /// Goes into the first record of the path.
    pub(super) asked: Option<Asked>,
    written: RecordState,
    /// Whether its start was sent to the watchers, because no record says it yet.
    announced: bool,
}

/// What the journal has of an operation that is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// Nothing; its first record will contain what was asked.
    No,
    /// Nothing; but it must be recorded as soon as it has to wait, because no body would ask for it again.
    WhenPending,
    /// That it was accepted.
    Accepted,
}

impl Operation {
    pub(crate) fn new(path: Path, asked: Asked, written: RecordState) -> Self {
        Self { path, kind: asked.kind, name: asked.name.clone(), asked: Some(asked), written, announced: false }
    }

    /// Drops `asked` if the journal contains it already.
    pub(crate) fn settle_asked(&mut self, is_recorded: bool) {
        if is_recorded || self.written == RecordState::Accepted {
            self.asked = None;
        }
    }

    /// Records that it was asked for, before anything is done about it.
    pub(crate) fn accept(&mut self, run: &Arc<Run>) {
        if self.written == RecordState::WhenPending && self.asked.is_some() {
            self.written = RecordState::Accepted;
            run.append(&self.path, run.now(), self.asked.clone(), Event::Accepted);
        }
    }

    /// Records something about the operation before it starts. Replay is still asked about it later.
    pub(crate) fn record(&mut self, run: &Arc<Run>, event: Event) {
        self.record_at(run, run.now(), event);
    }

    pub(crate) fn record_at(&mut self, run: &Arc<Run>, at: Timestamp, event: Event) {
        let first = std::mem::replace(&mut self.written, RecordState::Accepted) != RecordState::Accepted;
        let asked = if first { self.asked.clone() } else { None };
        run.append(&self.path, at, asked, event);
    }

    /// Notes that the journal contains what was asked.
    pub(crate) fn mark_recorded(&mut self) {
        self.written = RecordState::Accepted;
    }

    pub(crate) fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()
    }

    pub(crate) fn take_asked(&mut self) -> Option<Asked> {
        self.asked.take()
    }

    /// Whether it leaves no record before it ends.
    pub(crate) fn is_unrecorded(&self) -> bool {
        self.written == RecordState::No && self.asked.is_some()
    }

    /// What was asked, if it must be recorded now that the operation has to wait.
    pub(crate) fn take_asked_when_pending(&mut self) -> Option<Asked> {
        if self.written == RecordState::WhenPending { self.asked.take() } else { None }
    }

    /// Tells the current watchers that it has started. Without effects it is recorded when it ends, which may be much
    /// later.
    pub(crate) fn announce(&mut self, run: &Run) {
        let Some(asked) = self.asked.as_ref().filter(|_| !self.announced) else { return };
        self.announced = true;
        let env = &run.kernel.env;
        let started = || {
            let context = ActivityContext {
                run: run.id,
                parent: None,
                attribution: run.attribution.as_deref(),
                toolbox: &env.toolbox,
                session: run.session.as_ref(),
                locale: &env.locale,
                policy: &env.policy,
            };
            context.started(asked, run.generation, &self.path)
        };
        run.kernel.reach.watchers.send_live(run.id, run.session.as_ref(), &self.path, started);
    }

    pub(crate) fn describe(&self) -> String {
        Asked::operation(self.kind, self.name.clone(), None, Effect::Once).to_string()
    }
}
