//! The clients of the simulated world: they start runs, answer, decide, signal, settle and cancel, and repeat requests
//! that were not answered.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::model::Model;
use super::tools::{NUMBERS, SESSION};
use crate::call::{ToolCall, idempotency_key};
use crate::error::Error;
use crate::id::RunId;
use crate::run::state::{Blocked, Hold, RunState};
use crate::runtime::{About, Awaited, Question, ReplyResult, Runtime, Start};
use crate::store::{Filter, Resolution, Settlement, Store};
use crate::tool::Output;

/// A run that a client wants.
#[derive(Clone, Debug)]
pub(super) struct WantedRun {
    pub(super) tool: &'static str,
    /// The run, once the client knows it.
    pub(super) run: Option<RunId>,
    /// How many numbers were certainly accepted.
    pub(super) sent: usize,
    pub(super) cancelled: bool,
}

/// The clients. Clones share their state.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) model: Arc<Model>,
    pub(super) wanted: Arc<Mutex<Vec<WantedRun>>>,
}

/// Whether the clients approve calls of this run; always the same answer for a run.
pub(super) fn agrees(run: RunId) -> bool {
    !run.as_bytes()[15].is_multiple_of(3)
}

impl Clients {
    pub(super) async fn start(self, runtime: Runtime, index: usize) {
        let tool = self.wanted.lock()[index].tool;
        let call = ToolCall::new(tool, json!({}));
        let session = (tool == "press").then(|| SESSION.into());
        let how = Start { session, ..Start::key(format!("wanted run {index}")) };
        if let Ok(run) = runtime.start_with(call, how).await {
            let name = self.model.name(run);
            self.model.log_line(format!("wanted run {index} is {name}, {tool}"));
            let before = self.wanted.lock()[index].run.replace(run);
            if before.is_some_and(|before| before != run) {
                self.model.problem(format!("one key started two runs of {tool}"));
            }
        }
    }

    /// Makes a call and waits. The outcome that it returns must be durable.
    pub(super) async fn call(self, runtime: Runtime, tool: &'static str, store: Arc<dyn Store>) {
        let Ok(outcome) = runtime.call(ToolCall::new(tool, json!({}))).await else { return };
        let state = store.info(outcome.run).await.ok().flatten().map(|info| info.state);
        let name = self.model.name(outcome.run);
        self.model.log_line(format!("{name}, {tool}, has ended"));
        if !matches!(state, Some(RunState::Finished { .. })) {
            self.model.problem(format!("the caller of {name} got an outcome that is not recorded: {state:?}"));
        }
    }

    /// Sends the next number.
    pub(super) async fn signal(self, runtime: Runtime, index: usize) {
        let WantedRun { run, sent, .. } = self.wanted.lock()[index].clone();
        let Some(run) = run.filter(|_| sent < NUMBERS) else { return };
        if runtime.signal(run, "number", json!(sent), Some(&format!("number {sent}"))).await.is_ok() {
            let wanted_run = &mut self.wanted.lock()[index];
            wanted_run.sent = wanted_run.sent.max(sent + 1);
            let name = self.model.name(run);
            self.model.log_line(format!("{name} was sent {sent}"));
        }
    }

    pub(super) async fn cancel(self, runtime: Runtime, run: RunId) {
        let name = self.model.name(run);
        self.model.log_line(format!("{name} is to be cancelled"));
        drop(runtime.cancel(run, "the outside", "changed its mind").await);
    }

    /// Answers one item of the inbox.
    pub(super) async fn answer_one(self, runtime: Runtime, choice: u64) {
        let Ok(inbox) = runtime.inbox().await else { return };
        let index = usize::try_from(choice % (inbox.len() as u64).max(1)).unwrap_or(0);
        if let Some(item) = inbox.get(index) {
            self.answer_item(&runtime, item, choice % 1_000).await;
        }
    }

    async fn answer_item(&self, runtime: &Runtime, item: &Awaited, value: u64) {
        let name = self.model.name(item.run);
        match (&item.park.on, &item.key) {
            (Blocked::Input { .. }, Some(key)) => self.resolve(runtime, item.run, key, value).await,
            (Blocked::Approval { digest, .. }, _) => {
                let granted = agrees(item.run);
                let why = ("the outside", "as always");
                let told = runtime.decide(item.run, &item.park.path, digest, granted, why).await;
                self.model.log_line(format!("{name} was granted {granted}: {}", told.is_ok()));
            }
            _ => {}
        }
    }

