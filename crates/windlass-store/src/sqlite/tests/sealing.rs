//! Sealed secrets: what is in the files, the effect of a missing key, and the permissions of created files.

use std::fs;

use rusqlite::Connection;
use windlass_core::run::record::{Asked, OpKind};
use windlass_core::run::secrets::Places;
use windlass_core::tool::Effect;

use super::super::check_file;
use super::super::db_file::with_suffix;
use super::*;

/// A record of a call with a secret.
fn asked(secret: &str) -> Record {
    let input = json!({"password": secret, "to": "Oslo"});
    let asked = Asked {
        secrets: Places::new(vec!["/password".to_owned()]),
        ..Asked::operation(OpKind::Call, "login".into(), Some(Arc::new(input)), Effect::Once)
    };
    Record { path: Path::root(), at: Timestamp::default(), asked: Some(asked), event: Event::Accepted }
}

/// Creates run `n` with a secret.
fn create_secret(n: u8, secret: &str) -> Commit {
    let creation = Creation { tool: "login".into(), session: Some("s".into()), ..Creation::default() };
    owner(n, 0, vec![Change::Create(creation), Change::Append(vec![asked(secret)])])
}

fn secrets(journal: &[Record]) -> Vec<String> {
    let input = |record: &Record| record.asked.as_ref()?.input.clone();
    journal.iter().filter_map(input).map(|input| input["password"].as_str().unwrap().to_owned()).collect()
}

/// The files in the directory of the database.
fn files(path: &std::path::Path) -> Vec<PathBuf> {
    fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path()).collect()
}

fn contains(file: &std::path::Path, text: &str) -> bool {
    let bytes = fs::read(file).unwrap();
    let first = |at: &usize| bytes[*at] == text.as_bytes()[0] && bytes[*at..].starts_with(text.as_bytes());
    (0..bytes.len()).any(|at| first(&at))
}

fn key_file(path: &std::path::Path) -> PathBuf {
    with_suffix(path, "-key")
}

#[test]
fn e26_no_file_has_a_secret_in_clear_and_reads_return_all_of_them() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, packing::often()).unwrap();
    assert!(store.key_file().is_none(), "no key before there is a secret");
    // Every secret is different, so that compression cannot remove the common start from all of them: one is enough for
    // the test to find it.
    const BEGINNING: &str = "correct-horse-";
    let marker = |n: u64| format!("{BEGINNING}{:016x}", (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    commit(&store, create_secret(1, &marker(0))).unwrap();
    let large = format!("{}{}", marker(1), "x".repeat(40_000));
    commit(&store, owner(1, 1, vec![Change::Append(vec![asked(&large)])])).unwrap();
    let mut seq = 2;
    while seq < 300 || packing::count(&path, "segments") == 0 {
        commit(&store, owner(1, seq, vec![Change::Append(vec![asked(&marker(seq))])])).unwrap();
        seq += 1;
        assert!(seq < 20_000, "nothing is ever packed");
    }
    let copy = path.with_file_name("copy.db");
    block_on(store.backup(&copy)).unwrap();
    let expected: Vec<String> = (0..seq).map(|n| if n == 1 { large.clone() } else { marker(n) }).collect();
    assert_eq!(secrets(&block_on(store.journal(run(1), 0)).unwrap()), expected);
    let all = files(&path);
    assert!(all.iter().any(|file| file.to_string_lossy().ends_with("-wal")) && all.len() >= 5, "{all:?}");
    for file in &all {
        assert!(!contains(file, BEGINNING), "{}", file.display());
    }
    assert!(contains(&path, "Oslo") || contains(&with_suffix(&path, "-wal"), "Oslo"), "other values are in clear");
    let key = fs::read_to_string(store.key_file().unwrap()).unwrap();
    let key = key.lines().last().unwrap().split_once(' ').unwrap().1.to_owned();
    assert!(all.iter().filter(|file| contains(file, &key)).eq([&key_file(&path)]), "only the key file has the key");
    drop(store);
    assert!(!contains(&path, BEGINNING), "nor after closing");
    let store = SqliteStore::open_with(&path, packing::often()).unwrap();
    assert_eq!(secrets(&block_on(store.journal(run(1), 0)).unwrap()), expected);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
}

#[test]
fn e26_without_its_key_a_run_is_sealed_and_other_runs_are_readable() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create_secret(1, "hunter2")).unwrap();
    commit(&store, create(2)).unwrap();
    let copy = path.with_file_name("copy.db");
    block_on(store.backup(&copy)).unwrap();
    let key = key_file(&path);
    drop(store);
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();

    let store = SqliteStore::open(&path).unwrap();
    let error = block_on(store.journal(run(1), 0)).unwrap_err();
    assert!(matches!(error, StoreError::Sealed { run: sealed, .. } if sealed == run(1)), "{error}");
    let text = error.to_string();
    let words = [run(1).to_string(), key.display().to_string(), "put the key back".to_owned(), "purge".to_owned()];
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
    assert_eq!(block_on(store.page(run(1), 0, 1)).unwrap_err(), error);
    assert_eq!(length(&store, 2), 1);
    assert_eq!(block_on(store.feed("s".into(), 0, 9)).unwrap().len(), 1, "the feed has the other records");
    let claimed = block_on(store.claim(run(1), claimant())).unwrap();
    assert!(claimed.sealed.is_some_and(|why| text.contains(&why)) && claimed.records.len() == 1);
    let report = check_file(&path, |_, _| {}).unwrap();
    assert!(report.is_fine() && report.keys.len() == 1, "{report}");
    let missing = report.missing_keys(&path).unwrap();
    assert!(missing.contains(&key.display().to_string()) && missing.contains("put the key file"), "{missing}");
    // A copy without its key is intact.
    let report = check_file(&copy, |_, _| {}).unwrap();
    assert!(report.is_fine() && report.missing_keys(&copy).is_some(), "{report}");

    // New secrets get a new key, and the old one is added again.
    commit(&store, create_secret(3, "swordfish")).unwrap();
    assert_eq!(secrets(&block_on(store.journal(run(3), 0)).unwrap()), ["swordfish"]);
    fs::write(&key, [fs::read(&key).unwrap(), kept].concat()).unwrap();
    assert_eq!(secrets(&block_on(store.journal(run(1), 0)).unwrap()), ["hunter2"], "without reopening the store");
    assert_eq!(block_on(store.claim(run(1), claimant())).unwrap().sealed, None);
    assert_eq!(check_file(&path, |_, _| {}).unwrap().missing_keys(&path), None);
    commit(&store, owner(3, 1, vec![Change::Append(vec![asked("third")])])).unwrap();
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(secrets(&block_on(store.journal(run(3), 0)).unwrap()), ["swordfish", "third"]);
}

