//! What people said counts once: who said it first, for whoever comes late, and what it was about.

use serde_json::Value;

use super::Runtime;
use super::people::current;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{Event, OpKind, Record};
use crate::run::state::{Blocked, RunInfo};
use crate::store::{Message, Settlement};
use crate::time::Timestamp;
use crate::tool::ToolError;

/// Something a person is, or was, asked: exactly this, and not the same again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which run.
    pub run: RunId,
    /// Which generation of it.
    pub generation: u32,
    /// Where.
    pub path: Path,
    /// What.
    pub about: About,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Whether a call may be made; asked since then.
    Approval(Timestamp),
    /// Whether an attempt happened.
    Doubt(u32),
}

/// What was said first, and counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// `approved`, `denied`, `happened`, `did_not_happen` or `given_up`; `expired` if nobody said anything in time.
    pub what: &'static str,
    /// Who said it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A call of a run, for whoever is asked about it.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedCall {
    /// The tool's id.
    pub tool: std::sync::Arc<str>,
    /// Its arguments, as it is made with them.
    pub args: Value,
    /// The same without their secrets; nothing where the tool that knows them is not here.
    pub shown: Option<Value>,
}

impl Runtime {
    /// What counts as the answer to a question; nothing if it is still open, or never was asked.
    pub async fn counted(&self, question: &Question) -> Result<Option<Counted>> {
        let Question { run, generation, path, about } = question;
        let said = self.said(*run).await?;
        // What the journal says is over is over, whatever else is still in the mailbox.
        if let Some(closed) = in_journal(said.generation(*generation), path, *about) {
            return Ok(closed);
        }
        Ok(said.mail.iter().find_map(|mail| in_mail(&mail.message, *generation, path, *about)))
    }

    /// The calls that stand at these paths of a run's latest generation, in their order; nothing where no call does.
    pub async fn asked_calls(&self, run: RunId, paths: &[Path]) -> Result<Vec<Option<AskedCall>>> {
        let journal = current(self.kernel.store.journal(run, 0).await?);
        Ok(paths.iter().map(|path| self.asked_call(&journal, path)).collect())
    }

    fn asked_call(&self, journal: &[Record], path: &Path) -> Option<AskedCall> {
        let here = || journal.iter().filter(|record| record.path == *path);
        let asked = here().find_map(|record| record.asked.as_ref()).filter(|asked| asked.kind == OpKind::Call)?;
        // What middleware or the tool made of it is what is done.
        let prepared = here().find_map(|record| match &record.event {
            Event::Prepared(prepared) => prepared.args.clone(),
            _ => None,
        });
        let args = prepared.or_else(|| asked.input.clone()).unwrap_or_default();
        let tool = self.kernel.tool_of(asked);
        let shown = tool.and_then(|tool| tool.without_secrets(&args));
        Some(AskedCall { tool: asked.name.clone(), args: (*args).clone(), shown })
    }

    /// The question a run asks at this place now.
    pub(super) fn open_question(info: &RunInfo, question: &Question) -> Result<()> {
        let Question { run, generation, path, about } = question;
        let open = info.generation == *generation
            && match about {
                About::Approval(since) => info.parks.iter().any(|park| {
                    park.path == *path && park.since == *since && matches!(park.on, Blocked::Approval { .. })
                }),
                About::Doubt(attempt) => {
                    info.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt)
                }
            };
        if open {
            return Ok(());
        }
        Err(Error::Conflict(format!("nothing at {path} of run {run} waits for this any more; look at the inbox again")))
    }
}

fn in_mail(message: &Message, generation: u32, path: &Path, about: About) -> Option<Counted> {
    match (message, about) {
        (Message::Decide { path: at, generation: of, granted, by, reason, .. }, About::Approval(_))
            if at == path && *of == generation =>
        {
            let what = if *granted { "approved" } else { "denied" };
            Some(Counted { what, by: by.clone(), reason: reason.clone() })
        }
        (Message::Settle { path: at, generation: of, attempt, settlement, by, reason }, About::Doubt(asked))
            if at == path && *of == generation && *attempt == asked =>
        {
            let what = match settlement {
                Settlement::Happened(_) => "happened",
                Settlement::DidNotHappen => "did_not_happen",
                Settlement::GiveUp => "given_up",
            };
            Some(Counted { what, by: by.clone(), reason: reason.clone() })
        }
        _ => None,
    }
}

/// What the journal has as the end of a question, which need not be anything that was said; nothing while it is open.
fn in_journal(journal: &[Record], path: &Path, about: About) -> Option<Option<Counted>> {
    let mut here = journal.iter().filter(|record| record.path == *path);
    match about {
        About::Approval(since) => {
            here.find(|record| {
                record.at == since && matches!(record.event, Event::Parked { on: Blocked::Approval { .. }, .. })
            })?;
            here.find_map(|record| match &record.event {
                Event::Granted(grant) => {
                    Some(Some(Counted { what: "approved", by: grant.by.clone(), reason: grant.reason.clone() }))
                }
                Event::Finished(finished) => Some(finished.answer().err().and_then(|error| denial(&error))),
                // It was asked for again, because a grant was void.
                Event::Parked { on: Blocked::Approval { .. }, .. } => Some(None),
                _ => None,
            })
        }
        About::Doubt(attempt) => {
            here.find(|record| matches!(record.event, Event::Doubted { attempt: of, .. } if of == attempt))?;
            here.find_map(|record| match &record.event {
                Event::Settled { attempt: of, by, reason } if *of == attempt => {
                    Some(Some(Counted { what: "did_not_happen", by: by.to_string(), reason: reason.clone() }))
                }
                Event::Finished(finished) => Some(finished.settled.as_ref().map(|settled| {
                    let given_up =
                        matches!(finished.answer(), Err(error) if matches!(*error, ToolError::InDoubt { .. }));
                    let what = if given_up { "given_up" } else { "happened" };
                    Counted { what, by: settled.by.to_string(), reason: settled.reason.clone() }
                })),
                _ => None,
            })
        }
    }
}

/// Who denied a call, from what the caller was told.
fn denial(error: &ToolError) -> Option<Counted> {
    let ToolError::Denied { reason } = error else { return None };
    let said = reason.strip_prefix("denied by ").and_then(|rest| rest.split_once(": "));
    Some(match said {
        Some((by, reason)) => Counted { what: "denied", by: by.to_owned(), reason: reason.to_owned() },
        None => Counted { what: "expired", by: "policy".to_owned(), reason: reason.clone() },
    })
}
