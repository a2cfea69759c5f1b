//! Loops of an agent that lives outside and makes each of its calls as a run of its own: counted by session, over the calls
//! that are handed in by name, in the order in which they end. Calls without a session are not looked at and cost nothing.
//!
//! Judged when a call is handed in, by what its session was told before; those of a batch like those of a body. A call under
//! a key that was used before is no new call and is not judged, and neither is a run that is taken up again: what was
//! accepted is made. Each run counts once, however often it is suspended.
//!
//! All of it is in memory and bounded. A restart forgets it, a session that was not heard of for long makes room for others,
//! and one that was told nothing for a while ([`MEMORY`]) begins anew: a loop is quick, and whoever asks for the same thing
//! every now and then, for as long as the session lasts, must not be refused for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Key, Loops, limit};
use crate::call::ToolCall;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::run::record::Told;
use crate::run::spent::nanos;
use crate::tool::{Snapshot, ToolError};

/// Sessions remembered at once, least recently used first to go: more than one process has agents at work, and a few
/// kilobytes each at most.
const SESSIONS: usize = 1_024;

/// Runs of one session whose end is waited for. Suspended ones may be many, and cost nothing here beyond that.
const OPEN: usize = 64;

/// How long what a session was told last counts towards a loop.
pub(crate) const MEMORY: Duration = Duration::from_secs(600);

/// What sessions were told lately.
#[derive(Default)]
pub(crate) struct SessionLoops(Mutex<Known>);

#[derive(Default)]
struct Known {
    sessions: FxHashMap<Arc<str>, Session>,
    /// Counts uses, so that the least recent is known.
    uses: u64,
}

#[derive(Default)]
struct Session {
    used: u64,
    loops: Loops,
    /// The ticks when it was told something last.
    told: u64,
    /// Which calls its runs make that have not ended.
    open: VecDeque<(RunId, Vec<Option<Key>>)>,
}

impl SessionLoops {
    fn refusals(
        &self,
        session: &str,
        keys: &[Option<Key>],
        now: u64,
        limit: impl Fn(&str) -> u32,
    ) -> Vec<Option<ToolError>> {
        let known = self.0.lock();
        let session = known.sessions.get(session).filter(|session| !session.is_past(now));
        let refusal = |key: &Option<Key>| session?.loops.refusal(key.as_ref()?, &limit);
        keys.iter().map(refusal).collect()
    }

    /// What this run's calls come to counts once it has ended.
    fn asked(&self, session: &Arc<str>, run: RunId, keys: Vec<Option<Key>>) {
        if keys.iter().all(Option::is_none) {
            return;
        }
        let mut known = self.0.lock();
        let session = known.used(session);
        if session.open.len() == OPEN {
            session.open.pop_front();
        }
        session.open.push_back((run, keys));
    }

    fn ended(&self, session: &str, run: RunId, told: &[Told], now: u64) {
        let mut known = self.0.lock();
        let Some(session) = known.sessions.get_mut(session) else { return };
        let Some(place) = session.open.iter().position(|(open, _)| *open == run) else { return };
        let Some((_, keys)) = session.open.remove(place) else { return };
        if session.is_past(now) {
            session.loops = Loops::default();
        }
        for (key, told) in keys.into_iter().zip(told) {
            if let Some(key) = key {
                session.loops.note(key, &told.result);
                session.told = now;
            }
        }
    }
}

impl Known {
    /// The session, which is the latest that was used.
    fn used(&mut self, name: &Arc<str>) -> &mut Session {
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

impl Session {
    fn is_past(&self, now: u64) -> bool {
        now.saturating_sub(self.told) > nanos(MEMORY)
    }
}

impl Kernel {
    /// Why calls that are handed in together in a session are not made, each that would only go on with a loop.
    pub(crate) fn loop_refusals<'c>(
        &self,
        session: Option<&Arc<str>>,
        snapshot: &Snapshot,
        calls: impl IntoIterator<Item = &'c ToolCall>,
    ) -> Vec<Option<ToolError>> {
        let Some(session) = session else { return Vec::new() };
        let keys: Vec<_> = calls.into_iter().map(Key::of).collect();
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
        let keys = calls.into_iter().enumerate().map(|(index, call)| Key::of(call).filter(|_| is_made(index)));
        self.loops.asked(session, run, keys.collect());
    }

    /// The run has its outcomes.
    pub(crate) fn loop_ended(&self, session: Option<&Arc<str>>, run: RunId, told: &[Told]) {
        if let Some(session) = session {
            self.loops.ended(session, run, told, self.env.clock.ticks());
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

        fn key() -> Vec<Option<Key>> {
            vec![Key::of(&ToolCall::new("look", json!({})))]
        }

        /// Makes the call, whatever it is told then, unless it is refused.
        fn call(&mut self, session: &str, result: u32) -> bool {
            if self.loops.refusals(session, &Self::key(), self.now, |_| LOOP_LIMIT)[0].is_some() {
                return false;
            }
            self.runs = self.runs.wrapping_add(1);
            let (run, session) = (RunId::from_bytes([self.runs; 16]), Arc::from(session));
            self.loops.asked(&session, run, Self::key());
            let told = Told {
                result: Ok(Arc::new(Output::value(json!(result)))),
                at: Timestamp::default(),
                times: Times::default(),
            };
            // Told twice, as by a run that is taken up again: it counts once.
            self.loops.ended(&session, run, std::slice::from_ref(&told), self.now);
            self.loops.ended(&session, run, &[told], self.now);
            true
        }

        fn calls(&mut self, session: &str, times: u32) -> u32 {
            (0..times).map(|_| u32::from(self.call(session, 7))).sum()
        }
    }

    #[test]
    fn e13_sessions_are_counted_apart() {
        let mut agent = Agent::new();
        assert_eq!(agent.calls("a", 20), LOOP_LIMIT);
        assert_eq!(agent.calls("b", 2), 2);
        assert!((0..50).all(|n| agent.call("c", n)), "a changing result is no loop");
    }

    #[test]
    fn e13_what_a_session_was_told_long_ago_does_not_count() {
        let mut agent = Agent::new();
        assert_eq!(agent.calls("a", 20), LOOP_LIMIT);
        agent.now += nanos(MEMORY);
        assert_eq!(agent.calls("a", 1), 0);
        agent.now += 1;
        assert_eq!(agent.calls("a", 20), LOOP_LIMIT, "and from then on it does again");
    }

    #[test]
    fn e13_what_is_kept_of_sessions_is_bounded() {
        let mut agent = Agent::new();
        assert_eq!(agent.calls("first", LOOP_LIMIT), LOOP_LIMIT);
        assert_eq!(agent.calls("second", LOOP_LIMIT), LOOP_LIMIT);
        for n in 0..SESSIONS - 1 {
            agent.call(&n.to_string(), 1);
        }
        assert_eq!(agent.loops.0.lock().sessions.len(), SESSIONS);
        assert!(!agent.call("second", 7), "still known");
        assert!(agent.call("first", 7), "the least recently used went first");
        for n in 0..200u8 {
            agent.loops.asked(&"open".into(), RunId::from_bytes([n; 16]), Agent::key());
        }
        assert_eq!(agent.loops.0.lock().sessions["open"].open.len(), OPEN);
    }
}
