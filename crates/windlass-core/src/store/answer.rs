//! Answers of a store that are available at once (memory) or later (disk), without a future in the first case.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::StoreError;

/// The answer to a write.
pub enum Answer<T> {
    /// The store has answered.
    Ready(Result<T, StoreError>),
    /// The store will answer through the ticket.
    Wait(Ticket<T>),
}

/// The state that both ends of an answer share.
enum AnswerState<T> {
    Open(Option<Waker>),
    Callback(Box<dyn FnOnce(Result<T, StoreError>) + Send>),
    Answered(Option<Result<T, StoreError>>),
}

/// The waiting end of an answer. Await it, or register a callback with [`then`](Ticket::then). Dropping it does not
/// undo the write.
pub struct Ticket<T>(Arc<Mutex<AnswerState<T>>>);

/// The answering end, which the store keeps. Dropping it without an answer answers [`StoreError::Unknown`].
pub struct Promise<T>(Option<Arc<Mutex<AnswerState<T>>>>);

impl<T> Promise<T> {
    /// Creates both ends of an answer.
    pub fn pair() -> (Self, Ticket<T>) {
        let state = Arc::new(Mutex::new(AnswerState::Open(None)));
        (Self(Some(state.clone())), Ticket(state))
    }

    /// Sends the answer.
    pub fn answer(mut self, result: Result<T, StoreError>) {
        self.complete(result);
    }

    fn complete(&mut self, result: Result<T, StoreError>) {
        let Some(shared) = self.0.take() else { return };
        let mut state = shared.lock();
        match std::mem::replace(&mut *state, AnswerState::Answered(None)) {
            AnswerState::Callback(callback) => {
                drop(state);
                callback(result);
            }
            AnswerState::Open(waker) => {
                *state = AnswerState::Answered(Some(result));
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            AnswerState::Answered(_) => {}
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.complete(Err(StoreError::Unknown("the store stopped before it answered the request".to_owned())));
    }
}

impl<T> Ticket<T> {
    /// Whether the answer has arrived.
    pub fn is_answered(&self) -> bool {
        matches!(*self.0.lock(), AnswerState::Answered(_))
    }

    /// Calls `callback` with the answer: at once if it has arrived, otherwise on the thread that answers.
    pub fn then(self, callback: impl FnOnce(Result<T, StoreError>) + Send + 'static) {
        let mut state = self.0.lock();
        if let AnswerState::Answered(result) = &mut *state {
            if let Some(result) = result.take() {
                drop(state);
                callback(result);
            }
            return;
        }
        *state = AnswerState::Callback(Box::new(callback));
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let AnswerState::Answered(result) = &mut *state
            && let Some(result) = result.take()
        {
            return Poll::Ready(result);
        }
        *state = AnswerState::Open(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl<T> Answer<T> {
    /// Returns the answer, and waits for it if necessary. Dropping the future does not undo the write.
    pub async fn get(self) -> Result<T, StoreError> {
        match self {
            Self::Ready(result) => result,
            Self::Wait(ticket) => ticket.await,
        }
    }
}
