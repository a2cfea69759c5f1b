//! Logs that lie beside a file and are not its own: refused, unless they go on exactly where the file ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use windlass_core::store::Filter;

use super::super::{Health, OpenError, check_file};
use super::*;

/// Cases of each kind.
const SEEDS: u64 = 48;

/// Numbers that look like chance and are the same in every run of the test.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % limit as u64).unwrap()
    }
}

/// Every journal, as text.
type Content = BTreeMap<RunId, String>;

fn content(store: &SqliteStore) -> Content {
    let runs = block_on(store.list(Filter::All, None, 999)).unwrap();
    let journal = |run| serde_json::to_string(&block_on(store.journal(run, 0)).unwrap()).unwrap();
    runs.iter().map(|info| (info.run, journal(info.run))).collect()
}

/// What a killed process would leave at one moment.
#[derive(Clone)]
struct Left {
    file: Vec<u8>,
    log: Vec<u8>,
    content: Content,
}

fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// Opens a file with a log beside it.
fn open(file: &[u8], log: &[u8]) -> Result<Content, OpenError> {
    let (_directory, path) = place();
    fs::write(&path, file).unwrap();
    fs::write(log_of(&path), log).unwrap();
    let before = (file.to_vec(), log.to_vec());
    let opened = SqliteStore::open(&path);
    if matches!(opened, Err(OpenError::ForeignLog { .. })) {
        let after = (fs::read(&path).unwrap(), fs::read(log_of(&path)).unwrap());
        assert!(before == after, "what is refused is not changed");
        assert!(matches!(check_file(&path, |_, _| {}), Err(OpenError::ForeignLog { .. })));
    }
    opened.map(|store| content(&store))
}

fn is_foreign(opened: &Result<Content, OpenError>) -> bool {
    matches!(opened, Err(OpenError::ForeignLog { .. }))
}

/// The life of a store, in moments; every store says other things.
fn live(path: &Path, dice: &mut Dice, name: &str) -> Vec<Left> {
    let store = SqliteStore::open(path).unwrap();
    let (mut seqs, mut moments) = (BTreeMap::<u8, u64>::new(), Vec::new());
    let known = block_on(store.list(Filter::All, None, 99)).unwrap();
    let first = 1 + known.iter().map(|info| info.run.as_bytes()[0]).max().unwrap_or(0);
    for moment in 0..5 {
        for turn in 0..1 + dice.below(6) {
            let number = first + u8::try_from(dice.below(4)).unwrap();
            let seq = seqs.entry(number).or_default();
            let said = append(json!([name, moment, turn, "x".repeat(dice.below(9_000))]));
            let created = (*seq == 0).then(|| Change::Create(Creation { tool: "t".into(), ..Creation::default() }));
            commit(&store, owner(number, *seq, created.into_iter().chain([said]).collect())).unwrap();
            *seq += 1;
        }
        let content = content(&store);
        moments.push(Left { file: fs::read(path).unwrap(), log: fs::read(log_of(path)).unwrap(), content });
        if dice.below(2) == 0 {
            store.desk.move_log();
        }
    }
    // A file that was not closed is looked through in the background.
    while store.health() == Health::Checking {
        std::thread::yield_now();
    }
    assert_eq!(store.health(), Health::Fine);
    moments
}

/// Two stores with different lives, by a seed.
fn lives(seed: u64) -> (Vec<Left>, Vec<Left>, Dice) {
    let (directory, path) = place();
    let mut dice = Dice(seed);
    let one = live(&path, &mut dice, "one");
    let other = live(&directory.path().join("other.db"), &mut dice, "other");
    (one, other, dice)
}

#[test]
fn w09_the_log_that_a_killed_process_leaves_is_its_own() {
    for seed in 0..SEEDS / 4 {
        let (moments, ..) = lives(seed);
        for left in moments {
            assert_eq!(open(&left.file, &left.log).unwrap(), left.content, "seed {seed}");
        }
    }
}

#[test]
fn w09_a_log_that_began_again_under_load_is_its_files_own_at_every_moment() {
    let (_directory, path) = place();
    let store = SqliteStore::open_with(&path, super::desk::here()).unwrap();
    commit(&store, create(1)).unwrap();
    let salts = || fs::read(log_of(&path)).unwrap()[16..24].to_vec();
    let (mut logs, mut seq) = (std::collections::BTreeSet::from([salts()]), 1);
    while logs.len() < 4 {
        for _ in 0..75 {
            commit(&store, owner(1, seq, vec![append(json!("x".repeat(14_000)))])).unwrap();
            seq += 1;
        }
        assert!(seq < 20_000, "the log does not begin again");
        // Pages may be on their way into the file meanwhile, as when a process is killed.
        let (file, log) = (fs::read(&path).unwrap(), fs::read(log_of(&path)).unwrap());
        logs.insert(log[16..24].to_vec());
        let (_directory, copy) = place();
        fs::write(&copy, file).unwrap();
        fs::write(log_of(&copy), log).unwrap();
        let found = SqliteStore::open(&copy).unwrap_or_else(|error| panic!("after {seq}: {error}"));
        assert_eq!(length(&found, 1) as u64, seq);
    }
}

