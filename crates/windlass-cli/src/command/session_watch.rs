//! `windlass sessions watch`: follows a session until it is purged, across restarts of the server.

use std::time::Duration;

use windlass_server::wire::{End, EndReason, SessionEvent, SessionEventPage};

use super::sessions::{content, path};
use super::text;
use crate::api::{self, Api, OpenMode, query};
use crate::args::Global;
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;
use crate::style::plain;

/// How long to wait before connecting again.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Follows a session.
pub(super) async fn run(session: &str, from: Option<String>, global: &Global, out: &Out) -> Result<()> {
    from.as_deref().map_or(Ok(()), check_position)?;
    let mut watcher = Watcher { session, last: from, connected: false, waiting_for: None, out };
    tokio::select! {
        done = watcher.follow(global) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    }
}

struct Watcher<'a> {
    session: &'a str,
    /// The position after the last event.
    last: Option<String>,
    /// Whether a server or the file has answered.
    connected: bool,
    /// The last note about what this command waits for.
    waiting_for: Option<String>,
    out: &'a Out,
}

impl Watcher<'_> {
    async fn follow(&mut self, global: &Global) -> Result<()> {
        loop {
            let ended = match api::open(global, OpenMode::Inspect, None).await {
                Ok(api) => {
                    let ended = self.read(&api).await;
                    api.close().await?;
                    ended
                }
                Err(failure) => Err(failure),
            };
            match ended {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // It answered before, so the server or the file is expected to come back.
                Err(failure) if failure.exit == Exit::Unreachable && self.connected => {
                    self.note_waiting(&format!("{}; waiting for a server", failure.message));
                }
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Prints new events. Returns whether the session was purged.
    async fn read(&mut self, api: &Api) -> Result<bool> {
        let events = format!("{}/events", path(self.session));
        if !api.is_remote() {
            return self.pages(&events, api).await;
        }
        let mut stream = api.events(&events, self.last.as_deref()).await?;
        (self.connected, self.waiting_for) = (true, None);
        while let Some(event) = stream.next().await? {
            if event.kind == "end" {
                let end: Option<End> = serde_json::from_str(&event.data).ok();
                return Ok(end.is_some_and(|end| end.reason == EndReason::Purged));
            }
            if let Ok(event) = windlass::store::read_json::<SessionEvent>(event.data.as_bytes()) {
                self.print(&event)?;
            }
        }
        Ok(false)
    }

    /// Without a server, prints the recorded events. The file is not kept open in between, so that a server can open it.
    async fn pages(&mut self, events: &str, api: &Api) -> Result<bool> {
        loop {
            let pairs = [("from", self.last.as_deref())];
            let page: SessionEventPage = api.get(&format!("{events}{}", query(&pairs))).await?;
            self.connected = true;
            for event in &page.events {
                self.print(event)?;
            }
            self.last = Some(page.next);
            if page.ended {
                return Ok(true);
            }
            if page.events.is_empty() {
                self.note_waiting("no server drives the session; waiting for one (`windlass serve`)");
                return Ok(false);
            }
        }
    }

    fn print(&mut self, event: &SessionEvent) -> Result<()> {
        if let Some(position) = event.position() {
            self.last = Some(position.to_owned());
        }
        if self.out.json {
            return self.out.event(event);
        }
        match event {
            SessionEvent::Message(posted) => {
                let message = &posted.message;
                let woke = match (message.run, message.woke) {
                    (Some(run), _) => format!(" (starts run {run})"),
                    (None, true) => " (wakes the session)".to_owned(),
                    (None, false) => String::new(),
                };
                let text = plain(&content(message));
                self.out.line(&format!("{}  {}: {text}{woke}", message.position, plain(&message.author)))
            }
            SessionEvent::Activity(activity) => match text::activity_line(activity, self.out) {
                Some(line) => self.out.line(&line),
                None => Ok(()),
            },
        }
    }

    /// Prints what this command waits for, unless it was the last note.
    fn note_waiting(&mut self, note: &str) {
        if self.waiting_for.as_deref() != Some(note) {
            self.out.note(note);
            self.waiting_for = Some(note.to_owned());
        }
    }
}

/// Refuses a position that no stream of a session has.
fn check_position(from: &str) -> Result<()> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = from.split('.').collect();
    if parts.len() == 4 && parts.iter().all(|part| is_number(part)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--from: `{}` is not a position in the events of a session (expected what `--json` prints as `position`)",
        plain(from)
    )))
}
