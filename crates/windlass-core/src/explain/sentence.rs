//! The sentences of an explanation. Each one says what is the case and what would change it. Operators read them.

use std::time::Duration;

use super::{Move, RunEnd, Why};
use crate::path::Path;
use crate::run::state::{Blocked, Ending, RunInfo, RunState};
use crate::time::{Timestamp, words};
use crate::tool::Layers;

/// How many reasons one sentence lists; the others are counted.
const LISTED: usize = 3;

/// Adds the layers that the run was called through.
pub(super) fn with_layers(sentence: String, layers: &Layers) -> String {
    if layers.is_empty() { sentence } else { format!("{sentence} (called through {layers})") }
}

/// The sentence about an unfinished run.
pub(super) fn unfinished(info: &RunInfo, moves: &[Move]) -> String {
    let state = match &info.state {
        RunState::Queued => "is queued",
        RunState::Running => "is running",
        RunState::Suspended { .. } => "is suspended",
        RunState::Held { .. } => "is held",
        RunState::Finished { .. } => "is finished",
    };
    let mut parts: Vec<&str> = moves.iter().take(LISTED).map(|one| one.sentence.as_str()).collect();
    let more = match moves.len().saturating_sub(LISTED) {
        1 => "one more operation is not listed".to_owned(),
        more => format!("{more} more operations are not listed"),
    };
    if moves.len() > LISTED {
        parts.push(&more);
    }
    if parts.is_empty() {
        // The run is between two operations, or its row was written after its journal was read.
        parts.push("it is between two operations and continues by itself; ask again");
    }
    format!("Run {} of `{}` {state}: {}.", info.run, info.tool, parts.join("; and "))
}

/// The sentence about a finished run.
pub(super) fn finished(info: &RunInfo, end: &RunEnd) -> String {
    let how = match end.ending {
        Ending::Ok => "succeeded",
        Ending::Failed => "failed",
        Ending::Cancelled => "was cancelled",
        Ending::Lost => "was lost with the process that owned it; no other process may continue it",
    };
    let why = end.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
    let doubts = match info.doubts.len() {
        0 => String::new(),
        1 => "; one of its attempts may or may not have taken effect: settle it".to_owned(),
        open => format!("; {open} of its attempts may or may not have taken effect: settle them"),
    };
    format!("Run {} of `{}` {how}{why}{doubts}.", info.run, info.tool)
}

/// A point in time, relative to now and absolute.
fn when(at: Timestamp, now: Timestamp) -> String {
    let (ahead, ago) = (at.since(now), now.since(at));
    match (ahead.is_zero(), ago.is_zero()) {
        (true, true) => format!("now ({at})"),
        (false, _) => format!("in {} ({at})", words(ahead)),
        _ => format!("{} ago ({at})", words(ago)),
    }
}

/// The location of an operation as it appears in a sentence; empty for the run itself.
fn location(path: &Path) -> String {
    if path.is_root() { String::new() } else { format!(" at {path}") }
}

/// The sentence about an operation in progress.
pub(super) fn in_progress(path: &Path, why: &Why, timeout: Option<Duration>, now: Timestamp) -> String {
    let text = of(path, why, now);
    match timeout {
        Some(timeout) => format!("{text}, and each attempt times out after {}", words(timeout)),
        None => text,
    }
}

