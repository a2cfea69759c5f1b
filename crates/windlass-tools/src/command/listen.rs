//! Reading what a command prints, within bounds.

use std::io;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use windlass::Call;

use super::Redact;

/// What is shown of one line of standard error.
const LINE: usize = 4 << 10;

/// What is shown of standard error in all; the rest is read and thrown away.
const SHOWN: usize = 256 << 10;

/// What an error tells of it.
const LAST_WORDS: usize = 2 << 10;

/// What was heard so far. Kept outside of the reading, so that nothing is lost if that is given up.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) stdout: Vec<u8>,
    pub(super) printed: u64,
    pub(super) last_words: String,
    /// The launcher's own words, if it could not become the command.
    pub(super) refusal: Option<String>,
}

/// Writes all of it, or as much as the command wants to read.
pub(super) async fn feed(mut pipe: pipe::Sender, bytes: Vec<u8>) {
    // A command that does not read its arguments does not need them.
    let _ = pipe.write_all(&bytes).await;
}

/// Reads standard output to its end, and keeps what may be kept.
pub(super) async fn collect(
    mut pipe: pipe::Receiver,
    most: usize,
    heard: &Mutex<Heard>,
    call: &Call,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = pipe.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        call.heartbeat();
        let mut heard = heard.lock();
        heard.printed += count as u64;
        let room = most.saturating_sub(heard.stdout.len()).min(count);
        heard.stdout.extend_from_slice(&buffer[..room]);
    }
}

/// Reads standard error to its end: its lines go to whoever watches.
pub(super) struct Listener<'a> {
    pub(super) heard: &'a Mutex<Heard>,
    pub(super) redact: Option<&'a Redact>,
    /// What the launcher's own words begin with.
    pub(super) nonce: &'a str,
    pub(super) say: &'a (dyn Fn(&str) + Send + Sync),
}

impl Listener<'_> {
    pub(super) async fn listen(&self, mut pipe: pipe::Receiver) -> io::Result<()> {
        let mut buffer = vec![0; 4 << 10];
        let mut lines = Lines::default();
        loop {
            let count = pipe.read(&mut buffer).await?;
            if count == 0 {
                lines.end(|line, cut| self.line(line, cut));
                return Ok(());
            }
            lines.take(&buffer[..count], |line, cut| self.line(line, cut));
        }
    }

    fn line(&self, line: &[u8], cut: bool) -> usize {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\r');
        if let Some(refusal) = line.strip_prefix(self.nonce) {
            self.heard.lock().refusal = Some(refusal.trim().to_owned());
            return 0;
        }
        let mut line = self.redact.map_or_else(|| line.to_owned(), |redact| redact(line));
        if cut {
            line.push_str(" … (the line goes on)");
        }
        if !line.is_empty() {
            (self.say)(&line);
        }
        self.remember(&line);
        line.len()
    }

    fn remember(&self, line: &str) {
        let mut heard = self.heard.lock();
        let words = &mut heard.last_words;
        words.push_str(line);
        words.push('\n');
        if words.len() > LAST_WORDS {
            let mut from = words.len() - LAST_WORDS;
            while !words.is_char_boundary(from) {
                from += 1;
            }
            words.drain(..from);
        }
    }
}

/// Splits bytes into lines, whatever they are: a line without an end is cut, and too many are not shown.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
    /// The rest of this line is thrown away.
    skipping: bool,
    shown: usize,
}

impl Lines {
    /// `show` is given lines, and whether they were cut; it says how much it showed.
    fn take(&mut self, mut bytes: &[u8], mut show: impl FnMut(&[u8], bool) -> usize) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = match end {
                Some(end) => (&bytes[..end], &bytes[end + 1..]),
                None => (bytes, &bytes[bytes.len()..]),
            };
            if !self.skipping {
                let room = LINE.saturating_sub(self.open.len()).min(piece.len());
                self.open.extend_from_slice(&piece[..room]);
                if room < piece.len() {
                    self.flush(true, &mut show);
                    self.skipping = true;
                }
            }
            if end.is_some() && !std::mem::take(&mut self.skipping) {
                self.flush(false, &mut show);
            }
            bytes = rest;
        }
    }

    fn end(mut self, mut show: impl FnMut(&[u8], bool) -> usize) {
        if !self.open.is_empty() {
            self.flush(false, &mut show);
        }
    }

    fn flush(&mut self, cut: bool, show: &mut impl FnMut(&[u8], bool) -> usize) {
        let line = std::mem::take(&mut self.open);
        if self.shown > SHOWN {
            return;
        }
        self.shown += show(&line, cut) + 1;
        if self.shown > SHOWN {
            show("… it says more than can be shown; the rest is left out".as_bytes(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<(String, bool)> {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        let mut show = |line: &[u8], cut: bool| {
            seen.push((String::from_utf8_lossy(line).into_owned(), cut));
            line.len()
        };
        for piece in pieces {
            lines.take(piece, &mut show);
        }
        lines.end(&mut show);
        seen
    }

    #[test]
    fn lines_come_out_as_they_were_written_however_they_arrive() {
        let whole = |lines: &[&str]| lines.iter().map(|line| ((*line).to_owned(), false)).collect::<Vec<_>>();
        assert_eq!(split(&[b"a\nb\n"]), whole(&["a", "b"]));
        assert_eq!(split(&[b"a", b"b\n", b"\nc"]), whole(&["ab", "", "c"]));
        assert_eq!(split(&[]), whole(&[]));
    }

    #[test]
    fn a_line_without_end_is_cut_once_and_the_next_is_whole() {
        let long = vec![b'x'; 3 * LINE];
        let seen = split(&[&long, &long, b"\nnext\n"]);
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].0.len(), seen[0].1), (LINE, true));
        assert_eq!(seen[1], ("next".to_owned(), false));
        let exact = [vec![b'y'; LINE], b"\n".to_vec()].concat();
        assert_eq!(split(&[&exact]), [("y".repeat(LINE), false)]);
    }

    #[test]
    fn a_flood_ends_with_a_sentence() {
        let flood = b"0123456789\n".repeat(SHOWN);
        let seen = split(&[&flood]);
        assert!(seen.last().unwrap().0.contains("left out"));
        assert!(seen.len() * 11 <= SHOWN + 100, "{}", seen.len());
    }
}
