//! `windlass inbox`

use serde_json::json;
use windlass_server::wire::{
    ConnectionAnswer, ConnectionRequest, ErrorRequest, InboxAction, InboxFilter, InboxItem, InboxKind, InboxPage,
    ManyAnswer, ManyRequest, SettlementKind,
};

use super::{runs, say};
use crate::api::{Api, ambiguous, enough, escaped, query};
use crate::args::{Decision, InboxCommand, InboxKindName, Picked, SettleArgs, Wanted};
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::{Tint, counted, plain};

/// What waits for somebody.
pub(super) async fn list(wanted: &Wanted, api: &Api, out: &Out) -> Result<()> {
    let items = fetch(wanted, api).await?;
    if out.json {
        return out.document(&json!({ "items": items }));
    }
    if items.is_empty() {
        out.aside("nothing waits for anybody");
        return Ok(());
    }
    let ids: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
    let chars = enough(&ids);
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            out.line("")?;
        }
        out.lines(&describe(item, chars, out))?;
    }
    Ok(())
}

async fn fetch(wanted: &Wanted, api: &Api) -> Result<Vec<InboxItem>> {
    let filter = filter(wanted, api).await?;
    let run = filter.run.map(|run| run.to_string());
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let pairs = [
            ("kind", filter.kind.map(kind_word)),
            ("tool", filter.tool.as_deref()),
            ("run", run.as_deref()),
            ("session", filter.session.as_deref()),
            ("programs", filter.programs.then_some("true")),
            ("limit", Some("500")),
            ("cursor", cursor.as_deref()),
        ];
        let page: InboxPage = api.get(&format!("/v1/inbox{}", query(&pairs))).await?;
        items.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

async fn filter(wanted: &Wanted, api: &Api) -> Result<InboxFilter> {
    let kind = wanted.kind.map(|kind| match kind {
        InboxKindName::Approval => InboxKind::Approval,
        InboxKindName::Doubt => InboxKind::Doubt,
        InboxKindName::Input => InboxKind::Input,
        InboxKindName::Connection => InboxKind::Connection,
    });
    let run = match &wanted.run {
        Some(run) => Some(api.run(run).await?),
        None => None,
    };
    Ok(InboxFilter { kind, tool: wanted.tool.clone(), run, session: wanted.session.clone(), programs: wanted.programs })
}

fn kind_word(kind: InboxKind) -> &'static str {
    match kind {
        InboxKind::Approval => "approval",
        InboxKind::Doubt => "doubt",
        InboxKind::Input => "input",
        InboxKind::Connection => "connection",
    }
}

/// What is asked, about what, and what to type.
fn describe(item: &InboxItem, chars: usize, out: &Out) -> Vec<String> {
    let id: String = item.id.chars().take(chars.max(SHORTEST)).collect();
    let tint = if item.kind == InboxKind::Doubt { Tint::Doubt } else { Tint::Park };
    let now = say::now();
    let mut lines = vec![format!(
        "{}  {}  {}  {}",
        out.bold(&plain(&id)),
        out.style.paint(tint, kind_word(item.kind)),
        plain(&item.operation),
        out.dim(&say::ago(item.since, now)),
    )];
    if let Some(args) = &item.args {
        lines.push(format!("    with  {}", plain(&args.to_string())));
    }
    lines.push(format!("    why   {}", plain(&item.why)));
    lines.push(format!("    run   {} of {}", item.run, plain(&item.tool)));
    if let Some(until) = item.until {
        lines.push(format!("    until {until} ({})", say::ago(until, now)));
    }
    let id = plain(&id);
    let typed = match item.kind {
        InboxKind::Approval => format!("windlass inbox approve {id}   or: deny {id} --reason WHY"),
        InboxKind::Doubt => {
            format!("windlass inbox settle {id} --reason WHY with --happened JSON, --did-not-happen or --give-up")
        }
        InboxKind::Input => format!("windlass inbox answer {id} --value JSON"),
        InboxKind::Connection => format!("windlass inbox connect {}", plain(&item.why)),
    };
    lines.push(out.dim(&format!("    → {typed}")));
    lines
}

/// The least of an item's id that is shown.
const SHORTEST: usize = 8;

/// Approves, denies, settles, answers, connects.
pub(super) async fn act(command: InboxCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        InboxCommand::List(wanted) => list(&wanted, api, out).await,
        InboxCommand::Approve(decision) => decide(InboxAction::Approve, &decision, api, out).await,
        InboxCommand::Deny(decision) => decide(InboxAction::Deny, &decision, api, out).await,
        InboxCommand::Settle(args) => settle(&args, api, out).await,
        InboxCommand::Answer { picked, result } => {
            let (value, error) = runs::given(&result)?;
            if value.is_none() && error.is_none() {
                return Err(Failure::usage("say what the answer is: --value JSON or --error MESSAGE"));
            }
            let request = ManyRequest { value, error, ..empty(InboxAction::Answer) };
            many(request, InboxKind::Input, &picked, api, out).await
        }
        InboxCommand::Connect { provider, refused } => connect(&provider, refused, api, out).await,
    }
}

