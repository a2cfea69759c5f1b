//! Detects a write-ahead log that does not belong to the file. SQLite uses any file with the log's name next to a
//! database: the log of another database, or one that was left behind when an older copy was restored. Its pages would
//! then replace pages of the database.
//!
//! So the file has a stamp: a random value that is replaced when the log restarts, and before any of the log is copied
//! into the file. Each stamp is written together with the previous one. The first transaction of a log therefore
//! contains the stamp that the file had when the log started, and the log contains every stamp that the file may have
//! received from it since: **a log belongs to a file if the log contains the stamp that is in the file itself.** Only
//! the writer lets a log restart, so every log has a stamp; while a thread copies pages, a reader keeps the log from
//! restarting (`checkpoint.rs`).
//!
//! This check cannot detect that the end of a log is missing if none of it was copied into the file, that the whole log
//! is missing, or that the log is from a copy that started where this file is. It is skipped for a file whose log other
//! programs may checkpoint ([`Options::shared`](super::Options::shared)).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::db_file::with_suffix;
use super::fault::Fault;
use super::open_error::OpenError;

pub(super) const DDL: &str = "
CREATE TABLE lineage (
    stamp  BLOB NOT NULL,
    before BLOB NOT NULL,
    shared INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO lineage (stamp, before) VALUES (randomblob(16), randomblob(16));
";

/// Gives a copy its own stamps, so that no log of the original belongs to it.
pub(super) const RESET: &str = "UPDATE lineage SET stamp = randomblob(16), before = randomblob(16), shared = 0";

/// Stamps the file. Called before any of the log is copied into it, and after the log restarted. Not synced here,
/// because whatever follows is synced.
pub(super) fn stamp(connection: &Connection, shared: bool) -> rusqlite::Result<()> {
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let sql = "UPDATE lineage SET before = stamp, stamp = randomblob(16), shared = ?1";
    let stamped = connection.prepare_cached(sql)?.execute([shared]);
    connection.pragma_update(None, "synchronous", synchronous)?;
    stamped.map(drop)
}

/// Checks that the log next to a file belongs to it. The caller holds the file's lock, so neither file changes
/// meanwhile.
pub(super) fn check(path: &Path) -> Result<(), ForeignWal> {
    let wal = with_suffix(path, "-wal");
    // SQLite ignores a log that is not valid, and reports one that cannot be read.
    let Ok(Some(mut frames)) = WalFrames::open(&wal) else { return Ok(()) };
    let Some(stamp) = stamp_without_wal(path) else { return Ok(()) };
    let mut found = StampSearch::default();
    while let Ok(Some(frame)) = frames.next() {
        found.add(frame, &stamp);
    }
    if found.commits == 0 || found.stamp { Ok(()) } else { Err(ForeignWal { wal }) }
}

/// The log next to the file does not belong to it.
#[derive(Debug)]
pub(super) struct ForeignWal {
    wal: PathBuf,
}

impl ForeignWal {
    pub(super) fn into_open_error(self, path: &Path) -> OpenError {
        OpenError::ForeignWal { path: path.to_owned(), wal: self.wal }
    }

    pub(super) fn into_fault(self) -> Fault {
        Fault::ForeignWal
    }
}

/// Searches the complete transactions of a log for a stamp.
#[derive(Default)]
struct StampSearch {
    commits: u64,
    stamp: bool,
    /// The stamp was found in a transaction whose end was not read yet.
    pending: bool,
}

impl StampSearch {
    fn add(&mut self, frame: WalFrame<'_>, stamp: &[u8]) {
        self.pending |= frame.page.windows(stamp.len()).any(|bytes| bytes == stamp);
        if frame.commits {
            self.commits += 1;
            self.stamp |= std::mem::take(&mut self.pending);
        }
    }
}

/// The stamp in the file itself. `None` if it has no stamp, if other programs may checkpoint its log, or if it cannot
/// be read: a file into which a log was being copied need not be valid without the log.
fn stamp_without_wal(path: &Path) -> Option<Vec<u8>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(path)?, flags).ok()?;
    let sql = "SELECT stamp, shared FROM lineage";
    let found = connection.query_row(sql, [], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?))).optional();
    let (stamp, shared): (Vec<u8>, bool) = found.ok()??;
    Some(stamp).filter(|stamp| !shared && stamp.len() == 16)
}

/// A URI with which SQLite reads a file without its log and without locks.
fn uri(path: &Path) -> Option<String> {
    let mut name = String::from("file:");
    for byte in path.to_str()?.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(name + "?immutable=1")
}

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;

/// Reads the frames of a log as SQLite does: up to the first frame with a wrong salt or checksum.
struct WalFrames {
    file: BufReader<File>,
    salts: [u8; 8],
    big_endian: bool,
    sum: (u32, u32),
    header: [u8; FRAME_HEADER],
    page: Vec<u8>,
}

struct WalFrame<'a> {
    page: &'a [u8],
    /// Whether this frame ends a transaction.
    commits: bool,
}

impl WalFrames {
    /// Returns `None` if SQLite would not accept the file as a log.
    fn open(wal: &Path) -> io::Result<Option<Self>> {
        let mut file = BufReader::with_capacity(1 << 16, File::open(wal)?);
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        let (magic, size) = (number(&header, 0), number(&header, 8));
        let big_endian = magic & 1 == 1;
        let sum = checksum((0, 0), &header[..24], big_endian);
        if magic & !1 != MAGIC || !size.is_power_of_two() || size > 1 << 16 || sum != pair(&header, 24) {
            return Ok(None);
        }
        let mut salts = [0; 8];
        salts.copy_from_slice(&header[16..24]);
        let page = vec![0; usize::try_from(size).unwrap_or_default()];
        Ok(Some(Self { file, salts, big_endian, sum, header: [0; FRAME_HEADER], page }))
    }

    fn next(&mut self) -> io::Result<Option<WalFrame<'_>>> {
        self.file.read_exact(&mut self.header)?;
        self.file.read_exact(&mut self.page)?;
        let sum = checksum(checksum(self.sum, &self.header[..8], self.big_endian), &self.page, self.big_endian);
        if self.header[8..16] != self.salts || number(&self.header, 0) == 0 || sum != pair(&self.header, 16) {
            return Ok(None);
        }
        self.sum = sum;
        Ok(Some(WalFrame { page: &self.page, commits: number(&self.header, 4) > 0 }))
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_be_bytes(four.unwrap_or_default())
}

fn pair(bytes: &[u8], at: usize) -> (u32, u32) {
    (number(bytes, at), number(bytes, at + 4))
}

/// SQLite's checksum, over pairs of words in the byte order that the log's header names.
fn checksum(before: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let word = |four: &[u8]| {
        let four = four.try_into().unwrap_or_default();
        if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    bytes.chunks_exact(8).fold(before, |(first, second), eight| {
        let first = first.wrapping_add(word(&eight[..4])).wrapping_add(second);
        (first, second.wrapping_add(word(&eight[4..])).wrapping_add(first))
    })
}
