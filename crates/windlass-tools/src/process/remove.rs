//! Removes a folder with everything that a command has left in it.
//!
//! The command is not trusted: folders may be nested deeper than a stack or a path allows, and may be closed to their
//! owner. So the walk keeps sixteen bytes for each level and two open folders, names every entry relative to its
//! folder, and follows no link.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, fchmod, fstat, openat, seek, unlinkat};
use rustix::io::Errno;

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Buffer for directory entries.
const BUFFER: usize = 32 << 10;

/// Device and inode of a folder.
type FolderId = (u64, u64);

/// Removes a folder and everything in it. Returns false after `most` entries: then some are removed and some are not. A
/// folder that does not exist counts as removed.
pub(crate) fn remove(folder: &Path, most: usize) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let outer = || openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    loop {
        let walk = match outer().and_then(|outer| Walk::new(outer, name, most)) {
            Err(Errno::NOENT) => return Ok(true),
            walk => walk?,
        };
        match walk.run() {
            // The guard of a process that died may be removing the same folder, so an entry can vanish. Less is left
            // each time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
}

struct Walk {
    /// The parent of the folder to remove.
    outer: OwnedFd,
    /// The folder's name in it.
    name: CString,
    /// The folder that is being emptied.
    at: OwnedFd,
    /// The ids of all folders from the one to remove to the current one.
    way: Vec<FolderId>,
    /// How many more entries may be removed.
    left: usize,
}

/// How far a folder was emptied.
enum EmptyOutcome {
    /// It still has this subfolder, which is not empty.
    Subfolder(CString),
    Empty,
    /// No more entries may be removed now.
    LimitReached,
}

impl Walk {
    fn new(outer: OwnedFd, name: &OsStr, left: usize) -> rustix::io::Result<Self> {
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        let (at, id) = enter(&outer, &name)?;
        Ok(Self { outer, name, at, way: vec![id], left })
    }

    fn run(mut self) -> io::Result<bool> {
        loop {
            match self.empty()? {
                EmptyOutcome::LimitReached => return Ok(false),
                EmptyOutcome::Subfolder(name) => {
                    let (inner, id) = enter(&self.at, &name)?;
                    self.at = inner;
                    self.way.push(id);
                }
                EmptyOutcome::Empty => {
                    self.way.pop();
                    let Some(parent) = self.way.last() else {
                        unlinkat(&self.outer, &self.name, AtFlags::REMOVEDIR)?;
                        return Ok(true);
                    };
                    // The empty folder is removed with the other entries of its parent, so its name need not be kept.
                    let above = openat(&self.at, "..", OPEN, Mode::empty())?;
                    if id(&above)?.0 != *parent {
                        return Err(io::Error::other("the folder was moved while it was being removed"));
                    }
                    self.at = above;
                }
            }
        }
    }

    /// Removes the entries of the current folder, up to the first subfolder that is not empty.
    fn empty(&mut self) -> rustix::io::Result<EmptyOutcome> {
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            let mut is_empty = true;
            let mut entries = RawDir::new(&self.at, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                if self.left == 0 {
                    return Ok(EmptyOutcome::LimitReached);
                }
                self.left -= 1;
                is_empty = false;
                match remove_entry(&self.at, name, entry.file_type()) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(EmptyOutcome::Subfolder(name.to_owned())),
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            // Some file systems skip entries while others are being removed.
            if is_empty {
                return Ok(EmptyOutcome::Empty);
            }
            seek(&self.at, SeekFrom::Start(0))?;
        }
    }
}

fn remove_entry(at: &OwnedFd, name: &CStr, kind: FileType) -> rustix::io::Result<()> {
    if kind != FileType::Directory {
        match unlinkat(at, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            other => return other,
        }
    }
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        // A folder without permissions must be entered, which sets them.
        Err(Errno::ACCESS) => Err(Errno::NOTEMPTY),
        other => other,
    }
}

fn id(folder: &OwnedFd) -> rustix::io::Result<(FolderId, Mode)> {
    let found = fstat(folder)?;
    Ok(((found.st_dev, found.st_ino), Mode::from_raw_mode(found.st_mode)))
}

