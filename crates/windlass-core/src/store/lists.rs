//! What can be asked about runs in general.

use std::sync::Arc;

use crate::id::RunId;

/// What [`Queries::list`](super::Queries::list) returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// Runs that wait to be taken up for the first time.
    Queued,
    /// Runs that somebody drives, or drove and left.
    Running,
    /// Runs that cost a row and nothing else until something happens.
    Suspended,
    /// Runs that are held.
    Held,
    /// Runs that are finished.
    Finished,
    /// Runs with open doubts.
    Doubted,
    /// Runs that wait for a person: a doubt, an approval, an input, a connection.
    Inbox,
    /// Runs of a session.
    Session(Arc<str>),
    /// Runs that a run spawned.
    Children(RunId),
    /// Runs of a tool, by its id.
    Tool(Arc<str>),
    /// All runs.
    All,
}

/// How many runs there are; see [`Queries::counts`](super::Queries::counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that wait to be taken up for the first time.
    pub queued: u64,
    /// Runs that somebody drives, or drove and left.
    pub running: u64,
    /// Runs that only wait.
    pub suspended: u64,
    /// Runs that are held.
    pub held: u64,
    /// Runs that are finished and still kept, if only as a summary.
    pub finished: u64,
    /// Runs, whatever their state, that wait for a person.
    pub inbox: u64,
}
