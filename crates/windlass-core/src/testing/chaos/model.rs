//! The model of the promise: what the world outside saw, and what of it must not be.

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
use crate::runtime::Resolved;
use crate::store::{Change, Claimed, Commit, Guard, StoreError};
use crate::testing::sim::Sim;
use crate::time::{Clock, Timestamp};

/// What a record is known by.
type Mark = (Path, Timestamp, Discriminant<Event>);

pub(super) struct Model {
    clock: Sim,
    facts: Mutex<Facts>,
}

#[derive(Default)]
struct Facts {
    log: Vec<String>,
    problems: Vec<String>,
    /// Short names, for the log.
    names: BTreeMap<RunId, usize>,
    effects: BTreeMap<String, Vec<Effect>>,
    runs: BTreeMap<RunId, Known>,
    /// Reply keys that were handed out.
    keys: BTreeMap<RunId, String>,
    /// By run and reply key.
    answers: BTreeMap<(RunId, String), Answers>,
    /// What those were told whose answers did not count, with the reply key.
    told: Vec<(RunId, String, Resolved)>,
}

struct Effect {
    name: String,
    once: bool,
}

/// What is known of a run from the writes the store took.
#[derive(Default)]
struct Known {
    epoch: u64,
    journal: Vec<Mark>,
    /// Paths that are finished in this generation.
    finished: BTreeSet<Path>,
    /// Paths that are in doubt in this generation.
    doubted: BTreeSet<Path>,
    /// Those that the store shows to people.
    listed: BTreeSet<Path>,
}

/// What was said under one reply key.
#[derive(Default)]
struct Answers {
    said: Vec<Value>,
    accepted: Vec<Value>,
}

/// The idempotency key as the outside is given it.
fn as_used(key: &str) -> Cow<'_, str> {
    let parts: Vec<&str> = key.splitn(3, '.').collect();
    match parts[..] {
        [run, _, place] if planted(Plant::ReuseKeys) => Cow::Owned(format!("{run}.0.{place}")),
        _ => Cow::Borrowed(key),
    }
}

impl Model {
    pub(super) fn new(clock: Sim) -> Self {
        Self { clock, facts: Mutex::default() }
    }

    pub(super) fn say(&self, what: String) {
        let micros = self.clock.ticks() / 1_000;
        self.facts.lock().log.push(format!("{micros:>12} µs  {what}"));
    }

    /// Something that must not be.
    pub(super) fn problem(&self, what: String) {
        self.say(format!("PROBLEM: {what}"));
        self.facts.lock().problems.push(what);
    }

    pub(super) fn problems(&self) -> Vec<String> {
        self.facts.lock().problems.clone()
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.facts.lock().log.clone()
    }

    /// A short name for a run.
    pub(super) fn name(&self, run: RunId) -> String {
        let mut facts = self.facts.lock();
        let next = facts.names.len();
        format!("run {}", facts.names.entry(run).or_insert(next))
    }

    pub(super) fn effect(&self, worker: &str, name: &str, key: &str, once: bool) {
        let key = &*as_used(key);
        let run = key.split('.').next().and_then(|run| run.parse().ok());
        let of = run.map_or_else(|| key.to_owned(), |run| self.name(run));
        let place = key.split_once('.').map_or(key, |(_, place)| place);
        self.say(format!("{worker} does {name} for {of} at {place}"));
        let count = {
            let mut facts = self.facts.lock();
            let effects = facts.effects.entry(key.to_owned()).or_default();
            effects.push(Effect { name: name.to_owned(), once });
            effects.iter().filter(|effect| effect.once).count()
        };
        if count > 1 {
            self.problem(format!("{name} of {of} at {place} must happen once and happened {count} times"));
        }
    }

    pub(super) fn happened(&self, key: &str) -> bool {
        self.facts.lock().effects.contains_key(&*as_used(key))
    }

    /// How often an effect of this name happened for a run.
    pub(super) fn count(&self, run: RunId, name: &str) -> usize {
        let prefix = format!("{run}.");
        let facts = self.facts.lock();
        let of_run = facts.effects.iter().filter(|(key, _)| key.starts_with(&prefix));
        of_run.flat_map(|(_, effects)| effects).filter(|effect| effect.name == name).count()
    }

    /// The epoch in force and the length of the journal.
    pub(super) fn owner(&self, run: RunId) -> Option<(u64, u64)> {
        self.facts.lock().runs.get(&run).map(|known| (known.epoch, known.journal.len() as u64))
    }

    pub(super) fn claimed(&self, worker: &str, run: RunId, claimed: &Claimed) {
        let name = self.name(run);
        self.say(format!("{worker} claims {name} under epoch {}", claimed.epoch));
        let mut facts = self.facts.lock();
        let known = facts.runs.entry(run).or_default();
        known.epoch = claimed.epoch;
    }

    /// The store answered a commit.
    pub(super) fn written(&self, worker: &str, commit: &Commit, answer: &Result<(), StoreError>) {
        let Err(problem) = answer.as_ref().map_or(Ok(()), |()| self.take(commit)) else { return };
        self.problem(format!("{worker}: {problem}"));
    }

