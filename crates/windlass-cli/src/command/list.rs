//! `windlass runs list`

use windlass_server::wire::{Run, RunPage, WaitingFor};

use super::text;
use crate::api::{Api, prefix_len, query};
use crate::args::{ListArgs, StateFilter};
use crate::exit::Result;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// The largest page the server returns.
const PAGE: u64 = 500;

/// Lists runs.
pub(super) async fn run(args: &ListArgs, api: &Api, out: &Out) -> Result<()> {
    let (runs, more) = fetch(args, api).await?;
    if out.json {
        return out.document(&serde_json::json!({ "runs": runs, "more": more }));
    }
    if runs.is_empty() {
        out.note("no runs");
        return Ok(());
    }
    out.lines(&rows(&runs, out))?;
    if more {
        out.note(&format!("… there are more; `--limit {}` shows more of them", args.limit * 5));
    }
    Ok(())
}

async fn fetch(args: &ListArgs, api: &Api) -> Result<(Vec<Run>, bool)> {
    let parent = match &args.parent {
        Some(parent) => Some(api.run(parent).await?.to_string()),
        None => None,
    };
    let (created_from, created_before) =
        (args.created_from.map(|time| time.to_string()), args.created_before.map(|time| time.to_string()));
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut runs: Vec<Run> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page_size = (args.limit - runs.len() as u64).min(PAGE).to_string();
        let pairs = [
            ("state", args.state.map(state_word)),
            ("tool", args.tool.as_deref()),
            ("session", args.session.as_deref()),
            ("principal", args.principal.as_deref()),
            ("cause", args.cause.as_deref()),
            ("created_from", created_from.as_deref()),
            ("created_before", created_before.as_deref()),
            ("parent", parent.as_deref()),
            ("key", args.key.as_deref()),
            ("order", Some(if args.oldest { "oldest" } else { "newest" })),
            ("limit", Some(page_size.as_str())),
            ("cursor", cursor.as_deref()),
        ];
        let page: RunPage = api.get(&format!("/v1/runs{}", query(&pairs))).await?;
        runs.extend(page.runs);
        cursor = page.next;
        if cursor.is_none() || runs.len() >= limit {
            return Ok((runs, cursor.is_some()));
        }
    }
}

/// The name of a state in a query.
fn state_word(state: StateFilter) -> &'static str {
    match state {
        StateFilter::Queued => "queued",
        StateFilter::Running => "running",
        StateFilter::Suspended => "suspended",
        StateFilter::Held => "held",
        StateFilter::Finished => "finished",
        StateFilter::Ok => "ok",
        StateFilter::Failed => "failed",
        StateFilter::Cancelled => "cancelled",
        StateFilter::Lost => "lost",
        StateFilter::InDoubt => "in_doubt",
        StateFilter::Inbox => "inbox",
    }
}

fn rows(runs: &[Run], out: &Out) -> Vec<String> {
    let now = text::now();
    let ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    let chars = prefix_len(&ids);
    // Columns that most lists lack.
    let (for_whom, why) = (runs.iter().any(|run| run.principal.is_some()), runs.iter().any(|run| run.cause.is_some()));
    let optional = |shown: bool, text: &str| shown.then(|| (Tint::Plain, plain(text)));
    let mut heads = vec!["RUN", "STATE", "TOOL"];
    heads.extend(for_whom.then_some("FOR").into_iter().chain(why.then_some("CAUSE")));
    heads.extend(["CREATED", "WAITS FOR"]);
    let mut rows: Vec<Vec<(Tint, String)>> = vec![heads.into_iter().map(|head| (Tint::Dim, head.to_owned())).collect()];
    for (run, id) in runs.iter().zip(&ids) {
        let id: String = id.chars().take(chars).collect();
        let mut row = vec![(Tint::Bold, id), text::state(run), (Tint::Plain, plain(&run.tool))];
        row.extend(optional(for_whom, run.principal.as_deref().unwrap_or_default()));
        row.extend(optional(why, run.cause.as_deref().unwrap_or_default()));
        row.extend([(Tint::Dim, text::ago(run.created, now)), (Tint::Plain, waits(run))]);
        rows.push(row);
    }
    table(&rows, &out.style)
}

/// What the run waits for, in a few words.
fn waits(run: &Run) -> String {
    let mut causes: Vec<String> = run.doubts.iter().map(|doubt| format!("settlement of {}", doubt.operation)).collect();
    causes.extend(run.parks.iter().map(|park| match &park.on {
        WaitingFor::Approval { tool, .. } => format!("approval of {tool}"),
        WaitingFor::Connection { provider } => format!("a connection to {provider}"),
        WaitingFor::Input { name, .. } => format!("an answer: {name}"),
        WaitingFor::Signal { name } => format!("signal {name}"),
        WaitingFor::Child { run } => format!("run {run}"),
        WaitingFor::Time => "a time".to_owned(),
        WaitingFor::Retry => "its next attempt".to_owned(),
        WaitingFor::Key { key } => format!("key {key}"),
        WaitingFor::Unknown => "something that this version does not know".to_owned(),
    }));
    if let Some(hold) = &run.hold {
        causes.push(hold.sentence.clone());
    }
    plain(&causes.join(", "))
}
