//! **The replay decision.** One pure function decides what happens when a body asks for an operation: answer from the
//! journal, continue where it stopped, perform it, or stop because code and journal disagree. Two smaller functions
//! read the same state for the stages before that: how far a call got, and which branch of a changed body a run takes.

use std::sync::Arc;

use crate::path::Path;
use crate::run::history::{OpState, RecordedOp};
use crate::run::record::{Asked, DoubtCause, Grant, OpKind, Prepared, Recorded};
use crate::run::state::{Blocked, Divergence};
use crate::time::Timestamp;
use crate::tool::Effect;

/// What to do about an operation.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// Start its first or next attempt.
    Perform { attempt: u32, not_before: Option<Timestamp> },
    /// It is finished: this is its result.
    Answer { result: Recorded, at: Timestamp },
    /// An attempt may have happened.
    InDoubt { attempt: u32, cause: DoubtCause, over_by: Timestamp, said: Option<Arc<str>>, recorded: bool },
    /// It waits: keep waiting, with the original deadline.
    Park { on: Blocked, until: Option<Timestamp>, attempt: u32 },
    /// It was approved: continue from there while the grant is valid.
    Granted(Grant),
    /// Enter the durable body or the group.
    Enter,
    /// The journal has something else here.
    Diverged(Box<Divergence>),
    /// Do nothing: the journal is only checked, and continuing would perform something. Never returned by [`replay`].
    Skipped(Box<Decision>),
}

/// What is known about earlier owners. It determines when an attempt of theirs is certainly over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EarlierOwners {
    /// The journal comes from a backup, so it may lack attempts that were made after the backup.
    pub(crate) restored: bool,
    /// All of them are dead: none of their attempts can still be running.
    pub(crate) dead: bool,
    /// The last one shut down cleanly.
    pub(crate) shut_down: bool,
}

/// Decides about the operation at `path`, which the body asks for with `asked`.
pub(crate) fn replay(path: &Path, op: Option<&RecordedOp>, asked: &Asked, owners: EarlierOwners) -> Decision {
    let Some(op) = op else {
        return Decision::Perform { attempt: 1, not_before: None };
    };
    if !op.asked.same(asked) {
        return Decision::Diverged(Box::new(divergence(path, &op.asked, asked)));
    }
    // The stricter of the recorded and the live class decides whether an interrupted attempt may be repeated.
    let strict = op.asked.effect.max(asked.effect) == Effect::Once;
    // Attempts under a looser class than `once` leave no record when they begin.
    let may_have_begun = op.lost && op.asked.effect != Effect::Once;
    match &op.state {
        OpState::Finished { result } => Decision::Answer { result: result.clone(), at: op.at },
        OpState::Accepted | OpState::Prepared if strict && may_have_begun => interrupted(1, op.at, op, owners),
        OpState::Accepted | OpState::Prepared => Decision::Perform { attempt: 1, not_before: None },
        OpState::Entered => Decision::Enter,
        OpState::Attempting { attempt } if strict => interrupted(*attempt, op.at, op, owners),
        OpState::Attempting { attempt } => Decision::Perform { attempt: *attempt, not_before: None },
        OpState::Intended { attempt, over_by } => interrupted(*attempt, *over_by, op, owners),
        OpState::Failed { attempt, retry_at } => {
            Decision::Perform { attempt: attempt + 1, not_before: Some(*retry_at) }
        }
        OpState::Doubted { attempt, cause, over_by, said } => {
            let said = said.clone();
            Decision::InDoubt { attempt: *attempt, cause: *cause, over_by: *over_by, said, recorded: true }
        }
        OpState::Parked { on, until, attempt } => Decision::Park { on: on.clone(), until: *until, attempt: *attempt },
        OpState::Granted(grant) => Decision::Granted(grant.clone()),
        OpState::Settled { attempt } => Decision::Perform { attempt: attempt + 1, not_before: None },
    }
}

/// The decision about an attempt that an earlier owner began and whose end it did not record.
fn interrupted(attempt: u32, over_by: Timestamp, op: &RecordedOp, owners: EarlierOwners) -> Decision {
    // A restored attempt may have been repeated since, so the person who settles it is told about the backup.
    let cause = match owners {
        EarlierOwners { restored: true, .. } => DoubtCause::Restored,
        EarlierOwners { shut_down: true, .. } => DoubtCause::ShutDown,
        _ => DoubtCause::WorkerLost,
    };
    // An owner that may be alive can work on the attempt until its timeout. The attempt of a restored journal began
    // before the backup, so its doubt can be settled at once.
    let over_by = if owners.restored || owners.dead { op.at } else { over_by };
    Decision::InDoubt { attempt, cause, over_by, said: None, recorded: false }
}

