//! Whether a commit may be written: pure decisions over what the writer knows of a run. They come before any SQL, so
//! that a refused commit leaves the others of its group alone.

use windlass_core::run::state::Doubt;
use windlass_core::store::StoreError;
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId};

use super::job::{Phase, State};
use super::log::{Journal, Tail};

/// What decisions need to know of a run. Kept in memory while it is not finished; the file has it too.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Stands for the run in the file's other tables.
    pub(super) id: i64,
    pub(super) epoch: u64,
    /// Where the journal ends.
    pub(super) tail: Tail,
    /// The position of the latest message.
    pub(super) mail: u64,
    /// The position up to which the owner has examined its mail.
    pub(super) examined: u64,
    pub(super) phase: Phase,
    pub(super) doubts: Vec<Doubt>,
    pub(super) generation: u32,
    /// Where the journal of this generation begins.
    pub(super) base: u64,
    pub(super) session: Option<i64>,
    /// Whether it is a turn that is not over.
    pub(super) turn: bool,
    /// Whether its journal is gone, or going.
    pub(super) summary: bool,
}

impl Head {
    /// Of a run that has no journal yet.
    pub(super) fn new(id: i64, epoch: u64, phase: Phase) -> Self {
        Self {
            id,
            epoch,
            tail: Tail::default(),
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

    /// Whether hardly anybody asks for it soon.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Suspended)
    }

    pub(super) fn journal(&self) -> Journal {
        Journal { run: self.id, session: self.session, tail: self.tail }
    }
}

/// When a suspended run without a timer is due, and a turn that waits, as far as time goes.
pub(super) const NEVER: i64 = i64::MAX;
/// When a run is due that has reason to go on now.
pub(super) const AT_ONCE: i64 = i64::MIN;

/// When a run in this state is due. `unread`: its mailbox has something its owner has not examined.
pub(super) fn wake(state: &State, unread: bool) -> Option<i64> {
    match state.phase {
        Phase::Queued => Some(AT_ONCE),
        Phase::Suspended if unread => Some(AT_ONCE),
        Phase::Suspended => Some(state.timer.map_or(NEVER, Timestamp::as_micros)),
        Phase::Running | Phase::Held | Phase::Finished => None,
    }
}

/// An owner's claim about its run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) run: RunId,
    pub(super) epoch: u64,
    pub(super) expected_seq: u64,
}

/// What becomes of an owner's commit that was not refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Write,
    /// It was written before if the journal has its records at its place; otherwise it is out of sequence.
    Compare,
}

/// Decides an owner's commit. `creates`: it creates the run; `appends`: it appends records.
pub(super) fn owner(head: Option<&Head>, owner: Owner, creates: bool, appends: bool) -> Result<Verdict, StoreError> {
    let Owner { run, epoch, expected_seq } = owner;
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
        (false, _) if expected_seq == head.tail.end => Ok(Verdict::Write),
        (true, _) if expected_seq == 0 => Ok(Verdict::Compare),
        (false, true) if expected_seq < head.tail.end => Ok(Verdict::Compare),
        _ => Err(out_of_sequence(owner, head)),
    }
}

pub(super) fn out_of_sequence(owner: Owner, head: &Head) -> StoreError {
    StoreError::WrongSequence { run: owner.run, expected: owner.expected_seq, current: head.tail.end }
}

/// Decides whether a run takes a message. A finished run takes only the settlement of a doubt it still has.
pub(super) fn mail(run: RunId, head: &Head, settles: Option<&(Path, u32)>) -> Result<(), StoreError> {
    let open = |(path, attempt): &(Path, u32)| {
        head.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt)
    };
    if head.phase == Phase::Finished && !settles.is_some_and(open) {
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

    fn head(epoch: u64, seq: u64) -> Head {
        Head { tail: Tail { position: 1, end: seq }, ..Head::new(1, epoch, Phase::Running) }
    }

    #[test]
    fn l22_only_the_owner_at_the_right_place_writes() {
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
        for (line, (known, (epoch, expected_seq), creates, appends, expected)) in table.into_iter().enumerate() {
            let known = known.map(|(epoch, seq)| head(epoch, seq));
            let writer = Owner { run: run(), epoch, expected_seq };
            assert_eq!(owner(known.as_ref(), writer, creates, appends), expected, "line {line}");
        }
    }

    #[test]
    fn w03_a_run_is_due_when_its_time_has_come_or_mail_has() {
        let state =
            |phase, timer: Option<i64>| State { phase, body: String::new(), timer: timer.map(Timestamp::from_micros) };
        // (phase, timer, unread mail, wake)
        let table = [
            (Phase::Suspended, None, false, Some(NEVER)),
            (Phase::Suspended, Some(5), false, Some(5)),
            (Phase::Suspended, Some(5), true, Some(AT_ONCE)),
            (Phase::Suspended, None, true, Some(AT_ONCE)),
            (Phase::Queued, None, false, Some(AT_ONCE)),
            (Phase::Running, None, true, None),
            (Phase::Held, None, true, None),
            (Phase::Finished, None, true, None),
        ];
        for (phase, timer, unread, expected) in table {
            assert_eq!(wake(&state(phase, timer), unread), expected, "{phase:?} {timer:?} {unread}");
        }
    }
}
