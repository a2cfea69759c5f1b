//! What people said counts once: who said it first, for whoever comes late, and what it was about.

use serde_json::Value;

use super::Runtime;
use super::people::current;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{A_PERSON, Event, Finished, OpKind, Record};
use crate::run::state::{Blocked, RunInfo};
use crate::store::{Mail, Message, Settlement};
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
    /// Whether a provider is connected that a call needs.
    Connection,
}

/// What was said first, and counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// `approved`, `denied`, `happened`, `did_not_happen`, `given_up`, `connected` or `refused`; `expired` if nobody said
    /// anything in time.
    pub what: &'static str,
    /// Who said it; `a person` where the name is not recorded, as of connections.
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
        Ok(counts(said.generation(*generation), &said.mail, (*generation, path, *about)))
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

/// What counts, by the journal of its generation and by the mailbox.
fn counts(journal: &[Record], mail: &[Mail], (generation, path, about): (u32, &Path, About)) -> Option<Counted> {
    let mut here = journal.iter().filter(|record| record.path == *path);
    // A doubt may be on the list before its record is in the journal.
    let asked = here.find(|record| asks(record, about));
    // What the journal says is over is over, whatever else is still in the mailbox.
    if let Some(asked) = asked
        && let Some(closed) = here.find_map(|record| closes(record, asked, about))
    {
        return closed;
    }
    let event = asked.map(|asked| &asked.event);
    let mut said = mail.iter().filter_map(|mail| in_mail(&mail.message, event, (generation, path, about)));
    // A connection is what was said last; of anything else the first word counts.
    if about == About::Connection { said.next_back() } else { said.next() }
}

/// Whether the question begins with this record.
fn asks(record: &Record, about: About) -> bool {
    match (&record.event, about) {
        (Event::Parked { on: Blocked::Approval { .. }, .. }, About::Approval(since)) => record.at == since,
        (Event::Parked { on: Blocked::Connection { .. }, .. }, About::Connection) => true,
        (Event::Doubted { attempt, .. }, About::Doubt(asked)) => *attempt == asked,
        _ => false,
    }
}

fn in_mail(
    message: &Message,
    asked: Option<&Event>,
    (generation, path, about): (u32, &Path, About),
) -> Option<Counted> {
    match (message, about, asked) {
        // Not about the same call before it was asked for again. Messages of older files do not say since when.
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
            Some(Event::Parked { on: Blocked::Connection { provider: wanted }, .. }),
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

/// What a later record at the same place has as the end of a question, which need not be anything that was said; nothing if it
/// leaves it open.
fn closes(record: &Record, asked: &Record, about: About) -> Option<Option<Counted>> {
    match (about, &record.event) {
        (About::Approval(_), Event::Granted(grant)) => {
            Some(Some(Counted { what: "approved", by: grant.by.clone(), reason: grant.reason.clone() }))
        }
        (About::Approval(_), Event::Finished(finished)) => Some(denied(record, finished, asked)),
        // It was asked for again, because a grant was void.
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
        // Whatever it does next, it is connected.
        (About::Connection, _) => Some(Some(person("connected", ""))),
        _ => None,
    }
}

/// Who denied a call.
fn denied(record: &Record, finished: &Finished, asked: &Record) -> Option<Counted> {
    if let Some((by, reason)) = finished.refusal() {
        return Some(Counted { what: "denied", by: by.to_owned(), reason: reason.to_owned() });
    }
    let ToolError::Denied { reason } = &**finished.result.as_ref().err()? else { return None };
    Some(match is_late(record, asked) {
        true => expired(reason),
        // As older files have it, with the name in the reason.
        false => person("denied", reason),
    })
}

/// What a call that needed a connection came to, if that tells whether it was connected.
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

/// Whether a wait ended when its time was over.
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
        parked(1, Blocked::Connection { provider: "post".into() })
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

    fn says(journal: &[Record], mail: &[Mail], about: About) -> Option<String> {
        let counted = counts(journal, mail, (0, &Path::root(), about))?;
        Some(format!("{} by {}: {}", counted.what, counted.by, counted.reason))
    }

    #[test]
    fn w07_l08_a_decision_counts_for_the_question_it_was_about_alone() {
        let asked_again = [approval(1), approval(2)];
        let (old, new) = (About::Approval(at(1)), About::Approval(at(2)));
        let (of_old, of_new) = ([decision(Some(at(1)))], [decision(Some(at(2)))]);
        assert_eq!(says(&asked_again, &of_old, new), None, "it is asked anew");
        assert_eq!(says(&asked_again, &of_old, old), None, "its grant was void");
        assert_eq!(says(&asked_again, &of_new, new).as_deref(), Some("approved by ada: yes"));
        assert_eq!(says(&asked_again[..1], &of_old, old).as_deref(), Some("approved by ada: yes"));
        // A message of an older file is about what the journal asks.
        assert_eq!(says(&asked_again[..1], &[decision(None)], old).as_deref(), Some("approved by ada: yes"));
        assert_eq!(says(&asked_again[..1], &[decision(None)], new), None);
    }

    #[test]
    fn w07_l08_a_refusal_is_known_by_its_record_and_not_by_its_words() {
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
            assert_eq!(says(&[approval(1), end], &[], About::Approval(at(1))).as_deref(), expected, "{shown}");
        }
    }

    #[test]
    fn l08_what_was_said_of_a_connection_counts_also_when_the_call_has_gone_on() {
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
            assert_eq!(says(&journal, &mail, About::Connection).as_deref(), expected, "{shown}");
        }
        assert_eq!(says(&[], &[connect(None)], About::Connection), None, "nothing was asked");
    }
}
