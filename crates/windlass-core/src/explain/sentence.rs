//! The words. Each says what is the case and what changes it.

use std::time::Duration;

use super::{End, Move, Why};
use crate::path::Path;
use crate::run::state::{Blocked, Ending, RunInfo, RunState};
use crate::time::{Timestamp, words};
use crate::tool::Layers;

/// How many things one sentence names; the others are counted.
const NAMED: usize = 3;

/// The same with the layers that the run was called through.
pub(super) fn through(sentence: String, layers: &Layers) -> String {
    if layers.is_empty() { sentence } else { format!("{sentence} (called through {layers})") }
}

/// Everything about an unfinished run in one sentence.
pub(super) fn whole(info: &RunInfo, moves: &[Move]) -> String {
    let state = match &info.state {
        RunState::Queued => "is queued",
        RunState::Running => "is running",
        RunState::Suspended { .. } => "is suspended",
        RunState::Held { .. } => "is held",
        RunState::Finished { .. } => "is finished",
    };
    let mut named: Vec<&str> = moves.iter().take(NAMED).map(|one| one.sentence.as_str()).collect();
    let more = match moves.len().saturating_sub(NAMED) {
        1 => "one more thing stands still".to_owned(),
        more => format!("{more} more things stand still"),
    };
    if moves.len() > NAMED {
        named.push(&more);
    }
    if named.is_empty() {
        // Between two of its operations, or between its row and its journal.
        named.push("it goes on by itself; look again");
    }
    format!("Run {} of `{}` {state}: {}.", info.run, info.tool, named.join("; and "))
}

pub(super) fn finished(info: &RunInfo, end: &End) -> String {
    let how = match end.ending {
        Ending::Ok => "ended well",
        Ending::Failed => "failed",
        Ending::Cancelled => "was cancelled",
        Ending::Lost => "was lost with its owner, and nobody else may go on with it",
    };
    let why = end.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
    let doubts = match info.doubts.len() {
        0 => String::new(),
        open => format!("; {open} of its attempts may have happened or not: settle them"),
    };
    format!("Run {} of `{}` {how}{why}{doubts}.", info.run, info.tool)
}

/// A point in time, in words and exactly.
fn when(at: Timestamp, now: Timestamp) -> String {
    let (ahead, ago) = (at.since(now), now.since(at));
    match (ahead.is_zero(), ago.is_zero()) {
        (true, true) => format!("now ({at})"),
        (false, _) => format!("in {} ({at})", words(ahead)),
        _ => format!("{} ago ({at})", words(ago)),
    }
}

fn place(path: &Path) -> String {
    if path.is_root() { String::new() } else { format!(" at {path}") }
}

/// Something under way.
pub(super) fn at_work(path: &Path, why: &Why, timeout: Option<Duration>, now: Timestamp) -> String {
    let text = of(path, why, now);
    match timeout {
        Some(timeout) => format!("{text}, and each attempt is given up after {}", words(timeout)),
        None => text,
    }
}

pub(super) fn of(path: &Path, why: &Why, now: Timestamp) -> String {
    let place = place(path);
    match why {
        Why::Queued { session: None, .. } => "it starts when a worker takes it up".to_owned(),
        Why::Queued { session: Some(session), behind } => {
            let turns = match behind.as_slice() {
                [] => "none is open".to_owned(),
                [run] => format!("open is run {run}"),
                [run, rest @ ..] => format!("open are run {run} and {} more", rest.len()),
            };
            format!(
                "it starts when a worker takes it up and, if it is a turn of session `{session}`, the turns before it \
                 have ended ({turns})"
            )
        }
        Why::Suspect => "a process died with it before, so it is driven alone: it starts when the runs before it that \
                         were found like this have ended or wait"
            .to_owned(),
        Why::Attempt { operation, attempt, since, over_by } => {
            let by = over_by.map(|by| format!(", at the latest {}", when(by, now))).unwrap_or_default();
            format!("attempt {attempt} of {operation}{place} runs since {}; it ends by itself{by}", when(*since, now))
        }
        Why::AtWork { operation, since } => format!(
            "{operation}{place} is at work, or queues for a permit, since {}; it goes on by itself",
            when(*since, now)
        ),
        Why::Waits { operation, on, since, until, child } => {
            let waits = format!("{operation}{place} waits since {}", when(*since, now));
            let child = child.as_ref().map(|child| child.sentence.trim_end_matches('.'));
            format!("{waits}; {}", moved_by(on, *until, child, now))
        }
        Why::InDoubt { operation, attempt, cause, over_by, said } => {
            let cause = cause.with(said.as_deref());
            let believed = if *over_by <= now {
                "all three are believed at once".to_owned()
            } else {
                format!("the second is believed {}", when(*over_by, now))
            };
            format!(
                "whether attempt {attempt} of {operation}{place} happened is not known, because {cause}; settle it: it \
                 happened, it did not, or give up ({believed})"
            )
        }
        Why::Key { key, holder } => {
            let holder = match holder {
                Some((run, path)) => format!("run {run} has at {path}"),
                None => "another call has".to_owned(),
            };
            format!("a call{place} queues for key `{key}`, which {holder}; it goes on when that one ends")
        }
        Why::CleaningUp { by, reason, until } => format!(
            "{by} cancelled it ({reason}); it cleans up and ends by itself, or is cut off {}",
            when(*until, now)
        ),
        Why::Held { hold } => hold.to_string(),
        Why::Elsewhere => {
            "it is not driven here: the process that owns it goes on with it, or `resume` takes it up here".to_owned()
        }
    }
}

