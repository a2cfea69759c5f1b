//! The people's list.

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::{Filter, RunId, RunInfo};

use super::paging::{cursor, page_size, read_cursor};
use super::people::{Speaker, named};
use super::runs::info;
use crate::access::{May, Read};
use crate::answer::ok;
use crate::app::Shared;
use crate::clients::for_people;
use crate::extract::{Json, MaybeJson, Place, Query, run_id};
use crate::refusal::{Answer, Refusal};
use crate::show::{Item, ItemId, items};
use crate::wire::{
    AnswerRequest, ConnectionRequest, DecideRequest, Decided, InboxAction, InboxFilter, InboxKind, InboxPage,
    ManyAnswer, ManyRequest, ManyResult, SettleRequest,
};

/// Most items of one request about many.
const MANY: usize = 1_000;
/// Runs that are looked at for one page.
const LOOKED_AT: usize = 2_000;
/// Runs read from the store at a time.
const PAGE: usize = 100;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct InboxQuery {
    /// Only items of this kind.
    #[param(inline)]
    kind: Option<InboxKind>,
    /// Only items of runs of this tool.
    tool: Option<String>,
    /// Only items of this run.
    #[param(format = "uuid")]
    run: Option<String>,
    /// Only items of runs of this session.
    session: Option<String>,
    /// Also calls of tools that clients brought: they wait for a program.
    #[serde(default)]
    programs: bool,
    /// How many items, about: those of one run are never torn apart.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
    /// `next` of the page before.
    #[param(pattern = "^i[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// What waits for a person?
///
/// Approvals, doubts, inputs, connections; the oldest run first. Reply keys are shown to those who may answer. Calls of tools that
/// clients brought wait for a program and are left out, unless asked for.
#[utoipa::path(get, path = "/v1/inbox", tag = "inbox", params(InboxQuery),
    responses((status = 200, description = "A page of the inbox", body = InboxPage)))]
pub(super) async fn list(State(app): State<Shared>, may: May<Read>, Query(query): Query<InboxQuery>) -> Answer {
    let limit = page_size(query.limit, 500)?;
    let after = query.cursor.as_deref().map(|text| read_cursor('i', text)).transpose()?;
    let run = query.run.as_deref().map(run_id).transpose()?;
    let InboxQuery { kind, tool, session, programs, .. } = query;
    let filter = InboxFilter { kind, tool, run, session, programs };
    let mut shown = Vec::new();
    let (found, next) = find(&app, &filter, after, limit).await?;
    for (info, items) in &found {
        shown.extend(Item::shown(&app.windlass, info, items, may.who.approves).await?);
    }
    Ok(ok(&InboxPage { items: shown, next: next.map(|run| cursor('i', run)) }))
}

/// Runs with items that fit, until there are enough; and the run after which to go on.
async fn find(
    app: &Shared,
    filter: &InboxFilter,
    after: Option<RunId>,
    enough: usize,
) -> Answer<(Vec<(RunInfo, Vec<Item>)>, Option<RunId>)> {
    let fitting = |info: &RunInfo| -> Vec<Item> {
        let run = filter.tool.as_ref().is_none_or(|tool| **tool == *info.tool)
            && filter.session.as_deref().is_none_or(|session| info.session.as_deref() == Some(session));
        let mut items = if run { items(&app.windlass, info) } else { Vec::new() };
        items.retain(|item| filter.kind.is_none_or(|kind| item.id.kind == kind));
        items
    };
    let asked = async |info: &RunInfo| match (filter.programs, fitting(info)) {
        (true, items) => Ok(items),
        (false, items) => for_people(app, info, items).await,
    };
    if let Some(run) = filter.run {
        let info = info(app, run).await?;
        let items = asked(&info).await?;
        let all = if items.is_empty() || after.is_some() { Vec::new() } else { vec![(info, items)] };
        return Ok((all, None));
    }
    let (mut found, mut count, mut looked, mut after) = (Vec::new(), 0, 0, after);
    loop {
        let page = app.windlass.list(Filter::Inbox, after, PAGE).await?;
        let full = page.len() == PAGE;
        for info in page {
            if count >= enough || looked >= LOOKED_AT {
                return Ok((found, after));
            }
            after = Some(info.run);
            looked += 1;
            let items = asked(&info).await?;
            count += items.len();
            if !items.is_empty() {
                found.push((info, items));
            }
        }
        if !full {
            return Ok((found, None));
        }
    }
}

/// Approve a call
///
/// Exactly the one this item is about, once. The first decision counts; a late one is 409 and says what counted.
#[utoipa::path(post, path = "/v1/inbox/{id}/approve", tag = "inbox", params(("id" = String, Path)),
    request_body = Option<DecideRequest>, responses((status = 200, description = "It counts", body = Decided)))]
pub(super) async fn approve(
    speaker: Speaker,
    Place(id): Place<String>,
    MaybeJson(request): MaybeJson<DecideRequest>,
) -> Answer {
    let id = named(&id, InboxKind::Approval)?;
    speaker.decide(&id, true, request.reason).await?;
    Ok(decided(&id))
}

