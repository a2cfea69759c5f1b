//! Whoever answers, decides, connects, signals and cancels from outside, while the process may die at any moment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use serde_json::Value;

use super::Ledger;
use super::life::Life;
use crate::id::RunId;
use crate::run::state::{Blocked, RunState};
use crate::runtime::{Awaited, Resolved, Runtime};
use crate::store::{Filter, Resolution};
use crate::testing::sim::block_on;
use crate::time::Clock;

/// The world outside a process: it gets a turn whenever nothing else can move without time passing, in every life again.
///
/// What it says counts once: it answers only what waits, and signals and cancels once in each life of the process, as
/// a sender does who cannot know what became of a message and sends it again.
pub struct Outside<'m> {
    pub(super) life: &'m Life,
    pub(super) runtime: &'m Runtime,
    pub(super) ledger: &'m Ledger,
    /// What was said in this life already.
    pub(super) said: &'m RefCell<BTreeSet<String>>,
    /// Whether anything was said in this turn that was not said before.
    pub(super) acted: Cell<bool>,
}

impl Outside<'_> {
    /// What the world outside keeps.
    pub fn ledger(&self) -> &Ledger {
        self.ledger
    }

    /// How long the story has been going on.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.life.sim.ticks())
    }

    /// The run that the scenario's calls started, once there is one.
    pub fn root(&self) -> Option<RunId> {
        block_on(root(self.runtime))
    }

    /// Everything that waits for a person or another system.
    pub fn inbox(&self) -> Vec<Awaited> {
        block_on(self.runtime.inbox()).unwrap_or_default()
    }

    /// Answers every wait and pending call of this name.
    pub fn answer(&self, name: &str, value: Value) {
        for item in self.inbox() {
            if let (Blocked::Input { name: asked, .. }, Some(key)) = (&item.park.on, &item.key)
                && **asked == *name
            {
                self.resolve(key, Resolution::Ok { value: value.clone() });
            }
        }
    }

    /// Answers by reply key.
    pub fn resolve(&self, key: &str, resolution: Resolution) -> Option<Resolved> {
        let key = key.to_owned();
        let told = self.act(move |runtime| async move { runtime.resolve(&key, resolution).await })?.ok();
        self.acted.set(self.acted.get() || matches!(told, Some(Resolved::Accepted)));
        told
    }

    /// Decides about every call that waits for approval.
    pub fn decide(&self, granted: bool) {
        for Awaited { run, park, .. } in self.inbox() {
            let Blocked::Approval { digest, .. } = park.on else { continue };
            let decided = self.act(move |runtime| async move {
                runtime.decide(run, &park.path, &digest, granted, ("the outside", "as it was told")).await
            });
            self.acted.set(self.acted.get() || matches!(decided, Some(Ok(()))));
        }
    }

    /// Says that a provider is connected, to whoever waits for it; or why it will not be.
    pub fn connect(&self, provider: &str, refused: Option<&str>) {
        let waits = |item: &Awaited| matches!(&item.park.on, Blocked::Connection { provider: p } if **p == *provider);
        if self.inbox().iter().any(waits) {
            let (provider, refused) = (provider.to_owned(), refused.map(str::to_owned));
            let told = self.act(move |runtime| async move { runtime.connect(&provider, refused.as_deref()).await });
            self.acted.set(self.acted.get() || matches!(told, Some(Ok(1..))));
        }
    }

    /// Signals the scenario's run, once in each life; the key sees to it that it arrives once all the same.
    pub fn signal(&self, name: &str, value: Value, key: &str) {
        let Some(run) = self.root().filter(|_| self.is_new(&format!("signal {key}"))) else { return };
        let (name, key) = (name.to_owned(), key.to_owned());
        self.act(move |runtime| async move { runtime.signal(run, &name, value, Some(&key)).await });
    }

    /// Cancels the scenario's run, once in each life.
    pub fn cancel(&self, reason: &str) {
        let over = |run: RunId| {
            let info = block_on(self.runtime.info(run)).ok().flatten();
            info.is_none_or(|info| matches!(info.state, RunState::Finished { .. }))
        };
        let Some(run) = self.root().filter(|run| !over(*run) && self.is_new("cancel")) else { return };
        let reason = reason.to_owned();
        self.act(move |runtime| async move { runtime.cancel(run, "the outside", &reason).await });
    }

    /// Whether this was not said in this life of the process; from now on it was.
    pub fn is_new(&self, what: &str) -> bool {
        let new = self.said.borrow_mut().insert(what.to_owned());
        self.acted.set(self.acted.get() || new);
        new
    }

    /// Does anything else with the runtime. `None` if the process died before it was done.
    pub fn act<T, F>(&self, act: impl FnOnce(Runtime) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        if self.life.is_dead() {
            return None;
        }
        self.life.sim.block_on(act(self.runtime.clone()))
    }
}

/// The oldest run that no other one started.
pub(super) async fn root(runtime: &Runtime) -> Option<RunId> {
    let mut after = None;
    loop {
        let page = runtime.list(Filter::All, after, 64).await.unwrap_or_default();
        if let Some(root) = page.iter().find(|info| info.parent.is_none()) {
            return Some(root.run);
        }
        after = Some(page.last()?.run);
    }
}
