//! The world outside: it starts runs, answers, decides, signals, settles and cancels, and asks again where it was not told.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::model::Model;
use super::tools::NUMBERS;
use crate::call::{ToolCall, idempotency_key};
use crate::error::Error;
use crate::id::RunId;
use crate::run::state::{Blocked, Hold, RunState};
use crate::runtime::{About, Awaited, Question, Resolved, Runtime, Start};
use crate::store::{Filter, Resolution, Settlement, Store};
use crate::tool::Output;

/// Something the outside wants done.
#[derive(Clone, Debug)]
pub(super) struct Errand {
    pub(super) tool: &'static str,
    /// Once the outside was told.
    pub(super) run: Option<RunId>,
    /// Numbers that were taken for certain.
    pub(super) sent: usize,
    pub(super) cancelled: bool,
}

/// What the outside knows. Cloning shares it.
#[derive(Clone)]
pub(super) struct Outside {
    pub(super) model: Arc<Model>,
    pub(super) errands: Arc<Mutex<Vec<Errand>>>,
}

/// Whether the outside agrees to this run: always the same answer.
pub(super) fn agrees(run: RunId) -> bool {
    !run.as_bytes()[15].is_multiple_of(3)
}

impl Outside {
    pub(super) async fn start(self, runtime: Runtime, index: usize) {
        let tool = self.errands.lock()[index].tool;
        let call = ToolCall::new(tool, json!({}));
        if let Ok(run) = runtime.start_with(call, Start::key(format!("errand {index}"))).await {
            let name = self.model.name(run);
            self.model.say(format!("errand {index} is {name}, {tool}"));
            let before = self.errands.lock()[index].run.replace(run);
            if before.is_some_and(|before| before != run) {
                self.model.problem(format!("one key started two runs of {tool}"));
            }
        }
    }

    /// Calls and waits: what it is told must be durable.
    pub(super) async fn call(self, runtime: Runtime, tool: &'static str, store: Arc<dyn Store>) {
        let Ok(outcome) = runtime.call(ToolCall::new(tool, json!({}))).await else { return };
        let state = store.info(outcome.run).await.ok().flatten().map(|info| info.state);
        let name = self.model.name(outcome.run);
        self.model.say(format!("{name}, {tool}, is over"));
        if !matches!(state, Some(RunState::Finished { .. })) {
            self.model.problem(format!("the caller of {name} was told an outcome that is not recorded: {state:?}"));
        }
    }

    /// Sends the next number.
    pub(super) async fn signal(self, runtime: Runtime, index: usize) {
        let Errand { run, sent, .. } = self.errands.lock()[index].clone();
        let Some(run) = run.filter(|_| sent < NUMBERS) else { return };
        if runtime.signal(run, "number", json!(sent), Some(&format!("number {sent}"))).await.is_ok() {
            let errand = &mut self.errands.lock()[index];
            errand.sent = errand.sent.max(sent + 1);
            let name = self.model.name(run);
            self.model.say(format!("{name} was sent {sent}"));
        }
    }

    pub(super) async fn cancel(self, runtime: Runtime, run: RunId) {
        let name = self.model.name(run);
        self.model.say(format!("{name} is to be cancelled"));
        drop(runtime.cancel(run, "the outside", "changed its mind").await);
    }

    /// Sees to one thing in the inbox.
    pub(super) async fn answer_one(self, runtime: Runtime, choice: u64) {
        let Ok(inbox) = runtime.inbox().await else { return };
        let index = usize::try_from(choice % (inbox.len() as u64).max(1)).unwrap_or(0);
        if let Some(item) = inbox.get(index) {
            self.see_to(&runtime, item, choice % 1_000).await;
        }
    }

