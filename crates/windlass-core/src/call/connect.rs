//! A call that needs a connection: it looks for one in the store, before and after a person is asked for it.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::connections::{ConnectionQuery, ConnectionState};
use crate::run::Run;
use crate::store::{ConnectionKey, Rejected, StoreError};

/// A look for a connection in the store.
pub(crate) type Looking = BoxFuture<'static, Result<ConnectionState, StoreError>>;

/// The connection to a provider that the calls of a run use.
pub(crate) fn key(run: &Run, provider: &Arc<str>) -> ConnectionKey {
    let principal = run.attribution.as_deref().and_then(|attribution| attribution.principal.clone());
    ConnectionKey::new(provider.clone(), principal)
}

pub(crate) fn look(run: &Arc<Run>, query: ConnectionQuery) -> Looking {
    let kernel = run.kernel.clone();
    Box::pin(async move { kernel.connection_state(query).await })
}

/// What a parked call does about its connection besides waiting for a message.
///
/// The connection may be written between the look that did not find it and the moment when the store has the question. No
/// message is sent then, so it looks a second time once the question is in the store.
pub(crate) struct ConnectionCheck {
    key: ConnectionKey,
    /// The attempt that needs it; zero before the first one.
    pub(super) attempt: u32,
    /// Whether the call is refused instead of asking a person.
    denies: bool,
    asked: bool,
    step: CheckStep,
}

enum CheckStep {
    /// Looks before a person is asked. The question is not listed meanwhile.
    First(Looking),
    /// The question is listed, and must be in the store.
    Listed(u64),
    Second(Looking),
    Over,
}

/// What a look has found.
pub(super) enum Checked {
    Connected,
    /// Nothing, and a person is to be asked. `Some` says why what there is cannot be used.
    Missing(Option<Arc<str>>),
    /// Nothing, and no person is to be asked.
    Denied,
}

impl ConnectionCheck {
    /// Looks before a person is asked. `rejected`: the credential that the attempt could not use.
    pub(crate) fn first(
        run: &Arc<Run>,
        provider: &Arc<str>,
        attempt: u32,
        rejected: Option<Rejected>,
        refreshes: bool,
    ) -> Self {
        let key = key(run, provider);
        let query = ConnectionQuery { key: key.clone(), rejected, refreshes };
        Self { key, attempt, denies: false, asked: false, step: CheckStep::First(look(run, query)) }
    }

    /// A person is asked by the change with this mark.
    pub(crate) fn after_asking(run: &Run, provider: &Arc<str>, mark: u64) -> Self {
        let step = CheckStep::Listed(mark);
        Self { key: key(run, provider), attempt: 0, denies: false, asked: false, step }
    }

    /// The call is refused if there is no connection.
    pub(crate) fn denying(mut self, denies: bool) -> Self {
        self.denies = denies;
        self
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.step, CheckStep::Over)
    }

    /// Whether the question is not to be listed yet.
    pub(super) fn hides(&self) -> bool {
        matches!(self.step, CheckStep::First(_))
    }

    pub(super) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// The question was listed by the change with this mark.
    pub(super) fn listed(&mut self, mark: u64) {
        self.asked = true;
        self.step = CheckStep::Listed(mark);
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, run: &Arc<Run>) -> Poll<Checked> {
        loop {
            let (looking, is_first) = match &mut self.step {
                CheckStep::First(looking) => (looking, true),
                CheckStep::Second(looking) => (looking, false),
                CheckStep::Listed(mark) => {
                    if !run.is_durable(*mark) {
                        return Poll::Pending;
                    }
                    self.step = CheckStep::Second(look(run, ConnectionQuery::new(self.key.clone())));
                    continue;
                }
                CheckStep::Over => return Poll::Pending,
            };
            let found = std::task::ready!(looking.poll_unpin(cx));
            self.step = CheckStep::Over;
            match found {
                Ok(ConnectionState::Connected { .. }) => return Poll::Ready(Checked::Connected),
                Ok(ConnectionState::Missing { .. }) if self.denies => return Poll::Ready(Checked::Denied),
                Ok(ConnectionState::Missing { why }) if is_first => return Poll::Ready(Checked::Missing(why)),
                Ok(ConnectionState::Missing { .. }) => return Poll::Pending,
                // No body sees the failure: the run is taken up again once the store can be read.
                Err(error) => {
                    run.failed(error);
                    return Poll::Pending;
                }
            }
        }
    }
}

/// What an operation knows about connections between its attempts.
#[derive(Default)]
pub(super) struct ConnectionUse {
    /// The providers that its last attempt has read, with the revision of the credential.
    pub(super) used: Vec<(Arc<str>, u64)>,
    /// Whether it had a refresh since a person last connected.
    pub(super) had_refresh: bool,
}