/// How far an earlier owner got with a call, with the id of its tool.
pub(crate) enum CallProgress {
    /// It was asked for, and may not have been checked yet. Without an id if its name matched no tool.
    Accepted(Option<Arc<str>>),
    /// Its arguments are final. Connection and approval were not requested yet.
    Prepared(Arc<str>),
    /// It waits for a connection or an approval, or has just got it.
    Asking(Arc<str>),
    UnderWay(Arc<str>),
    Finished(Arc<str>),
    /// The journal has another operation here: [`replay`] reports the divergence.
    NotACall,
}

/// How far an earlier owner got with a call, and what it prepared.
pub(crate) fn call_progress(op: &RecordedOp) -> (CallProgress, Option<Prepared>) {
    let name = || op.asked.name.clone();
    let progress = match &op.state {
        _ if op.asked.kind != OpKind::Call => CallProgress::NotACall,
        OpState::Accepted => CallProgress::Accepted((!op.asked.unresolved).then(name)),
        OpState::Prepared => CallProgress::Prepared(name()),
        _ if op.is_asking() => CallProgress::Asking(name()),
        OpState::Finished { .. } => CallProgress::Finished(name()),
        _ => CallProgress::UnderWay(name()),
    };
    (progress, op.prepared.clone())
}

/// Whether a body takes the new branch of a code change. It does, unless the journal has another operation where the
/// change is marked.
pub(crate) fn takes_new_branch(op: Option<&RecordedOp>, marker: &Asked) -> bool {
    op.is_none_or(|op| op.asked.same(marker))
}

/// The divergence of a body that returned although the journal has a further operation.
pub(crate) fn unasked(path: &Path, op: &RecordedOp) -> Divergence {
    Divergence { path: path.clone(), recorded: Some(op.asked.to_string()), asked: None, differences: Vec::new() }
}