/// The sentence about one reason.
pub(super) fn of(path: &Path, why: &Why, now: Timestamp) -> String {
    let place = location(path);
    match why {
        Why::Queued { session: None, .. } => "it starts when a worker claims it".to_owned(),
        Why::Queued { session: Some(session), behind, others } => {
            let hidden = match others {
                1 => "a run of another principal".to_owned(),
                others => format!("{others} runs of other principals"),
            };
            let turns = match (behind.as_slice(), others) {
                ([], 0) => "all earlier runs of the session have ended".to_owned(),
                ([], _) => format!("unfinished before it: {hidden}"),
                ([run], 0) => format!("unfinished before it: run {run}"),
                ([run, rest @ ..], 0) => format!("unfinished before it: run {run} and {} more", rest.len()),
                ([run], _) => format!("unfinished before it: run {run} and {hidden}"),
                ([run, rest @ ..], _) => {
                    format!("unfinished before it: run {run}, {} more, and {hidden}", rest.len())
                }
            };
            format!(
                "it starts when a worker claims it and, if it is a turn of session `{session}`, the earlier turns have \
                 ended ({turns})"
            )
        }
        Why::Suspect => "a process died while it drove this run, so it is driven alone: it starts when the other runs \
                         that were interrupted like this have ended or are waiting"
            .to_owned(),
        Why::Attempt { operation, attempt, since, over_by } => {
            let by = over_by.map(|by| format!(", at the latest {}", when(by, now))).unwrap_or_default();
            format!("attempt {attempt} of {operation}{place} started {}; it ends by itself{by}", when(*since, now))
        }
        Why::AtWork { operation, since } => format!(
            "{operation}{place} started {} and is running or queued for a permit; it continues by itself",
            when(*since, now)
        ),
        Why::Waits { operation, on, since, until, child } => {
            let waited = words(now.since(*since));
            let waits = format!("{operation}{place} has been waiting for {waited} (since {since})");
            let child = child.as_ref().map(|child| child.sentence.trim_end_matches('.'));
            format!("{waits}; {}", moved_by(on, *until, child, now))
        }
        Why::InDoubt { operation, attempt, cause, over_by, said } => {
            let cause = cause.with(said.as_deref());
            let effective = if *over_by <= now {
                "each of the three takes effect at once".to_owned()
            } else {
                format!("\"it did not happen\" takes effect {}", when(*over_by, now))
            };
            format!(
                "it is unknown whether attempt {attempt} of {operation}{place} took effect, because {cause}; settle \
                 it: it happened, it did not happen, or give up ({effective})"
            )
        }
        Why::Key { key, holder, other_principal } => {
            let holder = match holder {
                Some((run, path)) => format!("run {run} holds at {path}"),
                None if *other_principal => "a run of another principal holds".to_owned(),
                None => "another call holds".to_owned(),
            };
            format!("a call{place} is queued for key `{key}`, which {holder}; it continues when that call ends")
        }
        Why::Breaker { target, until } => {
            let continues = match until {
                Some(until) => format!("one attempt is let through {}", when(*until, now)),
                None => "it continues when the attempt that tests the target has ended".to_owned(),
            };
            format!("a call{place} waits because attempts at `{target}` failed one after the other; {continues}")
        }
        Why::CleaningUp { by, reason, until } => format!(
            "{by} cancelled it ({reason}); it cleans up and ends by itself, or is stopped {}",
            when(*until, now)
        ),
        Why::Held { hold } => hold.to_string(),
        Why::Elsewhere => "this process does not drive it: the process that owns it continues it, or `resume` \
                           continues it here"
            .to_owned(),
        Why::OwnerGone => "the process that drove it is gone; the next process that drives all runs continues it, or \
                           `resume` continues it here"
            .to_owned(),
        Why::NotDriven { run } => {
            let run = run.map_or_else(|| "a run of another principal".to_owned(), |run| format!("run {run}"));
            format!("this process leaves {run} as it is; the next process that drives all runs continues that run")
        }
        Why::InMailbox { message } => {
            format!("{message} is recorded{place}; the next process that drives the run applies it")
        }
    }
}

