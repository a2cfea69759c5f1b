//! **Replay check**: runs a stored journal against the code of today without touching the store and without performing
//! anything. It has a kernel of its own, over a store that keeps nothing and an executor that runs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::future::BoxFuture;

use crate::activity::watchers::Watchers;
use crate::admit::Admission;
use crate::call::Reach;
use crate::env::Env;
use crate::id::{Mint, RunId, WorkerId};
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::Run;
use crate::run::check::{Check, checkable};
use crate::run::machine::{Machine, TakenUp};
use crate::run::record::Record;
use crate::run::state::{Hold, RunInfo};
use crate::spawn::Spawn;
use crate::store::{
    Access, Answer, ArtifactId, Artifacts, Claimant, Claimed, Commit, Driving, Due, Entry, Filter, KeyPlace, Mail,
    Mailboxes, Queries, Store, StoreError, Stored, Swept, Upkeep, Upload,
};
use crate::time::Timestamp;
use crate::worker::Lease;

/// How often a body that wakes itself is polled; one that does it more often waits for something that is no operation.
const POLLS: usize = 1_000;

/// What a check of many runs came to. Only so many sentences are kept; the counts are of all.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Runs whose journal fits.
    pub fits: usize,
    /// Runs that would be held.
    pub held: usize,
    /// Runs whose journal cannot be read.
    pub unreadable: usize,
    /// The first runs that do not fit, each with the sentence that says why.
    pub first: Vec<(RunId, String)>,
}

impl Checks {
    /// Sentences kept.
    const KEPT: usize = 20;

    pub(crate) fn add(&mut self, run: RunId, check: Result<Check, StoreError>) {
        let sentence = match check {
            Ok(Check::Fits { .. }) => {
                self.fits += 1;
                return;
            }
            Ok(Check::Held(hold)) => {
                self.held += 1;
                hold.to_string()
            }
            Err(error) => {
                self.unreadable += 1;
                error.to_string()
            }
        };
        if self.first.len() < Self::KEPT {
            self.first.push((run, sentence));
        }
    }
}

/// Checks one journal, the one of the run's latest generation.
pub(crate) fn check(kernel: &Kernel, info: RunInfo, journal: Vec<Record>) -> Check {
    let kernel = Arc::new(aside(kernel));
    let base = (kernel.env.clock.now(), kernel.env.clock.ticks());
    let seq = journal.len() as u64;
    let claimed = Claimed {
        epoch: info.epoch,
        generation: info.generation,
        seq,
        records: checkable(journal),
        mail: Vec::new(),
        owners_dead: true,
        orderly: true,
        last: WorkerId::default(),
        turn: false,
        session: info.session.clone(),
        parent: None,
        sealed: None,
        damaged: None,
    };
    let mut machine = Machine::claimed(info.run, claimed, base.0, TakenUp::Woken);
    machine.check_only();
    let run = Run::new(kernel.clone(), info.run, base, (info.session, false), machine);
    let scope = match kernel.scope_of(&run) {
        Ok(scope) => scope,
        Err(hold) => return Check::Held(hold),
    };
    let Some(mut root) = kernel.root_of(&run, scope) else {
        let problem = "the journal does not say what the run is".to_owned();
        return Check::Held(Hold::Undecodable { path: Path::root(), problem });
    };
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    for _ in 0..POLLS {
        let polled = root.poll(&mut Context::from_waker(&waker));
        if polled.is_ready() || !flag.0.swap(false, Ordering::AcqRel) || run.is_halted() {
            break;
        }
    }
    let check = run.with(|machine| machine.checked());
    // What is dropped with the check was not abandoned by its body.
    run.with(Machine::release);
    check
}

/// A kernel with the same rules, out of which nothing leads.
fn aside(kernel: &Kernel) -> Kernel {
    // A watcher of the run itself hears nothing of a check.
    let watchers = Arc::new(Watchers::new(kernel.env.clock.clone()));
    Kernel {
        env: Env { spawn: Arc::new(Nobody), mint: Arc::new(Mint::seeded(0)), ..kernel.env.clone() },
        admission: Admission::new(1),
        store: Arc::new(Nowhere),
        lease: Lease::new(WorkerId::default(), None),
        roster: Default::default(),
        rest: Default::default(),
        reach: Arc::new(Reach { signer: kernel.reach.signer.clone(), watchers }),
        watchdog: Default::default(),
        loops: Default::default(),
        on_threads: Default::default(),
        drives: true,
        closed: AtomicBool::new(false),
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs nothing.
struct Nobody;

impl Spawn for Nobody {
    fn spawn(&self, _: BoxFuture<'static, ()>) {}

    fn spawn_cpu(&self, _: BoxFuture<'static, ()>) {}
}

/// Keeps nothing, and has nothing.
struct Nowhere;

fn none<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, StoreError>> {
    let why = "a check of a journal reads and writes nothing".to_owned();
    Box::pin(std::future::ready(Err(StoreError::Unavailable(why))))
}

impl Driving for Nowhere {
    fn commit(&self, _: Commit) -> Answer<()> {
        Answer::Ready(Ok(()))
    }

    fn claim(&self, _: RunId, _: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        none()
    }

    fn release(&self, _: RunId, _: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        none()
    }

    fn renew(&self, _: WorkerId, _: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        none()
    }

    fn due(&self, _: Timestamp, _: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        none()
    }

    fn key_places(&self) -> BoxFuture<'_, Result<Vec<(RunId, KeyPlace)>, StoreError>> {
        none()
    }

    fn mail_of_many(&self, _: Vec<(RunId, u64)>) -> BoxFuture<'_, Result<Mailboxes, StoreError>> {
        none()
    }

    fn mail(&self, _: RunId, _: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        none()
    }
}

impl Queries for Nowhere {
    fn info(&self, _: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        none()
    }

    fn journal(&self, _: RunId, _: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        none()
    }

    fn feed(&self, _: Arc<str>, _: u64, _: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>> {
        none()
    }

    fn list(&self, _: Filter, _: Option<RunId>, _: usize) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        none()
    }
}

impl Upkeep for Nowhere {
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Store for Nowhere {
    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn secret(&self) -> [u8; 32] {
        [0; 32]
    }
}

impl Artifacts for Nowhere {
    fn begin(&self, _: Access, _: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>> {
        none()
    }

    fn append(&self, _: Upload, _: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>> {
        none()
    }

    fn finish(&self, _: Upload, _: Arc<str>) -> BoxFuture<'_, Result<Stored, StoreError>> {
        none()
    }

    fn abandon(&self, _: Upload) {}

    fn size(&self, _: ArtifactId, _: Access) -> BoxFuture<'_, Result<u64, StoreError>> {
        none()
    }

    fn media_type(&self, _: ArtifactId, _: Access) -> BoxFuture<'_, Result<Option<Arc<str>>, StoreError>> {
        none()
    }

    fn read(&self, _: ArtifactId, _: Access, _: u64, _: usize) -> BoxFuture<'_, Result<Vec<u8>, StoreError>> {
        none()
    }

    fn sweep(&self, _: Timestamp, _: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        none()
    }
}
