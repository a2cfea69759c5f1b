//! Tells somebody outside when a person is needed.
//!
//! What is told is derived from the inbox, so nothing is lost: whatever waits is told until it is taken or waits no longer,
//! and after a restart once more, under the same id. The receiver keeps the ids it has seen.

mod post;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use tokio::time::Instant;
use windlass::Filter;

use crate::app::Shared;
use crate::clients::for_people;
use crate::refusal::troubled;
use crate::show::{Item, items};
use crate::wire::InboxItem;
use post::Target;

/// How often the inbox is looked at; rarer where that takes long.
const LOOK: Duration = Duration::from_secs(1);
/// Looking takes at most one part in so many of the time.
const SHARE: u32 = 20;
/// Delays between two tries.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Deliveries under way at once.
const AT_ONCE: usize = 8;
/// Runs read from the store at a time.
const PAGE: usize = 100;

/// Who is told, and how they know that it was us.
#[derive(Clone)]
pub struct Webhook {
    target: Target,
    secret: Arc<[u8]>,
    /// How long the receiver may take to answer.
    timeout: Duration,
    look: Duration,
    again: (Duration, Duration),
}

/// Why a webhook cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadWebhook(String);

impl std::fmt::Display for BadWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the webhook cannot be used: {}", self.0)
    }
}

impl std::error::Error for BadWebhook {}

impl Webhook {
    /// Posts to this address, `http` or `https`. What is posted is signed with the secret: `Windlass-Signature` is
    /// `t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY`.
    pub fn new(url: &str, secret: impl Into<Vec<u8>>) -> Result<Self, BadWebhook> {
        let secret: Vec<u8> = secret.into();
        if secret.len() < 16 {
            return Err(BadWebhook("its secret has less than 16 bytes, which could be guessed".to_owned()));
        }
        let target = Target::parse(url).map_err(BadWebhook)?;
        Ok(Self { target, secret: secret.into(), timeout: Duration::from_secs(10), look: LOOK, again: AGAIN })
    }

    /// Looks at the inbox this often, and tries again after a failure no sooner and no later than this.
    #[must_use]
    pub fn pace(mut self, look: Duration, again: (Duration, Duration)) -> Self {
        (self.look, self.again) = (look, again);
        self
    }
}

/// What is posted.
#[derive(Serialize)]
struct Told<'a> {
    /// The same for every try, also after a restart.
    id: &'a str,
    event: &'static str,
    item: &'a InboxItem,
}

/// How far telling of one item is.
#[derive(Clone, Copy)]
enum Progress {
    Taken,
    Again { at: Instant, delay: Duration },
}

/// Tells until it is dropped.
pub(crate) async fn tell(app: Shared, hook: Webhook) {
    let mut known: BTreeMap<String, Progress> = BTreeMap::new();
    loop {
        let begun = Instant::now();
        match waiting(&app, &known).await {
            Ok((there, new)) => {
                known.retain(|id, _| there.contains(id));
                let due: Vec<InboxItem> = new.into_iter().filter(|item| is_due(known.get(&item.id))).collect();
                let told = due.into_iter().map(|item| deliver(app.clone(), hook.clone(), item));
                let told: Vec<(String, bool)> = futures_util::stream::iter(told).buffered(AT_ONCE).collect().await;
                for (id, taken) in told {
                    let progress = after(taken, known.get(&id).copied(), hook.again);
                    known.insert(id, progress);
                }
            }
            Err(error) => troubled(&format_args!("the inbox cannot be read for the webhook: {error:?}")),
        }
        tokio::time::sleep(hook.look.max(begun.elapsed() * SHARE)).await;
    }
}

fn is_due(progress: Option<&Progress>) -> bool {
    match progress {
        None => true,
        Some(Progress::Taken) => false,
        Some(Progress::Again { at, .. }) => *at <= Instant::now(),
    }
}

fn after(taken: bool, before: Option<Progress>, (least, most): (Duration, Duration)) -> Progress {
    match (taken, before) {
        (true, _) => Progress::Taken,
        (false, Some(Progress::Again { delay, .. })) => {
            let delay = (delay * 2).min(most);
            Progress::Again { at: Instant::now() + delay, delay }
        }
        (false, _) => Progress::Again { at: Instant::now() + least, delay: least },
    }
}

/// The names of everything that waits, and what of it is to be told.
async fn waiting(
    app: &Shared,
    known: &BTreeMap<String, Progress>,
) -> Result<(std::collections::BTreeSet<String>, Vec<InboxItem>), crate::refusal::Refusal> {
    let (mut there, mut due) = (std::collections::BTreeSet::new(), Vec::new());
    let mut cursor = None;
    loop {
        let page = app.windlass.list(Filter::Inbox, cursor, PAGE).await?;
        cursor = page.last().map(|info| info.run);
        for info in &page {
            let all = for_people(app, info, items(&app.windlass, info)).await?;
            there.extend(all.iter().map(|item| item.id.to_string()));
            let new: Vec<Item> = all.into_iter().filter(|item| is_due(known.get(&item.id.to_string()))).collect();
            if !new.is_empty() {
                // Without reply keys: who receives this is told, not asked.
                due.extend(Item::shown(&app.windlass, info, &new, false).await?);
            }
        }
        if page.len() < PAGE {
            return Ok((there, due));
        }
    }
}

/// The item, and whether the receiver took it.
async fn deliver(app: Shared, hook: Webhook, item: InboxItem) -> (String, bool) {
    let told = Told { id: &item.id, event: "person_needed", item: &item };
    let Ok(body) = serde_json::to_vec(&told) else { return (item.id, false) };
    let posted = tokio::time::timeout(hook.timeout, hook.target.post(&hook.secret, &item.id, body)).await;
    let problem = match posted {
        Ok(Ok(status)) if (200..300).contains(&status) => {
            app.metrics.webhooks.fetch_add(1, Ordering::Relaxed);
            return (item.id, true);
        }
        Ok(Ok(status)) => format!("it answered {status}"),
        Ok(Err(error)) => error,
        Err(_) => "it did not answer in time".to_owned(),
    };
    app.metrics.webhooks_failed.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(item = item.id, "the webhook did not take it, and is tried again: {problem}");
    (item.id, false)
}
