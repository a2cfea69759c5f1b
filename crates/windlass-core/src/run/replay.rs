//! **The replay decision.** One pure function says what happens when a body asks for an operation: answer from the
//! journal, go on from where it stopped, perform it, or stop because code and journal disagree.

use std::sync::Arc;

use crate::path::Path;
use crate::run::history::{Standing, State};
use crate::run::record::{Asked, DoubtCause, Grant, Recorded};
use crate::run::state::{Blocked, Divergence};
use crate::time::Timestamp;
use crate::tool::Effect;
use crate::value::diff::differences;

/// What to do about an operation.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// Start its first, or next, attempt.
    Perform { attempt: u32, not_before: Option<Timestamp> },
    /// It is finished: this is what it returned.
    Answer { result: Recorded, at: Timestamp },
    /// An attempt may have happened.
    InDoubt { attempt: u32, cause: DoubtCause, over_by: Timestamp, said: Option<Arc<str>>, recorded: bool },
    /// It waits: keep waiting, with the original deadline.
    Park { on: Blocked, until: Option<Timestamp>, attempt: u32 },
    /// Somebody agreed to it: go on from there, as long as the grant is valid.
    Granted(Grant),
    /// Enter the durable body or the group below.
    Enter,
    /// The journal has something else here.
    Diverged(Box<Divergence>),
    /// Nothing: the journal is only checked, and to go on from here something would have to be done. Never said by
    /// [`replay`].
    Checked(Box<Decision>),
}

/// Decides. `standing` is what the journal has at `path`; `asked` is what the body asks for there.
pub(crate) fn replay(path: &Path, standing: Option<&Standing>, asked: &Asked) -> Decision {
    let Some(standing) = standing else {
        return Decision::Perform { attempt: 1, not_before: None };
    };
    if !standing.asked.same(asked) {
        return Decision::Diverged(Box::new(divergence(path, &standing.asked, asked)));
    }
    // The stricter of the recorded and the live class decides whether an interrupted attempt may be repeated.
    let strict = standing.asked.effect.max(asked.effect) == Effect::Once;
    match &standing.state {
        State::Finished { result } => Decision::Answer { result: result.clone(), at: standing.at },
        State::Accepted | State::Prepared => Decision::Perform { attempt: 1, not_before: None },
        State::Entered => Decision::Enter,
        State::Attempting { attempt } if strict => Decision::InDoubt {
            attempt: *attempt,
            cause: DoubtCause::WorkerLost,
            over_by: standing.at,
            said: None,
            recorded: false,
        },
        State::Attempting { attempt } => Decision::Perform { attempt: *attempt, not_before: None },
        State::Intended { attempt, over_by } => {
            let (cause, said) = (DoubtCause::WorkerLost, None);
            Decision::InDoubt { attempt: *attempt, cause, over_by: *over_by, said, recorded: false }
        }
        State::Failed { attempt, retry_at } => Decision::Perform { attempt: attempt + 1, not_before: Some(*retry_at) },
        State::Doubted { attempt, cause, over_by, said } => {
            let said = said.clone();
            Decision::InDoubt { attempt: *attempt, cause: *cause, over_by: *over_by, said, recorded: true }
        }
        State::Parked { on, until, attempt } => Decision::Park { on: on.clone(), until: *until, attempt: *attempt },
        State::Granted(grant) => Decision::Granted(grant.clone()),
        State::Settled { attempt } => Decision::Perform { attempt: attempt + 1, not_before: None },
    }
}

/// What a body left behind when it returned: the operation the journal has next.
pub(crate) fn unasked(path: &Path, standing: &Standing) -> Divergence {
    Divergence { path: path.clone(), recorded: Some(standing.asked.to_string()), asked: None, differences: Vec::new() }
}

