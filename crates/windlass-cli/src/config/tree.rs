//! The file as a tree in which every value has its position.

use std::ops::Range;

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

/// A range of bytes of the source.
pub(crate) type Span = Range<usize>;

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) item: Item,
}

#[derive(Clone, Debug)]
pub(crate) enum Item {
    String(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Node>),
    Table(Table),
    /// A date, or a number that cannot be represented. No key accepts one.
    Other(&'static str),
}

/// The entries of a table, in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table(pub(crate) Vec<TableEntry>);

#[derive(Clone, Debug)]
pub(crate) struct TableEntry {
    pub(crate) key: String,
    pub(crate) at: Span,
    pub(crate) node: Node,
}

/// An error of the TOML parser.
pub(crate) struct SyntaxError {
    pub(crate) span: Span,
    pub(crate) message: String,
}

/// Parses a document, and continues after syntax errors.
pub(crate) fn parse(text: &str) -> (Table, Vec<SyntaxError>) {
    let (document, errors) = DeTable::parse_recoverable(text);
    let whole = 0..text.len().min(1);
    let syntax = |error: &toml::de::Error| SyntaxError {
        span: error.span().unwrap_or(whole.clone()),
        message: error.message().replace('\n', ", "),
    };
    (table(document.get_ref()), errors.iter().map(syntax).collect())
}

fn table(found: &DeTable<'_>) -> Table {
    let entry = |(key, value): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| TableEntry {
        key: key.get_ref().to_string(),
        at: key.span(),
        node: node(value),
    };
    let mut entries: Vec<TableEntry> = found.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at.start);
    Table(entries)
}

fn node(found: &toml::Spanned<DeValue<'_>>) -> Node {
    let item = match found.get_ref() {
        DeValue::String(text) => Item::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Item::Integer(number),
            Err(_) => Item::Other("an integer that is too large"),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Item::Float(number),
            _ => Item::Other("a number that is not finite"),
        },
        DeValue::Boolean(truth) => Item::Bool(*truth),
        DeValue::Datetime(_) => Item::Other("a date"),
        DeValue::Array(items) => Item::List(items.iter().map(node).collect()),
        DeValue::Table(entries) => Item::Table(table(entries)),
    };
    Node { span: found.span(), item }
}

impl Item {
    /// The type, for a sentence.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Bool(_) => "a boolean",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

impl Node {
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.item {
            Item::String(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Node]> {
        match &self.item {
            Item::List(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.item {
            Item::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The value as JSON. A value without an equivalent, which was reported before, becomes null.
    pub(crate) fn json(&self) -> Value {
        match &self.item {
            Item::String(text) => Value::String(text.clone()),
            Item::Integer(number) => Value::from(*number),
            Item::Float(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
            Item::Bool(truth) => Value::Bool(*truth),
            Item::List(items) => Value::Array(items.iter().map(Node::json).collect()),
            Item::Table(table) => table.json(),
            Item::Other(_) => Value::Null,
        }
    }

    /// The value at a JSON pointer, or its deepest ancestor that exists.
    pub(crate) fn nearest(&self, pointer: &str) -> &Node {
        let mut here = self;
        for step in pointer.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            let next = match &here.item {
                Item::Table(table) => table.get(&step).map(|entry| &entry.node),
                Item::List(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
                _ => None,
            };
            let Some(next) = next else { break };
            here = next;
        }
        here
    }
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&TableEntry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn json(&self) -> Value {
        let entries = self.0.iter().map(|entry| (entry.key.clone(), entry.node.json()));
        Value::Object(entries.collect::<Map<String, Value>>())
    }
}
