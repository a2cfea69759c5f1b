//! Write-ahead logs that do not belong to the file next to them are refused, unless they continue exactly where the
//! file ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use windlass_core::store::Filter;

use super::super::{Health, OpenError, check_file};
use super::*;

/// Number of cases of each kind.
const SEEDS: u64 = 48;

/// Pseudo-random numbers, the same in every run of the test.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % limit as u64).unwrap()
    }
}

/// Every journal, as text.
type Content = BTreeMap<RunId, String>;

fn content(store: &SqliteStore) -> Content {
    let runs = block_on(store.list(Filter::default(), None, 999)).unwrap();
    let journal = |run| serde_json::to_string(&block_on(store.journal(run, 0)).unwrap()).unwrap();
    runs.iter().map(|info| (info.run, journal(info.run))).collect()
}

/// The files as a process that is killed at one moment leaves them.
#[derive(Clone)]
struct Snapshot {
    file: Vec<u8>,
    log: Vec<u8>,
    content: Content,
}

fn wal_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// Opens a file with a log next to it.
fn open(file: &[u8], log: &[u8]) -> Result<Content, OpenError> {
    let (_directory, path) = temp_db();
    fs::write(&path, file).unwrap();
    fs::write(wal_of(&path), log).unwrap();
    let before = (file.to_vec(), log.to_vec());
    let opened = SqliteStore::open(&path);
    if matches!(opened, Err(OpenError::ForeignWal { .. })) {
        let after = (fs::read(&path).unwrap(), fs::read(wal_of(&path)).unwrap());
        assert!(before == after, "refused files are not changed");
        assert!(matches!(check_file(&path, |_, _| {}), Err(OpenError::ForeignWal { .. })));
    }
    opened.map(|store| content(&store))
}

fn is_foreign(opened: &Result<Content, OpenError>) -> bool {
    matches!(opened, Err(OpenError::ForeignWal { .. }))
}

/// Writes to a store and takes snapshots. Every store has different records.
fn write_and_snapshot(path: &Path, rng: &mut Rng, name: &str) -> Vec<Snapshot> {
    let store = SqliteStore::open(path).unwrap();
    let (mut seqs, mut moments) = (BTreeMap::<u8, u64>::new(), Vec::new());
    let existing = block_on(store.list(Filter::default(), None, 99)).unwrap();
    let first = 1 + existing.iter().map(|info| info.run.as_bytes()[0]).max().unwrap_or(0);
    for moment in 0..5 {
        for turn in 0..1 + rng.below(6) {
            let number = first + u8::try_from(rng.below(4)).unwrap();
            let seq = seqs.entry(number).or_default();
            let record = append(json!([name, moment, turn, "x".repeat(rng.below(9_000))]));
            let created = (*seq == 0).then(|| Change::Create(Creation { tool: "t".into(), ..Creation::default() }));
            commit(&store, owner(number, *seq, created.into_iter().chain([record]).collect())).unwrap();
            *seq += 1;
        }
        let content = content(&store);
        moments.push(Snapshot { file: fs::read(path).unwrap(), log: fs::read(wal_of(path)).unwrap(), content });
        if rng.below(2) == 0 {
            store.shared_writer.checkpoint();
        }
    }
    // A file that was not closed cleanly is checked in the background.
    while store.health() == Health::Checking {
        std::thread::yield_now();
    }
    assert_eq!(store.health(), Health::Fine);
    moments
}

/// Snapshots of two stores with different content, by a seed.
fn two_stores(seed: u64) -> (Vec<Snapshot>, Vec<Snapshot>, Rng) {
    let (directory, path) = temp_db();
    let mut rng = Rng(seed);
    let one = write_and_snapshot(&path, &mut rng, "one");
    let other = write_and_snapshot(&directory.path().join("other.db"), &mut rng, "other");
    (one, other, rng)
}

#[test]
fn w09_the_wal_of_a_killed_process_belongs_to_its_file() {
    for seed in 0..SEEDS / 4 {
        let (moments, ..) = two_stores(seed);
        for snapshot in moments {
            assert_eq!(open(&snapshot.file, &snapshot.log).unwrap(), snapshot.content, "seed {seed}");
        }
    }
}

#[test]
fn w09_a_wal_that_restarts_under_load_belongs_to_its_file_at_every_moment() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, super::inline_writes::inline_options()).unwrap();
    commit(&store, create(1)).unwrap();
    let salts = || fs::read(wal_of(&path)).unwrap()[16..24].to_vec();
    let (mut logs, mut seq) = (std::collections::BTreeSet::from([salts()]), 1);
    while logs.len() < 4 {
        for _ in 0..75 {
            commit(&store, owner(1, seq, vec![append(json!("x".repeat(14_000)))])).unwrap();
            seq += 1;
        }
        assert!(seq < 20_000, "the log does not restart");
        // Pages may be copied into the file meanwhile, as when a process is killed.
        let (file, log) = (fs::read(&path).unwrap(), fs::read(wal_of(&path)).unwrap());
        logs.insert(log[16..24].to_vec());
        let (_directory, copy) = temp_db();
        fs::write(&copy, file).unwrap();
        fs::write(wal_of(&copy), log).unwrap();
        let found = SqliteStore::open(&copy).unwrap_or_else(|error| panic!("after {seq}: {error}"));
        assert_eq!(length(&found, 1) as u64, seq);
    }
}

