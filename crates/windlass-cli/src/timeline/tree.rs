//! From activities to rows: each call or operation with the spans of its time.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass::{Path, RunId};
use windlass_server::wire::{Activity, Time, Trace};

use super::words::{brief, named, parks, sentence};
use crate::style::{Tint, plain};

/// What a call or operation did with a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// A body or a group that is busy with what stands below it.
    Inside,
    /// Waits for time, a person or a message.
    Parked,
    /// Waits for a permit, a key, its turn.
    Queued,
    /// An attempt is made.
    Running,
    /// Whether it happened is not known. However short, it is shown.
    Doubt,
}

/// A stretch of time, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub from: i64,
    /// Where it ends.
    pub to: i64,
    /// What it was spent with.
    pub phase: Phase,
}

/// One call or operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The lines of the tree left of it.
    pub branch: String,
    /// A sign for how it stands: `✓`, `✗`, `●`, `…`, `?`.
    pub sign: (Tint, char),
    /// The tool, or the kind of operation and its name.
    pub name: String,
    /// Arguments, shortened.
    pub about: String,
    /// Where its time went.
    pub spans: Vec<Span>,
    /// How long it took, or takes until now.
    pub micros: u64,
    /// Of that, how long it queued, if that is worth a word.
    pub queued: u64,
    /// How many attempts it took.
    pub attempts: u32,
}

/// Something worth a sentence below the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When.
    pub at: i64,
    /// A sign, and how it is coloured.
    pub sign: (Tint, char),
    /// The sentence.
    pub text: String,
    /// The picture has a line at this time: a process died.
    pub line: bool,
}

/// A run, ready to be drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// Calls and operations, in the order of the tree.
    pub rows: Vec<Row>,
    /// What else happened, in order.
    pub notes: Vec<Note>,
    /// When it began.
    pub start: i64,
    /// When it ended, or now.
    pub end: i64,
}

impl Tree {
    /// The tree of a run, as of `now`. Activities of the runs it started may stand among its own.
    pub fn of<'a>(activities: impl IntoIterator<Item = &'a Activity>, now: Time) -> Self {
        let mut teller = Teller::default();
        for activity in activities {
            teller.take(activity);
        }
        teller.tree(now.as_micros())
    }

    /// The tree of a run and of the runs it started.
    pub fn of_trace(trace: &Trace, now: Time) -> Self {
        let mut all = Vec::new();
        flatten(trace, &mut all);
        // A child is told of after what started it: between runs the order of time is the order of cause.
        all.sort_by_key(|(at, _)| *at);
        Self::of(all.into_iter().map(|(_, activity)| activity), now)
    }
}

/// Each with the time it counts from. Within a run its order is that of the records, whatever their times say: they are taken by
/// more than one look at the clock.
fn flatten<'a>(trace: &'a Trace, all: &mut Vec<(Time, &'a Activity)>) {
    let mut latest = None;
    all.extend(trace.activities.iter().map(|activity| {
        latest = latest.max(Some(activity.at));
        (latest.unwrap_or(activity.at), activity)
    }));
    trace.children.iter().for_each(|child| flatten(child, all));
}

/// A call or operation on the way.
struct Node {
    parent: Option<usize>,
    name: String,
    about: String,
    /// When it was asked for, and what it did from when on.
    changes: Vec<(i64, Phase)>,
    ended: Option<i64>,
    failed: bool,
    /// An attempt was announced: then the spans are exact. Else they come from what was measured.
    announced: bool,
    /// How long its attempts took, as measured, in microseconds.
    running: i64,
    attempts: u32,
    /// A moment, not a stretch: an event, a run that was started.
    moment: bool,
    /// Nothing is recorded of it yet.
    rumour: bool,
    /// It has no end of its own, and ends with the last thing in it; how many there are, where that is known.
    group: Option<usize>,
}

#[derive(Default)]
struct Teller {
    nodes: Vec<Node>,
    at: BTreeMap<(RunId, Path), usize>,
    notes: Vec<Note>,
    start: Option<i64>,
    last: i64,
    /// The run that is drawn is over.
    over: bool,
}

