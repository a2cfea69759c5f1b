//! What must be true of a file and its ledger once all work is done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use windlass::run::record::{Event, Record};
use windlass::run::{Filter, RunInfo, RunState};
use windlass::store::{Queries, SqliteStore};
use windlass::testing::block_on;
use windlass::{RunId, Timestamp};

use super::plan::{self, Often, Plan};
use crate::kill::{LedgerFile, ledger_path};

/// Runs that are checked concurrently.
const PAGE: usize = 500;

/// The content of a file that passed all checks.
#[derive(Default)]
pub(crate) struct CheckedFile {
    pub(crate) runs: usize,
    /// When each run ended.
    pub(crate) ends: Vec<Timestamp>,
    /// The size of the journals as JSON.
    pub(crate) bytes: usize,
    accepted: BTreeMap<String, Arc<str>>,
}

/// The ledger, by kinds of lines.
#[derive(Default)]
struct LedgerEntries {
    /// The keys of each effect, in order.
    effects: BTreeMap<String, Vec<String>>,
    /// Jobs that were accepted, with their runs.
    accepted: BTreeMap<String, BTreeSet<RunId>>,
    /// The results that callers received.
    told: BTreeMap<RunId, Value>,
    /// Attempts that were settled as not having happened, by key.
    again: BTreeMap<String, BTreeSet<String>>,
}

impl LedgerEntries {
    fn read(dir: &Path) -> Self {
        let mut books = Self::default();
        let run = |text: &str| text.parse::<RunId>().expect("a run");
        let ledger = ledger_path(dir);
        let files = match std::fs::read_dir(&ledger) {
            Ok(files) => files.map(|file| file.expect("a file").path()).collect(),
            Err(_) => vec![ledger],
        };
        for line in files.into_iter().flat_map(|file| LedgerFile(file).lines()) {
            let (head, tail) = line.rsplit_once(' ').expect("every line says something of something");
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["life", _] => {}
                ["accepted", tag, id] => books.accepted.entry(tag.to_owned()).or_default().extend([run(id)]),
                ["again", key, attempt] => {
                    books.again.entry(key.to_owned()).or_default().extend([attempt.to_owned()]);
                }
                ["told", id, ..] => {
                    let value = line.splitn(3, ' ').nth(2).expect("an outcome");
                    books.told.insert(run(id), serde_json::from_str(value).expect("JSON"));
                }
                _ => books.effects.entry(head.to_owned()).or_default().push(tail.to_owned()),
            }
        }
        books
    }

    /// Every effect of a run happened as often as it must, under one key of this run.
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

/// Checks a file with the jobs of a plan.
pub(crate) fn check_plan(dir: &Path, plan: &Plan) -> CheckedFile {
    let found = check(dir);
    for job in plan.jobs() {
        assert_eq!(found.accepted.get(&job.tag).map(|tool| &**tool), Some(job.tool), "{} must be accepted", job.tag);
    }
    found
}

/// Checks the whole file.
pub(crate) fn check(dir: &Path) -> CheckedFile {
    let mut books = LedgerEntries::read(dir);
    let store = SqliteStore::open(dir.join("app.db")).expect("the store opens");
    let (mut found, mut tags, mut after) = (CheckedFile::default(), BTreeMap::new(), None);
    loop {
        let page = block_on(store.list(Filter::default(), after, PAGE)).expect("the runs");
        after = page.last().map(|info| info.run);
        for info in &page {
            let journal = block_on(store.journal(info.run, 0)).expect("its journal");
            let tag = check_run(info, &journal, &mut books);
            let twin = tags.insert(tag.clone(), (info.run, info.tool.clone()));
            assert!(twin.is_none(), "there are two runs of {tag}");
            found.runs += 1;
            found.ends.extend(journal.last().map(|record| record.at));
            found.bytes += serde_json::to_vec(&journal).expect("JSON").len();
        }
        if page.len() < PAGE {
            break;
        }
    }
    for (tag, runs) in std::mem::take(&mut books.accepted) {
        let kept = tags.get(&tag).filter(|(run, _)| runs.len() == 1 && runs.contains(run));
        let (_, tool) = kept.unwrap_or_else(|| panic!("{tag} was accepted as {runs:?}, and is {:?}", tags.get(&tag)));
        found.accepted.insert(tag, tool.clone());
    }
    assert!(books.told.is_empty(), "outcomes were reported of runs that are gone: {:?}", books.told);
    // Readonly attempts may run ahead of what is durable; others may not.
    let stray: Vec<&String> = books.effects.keys().filter(|name| !name.starts_with("look:")).collect();
    assert!(stray.is_empty(), "effects of runs that are not there: {stray:?}");
    found
}

/// Checks one run, and removes its effects from the ledger. Returns its tag.
fn check_run(info: &RunInfo, journal: &[Record], books: &mut LedgerEntries) -> String {
    let asked = journal[0].asked.as_ref().expect("the first record says what was asked");
    let tag = asked.input.as_ref().expect("its arguments")["tag"].as_str().expect("its tag").to_owned();
    check_ending(info, journal);
    for (name, often) in plan::effects(&info.tool, &tag) {
        books.check(info.run, &name, often);
    }
    if let Some(told) = books.told.remove(&info.run) {
        let recorded = result(journal).expect("it is finished").expect("it ended well");
        assert_eq!(recorded, told, "the reported outcome of {} differs from the recorded one", info.run);
    }
    tag
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

/// The result of a run: its value, or the kind of its error.
fn result(journal: &[Record]) -> Option<Result<Value, String>> {
    journal.iter().rev().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path.is_root() => {
            let told = finished.told.as_ref().unwrap_or(&finished.result);
            Some(told.as_ref().map(|output| output.value.clone()).map_err(|error| error.kind().to_owned()))
        }
        _ => None,
    })
}
