//! The store's side of connections: a credential for each provider and principal, sealed at rest.
//!
//! A write is applied in one step together with the messages that it causes: a connection that is written has woken
//! every call that waits for it, whatever happens to the process.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Message, StoreError};
use crate::id::RunId;
use crate::run::state::{Blocked, Park};
use crate::time::Timestamp;

/// Which connection: of a principal to a provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey {
    /// The provider.
    pub provider: Arc<str>,
    /// The principal that it belongs to. Runs without a principal share the connections of none.
    pub principal: Option<Arc<str>>,
}

impl ConnectionKey {
    /// The connection of this principal to this provider.
    pub fn new(provider: impl Into<Arc<str>>, principal: Option<Arc<str>>) -> Self {
        Self { provider: provider.into(), principal }
    }

    /// Whether the operation waits for a connection to this provider.
    pub fn answers(&self, park: &Park) -> bool {
        matches!(&park.on, Blocked::Connection { provider, .. } if *provider == self.provider)
    }
}

impl fmt::Display for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.principal {
            Some(principal) => write!(f, "the connection of {principal:?} to {:?}", self.provider),
            None => write!(f, "the connection to {:?}", self.provider),
        }
    }
}

/// A credential. It is not printed and never recorded: only [`expose`](Credential::expose) returns its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(Arc<str>);

impl Credential {
    /// A credential with this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[credential]")
    }
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[credential]")
    }
}

/// A connection, without its credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Which one.
    pub key: ConnectionKey,
    /// When it was first connected.
    pub created: Timestamp,
    /// When its credential was last set.
    pub updated: Timestamp,
    /// When it expires, or has expired; `None` if it does not.
    pub expires: Option<Timestamp>,
    /// Why it does not work any more, as the last attempt or refresh found out.
    pub problem: Option<Arc<str>>,
    /// Grows with every credential.
    pub revision: u64,
    /// Whether it has a credential. One without says only that the provider is connected.
    pub has_credential: bool,
}

impl ConnectionInfo {
    /// Whether it can be used at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }

    /// The revision of the next credential. It never goes back, also if the connection was deleted meanwhile.
    pub fn next_revision(before: Option<u64>, at: Timestamp) -> u64 {
        let by_time = u64::try_from(at.as_micros()).unwrap_or(0).max(1);
        before.map_or(by_time, |before| by_time.max(before + 1))
    }
}

/// A connection with its credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredConnection {
    /// What lists show of it.
    pub info: ConnectionInfo,
    /// The credential, if it has one.
    pub credential: Option<Credential>,
}

/// One write to a connection.
#[derive(Clone, Debug)]
pub struct ConnectionWrite {
    /// Which connection.
    pub key: ConnectionKey,
    /// When it is made.
    pub at: Timestamp,
    /// What is written.
    pub change: ConnectionChange,
}

/// What is written to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionChange {
    /// Sets the credential and wakes the calls that wait for it.
    Connect {
        /// The credential; `None` if the provider is connected elsewhere.
        credential: Option<Credential>,
        /// When it expires.
        expires: Option<Timestamp>,
        /// A run gets at most one message with the same key.
        dedupe: Option<Arc<str>>,
    },
    /// Refuses the calls that wait for it. The connection itself stays as it is.
    Refuse {
        /// Why.
        reason: Arc<str>,
        /// A run gets at most one message with the same key.
        dedupe: Option<Arc<str>>,
    },
    /// Replaces the credential of this revision and wakes the calls that wait for it. No effect on another revision.
    Refresh {
        /// The revision that was refreshed.
        revision: u64,
        /// The new credential.
        credential: Credential,
        /// When it expires.
        expires: Option<Timestamp>,
    },
    /// Marks the credential as expired and keeps it. No effect on another credential than this.
    Expire {
        /// Which credential.
        which: Rejected,
        /// Why.
        problem: Arc<str>,
    },
    /// Deletes the connection.
    Delete,
}

/// The credential that an attempt could not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The one of this revision.
    Revision(u64),
    /// The one that there was at this time, for an attempt that did not read it.
    SetBy(Timestamp),
}

