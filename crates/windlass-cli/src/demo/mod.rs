//! `windlass demo`: a card charge survives kill -9.
//!
//! This process supervises a child that serves the demo's tools on a file, and kills it during a charge. Everything that it
//! prints comes from the public API.

mod child;
mod claims;
mod ledger;
mod screen;
mod toolbox;

use std::time::Duration;

use serde_json::{Value, json};
use windlass::RunId;
use windlass_server::wire::{
    Accepted, Activity, BulkRequest, BulkResponse, CallRequest, End, EndReason, InboxAction, InboxPage, Run,
};

use crate::api::{Api, Event, Events, query};
use crate::args::DemoArgs;
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;
use crate::style::{Tint, plain};
use crate::timeline::{Tree, draw};
use child::{Files, Server, was_killed};
use claims::Claim;
use ledger::Ledger;
use screen::Screen;
pub(crate) use toolbox::toolbox;

/// How often the timeline is redrawn and the ledger is checked.
const FRAME: Duration = Duration::from_millis(80);
/// A pause that leaves time to read.
const PAUSE: Duration = Duration::from_millis(700);
/// The demo fails if no event arrives for this long.
const TIMEOUT: Duration = Duration::from_secs(60);

const GOOD: (Tint, char) = (Tint::Good, '✓');
const STEP: (Tint, char) = (Tint::Bold, '▸');

/// Runs the demo. It succeeds only if all its claims hold.
pub(crate) async fn run(args: &DemoArgs, out: &Out) -> Result<()> {
    let files = Files::new(args.dir.as_deref())?;
    tokio::select! {
        done = Demo::run(files, args.yes, out) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    }
}

/// The state of the demo.
struct Demo {
    files: Files,
    ledger: Ledger,
    server: Server,
    api: Api,
    screen: Screen,
    run: RunId,
    /// The position of the last event.
    last: Option<String>,
    yes: bool,
    /// The process that was killed.
    killed: Option<u32>,
    denied: bool,
    /// An attempt to charge is running.
    charging: bool,
}

impl Demo {
    async fn run(files: Files, yes: bool, out: &Out) -> Result<()> {
        let mut screen = Screen::new(out);
        screen.line(&format!("{}  {}", out.bold("windlass demo"), out.dim(&files.folder.display().to_string())))?;
        let server = Server::start(&files).await?;
        screen.log(STEP, &format!("process {} serves demo.db at {}", server.pid, server.url))?;
        let api = Api::remote(&server.url, None)?;
        let run = start(&api).await?;
        screen.log(STEP, &format!("run {run}: books a trip to Oslo: five searches, two at a time, then a charge"))?;
        let ledger = Ledger::new(&files.ledger);
        let mut demo = Self {
            files,
            ledger,
            server,
            api,
            screen,
            run,
            last: None,
            yes,
            killed: None,
            denied: false,
            charging: false,
        };
        demo.follow().await?;
        demo.finish(out).await?;
        demo.server.stop().await;
        Ok(())
    }

    async fn follow(&mut self) -> Result<()> {
        let mut events = self.events().await?;
        let mut frame = tokio::time::interval(FRAME);
        let mut quiet_since = std::time::Instant::now();
        loop {
            tokio::select! {
                biased;
                event = events.next() => match event? {
                    Some(event) if event.kind == "end" => match end(&event) {
                        EndReason::Finished => return Ok(()),
                        _ => events = self.events().await?,
                    },
                    Some(event) => {
                        quiet_since = std::time::Instant::now();
                        self.handle(event).await?;
                    }
                    None => events = self.events().await?,
                },
                _ = frame.tick() => {
                    self.screen.draw();
                    if self.charging && self.killed.is_none() && self.is_in_ledger()? {
                        self.kill_and_restart().await?;
                        events = self.events().await?;
                        quiet_since = std::time::Instant::now();
                    }
                    if quiet_since.elapsed() > TIMEOUT {
                        return Err(Failure::new(Exit::Failed, format!("run {} does not proceed; see the log in {}", self.run, self.files.folder.display())));
                    }
                }
            }
        }
    }

    async fn events(&self) -> Result<Events> {
        self.api.events(&format!("/v1/runs/{}/events", self.run), self.last.as_deref()).await
    }

