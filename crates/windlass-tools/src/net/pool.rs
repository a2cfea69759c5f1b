//! Idle connections for later requests. Each is stored under its IP address: a name that resolves to another address by
//! now does not get it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use parking_lot::Mutex;
use windlass_http::Pinned;

pub(crate) type Sender = windlass_http::Sender<Full<Bytes>>;

/// How long an idle connection is kept. Less than most servers keep theirs, so that few are closed when they are used.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections to one address, and in total.
const MAX_PER_ADDRESS: usize = 8;
const MAX_TOTAL: usize = 64;
/// How long a connection may take to be ready again after a response was read.
const READY: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<HashMap<Pinned, Vec<Idle>>>,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

impl Pool {
    /// A connection to this address that can be used at once.
    pub(crate) async fn take(&self, address: &Pinned) -> Option<Sender> {
        loop {
            let mut sender = self.pop(address)?;
            if let Ok(Ok(())) = tokio::time::timeout(READY, sender.ready()).await {
                return Some(sender);
            }
        }
    }

    fn pop(&self, address: &Pinned) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(address)?;
        kept.retain(Idle::is_usable);
        let found = kept.pop();
        if kept.is_empty() {
            idle.remove(address);
        }
        found.map(|idle| idle.sender)
    }

    /// Keeps a connection whose response was read completely.
    pub(crate) fn put(&self, address: Pinned, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        idle.values_mut().for_each(|kept| kept.retain(Idle::is_usable));
        idle.retain(|_, kept| !kept.is_empty());
        if idle.values().map(Vec::len).sum::<usize>() >= MAX_TOTAL {
            return;
        }
        let kept = idle.entry(address).or_default();
        if kept.len() < MAX_PER_ADDRESS {
            kept.push(Idle { sender, since: Instant::now() });
        }
    }
}

impl Idle {
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < IDLE_TIMEOUT
    }
}
