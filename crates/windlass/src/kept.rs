//! Connections: made by people, kept in the store, read by calls.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::{ConnectionInfo, ConnectionKey, ConnectionsOf, Credential};
use windlass_core::{Connect, Result, Runtime};

/// The connections that are kept; see [`Windlass::connections`](crate::Windlass::connections).
#[derive(Clone)]
pub struct Connections {
    runtime: Runtime,
}

impl Connections {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime }
    }

    /// All of them, by provider and principal: when they were made and when they expire, never their credentials.
    pub async fn list(&self) -> Result<Vec<ConnectionInfo>> {
        self.runtime.connections(ConnectionsOf::All).await
    }

    /// Those of a principal, or of none.
    pub async fn list_of(&self, principal: Option<&str>) -> Result<Vec<ConnectionInfo>> {
        self.runtime.connections(ConnectionsOf::Principal(principal.map(Into::into))).await
    }

    /// Deletes the connection of a principal, or of none, to a provider. Returns whether there was one; durable when it
    /// returns. The next call that needs it asks for it.
    pub async fn remove(&self, provider: &str, principal: Option<&str>) -> Result<bool> {
        self.runtime.delete_connection(&ConnectionKey::new(provider, principal.map(Into::into))).await
    }
}

/// A connection that is made or refused: await it. Resolves to the number of runs that waited for it; durable once
/// awaited. See [`Inbox::connect`](crate::inbox::Inbox::connect).
#[must_use = "nothing is done until this is awaited"]
pub struct Connecting {
    runtime: Runtime,
    connection: ConnectionKey,
    how: Connect,
    refused: Option<String>,
    key: Option<Arc<str>>,
}

impl Connecting {
    pub(crate) fn new(runtime: Runtime, provider: &str, refused: Option<String>) -> Self {
        let connection = ConnectionKey::new(provider, None);
        Self { runtime, connection, how: Connect::default(), refused, key: None }
    }

    /// The credential, which is sealed at rest. Calls read it with [`Call::connection`](crate::Attempt::connection).
    /// Without one, the provider only counts as connected.
    pub fn credential(mut self, text: impl Into<Arc<str>>) -> Self {
        self.how.credential = Some(Credential::new(text));
        self
    }

    /// How long it is valid. Without this, it does not expire.
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.how.expires_in = Some(time);
        self
    }

    /// Whose connection it is. Without this, it is that of the runs without a principal.
    pub fn principal(mut self, principal: impl Into<Arc<str>>) -> Self {
        self.connection.principal = Some(principal.into());
        self
    }

    /// A run is told only once under the same key.
    pub fn key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl IntoFuture for Connecting {
    type Output = Result<usize>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { runtime, connection, how, refused, key } = self;
        Box::pin(async move {
            match refused {
                Some(reason) => runtime.refuse_connection(key.as_deref(), &connection, &reason).await,
                None => runtime.connect_with(key.as_deref(), &connection, how).await,
            }
        })
    }
}
