//! The people's list, and what people say.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::call::ErrorRequest;
use super::{Problem, Time, present};

/// What somebody has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InboxKind {
    /// Approve or deny a call.
    Approval,
    /// Settle whether an attempt happened.
    Doubt,
    /// Answer something.
    Input,
    /// Connect a provider.
    Connection,
}

/// Something that waits for a person or another system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InboxItem {
    /// Names it.
    pub id: String,
    /// What somebody has to do.
    pub kind: InboxKind,
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Where in it.
    #[schema(value_type = String)]
    pub path: Path,
    /// What the run runs.
    pub tool: String,
    /// The session of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What waits.
    pub operation: String,
    /// The arguments of the call that waits, without their secrets.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub args: Option<Value>,
    /// Why it waits: why approval is needed, why it is not known, what is asked, which provider.
    pub why: String,
    /// What is the case and what would change it.
    pub sentence: String,
    /// Since when.
    pub since: Time,
    /// When it stops waiting, whatever happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The key that answers it, where a key does. Only for those who may answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A piece of the inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InboxPage {
    /// Oldest run first.
    pub items: Vec<InboxItem>,
    /// Where to go on (`cursor`); `null` at the end.
    pub next: Option<String>,
}

/// Approves or denies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideRequest {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a doubt is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettlementKind {
    /// It happened: `value` or `error` is its outcome.
    Happened,
    /// It did not: it is attempted again.
    DidNotHappen,
    /// Nobody can tell: the body gets an `in_doubt` error.
    GiveUp,
}

/// Settles a doubt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// How.
    pub settlement: SettlementKind,
    /// What it returned, if it happened.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// How it failed, if it happened and did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Why.
    pub reason: String,
}

/// Answers an input: exactly one of the three.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// With a value.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// With an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Whoever was to answer was cancelled: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
}

/// What answers by a reply key: exactly one of the three.
pub type ReplyRequest = AnswerRequest;

/// That an answer counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplyAnswer {
    /// `accepted`.
    pub resolved: String,
}

/// Says that a provider is connected, or why it will not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRequest {
    /// Why it will not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Who was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionAnswer {
    /// How many runs.
    pub runs: u64,
}

/// That something was said, and counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Decided {
    /// About which item.
    pub id: String,
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
}

/// What is done about an item.
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
    /// Say that the provider is connected.
    Connect,
}

/// Which items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InboxFilter {
    /// Of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<InboxKind>,
    /// Of runs of this tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub run: Option<RunId>,
    /// Of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Also calls of tools that clients brought: they wait for a program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub programs: bool,
}

/// The same about many items: those of `ids`, or those that fit `filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ManyRequest {
    /// What is done.
    pub action: InboxAction,
    /// To these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub ids: Option<Vec<String>>,
    /// To all that fit, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<InboxFilter>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How doubts are settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<SettlementKind>,
    /// The value of a settlement or an answer.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// The error of a settlement or an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Why the provider will not be connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What became of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ManyAnswer {
    /// In the order of the items.
    pub results: Vec<ManyResult>,
}

/// What became of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ManyResult {
    /// Which item.
    pub id: String,
    /// Whether it counts.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

impl ManyRequest {
    /// The fields of the request that an action does not use.
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