    async fn see_to(&self, runtime: &Runtime, item: &Awaited, value: u64) {
        let name = self.model.name(item.run);
        match (&item.park.on, &item.key) {
            (Blocked::Input { .. }, Some(key)) => self.resolve(runtime, item.run, key, value).await,
            (Blocked::Approval { digest, .. }, _) => {
                let granted = agrees(item.run);
                let why = ("the outside", "as always");
                let told = runtime.decide(item.run, &item.park.path, digest, granted, why).await;
                self.model.say(format!("{name} was granted {granted}: {}", told.is_ok()));
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
            Ok(Resolved::Accepted) => {
                self.model.say(format!("{name} was answered {value}"));
                self.model.accepted(run, key, &value);
            }
            Ok(told) => {
                self.model.say(format!("{name} was not answered {value}: {told:?}"));
                self.model.told(run, key, told);
            }
            Err(_) => {}
        }
    }

    /// Answers what was answered before.
    pub(super) async fn answer_late(self, runtime: Runtime, choice: u64) {
        if let Some((run, key)) = self.model.answered(choice) {
            self.resolve(&runtime, run, &key, 1_000 + choice % 1_000).await;
        }
    }

    /// A second word about a doubt, which must not count and must be told what did.
    async fn settle_late(&self, runtime: &Runtime, question: &Question) {
        let name = self.model.name(question.run);
        match runtime.settle_once(question, Settlement::GiveUp, "a latecomer", "has no idea").await {
            Ok(()) => self.model.problem(format!("the doubt at {} of {name} was settled twice", question.path)),
            Err(Error::Conflict(_) | Error::StillRunning { .. }) => {}
            Err(_) => return,
        }
        let cancelled = self.errands.lock().iter().any(|errand| errand.run == Some(question.run) && errand.cancelled);
        match runtime.counted(question).await {
            Ok(Some(counted)) if counted.by == "a latecomer" => {
                self.model.problem(format!("a latecomer counts at {} of {name}", question.path));
            }
            Ok(None) if !cancelled => {
                self.model.problem(format!("the doubt at {} of {name} is settled, and nothing counts", question.path));
            }
            _ => {}
        }
    }

    /// Settles one doubt as the books say.
    pub(super) async fn settle_one(self, runtime: Runtime, choice: u64) {
        let Ok(doubts) = runtime.doubts().await else { return };
        let index = usize::try_from(choice % (doubts.len() as u64).max(1)).unwrap_or(0);
        let Some((run, doubt)) = doubts.get(index) else { return };
        let Ok(Some(info)) = runtime.info(*run).await else { return };
        let happened = self.model.happened(&idempotency_key(*run, info.generation, &doubt.path));
        // What was asked is answered by its key.
        if let Some(key) = self.model.handed_out(*run).filter(|_| happened) {
            return self.resolve(&runtime, *run, &key, choice % 1_000).await;
        }
        // An undoing step returns nothing.
        let value = if doubt.operation.contains("undo") { json!(null) } else { json!("done") };
        let settlement = match happened {
            true => Settlement::Happened(Ok(Arc::new(Output::value(value)))),
            false => Settlement::DidNotHappen,
        };
        let told = runtime.settle(*run, &doubt.path, settlement, "the outside", "as the books say").await;
        let name = self.model.name(*run);
        self.model.say(format!("{name} at {}: it happened: {happened}, taken: {}", doubt.path, told.is_ok()));
        if told.is_ok() && choice.is_multiple_of(2) {
            let (path, about) = (doubt.path.clone(), About::Doubt(doubt.attempt));
            self.settle_late(&runtime, &Question { run: *run, generation: info.generation, path, about }).await;
        }
    }

    /// Does everything that can be done.
    pub(super) async fn help(self, runtime: Runtime) {
        let errands = self.errands.lock().clone();
        for (index, errand) in errands.iter().enumerate() {
            if errand.run.is_none() {
                self.clone().start(runtime.clone(), index).await;
            }
            for _ in errand.sent..NUMBERS {
                if matches!(errand.tool, "listener" | "counter") {
                    self.clone().signal(runtime.clone(), index).await;
                }
            }
        }
        for item in runtime.inbox().await.unwrap_or_default() {
            self.see_to(&runtime, &item, 7).await;
        }
        let doubts = runtime.doubts().await.unwrap_or_default().len();
        for choice in 0..doubts as u64 {
            self.clone().settle_one(runtime.clone(), choice).await;
        }
        self.unhold(&runtime).await;
    }

    /// Many deaths in a row look like a crash loop, and are none here.
    async fn unhold(&self, runtime: &Runtime) {
        for info in runtime.list(Filter::Held, None, 100).await.unwrap_or_default() {
            match info.state {
                RunState::Held { hold: Hold::CrashLoop { .. } } => drop(runtime.resume(info.run).await),
                state => self.model.problem(format!("{} is {state:?}", self.model.name(info.run))),
            }
        }
    }
}
