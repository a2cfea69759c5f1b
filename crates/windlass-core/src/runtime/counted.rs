//! Which decision of a person counts: the first one, and what it was about.

use std::sync::Arc;

use serde_json::Value;

use super::Runtime;
use super::messages::current;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{A_PERSON, Event, Finished, OpKind, Record};
use crate::run::state::{Blocked, RunInfo};
use crate::store::{Mail, Message, Settlement};
use crate::time::Timestamp;
use crate::tool::ToolError;

/// A question to a person about one thing at one time. If the same thing is asked again later, that is another
/// question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The run that asks.
    pub run: RunId,
    /// The generation of the run.
    pub generation: u32,
    /// The operation that waits.
    pub path: Path,
    /// What the question is about.
    pub about: About,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Whether a call may be made; asked at this time.
    Approval(Timestamp),
    /// Whether this attempt took effect.
    Doubt(u32),
    /// Whether the provider that a call needs is connected.
    Connection,
}

/// The decision that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// `approved`, `denied`, `happened`, `did_not_happen`, `given_up`, `connected` or `refused`; `expired` if no
    /// decision came in time.
    pub what: &'static str,
    /// Who decided; `a person` if the name is not recorded, as for connections.
    pub by: String,
    /// The reason that was given.
    pub reason: String,
}

/// A call about which a person is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedCall {
    /// The tool's id.
    pub tool: std::sync::Arc<str>,
    /// The arguments of its attempts.
    pub args: Value,
    /// The arguments without their secrets; `None` if the tool is not registered here.
    pub shown: Option<Value>,
}

impl Runtime {
    /// The decision that counts for a question; `None` if the question is open or was never asked.
    pub async fn counted(&self, question: &Question) -> Result<Option<Counted>> {
        let Question { run, generation, path, about } = question;
        let facts = self.facts(*run).await?;
        Ok(counts(facts.generation(*generation), &facts.mail, (*generation, path, *about)))
    }

    /// The calls at these paths of a run's latest generation, in the order of the paths; `None` for a path without a
    /// call.
    pub async fn asked_calls(&self, run: RunId, paths: &[Path]) -> Result<Vec<Option<AskedCall>>> {
        let journal = current(self.kernel.store.journal(run, 0).await?);
        let session = self.kernel.session_of(run).await?;
        Ok(paths.iter().map(|path| self.asked_call(&journal, path, session.as_ref())).collect())
    }

    fn asked_call(&self, journal: &[Record], path: &Path, session: Option<&Arc<str>>) -> Option<AskedCall> {
        let here = || journal.iter().filter(|record| record.path == *path);
        let asked = here().find_map(|record| record.asked.as_ref()).filter(|asked| asked.kind == OpKind::Call)?;
        // The prepared arguments are the ones that its attempts use.
        let prepared = here().find_map(|record| match &record.event {
            Event::Prepared(prepared) => prepared.args.clone(),
            _ => None,
        });
        let args = prepared.or_else(|| asked.input.clone()).unwrap_or_default();
        let tool = self.kernel.tool_of(asked, session);
        let shown = tool.and_then(|tool| tool.without_secrets(&args));
        Some(AskedCall { tool: asked.name.clone(), args: (*args).clone(), shown })
    }

    /// Refuses a question that the run does not ask now.
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
                About::Connection => {
                    info.parks.iter().any(|park| park.path == *path && matches!(park.on, Blocked::Connection { .. }))
                }
            };
        if open {
            return Ok(());
        }
        Err(Error::Conflict(format!("nothing at {path} of run {run} waits for this any more; look at the inbox again")))
    }
}

/// The decision that counts, according to the journal of its generation and the mailbox.
fn counts(journal: &[Record], mail: &[Mail], (generation, path, about): (u32, &Path, About)) -> Option<Counted> {
    let mut here = journal.iter().filter(|record| record.path == *path);
    // A doubt may be listed before its record is in the journal.
    let asked = here.find(|record| asks(record, about));
    // A question that the journal closes is closed, whatever messages are still pending.
    if let Some(asked) = asked
        && let Some(closed) = here.find_map(|record| closes(record, asked, about))
    {
        return closed;
    }
    let event = asked.map(|asked| &asked.event);
    let mut pending = mail.iter().filter_map(|mail| in_mail(&mail.message, event, (generation, path, about)));
    // For a connection the last message counts, for anything else the first one.
    if about == About::Connection { pending.next_back() } else { pending.next() }
}

/// Whether this record begins the question.
fn asks(record: &Record, about: About) -> bool {
    match (&record.event, about) {
        (Event::Parked { on: Blocked::Approval { .. }, .. }, About::Approval(since)) => record.at == since,
        (Event::Parked { on: Blocked::Connection { .. }, .. }, About::Connection) => true,
        (Event::Doubted { attempt, .. }, About::Doubt(asked)) => *attempt == asked,
        _ => false,
    }
}

