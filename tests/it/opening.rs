//! Files without permission, and work before the runs of a file are continued.

#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::Windlass;
use windlass::store::SqliteStore;

use crate::fault::{Means, in_child};

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("the mode is set");
}

#[test]
fn w08_a_missing_permission_is_named() {
    in_child("opening::w08_a_missing_permission_is_named", Means::Unprivileged, |child| {
        let dir = child.dir.canonicalize().expect("the directory");
        let path = dir.join("app.db");
        let said = |problem: &str| {
            let advice = "let this user read and write the file and its directory, or use another path";
            let expected = format!("cannot open {}: {problem}; {advice}", path.display());
            assert_eq!(SqliteStore::open(&path).expect_err("it is refused").to_string(), expected);
        };
        allow(&dir, 0o555);
        said(&format!("this user may not create files in {}", dir.display()));
        allow(&dir, 0o755);
        drop(SqliteStore::open(&path).expect("it opens"));
        allow(&path, 0o444);
        said(&format!("this user may not write {}", path.display()));
        allow(&path, 0o000);
        said(&format!("this user may not read {}", path.display()));
        allow(&path, 0o644);
        let lock = dir.join("app.db-lock");
        allow(&lock, 0o444);
        said(&format!("this user may not write {}", lock.display()));
        allow(&lock, 0o644);
        drop(SqliteStore::open(&path).expect("it opens again: the refusals left nothing in the way"));
    });
}

#[test]
fn w08_the_runtime_reports_the_error_of_the_store() {
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nowhere").join("app.db");
    let Err(error) = executor.block_on(async { Windlass::open(&path).await }) else { panic!("it opened") };
    let directory = dir.path().join("nowhere");
    let expected = format!(
        "cannot open {}: the directory {} does not exist; create it first",
        path.display(),
        directory.display()
    );
    assert_eq!(error.to_string(), expected);
}

/// The next owner kills what a dead owner left, before it continues any run. A process that is refused the file has
/// touched nothing.
#[test]
fn w01_only_the_owner_runs_the_work_before_its_runs() {
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    let times = Arc::new(AtomicU32::new(0));
    let prepare = |result: Result<(), &'static str>| {
        let times = times.clone();
        move || {
            times.fetch_add(1, Ordering::Relaxed);
            result
        }
    };
    executor.block_on(async {
        let owner = Windlass::open(&path).before_runs(prepare(Ok(()))).await.expect("it opens");
        assert_eq!(times.load(Ordering::Relaxed), 1);
        let second = Windlass::open(&path).before_runs(prepare(Ok(()))).await;
        assert!(second.is_err_and(|error| error.to_string().contains("has had it open")));
        assert_eq!(times.load(Ordering::Relaxed), 1, "it is not the owner");
        owner.shutdown().await.expect("it closes");
        let failed = Windlass::open(&path).before_runs(prepare(Err("a command does not die"))).await;
        assert!(failed.is_err_and(|error| error.to_string() == "a command does not die"));
        let next = Windlass::open(&path).await.expect("what failed has let go of the file");
        next.shutdown().await.expect("it closes");
    });
}
