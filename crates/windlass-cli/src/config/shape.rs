//! Whether a file has the shape the table of keys describes. Whatever is about one value alone is decided here; what is
//! about several of them, where they are read.

use windlass::tools::nearest;

use super::keys::{Choice, Complaint, Form, Key, Kind, Section};
use super::problem::Problem;
use super::table::ROOT;
use super::tree::{Entry, Item, Node, Span, Table};
use super::words::listed;

/// Everything in a file that is not as the table says.
pub(crate) fn check(text: &str, table: &Table) -> Vec<Problem> {
    let mut checker = Checker { text, problems: Vec::new() };
    checker.table(table, &ROOT, "", &(0..0));
    checker.problems
}

struct Checker<'t> {
    text: &'t str,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn table(&mut self, table: &Table, section: &'static Section, path: &str, at: &Span) {
        for entry in &table.0 {
            match section.get(&entry.key) {
                Some(key) => self.value(&entry.node, &key.kind, &join(path, &entry.key), &entry.at),
                None => self.problems.push(unknown(entry, section, path)),
            }
        }
        let missing = |key: &&'static Key| key.required && table.get(key.name).is_none();
        for key in section.keys().filter(missing) {
            let problem = format!("{} lacks `{}`", title(path), key.name);
            self.problems.push(Problem::error("missing_key", at, problem).help(format!("{}: {}", key.name, key.doc)));
        }
    }

    fn value(&mut self, node: &Node, kind: &'static Kind, path: &str, at: &Span) {
        match (kind, &node.item) {
            (Kind::Bool, Item::Bool(_)) => {}
            (Kind::Integer { least, most }, Item::Integer(number)) => {
                if number < least || number > most {
                    let problem = format!("`{path}` is {number}, but must be {}", range(*least, *most));
                    self.problems.push(Problem::error("out_of_range", &node.span, problem));
                }
            }
            (Kind::Text(form), Item::Text(text)) => self.text(text, form, path, &node.span),
            (Kind::Choice(choices), Item::Text(text)) => self.choice(text, choices, path, &node.span),
            (Kind::List(kind), Item::List(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(item, kind, &format!("{path}[{index}]"), &item.span);
                }
            }
            (Kind::Table(section), Item::Table(table)) => self.table(table, section, path, at),
            (Kind::Map(form, kind), Item::Table(table)) => {
                for entry in &table.0 {
                    let path = join(path, &entry.key);
                    self.text(&entry.key, form, &path, &entry.at);
                    self.value(&entry.node, kind, &path, &entry.at);
                }
            }
            (Kind::Either(kinds), item) => match kinds.iter().find(|kind| fits(kind, item)) {
                Some(kind) => self.value(node, kind, path, at),
                None => self.problems.push(wrong_type(node, kind, path)),
            },
            (Kind::Json, _) => self.json(node, path),
            _ => self.problems.push(wrong_type(node, kind, path)),
        }
    }

    fn text(&mut self, text: &str, form: &Form, path: &str, span: &Span) {
        if let Err(complaint) = (form.check)(text) {
            let problem = complained(&complaint, form, path, &self.place(text, span, complaint.at));
            self.problems.push(problem);
        }
    }

    /// The place of a byte of a text, where the file has that text as it is.
    fn place(&self, text: &str, span: &Span, at: Option<usize>) -> Span {
        let inside = || {
            let raw = self.text.get(span.clone())?;
            let start = span.start + raw.find(text)? + at?;
            Some(start..start + 1)
        };
        inside().unwrap_or_else(|| span.clone())
    }

    fn choice(&mut self, text: &str, choices: &[Choice], path: &str, span: &Span) {
        if choices.iter().any(|choice| choice.word == text) {
            return;
        }
        let words = || choices.iter().map(|choice| choice.word);
        let mut problem =
            Problem::error("unknown_choice", span, format!("`{path}` cannot be \"{text}\"")).help(meanings(choices));
        if let Some(near) = nearest(text, words()) {
            problem = problem.label(format!("did you mean \"{near}\"?"));
        }
        self.problems.push(problem);
    }

    fn json(&mut self, node: &Node, path: &str) {
        match &node.item {
            Item::Other(kind) => {
                let problem = format!("`{path}` is {kind}, which JSON does not have");
                self.problems.push(Problem::error("wrong_type", &node.span, problem).help("write it as a text"));
            }
            Item::List(items) => items.iter().for_each(|item| self.json(item, path)),
            Item::Table(table) => table.0.iter().for_each(|entry| self.json(&entry.node, &join(path, &entry.key))),
            _ => {}
        }
    }
}

pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn title(path: &str) -> String {
    if path.is_empty() { "the file".to_owned() } else { format!("[{path}]") }
}

