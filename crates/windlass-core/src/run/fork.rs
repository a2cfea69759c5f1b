//! **Fork**: which records of a run another run begins with, and whether that is allowed.
//!
//! A fork begins with the finished operations before its cut, as they were recorded. Unfinished operations are not
//! copied: they park again under the fork's own reply keys, retries start over, and grants are requested again. An
//! attempt that may have happened cannot be left out silently, so one before the cut refuses the fork.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{Asked, Event, Finished, OpKind, Prepared, Record, Settled, Settler};
use super::secrets::Places;
use crate::id::RunId;
use crate::path::{BadPath, Path};
use crate::time::{Times, Timestamp};
use crate::tool::{Output, ToolError};

/// Where a fork leaves its original.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Nothing is kept: the same call again.
    Start,
    /// The operation at this path is the first that is not kept, in the order of the code. In a group of parallel
    /// operations, those after it are not kept either.
    At(Path),
    /// Everything that is finished is kept, except the outcome of the run.
    End,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::At(path) => write!(f, "{path}"),
            Self::End => f.write_str("end"),
        }
    }
}

impl FromStr for Cut {
    type Err = BadPath;

    fn from_str(text: &str) -> Result<Self, BadPath> {
        match text {
            "start" | "/" => Ok(Self::Start),
            "end" => Ok(Self::End),
            path => path.parse().map(Self::At),
        }
    }
}

/// What differs in a fork, right at its cut.
#[derive(Clone, Debug)]
pub enum ForkChange {
    /// The call at the cut is made with these arguments, whatever the body asks for. With [`Cut::Start`], the run
    /// starts with them. Middleware does not see them: they are final.
    Input(Value),
    /// The operation at the cut is not performed: this is its outcome.
    Outcome {
        /// What the body receives.
        result: Result<Output, ToolError>,
        /// Who decided it.
        by: String,
        /// Why.
        reason: String,
    },
}

/// The run that is forked.
pub(crate) struct Original {
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    /// The journal of this generation.
    pub(crate) journal: Vec<Record>,
}

/// What the journal says about one operation.
struct OpSummary {
    asked: Asked,
    entered: bool,
    finished: bool,
    /// Whether an attempt of it may have happened without a recorded outcome.
    open: bool,
}

struct Forking {
    run: RunId,
    ops: BTreeMap<Path, OpSummary>,
    cut: Cut,
}

/// The records a fork begins with, or a sentence that says why the fork is refused. `check` validates new arguments.
pub(crate) fn fork(
    original: &Original,
    cut: &Cut,
    change: Option<ForkChange>,
    now: Timestamp,
    check: impl Fn(&Asked, &Value) -> Result<Places, String>,
) -> Result<Vec<Record>, String> {
    let cut = match cut {
        Cut::At(path) if path.is_root() => Cut::Start,
        cut => cut.clone(),
    };
    let forking = Forking { run: original.run, ops: fold(&original.journal), cut };
    let mut root = forking.root()?.asked.clone();
    forking.check_cut()?;
    forking.check_open()?;
    let mut kept: Vec<(usize, Record)> = Vec::new();
    let records = original.journal.iter().filter(|record| !matches!(record.event, Event::Forked { .. }));
    let records: Vec<&Record> = records.collect();
    for (index, record) in records.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| records.get(before));
        if forking.keeps(record) && !forking.answers_later(record, before.copied()) {
            kept.push((index, (*record).clone()));
        }
    }
    let last = records.len();
    kept.extend(forking.batch_members(now).into_iter().map(|record| (last, record)));
    if let Some(change) = change {
        let changed = forking.changed(change, &mut root, now, check)?;
        kept.extend(changed.map(|record| (last, record)));
    }
    let mut begin = headers(original, &forking.cut, &kept, now);
    if let Some(first) = begin.first_mut() {
        first.asked = Some(root);
    }
    let mut seen: std::collections::BTreeSet<Path> = [Path::root()].into();
    begin.extend(kept.into_iter().map(|(_, mut record)| {
        let first = seen.insert(record.path.clone());
        record.asked = if first { forking.ops.get(&record.path).map(|op| op.asked.clone()) } else { None };
        record
    }));
    Ok(begin)
}

/// One header for each run that made some of the records, the oldest first.
fn headers(original: &Original, cut: &Cut, kept: &[(usize, Record)], at: Timestamp) -> Vec<Record> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut events: Vec<Event> = Vec::new();
    for record in &original.journal {
        let Event::Forked { from, generation, cut, copied } = &record.event else { continue };
        let copied = count(kept.iter().filter(|(index, _)| count(*index) < *copied).count());
        if copied > 0 {
            events.push(Event::Forked { from: *from, generation: *generation, cut: cut.clone(), copied });
        }
    }
    let (from, generation, copied) = (original.run, original.generation, count(kept.len()));
    events.push(Event::Forked { from, generation, cut: cut.clone(), copied });
    events.into_iter().map(|event| Record { path: Path::root(), at, asked: None, event }).collect()
}

