//! The inbox.

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::RunId;
use windlass::run::{Filter, RunInfo};

use super::decisions::{Decider, item_id};
use super::paging::{cursor, page_size, read_cursor};
use crate::access::{Authorized, Identity, Read};
use crate::app::Shared;
use crate::clients::without_client_calls;
use crate::extract::{Json, MaybeJson, PathParam, Query, run_id};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::show::{Item, ItemId, items};
use crate::wire::{
    AnswerRequest, BulkRequest, BulkResponse, BulkResult, ConnectionRequest, DecideRequest, Decided, InboxAction,
    InboxFilter, InboxKind, InboxPage, SettleRequest,
};

/// Most items of a bulk action.
const MAX_ITEMS: usize = 1_000;
/// Most runs that are read for one page.
const MAX_SCANNED: usize = 2_000;
/// Runs that are read from the store at a time.
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
    /// Only items of runs that act for this principal.
    principal: Option<String>,
    /// Include calls of client tools, which wait for a program.
    #[serde(default)]
    client_calls: bool,
    /// Approximate number of items: all items of a run are on the same page.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
    /// `next` of the previous page.
    #[param(pattern = "^i[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// List what waits for a person
///
/// Approvals, doubts, inputs and connections, those of the oldest run first. Reply keys are included for tokens with
/// the scope `approve`. Calls of client tools wait for a program, and are included only with `client_calls`.
#[utoipa::path(get, path = "/v1/inbox", tag = "inbox", params(InboxQuery),
    responses((status = 200, description = "A page of the inbox", body = InboxPage)))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    Query(query): Query<InboxQuery>,
) -> ApiResult {
    let limit = page_size(query.limit, 500)?;
    let after = query.cursor.as_deref().map(|text| read_cursor('i', text)).transpose()?;
    let run = query.run.as_deref().map(run_id).transpose()?;
    let InboxQuery { kind, tool, session, principal, client_calls, .. } = query;
    let filter = InboxFilter { kind, tool, run, session, principal, client_calls };
    let mut page = Vec::new();
    let (runs, next) = find(&app, &authorized.identity, &filter, after, limit).await?;
    for (info, items) in &runs {
        page.extend(Item::shown(&app.windlass, info, items, authorized.identity.may_approve).await?);
    }
    Ok(ok(&InboxPage { items: page, next: next.map(|run| cursor('i', run)) }))
}

/// Runs with matching items until there are `enough` items, and the run after which the next page starts.
async fn find(
    app: &Shared,
    sender: &Identity,
    filter: &InboxFilter,
    after: Option<RunId>,
    enough: usize,
) -> ApiResult<(Vec<(RunInfo, Vec<Item>)>, Option<RunId>)> {
    let matching = |info: &RunInfo| -> Vec<Item> {
        let run = filter.principal.as_deref().is_none_or(|principal| info.principal.as_deref() == Some(principal))
            && filter.tool.as_ref().is_none_or(|tool| **tool == *info.tool)
            && filter.session.as_deref().is_none_or(|session| info.session.as_deref() == Some(session));
        let mut items = if run { items(&app.windlass, info) } else { Vec::new() };
        items.retain(|item| filter.kind.is_none_or(|kind| item.id.kind == kind));
        items
    };
    let items_of = async |info: &RunInfo| match (filter.client_calls, matching(info)) {
        (true, items) => Ok(items),
        (false, items) => without_client_calls(app, info, items).await,
    };
    if let Some(run) = filter.run {
        let info = sender.run(app, run).await?;
        let items = items_of(&info).await?;
        let all = if items.is_empty() || after.is_some() { Vec::new() } else { vec![(info, items)] };
        return Ok((all, None));
    }
    let principal = sender.restriction().cloned().or_else(|| filter.principal.as_deref().map(Into::into));
    let listed = Filter { principal, ..Filter::inbox() };
    let (mut found, mut count, mut scanned, mut after) = (Vec::new(), 0, 0, after);
    loop {
        let page = app.windlass.list(listed.clone(), after, PAGE).await?;
        let full = page.len() == PAGE;
        for info in page {
            if count >= enough || scanned >= MAX_SCANNED {
                return Ok((found, after));
            }
            after = Some(info.run);
            scanned += 1;
            let items = items_of(&info).await?;
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
/// The approval is valid for this call with these arguments only. The first decision counts; a late one gets 409 with
/// the first.
#[utoipa::path(post, path = "/v1/inbox/{id}/approve", tag = "inbox", params(("id" = String, Path)),
    request_body = Option<DecideRequest>,
    responses((status = 200, description = "The decision took effect", body = Decided)))]
pub(super) async fn approve(
    decider: Decider,
    PathParam(id): PathParam<String>,
    MaybeJson(request): MaybeJson<DecideRequest>,
) -> ApiResult {
    let id = item_id(&id, InboxKind::Approval)?;
    decider.decide(&id, true, request.reason).await?;
    Ok(decided(&id))
}

/// Deny a call
#[utoipa::path(post, path = "/v1/inbox/{id}/deny", tag = "inbox", params(("id" = String, Path)),
    request_body = Option<DecideRequest>,
    responses((status = 200, description = "The decision took effect", body = Decided)))]
pub(super) async fn deny(
    decider: Decider,
    PathParam(id): PathParam<String>,
    MaybeJson(request): MaybeJson<DecideRequest>,
) -> ApiResult {
    let id = item_id(&id, InboxKind::Approval)?;
    decider.decide(&id, false, request.reason).await?;
    Ok(decided(&id))
}

