//! The rate limit: a token bucket for each client.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Most buckets in memory. Beyond that full buckets are dropped: a client without a bucket has a full one.
const MAX_BUCKETS: usize = 10_000;

/// A client, as rates and quotas count it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The bearer of a token, by the token's id.
    Token(Arc<str>),
    /// Clients without a token, by address.
    Address(IpAddr),
}

pub(crate) struct RateLimit {
    per_second: f64,
    buckets: Mutex<FxHashMap<Client, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl RateLimit {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second: f64::from(per_second.max(1)), buckets: Mutex::default() }
    }

    /// Takes one request from the client's bucket. Fails with the time until the next one is available.
    pub(crate) fn take(&self, client: Client, now: Instant) -> Result<(), Duration> {
        let most = self.per_second * 2.0;
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&client) {
            let full = |bucket: &Bucket| self.filled(bucket, now) >= most;
            buckets.retain(|_, bucket| !full(bucket));
        }
        let bucket = buckets.entry(client).or_insert(Bucket { left: most, at: now });
        let left = self.filled(bucket, now);
        *bucket = Bucket { left: if left >= 1.0 { left - 1.0 } else { left }, at: now };
        if left >= 1.0 { Ok(()) } else { Err(Duration::from_secs_f64((1.0 - left) / self.per_second)) }
    }

    fn filled(&self, bucket: &Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.left + passed * self.per_second).min(self.per_second * 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l23_a_client_above_its_rate_learns_when_to_retry() {
        let rates = RateLimit::new(2);
        let (begin, local) = (Instant::now(), Client::Address([127, 0, 0, 1].into()));
        for _ in 0..4 {
            assert_eq!(rates.take(local.clone(), begin), Ok(()));
        }
        let wait = rates.take(local.clone(), begin).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(500), "{wait:?}");
        assert_eq!(rates.take(Client::Token("t".into()), begin), Ok(()), "other clients have their own rate");
        assert_eq!(rates.take(local.clone(), begin + wait), Ok(()));
        assert!(rates.take(local, begin + wait).is_err());
    }
}