impl Rejected {
    /// Whether this is the credential of the connection.
    pub fn is(self, connection: &ConnectionInfo) -> bool {
        match self {
            Self::Revision(revision) => connection.revision == revision,
            Self::SetBy(at) => connection.updated <= at,
        }
    }
}

impl ConnectionChange {
    /// The message for runs that wait for the connection, and its dedupe key, if it causes one.
    pub fn message(&self, key: &ConnectionKey) -> Option<(Message, Option<Arc<str>>)> {
        let (refused, dedupe) = match self {
            Self::Connect { dedupe, .. } => (None, dedupe.clone()),
            Self::Refresh { .. } => (None, None),
            Self::Refuse { reason, dedupe } => (Some(reason.to_string()), dedupe.clone()),
            Self::Expire { .. } | Self::Delete => return None,
        };
        Some((Message::Connect { provider: key.provider.clone(), refused }, dedupe))
    }

    /// What becomes of the connection, the same way in every store: `None` if it stays as it is.
    pub fn apply(&self, key: &ConnectionKey, at: Timestamp, found: Option<&ConnectionInfo>) -> Option<AppliedChange> {
        let set = |credential: Option<Credential>, expires: Option<Timestamp>| {
            let info = ConnectionInfo {
                key: key.clone(),
                created: found.map_or(at, |found| found.created),
                updated: at,
                expires,
                problem: None,
                revision: ConnectionInfo::next_revision(found.map(|found| found.revision), at),
                has_credential: credential.is_some(),
            };
            AppliedChange::Set { info, credential }
        };
        match self {
            Self::Connect { credential, expires, .. } => Some(set(credential.clone(), *expires)),
            Self::Refresh { revision, credential, expires } => {
                found.filter(|found| found.revision == *revision)?;
                Some(set(Some(credential.clone()), *expires))
            }
            Self::Expire { which, problem } => {
                let found = found.filter(|found| which.is(found))?;
                let expires = Some(found.expires.map_or(at, |expires| expires.min(at)));
                Some(AppliedChange::Update(ConnectionInfo { expires, problem: Some(problem.clone()), ..found.clone() }))
            }
            Self::Delete => found.map(|_| AppliedChange::Delete),
            Self::Refuse { .. } => None,
        }
    }
}

/// What a store writes for a [`ConnectionChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedChange {
    /// The whole connection.
    Set {
        /// What lists show of it.
        info: ConnectionInfo,
        /// Its credential.
        credential: Option<Credential>,
    },
    /// Everything but the credential.
    Update(ConnectionInfo),
    /// It is deleted.
    Delete,
}

/// What became of a write to a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionAnswer {
    /// Whether the connection was changed.
    pub changed: bool,
    /// The runs that waited for it and were told.
    pub told: Vec<RunId>,
}

/// The connections of a [`Store`](super::Store).
///
/// The contract, checked by `testing::store_suite`:
/// - a write and the messages that it causes are applied in one step; once it is answered, it survives the process;
/// - the messages go to the runs of exactly this principal that have a park on this provider;
/// - a credential is sealed at rest, and lists never contain it.
pub trait Connections: Send + Sync {
    /// Applies a write, and tells the runs that wait for the connection.
    fn write_connection(&self, write: ConnectionWrite) -> BoxFuture<'_, Result<ConnectionAnswer, StoreError>>;

    /// A connection with its credential, if it exists. [`StoreError::UnsealableCredential`] if the credential cannot be
    /// unsealed.
    fn connection(&self, key: ConnectionKey) -> BoxFuture<'_, Result<Option<StoredConnection>, StoreError>>;

    /// The connections of a principal, or of all, by provider and principal.
    fn list_connections(&self, of: ConnectionsOf) -> BoxFuture<'_, Result<Vec<ConnectionInfo>, StoreError>>;
}

/// Which connections a list has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConnectionsOf {
    /// All of them.
    #[default]
    All,
    /// Those of this principal, or of none.
    Principal(Option<Arc<str>>),
}

impl ConnectionsOf {
    /// Whether the list has this one.
    pub fn matches(&self, key: &ConnectionKey) -> bool {
        match self {
            Self::All => true,
            Self::Principal(principal) => key.principal == *principal,
        }
    }
}
