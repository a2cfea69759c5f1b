//! The calls of a run that have finished, for conditions that look at `history`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::PastCall;
use crate::path::Path;
use crate::run::record::{Asked, Event, OpKind, Record, Recorded};

/// Most calls that are kept: the latest. A condition about more than these is a condition about something else.
const KEPT: usize = 1_000;

/// Whether any expression in this process looks at history. Most do not, and then nothing is collected.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Some expression looks at history.
pub(super) fn want() {
    WANTED.store(true, Ordering::Release);
}

/// Collects the finished calls of one run, where anybody wants them.
pub(crate) struct PastCalls(Option<Box<Collected>>);

#[derive(Default)]
struct Collected {
    /// Calls that were asked for and have not ended.
    open: Vec<(Path, Arc<str>, Arc<Value>)>,
    finished: Vec<PastCall>,
}

impl Default for PastCalls {
    fn default() -> Self {
        Self(WANTED.load(Ordering::Acquire).then(Box::default))
    }
}

impl PastCalls {
    pub(crate) fn finished(&self) -> &[PastCall] {
        self.0.as_ref().map_or(&[], |calls| &calls.finished)
    }

    /// The journal answered a call.
    pub(crate) fn answered(&mut self, asked: &Asked, result: &Recorded) {
        if let Some(calls) = &mut self.0
            && asked.kind == OpKind::Call
        {
            calls.push(asked.name.clone(), asked.input.clone().unwrap_or_default(), result.is_ok());
        }
    }

    /// Something was recorded.
    pub(crate) fn note(&mut self, record: &Record) {
        if let Some(calls) = &mut self.0 {
            calls.note(record);
        }
    }
}

impl Collected {
    fn note(&mut self, record: &Record) {
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.kind == OpKind::Call) {
            self.open.push((record.path.clone(), asked.name.clone(), asked.input.clone().unwrap_or_default()));
        }
        let Event::Finished(finished) = &record.event else { return };
        if let Some(index) = self.open.iter().position(|(path, _, _)| *path == record.path) {
            let (_, tool, args) = self.open.swap_remove(index);
            self.push(tool, args, finished.answer().is_ok());
        }
    }

    fn push(&mut self, tool: Arc<str>, args: Arc<Value>, ok: bool) {
        if self.finished.len() == KEPT {
            self.finished.remove(0);
        }
        self.finished.push(PastCall { tool, args, ok });
    }
}
