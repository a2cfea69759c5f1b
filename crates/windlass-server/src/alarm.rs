//! The time that a connection has for the head of a request, without a timer for every request.
//!
//! All heads have as long as the first had, so what the next one sets is never due before what stands already: one timer for
//! a connection is enough. When it rings, it is set anew for what is due then.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::time::Instant;

/// The timer of one connection. Whoever serves it polls [`ring`](Self::ring) in the same task.
#[derive(Clone)]
pub(crate) struct Alarm(Arc<Set>);

struct Set {
    opened: Instant,
    /// What was set last: milliseconds since then.
    due: AtomicU64,
    /// How long every head has.
    patience: Duration,
}

impl Alarm {
    pub(crate) fn new(patience: Duration) -> Self {
        Self(Arc::new(Set { opened: Instant::now(), due: AtomicU64::new(0), patience }))
    }

    /// Has the task polled whenever something is due.
    pub(crate) async fn ring(&self) -> Infallible {
        loop {
            let (now, due) =
                (Instant::now(), self.0.opened + Duration::from_millis(self.0.due.load(Ordering::Relaxed)));
            tokio::time::sleep_until(if due > now { due } else { now + self.0.patience }).await;
        }
    }
}

impl Timer for Alarm {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        let deadline = Instant::from_std(deadline);
        let due = deadline.saturating_duration_since(self.0.opened).as_millis();
        // In whole milliseconds, and not before.
        self.0.due.store(u64::try_from(due).unwrap_or(u64::MAX).saturating_add(1), Ordering::Relaxed);
        Box::pin(Until(deadline))
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

/// Over at that time, once it is polled.
struct Until(Instant);

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if Instant::now() < self.0 { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Sleep for Until {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both in one task, as a connection is served.
    async fn over(alarm: &Alarm, sleep: Pin<Box<dyn Sleep>>) {
        tokio::select! {
            biased;
            () = sleep => {}
            never = alarm.ring() => match never {},
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_set_is_over_in_time() {
        let alarm = Alarm::new(Duration::from_secs(10));
        let begun = Instant::now();
        over(&alarm, alarm.sleep(Duration::from_secs(10))).await;
        assert_eq!(begun.elapsed().as_secs(), 10);
        over(&alarm, alarm.sleep(Duration::from_secs(10))).await;
        assert_eq!(begun.elapsed().as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_set_while_the_alarm_stands_is_over_in_time() {
        let alarm = Alarm::new(Duration::from_secs(10));
        let begun = Instant::now();
        let later = async {
            // Heads that came in time.
            for _ in 0..5 {
                drop(alarm.sleep(Duration::from_secs(10)));
                tokio::time::sleep(Duration::from_secs(7)).await;
            }
            alarm.sleep(Duration::from_secs(10)).await;
        };
        tokio::select! {
            biased;
            () = later => {}
            never = alarm.ring() => match never {},
        }
        assert_eq!(begun.elapsed().as_secs(), 45);
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_is_polled_anew_keeps_what_was_set() {
        let alarm = Alarm::new(Duration::from_secs(10));
        let (begun, sleep) = (Instant::now(), alarm.sleep(Duration::from_secs(10)));
        tokio::time::sleep(Duration::from_secs(6)).await;
        over(&alarm, sleep).await;
        assert_eq!(begun.elapsed().as_secs(), 10);
    }
}