/// The decision in a pending message, if it is about the question.
fn in_mail(
    message: &Message,
    asked: Option<&Event>,
    (generation, path, about): (u32, &Path, About),
) -> Option<Counted> {
    match (message, about, asked) {
        // A decision about an earlier request for the same call does not count. Messages of older files have no
        // `since`.
        (Message::Decide { path: at, generation: of, since, granted, by, reason, .. }, About::Approval(wanted), _)
            if at == path && *of == generation && since.map_or(asked.is_some(), |since| since == wanted) =>
        {
            let what = if *granted { "approved" } else { "denied" };
            Some(Counted { what, by: by.clone(), reason: reason.clone() })
        }
        (Message::Settle { path: at, generation: of, attempt, settlement, by, reason }, About::Doubt(asked), _)
            if at == path && *of == generation && *attempt == asked =>
        {
            let what = match settlement {
                Settlement::Happened(_) => "happened",
                Settlement::DidNotHappen => "did_not_happen",
                Settlement::GiveUp => "given_up",
            };
            Some(Counted { what, by: by.clone(), reason: reason.clone() })
        }
        (
            Message::Connect { provider, refused },
            About::Connection,
            Some(Event::Parked { on: Blocked::Connection { provider: wanted, .. }, .. }),
        ) if provider == wanted => Some(match refused {
            Some(reason) => person("refused", reason),
            None => person("connected", ""),
        }),
        _ => None,
    }
}

fn person(what: &'static str, reason: &str) -> Counted {
    Counted { what, by: A_PERSON.to_owned(), reason: reason.to_owned() }
}

/// The decision with which a later record at the same path closes the question; `Some(None)` if it closes it without a
/// decision, `None` if it leaves it open.
fn closes(record: &Record, asked: &Record, about: About) -> Option<Option<Counted>> {
    match (about, &record.event) {
        (About::Approval(_), Event::Granted(grant)) => {
            Some(Some(Counted { what: "approved", by: grant.by.clone(), reason: grant.reason.clone() }))
        }
        (About::Approval(_), Event::Finished(finished)) => Some(denied(record, finished, asked)),
        // It was asked again, because an approval had expired.
        (About::Approval(_), Event::Parked { on: Blocked::Approval { .. }, .. }) => Some(None),
        (About::Doubt(attempt), Event::Settled { attempt: of, by, reason }) if *of == attempt => {
            Some(Some(Counted { what: "did_not_happen", by: by.to_string(), reason: reason.clone() }))
        }
        (About::Doubt(_), Event::Finished(finished)) => Some(finished.settlement().map(|settled| {
            let given_up = matches!(finished.answer(), Err(error) if matches!(*error, ToolError::InDoubt { .. }));
            let what = if given_up { "given_up" } else { "happened" };
            Counted { what, by: settled.by.to_string(), reason: settled.reason.clone() }
        })),
        (About::Connection, Event::Finished(finished)) => Some(connected(record, finished, asked)),
        // Any other record means that the call continued, so the provider is connected.
        (About::Connection, _) => Some(Some(person("connected", ""))),
        _ => None,
    }
}

/// Who denied the call, if it was denied.
fn denied(record: &Record, finished: &Finished, asked: &Record) -> Option<Counted> {
    if let Some((by, reason)) = finished.refusal() {
        return Some(Counted { what: "denied", by: by.to_owned(), reason: reason.to_owned() });
    }
    let ToolError::Denied { reason } = &**finished.result.as_ref().err()? else { return None };
    Some(match is_late(record, asked) {
        true => expired(reason),
        // In older files the name is part of the reason.
        false => person("denied", reason),
    })
}

/// Whether the provider was connected, if the end of the call tells.
fn connected(record: &Record, finished: &Finished, asked: &Record) -> Option<Counted> {
    match (finished.refusal(), &finished.result) {
        (Some((_, reason)), _) => Some(person("refused", reason)),
        (None, Err(error)) => match &**error {
            ToolError::Cancelled { .. } => None,
            ToolError::ConnectionRequired { .. } if is_late(record, asked) => Some(expired("not connected")),
            _ => Some(person("connected", "")),
        },
        (None, Ok(_)) => Some(person("connected", "")),
    }
}

fn expired(reason: &str) -> Counted {
    Counted { what: "expired", by: "policy".to_owned(), reason: reason.to_owned() }
}