impl Teller {
    fn take(&mut self, activity: &Activity) {
        let at = activity.at.as_micros();
        self.start = Some(self.start.map_or(at, |start| start.min(at)));
        self.last = self.last.max(at);
        let place = (activity.run, activity.path.clone());
        let text = |field: &str| activity.detail.get(field).and_then(Value::as_str).unwrap_or_default();
        match activity.kind.as_str() {
            "call_started" => {
                let line = activity.detail.get("line").and_then(Value::as_str);
                let about = line.map_or_else(|| brief(activity.detail.get("args")), str::to_owned);
                self.begin(activity, text("tool").to_owned(), about, Phase::Queued);
            }
            "operation_started" => {
                let phase = if parks(text("operation")) { Phase::Parked } else { Phase::Queued };
                self.begin(activity, named(text("operation"), text("name")), String::new(), phase);
                if let (true, Some(node)) = (is_group(text("operation")), self.nodes.last_mut()) {
                    node.group = Some(text("name").parse().unwrap_or(0));
                }
            }
            "emitted" => self.moment(activity, format!("event {}", text("name")), brief(activity.detail.get("value"))),
            "spawned" => self.moment(activity, format!("starts {}", text("tool")), text("child").to_owned()),
            // What is said by an attempt says that one is being made, also by one that is not recorded yet.
            "attempt_started" => self.change(&place, at, Phase::Running, true),
            "progress" => {
                if !self.at.contains_key(&place) {
                    self.begin(activity, text("message").to_owned(), String::new(), Phase::Running);
                }
                self.change(&place, at, Phase::Running, true);
            }
            "parked" | "attempt_failed" => self.change(&place, at, Phase::Parked, false),
            "in_doubt" => self.change(&place, at, Phase::Doubt, false),
            "granted" | "settled" => self.change(&place, at, Phase::Queued, false),
            "call_finished" | "operation_finished" => self.end(&place, activity),
            // Paths begin anew, below a root of their own.
            "run_continued" => {
                self.close(activity.run, at);
                self.at.retain(|(run, _), _| *run != activity.run);
            }
            "run_finished" => {
                let root = (activity.run, Path::root());
                self.over |= self.at.get(&root).is_none_or(|index| self.nodes[*index].parent.is_none());
                self.close(activity.run, at);
            }
            _ => {}
        }
        self.note(activity);
    }

    fn begin(&mut self, activity: &Activity, name: String, about: String, phase: Phase) {
        let at = activity.at.as_micros();
        let parent = self.above(activity);
        let (name, about) = (plain(&name), plain(&about));
        let changes = vec![(at, phase)];
        let node = Node {
            parent,
            name,
            about,
            changes,
            ended: None,
            failed: false,
            announced: false,
            running: 0,
            attempts: 0,
            moment: false,
            rumour: activity.kind == "progress",
            group: None,
        };
        match self.at.get(&(activity.run, activity.path.clone())) {
            // It was heard of before it was recorded; now it has its name, and its beginning.
            Some(known) if self.nodes[*known].rumour => {
                let running = self.nodes[*known].changes.first().copied();
                self.nodes[*known] = node;
                self.nodes[*known].changes.extend(running);
                self.nodes[*known].announced = true;
            }
            _ => {
                self.at.insert((activity.run, activity.path.clone()), self.nodes.len());
                self.nodes.push(node);
            }
        }
    }

    fn moment(&mut self, activity: &Activity, name: String, about: String) {
        self.begin(activity, name, about, Phase::Running);
        if let Some(node) = self.nodes.last_mut() {
            node.moment = true;
            node.ended = Some(activity.at.as_micros());
        }
    }

    /// The node this one stands below: the nearest that is known, in its run or in the one that started it.
    fn above(&self, activity: &Activity) -> Option<usize> {
        let nearest = |run: RunId, from: Option<Path>| {
            let mut place = from;
            while let Some(path) = place {
                if let Some(found) = self.at.get(&(run, path.clone())) {
                    return Some(*found);
                }
                place = path.parent();
            }
            None
        };
        let own = nearest(activity.run, activity.path.parent());
        own.or_else(|| activity.parent.as_ref().and_then(|parent| nearest(parent.run, Some(parent.path.clone()))))
    }

    fn node(&mut self, place: &(RunId, Path)) -> Option<&mut Node> {
        self.at.get(place).and_then(|index| self.nodes.get_mut(*index))
    }

    fn change(&mut self, place: &(RunId, Path), at: i64, phase: Phase, announced: bool) {
        let Some(node) = self.node(place) else { return };
        node.announced |= announced;
        if node.changes.last().is_none_or(|(_, last)| *last != phase) {
            let earlier = node.changes.last().map_or(at, |(earlier, _)| *earlier);
            node.changes.push((at.max(earlier), phase));
        }
    }

    fn end(&mut self, place: &(RunId, Path), activity: &Activity) {
        let Some(node) = self.node(place) else { return };
        let running = activity.detail.get("times").and_then(|times| times["running_ms"].as_f64()).unwrap_or(0.0);
        node.ended = Some(activity.at.as_micros());
        node.failed = activity.detail.get("failure").is_some_and(|failure| !failure.is_null());
        let attempts = activity.detail.get("attempts").and_then(Value::as_u64).unwrap_or(0);
        node.attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        node.running = (running * 1e3) as i64;
    }

    /// What a run left open ended with it.
    fn close(&mut self, run: RunId, at: i64) {
        for (_, index) in self.at.iter().filter(|((of, _), _)| *of == run) {
            self.nodes[*index].ended.get_or_insert(at);
        }
    }

    fn note(&mut self, activity: &Activity) {
        let name = self
            .at
            .get(&(activity.run, activity.path.clone()))
            .map_or_else(|| "the run".to_owned(), |index| self.nodes[*index].name.clone());
        if let Some((sign, text)) = sentence(activity, &name) {
            let line = activity.kind == "run_recovered";
            self.notes.push(Note { at: activity.at.as_micros(), sign, text: plain(&text), line });
        }
    }

