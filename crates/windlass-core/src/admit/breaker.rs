//! Circuit breakers: a target whose attempts fail one after the other gets no more of them for a while.
//!
//! A breaker is closed until [`failures`](BreakerPolicy::failures) attempts in a row have failed. It is then open for
//! [`open_for`](BreakerPolicy::open_for), and half-open after that: one attempt at a time is let through, until
//! [`successes`](BreakerPolicy::successes) of them have succeeded, or one fails and it is open again. Results that say
//! nothing about the target, such as invalid arguments, count neither way.
//!
//! All of it is in the memory of one process: each worker finds out for itself, and a restart forgets it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::id::RunId;
use crate::path::Path;
use crate::run::spent::nanos;
use crate::tool::{Retryable, ToolError};

/// When breakers open and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failed attempts in a row that open a breaker; zero switches breakers off.
    pub failures: u32,
    /// How long an open breaker lets nothing through.
    pub open_for: Duration,
    /// Successful attempts in a row that close a half-open breaker; at least one.
    pub successes: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(30), successes: 2 }
    }
}

/// The state of a target's breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetState {
    /// The target.
    pub target: Arc<str>,
    /// Whether attempts are let through.
    pub phase: BreakerPhase,
    /// Failed attempts in a row, while it is closed.
    pub failures: u32,
}

/// Whether a breaker lets attempts through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerPhase {
    /// All of them.
    Closed,
    /// None, for this long.
    Open {
        /// The time until it is half-open.
        left: Duration,
    },
    /// One at a time.
    HalfOpen,
}

/// What an attempt says about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    Bad,
    Unknown,
}

impl Health {
    /// What the failure of an attempt says about its target.
    pub(crate) fn of(error: &ToolError) -> Self {
        match error {
            ToolError::TimedOut { .. } | ToolError::InDoubt { .. } | ToolError::Internal(_) => Self::Bad,
            ToolError::Failed { code: Some(code), .. } if code.starts_with("http_5") => Self::Bad,
            // The target answered, and did not like the request.
            ToolError::Failed { code: Some(code), .. } if code.starts_with("http_4") => Self::Good,
            ToolError::Failed { retry: Retryable::Yes | Retryable::After(_), .. } => Self::Bad,
            _ => Self::Unknown,
        }
    }
}

/// The breakers of a process, by target. Targets are declared by tools, so there are not more of them than tools.
pub(crate) struct Breakers {
    policy: BreakerPolicy,
    targets: Mutex<FxHashMap<Arc<str>, Breaker>>,
    /// The operations that wait for a breaker, and their targets.
    waits: Mutex<BTreeMap<(RunId, Path), Arc<str>>>,
}

#[derive(Default)]
struct Breaker {
    state: BreakerState,
    /// Operations that wait for the end of the attempt that is let through.
    wakers: Vec<Waker>,
}

enum BreakerState {
    Closed {
        failures: u32,
    },
    Open {
        /// Ticks.
        until: u64,
    },
    HalfOpen {
        successes: u32,
        probing: bool,
    },
}

impl Default for BreakerState {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Why an attempt is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The breaker is open for this long.
    For(Duration),
    /// Another attempt is let through.
    ForProbe,
}

impl Breakers {
    pub(crate) fn new(policy: BreakerPolicy) -> Arc<Self> {
        Arc::new(Self { policy, targets: Mutex::default(), waits: Mutex::default() })
    }

    /// Whether an attempt would be let through. If it has to wait for another one, `waker` is woken when that ends.
    pub(crate) fn look(&self, target: &Arc<str>, now: u64, waker: &Waker) -> Result<(), Wait> {
        let mut targets = self.targets.lock();
        let Some(breaker) = targets.get_mut(target) else { return Ok(()) };
        match breaker.state {
            BreakerState::Open { until } if until > now => Err(Wait::For(Duration::from_nanos(until - now))),
            BreakerState::HalfOpen { probing: true, .. } => {
                if !breaker.wakers.iter().any(|other| other.will_wake(waker)) {
                    breaker.wakers.push(waker.clone());
                }
                Err(Wait::ForProbe)
            }
            _ => Ok(()),
        }
    }

    /// Lets an attempt through, if [`look`](Self::look) would. The attempt reports its result through the pass.
    pub(crate) fn enter(self: &Arc<Self>, target: &Arc<str>, now: u64, waker: &Waker) -> Result<Option<Pass>, Wait> {
        if self.policy.failures == 0 {
            return Ok(None);
        }
        self.look(target, now, waker)?;
        let mut targets = self.targets.lock();
        if !targets.contains_key(target) {
            targets.insert(target.clone(), Breaker::default());
        }
        let Some(breaker) = targets.get_mut(target) else { return Ok(None) };
        let is_probe = match &mut breaker.state {
            BreakerState::Closed { .. } => false,
            // Another thread was faster.
            BreakerState::HalfOpen { probing: true, .. } => {
                breaker.wakers.push(waker.clone());
                return Err(Wait::ForProbe);
            }
            BreakerState::HalfOpen { probing, .. } => {
                *probing = true;
                true
            }
            BreakerState::Open { .. } => {
                breaker.state = BreakerState::HalfOpen { successes: 0, probing: true };
                true
            }
        };
        Ok(Some(Pass { breakers: self.clone(), target: target.clone(), is_probe, is_reported: false }))
    }

