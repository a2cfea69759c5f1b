//! Which values of a record are secret. The kernel lists their positions, and a store keeps them sealed. A store needs
//! no schema for that, neither to seal them nor to give them back.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{Event, Record, Recorded};
use crate::call::Command;
use crate::store::{Message, Resolution, Settlement};
use crate::tool::{HIDDEN, Output};

/// The positions of the secret parts of a value, as JSON pointers. Most values have none, and then nothing is
/// allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Places(Option<Arc<Vec<String>>>);

impl Places {
    /// Makes a list of these positions.
    pub fn new(pointers: Vec<String>) -> Self {
        Self((!pointers.is_empty()).then(|| Arc::new(pointers)))
    }

    /// The whole value. A null value has no secrets.
    pub(crate) fn whole(value: &Value) -> Self {
        if value.is_null() { Self::default() } else { Self::new(vec![String::new()]) }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a secret is at, below or above this position.
    pub(crate) fn touch(&self, pointer: &str) -> bool {
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.0.iter().flat_map(|list| list.iter()).any(|place| within(place, pointer) || within(pointer, place))
    }

    /// Replaces the secrets in the value.
    pub(crate) fn hide(&self, value: &mut Value) {
        for place in self.0.iter().flat_map(|list| list.iter()) {
            if let Some(secret) = value.pointer_mut(place) {
                *secret = Value::String(HIDDEN.to_owned());
            }
        }
    }

    fn change<E>(&self, root: &str, value: &mut Arc<Value>, changing: &mut Changing<'_, E>) -> Result<(), E> {
        if self.is_empty() { Ok(()) } else { self.change_value(root, Arc::make_mut(value), changing) }
    }

    fn change_value<E>(&self, root: &str, value: &mut Value, changing: &mut Changing<'_, E>) -> Result<(), E> {
        let Some(list) = &self.0 else { return Ok(()) };
        let mut change = |place: &String| match value.pointer_mut(place) {
            Some(secret) => (changing.with)(&format!("{root}{place}"), secret),
            // There is no value at this position, or it is inside of another one that was changed before.
            None => Ok(()),
        };
        match changing.order {
            Order::Forth => list.iter().try_for_each(&mut change),
            Order::Back => list.iter().rev().try_for_each(&mut change),
        }
    }
}

/// The order in which secrets are changed. A change is undone in reverse order, so that it works for any list of
/// positions, even nested ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To apply a change.
    Forth,
    /// To undo it.
    Back,
}

struct Changing<'c, E> {
    order: Order,
    with: &'c mut dyn FnMut(&str, &mut Value) -> Result<(), E>,
}

impl Record {
    /// Whether any value of it is secret.
    pub fn has_secrets(&self) -> bool {
        let asked = self.asked.as_ref().is_some_and(|asked| !asked.secrets.is_empty());
        asked
            || match &self.event {
                Event::Prepared(prepared) => !prepared.secrets.is_empty() || !prepared.payload_secrets.is_empty(),
                Event::Finished(finished) => {
                    has_secrets(&finished.result) || finished.told.as_ref().is_some_and(has_secrets)
                }
                _ => false,
            }
    }

