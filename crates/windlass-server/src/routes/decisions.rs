//! Decisions about one inbox item. The first decision counts, and a late one is refused with the first.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use windlass::connections::ConnectionKey;
use windlass::inbox::{Counted, ReplyResult, Resolution, Settlement};
use windlass::run::RunInfo;
use windlass::{Error, ToolError};

use super::connections;
use super::run_commands::{reason, tool_error};
use crate::access::{Approve, Authorized, Identity};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, shortened};
use crate::refusal::{ApiResult, Refusal};
use crate::show::{Item, ItemCause, ItemId, failure, items};
use crate::wire::{AnswerRequest, ConnectionRequest, InboxKind, SettleRequest, SettlementKind};

/// A sender that may decide about inbox items, and the key of its request. A handler requires the scope `approve` by
/// taking this as an argument.
pub(super) struct Decider {
    pub(super) app: Shared,
    pub(super) identity: Identity,
    key: Option<String>,
}

impl FromRequestParts<Shared> for Decider {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> ApiResult<Self> {
        let authorized = Authorized::<Approve>::from_request_parts(parts, app).await?;
        let IdempotencyKey(key) = IdempotencyKey::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), identity: authorized.identity, key })
    }
}

/// Parses the id of an item, and checks its kind.
pub(super) fn item_id(text: &str, kind: InboxKind) -> ApiResult<ItemId> {
    let unknown =
        || Refusal::not_found(format!("inbox item `{}` does not exist; /v1/inbox lists the items", shortened(text)));
    let id: ItemId = text.parse().map_err(|()| unknown())?;
    if id.kind == kind {
        return Ok(id);
    }
    let (kind, action) = match id.kind {
        InboxKind::Approval => ("an approval", "`approve` or `deny`"),
        InboxKind::Doubt => ("a doubt", "`settle`"),
        InboxKind::Input => ("an input", "`answer`"),
        InboxKind::Connection => ("a connection", "`connect`"),
    };
    Err(Refusal::run_conflict("wrong_action", format!("inbox item `{id}` is {kind}; use {action} for it")))
}

impl Decider {
    pub(super) async fn decide(&self, id: &ItemId, granted: bool, why: Option<String>) -> ApiResult<()> {
        let why = reason(why)?;
        let (_, item) = self.find(id).await?;
        let result = match item.map(|item| item.cause) {
            Some(ItemCause::Park(awaited)) => match granted {
                true => Some(self.app.windlass.inbox().approve(&awaited, &self.identity.name, &why).await),
                false => Some(self.app.windlass.inbox().deny(&awaited, &self.identity.name, &why).await),
            },
            _ => None,
        };
        let what = if granted { "approved" } else { "denied" };
        self.confirm(id, result, self.decision(what, why)).await
    }

    pub(super) async fn settle(&self, id: &ItemId, request: SettleRequest) -> ApiResult<()> {
        let why = reason(Some(request.reason))?;
        let (settlement, what) = match (request.settlement, request.value, request.error) {
            (SettlementKind::Happened, value, None) => {
                let output = windlass::Output::value(value.unwrap_or_default());
                (Settlement::Happened(Ok(output.into())), "happened")
            }
            (SettlementKind::Happened, None, Some(error)) => {
                (Settlement::Happened(Err(tool_error(error).into())), "happened")
            }
            (SettlementKind::DidNotHappen, None, None) => (Settlement::DidNotHappen, "did_not_happen"),
            (SettlementKind::GiveUp, None, None) => (Settlement::GiveUp, "given_up"),
            _ => {
                let detail = "`value` and `error` do not match `settlement`; send at most one of them with `happened`, \
                              and neither with the others";
                return Err(Refusal::invalid(detail));
            }
        };
        let question = id.question().ok_or_else(|| Refusal::not_found(format!("inbox item `{id}` does not exist")))?;
        let (_, item) = self.find(id).await?;
        let result = match item {
            Some(_) => {
                Some(self.app.windlass.runtime().settle_once(&question, settlement, &self.identity.name, &why).await)
            }
            None => None,
        };
        self.confirm(id, result, self.decision(what, why)).await
    }

    pub(super) async fn answer(&self, id: &ItemId, request: AnswerRequest) -> ApiResult<()> {
        let resolution = resolution(request, &self.identity.name)?;
        let (_, item) = self.find(id).await?;
        if let Some(ItemCause::Park(awaited)) = item.map(|item| item.cause)
            && let Some(key) = awaited.key
        {
            let resolved = self.app.windlass.inbox().resolve(&key, resolution.clone()).await?;
            return check_resolved(resolved, &resolution, self.key.is_some());
        }
        match self.app.windlass.runtime().resolved(id.run, id.generation, &id.path).await? {
            Some(resolved) => check_resolved(resolved, &resolution, self.key.is_some()),
            None => Err(gone(id)),
        }
    }

