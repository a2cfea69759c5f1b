//! Where two runs differ. People use it on a fork, to see what would have happened.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::record::{Asked, Event, Record, Recorded};
use crate::id::RunId;
use crate::path::Path;
use crate::value::Difference;
use crate::value::diff::differences;

/// Two runs side by side, each by the journal of its latest generation.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The first run.
    pub a: Side,
    /// The second run.
    pub b: Side,
    /// Operations that both have, with the same request and the same outcome.
    pub same: usize,
    /// Operations that both have and that differ.
    pub differing: usize,
    /// The first difference in the order of the code; `None` if there is none.
    pub first: Option<Departure>,
}

/// One of two compared runs.
#[derive(Clone, Debug)]
pub struct Side {
    /// Which run.
    pub run: RunId,
    /// Number of its operations, without the root call.
    pub operations: usize,
    /// Number of operations that only this run has.
    pub alone: usize,
    /// Its outcome, without secrets, if it is finished.
    pub outcome: Option<Recorded>,
}

/// An operation in which two runs differ.
#[derive(Clone, Debug)]
pub struct Departure {
    /// The path of the operation.
    pub path: Path,
    /// What differs there.
    pub what: Differs,
    /// What the first run has there; `None` if nothing.
    pub a: Option<String>,
    /// What the second run has there; `None` if nothing.
    pub b: Option<String>,
    /// The first positions where the values differ. `recorded` is the first run's value, `asked` the second's.
    pub differences: Vec<Difference>,
}

/// What differs in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differs {
    /// What was asked for.
    Asked,
    /// Its outcome.
    Outcome,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, same, differing, first } = self;
        write!(
            f,
            "{same} {} alike, {differing} different, {} only in {}, {} only in {}; ",
            if *same == 1 { "operation" } else { "operations" },
            a.alone,
            a.run,
            b.alone,
            b.run
        )?;
        match first {
            Some(first) => write!(f, "{first}"),
            None => f.write_str("no difference"),
        }
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
        let what = if self.what == Differs::Asked { "asked for" } else { "outcome" };
        write!(f, "first difference at {} ({what}): {} and {}", self.path, side(&self.a), side(&self.b))?;
        for Difference { pointer, recorded, asked } in &self.differences {
            let position = if pointer.is_empty() { "(whole value)" } else { pointer };
            write!(f, "; {position}: {} and {}", side(recorded), side(asked))?;
        }
        Ok(())
    }
}

/// What a run has at one path.
struct ComparedOp<'r> {
    asked: &'r Asked,
    outcome: Option<Recorded>,
}

type ComparedOps<'r> = BTreeMap<&'r Path, ComparedOp<'r>>;

fn fold(journal: &[Record]) -> ComparedOps<'_> {
    let mut ops: ComparedOps<'_> = BTreeMap::new();
    for record in journal {
        if let Some(asked) = &record.asked {
            ops.entry(&record.path).or_insert(ComparedOp { asked, outcome: None });
        }
        if let (Event::Finished(finished), Some(op)) = (&record.event, ops.get_mut(&record.path)) {
            op.outcome = Some(finished.answer());
        }
    }
    ops
}

/// Compares two journals.
pub(crate) fn compare(a: (RunId, &[Record]), b: (RunId, &[Record])) -> Comparison {
    let (of_a, of_b) = (fold(a.1), fold(b.1));
    let mut departures = Vec::new();
    let (mut same, mut differing) = (0, 0);
    for path in of_a.keys().chain(of_b.keys().filter(|path| !of_a.contains_key(**path))) {
        let found = departure(path, of_a.get(*path), of_b.get(*path));
        if !path.is_root() && of_a.contains_key(*path) && of_b.contains_key(*path) {
            if found.is_none() { same += 1 } else { differing += 1 }
        }
        departures.extend(found);
    }
    let first = departures.into_iter().min_by_key(code_order);
    let side = |run, own: &ComparedOps<'_>, other: &ComparedOps<'_>| Side {
        run,
        operations: own.keys().filter(|path| !path.is_root()).count(),
        alone: own.keys().filter(|path| !other.contains_key(**path)).count(),
        outcome: own.get(&Path::root()).and_then(|root| Some(without_secrets(root.outcome.as_ref()?))),
    };
    Comparison { a: side(a.0, &of_a, &of_b), b: side(b.0, &of_b, &of_a), same, differing, first }
}

/// The order of the code: an operation comes before its children, and its outcome after them.
fn code_order(departure: &Departure) -> Vec<u32> {
    let mut position = departure.path.positions().to_vec();
    if departure.what == Differs::Outcome {
        position.push(u32::MAX);
    }
    position
}

fn departure(path: &Path, a: Option<&ComparedOp<'_>>, b: Option<&ComparedOp<'_>>) -> Option<Departure> {
    let departure = |what, texts: (Option<String>, Option<String>), differences: Vec<Difference>| {
        Some(Departure { path: path.clone(), what, a: texts.0, b: texts.1, differences })
    };
    let (Some(a), Some(b)) = (a, b) else {
        let text = |op: Option<&ComparedOp<'_>>| op.map(|op| op.asked.to_string());
        return departure(Differs::Asked, (text(a), text(b)), Vec::new());
    };
    let texts = || (Some(a.asked.to_string()), Some(b.asked.to_string()));
    if !a.asked.same(b.asked) {
        let alike = a.asked.kind == b.asked.kind && a.asked.name == b.asked.name;
        let differences = if alike { a.asked.differences(b.asked) } else { Vec::new() };
        return departure(Differs::Asked, texts(), differences);
    }
    match (&a.outcome, &b.outcome) {
        (None, None) => None,
        (Some(Ok(a)), Some(Ok(b))) if a.value == b.value => None,
        (Some(Ok(a)), Some(Ok(b))) => {
            let mut found = differences(&a.value, &b.value);
            let is_secret =
                |found: &&mut Difference| a.secrets.touch(&found.pointer) || b.secrets.touch(&found.pointer);
            found.iter_mut().filter(is_secret).for_each(Difference::hide);
            departure(Differs::Outcome, texts(), found)
        }
        (Some(Err(a)), Some(Err(b))) if a.to_string() == b.to_string() => None,
        (one, other) => {
            departure(Differs::Outcome, (Some(describe_outcome(one)), Some(describe_outcome(other))), Vec::new())
        }
    }
}

fn without_secrets(outcome: &Recorded) -> Recorded {
    outcome.clone().map(|output| match output.without_secrets() {
        Cow::Owned(clean) => Arc::new(clean),
        Cow::Borrowed(_) => output,
    })
}

fn describe_outcome(outcome: &Option<Recorded>) -> String {
    match outcome {
        None => "not finished".to_owned(),
        Some(Ok(_)) => "an output".to_owned(),
        Some(Err(error)) => format!("the error \"{error}\""),
    }
}
