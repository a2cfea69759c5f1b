//! A store wrapper that reports commits.

use std::sync::Arc;

use super::{Around, Asked, Request};
use crate::store::{Answer, Commit, Promise, Store};

/// Passes everything on to another store, and calls a function before every commit and after its answer.
pub struct Watched<F> {
    inner: Arc<dyn Store>,
    tell: F,
}

impl<F: Fn(&str) + Clone + Send + Sync + 'static> Watched<F> {
    /// `tell` is called with `before commit` and `after commit`.
    pub fn new(inner: Arc<dyn Store>, tell: F) -> Self {
        Self { inner, tell }
    }
}

impl<F: Fn(&str) + Clone + Send + Sync + 'static> Around for Watched<F> {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        (self.tell)("before commit");
        match self.inner.commit(commit) {
            Answer::Ready(answer) => {
                (self.tell)("after commit");
                Answer::Ready(answer)
            }
            Answer::Wait(ticket) => {
                let (promise, outer) = Promise::pair();
                let tell = self.tell.clone();
                ticket.then(move |answer| {
                    tell("after commit");
                    promise.answer(answer);
                });
                Answer::Wait(outer)
            }
        }
    }

    /// Also called with `before write` and `after write` around writes to sessions and connections.
    fn ask<'a, T: Send + 'a>(
        &'a self,
        request: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        if !matches!(request, Request::WriteSession | Request::WriteConnection) {
            return ask(&*self.inner);
        }
        Box::pin(async move {
            (self.tell)("before write");
            let answer = ask(&*self.inner).await;
            (self.tell)("after write");
            answer
        })
    }
}
