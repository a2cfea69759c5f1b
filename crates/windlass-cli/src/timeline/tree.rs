//! Turns activities into rows: each call or operation with the spans of its time.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass::{Path, RunId};
use windlass_server::wire::{Activity, Time, Trace};

use super::text::{brief, is_made_of, label, parks, sentence};
use crate::style::{Tint, plain};

/// How a call or operation spent a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpanKind {
    /// A body or a group waits for its own calls and operations.
    Inside,
    /// It waits for time, a person or a message.
    Parked,
    /// It waits for a permit, a key or its turn.
    Queued,
    /// An attempt runs.
    Running,
    /// It is unknown whether the attempt happened. This is shown however short it is.
    Doubt,
}

/// A span of time, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub from: i64,
    /// Where it ends.
    pub to: i64,
    /// How it was spent.
    pub kind: SpanKind,
}

/// One call or operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The lines of the tree left of it.
    pub branch: String,
    /// The sign of its state: `✓`, `✗`, `●`, `…`, `?`.
    pub sign: (Tint, char),
    /// The tool, or the kind of operation and its name.
    pub name: String,
    /// Arguments, shortened.
    pub about: String,
    /// How its time was spent.
    pub spans: Vec<Span>,
    /// How long it took, or has taken until now.
    pub micros: u64,
    /// How much of that it was queued.
    pub queued: u64,
    /// The number of attempts.
    pub attempts: u32,
}

/// A note below the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When it happened.
    pub at: i64,
    /// Its sign and colour.
    pub sign: (Tint, char),
    /// The text.
    pub text: String,
    /// The timeline has a vertical line at this time: a process died.
    pub line: bool,
}

/// A run, ready to be drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// The calls and operations, in the order of the tree.
    pub rows: Vec<Row>,
    /// The notes, in the order of time.
    pub notes: Vec<Note>,
    /// When the run began.
    pub start: i64,
    /// When the run ended, or now.
    pub end: i64,
}

impl Tree {
    /// The tree of a run, as of `now`. The activities may include those of the runs it started.
    pub fn of<'a>(activities: impl IntoIterator<Item = &'a Activity>, now: Time) -> Self {
        let mut builder = TreeBuilder::default();
        for activity in activities {
            builder.add(activity);
        }
        builder.tree(now.as_micros())
    }

    /// The tree of a run and of the runs it started.
    pub fn of_trace(trace: &Trace, now: Time) -> Self {
        let mut all = Vec::new();
        flatten(trace, &mut all);
        // A child must come after the operation that started it, so runs are merged in the order of time.
        all.sort_by_key(|(at, _)| *at);
        Self::of(all.into_iter().map(|(_, activity)| activity), now)
    }
}

/// Pairs each activity with its sort time. Within a run, the order of the records is kept even if their times are not in
/// order, because they come from several readings of the clock.
fn flatten<'a>(trace: &'a Trace, all: &mut Vec<(Time, &'a Activity)>) {
    let mut latest = None;
    all.extend(trace.activities.iter().map(|activity| {
        latest = latest.max(Some(activity.at));
        (latest.unwrap_or(activity.at), activity)
    }));
    trace.children.iter().for_each(|child| flatten(child, all));
}

/// A call or operation while the tree is built.
struct Node {
    parent: Option<usize>,
    name: String,
    about: String,
    /// From when on it spent its time how.
    changes: Vec<(i64, SpanKind)>,
    ended: Option<i64>,
    failed: bool,
    /// An attempt was announced, so the spans are exact. Otherwise they are derived from the measured durations.
    announced: bool,
    /// How long its attempts took, as measured, in microseconds.
    running: i64,
    attempts: u32,
    /// It has no duration: an event, or the start of a run.
    moment: bool,
    /// It is not recorded yet, and known only by its progress messages.
    unrecorded: bool,
    /// It is a group, which ends with the last of its children; the number of children, if known.
    group: Option<usize>,
}

#[derive(Default)]
struct TreeBuilder {
    nodes: Vec<Node>,
    index: BTreeMap<(RunId, Path), usize>,
    notes: Vec<Note>,
    start: Option<i64>,
    last: i64,
    /// The drawn run has finished.
    finished: bool,
}

