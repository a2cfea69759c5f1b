//! The words. Each says what is the case and what changes it.

use std::time::Duration;

use super::{End, Move, Why};
use crate::path::Path;
use crate::run::state::{Blocked, Ending, RunInfo, RunState};
use crate::time::{Timestamp, words};

/// How many things one sentence names; the others are counted.
const NAMED: usize = 3;

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
    let more = format!("{} more things stand still", moves.len().saturating_sub(NAMED));
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
        Why::InDoubt { operation, attempt, cause, over_by } => {
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
            "nobody here drives it: whoever owns it goes on with it, or take it up here with `recover` or \
                           `resume`"
                .to_owned()
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
        Blocked::Connection { provider } => {
            format!("somebody must connect {provider}{}", otherwise("the call fails"))
        }
    }
}
