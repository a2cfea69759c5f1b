//! What people say about one item of the inbox. Whoever says it first is who counts, and whoever comes late is told.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use windlass::{Counted, Error, Resolution, Resolved, RunInfo, Settlement, ToolError};

use super::run_acts::{reason, tool_error};
use crate::access::{Approve, May, Who};
use crate::app::Shared;
use crate::extract::{Key, shortened};
use crate::refusal::{Answer, Refusal};
use crate::show::{Item, ItemId, failure, items};
use crate::wire::{AnswerRequest, InboxKind, SettleRequest, SettlementKind};

/// Somebody who may approve says something, perhaps under a key. Taking one as an argument is asking for that right.
pub(super) struct Speaker {
    pub(super) app: Shared,
    who: Who,
    key: Option<String>,
}

impl FromRequestParts<Shared> for Speaker {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Answer<Self> {
        let may = May::<Approve>::from_request_parts(parts, app).await?;
        let Key(key) = Key::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), who: may.who, key })
    }
}

/// The item that a name stands for, if it names one at all.
pub(super) fn named(text: &str, kind: InboxKind) -> Answer<ItemId> {
    let unknown = || Refusal::not_found(format!("there is no item `{}` in the inbox", shortened(text)));
    let id: ItemId = text.parse().map_err(|()| unknown())?;
    if id.kind == kind {
        return Ok(id);
    }
    let way = match id.kind {
        InboxKind::Approval => "approve or deny it",
        InboxKind::Doubt => "settle it",
        InboxKind::Input => "answer it",
        InboxKind::Connection => "connect it",
    };
    Err(Refusal::conflict("wrong_action", format!("the item `{id}` is something else: {way}")))
}

impl Speaker {
    pub(super) async fn decide(&self, id: &ItemId, granted: bool, why: Option<String>) -> Answer<()> {
        let why = reason(why)?;
        let (_, item) = self.find(id).await?;
        let said = match item.map(|item| item.what) {
            Some(crate::show::What::Park(awaited)) => match granted {
                true => Some(self.app.windlass.approve(&awaited, &self.who.name, &why).await),
                false => Some(self.app.windlass.deny(&awaited, &self.who.name, &why).await),
            },
            _ => None,
        };
        let what = if granted { "approved" } else { "denied" };
        self.unless_said(id, said, self.counted(what, why)).await
    }