impl TreeBuilder {
    fn add(&mut self, activity: &Activity) {
        let at = activity.at.as_micros();
        self.start = Some(self.start.map_or(at, |start| start.min(at)));
        self.last = self.last.max(at);
        let key = (activity.run, activity.path.clone());
        let text = |field: &str| activity.detail.get(field).and_then(Value::as_str).unwrap_or_default();
        match activity.kind.as_str() {
            "call_started" => {
                let line = activity.detail.get("line").and_then(Value::as_str);
                let line = line.filter(|line| !is_made_of(line, text("tool")));
                let about = line.map_or_else(|| brief(activity.detail.get("args")), str::to_owned);
                self.begin(activity, text("tool").to_owned(), about, SpanKind::Queued);
            }
            "operation_started" => {
                let kind = if parks(text("operation")) { SpanKind::Parked } else { SpanKind::Queued };
                self.begin(activity, label(text("operation"), text("name")), String::new(), kind);
                if let (true, Some(node)) = (is_group(text("operation")), self.nodes.last_mut()) {
                    node.group = Some(text("name").parse().unwrap_or(0));
                }
            }
            "emitted" => self.moment(activity, format!("event {}", text("name")), brief(activity.detail.get("value"))),
            "spawned" => self.moment(activity, format!("starts {}", text("tool")), text("child").to_owned()),
            // A progress message also shows that an attempt runs, even before anything is recorded.
            "attempt_started" => self.change(&key, at, SpanKind::Running, true),
            "progress" => {
                if !self.index.contains_key(&key) {
                    self.begin(activity, text("message").to_owned(), String::new(), SpanKind::Running);
                }
                self.change(&key, at, SpanKind::Running, true);
            }
            "parked" | "attempt_failed" => self.change(&key, at, SpanKind::Parked, false),
            "in_doubt" => self.change(&key, at, SpanKind::Doubt, false),
            "granted" | "settled" => self.change(&key, at, SpanKind::Queued, false),
            "call_finished" | "operation_finished" => self.end(&key, activity),
            // A new generation has a new root, and reuses the paths.
            "run_continued" => {
                self.close(activity.run, at);
                self.index.retain(|(run, _), _| *run != activity.run);
            }
            "run_finished" => {
                let root = (activity.run, Path::root());
                self.finished |= self.index.get(&root).is_none_or(|index| self.nodes[*index].parent.is_none());
                self.close(activity.run, at);
            }
            _ => {}
        }
        self.note(activity);
    }

    fn begin(&mut self, activity: &Activity, name: String, about: String, kind: SpanKind) {
        let at = activity.at.as_micros();
        let parent = self.parent(activity);
        let (name, about) = (plain(&name), plain(&about));
        let changes = vec![(at, kind)];
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
            unrecorded: activity.position.is_none(),
            group: None,
        };
        match self.index.get(&(activity.run, activity.path.clone())) {
            // Its start or its progress arrived before its record, which has its name and its start.
            Some(index) if self.nodes[*index].unrecorded => {
                let running = self.nodes[*index].changes.iter().find(|(_, kind)| *kind == SpanKind::Running).copied();
                self.nodes[*index] = node;
                self.nodes[*index].announced = running.is_some();
                self.nodes[*index].changes.extend(running);
            }
            _ => {
                self.index.insert((activity.run, activity.path.clone()), self.nodes.len());
                self.nodes.push(node);
            }
        }
    }

    fn moment(&mut self, activity: &Activity, name: String, about: String) {
        self.begin(activity, name, about, SpanKind::Running);
        if let Some(node) = self.nodes.last_mut() {
            node.moment = true;
            node.ended = Some(activity.at.as_micros());
        }
    }

    /// The parent of a node: its nearest ancestor with a node, in its own run or in the run that started it.
    fn parent(&self, activity: &Activity) -> Option<usize> {
        let nearest = |run: RunId, from: Option<Path>| {
            let mut next = from;
            while let Some(path) = next {
                if let Some(found) = self.index.get(&(run, path.clone())) {
                    return Some(*found);
                }
                next = path.parent();
            }
            None
        };
        let own = nearest(activity.run, activity.path.parent());
        own.or_else(|| activity.parent.as_ref().and_then(|parent| nearest(parent.run, Some(parent.path.clone()))))
    }

    fn node(&mut self, key: &(RunId, Path)) -> Option<&mut Node> {
        self.index.get(key).and_then(|index| self.nodes.get_mut(*index))
    }

    fn change(&mut self, key: &(RunId, Path), at: i64, kind: SpanKind, announced: bool) {
        let Some(node) = self.node(key) else { return };
        node.announced |= announced;
        if node.changes.last().is_none_or(|(_, last)| *last != kind) {
            let earlier = node.changes.last().map_or(at, |(earlier, _)| *earlier);
            node.changes.push((at.max(earlier), kind));
        }
    }

    fn end(&mut self, key: &(RunId, Path), activity: &Activity) {
        let Some(node) = self.node(key) else { return };
        let running = activity.detail.get("times").and_then(|times| times["running_ms"].as_f64()).unwrap_or(0.0);
        node.ended = Some(activity.at.as_micros());
        node.failed = activity.detail.get("failure").is_some_and(|failure| !failure.is_null());
        let attempts = activity.detail.get("attempts").and_then(Value::as_u64).unwrap_or(0);
        node.attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        node.running = (running * 1e3) as i64;
    }

    /// Ends every node of a run that is still open.
    fn close(&mut self, run: RunId, at: i64) {
        for (_, index) in self.index.iter().filter(|((of, _), _)| *of == run) {
            self.nodes[*index].ended.get_or_insert(at);
        }
    }

    fn note(&mut self, activity: &Activity) {
        let name = self
            .index
            .get(&(activity.run, activity.path.clone()))
            .map_or_else(|| "the run".to_owned(), |index| self.nodes[*index].name.clone());
        if let Some((sign, text)) = sentence(activity, &name) {
            let line = activity.kind == "run_recovered";
            self.notes.push(Note { at: activity.at.as_micros(), sign, text: plain(&text), line });
        }
    }

    fn tree(mut self, now: i64) -> Tree {
        let start = self.start.unwrap_or(now);
        let end = if self.finished { self.last } else { now.max(self.last) };
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

    /// Sets the ends of groups, innermost first: a child comes after its parent in `nodes`.
    fn end_groups(&mut self, children: &[Vec<usize>]) {
        for index in (0..self.nodes.len()).rev() {
            let ends = children[index].iter().map(|child| self.nodes[*child].ended);
            let last = ends.collect::<Option<Vec<i64>>>().and_then(|ends| ends.into_iter().max());
            let complete = self.nodes[index].group.is_some_and(|count| count <= children[index].len());
            if complete && last.is_some() {
                self.nodes[index].ended = last;
            }
        }
    }

    fn rows(&self, index: usize, children: &[Vec<usize>], head: &str, below: &str, end: i64, rows: &mut Vec<Row>) {
        let node = &self.nodes[index];
        let inner = children[index].iter().map(|child| self.nodes[*child].begun()).min();
        rows.push(node.row(head, inner, end));
        // Children without a record are queued, or run an attempt that leaves no record until it ends.
        let missing = match (node.group, node.ended) {
            (Some(count), None) => count.saturating_sub(children[index].len()),
            _ => 0,
        };
        let lines = children[index].len() + usize::from(missing > 0);
        for (number, child) in children[index].iter().enumerate() {
            let last = number + 1 == lines;
            let (turn, on) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.rows(*child, children, &format!("{below}{turn}"), &format!("{below}{on}"), end, rows);
        }
        if missing > 0 {
            rows.push(node.missing_row(&format!("{below}└─ "), missing, end));
        }
    }
}

