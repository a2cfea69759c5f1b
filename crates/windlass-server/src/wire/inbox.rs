//! The inbox, and decisions about its items.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::call::ErrorRequest;
use super::{Problem, Time, nullable};

/// Kind of an inbox item: what has to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InboxKind {
    /// Approve or deny a call.
    Approval,
    /// Settle whether an attempt happened.
    Doubt,
    /// Answer an input.
    Input,
    /// Connect a provider.
    Connection,
}

/// Something that waits for a person or an external system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InboxItem {
    /// Id of the item.
    pub id: String,
    /// What has to be done.
    pub kind: InboxKind,
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Path of the operation that waits.
    #[schema(value_type = String)]
    pub path: Path,
    /// Id of the run's root tool, or `batch`.
    pub tool: String,
    /// Session of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Principal for whom the run acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Cause of the run, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The operation that waits.
    pub operation: String,
    /// Arguments of the call that waits, with secrets hidden.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub args: Option<Value>,
    /// Why it waits: the reason for the approval or the doubt, the name of the input, or the provider.
    pub why: String,
    /// The situation in words, and what changes it.
    pub sentence: String,
    /// Decision about it that is recorded and not applied yet. Only where no server drives the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Time since which it waits.
    pub since: Time,
    /// Time at which it stops waiting in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Idempotency key under which the attempt of a doubt was made. Look it up in the other system to find out whether
    /// the attempt happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Reply key of an input. Only for tokens with the scope `approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A page of the inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InboxPage {
    /// The items, those of the oldest run first.
    pub items: Vec<InboxItem>,
    /// Cursor of the next page; `null` on the last page.
    pub next: Option<String>,
}

/// A decision about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideRequest {
    /// Reason, recorded in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a doubt is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettlementKind {
    /// The attempt happened; `value` or `error` is its outcome.
    Happened,
    /// The attempt did not happen, and is repeated.
    DidNotHappen,
    /// It cannot be determined; the body gets an `in_doubt` error.
    GiveUp,
}

/// The settlement of a doubt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// Whether the attempt happened.
    pub settlement: SettlementKind,
    /// Value that the attempt returned, if it happened.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Error of the attempt, if it happened and failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Reason, recorded in the journal.
    pub reason: String,
}

/// An answer to an input: exactly one of `value`, `error` and `cancelled`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// Value of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Error of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// `true` if the input was cancelled and will not be answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
}

/// An answer by reply key: exactly one of `value`, `error` and `cancelled`.
pub type ReplyRequest = AnswerRequest;

/// An accepted answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplyResponse {
    /// Always `accepted`.
    pub resolved: String,
}

/// Reports that a provider is connected, or that it will not be.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRequest {
    /// The credential that tools read. No response ever contains it. Without one, the provider only counts as connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 16384)]
    pub credential: Option<String>,
    /// How many seconds the credential is valid. Without this, it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub expires_in: Option<u64>,
    /// Whose connection it is: that of the token by default. Another one needs the scope `impersonate` or `admin`. Not
    /// for an item of the inbox, which says itself whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Why the provider will not be connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A connection that is kept, without its credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    /// The provider.
    pub provider: String,
    /// The principal that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// When it was first made.
    pub created: Time,
    /// When its credential was last set.
    pub updated: Time,
    /// When it expires, or has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Whether a call would have to wait for another one now.
    pub expired: bool,
    /// Why it does not work any more, as the last attempt or refresh found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The connections that are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionList {
    /// The connections, by provider and principal.
    pub connections: Vec<ConnectionView>,
}

/// The runs that a connection affects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionResponse {
    /// Number of runs that waited for the connection.
    pub runs: u64,
}

/// A decision that took effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Decided {
    /// Id of the item.
    pub id: String,
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
}

/// An action on inbox items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InboxAction {
    /// Approve the call.
    Approve,
    /// Deny the call.
    Deny,
    /// Settle the doubt.
    Settle,
    /// Answer the input.
    Answer,
    /// Report that the provider is connected, or will not be.
    Connect,
}

/// Selects inbox items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InboxFilter {
    /// Only items of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<InboxKind>,
    /// Only items of runs of this tool, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Only items of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub run: Option<RunId>,
    /// Only items of runs of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only items of runs that act for this principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Include calls of client tools, which wait for a program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_calls: bool,
}

/// One action on many items: either those of `ids`, or those that match `filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// The action.
    pub action: InboxAction,
    /// Ids of the items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub ids: Option<Vec<String>>,
    /// Selects the items, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<InboxFilter>,
    /// Reason, recorded in the journal. Required for `settle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How doubts are settled. Required for `settle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<SettlementKind>,
    /// Value of a settlement or an answer.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Error of a settlement or an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Why the provider will not be connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Results of a bulk action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkResponse {
    /// One result for each item, in their order.
    pub results: Vec<BulkResult>,
}

/// The result for one item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkResult {
    /// Id of the item.
    pub id: String,
    /// Whether the action took effect.
    pub ok: bool,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

impl BulkRequest {
    /// Fields of the request that its action does not use.
    pub fn unused(&self) -> Vec<&'static str> {
        use InboxAction::{Answer, Approve, Connect, Deny, Settle};
        let fields = [
            ("reason", self.reason.is_some(), matches!(self.action, Approve | Deny | Settle)),
            ("settlement", self.settlement.is_some(), self.action == Settle),
            ("value", self.value.is_some(), matches!(self.action, Settle | Answer)),
            ("error", self.error.is_some(), matches!(self.action, Settle | Answer)),
            ("refused", self.refused.is_some(), self.action == Connect),
        ];
        fields.into_iter().filter(|(_, given, used)| *given && !used).map(|(name, ..)| name).collect()
    }
}
