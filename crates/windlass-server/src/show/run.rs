//! Runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use windlass::run::record::{Asked, Event, OpKind, Record};
use windlass::run::{Check, Comparison, Departure, Differs, Ending, RunInfo, RunState};
use windlass::{Path, RunId, Toolbox};

use super::blocked::{doubt, hold, operation_ref, park};
use super::failure;
use super::value::object;
use crate::wire;

pub(crate) fn state(state: &RunState) -> wire::RunState {
    match state {
        RunState::Queued => wire::RunState::Queued,
        RunState::Running => wire::RunState::Running,
        RunState::Suspended { .. } => wire::RunState::Suspended,
        RunState::Held { .. } => wire::RunState::Held,
        RunState::Finished { .. } => wire::RunState::Finished,
    }
}

/// A run without the fields that lists do not have.
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
        key: info.key.as_deref().map(str::to_owned),
        session: info.session.as_deref().map(str::to_owned),
        principal: info.principal.as_deref().map(str::to_owned),
        cause: info.cause.as_deref().map(str::to_owned),
        layers: Vec::new(),
        parent: info.parent.as_deref().map(operation_ref),
        created: info.created.into(),
        ended: info.ended.map(Into::into),
        state: state(&info.state),
        ending,
        hold: held,
        wake,
        generation: info.generation,
        epoch: info.epoch,
        doubts: info.doubts.iter().map(|open| doubt(info, open)).collect(),
        parks: info.parks.iter().map(park).collect(),
        sentence: None,
        outcomes: None,
    }
}

/// The records of a journal from sequence number `from` on, with secret arguments hidden.
pub(crate) fn journal(
    records: &[Record],
    from: u64,
    toolbox: &Toolbox,
    session: Option<&Arc<str>>,
) -> Vec<wire::Record> {
    let mut calls: BTreeMap<&Path, &Asked> = BTreeMap::new();
    let mut shown = Vec::with_capacity(records.len());
    for (record, seq) in records.iter().zip(from..) {
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.kind == OpKind::Call) {
            calls.insert(&record.path, asked);
        }
        let tool = calls.get(&record.path).and_then(|asked| toolbox.recorded(&asked.name, &asked.layers, session));
        // Hides what was secret when it was recorded, whatever the tool's schema is now. What the current schema
        // declares secret is hidden below.
        let mut record = record.without_secrets().into_owned();
        // Arguments of an unknown tool may contain secrets, so they are not shown at all.
        let hide = |args: Arc<Value>| tool.as_ref()?.without_secrets(&args).map(Arc::new);
        if let Some(asked) = &mut record.asked
            && matches!(asked.kind, OpKind::Call | OpKind::Spawn)
        {
            asked.input = asked.input.take().and_then(hide);
        }
        if let Event::Prepared(prepared) = &mut record.event {
            prepared.args = prepared.args.take().and_then(hide);
            // The payload is internal to the tool.
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
                Some(path) => format!("the journal fits the tools of this server; the run would continue at {path}"),
                None => "the whole journal fits the tools of this server".to_owned(),
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