    fn take(&self, commit: &Commit) -> Result<(), String> {
        let mut facts = self.facts.lock();
        for change in &commit.changes {
            if let Change::Start { run, records, .. } = change {
                facts.runs.entry(*run).or_insert_with(|| {
                    let mut known = Known::default();
                    known.append(records);
                    known
                });
            }
        }
        let Guard::Owner { run, epoch, expected_seq } = commit.guard else { return Ok(()) };
        let known = facts.runs.entry(run).or_default();
        let records: Vec<&Record> = appended(commit).collect();
        let (from, len) = (usize::try_from(expected_seq).unwrap_or(usize::MAX), known.journal.len());
        if from < len && !records.is_empty() {
            // The identical commit again, or a journal that changed.
            let same = records.iter().enumerate().all(|(i, record)| known.journal.get(from + i) == Some(&mark(record)));
            return if same { Ok(()) } else { Err(format!("record {from} of a journal of {len} was changed")) };
        }
        if epoch < known.epoch {
            return Err(format!("a write under epoch {epoch} was taken although epoch {} is in force", known.epoch));
        }
        known.epoch = epoch;
        if commit.changes.iter().any(|change| matches!(change, Change::Continue)) {
            known.finished.clear();
            known.doubted.clear();
        }
        let twice = known.append(records);
        for change in &commit.changes {
            if let Change::Doubts(doubts) = change {
                known.listed = doubts.iter().map(|doubt| doubt.path.clone()).collect();
            }
        }
        match (twice, known.doubted.difference(&known.listed).next()) {
            (Some(path), _) => Err(format!("{path} has two results")),
            (None, Some(path)) => Err(format!("{path} is in doubt, and nobody can see it")),
            (None, None) => Ok(()),
        }
    }

    /// Compares what the store has with what it took.
    pub(super) fn compare(&self, run: RunId, journal: &[Record]) {
        let same = {
            let facts = self.facts.lock();
            facts
                .runs
                .get(&run)
                .is_none_or(|known| known.journal.iter().eq(journal.iter().map(mark).collect::<Vec<_>>().iter()))
        };
        if !same {
            self.problem(format!("the journal of {} is not what was written", self.name(run)));
        }
    }

    pub(super) fn hand_out(&self, run: RunId, key: String) {
        self.facts.lock().keys.insert(run, key);
    }

    pub(super) fn handed_out(&self, run: RunId) -> Option<String> {
        self.facts.lock().keys.get(&run).cloned()
    }

    pub(super) fn answering(&self, run: RunId, key: &str, value: &Value) {
        self.facts.lock().answers.entry((run, key.to_owned())).or_default().said.push(value.clone());
    }

    pub(super) fn accepted(&self, run: RunId, key: &str, value: &Value) {
        let count = {
            let mut facts = self.facts.lock();
            let answers = facts.answers.entry((run, key.to_owned())).or_default();
            answers.accepted.push(value.clone());
            answers.accepted.len()
        };
        if count > 1 {
            self.problem(format!("{count} answers to one reply key were accepted"));
        }
    }

    /// Somebody answered, and it did not count.
    pub(super) fn told(&self, run: RunId, key: &str, told: Resolved) {
        self.facts.lock().told.push((run, key.to_owned(), told));
    }

    /// Some reply key that was answered before.
    pub(super) fn answered(&self, choice: u64) -> Option<(RunId, String)> {
        let facts = self.facts.lock();
        let index = usize::try_from(choice % (facts.answers.len() as u64).max(1)).ok()?;
        facts.answers.keys().nth(index).cloned()
    }

    /// Whoever was told what counts was told what the journal says.
    pub(super) fn compare_told(&self, run: RunId, journal: &[Record], signer: &Signer) {
        let told: Vec<_> = self.facts.lock().told.iter().filter(|(of, ..)| *of == run).cloned().collect();
        for (_, key, told) in told {
            let Some(address) = signer.open(&key).filter(|address| address.generation == 0) else { continue };
            let first = journal.iter().position(|record| matches!(record.event, Event::Continued { .. }));
            let result = journal[..first.unwrap_or(journal.len())].iter().find_map(|record| match &record.event {
                Event::Finished(finished) if record.path == address.path => Some(&finished.result),
                _ => None,
            });
            let right = match (&told, result) {
                (Resolved::Already(Ok(told)), Some(Ok(result))) => told.value == result.value,
                (Resolved::Already(Err(told)), result) => {
                    matches!(result, Some(Err(error)) if error.to_string() == told.to_string())
                }
                (Resolved::Revoked { .. }, result) => !matches!(result, Some(Ok(_))),
                _ => true,
            };
            if !right {
                let name = self.name(run);
                self.problem(format!("{name} at {} came to {result:?}, and an answer was told {told:?}", address.path));
            }
        }
    }

    /// Whether this can be what a run was answered with.
    pub(super) fn was_answered(&self, run: RunId, value: &Value) -> bool {
        let facts = self.facts.lock();
        let mut of_run = facts.answers.iter().filter(|((of, _), _)| *of == run).map(|(_, answers)| answers);
        of_run.any(|answers| match answers.accepted.first() {
            Some(accepted) => accepted == value,
            None => answers.said.contains(value),
        })
    }
}

impl Known {
    /// The path that has a result already, if one has.
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

fn mark(record: &Record) -> Mark {
    (record.path.clone(), record.at, std::mem::discriminant(&record.event))
}
