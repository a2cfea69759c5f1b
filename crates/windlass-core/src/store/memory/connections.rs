//! The connections of the store in memory.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;

use super::super::{
    AppliedChange, ConnectionAnswer, ConnectionInfo, ConnectionKey, ConnectionWrite, Connections, ConnectionsOf,
    StoreError, StoredConnection,
};
use super::{Inner, MemoryStore, ready};
use crate::id::RunId;

/// The connections by provider and principal.
pub(super) type ConnectionTable = BTreeMap<ConnectionKey, StoredConnection>;

impl Inner {
    fn write_connection(&mut self, write: ConnectionWrite) -> ConnectionAnswer {
        let ConnectionWrite { key, at, change } = write;
        let found = self.connections.get(&key).map(|found| &found.info);
        let applied = change.apply(&key, at, found);
        let changed = applied.is_some();
        match applied {
            Some(AppliedChange::Set { info, credential }) => {
                self.connections.insert(key.clone(), StoredConnection { info, credential });
            }
            Some(AppliedChange::Update(info)) => {
                if let Some(found) = self.connections.get_mut(&key) {
                    found.info = info;
                }
            }
            Some(AppliedChange::Delete) => drop(self.connections.remove(&key)),
            None => {}
        }
        let mut told = Vec::new();
        if let Some((message, dedupe)) = change.message(&key) {
            for run in self.waiting_for(&key) {
                // A run that had the message before counts as told.
                if self.check_mail(run, &message, dedupe.as_ref()).is_ok() {
                    self.deliver(run, message.clone(), dedupe.clone());
                }
                told.push(run);
            }
        }
        ConnectionAnswer { changed, told }
    }

    fn waiting_for(&self, key: &ConnectionKey) -> Vec<RunId> {
        let waits = |(run, entry): (&RunId, &super::RunRow)| {
            let is_it = !entry.is_finished()
                && entry.principal == key.principal
                && entry.parks.iter().any(|park| key.answers(park));
            is_it.then_some(*run)
        };
        let mut runs: Vec<RunId> = self.runs.iter().filter_map(waits).collect();
        runs.sort_unstable();
        runs
    }
}

impl Connections for MemoryStore {
    fn write_connection(&self, write: ConnectionWrite) -> BoxFuture<'_, Result<ConnectionAnswer, StoreError>> {
        let answer = self.inner.lock().write_connection(write);
        self.hooks.notify(&answer.told);
        ready(Ok(answer))
    }

    fn connection(&self, key: ConnectionKey) -> BoxFuture<'_, Result<Option<StoredConnection>, StoreError>> {
        ready(Ok(self.inner.lock().connections.get(&key).cloned()))
    }

    fn list_connections(&self, of: ConnectionsOf) -> BoxFuture<'_, Result<Vec<ConnectionInfo>, StoreError>> {
        let inner = self.inner.lock();
        let listed = inner.connections.values().map(|found| &found.info).filter(|info| of.matches(&info.key));
        ready(Ok(listed.cloned().collect()))
    }
}
