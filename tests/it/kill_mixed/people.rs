//! Answers, decides, signals and settles for the runs of a child. After a crash everything is sent again, which must
//! change nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::inbox::{Awaited, Blocked, Doubt, Resolution, Settlement};
use windlass::run::{Filter, Hold, RunState};
use windlass::{Output, RunId, Windlass};

use super::plan::NUMBERS;
use crate::kill::LedgerFile;

pub(crate) struct People {
    pub(crate) windlass: Windlass,
    pub(crate) ledger: LedgerFile,
    /// What this child has sent.
    pub(crate) said: BTreeSet<String>,
}

impl People {
    /// Handles everything that waits for a person.
    pub(crate) async fn handle_all(&mut self) {
        for item in self.windlass.inbox().waiting().await.expect("the inbox") {
            let what = format!("{} {} {:?}", item.run, item.park.path, item.park.since);
            if self.said.insert(what) {
                self.answer(&item).await;
            }
        }
        for (run, doubt) in self.windlass.inbox().doubts().await.expect("the doubts") {
            let what = format!("{run} {} {}", doubt.path, doubt.attempt);
            if !self.said.contains(&what) && self.settle(run, &doubt).await {
                self.said.insert(what);
            }
        }
        for info in self.windlass.list(Filter::held(), None, 100).await.expect("the held runs") {
            let RunState::Held { hold } = &info.state else { continue };
            // Many crashes in a row look like a crash loop, and are none here.
            assert!(matches!(hold, Hold::CrashLoop { .. }), "{} is held: {hold}", info.run);
            // The previous owner may not have released the run yet.
            let ended = self.windlass.runtime().attach(info.run).await;
            assert!(ended.is_err(), "a held run has no outcome: {ended:?}");
            self.windlass.runtime().resume(info.run).await.expect("it is taken up again");
        }
    }

    async fn answer(&self, item: &Awaited) {
        let said = match (&item.park.on, &item.key) {
            (Blocked::Input { .. }, Some(key)) => {
                let value = json!(item.run.to_string());
                self.windlass.inbox().resolve(key, Resolution::Ok { value }).await.map(drop)
            }
            (Blocked::Approval { tool, .. }, _) if **tool == *"forbidden" => {
                self.windlass.inbox().deny(item, "ada", "no").await
            }
            (Blocked::Approval { .. }, _) => self.windlass.inbox().approve(item, "ada", "fine").await,
            (other, _) => panic!("nothing waits for {other:?} here"),
        };
        // Another caller may have answered a moment before.
        let late = |text: String| ["inbox again", "already", "finished"].iter().any(|word| text.contains(word));
        assert!(said.as_ref().err().is_none_or(|error| late(error.to_string())), "{said:?}");
    }

    /// Settles as the ledger says, except where the person is meant to decide otherwise.
    async fn settle(&self, run: RunId, doubt: &Doubt) -> bool {
        let Some(info) = self.windlass.runtime().info(run).await.expect("the run") else { return false };
        let key = std::iter::once(format!("{run}.{}", info.generation))
            .chain(doubt.path.positions().iter().map(ToString::to_string))
            .collect::<Vec<_>>()
            .join(".");
        let settlement = match &doubt.operation {
            operation if operation.contains("wobble") => {
                self.ledger.of(&key).note(&format!("again {key} {}", doubt.attempt));
                Settlement::DidNotHappen
            }
            operation if operation.contains("risky") => Settlement::GiveUp,
            operation if self.ledger.of(&key).lines().iter().any(|line| line.ends_with(&format!(" {key}"))) => {
                // A tool returns its name; a step returns nothing.
                let tool = operation.split('`').nth(1);
                let value = tool.map_or(Value::Null, |tool| json!(tool));
                Settlement::Happened(Ok(Arc::new(Output::value(value))))
            }
            _ => Settlement::DidNotHappen,
        };
        let told = self.windlass.inbox().settle(run, &doubt.path, settlement, "ada", "as the books say").await;
        let late = |text: String| ["in doubt", "already", "finished"].iter().any(|word| text.contains(word));
        assert!(told.as_ref().err().is_none_or(|error| late(error.to_string())), "{told:?}");
        true
    }

    /// Sends a listener its numbers.
    pub(crate) async fn signal(windlass: &Windlass, run: RunId) {
        for number in 0..NUMBERS {
            let sent = windlass.runtime().signal(run, "number", json!(number), Some(&format!("number {number}"))).await;
            let late = |text: String| text.contains("finished");
            assert!(sent.as_ref().err().is_none_or(|error| late(error.to_string())), "{sent:?}");
        }
    }

    /// Whether all work is done. Does not query state by state: a run that wakes between two such queries would be in
    /// neither.
    pub(crate) async fn is_over(&self) -> bool {
        let mut after = None;
        loop {
            let page = self.windlass.list(Filter::default(), after, 1_000).await.expect("the runs");
            if page.iter().any(|info| !matches!(info.state, RunState::Finished { .. })) {
                return false;
            }
            after = page.last().map(|info| info.run);
            if page.len() < 1_000 {
                return true;
            }
        }
    }
}
