//! What a tool says it emits and receives: named, with a schema each.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde_json::Value;

use super::contract::{Schema, schema_of};
use super::error::ToolError;
use super::{BadSchema, Tool};

/// Declared events and signals of a tool.
#[derive(Clone, Default)]
pub struct Channels {
    events: BTreeMap<Arc<str>, Channel>,
    signals: BTreeMap<Arc<str>, Channel>,
}

/// Compiled once, when it is declared; a bad one refuses the tool's registration.
#[derive(Clone)]
struct Channel(Result<Arc<Schema>, BadSchema>);

impl Channel {
    fn new(schema: Value, tool: &str, side: &'static str) -> Self {
        Self(Schema::compile(schema, tool, side).map(Arc::new))
    }

    fn check(&self, what: &str, value: &Value) -> Result<(), ToolError> {
        let schema = self.0.as_ref().map_err(|error| ToolError::failed(error.to_string()))?;
        let violations = schema.violations(value);
        if violations.is_empty() {
            return Ok(());
        }
        let places: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.pointer, v.message)).collect();
        Err(ToolError::failed(format!("{what} does not fit its schema: {}", places.join("; "))))
    }
}

impl Channels {
    /// The events a run of the tool may emit, with their schemas.
    pub fn events(&self) -> impl Iterator<Item = (&Arc<str>, &Value)> {
        schemas(&self.events)
    }

    /// The signals a run of the tool receives, with their schemas.
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

    pub(crate) fn check(&self) -> Result<(), BadSchema> {
        let all = self.events.values().chain(self.signals.values());
        all.into_iter().try_for_each(|channel| channel.0.as_ref().map(|_| ()).map_err(Clone::clone))
    }
}

fn schemas(channels: &BTreeMap<Arc<str>, Channel>) -> impl Iterator<Item = (&Arc<str>, &Value)> {
    channels.iter().filter_map(|(name, channel)| Some((name, channel.0.as_ref().ok()?.json())))
}

fn undeclared(tool: &str, what: &str, name: &str, declared: &BTreeMap<Arc<str>, Channel>) -> ToolError {
    let known: Vec<&str> = declared.keys().map(|name| &**name).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    ToolError::failed(format!(
        "`{tool}` declares no {what} \"{name}\" (declared: {known}); declare it with `.{what}::<T>(\"{name}\")`"
    ))
}

impl Tool {
    /// Declares an event its runs emit.
    #[must_use]
    pub fn event<T: JsonSchema>(self, name: impl Into<Arc<str>>) -> Self {
        self.event_schema(name, schema_of::<T>())
    }

    /// Declares an event by its JSON Schema.
    #[must_use]
    pub fn event_schema(mut self, name: impl Into<Arc<str>>, schema: Value) -> Self {
        let channel = Channel::new(schema, &self.spec.name, "event");
        self.channels.events.insert(name.into(), channel);
        self
    }

    /// Declares a signal its runs receive.
    #[must_use]
    pub fn signal<T: JsonSchema>(self, name: impl Into<Arc<str>>) -> Self {
        self.signal_schema(name, schema_of::<T>())
    }

    /// Declares a signal by its JSON Schema.
    #[must_use]
    pub fn signal_schema(mut self, name: impl Into<Arc<str>>, schema: Value) -> Self {
        let channel = Channel::new(schema, &self.spec.name, "signal");
        self.channels.signals.insert(name.into(), channel);
        self
    }

    /// What it emits and receives.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }
}