fn complained(complaint: &Complaint, form: &Form, path: &str, span: &Span) -> Problem {
    let mut problem = Problem::error("bad_value", span, format!("`{path}`: {}", complaint.what));
    problem = problem.help(format!("write {}", form.what));
    if let Some(near) = &complaint.near {
        problem = problem.label(near);
    }
    if complaint.hidden { problem.hidden() } else { problem }
}

fn unknown(entry: &Entry, section: &'static Section, path: &str) -> Problem {
    let key = &entry.key;
    let what = if path.is_empty() && entry.node.table().is_some() { "section" } else { "key" };
    let problem = Problem::error("unknown_key", &entry.at, format!("unknown {what} `{key}` in {}", title(path)));
    if let Some(near) = nearest(key, section.keys().map(|key| key.name)) {
        return problem.label(format!("did you mean `{near}`?"));
    }
    if entry.node.table().is_some() && path.starts_with("tool.") && path.matches('.').count() == 1 {
        let name = path.trim_start_matches("tool.");
        return problem.help(format!("a name with a dot is quoted: [tool.\"{name}.{key}\"]"));
    }
    match home(key).filter(|home| *home != path) {
        Some(home) => problem.help(format!("`{key}` belongs into [{home}]")),
        None => problem.help(format!("there are {}", listed(section.keys().map(|key| key.name), "and"))),
    }
}

/// The section of the file that has a key of this name.
fn home(key: &str) -> Option<&'static str> {
    let has = |section: &&'static Key| matches!(&section.kind, Kind::Table(keys) if keys.get(key).is_some());
    ROOT.keys().find(has).map(|section| section.name)
}

fn wrong_type(node: &Node, kind: &'static Kind, path: &str) -> Problem {
    let problem = format!("`{path}` is {}, but must be {}", node.item.kind(), wanted(kind));
    let problem = Problem::error("wrong_type", &node.span, problem);
    match near_type(node, kind) {
        Some(near) => problem.label(near),
        None => problem,
    }
}

/// What was probably meant by a value of another type.
fn near_type(node: &Node, kind: &'static Kind) -> Option<String> {
    match (kind, &node.item) {
        (Kind::List(_), Item::Text(text)) => {
            let words: Vec<String> = text.split_whitespace().map(|word| format!("\"{word}\"")).collect();
            Some(format!("did you mean [{}]?", words.join(", ")))
        }
        (Kind::Bool, Item::Text(text)) if matches!(&**text, "true" | "false") => Some(format!("did you mean {text}?")),
        (Kind::Integer { .. }, Item::Text(text)) if text.parse::<i64>().is_ok() => {
            Some(format!("did you mean {text}?"))
        }
        (Kind::Text(form), Item::Integer(number)) => {
            (form.check)(&number.to_string()).err().map(|complaint| complaint.what)
        }
        (Kind::Either(kinds), _) => kinds.iter().find_map(|kind| near_type(node, kind)),
        _ => None,
    }
}

fn fits(kind: &Kind, item: &Item) -> bool {
    match kind {
        Kind::Bool => matches!(item, Item::Bool(_)),
        Kind::Integer { .. } => matches!(item, Item::Integer(_)),
        Kind::Text(_) | Kind::Choice(_) => matches!(item, Item::Text(_)),
        Kind::List(_) => matches!(item, Item::List(_)),
        Kind::Table(_) | Kind::Map(..) => matches!(item, Item::Table(_)),
        Kind::Either(kinds) => kinds.iter().any(|kind| fits(kind, item)),
        Kind::Json => true,
    }
}

/// What a kind is, for a sentence.
pub(crate) fn wanted(kind: &'static Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Integer { least, most } => range(*least, *most),
        Kind::Text(form) => form.what.to_owned(),
        Kind::Choice(choices) => listed(choices.iter().map(|choice| choice.word), "or").replace('`', "\""),
        Kind::List(kind) => format!("a list, each of it {}", wanted(kind)),
        Kind::Table(section) => {
            format!("a table with {}", listed(section.keys().map(|key| key.name), "and"))
        }
        Kind::Map(_, kind) => format!("a table, each of it {}", wanted(kind)),
        Kind::Either(kinds) => kinds.iter().map(wanted).collect::<Vec<_>>().join(", or "),
        Kind::Json => "anything".to_owned(),
    }
}

fn range(least: i64, most: i64) -> String {
    if most == i64::MAX {
        format!("a whole number from {least}")
    } else {
        format!("a whole number from {least} to {most}")
    }
}

/// "`a`: this; `b`: that".
pub(crate) fn meanings(choices: &[Choice]) -> String {
    let one = |choice: &Choice| format!("\"{}\": {}", choice.word, choice.doc);
    choices.iter().map(one).collect::<Vec<_>>().join("; ")
}
