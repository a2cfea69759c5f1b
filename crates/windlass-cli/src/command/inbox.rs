//! `windlass inbox`

use std::path::Path;

use serde_json::json;
use windlass_server::wire::{
    BulkRequest, BulkResponse, ConnectionRequest, ConnectionResponse, ErrorRequest, InboxAction, InboxFilter,
    InboxItem, InboxKind, InboxPage, SettlementKind,
};

use super::{runs, text};
use crate::api::{Api, ambiguous, escaped, prefix_len, query};
use crate::args::{Decision, InboxCommand, InboxFilterArgs, InboxKindName, Selection, SettleArgs};
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::{Tint, counted, plain};

/// Lists the items.
pub(super) async fn list(filter: &InboxFilterArgs, api: &Api, out: &Out) -> Result<()> {
    let items = fetch(filter, api).await?;
    if out.json {
        return out.document(&json!({ "items": items }));
    }
    if items.is_empty() {
        out.note("the inbox is empty");
        return Ok(());
    }
    let ids: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
    let chars = prefix_len(&ids);
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            out.line("")?;
        }
        out.lines(&describe(item, chars, out))?;
    }
    Ok(())
}

async fn fetch(filter: &InboxFilterArgs, api: &Api) -> Result<Vec<InboxItem>> {
    let filter = resolve(filter, api).await?;
    let run = filter.run.map(|run| run.to_string());
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let pairs = [
            ("kind", filter.kind.map(kind_word)),
            ("tool", filter.tool.as_deref()),
            ("run", run.as_deref()),
            ("session", filter.session.as_deref()),
            ("principal", filter.principal.as_deref()),
            ("client_calls", filter.client_calls.then_some("true")),
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

async fn resolve(filter: &InboxFilterArgs, api: &Api) -> Result<InboxFilter> {
    let kind = filter.kind.map(|kind| match kind {
        InboxKindName::Approval => InboxKind::Approval,
        InboxKindName::Doubt => InboxKind::Doubt,
        InboxKindName::Input => InboxKind::Input,
        InboxKindName::Connection => InboxKind::Connection,
    });
    let run = match &filter.run {
        Some(run) => Some(api.run(run).await?),
        None => None,
    };
    Ok(InboxFilter {
        kind,
        tool: filter.tool.clone(),
        run,
        session: filter.session.clone(),
        principal: filter.principal.clone(),
        client_calls: filter.client_calls,
    })
}

fn kind_word(kind: InboxKind) -> &'static str {
    match kind {
        InboxKind::Approval => "approval",
        InboxKind::Doubt => "doubt",
        InboxKind::Input => "input",
        InboxKind::Connection => "connection",
    }
}

/// Describes an item, with the command that decides it.
fn describe(item: &InboxItem, chars: usize, out: &Out) -> Vec<String> {
    let id: String = item.id.chars().take(chars.max(MIN_SHOWN)).collect();
    let tint = if item.kind == InboxKind::Doubt { Tint::Doubt } else { Tint::Park };
    let now = text::now();
    let mut lines = vec![format!(
        "{}  {}  {}  {}",
        out.bold(&plain(&id)),
        out.style.paint(tint, kind_word(item.kind)),
        plain(&item.operation),
        out.dim(&text::ago(item.since, now)),
    )];
    if let Some(args) = &item.args {
        lines.push(format!("    with  {}", plain(&args.to_string())));
    }
    lines.push(format!("    why   {}", plain(&item.why)));
    if let Some(key) = &item.idempotency_key {
        lines.push(format!(
            "    key   {} (the idempotency key of the attempt; the other system knows it by this)",
            plain(key)
        ));
    }
    lines.push(format!("    run   {} of {}", item.run, plain(&item.tool)));
    if let Some(until) = item.until {
        lines.push(format!("    until {until} ({})", text::ago(until, now)));
    }
    if let Some(recorded) = &item.recorded {
        lines.push(format!(
            "    {} is recorded; the next server applies it: start one with `windlass serve`",
            plain(recorded)
        ));
        return lines;
    }
    let id = plain(&id);
    let command = match item.kind {
        InboxKind::Approval => format!("windlass inbox approve {id}   or: deny {id} --reason REASON"),
        InboxKind::Doubt => {
            format!("windlass inbox settle {id} --reason REASON with --happened JSON, --did-not-happen or --give-up")
        }
        InboxKind::Input => format!("windlass inbox answer {id} --value JSON"),
        InboxKind::Connection => format!("windlass inbox connect {}", plain(&item.why)),
    };
    lines.push(out.dim(&format!("    → {command}")));
    lines
}

/// At least this many characters of an item's id are shown.
const MIN_SHOWN: usize = 8;

/// Executes a subcommand of `inbox`.
pub(super) async fn act(command: InboxCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        InboxCommand::List(filter) => list(&filter, api, out).await,
        InboxCommand::Approve(decision) => decide(InboxAction::Approve, &decision, api, out).await,
        InboxCommand::Deny(decision) => decide(InboxAction::Deny, &decision, api, out).await,
        InboxCommand::Settle(args) => settle(&args, api, out).await,
        InboxCommand::Answer { selection, result } => {
            let (value, error) = runs::parse_result(&result)?;
            if value.is_none() && error.is_none() {
                return Err(Failure::usage("the answer is missing: give --value JSON or --error MESSAGE"));
            }
            let request = BulkRequest { value, error, ..empty(InboxAction::Answer) };
            act_on_all(request, InboxKind::Input, &selection, api, out).await
        }
        InboxCommand::Connect { provider, from, no_credential, expires_in, principal, refused } => {
            let credential = match no_credential || refused.is_some() {
                true => None,
                false => Some(credential(from.as_deref())?),
            };
            let request = ConnectionRequest { credential, expires_in, principal, refused };
            connect(&provider, &request, api, out).await
        }
    }
}

