//! `windlass call`

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::Deserialize;
use windlass::{Artifact, Content, RunId};
use windlass_server::wire::{
    Accepted, CallRequest, CallResponse, InboxPage, Move, MoveReason, Outcome, OutcomeResponse, RunState, WaitingFor,
};

use super::{text, tools};
use crate::api::{Api, query};
use crate::args::CallArgs;
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::progress::{Progress, during};
use crate::style::plain;

/// How long one request waits for the outcome. In between, this command prints what the run waits for.
const POLL: Duration = Duration::from_secs(2);
/// How long the first request to a server waits. Its response has the id of the run, which an interrupted command prints.
const FIRST_POLL: Duration = Duration::from_millis(300);
/// The first and the longest interval if this process answers itself: it should soon notice that only a person can let the
/// run proceed.
const LOCAL_POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Calls a tool, and waits for its outcome unless `--detach` is given.
pub(super) async fn run(args: &CallArgs, api: &Api, out: &Out) -> Result<()> {
    let limit = match args.wait {
        Some(Some(duration)) => Some(duration.0),
        _ => None,
    };
    let began = Instant::now();
    let first = if api.is_remote() { FIRST_POLL } else { poll_interval(began, api) };
    let first = if args.detach { Duration::ZERO } else { limit.unwrap_or(POLL).min(first) };
    if let Some(principal) = &args.principal {
        api.act_for(principal)?;
    }
    let metadata = args.metadata.as_deref().map(|text| input::raw(text, "--metadata")).transpose()?;
    let request = CallRequest {
        tool: args.tool.clone(),
        args: input::json(&args.args, "--args")?,
        session: args.session.clone(),
        layer: args.layer.clone(),
        call_id: None,
        metadata,
        cause: args.cause.clone(),
        wait_ms: Some(millis(first)),
    };
    let body = serde_json::to_vec(&request).map_err(|error| Failure::usage(error.to_string()))?;
    let sent = api.post_raw("/v1/calls", body, args.key.as_deref());
    let answer = during(&format!("waiting for `{}`", plain(&args.tool)), out, sent).await?;
    if answer.status == StatusCode::ACCEPTED {
        let accepted: Accepted = api.read(answer).await?;
        if args.detach {
            return detached(&accepted, api, out);
        }
        let run = accepted.run;
        let left = |began: Instant| limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let outcomes = wait(accepted, began, left, api, out).await?;
        return finish(run, &outcomes, args, api, out).await;
    }
    let answer: CallResponse = api.read(answer).await?;
    finish(answer.run, &[answer.outcome], args, api, out).await
}

async fn finish(run: RunId, outcomes: &[Outcome], args: &CallArgs, api: &Api, out: &Out) -> Result<()> {
    let is_unavailable = |outcome: &Outcome| outcome.error.as_ref().is_some_and(|error| error.kind == "unavailable");
    let layer = args.layer.as_deref();
    let unknown = if outcomes.iter().any(is_unavailable) { tools::unknown(&args.tool, layer, api).await } else { None };
    match unknown {
        // More helpful to people than the outcome, which programs still get.
        Some(failure) if !out.json => Err(failure),
        unknown => {
            if let Some(folder) = &args.save {
                save(folder, outcomes, api, out).await?;
            }
            print(run, outcomes, out).and(unknown.map_or(Ok(()), Err))
        }
    }
}