    pub(super) async fn settle(&self, id: &ItemId, request: SettleRequest) -> Answer<()> {
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
                let why = "`value` or `error`, one of them, is what an attempt came to that happened; the other settlements \
                           have neither";
                return Err(Refusal::invalid(why));
            }
        };
        let question = id.question().ok_or_else(|| Refusal::not_found("there is no such doubt"))?;
        let (_, item) = self.find(id).await?;
        let said = match item {
            Some(_) => Some(self.app.windlass.settle_once(&question, settlement, &self.who.name, &why).await),
            None => None,
        };
        self.unless_said(id, said, self.counted(what, why)).await
    }

    pub(super) async fn answer(&self, id: &ItemId, request: AnswerRequest) -> Answer<()> {
        let resolution = resolution(request, &self.who.name)?;
        let (_, item) = self.find(id).await?;
        if let Some(crate::show::What::Park(awaited)) = item.map(|item| item.what)
            && let Some(key) = awaited.key
        {
            let resolved = self.app.windlass.resolve(&key, resolution.clone()).await?;
            return told(resolved, &resolution, self.key.is_some());
        }
        match self.app.windlass.resolved(id.run, id.generation, &id.path).await? {
            Some(resolved) => told(resolved, &resolution, self.key.is_some()),
            None => Err(gone(id)),
        }
    }

    /// To every run that waits for the provider.
    pub(super) async fn connect(&self, id: &ItemId, refused: Option<&str>) -> Answer<()> {
        self.who.may_act_on_all()?;
        let (_, item) = self.find(id).await?;
        if let Some(crate::show::What::Park(awaited)) = item.map(|item| item.what)
            && let windlass::Blocked::Connection { provider } = &awaited.park.on
        {
            self.app.windlass.connect_under(self.key.as_deref(), provider, refused).await?;
            return Ok(());
        }
        let what = if refused.is_some() { "refused" } else { "connected" };
        // Who connected it is not recorded.
        let own = Counted { by: "a person".to_owned(), ..self.counted(what, refused.unwrap_or_default().to_owned()) };
        self.unless_said(id, None, own).await
    }

    fn counted(&self, what: &'static str, reason: String) -> Counted {
        Counted { what, by: self.who.name.to_string(), reason }
    }

    /// The run, and the item if it still waits.
    async fn find(&self, id: &ItemId) -> Answer<(RunInfo, Option<Item>)> {
        self.who.may_act_on(&self.app, id.run).await?;
        let info = super::runs::info(&self.app, id.run).await?;
        let item = items(&self.app.windlass, &info).into_iter().find(|item| item.id == *id);
        Ok((info, item))
    }

    /// What became of something that can be said once; nothing was said where nothing waits any more. Under a key, saying the
    /// same again is confirmed.
    async fn unless_said(&self, id: &ItemId, said: Option<windlass::Result<()>>, own: Counted) -> Answer<()> {
        let error = match said {
            Some(Ok(())) => return Ok(()),
            Some(Err(error @ Error::Conflict(_))) => Some(error),
            None | Some(Err(Error::Store(windlass::StoreError::Finished(_)))) => None,
            Some(Err(error)) => return Err(error.into()),
        };
        let counted = match id.question() {
            Some(question) => self.app.windlass.counted(&question).await?,
            None => None,
        };
        match (counted, error) {
            (Some(counted), _) if self.key.is_some() && counted == own => Ok(()),
            (Some(Counted { what, by, reason }), _) => {
                let detail = format!("too late: {by} said \"{what}\" first ({reason}), and the first word counts");
                let counted = serde_json::json!({"what": what, "by": by, "reason": reason});
                Err(Refusal::conflict("already_decided", detail).with("counted", counted))
            }
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(gone(id)),
        }
    }
}

fn gone(id: &ItemId) -> Refusal {
    Refusal::conflict("not_waiting", format!("`{id}` waits for nobody any more; look at the inbox again"))
}

/// What a request says, as runs are told it.
pub(super) fn resolution(request: AnswerRequest, by: &str) -> Answer<Resolution> {
    Ok(match (request.value, request.error, request.cancelled) {
        (Some(value), None, false) => Resolution::Ok { value },
        (None, Some(error), false) => {
            Resolution::Err { code: error.code.unwrap_or_else(|| "failed".to_owned()), message: error.message }
        }
        (None, None, true) => Resolution::Cancelled { reason: format!("cancelled by {by}") },
        _ => return Err(Refusal::invalid("an answer is exactly one of `value`, `error` and `cancelled: true`")),
    })
}

/// What became of an answer. Under a key, the same answer again is confirmed.
pub(super) fn told(resolved: Resolved, said: &Resolution, keyed: bool) -> Answer<()> {
    match resolved {
        Resolved::Accepted => Ok(()),
        Resolved::Already(first) if keyed && is_same(&first, said) => Ok(()),
        Resolved::Already(first) => {
            let terminal = match &first {
                Ok(output) => serde_json::json!({"value": output.value}),
                Err(error) => serde_json::json!({"error": failure(error)}),
            };
            let why = "somebody answered before, and the first answer counts; it is in `terminal`";
            Err(Refusal::conflict("already_resolved", why).with("terminal", terminal))
        }
        Resolved::Revoked { reason } => {
            let detail = format!("the key is void: {reason}");
            Err(Refusal::new(axum::http::StatusCode::GONE, "revoked", "The key is void", detail))
        }
    }
}

fn is_same(first: &windlass::record::Recorded, said: &Resolution) -> bool {
    match (first, said) {
        (Ok(output), Resolution::Ok { value }) => output.value == *value,
        (Err(error), Resolution::Err { code, message }) => {
            matches!(&**error, ToolError::Failed { message: first, code: Some(word), .. } if first == message && word == code)
        }
        (Err(error), Resolution::Cancelled { reason }) => {
            matches!(&**error, ToolError::Cancelled { reason: first } if first == reason)
        }
        _ => false,
    }
}
