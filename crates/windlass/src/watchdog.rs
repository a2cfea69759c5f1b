//! The thread of the watchdog. It is not a thread of the executor, because a body that never yields may block all of
//! those.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_core::{Runtime, Stuck};

/// The running watchdog. Dropping it ends the thread.
pub(crate) struct WatchdogThread {
    stuck: Arc<Mutex<Vec<Stuck>>>,
    _alive: Sender<()>,
}

impl WatchdogThread {
    /// Checks every `interval`, and warns about a body that has not yielded for a whole interval.
    pub(crate) fn start(runtime: &Runtime, interval: Duration) -> std::io::Result<Self> {
        let (alive, ended) = channel();
        let stuck = Arc::new(Mutex::new(Vec::new()));
        let (observer, found) = (runtime.observer(), stuck.clone());
        std::thread::Builder::new().name("windlass-watchdog".to_owned()).spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let now = observer.stuck();
                for Stuck { run, path, name } in &now {
                    tracing::warn!(%run, %path, name, "has not yielded for {interval:?}; mark it cpu_bound or let it await");
                }
                *found.lock() = now;
            }
        })?;
        Ok(Self { stuck, _alive: alive })
    }

    pub(crate) fn stuck(&self) -> Vec<Stuck> {
        self.stuck.lock().clone()
    }
}
