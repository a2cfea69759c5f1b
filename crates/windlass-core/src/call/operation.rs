//! An operation before it starts: where it stands, what was asked for, and what the journal knows of that.

use std::sync::Arc;

use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, Event, OpKind};
use crate::time::Timestamp;
use crate::tool::Effect;

/// Which operation, and what is known of it before it starts.
pub(crate) struct Operation {
    pub(crate) path: Path,
    pub(crate) kind: OpKind,
    pub(crate) name: Arc<str>,
    /// Goes into the first record of the path.
    pub(super) asked: Option<Asked>,
    written: Written,
}

/// What the journal knows of an operation that is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Nothing; its first record will say what was asked.
    No,
    /// Nothing; but it must be recorded as soon as it has to wait, for nobody would ask for it again.
    WhenPending,
    /// That it was accepted.
    Accepted,
}

impl Operation {
    pub(crate) fn new(path: Path, asked: Asked, written: Written) -> Self {
        Self { path, kind: asked.kind, name: asked.name.clone(), asked: Some(asked), written }
    }

    /// The journal knows what was asked.
    pub(crate) fn settle_asked(&mut self, standing: bool) {
        if standing || self.written == Written::Accepted {
            self.asked = None;
        }
    }

    /// Records that it was asked for, before anything is done about it.
    pub(crate) fn accept(&mut self, run: &Arc<Run>) {
        if self.written == Written::WhenPending && self.asked.is_some() {
            self.written = Written::Accepted;
            run.append(&self.path, run.now(), self.asked.clone(), Event::Accepted);
        }
    }

    /// Records something about the operation before it starts; replay will still be asked about it.
    pub(crate) fn record(&mut self, run: &Arc<Run>, event: Event) {
        self.record_at(run, run.now(), event);
    }

    pub(crate) fn record_at(&mut self, run: &Arc<Run>, at: Timestamp, event: Event) {
        let first = std::mem::replace(&mut self.written, Written::Accepted) != Written::Accepted;
        let asked = if first { self.asked.clone() } else { None };
        run.append(&self.path, at, asked, event);
    }

    /// The journal knows what was asked.
    pub(crate) fn is_written(&mut self) {
        self.written = Written::Accepted;
    }

    pub(crate) fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()
    }

    pub(crate) fn take_asked(&mut self) -> Option<Asked> {
        self.asked.take()
    }

    /// What was asked, if the journal must know of it now that the operation has to wait.
    pub(crate) fn take_asked_when_pending(&mut self) -> Option<Asked> {
        if self.written == Written::WhenPending { self.asked.take() } else { None }
    }

    pub(crate) fn describe(&self) -> String {
        Asked::operation(self.kind, self.name.clone(), None, Effect::Once).to_string()
    }
}
