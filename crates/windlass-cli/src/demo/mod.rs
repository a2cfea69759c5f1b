//! `windlass demo`: a charge survives kill -9, before everybody's eyes.
//!
//! This process supervises; the work is done by a child that serves the demo's tools on a file, and that dies in the middle
//! of a charge. Everything that is told is read from the API, as anybody could.

mod child;
mod ledger;
mod proof;
mod stage;
mod toolbox;

use std::time::Duration;

use serde_json::{Value, json};
use windlass::RunId;
use windlass_server::wire::{
    Accepted, Activity, CallRequest, End, EndReason, InboxAction, InboxPage, ManyAnswer, ManyRequest, Run,
};

use crate::api::{Api, Event, Events, query};
use crate::args::DemoArgs;
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;
use crate::style::{Tint, plain};
use crate::timeline::{Tree, draw};
use child::{Files, Server, was_killed};
use ledger::Ledger;
use proof::Claim;
use stage::Stage;
pub(crate) use toolbox::toolbox;

/// How often the picture is drawn, and the world outside is looked at.
const FRAME: Duration = Duration::from_millis(80);
/// Somebody wants to read before the next thing happens.
const BREATH: Duration = Duration::from_millis(700);
/// Nothing of the demo takes longer, unless a person is asked.
const PATIENCE: Duration = Duration::from_secs(60);

const GOOD: (Tint, char) = (Tint::Good, '✓');
const STEP: (Tint, char) = (Tint::Bold, '▸');

/// Runs the demo. Ends well only if everything it claims is true.
pub(crate) async fn run(args: &DemoArgs, out: &Out) -> Result<()> {
    let files = Files::new(args.dir.as_deref())?;
    tokio::select! {
        done = Demo::play(files, args.yes, out) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    }
}

/// The demo on its way.
struct Demo {
    files: Files,
    ledger: Ledger,
    server: Server,
    api: Api,
    stage: Stage,
    run: RunId,
    /// The place in the stream that was read last.
    last: Option<String>,
    yes: bool,
    /// The process that was killed.
    killed: Option<u32>,
    denied: bool,
    /// An attempt at the charge is being made.
    charging: bool,
}

impl Demo {
    async fn play(files: Files, yes: bool, out: &Out) -> Result<()> {
        let mut stage = Stage::new(out);
        stage.line(&format!("{}  {}", out.bold("windlass demo"), out.dim(&files.folder.display().to_string())))?;
        let server = Server::start(&files).await?;
        stage.say(STEP, &format!("process {} serves demo.db at {}", server.pid, server.url))?;
        let api = Api::remote(&server.url, None)?;
        let run = start(&api).await?;
        stage.say(STEP, &format!("run {run}: book a trip to Oslo; five searches, two at a time, then a charge"))?;
        let ledger = Ledger::new(&files.ledger);
        let mut demo = Self {
            files,
            ledger,
            server,
            api,
            stage,
            run,
            last: None,
            yes,
            killed: None,
            denied: false,
            charging: false,
        };
        demo.follow_to_the_end().await?;
        demo.finish(out).await?;
        demo.server.end().await;
        Ok(())
    }

    async fn follow_to_the_end(&mut self) -> Result<()> {
        let mut events = self.listen().await?;
        let mut frame = tokio::time::interval(FRAME);
        let mut quiet_since = std::time::Instant::now();
        loop {
            tokio::select! {
                biased;
                event = events.next() => match event? {
                    Some(event) if event.kind == "end" => match end(&event) {
                        EndReason::Finished => return Ok(()),
                        _ => events = self.listen().await?,
                    },
                    Some(event) => {
                        quiet_since = std::time::Instant::now();
                        self.heard(event).await?;
                    }
                    None => events = self.listen().await?,
                },
                _ = frame.tick() => {
                    self.stage.draw();
                    if self.charging && self.killed.is_none() && self.is_in_the_books()? {
                        self.kill_and_come_back().await?;
                        events = self.listen().await?;
                        quiet_since = std::time::Instant::now();
                    }
                    if quiet_since.elapsed() > PATIENCE {
                        return Err(Failure::new(Exit::Failed, format!("run {} does not go on; see {}", self.run, self.files.folder.display())));
                    }
                }
            }
        }
    }