impl Node {
    fn begun(&self) -> i64 {
        self.changes.first().map_or(0, |(at, _)| *at)
    }

    /// `inner` is when its first child began.
    fn row(&self, branch: &str, inner: Option<i64>, now: i64) -> Row {
        let end = self.ended.unwrap_or(now).max(self.begun());
        let spans = self.spans(inner, end);
        let queued = spans.iter().filter(|span| span.kind == SpanKind::Queued).map(|span| span.to - span.from).sum();
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

    /// The row for the children of a group that are not recorded yet.
    fn missing_row(&self, branch: &str, count: usize, now: i64) -> Row {
        let span = Span { from: self.begun(), to: now.max(self.begun()), kind: SpanKind::Queued };
        Row {
            branch: branch.to_owned(),
            sign: (Tint::Wait, '○'),
            name: format!("{count} more"),
            about: "queued, or not recorded yet".to_owned(),
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
            changes.push((inner, SpanKind::Inside));
        }
        let ends = changes.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let mut spans: Vec<Span> =
            changes.iter().zip(ends).map(|((from, kind), to)| Span { from: *from, to, kind: *kind }).collect();
        self.measured(&mut spans);
        spans
    }

    /// Adds attempts that were not announced: they come last, and have the measured duration.
    fn measured(&self, spans: &mut Vec<Span>) {
        let (Some(last), false) = (spans.last_mut(), self.announced) else { return };
        if last.kind != SpanKind::Queued || self.running == 0 {
            return;
        }
        let running = self.running;
        let (from, to) = (last.to.saturating_sub(running).max(last.from), last.to);
        last.to = from;
        spans.push(Span { from, to, kind: SpanKind::Running });
    }

    fn sign(&self, container: bool) -> (Tint, char) {
        let kind = self.changes.last().map_or(SpanKind::Queued, |(_, kind)| *kind);
        match (self.moment, self.ended, self.failed, kind) {
            (true, ..) => (Tint::Dim, '·'),
            (_, Some(_), true, _) => (Tint::Bad, '✗'),
            (_, Some(_), false, _) => (Tint::Good, '✓'),
            (_, None, _, SpanKind::Doubt) => (Tint::Doubt, '?'),
            (_, None, _, SpanKind::Parked) => (Tint::Park, '…'),
            (_, None, _, SpanKind::Queued) if !container => (Tint::Wait, '○'),
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
