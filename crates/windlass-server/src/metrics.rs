//! Metrics as Prometheus text: counters of this process, and the state of the store at the time of the scrape.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use windlass::Outcome;
use windlass::run::{BreakerPhase, Counts, TargetState};

/// Upper bounds of the histogram buckets, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Most tools that have a label of their own. Clients can call names that do not exist, so their number is unbounded.
const MAX_TOOLS: usize = 1_000;

/// Counts by label and a second key.
type Counters<K> = FxHashMap<Label, FxHashMap<K, u64>>;

#[derive(Default)]
pub(crate) struct Metrics {
    /// By route, and then by method and status.
    requests: Mutex<Counters<(&'static str, u16)>>,
    request_times: Histogram,
    /// By tool and outcome.
    calls: Mutex<Counters<&'static str>>,
    running: Histogram,
    /// Open event streams.
    pub(crate) streams: Gauge,
    /// Open connections.
    pub(crate) connections: Gauge,
    pub(crate) webhooks_delivered: AtomicU64,
    pub(crate) webhooks_failed: AtomicU64,
}

type Label = Arc<str>;

#[derive(Clone, Default)]
pub(crate) struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Increments the gauge until the guard is dropped.
    pub(crate) fn increment(&self) -> GaugeGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(self.0.clone())
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct GaugeGuard(Arc<AtomicI64>);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds the state of circuit breakers.
pub(crate) fn add_breakers(out: &mut String, breakers: &[TargetState]) {
    header(out, "windlass_breaker_open", "gauge", "Circuit breakers: 0 closed, 1 open or half-open.");
    for TargetState { target, phase, .. } in breakers {
        let labels = format!("windlass_breaker_open{{target=\"{}\"}}", escaped(target));
        line(out, &labels, u8::from(*phase != BreakerPhase::Closed));
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
        header(out, name, "histogram", help);
        let mut cumulative = 0;
        for (bound, count) in BUCKETS.iter().zip(&self.buckets) {
            cumulative += count.load(Ordering::Relaxed);
            line(out, &format!("{name}_bucket{{le=\"{bound}\"}}"), cumulative);
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
            let kind = outcome.error().map_or("ok", |error| error.kind());
            let has_label = calls.len() < MAX_TOOLS || calls.contains_key(tool);
            count(&mut calls, if has_label { tool } else { "other" }, kind);
        }
    }

    /// All metrics in the Prometheus text format.
    pub(crate) fn text(&self, counts: Option<Counts>, healthy: bool, tools: usize, in_flight_bytes: usize) -> String {
        let mut out = String::new();
        if let Some(counts) = counts {
            header(
                &mut out,
                "windlass_runs",
                "gauge",
                "Runs by state. Finished runs count until retention removes them.",
            );
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
            header(&mut out, "windlass_queue_depth", "gauge", "Queued runs that no worker has started yet.");
            line(&mut out, "windlass_queue_depth", counts.queued);
            header(&mut out, "windlass_inbox", "gauge", "Runs that wait for a person.");
            line(&mut out, "windlass_inbox", counts.inbox);
        }
        header(&mut out, "windlass_store_healthy", "gauge", "1 if the store accepts commits and its file is intact.");
        line(&mut out, "windlass_store_healthy", u8::from(healthy));
        header(&mut out, "windlass_tools", "gauge", "Tools that can be called.");
        line(&mut out, "windlass_tools", tools);
        header(
            &mut out,
            "windlass_calls_total",
            "counter",
            "Calls over this API that ended while their request waited.",
        );
        for (tool, outcome, count) in sorted(&self.calls) {
            let labels = format!("windlass_calls_total{{tool=\"{}\",outcome=\"{outcome}\"}}", escaped(&tool));
            line(&mut out, &labels, count);
        }
        self.running.write(&mut out, "windlass_attempt_seconds", "Time that calls over this API spent in attempts.");
        header(&mut out, "windlass_http_requests_total", "counter", "Requests by method, route and status.");
        for (route, (method, status), count) in sorted(&self.requests) {
            let labels = format!(
                "windlass_http_requests_total{{method=\"{}\",route=\"{}\",status=\"{status}\"}}",
                method,
                escaped(&route)
            );
            line(&mut out, &labels, count);
        }
        self.request_times.write(&mut out, "windlass_http_request_seconds", "Time until the head of a response.");
        let gauges = [
            ("windlass_http_streams", "Open event streams.", self.streams.get()),
            ("windlass_http_connections", "Open connections.", self.connections.get()),
            ("windlass_http_in_flight_bytes", "Bytes of large responses and bodies in flight.", in_flight_bytes as i64),
        ];
        for (name, help, value) in gauges {
            header(&mut out, name, "gauge", help);
            line(&mut out, name, value);
        }
        header(&mut out, "windlass_webhooks_total", "counter", "Webhook deliveries by outcome.");
        let delivered = self.webhooks_delivered.load(Ordering::Relaxed);
        let failed = self.webhooks_failed.load(Ordering::Relaxed);
        line(&mut out, "windlass_webhooks_total{outcome=\"delivered\"}", delivered);
        line(&mut out, "windlass_webhooks_total{outcome=\"failed\"}", failed);
        out
    }
}

/// Increments a counter. Allocates the label only the first time.
fn count<K: Eq + std::hash::Hash>(map: &mut Counters<K>, name: &str, key: K) {
    match map.get_mut(name) {
        Some(counts) => *counts.entry(key).or_insert(0) += 1,
        None => drop(map.insert(name.into(), std::iter::once((key, 1)).collect())),
    }
}

/// All counters, sorted.
fn sorted<K: Copy + Ord>(map: &Mutex<Counters<K>>) -> Vec<(Label, K, u64)> {
    let map = map.lock();
    let all = map.iter().flat_map(|(name, counts)| counts.iter().map(|(key, count)| (name.clone(), *key, *count)));
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{name} {value}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