    fn tree(mut self, now: i64) -> Tree {
        let start = self.start.unwrap_or(now);
        let end = if self.over { self.last } else { now.max(self.last) };
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut roots = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            match node.parent {
                Some(parent) => children[parent].push(index),
                None => roots.push(index),
            }
        }
        self.end_groups(&children);
        let mut rows = Vec::new();
        for root in roots {
            self.rows(root, &children, "", "", end, &mut rows);
        }
        self.notes.sort_by_key(|note| note.at);
        Tree { rows, notes: self.notes, start, end }
    }

    /// From the innermost on: a child stands behind what it belongs to.
    fn end_groups(&mut self, children: &[Vec<usize>]) {
        for index in (0..self.nodes.len()).rev() {
            let ends = children[index].iter().map(|child| self.nodes[*child].ended);
            let last = ends.collect::<Option<Vec<i64>>>().and_then(|ends| ends.into_iter().max());
            let whole = self.nodes[index].group.is_some_and(|count| count <= children[index].len());
            if whole && last.is_some() {
                self.nodes[index].ended = last;
            }
        }
    }

    fn rows(&self, index: usize, children: &[Vec<usize>], head: &str, below: &str, end: i64, rows: &mut Vec<Row>) {
        let node = &self.nodes[index];
        let inner = children[index].iter().map(|child| self.nodes[*child].begun()).min();
        rows.push(node.row(head, inner, end));
        // What was asked for and is not recorded yet either queues or makes an attempt that leaves no record until its end.
        let unseen = match (node.group, node.ended) {
            (Some(count), None) => count.saturating_sub(children[index].len()),
            _ => 0,
        };
        let lines = children[index].len() + usize::from(unseen > 0);
        for (number, child) in children[index].iter().enumerate() {
            let last = number + 1 == lines;
            let (turn, on) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.rows(*child, children, &format!("{below}{turn}"), &format!("{below}{on}"), end, rows);
        }
        if unseen > 0 {
            rows.push(node.unseen(&format!("{below}└─ "), unseen, end));
        }
    }
}

impl Node {
    fn begun(&self) -> i64 {
        self.changes.first().map_or(0, |(at, _)| *at)
    }

    /// `inner`: when the first thing below it began.
    fn row(&self, branch: &str, inner: Option<i64>, now: i64) -> Row {
        let end = self.ended.unwrap_or(now).max(self.begun());
        let spans = self.spans(inner, end);
        let queued = spans.iter().filter(|span| span.phase == Phase::Queued).map(|span| span.to - span.from).sum();
        Row {
            branch: branch.to_owned(),
            sign: self.sign(inner.is_some()),
            name: self.name.clone(),
            about: self.about.clone(),
            spans,
            micros: micros(end - self.begun()),
            queued: micros(queued),
            attempts: self.attempts,
        }
    }

    /// What of a group is not recorded yet.
    fn unseen(&self, branch: &str, count: usize, now: i64) -> Row {
        let span = Span { from: self.begun(), to: now.max(self.begun()), phase: Phase::Queued };
        Row {
            branch: branch.to_owned(),
            sign: (Tint::Wait, '○'),
            name: format!("{count} more"),
            about: "queued, or not heard of yet".to_owned(),
            spans: vec![span],
            micros: micros(span.to - span.from),
            queued: 0,
            attempts: 0,
        }
    }

    fn spans(&self, inner: Option<i64>, end: i64) -> Vec<Span> {
        let mut changes = self.changes.clone();
        if let Some(inner) = inner {
            changes.retain(|(at, _)| *at < inner);
            changes.push((inner, Phase::Inside));
        }
        let ends = changes.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let mut spans: Vec<Span> =
            changes.iter().zip(ends).map(|((from, phase), to)| Span { from: *from, to, phase: *phase }).collect();
        self.measured(&mut spans);
        spans
    }

    /// Attempts that were not announced come last, and took as long as was measured.
    fn measured(&self, spans: &mut Vec<Span>) {
        let (Some(last), false) = (spans.last_mut(), self.announced) else { return };
        if last.phase != Phase::Queued || self.running == 0 {
            return;
        }
        let running = self.running;
        let (from, to) = (last.to.saturating_sub(running).max(last.from), last.to);
        last.to = from;
        spans.push(Span { from, to, phase: Phase::Running });
    }

    fn sign(&self, container: bool) -> (Tint, char) {
        let phase = self.changes.last().map_or(Phase::Queued, |(_, phase)| *phase);
        match (self.moment, self.ended, self.failed, phase) {
            (true, ..) => (Tint::Dim, '·'),
            (_, Some(_), true, _) => (Tint::Bad, '✗'),
            (_, Some(_), false, _) => (Tint::Good, '✓'),
            (_, None, _, Phase::Doubt) => (Tint::Doubt, '?'),
            (_, None, _, Phase::Parked) => (Tint::Park, '…'),
            (_, None, _, Phase::Queued) if !container => (Tint::Wait, '○'),
            (_, None, ..) => (Tint::Good, '●'),
        }
    }
}

fn is_group(operation: &str) -> bool {
    matches!(operation, "batch" | "steps" | "first")
}

fn micros(signed: i64) -> u64 {
    u64::try_from(signed).unwrap_or(0)
}
