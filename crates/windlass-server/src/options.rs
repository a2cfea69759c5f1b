//! How the API is served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::shares::Shares;
use crate::webhook::Webhook;
use crate::wire::ReloadAnswer;

/// Reads the configuration anew; answers what changed, or every problem in words.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Result<ReloadAnswer, String>> + Send + Sync>;

/// How the API is served. The defaults suit one machine and its owner.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Where tokens are kept; beside the database file unless set.
    pub tokens: Option<PathBuf>,
    /// Requests come from this very process, which has the file open anyway: no token is asked for, and neither `Host` nor
    /// `Origin` is looked at.
    pub trusted: bool,
    /// Names under which the server may be addressed, beside its address and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages, beside the server's own, that may use the API; `https://example.com`.
    pub allowed_origins: Vec<String>,
    /// What a client may ask for and how long it may take.
    pub limits: Limits,
    /// Who is told when a person is needed.
    pub webhook: Option<Webhook>,
    /// What reading the configuration anew does.
    pub reload: Option<Reload>,
}

/// What a client may ask for, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body of a request, but for artifacts and imports: arguments have a megabyte each, and large content belongs
    /// in an artifact.
    pub body_bytes: usize,
    /// Largest document that is imported.
    pub import_bytes: usize,
    /// How long the head of a request may take to arrive: a client that dribbles holds a connection no longer.
    pub head: Duration,
    /// How long the body of a request may take to arrive; that of an artifact, the next piece of it.
    pub body: Duration,
    /// How long any other request may take; one that waits on purpose says how long itself.
    pub request: Duration,
    /// How long a client may take nothing of what it is sent before its connection is cut.
    pub write: Duration,
    /// Most connections at once, seven eighths of them from one address. Three quarters of them one client may have requests on,
    /// a quarter event streams: a client is a token, or an address without one.
    pub connections: usize,
    /// Most bytes of answers and events that are on their way to one client, and of bodies that arrive from it. What is in
    /// one piece ([`ONE_PIECE`](Self::ONE_PIECE)) is not counted.
    pub held_bytes: usize,
    /// The same of all clients.
    pub all_held_bytes: usize,
    /// Most memory that the schemas of tools take which one client brings, as it is estimated.
    pub schema_bytes: usize,
    /// The same of all clients.
    pub all_schema_bytes: usize,
    /// Most requests a second by one token, or from one address without one; not of `local`. Twice as many may come at
    /// once.
    pub per_second: u32,
    /// How often a stream that has nothing to say says so.
    pub heartbeat: Duration,
    /// How long a reader of a stream may be behind before it is cut off.
    pub slow: Duration,
    /// How long a server that stops waits for requests under way.
    pub drain: Duration,
    /// How long it then waits for attempts in flight.
    pub attempts: Duration,
}

impl Limits {
    /// Bytes that go to a connection at a time.
    pub const ONE_PIECE: usize = crate::given::PIECE;

    /// Most connections of one address: an eighth is left to others, and clients behind one address have room for their shares.
    pub(crate) fn connections_of_address(&self) -> usize {
        (self.connections - self.connections / 8).max(1)
    }

    /// Requests under way: three quarters of the connections for one client, and some for each while many have all the others.
    pub(crate) fn requests(&self) -> Arc<Shares> {
        let each = self.connections - self.connections / 4;
        Shares::with_reserve(each, self.connections_of_address(), self.connections / 64)
    }

    /// Event streams: a quarter for one client, so that there is room for its other requests, and half for all.
    pub(crate) fn streams(&self) -> Arc<Shares> {
        Shares::with_reserve(self.connections / 4, self.connections / 2, self.connections / 64)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            import_bytes: 64 << 20,
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            request: Duration::from_secs(60),
            write: Duration::from_secs(60),
            connections: 4_096,
            held_bytes: 64 << 20,
            all_held_bytes: 256 << 20,
            schema_bytes: 32 << 20,
            all_schema_bytes: 128 << 20,
            per_second: 1_000,
            heartbeat: Duration::from_secs(15),
            slow: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            attempts: windlass::limits::DRAIN,
        }
    }
}
