//! Files that no command may reach, whatever its sandbox includes.
//!
//! Landlock grants a folder with everything in it, without exceptions. So a command is refused if one of its folders
//! contains such a file, under any name that leads to it: its path with links resolved, every link on the way, and
//! every other mount of its file system.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Level, Sandbox};

/// Programs, libraries, and the files needed to find them. Every sandbox may read them.
pub(super) const SYSTEM: [&str; 12] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/etc/localtime",
];

/// Limit of a search for hard links. Commands cannot create one: if there is one, the file's owner made it by mistake.
#[cfg(unix)]
const MOST_ENTRIES: usize = 100_000;

/// The kernel's limit on links in one path; beyond it a path cannot be opened.
const MOST_LINKS: usize = 40;

/// A file or folder that no command may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// What it is, for messages: "the database".
    pub what: String,
    /// Its path, as the config names it.
    pub path: PathBuf,
    /// Whether a command may read it, although not write it.
    pub may_read: bool,
    /// Every path that leads to it, with links resolved.
    paths: BTreeSet<PathBuf>,
}

impl Kept {
    /// A file that no command may read or write. It need not exist yet; the links and mounts that lead to it are looked
    /// up now.
    pub fn new(what: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let mounts = Mount::all();
        let all: BTreeSet<PathBuf> = names(&path).iter().flat_map(|name| mounted(name, &mounts)).collect();
        // A parent folder of another path in the set adds nothing.
        let is_last = |path: &&PathBuf| !all.iter().any(|other| other != *path && other.starts_with(path));
        let paths = all.iter().filter(is_last).cloned().collect();
        Self { what: what.into(), path, may_read: false, paths }
    }

    /// The same, but a command may read it.
    #[must_use]
    pub fn readable(self) -> Self {
        Self { may_read: true, ..self }
    }

    /// Whether it is this file, or in this folder. The path must have no links in it.
    fn is_in(&self, real: &Path) -> bool {
        self.paths.iter().any(|path| path.starts_with(real))
    }
}

impl Sandbox {
    /// The protected files that a command reaches if it may write (or, without `may_write`, only read) this file or
    /// folder. Empty for a command without a sandbox.
    pub fn reaches(&self, path: &Path, may_write: bool) -> Vec<&Kept> {
        let real = resolved(path);
        let is_reached = |kept: &&Kept| (may_write || !kept.may_read) && kept.is_in(&real);
        if self.level == Level::Off { Vec::new() } else { self.kept.iter().filter(is_reached).collect() }
    }

    /// The protected files in the system folders, which every command may read. Each with the folder it is in.
    pub fn reached_by_all(&self) -> Vec<(&'static str, &Kept)> {
        let one = |path: &'static str| self.reaches(Path::new(path), false).into_iter().map(move |kept| (path, kept));
        SYSTEM.into_iter().flat_map(one).collect()
    }
}

impl Sandbox {
    /// Whether a command may read a file or folder because of its sandbox, besides its working directory. The path must
    /// have no links in it.
    pub(crate) fn shows(&self, real: &Path) -> bool {
        let system = SYSTEM.iter().chain(&["/dev"]).map(Path::new);
        let granted = self.read.iter().chain(&self.write).map(PathBuf::as_path);
        system.chain(granted).any(|folder| real.starts_with(resolved(folder)))
    }
}

/// The result of a search for hard links to protected files; see [`Sandbox::second_name`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecondName<'a> {
    /// No other name was found.
    None,
    /// This path is another name of the file.
    Found(PathBuf, &'a Kept),
    /// The folder has too many entries to search all of them, and this file has another name somewhere.
    Unknown(&'a Kept),
}

#[cfg(unix)]
impl Sandbox {
    /// Searches a folder that a command may read, or also write, for another name (a hard link) of a protected file.
    /// Searches only if such a file has several names, and stops after a hundred thousand entries.
    pub fn second_name(&self, folder: &Path, may_write: bool) -> SecondName<'_> {
        self.second_name_within(folder, may_write, MOST_ENTRIES)
    }

    fn second_name_within(&self, folder: &Path, may_write: bool, mut left: usize) -> SecondName<'_> {
        use std::os::unix::fs::MetadataExt;

        if self.level == Level::Off {
            return SecondName::None;
        }
        let id = |found: &std::fs::Metadata| (found.dev(), found.ino());
        let is_kept = |kept: &&Kept| (may_write || !kept.may_read) && !kept.path.is_dir();
        let mut wanted = Vec::new();
        for kept in self.kept.iter().filter(is_kept) {
            match std::fs::metadata(&kept.path) {
                Ok(found) if found.nlink() > 1 => wanted.push((id(&found), kept)),
                _ => {}
            }
        }
        let Some((_, first)) = wanted.first() else { return SecondName::None };
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if left == 0 {
                    return SecondName::Unknown(first);
                }
                left -= 1;
                let Ok(found) = entry.metadata() else { continue };
                if found.is_dir() {
                    folders.push(entry.path());
                } else if let Some((_, kept)) = wanted.iter().find(|(wanted, _)| *wanted == id(&found)) {
                    return SecondName::Found(entry.path(), kept);
                }
            }
        }
        SecondName::None
    }
}

