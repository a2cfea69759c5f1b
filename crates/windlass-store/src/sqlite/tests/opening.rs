//! Which files are opened, which are refused, and the errors.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::super::schema::VERSION;
use super::super::{FileOwner, OpenError, file_owner, lock_file};
use super::*;

fn refusal(path: &Path) -> (OpenError, String) {
    let error = SqliteStore::open(path).expect_err("it should have been refused");
    let text = error.to_string();
    (error, text)
}

#[test]
fn w08_a_second_open_fails_and_names_the_process_that_has_the_file() {
    let (directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{error:?}");
    let since = text.split("since ").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
    let message = format!(
        "this process ({}) has had it open since {since}; open it once and share that store",
        std::process::id()
    );
    assert_eq!(text, format!("cannot open {}: {message}", path.display()));
    assert!(since.len() == 20 && since.starts_with("20") && since.ends_with('Z'), "{since}");

    // Another path to the same file.
    let roundabout = directory.path().join(".").join("app.db");
    assert!(matches!(refusal(&roundabout).0, OpenError::InUse { .. }));
    #[cfg(unix)]
    {
        let link = directory.path().join("link.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(refusal(&link).0, OpenError::InUse { .. }));
    }

    commit(&store, create(1)).unwrap();
    drop(store);
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 1);
}

#[test]
fn w08_a_locked_file_cannot_be_opened_by_any_process() {
    let (_directory, path) = temp_db();
    let lock = lock_file(&path).unwrap();
    assert!(matches!(refusal(&path).0, OpenError::InUse { .. }), "even if it does not exist yet");
    drop(lock);
    let store = SqliteStore::open(&path).unwrap();
    assert!(matches!(lock_file(&path).unwrap_err(), OpenError::InUse { pid: Some(_), .. }));
    drop(store);
    drop(lock_file(&path).unwrap());
}

#[test]
fn w08_a_file_of_another_kind_is_refused_and_not_changed() {
    let (directory, path) = temp_db();
    let notes = directory.path().join("notes.txt");
    fs::write(&notes, "Dear diary, this is long enough to have a header of a hundred bytes, or so. ".repeat(4))
        .unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE diary (day)").unwrap();
    let table = [
        (notes.as_path(), "it is not an SQLite database"),
        (&path, "it is an SQLite database of another program"),
        (directory.path(), "it is a directory"),
    ];
    let before = fs::read(&path).unwrap();
    for (path, found) in table {
        let (error, text) = refusal(path);
        assert!(matches!(error, OpenError::NotWindlass { .. }), "{error:?}");
        let advice = "use another path, or move this file away";
        assert_eq!(text, format!("{} is not a Windlass database: {found}; {advice}", path.display()));
    }
    assert!(fs::read(&path).unwrap() == before, "it was written to");
    let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["app.db", "notes.txt"], "no other files were created");
}

#[test]
fn w08_a_file_of_a_newer_version_is_refused_and_not_changed() {
    let (_directory, path) = temp_db();
    drop(SqliteStore::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&path).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::Newer { found: 99, supported: VERSION, .. }), "{error:?}");
    let message =
        format!("has schema version 99, and this build supports versions up to {VERSION}; update Windlass to open it");
    assert_eq!(text, format!("{} {message}", path.display()));
    assert!(fs::read(&path).unwrap() == before, "it was written to");
}

#[test]
fn w08_a_missing_directory_is_named() {
    let (directory, _) = temp_db();
    let nowhere = directory.path().join("nowhere");
    let path = nowhere.join("app.db");
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::MissingDirectory { .. }), "{error:?}");
    let message = format!("the directory {} does not exist; create it first", nowhere.display());
    assert_eq!(text, format!("cannot open {}: {message}", path.display()));
}

#[test]
fn w08_a_network_file_system_is_named() {
    let error = OpenError::Network { path: "/home/ada/app.db".into(), kind: "nfs4".to_owned() };
    let message = "it is on a network file system (nfs4), where locks and syncs are not reliable; use a local disk";
    assert_eq!(error.to_string(), format!("cannot open /home/ada/app.db: {message}"));
}

#[test]
fn w08_a_damaged_file_is_refused_and_not_changed() {
    let spoil = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[4096..].fill(0xff);
        fs::write(path, bytes).unwrap();
    };
    let drop_a_table = |path: &Path| {
        edit(path).execute_batch("DROP TABLE mail; UPDATE file SET clean = 0").unwrap();
    };
    let table =
        [(&spoil as &dyn Fn(&Path), "database disk image is malformed"), (&drop_a_table, "the table mail is missing")];
    for (damage, problem) in table {
        let (_directory, path) = temp_db();
        commit(&SqliteStore::open(&path).unwrap(), create(1)).unwrap();
        damage(&path);
        let before = fs::read(&path).unwrap();
        let (error, text) = refusal(&path);
        assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
        let advice = "keep a copy of it with its -wal file, and restore it from a backup";
        assert_eq!(text, format!("{} is damaged ({problem}); {advice}", path.display()));
        assert!(fs::read(&path).unwrap() == before, "it was written to");
    }
}