fn divergence(path: &Path, recorded: &Asked, asked: &Asked) -> Divergence {
    let null = serde_json::Value::Null;
    let differences = if recorded.kind == asked.kind && recorded.name == asked.name {
        differences(recorded.input.as_deref().unwrap_or(&null), asked.input.as_deref().unwrap_or(&null))
    } else {
        Vec::new()
    };
    Divergence { path: path.clone(), recorded: Some(recorded.to_string()), asked: Some(asked.to_string()), differences }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::run::record::OpKind;
    use crate::run::spent::{Mark, Spent};
    use crate::tool::{Output, ToolError};

    const T: Timestamp = Timestamp::from_micros(5_000_000);

    fn step(name: &str, effect: Effect) -> Asked {
        Asked::operation(OpKind::Step, name.into(), None, effect)
    }

    fn call(name: &str, args: Value) -> Asked {
        Asked { kind: OpKind::Call, input: Some(Arc::new(args)), ..step(name, Effect::Once) }
    }

    fn standing(asked: Asked, state: State) -> Standing {
        let spent = Spent::new(T, Mark::Over);
        Standing { asked, state, prepared: None, since: T, begun: None, at: T, deaths: 0, spent }
    }

    fn decide(recorded: Asked, state: State, asked: &Asked) -> String {
        let standing = standing(recorded, state);
        format!("{:?}", replay(&Path::root().child(0), Some(&standing), asked))
    }

    #[test]
    fn l22_nothing_recorded_is_performed() {
        let decision = replay(&Path::root(), None, &step("s", Effect::Once));
        assert_eq!(format!("{decision:?}"), "Perform { attempt: 1, not_before: None }");
    }

    #[test]
    fn l22_a_finished_operation_answers_from_its_record_value_or_error() {
        let asked = step("s", Effect::Once);
        let ok = State::Finished { result: Ok(Arc::new(Output::value(json!(7)))) };
        assert!(decide(asked.clone(), ok, &asked).starts_with("Answer { result: Ok("));
        let error = State::Finished { result: Err(Arc::new(ToolError::failed("no"))) };
        assert!(decide(asked.clone(), error, &asked).starts_with("Answer { result: Err("));
    }

    #[test]
    fn accepted_and_not_attempted_goes_on_from_there() {
        let asked = call("t", json!({}));
        assert_eq!(decide(asked.clone(), State::Accepted, &asked), "Perform { attempt: 1, not_before: None }");
    }

    #[test]
    fn l06_a_park_goes_on_with_its_original_deadline() {
        let asked = Asked::operation(OpKind::Wait, "manager".into(), None, Effect::Readonly);
        let on = Blocked::Input { name: "manager".into(), at: None };
        let decision = decide(asked.clone(), State::Parked { on, until: Some(T), attempt: 0 }, &asked);
        assert_eq!(decision, "Park { on: Input { name: \"manager\", at: None }, until: Some(5000000µs), attempt: 0 }");
        let other = Asked::operation(OpKind::Wait, "director".into(), None, Effect::Readonly);
        let on = Blocked::Input { name: "manager".into(), at: None };
        assert!(decide(asked, State::Parked { on, until: None, attempt: 0 }, &other).starts_with("Diverged"));
    }

    #[test]
    fn e07_a_granted_call_goes_on_from_there() {
        let asked = call("t", json!({}));
        let grant = Grant { digest: "d".into(), by: "ada".into(), reason: "fine".into(), until: T };
        assert!(decide(asked.clone(), State::Granted(grant), &asked).starts_with("Granted(Grant { digest: \"d\""));
    }

    #[test]
    fn l01_prepared_and_not_attempted_goes_on_from_there() {
        let asked = call("t", json!({}));
        assert_eq!(decide(asked.clone(), State::Prepared, &asked), "Perform { attempt: 1, not_before: None }");
    }

    #[test]
    fn l17_a_failed_attempt_waits_for_its_recorded_time() {
        let asked = step("s", Effect::Idempotent);
        let state = State::Failed { attempt: 2, retry_at: T };
        let decision = decide(asked.clone(), state, &asked);
        assert_eq!(decision, "Perform { attempt: 3, not_before: Some(5000000µs) }");
    }

    #[test]
    fn w01_an_intended_attempt_without_an_end_is_in_doubt() {
        let asked = step("s", Effect::Once);
        let state = State::Intended { attempt: 1, over_by: T };
        let decision = decide(asked.clone(), state, &asked);
        assert!(decision.starts_with("InDoubt { attempt: 1, cause: WorkerLost"), "{decision}");
    }

    #[test]
    fn e08_the_stricter_class_wins_whichever_side_has_it() {
        let (once, idempotent) = (step("s", Effect::Once), step("s", Effect::Idempotent));
        let intended = || State::Intended { attempt: 1, over_by: T };
        let attempting = || State::Attempting { attempt: 1 };
        assert!(decide(once.clone(), intended(), &idempotent).starts_with("InDoubt"));
        assert!(decide(idempotent.clone(), attempting(), &once).starts_with("InDoubt"));
        assert!(decide(idempotent.clone(), attempting(), &idempotent).starts_with("Perform { attempt: 1"));
    }

    #[test]
    fn w01_a_recorded_doubt_stays_one() {
        let asked = step("s", Effect::Once);
        let state = State::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by: T, said: None };
        let decision = decide(asked.clone(), state, &asked);
        assert!(decision.starts_with("InDoubt { attempt: 1, cause: TimedOut"), "{decision}");
    }

    #[test]
    fn w01_settled_as_not_happened_is_attempted_again() {
        let asked = step("s", Effect::Once);
        let decision = decide(asked.clone(), State::Settled { attempt: 1 }, &asked);
        assert_eq!(decision, "Perform { attempt: 2, not_before: None }");
    }

    #[test]
    fn a_durable_child_that_was_entered_is_entered_again() {
        let asked = call("t", json!({}));
        assert_eq!(decide(asked.clone(), State::Entered, &asked), "Enter");
    }

    #[test]
    fn l22_a_different_operation_diverges_and_names_the_differing_paths() {
        let recorded = call("book", json!({"to": "Oslo", "seats": 2}));
        for (asked, word) in [
            (call("book", json!({"to": "Rome", "seats": 2})), "/to: recorded \"Oslo\", asked \"Rome\""),
            (call("pay", json!({"to": "Oslo", "seats": 2})), "the code asks for call of tool `pay`"),
            (step("book", Effect::Once), "the code asks for step \"book\""),
        ] {
            let standing = standing(recorded.clone(), State::Accepted);
            let Decision::Diverged(divergence) = replay(&Path::root().child(3), Some(&standing), &asked) else {
                panic!("{asked} was taken for {recorded}")
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
        let standing = standing(step("later", Effect::Once), State::Accepted);
        let text = unasked(&Path::root().child(2), &standing).to_string();
        assert!(text.contains("has step \"later\"") && text.contains("the body returned"), "{text}");
    }

    #[test]
    fn a_models_call_id_and_the_effect_are_not_compared() {
        let recorded = call("t", json!({"a": 1}));
        let mut asked = call("t", json!({"a": 1}));
        asked.call_id = Some("other".into());
        asked.effect = Effect::Readonly;
        let result = Ok(Arc::new(Output::value(json!(1))));
        assert!(decide(recorded, State::Finished { result }, &asked).starts_with("Answer"));
    }
}