fn divergence(path: &Path, recorded: &Asked, asked: &Asked) -> Divergence {
    let alike = recorded.kind == asked.kind && recorded.name == asked.name;
    let differences = if alike { recorded.differences(asked) } else { Vec::new() };
    Divergence { path: path.clone(), recorded: Some(recorded.to_string()), asked: Some(asked.to_string()), differences }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::run::record::OpKind;
    use crate::run::spent::{AttemptMark, SpentTime};
    use crate::tool::{Output, ToolError};

    const T: Timestamp = Timestamp::from_micros(5_000_000);

    fn step(name: &str, effect: Effect) -> Asked {
        Asked::operation(OpKind::Step, name.into(), None, effect)
    }

    fn call(name: &str, args: Value) -> Asked {
        Asked { kind: OpKind::Call, input: Some(Arc::new(args)), ..step(name, Effect::Once) }
    }

    fn op(asked: Asked, state: OpState) -> RecordedOp {
        let spent = SpentTime::new(T, AttemptMark::Over);
        RecordedOp {
            asked,
            state,
            prepared: None,
            since: T,
            begun: None,
            at: T,
            deaths: 0,
            spent,
            lost: false,
            last: 0,
        }
    }

    fn decide(recorded: Asked, state: OpState, asked: &Asked) -> String {
        decide_after(EarlierOwners::default(), recorded, state, asked)
    }

    fn decide_after(owners: EarlierOwners, recorded: Asked, state: OpState, asked: &Asked) -> String {
        let op = op(recorded, state);
        format!("{:?}", replay(&Path::root().child(0), Some(&op), asked, owners))
    }

    #[test]
    fn l22_an_operation_without_a_record_is_performed() {
        let decision = replay(&Path::root(), None, &step("s", Effect::Once), EarlierOwners::default());
        assert_eq!(format!("{decision:?}"), "Perform { attempt: 1, not_before: None }");
    }

    #[test]
    fn l22_a_finished_operation_answers_from_its_record_value_or_error() {
        let asked = step("s", Effect::Once);
        let ok = OpState::Finished { result: Ok(Arc::new(Output::value(json!(7)))) };
        assert!(decide(asked.clone(), ok, &asked).starts_with("Answer { result: Ok("));
        let error = OpState::Finished { result: Err(Arc::new(ToolError::failed("no"))) };
        assert!(decide(asked.clone(), error, &asked).starts_with("Answer { result: Err("));
    }

    #[test]
    fn an_accepted_call_starts_its_first_attempt() {
        let asked = call("t", json!({}));
        assert_eq!(decide(asked.clone(), OpState::Accepted, &asked), "Perform { attempt: 1, not_before: None }");
    }

    #[test]
    fn l06_a_park_continues_with_its_original_deadline() {
        let asked = Asked::operation(OpKind::Wait, "manager".into(), None, Effect::Readonly);
        let on = Blocked::Input { name: "manager".into(), at: None };
        let decision = decide(asked.clone(), OpState::Parked { on, until: Some(T), attempt: 0 }, &asked);
        assert_eq!(decision, "Park { on: Input { name: \"manager\", at: None }, until: Some(5000000µs), attempt: 0 }");
        let other = Asked::operation(OpKind::Wait, "director".into(), None, Effect::Readonly);
        let on = Blocked::Input { name: "manager".into(), at: None };
        assert!(decide(asked, OpState::Parked { on, until: None, attempt: 0 }, &other).starts_with("Diverged"));
    }

    #[test]
    fn e07_a_granted_call_continues_from_its_grant() {
        let asked = call("t", json!({}));
        let grant = Grant { digest: "d".into(), by: "ada".into(), reason: "fine".into(), until: T };
        assert!(decide(asked.clone(), OpState::Granted(grant), &asked).starts_with("Granted(Grant { digest: \"d\""));
    }

    #[test]
    fn l01_a_prepared_call_starts_its_first_attempt() {
        let asked = call("t", json!({}));
        assert_eq!(decide(asked.clone(), OpState::Prepared, &asked), "Perform { attempt: 1, not_before: None }");
    }

    #[test]
    fn l17_a_failed_attempt_waits_for_its_recorded_time() {
        let asked = step("s", Effect::Idempotent);
        let state = OpState::Failed { attempt: 2, retry_at: T };
        let decision = decide(asked.clone(), state, &asked);
        assert_eq!(decision, "Perform { attempt: 3, not_before: Some(5000000µs) }");
    }

    #[test]
    fn w01_an_intended_attempt_without_an_end_is_in_doubt() {
        let asked = step("s", Effect::Once);
        let state = OpState::Intended { attempt: 1, over_by: T };
        let decision = decide(asked.clone(), state, &asked);
        assert!(decision.starts_with("InDoubt { attempt: 1, cause: WorkerLost"), "{decision}");
    }

    #[test]
    fn w01_an_interrupted_attempt_is_over_at_its_timeout_or_when_its_owner_is_known_to_be_dead() {
        let asked = step("s", Effect::Once);
        let later = Timestamp::from_micros(9_000_000);
        let intended = || OpState::Intended { attempt: 1, over_by: later };
        for (owners, cause, over_by) in [
            (EarlierOwners::default(), "WorkerLost", "9000000µs"),
            (EarlierOwners { dead: true, ..EarlierOwners::default() }, "WorkerLost", "5000000µs"),
            (EarlierOwners { dead: true, shut_down: true, restored: false }, "ShutDown", "5000000µs"),
            (EarlierOwners { restored: true, ..EarlierOwners::default() }, "Restored", "5000000µs"),
        ] {
            let decision = decide_after(owners, asked.clone(), intended(), &asked);
            let expected = format!("InDoubt {{ attempt: 1, cause: {cause}, over_by: {over_by}, said: None");
            assert!(decision.starts_with(&expected), "{owners:?}: {decision}");
        }
        let doubted = OpState::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by: later, said: None };
        let owners = EarlierOwners { dead: true, restored: true, shut_down: false };
        let decision = decide_after(owners, asked.clone(), doubted, &asked);
        assert!(decision.starts_with("InDoubt { attempt: 1, cause: TimedOut, over_by: 9000000µs"), "{decision}");
    }

    #[test]
    fn w04_a_run_that_passed_the_code_before_the_change_takes_the_old_branch() {
        let marker = Asked::operation(OpKind::Version, "change".into(), None, Effect::Readonly);
        assert!(takes_new_branch(None, &marker));
        assert!(takes_new_branch(Some(&op(marker.clone(), OpState::Entered)), &marker));
        assert!(!takes_new_branch(Some(&op(step("s", Effect::Once), OpState::Entered)), &marker));
    }

    #[test]
    fn l02_the_progress_of_a_call_names_its_tool() {
        let progress = |asked: Asked, state: OpState| match call_progress(&op(asked, state)).0 {
            CallProgress::Accepted(id) => format!("accepted {id:?}"),
            CallProgress::Prepared(id) => format!("prepared {id}"),
            CallProgress::Asking(id) => format!("asking {id}"),
            CallProgress::UnderWay(id) => format!("under way {id}"),
            CallProgress::Finished(id) => format!("finished {id}"),
            CallProgress::NotACall => "not a call".to_owned(),
        };
        let asked = call("t", json!({}));
        let unresolved = Asked { unresolved: true, ..asked.clone() };
        let connection = || Blocked::Connection { provider: "mail".into(), after: None, why: None };
        for (state, expected) in [
            (OpState::Accepted, "accepted Some(\"t\")"),
            (OpState::Prepared, "prepared t"),
            (OpState::Parked { on: connection(), until: None, attempt: 0 }, "asking t"),
            (OpState::Parked { on: connection(), until: None, attempt: 1 }, "under way t"),
            (OpState::Attempting { attempt: 1 }, "under way t"),
            (OpState::Finished { result: Ok(Arc::new(Output::default())) }, "finished t"),
        ] {
            assert_eq!(progress(asked.clone(), state), expected);
        }
        assert_eq!(progress(unresolved, OpState::Accepted), "accepted None");
        assert_eq!(progress(step("s", Effect::Once), OpState::Accepted), "not a call");
    }

    #[test]
    fn e08_the_stricter_class_wins_whichever_side_has_it() {
        let (once, idempotent) = (step("s", Effect::Once), step("s", Effect::Idempotent));
        let intended = || OpState::Intended { attempt: 1, over_by: T };
        let attempting = || OpState::Attempting { attempt: 1 };
        assert!(decide(once.clone(), intended(), &idempotent).starts_with("InDoubt"));
        assert!(decide(idempotent.clone(), attempting(), &once).starts_with("InDoubt"));
        assert!(decide(idempotent.clone(), attempting(), &idempotent).starts_with("Perform { attempt: 1"));
    }

    #[test]
    fn e19_a_call_that_a_lost_owner_may_have_begun_is_in_doubt_if_its_tool_is_once_by_now() {
        let of = |effect| Asked { effect, ..call("t", json!({})) };
        for state in [|| OpState::Accepted, || OpState::Prepared] {
            for (recorded, live, lost, expected) in [
                (Effect::Idempotent, Effect::Once, true, "InDoubt { attempt: 1, cause: WorkerLost"),
                (Effect::Readonly, Effect::Once, true, "InDoubt { attempt: 1, cause: WorkerLost"),
                (Effect::Idempotent, Effect::Once, false, "Perform { attempt: 1"),
                (Effect::Readonly, Effect::Idempotent, true, "Perform { attempt: 1"),
                // A `once` attempt has a record before it begins.
                (Effect::Once, Effect::Once, true, "Perform { attempt: 1"),
                (Effect::Once, Effect::Readonly, true, "Perform { attempt: 1"),
            ] {
                let op = RecordedOp { lost, ..op(of(recorded), state()) };
                let decision = replay(&Path::root(), Some(&op), &of(live), EarlierOwners::default());
                assert!(format!("{decision:?}").starts_with(expected), "{recorded:?}, {live:?}, {lost}: {decision:?}");
            }
        }
    }

    #[test]
    fn w01_a_recorded_doubt_stays_in_doubt() {
        let asked = step("s", Effect::Once);
        let state = OpState::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by: T, said: None };
        let decision = decide(asked.clone(), state, &asked);
        assert!(decision.starts_with("InDoubt { attempt: 1, cause: TimedOut"), "{decision}");
    }

    #[test]
    fn w01_settled_as_not_happened_is_attempted_again() {
        let asked = step("s", Effect::Once);
        let decision = decide(asked.clone(), OpState::Settled { attempt: 1 }, &asked);
        assert_eq!(decision, "Perform { attempt: 2, not_before: None }");
    }

    #[test]
    fn a_durable_child_that_was_entered_is_entered_again() {
        let asked = call("t", json!({}));
        assert_eq!(decide(asked.clone(), OpState::Entered, &asked), "Enter");
    }

    #[test]
    fn l22_a_different_operation_diverges_and_names_the_differing_paths() {
        let recorded = call("book", json!({"to": "Oslo", "seats": 2}));
        for (asked, word) in [
            (call("book", json!({"to": "Rome", "seats": 2})), "/to: recorded \"Oslo\", asked \"Rome\""),
            (call("pay", json!({"to": "Oslo", "seats": 2})), "the code asks for call of tool `pay`"),
            (step("book", Effect::Once), "the code asks for step \"book\""),
        ] {
            let op = op(recorded.clone(), OpState::Accepted);
            let path = Path::root().child(3);
            let Decision::Diverged(divergence) = replay(&path, Some(&op), &asked, EarlierOwners::default()) else {
                panic!("{asked} was accepted for {recorded}")
            };
            let text = divergence.to_string();
            assert!(
                text.contains(word) && text.starts_with("diverged at 3: the journal has call of tool `book`"),
                "{text}"
            );
        }
    }

    #[test]
    fn l22_records_left_when_the_body_returns_diverge() {
        let op = op(step("later", Effect::Once), OpState::Accepted);
        let text = unasked(&Path::root().child(2), &op).to_string();
        assert!(text.contains("has step \"later\"") && text.contains("the body returned"), "{text}");
    }

    #[test]
    fn a_models_call_id_and_the_effect_are_not_compared() {
        let recorded = call("t", json!({"a": 1}));
        let mut asked = call("t", json!({"a": 1}));
        asked.call_id = Some("other".into());
        asked.effect = Effect::Readonly;
        let result = Ok(Arc::new(Output::value(json!(1))));
        assert!(decide(recorded, OpState::Finished { result }, &asked).starts_with("Answer"));
    }
}
