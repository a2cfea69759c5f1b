//! `windlass runs watch`: follows a run to its end, across restarts of the server.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass::RunId;
use windlass_server::wire::{Activity, End, EndReason, EventPage};

use super::text;
use crate::api::{self, Api, Event, OpenMode, query};
use crate::args::Global;
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;

/// How long to wait before connecting again.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Follows a run.
pub(super) async fn run(typed: &str, from: Option<String>, global: &Global, out: &Out) -> Result<()> {
    if let Some(position) = from.as_deref().filter(|position| after(position).is_none()) {
        let position = crate::style::plain(position);
        return Err(Failure::usage(format!(
            "--from: `{position}` is not a valid event position (expected RECORD.INDEX, for example `3.0`)"
        )));
    }
    let mut watcher = Watcher {
        typed,
        run: None,
        last: from,
        succeeded: None,
        waiting_for: None,
        announced: Announced::default(),
        out,
    };
    tokio::select! {
        done = watcher.follow(global) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    }
}

struct Watcher<'a> {
    typed: &'a str,
    run: Option<RunId>,
    /// The position of the last event.
    last: Option<String>,
    /// Whether the run succeeded, once it has ended.
    succeeded: Option<bool>,
    /// The last note about what this command waits for.
    waiting_for: Option<String>,
    announced: Announced,
    out: &'a Out,
}

/// The operations whose start was printed before it was recorded.
#[derive(Default)]
struct Announced(BTreeSet<(RunId, String)>);

impl Announced {
    /// Whether this is the start of an operation that was printed already.
    fn repeats(&mut self, activity: &Activity) -> bool {
        if !matches!(activity.kind.as_str(), "call_started" | "operation_started") {
            return false;
        }
        let operation = (activity.run, activity.path.to_string());
        if activity.position.is_none() { !self.0.insert(operation) } else { self.0.remove(&operation) }
    }
}

impl Watcher<'_> {
    async fn follow(&mut self, global: &Global) -> Result<()> {
        loop {
            let ended = match api::open(global, OpenMode::Inspect, None).await {
                Ok(api) => {
                    let ended = self.connected(&api).await;
                    api.close().await?;
                    ended
                }
                Err(failure) => Err(failure),
            };
            match ended {
                Ok(true) => return self.result(),
                Ok(false) => {}
                // The run was found before, so the server or the file is expected to come back.
                Err(failure) if failure.exit == Exit::Unreachable && self.run.is_some() => {
                    self.note_waiting(&format!("{}; waiting for a server", failure.message));
                }
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Prints new events. Returns whether the run has ended.
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
        self.waiting_for = None;
        while let Some(event) = events.next().await? {
            if event.kind == "end" {
                let end: Option<End> = serde_json::from_str(&event.data).ok();
                return Ok(end.is_some_and(|end| end.reason == EndReason::Finished));
            }
            self.print(&event)?;
        }
        Ok(false)
    }

    /// Without a server, prints the recorded events. The file is not kept open in between, so that a server can open it.
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
                self.print(&Event { id, kind: activity.kind.clone(), data })?;
            }
            if page.ended {
                return Ok(true);
            }
            if empty {
                self.note_waiting("no server drives the run; waiting for one (`windlass serve`)");
                return Ok(false);
            }
            from = Some(page.next);
        }
    }

    fn print(&mut self, event: &Event) -> Result<()> {
        if !event.id.is_empty() {
            self.last = Some(event.id.clone());
        }
        let Ok(activity) = windlass::store::read_json::<Activity>(event.data.as_bytes()) else { return Ok(()) };
        if activity.kind == "run_finished" && Some(activity.run) == self.run {
            self.succeeded = Some(activity.detail.get("ending").is_some_and(|ending| ending == "ok"));
        }
        if self.out.json {
            return self.out.event(&activity);
        }
        if self.announced.repeats(&activity) {
            return Ok(());
        }
        match text::activity_line(&activity, self.out) {
            Some(line) => self.out.line(&line),
            None => Ok(()),
        }
    }

    /// Prints what this command waits for, unless it was the last note.
    fn note_waiting(&mut self, note: &str) {
        if self.waiting_for.as_deref() != Some(note) {
            self.out.note(note);
            self.waiting_for = Some(note.to_owned());
        }
    }

    fn result(&self) -> Result<()> {
        match self.succeeded {
            Some(false) => Err(Failure::silent(Exit::Failed)),
            _ => Ok(()),
        }
    }
}

/// The position after `RECORD.INDEX`.
fn after(position: &str) -> Option<String> {
    let (record, index) = position.split_once('.')?;
    let (record, index): (u64, u32) = (record.parse().ok()?, index.parse().ok()?);
    Some(format!("{record}.{}", index.checked_add(1)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn l23_the_start_of_a_call_is_printed_once_whether_it_is_announced_or_only_recorded() {
        let activity = |path: &str, kind: &str, position: Option<&str>| -> Activity {
            let run = "01010101-0101-0101-0101-010101010101";
            let at = "2026-01-01T00:00:00Z";
            let fields = json!({"run": run, "path": path, "at": at, "kind": kind, "position": position});
            serde_json::from_value(fields).unwrap()
        };
        let mut announced = Announced::default();
        for (path, kind, position, repeats) in [
            ("0", "call_started", None, false),
            ("1", "call_started", Some("2.0"), false),
            ("0", "progress", None, false),
            ("0", "call_started", Some("3.0"), true),
            ("0", "call_finished", Some("3.1"), false),
            // Another generation uses the path again.
            ("0", "call_started", Some("9.0"), false),
        ] {
            assert_eq!(announced.repeats(&activity(path, kind, position)), repeats, "{path} {kind} {position:?}");
        }
    }
}