async fn decide(action: InboxAction, decision: &Decision, api: &Api, out: &Out) -> Result<()> {
    let request = BulkRequest { reason: decision.reason.clone(), ..empty(action) };
    act_on_all(request, InboxKind::Approval, &decision.selection, api, out).await
}

async fn settle(args: &SettleArgs, api: &Api, out: &Out) -> Result<()> {
    let value = input::maybe_json(args.happened.as_deref(), "--happened")?;
    let error = args.failed.clone().map(|message| ErrorRequest { code: None, message, data: None });
    let settlement = match (args.did_not_happen, args.give_up) {
        (true, _) => SettlementKind::DidNotHappen,
        (_, true) => SettlementKind::GiveUp,
        _ => SettlementKind::Happened,
    };
    let reason = Some(args.reason.clone());
    let request = BulkRequest { settlement: Some(settlement), value, error, reason, ..empty(InboxAction::Settle) };
    act_on_all(request, InboxKind::Doubt, &args.selection, api, out).await
}

/// Reads a credential. Other users of the machine can see arguments, so it is never one.
fn credential(from: Option<&Path>) -> Result<String> {
    let text = input::text(from.unwrap_or(Path::new("-")))?;
    // The line break that `echo` and editors add is not part of it.
    let credential = text.strip_suffix('\n').unwrap_or(&text);
    match credential.is_empty() {
        true => Err(Failure::usage("the credential is empty; write it to standard input, or use --no-credential")),
        false => Ok(credential.to_owned()),
    }
}

async fn connect(provider: &str, request: &ConnectionRequest, api: &Api, out: &Out) -> Result<()> {
    let path = format!("/v1/connections/{}", escaped(provider));
    let answer: ConnectionResponse = api.post(&path, request, None).await?;
    if out.json {
        return out.document(&answer);
    }
    out.line(&format!("{} notified", counted(answer.runs, "run")))
}

fn empty(action: InboxAction) -> BulkRequest {
    BulkRequest {
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

/// Sends the same request for every selected item.
async fn act_on_all(
    mut request: BulkRequest,
    kind: InboxKind,
    selection: &Selection,
    api: &Api,
    out: &Out,
) -> Result<()> {
    let ids = select(selection, kind, api).await?;
    if ids.is_empty() {
        let message =
            format!("the inbox has no matching item of kind {}; `windlass inbox` lists the items", kind_word(kind));
        return Err(Failure::new(Exit::NotFound, message));
    }
    request.ids = Some(ids);
    let answer: BulkResponse = api.post("/v1/inbox", &request, None).await?;
    let failed = answer.results.iter().filter(|result| !result.ok).count();
    if out.json {
        out.document(&answer)?;
    } else {
        for result in &answer.results {
            let (tint, status) = match &result.problem {
                None => (Tint::Good, "done".to_owned()),
                Some(problem) => (Tint::Bad, plain(&problem.detail)),
            };
            out.line(&format!("{}  {}", plain(&result.id), out.style.paint(tint, &status)))?;
        }
        if !api.is_remote() && failed < answer.results.len() {
            out.note(text::NO_SERVER);
        }
    }
    if failed == 0 { Ok(()) } else { Err(Failure::silent(Exit::Refused)) }
}

/// The ids of the selected items. They are listed once, so that items which arrive later are not decided.
async fn select(selection: &Selection, kind: InboxKind, api: &Api) -> Result<Vec<String>> {
    if selection.ids.is_empty() && !selection.all && !selection.filter.is_narrow() {
        let ways = "name items, or select them with --tool, --kind, --run, --session, --principal or --all";
        return Err(Failure::usage(format!("no items selected: {ways}")));
    }
    let items = fetch(&selection.filter, api).await?;
    if selection.ids.is_empty() {
        return Ok(items.into_iter().filter(|item| item.kind == kind).map(|item| item.id).collect());
    }
    selection.ids.iter().map(|typed| find(typed, &items)).collect()
}

fn find(typed: &str, items: &[InboxItem]) -> Result<String> {
    let found: Vec<String> = items.iter().map(|item| &item.id).filter(|id| id.starts_with(typed)).cloned().collect();
    match found.as_slice() {
        _ if items.iter().any(|item| item.id == typed) => Ok(typed.to_owned()),
        [id] => Ok(id.clone()),
        // It may have been decided a moment ago: the server's response will say so.
        [] if typed.len() > MIN_SHOWN => Ok(typed.to_owned()),
        [] => {
            let typed = plain(typed);
            let message =
                format!("no inbox item has an id that begins with `{typed}`; `windlass inbox` lists the items");
            Err(Failure::new(Exit::NotFound, message))
        }
        many => Err(ambiguous(typed, many, "item")),
    }
}
