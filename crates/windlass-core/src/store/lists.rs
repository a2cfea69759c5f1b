//! Filters and counts of runs.

use std::sync::Arc;

use crate::id::RunId;
use crate::run::state::Ending;
use crate::time::Timestamp;

/// Which runs [`Queries::list`](super::Queries::list) returns: those that match every field that is set. The default
/// matches all runs.
///
/// ```
/// use windlass_core::store::Filter;
///
/// let refunds_of_ada = Filter { tool: Some("refund".into()), session: Some("ada".into()), ..Filter::held() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Their state, or what they wait for.
    pub state: Option<StateFilter>,
    /// Runs of this session.
    pub session: Option<Arc<str>>,
    /// Runs that act for this principal.
    pub principal: Option<Arc<str>>,
    /// Runs with this cause.
    pub cause: Option<Arc<str>>,
    /// The run that was started under this key.
    pub key: Option<Arc<str>>,
    /// Runs that this run spawned.
    pub parent: Option<RunId>,
    /// Runs of the tool with this id.
    pub tool: Option<Arc<str>>,
    /// Runs that were created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Runs that were created before this time.
    pub created_before: Option<Timestamp>,
}

/// The state of a run, as far as a [`Filter`] tells states apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateFilter {
    /// Waits for a worker to start it.
    Queued,
    /// A worker drives it, or left it without suspending it.
    Running,
    /// Waits for a timer or a message and takes no resources except a row.
    Suspended,
    /// Held until an operator resumes it.
    Held,
    /// Has ended.
    Finished,
    /// Has ended like this.
    Ended(Ending),
    /// In any state, with open doubts.
    InDoubt,
    /// In any state, and waits for a person: a doubt, an approval, an input, or a connection.
    Inbox,
}

impl Filter {
    /// Runs in this state.
    pub fn state(state: StateFilter) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// Runs that wait for a worker to start them.
    pub fn queued() -> Self {
        Self::state(StateFilter::Queued)
    }

    /// Runs that a worker drives, or that a worker left without suspending them.
    pub fn running() -> Self {
        Self::state(StateFilter::Running)
    }

    /// Runs that wait for a timer or a message.
    pub fn suspended() -> Self {
        Self::state(StateFilter::Suspended)
    }

    /// Runs that are held.
    pub fn held() -> Self {
        Self::state(StateFilter::Held)
    }

    /// Runs that have ended.
    pub fn finished() -> Self {
        Self::state(StateFilter::Finished)
    }

    /// Runs with open doubts.
    pub fn in_doubt() -> Self {
        Self::state(StateFilter::InDoubt)
    }

    /// Runs that wait for a person.
    pub fn inbox() -> Self {
        Self::state(StateFilter::Inbox)
    }

    /// Runs of this session.
    pub fn session(session: impl Into<Arc<str>>) -> Self {
        Self { session: Some(session.into()), ..Self::default() }
    }

    /// Runs that act for this principal.
    pub fn principal(principal: impl Into<Arc<str>>) -> Self {
        Self { principal: Some(principal.into()), ..Self::default() }
    }

    /// Runs with this cause.
    pub fn cause(cause: impl Into<Arc<str>>) -> Self {
        Self { cause: Some(cause.into()), ..Self::default() }
    }

    /// The run that was started under this key.
    pub fn key(key: impl Into<Arc<str>>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// Runs that this run spawned.
    pub fn children(parent: RunId) -> Self {
        Self { parent: Some(parent), ..Self::default() }
    }

    /// Runs of the tool with this id.
    pub fn tool(id: impl Into<Arc<str>>) -> Self {
        Self { tool: Some(id.into()), ..Self::default() }
    }
}

/// The number of runs by state; see [`Queries::counts`](super::Queries::counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that wait for a worker to start them.
    pub queued: u64,
    /// Runs that a worker drives, or that a worker left without suspending them.
    pub running: u64,
    /// Runs that wait for a timer or a message.
    pub suspended: u64,
    /// Runs that are held.
    pub held: u64,
    /// Runs that have ended and are still kept, possibly only as a summary.
    pub finished: u64,
    /// Runs in any state that wait for a person.
    pub inbox: u64,
}