#[test]
fn w10_the_log_of_another_file_is_refused() {
    for seed in 0..SEEDS {
        let (one, other, mut dice) = lives(seed);
        let (file, log) = (&one[dice.below(5)].file, &other[dice.below(5)].log);
        let opened = open(file, log);
        assert!(is_foreign(&opened), "seed {seed}: {opened:?}");
        let said = opened.unwrap_err().to_string();
        assert!(
            said.contains("app.db-wal is not its write-ahead log") && said.contains("restore the file from a backup"),
            "{said}"
        );
    }
}

#[test]
fn w10_the_log_of_another_file_that_was_cut_is_refused_or_is_none() {
    for seed in 0..SEEDS {
        let (one, other, mut dice) = lives(seed);
        let (file, log) = (&one[dice.below(5)].file, &other[dice.below(5)].log);
        let cut = &log[..dice.below(log.len())];
        let opened = open(file, cut);
        let without = open(file, &[]).unwrap();
        assert!(is_foreign(&opened) || opened.as_ref().is_ok_and(|found| *found == without), "seed {seed}: {opened:?}");
    }
}

#[test]
fn w10_an_older_or_newer_log_of_the_same_file_is_refused_unless_it_goes_on_where_the_file_ends() {
    let mut refused = 0;
    for seed in 0..SEEDS {
        let (moments, _, mut dice) = lives(seed);
        let (file, log) = (dice.below(5), dice.below(5));
        let opened = open(&moments[file].file, &moments[log].log);
        match &opened {
            Ok(found) => assert_eq!(*found, moments[log].content, "seed {seed}: {file} {log}"),
            Err(_) => assert!(is_foreign(&opened), "seed {seed}: {opened:?}"),
        }
        let differ = moments[file].file != moments[log].file;
        if log < file && differ {
            assert!(is_foreign(&opened), "seed {seed}: more was moved into the file than this log has");
        }
        refused += usize::from(is_foreign(&opened));
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn w10_a_log_that_was_cut_leaves_what_was_true_once_or_is_refused() {
    for seed in 0..SEEDS {
        let (moments, _, mut dice) = lives(seed);
        let left = &moments[dice.below(5)];
        let opened = open(&left.file, &left.log[..dice.below(left.log.len())]);
        match &opened {
            // Every journal is the beginning of what it was.
            Ok(found) => {
                for (run, journal) in found {
                    assert!(left.content[run].starts_with(journal.trim_end_matches(']')), "seed {seed}");
                }
            }
            Err(_) => assert!(is_foreign(&opened), "seed {seed}: {opened:?}"),
        }
    }
}

#[test]
fn w10_the_log_of_a_copy_is_refused_once_both_went_on() {
    for seed in 0..SEEDS {
        let (moments, _, mut dice) = lives(seed);
        let (_directory, copy) = place();
        let left = &moments[dice.below(3)];
        fs::write(&copy, &left.file).unwrap();
        fs::write(log_of(&copy), &left.log).unwrap();
        let copied = live(&copy, &mut dice, "copy");
        let (file, log) = (&moments[4].file, &copied[dice.below(5)]);
        let opened = open(file, &log.log);
        match &opened {
            Ok(found) => assert_eq!(*found, log.content, "seed {seed}"),
            Err(_) => assert!(is_foreign(&opened), "seed {seed}: {opened:?}"),
        }
    }
}

#[test]
fn w10_a_log_left_beside_a_restored_backup_is_refused() {
    let (directory, path) = place();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    let backup = directory.path().join("backup.db");
    block_on(store.backup(&backup)).unwrap();
    for seq in 1..4 {
        commit(&store, owner(1, seq, vec![append(json!(seq))])).unwrap();
    }
    let log = fs::read(log_of(&path)).unwrap();
    let opened = open(&fs::read(&backup).unwrap(), &log);
    assert!(is_foreign(&opened), "{opened:?}");
    assert_eq!(open(&fs::read(&backup).unwrap(), &[]).unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn w10_a_foreign_log_put_beside_an_open_file_is_not_taken() {
    let (directory, path) = place();
    let other = directory.path().join("other.db");
    let stranger = SqliteStore::open(&other).unwrap();
    commit(&stranger, create(9)).unwrap();
    let log = fs::read(log_of(&other)).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    fs::remove_file(log_of(&path)).unwrap();
    fs::write(log_of(&path), log).unwrap();
    let add = |seq| owner(1, seq, vec![append(json!(seq))]);
    assert!(matches!(commit(&store, add(1)), Err(StoreError::Unavailable(_))));
    if let Health::Unavailable(why) = store.health() {
        assert!(why.contains("is not its own"), "{why}");
        fs::remove_file(log_of(&path)).unwrap();
    }
    while store.health() != Health::Fine {
        std::thread::yield_now();
    }
    commit(&store, add(1)).unwrap();
    assert_eq!(content(&store).len(), 1);
    assert_eq!(length(&store, 1), 2);
}