    async fn resolve(&self, runtime: &Runtime, run: RunId, key: &str, value: u64) {
        let value = json!(value);
        self.model.answering(run, key, &value);
        let told = runtime.resolve(key, Resolution::Ok { value: value.clone() }).await;
        let name = self.model.name(run);
        match told {
            Ok(ReplyResult::Accepted) => {
                self.model.log_line(format!("{name} was answered {value}"));
                self.model.accepted(run, key, &value);
            }
            Ok(told) => {
                self.model.log_line(format!("{name} was not answered {value}: {told:?}"));
                self.model.told(run, key, told);
            }
            Err(_) => {}
        }
    }

    /// Answers with a reply key that was used before.
    pub(super) async fn answer_late(self, runtime: Runtime, choice: u64) {
        if let Some((run, key)) = self.model.answered(choice) {
            self.resolve(&runtime, run, &key, 1_000 + choice % 1_000).await;
        }
    }

    /// Settles a doubt a second time. That must be refused, and the first settlement must count.
    async fn settle_late(&self, runtime: &Runtime, question: &Question) {
        let name = self.model.name(question.run);
        match runtime.settle_once(question, Settlement::GiveUp, "a latecomer", "a second settlement").await {
            Ok(()) => self.model.problem(format!("the doubt at {} of {name} was settled twice", question.path)),
            Err(Error::Conflict(_) | Error::StillRunning { .. }) => {}
            Err(_) => return,
        }
        let cancelled =
            self.wanted.lock().iter().any(|wanted_run| wanted_run.run == Some(question.run) && wanted_run.cancelled);
        match runtime.counted(question).await {
            Ok(Some(counted)) if counted.by == "a latecomer" => {
                self.model.problem(format!("a second settlement counts at {} of {name}", question.path));
            }
            Ok(None) if !cancelled => {
                self.model
                    .problem(format!("the doubt at {} of {name} is settled, but no decision counts", question.path));
            }
            _ => {}
        }
    }

    /// Settles one doubt according to the effects that happened.
    pub(super) async fn settle_one(self, runtime: Runtime, choice: u64) {
        let Ok(doubts) = runtime.doubts().await else { return };
        let index = usize::try_from(choice % (doubts.len() as u64).max(1)).unwrap_or(0);
        let Some((run, doubt)) = doubts.get(index) else { return };
        let Ok(Some(info)) = runtime.info(*run).await else { return };
        let happened = self.model.happened(&idempotency_key(*run, info.generation, &doubt.path));
        // A call of `office` is answered with its reply key.
        if let Some(key) = self.model.handed_out(*run).filter(|_| happened) {
            return self.resolve(&runtime, *run, &key, choice % 1_000).await;
        }
        // A step that undoes another one returns nothing.
        let value = if doubt.operation.contains("undo") { json!(null) } else { json!("done") };
        let settlement = match happened {
            true => Settlement::Happened(Ok(Arc::new(Output::value(value)))),
            false => Settlement::DidNotHappen,
        };
        let told = runtime.settle(*run, &doubt.path, settlement, "the outside", "as recorded outside").await;
        let name = self.model.name(*run);
        self.model.log_line(format!("{name} at {}: happened: {happened}, accepted: {}", doubt.path, told.is_ok()));
        if told.is_ok() && choice.is_multiple_of(2) {
            let (path, about) = (doubt.path.clone(), About::Doubt(doubt.attempt));
            self.settle_late(&runtime, &Question { run: *run, generation: info.generation, path, about }).await;
        }
    }

    /// Does everything that runs may wait for.
    pub(super) async fn help(self, runtime: Runtime) {
        let wanted = self.wanted.lock().clone();
        for (index, wanted_run) in wanted.iter().enumerate() {
            if wanted_run.run.is_none() {
                self.clone().start(runtime.clone(), index).await;
            }
            for _ in wanted_run.sent..NUMBERS {
                if matches!(wanted_run.tool, "listener" | "counter") {
                    self.clone().signal(runtime.clone(), index).await;
                }
            }
        }
        for item in runtime.inbox().await.unwrap_or_default() {
            self.answer_item(&runtime, &item, 7).await;
        }
        let doubts = runtime.doubts().await.unwrap_or_default().len();
        for choice in 0..doubts as u64 {
            self.clone().settle_one(runtime.clone(), choice).await;
        }
        self.unhold(&runtime).await;
    }

    /// Resumes runs that look like a crash loop because of the many simulated deaths.
    async fn unhold(&self, runtime: &Runtime) {
        for info in runtime.list(Filter::held(), None, 100).await.unwrap_or_default() {
            match info.state {
                RunState::Held { hold: Hold::CrashLoop { .. } } => drop(runtime.resume(info.run).await),
                state => self.model.problem(format!("{} is {state:?}", self.model.name(info.run))),
            }
        }
    }
}
