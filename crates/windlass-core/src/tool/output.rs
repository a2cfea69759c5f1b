//! What a tool returns.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::artifact::Artifact;
use crate::call::Command;
use crate::store::ArtifactId;
use crate::tool::ToolError;
use crate::value::size;

/// A successful result: a JSON value, native content blocks beside it, and the raw artifact the value was made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// What the caller computes with and the model reads.
    pub value: Value,
    /// Text, images, audio and files for the model, natively, never as strings inside the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Content>,
    /// The untruncated original, kept beside what the model sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Box<Artifact>>,
    /// What happens if and only if this outcome is recorded. For atomic bodies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<Command>,
    /// The artifacts in the store that it refers to. Filled in when it is recorded; means nothing before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refs: Vec<ArtifactId>,
    /// The outcome comes later, by reply key. Never recorded: what is recorded is that the call waits.
    #[serde(skip)]
    pub(crate) later: Option<Later>,
}

/// What an attempt says whose outcome comes later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Later {
    pub(crate) within: Option<Duration>,
}

/// What a body returns that may have its answer now or later: by the reply key
/// ([`Call::reply_key`](crate::call::Attempt::reply_key)) that it handed out.
///
/// ```
/// # use windlass_core::{call::Call, tool::{Reply, ToolResult}};
/// # async fn send_letter(_: &str, _: String) -> ToolResult<()> { Ok(()) }
/// async fn ask_the_office(call: &Call, question: String) -> ToolResult<Reply<String>> {
///     send_letter(&question, call.reply_key()).await?;
///     Ok(Reply::later().within(std::time::Duration::from_secs(3 * 86_400)))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<T> {
    /// Here it is.
    Now(T),
    /// It comes by reply key. The call waits, and costs nothing meanwhile.
    Later {
        /// How long to wait; for ever if nothing is said. The time counts from the end of the attempt, whatever becomes
        /// of the process.
        within: Option<Duration>,
    },
}

impl<T> Reply<T> {
    /// The answer comes by reply key.
    pub fn later() -> Self {
        Self::Later { within: None }
    }

    /// Waits no longer than this.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        match self {
            Self::Now(value) => Self::Now(value),
            Self::Later { .. } => Self::Later { within: Some(time) },
        }
    }
}

impl<T: IntoOutput> IntoOutput for Reply<T> {
    fn into_output(self) -> Result<Output, serde_json::Error> {
        match self {
            Self::Now(value) => value.into_output(),
            Self::Later { within } => Ok(Output { later: Some(Later { within }), ..Output::default() }),
        }
    }

    fn schema() -> Option<Value> {
        T::schema()
    }
}

impl Output {
    /// An output that is just a value.
    pub fn value(value: Value) -> Self {
        Self { value, ..Self::default() }
    }

    /// Adds a content block.
    #[must_use]
    pub fn with(mut self, content: Content) -> Self {
        self.content.push(content);
        self
    }

    /// Keeps the untruncated original.
    #[must_use]
    pub fn raw(mut self, artifact: Artifact) -> Self {
        self.raw = Some(Box::new(artifact));
        self
    }
}

impl Output {
    /// Refuses what could be recorded but not read back everywhere.
    pub(crate) fn shallow(&self, of: &str) -> Result<(), ToolError> {
        size::shallow(&self.value, format_args!("the output of `{of}`")).map_err(ToolError::failed)
    }

    /// Refuses what only an atomic tool can return: elsewhere it would be lost.
    pub(crate) fn plain(self, who: &str) -> Result<Self, ToolError> {
        if !self.commands.is_empty() {
            return Err(ToolError::internal(format!(
                "{who} returned work to be committed with its outcome, which only an atomic tool can; use the operations \
                 of `ctx`, or call a tool that returns it"
            )));
        }
        if self.later.is_some() {
            return Err(ToolError::internal(format!(
                "{who} said that its answer comes later, which only an atomic tool can; use `ctx.wait`"
            )));
        }
        Ok(self)
    }
}

impl From<Value> for Output {
    fn from(value: Value) -> Self {
        Self::value(value)
    }
}

/// A native content block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture.
    Image(Artifact),
    /// Sound.
    Audio(Artifact),
    /// Any file.
    File(Artifact),
}

impl Content {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// How many bytes of a record it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text { text } => text.len(),
            Self::Image(artifact) | Self::Audio(artifact) | Self::File(artifact) => artifact.inline_bytes(),
        }
    }
}

/// Decodes what a tool returned: its value, or the whole output where that is what `T` is.
pub(crate) fn from_output<T: serde::de::DeserializeOwned + 'static>(output: &Output) -> Result<T, serde_json::Error> {
    let mut whole = None::<T>;
    if let Some(whole) = (&mut whole as &mut dyn std::any::Any).downcast_mut::<Option<Output>>() {
        // What it caused has happened, and must not happen again where it is passed on.
        *whole = Some(Output { commands: Vec::new(), refs: Vec::new(), ..output.clone() });
    }
    whole.map_or_else(|| T::deserialize(&output.value), Ok)
}

/// What a step returned: its value, or the whole output where that is what `T` is.
pub(crate) fn to_output<T: Serialize + 'static>(value: T) -> Result<Output, ToolError> {
    let mut value = Some(value);
    match (&mut value as &mut dyn std::any::Any).downcast_mut::<Option<Output>>().and_then(Option::take) {
        Some(whole) => whole.plain("a step"),
        None => Ok(Output::value(serde_json::to_value(&value)?)),
    }
}

/// What a body may return: anything that serialises and has a schema, or an [`Output`] built by hand.
pub trait IntoOutput {
    /// The output this value stands for.
    fn into_output(self) -> Result<Output, serde_json::Error>;

    /// The schema of [`Output::value`], if the type has one.
    fn schema() -> Option<Value>;
}

impl<T: Serialize + schemars::JsonSchema> IntoOutput for T {
    fn into_output(self) -> Result<Output, serde_json::Error> {
        serde_json::to_value(self).map(Output::value)
    }

    fn schema() -> Option<Value> {
        Some(super::contract::schema_of::<T>())
    }
}

impl IntoOutput for Output {
    fn into_output(self) -> Result<Output, serde_json::Error> {
        Ok(self)
    }

    fn schema() -> Option<Value> {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn e04_content_blocks_are_native_and_survive_the_journal() {
        let output = Output::value(json!({"pages": 2}))
            .with(Content::text("two pages"))
            .with(Content::Image(Artifact::new("image/png", [137u8, 80, 78, 71].as_slice())))
            .with(Content::File(Artifact::new("text/csv", b"a,b".as_slice()).named("t.csv")));
        let json = serde_json::to_value(&output).unwrap();
        assert_eq!(json["content"][1], json!({"type": "image", "media_type": "image/png", "data": "iVBORw=="}));
        assert_eq!(json["value"], json!({"pages": 2}), "blocks are beside the value, not inside it");
        assert_eq!(serde_json::from_value::<Output>(json).unwrap(), output);
    }

    #[test]
    fn e05_the_raw_output_is_typed_and_beside_what_the_model_sees() {
        let full = "line\n".repeat(10_000);
        let output = Output::value(json!("line\n…")).raw(Artifact::new("text/plain", full.as_bytes()));
        let back: Output = serde_json::from_str(&serde_json::to_string(&output).unwrap()).unwrap();
        assert_eq!(back.value, json!("line\n…"));
        assert_eq!(back.raw.unwrap().bytes(), Some(full.as_bytes()));
    }
}
