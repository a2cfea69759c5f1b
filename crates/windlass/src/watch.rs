//! The watchdog's own thread: a body that never yields may block every thread of the executor, so the one that names it
//! must not be one of them.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_core::{Runtime, Stuck};

/// Ends its thread when it is dropped.
pub(crate) struct Watch {
    stuck: Arc<Mutex<Vec<Stuck>>>,
    _alive: Sender<()>,
}

impl Watch {
    /// Looks every `interval`; a body is named once it has not yielded for one whole interval.
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