    async fn handle(&mut self, event: Event) -> Result<()> {
        if !event.id.is_empty() {
            self.last = Some(event.id.clone());
        }
        let Ok(activity) = serde_json::from_str::<Activity>(&event.data) else { return Ok(()) };
        self.screen.add(activity.clone());
        self.report(&activity).await
    }

    /// Prints a line for the activities that matter.
    async fn report(&mut self, activity: &Activity) -> Result<()> {
        let text = |field: &str| activity.detail.get(field).and_then(Value::as_str).unwrap_or_default();
        let of_charge = self.is_charge(activity);
        match activity.kind.as_str() {
            "progress" if of_charge => self.charging = true,
            "progress" => self.screen.log((Tint::Dim, '·'), &plain(text("message")))?,
            "call_finished" if text("tool") == "search" => {
                let ms =
                    |part: &str| activity.detail.get("times").and_then(|times| times[part].as_f64()).unwrap_or(0.0);
                let (queued, ran) = (ms("queued_ms"), ms("running_ms"));
                let line = format!("search {} done: {queued:.0} ms queued, {ran:.0} ms running", activity.path);
                self.screen.log(GOOD, &line)?;
            }
            "parked" if activity.detail.get("on").is_some_and(|on| on["kind"] == "approval") => self.decide().await?,
            "granted" => self.screen.log(GOOD, "approved: this charge, once")?,
            "attempt_started" if of_charge => {
                self.charging = true;
                self.screen.log(STEP, "the intent to charge is recorded; asking the bank now")?;
            }
            "run_recovered" => {
                self.screen
                    .log((Tint::Good, '↻'), "the run is recovered; finished searches are read from the journal")?;
            }
            "in_doubt" => {
                self.screen.log((Tint::Doubt, '?'), "the charge is in doubt: it may or may not have happened")?
            }
            "settled" => {
                let line = "the tool's reconcile function found the charge in the bank's ledger; it is not made again";
                self.screen.log(GOOD, line)?;
            }
            "run_finished" => self.screen.log(GOOD, &format!("run finished ({})", plain(text("ending"))))?,
            _ => {}
        }
        Ok(())
    }

    /// Whether an activity belongs to the charge.
    fn is_charge(&self, activity: &Activity) -> bool {
        let is_start = |other: &&Activity| other.path == activity.path && other.kind == "call_started";
        let started = self.screen.activities.iter().find(is_start);
        started.is_some_and(|other| other.detail.get("tool").and_then(Value::as_str) == Some("charge"))
    }

    /// Asks the user for approval, and sends the decision.
    async fn decide(&mut self) -> Result<()> {
        let inbox: InboxPage =
            self.api.get(&format!("/v1/inbox{}", query(&[("run", Some(&self.run.to_string()))]))).await?;
        // Already decided, before the stream was interrupted.
        let Some(item) = inbox.items.first() else { return Ok(()) };
        let cents = item.args.as_ref().and_then(|args| args["cents"].as_u64()).unwrap_or(0);
        let price = format!("{}.{:02}", cents / 100, cents % 100);
        self.screen
            .log((Tint::Park, '…'), &format!("the charge of {price} waits for approval: {}", plain(&item.why)))?;
        let agreed = if self.yes {
            tokio::time::sleep(PAUSE).await;
            self.screen.log((Tint::Dim, '·'), "approved automatically (--yes)")?;
            true
        } else {
            self.screen.ask(&format!("Charge Ada {price}? [y/N]"));
            answer().await?
        };
        self.denied = !agreed;
        let action = if agreed { InboxAction::Approve } else { InboxAction::Deny };
        let reason = Some(if agreed { "approved in the demo" } else { "denied in the demo" }.to_owned());
        let request = BulkRequest {
            action,
            ids: Some(vec![item.id.clone()]),
            filter: None,
            reason,
            settlement: None,
            value: None,
            error: None,
            refused: None,
        };
        let decided: BulkResponse = self.api.post("/v1/inbox", &request, None).await?;
        match decided.results.iter().find_map(|result| result.problem.as_ref()) {
            Some(problem) => Err(Failure::new(Exit::Failed, plain(&problem.detail))),
            None => Ok(()),
        }
    }

    fn is_in_ledger(&self) -> Result<bool> {
        let charges = self.ledger.charges_of(&self.run.to_string());
        let charges =
            charges.map_err(|error| Failure::new(Exit::Failed, format!("could not read the ledger: {error}")))?;
        Ok(!charges.is_empty())
    }