/// Who or what ends a wait.
fn moved_by(on: &Blocked, until: Option<Timestamp>, child: Option<&str>, now: Timestamp) -> String {
    let at = |until: Option<Timestamp>| until.map_or_else(|| "later".to_owned(), |until| when(until, now));
    let otherwise = |what: &str| until.map(|until| format!(", or {what} {}", when(until, now))).unwrap_or_default();
    match on {
        Blocked::Time => format!("it goes on by itself {}", at(until)),
        Blocked::Retry => format!("its last attempt failed, and it is attempted again {}", at(until)),
        Blocked::Input { name, .. } => {
            let late = otherwise("it gives up");
            format!("whoever has its reply key must answer \"{name}\" with it (the inbox has the key too){late}")
        }
        Blocked::Signal { name } => {
            format!("somebody must send the run the signal \"{name}\"{}", otherwise("it gives up"))
        }
        Blocked::Child { run } => {
            let child = child.map(|child| format!(" ({child})")).unwrap_or_default();
            format!("it goes on when run {run} has ended{child}{}", otherwise("it gives up"))
        }
        Blocked::Approval { tool, why, .. } => {
            let late = otherwise("it is denied");
            format!("somebody must approve or deny this call of `{tool}`, which needs approval because {why}{late}")
        }
        Blocked::Key { key } => format!("it goes on when key `{key}` is free{}", otherwise("it gives up")),
        Blocked::Connection { provider } => {
            format!("somebody must connect {provider}{}", otherwise("the call fails"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use crate::run::record::DoubtCause;
    use crate::run::state::{Divergence, Hold};

    fn all_holds() -> Vec<Hold> {
        let path = Path::root().child(2);
        let divergence = Divergence { path: path.clone(), recorded: None, asked: None, differences: Vec::new() };
        vec![
            Hold::Diverged(Box::new(divergence)),
            Hold::CrashLoop { path: path.clone(), deaths: 3 },
            Hold::ToolMissing { path: path.clone(), tool: "gone".into() },
            Hold::LayerMissing { path: path.clone(), layer: "guest".into() },
            Hold::Undecodable { path: path.clone(), problem: "a number".into() },
            Hold::Abandoned { path, operation: "step \"pay\"".into() },
            Hold::TooLong { operations: 7 },
            Hold::TooBig { bytes: 7 },
            Hold::Outside { path: Path::root() },
            Hold::Imported { was: "suspended".into(), missing: 0 },
            Hold::Sealed { why: "its key is gone".into() },
            Hold::Damaged { run: RunId::from_bytes([1; 16]), place: "position 7".into() },
        ]
    }

    fn says(why: &Why, words: &[&str]) {
        let text = of(&Path::root().child(2), why, Timestamp::from_micros(1_790_000_000_000_000));
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
    }

    #[test]
    fn w12_every_hold_says_the_way_out() {
        for hold in all_holds() {
            let text = of(&Path::root(), &Why::Held { hold }, Timestamp::default());
            assert!(text.contains("then resume the run") || text.contains("split the work"), "{text}");
        }
    }

    #[test]
    fn w12_times_are_said_in_words_and_exactly() {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        assert_eq!(when(now, now), "now (2026-09-21T14:13:20Z)");
        assert_eq!(when(now + Duration::from_secs(90), now), "in 1 min 30 s (2026-09-21T14:14:50Z)");
        assert_eq!(when(now, now + Duration::from_secs(7_200)), "2 h ago (2026-09-21T14:13:20Z)");
    }

    #[test]
    fn w12_every_reason_says_who_or_what_changes_it() {
        let at = Timestamp::from_micros(1_790_000_060_000_000);
        let run = RunId::from_bytes([7; 16]);
        let waits = |on| Why::Waits { operation: "it".into(), on, since: at, until: Some(at), child: None };
        says(&waits(Blocked::Time), &["it at 2 waits", "goes on by itself in 1 min"]);
        says(&waits(Blocked::Retry), &["attempted again in 1 min"]);
        says(&waits(Blocked::Input { name: "boss".into(), at: None }), &["reply key", "\"boss\"", "gives up in 1 min"]);
        says(&waits(Blocked::Signal { name: "stop".into() }), &["signal \"stop\"", "gives up in 1 min"]);
        says(&waits(Blocked::Child { run }), &["goes on when run 07070707", "gives up in 1 min"]);
        let (tool, digest, why) = ("pay".into(), String::new(), "it is dear".into());
        says(&waits(Blocked::Approval { tool, digest, why }), &["approve or deny", "`pay`", "it is dear", "denied in"]);
        says(&waits(Blocked::Connection { provider: "gmail".into() }), &["connect gmail", "the call fails in 1 min"]);
        let (operation, cause) = ("it".to_owned(), DoubtCause::WorkerLost);
        let doubt = Why::InDoubt { operation, attempt: 2, cause, over_by: at, said: None };
        says(&doubt, &["attempt 2 of it at 2", "settle it", "the second is believed in 1 min"]);
        let (operation, cause, said) = ("it".to_owned(), DoubtCause::Unclear, Some("the line went dead".into()));
        let unclear = Why::InDoubt { operation, attempt: 1, cause, over_by: at, said };
        says(&unclear, &["because the attempt itself could not tell: the line went dead; settle it"]);
        says(&Why::Key { key: "till".into(), holder: None }, &["key `till`, which another call has", "goes on when"]);
        says(&Why::Queued { session: None, behind: Vec::new() }, &["starts when a worker takes it up"]);
        let behind = vec![run, run, run];
        says(&Why::Queued { session: Some("s".into()), behind }, &["session `s`", "open are run 0707", "and 2 more"]);
        says(&Why::Suspect, &["driven alone", "starts when"]);
        says(&Why::Elsewhere, &["it is not driven here", "`resume` takes it up"]);
    }
}
