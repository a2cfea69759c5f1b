//! `windlass runs show`

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use windlass::RunId;
use windlass_server::wire::{JournalPage, Record, Run, RunState, Trace, WaitingFor};

use super::text;
use crate::api::{Api, query};
use crate::exit::Result;
use crate::out::Out;
use crate::style::{Tint, duration, plain, table};
use crate::timeline::{Tree, draw};

/// The JSON form. Not a JSON value, which would not keep the bytes of metadata.
#[derive(Serialize)]
struct Shown<'a> {
    run: &'a Run,
    trace: &'a Trace,
    journal: Option<&'a [Record]>,
}

/// Shows one run.
pub(super) async fn run(id: RunId, journal: bool, api: &Api, out: &Out) -> Result<()> {
    let run: Run = api.get(&format!("/v1/runs/{id}")).await?;
    let trace: Trace = api.get(&format!("/v1/runs/{id}/trace")).await?;
    let records = if journal { Some(records(id, api).await?) } else { None };
    if out.json {
        return out.document(&Shown { run: &run, trace: &trace, journal: records.as_deref() });
    }
    head(&run, out)?;
    out.line("")?;
    out.lines(&draw(&Tree::of_trace(&trace, text::now()), &out.style))?;
    if trace.truncated {
        out.line(&out.dim("… not all events are shown; `windlass runs watch` shows all of them"))?;
    }
    keys(&trace, out)?;
    tail(&run, out)?;
    for record in records.iter().flatten() {
        out.line(&record_line(record, out))?;
    }
    Ok(())
}

fn head(run: &Run, out: &Out) -> Result<()> {
    let (tint, state) = text::state(run);
    let until = run.ended.unwrap_or_else(text::now).as_micros();
    let micros = u64::try_from(until - run.created.as_micros()).unwrap_or(0);
    let verb = if run.ended.is_some() { "took" } else { "for" };
    out.line(&format!(
        "{} {}  {}  {verb} {}",
        out.bold(&plain(&run.tool)),
        run.id,
        out.style.paint(tint, &state),
        duration(Duration::from_micros(micros)),
    ))?;
    let mut more = vec![format!("created {}", run.created)];
    more.extend(run.session.iter().map(|session| format!("session {}", plain(session))));
    more.extend(run.principal.iter().map(|principal| format!("for {}", plain(principal))));
    more.extend(run.cause.iter().map(|cause| format!("cause {}", plain(cause))));
    more.extend(run.key.iter().map(|key| format!("key {}", plain(key))));
    if !run.layers.is_empty() {
        more.push(format!("through layer {}", plain(&run.layers.join(" > "))));
    }
    more.extend(run.parent.iter().map(|parent| format!("started by run {} at {}", parent.run, parent.path)));
    if run.epoch > 1 {
        more.push(format!("epoch {}", run.epoch));
    }
    if run.generation > 0 {
        more.push(format!("generation {}", run.generation));
    }
    out.line(&out.dim(&more.join(" · ")))
}

/// The idempotency keys under which calls and steps are attempted: another system knows the attempts by them.
fn keys(trace: &Trace, out: &Out) -> Result<()> {
    let mut rows = Vec::new();
    collect_keys(trace, &mut rows);
    if rows.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.line(&out.dim("idempotency keys of the attempts"))?;
    out.lines(&table(&rows, &out.style))
}

fn collect_keys(trace: &Trace, rows: &mut Vec<Vec<(Tint, String)>>) {
    for activity in &trace.activities {
        let text = |field: &str| activity.detail.get(field).and_then(Value::as_str).map(plain);
        // The first event of each call or step.
        let name = match activity.kind.as_str() {
            "call_started" => text("tool"),
            "operation_started" => text("name"),
            _ => None,
        };
        if let (Some(name), Some(key)) = (name, text("idempotency_key")) {
            rows.push(vec![(Tint::Dim, format!("  {}", activity.path)), (Tint::Plain, name), (Tint::Plain, key)]);
        }
    }
    trace.children.iter().for_each(|child| collect_keys(child, rows));
}

fn tail(run: &Run, out: &Out) -> Result<()> {
    for outcome in run.outcomes.iter().flatten() {
        out.line("")?;
        let path = outcome.path.to_string();
        if path != "/" {
            out.line(&out.dim(&format!("outcome of {path}")))?;
        }
        out.lines(&text::outcome(outcome, out))?;
    }
    if run.state == RunState::Finished && run.doubts.is_empty() {
        return Ok(());
    }
    if let Some(sentence) = &run.sentence {
        out.line("")?;
        out.line(&plain(sentence))?;
    }
    for doubt in &run.doubts {
        out.line(&text::attempt_key(&doubt.operation, doubt.attempt, &doubt.idempotency_key))?;
    }
    if !run.doubts.is_empty() || run.parks.iter().any(|park| needs_person(&park.on)) {
        out.line(&out.dim(&format!("→ windlass inbox --run {}", run.id)))?;
    }
    Ok(())
}

fn needs_person(waiting_for: &WaitingFor) -> bool {
    use WaitingFor::{Approval, Connection, Input};
    matches!(waiting_for, Approval { .. } | Input { .. } | Connection { .. })
}

async fn records(id: RunId, api: &Api) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let pairs = [("after", after.as_deref()), ("limit", Some("500"))];
        let page: JournalPage = api.get(&format!("/v1/runs/{id}/journal{}", query(&pairs))).await?;
        records.extend(page.records);
        match page.next {
            Some(next) => after = Some(next.to_string()),
            None => return Ok(records),
        }
    }
}

fn record_line(record: &Record, out: &Out) -> String {
    let kind = record.event["type"].as_str().unwrap_or("?");
    let asked = record.asked.as_ref().map(|asked| format!("  request {asked}")).unwrap_or_default();
    let head = format!("{:>5}  {:<8} {kind}", record.seq, record.path.to_string());
    format!("{head}  {}", out.dim(&plain(&format!("{}{asked}", record.event))))
}
