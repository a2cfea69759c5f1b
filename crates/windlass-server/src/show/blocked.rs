//! Holds, waits, doubts and explanations.

use windlass::inbox::{Blocked, Doubt, Park};
use windlass::run::explain::Why;
use windlass::run::record::DoubtCause;
use windlass::run::{Explanation, Hold, RunInfo, idempotency_key};
use windlass::{Path, RunId};

use super::state;
use crate::wire::{self, HoldReason, MoveReason, OperationRef, WaitingFor};

pub(crate) fn hold(hold: &Hold) -> wire::Hold {
    let reason = match hold {
        Hold::Diverged(divergence) => HoldReason::Diverged {
            path: divergence.path.clone(),
            recorded: divergence.recorded.clone(),
            asked: divergence.asked.clone(),
            differences: divergence.differences.iter().map(ToString::to_string).collect(),
        },
        Hold::CrashLoop { path, deaths } => HoldReason::CrashLoop { path: path.clone(), deaths: *deaths },
        Hold::ToolMissing { path, tool } => HoldReason::ToolMissing { path: path.clone(), tool: tool.clone() },
        Hold::ToolHidden { path, tool, session } => {
            HoldReason::ToolHidden { path: path.clone(), tool: tool.clone(), session: session.clone() }
        }
        Hold::LayerMissing { path, layer } => HoldReason::LayerMissing { path: path.clone(), layer: layer.clone() },
        Hold::Undecodable { path, problem } => HoldReason::Undecodable { path: path.clone(), problem: problem.clone() },
        Hold::FileGone { path, session, file } => {
            HoldReason::FileGone { path: path.clone(), session: session.to_string(), file: file.to_string() }
        }
        Hold::MessagesGone { path, session } => {
            HoldReason::MessagesGone { path: path.clone(), session: session.to_string() }
        }
        Hold::Abandoned { path, operation } => {
            HoldReason::Abandoned { path: path.clone(), operation: operation.clone() }
        }
        Hold::TooBig { bytes } => HoldReason::TooBig { bytes: *bytes as u64 },
        Hold::Outside { path } => HoldReason::Outside { path: path.clone() },
        Hold::Imported { was, missing } => HoldReason::Imported { was: was.clone(), missing: *missing },
        Hold::Sealed { why } => HoldReason::Sealed { why: why.clone() },
        Hold::Damaged { run, place } => HoldReason::Damaged { run: *run, location: place.clone() },
        Hold::TooLong { operations } => HoldReason::TooLong { operations: *operations },
        _ => HoldReason::Unknown,
    };
    wire::Hold { sentence: hold.to_string(), reason }
}

pub(crate) fn doubt(info: &RunInfo, doubt: &Doubt) -> wire::Doubt {
    wire::Doubt {
        path: doubt.path.clone(),
        attempt: doubt.attempt,
        operation: doubt.operation.clone(),
        cause: cause(doubt.cause).to_owned(),
        said: doubt.said.as_deref().map(str::to_owned),
        over_by: doubt.over_by.into(),
        since: doubt.since.into(),
        idempotency_key: idempotency_key(info.run, info.generation, &doubt.path),
    }
}

fn cause(cause: DoubtCause) -> &'static str {
    match cause {
        DoubtCause::WorkerLost => "worker_lost",
        DoubtCause::ShutDown => "shut_down",
        DoubtCause::TimedOut => "timed_out",
        DoubtCause::Cancelled => "cancelled",
        DoubtCause::Restored => "restored",
        DoubtCause::Unclear => "unclear",
    }
}

pub(crate) fn park(park: &Park) -> wire::Park {
    wire::Park {
        path: park.path.clone(),
        operation: park.operation.clone(),
        on: waiting_for(&park.on),
        since: park.since.into(),
        until: park.until.map(Into::into),
    }
}