fn fold(journal: &[Record]) -> BTreeMap<Path, OpSummary> {
    let mut ops: BTreeMap<Path, OpSummary> = BTreeMap::new();
    for record in journal {
        if let (None, Some(asked)) = (ops.get(&record.path), &record.asked) {
            let asked = asked.clone();
            ops.insert(record.path.clone(), OpSummary { asked, entered: false, finished: false, open: false });
        }
        let Some(op) = ops.get_mut(&record.path) else { continue };
        match record.event {
            // These records are about the run, not about its root call.
            Event::Recovered
            | Event::Resumed
            | Event::Restored { .. }
            | Event::Revoked { .. }
            | Event::Cancelled { .. }
            | Event::CancelledBelow { .. } => continue,
            Event::Entered => op.entered = true,
            Event::Finished(_) => op.finished = true,
            _ => {}
        }
        op.open = matches!(record.event, Event::Attempting { .. } | Event::Intended { .. } | Event::Doubted { .. });
    }
    ops
}

impl Forking {
    fn root(&self) -> Result<&OpSummary, String> {
        let missing =
            || format!("the journal of run {} does not record its root call, so it cannot be forked", self.run);
        self.ops.get(&Path::root()).ok_or_else(missing)
    }

    /// Refuses a cut at a path where nothing can be cut.
    fn check_cut(&self) -> Result<(), String> {
        let Cut::At(cut) = &self.cut else { return Ok(()) };
        let run = self.run;
        let (Some(parent), Some(index)) = (cut.parent(), cut.positions().last()) else { return Ok(()) };
        let entered = self.ops.get(&parent).filter(|above| above.entered);
        let Some(above) = entered else {
            return Err(format!(
                "run {run} has no body at {parent}, so it cannot be forked at {cut}; its journal names the operations \
                 it has"
            ));
        };
        if above.asked.kind == OpKind::First {
            return Err(format!("{cut} is a branch of the `first` at {parent}, which is one choice: fork at {parent}"));
        }
        let before = index.checked_sub(1).is_none_or(|before| self.ops.contains_key(&parent.child(before)));
        if before || self.ops.contains_key(cut) {
            return Ok(());
        }
        let next = self.ops.keys().filter(|path| path.parent().as_ref() == Some(&parent)).count();
        let next = parent.child(u32::try_from(next).unwrap_or(u32::MAX));
        Err(format!(
            "run {run} never reached {cut}: the first operation it has not asked for is {next}; fork there, or at the end"
        ))
    }

    /// Refuses a cut after operations that cannot be left out silently.
    fn check_open(&self) -> Result<(), String> {
        for (path, op) in self.ops.iter().filter(|(path, op)| !op.finished && self.is_before(path)) {
            let (run, asked) = (self.run, &op.asked);
            if op.open {
                return Err(format!(
                    "{asked} at {path} of run {run} may have happened, and its outcome is not known; settle it, or wait \
                     for it, and fork then, or fork at {path} or before it to repeat it"
                ));
            }
            let may_continue = op.entered || asked.kind == OpKind::Wait || self.cut == Cut::End;
            if !may_continue || (op.entered && self.cut != Cut::End && is_body(asked.kind)) {
                return Err(format!(
                    "{asked} at {path} of run {run} is not finished, so nothing after it can be kept; fork at {path} or \
                     before it, or wait for it"
                ));
            }
        }
        Ok(())
    }

    /// Whether the body would ask for this operation before it reaches the cut.
    fn is_before(&self, path: &Path) -> bool {
        let kept = match &self.cut {
            Cut::Start => false,
            Cut::At(cut) => path < cut && !is_above(path, cut),
            Cut::End => true,
        };
        kept && !self.is_covered(path)
    }

    /// Whether a finished operation above answers for this one.
    fn is_covered(&self, path: &Path) -> bool {
        let mut above = path.parent();
        while let Some(path) = above.filter(|above| !above.is_root()) {
            let reaches_cut = matches!(&self.cut, Cut::At(cut) if is_above(&path, cut));
            if !reaches_cut && self.ops.get(&path).is_some_and(|op| op.finished) {
                return true;
            }
            above = path.parent();
        }
        false
    }

    /// Whether the fork begins with this record.
    fn keeps(&self, record: &Record) -> bool {
        let reached = match &self.cut {
            Cut::Start => return false,
            Cut::At(cut) => is_above(&record.path, cut),
            Cut::End => record.path.is_root(),
        };
        let Some(op) = self.ops.get(&record.path) else { return false };
        match &self.cut {
            // The body around the cut continues: it was entered, and has no outcome yet.
            _ if reached => op.entered && matches!(record.event, Event::Prepared(_) | Event::Entered),
            Cut::At(cut) if record.path >= *cut => false,
            _ if op.finished => matches!(record.event, Event::Prepared(_) | Event::Entered | Event::Finished(_)),
            _ => op.entered && matches!(record.event, Event::Prepared(_) | Event::Entered),
        }
    }