async fn decide(action: InboxAction, decision: &Decision, api: &Api, out: &Out) -> Result<()> {
    let request = ManyRequest { reason: decision.reason.clone(), ..empty(action) };
    many(request, InboxKind::Approval, &decision.picked, api, out).await
}

async fn settle(args: &SettleArgs, api: &Api, out: &Out) -> Result<()> {
    let value = input::maybe_json(args.happened.as_deref(), "--happened")?;
    let error = args.failed.clone().map(|message| ErrorRequest { code: None, message });
    let settlement = match (args.did_not_happen, args.give_up) {
        (true, _) => SettlementKind::DidNotHappen,
        (_, true) => SettlementKind::GiveUp,
        _ => SettlementKind::Happened,
    };
    let reason = Some(args.reason.clone());
    let request = ManyRequest { settlement: Some(settlement), value, error, reason, ..empty(InboxAction::Settle) };
    many(request, InboxKind::Doubt, &args.picked, api, out).await
}

async fn connect(provider: &str, refused: Option<String>, api: &Api, out: &Out) -> Result<()> {
    let path = format!("/v1/connections/{}", escaped(provider));
    let answer: ConnectionAnswer = api.post(&path, &ConnectionRequest { refused }, None).await?;
    if out.json {
        return out.document(&answer);
    }
    out.line(&format!("{} told", counted(answer.runs, "run")))
}

fn empty(action: InboxAction) -> ManyRequest {
    ManyRequest {
        action,
        ids: None,
        filter: None,
        reason: None,
        settlement: None,
        value: None,
        error: None,
        refused: None,
    }
}

/// Says the same about every item that is picked.
async fn many(mut request: ManyRequest, kind: InboxKind, picked: &Picked, api: &Api, out: &Out) -> Result<()> {
    let ids = pick(picked, kind, api).await?;
    if ids.is_empty() {
        return Err(Failure::new(Exit::NotFound, "nothing of that kind waits; `windlass inbox` shows what does"));
    }
    request.ids = Some(ids);
    let answer: ManyAnswer = api.post("/v1/inbox", &request, None).await?;
    let failed = answer.results.iter().filter(|result| !result.ok).count();
    if out.json {
        out.document(&answer)?;
    } else {
        for result in &answer.results {
            let (tint, said) = match &result.problem {
                None => (Tint::Good, "done".to_owned()),
                Some(problem) => (Tint::Bad, plain(&problem.detail)),
            };
            out.line(&format!("{}  {}", plain(&result.id), out.style.paint(tint, &said)))?;
        }
        if !api.is_remote() && failed < answer.results.len() {
            out.aside("nobody drives the runs of this file now; they go on with `windlass serve`");
        }
    }
    if failed == 0 { Ok(()) } else { Err(Failure::silent(Exit::Refused)) }
}

/// The items somebody means. Those that are shown are those that are decided about: what comes meanwhile is not.
async fn pick(picked: &Picked, kind: InboxKind, api: &Api) -> Result<Vec<String>> {
    if picked.ids.is_empty() && !picked.all && !picked.wanted.narrows() {
        let ways = "name items, or all that fit with --tool, --kind, --run or --session, or everything with --all";
        return Err(Failure::usage(format!("nothing was picked: {ways}")));
    }
    let items = fetch(&picked.wanted, api).await?;
    if picked.ids.is_empty() {
        return Ok(items.into_iter().filter(|item| item.kind == kind).map(|item| item.id).collect());
    }
    picked.ids.iter().map(|typed| one(typed, &items)).collect()
}

fn one(typed: &str, items: &[InboxItem]) -> Result<String> {
    let found: Vec<String> = items.iter().map(|item| &item.id).filter(|id| id.starts_with(typed)).cloned().collect();
    match found.as_slice() {
        _ if items.iter().any(|item| item.id == typed) => Ok(typed.to_owned()),
        [id] => Ok(id.clone()),
        // It may have been decided a moment ago: whoever knows says so.
        [] if typed.len() > SHORTEST => Ok(typed.to_owned()),
        [] => {
            let why = format!("nothing in the inbox begins with `{}`; `windlass inbox` shows what waits", plain(typed));
            Err(Failure::new(Exit::NotFound, why))
        }
        many => Err(ambiguous(typed, many, "item")),
    }
}
