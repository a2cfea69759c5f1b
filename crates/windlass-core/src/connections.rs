//! Connections as runs use them: whether a call has the one it needs, and how an expired one is refreshed.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Shared, select};
use parking_lot::Mutex;

use crate::kernel::Kernel;
use crate::limits;
use crate::store::{
    ConnectionAnswer, ConnectionChange, ConnectionInfo, ConnectionKey, ConnectionWrite, Credential, Promise, Rejected,
    StoreError, StoredConnection,
};
use crate::tool::Redactor;
use crate::tool::view::bounded;

/// How often the store is asked to keep a refreshed credential. The provider may have voided the old one.
const STORE_TRIES: u32 = 3;
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// A connection whose credential has expired; see [`Refresh`].
#[derive(Clone, Debug)]
pub struct ExpiredConnection {
    /// Which connection.
    pub key: ConnectionKey,
    /// Its last credential.
    pub credential: Credential,
}

/// What a refresh returns.
#[derive(Clone, Debug)]
pub struct Refreshed {
    /// The new credential.
    pub credential: Credential,
    /// How long it is valid; `None` if it does not expire.
    pub expires_in: Option<Duration>,
}

impl Refreshed {
    /// A credential that does not expire.
    pub fn new(credential: impl Into<Arc<str>>) -> Self {
        Self { credential: Credential::new(credential), expires_in: None }
    }

    /// Sets how long it is valid.
    #[must_use]
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }
}

/// Refreshes the connections to a provider, at most one attempt at a time for each of them. A closure
/// `|expired: ExpiredConnection| async { Ok(Refreshed::new("…")) }` implements it.
pub trait Refresh: Send + Sync + 'static {
    /// Obtains a new credential. The error is shown to the person who is asked to connect again.
    fn refresh(&self, expired: ExpiredConnection) -> BoxFuture<'static, Result<Refreshed, String>>;
}

impl<F, R> Refresh for F
where
    F: Fn(ExpiredConnection) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Refreshed, String>> + Send + 'static,
{
    fn refresh(&self, expired: ExpiredConnection) -> BoxFuture<'static, Result<Refreshed, String>> {
        Box::pin(self(expired))
    }
}

/// `Ok` once the connection was refreshed, or replaced meanwhile.
type RefreshOutcome = Result<(), Arc<str>>;

/// The providers that a runtime knows.
#[derive(Default)]
pub(crate) struct Providers {
    /// Those that are connected without a connection in the store.
    pub(crate) connected: Vec<String>,
    /// How connections are refreshed, by provider.
    pub(crate) refresh: BTreeMap<String, Arc<dyn Refresh>>,
    /// Refreshes under way.
    refreshing: Mutex<BTreeMap<ConnectionKey, Shared<BoxFuture<'static, RefreshOutcome>>>>,
}

impl Providers {
    pub(crate) fn new(connected: Vec<String>, refresh: BTreeMap<String, Arc<dyn Refresh>>) -> Self {
        Self { connected, refresh, refreshing: Mutex::default() }
    }
}

/// Whether there is a connection that can be used.
#[derive(Clone, Debug)]
pub(crate) enum ConnectionState {
    Connected {
        revision: u64,
        credential: Option<Credential>,
    },
    /// `why`: why the one that there is cannot be used.
    Missing {
        why: Option<Arc<str>>,
    },
}

/// What is asked about a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionQuery {
    pub(crate) key: ConnectionKey,
    /// The credential that an attempt could not use, which counts as expired from now on.
    pub(crate) rejected: Option<Rejected>,
    /// Whether an expired one is refreshed.
    pub(crate) refreshes: bool,
}

impl ConnectionQuery {
    pub(crate) fn new(key: ConnectionKey) -> Self {
        Self { key, rejected: None, refreshes: false }
    }
}

impl Kernel {
    /// Whether there is the connection, after it was refreshed if that is necessary and asked for.
    pub(crate) async fn connection_state(
        self: &Arc<Self>,
        query: ConnectionQuery,
    ) -> Result<ConnectionState, StoreError> {
        let ConnectionQuery { key, rejected, refreshes } = query;
        if let Some(which) = rejected {
            let problem = "an attempt could not use it".into();
            self.write_connection(&key, ConnectionChange::Expire { which, problem }).await?;
        }
        let found = match self.read_connection(&key).await? {
            Ok(found) => found,
            Err(missing) => return Ok(missing),
        };
        let (Some(credential), Some(refresh), true) =
            (found.credential, self.env.providers.refresh.get(&*key.provider), refreshes)
        else {
            return Ok(ConnectionState::Missing { why: Some(why_expired(&found.info)) });
        };
        let expired = ExpiredConnection { key: key.clone(), credential };
        if let Err(why) = self.refreshed(expired, found.info.revision, refresh).await {
            return Ok(ConnectionState::Missing { why: Some(why) });
        }
        Ok(match self.read_connection(&key).await? {
            Ok(found) => ConnectionState::Missing { why: Some(why_expired(&found.info)) },
            Err(state) => state,
        })
    }

