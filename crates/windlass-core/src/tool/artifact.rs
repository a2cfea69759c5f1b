//! Artifacts: bytes that a tool takes or returns, either inline or as a reference into the store.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::output::{Content, Output};
use crate::store::{ArtifactId, Stored};

/// Bytes with a media type and an optional file name.
///
/// Small artifacts are inline: the record that mentions them contains the bytes. Large ones are stored first
/// ([`new_artifact`](crate::call::Attempt::new_artifact)); the record then contains only their id and size, and the
/// store keeps the bytes for as long as a record refers to them. An artifact may also be a parameter or a result of a
/// tool. In JSON it is `{"media_type", "name"?, "data": Base64}` or `{"media_type", "name"?, "artifact": "b3:…",
/// "size"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ArtifactJson", into = "ArtifactJson")]
pub struct Artifact {
    /// Media type, such as `image/png`.
    pub media_type: String,
    /// File name, if it has one.
    pub name: Option<String>,
    /// The bytes, or the reference to them.
    pub data: Data,
}

/// Where the bytes of an [`Artifact`] are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the artifact itself.
    Inline(Arc<[u8]>),
    /// In the store, where a run that refers to them may read them.
    Stored(Stored),
}

impl Artifact {
    /// An unnamed artifact with inline bytes.
    pub fn new(media_type: impl Into<String>, data: impl Into<Arc<[u8]>>) -> Self {
        Self { media_type: media_type.into(), name: None, data: Data::Inline(data.into()) }
    }

    /// An unnamed artifact that refers to bytes in the store.
    pub fn stored(media_type: impl Into<String>, stored: Stored) -> Self {
        Self { media_type: media_type.into(), name: None, data: Data::Stored(stored) }
    }

    /// Sets the file name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The inline bytes; `None` if they are in the store.
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Data::Inline(bytes) = &self.data { Some(bytes) } else { None }
    }

    /// The id of the bytes in the store; `None` if they are inline.
    pub fn id(&self) -> Option<ArtifactId> {
        if let Data::Stored(stored) = &self.data { Some(stored.id) } else { None }
    }

    /// The number of bytes, wherever they are.
    pub fn size(&self) -> u64 {
        match &self.data {
            Data::Inline(bytes) => bytes.len() as u64,
            Data::Stored(stored) => stored.size,
        }
    }

    /// The content in the store; `None` if the bytes are inline.
    pub(crate) fn stored_content(&self) -> Option<Stored> {
        if let Data::Stored(stored) = &self.data { Some(*stored) } else { None }
    }

    /// The number of bytes that a record with this artifact contains.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.bytes().map_or(0, <[u8]>::len)
    }
}

/// The JSON form of an artifact.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Artifact")]
struct ArtifactJson {
    /// Media type, such as `image/png`.
    media_type: String,
    /// File name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The bytes in Base64, unless they are in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// The id of the bytes in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    artifact: Option<ArtifactId>,
    /// The number of bytes in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl From<Artifact> for ArtifactJson {
    fn from(Artifact { media_type, name, data }: Artifact) -> Self {
        let (data, artifact, size) = match data {
            Data::Inline(bytes) => (Some(STANDARD.encode(bytes)), None, None),
            Data::Stored(Stored { id, size }) => (None, Some(id), Some(size)),
        };
        Self { media_type, name, data, artifact, size }
    }
}

impl TryFrom<ArtifactJson> for Artifact {
    type Error = String;

    fn try_from(ArtifactJson { media_type, name, data, artifact, size }: ArtifactJson) -> Result<Self, String> {
        let data = match (data, artifact, size) {
            (Some(data), None, None) => {
                let bytes = STANDARD.decode(data).map_err(|error| format!("`data` is not Base64: {error}"))?;
                Data::Inline(bytes.into())
            }
            (None, Some(id), Some(size)) => Data::Stored(Stored { id, size }),
            _ => return Err("an artifact needs either `data`, or both `artifact` and `size`".to_owned()),
        };
        Ok(Self { media_type, name, data })
    }
}

impl JsonSchema for Artifact {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        ArtifactJson::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ArtifactJson::json_schema(generator)
    }
}

/// The stored artifacts that an output mentions: in its content blocks, as its raw original, or anywhere in its value.
pub(crate) fn mentioned(output: &Output) -> Vec<ArtifactId> {
    let mut found = mentioned_in(&output.value);
    found.extend(output.content.iter().filter_map(|content| content.artifact()?.id()));
    found.extend(output.raw.as_ref().and_then(|raw| raw.id()));
    found
}

/// The stored artifacts that a value mentions in their JSON form.
pub(crate) fn mentioned_in(value: &Value) -> Vec<ArtifactId> {
    let mut found = Vec::new();
    walk(value, &mut found);
    found
}

fn walk(value: &Value, found: &mut Vec<ArtifactId>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
        Value::Object(map) => {
            found.extend(map.get("artifact").and_then(Value::as_str).and_then(|id| id.parse::<ArtifactId>().ok()));
            map.values().for_each(|item| walk(item, found));
        }
        _ => {}
    }
}

impl Content {
    /// The artifact of the block; `None` for text.
    pub fn artifact(&self) -> Option<&Artifact> {
        match self {
            Self::Text { .. } => None,
            Self::Image(artifact) | Self::Audio(artifact) | Self::File(artifact) => Some(artifact),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn l16_an_artifact_in_json_has_its_bytes_or_its_id() {
        let id = ArtifactId::of(b"x");
        let stored = Artifact::stored("text/csv", Stored { id, size: 1 }).named("t.csv");
        let json = json!({"media_type": "text/csv", "name": "t.csv", "artifact": id, "size": 1});
        assert_eq!(serde_json::to_value(&stored).unwrap(), json);
        assert_eq!(serde_json::from_value::<Artifact>(json).unwrap(), stored);
        let both = json!({"media_type": "a/b", "data": "", "artifact": id, "size": 1});
        for bad in [json!({"media_type": "a/b"}), json!({"media_type": "a/b", "artifact": id}), both] {
            let error = serde_json::from_value::<Artifact>(bad).unwrap_err().to_string();
            assert!(error.contains("either `data`, or both `artifact` and `size`"), "{error}");
        }
        let error = serde_json::from_value::<Artifact>(json!({"media_type": "a/b", "data": "?"})).unwrap_err();
        assert!(error.to_string().contains("not Base64"), "{error}");
    }

    #[test]
    fn l16_artifacts_are_found_wherever_an_output_mentions_them() {
        let id = |bytes: &[u8]| ArtifactId::of(bytes);
        let stored = |bytes: &[u8]| Artifact::stored("a/b", Stored { id: id(bytes), size: 1 });
        let output = Output::value(json!({"files": [{"deep": stored(b"1")}, {"artifact": "no name"}]}))
            .with(Content::text("text"))
            .with(Content::File(stored(b"2")))
            .with(Content::Image(Artifact::new("a/b", b"here".as_slice())))
            .raw(stored(b"3"));
        assert_eq!(mentioned(&output), [id(b"1"), id(b"2"), id(b"3")]);
    }
}
