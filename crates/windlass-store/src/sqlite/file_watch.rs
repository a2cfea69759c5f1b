//! Notices when the database file or its write-ahead log is moved, replaced or deleted, before the next group is
//! written.
//!
//! Looking up both paths costs up to a tenth of a fast sync. An inotify watch reports changes to a file, and polling it
//! costs next to nothing. But it does not report that a directory further up was moved, so the paths are also looked up
//! at regular intervals.

use std::time::{Duration, Instant};

use super::db_file::DbFile;

/// Maximum time between two lookups of the paths while groups are written.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct FileWatch {
    /// `None` if the system has no inotify; then the paths are looked up every time.
    events: Option<inotify::ChangeEvents>,
    checked_at: Option<Instant>,
}

impl FileWatch {
    /// Watches the files that are at the paths now.
    pub(super) fn of(db_file: &DbFile) -> Self {
        Self { events: inotify::ChangeEvents::of(db_file), checked_at: None }
    }

    /// Whether the files may have been moved, so that the caller must look up the paths. Events are consumed: the same
    /// event is reported once.
    pub(super) fn needs_check(&mut self) -> bool {
        let Some(events) = &self.events else { return true };
        let (any_pending, now) = (events.any_pending(), Instant::now());
        if !any_pending
            && self.checked_at.is_some_and(|checked_at| now.saturating_duration_since(checked_at) < RECHECK_INTERVAL)
        {
            return false;
        }
        self.checked_at = Some(now);
        true
    }
}

#[cfg(target_os = "linux")]
mod inotify {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::io::Errno;

    use super::DbFile;

    /// An inotify instance that watches the file, its write-ahead log and their directory.
    pub(super) struct ChangeEvents(OwnedFd);

    impl ChangeEvents {
        pub(super) fn of(db_file: &DbFile) -> Option<Self> {
            let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
            // A file that is open is deleted only when it is closed. Removing its name changes its attributes.
            let file = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
            inotify::add_watch(&events, &db_file.path, file).ok()?;
            inotify::add_watch(&events, db_file.wal(), file).ok()?;
            let directory = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
            inotify::add_watch(&events, db_file.path.parent()?, directory).ok()?;
            Some(Self(events))
        }

        /// Whether there were events since the last call.
        pub(super) fn any_pending(&self) -> bool {
            // An event has 16 bytes and no name. Events beyond the buffer are reported by the next call.
            let mut events = [MaybeUninit::<u8>::uninit(); 256];
            !matches!(rustix::io::read(&self.0, &mut events), Err(Errno::AGAIN))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod inotify {
    use super::DbFile;

    pub(super) struct ChangeEvents;

    impl ChangeEvents {
        pub(super) fn of(_: &DbFile) -> Option<Self> {
            None
        }

        pub(super) fn any_pending(&self) -> bool {
            true
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::open::Options;
    use super::*;

    /// A watched file and its write-ahead log, after the first check, which is always needed.
    fn watched(folder: &Path) -> (DbFile, FileWatch) {
        let path = folder.join("app.db");
        fs::write(&path, "").unwrap();
        let db_file = DbFile::of(path, &Options::default());
        fs::write(db_file.wal(), "").unwrap();
        let mut watch = FileWatch::of(&db_file);
        assert!(watch.needs_check(), "the first check is always needed");
        (db_file, watch)
    }

    #[test]
    fn w08_moving_or_deleting_the_file_or_its_wal_is_noticed_at_once() {
        type Act = fn(&DbFile, &Path);
        let acts: [(&str, Act); 6] = [
            ("deleted", |db_file, _| fs::remove_file(&db_file.path).unwrap()),
            ("moved", |db_file, folder| fs::rename(&db_file.path, folder.join("elsewhere")).unwrap()),
            ("replaced", |db_file, folder| {
                fs::write(folder.join("other"), "").unwrap();
                fs::rename(folder.join("other"), &db_file.path).unwrap();
            }),
            ("its log deleted", |db_file, _| fs::remove_file(db_file.wal()).unwrap()),
            ("its log moved", |db_file, folder| fs::rename(db_file.wal(), folder.join("elsewhere")).unwrap()),
            ("its directory moved", |_, folder| fs::rename(folder, folder.with_extension("moved")).unwrap()),
        ];
        for (what, act) in acts {
            let above = tempfile::tempdir().unwrap();
            let folder = above.path().join("folder");
            fs::create_dir(&folder).unwrap();
            let (db_file, watch) = watched(&folder);
            act(&db_file, &folder);
            assert!(watch.events.as_ref().is_some_and(inotify::ChangeEvents::any_pending), "{what}");
            assert!(!watch.events.as_ref().is_some_and(inotify::ChangeEvents::any_pending), "{what} is reported once");
        }
    }

    #[test]
    fn w08_writing_is_no_event_and_the_paths_are_looked_up_at_intervals() {
        let folder = tempfile::tempdir().unwrap();
        let (db_file, mut watch) = watched(folder.path());
        fs::write(db_file.wal(), "more").unwrap();
        assert!(!watch.events.as_ref().is_some_and(inotify::ChangeEvents::any_pending));
        watch.checked_at = Some(Instant::now() - RECHECK_INTERVAL);
        assert!(watch.needs_check());
    }
}
