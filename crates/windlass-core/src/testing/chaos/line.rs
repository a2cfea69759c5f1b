//! What connects a worker with the world: it may be cut at any moment, and the store behind it may fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::dice::Dice;
use super::model::Model;
use super::plant::{Plant, planted};
use crate::id::RunId;
use crate::run::record::Event;
use crate::run::state::RunState;
use crate::spawn::Spawn;
use crate::store::{Answer, Change, Claimed, Commit, Due, Guard, Promise, Store, StoreError, Ticket};
use crate::testing::sim::{Sim, block_on};
use crate::testing::{Around, Asked, Request};
use crate::time::Clock;

/// The lifeline of one worker.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) sim: Sim,
    pub(super) model: Arc<Model>,
    dice: Mutex<Dice>,
    dead: AtomicBool,
    calm: AtomicBool,
    /// The store cannot be reached until then.
    down_until: Mutex<u64>,
    /// Answers that never come.
    graves: Mutex<Vec<Promise<()>>>,
    planted: Mutex<Planted>,
}

/// What planted bugs keep.
#[derive(Default)]
struct Planted {
    /// Commits that were acknowledged and not written.
    unwritten: Vec<Commit>,
    /// Runs that were claimed and have not said since what of them is in doubt.
    claimed: BTreeSet<RunId>,
}

/// What becomes of a commit.
enum Fate {
    Fine,
    /// Written at once or later, and answered later.
    Slow {
        written_late: bool,
        nap: Duration,
    },
    Refused,
    AnswerLost,
}

