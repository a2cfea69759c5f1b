//! Access by other programs to a file that is open here.

use std::path::Path;
use std::process::Command;

use rusqlite::{Connection, OpenFlags};

use super::super::SqliteStore;
use super::super::open::Options;
use super::{commit, create, temp_db};

/// The environment variable with the path for the other process.
const FILE: &str = "WINDLASS_TEST_STRANGER";

/// The number of runs that another process counts in the file, or its error.
fn counted_elsewhere(path: &Path) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "sqlite::tests::sharing::w08_another_program_reads_a_file_only_if_it_is_shared",
        "--exact",
        "--nocapture",
    ]);
    let output = command.env(FILE, path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let counted = text.lines().find_map(|line| line.split_once("counted: ")).map(|(_, result)| result.to_owned());
    counted.unwrap_or_else(|| panic!("{text}"))
}

fn count(path: &str) -> rusqlite::Result<i64> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.busy_timeout(std::time::Duration::ZERO)?;
    connection.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))
}

#[test]
fn w08_another_program_reads_a_file_only_if_it_is_shared() {
    if let Ok(path) = std::env::var(FILE) {
        let result = count(&path).map_or_else(|error| error.to_string(), |count| count.to_string());
        return println!("counted: {result}");
    }
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    assert_eq!(counted_elsewhere(&path), "database is locked");
    drop(store);
    assert_eq!(counted_elsewhere(&path), "1");
    let store = SqliteStore::open_with(&path, Options { shared: true, ..Options::default() }).unwrap();
    commit(&store, create(2)).unwrap();
    assert_eq!(counted_elsewhere(&path), "2");
}