    async fn listen(&self) -> Result<Events> {
        self.api.events(&format!("/v1/runs/{}/events", self.run), self.last.as_deref()).await
    }

    async fn heard(&mut self, event: Event) -> Result<()> {
        if !event.id.is_empty() {
            self.last = Some(event.id.clone());
        }
        let Ok(activity) = serde_json::from_str::<Activity>(&event.data) else { return Ok(()) };
        self.stage.take(activity.clone());
        self.tell(&activity).await
    }

    /// What is worth a line that stays.
    async fn tell(&mut self, activity: &Activity) -> Result<()> {
        let text = |field: &str| activity.detail.get(field).and_then(Value::as_str).unwrap_or_default();
        let of_charge = self.is_charge(activity);
        match activity.kind.as_str() {
            "progress" if of_charge => self.charging = true,
            "progress" => self.stage.say((Tint::Dim, '·'), &plain(text("message")))?,
            "call_finished" if text("tool") == "search" => {
                let ms =
                    |part: &str| activity.detail.get("times").and_then(|times| times[part].as_f64()).unwrap_or(0.0);
                let (queued, ran) = (ms("queued_ms"), ms("running_ms"));
                let said = format!("search {} done: {queued:.0} ms queued, {ran:.0} ms running", activity.path);
                self.stage.say(GOOD, &said)?;
            }
            "parked" if activity.detail.get("on").is_some_and(|on| on["kind"] == "approval") => self.decide().await?,
            "granted" => self.stage.say(GOOD, "approved: exactly this charge, once")?,
            "attempt_started" if of_charge => {
                self.charging = true;
                self.stage.say(STEP, "the intention to charge is durable; now the bank is asked")?;
            }
            "run_recovered" => {
                self.stage.say((Tint::Good, '↻'), "the run is taken up; finished searches answer from the journal")?;
            }
            "in_doubt" => self.stage.say((Tint::Doubt, '?'), "the charge is in doubt: it may have happened, or not")?,
            "settled" => {
                let said = "the tool's reconcile looked into the bank's ledger, and found it: nothing is charged again";
                self.stage.say(GOOD, said)?;
            }
            "run_finished" => self.stage.say(GOOD, &format!("the run ended: {}", plain(text("ending"))))?,
            _ => {}
        }
        Ok(())
    }

    /// Whether an activity is about the charge: the only call right below the body.
    fn is_charge(&self, activity: &Activity) -> bool {
        let named = |other: &&Activity| other.path == activity.path && other.kind == "call_started";
        let started = self.stage.activities.iter().find(named);
        started.is_some_and(|other| other.detail.get("tool").and_then(Value::as_str) == Some("charge"))
    }

    /// Asks for approval, and passes it on.
    async fn decide(&mut self) -> Result<()> {
        let inbox: InboxPage =
            self.api.get(&format!("/v1/inbox{}", query(&[("run", Some(&self.run.to_string()))]))).await?;
        // It was decided before the stream broke off.
        let Some(item) = inbox.items.first() else { return Ok(()) };
        let cents = item.args.as_ref().and_then(|args| args["cents"].as_u64()).unwrap_or(0);
        let price = format!("{}.{:02}", cents / 100, cents % 100);
        self.stage
            .say((Tint::Park, '…'), &format!("the charge of {price} waits for approval: {}", plain(&item.why)))?;
        let agreed = if self.yes {
            tokio::time::sleep(BREATH).await;
            self.stage.say((Tint::Dim, '·'), "approved by itself, because of --yes")?;
            true
        } else {
            self.stage.ask(&format!("Charge Ada {price}? [y/N]"));
            answer().await?
        };
        self.denied = !agreed;
        let action = if agreed { InboxAction::Approve } else { InboxAction::Deny };
        let reason = Some(if agreed { "asked in the demo" } else { "said no in the demo" }.to_owned());
        let request = ManyRequest {
            action,
            ids: Some(vec![item.id.clone()]),
            filter: None,
            reason,
            settlement: None,
            value: None,
            error: None,
            refused: None,
        };
        let decided: ManyAnswer = self.api.post("/v1/inbox", &request, None).await?;
        match decided.results.iter().find_map(|result| result.problem.as_ref()) {
            Some(problem) => Err(Failure::new(Exit::Failed, plain(&problem.detail))),
            None => Ok(()),
        }
    }