    fn report(&self, target: &Arc<str>, is_probe: bool, health: Health, now: u64) {
        let mut targets = self.targets.lock();
        let Some(breaker) = targets.get_mut(target) else { return };
        let open = BreakerState::Open { until: now.saturating_add(nanos(self.policy.open_for)) };
        match (&mut breaker.state, health) {
            (BreakerState::Closed { failures }, Health::Good) => *failures = 0,
            (BreakerState::Closed { failures }, Health::Bad) => {
                *failures = failures.saturating_add(1);
                if *failures >= self.policy.failures {
                    tracing::warn!(%target, "no attempts for {:?}: the last {failures} failed", self.policy.open_for);
                    breaker.state = open;
                }
            }
            (BreakerState::HalfOpen { .. }, Health::Bad) if is_probe => breaker.state = open,
            (BreakerState::HalfOpen { successes, probing }, health) if is_probe => {
                *probing = false;
                *successes += u32::from(health == Health::Good);
                if *successes >= self.policy.successes {
                    tracing::info!(%target, "attempts are made again");
                    breaker.state = BreakerState::default();
                }
            }
            // An attempt that began before the breaker opened.
            _ => {}
        }
        let wakers = std::mem::take(&mut breaker.wakers);
        drop(targets);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lists an operation as waiting until the guard is dropped.
    pub(crate) fn waits(self: &Arc<Self>, run: RunId, path: &Path, target: &Arc<str>) -> BreakerWait {
        self.waits.lock().insert((run, path.clone()), target.clone());
        BreakerWait { breakers: self.clone(), place: (run, path.clone()), timer: None }
    }

    /// The operations of a run that wait for a breaker, and their targets.
    pub(crate) fn waits_of(&self, run: RunId) -> Vec<(Path, Arc<str>)> {
        let waits = self.waits.lock();
        let of_run = waits.range((run, Path::root())..).take_while(|((other, _), _)| *other == run);
        of_run.map(|((_, path), target)| (path.clone(), target.clone())).collect()
    }

    /// The time for which a target's breaker stays open; `None` if it is not open.
    pub(crate) fn open_for(&self, target: &str, now: u64) -> Option<Duration> {
        match self.targets.lock().get(target)?.state {
            BreakerState::Open { until } if until > now => Some(Duration::from_nanos(until - now)),
            _ => None,
        }
    }

    /// All targets that attempts were made at, in order.
    pub(crate) fn all(&self, now: u64) -> Vec<TargetState> {
        let targets = self.targets.lock();
        let state = |(target, breaker): (&Arc<str>, &Breaker)| {
            let (phase, failures) = match breaker.state {
                BreakerState::Closed { failures } => (BreakerPhase::Closed, failures),
                BreakerState::Open { until } if until > now => {
                    (BreakerPhase::Open { left: Duration::from_nanos(until - now) }, 0)
                }
                BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => (BreakerPhase::HalfOpen, 0),
            };
            TargetState { target: target.clone(), phase, failures }
        };
        let mut all: Vec<TargetState> = targets.iter().map(state).collect();
        all.sort_by(|a, b| a.target.cmp(&b.target));
        all
    }

    /// The error of a call that does not wait for the breaker. Nothing was attempted.
    pub(crate) fn refusal(&self, target: &str, wait: Wait) -> ToolError {
        let failures = self.policy.failures;
        let (when, delay) = match wait {
            Wait::For(left) => (format!("call it again in {}", crate::time::words(left)), left),
            Wait::ForProbe => ("call it again once that attempt has succeeded".to_owned(), Duration::from_secs(1)),
        };
        let why = match wait {
            Wait::For(_) => format!("the last {failures} attempts at `{target}` failed"),
            Wait::ForProbe => format!("attempts at `{target}` failed, and one attempt is testing it"),
        };
        let message = format!("refused: {why}, so nothing was attempted; {when}, or use another tool");
        ToolError::retry_after(message, delay).with_code("target_unavailable")
    }
}

/// An attempt that was let through. Dropped without a report, it says nothing about the target.
pub(crate) struct Pass {
    breakers: Arc<Breakers>,
    target: Arc<str>,
    is_probe: bool,
    is_reported: bool,
}

impl Pass {
    pub(crate) fn report(mut self, health: Health, now: u64) {
        self.is_reported = true;
        self.breakers.report(&self.target, self.is_probe, health, now);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.is_probe && !self.is_reported {
            self.breakers.report(&self.target, true, Health::Unknown, 0);
        }
    }
}

/// An operation that waits for a breaker.
pub(crate) struct BreakerWait {
    breakers: Arc<Breakers>,
    place: (RunId, Path),
    pub(crate) timer: Option<futures_util::future::BoxFuture<'static, ()>>,
}

impl Drop for BreakerWait {
    fn drop(&mut self) {
        self.breakers.waits.lock().remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    struct Scene {
        breakers: Arc<Breakers>,
        target: Arc<str>,
    }

    impl Scene {
        fn new() -> Self {
            Self { breakers: Breakers::new(BreakerPolicy::default()), target: "api:443".into() }
        }

        fn enter(&self, now: u64) -> Result<Option<Pass>, Wait> {
            self.breakers.enter(&self.target, now, Waker::noop())
        }

        fn attempt(&self, now: u64, health: Health) {
            let Ok(Some(pass)) = self.enter(now) else { panic!("it is let through at {now}") };
            pass.report(health, now);
        }

        fn phase(&self, now: u64) -> BreakerPhase {
            self.breakers.all(now)[0].phase
        }
    }

    #[test]
    fn e25_failures_in_a_row_open_a_breaker_and_successes_close_it() {
        let scene = Scene::new();
        for n in 0..4 {
            scene.attempt(n, Health::Bad);
        }
        scene.attempt(4, Health::Good);
        for n in 0..5 {
            assert_eq!(scene.phase(n), BreakerPhase::Closed, "a success in between begins again");
            scene.attempt(n, Health::Bad);
        }
        assert_eq!(scene.phase(5), BreakerPhase::Open { left: Duration::from_nanos(30 * SECOND - 1) });
        assert!(matches!(scene.enter(30 * SECOND), Err(Wait::For(_))));
        let now = 31 * SECOND;
        let probe = scene.enter(now).ok().flatten().unwrap();
        assert_eq!(scene.enter(now).err(), Some(Wait::ForProbe), "one attempt at a time");
        probe.report(Health::Good, now);
        assert_eq!(scene.phase(now), BreakerPhase::HalfOpen, "one success is not enough");
        scene.attempt(now, Health::Bad);
        assert!(matches!(scene.enter(60 * SECOND), Err(Wait::For(_))), "open again");
        scene.attempt(62 * SECOND, Health::Good);
        scene.attempt(62 * SECOND, Health::Good);
        assert_eq!(scene.phase(62 * SECOND), BreakerPhase::Closed);
    }

    #[test]
    fn e25_a_probe_that_says_nothing_lets_the_next_one_through() {
        let scene = Scene::new();
        (0..5).for_each(|n| scene.attempt(n, Health::Bad));
        let now = 40 * SECOND;
        drop(scene.enter(now).ok().flatten().unwrap());
        scene.attempt(now, Health::Unknown);
        scene.attempt(now, Health::Good);
        assert_eq!(scene.phase(now), BreakerPhase::HalfOpen);
    }

    #[test]
    fn e25_late_results_of_attempts_from_before_do_not_count() {
        let scene = Scene::new();
        let early = scene.enter(0).ok().flatten().unwrap();
        let late = scene.enter(0).ok().flatten().unwrap();
        (0..5).for_each(|n| scene.attempt(n, Health::Bad));
        early.report(Health::Good, 9);
        assert!(matches!(scene.phase(9), BreakerPhase::Open { .. }));
        let probe = scene.enter(40 * SECOND).ok().flatten().unwrap();
        late.report(Health::Bad, 40 * SECOND);
        assert_eq!(scene.phase(40 * SECOND), BreakerPhase::HalfOpen);
        probe.report(Health::Good, 40 * SECOND);
    }

    #[test]
    fn e25_errors_of_the_caller_say_nothing_against_the_target() {
        let code = |code: &str| ToolError::rejected(code, "x");
        let expected = [
            (ToolError::TimedOut { message: "x".into() }, Health::Bad),
            (ToolError::in_doubt("x"), Health::Bad),
            (ToolError::internal("x"), Health::Bad),
            (ToolError::retryable("x"), Health::Bad),
            (code("http_500"), Health::Bad),
            (code("http_404"), Health::Good),
            (ToolError::retry_after("x", Duration::from_secs(1)).with_code("http_429"), Health::Good),
            (ToolError::failed("x"), Health::Unknown),
            (code("sold_out"), Health::Unknown),
            (ToolError::invalid("", "x"), Health::Unknown),
            (ToolError::denied("x"), Health::Unknown),
            (ToolError::unavailable("x"), Health::Unknown),
            (ToolError::connection_required("x"), Health::Unknown),
            (ToolError::Cancelled { reason: "x".into() }, Health::Unknown),
            (ToolError::Panicked { correlation: "x".into() }, Health::Unknown),
        ];
        for (error, health) in expected {
            assert_eq!(Health::of(&error), health, "{error}");
        }
    }

    #[test]
    fn e25_breakers_can_be_switched_off() {
        let breakers = Breakers::new(BreakerPolicy { failures: 0, ..BreakerPolicy::default() });
        assert!(matches!(breakers.enter(&"api:443".into(), 0, Waker::noop()), Ok(None)));
    }
}
