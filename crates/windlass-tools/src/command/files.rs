//! Session files as the working directory of a command.
//!
//! The files are copied into a private folder before the command starts. When all its processes are dead, the regular
//! files that differ are stored, and replaced in the session together with the outcome of the call. The command is not
//! trusted: the folder is read name by name relative to open folders, and no link is followed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use windlass::session::{ArtifactId, FileView, SessionPath, StagedEdits};
use windlass::store::ArtifactHasher;
use windlass::{Artifact, Call, Content, Effect, Output, ToolError, ToolResult, limits};

use super::Command;
use super::run::not_begun;
use crate::process::cleaner::remove_soon;
use crate::process::shortage::is_transient;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Without blocking, so that a pipe in place of a file does not stop the reader.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Entries of the folder that are looked at. A session has fewer by default.
const MAX_ENTRIES: usize = 100_000;

/// More than the granularity of the times of files: a file that was written this long before the command started, and
/// whose times are the same afterwards, has not changed.
const TIME_GRANULARITY: Duration = Duration::from_millis(100);

/// Bytes that are copied at a time.
const PIECE: usize = limits::ARTIFACT_PIECE;

/// The folder with the files of a session. It is removed when this is dropped.
pub(super) struct Workspace {
    folder: PathBuf,
    base: BTreeMap<SessionPath, BaseFile>,
    /// When everything was copied.
    ready: Duration,
}

/// A file as it was copied.
struct BaseFile {
    content: ArtifactId,
    stamp: Stamp,
}

/// Changes whenever a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: i64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// What the command left in the folder.
#[derive(Default)]
struct Leftovers {
    files: BTreeMap<SessionPath, Stamp>,
    skipped: Vec<Skipped>,
    entries: usize,
}

/// An entry that is not stored.
struct Skipped {
    shown: String,
    /// Where it is, if that can be the path of a session file.
    path: Option<SessionPath>,
    why: String,
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        // The types of these fields differ between platforms.
        #[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap, clippy::useless_conversion)]
        Self {
            file: (stat.st_dev as u64, stat.st_ino as u64),
            size: stat.st_size as i64,
            written: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Whether the times could show a change since `ready`.
    fn is_older_than(&self, ready: Duration) -> bool {
        let (seconds, nanos) = self.changed;
        let changed = Duration::new(u64::try_from(seconds).unwrap_or(u64::MAX), u32::try_from(nanos).unwrap_or(0));
        changed.saturating_add(TIME_GRANULARITY) < ready
    }
}

impl Workspace {
    /// Copies the files of the call's session into a new folder.
    pub(super) async fn make(command: &Command, call: &Call) -> ToolResult<Self> {
        let Some(session) = call.session() else {
            return Err(ToolError::rejected(
                "no_session",
                format!(
                    "`{}` works on the files of a session, and the call belongs to none; make it in a session",
                    call.tool()
                ),
            ));
        };
        let launcher = &command.launcher;
        let failed = |error: io::Error| {
            let problem = format!("the files of its session cannot be copied: {error}");
            not_begun(call, problem, is_transient(&error))
        };
        let made = {
            let mut guard = launcher.guard().lock();
            guard.begin(launcher.argv(), launcher.folder()).and_then(|()| guard.folder())
        };
        let mut space = Self { folder: made.map_err(failed)?, base: BTreeMap::new(), ready: Duration::ZERO };
        space.copy(&session.files()).await?.map_err(failed)?;
        space.ready = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(space)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The outer error is the store's.
    async fn copy(&mut self, files: &FileView) -> ToolResult<io::Result<()>> {
        let mut after: Option<SessionPath> = None;
        loop {
            let page = files.tree("/", after.as_ref().map(SessionPath::as_str), limits::FILE_PAGE).await?;
            for file in &page {
                let target = self.folder.join(&file.path.as_str()[1..]);
                let Some(content) = file.content else {
                    if let Err(error) = DirBuilder::new().mode(0o700).create(target) {
                        return Ok(Err(error));
                    }
                    continue;
                };
                let mode = if file.is_readonly { 0o400 } else { 0o600 };
                let mut copy = match File::options().write(true).create_new(true).mode(mode).open(target) {
                    Ok(copy) => copy,
                    Err(error) => return Ok(Err(error)),
                };
                // By its hash: the file may be replaced meanwhile.
                let mut reader = files.open_content(content).await?;
                while let Some(piece) = reader.next().await? {
                    if let Err(error) = copy.write_all(&piece) {
                        return Ok(Err(error));
                    }
                }
                let stamp = match fstat(&copy) {
                    Ok(stat) => Stamp::of(&stat),
                    Err(error) => return Ok(Err(error.into())),
                };
                self.base.insert(file.path.clone(), BaseFile { content, stamp });
            }
            match page.last() {
                Some(last) if page.len() == limits::FILE_PAGE => after = Some(last.path.clone()),
                _ => return Ok(Ok(())),
            }
        }
    }

    /// Makes the changes of the command part of its outcome, and names those that are not made. All processes of the
    /// command are dead.
    pub(super) async fn conclude(self, call: &Call, output: Output) -> ToolResult<Output> {
        if call.effect() == Effect::Readonly {
            return Ok(output);
        }
        let unreadable = |error: io::Error| ToolError::failed(format!("its working directory cannot be read: {error}"));
        let root = openat(CWD, &self.folder, FOLDER, Mode::empty()).map_err(|error| unreadable(error.into()))?;
        let mut left = Leftovers::default();
        left.walk(&root, &SessionPath::root()).map_err(unreadable)?;
        let Some(mut edits) = call.edit_files() else { return Err(ToolError::failed("the run is driven elsewhere")) };
        for (path, base) in &self.base {
            if !left.files.contains_key(path) && !left.is_skipped(path) {
                edits.delete(path.clone(), base.content);
            }
        }
        for (path, stamp) in std::mem::take(&mut left.files) {
            let base = self.base.get(&path);
            if base.is_some_and(|base| base.stamp == stamp && stamp.is_older_than(self.ready)) {
                continue;
            }
            let mut file = match open_file(&root, &path) {
                Ok(file) => file,
                Err(error) => {
                    left.skip(&path, format!("it cannot be read: {error}"));
                    continue;
                }
            };
            let base = base.map(|base| base.content);
            if base.is_some() && base == Some(hash(&mut file).map_err(unreadable)?) {
                continue;
            }
            let mut writer = edits.write(path.clone(), base);
            let mut file = open_file(&root, &path).map_err(unreadable)?;
            let mut piece = vec![0; PIECE];
            loop {
                match file.read(&mut piece).map_err(unreadable)? {
                    0 => break,
                    length => writer.write(&piece[..length]).await?,
                }
            }
            writer.finish().await?;
        }
        let staged = edits.stage().await?;
        Ok(report(output, &staged, &left.skipped).edits(staged))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        remove_soon(std::mem::take(&mut self.folder), || {});
    }
}

impl Leftovers {
    fn walk(&mut self, folder: &OwnedFd, at: &SessionPath) -> io::Result<()> {
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} entries")));
            }
            let shown = format!("{}{}", at.prefix(), name.to_string_lossy());
            let path = match name.to_str().map_err(|_| "its name is not UTF-8".to_owned()) {
                Ok(name) => at.join(name).map_err(|error| error.to_string()),
                Err(why) => Err(why),
            };
            let path = match path {
                Ok(path) => path,
                Err(why) => {
                    self.skipped.push(Skipped { shown, path: None, why });
                    continue;
                }
            };
            let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile if stat.st_nlink == 1 => {
                    self.files.insert(path, Stamp::of(&stat));
                }
                FileType::RegularFile => self.skip(&path, "it has more than one name (hard links)".to_owned()),
                FileType::Directory => match openat(folder, name, FOLDER, Mode::empty()) {
                    Ok(inner) => self.walk(&inner, &path)?,
                    Err(error) => self.skip(&path, format!("it cannot be opened: {}", io::Error::from(error))),
                },
                _ => self.skip(&path, "it is neither a regular file nor a directory".to_owned()),
            }
        }
        Ok(())
    }

    fn skip(&mut self, path: &SessionPath, why: String) {
        self.skipped.push(Skipped { shown: path.to_string(), path: Some(path.clone()), why });
    }

    /// Whether something at or above this path was skipped, so that it is unknown whether the file was deleted.
    fn is_skipped(&self, path: &SessionPath) -> bool {
        let covers = |skipped: &SessionPath| path == skipped || path.is_below(skipped);
        self.skipped.iter().filter_map(|skipped| skipped.path.as_ref()).any(covers)
    }
}

