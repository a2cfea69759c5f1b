//! Clients that answer, decide, connect, signal and cancel from outside, while the process may die at any moment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use serde_json::Value;

use super::Ledger;
use super::life::ProcessLife;
use crate::id::RunId;
use crate::run::state::{Blocked, RunState};
use crate::runtime::{Awaited, Connect, ReplyResult, Runtime};
use crate::store::{ConnectionKey, Credential, Filter, Resolution};
use crate::testing::sim::block_on;
use crate::time::Clock;

/// The outside of a process. It gets a turn whenever nothing can happen without time passing, in every life again.
///
/// It answers only what waits. It signals and cancels once in each life of the process, like a sender that does not
/// know whether its message arrived and sends it again.
pub struct Outside<'m> {
    pub(super) life: &'m ProcessLife,
    pub(super) runtime: &'m Runtime,
    pub(super) ledger: &'m Ledger,
    /// What was done in this life already.
    pub(super) done_before: &'m RefCell<BTreeSet<String>>,
    /// Whether anything new was done in this turn.
    pub(super) acted: Cell<bool>,
}

impl Outside<'_> {
    /// The records of the outside systems.
    pub fn ledger(&self) -> &Ledger {
        self.ledger
    }

    /// How much virtual time has passed since the start of the history.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.life.sim.ticks())
    }

    /// The run of the scenario's calls, once it exists.
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

    /// Answers with a reply key. `None` if it failed or the process died.
    pub fn resolve(&self, key: &str, resolution: Resolution) -> Option<ReplyResult> {
        let key = key.to_owned();
        let told = self.act(move |runtime| async move { runtime.resolve(&key, resolution).await })?.ok();
        self.acted.set(self.acted.get() || matches!(told, Some(ReplyResult::Accepted)));
        told
    }

    /// Approves or denies every call that waits for approval.
    pub fn decide(&self, granted: bool) {
        for Awaited { run, park, .. } in self.inbox() {
            let Blocked::Approval { digest, .. } = park.on else { continue };
            let decided = self.act(move |runtime| async move {
                runtime.decide(run, &park.path, &digest, granted, ("the outside", "by script")).await
            });
            self.acted.set(self.acted.get() || matches!(decided, Some(Ok(()))));
        }
    }

    /// Connects a provider for the runs without a principal that wait for it, or refuses that.
    pub fn connect(&self, provider: &str, refused: Option<&str>) {
        if self.is_wanted(provider) {
            let (provider, refused) = (provider.to_owned(), refused.map(str::to_owned));
            let told = self.act(move |runtime| async move { runtime.connect(&provider, refused.as_deref()).await });
            self.acted.set(self.acted.get() || matches!(told, Some(Ok(1..))));
        }
    }

    /// Connects a provider with this credential, like [`connect`](Outside::connect).
    pub fn connect_with(&self, provider: &str, credential: &str) {
        if self.is_wanted(provider) {
            let key = ConnectionKey::new(provider, None);
            let how = Connect { credential: Some(Credential::new(credential)), expires_in: None };
            let told = self.act(move |runtime| async move { runtime.connect_with(None, &key, how).await });
            self.acted.set(self.acted.get() || matches!(told, Some(Ok(1..))));
        }
    }

    fn is_wanted(&self, provider: &str) -> bool {
        let waits =
            |item: &Awaited| matches!(&item.park.on, Blocked::Connection { provider: p, .. } if **p == *provider);
        self.inbox().iter().any(waits)
    }

    /// Sends a signal to the scenario's run, once in each life. The key makes sure that it arrives only once.
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

    /// Whether this was not yet done in this life of the process. Marks it as done.
    pub fn is_new(&self, what: &str) -> bool {
        let new = self.done_before.borrow_mut().insert(what.to_owned());
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

/// The oldest run that was not started by another one.
pub(super) async fn root(runtime: &Runtime) -> Option<RunId> {
    let mut after = None;
    loop {
        let page = runtime.list(Filter::default(), after, 64).await.unwrap_or_default();
        if let Some(root) = page.iter().find(|info| info.parent.is_none()) {
            return Some(root.run);
        }
        after = Some(page.last()?.run);
    }
}
