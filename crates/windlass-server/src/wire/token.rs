//! Tokens and what they allow.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at everything.
    Read,
    /// Make calls, send signals, cancel, bring tools and artifacts.
    Call,
    /// Approve, deny, settle, answer, connect.
    Approve,
    /// Tokens, imports, purges, backups, taking up and finishing held runs.
    Admin,
}

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Who it is for: 1 to 64 characters. What its bearer says and decides is recorded under this name.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// What it allows.
    #[schema(min_items = 1)]
    pub scopes: Vec<Scope>,
    /// It is void from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Its bearer sees and calls tools through this layer only. Not for a token with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Names it.
    pub id: String,
    /// Who it is for.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created: Time,
    /// It is void from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Its bearer sees and calls tools through this layer only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
}

/// A token that was just made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The token.
    #[serde(flatten)]
    pub token: TokenView,
    /// What to send as `Authorization: Bearer …`. Shown this once, and kept nowhere.
    pub secret: String,
}

/// Without the secret: it must not get into a log.
impl std::fmt::Debug for TokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCreated").field("token", &self.token).finish_non_exhaustive()
    }
}

/// Every token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The tokens, oldest first.
    pub tokens: Vec<TokenView>,
}