/// Opens a regular file below a folder. No name on the way may be a link.
fn open_file(root: &OwnedFd, path: &SessionPath) -> io::Result<File> {
    let mut folder: Option<OwnedFd> = None;
    let above: Vec<&str> = path.names().collect();
    let Some((name, above)) = above.split_last() else { return Err(Errno::ISDIR.into()) };
    for step in above {
        folder = Some(openat(folder.as_ref().unwrap_or(root), *step, FOLDER, Mode::empty())?);
    }
    let file = openat(folder.as_ref().unwrap_or(root), *name, FILE, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Err(io::Error::other("it is not a regular file with one name"));
    }
    Ok(file.into())
}

fn hash(file: &mut File) -> io::Result<ArtifactId> {
    let mut hasher = ArtifactHasher::default();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            length => hasher.update(&piece[..length]),
        }
    }
}

/// Adds what was not written to an output: a text that says why, and each content as a file.
fn report(mut output: Output, staged: &StagedEdits, skipped: &[Skipped]) -> Output {
    if staged.refused().is_empty() && skipped.is_empty() {
        return output;
    }
    let mut text = String::from("Not written to the files of the session:");
    for unmade in staged.refused() {
        let _ = write!(text, "\n{}: {}", unmade.edit.path, unmade.why);
        match unmade.edit.content {
            Some(content) => {
                let _ = write!(text, "; the content of the command is {}", content.hash);
            }
            None => text.push_str("; the command deleted it"),
        }
    }
    for skipped in skipped {
        let _ = write!(text, "\n{:?}: {}", skipped.shown, skipped.why);
    }
    output.content.push(Content::text(text));
    for unmade in staged.refused() {
        if let Some(content) = unmade.edit.content {
            let stored = windlass::store::Stored { id: content.hash, size: content.size };
            let artifact = Artifact::stored("application/octet-stream", stored).named(unmade.edit.path.as_str());
            output.content.push(Content::File(artifact));
        }
    }
    output
}
