//! Tokens and scopes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;

/// A permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read runs, tools, events, artifacts and the inbox.
    Read,
    /// Make calls and read the runs of own calls, send signals, cancel and fork runs, register client tools, store
    /// artifacts.
    Call,
    /// Approve and deny calls, settle doubts, answer inputs, report connections.
    Approve,
    /// Name another principal than the token's own (`Windlass-Principal`): act for it, and see its runs.
    Impersonate,
    /// See the runs of all principals, manage tokens, export, import and purge runs, resume and finish held runs, back up, check and clean the store.
    Admin,
}

/// A request for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Name of the bearer. Its decisions are recorded under this name.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// Permissions of the token.
    #[schema(min_items = 1)]
    pub scopes: Vec<Scope>,
    /// Time from which the token is no longer valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Layer to which the token is bound: the bearer sees and calls tools through it only. Not with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
    /// Principal for whom the bearer acts; by default the name. Without the scope `admin`, the bearer sees only the runs of
    /// this principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub principal: Option<String>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Id of the token.
    pub id: String,
    /// Name of the bearer.
    pub name: String,
    /// Permissions of the token.
    pub scopes: Vec<Scope>,
    /// Time of creation.
    pub created: Time,
    /// Time from which the token is no longer valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Layer to which the token is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Principal for whom the bearer acts.
    pub principal: String,
}

/// A new token with its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The token.
    #[serde(flatten)]
    pub token: TokenView,
    /// Secret to send as `Authorization: Bearer …`. Only this response contains it; the server stores a hash.
    pub secret: String,
}

/// Without the secret, so that it does not get into a log.
impl std::fmt::Debug for TokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCreated").field("token", &self.token).finish_non_exhaustive()
    }
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The tokens, oldest first.
    pub tokens: Vec<TokenView>,
}
