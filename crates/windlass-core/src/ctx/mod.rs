//! The context of a durable body: its operations, each recorded in the journal and answered from it after a crash.

mod branches;
mod calls;
mod emit;
mod first;
pub mod park;
pub(crate) mod runs;
mod session;
mod session_files;
mod session_tools;
mod session_turns;
mod step;
mod steps;
pub(crate) mod undo;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use branches::{Branch, BranchSet, BranchesAll, BranchesAny, BranchesSettled, branch};
pub use calls::{CallAll, CallOne, CallSet, CallsSettled};
pub use first::{First, First2, First3, First4, FirstFuture, FirstSet};
pub use park::OpenWait;
pub use runs::{Handle, Join, Spawn};
pub use session::CtxSession;
pub use session_files::CtxFiles;
pub use session_tools::ShownTool;
pub use step::{CtxStep, Step, StepOutput, step};
pub use steps::{StepSet, StepsAll, StepsSettled};

use crate::call::durable::Frame;
use crate::call::plan::Scope;
use crate::call::{Attempt, ToolCall, ToolRef};
use crate::id::RunId;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, Event, OpKind, OpOutcome, Recorded};
use crate::run::replay::{Decision, takes_new_branch};
use crate::run::state::Hold;
use crate::time::Timestamp;
use crate::tool::{Effect, Tool, ToolResult, from_output};
use crate::value::digest::Encoder;

/// The interface through which a durable body acts.
///
/// Every method that takes `&mut self` is an operation: it has a path in the journal, and after a crash a recorded
/// operation answers without being performed again. An operation that was polled must be awaited to its end. Dropping
/// it holds the run, because the next operation would otherwise take its path in the journal.
pub struct Ctx {
    run: Arc<Run>,
    path: Path,
    scope: Scope,
    frame: Arc<Frame>,
    tool: Arc<Tool>,
    answered: Timestamp,
    versions: Vec<(Arc<str>, bool)>,
    /// The events that this body waited for, and where the key of each was made; `None` if each wait made its own.
    events: Vec<(Arc<str>, Option<Path>)>,
    drawn: u64,
}

impl Ctx {
    /// `began` is when the body was entered for the first time.
    pub(crate) fn new(
        run: Arc<Run>,
        path: Path,
        scope: Scope,
        inside: (Arc<Frame>, Arc<Tool>),
        began: Timestamp,
    ) -> Self {
        let (answered, (frame, tool)) = (began, inside);
        let root = if path.is_root() { Some(tool.clone()) } else { scope.root };
        let scope = Scope { root, ..scope };
        Self { run, path, scope, frame, tool, answered, versions: Vec::new(), events: Vec::new(), drawn: 0 }
    }

    /// The run this body belongs to. In a fork, this is the original run until the body has passed the copied
    /// operations, because recorded inputs may contain its id.
    pub fn run(&self) -> RunId {
        self.identity().0
    }

    /// The run and generation that this body derives values from.
    fn identity(&self) -> (RunId, u32) {
        let next = self.frame.next.load(Ordering::Acquire);
        self.run.origins.at(&self.path, next).unwrap_or((self.run.id, self.run.generation))
    }

    /// Who the run acts for, if it says so. It is the same whenever the body is entered.
    pub fn principal(&self) -> Option<&str> {
        self.run.attribution.as_deref()?.principal.as_deref()
    }

    /// What caused the run, as given, if it says so.
    pub fn cause(&self) -> Option<&str> {
        self.run.attribution.as_deref()?.cause.as_deref()
    }

