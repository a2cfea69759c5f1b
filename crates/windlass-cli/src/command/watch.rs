//! `windlass runs watch`: what a run did and does, to its end, over restarts of the server.

use std::time::Duration;

use windlass::RunId;
use windlass_server::wire::{Activity, End, EndReason, EventPage};

use super::say;
use crate::api::{self, Api, Event, Open, query};
use crate::args::Global;
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;

/// How long to wait before looking for the server again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Follows a run.
pub(super) async fn run(typed: &str, from: Option<String>, global: &Global, out: &Out) -> Result<()> {
    if let Some(place) = from.as_deref().filter(|place| after(place).is_none()) {
        let place = crate::style::plain(place);
        return Err(Failure::usage(format!("--from {place} is no place: it is RECORD.INDEX, such as 3.0")));
    }
    let mut watcher = Watcher { typed, run: None, last: from, over: None, said: false, out };
    tokio::select! {
        done = watcher.follow(global) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    }
}

struct Watcher<'a> {
    typed: &'a str,
    run: Option<RunId>,
    /// The place of the last event that was seen.
    last: Option<String>,
    /// How the run ended.
    over: Option<bool>,
    /// That nobody drives the run was said.
    said: bool,
    out: &'a Out,
}

impl Watcher<'_> {
    async fn follow(&mut self, global: &Global) -> Result<()> {
        loop {
            let ended = match api::open(global, Open::Look, None).await {
                Ok(api) => {
                    let ended = self.connected(&api).await;
                    api.close().await?;
                    ended
                }
                Err(failure) => Err(failure),
            };
            match ended {
                Ok(true) => return self.verdict(),
                Ok(false) => {}
                // Once it was there, it comes back.
                Err(failure) if failure.exit == Exit::Unreachable && self.run.is_some() => self.waiting(),
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether the run has ended and everything about it was said.
    async fn connected(&mut self, api: &Api) -> Result<bool> {
        let run = match self.run {
            Some(run) => run,
            None => api.run(self.typed).await?,
        };
        self.run = Some(run);
        if api.is_remote() { self.stream(run, api).await } else { self.pages(run, api).await }
    }

    async fn stream(&mut self, run: RunId, api: &Api) -> Result<bool> {
        let mut events = api.events(&format!("/v1/runs/{run}/events"), self.last.as_deref()).await?;
        self.said = false;
        while let Some(event) = events.next().await? {
            if event.kind == "end" {
                let end: Option<End> = serde_json::from_str(&event.data).ok();
                return Ok(end.is_some_and(|end| end.reason == EndReason::Finished));
            }
            self.heard(&event)?;
        }
        Ok(false)
    }

    /// Nobody drives the runs of the file: what is recorded is all there is. The file is not kept open meanwhile, so that a
    /// server can have it.
    async fn pages(&mut self, run: RunId, api: &Api) -> Result<bool> {
        let mut from = match &self.last {
            Some(last) => after(last),
            None => None,
        };
        loop {
            let pairs = [("from", from.as_deref())];
            let page: EventPage = api.get(&format!("/v1/runs/{run}/events{}", query(&pairs))).await?;
            let empty = page.events.is_empty();
            for activity in page.events {
                let id = activity.position.clone().unwrap_or_default();
                let data = serde_json::to_string(&activity).unwrap_or_default();
                self.heard(&Event { id, kind: activity.kind.clone(), data })?;
            }
            if page.ended {
                return Ok(true);
            }
            if empty {
                self.waiting();
                return Ok(false);
            }
            from = Some(page.next);
        }
    }

    fn heard(&mut self, event: &Event) -> Result<()> {
        if !event.id.is_empty() {
            self.last = Some(event.id.clone());
        }
        let Ok(activity) = windlass::read_json::<Activity>(event.data.as_bytes()) else { return Ok(()) };
        if activity.kind == "run_finished" && Some(activity.run) == self.run {
            self.over = Some(activity.detail.get("ending").is_some_and(|ending| ending == "ok"));
        }
        if self.out.json {
            return self.out.event(&activity);
        }
        match say::activity_line(&activity, self.out) {
            Some(line) => self.out.line(&line),
            None => Ok(()),
        }
    }

    fn waiting(&mut self) {
        if !std::mem::replace(&mut self.said, true) {
            self.out.aside("nobody drives the run now; waiting for a server (`windlass serve`)");
        }
    }

    fn verdict(&self) -> Result<()> {
        match self.over {
            Some(false) => Err(Failure::silent(Exit::Failed)),
            _ => Ok(()),
        }
    }
}

/// The place after `RECORD.INDEX`.
fn after(place: &str) -> Option<String> {
    let (record, index) = place.split_once('.')?;
    let (record, index): (u64, u32) = (record.parse().ok()?, index.parse().ok()?);
    Some(format!("{record}.{}", index.checked_add(1)?))
}
