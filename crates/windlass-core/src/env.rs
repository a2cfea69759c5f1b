//! What runs read of the runtime that drives them. It knows no runs.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Middleware;
use crate::connections::Providers;
use crate::id::Mint;
use crate::policy::{EffectivePolicy, Policy};
use crate::spawn::Spawn;
use crate::store::FileLimits;
use crate::time::Clock;
use crate::tool::{Tool, Toolbox};

#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) mint: Arc<Mint>,
    /// Where runs that are taken up from their journal find their tools.
    pub(crate) toolbox: Toolbox,
    /// The policy of the runtime. It applies where neither the call nor its tool sets a value.
    pub(crate) policy: Policy,
    /// Whether that policy is empty.
    pub(crate) is_policy_empty: bool,
    /// Whether a person is available to answer questions.
    pub(crate) attended: bool,
    /// The providers that tools can be connected to.
    pub(crate) providers: Arc<Providers>,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    /// The language of texts for people.
    pub(crate) locale: String,
    pub(crate) limits: RuntimeLimits,
}

/// The limits that a runtime is configured with.
#[derive(Clone, Copy)]
pub(crate) struct RuntimeLimits {
    /// How long a run only waits before it is suspended.
    pub(crate) suspend_after: Duration,
    /// How often the store deletes what its retention no longer keeps.
    pub(crate) tidy_every: Option<Duration>,
    /// Largest artifact that is stored.
    pub(crate) artifact_bytes: u64,
    /// The limits for the files of a session.
    pub(crate) files: FileLimits,
    /// Most unfinished runs of a session that sets no limit of its own.
    pub(crate) session_runs: u64,
}

impl Env {
    /// The policy for a call of this tool, or `None` if that is [the tool's own](crate::tool::Tool::resolved). Most
    /// calls and most runtimes add nothing to it.
    pub(crate) fn policy_for(&self, tool: &Tool, call: Option<&Policy>) -> Option<Box<EffectivePolicy>> {
        (!self.is_policy_empty || call.is_some())
            .then(|| Box::new(EffectivePolicy::of(&self.policy, tool.spec(), call)))
    }
}
