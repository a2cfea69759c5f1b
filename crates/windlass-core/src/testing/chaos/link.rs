//! The connection of a simulated worker to the store and to outside systems. It may break at any moment, and the store
//! may fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::model::Model;
use super::plant::{Plant, planted};
use super::rng::Rng;
use crate::id::RunId;
use crate::run::record::Event;
use crate::run::state::RunState;
use crate::spawn::Spawn;
use crate::store::{Answer, Change, Claimed, Commit, Guard, Promise, Store, StoreError, Ticket, Verdict};
use crate::testing::sim::{Sim, block_on};
use crate::testing::{Around, Asked, Request};
use crate::time::Clock;

/// The connection of one worker.
pub(super) struct WorkerLink {
    pub(super) name: String,
    pub(super) sim: Sim,
    pub(super) model: Arc<Model>,
    rng: Mutex<Rng>,
    dead: AtomicBool,
    calm: AtomicBool,
    /// Until when the store is unreachable.
    down_until: Mutex<u64>,
    /// Promises that are never answered.
    unanswered: Mutex<Vec<Promise<()>>>,
    planted: Mutex<PlantState>,
}

/// The state of planted bugs.
#[derive(Default)]
struct PlantState {
    /// Commits that were acknowledged but not written.
    unwritten: Vec<Commit>,
    /// Runs that were claimed and have not written their doubts since.
    claimed: BTreeSet<RunId>,
}

/// What happens to a commit.
enum CommitFate {
    Fine,
    /// Written at once or later, and answered later.
    Slow {
        written_late: bool,
        nap: Duration,
    },
    Refused,
    AnswerLost,
}

impl WorkerLink {
    pub(super) fn new(name: String, sim: Sim, model: Arc<Model>, rng: Rng) -> Self {
        Self {
            name,
            sim,
            model,
            rng: Mutex::new(rng),
            dead: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            down_until: Mutex::new(0),
            unanswered: Mutex::default(),
            planted: Mutex::default(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Stops injecting failures.
    pub(super) fn stop_failures(&self) {
        self.calm.store(true, Ordering::Release);
        *self.down_until.lock() = 0;
    }

    pub(super) fn fail_until(&self, ticks: u64) {
        *self.down_until.lock() = ticks;
    }

    /// Drops the promises that are never answered.
    pub(super) fn close(&self) {
        self.unanswered.lock().clear();
    }

    /// A random decision; always false once failures have stopped.
    fn happens(&self, one_in: u64) -> bool {
        !self.calm.load(Ordering::Acquire) && self.rng.lock().one_in(one_in)
    }

    /// Whether the worker dies at this point. The caller must not do anything more then.
    fn dies(&self, what: &str) -> bool {
        if self.is_dead() {
            return true;
        }
        if self.happens(60) {
            self.model.log_line(format!("{} dies {what}", self.name));
            self.kill();
        }
        self.is_dead()
    }

    fn never(&self) -> Ticket<()> {
        let (promise, ticket) = Promise::pair();
        self.unanswered.lock().push(promise);
        ticket
    }

    fn commit_fate(&self) -> CommitFate {
        if self.calm.load(Ordering::Acquire) {
            return CommitFate::Fine;
        }
        let mut rng = self.rng.lock();
        match rng.below(40) {
            0 => CommitFate::Refused,
            1 => CommitFate::AnswerLost,
            2..=13 => CommitFate::Slow { written_late: rng.one_in(2), nap: Duration::from_micros(rng.below(3_000)) },
            _ => CommitFate::Fine,
        }
    }

    fn is_down(&self) -> bool {
        self.sim.ticks() < *self.down_until.lock()
    }

    /// Performs an effect; the worker may die before or after it.
    pub(super) async fn effect(&self, name: &str, key: &str, once: bool) {
        self.pause().await;
        if self.dies(&format!("before the effect {name}")) {
            std::future::pending::<()>().await;
        }
        self.model.effect(&self.name, name, key, once);
        if self.dies(&format!("after the effect {name}")) {
            std::future::pending::<()>().await;
        }
        self.pause().await;
    }

    async fn pause(&self) {
        let nap = match self.rng.lock().below(60) {
            0..=19 => Duration::from_millis(5),
            20 if !self.calm.load(Ordering::Acquire) => Duration::from_secs(50),
            21 if !self.calm.load(Ordering::Acquire) => Duration::from_secs(300),
            _ => return,
        };
        self.sim.sleep(nap).await;
    }
}

/// The store at the other end of a connection. It waits for every answer on the spot, and only the connection delays
/// answers, so that the history of a seed is the same on every store.
pub(super) struct LinkedStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) link: Arc<WorkerLink>,
    /// Whether the worker uses the features that only some stores have: change notifications and shared admission.
    pub(super) notifies: bool,
}

impl LinkedStore {
    fn write(store: &dyn Store, model: &Model, name: &str, mut commit: Commit) -> Result<(), StoreError> {
        let asked = commit.clone();
        if planted(Plant::StaleEpoch)
            && let Guard::Owner { run, epoch, expected_seq } = &mut commit.guard
            && let Some((current, seq)) = model.owner(*run)
            && *epoch < current
        {
            (*epoch, *expected_seq) = (current, seq);
        }
        if planted(Plant::LoseExamined) {
            let examined = commit.changes.iter_mut().filter(|change| matches!(change, Change::Examined(_)));
            examined.for_each(|change| *change = Change::Examined(u64::MAX));
        }
        let answer = block_on(store.commit(commit).get());
        model.written(name, &asked, &answer);
        answer
    }

