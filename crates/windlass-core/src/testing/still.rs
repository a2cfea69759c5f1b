//! A clock on which no time passes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::time::{Clock, Timestamp};

struct StoppedClock(Timestamp);

impl Clock for StoppedClock {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn ticks(&self) -> u64 {
        0
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A clock that always returns this time, for [`Store::use_clock`](crate::store::Store::use_clock) without a runtime.
pub fn still(now: Timestamp) -> Arc<dyn Clock> {
    Arc::new(StoppedClock(now))
}
