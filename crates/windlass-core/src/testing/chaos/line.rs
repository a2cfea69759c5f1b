//! What connects a worker with the world: it may be cut at any moment, and the store behind it may fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::dice::Dice;
use super::model::Model;
use super::plant::{Plant, planted};
use crate::spawn::Spawn;
use crate::store::{Answer, Commit, Guard, Promise, Store, Ticket};
use crate::testing::reads::*;
use crate::testing::sim::{Sim, block_on};
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
        let answer = block_on(store.commit(commit).get());
        model.written(name, &asked, &answer);
        answer
    }

    fn unless_down<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a dyn Store) -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let answer = match self.line.is_down() || self.line.is_dead() {
            true => Err(StoreError::Unavailable("the line is down".to_owned())),
            false => block_on(ask(&*self.store)),
        };
        Box::pin(std::future::ready(answer))
    }

    /// The same of something that changes: it may have changed by the time the answer comes.
    fn slowly<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a dyn Store) -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let answer = self.unless_down(ask);
        if !self.line.rolls(6) {
            return answer;
        }
        let nap = Duration::from_micros(self.line.dice.lock().below(3_000));
        Box::pin(async move {
            self.line.sim.sleep(nap).await;
            answer.await
        })
    }
}

impl Store for Wire {
    fn commit(&self, commit: Commit) -> Answer<()> {
        let line = &self.line;
        if line.dies("before a commit") {
            return Answer::Wait(line.never());
        }
        let lost = |why: &str| Answer::Ready(Err(StoreError::Unknown(why.to_owned())));
        if line.is_down() {
            return lost("the line is down");
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

    fn claim(&self, run: RunId, by: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        self.unless_down(|store| {
            Box::pin(async move {
                let claimed = store.claim(run, by).await?;
                self.line.model.claimed(&self.line.name, run, &claimed);
                Ok(claimed)
            })
        })
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        self.unless_down(|store| store.release(run, epoch))
    }

    fn renew(&self, worker: WorkerId, until: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        self.unless_down(|store| store.renew(worker, until))
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        self.unless_down(|store| {
            Box::pin(async move {
                let mut due = store.due(now, limit).await?;
                // Which of them comes first is the store's own affair.
                due.runs.sort_unstable();
                Ok(due)
            })
        })
    }

    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        self.slowly(|store| store.info(run))
    }

    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.slowly(|store| store.journal(run, from))
    }

    fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.unless_down(|store| store.page(run, from, limit))
    }

    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>> {
        self.unless_down(|store| store.feed(session, after, limit))
    }

    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        self.slowly(|store| store.mail(run, after))
    }

    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        self.slowly(|store| store.list(filter, after, limit))
    }

    fn latest(
        &self,
        filter: Filter,
        before: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        self.unless_down(|store| store.latest(filter, before, limit))
    }

    fn keyed(&self, key: Arc<str>) -> BoxFuture<'_, Result<Option<RunId>, StoreError>> {
        self.unless_down(|store| store.keyed(key))
    }

    fn told(&self, run: RunId, dedupe: Arc<str>) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.unless_down(|store| store.told(run, dedupe))
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        self.unless_down(|store| store.counts())
    }

    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn tidy(&self, now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        self.unless_down(|store| store.tidy(now))
    }

    fn purge(&self, run: RunId, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        self.unless_down(|store| store.purge(run, now))
    }

    fn secret(&self) -> [u8; 32] {
        self.store.secret()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

impl Artifacts for Wire {
    fn begin(&self, by: Access, until: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>> {
        self.unless_down(|store| store.artifacts().begin(by, until))
    }

    fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.unless_down(|store| store.artifacts().append(upload, piece))
    }

    fn finish(&self, upload: Upload) -> BoxFuture<'_, Result<Stored, StoreError>> {
        self.unless_down(|store| store.artifacts().finish(upload))
    }

    fn abandon(&self, upload: Upload) {
        self.store.artifacts().abandon(upload);
    }

    fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.unless_down(|store| store.artifacts().size(artifact, by))
    }

    fn read(
        &self,
        artifact: ArtifactId,
        by: Access,
        offset: u64,
        length: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, StoreError>> {
        self.unless_down(|store| store.artifacts().read(artifact, by, offset, length))
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.unless_down(|store| store.artifacts().sweep(now, limit))
    }
}
