//! Which files are opened, which are refused, and what the refusal says.

use std::fs;

use rusqlite::Connection;

use super::super::OpenError;
use super::*;

fn refusal(path: &std::path::Path) -> (OpenError, String) {
    let error = SqliteStore::open(path).expect_err("it should have been refused");
    let text = error.to_string();
    (error, text)
}

#[test]
fn w08_a_second_opener_is_told_who_has_the_file() {
    let (directory, path) = place();
    let store = SqliteStore::open(&path).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{error:?}");
    assert!(text.contains(&std::process::id().to_string()) && text.contains("share that store"), "{text}");
    assert!(text.contains("app.db") && text.contains(" since 2"), "{text}");

    // Another name of the same file is the same file.
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
fn a_file_of_another_kind_is_refused_and_left_alone() {
    let (directory, path) = place();
    let text_file = directory.path().join("notes.txt");
    fs::write(&text_file, "Dear diary, this is long enough to have a header of a hundred bytes, or so. ".repeat(4))
        .unwrap();
    let (error, text) = refusal(&text_file);
    assert!(matches!(error, OpenError::NotWindlass { .. }), "{error:?}");
    assert!(text.contains("notes.txt") && text.contains("not an SQLite database"), "{text}");

    Connection::open(&path).unwrap().execute_batch("CREATE TABLE diary (day)").unwrap();
    let before = fs::read(&path).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::NotWindlass { .. }), "{error:?}");
    assert!(text.contains("another program") && text.contains("move this one away"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), before);

    let (error, text) = refusal(directory.path());
    assert!(matches!(error, OpenError::NotWindlass { .. }), "{error:?}");
    assert!(text.contains("it is a directory"), "{text}");
    let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["app.db", "notes.txt"], "no traces beside them");
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let (_directory, path) = place();
    drop(SqliteStore::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&path).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::Newer { found: 99, known: 2, .. }), "{error:?}");
    assert!(text.contains("app.db has schema version 99") && text.contains("versions up to 2"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_missing_directory_is_named() {
    let (directory, _) = place();
    let (error, text) = refusal(&directory.path().join("nowhere").join("app.db"));
    assert!(matches!(error, OpenError::MissingDirectory { .. }), "{error:?}");
    assert!(text.contains("nowhere does not exist; create it first"), "{text}");
}

#[test]
fn an_empty_file_is_taken() {
    let (_directory, path) = place();
    fs::write(&path, "").unwrap();
    commit(&SqliteStore::open(&path).unwrap(), create(1)).unwrap();
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 1);
}

#[test]
fn a_name_without_a_directory_is_in_the_current_one() {
    let error = SqliteStore::open("").unwrap_err().to_string();
    assert!(error.contains("it names no file"), "{error}");
}