    /// The path of this body in the run.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A step: a named piece of work whose result is recorded. A finished step never runs again. Its attempts are
    /// `once` unless the step sets another effect class. The closure returns a [`ToolResult`]; `?`
    /// converts other errors inside of it:
    /// `ctx.step("read", |_| async { Ok(std::fs::read_to_string("notes.txt")?) }).await?`.
    ///
    /// Dropping it after its first poll holds the run. Its result is durable before anything that depends on it leaves
    /// the process.
    pub fn step<'c, F, Fut>(&'c mut self, name: impl Into<Arc<str>>, f: F) -> CtxStep<'c, F, step::ValueOf<Fut>>
    where
        F: FnMut(Attempt) -> Fut + Send + 'c,
        Fut: Future<Output: StepOutput> + Send + 'c,
    {
        CtxStep::new(self, step(name, f))
    }

    /// Several steps at once, polled together: an array, vector or tuple of [`step`](fn@step)s. One failure does not
    /// cancel the others; the first error in order is returned. Use [`StepsAll::settled`] to see each result.
    pub fn steps_all<'c, S: StepSet<'c>>(&'c mut self, steps: S) -> StepsAll<'c, S> {
        StepsAll::new(self, steps)
    }

    /// Calls a tool and waits for its outcome.
    pub fn call<T: DeserializeOwned + 'static>(&mut self, call: ToolCall<T>) -> CallOne<'_, T> {
        CallOne::new(self, call)
    }

    /// Calls a tool by name, with arguments that are not checked yet.
    pub fn call_json(&mut self, name: &str, args: Value) -> CallOne<'_, Value> {
        CallOne::new(self, ToolCall::to(ToolRef::Name(name.into()), args))
    }

    /// Several calls at once: an array, vector or tuple of calls. One failure does not cancel the others; the first
    /// error in order is returned. Use [`CallAll::settled`] to see each result, and [`CallAll::stop_on_failure`] to skip
    /// calls that have not started.
    pub fn call_all<S: CallSet>(&mut self, calls: S) -> CallAll<'_, S> {
        CallAll::new(self, calls)
    }

    /// Whether this run takes the new branch of a change in the code. Runs that passed this line before the change take
    /// the old branch for ever; all others take the new one.
    pub fn version(&mut self, change: &str) -> bool {
        if let Some((_, new)) = self.versions.iter().find(|(name, _)| &**name == change) {
            return *new;
        }
        let index = self.frame.next.load(Ordering::Acquire);
        let path = self.path.child(index);
        let asked = Asked::operation(OpKind::Version, change.into(), None, Effect::Readonly);
        let new = self.run.recorded_op(&path, |op| takes_new_branch(Some(op), &asked)).unwrap_or(true);
        if new {
            self.frame.next.store(index + 1, Ordering::Release);
            if let Decision::Perform { .. } = self.run.with(|machine| machine.ask(&path, &asked)) {
                self.run.append(&path, self.run.now(), Some(asked), Event::Entered);
            }
        }
        self.versions.push((change.into(), new));
        new
    }

    /// The time at which the last operation was answered, or the body first entered. It is the same when the body is
    /// entered again, and never goes back, even if a clock did.
    pub fn now(&self) -> Timestamp {
        self.answered
    }

    /// A random number, the same when the body is entered again. A fork draws its original's numbers until it has
    /// passed the copied operations, and its own from then on.
    pub fn random(&mut self) -> u64 {
        let bytes = self.draw();
        u64::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
    }

    /// A random (version 4) UUID, the same when the body is entered again.
    pub fn uuid(&mut self) -> uuid::Uuid {
        let bytes = self.draw();
        let mut half = [0u8; 16];
        half.copy_from_slice(&bytes[..16]);
        uuid::Builder::from_random_bytes(half).into_uuid()
    }

    fn draw(&mut self) -> [u8; 32] {
        self.drawn += 1;
        let (run, generation) = self.identity();
        let mut encoder = Encoder::new();
        encoder.text(&format!("random {run} {} {}", self.path, self.drawn));
        // Each generation draws numbers of its own.
        if generation > 0 {
            encoder.text(&format!("generation {generation}"));
        }
        encoder.finish().bytes()
    }

    /// The path of the next operation, and its guard.
    fn next(&mut self, kind: OpKind, name: Arc<str>) -> (Path, OpGuard) {
        let index = self.frame.next.fetch_add(1, Ordering::AcqRel);
        self.frame.set_busy(true);
        let path = self.path.child(index);
        (path, OpGuard { frame: self.frame.clone(), index, kind, name, over: false })
    }

    /// Advances the body's time, which never goes back, whatever the clocks of its processes do.
    fn passed(&mut self, at: Timestamp) {
        self.answered = self.answered.max(at);
    }

    fn answer_at<T: DeserializeOwned + 'static>(&mut self, path: &Path, outcome: &OpOutcome) -> Option<ToolResult<T>> {
        self.passed(outcome.at);
        decode(&self.run, path, &outcome.result)
    }
}

/// Decodes a recorded value. `None` means that the run is held.
fn decode<T: DeserializeOwned + 'static>(run: &Run, path: &Path, result: &Recorded) -> Option<ToolResult<T>> {
    match result {
        Err(error) => Some(Err(error.as_recorded())),
        Ok(output) => match from_output(output) {
            Ok(value) => Some(Ok(value)),
            Err(problem) => {
                run.hold(Hold::Undecodable { path: path.clone(), problem: problem.to_string() });
                None
            }
        },
    }
}

/// Guards an operation that was polled. If it is dropped before the operation ends, the body abandoned the operation.
struct OpGuard {
    frame: Arc<Frame>,
    index: u32,
    kind: OpKind,
    name: Arc<str>,
    over: bool,
}

impl OpGuard {
    fn over(&mut self) {
        self.over = true;
        self.frame.set_busy(false);
    }
}

impl Drop for OpGuard {
    fn drop(&mut self) {
        let Frame { run, path, .. } = &*self.frame;
        let dropped_with_its_body = || self.frame.has_ended() || run.is_stopped() || std::thread::panicking();
        if !self.over && !dropped_with_its_body() {
            let operation = Asked::operation(self.kind, self.name.clone(), None, Effect::Once).to_string();
            run.hold(Hold::Abandoned { path: path.child(self.index), operation });
        }
    }
}
