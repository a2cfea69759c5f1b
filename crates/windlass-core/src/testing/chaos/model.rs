//! The model of the guarantees: what the outside observed, and which observations are violations.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::Discriminant;

use parking_lot::Mutex;
use serde_json::Value;

use super::plant::{Plant, planted};
use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{Event, Record};
use crate::run::reply::Signer;
use crate::runtime::ReplyResult;
use crate::store::{Change, Claimed, Commit, Guard, StoreError};
use crate::testing::sim::Sim;
use crate::time::{Clock, Timestamp};

/// Identifies a record.
type RecordMark = (Path, Timestamp, Discriminant<Event>);

/// The observations of a simulation.
pub(super) struct Model {
    clock: Sim,
    state: Mutex<ModelState>,
}

#[derive(Default)]
struct ModelState {
    log: Vec<String>,
    problems: Vec<String>,
    /// Short names of runs, for the log.
    names: BTreeMap<RunId, usize>,
    effects: BTreeMap<String, Vec<Effect>>,
    runs: BTreeMap<RunId, RunModel>,
    /// Reply keys that were handed out.
    keys: BTreeMap<RunId, String>,
    /// Answers by run and reply key.
    answers: BTreeMap<(RunId, String), Answers>,
    /// The results of answers that did not count, with their reply key.
    told: Vec<(RunId, String, ReplyResult)>,
}

struct Effect {
    name: String,
    once: bool,
}

/// The state of a run according to the commits that the store accepted.
#[derive(Default)]
struct RunModel {
    epoch: u64,
    journal: Vec<RecordMark>,
    /// Paths that have ended in this generation.
    finished: BTreeSet<Path>,
    /// Paths that are in doubt in this generation.
    doubted: BTreeSet<Path>,
    /// The doubts that the store lists.
    listed: BTreeSet<Path>,
}

/// The answers with one reply key.
#[derive(Default)]
struct Answers {
    sent: Vec<Value>,
    accepted: Vec<Value>,
}

/// The idempotency key that outside systems get.
fn as_used(key: &str) -> Cow<'_, str> {
    let parts: Vec<&str> = key.splitn(3, '.').collect();
    match parts[..] {
        [run, _, place] if planted(Plant::ReuseKeys) => Cow::Owned(format!("{run}.0.{place}")),
        _ => Cow::Borrowed(key),
    }
}

impl Model {
    pub(super) fn new(clock: Sim) -> Self {
        Self { clock, state: Mutex::default() }
    }

    pub(super) fn log_line(&self, what: String) {
        let micros = self.clock.ticks() / 1_000;
        self.state.lock().log.push(format!("{micros:>12} µs  {what}"));
    }

    /// Reports a violation.
    pub(super) fn problem(&self, what: String) {
        self.log_line(format!("PROBLEM: {what}"));
        self.state.lock().problems.push(what);
    }

