//! Channels: the events that a tool declares to emit and the signals it declares to receive, each with a name and a
//! schema.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde_json::Value;

use super::contract::{CompiledSchema, schema_of};
use super::error::ToolError;
use super::{BadSchema, Tool};

/// The declared events and signals of a tool.
#[derive(Clone, Default)]
pub struct Channels {
    events: BTreeMap<Arc<str>, Channel>,
    signals: BTreeMap<Arc<str>, Channel>,
}

/// The schema of an event or a signal. It is compiled when it is declared; a bad schema makes the registration of the
/// tool fail.
#[derive(Clone)]
struct Channel(Result<Arc<CompiledSchema>, BadSchema>);

impl Channel {
    fn new(schema: Value, tool: &str, side: &'static str) -> Self {
        Self(CompiledSchema::compile(schema, tool, side).map(Arc::new))
    }

    fn check(&self, what: &str, value: &Value) -> Result<(), ToolError> {
        let schema = self.0.as_ref().map_err(|error| ToolError::failed(error.to_string()))?;
        let violations = schema.violations(value);
        if violations.is_empty() {
            return Ok(());
        }
        let problems: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.pointer, v.message)).collect();
        Err(ToolError::failed(format!("{what} does not fit its schema: {}", problems.join("; "))))
    }
}

impl Channels {
    /// The events that runs of the tool may emit, with their schemas.
    pub fn events(&self) -> impl Iterator<Item = (&Arc<str>, &Value)> {
        schemas(&self.events)
    }

    /// The signals that runs of the tool receive, with their schemas.
    pub fn signals(&self) -> impl Iterator<Item = (&Arc<str>, &Value)> {
        schemas(&self.signals)
    }

    pub(crate) fn check_event(&self, tool: &str, name: &str, value: &Value) -> Result<(), ToolError> {
        let channel = self.events.get(name).ok_or_else(|| undeclared(tool, "event", name, &self.events))?;
        channel.check(&format!("event \"{name}\" of `{tool}`"), value)
    }

    pub(crate) fn check_signal(&self, tool: &str, name: &str, value: &Value) -> Result<(), ToolError> {
        let channel = self.signals.get(name).ok_or_else(|| undeclared(tool, "signal", name, &self.signals))?;
        channel.check(&format!("signal \"{name}\" of `{tool}`"), value)
    }

    /// Why a body cannot receive a signal of this name.
    pub(crate) fn refuse_receive(&self, tool: &str, name: &str) -> Option<ToolError> {
        (!self.signals.contains_key(name)).then(|| {
            let (declared, way) = (listed(&self.signals), declare("signal", name));
            ToolError::failed(format!(
                "receive of \"{name}\": `{tool}` declares no such signal (declared: {declared}), so it would wait for \
                 ever; {way}"
            ))
        })
    }

    pub(crate) fn check(&self) -> Result<(), BadSchema> {
        let all = self.events.values().chain(self.signals.values());
        all.into_iter().try_for_each(|channel| channel.0.as_ref().map(|_| ()).map_err(Clone::clone))
    }
}

fn schemas(channels: &BTreeMap<Arc<str>, Channel>) -> impl Iterator<Item = (&Arc<str>, &Value)> {
    channels.iter().filter_map(|(name, channel)| Some((name, channel.0.as_ref().ok()?.json())))
}

fn undeclared(tool: &str, what: &str, name: &str, declared: &BTreeMap<Arc<str>, Channel>) -> ToolError {
    let (declared, way) = (listed(declared), declare(what, name));
    ToolError::failed(format!("`{tool}` declares no {what} \"{name}\" (declared: {declared}); {way}"))
}

fn listed(declared: &BTreeMap<Arc<str>, Channel>) -> String {
    let names: Vec<&str> = declared.keys().map(|name| &**name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn declare(what: &str, name: &str) -> String {
    format!("declare it with `#[tool({what}s({name} = T))]` or `.{what}::<T>(\"{name}\")`")
}

impl Tool {
    /// Declares an event that runs of this tool emit. Its schema is that of `T`. Emitting an undeclared event fails.
    #[must_use]
    pub fn event<T: JsonSchema>(self, name: impl Into<Arc<str>>) -> Self {
        self.event_schema(name, schema_of::<T>())
    }

    /// Declares an event by its JSON Schema. A schema that does not compile is reported when the tool is registered.
    #[must_use]
    pub fn event_schema(mut self, name: impl Into<Arc<str>>, schema: Value) -> Self {
        let channel = Channel::new(schema, &self.spec.name, "event");
        self.channels.events.insert(name.into(), channel);
        self
    }

    /// Declares a signal that runs of this tool receive. Its schema is that of `T`. An undeclared signal is refused.
    #[must_use]
    pub fn signal<T: JsonSchema>(self, name: impl Into<Arc<str>>) -> Self {
        self.signal_schema(name, schema_of::<T>())
    }

    /// Declares a signal by its JSON Schema. A schema that does not compile is reported when the tool is registered.
    #[must_use]
    pub fn signal_schema(mut self, name: impl Into<Arc<str>>, schema: Value) -> Self {
        let channel = Channel::new(schema, &self.spec.name, "signal");
        self.channels.signals.insert(name.into(), channel);
        self
    }

    /// The declared events and signals.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }
}