    /// The expired connection, or what can be said without it.
    async fn read_connection(
        &self,
        key: &ConnectionKey,
    ) -> Result<Result<StoredConnection, ConnectionState>, StoreError> {
        let found = match self.store.connections().connection(key.clone()).await {
            Ok(found) => found,
            // A person who connects again replaces it.
            Err(error @ (StoreError::UnsealableCredential { .. } | StoreError::Damaged { .. })) => {
                return Ok(Err(ConnectionState::Missing { why: Some(error.to_string().into()) }));
            }
            Err(error) => return Err(error),
        };
        Ok(match found {
            None => Err(ConnectionState::Missing { why: None }),
            Some(StoredConnection { info, credential }) if info.is_valid(self.env.clock.now()) => {
                Err(ConnectionState::Connected { revision: info.revision, credential })
            }
            Some(expired) => Ok(expired),
        })
    }

    /// Writes to a connection and wakes the runs that were told of it.
    pub(crate) async fn write_connection(
        self: &Arc<Self>,
        key: &ConnectionKey,
        change: ConnectionChange,
    ) -> Result<ConnectionAnswer, StoreError> {
        let write = ConnectionWrite { key: key.clone(), at: self.env.clock.now(), change };
        let written = self.store.connections().write_connection(write).await;
        if let Err(StoreError::Unknown(_)) = &written {
            // The messages may have been written.
            self.look_for_due();
        }
        let answer = written?;
        for run in &answer.told {
            self.notify(*run).await;
        }
        Ok(answer)
    }

    /// Refreshes a connection, or waits for the refresh that is under way. It is finished even if no call waits for it
    /// any more: a provider may accept an old credential only once.
    fn refreshed(
        self: &Arc<Self>,
        expired: ExpiredConnection,
        revision: u64,
        refresh: &Arc<dyn Refresh>,
    ) -> Shared<BoxFuture<'static, RefreshOutcome>> {
        let mut under_way = self.env.providers.refreshing.lock();
        if let Some(outcome) = under_way.get(&expired.key) {
            return outcome.clone();
        }
        let (promise, ticket) = Promise::pair();
        let outcome: BoxFuture<'static, RefreshOutcome> = Box::pin(async move {
            let stopped = |error: StoreError| Err(Arc::from(format!("the refresh was stopped: {error}")));
            ticket.await.unwrap_or_else(stopped)
        });
        let outcome = outcome.shared();
        under_way.insert(expired.key.clone(), outcome.clone());
        drop(under_way);
        let (kernel, refresh) = (self.clone(), refresh.clone());
        self.env.spawn.spawn(Box::pin(async move {
            let key = expired.key.clone();
            let outcome = kernel.refresh_now(expired, revision, &*refresh).await;
            kernel.env.providers.refreshing.lock().remove(&key);
            promise.answer(Ok(outcome));
        }));
        outcome
    }

    async fn refresh_now(
        self: &Arc<Self>,
        expired: ExpiredConnection,
        revision: u64,
        refresh: &dyn Refresh,
    ) -> RefreshOutcome {
        let (key, mut secrets) = (expired.key.clone(), Redactor::default());
        secrets.add(&key.provider, expired.credential.expose());
        // Called inside the first poll, where a panic is caught.
        let work = AssertUnwindSafe(async move { refresh.refresh(expired).await }).catch_unwind();
        let limit = self.env.clock.sleep(limits::CONNECTION_REFRESH);
        let refreshed = match select(std::pin::pin!(work), limit).await {
            Either::Left((Ok(refreshed), _)) => refreshed.and_then(check_refreshed),
            Either::Left((Err(_), _)) => Err("it panicked".to_owned()),
            Either::Right(_) => Err(format!("it took longer than {:?}", limits::CONNECTION_REFRESH)),
        };
        let failed = match refreshed {
            Ok(Refreshed { credential, expires_in }) => {
                let expires = expires_in.map(|time| self.env.clock.now() + time);
                secrets.add(&key.provider, credential.expose());
                match self.keep_refreshed(&key, ConnectionChange::Refresh { revision, credential, expires }).await {
                    Ok(()) => return Ok(()),
                    Err(error) => format!("the new credential could not be stored: {error}"),
                }
            }
            Err(why) => why,
        };
        let failed = secrets.redact(&failed);
        let problem: Arc<str> = bounded(format!("the refresh failed: {failed}").into()).into();
        tracing::warn!(provider = %key.provider, principal = key.principal.as_deref(), "{problem}");
        let expire = ConnectionChange::Expire { which: Rejected::Revision(revision), problem: problem.clone() };
        if let Err(error) = self.write_connection(&key, expire).await {
            tracing::warn!(provider = %key.provider, %error, "the failure of a refresh could not be stored");
        }
        Err(problem)
    }

    async fn keep_refreshed(self: &Arc<Self>, key: &ConnectionKey, change: ConnectionChange) -> Result<(), StoreError> {
        let mut tries = 1;
        loop {
            // A credential that was set meanwhile is kept, and the refreshed one is not needed.
            match self.write_connection(key, change.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if tries >= STORE_TRIES => return Err(error),
                Err(_) => self.env.clock.sleep(STORE_PAUSE).await,
            }
            tries += 1;
        }
    }
}

fn why_expired(info: &ConnectionInfo) -> Arc<str> {
    info.problem.clone().unwrap_or_else(|| "the connection has expired".into())
}

fn check_refreshed(refreshed: Refreshed) -> Result<Refreshed, String> {
    match refreshed.credential.expose().len() {
        0 => Err("it returned an empty credential".to_owned()),
        1..=limits::SECRET_BYTES => Ok(refreshed),
        bytes => Err(format!("it returned a credential of {bytes} bytes; at most {} are kept", limits::SECRET_BYTES)),
    }
}
