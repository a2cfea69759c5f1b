//! Answers that are there at once (memory) or come later (disk), without a future where none is needed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::StoreError;

/// What a store's write returns.
pub enum Answer<T> {
    /// Answered already.
    Ready(Result<T, StoreError>),
    /// Answered through the ticket.
    Wait(Ticket<T>),
}

enum State<T> {
    Open(Option<Waker>),
    Callback(Box<dyn FnOnce(Result<T, StoreError>) + Send>),
    Answered(Option<Result<T, StoreError>>),
}

/// The waiting end: a future, or the place for a callback.
pub struct Ticket<T>(Arc<Mutex<State<T>>>);

/// The answering end, which the store keeps. Dropping it unanswered answers "unknown".
pub struct Promise<T>(Option<Arc<Mutex<State<T>>>>);

impl<T> Promise<T> {
    /// Both ends of an answer.
    pub fn pair() -> (Self, Ticket<T>) {
        let state = Arc::new(Mutex::new(State::Open(None)));
        (Self(Some(state.clone())), Ticket(state))
    }

    /// Gives the answer.
    pub fn answer(mut self, result: Result<T, StoreError>) {
        self.complete(result);
    }

    fn complete(&mut self, result: Result<T, StoreError>) {
        let Some(shared) = self.0.take() else { return };
        let mut state = shared.lock();
        match std::mem::replace(&mut *state, State::Answered(None)) {
            State::Callback(callback) => {
                drop(state);
                callback(result);
            }
            State::Open(waker) => {
                *state = State::Answered(Some(result));
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            State::Answered(_) => {}
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.complete(Err(StoreError::Unknown("the store stopped before it answered".to_owned())));
    }
}

impl<T> Ticket<T> {
    /// Whether the answer is there already.
    pub fn is_answered(&self) -> bool {
        matches!(*self.0.lock(), State::Answered(_))
    }

    /// Calls `callback` with the answer, at once if it is there already, else on the thread that answers.
    pub fn then(self, callback: impl FnOnce(Result<T, StoreError>) + Send + 'static) {
        let mut state = self.0.lock();
        if let State::Answered(result) = &mut *state {
            if let Some(result) = result.take() {
                drop(state);
                callback(result);
            }
            return;
        }
        *state = State::Callback(Box::new(callback));
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let State::Answered(result) = &mut *state
            && let Some(result) = result.take()
        {
            return Poll::Ready(result);
        }
        *state = State::Open(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl<T> Answer<T> {
    /// The answer, awaited if need be.
    pub async fn get(self) -> Result<T, StoreError> {
        match self {
            Self::Ready(result) => result,
            Self::Wait(ticket) => ticket.await,
        }
    }
}
