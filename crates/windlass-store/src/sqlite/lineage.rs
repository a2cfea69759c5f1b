//! Which write-ahead log belongs to the file. SQLite takes whatever lies beside a database under the log's name: the log of
//! another file, or one that was left when an older copy of the file was put back. Its pages then replace pages of the file.
//!
//! So the file has a stamp, a number that is drawn anew when the log begins again, and before any of the log is moved into
//! the file. Every stamp is written together with the one before it. The first transaction of a log therefore has the stamp
//! that the file had when the log began, and the log has every stamp that the file may have got from it since: **a log
//! belongs to a file if the file's stamp, read without the log, is in the log.** Only the writer lets a log begin
//! again, so no log is without a stamp; while a thread moves pages, a reader keeps it from beginning (`checkpoint.rs`).
//!
//! What this cannot tell: that the end of a log is missing of which nothing was moved into the file, that all of it is
//! missing, and that it is the log of a copy which began where the file stands. A file that other programs may write their
//! own checkpoints to ([`Options::shared`](super::Options::shared)) is not checked.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::fault::Fault;
use super::place::beside;
use super::refusal::OpenError;

pub(super) const DDL: &str = "
CREATE TABLE lineage (
    stamp  BLOB NOT NULL,
    before BLOB NOT NULL,
    shared INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO lineage (stamp, before) VALUES (randomblob(16), randomblob(16));
";

/// A copy begins a line of its own: no log of the original is its.
pub(super) const ANEW: &str = "UPDATE lineage SET stamp = randomblob(16), before = randomblob(16), shared = 0";

/// Stamps the file, before any of its log is moved into it, and after the log began again. Not synced: whatever follows is.
pub(super) fn stamp(connection: &Connection, shared: bool) -> rusqlite::Result<()> {
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let sql = "UPDATE lineage SET before = stamp, stamp = randomblob(16), shared = ?1";
    let stamped = connection.prepare_cached(sql)?.execute([shared]);
    connection.pragma_update(None, "synchronous", synchronous)?;
    stamped.map(drop)
}

/// Whether the log beside a file belongs to it. The caller has the file's lock: neither may be written to meanwhile.
pub(super) fn check(path: &Path) -> Result<(), Foreign> {
    let log = beside(path, "-wal");
    // What cannot be read, and what SQLite does not take for a log, it says itself, or does not use.
    let Ok(Some(mut frames)) = Frames::open(&log) else { return Ok(()) };
    let Some(stamp) = stamp_without_log(path) else { return Ok(()) };
    let mut found = Found::default();
    while let Ok(Some(frame)) = frames.next() {
        found.see(frame, &stamp);
    }
    if found.commits == 0 || found.stamp { Ok(()) } else { Err(Foreign { log }) }
}

/// The log beside the file is not its own.
#[derive(Debug)]
pub(super) struct Foreign {
    log: PathBuf,
}

impl Foreign {
    pub(super) fn refusal(self, path: &Path) -> OpenError {
        OpenError::ForeignLog { path: path.to_owned(), log: self.log }
    }

    pub(super) fn fault(self) -> Fault {
        Fault::ForeignLog
    }
}

/// What the whole transactions of a log have.
#[derive(Default)]
struct Found {
    commits: u64,
    stamp: bool,
    /// In a transaction whose end was not seen yet.
    pending: bool,
}

impl Found {
    fn see(&mut self, frame: Frame<'_>, stamp: &[u8]) {
        self.pending |= frame.page.windows(stamp.len()).any(|bytes| bytes == stamp);
        if frame.commits {
            self.commits += 1;
            self.stamp |= std::mem::take(&mut self.pending);
        }
    }
}

/// The stamp in the file itself. Nothing if it has none, if others may move its log, or if it cannot be told: a file into
/// which a log was being moved need not make sense without it.
fn stamp_without_log(path: &Path) -> Option<Vec<u8>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(path)?, flags).ok()?;
    let sql = "SELECT stamp, shared FROM lineage";
    let found = connection.query_row(sql, [], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?))).optional();
    let (stamp, shared): (Vec<u8>, bool) = found.ok()??;
    Some(stamp).filter(|stamp| !shared && stamp.len() == 16)
}

/// The name under which SQLite reads a file as it is, without its log and without locks.
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

/// The frames of a log as SQLite reads them: as long as each is of this log and its checksum goes on from the one before.
struct Frames {
    file: BufReader<File>,
    salts: [u8; 8],
    big: bool,
    sum: (u32, u32),
    header: [u8; FRAME_HEADER],
    page: Vec<u8>,
}

struct Frame<'a> {
    page: &'a [u8],
    /// It ends a transaction.
    commits: bool,
}

impl Frames {
    /// Nothing if SQLite would not take it for a log.
    fn open(log: &Path) -> io::Result<Option<Self>> {
        let mut file = BufReader::with_capacity(1 << 16, File::open(log)?);
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        let (magic, size) = (number(&header, 0), number(&header, 8));
        let big = magic & 1 == 1;
        let sum = checksum((0, 0), &header[..24], big);
        if magic & !1 != MAGIC || !size.is_power_of_two() || size > 1 << 16 || sum != pair(&header, 24) {
            return Ok(None);
        }
        let mut salts = [0; 8];
        salts.copy_from_slice(&header[16..24]);
        let page = vec![0; usize::try_from(size).unwrap_or_default()];
        Ok(Some(Self { file, salts, big, sum, header: [0; FRAME_HEADER], page }))
    }

    fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        self.file.read_exact(&mut self.header)?;
        self.file.read_exact(&mut self.page)?;
        let sum = checksum(checksum(self.sum, &self.header[..8], self.big), &self.page, self.big);
        if self.header[8..16] != self.salts || number(&self.header, 0) == 0 || sum != pair(&self.header, 16) {
            return Ok(None);
        }
        self.sum = sum;
        Ok(Some(Frame { page: &self.page, commits: number(&self.header, 4) > 0 }))
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_be_bytes(four.unwrap_or_default())
}

fn pair(bytes: &[u8], at: usize) -> (u32, u32) {
    (number(bytes, at), number(bytes, at + 4))
}

/// As SQLite computes it, over pairs of numbers in the byte order that the log names.
fn checksum(before: (u32, u32), bytes: &[u8], big: bool) -> (u32, u32) {
    let word = |four: &[u8]| {
        let four = four.try_into().unwrap_or_default();
        if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    bytes.chunks_exact(8).fold(before, |(first, second), eight| {
        let first = first.wrapping_add(word(&eight[..4])).wrapping_add(second);
        (first, second.wrapping_add(word(&eight[4..])).wrapping_add(first))
    })
}
