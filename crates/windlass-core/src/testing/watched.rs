//! A store that says when it is written to.

use std::sync::Arc;

use super::reads::*;
use crate::store::{Answer, Commit, Promise, Store};

/// Passes everything on to another store and calls a function before every commit and after its answer.
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

impl<F: Fn(&str) + Clone + Send + Sync + 'static> Store for Watched<F> {
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

    fn artifacts(&self) -> &dyn Artifacts {
        self.inner.artifacts()
    }

    delegate_reads!(inner, std::convert::identity);
}
