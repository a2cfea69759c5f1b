//! What runs read of the runtime they are driven in. It knows no runs.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Middleware;
use crate::id::Mint;
use crate::policy::{Policy, Resolved};
use crate::spawn::Spawn;
use crate::time::Clock;
use crate::tool::{Tool, Toolbox};

#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) mint: Arc<Mint>,
    /// What runs that are taken up from their journal find their tools in.
    pub(crate) toolbox: Toolbox,
    /// What governs every call, where neither it nor its tool says otherwise.
    pub(crate) policy: Policy,
    /// Whether that says nothing.
    pub(crate) is_silent: bool,
    /// Whether a person is there to be asked.
    pub(crate) attended: bool,
    /// Providers that tools needing a connection may count on.
    pub(crate) connections: Vec<String>,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    /// The language people are told things in.
    pub(crate) locale: String,
    pub(crate) limits: RuntimeLimits,
}

/// Bounds that a runtime is given.
#[derive(Clone, Copy)]
pub(crate) struct RuntimeLimits {
    /// How long a run only waits before it is suspended.
    pub(crate) suspend_after: Duration,
    /// How often the store lets go of what it keeps no longer.
    pub(crate) tidy_every: Option<Duration>,
    /// Largest artifact that is stored.
    pub(crate) artifact_bytes: u64,
}

impl Env {
    /// What governs a call of this tool, unless that is [what the tool says by itself](crate::tool::Tool::resolved): most
    /// calls and most runtimes say nothing.
    pub(crate) fn governs(&self, tool: &Tool, call: Option<&Policy>) -> Option<Box<Resolved>> {
        (!self.is_silent || call.is_some()).then(|| Box::new(Resolved::of(&self.policy, tool.spec(), call)))
    }
}