/// A program that keeps reading prevents the log of a killed process from being emptied.
#[test]
fn w08_opening_fails_if_the_wal_cannot_be_emptied() {
    let (directory, path) = temp_db();
    let copy = killed(directory.path(), &path);
    let reader = Connection::open(&copy).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM runs").unwrap();
    let (error, text) = refusal(&copy);
    assert!(matches!(error, OpenError::InUse { pid: None, .. }), "{error:?}");
    let message = "another program is reading or writing it; close that program, then open it again";
    assert_eq!(text, format!("cannot open {}: {message}", copy.display()));
    drop(reader);
    assert_eq!(length(&SqliteStore::open(&copy).unwrap(), 1), 1);
}

/// Its owner may have died after a failed sync.
#[test]
fn w08_a_wal_found_at_opening_is_emptied_before_anything_is_written() {
    let (directory, path) = temp_db();
    let copy = killed(directory.path(), &path);
    let salt = |path: &Path| fs::read(path.with_extension("db-wal")).unwrap()[16..24].to_vec();
    let before = salt(&copy);
    let store = SqliteStore::open(&copy).unwrap();
    assert_ne!(salt(&copy), before, "the log restarted");
    assert_eq!(length(&store, 1), 1);
}

/// A copy of a file with one run, as a killed process leaves it.
fn killed(directory: &Path, path: &Path) -> PathBuf {
    let store = SqliteStore::open(path).unwrap();
    commit(&store, create(1)).unwrap();
    let elsewhere = directory.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for name in ["app.db", "app.db-wal"] {
        fs::copy(directory.join(name), elsewhere.join(name)).unwrap();
    }
    elsewhere.join("app.db")
}

#[test]
fn an_empty_file_becomes_a_database() {
    let (_directory, path) = temp_db();
    fs::write(&path, "").unwrap();
    commit(&SqliteStore::open(&path).unwrap(), create(1)).unwrap();
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 1);
    let pragma = |name| Connection::open(&path).unwrap().pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    assert_eq!(pragma("auto_vacuum").unwrap(), 2, "it can shrink in small steps");
}

#[test]
fn an_empty_path_is_refused() {
    let error = SqliteStore::open("").unwrap_err().to_string();
    assert!(error.contains("the path names no file"), "{error}");
}

#[test]
fn l13_the_address_of_the_owner_is_found_while_the_file_is_in_use() {
    let (_directory, path) = temp_db();
    assert_eq!(file_owner(&path).unwrap(), None, "it was never open");
    let store = SqliteStore::open(&path).unwrap();
    let own =
        |address: Option<&str>| Some(FileOwner { pid: Some(std::process::id()), address: address.map(str::to_owned) });
    assert_eq!(file_owner(&path).unwrap(), own(None));
    store.announce(Some("http://127.0.0.1:7777")).unwrap();
    store.announce(Some("http://127.0.0.1:7")).unwrap();
    assert_eq!(file_owner(&path).unwrap(), own(Some("http://127.0.0.1:7")), "nothing is left of the longer address");
    let (error, text) = refusal(&path);
    assert!(matches!(&error, OpenError::InUse { address: Some(at), .. } if at == "http://127.0.0.1:7"), "{error:?}");
    assert!(text.contains("open it once"), "{text}");
    store.announce(None).unwrap();
    assert_eq!(file_owner(&path).unwrap(), own(None));
    assert!(store.announce(Some("two\nlines")).is_err());
    store.announce(Some("http://127.0.0.1:7")).unwrap();
    drop(store);
    assert_eq!(file_owner(&path).unwrap(), None, "the content of a released lock file is ignored");
    let store = SqliteStore::open(&path).unwrap();
    block_on(store.close());
    assert!(store.announce(Some("http://127.0.0.1:7")).is_err());
}

#[test]
fn w08_an_unreadable_run_id_does_not_affect_other_runs() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    commit(&store, create(9)).unwrap();
    drop(store);
    let connection = edit(&path);
    connection.execute("UPDATE runs SET run = x'ff' WHERE run = ?1", [run(9).as_bytes()]).unwrap();
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(5)).unwrap();
    commit(&store, owner(1, 1, vec![append(Value::from(2))])).unwrap();
    assert_eq!((length(&store, 1), length(&store, 5)), (2, 1));
}