/// A path with its links resolved, as far as it exists.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in whole.ancestors() {
        if let Ok(real) = std::fs::canonicalize(ancestor) {
            let rest = whole.strip_prefix(ancestor).unwrap_or(Path::new(""));
            // The part that does not exist has no links; the part before it is resolved already.
            return rest.components().fold(real, |mut at, step| {
                match step {
                    Component::ParentDir => drop(at.pop()),
                    step => at.push(step),
                }
                at
            });
        }
    }
    whole
}

/// The path of a file and of every link on the way to it, also in the middle of a chain: replacing a link replaces the
/// file.
fn names(path: &Path) -> BTreeSet<PathBuf> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (mut names, mut at, mut links) = (BTreeSet::new(), PathBuf::new(), 0);
    // A stack: the last step comes next.
    let steps = |path: &Path| path.components().rev().map(|step| step.as_os_str().to_owned()).collect::<Vec<_>>();
    let mut left = steps(&whole);
    while let Some(step) = left.pop() {
        match Path::new(&step).components().next() {
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(_)) => {
                let name = at.join(step);
                match std::fs::read_link(&name) {
                    Ok(target) if links < MOST_LINKS => {
                        links += 1;
                        left.extend(steps(&target));
                    }
                    _ => at.clone_from(&name),
                }
                names.insert(name);
            }
            Some(Component::CurDir) | None => {}
            // The root, of this path or of a link's target.
            Some(_) => at.push(step),
        }
    }
    names
}

/// A file, and every link that leads to it, by paths whose folders have no links.
pub(crate) fn links_to(file: &Path) -> Vec<PathBuf> {
    names(file).into_iter().filter(|name| !name.is_dir()).collect()
}

/// A subtree of a file system, and where it is mounted.
struct Mount {
    device: String,
    root: PathBuf,
    at: PathBuf,
}

impl Mount {
    fn all() -> Vec<Self> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        table.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?.to_owned();
        let mut path = || fields.next().map(|field| PathBuf::from(unescaped(field)));
        Some(Self { device, root: path()?, at: path()? })
    }
}

/// `mountinfo` writes white space and backslashes as three octal digits.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (escaped, letter)| text.replace(escaped, letter))
}

/// Every path under which this one is mounted.
fn mounted(path: &Path, mounts: &[Mount]) -> Vec<PathBuf> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    // Of two mounts at the same path the later one hides the earlier.
    let Some(own) = above.max_by_key(|mount| mount.at.components().count()) else { return vec![path.to_owned()] };
    let inside = own.root.join(path.strip_prefix(&own.at).unwrap_or(Path::new("")));
    let same = mounts.iter().filter(|mount| mount.device == own.device);
    let shown = same.filter_map(|mount| Some(joined(&mount.at, inside.strip_prefix(&mount.root).ok()?)));
    shown.chain([path.to_owned()]).collect()
}

