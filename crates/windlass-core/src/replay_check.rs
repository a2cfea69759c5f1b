//! **Replay check**: runs a stored journal against today's code without touching the store and without performing
//! anything. It drives the run like any other driver, but in a kernel of its own: its store is empty and never written
//! to, and its executor runs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::future::BoxFuture;

use crate::activity::watchers::Watchers;
use crate::admit::Admission;
use crate::attribution::Attribution;
use crate::call::Reach;
use crate::drives::DriveScope;
use crate::env::Env;
use crate::id::{Mint, RunId, WorkerId};
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::check::{Check, checkable};
use crate::run::machine::{Machine, TakenUp};
use crate::run::record::Record;
use crate::run::state::{Hold, RunInfo};
use crate::run::{Belongs, Run};
use crate::spawn::Spawn;
use crate::store::{Claimed, MemoryStore, StoreError};
use crate::tool::LiveTools;
use crate::worker::Lease;

/// How often a body that wakes itself is polled. A body that wakes itself more often waits for something that is not an
/// operation.
const POLLS: usize = 1_000;

/// The result of checking many runs. The counts cover all runs; only the first sentences are kept.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Runs whose journal fits the code.
    pub fits: usize,
    /// Runs that would be held.
    pub held: usize,
    /// Runs whose journal cannot be read.
    pub unreadable: usize,
    /// The first runs that do not fit, each with a sentence that says why.
    pub first: Vec<(RunId, String)>,
}

impl Checks {
    /// How many sentences are kept.
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

/// Checks one journal, that of the run's latest generation.
pub(crate) fn check(kernel: &Kernel, info: RunInfo, journal: Vec<Record>, tools: Option<Arc<LiveTools>>) -> Check {
    let kernel = Arc::new(isolated_kernel(kernel));
    let base = (kernel.env.clock.now(), kernel.env.clock.ticks());
    let seq = journal.len() as u64;
    let claimed = Claimed {
        epoch: info.epoch,
        generation: info.generation,
        seq,
        records: checkable(journal),
        mail: Vec::new(),
        mailed: 0,
        owners_dead: true,
        was_running: true,
        places: Vec::new(),
        orderly: true,
        last: WorkerId::default(),
        turn: false,
        session: info.session.clone(),
        principal: None,
        cause: None,
        parent: None,
        sealed: None,
        damaged: None,
    };
    let mut machine = Machine::claimed(info.run, claimed, base.0, TakenUp::Woken);
    machine.check_only();
    let belongs = Belongs { attribution: Attribution::of(&info), session: info.session, is_turn: false };
    let run = Run::new(kernel.clone(), info.run, base, belongs, machine);
    let scope = match kernel.scope_of(&run, tools) {
        Ok(scope) => scope,
        Err(hold) => return Check::Held(hold),
    };
    let Some(mut root) = kernel.root_of(&run, scope) else {
        let problem = "the journal does not record the root call".to_owned();
        return Check::Held(Hold::Undecodable { path: Path::root(), problem });
    };
    let flag = Arc::new(WakeFlag::default());
    let waker = Waker::from(flag.clone());
    for _ in 0..POLLS {
        let polled = root.poll(&mut Context::from_waker(&waker));
        if polled.is_ready() || !flag.0.swap(false, Ordering::AcqRel) || run.is_halted() {
            break;
        }
    }
    let check = run.with(|machine| machine.checked());
    // Released first, so that the operations dropped with the check do not count as abandoned by their body.
    run.with(Machine::release);
    check
}

/// A kernel with the same tools and rules that has no effect outside of itself.
fn isolated_kernel(kernel: &Kernel) -> Kernel {
    // Watchers of the run itself are not told about a check.
    let watchers = Arc::new(Watchers::new(kernel.env.clock.clone()));
    let store = Arc::new(MemoryStore::default());
    Kernel {
        env: Env { spawn: Arc::new(NoSpawn), mint: Arc::new(Mint::seeded(0)), ..kernel.env.clone() },
        admission: Admission::new(1, false),
        store: store.clone(),
        lease: Lease::new(WorkerId::default(), None),
        roster: Default::default(),
        undriven: Default::default(),
        reach: Arc::new(Reach { signer: kernel.reach.signer.clone(), watchers, store }),
        watchdog: Default::default(),
        on_threads: Default::default(),
        drives: DriveScope::All,
        closed: AtomicBool::new(false),
    }
}

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// An executor that runs nothing.
struct NoSpawn;

impl Spawn for NoSpawn {
    fn spawn(&self, _: BoxFuture<'static, ()>) {}

    fn spawn_cpu(&self, _: BoxFuture<'static, ()>) {}
}
