//! What people are asked, and what they answer.

use std::collections::BTreeMap;

use windlass_core::run::state::{Blocked, Doubt};
use windlass_core::store::{ConnectionKey, Resolution, Settlement};
use windlass_core::{Awaited, Error, Path, ReplyResult, Result, RunId, Runtime};

use crate::kept::Connecting;

/// Everything that waits for a person or another system: approvals, inputs, connections, doubts. See
/// [`Windlass::inbox`](crate::Windlass::inbox).
///
/// ```
/// # use windlass::prelude::*;
/// # /// Charge a card.
/// # #[tool(approval = always)]
/// # async fn charge(cents: u64) -> ToolResult<u64> { Ok(cents) }
/// # #[tokio::main]
/// # async fn main() -> windlass::Result<()> {
/// # let windlass = Windlass::in_memory().attended().tool(charge).await?;
/// let run = windlass.start(charge::call(500u64)).await?;
/// # let mut watch = run.watch(windlass::run::Cursor::START).await?;
/// # while windlass.inbox().waiting().await?.is_empty() { watch.next().await; }
/// for item in windlass.inbox().waiting().await? {
///     windlass.inbox().approve(&item, "ada", "the customer called").await?;
/// }
/// assert_eq!(run.await?, 500);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Inbox {
    runtime: Runtime,
}

impl Inbox {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime }
    }

    /// Approvals, inputs and connections that are waited for.
    pub async fn waiting(&self) -> Result<Vec<Awaited>> {
        self.runtime.inbox().await
    }

    /// Attempts that may have happened, and that a person is to settle.
    pub async fn doubts(&self) -> Result<Vec<(RunId, Doubt)>> {
        self.runtime.doubts().await
    }

    /// Lets a call be made that waits for approval: exactly the one this item is about, once. Durable when it returns.
    pub async fn approve(&self, item: &Awaited, by: &str, reason: &str) -> Result<()> {
        self.decide(item, true, by, reason).await
    }

    /// Denies a call that waits for approval. Durable when it returns.
    pub async fn deny(&self, item: &Awaited, by: &str, reason: &str) -> Result<()> {
        self.decide(item, false, by, reason).await
    }

    async fn decide(&self, item: &Awaited, granted: bool, by: &str, reason: &str) -> Result<()> {
        let Blocked::Approval { digest, .. } = &item.park.on else {
            return Err(Error::Conflict(format!("{} does not wait for approval", item.park.operation)));
        };
        self.runtime.decide(item.run, &item.park.path, digest, granted, (by, reason)).await
    }

    /// Settles a doubt: it happened, it did not, or the person gives up on it. Durable when it returns.
    pub async fn settle(&self, run: RunId, path: &Path, settlement: Settlement, by: &str, reason: &str) -> Result<()> {
        self.runtime.settle(run, path, settlement, by, reason).await
    }

    /// Answers a wait or a pending call by its reply key. The first answer counts, an early one is kept, and a late one is
    /// told what counted. Durable when it returns.
    pub async fn resolve(&self, key: &str, resolution: Resolution) -> Result<ReplyResult> {
        self.runtime.resolve(key, resolution).await
    }

    /// Connects a provider: keeps the credential, and lets the runs of its principal continue that wait for it, in one
    /// step. Resolves to their number; durable once awaited.
    ///
    /// ```
    /// # use windlass::prelude::*;
    /// # async fn example(windlass: &Windlass) -> windlass::Result<()> {
    /// windlass.inbox().connect("github").credential("gho_…").principal("ada").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(&self, provider: &str) -> Connecting {
        Connecting::new(self.runtime.clone(), provider, None)
    }

    /// Tells the runs of a principal that wait for this provider that it will not be connected, and why: their calls
    /// fail. Resolves to their number; durable once awaited.
    pub fn refuse_connection(&self, provider: &str, reason: &str) -> Connecting {
        Connecting::new(self.runtime.clone(), provider, Some(reason.to_owned()))
    }

    /// The connections that runs wait for, each with those runs.
    pub async fn connections_wanted(&self) -> Result<BTreeMap<ConnectionKey, Vec<RunId>>> {
        self.runtime.connections_wanted().await
    }
}
