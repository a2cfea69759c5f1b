//! Bodies of answers: in pieces that are let go of one by one, and with what is held until they are given.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::{Body as _, Frame, SizeHint};

/// What goes to a connection at a time. It is copied there, so that much of every answer exists twice.
pub(crate) const PIECE: usize = 64 << 10;

/// Most answers are not longer, so they need not be moved while they are written.
const USUAL_BYTES: usize = 256;

/// Text that is written from beginning to end, in pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    whole: VecDeque<Bytes>,
    last: Vec<u8>,
}

impl Pieces {
    pub(crate) fn new() -> Self {
        Self { whole: VecDeque::new(), last: Vec::with_capacity(USUAL_BYTES) }
    }

    pub(crate) fn into_body(self) -> Body {
        let Self { mut whole, last } = self;
        if whole.is_empty() {
            return Body::from(last);
        }
        whole.push_back(last.into());
        let left = whole.iter().map(|piece| piece.len() as u64).sum();
        Body::new(Queue { pieces: whole, left })
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE - self.last.len());
        self.last.extend_from_slice(&bytes[..count]);
        if self.last.len() == PIECE {
            self.whole.push_back(std::mem::take(&mut self.last).into());
            self.last.reserve_exact(PIECE);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body that is there already, a piece at a time.
struct Queue {
    pieces: VecDeque<Bytes>,
    left: u64,
}

impl hyper::body::Body for Queue {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let piece = self.pieces.pop_front().filter(|piece| !piece.is_empty());
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// How large the body of an answer is, where that is known.
pub(crate) fn size(response: &Response) -> Option<u64> {
    response.body().size_hint().exact()
}

/// Holds something until the answer is given, where that takes more than one write.
pub(crate) fn until_given(held: impl Send + Unpin + 'static, response: Response) -> Response {
    match size(&response) {
        Some(size) if size <= PIECE as u64 => response,
        _ => response.map(|body| Body::new(Given { body, _held: held })),
    }
}

struct Given<H> {
    body: Body,
    _held: H,
}

impl<H: Unpin> hyper::body::Body for Given<H> {
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
    async fn e25_an_answer_is_given_in_pieces_and_says_how_long_it_is() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE] {
            let text: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let mut pieces = Pieces::new();
            io::Write::write_all(&mut pieces, &text).unwrap();
            let mut body = pieces.into_body();
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut given = Vec::new();
            while let Some(frame) = body.frame().await {
                let piece = frame.unwrap().into_data().unwrap();
                assert!(piece.len() <= PIECE);
                given.extend_from_slice(&piece);
            }
            assert!(given == text, "{length}");
        }
    }
}
