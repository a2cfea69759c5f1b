//! Connections from outside of a run: connected, refused, listed and deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Runtime;
use crate::attribution::check_attribution;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::limits;
use crate::run::state::Blocked;
use crate::session::check::line;
use crate::store::{ConnectionChange, ConnectionInfo, ConnectionKey, ConnectionsOf, Credential};

/// What a provider is connected with.
#[derive(Clone, Debug, Default)]
pub struct Connect {
    /// The credential; `None` if tools obtain it in another way.
    pub credential: Option<Credential>,
    /// How long it is valid; `None` if it does not expire.
    pub expires_in: Option<Duration>,
}

impl Runtime {
    /// Connects a provider for runs without a principal, or refuses that; see [`connect_with`](Runtime::connect_with).
    pub async fn connect(&self, provider: &str, refused: Option<&str>) -> Result<usize> {
        let connection = ConnectionKey::new(provider, None);
        match refused {
            Some(reason) => self.refuse_connection(None, &connection, reason).await,
            None => self.connect_with(None, &connection, Connect::default()).await,
        }
    }

    /// Keeps a connection, and wakes every run of its principal that waits for it, in one step. Returns how many runs
    /// waited. Durable when it returns. With a `key`, a run gets only one message with the same key.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] or [`Error::TooLarge`] if the provider, the principal or the credential cannot be kept.
    pub async fn connect_with(&self, key: Option<&str>, connection: &ConnectionKey, how: Connect) -> Result<usize> {
        check(connection)?;
        let Connect { credential, expires_in } = how;
        match credential.as_ref().map_or(1, |credential| credential.expose().len()) {
            0 => return Err(Error::Invalid("a credential must be a text that is not empty".to_owned())),
            1..=limits::SECRET_BYTES => {}
            _ => {
                let most = limits::SECRET_BYTES;
                return Err(Error::TooLarge(format!("a credential may have at most {most} bytes")));
            }
        }
        if expires_in.is_some_and(|time| time.is_zero()) {
            return Err(Error::Invalid("a connection must be valid for more than zero seconds".to_owned()));
        }
        let expires = expires_in.map(|time| self.kernel.env.clock.now() + time);
        let change = ConnectionChange::Connect { credential, expires, dedupe: dedupe(key, connection) };
        Ok(self.kernel.write_connection(connection, change).await?.told.len())
    }

    /// Tells every run of a principal that waits for a connection that there will be none: their calls fail. Returns how
    /// many runs waited. Durable when it returns. With a `key`, a run gets only one message with the same key.
    pub async fn refuse_connection(
        &self,
        key: Option<&str>,
        connection: &ConnectionKey,
        reason: &str,
    ) -> Result<usize> {
        check(connection)?;
        let change = ConnectionChange::Refuse { reason: reason.into(), dedupe: dedupe(key, connection) };
        Ok(self.kernel.write_connection(connection, change).await?.told.len())
    }

    /// The connections that are kept, by provider and principal. Their credentials are not part of it.
    pub async fn connections(&self, of: ConnectionsOf) -> Result<Vec<ConnectionInfo>> {
        Ok(self.kernel.store.connections().list_connections(of).await?)
    }

    /// Whether a connection can be used now, by the clock of this runtime.
    pub fn is_connected(&self, connection: &ConnectionInfo) -> bool {
        connection.is_valid(self.kernel.env.clock.now())
    }

    /// Deletes a connection. Returns whether there was one. Durable when it returns; the next call that needs it asks
    /// for it.
    pub async fn delete_connection(&self, connection: &ConnectionKey) -> Result<bool> {
        check(connection)?;
        Ok(self.kernel.write_connection(connection, ConnectionChange::Delete).await?.changed)
    }

    /// The connections that a person must make before runs can continue, with the runs that wait for each.
    pub async fn connections_wanted(&self) -> Result<BTreeMap<ConnectionKey, Vec<RunId>>> {
        let mut wanted: BTreeMap<ConnectionKey, Vec<RunId>> = BTreeMap::new();
        for item in self.inbox().await? {
            if let Blocked::Connection { provider, .. } = &item.park.on {
                let connection = ConnectionKey::new(provider.clone(), item.principal.clone());
                let runs = wanted.entry(connection).or_default();
                if !runs.contains(&item.run) {
                    runs.push(item.run);
                }
            }
        }
        Ok(wanted)
    }
}

fn check(connection: &ConnectionKey) -> Result<()> {
    line("the name of a provider", &connection.provider, limits::SESSION_NAME)?;
    connection.principal.iter().try_for_each(|principal| check_attribution("principal", principal))
}

fn dedupe(key: Option<&str>, connection: &ConnectionKey) -> Option<Arc<str>> {
    key.map(|key| format!("connect {} {key}", connection.provider).into())
}
