//! The webhook: notifies a receiver when a run needs a person.
//!
//! Notifications are derived from the inbox, so none is lost: an item is sent until the receiver accepts it or the item
//! is gone, and once more after a restart, with the same id. The receiver has to ignore ids that it has seen before.

mod post;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use tokio::time::Instant;
use windlass::run::Filter;

use crate::app::Shared;
use crate::clients::without_client_calls;
use crate::refusal::log_throttled;
use crate::show::{Item, items};
use crate::wire::InboxItem;
use post::Target;

/// How often the inbox is read; less often if reading it takes long.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two reads, as a multiple of the time that the last one took.
const IDLE_FACTOR: u32 = 20;
/// Shortest and longest delay between two attempts at a delivery.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Most concurrent deliveries.
const CONCURRENT_DELIVERIES: usize = 8;
/// Runs that are read from the store at a time.
const PAGE: usize = 100;

/// The receiver of notifications, and the secret they are signed with.
#[derive(Clone)]
pub struct Webhook {
    target: Target,
    secret: Arc<[u8]>,
    /// How long the receiver may take to answer.
    timeout: Duration,
    poll_interval: Duration,
    retry_delays: (Duration, Duration),
}

/// The webhook's address or secret is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookError(String);

impl std::fmt::Display for WebhookError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "webhook: {}", self.0)
    }
}

impl std::error::Error for WebhookError {}

impl Webhook {
    /// Posts to this `http` or `https` address. Notifications are signed with the secret: `Windlass-Signature` is
    /// `t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY`.
    pub fn new(url: &str, secret: impl Into<Vec<u8>>) -> Result<Self, WebhookError> {
        let secret: Vec<u8> = secret.into();
        if secret.len() < 16 {
            return Err(WebhookError(
                "the secret is shorter than 16 bytes and could be guessed; use a longer one".to_owned(),
            ));
        }
        let target = Target::parse(url).map_err(WebhookError)?;
        Ok(Self {
            target,
            secret: secret.into(),
            timeout: Duration::from_secs(10),
            poll_interval: POLL_INTERVAL,
            retry_delays: RETRY_DELAYS,
        })
    }

    /// Sets how often the inbox is read, and the shortest and longest delay after a failed delivery.
    #[must_use]
    pub fn pace(mut self, poll_interval: Duration, retry_delays: (Duration, Duration)) -> Self {
        (self.poll_interval, self.retry_delays) = (poll_interval, retry_delays);
        self
    }
}

/// The body of a notification.
#[derive(Serialize)]
struct Notification<'a> {
    /// The same for every attempt, also after a restart.
    id: &'a str,
    event: &'static str,
    item: &'a InboxItem,
}

#[derive(Clone, Copy)]
enum DeliveryState {
    Delivered,
    Retry { at: Instant, delay: Duration },
}

/// Sends notifications until the future is dropped.
pub(crate) async fn notify(app: Shared, hook: Webhook) {
    let mut states: BTreeMap<String, DeliveryState> = BTreeMap::new();
    loop {
        let begun = Instant::now();
        match waiting(&app, &states).await {
            Ok((open, new)) => {
                states.retain(|id, _| open.contains(id));
                let due: Vec<InboxItem> = new.into_iter().filter(|item| is_due(states.get(&item.id))).collect();
                let deliveries = due.into_iter().map(|item| deliver(app.clone(), hook.clone(), item));
                let deliveries = futures_util::stream::iter(deliveries).buffered(CONCURRENT_DELIVERIES);
                for (id, delivered) in deliveries.collect::<Vec<(String, bool)>>().await {
                    let state = next_state(delivered, states.get(&id).copied(), hook.retry_delays);
                    states.insert(id, state);
                }
            }
            Err(error) => log_throttled(&format_args!("could not read the inbox for the webhook: {error:?}")),
        }
        tokio::time::sleep(hook.poll_interval.max(begun.elapsed() * IDLE_FACTOR)).await;
    }
}

fn is_due(state: Option<&DeliveryState>) -> bool {
    match state {
        None => true,
        Some(DeliveryState::Delivered) => false,
        Some(DeliveryState::Retry { at, .. }) => *at <= Instant::now(),
    }
}

fn next_state(delivered: bool, previous: Option<DeliveryState>, (min, max): (Duration, Duration)) -> DeliveryState {
    match (delivered, previous) {
        (true, _) => DeliveryState::Delivered,
        (false, Some(DeliveryState::Retry { delay, .. })) => {
            let delay = (delay * 2).min(max);
            DeliveryState::Retry { at: Instant::now() + delay, delay }
        }
        (false, _) => DeliveryState::Retry { at: Instant::now() + min, delay: min },
    }
}

/// The ids of all items in the inbox, and the items that are due.
async fn waiting(
    app: &Shared,
    states: &BTreeMap<String, DeliveryState>,
) -> Result<(std::collections::BTreeSet<String>, Vec<InboxItem>), crate::refusal::Refusal> {
    let (mut open, mut due) = (std::collections::BTreeSet::new(), Vec::new());
    let mut cursor = None;
    loop {
        let page = app.windlass.list(Filter::inbox(), cursor, PAGE).await?;
        cursor = page.last().map(|info| info.run);
        for info in &page {
            let all = without_client_calls(app, info, items(&app.windlass, info)).await?;
            open.extend(all.iter().map(|item| item.id.to_string()));
            let new: Vec<Item> = all.into_iter().filter(|item| is_due(states.get(&item.id.to_string()))).collect();
            if !new.is_empty() {
                // Without reply keys: the receiver is notified, but not authorized to answer.
                due.extend(Item::shown(&app.windlass, info, &new, false).await?);
            }
        }
        if page.len() < PAGE {
            return Ok((open, due));
        }
    }
}

/// Sends one notification. Returns the item's id, and whether the receiver accepted it.
async fn deliver(app: Shared, hook: Webhook, item: InboxItem) -> (String, bool) {
    let notification = Notification { id: &item.id, event: "person_needed", item: &item };
    let Ok(body) = serde_json::to_vec(&notification) else { return (item.id, false) };
    let posted = tokio::time::timeout(hook.timeout, hook.target.post(&hook.secret, &item.id, body)).await;
    let problem = match posted {
        Ok(Ok(status)) if (200..300).contains(&status) => {
            app.metrics.webhooks_delivered.fetch_add(1, Ordering::Relaxed);
            return (item.id, true);
        }
        Ok(Ok(status)) => format!("the receiver answered {status}"),
        Ok(Err(error)) => error,
        Err(_) => "the receiver did not answer in time".to_owned(),
    };
    app.metrics.webhooks_failed.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(item = item.id, "webhook delivery failed and will be repeated: {problem}");
    (item.id, false)
}