/// Settle a doubt
///
/// The attempt happened, with a value or an error as its outcome; or it did not happen, and is repeated; or it cannot
/// be determined.
#[utoipa::path(post, path = "/v1/inbox/{id}/settle", tag = "inbox", params(("id" = String, Path)),
    request_body = SettleRequest, responses((status = 200, description = "The decision took effect", body = Decided)))]
pub(super) async fn settle(
    decider: Decider,
    PathParam(id): PathParam<String>,
    Json(request): Json<SettleRequest>,
) -> ApiResult {
    let id = item_id(&id, InboxKind::Doubt)?;
    decider.settle(&id, request).await?;
    Ok(decided(&id))
}

/// Answer an input
#[utoipa::path(post, path = "/v1/inbox/{id}/answer", tag = "inbox", params(("id" = String, Path)),
    request_body = AnswerRequest, responses((status = 200, description = "The decision took effect", body = Decided)))]
pub(super) async fn answer(
    decider: Decider,
    PathParam(id): PathParam<String>,
    Json(request): Json<AnswerRequest>,
) -> ApiResult {
    let id = item_id(&id, InboxKind::Input)?;
    decider.answer(&id, request).await?;
    Ok(decided(&id))
}

/// Report that a provider is connected, or will not be
///
/// Keeps the credential, and affects every run of the same principal that waits for the provider.
#[utoipa::path(post, path = "/v1/inbox/{id}/connect", tag = "inbox", params(("id" = String, Path)),
    request_body = Option<ConnectionRequest>,
    responses((status = 200, description = "The decision took effect", body = Decided)))]
pub(super) async fn connect(
    decider: Decider,
    PathParam(id): PathParam<String>,
    MaybeJson(request): MaybeJson<ConnectionRequest>,
) -> ApiResult {
    let id = item_id(&id, InboxKind::Connection)?;
    decider.connect(&id, request).await?;
    Ok(decided(&id))
}

fn decided(id: &ItemId) -> axum::response::Response {
    ok(&Decided { id: id.to_string(), run: id.run })
}

/// Decide about many items
///
/// Applies one action to the items in `ids`, or to those that match `filter` now. Each item has a result of its own.
#[utoipa::path(post, path = "/v1/inbox", tag = "inbox", request_body = BulkRequest,
    responses((status = 200, description = "The result for each item", body = BulkResponse)))]
pub(super) async fn bulk(decider: Decider, Json(request): Json<BulkRequest>) -> ApiResult {
    let unused = request.unused();
    if !unused.is_empty() {
        let fields: Vec<String> = unused.iter().map(|field| format!("`{field}`")).collect();
        return Err(Refusal::invalid(format!("the action does not use {}; leave it out", fields.join(", "))));
    }
    let ids = match (&request.ids, &request.filter) {
        (Some(ids), None) if ids.len() <= MAX_ITEMS => ids.clone(),
        (Some(ids), None) => {
            let count = ids.len();
            return Err(Refusal::invalid(format!("`ids` has {count} entries; send at most {MAX_ITEMS}")));
        }
        (None, Some(filter)) => {
            let filter = InboxFilter { kind: Some(kind(request.action)), ..filter.clone() };
            let (runs, _) = find(&decider.app, &decider.identity, &filter, None, MAX_ITEMS).await?;
            runs.iter().flat_map(|(_, items)| items.iter().map(|item| item.id.to_string())).take(MAX_ITEMS).collect()
        }
        _ => {
            return Err(Refusal::invalid(
                "the items are selected by either `ids` or `filter`; send exactly one of them",
            ));
        }
    };
    let mut results = Vec::with_capacity(ids.len());
    for id in ids {
        let problem = one(&decider, &id, &request).await.err().map(Refusal::problem);
        results.push(BulkResult { id, ok: problem.is_none(), problem });
    }
    Ok(ok(&BulkResponse { results }))
}

fn kind(action: InboxAction) -> InboxKind {
    match action {
        InboxAction::Approve | InboxAction::Deny => InboxKind::Approval,
        InboxAction::Settle => InboxKind::Doubt,
        InboxAction::Answer => InboxKind::Input,
        InboxAction::Connect => InboxKind::Connection,
    }
}

async fn one(decider: &Decider, id: &str, request: &BulkRequest) -> ApiResult<()> {
    let id = item_id(id, kind(request.action))?;
    let BulkRequest { reason, settlement, value, error, refused, .. } = request.clone();
    match request.action {
        InboxAction::Approve => decider.decide(&id, true, reason).await,
        InboxAction::Deny => decider.decide(&id, false, reason).await,
        InboxAction::Settle => {
            let settlement =
                settlement.ok_or_else(|| Refusal::invalid("`settlement` is missing; the action `settle` needs it"))?;
            let reason = reason.ok_or_else(|| Refusal::invalid("`reason` is missing; the action `settle` needs it"))?;
            decider.settle(&id, SettleRequest { settlement, value, error, reason }).await
        }
        InboxAction::Answer => decider.answer(&id, AnswerRequest { value, error, cancelled: false }).await,
        InboxAction::Connect => {
            decider.connect(&id, ConnectionRequest { refused, ..ConnectionRequest::default() }).await
        }
    }
}