    /// Changes every secret value. `with` gets the value and a name of its position that is unique within this record.
    pub fn change_secrets<E>(
        &mut self,
        order: Order,
        mut with: impl FnMut(&str, &mut Value) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut changing = Changing { order, with: &mut with };
        if let Some(asked) = &mut self.asked
            && let Some(input) = &mut asked.input
        {
            asked.secrets.change("input", input, &mut changing)?;
        }
        match &mut self.event {
            Event::Prepared(prepared) => {
                if let Some(args) = &mut prepared.args {
                    prepared.secrets.change("args", args, &mut changing)?;
                }
                if let Some(payload) = &mut prepared.payload {
                    prepared.payload_secrets.change("payload", payload, &mut changing)?;
                }
            }
            Event::Finished(finished) => {
                change_result("result", &mut finished.result, &mut changing)?;
                if let Some(told) = &mut finished.told {
                    change_result("told", told, &mut changing)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The record with its listed secrets hidden, for display.
    pub fn without_secrets(&self) -> Cow<'_, Self> {
        if !self.has_secrets() {
            return Cow::Borrowed(self);
        }
        let mut clean = self.clone();
        let hidden = clean.change_secrets(Order::Forth, |_, value| {
            *value = Value::String(HIDDEN.to_owned());
            Ok::<(), std::convert::Infallible>(())
        });
        match hidden {
            Ok(()) => Cow::Owned(clean),
        }
    }
}

impl Message {
    /// Whether any value of it is secret.
    pub fn has_secrets(&self) -> bool {
        match self {
            Self::Resolve { secrets, .. } => !secrets.is_empty(),
            Self::Settle { settlement: Settlement::Happened(result), .. } | Self::Ended { result, .. } => {
                has_secrets(result)
            }
            _ => false,
        }
    }

    /// Like [`Record::change_secrets`].
    pub fn change_secrets<E>(
        &mut self,
        order: Order,
        mut with: impl FnMut(&str, &mut Value) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut changing = Changing { order, with: &mut with };
        match self {
            Self::Resolve { secrets, resolution: Resolution::Ok { value }, .. } => {
                secrets.change_value("answer", value, &mut changing)
            }
            Self::Settle { settlement: Settlement::Happened(result), .. } => {
                change_result("settled", result, &mut changing)
            }
            Self::Ended { result, .. } => change_result("ended", result, &mut changing),
            _ => Ok(()),
        }
    }
}

fn has_secrets(result: &Recorded) -> bool {
    let starts = |command: &Command| matches!(command, Command::Start { secrets, .. } if !secrets.is_empty());
    result.as_ref().is_ok_and(|output| !output.secrets.is_empty() || output.commands.iter().any(starts))
}

fn change_result<E>(root: &str, result: &mut Recorded, changing: &mut Changing<'_, E>) -> Result<(), E> {
    if !has_secrets(result) {
        return Ok(());
    }
    let Ok(output) = result else { return Ok(()) };
    let Output { commands, secrets, value, .. } = Arc::make_mut(output);
    secrets.change_value(&format!("{root}/value"), value, changing)?;
    for (index, command) in commands.iter_mut().enumerate() {
        if let Command::Start { args, secrets, .. } = command {
            secrets.change(&format!("{root}/{index}"), args, changing)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::ToolCall;
    use crate::path::Path;
    use crate::run::record::{Asked, Finished, OpKind, Prepared};
    use crate::time::{Times, Timestamp};
    use crate::tool::Effect;

    fn places(list: &[&str]) -> Places {
        Places::new(list.iter().map(ToString::to_string).collect())
    }

    fn record(asked: Option<Asked>, event: Event) -> Record {
        Record { path: Path::root(), at: Timestamp::default(), asked, event }
    }

    fn asked(input: Value, secrets: &[&str]) -> Asked {
        let asked = Asked::operation(OpKind::Call, "t".into(), Some(Arc::new(input)), Effect::Once);
        Asked { secrets: places(secrets), ..asked }
    }

    /// Wraps every secret in a list with its position, and unwraps it again.
    fn there_and_back(record: &Record) -> Vec<String> {
        let (mut changed, mut seen) = (record.clone(), Vec::new());
        let wrap = |place: &str, value: &mut Value| {
            seen.push(place.to_owned());
            *value = json!([place, value.take()]);
            Ok::<(), String>(())
        };
        changed.change_secrets(Order::Forth, wrap).unwrap();
        let unwrap = |place: &str, value: &mut Value| {
            if value[0] != place {
                return Err(format!("{value} at {place}"));
            }
            *value = value[1].take();
            Ok(())
        };
        changed.change_secrets(Order::Back, unwrap).unwrap();
        let json = |record: &Record| serde_json::to_value(record).unwrap();
        assert_eq!(json(&changed), json(record));
        seen
    }

    #[test]
    fn e26_every_secret_of_a_record_is_changed_and_restored() {
        let input = json!({"a": {"b": [1, "x"]}, "c~/": null, "d": 2});
        let check = |list: &[&str], expected: &[&str]| {
            let record = record(Some(asked(input.clone(), list)), Event::Accepted);
            assert_eq!(there_and_back(&record), expected, "{list:?}");
        };
        check(&[], &[]);
        check(&["/a/b/1", "/c~0~1"], &["input/a/b/1", "input/c~0~1"]);
        check(&[""], &["input"]);
        // This program writes no such lists, but an imported document may contain any.
        check(&["/a", "/a/b", "/a", "/nowhere", "", "/d"], &["input/a", "input/a", "input"]);
        check(&["/a/b/1", "/a", ""], &["input/a/b/1", "input/a", "input"]);

        let prepared = Prepared {
            args: Some(Arc::new(json!({"p": 1}))),
            payload: Some(Arc::new(json!("frozen"))),
            secrets: places(&["/p"]),
            payload_secrets: places(&[""]),
        };
        assert_eq!(there_and_back(&record(None, Event::Prepared(prepared))), ["args/p", "payload"]);

        let mut output = Output::value(json!(1)).start(ToolCall::<Value>::new("other", json!({"p": 1, "q": 2})));
        let Command::Start { secrets, .. } = &mut output.commands[0] else { panic!() };
        *secrets = places(&["/p"]);
        (output.value, output.secrets) = (json!({"token": "x", "n": 1}), places(&["/token"]));
        let result: Recorded = Ok(Arc::new(output));
        let told = Some(result.clone());
        let event = Event::Finished(Finished { result, told, attempts: 1, times: Times::default(), settled: None });
        let expected = ["result/value/token", "result/0/p", "told/value/token", "told/0/p"];
        assert_eq!(there_and_back(&record(None, event)), expected);
    }

    #[test]
    fn e26_a_record_without_secrets_has_no_secrets_field() {
        let plain = record(Some(asked(json!({"a": 1}), &[])), Event::Accepted);
        assert!(!plain.has_secrets() && matches!(plain.without_secrets(), Cow::Borrowed(_)));
        assert!(!serde_json::to_string(&plain).unwrap().contains("secrets"));
        let secret = record(Some(asked(json!({"a": 1, "b": 2}), &["/a"])), Event::Accepted);
        let shown = serde_json::to_value(&*secret.without_secrets()).unwrap();
        assert_eq!(shown["asked"]["input"], json!({"a": HIDDEN, "b": 2}));
    }

    #[test]
    fn e26_differences_hide_secret_values() {
        let check = |old: (Value, &[&str]), new: (Value, &[&str]), expected: &[&str]| {
            let found = asked(old.0, old.1).differences(&asked(new.0, new.1));
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        };
        let (old, new) = (json!({"p": "old", "q": 1}), json!({"p": "new", "q": 2}));
        let hidden = "/p: recorded •••, asked •••";
        check((old.clone(), &["/p"]), (new.clone(), &[]), &[hidden, "/q: recorded 1, asked 2"]);
        check((json!({}), &[]), (json!({"p": "new"}), &["/p"]), &["/p: recorded nothing, asked •••"]);
        check((json!(1), &[]), (new.clone(), &["/p/deep"]), &["(whole value): recorded •••, asked •••"]);
        check((old, &[""]), (new, &[""]), &[hidden, "/q: recorded •••, asked •••"]);
    }
}
