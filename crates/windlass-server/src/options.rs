//! Options and limits of the server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::quota::Quota;
use crate::webhook::Webhook;
use crate::wire::ReloadResponse;

/// Reads the configuration again. Returns what changed, or a text with every problem.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Result<ReloadResponse, String>> + Send + Sync>;

/// Options of the server. The defaults suit one machine with one user.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Path of the token file. Default: beside the database file.
    pub tokens: Option<PathBuf>,
    /// Requests come from this process, which has the file open anyway. No token is needed, and `Host` and `Origin` are
    /// not checked.
    pub trusted: bool,
    /// Host names of the server, in addition to its address and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the API, in addition to the server's own: `https://example.com`.
    pub allowed_origins: Vec<String>,
    /// Limits on sizes, times and connections.
    pub limits: Limits,
    /// Receives a notification when a run needs a person.
    pub webhook: Option<Webhook>,
    /// Called by `POST /v1/admin/reload`.
    pub reload: Option<Reload>,
}

/// Limits on sizes, times and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, except for artifacts and imports. Arguments may have a megabyte; larger content belongs in
    /// an artifact.
    pub body_bytes: usize,
    /// Largest document that can be imported.
    pub import_bytes: usize,
    /// Time within which the head of a request must arrive.
    pub head_timeout: Duration,
    /// Time within which the body of a request must arrive. For an artifact: time until the next part of the body.
    pub body_timeout: Duration,
    /// Time within which a request must be handled, unless its `wait_ms` says otherwise.
    pub request_timeout: Duration,
    /// A client that reads nothing of a response for this long is disconnected.
    pub write_timeout: Duration,
    /// Most open connections. One address may have seven eighths of them, and one client requests on three quarters and
    /// event streams on one quarter of them. A client is a token, or an address without a token.
    pub connections: usize,
    /// Most bytes in flight of one client: of responses and events that are being sent and bodies that are being
    /// received. Items of up to [`CHUNK_BYTES`](Self::CHUNK_BYTES) are not counted.
    pub in_flight_bytes: usize,
    /// Most bytes in flight of all clients together.
    pub total_in_flight_bytes: usize,
    /// Most memory for the schemas of one client's tools, estimated.
    pub schema_bytes: usize,
    /// Most memory for the schemas of all clients' tools, estimated.
    pub total_schema_bytes: usize,
    /// Most requests a second of one token, or of one address without a token; twice as many in a burst. Requests from
    /// this machine are not limited while there are no tokens.
    pub requests_per_second: u32,
    /// Time between two comments in an idle event stream.
    pub heartbeat: Duration,
    /// An event stream ends if its reader is behind for this long.
    pub slow_reader_timeout: Duration,
    /// Time that a shutdown waits for pending requests.
    pub drain_timeout: Duration,
    /// Time that attempts in flight have to end, from the beginning of the shutdown on.
    pub attempts_timeout: Duration,
}

impl Limits {
    /// Bytes that are written to a connection at a time.
    pub const CHUNK_BYTES: usize = crate::body::CHUNK_BYTES;

    /// Most connections of one address. An eighth is left to other addresses, and several clients behind one address
    /// still have room for their quotas.
    pub(crate) fn connections_per_address(&self) -> usize {
        (self.connections - self.connections / 8).max(1)
    }

    /// Quota of concurrent requests: three quarters of the connections for one client, with a reserve for each.
    pub(crate) fn requests(&self) -> Arc<Quota> {
        let per_client = self.connections - self.connections / 4;
        Quota::with_reserve(per_client, self.connections_per_address(), self.connections / 64)
    }

    /// Quota of event streams: a quarter of the connections for one client, which leaves room for its other requests,
    /// and half of them for all clients.
    pub(crate) fn streams(&self) -> Arc<Quota> {
        Quota::with_reserve(self.connections / 4, self.connections / 2, self.connections / 64)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            import_bytes: 64 << 20,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            connections: 4_096,
            in_flight_bytes: 64 << 20,
            total_in_flight_bytes: 256 << 20,
            schema_bytes: 32 << 20,
            total_schema_bytes: 128 << 20,
            requests_per_second: 1_000,
            heartbeat: Duration::from_secs(15),
            slow_reader_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            attempts_timeout: windlass::limits::DRAIN,
        }
    }
}
