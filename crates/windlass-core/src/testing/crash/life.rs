//! One life of a process, and its view of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::store::{Answer, Commit, Promise, Store, Ticket};
use crate::testing::sim::Sim;
use crate::testing::{Around, Asked, Request};

/// One life of the process.
pub(super) struct ProcessLife {
    pub(super) sim: Sim,
    die_at: Option<usize>,
    passed: AtomicUsize,
    dead: AtomicBool,
    buried: AtomicBool,
    pub(super) log: Mutex<Vec<String>>,
    /// Promises that are never answered.
    unanswered: Mutex<Vec<Promise<()>>>,
}

impl ProcessLife {
    /// A life that ends at this crash point, or by itself.
    pub(super) fn new(sim: Sim, die_at: Option<usize>) -> Self {
        Self {
            sim,
            die_at,
            passed: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            buried: AtomicBool::new(false),
            log: Mutex::default(),
            unanswered: Mutex::default(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Called when the poll in which the process died has returned.
    pub(super) fn last_poll_ended(&self) {
        self.buried.store(true, Ordering::Release);
    }

    /// The log of this life so far.
    pub(super) fn log_text(&self) -> String {
        self.log.lock().join("\n  ")
    }

    /// Drops the promises that are never answered, and returns the log.
    pub(super) fn close(&self) -> Vec<String> {
        self.unanswered.lock().clear();
        std::mem::take(&mut self.log.lock())
    }

    /// Counts a crash point; true if the process dies at it.
    fn dies(&self, what: &str) -> bool {
        if self.dead.load(Ordering::Acquire) {
            // The poll in which the process died cannot be interrupted, but nothing of it reaches the outside. Anything
            // after that poll is an error.
            if self.buried.load(Ordering::Acquire) {
                self.log.lock().push(format!("AFTER DEATH: {what}"));
            }
            return true;
        }
        let index = self.passed.fetch_add(1, Ordering::AcqRel);
        self.log.lock().push(what.to_owned());
        if self.die_at != Some(index) {
            return false;
        }
        self.dead.store(true, Ordering::Release);
        self.sim.kill();
        true
    }

    pub(super) async fn pass(&self, what: &str) {
        if self.dies(what) {
            std::future::pending::<()>().await;
        }
    }

    fn never(&self) -> Ticket<()> {
        let (promise, ticket) = Promise::pair();
        self.unanswered.lock().push(promise);
        ticket
    }
}

/// The store of a process that may die at any commit.
pub(super) struct MortalStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) life: Arc<ProcessLife>,
}

impl Around for MortalStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        // After its death the process still runs to the end of the poll, but its commits do not reach the disk.
        if self.life.dead.load(Ordering::Acquire) || self.life.dies("before commit") {
            return Answer::Wait(self.life.never());
        }
        match self.inner.commit(commit) {
            Answer::Ready(_) if self.life.dies("after commit") => Answer::Wait(self.life.never()),
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Wait(ticket) => {
                let (promise, outer) = Promise::pair();
                let life = self.life.clone();
                ticket.then(move |answer| {
                    if life.dead.load(Ordering::Acquire) || life.dies("after commit") {
                        life.unanswered.lock().push(promise);
                    } else {
                        promise.answer(answer);
                    }
                });
                Answer::Wait(outer)
            }
        }
    }

    /// Writes other than commits: the process may die before them, or after them without getting the answer.
    fn ask<'a, T: Send + 'a>(
        &'a self,
        request: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        let what = match request {
            Request::BeginUpload => "the beginning of an upload",
            Request::AppendUpload => "a piece of an upload",
            Request::FinishUpload => "the end of an upload",
            Request::ClaimDue => "a claim of due runs",
            Request::WriteSession => "a write to a session",
            Request::WriteConnection => "a write to a connection",
            _ => return ask(&*self.inner),
        };
        if self.life.is_dead() || self.life.dies(&format!("before {what}")) {
            return Box::pin(std::future::pending());
        }
        let written = ask(&*self.inner);
        Box::pin(async move {
            let answer = written.await;
            if self.life.is_dead() || self.life.dies(&format!("after {what}")) {
                std::future::pending::<()>().await;
            }
            answer
        })
    }
}