/// Saves the images, audio and files of outcomes, each under its own name or a number.
async fn save(folder: &Path, outcomes: &[Outcome], api: &Api, out: &Out) -> Result<()> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(Exit::Refused, format!("could not write {}: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let blocks = outcomes.iter().flat_map(|outcome| &outcome.content);
    let blocks = blocks.filter_map(|block| Content::deserialize(block).ok());
    for (number, artifact) in blocks.filter_map(|block| block.artifact().cloned()).enumerate() {
        let bytes = match (artifact.bytes(), artifact.id()) {
            (None, Some(id)) => api.bytes(&format!("/v1/artifacts/{id}")).await?,
            (bytes, _) => bytes.unwrap_or_default().to_vec(),
        };
        let path = folder.join(file_name(&artifact, number + 1));
        let mut file = std::fs::File::create_new(&path).map_err(|error| failed(&path, error))?;
        file.write_all(&bytes).map_err(|error| failed(&path, error))?;
        out.note(&format!("saved {}", path.display()));
    }
    Ok(())
}

/// The name of a saved file: the last part of its own name, or a number and what its type suggests.
fn file_name(artifact: &Artifact, number: usize) -> String {
    let own = artifact.name.as_deref().and_then(|name| name.rsplit(['/', '\\']).next());
    let is_usable = |name: &&str| !matches!(*name, "" | "." | "..") && !name.chars().any(char::is_control);
    if let Some(name) = own.filter(is_usable) {
        return name.to_owned();
    }
    let subtype = artifact.media_type.split(['/', ';']).nth(1).unwrap_or_default();
    let ending: String = subtype.chars().take_while(char::is_ascii_alphanumeric).collect();
    let ending = match ending.as_str() {
        "" | "octet" => "bin",
        "plain" => "txt",
        other => other,
    };
    format!("output-{number}.{ending}")
}

fn detached(accepted: &Accepted, api: &Api, out: &Out) -> Result<()> {
    if out.json {
        return out.document(accepted);
    }
    out.line(&accepted.run.to_string())?;
    if !api.is_remote() {
        out.note(text::NO_SERVER);
    }
    Ok(())
}

/// Waits for the outcome, and prints what the run waits for.
pub(super) async fn wait(
    mut accepted: Accepted,
    began: Instant,
    left: impl Fn(Instant) -> Option<Duration>,
    api: &Api,
    out: &Out,
) -> Result<Vec<Outcome>> {
    let (run, access) = (accepted.run, accepted.access.clone());
    api.set_waits_for(run);
    let mut progress = Progress::new("", out);
    let mut printed = String::new();
    let mut needs_others = None;
    loop {
        progress.set(&format!("waiting for {}", awaited(&accepted)));
        let interval = poll_interval(began, api);
        let wait = left(began).map_or(interval, |left| left.min(interval));
        let wait_ms = millis(wait).to_string();
        let pairs = [("wait_ms", Some(wait_ms.as_str())), ("access", access.as_deref())];
        let path = format!("/v1/runs/{run}/outcome{}", query(&pairs));
        accepted = match progress.during(outcome(&path, api)).await? {
            Polled::Ended(outcomes) => return Ok(outcomes),
            Polled::Unfinished(accepted) => accepted,
        };
        // No other process can open the file while this one waits, so waiting for it would never end.
        if !api.is_remote() && (is_left_alone(&accepted.moves) || is_in_inbox(run, api).await?) {
            needs_others.get_or_insert_with(Instant::now);
        } else {
            needs_others = None;
        }
        // The tool may still settle a doubt that is in the inbox. Once the run is suspended, only a person can.
        let is_final = |since: Instant| accepted.state == RunState::Suspended || since.elapsed() >= POLL;
        let is_stuck = accepted.state == RunState::Held || needs_others.is_some_and(is_final);
        if is_stuck || left(began).is_some_and(|left| left.is_zero()) {
            return Err(not_finished(Exit::TimedOut, &accepted.sentence, run));
        }
        let gist = without_numbers(&accepted.sentence);
        if gist != printed && accepted.state == RunState::Suspended {
            progress.clear();
            out.note(&plain(&accepted.sentence));
            printed = gist;
        }
    }
}

/// The operations that a run waits for, as a progress line shows them.
fn awaited(accepted: &Accepted) -> String {
    let operation = |one: &Move| match &one.reason {
        MoveReason::Attempt { operation, .. }
        | MoveReason::AtWork { operation, .. }
        | MoveReason::Waits { operation, .. }
        | MoveReason::InDoubt { operation, .. } => Some(plain(operation)),
        MoveReason::Key { key, .. } => Some(format!("key `{}`", plain(key))),
        _ => None,
    };
    let operations: Vec<String> = accepted.moves.iter().filter_map(operation).collect();
    match operations.as_slice() {
        [] => format!("run {}", accepted.run),
        [one] => one.clone(),
        [one, rest @ ..] => format!("{one} and {} more", rest.len()),
    }
}

/// Whether something that only another process can do would let the run proceed: continue a run that this one leaves alone,
/// or send a signal.
fn is_left_alone(moves: &[Move]) -> bool {
    moves.iter().any(|one| match &one.reason {
        MoveReason::NotDriven { .. } => true,
        MoveReason::Waits { on: WaitingFor::Signal { .. }, until: None, .. } => true,
        MoveReason::Waits { child: Some(child), .. } => is_left_alone(&child.moves),
        _ => false,
    })
}

/// A sentence without its numbers: it is not printed again only because time has passed.
fn without_numbers(sentence: &str) -> String {
    sentence.chars().filter(|c| !c.is_ascii_digit()).collect::<String>().replace(" ms", " s")
}

fn poll_interval(began: Instant, api: &Api) -> Duration {
    let (first, longest) = LOCAL_POLL;
    if api.is_remote() { POLL } else { (began.elapsed() / 2).clamp(first, longest) }
}

/// The response to a request that waits for the outcome of a run.
enum Polled {
    Ended(Vec<Outcome>),
    Unfinished(Accepted),
}

async fn outcome(path: &str, api: &Api) -> Result<Polled> {
    let answer = api.get_raw(path).await?;
    if answer.status == StatusCode::ACCEPTED {
        return api.read(answer).await.map(Polled::Unfinished);
    }
    let ended: OutcomeResponse = api.read(answer).await?;
    Ok(Polled::Ended(ended.outcomes))
}

async fn is_in_inbox(run: RunId, api: &Api) -> Result<bool> {
    let inbox: InboxPage = api.get(&format!("/v1/inbox{}", query(&[("run", Some(&run.to_string()))]))).await?;
    Ok(!inbox.items.is_empty())
}

fn not_finished(exit: Exit, sentence: &str, run: RunId) -> Failure {
    let sentence = plain(sentence);
    let next = format!("the run is not finished: see `windlass runs show {run}` and `windlass inbox`");
    Failure::new(exit, format!("{sentence}\n{next}"))
}

fn print(run: RunId, outcomes: &[Outcome], out: &Out) -> Result<()> {
    if out.json {
        // Not by way of a JSON value, which would not keep the bytes of metadata.
        match outcomes {
            [one] => out.document(&CallResponse { run, outcome: one.clone() })?,
            many => {
                out.document(&OutcomeResponse { run, identity: None, settled: Vec::new(), outcomes: many.to_vec() })?;
            }
        }
    } else {
        for outcome in outcomes {
            out.lines(&text::outcome(outcome, out))?;
        }
    }
    if outcomes.iter().all(Outcome::is_ok) { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
