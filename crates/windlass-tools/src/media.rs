//! Images, audio and files that a command prints or a server sends.

use serde_json::json;
use windlass::{Artifact, Call, Content, Effect, Output, ToolError, ToolResult};

/// Largest file that is stored in the record; larger ones are stored as artifacts.
pub(crate) const INLINE: usize = 64 * 1024;

/// An output that consists of one file, with its type and size as the value.
pub(crate) async fn output(call: &Call, media_type: &str, bytes: &[u8]) -> ToolResult<Output> {
    let artifact = if bytes.len() <= INLINE {
        Artifact::new(media_type, bytes)
    } else {
        let mut writer = call.new_artifact(media_type);
        writer.write(bytes).await?;
        writer.finish().await?
    };
    let value = json!({"media_type": media_type, "size": bytes.len()});
    let content = match media_type.split('/').next() {
        Some("image") => Content::Image(artifact),
        Some("audio") => Content::Audio(artifact),
        _ => Content::File(artifact),
    };
    Ok(Output::value(value).with(content))
}

/// Stores the large files of an output as artifacts.
pub(crate) async fn stored(call: &Call, mut output: Output) -> ToolResult<Output> {
    for block in &mut output.content {
        let (Content::Image(artifact) | Content::Audio(artifact) | Content::File(artifact)) = block else { continue };
        let Some(bytes) = artifact.bytes().filter(|bytes| bytes.len() > INLINE) else { continue };
        let mut writer = call.new_artifact(artifact.media_type.as_str());
        if let Some(name) = &artifact.name {
            writer = writer.named(name.as_str());
        }
        writer.write(bytes).await?;
        *artifact = writer.finish().await?;
    }
    Ok(output)
}

/// The error for an output that could not be stored, although the call itself succeeded.
pub(crate) fn not_stored(error: ToolError, effect: Effect) -> ToolError {
    match effect {
        Effect::Once => ToolError::in_doubt(format!("the call succeeded, but its output could not be stored: {error}")),
        _ => error,
    }
}
