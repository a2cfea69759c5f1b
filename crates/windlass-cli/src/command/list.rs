//! `windlass runs list`

use windlass_server::wire::{Run, RunPage};

use super::say;
use crate::api::{Api, enough, query};
use crate::args::{ListArgs, StateFilter};
use crate::exit::Result;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// The most the server gives at once.
const PAGE: u64 = 500;

/// Lists runs.
pub(super) async fn run(args: &ListArgs, api: &Api, out: &Out) -> Result<()> {
    let (runs, more) = fetch(args, api).await?;
    if out.json {
        return out.document(&serde_json::json!({ "runs": runs, "more": more }));
    }
    if runs.is_empty() {
        out.aside("no runs");
        return Ok(());
    }
    out.lines(&rows(&runs, out))?;
    if more {
        out.aside(&format!("… there are more; `--limit {}` shows more of them", args.limit * 5));
    }
    Ok(())
}

async fn fetch(args: &ListArgs, api: &Api) -> Result<(Vec<Run>, bool)> {
    let parent = match &args.parent {
        Some(parent) => Some(api.run(parent).await?.to_string()),
        None => None,
    };
    let mut runs: Vec<Run> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let left = args.limit - runs.len() as u64;
        let limit = left.min(PAGE).to_string();
        let pairs = [
            ("state", args.state.map(state)),
            ("tool", args.tool.as_deref()),
            ("session", args.session.as_deref()),
            ("parent", parent.as_deref()),
            ("order", Some(if args.oldest { "oldest" } else { "newest" })),
            ("limit", Some(limit.as_str())),
            ("cursor", cursor.as_deref()),
        ];
        let page: RunPage = api.get(&format!("/v1/runs{}", query(&pairs))).await?;
        runs.extend(page.runs);
        cursor = page.next;
        if cursor.is_none() || runs.len() as u64 >= args.limit {
            return Ok((runs, cursor.is_some()));
        }
    }
}

fn state(state: StateFilter) -> &'static str {
    match state {
        StateFilter::Queued => "queued",
        StateFilter::Running => "running",
        StateFilter::Suspended => "suspended",
        StateFilter::Held => "held",
        StateFilter::Finished => "finished",
        StateFilter::Doubted => "doubted",
        StateFilter::Inbox => "inbox",
    }
}

fn rows(runs: &[Run], out: &Out) -> Vec<String> {
    let now = say::now();
    let ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    let chars = enough(&ids);
    let mut rows =
        vec![["RUN", "STATE", "TOOL", "CREATED", "WAITS FOR"].map(|head| (Tint::Dim, head.to_owned())).into()];
    for (run, id) in runs.iter().zip(&ids) {
        let id: String = id.chars().take(chars).collect();
        rows.push(vec![
            (Tint::Bold, id),
            say::state(run),
            (Tint::Plain, plain(&run.tool)),
            (Tint::Dim, say::ago(run.created, now)),
            (Tint::Plain, waits(run)),
        ]);
    }
    table(&rows, &out.style)
}

/// What keeps it, in a few words.
fn waits(run: &Run) -> String {
    let mut what: Vec<String> = run.doubts.iter().map(|doubt| format!("settlement of {}", doubt.operation)).collect();
    what.extend(run.parks.iter().map(|park| {
        let text = |field: &str| park.on.detail.get(field).and_then(|value| value.as_str()).unwrap_or_default();
        match park.on.kind.as_str() {
            "approval" => format!("approval of {}", text("tool")),
            "connection" => format!("a connection to {}", text("provider")),
            "input" => format!("an answer: {}", text("name")),
            "signal" => format!("signal {}", text("name")),
            "child" => format!("run {}", text("run")),
            "time" => "a time".to_owned(),
            "retry" => "its next attempt".to_owned(),
            "key" => format!("key {}", text("key")),
            other => other.to_owned(),
        }
    }));
    if let Some(hold) = &run.hold {
        what.push(hold.sentence.clone());
    }
    plain(&what.join(", "))
}
