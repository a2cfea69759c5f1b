//! The keys that secrets are sealed with. They are in a file beside the database, `app.db-key`, and never in it: whoever
//! has a copy of the database alone has no secret.
//!
//! The file is text, a key a line. Secrets are sealed with the last one and opened with the one they name, so an old key
//! that is found again is put back by adding its line. One process owns the database, and with it this file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use parking_lot::Mutex;

use super::backup::{Problem, publish};
use super::place::{beside, private};

const HEAD: &str = "# Secrets in the database beside this file are sealed with the last key here, and opened with any.\n\
                    # Without it they are lost: keep a copy, and not together with copies of the database.\n";

/// More than any number of keys takes: what is larger is something else.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) id: String,
    pub(super) bytes: [u8; 32],
}

impl Key {
    fn fresh() -> io::Result<Self> {
        let (mut id, mut bytes) = ([0; 8], [0; 32]);
        getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut bytes)).map_err(io::Error::other)?;
        Ok(Self { id: format!("{:016x}", u64::from_be_bytes(id)), bytes })
    }

    fn parse(line: &str) -> Option<Self> {
        let (id, bytes) = line.split_once(' ')?;
        let bytes = BASE64.decode(bytes.trim()).ok()?.try_into().ok()?;
        let fits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        fits.then(|| Self { id: id.to_owned(), bytes })
    }

    fn line(&self) -> String {
        format!("{} {}\n", self.id, BASE64.encode(self.bytes))
    }
}

/// The keys of one database.
pub(super) struct Keys {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    keys: Vec<Key>,
    /// Whether the file is on disk for sure. Whoever made it may have died before it was.
    synced: bool,
}

impl Known {
    /// The last of the file is the last here, and what is no longer in it stays known as long as this process lives.
    fn learn(&mut self, mut keys: Vec<Key>) {
        self.keys.retain(|key| !keys.contains(key));
        self.keys.append(&mut keys);
    }
}

impl Keys {
    /// Of the database at `path`. Nothing is read or made before it is needed.
    pub(super) fn of(path: &Path) -> Self {
        Self { path: beside(path, "-key"), known: Mutex::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The key to seal with. Made on first need; on disk before it is returned, and so before anything that needs it.
    pub(super) fn current(&self) -> io::Result<Key> {
        let mut known = self.known.lock();
        // Read every time: what is sealed with a key that is gone from the disk would be lost with this process.
        match self.read()? {
            Some(keys) => {
                if !known.synced {
                    File::open(&self.path)?.sync_all()?;
                    sync_directory(&self.path)?;
                    known.synced = true;
                }
                known.learn(keys);
            }
            None => {
                if known.keys.is_empty() {
                    known.keys.push(Key::fresh()?);
                }
                self.write(&known.keys)?;
                known.synced = true;
            }
        }
        known.keys.last().cloned().ok_or_else(|| io::Error::other("there is no key"))
    }

    /// The key with this id, if it is there by now.
    pub(super) fn find(&self, id: &str) -> io::Result<Option<Key>> {
        let of = |keys: &[Key]| keys.iter().find(|key| key.id == id).cloned();
        let known = of(&self.known.lock().keys);
        if known.is_some() {
            return Ok(known);
        }
        let keys = self.read()?.unwrap_or_default();
        let found = of(&keys);
        self.known.lock().learn(keys);
        Ok(found)
    }

    /// Nothing if there is no file.
    fn read(&self) -> io::Result<Option<Vec<Key>>> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(found) if found.len() > MOST_BYTES => {
                return Err(io::Error::other("it is too large to be a file of keys"));
            }
            found => found.map(|_| ())?,
        }
        let text = fs::read_to_string(&self.path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let broken = |line: usize| io::Error::other(format!("key {} in it cannot be read", line + 1));
        let keys = lines.enumerate().map(|(number, line)| Key::parse(line).ok_or_else(|| broken(number)));
        let keys: Vec<Key> = keys.collect::<io::Result<_>>()?;
        if keys.is_empty() {
            return Err(io::Error::other("there is no key in it; put its line back, or move the file away"));
        }
        Ok(Some(keys))
    }

    fn write(&self, keys: &[Key]) -> io::Result<()> {
        let partial = beside(&self.path, ".partial");
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let text: String = std::iter::once(HEAD.to_owned()).chain(keys.iter().map(Key::line)).collect();
        let mut file = private().write(true).create_new(true).open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        let published = publish(&partial, &self.path);
        // Gone already if the file has its name now, unless that was a link.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match published {
            Ok(()) => Ok(()),
            Err(Problem::Exists) => Err(io::Error::other("it was put there just now; try again")),
            Err(Problem::Failed(why) | Problem::Damaged(why)) => Err(io::Error::other(why)),
        }
    }
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        (directory, path)
    }

    #[test]
    fn e26_a_key_is_made_once_whoever_needs_it_first() {
        let (directory, path) = place();
        let keys = Keys::of(&path);
        assert!(keys.find("none").unwrap().is_none() && !keys.path().exists(), "looking makes nothing");
        let made: Vec<Key> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| keys.current().unwrap())).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|key| *key == made[0]));
        assert!(Keys::of(&path).current().unwrap() == made[0], "and is there for whoever comes later");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn e26_the_last_key_seals_and_every_key_opens() {
        let (_directory, path) = place();
        let first = Keys::of(&path).current().unwrap();
        let second = Key::fresh().unwrap();
        let text = fs::read_to_string(beside(&path, "-key")).unwrap();
        fs::write(beside(&path, "-key"), format!("{text}\n{}", second.line())).unwrap();
        let keys = Keys::of(&path);
        assert!(keys.find(&first.id).unwrap().unwrap() == first && keys.find(&second.id).unwrap().unwrap() == second);
        assert!(keys.current().unwrap() == second);
    }

    #[test]
    fn e26_a_key_that_vanishes_under_its_process_is_put_back() {
        let (_directory, path) = place();
        let keys = Keys::of(&path);
        let key = keys.current().unwrap();
        fs::remove_file(keys.path()).unwrap();
        assert!(keys.find(&key.id).unwrap().unwrap() == key);
        assert!(keys.current().unwrap() == key && Keys::of(&path).current().unwrap() == key);
    }

    #[test]
    fn e26_a_file_that_is_no_key_file_is_left_alone() {
        let (_directory, path) = place();
        let file = beside(&path, "-key");
        for (text, problem) in [("", "no key in it"), ("# nothing\n", "no key in it"), ("a b c\n", "key 1 in it")] {
            fs::write(&file, text).unwrap();
            let error = Keys::of(&path).current().err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }
}
