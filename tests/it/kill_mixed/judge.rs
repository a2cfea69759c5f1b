//! What must be true of a file and its ledger once all work is done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use windlass::record::{Event, Record};
use windlass::testing::block_on;
use windlass::{Filter, RunId, RunInfo, RunState, SqliteStore, Store};

use super::plan::{self, Often, Plan};
use crate::kill::{LedgerFile, ledger_path};

/// The ledger, by what its lines say.
#[derive(Default)]
struct Books {
    /// The keys of each effect, in order.
    effects: BTreeMap<String, Vec<String>>,
    /// Jobs that were accepted, with their runs.
    accepted: BTreeMap<String, BTreeSet<RunId>>,
    /// What callers were told.
    told: Vec<(RunId, Value)>,
    /// Attempts of which somebody said that they did not happen, by key.
    again: BTreeMap<String, BTreeSet<String>>,
}

impl Books {
    fn read(dir: &Path) -> Self {
        let mut books = Self::default();
        let run = |text: &str| text.parse::<RunId>().expect("a run");
        for line in LedgerFile(ledger_path(dir)).lines() {
            let (head, tail) = line.rsplit_once(' ').expect("every line says something of something");
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["life", _] => {}
                ["accepted", tag, id] => books.accepted.entry(tag.to_owned()).or_default().extend([run(id)]),
                ["again", key, attempt] => {
                    books.again.entry(key.to_owned()).or_default().extend([attempt.to_owned()]);
                }
                ["told", id, ..] => {
                    let value = line.splitn(3, ' ').nth(2).expect("an outcome");
                    books.told.push((run(id), serde_json::from_str(value).expect("JSON")));
                }
                _ => books.effects.entry(head.to_owned()).or_default().push(tail.to_owned()),
            }
        }
        books
    }

    /// Every effect of a run happened as often as it must, and each under one key of this run.
    fn check(&mut self, run: RunId, name: &str, often: Often) {
        let keys = self.effects.remove(name).unwrap_or_default();
        let distinct: BTreeSet<&String> = keys.iter().collect();
        assert!(distinct.len() <= 1, "{name} happened under several keys: {keys:?}");
        let own = keys.iter().all(|key| key.starts_with(&run.to_string()));
        assert!(own, "{name} of run {run} happened under a key of another: {keys:?}");
        let again = keys.first().and_then(|key| self.again.get(key)).map_or(0, BTreeSet::len);
        let right = match often {
            Often::Once => keys.len() == 1,
            Often::AtMostOnce => keys.len() <= 1,
            Often::AsTold => (1..=1 + again).contains(&keys.len()),
            Often::Repeated => !keys.is_empty(),
            Often::Never => keys.is_empty(),
        };
        assert!(right, "{name} of run {run} must happen {often:?} and did {} times", keys.len());
    }
}

/// Checks everything; returns how many runs there are.
pub(crate) fn check(dir: &Path, plan: &Plan) -> usize {
    let mut books = Books::read(dir);
    let store = SqliteStore::open_with(dir.join("app.db"), plan.durability()).expect("the store opens");
    let infos = block_on(store.list(Filter::All, None, 10_000)).expect("the runs");
    let known: BTreeMap<RunId, &RunInfo> = infos.iter().map(|info| (info.run, info)).collect();
    let mut tags = BTreeSet::new();
    for info in &infos {
        let journal = block_on(store.journal(info.run, 0)).expect("its journal");
        let asked = journal[0].asked.as_ref().expect("the first record says what was asked");
        let tag = asked.input.as_ref().expect("its arguments")["tag"].as_str().expect("its tag").to_owned();
        check_ending(info, &journal);
        for (name, often) in plan::effects(&info.tool, &tag) {
            books.check(info.run, &name, often);
        }
        assert!(tags.insert(tag.clone()), "there are two runs of {tag}");
    }
    for job in plan.jobs() {
        let runs = books.accepted.remove(&job.tag).unwrap_or_default();
        assert_eq!(runs.len(), 1, "{} must be one run: {runs:?}", job.tag);
        for run in runs {
            let info = known.get(&run).unwrap_or_else(|| panic!("{} was accepted as {run}, which is gone", job.tag));
            assert_eq!(*info.tool, *job.tool);
        }
    }
    for (run, value) in &books.told {
        assert!(known.contains_key(run), "somebody was told the outcome of {run}, which is gone");
        let journal = block_on(store.journal(*run, 0)).expect("its journal");
        let recorded = result(&journal).expect("it is finished").expect("it ended well");
        assert_eq!(recorded, *value, "somebody was told another outcome of {run} than is recorded");
    }
    // Reading may run ahead of what is durable; nothing else may.
    let stray: Vec<&String> = books.effects.keys().filter(|name| !name.starts_with("look:")).collect();
    assert!(stray.is_empty(), "effects of runs that are not there: {stray:?}");
    infos.len()
}

fn check_ending(info: &RunInfo, journal: &[Record]) {
    let RunInfo { run, tool, state, doubts, .. } = info;
    assert!(matches!(state, RunState::Finished { .. }), "{tool} {run} is {state:?}");
    assert!(doubts.is_empty(), "{tool} {run} ended in doubt: {doubts:?}");
    let is_end = |record: &&Record| record.path.is_root() && matches!(record.event, Event::Finished(_));
    assert_eq!(journal.iter().filter(is_end).count(), 1, "{tool} {run} must end once: {journal:?}");
    let result = result(journal).expect("it is finished");
    let right = plan::fits(tool, *run, result.as_ref().map_err(String::as_str));
    assert!(right, "{tool} {run} came to {result:?}: {journal:?}");
}

/// What a run came to: its value, or the kind of its error.
fn result(journal: &[Record]) -> Option<Result<Value, String>> {
    journal.iter().rev().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path.is_root() => {
            let told = finished.told.as_ref().unwrap_or(&finished.result);
            Some(told.as_ref().map(|output| output.value.clone()).map_err(|error| error.kind().to_owned()))
        }
        _ => None,
    })
}