    fn is_in_the_books(&self) -> Result<bool> {
        let charges = self.ledger.charges_of(&self.run.to_string());
        let charges =
            charges.map_err(|error| Failure::new(Exit::Failed, format!("the ledger cannot be read: {error}")))?;
        Ok(!charges.is_empty())
    }

    /// The plug is pulled after the money was taken and before anybody could write that down.
    async fn kill_and_come_back(&mut self) -> Result<()> {
        self.stage.say(STEP, "the bank has taken the money; its answer is not recorded yet")?;
        let pid = self.server.pid;
        let status = self.server.kill().await?;
        if was_killed(status) {
            self.killed = Some(pid);
        }
        self.stage.say((Tint::Bad, '✕'), &format!("kill -9 {pid}: the process is dead ({status})"))?;
        tokio::time::sleep(BREATH).await;
        self.server = Server::start(&self.files).await?;
        self.api = Api::remote(&self.server.url, None)?;
        let said = format!("process {} opens the same file, at {}", self.server.pid, self.server.url);
        self.stage.say(STEP, &said)
    }

    async fn finish(&mut self, out: &Out) -> Result<()> {
        let run: Run = self.api.get(&format!("/v1/runs/{}", self.run)).await?;
        let claims = if self.denied {
            proof::of_denial(&run, &self.ledger)?
        } else {
            proof::of_charge(&run, &self.stage.activities, self.killed, &self.ledger)?
        };
        let holds = claims.iter().all(|claim| claim.holds);
        self.stage.clear();
        if out.json {
            let proven: Vec<Value> =
                claims.iter().map(|one| json!({"holds": one.holds, "claim": one.sentence})).collect();
            out.event(&json!({"run": run.id, "file": self.files.database, "proven": proven, "ok": holds}))?;
        } else {
            self.close(&run, &claims, out)?;
        }
        if !holds {
            return Err(Failure::new(Exit::Failed, "not everything was true; the files of the demo are kept"));
        }
        if !self.yes && out.terminal && !out.json {
            self.stage.line(&out.dim("the server is still there: press Enter to end it"))?;
            answer().await?;
        }
        Ok(())
    }

    fn close(&mut self, run: &Run, claims: &[Claim], out: &Out) -> Result<()> {
        out.line("")?;
        // Without what was only said: as anybody sees the run later.
        let recorded = self.stage.activities.iter().filter(|activity| activity.position.is_some());
        let mut tree = Tree::of(recorded, stage::now());
        tree.notes.retain(|note| note.line);
        out.lines(&draw(&tree, &out.style))?;
        out.line("")?;
        out.line(&out.bold("Proven"))?;
        for claim in claims {
            let (tint, sign) = if claim.holds { (Tint::Good, "✓") } else { (Tint::Bad, "✗") };
            out.line(&format!("  {} {}", out.style.paint(tint, sign), claim.sentence))?;
        }
        out.line("")?;
        out.line(&out.bold("Look around"))?;
        let program = std::env::args().next().unwrap_or_else(|| "windlass".to_owned());
        let file = self.files.database.display();
        let ways = [
            (format!("{program} --file {file} runs show {}", run.id), "this run, as a timeline"),
            (
                format!("{program} --file {file} serve --demo {}", self.files.ledger.display()),
                "the server again, with its tools",
            ),
            (format!("cat {}", self.files.ledger.display()), "the bank's own books"),
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
        wait_ms: Some(0),
    };
    let accepted: Accepted = api.post("/v1/calls", &request, None).await?;
    Ok(accepted.run)
}

fn end(event: &Event) -> EndReason {
    serde_json::from_str::<End>(&event.data).map_or(EndReason::Failed, |end| end.reason)
}

/// A line from the keyboard: whether it says yes. Nothing at all says no.
async fn answer() -> Result<bool> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = read.await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let line = line.map_err(|error| Failure::new(Exit::Failed, format!("the answer cannot be read: {error}")))?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}