    pub(super) fn problems(&self) -> Vec<String> {
        self.state.lock().problems.clone()
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    /// A short name for a run.
    pub(super) fn name(&self, run: RunId) -> String {
        let mut state = self.state.lock();
        let next = state.names.len();
        format!("run {}", state.names.entry(run).or_insert(next))
    }

    pub(super) fn effect(&self, worker: &str, name: &str, key: &str, once: bool) {
        let key = &*as_used(key);
        let run = key.split('.').next().and_then(|run| run.parse().ok());
        let of = run.map_or_else(|| key.to_owned(), |run| self.name(run));
        let place = key.split_once('.').map_or(key, |(_, place)| place);
        self.log_line(format!("{worker} does {name} for {of} at {place}"));
        let count = {
            let mut state = self.state.lock();
            let effects = state.effects.entry(key.to_owned()).or_default();
            effects.push(Effect { name: name.to_owned(), once });
            effects.iter().filter(|effect| effect.once).count()
        };
        if count > 1 {
            self.problem(format!("{name} of {of} at {place} must happen once and happened {count} times"));
        }
    }

    pub(super) fn happened(&self, key: &str) -> bool {
        self.state.lock().effects.contains_key(&*as_used(key))
    }

    /// How often an effect of this name happened for a run.
    pub(super) fn count(&self, run: RunId, name: &str) -> usize {
        let prefix = format!("{run}.");
        let state = self.state.lock();
        let of_run = state.effects.iter().filter(|(key, _)| key.starts_with(&prefix));
        of_run.flat_map(|(_, effects)| effects).filter(|effect| effect.name == name).count()
    }

    /// The current epoch and the length of the journal.
    pub(super) fn owner(&self, run: RunId) -> Option<(u64, u64)> {
        self.state.lock().runs.get(&run).map(|run_model| (run_model.epoch, run_model.journal.len() as u64))
    }

    pub(super) fn claimed(&self, worker: &str, run: RunId, claimed: &Claimed) {
        let name = self.name(run);
        self.log_line(format!("{worker} claims {name} under epoch {}", claimed.epoch));
        let mut state = self.state.lock();
        let run_model = state.runs.entry(run).or_default();
        run_model.epoch = claimed.epoch;
    }

    /// Called when the store has answered a commit.
    pub(super) fn written(&self, worker: &str, commit: &Commit, answer: &Result<(), StoreError>) {
        let Err(problem) = answer.as_ref().map_or(Ok(()), |()| self.take(commit)) else { return };
        self.problem(format!("{worker}: {problem}"));
    }

    fn take(&self, commit: &Commit) -> Result<(), String> {
        let mut state = self.state.lock();
        for change in &commit.changes {
            if let Change::Start { run, records, .. } = change {
                state.runs.entry(*run).or_insert_with(|| {
                    let mut run_model = RunModel::default();
                    run_model.append(records);
                    run_model
                });
            }
        }
        let Guard::Owner { run, epoch, expected_seq } = commit.guard else { return Ok(()) };
        let run_model = state.runs.entry(run).or_default();
        let records: Vec<&Record> = appended(commit).collect();
        let (from, len) = (usize::try_from(expected_seq).unwrap_or(usize::MAX), run_model.journal.len());
        if from < len && !records.is_empty() {
            // Either the identical commit again, or an attempt to change the journal.
            let same =
                records.iter().enumerate().all(|(i, record)| run_model.journal.get(from + i) == Some(&mark(record)));
            return if same { Ok(()) } else { Err(format!("record {from} of a journal of {len} was changed")) };
        }
        if epoch < run_model.epoch {
            return Err(format!(
                "a write under epoch {epoch} was accepted although epoch {} is in force",
                run_model.epoch
            ));
        }
        run_model.epoch = epoch;
        if commit.changes.iter().any(|change| matches!(change, Change::Continue)) {
            run_model.finished.clear();
            run_model.doubted.clear();
        }
        let twice = run_model.append(records);
        for change in &commit.changes {
            if let Change::Doubts(doubts) = change {
                run_model.listed = doubts.iter().map(|doubt| doubt.path.clone()).collect();
            }
        }
        match (twice, run_model.doubted.difference(&run_model.listed).next()) {
            (Some(path), _) => Err(format!("{path} has two results")),
            (None, Some(path)) => Err(format!("{path} is in doubt but is not listed")),
            (None, None) => Ok(()),
        }
    }

    /// Compares the journal in the store with the records it accepted.
    pub(super) fn compare(&self, run: RunId, journal: &[Record]) {
        let same = {
            let state = self.state.lock();
            state.runs.get(&run).is_none_or(|run_model| {
                run_model.journal.iter().eq(journal.iter().map(mark).collect::<Vec<_>>().iter())
            })
        };
        if !same {
            self.problem(format!("the journal of {} is not what was written", self.name(run)));
        }
    }

    pub(super) fn hand_out(&self, run: RunId, key: String) {
        self.state.lock().keys.insert(run, key);
    }

    pub(super) fn handed_out(&self, run: RunId) -> Option<String> {
        self.state.lock().keys.get(&run).cloned()
    }

    pub(super) fn answering(&self, run: RunId, key: &str, value: &Value) {
        self.state.lock().answers.entry((run, key.to_owned())).or_default().sent.push(value.clone());
    }

    pub(super) fn accepted(&self, run: RunId, key: &str, value: &Value) {
        let count = {
            let mut state = self.state.lock();
            let answers = state.answers.entry((run, key.to_owned())).or_default();
            answers.accepted.push(value.clone());
            answers.accepted.len()
        };
        if count > 1 {
            self.problem(format!("{count} answers to one reply key were accepted"));
        }
    }

    /// Records the result of an answer that did not count.
    pub(super) fn told(&self, run: RunId, key: &str, told: ReplyResult) {
        self.state.lock().told.push((run, key.to_owned(), told));
    }

    /// A random reply key that was answered before.
    pub(super) fn answered(&self, choice: u64) -> Option<(RunId, String)> {
        let state = self.state.lock();
        let index = usize::try_from(choice % (state.answers.len() as u64).max(1)).ok()?;
        state.answers.keys().nth(index).cloned()
    }

    /// Checks that the results of answers that did not count match the journal.
    pub(super) fn compare_told(&self, run: RunId, journal: &[Record], signer: &Signer) {
        let told: Vec<_> = self.state.lock().told.iter().filter(|(of, ..)| *of == run).cloned().collect();
        for (_, key, told) in told {
            let Some(address) = signer.open(&key).filter(|address| address.generation == 0) else { continue };
            let first = journal.iter().position(|record| matches!(record.event, Event::Continued { .. }));
            let result = journal[..first.unwrap_or(journal.len())].iter().find_map(|record| match &record.event {
                Event::Finished(finished) if record.path == address.path => Some(&finished.result),
                _ => None,
            });
            let right = match (&told, result) {
                (ReplyResult::Already(Ok(told)), Some(Ok(result))) => told.value == result.value,
                (ReplyResult::Already(Err(told)), result) => {
                    matches!(result, Some(Err(error)) if error.to_string() == told.to_string())
                }
                (ReplyResult::Revoked { .. }, result) => !matches!(result, Some(Ok(_))),
                _ => true,
            };
            if !right {
                let name = self.name(run);
                self.problem(format!(
                    "{name} at {} has the result {result:?}, but an answer got {told:?}",
                    address.path
                ));
            }
        }
    }

    /// Whether a run may have been answered with this value.
    pub(super) fn was_answered(&self, run: RunId, value: &Value) -> bool {
        let state = self.state.lock();
        let mut of_run = state.answers.iter().filter(|((of, _), _)| *of == run).map(|(_, answers)| answers);
        of_run.any(|answers| match answers.accepted.first() {
            Some(accepted) => accepted == value,
            None => answers.sent.contains(value),
        })
    }
}

impl RunModel {
    /// Appends records. Returns a path that already had a result.
    fn append<'r>(&mut self, records: impl IntoIterator<Item = &'r Record>) -> Option<Path> {
        let mut twice = None;
        for record in records {
            self.journal.push(mark(record));
            match record.event {
                Event::Doubted { .. } => self.doubted.insert(record.path.clone()),
                _ => self.doubted.remove(&record.path),
            };
            if matches!(record.event, Event::Finished(_)) && !self.finished.insert(record.path.clone()) {
                twice = Some(record.path.clone());
            }
        }
        twice
    }
}

fn appended(commit: &Commit) -> impl Iterator<Item = &Record> {
    commit.changes.iter().flat_map(|change| match change {
        Change::Append(records) => records.as_slice(),
        _ => &[],
    })
}

fn mark(record: &Record) -> RecordMark {
    (record.path.clone(), record.at, std::mem::discriminant(&record.event))
}