/// Whether a wait ended because its time was over.
fn is_late(record: &Record, asked: &Record) -> bool {
    matches!(asked.event, Event::Parked { until: Some(until), .. } if record.at >= until)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::record::{Settled, Settler};
    use crate::time::Times;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn record(micros: i64, event: Event) -> Record {
        Record { path: Path::root(), at: at(micros), asked: None, event }
    }

    fn parked(micros: i64, on: Blocked) -> Record {
        record(micros, Event::Parked { on, until: Some(at(100)), attempt: 0 })
    }

    fn approval(micros: i64) -> Record {
        let (tool, digest, why) = ("pay".into(), "d".to_owned(), String::new());
        parked(micros, Blocked::Approval { tool, digest, why })
    }

    fn connection() -> Record {
        parked(1, Blocked::Connection { provider: "post".into(), after: None, why: None })
    }

    fn ended(micros: i64, error: ToolError, by: Option<Settler>) -> Record {
        let settled = by.map(|by| Box::new(Settled { by, reason: "too dear".to_owned() }));
        let (result, times) = (Err(Arc::new(error)), Times::default());
        record(micros, Event::Finished(Finished { result, told: None, attempts: 1, times, settled }))
    }

    fn mail(message: Message) -> Mail {
        Mail { position: 1, message }
    }

    fn decision(since: Option<Timestamp>) -> Mail {
        let (path, digest, by) = (Path::root(), "d".to_owned(), "ada".to_owned());
        let (reason, until) = ("yes".to_owned(), at(50));
        mail(Message::Decide { path, generation: 0, digest, since, granted: true, by, reason, until })
    }

    fn connect(refused: Option<&str>) -> Mail {
        mail(Message::Connect { provider: "post".into(), refused: refused.map(str::to_owned) })
    }

    fn decision_text(journal: &[Record], mail: &[Mail], about: About) -> Option<String> {
        let counted = counts(journal, mail, (0, &Path::root(), about))?;
        Some(format!("{} by {}: {}", counted.what, counted.by, counted.reason))
    }

    #[test]
    fn w07_l08_a_decision_counts_only_for_its_own_question() {
        let asked_again = [approval(1), approval(2)];
        let (old, new) = (About::Approval(at(1)), About::Approval(at(2)));
        let (of_old, of_new) = ([decision(Some(at(1)))], [decision(Some(at(2)))]);
        assert_eq!(decision_text(&asked_again, &of_old, new), None, "it was asked again");
        assert_eq!(decision_text(&asked_again, &of_old, old), None, "its approval had expired");
        assert_eq!(decision_text(&asked_again, &of_new, new).as_deref(), Some("approved by ada: yes"));
        assert_eq!(decision_text(&asked_again[..1], &of_old, old).as_deref(), Some("approved by ada: yes"));
        // A message of an older file is about the current question.
        assert_eq!(decision_text(&asked_again[..1], &[decision(None)], old).as_deref(), Some("approved by ada: yes"));
        assert_eq!(decision_text(&asked_again[..1], &[decision(None)], new), None);
    }

    #[test]
    fn w07_l08_a_refusal_is_recognized_by_its_record_and_not_by_its_text() {
        let denied = |reason: &str| ToolError::denied(reason);
        let ada = || Some(Settler::Refuser(Some("ada".to_owned())));
        let rows = [
            (ended(5, denied("denied by ada: too dear"), ada()), Some("denied by ada: too dear")),
            (ended(5, denied("in other words"), ada()), Some("denied by ada: too dear")),
            (ended(100, denied("denied by eve: late"), None), Some("expired by policy: denied by eve: late")),
            (ended(5, denied("denied by ada: no"), None), Some("denied by a person: denied by ada: no")),
            (ended(5, ToolError::failed("x"), None), None),
        ];
        for (end, expected) in rows {
            let shown = format!("{end:?}");
            assert_eq!(decision_text(&[approval(1), end], &[], About::Approval(at(1))).as_deref(), expected, "{shown}");
        }
    }

    #[test]
    fn l08_a_decision_about_a_connection_still_counts_after_the_call_continued() {
        let lacks = || ToolError::ConnectionRequired { provider: "post".to_owned() };
        let stopped = ToolError::Cancelled { reason: "enough".to_owned() };
        let refused = ended(5, ToolError::denied("x"), Some(Settler::Refuser(None)));
        let rows = [
            (vec![], vec![], None),
            (vec![], vec![connect(None)], Some("connected by a person: ")),
            (vec![], vec![connect(None), connect(Some("no"))], Some("refused by a person: no")),
            (vec![record(5, Event::Entered)], vec![], Some("connected by a person: ")),
            (vec![approval(5)], vec![], Some("connected by a person: ")),
            (vec![refused], vec![connect(None)], Some("refused by a person: too dear")),
            (vec![ended(5, ToolError::denied("by the tool itself"), None)], vec![], Some("connected by a person: ")),
            (vec![ended(5, lacks(), None)], vec![], Some("connected by a person: ")),
            (vec![ended(100, lacks(), None)], vec![], Some("expired by policy: not connected")),
            (vec![ended(5, stopped, None)], vec![connect(None)], None),
        ];
        for (after, mail, expected) in rows {
            let journal: Vec<Record> = std::iter::once(connection()).chain(after).collect();
            let shown = format!("{journal:?} {mail:?}");
            assert_eq!(decision_text(&journal, &mail, About::Connection).as_deref(), expected, "{shown}");
        }
        assert_eq!(decision_text(&[], &[connect(None)], About::Connection), None, "nothing was asked");
    }
}
