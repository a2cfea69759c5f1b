//! Loop detection for agents outside of the runtime, which submit each of their calls as a run of its own. Calls are
//! counted by session, over the calls that are submitted by name, in the order in which they end. Calls without a
//! session are not counted and cost nothing.
//!
//! A call is judged when it is submitted, by the earlier outcomes of its session; the calls of a batch are judged as in
//! a body. A call under a key that was used before is not a new call and is not judged, nor is a run that is taken up
//! again: a call that was accepted is made. Each run counts once, however often it is suspended.
//!
//! All of it is in memory and bounded. A restart forgets it, the session that was not used for longest makes room for
//! others, and a session without outcomes for a while ([`MEMORY`]) starts over. A loop is quick, and a client that
//! repeats the same call only now and then must not be refused for the lifetime of the session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{LoopKey, Loops, limit};
use crate::call::ToolCall;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::run::record::OpOutcome;
use crate::run::spent::nanos;
use crate::tool::{Snapshot, ToolError};

/// Sessions that are remembered at once; the least recently used goes first. This is more than the agents of one
/// process, and each takes a few kilobytes at most.
const SESSIONS: usize = 1_024;

/// Runs of one session whose end is awaited. Suspended runs may be many, and cost nothing beyond this.
const OPEN: usize = 64;

/// How long the last outcome of a session counts towards a loop.
pub(crate) const MEMORY: Duration = Duration::from_secs(600);

/// The recent outcomes of sessions.
#[derive(Default)]
pub(crate) struct SessionLoops(Mutex<SessionTable>);

#[derive(Default)]
struct SessionTable {
    sessions: FxHashMap<Arc<str>, SessionHistory>,
    /// Counts uses, to find the least recently used session.
    uses: u64,
}

#[derive(Default)]
struct SessionHistory {
    used: u64,
    loops: Loops,
    /// The ticks of its last outcome.
    last_outcome: u64,
    /// The calls of its runs that have not ended.
    open: VecDeque<(RunId, Vec<Option<LoopKey>>)>,
}

impl SessionLoops {
    fn refusals(
        &self,
        session: &str,
        keys: &[Option<LoopKey>],
        now: u64,
        limit: impl Fn(&str) -> u32,
    ) -> Vec<Option<ToolError>> {
        let table = self.0.lock();
        let session = table.sessions.get(session).filter(|session| !session.is_past(now));
        let refusal = |key: &Option<LoopKey>| session?.loops.refusal(key.as_ref()?, &limit);
        keys.iter().map(refusal).collect()
    }

    /// Remembers the calls of a run. Their outcomes count once it has ended.
    fn asked(&self, session: &Arc<str>, run: RunId, keys: Vec<Option<LoopKey>>) {
        if keys.iter().all(Option::is_none) {
            return;
        }
        let mut table = self.0.lock();
        let session = table.used(session);
        if session.open.len() == OPEN {
            session.open.pop_front();
        }
        session.open.push_back((run, keys));
    }

    fn ended(&self, session: &str, run: RunId, outcomes: &[OpOutcome], now: u64) {
        let mut table = self.0.lock();
        let Some(session) = table.sessions.get_mut(session) else { return };
        let Some(place) = session.open.iter().position(|(open, _)| *open == run) else { return };
        let Some((_, keys)) = session.open.remove(place) else { return };
        if session.is_past(now) {
            session.loops = Loops::default();
        }
        for (key, outcome) in keys.into_iter().zip(outcomes) {
            if let Some(key) = key {
                session.loops.note(key, &outcome.result);
                session.last_outcome = now;
            }
        }
    }
}

impl SessionTable {
    /// The session, marked as the most recently used.
    fn used(&mut self, name: &Arc<str>) -> &mut SessionHistory {
        self.uses += 1;
        if self.sessions.len() >= SESSIONS && !self.sessions.contains_key(name) {
            let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.sessions.remove(&oldest));
        }
        let session = self.sessions.entry(name.clone()).or_default();
        session.used = self.uses;
        session
    }
}

impl SessionHistory {
    fn is_past(&self, now: u64) -> bool {
        now.saturating_sub(self.last_outcome) > nanos(MEMORY)
    }
}

