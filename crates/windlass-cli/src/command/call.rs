//! `windlass call`

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use windlass::RunId;
use windlass_server::wire::{Accepted, CallAnswer, CallRequest, InboxPage, Outcome, OutcomeAnswer, Run, State};

use super::{say, tools};
use crate::api::{Api, query};
use crate::args::CallArgs;
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::plain;

/// How long one request waits before it asks again: short enough that an interruption, and what a run waits for, are seen.
const LOOK: Duration = Duration::from_secs(2);
/// The same where this process answers itself, at first and at most: that nobody but a person could go on is seen soon.
const LOOKS_HERE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Calls a tool, and waits for its outcome unless told otherwise.
pub(super) async fn run(args: &CallArgs, api: &Api, out: &Out) -> Result<()> {
    let within = match args.wait {
        Some(Some(span)) => Some(span.0),
        _ => None,
    };
    let began = Instant::now();
    let first = if args.detach { Duration::ZERO } else { within.unwrap_or(LOOK).min(look(began, api)) };
    let request = CallRequest {
        tool: args.tool.clone(),
        args: input::json(&args.args, "--args")?,
        session: args.session.clone(),
        layer: args.layer.clone(),
        call_id: None,
        wait_ms: Some(millis(first)),
    };
    let body = serde_json::to_vec(&request).map_err(|error| Failure::usage(error.to_string()))?;
    let answer = api.post_raw("/v1/calls", body, args.key.as_deref()).await?;
    if answer.status == StatusCode::ACCEPTED {
        let accepted: Accepted = api.read(answer).await?;
        if args.detach {
            return detached(&accepted, api, out);
        }
        let left = |began: Instant| within.map(|within| within.saturating_sub(began.elapsed()));
        let outcomes = patience(accepted.run, began, left, api, out).await?;
        return ended(accepted.run, &outcomes, args, api, out).await;
    }
    let answer: CallAnswer = api.read(answer).await?;
    ended(answer.run, &[answer.outcome], args, api, out).await
}

async fn ended(run: RunId, outcomes: &[Outcome], args: &CallArgs, api: &Api, out: &Out) -> Result<()> {
    let is_unavailable = |outcome: &Outcome| outcome.error.as_ref().is_some_and(|error| error.kind == "unavailable");
    let layer = args.layer.as_deref();
    let unknown = if outcomes.iter().any(is_unavailable) { tools::unknown(&args.tool, layer, api).await } else { None };
    match unknown {
        // It says more than the outcome, which programs are told all the same.
        Some(failure) if !out.json => Err(failure),
        unknown => told(run, outcomes, out).and(unknown.map_or(Ok(()), Err)),
    }
}

fn detached(accepted: &Accepted, api: &Api, out: &Out) -> Result<()> {
    if out.json {
        return out.document(accepted);
    }
    out.line(&accepted.run.to_string())?;
    if !api.is_remote() {
        out.aside("nobody drives the runs of this file now; `windlass serve` does");
    }
    Ok(())
}

/// Waits for the end, and says meanwhile what is waited for.
async fn patience(
    run: RunId,
    began: Instant,
    left: impl Fn(Instant) -> Option<Duration>,
    api: &Api,
    out: &Out,
) -> Result<Vec<Outcome>> {
    let mut said = String::new();
    let mut asked = None;
    loop {
        let look = look(began, api);
        let wait = left(began).map_or(look, |left| left.min(look));
        let waits = millis(wait).to_string();
        let path = format!("/v1/runs/{run}/outcome{}", query(&[("wait_ms", Some(&waits))]));
        let found: Run = match outcome(&path, api).await? {
            Some(answer) => return Ok(answer.outcomes),
            None => api.get(&format!("/v1/runs/{run}")).await?,
        };
        let sentence = found.sentence.clone().unwrap_or_default();
        if !api.is_remote() && is_asked_of_people(run, api).await? {
            asked.get_or_insert_with(Instant::now);
        } else {
            asked = None;
        }
        // A doubt is in the inbox while its tool may still settle it; once all the run does is wait, nobody but a person can.
        let in_vain = |since: Instant| found.state == State::Suspended || since.elapsed() >= LOOK;
        if found.state == State::Held || asked.is_some_and(in_vain) {
            // Nobody else can get at the file while this process has it open, so waiting would be in vain.
            return Err(later(Exit::TimedOut, &sentence, run));
        }
        if left(began).is_some_and(|left| left.is_zero()) {
            return Err(later(Exit::TimedOut, &sentence, run));
        }
        let gist = gist(&sentence);
        if gist != said && found.state == State::Suspended {
            out.aside(&plain(&sentence));
            said = gist;
        }
    }
}

/// A sentence without its numbers: that time passes is nothing new.
fn gist(sentence: &str) -> String {
    sentence.chars().filter(|c| !c.is_ascii_digit()).collect::<String>().replace(" ms", " s")
}

fn look(began: Instant, api: &Api) -> Duration {
    let (first, most) = LOOKS_HERE;
    if api.is_remote() { LOOK } else { (began.elapsed() / 2).clamp(first, most) }
}

async fn outcome(path: &str, api: &Api) -> Result<Option<OutcomeAnswer>> {
    match api.get::<serde_json::Value>(path).await {
        Ok(answer) if answer.get("outcomes").is_some() => {
            let read = serde_json::from_value(answer);
            read.map(Some).map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))
        }
        Ok(_) => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn is_asked_of_people(run: RunId, api: &Api) -> Result<bool> {
    let inbox: InboxPage = api.get(&format!("/v1/inbox{}", query(&[("run", Some(&run.to_string()))]))).await?;
    Ok(!inbox.items.is_empty())
}

fn later(exit: Exit, sentence: &str, run: RunId) -> Failure {
    let sentence = plain(sentence);
    Failure::new(exit, format!("{sentence}\nthe run is in the store: `windlass runs show {run}`, `windlass inbox`"))
}

fn told(run: RunId, outcomes: &[Outcome], out: &Out) -> Result<()> {
    if out.json {
        let document = match outcomes {
            [one] => serde_json::json!({ "run": run, "outcome": one }),
            many => serde_json::json!({ "run": run, "outcomes": many }),
        };
        out.document(&document)?;
    } else {
        for outcome in outcomes {
            out.lines(&say::outcome(outcome, out))?;
        }
    }
    if outcomes.iter().all(Outcome::is_ok) { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