/// Opens a folder, and gives its owner all permissions.
fn enter(at: &OwnedFd, name: &CStr) -> rustix::io::Result<(OwnedFd, FolderId)> {
    let folder = match openat(at, name, OPEN, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let closed = openat(at, name, OFlags::PATH | OPEN, Mode::empty())?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", closed.as_raw_fd()), Mode::RWXU)?;
            openat(at, name, OPEN, Mode::empty())?
        }
        folder => folder?,
    };
    let (id, mode) = id(&folder)?;
    if !mode.contains(Mode::RWXU) {
        fchmod(&folder, Mode::RWXU)?;
    }
    Ok((folder, id))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_removed_with_its_entries_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let (folder, other) = (base.path().join("folder"), base.path().join("other"));
        fs::create_dir_all(other.join("inner")).unwrap();
        fs::write(other.join("inner/file"), "x").unwrap();
        fs::create_dir_all(folder.join("a/b/c")).unwrap();
        fs::create_dir_all(folder.join("a/d")).unwrap();
        for name in ["file", "a/file", "a/b/c/file"] {
            fs::write(folder.join(name), "x").unwrap();
        }
        symlink(&other, folder.join("link")).unwrap();
        symlink(&other, folder.join("a/b/link")).unwrap();
        symlink("nowhere", folder.join("a/dangling")).unwrap();
        fs::hard_link(other.join("inner/file"), folder.join("hard")).unwrap();
        assert!(remove(&folder, usize::MAX).unwrap());
        assert!(!folder.exists());
        assert_eq!(fs::read_to_string(other.join("inner/file")).unwrap(), "x");
        assert!(remove(&folder, 0).unwrap(), "a missing folder counts as removed");
        assert!(remove(&base.path().join("no/folder"), 0).unwrap());
        symlink(&other, &folder).unwrap();
        assert!(remove(&folder, usize::MAX).is_err(), "a link is not a folder");
        assert!(other.join("inner/file").exists());
    }

    /// In memory where possible: removing deeply nested folders can take seconds on a disk.
    fn quick() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }

    #[test]
    fn e26_depth_is_limited_by_neither_stack_nor_path_length() {
        let base = quick();
        let folder = base.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let mut at = openat(CWD, &folder, OPEN, Mode::empty()).unwrap();
        // Deep enough to overflow the stack of a recursive removal.
        for _ in 0..20_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", OPEN, Mode::empty()).unwrap();
        }
        // The kernel keeps removed folders in memory as long as one below them is open.
        drop(at);
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let removed = small.spawn(move || remove(&folder, usize::MAX).map(|whole| (whole, folder.exists()))).unwrap();
        assert_eq!(removed.join().unwrap().unwrap(), (true, false));
    }

    #[test]
    fn e26_folders_without_permissions_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        // Outer and inner modes that forbid entering, listing, or removing entries.
        for (number, modes) in [[0o000, 0o000], [0o300, 0o500], [0o400, 0o000], [0o555, 0o700]].iter().enumerate() {
            let outer = folder.join(number.to_string());
            let inner = outer.join("inner");
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("file"), "x").unwrap();
            for (path, mode) in [(inner, modes[1]), (outer, modes[0])] {
                rustix::fs::chmod(path, Mode::from_raw_mode(mode)).unwrap();
            }
        }
        // Root may enter every folder because of its capabilities, which each thread can drop.
        let removed = std::thread::spawn(move || {
            let none = rustix::thread::CapabilitySet::empty();
            let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
            rustix::thread::set_capabilities(None, sets).unwrap();
            let refused = fs::read_dir(folder.join("0")).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            (remove(&folder, usize::MAX).unwrap(), folder.exists())
        });
        assert_eq!(removed.join().unwrap(), (true, false));
    }

    #[test]
    fn removing_the_same_folder_from_several_threads_works() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        for number in 0..200 {
            let inner = folder.join(format!("{number}/a/b"));
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("file"), "x").unwrap();
        }
        let one = || {
            let folder = folder.clone();
            std::thread::spawn(move || remove(&folder, usize::MAX))
        };
        for done in [one(), one(), one()] {
            assert!(done.join().unwrap().unwrap());
        }
        assert!(!folder.exists());
    }

    #[test]
    fn no_more_entries_are_removed_than_allowed() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        fs::create_dir_all(folder.join("inner")).unwrap();
        for number in 0..10 {
            fs::write(folder.join(number.to_string()), "x").unwrap();
            fs::write(folder.join("inner").join(number.to_string()), "x").unwrap();
        }
        let count = || fs::read_dir(&folder).unwrap().count() + fs::read_dir(folder.join("inner")).unwrap().count();
        assert!(!remove(&folder, 5).unwrap());
        assert!((16..=21).contains(&count()), "{}", count());
        assert!(remove(&folder, 100).unwrap());
        assert!(!folder.exists());
    }
}
