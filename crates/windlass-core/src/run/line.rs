//! A record as a line of JSON. The output equals that of `serde_json`, byte for byte. The records that every step and
//! call writes are formatted by hand, because every commit waits for them.

use serde::Serialize;
use serde_json::Value;

use super::record::{Asked, Event, Finished, Record};
use crate::path::Path;
use crate::time::Times;
use crate::tool::Output;
use crate::value::Metadata;

/// Most records fit into this many bytes.
const TYPICAL_BYTES: usize = 256;

impl Record {
    /// Appends the record to `line`, as JSON without line breaks.
    ///
    /// # Errors
    ///
    /// When a value in it cannot be represented in JSON.
    pub fn write_line(&self, line: &mut String) -> serde_json::Result<()> {
        let Self { path, at, asked, event } = self;
        line.reserve(TYPICAL_BYTES);
        let mut line = Line(line);
        line.put("{\"path\":\"");
        line.path(path);
        line.put("\",\"at\":");
        line.number(at.as_micros());
        if let Some(asked) = asked {
            line.put(",\"asked\":");
            line.asked(asked)?;
        }
        line.put(",\"event\":");
        line.event(event)?;
        line.put("}");
        Ok(())
    }
}

struct Line<'a>(&'a mut String);

impl Line<'_> {
    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.put(itoa::Buffer::new().format(number));
    }

    /// Formats rare values with serde.
    fn json(&mut self, value: &impl Serialize) -> serde_json::Result<()> {
        self.put(&serde_json::to_string(value)?);
        Ok(())
    }

    fn text(&mut self, text: &str) -> serde_json::Result<()> {
        if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
            return self.json(&text);
        }
        self.put("\"");
        self.put(text);
        self.put("\"");
        Ok(())
    }

    fn some_text(&mut self, key: &str, text: Option<&str>) -> serde_json::Result<()> {
        let Some(text) = text else { return Ok(()) };
        self.put(key);
        self.text(text)
    }

    fn path(&mut self, path: &Path) {
        let Some((first, rest)) = path.positions().split_first() else { return self.put("/") };
        self.number(*first);
        for position in rest {
            self.put("/");
            self.number(*position);
        }
    }

    fn asked(&mut self, asked: &Asked) -> serde_json::Result<()> {
        // Every field is named, so that a new one cannot be forgotten here.
        let Asked {
            kind,
            name,
            called,
            unresolved,
            layers,
            input,
            call_id,
            effect,
            version,
            limits,
            broken,
            metadata,
            secrets,
        } = asked;
        self.put("{\"kind\":");
        self.json(kind)?;
        self.put(",\"name\":");
        self.text(name)?;
        self.some_text(",\"called\":", called.as_deref())?;
        if *unresolved {
            self.put(",\"unresolved\":true");
        }
        if !layers.is_empty() {
            self.put(",\"layers\":");
            self.json(layers)?;
        }
        if let Some(input) = input {
            self.put(",\"input\":");
            self.value(input)?;
        }
        self.some_text(",\"call_id\":", call_id.as_deref())?;
        self.put(",\"effect\":");
        self.json(effect)?;
        self.some_text(",\"version\":", version.as_deref())?;
        if let Some(limits) = limits {
            self.put(",\"limits\":");
            self.json(limits)?;
        }
        self.some_text(",\"broken\":", broken.as_deref().map(String::as_str))?;
        self.some_text(",\"metadata\":", metadata.as_ref().map(Metadata::as_str))?;
        if !secrets.is_empty() {
            self.put(",\"secrets\":");
            self.json(secrets)?;
        }
        self.put("}");
        Ok(())
    }

    fn event(&mut self, event: &Event) -> serde_json::Result<()> {
        match event {
            Event::Accepted => self.put("{\"type\":\"accepted\"}"),
            Event::Entered => self.put("{\"type\":\"entered\"}"),
            Event::Attempting { attempt } => {
                self.put("{\"type\":\"attempting\",\"attempt\":");
                self.number(*attempt);
                self.put("}");
            }
            Event::Intended { attempt, over_by } => {
                self.put("{\"type\":\"intended\",\"attempt\":");
                self.number(*attempt);
                self.put(",\"over_by\":");
                self.number(over_by.as_micros());
                self.put("}");
            }
            Event::Finished(Finished { result: Ok(output), told: None, attempts, times, settled: None }) => {
                self.put("{\"type\":\"finished\",\"result\":{\"ok\":");
                self.output(output)?;
                self.put("},\"attempts\":");
                self.number(*attempts);
                self.times(times);
                self.put("}");
            }
            other => self.json(other)?,
        }
        Ok(())
    }

    fn output(&mut self, output: &Output) -> serde_json::Result<()> {
        let Output { value, content, raw, commands, refs, secrets, later: _ } = output;
        let is_plain = content.is_empty() && raw.is_none() && commands.is_empty() && refs.is_empty();
        if !is_plain || !secrets.is_empty() {
            return self.json(output);
        }
        self.put("{\"value\":");
        self.value(value)?;
        self.put("}");
        Ok(())
    }

    fn times(&mut self, times: &Times) {
        let Times { queued, running, total } = times;
        self.put(",\"times\":{\"queued\":");
        self.number(*queued);
        self.put(",\"running\":");
        self.number(*running);
        self.put(",\"total\":");
        self.number(*total);
        self.put("}");
    }

    fn value(&mut self, value: &Value) -> serde_json::Result<()> {
        match value {
            Value::String(text) => return self.text(text),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => self.number(number),
                (_, Some(number)) => self.number(number),
                _ => return self.json(number),
            },
            other => return self.json(other),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::record::{DoubtCause, OpKind, Settled, Settler};
    use super::super::secrets::Places;
    use super::*;
    use crate::policy::Policy;
    use crate::time::Timestamp;
    use crate::tool::{Content, Effect, ToolError};

    fn values() -> Vec<Value> {
        let odd = "\u{0}\u{1f} \"quoted\" \\ / \u{7f} \u{2028} \u{1f600} ä\n";
        vec![
            Value::Null,
            json!(true),
            json!(0),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(-0.0),
            json!(1.5e300),
            json!(""),
            json!("plain"),
            json!(odd),
            json!([1, "two", { odd: [odd] }]),
            json!({}),
        ]
    }

    fn step(value: &Value) -> Asked {
        Asked::operation(OpKind::Step, "a \"step\"".into(), Some(Arc::new(value.clone())), Effect::Once)
    }

    fn asked() -> Vec<Option<Asked>> {
        let plain = Asked::operation(OpKind::Call, "look_up".into(), None, Effect::Readonly);
        let whole = Asked {
            called: Some("look up".into()),
            unresolved: true,
            layers: ["guest".into(), "of \"b\"".into()].into_iter().collect(),
            call_id: Some("call_1\t".into()),
            version: Some("2".into()),
            limits: Some(Box::new(Policy::default())),
            broken: Some(Arc::new("no \"JSON\"".to_owned())),
            metadata: Some(json!({"signature": "a\"b"}).into()),
            secrets: Places::whole(&json!({"a": 1})),
            ..plain.clone()
        };
        [None, Some(plain), Some(whole)].into_iter().chain(values().iter().map(|value| Some(step(value)))).collect()
    }

    fn finished(result: Result<Output, ToolError>) -> Finished {
        let times = Times { queued: 1, running: 20, total: u64::MAX };
        Finished { result: result.map(Arc::new).map_err(Arc::new), told: None, attempts: 3, times, settled: None }
    }

    fn events() -> Vec<Event> {
        let output = |value: &Value| Output::value(value.clone());
        let over_by = Timestamp::from_micros(-5);
        let error = || ToolError::failed("it \"broke\"");
        let mut content = output(&json!(1));
        content.content.push(Content::Text { text: "see".into() });
        let mut events = vec![
            Event::Accepted,
            Event::Entered,
            Event::Attempting { attempt: 1 },
            Event::Intended { attempt: u32::MAX, over_by },
            Event::Failed { attempt: 1, error: Arc::new(error()), retry_at: over_by },
            Event::Doubted { attempt: 1, cause: DoubtCause::TimedOut, over_by, said: None },
            Event::Recovered,
            Event::Finished(finished(Err(error()))),
            Event::Finished(finished(Ok(content))),
            Event::Finished(Finished { told: Some(Err(Arc::new(error()))), ..finished(Ok(output(&json!(1)))) }),
        ];
        let settled = Settled { by: Settler::Person("ann".into()), reason: "seen".into() };
        let settled = Finished { settled: Some(Box::new(settled)), ..finished(Ok(output(&json!(1)))) };
        events.push(Event::Finished(settled));
        events.extend(values().iter().map(|value| Event::Finished(finished(Ok(output(value))))));
        events
    }

    #[test]
    fn a_line_equals_what_serde_writes() {
        let paths = ["/", "0", "4294967295/0/7"].map(|path| path.parse::<Path>().unwrap());
        let mut lines = 0;
        for (number, asked) in asked().iter().enumerate() {
            for event in events() {
                let path = paths[lines % paths.len()].clone();
                let at = Timestamp::from_micros(1_794_863_237_663_592 * (number as i64 - 1));
                let record = Record { path, at, asked: asked.clone(), event };
                let mut line = "before".to_owned();
                record.write_line(&mut line).unwrap();
                assert_eq!(line.strip_prefix("before"), Some(&*serde_json::to_string(&record).unwrap()));
                lines += 1;
            }
        }
        assert!(lines > 300, "{lines}");
    }
}
