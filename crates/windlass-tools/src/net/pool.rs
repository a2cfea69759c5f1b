//! Connections that are kept for the next request. Each is kept under the address it leads to: a name that has another
//! address by now does not get it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use parking_lot::Mutex;
use windlass_http::Pinned;

pub(crate) type Sender = windlass_http::Sender<Full<Bytes>>;

/// How long a connection is kept: less than servers keep theirs, so that few are closed when they are used.
const KEPT: Duration = Duration::from_secs(30);
/// Connections kept to one place, and to all.
const PER_PLACE: usize = 8;
const IN_ALL: usize = 64;
/// How long a connection may take to be ready again after an answer was read.
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
    /// A connection to this place that can be used at once.
    pub(crate) async fn take(&self, place: &Pinned) -> Option<Sender> {
        loop {
            let mut sender = self.pop(place)?;
            if let Ok(Ok(())) = tokio::time::timeout(READY, sender.ready()).await {
                return Some(sender);
            }
        }
    }

    fn pop(&self, place: &Pinned) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(place)?;
        kept.retain(Idle::is_usable);
        let found = kept.pop();
        if kept.is_empty() {
            idle.remove(place);
        }
        found.map(|idle| idle.sender)
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn put(&self, place: Pinned, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        idle.values_mut().for_each(|kept| kept.retain(Idle::is_usable));
        idle.retain(|_, kept| !kept.is_empty());
        if idle.values().map(Vec::len).sum::<usize>() >= IN_ALL {
            return;
        }
        let kept = idle.entry(place).or_default();
        if kept.len() < PER_PLACE {
            kept.push(Idle { sender, since: Instant::now() });
        }
    }
}

impl Idle {
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < KEPT
    }
}
