//! What a scraper sees: counters kept here, and how the store is at that moment, as Prometheus text.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use windlass::{Counts, Outcome};

/// Upper bounds of the buckets of durations, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Most tools that are counted by name: names that nobody has are as many as somebody likes to make up.
const TOOLS: usize = 1_000;

/// How often, by name and by something else.
type ByName<K> = FxHashMap<Label, FxHashMap<K, u64>>;

#[derive(Default)]
pub(crate) struct Metrics {
    /// By route, and then by method and status.
    requests: Mutex<ByName<(&'static str, u16)>>,
    request_times: Histogram,
    /// By tool and what became of it.
    calls: Mutex<ByName<&'static str>>,
    running: Histogram,
    /// Streams that are open now.
    pub(crate) streams: Gauge,
    /// Connections that are open now.
    pub(crate) connections: Gauge,
    pub(crate) webhooks: AtomicU64,
    pub(crate) webhooks_failed: AtomicU64,
}

/// Text that is one of few.
type Label = Arc<str>;

/// Counts what is open.
#[derive(Clone, Default)]
pub(crate) struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// One more, until this is dropped.
    pub(crate) fn one(&self) -> Open {
        self.0.fetch_add(1, Ordering::Relaxed);
        Open(self.0.clone())
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct Open(Arc<AtomicI64>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, "histogram", help);
        let mut below = 0;
        for (bound, count) in BUCKETS.iter().zip(&self.buckets) {
            below += count.load(Ordering::Relaxed);
            line(out, &format!("{name}_bucket{{le=\"{bound}\"}}"), below);
        }
        let count = self.count.load(Ordering::Relaxed);
        line(out, &format!("{name}_bucket{{le=\"+Inf\"}}"), count);
        line(out, &format!("{name}_sum"), self.micros.load(Ordering::Relaxed) as f64 / 1e6);
        line(out, &format!("{name}_count"), count);
    }
}

impl Metrics {
    pub(crate) fn request(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        self.request_times.observe(took);
        let mut requests = self.requests.lock();
        count(&mut requests, route, (method, status));
    }

    pub(crate) fn outcomes<'a>(&self, tools: impl Iterator<Item = &'a str>, outcomes: &[Outcome]) {
        let mut calls = self.calls.lock();
        for (tool, outcome) in tools.zip(outcomes) {
            self.running.observe(Duration::from_nanos(outcome.times.running));
            let what = outcome.error().map_or("ok", |error| error.kind());
            let known = calls.len() < TOOLS || calls.contains_key(tool);
            count(&mut calls, if known { tool } else { "other" }, what);
        }
    }

    /// Everything as text.
    pub(crate) fn text(&self, counts: Option<Counts>, healthy: bool, tools: usize, held_bytes: usize) -> String {
        let mut out = String::new();
        if let Some(counts) = counts {
            head(&mut out, "windlass_runs", "gauge", "Runs by state; finished ones as long as they are kept.");
            let states = [
                ("queued", counts.queued),
                ("running", counts.running),
                ("suspended", counts.suspended),
                ("held", counts.held),
                ("finished", counts.finished),
            ];
            for (state, count) in states {
                line(&mut out, &format!("windlass_runs{{state=\"{state}\"}}"), count);
            }
            head(&mut out, "windlass_queue_depth", "gauge", "Runs that nobody has taken up yet.");
            line(&mut out, "windlass_queue_depth", counts.queued);
            head(&mut out, "windlass_inbox", "gauge", "Runs that wait for a person.");
            line(&mut out, "windlass_inbox", counts.inbox);
        }
        head(&mut out, "windlass_store_healthy", "gauge", "Whether the store takes commits and its file is whole.");
        line(&mut out, "windlass_store_healthy", u8::from(healthy));
        head(&mut out, "windlass_tools", "gauge", "Tools that can be called.");
        line(&mut out, "windlass_tools", tools);
        head(&mut out, "windlass_calls_total", "counter", "Calls over this API that ended while somebody waited.");
        for (tool, outcome, count) in flat(&self.calls) {
            let labels = format!("windlass_calls_total{{tool=\"{}\",outcome=\"{outcome}\"}}", escaped(&tool));
            line(&mut out, &labels, count);
        }
        self.running.write(&mut out, "windlass_attempt_seconds", "Time such calls spent in attempts.");
        head(&mut out, "windlass_http_requests_total", "counter", "Requests by method, route and status.");
        for (route, (method, status), count) in flat(&self.requests) {
            let labels = format!(
                "windlass_http_requests_total{{method=\"{}\",route=\"{}\",status=\"{status}\"}}",
                method,
                escaped(&route)
            );
            line(&mut out, &labels, count);
        }
        self.request_times.write(&mut out, "windlass_http_request_seconds", "Time until the head of an answer.");
        let gauges = [
            ("windlass_http_streams", "Event streams that are open.", self.streams.get()),
            ("windlass_http_connections", "Connections that are open.", self.connections.get()),
            ("windlass_http_held_bytes", "Bytes of large answers and bodies on their way.", held_bytes as i64),
        ];
        for (name, help, value) in gauges {
            head(&mut out, name, "gauge", help);
            line(&mut out, name, value);
        }
        head(&mut out, "windlass_webhooks_total", "counter", "Webhooks by what became of them.");
        let (sent, failed) = (self.webhooks.load(Ordering::Relaxed), self.webhooks_failed.load(Ordering::Relaxed));
        line(&mut out, "windlass_webhooks_total{outcome=\"taken\"}", sent);
        line(&mut out, "windlass_webhooks_total{outcome=\"failed\"}", failed);
        out
    }
}

/// Counts one more. A name that is known is not written down again.
fn count<K: Eq + std::hash::Hash>(map: &mut ByName<K>, name: &str, key: K) {
    match map.get_mut(name) {
        Some(counts) => *counts.entry(key).or_insert(0) += 1,
        None => drop(map.insert(name.into(), std::iter::once((key, 1)).collect())),
    }
}

/// Every count, sorted by its names.
fn flat<K: Copy + Ord>(map: &Mutex<ByName<K>>) -> Vec<(Label, K, u64)> {
    let map = map.lock();
    let all = map.iter().flat_map(|(name, counts)| counts.iter().map(|(key, count)| (name.clone(), *key, *count)));
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{name} {value}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
