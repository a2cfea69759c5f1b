//! The clock of a store that runs in the process of its runtime.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::time::{Clock, Timestamp};

/// The clock that [`Store::use_clock`](super::Store::use_clock) set last. Until then the time stands still.
#[derive(Default)]
pub struct StoreClock(RwLock<Option<Arc<dyn Clock>>>);

impl StoreClock {
    /// Sets the clock.
    pub fn set(&self, clock: Arc<dyn Clock>) {
        *self.0.write() = Some(clock);
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.0.read().as_ref().map_or_else(Timestamp::default, |clock| clock.now())
    }
}