fn waiting_for(blocked: &Blocked) -> WaitingFor {
    match blocked {
        Blocked::Time => WaitingFor::Time,
        Blocked::Input { name, at } => WaitingFor::Input { name: name.to_string(), at: at.clone() },
        Blocked::Signal { name } => WaitingFor::Signal { name: name.to_string() },
        Blocked::Child { run } => WaitingFor::Child { run: *run },
        Blocked::Approval { tool, digest, why } => {
            WaitingFor::Approval { tool: tool.to_string(), digest: digest.clone(), why: why.clone() }
        }
        Blocked::Connection { provider, .. } => WaitingFor::Connection { provider: provider.to_string() },
        Blocked::Retry => WaitingFor::Retry,
        Blocked::Key { key } => WaitingFor::Key { key: key.to_string() },
        _ => WaitingFor::Unknown,
    }
}

pub(crate) fn explanation(explanation: &Explanation) -> wire::Explanation {
    wire::Explanation {
        run: explanation.run,
        tool: explanation.tool.to_string(),
        state: state(&explanation.state),
        layers: explanation.layers.names().iter().map(ToString::to_string).collect(),
        principal: explanation.principal.as_deref().map(str::to_owned),
        cause: explanation.cause.as_deref().map(str::to_owned),
        sentence: explanation.sentence.clone(),
        moves: moves(explanation),
    }
}

pub(crate) fn moves(explanation: &Explanation) -> Vec<wire::Move> {
    let moves = explanation.moves.iter().map(|one| wire::Move {
        path: one.path.clone(),
        sentence: one.sentence.clone(),
        idempotency_key: one.idempotency_key.clone(),
        reason: move_reason(&one.why),
    });
    moves.collect()
}

fn move_reason(why: &Why) -> MoveReason {
    match why {
        Why::Queued { session, behind, others } => MoveReason::Queued {
            session: session.as_deref().map(str::to_owned),
            behind: behind.clone(),
            others: *others,
        },
        Why::Suspect => MoveReason::Suspect,
        Why::Attempt { operation, attempt, since, over_by } => MoveReason::Attempt {
            operation: operation.clone(),
            attempt: *attempt,
            since: (*since).into(),
            over_by: over_by.map(Into::into),
        },
        Why::AtWork { operation, since } => MoveReason::AtWork { operation: operation.clone(), since: (*since).into() },
        Why::Waits { operation, on, since, until, child } => MoveReason::Waits {
            operation: operation.clone(),
            on: waiting_for(on),
            since: (*since).into(),
            until: until.map(Into::into),
            child: child.as_deref().map(|child| Box::new(explanation(child))),
        },
        Why::InDoubt { operation, attempt, cause: why, over_by, said } => MoveReason::InDoubt {
            operation: operation.clone(),
            attempt: *attempt,
            cause: cause(*why).to_owned(),
            over_by: (*over_by).into(),
            said: said.as_deref().map(str::to_owned),
        },
        Why::Key { key, holder, other_principal } => MoveReason::Key {
            key: key.to_string(),
            holder: holder.as_ref().map(operation_ref),
            other_principal: *other_principal,
        },
        Why::Breaker { target, until } => {
            MoveReason::Breaker { target: target.to_string(), until: until.map(Into::into) }
        }
        Why::CleaningUp { by, reason, until } => {
            MoveReason::CleaningUp { by: by.clone(), reason: reason.clone(), until: (*until).into() }
        }
        Why::Held { hold: held } => MoveReason::Held { hold: hold(held) },
        Why::Elsewhere => MoveReason::Elsewhere,
        Why::OwnerGone => MoveReason::OwnerGone,
        Why::NotDriven { run } => MoveReason::NotDriven { run: *run },
        Why::InMailbox { message } => MoveReason::InMailbox { message: message.clone() },
        _ => MoveReason::Unknown,
    }
}

pub(crate) fn operation_ref((run, path): &(RunId, Path)) -> OperationRef {
    OperationRef { run: *run, path: path.clone() }
}
