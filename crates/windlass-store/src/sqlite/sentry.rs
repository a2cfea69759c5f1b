//! Notices when the file or its log is moved, replaced or deleted, before the next group is written.
//!
//! Looking both up by their names costs as much as a tenth of a quick sync. The system tells of what happens to a file that
//! is watched, and asking whether it told anything costs next to nothing. It says nothing of a directory further up that is
//! moved; so there is a look now and then all the same.

use std::time::{Duration, Instant};

use super::place::Place;

/// At least this often the names are looked up, while groups are written.
const GLANCE: Duration = Duration::from_millis(10);

pub(super) struct Sentry {
    /// Nothing where the system cannot tell; then the names are looked up every time.
    news: Option<watch::News>,
    looked: Option<Instant>,
}

impl Sentry {
    /// Watches the files that stand at a place now.
    pub(super) fn of(place: &Place) -> Self {
        Self { news: watch::News::of(place), looked: None }
    }

    /// Whether the files may not be at their place any more. Whoever is told so looks; asked again, it knows nothing of it.
    pub(super) fn suspects(&mut self) -> bool {
        let Some(news) = &self.news else { return true };
        let (told, now) = (news.told(), Instant::now());
        if !told && self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < GLANCE) {
            return false;
        }
        self.looked = Some(now);
        true
    }
}

#[cfg(target_os = "linux")]
mod watch {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::io::Errno;

    use super::Place;

    /// What the system tells.
    pub(super) struct News(OwnedFd);

    impl News {
        pub(super) fn of(place: &Place) -> Option<Self> {
            let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
            // A file that somebody has open is deleted only when that ends; that its name is gone changes its attributes.
            let file = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
            inotify::add_watch(&news, &place.path, file).ok()?;
            inotify::add_watch(&news, place.log(), file).ok()?;
            let directory = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
            inotify::add_watch(&news, place.path.parent()?, directory).ok()?;
            Some(Self(news))
        }

        /// Whether there is news since the last time.
        pub(super) fn told(&self) -> bool {
            // An event has 16 bytes and no name. What does not fit is news the next time too.
            let mut events = [MaybeUninit::<u8>::uninit(); 256];
            !matches!(rustix::io::read(&self.0, &mut events), Err(Errno::AGAIN))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod watch {
    use super::Place;

    pub(super) struct News;

    impl News {
        pub(super) fn of(_: &Place) -> Option<Self> {
            None
        }

        pub(super) fn told(&self) -> bool {
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

    /// A watched file and its log, after the look that everybody takes first.
    fn watched(folder: &Path) -> (Place, Sentry) {
        let path = folder.join("app.db");
        fs::write(&path, "").unwrap();
        let place = Place::of(path, &Options::default());
        fs::write(place.log(), "").unwrap();
        let mut sentry = Sentry::of(&place);
        assert!(sentry.suspects(), "nobody has looked yet");
        (place, sentry)
    }

    #[test]
    fn w08_whatever_moves_the_file_or_its_log_is_noticed_at_once() {
        type Act = fn(&Place, &Path);
        let acts: [(&str, Act); 6] = [
            ("deleted", |place, _| fs::remove_file(&place.path).unwrap()),
            ("moved", |place, folder| fs::rename(&place.path, folder.join("elsewhere")).unwrap()),
            ("replaced", |place, folder| {
                fs::write(folder.join("other"), "").unwrap();
                fs::rename(folder.join("other"), &place.path).unwrap();
            }),
            ("its log deleted", |place, _| fs::remove_file(place.log()).unwrap()),
            ("its log moved", |place, folder| fs::rename(place.log(), folder.join("elsewhere")).unwrap()),
            ("its directory moved", |_, folder| fs::rename(folder, folder.with_extension("moved")).unwrap()),
        ];
        for (what, act) in acts {
            let above = tempfile::tempdir().unwrap();
            let folder = above.path().join("folder");
            fs::create_dir(&folder).unwrap();
            let (place, sentry) = watched(&folder);
            act(&place, &folder);
            assert!(sentry.news.as_ref().is_some_and(watch::News::told), "{what}");
            assert!(!sentry.news.as_ref().is_some_and(watch::News::told), "{what} is told once");
        }
    }

    #[test]
    fn w08_writing_is_no_news_and_a_look_is_taken_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (place, mut sentry) = watched(folder.path());
        fs::write(place.log(), "more").unwrap();
        assert!(!sentry.news.as_ref().is_some_and(watch::News::told));
        sentry.looked = Some(Instant::now() - GLANCE);
        assert!(sentry.suspects());
    }
}