/// Joins without a trailing slash.
fn joined(folder: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { folder.to_owned() } else { folder.join(rest) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn sandbox(kept: Kept) -> Sandbox {
        Sandbox { kept: vec![kept], ..Sandbox::default() }
    }

    #[test]
    fn e26_a_protected_file_is_found_behind_every_name() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        for folder in ["data/inner", "work/sub"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        symlink(path("data"), path("work/link")).unwrap();
        symlink("data", path("to-data")).unwrap();
        fs::write(path("data/inner/db"), "x").unwrap();
        for named in ["data/inner/db", "work/../data/inner/db", "to-data/inner/db", "data/inner/not-yet"] {
            let sandbox = sandbox(Kept::new("the database", path(named)));
            for folder in
                ["", "data", "data/inner", named, "to-data", "to-data/inner", "work/link", "work/sub/../../data"]
            {
                assert_eq!(sandbox.reaches(&path(folder), false).len(), 1, "{named} in {folder}");
            }
            for folder in ["work/sub", "data/inner/other", "dat", "nowhere/at/all"] {
                assert!(sandbox.reaches(&path(folder), true).is_empty(), "{named} in {folder}");
            }
            let off = Sandbox { level: Level::Off, ..sandbox };
            assert!(off.reaches(&path("data"), true).is_empty());
        }
        // A link that leads to the file counts as the file.
        let linked = sandbox(Kept::new("the database", path("work/link/inner/db")));
        assert_eq!(linked.reaches(&path("work"), true).len(), 1);
        assert!(linked.reaches(&path("work/sub"), true).is_empty());
        fs::hard_link(path("data/inner/db"), path("work/sub/other")).unwrap();
        let linked = sandbox(Kept::new("the database", path("data/inner/db")));
        let found = SecondName::Found(path("work/sub/other"), &linked.kept[0]);
        assert_eq!(linked.second_name(&path("work"), true), found);
        // Three entries: `link`, `sub` and `other`.
        assert_eq!(linked.second_name_within(&path("work"), true, 3), found);
        assert_eq!(linked.second_name_within(&path("work"), true, 2), SecondName::Unknown(&linked.kept[0]));
        fs::remove_file(path("work/sub/other")).unwrap();
        assert_eq!(linked.second_name_within(&path("work"), true, 2), SecondName::None);
        let document = sandbox(Kept::new("the document", path("data/inner/db")).readable());
        assert_eq!((document.reaches(&path("data"), true).len(), document.reaches(&path("data"), false).len()), (1, 0));
        let system = sandbox(Kept::new("the config", "/usr/local/etc/windlass.toml"));
        assert_eq!(system.reached_by_all().first().map(|(folder, _)| *folder), Some("/usr"));
    }

    #[test]
    fn e26_every_link_of_a_chain_is_protected() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        for folder in ["links", "more", "real", "folders/of", "work"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        fs::write(path("real/v1.toml"), "x").unwrap();
        // A relative link, an absolute one, one through a folder that is a link, and one with `..`.
        symlink("../real", path("folders/of/real")).unwrap();
        fs::rename(path("folders/of/real"), path("folders/real")).unwrap();
        symlink("../folders/real/../real/v1.toml", path("more/next.toml")).unwrap();
        symlink(path("more/next.toml"), path("links/cur.toml")).unwrap();
        symlink("links/cur.toml", path("windlass.toml")).unwrap();
        let config = sandbox(Kept::new("the config", path("windlass.toml")));
        for folder in ["links", "more", "folders", "real", "links/cur.toml", "more/next.toml", "folders/real"] {
            assert_eq!(config.reaches(&path(folder), true).len(), 1, "{folder}");
        }
        for folder in ["work", "folders/of"] {
            assert!(config.reaches(&path(folder), true).is_empty(), "{folder}");
        }
        // A link to itself, and one whose target does not exist yet.
        symlink("loop", path("work/loop")).unwrap();
        symlink("../real/v2.toml", path("links/not-yet")).unwrap();
        assert_eq!(sandbox(Kept::new("a loop", path("work/loop"))).reaches(&path("work"), true).len(), 1);
        let dangling = sandbox(Kept::new("the config", path("links/not-yet")));
        assert_eq!(["links", "real"].map(|folder| dangling.reaches(&path(folder), true).len()), [1, 1]);
    }

    #[test]
    fn e26_a_file_system_that_is_mounted_twice_is_protected_under_both_paths() {
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                     2 1 8:2 / /data rw - ext4 /dev/b rw\n\
                     3 1 8:2 /app /srv/my\\040app rw - ext4 /dev/b rw\n\
                     4 1 8:1 /home/ann /work rw - ext4 /dev/a rw\n";
        let mounts: Vec<Mount> = table.lines().filter_map(Mount::parse).collect();
        let paths = |path: &str| {
            let mut paths: Vec<String> =
                mounted(Path::new(path), &mounts).iter().map(|path| path.display().to_string()).collect();
            paths.sort();
            paths.dedup();
            paths
        };
        assert_eq!(paths("/data/app/db"), ["/data/app/db", "/srv/my app/db"]);
        assert_eq!(paths("/srv/my app/db"), ["/data/app/db", "/srv/my app/db"]);
        assert_eq!(paths("/data/other/db"), ["/data/other/db"]);
        assert_eq!(paths("/home/ann/x/db"), ["/home/ann/x/db", "/work/x/db"]);
        assert_eq!(paths("/work"), ["/home/ann", "/work"]);
    }
}