    /// Affects every run of the same principal that waits for the provider.
    pub(super) async fn connect(&self, id: &ItemId, request: ConnectionRequest) -> ApiResult<()> {
        self.identity.may_act_on_all()?;
        let (_, item) = self.find(id).await?;
        if let Some(ItemCause::Park(awaited)) = item.map(|item| item.cause)
            && let windlass::inbox::Blocked::Connection { provider, .. } = &awaited.park.on
        {
            if request.principal.is_some() {
                let detail = "`principal` cannot be given for an item of the inbox, which says itself whose it is";
                return Err(Refusal::invalid(detail));
            }
            let connection = ConnectionKey::new(provider.clone(), awaited.principal.clone());
            connections::connect(&self.app, self.key.as_deref(), &connection, request).await?;
            return Ok(());
        }
        let refused = request.refused;
        let what = if refused.is_some() { "refused" } else { "connected" };
        // The journal does not record who connected a provider.
        let own = Counted { by: "a person".to_owned(), ..self.decision(what, refused.unwrap_or_default()) };
        self.confirm(id, None, own).await
    }

    fn decision(&self, what: &'static str, reason: String) -> Counted {
        Counted { what, by: self.identity.name.to_string(), reason }
    }

    /// The run, and the item if it is still in the inbox.
    async fn find(&self, id: &ItemId) -> ApiResult<(RunInfo, Option<Item>)> {
        let info = self.identity.run(&self.app, id.run).await?;
        self.identity.may_act_on(&self.app, id.run).await?;
        let item = items(&self.app.windlass, &info).into_iter().find(|item| item.id == *id);
        Ok((info, item))
    }

    /// Checks the result of a decision; `None` if the item is no longer in the inbox. A repeated request with a key is
    /// confirmed if the same decision was made before, and any other late decision is refused with the first one.
    async fn confirm(&self, id: &ItemId, result: Option<windlass::Result<()>>, own: Counted) -> ApiResult<()> {
        let error = match result {
            Some(Ok(())) => return Ok(()),
            Some(Err(error @ Error::Conflict(_))) => Some(error),
            None | Some(Err(Error::Store(windlass::store::StoreError::Finished(_)))) => None,
            Some(Err(error)) => return Err(error.into()),
        };
        let first = match id.question() {
            Some(question) => self.app.windlass.runtime().counted(&question).await?,
            None => None,
        };
        match (first, error) {
            (Some(first), _) if self.key.is_some() && first == own => Ok(()),
            (Some(Counted { what, by, reason }), _) => {
                let detail = format!(
                    "inbox item `{id}` was decided before: \"{what}\" by {by} ({reason}); the first decision counts"
                );
                let first = serde_json::json!({"decision": what, "by": by, "reason": reason});
                Err(Refusal::run_conflict("already_decided", detail).with("first_decision", first))
            }
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(gone(id)),
        }
    }
}

fn gone(id: &ItemId) -> Refusal {
    let detail = format!("inbox item `{id}` is no longer waiting; read the inbox again");
    Refusal::run_conflict("no_longer_waiting", detail)
}

/// The resolution of a reply key that a request asks for.
pub(super) fn resolution(request: AnswerRequest, by: &str) -> ApiResult<Resolution> {
    Ok(match (request.value, request.error, request.cancelled) {
        (Some(value), None, false) => Resolution::Ok { value },
        (None, Some(error), false) => {
            let code = error.code.unwrap_or_else(|| "failed".to_owned());
            Resolution::Err { code, message: error.message, data: error.data.map(Box::new) }
        }
        (None, None, true) => Resolution::Cancelled { reason: format!("cancelled by {by}") },
        _ => return Err(Refusal::invalid("an answer must have exactly one of `value`, `error` and `cancelled: true`")),
    })
}

/// Checks the result of an answer. A repeated request with a key is confirmed if its answer is the first one.
pub(super) fn check_resolved(resolved: ReplyResult, answer: &Resolution, keyed: bool) -> ApiResult<()> {
    match resolved {
        ReplyResult::Accepted => Ok(()),
        ReplyResult::Already(first) if keyed && is_same(&first, answer) => Ok(()),
        ReplyResult::Already(first) => {
            let first = match &first {
                Ok(output) => serde_json::json!({"value": output.without_secrets().value}),
                Err(error) => serde_json::json!({"error": failure(error)}),
            };
            let detail = "the input was answered before, and the first answer counts; it is in `first_answer`";
            Err(Refusal::run_conflict("already_resolved", detail).with("first_answer", first))
        }
        ReplyResult::Revoked { reason } => {
            let detail = format!("the reply key is revoked: {reason}");
            Err(Refusal::new(axum::http::StatusCode::GONE, "key_revoked", "Reply key revoked", detail))
        }
    }
}

fn is_same(first: &windlass::run::record::Recorded, answer: &Resolution) -> bool {
    match (first, answer.clone().into_result()) {
        (Ok(first), Ok(answer)) => first.value == answer.value,
        (Err(first), Err(answer)) => {
            let json = |error: &ToolError| serde_json::to_value(error).ok();
            json(first) == json(&answer)
        }
        _ => false,
    }
}
