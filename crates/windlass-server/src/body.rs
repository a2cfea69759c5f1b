//! Response bodies: sent in chunks that are freed one by one, with permits that are held until the body is sent.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::{Body as _, Frame, SizeHint};

/// Bytes that are written to a connection at a time. They are copied into the connection's buffer, so this much of
/// every response exists twice.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Initial capacity of a buffer. Most responses fit, so their buffer is not reallocated.
const USUAL_BYTES: usize = 256;

/// A write buffer that is split into chunks of [`CHUNK_BYTES`].
#[derive(Default)]
pub(crate) struct ChunkBuffer {
    full: VecDeque<Bytes>,
    last: Vec<u8>,
}

impl ChunkBuffer {
    pub(crate) fn new() -> Self {
        Self { full: VecDeque::new(), last: Vec::with_capacity(USUAL_BYTES) }
    }

    pub(crate) fn into_body(self) -> Body {
        let Self { full: mut chunks, last } = self;
        if chunks.is_empty() {
            return Body::from(last);
        }
        chunks.push_back(last.into());
        let left = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Body::new(ChunkQueue { chunks, left })
    }
}

impl io::Write for ChunkBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.last.len());
        self.last.extend_from_slice(&bytes[..count]);
        if self.last.len() == CHUNK_BYTES {
            self.full.push_back(std::mem::take(&mut self.last).into());
            self.last.reserve_exact(CHUNK_BYTES);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body that is complete in memory and sent chunk by chunk.
struct ChunkQueue {
    chunks: VecDeque<Bytes>,
    /// Bytes that are not sent yet.
    left: u64,
}

impl hyper::body::Body for ChunkQueue {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let chunk = self.chunks.pop_front().filter(|chunk| !chunk.is_empty());
        self.left -= chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The exact size of a response's body, if it is known.
pub(crate) fn size(response: &Response) -> Option<u64> {
    response.body().size_hint().exact()
}

/// Keeps `held` alive until the response is sent, if sending takes more than one write.
pub(crate) fn hold_until_sent(held: impl Send + Unpin + 'static, response: Response) -> Response {
    match size(&response) {
        Some(size) if size <= CHUNK_BYTES as u64 => response,
        _ => response.map(|body| Body::new(HoldingBody { body, _held: held })),
    }
}

struct HoldingBody<H> {
    body: Body,
    _held: H,
}

impl<H: Unpin> hyper::body::Body for HoldingBody<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn e25_a_response_is_sent_in_chunks_and_has_an_exact_size() {
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES] {
            let text: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let mut buffer = ChunkBuffer::new();
            io::Write::write_all(&mut buffer, &text).unwrap();
            let mut body = buffer.into_body();
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut sent = Vec::new();
            while let Some(frame) = body.frame().await {
                let chunk = frame.unwrap().into_data().unwrap();
                assert!(chunk.len() <= CHUNK_BYTES);
                sent.extend_from_slice(&chunk);
            }
            assert!(sent == text, "{length}");
        }
    }
}
