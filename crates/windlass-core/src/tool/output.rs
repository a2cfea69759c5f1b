//! What a tool returns.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::artifact::Artifact;
use crate::call::Command;
use crate::run::secrets::Places;
use crate::store::ArtifactId;
use crate::tool::{ToolError, ToolResult};
use crate::value::size;

/// A successful result: a JSON value, content blocks beside it, and the raw artifact that the value was made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// The value that the caller computes with and the model reads.
    pub value: Value,
    /// Text, images, audio and files for the model, as blocks of their own instead of strings inside the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Content>,
    /// The complete original, if the value is a shortened form of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Box<Artifact>>,
    /// Commands that take effect if and only if this outcome is recorded. For atomic bodies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<Command>,
    /// The stored artifacts that the output refers to. Set when it is recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refs: Vec<ArtifactId>,
    /// Where the value contains secrets, according to the tool's schema. Set when it is recorded.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    pub(crate) secrets: Places,
    /// Set if the outcome comes later, by reply key. Never recorded: the journal records that the call waits.
    #[serde(skip)]
    pub(crate) later: Option<LaterReply>,
}

/// Returned by an attempt whose outcome comes later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaterReply {
    pub(crate) within: Option<Duration>,
}

/// The result of a body that answers now, or later through the reply key
/// ([`Call::reply_key`](crate::call::Attempt::reply_key)) that it passed on.
///
/// ```
/// # use windlass_core::{call::Call, tool::{Reply, ToolResult}};
/// # async fn send_question(_: &str, _: String) -> ToolResult<()> { Ok(()) }
/// async fn ask_the_office(call: &Call, question: String) -> ToolResult<Reply<String>> {
///     send_question(&question, call.reply_key()).await?;
///     Ok(Reply::later().within(std::time::Duration::from_secs(3 * 86_400)))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<T> {
    /// The answer.
    Now(T),
    /// The answer comes by reply key. The call waits without occupying a worker.
    Later {
        /// How long to wait; `None` waits until the deadline of the call, if it has one. The time counts from the end
        /// of the attempt and continues while no process runs.
        within: Option<Duration>,
    },
}

impl<T> Reply<T> {
    /// The answer comes later, by reply key.
    pub fn later() -> Self {
        Self::Later { within: None }
    }

    /// Sets how long a later answer is waited for. No effect on [`Reply::Now`].
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
            Self::Later { within } => Ok(Output { later: Some(LaterReply { within }), ..Output::default() }),
        }
    }

    fn schema() -> Option<Value> {
        T::schema()
    }
}

impl Output {
    /// An output with only a value.
    pub fn value(value: Value) -> Self {
        Self { value, ..Self::default() }
    }

    /// Adds a content block.
    #[must_use]
    pub fn with(mut self, content: Content) -> Self {
        self.content.push(content);
        self
    }

    /// Attaches the complete original.
    #[must_use]
    pub fn raw(mut self, artifact: Artifact) -> Self {
        self.raw = Some(Box::new(artifact));
        self
    }
}

impl Output {
    /// The output as it is shown outside of the program: without the values that the tool's schema marks as secret.
    pub fn without_secrets(&self) -> Cow<'_, Self> {
        if self.secrets.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut clean = self.clone();
        std::mem::take(&mut clean.secrets).hide(&mut clean.value);
        Cow::Owned(clean)
    }

    /// Refuses a value that is nested too deeply to be read back.
    pub(crate) fn check_depth(&self, tool: &str) -> Result<(), ToolError> {
        size::check_depth(&self.value, format_args!("the output of `{tool}`")).map_err(ToolError::failed)
    }

    /// Refuses what only an atomic tool can return; elsewhere it would be lost silently.
    pub(crate) fn refuse_atomic_only(self, returned_by: &str) -> Result<Self, ToolError> {
        if !self.commands.is_empty() {
            return Err(ToolError::internal(format!(
                "{returned_by} returned commands to be committed with its outcome, which only an atomic tool can; use the \
                 operations of `ctx`, or call a tool that returns them"
            )));
        }
        if self.later.is_some() {
            return Err(ToolError::internal(format!(
                "{returned_by} returned `Reply::Later`, which only an atomic tool can; use `ctx.wait`"
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

/// A content block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    Image(Artifact),
    /// Audio.
    Audio(Artifact),
    /// Any other file.
    File(Artifact),
}

impl Content {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// The text of a text block.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text { text } = self { Some(text) } else { None }
    }

    /// The number of bytes it takes in a record.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text { text } => text.len(),
            Self::Image(artifact) | Self::Audio(artifact) | Self::File(artifact) => artifact.inline_bytes(),
        }
    }
}

/// A value as text: a string as it is, anything else as JSON.
pub(crate) fn text_of(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// Decodes the value of an output, or returns the whole output if `T` is [`Output`].
pub(crate) fn from_output<T: serde::de::DeserializeOwned + 'static>(output: &Output) -> Result<T, serde_json::Error> {
    let mut whole = None::<T>;
    if let Some(whole) = (&mut whole as &mut dyn std::any::Any).downcast_mut::<Option<Output>>() {
        // The commands were committed with this outcome. They must not take effect again when it is passed on.
        *whole = Some(Output { commands: Vec::new(), refs: Vec::new(), ..output.clone() });
    }
    whole.map_or_else(|| T::deserialize(&output.value), Ok)
}

/// Encodes what a step returned: as the value of an output, or as it is if `T` is [`Output`].
pub(crate) fn to_output<T: Serialize + 'static>(value: T) -> Result<Output, ToolError> {
    let mut value = Some(value);
    match (&mut value as &mut dyn std::any::Any).downcast_mut::<Option<Output>>().and_then(Option::take) {
        Some(whole) => whole.refuse_atomic_only("a step"),
        None => Ok(Output::value(serde_json::to_value(&value)?)),
    }
}

/// The types a body may return: any type that serialises and has a schema, or an [`Output`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a tool: it must implement `Serialize` and `JsonSchema`",
    label = "this result cannot be encoded, or it has no JSON Schema",
    note = "add `#[derive(serde::Serialize, windlass::schemars::JsonSchema)]` and \
            `#[schemars(crate = \"windlass::schemars\")]` to your type; to read it back from a typed call, also derive \
            `serde::Deserialize`",
    note = "for a result without a schema, return `serde_json::Value` or `windlass::Output`"
)]
pub trait IntoOutput {
    /// Converts the value.
    fn into_output(self) -> Result<Output, serde_json::Error>;

    /// The schema of [`Output::value`]; `None` if any value is allowed.
    fn schema() -> Option<Value>;

    #[doc(hidden)]
    fn encode(result: ToolResult<Self>) -> ToolResult<Output>
    where
        Self: Sized,
    {
        result?.into_output().map_err(ToolError::from)
    }
}

// Without this attribute the compiler reports the missing trait alone, without the notes above.
#[diagnostic::do_not_recommend]
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