    /// Whether an open wait was answered together with an operation after the cut. The fork has not received that
    /// answer.
    fn answers_later(&self, record: &Record, before: Option<&Record>) -> bool {
        let (Cut::At(_), Event::Finished(_), Some(before)) = (&self.cut, &record.event, before) else { return false };
        let is = |path: &Path, kind| self.ops.get(path).is_some_and(|op| op.asked.kind == kind);
        // The operation that opened the wait made its key, or names the one that did.
        let made_at = match self.ops.get(&record.path).map(|op| &op.asked) {
            Some(asked) if asked.kind == OpKind::Wait => record.path.to_string().into(),
            Some(asked) if asked.kind == OpKind::Answer => asked.name.clone(),
            _ => return false,
        };
        let by_answer =
            is(&before.path, OpKind::Answer) && self.ops.get(&before.path).is_some_and(|op| op.asked.name == made_at);
        by_answer && !self.keeps(before)
    }

    /// Records that name the calls of a root batch. Only the journal knows these calls, so those that are made again
    /// must still be in it.
    fn batch_members(&self, at: Timestamp) -> Vec<Record> {
        let is_batch = self.ops.get(&Path::root()).is_some_and(|root| root.asked.kind == OpKind::Batch);
        let is_repeated = |path: &Path, op: &OpSummary| match &self.cut {
            Cut::Start => true,
            Cut::At(cut) => path >= cut,
            Cut::End => !op.finished && !op.entered,
        };
        let members = self.ops.iter().filter(|(path, op)| is_batch && path.depth() == 1 && is_repeated(path, op));
        let mut records: Vec<Record> =
            members.map(|(path, _)| Record { path: path.clone(), at, asked: None, event: Event::Accepted }).collect();
        if is_batch && self.cut == Cut::Start {
            records.insert(0, Record { path: Path::root(), at, asked: None, event: Event::Entered });
        }
        records
    }

    /// The record that makes the difference at the cut.
    fn changed(
        &self,
        change: ForkChange,
        root: &mut Asked,
        at: Timestamp,
        check: impl Fn(&Asked, &Value) -> Result<Places, String>,
    ) -> Result<Option<Record>, String> {
        let run = self.run;
        let path = match (&self.cut, &change) {
            (Cut::Start, ForkChange::Input(args)) => {
                if root.kind != OpKind::Call {
                    return Err(format!("run {run} is a {root}; its calls have arguments of their own: fork at one"));
                }
                root.secrets = check(root, args)?;
                root.input = Some(Arc::new(args.clone()));
                root.broken = None;
                return Ok(None);
            }
            (Cut::Start, ForkChange::Outcome { .. }) => {
                return Err("a run that starts over has no outcome yet; finish a held run by hand instead".to_owned());
            }
            (Cut::End, _) => {
                return Err(
                    "there is no operation at the end that could be changed; name the path of an operation".to_owned()
                );
            }
            (Cut::At(path), _) => path.clone(),
        };
        let Some(op) = self.ops.get(&path) else {
            return Err(format!("run {run} has not asked for anything at {path}, so nothing can be changed there"));
        };
        let asked = &op.asked;
        let event = match change {
            ForkChange::Input(args) if asked.kind == OpKind::Call => {
                let secrets = check(asked, &args)?;
                Event::Prepared(Prepared { args: Some(Arc::new(args)), secrets, ..Prepared::default() })
            }
            ForkChange::Input(_) => {
                return Err(format!(
                    "{asked} at {path} of run {run} has no arguments that could be replaced; replace its outcome, or \
                     change the code"
                ));
            }
            ForkChange::Outcome { .. } if is_group(asked.kind) => {
                return Err(format!(
                    "{asked} at {path} of run {run} has no outcome of its own; fork at one of its parts"
                ));
            }
            ForkChange::Outcome { result: Ok(output), .. } if !output.commands.is_empty() => {
                return Err(format!(
                    "the outcome for {path} of run {run} contains commands, and a fork would not carry them out; leave \
                     them out, and start that work yourself"
                ));
            }
            ForkChange::Outcome { result, by, reason } => {
                let settled = Some(Box::new(Settled { by: Settler::Person(by), reason }));
                let result = result.map(Arc::new).map_err(Arc::new);
                Event::Finished(Finished { result, told: None, attempts: 0, times: Times::default(), settled })
            }
        };
        Ok(Some(Record { path, at, asked: None, event }))
    }
}

/// Whether `above` is an ancestor of `path`.
fn is_above(above: &Path, path: &Path) -> bool {
    above != path && path.positions().starts_with(above.positions())
}

/// Whether it is a body that continues by itself once entered, unlike a group, which only consists of its parts.
fn is_body(kind: OpKind) -> bool {
    matches!(kind, OpKind::Call | OpKind::Branch | OpKind::First)
}

/// Operations whose record describes the code, not an outcome.
fn is_group(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Batch
            | OpKind::Steps
            | OpKind::Branches
            | OpKind::First
            | OpKind::Version
            | OpKind::Spawn
            | OpKind::Emit
    )
}
