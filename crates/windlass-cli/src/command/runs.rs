//! The subcommands of `windlass runs`, and `resolve` and `signal`.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};
use windlass::RunId;
use windlass_server::wire::{
    Accepted, AnswerRequest, CancelRequest, Comparison, ErrorRequest, Explanation, FinishRequest, ForkChange,
    ForkRequest, Forked, Imported, Move, MoveReason, OutputPage, ReplayCheck, ReplyResponse, RunPage, SignalRequest,
};

use super::maintenance::write_private;
use super::{call, text};
use crate::api::{Api, escaped, query};
use crate::args::{ResolveArgs, ResultArgs, SignalArgs};
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::progress::{Progress, during};
use crate::style::{Tint, plain};

/// `runs cancel`
pub(super) async fn cancel(runs: &[String], reason: &str, api: &Api, out: &Out) -> Result<()> {
    let request = CancelRequest { reason: Some(reason.to_owned()) };
    each(runs, "cancelled", api, out, async |run| post(api, &format!("/v1/runs/{run}/cancel"), &request).await).await?;
    if !api.is_remote() {
        out.note("the cancellation is recorded; the next server ends the run: start one with `windlass serve`");
    }
    Ok(())
}

/// `runs resume`
pub(super) async fn resume(runs: &[String], api: &Api, out: &Out) -> Result<()> {
    let resume = async |run| {
        let accepted: Accepted = api.post(&format!("/v1/runs/{run}/resume"), &json!({}), None).await?;
        if api.is_remote() {
            return Ok(());
        }
        // This process drives the run, until it has ended or waits for something that only another process can do.
        match call::wait(accepted, Instant::now(), |_| None, api, out).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.exit == Exit::TimedOut => {
                out.note(&failure.message);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    };
    each(runs, "resumed", api, out, resume).await
}

/// `runs purge`
pub(super) async fn purge(runs: &[String], api: &Api, out: &Out) -> Result<()> {
    each(runs, "purged", api, out, async |run| api.delete(&format!("/v1/runs/{run}")).await).await
}

/// `runs finish`
pub(super) async fn finish(typed: &str, result: &ResultArgs, reason: String, api: &Api, out: &Out) -> Result<()> {
    let run = api.run(typed).await?;
    let (value, error) = parse_result(result)?;
    if value.is_none() && error.is_none() {
        return Err(Failure::usage("the result of the run is missing: give --value JSON or --error MESSAGE"));
    }
    post(api, &format!("/v1/runs/{run}/finish"), &FinishRequest { value, error, reason }).await?;
    done(run, "finished", out)
}

/// `runs fork`
pub(super) async fn fork(
    typed: &str,
    at: String,
    args: Option<String>,
    result: &ResultArgs,
    api: &Api,
    out: &Out,
) -> Result<()> {
    let run = api.run(typed).await?;
    let (value, error) = parse_result(result)?;
    let input = input::maybe_json(args.as_deref(), "--args")?;
    let changes = input.is_some() || value.is_some() || error.is_some();
    let change = changes.then_some(ForkChange { input, value, error, reason: None });
    let forked: Forked = api.post(&format!("/v1/runs/{run}/fork"), &ForkRequest { at, change }, None).await?;
    if out.json {
        return out.document(&forked);
    }
    out.line(&forked.run.to_string())?;
    out.note(&format!("compare the runs with `windlass runs compare {run} {}`", forked.run));
    Ok(())
}

/// `runs output`
pub(super) async fn output(
    typed: &str,
    path: &str,
    mut offset: u64,
    limit: Option<u64>,
    api: &Api,
    out: &Out,
) -> Result<()> {
    let run = api.run(typed).await?;
    let end = limit.map(|limit| offset.saturating_add(limit));
    let mut whole: Option<OutputPage> = None;
    loop {
        let left = end.map_or(OUTPUT_PAGE, |end| (end - offset).min(OUTPUT_PAGE));
        let (from, most) = (offset.to_string(), left.to_string());
        let pairs = [("path", Some(path)), ("offset", Some(from.as_str())), ("limit", Some(most.as_str()))];
        let page: OutputPage = api.get(&format!("/v1/runs/{run}/output{}", query(&pairs))).await?;
        let next = page.next_offset;
        match &mut whole {
            Some(whole) => {
                whole.text.push_str(&page.text);
                whole.next_offset = next;
            }
            None => whole = Some(page),
        }
        match next {
            Some(next) if end.is_none_or(|end| next < end) => offset = next,
            _ => break,
        }
    }
    let Some(whole) = whole else { return Ok(()) };
    if out.json {
        return out.document(&whole);
    }
    out.lines(&whole.text.lines().map(plain).collect::<Vec<_>>())?;
    if let Some(next) = whole.next_offset {
        out.note(&format!("{} bytes in all; --offset {next} prints what follows", whole.total_bytes));
    }
    Ok(())
}

/// Bytes of an output that are read with one request: the most that the server sends.
const OUTPUT_PAGE: u64 = 1 << 20;

/// `runs explain`
pub(super) async fn explain(run: RunId, api: &Api, out: &Out) -> Result<()> {
    let explanation: Explanation = api.get(&format!("/v1/runs/{run}/explain")).await?;
    if out.json {
        return out.document(&explanation);
    }
    out.line(&plain(&explanation.sentence))?;
    let principal = explanation.principal.iter().map(|principal| format!("for {}", plain(principal)));
    let cause = explanation.cause.iter().map(|cause| format!("cause {}", plain(cause)));
    let more: Vec<String> = principal.chain(cause).collect();
    if !more.is_empty() {
        out.line(&out.dim(&more.join(" · ")))?;
    }
    explanation_keys(&explanation, out)?;
    let waits_for_server = |one: &Move| {
        matches!(one.reason, MoveReason::OwnerGone | MoveReason::InMailbox { .. } | MoveReason::Queued { .. })
    };
    if !api.is_remote() && explanation.moves.iter().any(waits_for_server) {
        out.note(text::NO_SERVER);
    }
    Ok(())
}

/// The idempotency keys of attempts that are in doubt, running or to be repeated.
fn explanation_keys(explanation: &Explanation, out: &Out) -> Result<()> {
    for one in &explanation.moves {
        match (&one.reason, &one.idempotency_key) {
            (
                MoveReason::InDoubt { operation, attempt, .. } | MoveReason::Attempt { operation, attempt, .. },
                Some(key),
            ) => {
                out.line(&text::attempt_key(operation, *attempt, key))?;
            }
            (MoveReason::AtWork { operation, .. } | MoveReason::Waits { operation, .. }, Some(key)) => {
                out.line(&format!("attempts of {} have the idempotency key {}", plain(operation), plain(key)))?;
            }
            (MoveReason::Waits { child: Some(child), .. }, None) => explanation_keys(child, out)?,
            _ => {}
        }
    }
    Ok(())
}

/// `runs compare`
pub(super) async fn compare(a: &str, b: &str, api: &Api, out: &Out) -> Result<()> {
    let (a, b) = (api.run(a).await?, api.run(b).await?);
    let comparison: Comparison = api.get(&format!("/v1/runs/{a}/compare/{b}")).await?;
    if out.json {
        return out.document(&comparison);
    }
    out.line(&plain(&comparison.sentence))?;
    let Some(first) = &comparison.first else { return Ok(()) };
    let side = |side: &Option<String>| side.as_deref().map_or_else(|| "nothing".to_owned(), plain);
    out.line(&format!("  {} {}", out.style.paint(Tint::Bad, "-"), side(&first.a)))?;
    out.line(&format!("  {} {}", out.style.paint(Tint::Good, "+"), side(&first.b)))?;
    first.differences.iter().try_for_each(|difference| out.line(&format!("    {}", plain(difference))))
}

/// `runs export`
pub(super) async fn export(typed: &str, to: Option<&Path>, api: &Api, out: &Out) -> Result<()> {
    let run = api.run(typed).await?;
    let document = api.text(&format!("/v1/runs/{run}/export")).await?;
    let Some(to) = to else { return out.line(document.trim_end()) };
    // Written to another name first, so that no reader sees an incomplete document.
    let failed =
        |error: std::io::Error| Failure::new(Exit::Refused, format!("could not write {}: {error}", to.display()));
    let mut partial = to.as_os_str().to_owned();
    partial.push(".part");
    // Private, because it contains the secrets of the run in clear text.
    write_private(partial.as_ref(), |file| file.write_all(document.as_bytes()))
        .and_then(|()| std::fs::rename(&partial, to))
        .map_err(failed)?;
    if out.json { out.document(&json!({ "run": run, "to": to })) } else { out.line(&to.display().to_string()) }
}

/// `runs import`
pub(super) async fn import(from: &Path, api: &Api, out: &Out) -> Result<()> {
    let document = input::text(from)?;
    let importing = api.post_raw("/v1/runs/import", document.into_bytes(), None);
    let answer = during("importing", out, importing).await?;
    let imported: Imported = api.read(answer).await?;
    if out.json { out.document(&imported) } else { out.line(&imported.run.to_string()) }
}

/// `runs replay-check`
pub(super) async fn replay_check(typed: &[String], api: &Api, out: &Out) -> Result<()> {
    let runs = if typed.is_empty() { unfinished(api).await? } else { named(typed, api).await? };
    let mut checks: Vec<ReplayCheck> = Vec::new();
    let mut progress = Progress::new("checking runs", out);
    let all = runs.len() as u64;
    for run in runs {
        progress.update(checks.len() as u64, all);
        let check: ReplayCheck = api.post(&format!("/v1/runs/{run}/replay-check"), &json!({}), None).await?;
        if !out.json {
            let sign = if check.fits { (Tint::Good, "✓") } else { (Tint::Bad, "✗") };
            out.line(&format!("{} {run}  {}", out.style.paint(sign.0, sign.1), plain(&check.sentence)))?;
        }
        checks.push(check);
    }
    drop(progress);
    let fit = checks.iter().filter(|check| check.fits).count();
    if out.json {
        out.document(&json!({ "checks": checks, "fit": fit }))?;
    } else {
        out.note(&format!("{fit} of {} match the current tools", checks.len()));
    }
    if fit == checks.len() { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
}

async fn unfinished(api: &Api) -> Result<Vec<RunId>> {
    let mut runs = Vec::new();
    for state in ["queued", "running", "suspended", "held"] {
        let mut cursor: Option<String> = None;
        loop {
            let pairs = [("state", Some(state)), ("limit", Some("500")), ("cursor", cursor.as_deref())];
            let page: RunPage = api.get(&format!("/v1/runs{}", query(&pairs))).await?;
            runs.extend(page.runs.iter().map(|run| run.id));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
    }
    runs.sort();
    runs.dedup();
    Ok(runs)
}

/// `resolve`
pub(super) async fn resolve(args: &ResolveArgs, api: &Api, out: &Out) -> Result<()> {
    let (value, error) = parse_result(&args.result)?;
    if value.is_none() && error.is_none() && !args.cancelled {
        return Err(Failure::usage("the answer is missing: give --value JSON, --error MESSAGE or --cancelled"));
    }
    let request = AnswerRequest { value, error, cancelled: args.cancelled };
    let answer: ReplyResponse = api.post(&format!("/v1/replies/{}", escaped(&args.key)), &request, None).await?;
    if out.json { out.document(&answer) } else { out.line(&plain(&answer.resolved)) }
}

/// `signal`
pub(super) async fn signal(args: &SignalArgs, api: &Api, out: &Out) -> Result<()> {
    let run = api.run(&args.run).await?;
    let request = SignalRequest { value: input::json(&args.value, "--value")? };
    let path = format!("/v1/runs/{run}/signals/{}", escaped(&args.name));
    let _: Value = api.post(&path, &request, args.key.as_deref()).await?;
    done(run, "signalled", out)
}

/// Parses a result given on the command line.
pub(super) fn parse_result(result: &ResultArgs) -> Result<(Option<Value>, Option<ErrorRequest>)> {
    let value = input::maybe_json(result.value.as_deref(), "--value")?;
    let data = input::maybe_json(result.data.as_deref(), "--data")?;
    let error = result.error.clone().map(|message| ErrorRequest { code: result.code.clone(), message, data });
    Ok((value, error))
}

async fn post(api: &Api, path: &str, request: &impl Serialize) -> Result<()> {
    let _: Value = api.post(path, request, None).await?;
    Ok(())
}

async fn named(typed: &[String], api: &Api) -> Result<Vec<RunId>> {
    let mut runs = Vec::new();
    for typed in typed {
        runs.push(api.run(typed).await?);
    }
    Ok(runs)
}

/// Acts on several runs. All ids are resolved first, so that a mistake in the last one leaves the others untouched.
async fn each(
    typed: &[String],
    word: &str,
    api: &Api,
    out: &Out,
    act: impl AsyncFn(RunId) -> Result<()>,
) -> Result<()> {
    let runs = named(typed, api).await?;
    let mut worst = None;
    let mut results = Vec::new();
    for run in &runs {
        match act(*run).await {
            Ok(()) if out.json => results.push(json!({ "run": run, "ok": true })),
            Ok(()) => done(*run, word, out)?,
            Err(failure) if runs.len() == 1 => return Err(failure),
            Err(failure) => {
                if out.json {
                    results.push(json!({ "run": run, "ok": false, "problem": failure.message }));
                } else {
                    out.line(&format!("{run}  {}", out.style.paint(Tint::Bad, &failure.message)))?;
                }
                worst = Some(failure.exit);
            }
        }
    }
    if out.json {
        out.document(&json!({ "results": results }))?;
    }
    worst.map_or(Ok(()), |exit| Err(Failure::silent(exit)))
}

fn done(run: RunId, word: &str, out: &Out) -> Result<()> {
    if out.json {
        out.document(&json!({ "run": run, "ok": true }))
    } else {
        out.line(&format!("{run}  {}", out.style.paint(Tint::Good, word)))
    }
}