#[test]
fn e26_a_wrong_key_and_a_damaged_value_are_errors() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create_secret(1, "hunter2")).unwrap();
    commit(&store, create_secret(2, "swordfish")).unwrap();
    drop(store);
    let key = key_file(&path);
    let text = fs::read_to_string(&key).unwrap();
    let (id, _) = text.lines().last().unwrap().split_once(' ').unwrap();
    let assert_error = |words: &[&str]| {
        let store = SqliteStore::open(&path).unwrap();
        let error = block_on(store.journal(run(1), 0)).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "{word:?} is not in {error:?}"));
    };
    let wrong = base64_of(&[7; 32]);
    fs::write(&key, format!("{id} {wrong}\n")).unwrap();
    assert_error(&["they are damaged, or", "has another key under the name", id]);
    fs::write(&key, format!("ffff {wrong}\n")).unwrap();
    assert_error(&["the key", id, "is not in"]);
    fs::write(&key, "something else\n").unwrap();
    assert_error(&["cannot be used", "its key 1 cannot be read"]);
    fs::write(&key, &text).unwrap();

    // A value sealed for one run cannot be used in another.
    let connection = || Connection::open(&path).unwrap();
    let body = |n: i64| -> String {
        let sql = "SELECT body FROM log ORDER BY position LIMIT 1 OFFSET ?1";
        connection().query_row(sql, [n], |row| row.get(0)).unwrap()
    };
    let (own, others) = (body(0), body(1));
    let put = |body: &str| {
        let sql = "UPDATE log SET body = ?1, sum = NULL WHERE position = (SELECT min(position) FROM log)";
        connection().execute(sql, [body]).unwrap();
    };
    put(&others);
    assert_error(&["they are damaged"]);
    let at = own.find(id).unwrap() + id.len() + 40;
    let flipped = if own.as_bytes()[at] == b'A' { "B" } else { "A" };
    put(&format!("{}{flipped}{}", &own[..at], &own[at + 1..]));
    assert_error(&["they are damaged"]);
    let report = check_file(&path, |_, _| {}).unwrap();
    assert!(report.problems.len() == 1 && report.problems[0].contains("secrets of record 0"), "{report}");
    put(&serde_json::to_string(&asked("clear")).unwrap());
    assert_error(&["they are damaged"]);
    put(&own);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(secrets(&block_on(store.journal(run(1), 0)).unwrap()), ["hunter2"]);
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes)
}

#[test]
fn e26_without_a_new_key_only_commits_with_secrets_are_refused() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    let key = key_file(&path);
    fs::create_dir(&key).unwrap();
    let error = commit(&store, create_secret(1, "hunter2")).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(why) if why.contains(&*key.to_string_lossy())), "{error}");
    commit(&store, create(2)).unwrap();
    fs::remove_dir(&key).unwrap();
    commit(&store, create_secret(1, "hunter2")).unwrap();
    assert_eq!(secrets(&block_on(store.journal(run(1), 0)).unwrap()), ["hunter2"]);
}

#[cfg(unix)]
#[test]
fn e26_created_files_are_private_and_existing_files_keep_their_mode() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |file: &std::path::Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create_secret(1, "hunter2")).unwrap();
    block_on(store.backup(path.with_file_name("copy.db"))).unwrap();
    let all = files(&path);
    assert_eq!(all.len(), 5, "{all:?}");
    all.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
    drop(store);
    for file in files(&path) {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    }
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create_secret(2, "swordfish")).unwrap();
    for ending in ["", "-wal", "-lock", "-key"] {
        assert_eq!(mode(&with_suffix(&path, ending)), 0o640, "{ending}");
    }
}
