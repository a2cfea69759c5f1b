//! A reader for server-sent events.

use axum::body::Body;
use http_body_util::BodyExt;

use crate::exit::{Exit, Failure, Result};

/// The size limit of one event, above that of any event the server sends.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The position to continue after; empty for an event that is not recorded.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Its data.
    pub data: String,
}

/// A stream of events.
pub struct Events {
    body: Body,
    parser: Parser,
}

impl Events {
    pub(super) fn new(body: Body) -> Self {
        Self { body, parser: Parser::default() }
    }

    /// The next event; `None` once the stream ended or was interrupted.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let Ok(frame) = frame else { return Ok(None) };
            if let Ok(data) = frame.into_data() {
                self.parser.feed(&data)?;
            }
        }
    }
}

/// Parses events from chunks of bytes.
#[derive(Default)]
struct Parser {
    buffer: Vec<u8>,
    /// How many bytes of the buffer are parsed.
    read: usize,
    /// The event whose fields are being read.
    open: Event,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.drain(..std::mem::take(&mut self.read));
        if self.buffer.len() + bytes.len() + self.open.data.len() > MOST_BYTES {
            return Err(Failure::new(Exit::Unreachable, "the server sent an event that is too large"));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            let rest = &self.buffer[self.read..];
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let line = String::from_utf8_lossy(&rest[..end]);
            let line = line.trim_end_matches('\r').to_owned();
            self.read += end + 1;
            if line.is_empty() {
                let event = std::mem::take(&mut self.open);
                // A comment alone is a keep-alive.
                if event != Event::default() {
                    return Some(event);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line.as_str(), ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.open.id = value.to_owned(),
                "event" => self.open.kind = value.to_owned(),
                "data" => {
                    if !self.open.data.is_empty() {
                        self.open.data.push('\n');
                    }
                    self.open.data.push_str(value);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l23_events_are_parsed_from_chunks_of_any_size() {
        let text = ": hello\n\nid: 0.0\nevent: call_started\ndata: {\"a\":\ndata: \"ü\"}\n\n: beat\n\n\
                    event: progress\r\ndata: x\r\n\r\nevent: end\ndata:last\n\nid: 9.9\n";
        let expected = [("0.0", "call_started", "{\"a\":\n\"ü\"}"), ("", "progress", "x"), ("", "end", "last")];
        for step in [1, 2, 3, 7, 1_000] {
            let mut parser = Parser::default();
            let mut read = Vec::new();
            for bytes in text.as_bytes().chunks(step) {
                parser.feed(bytes).unwrap();
                read.extend(std::iter::from_fn(|| parser.next()));
            }
            let read: Vec<(&str, &str, &str)> =
                read.iter().map(|event| (event.id.as_str(), event.kind.as_str(), event.data.as_str())).collect();
            assert_eq!(read, expected, "chunks of {step}");
        }
    }

    #[test]
    fn an_event_above_the_size_limit_is_refused() {
        let mut parser = Parser::default();
        let line = vec![b'x'; MOST_BYTES + 1];
        assert!(parser.feed(&line).unwrap_err().message.contains("too large"));
    }
}
