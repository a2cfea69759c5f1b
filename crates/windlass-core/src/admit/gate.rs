//! The limits of one tool: attempts in flight and attempts per second.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::fifo::{Fifo, FifoRequest};
use crate::id::ToolId;
use crate::store::ToolLimits;
use crate::tool::spec::Limits;

pub(crate) struct Gate {
    /// The limits, for a store that counts the attempts of all workers.
    limits: ToolLimits,
    in_flight: Option<Arc<Fifo>>,
    rate: Option<Arc<Rate>>,
}

/// Spaces the starts of attempts evenly.
struct Rate {
    spacing: u64,
    next: Mutex<u64>,
}

impl Gate {
    /// `None` for a tool without limits of its own.
    pub(crate) fn new(tool: &ToolId, limits: &Limits) -> Option<Self> {
        if limits.in_flight.is_none() && limits.per_second.is_none() {
            return None;
        }
        let most = limits.in_flight.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let shared = ToolLimits { id: tool.shared(), in_flight: most, per_second: limits.per_second };
        let rate = |n: u32| Rate { spacing: 1_000_000_000 / u64::from(n.max(1)), next: Mutex::new(0) };
        Some(Self { limits: shared, in_flight: most.map(Fifo::new), rate: limits.per_second.map(rate).map(Arc::new) })
    }

    /// The gate of a tool that replaces another one. A limit that did not change keeps its counter; otherwise replacing
    /// the tool would lift the limit for a moment.
    pub(crate) fn after(tool: &ToolId, limits: &Limits, old: &Limits, gate: &Self) -> Option<Self> {
        let mut new = Self::new(tool, limits)?;
        if limits.in_flight == old.in_flight {
            new.in_flight.clone_from(&gate.in_flight);
        }
        if limits.per_second == old.per_second {
            new.rate.clone_from(&gate.rate);
        }
        Some(new)
    }

    pub(crate) fn shared(&self) -> ToolLimits {
        self.limits.clone()
    }

    pub(crate) fn enter(&self) -> Option<FifoRequest> {
        self.in_flight.as_ref().map(Fifo::shared)
    }

    /// Reserves the next start and returns how long to wait for it.
    pub(crate) fn reserve(&self, ticks: u64) -> Duration {
        let Some(rate) = &self.rate else { return Duration::ZERO };
        let mut next = rate.next.lock();
        let start = ticks.max(*next);
        *next = start + rate.spacing;
        Duration::from_nanos(start - ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_spaced() {
        let gate = Gate::new(&"t".into(), &Limits { per_second: Some(4), ..Limits::default() }).unwrap();
        let quarter = Duration::from_millis(250);
        assert_eq!(gate.reserve(0), Duration::ZERO);
        assert_eq!(gate.reserve(0), quarter);
        assert_eq!(gate.reserve(0), quarter * 2);
        assert_eq!(gate.reserve(10_000_000_000), Duration::ZERO, "unused starts do not accumulate");
    }
}
