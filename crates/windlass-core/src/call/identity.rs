//! The identity of a batch: a digest of its calls. It follows from the records of the calls, so it is computed when it
//! is shown: hashing every batch when it is made would cost a call in it half of its own time.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::plan::{resolve, secret_places};
use super::request::ToolCall;
use crate::path::Path;
use crate::run::record::{Asked, OpKind, Record};
use crate::run::secrets::Places;
use crate::tool::{Tool, Toolbox};
use crate::value::Digest;
use crate::value::digest::Encoder;

/// The identity of a batch: a digest of the ids that the model gave the calls, the ids of their tools, and their
/// arguments, in order. It is equal for the same calls in the same order, whatever names the tools were called by. Secrets
/// in the arguments do not count. The records of the batch have the same identity.
pub fn batch_identity<'a>(toolbox: &Toolbox, calls: impl IntoIterator<Item = &'a ToolCall>) -> Digest {
    let snapshot = toolbox.snapshot();
    let mut identity = BatchIdentity::default();
    for call in calls {
        let own = toolbox.with_layers(&call.layers).ok().filter(|_| !call.layers.is_empty()).map(|own| own.snapshot());
        identity.add(&call.clone().bounded(), resolve(own.as_ref().unwrap_or(&snapshot), &call.tool));
    }
    identity.0.finish()
}

/// Computes the identity of a batch, call by call.
#[derive(Default)]
struct BatchIdentity(Encoder);

impl BatchIdentity {
    fn add(&mut self, call: &ToolCall, tool: Option<&Arc<Tool>>) {
        let name = tool.map_or_else(|| call.tool.as_str(), |tool| tool.spec().id.as_str());
        let takes_secrets = tool.is_none_or(|tool| tool.takes_secrets());
        let secrets = if takes_secrets { secret_places(tool, &call.args) } else { Places::default() };
        self.encode((call.id.as_deref(), name, call.broken.as_deref().map(String::as_str)), &call.args, &secrets);
    }

    /// The same for a call as it is recorded.
    fn add_recorded(&mut self, asked: &Asked) {
        let null = Value::Null;
        let args = asked.input.as_deref().unwrap_or(&null);
        self.encode(
            (asked.call_id.as_deref(), &asked.name, asked.broken.as_deref().map(String::as_str)),
            args,
            &asked.secrets,
        );
    }

    fn encode(&mut self, (id, tool, broken): (Option<&str>, &str, Option<&str>), args: &Value, secrets: &Places) {
        self.0.text(id.unwrap_or_default());
        self.0.text(tool);
        if secrets.is_empty() {
            self.0.value(args);
        } else {
            let mut shown = args.clone();
            secrets.hide(&mut shown);
            self.0.value(&shown);
        }
        self.0.text(broken.unwrap_or_default());
    }
}

/// The batches in the journal of a run, with those of their calls that are recorded.
#[derive(Default)]
pub(crate) struct RecordedBatches(BTreeMap<Path, RecordedCalls>);

struct RecordedCalls {
    count: usize,
    calls: BTreeMap<u32, Asked>,
}

impl RecordedBatches {
    pub(crate) fn note(&mut self, record: &Record) {
        let Some(asked) = &record.asked else { return };
        if asked.kind == OpKind::Batch {
            let calls = RecordedCalls { count: asked.name.parse().unwrap_or_default(), calls: BTreeMap::new() };
            self.0.insert(record.path.clone(), calls);
        } else if let (Some(batch), Some(index)) = (record.path.parent(), record.path.positions().last())
            && let Some(batch) = self.0.get_mut(&batch)
        {
            batch.calls.entry(*index).or_insert_with(|| asked.clone());
        }
    }

    /// The identity of the batch at this path, once all of its calls are recorded.
    pub(crate) fn identity(&self, path: &Path) -> Option<Digest> {
        let batch = self.0.get(path).filter(|batch| batch.calls.len() == batch.count)?;
        let mut identity = BatchIdentity::default();
        batch.calls.values().for_each(|asked| identity.add_recorded(asked));
        Some(identity.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn l04_a_batch_is_identified_by_its_calls_in_order() {
        let batch_identity = |calls: &[ToolCall]| super::batch_identity(&Toolbox::new(), calls);
        let a = || ToolCall::new("a", json!({"x": 1, "y": 2})).with_id("c1");
        let b = || ToolCall::new("b", json!({})).with_id("c2");
        let reordered: Value = serde_json::from_str(r#"{"y":2,"x":1}"#).unwrap();
        assert_eq!(batch_identity(&[a(), b()]), batch_identity(&[ToolCall::new("a", reordered).with_id("c1"), b()]));
        assert_ne!(batch_identity(&[a(), b()]), batch_identity(&[b(), a()]));
        assert_ne!(batch_identity(&[a()]), batch_identity(&[a(), b()]));
        assert_ne!(batch_identity(&[a()]), batch_identity(&[a().with_id("c9")]));
    }
}