#[test]
fn w10_the_wal_of_another_file_is_refused() {
    for seed in 0..SEEDS {
        let (one, other, mut rng) = two_stores(seed);
        let (file, log) = (&one[rng.below(5)].file, &other[rng.below(5)].log);
        let opened = open(file, log);
        assert!(is_foreign(&opened), "seed {seed}: {opened:?}");
        let text = opened.unwrap_err().to_string();
        assert!(
            text.contains("app.db-wal is not its write-ahead log") && text.contains("restore the file from a backup"),
            "{text}"
        );
    }
}

#[test]
fn w10_the_truncated_wal_of_another_file_is_refused_or_ignored() {
    for seed in 0..SEEDS {
        let (one, other, mut rng) = two_stores(seed);
        let (file, log) = (&one[rng.below(5)].file, &other[rng.below(5)].log);
        let cut = &log[..rng.below(log.len())];
        let opened = open(file, cut);
        let without = open(file, &[]).unwrap();
        assert!(is_foreign(&opened) || opened.as_ref().is_ok_and(|found| *found == without), "seed {seed}: {opened:?}");
    }
}

#[test]
fn w10_an_older_or_newer_wal_of_the_same_file_is_refused_unless_it_continues_the_file() {
    let mut refused = 0;
    for seed in 0..SEEDS {
        let (moments, _, mut rng) = two_stores(seed);
        let (file, log) = (rng.below(5), rng.below(5));
        let opened = open(&moments[file].file, &moments[log].log);
        match &opened {
            Ok(found) => assert_eq!(*found, moments[log].content, "seed {seed}: {file} {log}"),
            Err(_) => assert!(is_foreign(&opened), "seed {seed}: {opened:?}"),
        }
        let differ = moments[file].file != moments[log].file;
        if log < file && differ {
            assert!(is_foreign(&opened), "seed {seed}: more was copied into the file than this log has");
        }
        refused += usize::from(is_foreign(&opened));
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn w10_a_truncated_wal_leaves_an_earlier_state_or_is_refused() {
    for seed in 0..SEEDS {
        let (moments, _, mut rng) = two_stores(seed);
        let snapshot = &moments[rng.below(5)];
        let opened = open(&snapshot.file, &snapshot.log[..rng.below(snapshot.log.len())]);
        match &opened {
            // Every journal is a prefix of what it was.
            Ok(found) => {
                for (run, journal) in found {
                    assert!(snapshot.content[run].starts_with(journal.trim_end_matches(']')), "seed {seed}");
                }
            }
            Err(_) => assert!(is_foreign(&opened), "seed {seed}: {opened:?}"),
        }
    }
}

#[test]
fn w10_the_wal_of_a_copy_is_refused_once_both_files_have_changed() {
    for seed in 0..SEEDS {
        let (moments, _, mut rng) = two_stores(seed);
        let (_directory, copy) = temp_db();
        let snapshot = &moments[rng.below(3)];
        fs::write(&copy, &snapshot.file).unwrap();
        fs::write(wal_of(&copy), &snapshot.log).unwrap();
        let copied = write_and_snapshot(&copy, &mut rng, "copy");
        let (file, log) = (&moments[4].file, &copied[rng.below(5)]);
        let opened = open(file, &log.log);
        match &opened {
            Ok(found) => assert_eq!(*found, log.content, "seed {seed}"),
            Err(_) => assert!(is_foreign(&opened), "seed {seed}: {opened:?}"),
        }
    }
}

#[test]
fn w10_a_wal_left_next_to_a_restored_backup_is_refused() {
    let (directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    let backup = directory.path().join("backup.db");
    block_on(store.backup(&backup)).unwrap();
    for seq in 1..4 {
        commit(&store, owner(1, seq, vec![append(json!(seq))])).unwrap();
    }
    let log = fs::read(wal_of(&path)).unwrap();
    let opened = open(&fs::read(&backup).unwrap(), &log);
    assert!(is_foreign(&opened), "{opened:?}");
    assert_eq!(open(&fs::read(&backup).unwrap(), &[]).unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn w10_a_foreign_wal_put_next_to_an_open_file_is_not_used() {
    let (directory, path) = temp_db();
    let other = directory.path().join("other.db");
    let stranger = SqliteStore::open(&other).unwrap();
    commit(&stranger, create(9)).unwrap();
    let log = fs::read(wal_of(&other)).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    fs::remove_file(wal_of(&path)).unwrap();
    fs::write(wal_of(&path), log).unwrap();
    let add = |seq| owner(1, seq, vec![append(json!(seq))]);
    assert!(matches!(commit(&store, add(1)), Err(StoreError::Unavailable(_))));
    if let Health::Unavailable(why) = store.health() {
        assert!(why.contains("belongs to another file"), "{why}");
        fs::remove_file(wal_of(&path)).unwrap();
    }
    while store.health() != Health::Fine {
        std::thread::yield_now();
    }
    commit(&store, add(1)).unwrap();
    assert_eq!(content(&store).len(), 1);
    assert_eq!(length(&store, 1), 2);
}