    /// Whether a planted bug acknowledges this commit before it is written.
    fn is_early(commit: &Commit) -> bool {
        let has = |is: fn(&Change) -> bool| commit.changes.iter().any(is);
        let intends = |change: &Change| match change {
            Change::Append(records) => records.iter().any(|record| matches!(record.event, Event::Intended { .. })),
            _ => false,
        };
        let ends = |change: &Change| matches!(change, Change::State(RunState::Finished { .. }));
        (planted(Plant::SkipIntent) && has(intends)) || (planted(Plant::AnswerEarly) && has(ends))
    }

    /// Writes the commits that were acknowledged before.
    fn catch_up(&self) {
        for commit in std::mem::take(&mut self.link.planted.lock().unwritten) {
            drop(Self::write(&*self.store, &self.link.model, &self.link.name, commit));
        }
    }

    /// Planted bug: clears the doubts of the first commit about them after a claim.
    fn forget_doubts(&self, commit: &mut Commit) {
        let Guard::Owner { run, .. } = &commit.guard else { return };
        let doubts = commit.changes.iter_mut().find_map(|change| match change {
            Change::Doubts(doubts) => Some(doubts),
            _ => None,
        });
        if let Some(doubts) = doubts
            && self.link.planted.lock().claimed.remove(run)
        {
            doubts.clear();
        }
    }

    fn unless_down<'a, T: Send + 'a>(&'a self, ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T>) -> Asked<'a, T> {
        let answer = match self.link.is_down() || self.link.is_dead() {
            true => Err(StoreError::Unavailable("the connection is down".to_owned())),
            false => block_on(ask(&*self.store)),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Around for LinkedStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        let link = &self.link;
        if link.dies("before a commit") {
            return Answer::Wait(link.never());
        }
        let lost = |why: &str| Answer::Ready(Err(StoreError::Unknown(why.to_owned())));
        if link.is_down() {
            return lost("the connection is down");
        }
        self.catch_up();
        let mut commit = commit;
        if planted(Plant::ForgetDoubts) {
            self.forget_doubts(&mut commit);
        }
        if Self::is_early(&commit) {
            link.planted.lock().unwritten.push(commit);
            return Answer::Ready(Ok(()));
        }
        match link.commit_fate() {
            CommitFate::Refused => lost("an injected fault"),
            CommitFate::AnswerLost => {
                drop(Self::write(&*self.store, &link.model, &link.name, commit));
                lost("the answer was lost")
            }
            CommitFate::Fine => {
                let answer = Self::write(&*self.store, &link.model, &link.name, commit);
                if link.dies("after a commit") { Answer::Wait(link.never()) } else { Answer::Ready(answer) }
            }
            CommitFate::Slow { written_late, nap } => {
                let (promise, ticket) = Promise::pair();
                let (store, link, sim) = (self.store.clone(), self.link.clone(), self.link.sim.clone());
                let early = (!written_late).then(|| Self::write(&*store, &link.model, &link.name, commit.clone()));
                self.link.sim.spawn(Box::pin(async move {
                    sim.sleep(nap).await;
                    let late = || Self::write(&*store, &link.model, &link.name, commit);
                    let answer = early.unwrap_or_else(late);
                    if link.dies("after a slow commit") {
                        link.unanswered.lock().push(promise);
                    } else {
                        promise.answer(answer);
                    }
                }));
                Answer::Wait(ticket)
            }
        }
    }

    fn ask<'a, T: Send + 'a>(
        &'a self,
        request: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        let answer = self.unless_down(ask);
        // The claim counts even if the worker does not get the answer.
        if matches!(request, Request::Claim | Request::ClaimDue | Request::Admission) && self.link.happens(30) {
            return Box::pin(async move {
                answer.await?;
                Err(StoreError::Unknown("the answer was lost".to_owned()))
            });
        }
        // The data may change before the answer arrives.
        let changes = matches!(request, Request::Info | Request::Journal | Request::Mail | Request::List);
        if !(changes && self.link.happens(6)) {
            return answer;
        }
        let nap = Duration::from_micros(self.link.rng.lock().below(3_000));
        Box::pin(async move {
            self.link.sim.sleep(nap).await;
            answer.await
        })
    }

    fn claimed(&self, run: RunId, claimed: &Claimed) {
        self.link.model.claimed(&self.link.name, run, claimed);
        self.link.planted.lock().claimed.insert(run);
    }

    fn decided(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Queued if planted(Plant::DoubleGrant) => Verdict::Granted,
            verdict => verdict,
        }
    }

    fn admits(&self) -> bool {
        self.notifies
    }

    fn tells(&self) -> bool {
        // Polling must suffice, so half of the workers get no notifications.
        self.notifies && self.link.happens(2)
    }
}
