//! Checks a file against the table of keys. This covers every single value; rules about several values are checked where
//! they are read.

use windlass::tool::nearest;

use super::keys::{Choice, Form, FormError, Key, Kind, Section};
use super::problem::Problem;
use super::table::ROOT;
use super::text::listed;
use super::tree::{Item, Node, Span, Table, TableEntry};

/// Returns every value of a file that the table of keys does not allow.
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
            let problem = format!("{} has no `{}`", title(path), key.name);
            self.problems.push(Problem::error("missing_key", at, problem).help(format!("{}: {}", key.name, key.doc)));
        }
    }

    fn value(&mut self, node: &Node, kind: &'static Kind, path: &str, at: &Span) {
        match (kind, &node.item) {
            (Kind::Bool, Item::Bool(_)) => {}
            (Kind::Integer { least, most }, Item::Integer(number)) => {
                if number < least || number > most {
                    let problem = format!("`{path}` must be {}, but is {number}", range(*least, *most));
                    self.problems.push(Problem::error("out_of_range", &node.span, problem));
                }
            }
            (Kind::String(form), Item::String(text)) => self.text(text, form, path, &node.span),
            (Kind::Choice(choices), Item::String(text)) => self.choice(text, choices, path, &node.span),
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
        if let Err(error) = (form.check)(text) {
            let problem = bad_value(&error, form, path, &self.span_within(text, span, error.at));
            self.problems.push(problem);
        }
    }

    /// The span of one byte of a string, if the file contains the string without escapes.
    fn span_within(&self, text: &str, span: &Span, at: Option<usize>) -> Span {
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
        let mut problem = Problem::error("unknown_choice", span, format!("`{path}`: \"{text}\" is not a valid value"))
            .help(meanings(choices));
        if let Some(near) = nearest(text, words()) {
            problem = problem.label(format!("did you mean \"{near}\"?"));
        }
        self.problems.push(problem);
    }

    fn json(&mut self, node: &Node, path: &str) {
        match &node.item {
            Item::Other(kind) => {
                let problem = format!("`{path}` is {kind}, which has no equivalent in JSON");
                self.problems.push(Problem::error("wrong_type", &node.span, problem).help("write it as a string"));
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

fn bad_value(error: &FormError, form: &Form, path: &str, span: &Span) -> Problem {
    let mut problem = Problem::error("bad_value", span, format!("`{path}`: {}", error.message));
    problem = problem.help(format!("expected {}", form.what));
    if let Some(suggestion) = &error.suggestion {
        problem = problem.label(suggestion);
    }
    if error.hidden { problem.hidden() } else { problem }
}

fn unknown(entry: &TableEntry, section: &'static Section, path: &str) -> Problem {
    let key = &entry.key;
    let what = if path.is_empty() && entry.node.table().is_some() { "section" } else { "key" };
    let problem = Problem::error("unknown_key", &entry.at, format!("unknown {what} `{key}` in {}", title(path)));
    if let Some(near) = nearest(key, section.keys().map(|key| key.name)) {
        return problem.label(format!("did you mean `{near}`?"));
    }
    if entry.node.table().is_some() && path.starts_with("tool.") && path.matches('.').count() == 1 {
        let name = path.trim_start_matches("tool.");
        return problem.help(format!("write a name that contains a dot in quotes: [tool.\"{name}.{key}\"]"));
    }
    match home(key).filter(|home| *home != path) {
        Some(home) => problem.help(format!("`{key}` belongs in [{home}]")),
        None => problem.help(format!("the valid keys are {}", listed(section.keys().map(|key| key.name), "and"))),
    }
}

/// The section of the file that has a key of this name.
fn home(key: &str) -> Option<&'static str> {
    let has = |section: &&'static Key| matches!(&section.kind, Kind::Table(keys) if keys.get(key).is_some());
    ROOT.keys().find(has).map(|section| section.name)
}

fn wrong_type(node: &Node, kind: &'static Kind, path: &str) -> Problem {
    let problem = format!("`{path}` must be {}, but is {}", expected(kind), node.item.kind());
    let problem = Problem::error("wrong_type", &node.span, problem);
    match suggestion(node, kind) {
        Some(suggestion) => problem.label(suggestion),
        None => problem,
    }
}

/// The value of the right type that was probably intended.
fn suggestion(node: &Node, kind: &'static Kind) -> Option<String> {
    match (kind, &node.item) {
        (Kind::List(_), Item::String(text)) => {
            let words: Vec<String> = text.split_whitespace().map(|word| format!("\"{word}\"")).collect();
            Some(format!("did you mean [{}]?", words.join(", ")))
        }
        (Kind::Bool, Item::String(text)) if matches!(&**text, "true" | "false") => {
            Some(format!("did you mean {text}?"))
        }
        (Kind::Integer { .. }, Item::String(text)) if text.parse::<i64>().is_ok() => {
            Some(format!("did you mean {text}?"))
        }
        (Kind::String(form), Item::Integer(number)) => {
            (form.check)(&number.to_string()).err().map(|error| error.message)
        }
        (Kind::Either(kinds), _) => kinds.iter().find_map(|kind| suggestion(node, kind)),
        _ => None,
    }
}

fn fits(kind: &Kind, item: &Item) -> bool {
    match kind {
        Kind::Bool => matches!(item, Item::Bool(_)),
        Kind::Integer { .. } => matches!(item, Item::Integer(_)),
        Kind::String(_) | Kind::Choice(_) => matches!(item, Item::String(_)),
        Kind::List(_) => matches!(item, Item::List(_)),
        Kind::Table(_) | Kind::Map(..) => matches!(item, Item::Table(_)),
        Kind::Either(kinds) => kinds.iter().any(|kind| fits(kind, item)),
        Kind::Json => true,
    }
}

/// A description of a kind for a sentence: "a list of strings".
pub(crate) fn expected(kind: &'static Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Integer { least, most } => range(*least, *most),
        Kind::String(form) => form.what.to_owned(),
        Kind::Choice(choices) => listed(choices.iter().map(|choice| choice.word), "or").replace('`', "\""),
        Kind::List(kind) => format!("a list of {}", plural(kind)),
        Kind::Table(section) => {
            format!("a table with {}", listed(section.keys().map(|key| key.name), "and"))
        }
        Kind::Map(_, kind) => format!("a table of {}", plural(kind)),
        Kind::Either(kinds) => kinds.iter().map(expected).collect::<Vec<_>>().join(", or "),
        Kind::Json => "any value".to_owned(),
    }
}

/// A description of several values of a kind: "strings".
fn plural(kind: &'static Kind) -> String {
    match kind {
        Kind::String(form) if form.what.starts_with("a string") => "strings".to_owned(),
        Kind::String(_) | Kind::Choice(_) => format!("strings, each {}", expected(kind)),
        Kind::Integer { .. } => format!("integers, each {}", expected(kind)),
        Kind::Bool => "booleans".to_owned(),
        Kind::List(_) => "lists".to_owned(),
        Kind::Table(_) | Kind::Map(..) => "tables".to_owned(),
        Kind::Either(_) | Kind::Json => "values".to_owned(),
    }
}

fn range(least: i64, most: i64) -> String {
    if most == i64::MAX {
        format!("an integer of at least {least}")
    } else {
        format!("an integer from {least} to {most}")
    }
}

/// The values with their meanings: "`a`: this; `b`: that".
pub(crate) fn meanings(choices: &[Choice]) -> String {
    let one = |choice: &Choice| format!("\"{}\": {}", choice.word, choice.doc);
    choices.iter().map(one).collect::<Vec<_>>().join("; ")
}
