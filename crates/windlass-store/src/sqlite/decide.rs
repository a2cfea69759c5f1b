//! Decides whether a commit may be written: pure functions of what the writer knows about a run. They run before any
//! SQL, so that a refused commit does not affect the others of its group.

use windlass_core::run::state::Doubt;
use windlass_core::store::StoreError;
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId};

use super::job::{EncodedState, RunPhase};
use super::log::{Journal, JournalTail};

/// The part of a run's row that decisions need. Cached while the run is unfinished.
#[derive(Clone, Debug)]
pub(super) struct RunHead {
    /// The number of the run (`runs.id`).
    pub(super) id: i64,
    pub(super) epoch: u64,
    /// The tail of the journal.
    pub(super) tail: JournalTail,
    /// The position of the latest message.
    pub(super) mail: u64,
    /// The position up to which the owner has examined its messages.
    pub(super) examined: u64,
    pub(super) phase: RunPhase,
    pub(super) doubts: Vec<Doubt>,
    pub(super) generation: u32,
    /// The number of the first record of this generation.
    pub(super) base: u64,
    pub(super) session: Option<i64>,
    /// Whether the run is an unfinished turn of its session.
    pub(super) turn: bool,
    /// Whether the journal was removed or is being removed.
    pub(super) summary: bool,
}

impl RunHead {
    /// The head of a run without a journal.
    pub(super) fn new(id: i64, epoch: u64, phase: RunPhase) -> Self {
        Self {
            id,
            epoch,
            tail: JournalTail::default(),
            mail: 0,
            examined: 0,
            phase,
            doubts: Vec::new(),
            generation: 0,
            base: 0,
            session: None,
            turn: false,
            summary: false,
        }
    }

    /// Whether the head is cold: unlikely to be read again soon.
    pub(super) fn is_cold(&self) -> bool {
        matches!(self.phase, RunPhase::Finished | RunPhase::Suspended)
    }

    pub(super) fn journal(&self) -> Journal {
        Journal { run: self.id, session: self.session, tail: self.tail }
    }
}

/// The wake time of a suspended run without a timer, and of a turn that waits for another one.
pub(super) const NEVER: i64 = i64::MAX;
/// The wake time of a run that is due now.
pub(super) const AT_ONCE: i64 = i64::MIN;

/// The wake time of a run in this state. `unread`: its mailbox has a message that its owner has not examined.
pub(super) fn wake(state: &EncodedState, unread: bool) -> Option<i64> {
    match state.phase {
        RunPhase::Queued => Some(AT_ONCE),
        RunPhase::Suspended if unread => Some(AT_ONCE),
        RunPhase::Suspended => Some(state.timer.map_or(NEVER, Timestamp::as_micros)),
        RunPhase::Running | RunPhase::Held | RunPhase::Finished => None,
    }
}

/// The run, epoch and position of the journal that an owner's commit is based on.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerGuard {
    pub(super) run: RunId,
    pub(super) epoch: u64,
    pub(super) expected_seq: u64,
}

/// What to do with an owner's commit that was not refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Write,
    /// A resubmission if the journal has the same records at that position; out of sequence otherwise.
    Compare,
}

/// Decides about an owner's commit. `creates`: it creates the run; `appends`: it appends records.
pub(super) fn owner(
    head: Option<&RunHead>,
    owner: OwnerGuard,
    creates: bool,
    appends: bool,
) -> Result<Verdict, StoreError> {
    let OwnerGuard { run, epoch, expected_seq } = owner;
    let Some(head) = head else {
        return match (creates, expected_seq) {
            (true, 0) => Ok(Verdict::Write),
            (true, _) => Err(StoreError::WrongSequence { run, expected: expected_seq, current: 0 }),
            (false, _) => Err(StoreError::NoSuchRun(run)),
        };
    };
    if epoch != head.epoch {
        return Err(StoreError::Stale { run, epoch, current: head.epoch });
    }
    if head.summary {
        return Err(StoreError::Finished(run));
    }
    match (creates, appends) {
        (false, _) if expected_seq == head.tail.length => Ok(Verdict::Write),
        (true, _) if expected_seq == 0 => Ok(Verdict::Compare),
        (false, true) if expected_seq < head.tail.length => Ok(Verdict::Compare),
        _ => Err(out_of_sequence(owner, head)),
    }
}