    /// Kills the server after the charge was made and before its result is recorded, and starts another.
    async fn kill_and_restart(&mut self) -> Result<()> {
        self.screen.log(STEP, "the bank has made the charge; its response is not recorded yet")?;
        let pid = self.server.pid;
        let status = self.server.kill().await?;
        if was_killed(status) {
            self.killed = Some(pid);
        }
        self.screen.log((Tint::Bad, '✕'), &format!("kill -9 {pid}: the process is dead ({status})"))?;
        tokio::time::sleep(PAUSE).await;
        self.server = Server::start(&self.files).await?;
        self.api = Api::remote(&self.server.url, None)?;
        let line = format!("process {} opens the same file and serves it at {}", self.server.pid, self.server.url);
        self.screen.log(STEP, &line)
    }

    async fn finish(&mut self, out: &Out) -> Result<()> {
        let run: Run = self.api.get(&format!("/v1/runs/{}", self.run)).await?;
        let claims = if self.denied {
            claims::of_denial(&run, &self.ledger)?
        } else {
            claims::of_charge(&run, &self.screen.activities, self.killed, &self.ledger)?
        };
        let holds = claims.iter().all(|claim| claim.holds);
        self.screen.clear();
        if out.json {
            let checked: Vec<Value> =
                claims.iter().map(|one| json!({"holds": one.holds, "claim": one.sentence})).collect();
            out.event(&json!({"run": run.id, "file": self.files.database, "claims": checked, "ok": holds}))?;
        } else {
            self.close(&run, &claims, out)?;
        }
        if !holds {
            return Err(Failure::new(
                Exit::Failed,
                format!("not all claims hold; see {}", self.files.folder.display()),
            ));
        }
        if !self.yes && out.terminal && !out.json {
            self.screen.line(&out.dim("the server is still running: press Enter to stop it"))?;
            answer().await?;
        }
        Ok(())
    }

    fn close(&mut self, run: &Run, claims: &[Claim], out: &Out) -> Result<()> {
        out.line("")?;
        // Only recorded activities, so that the timeline is the one that `runs show` draws later.
        let recorded = self.screen.activities.iter().filter(|activity| activity.position.is_some());
        let mut tree = Tree::of(recorded, screen::now());
        tree.notes.retain(|note| note.line);
        out.lines(&draw(&tree, &out.style))?;
        out.line("")?;
        out.line(&out.bold("Verified"))?;
        for claim in claims {
            let (tint, sign) = if claim.holds { (Tint::Good, "✓") } else { (Tint::Bad, "✗") };
            out.line(&format!("  {} {}", out.style.paint(tint, sign), claim.sentence))?;
        }
        out.line("")?;
        out.line(&out.bold("Explore"))?;
        let program = std::env::args().next().unwrap_or_else(|| "windlass".to_owned());
        let file = self.files.database.display();
        let ways = [
            (format!("{program} --file {file} runs show {}", run.id), "the timeline of this run"),
            (
                format!("{program} --file {file} serve --demo {}", self.files.ledger.display()),
                "start the server again, with its tools",
            ),
            (format!("cat {}", self.files.ledger.display()), "the bank's ledger"),
        ];
        for (command, what) in ways {
            out.line(&format!("  {command}"))?;
            out.line(&out.dim(&format!("      {what}")))?;
        }
        let api = if self.yes { "the API was at" } else { "the API is at" };
        out.line(&format!("  {api} {}/v1/runs/{}", self.server.url, run.id))
    }
}

async fn start(api: &Api) -> Result<RunId> {
    let request = CallRequest {
        tool: "book_trip".to_owned(),
        args: json!({"customer": "Ada", "to": "Oslo"}),
        session: None,
        layer: None,
        call_id: None,
        metadata: None,
        cause: None,
        wait_ms: Some(0),
    };
    let accepted: Accepted = api.post("/v1/calls", &request, None).await?;
    Ok(accepted.run)
}

fn end(event: &Event) -> EndReason {
    serde_json::from_str::<End>(&event.data).map_or(EndReason::Failed, |end| end.reason)
}

/// Reads a line from standard input. Returns whether it is yes; no input counts as no.
async fn answer() -> Result<bool> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = read.await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let line = line.map_err(|error| Failure::new(Exit::Failed, format!("could not read the answer: {error}")))?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}
