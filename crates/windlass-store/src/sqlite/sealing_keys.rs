//! The keys that secrets are sealed with. They are in a file next to the database, `app.db-key`, and never in the
//! database: a copy of the database alone reveals no secret.
//!
//! The file is text with one key per line. Secrets are sealed with the last key and unsealed with the key they name, so
//! a lost key that is found again is restored by adding its line. The process that owns the database owns this file
//! too.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use parking_lot::Mutex;

use super::backup::{CopyError, publish};
use super::db_file::{owner_only, with_suffix};

const HEAD: &str = "# Secrets in the database next to this file are sealed with the last key and unsealed with any.\n\
     # Without it they are lost: keep a copy, but not together with copies of the database.\n";

/// Larger than any number of keys needs. A larger file is not a key file.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct SealingKey {
    pub(super) id: String,
    pub(super) bytes: [u8; 32],
}

impl SealingKey {
    fn generate() -> io::Result<Self> {
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
pub(super) struct SealingKeys {
    path: PathBuf,
    loaded: Mutex<LoadedKeys>,
}

#[derive(Default)]
struct LoadedKeys {
    keys: Vec<SealingKey>,
    /// Whether the file is known to be on disk. The process that created it may have died before the sync.
    synced: bool,
}

impl LoadedKeys {
    /// Adds the keys of the file; its last key becomes the last one. Keys that are no longer in the file stay loaded as
    /// long as this process lives.
    fn merge(&mut self, mut keys: Vec<SealingKey>) {
        self.keys.retain(|key| !keys.contains(key));
        self.keys.append(&mut keys);
    }
}

impl SealingKeys {
    /// The keys of the database at `path`. Nothing is read or created before it is needed.
    pub(super) fn of(path: &Path) -> Self {
        Self { path: with_suffix(path, "-key"), loaded: Mutex::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The key to seal with. Created when first needed, and on disk before it is returned.
    pub(super) fn current(&self) -> io::Result<SealingKey> {
        let mut loaded = self.loaded.lock();
        // Read every time: values sealed with a key that was deleted from the disk would be lost with this process.
        match self.read()? {
            Some(keys) => {
                if !loaded.synced {
                    File::open(&self.path)?.sync_all()?;
                    sync_directory(&self.path)?;
                    loaded.synced = true;
                }
                loaded.merge(keys);
            }
            None => {
                if loaded.keys.is_empty() {
                    loaded.keys.push(SealingKey::generate()?);
                }
                self.write(&loaded.keys)?;
                loaded.synced = true;
            }
        }
        loaded.keys.last().cloned().ok_or_else(|| io::Error::other("it has no key"))
    }

    /// The key with this id. Reads the file again if the key is not loaded.
    pub(super) fn find(&self, id: &str) -> io::Result<Option<SealingKey>> {
        let of = |keys: &[SealingKey]| keys.iter().find(|key| key.id == id).cloned();
        let loaded = of(&self.loaded.lock().keys);
        if loaded.is_some() {
            return Ok(loaded);
        }
        let keys = self.read()?.unwrap_or_default();
        let found = of(&keys);
        self.loaded.lock().merge(keys);
        Ok(found)
    }

    /// Returns `None` if the file does not exist.
    fn read(&self) -> io::Result<Option<Vec<SealingKey>>> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(found) if found.len() > MAX_FILE_BYTES => {
                return Err(io::Error::other("it is too large for a key file"));
            }
            found => found.map(|_| ())?,
        }
        let text = fs::read_to_string(&self.path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let broken = |line: usize| io::Error::other(format!("its key {} cannot be read", line + 1));
        let keys = lines.enumerate().map(|(number, line)| SealingKey::parse(line).ok_or_else(|| broken(number)));
        let keys: Vec<SealingKey> = keys.collect::<io::Result<_>>()?;
        if keys.is_empty() {
            return Err(io::Error::other("it has no key; put the line of the key back, or move the file away"));
        }
        Ok(Some(keys))
    }

    fn write(&self, keys: &[SealingKey]) -> io::Result<()> {
        let partial = with_suffix(&self.path, ".partial");
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let text: String = std::iter::once(HEAD.to_owned()).chain(keys.iter().map(SealingKey::line)).collect();
        let mut file = owner_only().write(true).create_new(true).open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        let published = publish(&partial, &self.path);
        // Already gone if it was renamed; a hard link leaves it.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match published {
            Ok(()) => Ok(()),
            Err(CopyError::Exists) => Err(io::Error::other("it was created by another process just now; try again")),
            Err(CopyError::Failed(why) | CopyError::Damaged(why)) => Err(io::Error::other(why)),
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

    fn temp_path() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        (directory, path)
    }

    #[test]
    fn e26_concurrent_callers_create_one_key() {
        let (directory, path) = temp_path();
        let keys = SealingKeys::of(&path);
        assert!(keys.find("none").unwrap().is_none() && !keys.path().exists(), "looking up a key creates nothing");
        let made: Vec<SealingKey> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| keys.current().unwrap())).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|key| *key == made[0]));
        assert!(SealingKeys::of(&path).current().unwrap() == made[0], "a later process reads the same key");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn e26_the_last_key_seals_and_every_key_unseals() {
        let (_directory, path) = temp_path();
        let first = SealingKeys::of(&path).current().unwrap();
        let second = SealingKey::generate().unwrap();
        let text = fs::read_to_string(with_suffix(&path, "-key")).unwrap();
        fs::write(with_suffix(&path, "-key"), format!("{text}\n{}", second.line())).unwrap();
        let keys = SealingKeys::of(&path);
        assert!(keys.find(&first.id).unwrap().unwrap() == first && keys.find(&second.id).unwrap().unwrap() == second);
        assert!(keys.current().unwrap() == second);
    }

    #[test]
    fn e26_a_key_file_deleted_while_it_is_in_use_is_written_again() {
        let (_directory, path) = temp_path();
        let keys = SealingKeys::of(&path);
        let key = keys.current().unwrap();
        fs::remove_file(keys.path()).unwrap();
        assert!(keys.find(&key.id).unwrap().unwrap() == key);
        assert!(keys.current().unwrap() == key && SealingKeys::of(&path).current().unwrap() == key);
    }

    #[test]
    fn e26_a_file_that_is_not_a_key_file_is_not_changed() {
        let (_directory, path) = temp_path();
        let file = with_suffix(&path, "-key");
        for (text, problem) in [("", "it has no key"), ("# nothing\n", "it has no key"), ("a b c\n", "its key 1")] {
            fs::write(&file, text).unwrap();
            let error = SealingKeys::of(&path).current().err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }
}
