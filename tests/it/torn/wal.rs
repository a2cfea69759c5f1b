//! Just enough of SQLite's write-ahead log to find the ends of its frames.

use std::path::{Path, PathBuf};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// The log beside a database file, as it was at one moment.
pub(super) struct Wal {
    pub(super) bytes: Vec<u8>,
    page: usize,
}

pub(super) fn wal_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

impl Wal {
    pub(super) fn read(database: &Path) -> Self {
        let bytes = std::fs::read(wal_path(database)).expect("the log is there");
        let page = if bytes.is_empty() { 0 } else { number(&bytes, 8) };
        Self { bytes, page }
    }

    /// The identity of the log, which changes when it is restarted.
    pub(super) fn salts(&self) -> &[u8] {
        self.bytes.get(16..24).unwrap_or_default()
    }

    /// The beginning and end of each frame. Remains of an earlier log after the last frame do not belong to it.
    pub(super) fn frames(&self) -> Vec<(usize, usize)> {
        let mut frames = Vec::new();
        let mut at = HEADER;
        while self.page > 0
            && at + FRAME_HEADER + self.page <= self.bytes.len()
            && &self.bytes[at + 8..at + 16] == self.salts()
        {
            let end = at + FRAME_HEADER + self.page;
            frames.push((at, end));
            at = end;
        }
        frames
    }

    /// The end of the last transaction.
    pub(super) fn end(&self) -> usize {
        let is_last = |frame: &&(usize, usize)| number(&self.bytes, frame.0 + 4) > 0;
        self.frames().iter().rfind(is_last).map_or(HEADER, |frame| frame.1)
    }
}

fn number(bytes: &[u8], at: usize) -> usize {
    let four: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    usize::try_from(u32::from_be_bytes(four)).expect("it is small")
}