impl Line {
    pub(super) fn new(name: String, sim: Sim, model: Arc<Model>, dice: Dice) -> Self {
        Self {
            name,
            sim,
            model,
            dice: Mutex::new(dice),
            dead: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            down_until: Mutex::new(0),
            graves: Mutex::default(),
            planted: Mutex::default(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(super) fn cut(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Nothing fails any more.
    pub(super) fn calm_down(&self) {
        self.calm.store(true, Ordering::Release);
        *self.down_until.lock() = 0;
    }

    pub(super) fn fail_until(&self, ticks: u64) {
        *self.down_until.lock() = ticks;
    }

    /// Lets go of whoever waits for an answer.
    pub(super) fn close(&self) {
        self.graves.lock().clear();
    }

    /// Rolls the dice, unless it is calm.
    fn rolls(&self, one_in: u64) -> bool {
        !self.calm.load(Ordering::Acquire) && self.dice.lock().one_in(one_in)
    }

    /// Whether the worker dies here. Whoever is told so does nothing more.
    fn dies(&self, what: &str) -> bool {
        if self.is_dead() {
            return true;
        }
        if self.rolls(60) {
            self.model.say(format!("{} dies {what}", self.name));
            self.cut();
        }
        self.is_dead()
    }

    fn never(&self) -> Ticket<()> {
        let (promise, ticket) = Promise::pair();
        self.graves.lock().push(promise);
        ticket
    }

    fn fate(&self) -> Fate {
        if self.calm.load(Ordering::Acquire) {
            return Fate::Fine;
        }
        let mut dice = self.dice.lock();
        match dice.below(40) {
            0 => Fate::Refused,
            1 => Fate::AnswerLost,
            2..=13 => Fate::Slow { written_late: dice.one_in(2), nap: Duration::from_micros(dice.below(3_000)) },
            _ => Fate::Fine,
        }
    }

    fn is_down(&self) -> bool {
        self.sim.ticks() < *self.down_until.lock()
    }

    /// An effect outside, around which anything may happen.
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
        let nap = match self.dice.lock().below(60) {
            0..=19 => Duration::from_millis(5),
            20 if !self.calm.load(Ordering::Acquire) => Duration::from_secs(50),
            21 if !self.calm.load(Ordering::Acquire) => Duration::from_secs(300),
            _ => return,
        };
        self.sim.sleep(nap).await;
    }
}

/// The store at the other end of a line. Whatever thread answers, it is waited for on the spot, and only the line makes
/// answers late: so a seed tells the same story on every store.
pub(super) struct Wire {
    pub(super) store: Arc<dyn Store>,
    pub(super) line: Arc<Line>,
}

impl Wire {
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

    /// Whether a planted bug acknowledges the commit before it is written.
    fn is_early(commit: &Commit) -> bool {
        let has = |is: fn(&Change) -> bool| commit.changes.iter().any(is);
        let intends = |change: &Change| match change {
            Change::Append(records) => records.iter().any(|record| matches!(record.event, Event::Intended { .. })),
            _ => false,
        };
        let ends = |change: &Change| matches!(change, Change::State(RunState::Finished { .. }));
        (planted(Plant::SkipIntent) && has(intends)) || (planted(Plant::AnswerEarly) && has(ends))
    }

    /// Writes what was acknowledged before.
    fn catch_up(&self) {
        for commit in std::mem::take(&mut self.line.planted.lock().unwritten) {
            drop(Self::write(&*self.store, &self.line.model, &self.line.name, commit));
        }
    }

    /// The first word about doubts after a claim says that there are none.
    fn forget_doubts(&self, commit: &mut Commit) {
        let Guard::Owner { run, .. } = &commit.guard else { return };
        let doubts = commit.changes.iter_mut().find_map(|change| match change {
            Change::Doubts(doubts) => Some(doubts),
            _ => None,
        });
        if let Some(doubts) = doubts
            && self.line.planted.lock().claimed.remove(run)
        {
            doubts.clear();
        }
    }

    fn unless_down<'a, T: Send + 'a>(&'a self, ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T>) -> Asked<'a, T> {
        let answer = match self.line.is_down() || self.line.is_dead() {
            true => Err(StoreError::Unavailable("the line is down".to_owned())),
            false => block_on(ask(&*self.store)),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Around for Wire {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn commit(&self, commit: Commit) -> Answer<()> {
        let line = &self.line;
        if line.dies("before a commit") {
            return Answer::Wait(line.never());
        }
        let lost = |why: &str| Answer::Ready(Err(StoreError::Unknown(why.to_owned())));
        if line.is_down() {
            return lost("the line is down");
        }
        self.catch_up();
        let mut commit = commit;
        if planted(Plant::ForgetDoubts) {
            self.forget_doubts(&mut commit);
        }
        if Self::is_early(&commit) {
            line.planted.lock().unwritten.push(commit);
            return Answer::Ready(Ok(()));
        }
        match line.fate() {
            Fate::Refused => lost("a fault was asked for"),
            Fate::AnswerLost => {
                drop(Self::write(&*self.store, &line.model, &line.name, commit));
                lost("the answer was lost")
            }
            Fate::Fine => {
                let answer = Self::write(&*self.store, &line.model, &line.name, commit);
                if line.dies("after a commit") { Answer::Wait(line.never()) } else { Answer::Ready(answer) }
            }
            Fate::Slow { written_late, nap } => {
                let (promise, ticket) = Promise::pair();
                let (store, line, sim) = (self.store.clone(), self.line.clone(), self.line.sim.clone());
                let early = (!written_late).then(|| Self::write(&*store, &line.model, &line.name, commit.clone()));
                self.line.sim.spawn(Box::pin(async move {
                    sim.sleep(nap).await;
                    let late = || Self::write(&*store, &line.model, &line.name, commit);
                    let answer = early.unwrap_or_else(late);
                    if line.dies("after a slow commit") {
                        line.graves.lock().push(promise);
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
        // What was read may have changed by the time the answer comes.
        let changes = matches!(request, Request::Info | Request::Journal | Request::Mail | Request::List);
        if !(changes && self.line.rolls(6)) {
            return answer;
        }
        let nap = Duration::from_micros(self.line.dice.lock().below(3_000));
        Box::pin(async move {
            self.line.sim.sleep(nap).await;
            answer.await
        })
    }

    fn claimed(&self, run: RunId, claimed: &Claimed) {
        self.line.model.claimed(&self.line.name, run, claimed);
        self.line.planted.lock().claimed.insert(run);
    }

    fn found(&self, mut due: Due) -> Due {
        // Which of them comes first is the store's own affair.
        due.runs.sort_unstable();
        due
    }
}
