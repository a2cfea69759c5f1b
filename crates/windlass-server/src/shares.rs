//! What clients may hold at once: each its share, and all of them together no more than there is.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::rate::Client;

pub(crate) struct Shares {
    /// Most of one client.
    each: usize,
    /// Most of all clients.
    all: usize,
    /// What a client may have though all of them together have too much.
    few: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: usize,
    by: FxHashMap<Client, usize>,
}

/// Something a client holds. Dropped, there is room for as much again.
pub(crate) struct Share {
    shares: Arc<Shares>,
    client: Client,
    count: usize,
}

impl Shares {
    pub(crate) fn new(each: usize, all: usize) -> Arc<Self> {
        Arc::new(Self { each: each.max(1), all: all.max(1), few: 0, held: Mutex::default() })
    }

    /// The same, with a reserve: clients that hold few are not refused because others hold many.
    pub(crate) fn with_reserve(each: usize, all: usize, few: usize) -> Arc<Self> {
        Arc::new(Self { each: each.max(1), all: all.max(1), few: few.max(1), held: Mutex::default() })
    }

    /// Takes so much for a client; nothing if it holds too much already. What is larger than a whole share counts as one, so
    /// that it can be had at all.
    pub(crate) fn take(self: &Arc<Self>, client: &Client, count: usize) -> Option<Share> {
        let count = count.min(self.each).min(self.all);
        let mut held = self.held.lock();
        let own = held.by.get(client).copied().unwrap_or(0);
        if own + count > self.each || (held.all + count > self.all && own + count > self.few) {
            return None;
        }
        held.all += count;
        held.by.insert(client.clone(), own + count);
        Some(Share { shares: self.clone(), client: client.clone(), count })
    }

    pub(crate) fn each(&self) -> usize {
        self.each
    }

    /// How much is held.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().all
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock();
        held.all -= self.count;
        if let Some(own) = held.by.get_mut(&self.client) {
            *own -= self.count;
            if *own == 0 {
                held.by.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e25_one_client_leaves_room_for_the_others_and_all_of_them_have_a_bound() {
        let shares = Shares::new(10, 25);
        let client = |n: u8| Client::Address([10, 0, 0, n].into());
        let first = shares.take(&client(1), 6).unwrap();
        assert!(shares.take(&client(1), 5).is_none(), "it would be more than a share");
        let second = shares.take(&client(2), 1_000).expect("what is too large counts as a whole share");
        assert!(shares.take(&client(3), 10).is_none(), "it would be more than there is");
        let third = shares.take(&client(3), 9).unwrap();
        assert_eq!(shares.held(), 25);
        drop((first, second, third));
        assert!(shares.held() == 0 && shares.held.lock().by.is_empty(), "nothing is kept of those who hold nothing");
    }

    #[test]
    fn e25_two_clients_with_whole_shares_leave_a_reserve_for_a_third() {
        let shares = Shares::with_reserve(12, 14, 2);
        let client = |n: u8| Client::Address([10, 0, 0, n].into());
        let taken = |n: u8| (0..12).map_while(|_| shares.take(&client(n), 1)).collect::<Vec<_>>();
        let (first, second, third) = (taken(1), taken(2), taken(3));
        assert_eq!((first.len(), second.len(), third.len()), (12, 2, 2));
    }
}