impl Kernel {
    /// For each of the calls submitted together in a session, why it is refused, if it would only continue a loop.
    pub(crate) fn loop_refusals<'c>(
        &self,
        session: Option<&Arc<str>>,
        snapshot: &Snapshot,
        calls: impl IntoIterator<Item = &'c ToolCall>,
    ) -> Vec<Option<ToolError>> {
        let Some(session) = session else { return Vec::new() };
        let keys: Vec<_> = calls.into_iter().map(LoopKey::of).collect();
        self.loops.refusals(session, &keys, self.env.clock.ticks(), |tool| limit(&self.env.policy, snapshot, tool))
    }

    /// The run makes these calls of a session, except for those that are refused.
    pub(crate) fn loop_asked<'c>(
        &self,
        session: Option<&Arc<str>>,
        run: RunId,
        calls: impl IntoIterator<Item = &'c ToolCall>,
        refused: &[Option<ToolError>],
    ) {
        let Some(session) = session else { return };
        let is_made = |index: usize| !refused.get(index).is_some_and(Option::is_some);
        let keys = calls.into_iter().enumerate().map(|(index, call)| LoopKey::of(call).filter(|_| is_made(index)));
        self.loops.asked(session, run, keys.collect());
    }

    /// Counts the outcomes of a run that has ended.
    pub(crate) fn loop_ended(&self, session: Option<&Arc<str>>, run: RunId, outcomes: &[OpOutcome]) {
        if let Some(session) = session {
            self.loops.ended(session, run, outcomes, self.env.clock.ticks());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limits::LOOP_LIMIT;
    use crate::time::{Times, Timestamp};
    use crate::tool::Output;

    struct Agent {
        loops: SessionLoops,
        now: u64,
        runs: u8,
    }

    impl Agent {
        fn new() -> Self {
            Self { loops: SessionLoops::default(), now: 0, runs: 0 }
        }

        fn key() -> Vec<Option<LoopKey>> {
            vec![LoopKey::of(&ToolCall::new("look", json!({})))]
        }

        /// Makes the call, which returns `result`, unless it is refused.
        fn call(&mut self, session: &str, result: u32) -> bool {
            if self.loops.refusals(session, &Self::key(), self.now, |_| LOOP_LIMIT)[0].is_some() {
                return false;
            }
            self.runs = self.runs.wrapping_add(1);
            let (run, session) = (RunId::from_bytes([self.runs; 16]), Arc::from(session));
            self.loops.asked(&session, run, Self::key());
            let outcome = OpOutcome {
                result: Ok(Arc::new(Output::value(json!(result)))),
                at: Timestamp::default(),
                times: Times::default(),
            };
            // Reported twice, as by a run that is taken up again. It counts once.
            self.loops.ended(&session, run, std::slice::from_ref(&outcome), self.now);
            self.loops.ended(&session, run, &[outcome], self.now);
            true
        }

        fn calls(&mut self, session: &str, times: u32) -> u32 {
            (0..times).map(|_| u32::from(self.call(session, 7))).sum()
        }
    }

    #[test]
    fn e13_each_session_is_counted_by_itself() {
        let mut agent = Agent::new();
        assert_eq!(agent.calls("a", 20), LOOP_LIMIT);
        assert_eq!(agent.calls("b", 2), 2);
        assert!((0..50).all(|n| agent.call("c", n)), "a changing result is no loop");
    }

    #[test]
    fn e13_old_outcomes_of_a_session_do_not_count() {
        let mut agent = Agent::new();
        assert_eq!(agent.calls("a", 20), LOOP_LIMIT);
        agent.now += nanos(MEMORY);
        assert_eq!(agent.calls("a", 1), 0);
        agent.now += 1;
        assert_eq!(agent.calls("a", 20), LOOP_LIMIT, "it is counted again from then on");
    }

    #[test]
    fn e13_the_memory_of_sessions_is_bounded() {
        let mut agent = Agent::new();
        assert_eq!(agent.calls("first", LOOP_LIMIT), LOOP_LIMIT);
        assert_eq!(agent.calls("second", LOOP_LIMIT), LOOP_LIMIT);
        for n in 0..SESSIONS - 1 {
            agent.call(&n.to_string(), 1);
        }
        assert_eq!(agent.loops.0.lock().sessions.len(), SESSIONS);
        assert!(!agent.call("second", 7), "still remembered");
        assert!(agent.call("first", 7), "the least recently used went first");
        for n in 0..200u8 {
            agent.loops.asked(&"open".into(), RunId::from_bytes([n; 16]), Agent::key());
        }
        assert_eq!(agent.loops.0.lock().sessions["open"].open.len(), OPEN);
    }
}