pub(super) fn out_of_sequence(owner: OwnerGuard, head: &RunHead) -> StoreError {
    StoreError::WrongSequence { run: owner.run, expected: owner.expected_seq, current: head.tail.length }
}

/// Decides whether a run accepts a message. A finished run accepts only the settlement of a doubt that it still has.
pub(super) fn mail(run: RunId, head: &RunHead, settles: Option<&(Path, u32)>) -> Result<(), StoreError> {
    let open = |(path, attempt): &(Path, u32)| {
        head.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt)
    };
    if head.phase == RunPhase::Finished && !settles.is_some_and(open) {
        return Err(StoreError::Finished(run));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::from_bytes([7; 16])
    }

    fn head(epoch: u64, seq: u64) -> RunHead {
        RunHead { tail: JournalTail { position: 1, length: seq }, ..RunHead::new(1, epoch, RunPhase::Running) }
    }

    #[test]
    fn l22_only_the_current_owner_writes_and_only_at_the_end_of_the_journal() {
        let wrong = |expected, current| Err(StoreError::WrongSequence { run: run(), expected, current });
        let stale = |epoch, current| Err(StoreError::Stale { run: run(), epoch, current });
        let missing = Err(StoreError::NoSuchRun(run()));
        // (head: epoch and sequence, commit: epoch and sequence, creates, appends, verdict)
        let table = [
            (None, (1, 0), true, true, Ok(Verdict::Write)),
            (None, (1, 3), true, true, wrong(3, 0)),
            (None, (1, 0), false, true, missing),
            (Some((2, 5)), (2, 5), false, true, Ok(Verdict::Write)),
            (Some((2, 5)), (2, 5), false, false, Ok(Verdict::Write)),
            (Some((2, 5)), (2, 4), false, true, Ok(Verdict::Compare)),
            (Some((2, 5)), (2, 4), false, false, wrong(4, 5)),
            (Some((2, 5)), (2, 6), false, true, wrong(6, 5)),
            (Some((2, 5)), (1, 5), false, true, stale(1, 2)),
            (Some((2, 5)), (3, 5), false, true, stale(3, 2)),
            (Some((1, 5)), (1, 0), true, true, Ok(Verdict::Compare)),
            (Some((1, 0)), (1, 0), true, false, Ok(Verdict::Compare)),
            (Some((2, 5)), (1, 0), true, true, stale(1, 2)),
            (Some((1, 5)), (1, 5), true, true, wrong(5, 5)),
        ];
        for (line, (current, (epoch, expected_seq), creates, appends, expected)) in table.into_iter().enumerate() {
            let current = current.map(|(epoch, seq)| head(epoch, seq));
            let writer = OwnerGuard { run: run(), epoch, expected_seq };
            assert_eq!(owner(current.as_ref(), writer, creates, appends), expected, "line {line}");
        }
    }

    #[test]
    fn w03_a_run_is_due_when_its_timer_fires_or_a_message_arrives() {
        let state = |phase, timer: Option<i64>| EncodedState {
            phase,
            body: String::new(),
            timer: timer.map(Timestamp::from_micros),
        };
        // (phase, timer, unread mail, wake)
        let table = [
            (RunPhase::Suspended, None, false, Some(NEVER)),
            (RunPhase::Suspended, Some(5), false, Some(5)),
            (RunPhase::Suspended, Some(5), true, Some(AT_ONCE)),
            (RunPhase::Suspended, None, true, Some(AT_ONCE)),
            (RunPhase::Queued, None, false, Some(AT_ONCE)),
            (RunPhase::Running, None, true, None),
            (RunPhase::Held, None, true, None),
            (RunPhase::Finished, None, true, None),
        ];
        for (phase, timer, unread, expected) in table {
            assert_eq!(wake(&state(phase, timer), unread), expected, "{phase:?} {timer:?} {unread}");
        }
    }
}
