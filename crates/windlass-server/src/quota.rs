//! Quotas of clients: each may use a bounded amount, and all of them together no more than there is.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::rate::Client;

pub(crate) struct Quota {
    /// Limit of one client.
    per_client: usize,
    /// Limit of all clients together.
    total: usize,
    /// Amount that a client may use even if the total is exhausted.
    reserve: usize,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    total: usize,
    by_client: FxHashMap<Client, usize>,
}

/// An amount that a client uses. Dropping it returns the amount.
pub(crate) struct QuotaPermit {
    quota: Arc<Quota>,
    client: Client,
    amount: usize,
}

impl Quota {
    pub(crate) fn new(per_client: usize, total: usize) -> Arc<Self> {
        Self::limits(per_client, total, 0)
    }

    /// With a reserve: a client that uses little is not refused because others use much.
    pub(crate) fn with_reserve(per_client: usize, total: usize, reserve: usize) -> Arc<Self> {
        Self::limits(per_client, total, reserve.max(1))
    }

    fn limits(per_client: usize, total: usize, reserve: usize) -> Arc<Self> {
        Arc::new(Self { per_client: per_client.max(1), total: total.max(1), reserve, usage: Mutex::default() })
    }

    /// Takes an amount for a client, or `None` if a limit would be exceeded. An amount above a client's whole quota
    /// counts as the whole quota, so that a single large item is possible.
    pub(crate) fn take(self: &Arc<Self>, client: &Client, amount: usize) -> Option<QuotaPermit> {
        let amount = amount.min(self.per_client).min(self.total);
        let mut usage = self.usage.lock();
        let own = usage.by_client.get(client).copied().unwrap_or(0);
        if own + amount > self.per_client || (usage.total + amount > self.total && own + amount > self.reserve) {
            return None;
        }
        usage.total += amount;
        usage.by_client.insert(client.clone(), own + amount);
        Some(QuotaPermit { quota: self.clone(), client: client.clone(), amount })
    }

    pub(crate) fn per_client(&self) -> usize {
        self.per_client
    }

    /// The amount that all clients use now.
    pub(crate) fn used(&self) -> usize {
        self.usage.lock().total
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut usage = self.quota.usage.lock();
        usage.total -= self.amount;
        if let Some(own) = usage.by_client.get_mut(&self.client) {
            *own -= self.amount;
            if *own == 0 {
                usage.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e25_a_client_has_a_limit_and_all_clients_together_have_one() {
        let quota = Quota::new(10, 25);
        let client = |n: u8| Client::Address([10, 0, 0, n].into());
        let first = quota.take(&client(1), 6).unwrap();
        assert!(quota.take(&client(1), 5).is_none(), "more than a client's quota");
        let second = quota.take(&client(2), 1_000).expect("a large amount counts as the whole quota");
        assert!(quota.take(&client(3), 10).is_none(), "more than the total");
        let third = quota.take(&client(3), 9).unwrap();
        assert_eq!(quota.used(), 25);
        drop((first, second, third));
        assert!(quota.used() == 0 && quota.usage.lock().by_client.is_empty(), "clients without usage are forgotten");
    }

    #[test]
    fn e25_two_clients_at_their_limit_leave_a_reserve_for_a_third() {
        let quota = Quota::with_reserve(12, 14, 2);
        let client = |n: u8| Client::Address([10, 0, 0, n].into());
        let taken = |n: u8| (0..12).map_while(|_| quota.take(&client(n), 1)).collect::<Vec<_>>();
        let (first, second, third) = (taken(1), taken(2), taken(3));
        assert_eq!((first.len(), second.len(), third.len()), (12, 2, 2));
    }
}
