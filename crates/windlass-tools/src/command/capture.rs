//! Reads the output of a command, within limits.

use std::io;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use windlass::Call;

use super::Redact;

/// Bytes that are shown of one line of standard error.
const LINE: usize = 4 << 10;

/// Bytes that are shown of standard error in total; the rest is read and discarded.
const SHOWN: usize = 256 << 10;

/// Bytes at the end of standard error that an error message includes.
const TAIL: usize = 2 << 10;

/// The output so far. Kept outside of the reading futures, so that it survives when they are dropped.
#[derive(Default)]
pub(super) struct CapturedOutput {
    pub(super) stdout: Vec<u8>,
    pub(super) printed: u64,
    pub(super) stderr_tail: String,
    /// The launcher's message, if it could not become the command.
    pub(super) refusal: Option<String>,
}

/// Writes all of the input, or as much as the command reads.
pub(super) async fn feed(mut pipe: pipe::Sender, bytes: Vec<u8>) {
    // A command that closes its standard input does not need the arguments.
    let _ = pipe.write_all(&bytes).await;
}

/// Reads standard output to its end, and keeps up to `most` bytes.
pub(super) async fn collect(
    mut pipe: pipe::Receiver,
    most: usize,
    captured: &Mutex<CapturedOutput>,
    call: &Call,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = pipe.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        call.heartbeat();
        let mut captured = captured.lock();
        captured.printed += count as u64;
        let room = most.saturating_sub(captured.stdout.len()).min(count);
        captured.stdout.extend_from_slice(&buffer[..room]);
    }
}

/// Reads standard error to its end, and passes on its lines.
pub(super) struct StderrReader<'a> {
    pub(super) captured: &'a Mutex<CapturedOutput>,
    pub(super) redact: Option<&'a Redact>,
    /// The prefix of the launcher's own messages.
    pub(super) nonce: &'a str,
    pub(super) on_line: &'a (dyn Fn(&str) + Send + Sync),
}

impl StderrReader<'_> {
    pub(super) async fn read(&self, mut pipe: pipe::Receiver) -> io::Result<()> {
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
            self.captured.lock().refusal = Some(refusal.trim().to_owned());
            return 0;
        }
        let mut line = self.redact.map_or_else(|| line.to_owned(), |redact| redact(line));
        if cut {
            line.push_str(" … (line truncated)");
        }
        if !line.is_empty() {
            (self.on_line)(&line);
        }
        self.remember(&line);
        line.len()
    }

    fn remember(&self, line: &str) {
        let mut captured = self.captured.lock();
        let tail = &mut captured.stderr_tail;
        tail.push_str(line);
        tail.push('\n');
        if tail.len() > TAIL {
            let mut from = tail.len() - TAIL;
            while !tail.is_char_boundary(from) {
                from += 1;
            }
            tail.drain(..from);
        }
    }
}

/// Splits any bytes into lines. A line that is too long is truncated, and lines beyond the total limit are dropped.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
    /// The rest of this line is discarded.
    skipping: bool,
    shown: usize,
}

impl Lines {
    /// Calls `show` with each line and whether it was truncated; `show` returns the number of bytes it showed.
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
            show("… standard error is too long; the rest is not shown".as_bytes(), false);
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
    fn lines_are_the_same_however_the_bytes_are_split() {
        let whole = |lines: &[&str]| lines.iter().map(|line| ((*line).to_owned(), false)).collect::<Vec<_>>();
        assert_eq!(split(&[b"a\nb\n"]), whole(&["a", "b"]));
        assert_eq!(split(&[b"a", b"b\n", b"\nc"]), whole(&["ab", "", "c"]));
        assert_eq!(split(&[]), whole(&[]));
    }

    #[test]
    fn a_long_line_is_truncated_and_the_next_is_whole() {
        let long = vec![b'x'; 3 * LINE];
        let seen = split(&[&long, &long, b"\nnext\n"]);
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].0.len(), seen[0].1), (LINE, true));
        assert_eq!(seen[1], ("next".to_owned(), false));
        let exact = [vec![b'y'; LINE], b"\n".to_vec()].concat();
        assert_eq!(split(&[&exact]), [("y".repeat(LINE), false)]);
    }

    #[test]
    fn output_beyond_the_limit_ends_with_a_notice() {
        let flood = b"0123456789\n".repeat(SHOWN);
        let seen = split(&[&flood]);
        assert!(seen.last().unwrap().0.contains("not shown"));
        assert!(seen.len() * 11 <= SHOWN + 100, "{}", seen.len());
    }
}
