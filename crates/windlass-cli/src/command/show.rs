//! `windlass runs show`

use std::time::Duration;

use serde_json::json;
use windlass::RunId;
use windlass_server::wire::{JournalPage, Record, Run, State, Trace};

use super::say;
use crate::api::{Api, query};
use crate::exit::Result;
use crate::out::Out;
use crate::style::{plain, took};
use crate::timeline::{Tree, draw};

/// Shows one run.
pub(super) async fn run(typed: &str, journal: bool, api: &Api, out: &Out) -> Result<()> {
    let id = api.run(typed).await?;
    let run: Run = api.get(&format!("/v1/runs/{id}")).await?;
    let trace: Trace = api.get(&format!("/v1/runs/{id}/trace")).await?;
    let records = if journal { Some(records(id, api).await?) } else { None };
    if out.json {
        return out.document(&json!({ "run": run, "trace": trace, "journal": records }));
    }
    head(&run, out)?;
    out.line("")?;
    out.lines(&draw(&Tree::of_trace(&trace, say::now()), &out.style))?;
    if trace.cut {
        out.line(&out.dim("… there is more than is shown; `windlass runs watch` shows all of it"))?;
    }
    tail(&run, out)?;
    for record in records.iter().flatten() {
        out.line(&one(record, out))?;
    }
    Ok(())
}

fn head(run: &Run, out: &Out) -> Result<()> {
    let (tint, state) = say::state(run);
    let until = run.ended.unwrap_or_else(say::now).as_micros();
    let micros = u64::try_from(until - run.created.as_micros()).unwrap_or(0);
    let since = if run.ended.is_some() { "took" } else { "since" };
    out.line(&format!(
        "{} {}  {}  {since} {}",
        out.bold(&plain(&run.tool)),
        run.id,
        out.style.paint(tint, &state),
        took(Duration::from_micros(micros)),
    ))?;
    let mut more = vec![format!("created {}", run.created)];
    more.extend(run.session.iter().map(|session| format!("session {}", plain(session))));
    if !run.layers.is_empty() {
        more.push(format!("through {}", plain(&run.layers.join(" > "))));
    }
    more.extend(run.parent.iter().map(|parent| format!("started by run {} at {}", parent.run, parent.path)));
    if run.epoch > 1 {
        more.push(format!("owner number {}", run.epoch));
    }
    if run.generation > 0 {
        more.push(format!("generation {}", run.generation));
    }
    out.line(&out.dim(&more.join(" · ")))
}

fn tail(run: &Run, out: &Out) -> Result<()> {
    for outcome in run.outcomes.iter().flatten() {
        out.line("")?;
        let path = outcome.path.to_string();
        if path != "/" {
            out.line(&out.dim(&format!("outcome of {path}")))?;
        }
        out.lines(&say::outcome(outcome, out))?;
    }
    if run.state == State::Finished && run.doubts.is_empty() {
        return Ok(());
    }
    if let Some(sentence) = &run.sentence {
        out.line("")?;
        out.line(&plain(sentence))?;
    }
    if !run.doubts.is_empty() || run.parks.iter().any(|park| needs_person(&park.on.kind)) {
        out.line(&out.dim(&format!("→ windlass inbox --run {}", run.id)))?;
    }
    Ok(())
}

fn needs_person(kind: &str) -> bool {
    matches!(kind, "approval" | "input" | "connection")
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

fn one(record: &Record, out: &Out) -> String {
    let kind = record.event["type"].as_str().unwrap_or("?");
    let asked = record.asked.as_ref().map(|asked| format!("  asked {asked}")).unwrap_or_default();
    let head = format!("{:>5}  {:<8} {kind}", record.seq, record.path.to_string());
    format!("{head}  {}", out.dim(&plain(&format!("{}{asked}", record.event))))
}
