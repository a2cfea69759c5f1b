//! Runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use windlass::record::{Asked, Event, OpKind, Record};
use windlass::{
    Check, Comparison, Departure, Differs, Doubt, Ending, Explanation, Hold, Park, Path, RunId, RunInfo, RunState,
    Toolbox,
};

use super::failure;
use super::value::{object, tagged, word};
use crate::wire;

pub(crate) fn state(state: &RunState) -> wire::State {
    match state {
        RunState::Queued => wire::State::Queued,
        RunState::Running => wire::State::Running,
        RunState::Suspended { .. } => wire::State::Suspended,
        RunState::Held { .. } => wire::State::Held,
        RunState::Finished { .. } => wire::State::Finished,
    }
}

pub(crate) fn parent(parent: Option<&(RunId, Path)>) -> Option<wire::Parent> {
    parent.map(|(run, path)| wire::Parent { run: *run, path: path.clone() })
}

pub(crate) fn hold(hold: &Hold) -> wire::Hold {
    let (reason, detail) = tagged(hold, "reason");
    wire::Hold { reason, sentence: hold.to_string(), detail }
}

/// A run as lists show it.
pub(crate) fn run(info: &RunInfo) -> wire::Run {
    let ending = match &info.state {
        RunState::Finished { ending } => Some(match ending {
            Ending::Ok => wire::Ending::Ok,
            Ending::Failed => wire::Ending::Failed,
            Ending::Cancelled => wire::Ending::Cancelled,
            Ending::Lost => wire::Ending::Lost,
        }),
        _ => None,
    };
    let held = if let RunState::Held { hold } = &info.state { Some(self::hold(hold)) } else { None };
    let wake = if let RunState::Suspended { wake } = &info.state { wake.map(Into::into) } else { None };
    wire::Run {
        id: info.run,
        tool: info.tool.to_string(),
        session: info.session.as_deref().map(str::to_owned),
        layers: Vec::new(),
        parent: parent(info.parent.as_deref()),
        created: info.created.into(),
        ended: info.ended.map(Into::into),
        state: state(&info.state),
        ending,
        hold: held,
        wake,
        generation: info.generation,
        epoch: info.epoch,
        doubts: info.doubts.iter().map(doubt).collect(),
        parks: info.parks.iter().map(park).collect(),
        sentence: None,
        outcomes: None,
    }
}

fn doubt(doubt: &Doubt) -> wire::Doubt {
    wire::Doubt {
        path: doubt.path.clone(),
        attempt: doubt.attempt,
        operation: doubt.operation.clone(),
        cause: word(serde_json::to_value(doubt.cause).ok()),
        said: doubt.said.as_deref().map(str::to_owned),
        over_by: doubt.over_by.into(),
        since: doubt.since.into(),
    }
}

fn park(park: &Park) -> wire::Park {
    let (kind, detail) = tagged(&park.on, "kind");
    wire::Park {
        path: park.path.clone(),
        operation: park.operation.clone(),
        on: wire::Waiting { kind, detail },
        since: park.since.into(),
        until: park.until.map(Into::into),
    }
}

pub(crate) fn explanation(explanation: &Explanation) -> wire::Explanation {
    let moves = explanation.moves.iter().map(|one| {
        let (why, detail) = tagged(&one.why, "why");
        wire::Move { path: one.path.clone(), sentence: one.sentence.clone(), why, detail }
    });
    wire::Explanation {
        run: explanation.run,
        tool: explanation.tool.to_string(),
        state: state(&explanation.state),
        layers: explanation.layers.names().iter().map(ToString::to_string).collect(),
        sentence: explanation.sentence.clone(),
        moves: moves.collect(),
    }
}

/// Records from number `from` on, without the secrets of arguments.
pub(crate) fn journal(records: &[Record], from: u64, toolbox: &Toolbox) -> Vec<wire::Record> {
    let mut calls: BTreeMap<&Path, &Asked> = BTreeMap::new();
    let mut shown = Vec::with_capacity(records.len());
    for (record, seq) in records.iter().zip(from..) {
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.kind == OpKind::Call) {
            calls.insert(&record.path, asked);
        }
        let tool = calls.get(&record.path).and_then(|asked| toolbox.recorded(&asked.name, &asked.layers));
        // What was a secret when it was recorded stays one, whatever became of its tool. What the schema of today calls one
        // is hidden below.
        let mut record = record.without_secrets().into_owned();
        // What cannot be shown without its secrets is not shown.
        let hide = |args: Arc<Value>| tool.as_ref()?.without_secrets(&args).map(Arc::new);
        if let Some(asked) = &mut record.asked
            && matches!(asked.kind, OpKind::Call | OpKind::Spawn)
        {
            asked.input = asked.input.take().and_then(hide);
        }
        if let Event::Prepared(prepared) = &mut record.event {
            prepared.args = prepared.args.take().and_then(hide);
            // What a tool froze for itself is not shown to others.
            prepared.payload = None;
        }
        shown.push(wire::Record {
            seq,
            path: record.path,
            at: record.at.into(),
            asked: record.asked.as_ref().map(object).map(Value::Object),
            event: Value::Object(object(&record.event)),
        });
    }
    shown
}

pub(crate) fn replay_check(run: RunId, check: &Check) -> wire::ReplayCheck {
    match check {
        Check::Fits { up_to } => {
            let sentence = match up_to {
                Some(path) => format!("the journal fits the tools of this server; the run would go on at {path}"),
                None => "the journal fits the tools of this server, to its end".to_owned(),
            };
            wire::ReplayCheck { run, fits: true, sentence, hold: None }
        }
        Check::Held(held) => wire::ReplayCheck { run, fits: false, sentence: held.to_string(), hold: Some(hold(held)) },
    }
}

pub(crate) fn comparison(comparison: &Comparison) -> wire::Comparison {
    macro_rules! side {
        ($side:expr) => {{
            let side = $side;
            let (value, error) = match &side.outcome {
                Some(Ok(output)) => (Some(output.value.clone()), None),
                Some(Err(error)) => (None, Some(failure(error))),
                None => (None, None),
            };
            let (operations, alone) = (side.operations as u64, side.alone as u64);
            wire::Side { run: side.run, operations, alone, value, error }
        }};
    }
    wire::Comparison {
        a: side!(&comparison.a),
        b: side!(&comparison.b),
        same: comparison.same as u64,
        differing: comparison.differing as u64,
        first: comparison.first.as_ref().map(departure),
        sentence: comparison.to_string(),
    }
}

fn departure(departure: &Departure) -> wire::Departure {
    let what = if departure.what == Differs::Asked { "asked" } else { "outcome" };
    wire::Departure {
        path: departure.path.clone(),
        what: what.to_owned(),
        a: departure.a.clone(),
        b: departure.b.clone(),
        differences: departure.differences.iter().map(ToString::to_string).collect(),
    }
}