/// Who or what ends a wait.
fn moved_by(on: &Blocked, until: Option<Timestamp>, child: Option<&str>, now: Timestamp) -> String {
    let at = |until: Option<Timestamp>| until.map_or_else(|| "later".to_owned(), |until| when(until, now));
    let otherwise = |what: &str| until.map(|until| format!(", or {what} {}", when(until, now))).unwrap_or_default();
    match on {
        Blocked::Time => format!("it continues by itself {}", at(until)),
        Blocked::Retry => format!("its last attempt failed, and the next one starts {}", at(until)),
        Blocked::Input { name, .. } => {
            let late = otherwise("the wait times out");
            format!("it continues when \"{name}\" is answered with its reply key, which the inbox shows{late}")
        }
        Blocked::Signal { name } => {
            format!("it continues when the run gets the signal \"{name}\"{}", otherwise("the wait times out"))
        }
        Blocked::Child { run } => {
            let child = child.map(|child| format!(" ({child})")).unwrap_or_default();
            format!("it continues when run {run} has ended{child}{}", otherwise("the wait times out"))
        }
        Blocked::Approval { tool, why, .. } => {
            let late = otherwise("it is denied");
            format!("a person must approve or deny this call of `{tool}`, which needs approval because {why}{late}")
        }
        Blocked::Key { key } => {
            format!("it continues when key `{key}` is free{}", otherwise("the wait times out"))
        }
        Blocked::Connection { provider, .. } => {
            format!("it continues when a person connects {provider}{}", otherwise("the call fails"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use crate::run::record::DoubtCause;
    use crate::run::state::{Divergence, Hold};
    use crate::store::SessionPath;

    fn all_holds() -> Vec<Hold> {
        let path = Path::root().child(2);
        let divergence = Divergence { path: path.clone(), recorded: None, asked: None, differences: Vec::new() };
        vec![
            Hold::Diverged(Box::new(divergence)),
            Hold::CrashLoop { path: path.clone(), deaths: 3 },
            Hold::ToolMissing { path: path.clone(), tool: "gone".into() },
            Hold::ToolHidden { path: path.clone(), tool: "gone".into(), session: "ada".into() },
            Hold::LayerMissing { path: path.clone(), layer: "guest".into() },
            Hold::Undecodable { path: path.clone(), problem: "a number".into() },
            Hold::MessagesGone { path: path.clone(), session: "ada".into() },
            Hold::FileGone { path: path.clone(), session: "ada".into(), file: SessionPath::root() },
            Hold::Abandoned { path, operation: "step \"pay\"".into() },
            Hold::TooLong { operations: 7 },
            Hold::TooBig { bytes: 7 },
            Hold::Outside { path: Path::root() },
            Hold::Imported { was: "suspended".into(), missing: 0 },
            Hold::Sealed { why: "its key is gone".into() },
            Hold::Damaged { run: RunId::from_bytes([1; 16]), place: "position 7".into() },
        ]
    }

    fn check(why: &Why, words: &[&str]) {
        let text = of(&Path::root().child(2), why, Timestamp::from_micros(1_790_000_000_000_000));
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
    }

    #[test]
    fn w12_every_hold_names_the_way_out() {
        for hold in all_holds() {
            let text = of(&Path::root(), &Why::Held { hold }, Timestamp::default());
            assert!(text.contains("then resume the run") || text.contains("split the work"), "{text}");
        }
    }

    #[test]
    fn w12_times_are_relative_and_absolute() {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        assert_eq!(when(now, now), "now (2026-09-21T14:13:20Z)");
        assert_eq!(when(now + Duration::from_secs(90), now), "in 1 min 30 s (2026-09-21T14:14:50Z)");
        assert_eq!(when(now, now + Duration::from_secs(7_200)), "2 h ago (2026-09-21T14:13:20Z)");
    }

    #[test]
    fn w12_every_reason_names_what_changes_it() {
        let at = Timestamp::from_micros(1_790_000_060_000_000);
        let run = RunId::from_bytes([7; 16]);
        let waits = |on| Why::Waits { operation: "it".into(), on, since: at, until: Some(at), child: None };
        check(&waits(Blocked::Time), &["it at 2 has been waiting for", "continues by itself in 1 min"]);
        check(&waits(Blocked::Retry), &["the next one starts in 1 min"]);
        check(
            &waits(Blocked::Input { name: "boss".into(), at: None }),
            &["reply key", "\"boss\"", "times out in 1 min"],
        );
        check(&waits(Blocked::Signal { name: "stop".into() }), &["signal \"stop\"", "times out in 1 min"]);
        check(&waits(Blocked::Child { run }), &["continues when run 07070707", "times out in 1 min"]);
        let (tool, digest, why) = ("pay".into(), String::new(), "it is dear".into());
        check(
            &waits(Blocked::Approval { tool, digest, why }),
            &["approve or deny", "`pay`", "it is dear", "denied in"],
        );
        check(
            &waits(Blocked::Connection { provider: "gmail".into(), after: None, why: None }),
            &["connects gmail", "the call fails in 1 min"],
        );
        let (operation, cause) = ("it".to_owned(), DoubtCause::WorkerLost);
        let doubt = Why::InDoubt { operation, attempt: 2, cause, over_by: at, said: None };
        check(&doubt, &["attempt 2 of it at 2", "settle it", "\"it did not happen\" takes effect in 1 min"]);
        let (operation, cause, said) = ("it".to_owned(), DoubtCause::Unclear, Some("the line went dead".into()));
        let unclear = Why::InDoubt { operation, attempt: 1, cause, over_by: at, said };
        check(&unclear, &["because the attempt itself could not tell: the line went dead; settle it"]);
        check(
            &Why::Key { key: "till".into(), holder: None, other_principal: false },
            &["key `till`, which another call holds", "continues when"],
        );
        let hidden = Why::Key { key: "till".into(), holder: None, other_principal: true };
        check(&hidden, &["key `till`, which a run of another principal holds"]);
        check(&Why::Queued { session: None, behind: Vec::new(), others: 0 }, &["starts when a worker claims it"]);
        let behind = vec![run, run, run];
        check(
            &Why::Queued { session: Some("s".into()), behind: behind.clone(), others: 0 },
            &["session `s`", "before it: run 0707", "and 2 more"],
        );
        check(
            &Why::Queued { session: Some("s".into()), behind, others: 1 },
            &["before it: run 0707", "2 more, and a run of another principal"],
        );
        check(
            &Why::Queued { session: Some("s".into()), behind: Vec::new(), others: 2 },
            &["before it: 2 runs of other principals"],
        );
        let open = |until| Why::Breaker { target: "api:443".into(), until };
        check(&open(Some(at)), &["attempts at `api:443` failed", "let through in 1 min"]);
        check(&open(None), &["when the attempt that tests the target has ended"]);
        check(&Why::Suspect, &["driven alone", "starts when"]);
        check(&Why::Elsewhere, &["this process does not drive it", "`resume` continues it here"]);
        check(&Why::OwnerGone, &["the process that drove it is gone", "`resume` continues it here"]);
        check(&Why::NotDriven { run: None }, &["leaves a run of another principal as it is"]);
        check(
            &Why::NotDriven { run: Some(run) },
            &["leaves run 07070707", "the next process that drives all runs continues"],
        );
        let mailed = Why::InMailbox { message: "the approval by ada".to_owned() };
        check(&mailed, &["the approval by ada is recorded at 2", "the next process that drives the run applies it"]);
    }
}