/// Deny a call
#[utoipa::path(post, path = "/v1/inbox/{id}/deny", tag = "inbox", params(("id" = String, Path)),
    request_body = Option<DecideRequest>, responses((status = 200, description = "It counts", body = Decided)))]
pub(super) async fn deny(
    speaker: Speaker,
    Place(id): Place<String>,
    MaybeJson(request): MaybeJson<DecideRequest>,
) -> Answer {
    let id = named(&id, InboxKind::Approval)?;
    speaker.decide(&id, false, request.reason).await?;
    Ok(decided(&id))
}

/// Settle a doubt
///
/// It happened, and this is what it came to; or it did not, and is attempted again; or nobody can tell.
#[utoipa::path(post, path = "/v1/inbox/{id}/settle", tag = "inbox", params(("id" = String, Path)),
    request_body = SettleRequest, responses((status = 200, description = "It counts", body = Decided)))]
pub(super) async fn settle(speaker: Speaker, Place(id): Place<String>, Json(request): Json<SettleRequest>) -> Answer {
    let id = named(&id, InboxKind::Doubt)?;
    speaker.settle(&id, request).await?;
    Ok(decided(&id))
}

/// Answer an input
#[utoipa::path(post, path = "/v1/inbox/{id}/answer", tag = "inbox", params(("id" = String, Path)),
    request_body = AnswerRequest, responses((status = 200, description = "It counts", body = Decided)))]
pub(super) async fn answer(speaker: Speaker, Place(id): Place<String>, Json(request): Json<AnswerRequest>) -> Answer {
    let id = named(&id, InboxKind::Input)?;
    speaker.answer(&id, request).await?;
    Ok(decided(&id))
}

/// Say that a provider is connected
///
/// To every run that waits for it; or why it will not be.
#[utoipa::path(post, path = "/v1/inbox/{id}/connect", tag = "inbox", params(("id" = String, Path)),
    request_body = Option<ConnectionRequest>, responses((status = 200, description = "They are told", body = Decided)))]
pub(super) async fn connect(
    speaker: Speaker,
    Place(id): Place<String>,
    MaybeJson(request): MaybeJson<ConnectionRequest>,
) -> Answer {
    let id = named(&id, InboxKind::Connection)?;
    speaker.connect(&id, request.refused.as_deref()).await?;
    Ok(decided(&id))
}

fn decided(id: &ItemId) -> axum::response::Response {
    ok(&Decided { id: id.to_string(), run: id.run })
}

/// Do the same about many items
///
/// Those that are named, or those that fit a filter now. Each has a result of its own.
#[utoipa::path(post, path = "/v1/inbox", tag = "inbox", request_body = ManyRequest,
    responses((status = 200, description = "What became of each", body = ManyAnswer)))]
pub(super) async fn many(speaker: Speaker, Json(request): Json<ManyRequest>) -> Answer {
    let unused = request.unused();
    if !unused.is_empty() {
        return Err(Refusal::invalid(format!("this action has no use for: {}", unused.join(", "))));
    }
    let ids = match (&request.ids, &request.filter) {
        (Some(ids), None) if ids.len() <= MANY => ids.clone(),
        (Some(_), None) => return Err(Refusal::invalid(format!("ids are at most {MANY}"))),
        (None, Some(filter)) => {
            let filter = InboxFilter { kind: Some(kind(request.action)), ..filter.clone() };
            let (found, _) = find(&speaker.app, &filter, None, MANY).await?;
            found.iter().flat_map(|(_, items)| items.iter().map(|item| item.id.to_string())).take(MANY).collect()
        }
        _ => return Err(Refusal::invalid("name the items with either `ids` or `filter`")),
    };
    let mut results = Vec::with_capacity(ids.len());
    for id in ids {
        let problem = one(&speaker, &id, &request).await.err().map(Refusal::problem);
        results.push(ManyResult { id, ok: problem.is_none(), problem });
    }
    Ok(ok(&ManyAnswer { results }))
}

fn kind(action: InboxAction) -> InboxKind {
    match action {
        InboxAction::Approve | InboxAction::Deny => InboxKind::Approval,
        InboxAction::Settle => InboxKind::Doubt,
        InboxAction::Answer => InboxKind::Input,
        InboxAction::Connect => InboxKind::Connection,
    }
}

async fn one(speaker: &Speaker, id: &str, request: &ManyRequest) -> Answer<()> {
    let id = named(id, kind(request.action))?;
    let ManyRequest { reason, settlement, value, error, refused, .. } = request.clone();
    match request.action {
        InboxAction::Approve => speaker.decide(&id, true, reason).await,
        InboxAction::Deny => speaker.decide(&id, false, reason).await,
        InboxAction::Settle => {
            let settlement = settlement.ok_or_else(|| Refusal::invalid("`settlement` says how doubts are settled"))?;
            let reason = reason.ok_or_else(|| Refusal::invalid("`reason` says why doubts are settled so"))?;
            speaker.settle(&id, SettleRequest { settlement, value, error, reason }).await
        }
        InboxAction::Answer => speaker.answer(&id, AnswerRequest { value, error, cancelled: false }).await,
        InboxAction::Connect => speaker.connect(&id, refused.as_deref()).await,
    }
}
