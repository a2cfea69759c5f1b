//! What a model sees of an outcome. The record and the caller keep the whole outcome.

use std::borrow::Cow;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::Value;

use super::Tool;
use super::budget::{self, Cut};
use super::error::ToolResult;
use super::output::{Content, Output, text_of};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy::Policy;

/// Computes what the model sees from an output and the arguments of the call.
pub(crate) type Projector = dyn Fn(&Output, &Value) -> ToolResult<Vec<Content>> + Send + Sync;

/// The types a projector may return.
pub trait IntoContent {
    /// Converts the value into content blocks.
    fn into_content(self) -> Vec<Content>;
}

impl IntoContent for Vec<Content> {
    fn into_content(self) -> Vec<Content> {
        self
    }
}

impl IntoContent for Content {
    fn into_content(self) -> Vec<Content> {
        vec![self]
    }
}

impl IntoContent for String {
    fn into_content(self) -> Vec<Content> {
        vec![Content::text(self)]
    }
}

impl IntoContent for &str {
    fn into_content(self) -> Vec<Content> {
        vec![Content::text(self)]
    }
}

/// How the outcomes of one call are shown to the model.
#[derive(Clone)]
pub(crate) struct ModelView {
    pub(crate) open_world: bool,
    /// Whether the model can read on with a tool.
    has_reader: bool,
    budget: usize,
    /// The projector and the arguments of the call, for tools that have a projector.
    projector: Option<(Arc<Projector>, Arc<Value>)>,
}

impl ModelView {
    /// `policies` are the call's own policy and the runtime's.
    pub(crate) fn of(
        tool: Option<&Arc<Tool>>,
        args: &Arc<Value>,
        policies: (Option<&Policy>, &Policy),
        has_reader: bool,
    ) -> Self {
        let Some(tool) = tool else { return Self { has_reader, ..Self::default() } };
        let spec = tool.spec();
        let (own, runtime) = (policies.0.and_then(|own| own.output_budget), policies.1);
        Self {
            open_world: spec.hints.open_world,
            has_reader,
            budget: own.or(spec.limits.output_budget).or(runtime.output_budget).unwrap_or(limits::OUTPUT_BUDGET),
            projector: tool.projector().map(|projector| (projector.clone(), args.clone())),
        }
    }

    /// The blocks that the projector makes of an output. `None` if there is no projector or it fails; then the output
    /// is shown as text.
    fn projected(&self, output: &Output, uri: &OutputUri<'_>) -> Option<Vec<Content>> {
        let (projector, args) = self.projector.as_ref()?;
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| projector(output, args)));
        let problem = match made {
            Ok(Ok(content)) => return Some(content),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the projector panicked".to_owned(),
        };
        let OutputUri { run, path } = uri;
        tracing::warn!(%run, %path, "the projector failed, so the model sees the output as text: {problem}");
        None
    }

    /// The outcome as one JSON value.
    pub(crate) fn value<'o>(&self, output: &'o Output, uri: &OutputUri<'_>) -> Cow<'o, Value> {
        if let Cow::Owned(clean) = output.without_secrets() {
            return Cow::Owned(self.value(&clean, uri).into_owned());
        }
        match self.projected(output, uri) {
            Some(content) => {
                let mut content = self.bounded(content, uri, false);
                Cow::Owned(match content.as_mut_slice() {
                    [Content::Text { text }] => Value::String(std::mem::take(text)),
                    _ => serde_json::to_value(content).unwrap_or_default(),
                })
            }
            None => self.unprojected(output, uri),
        }
    }

    /// The value as the tool returned it; owned if it had to be cut to the budget.
    pub(crate) fn unprojected<'o>(&self, output: &'o Output, uri: &OutputUri<'_>) -> Cow<'o, Value> {
        if let Cow::Owned(clean) = output.without_secrets() {
            return Cow::Owned(self.unprojected(&clean, uri).into_owned());
        }
        if budget::surely_fits(&output.value, self.budget) {
            return Cow::Borrowed(&output.value);
        }
        match self.cut(&output.text(), uri) {
            Cow::Owned(cut) => Cow::Owned(Value::String(cut)),
            Cow::Borrowed(_) => Cow::Borrowed(&output.value),
        }
    }

    /// The outcome as content blocks.
    pub(crate) fn content(&self, output: &Output, uri: &OutputUri<'_>) -> Vec<Content> {
        let output = &*output.without_secrets();
        if let Some(content) = self.projected(output, uri) {
            return self.bounded(content, uri, false);
        }
        let value = output.value_text().map(Content::text);
        self.bounded(value.into_iter().chain(output.content.iter().cloned()).collect(), uri, true)
    }

    /// Applies the budget to all text blocks together, as if they were one text. Other media are bounded when they are
    /// created. `whole`: the texts are those that reading on returns, so the notice can name the offset.
    fn bounded(&self, content: Vec<Content>, uri: &OutputUri<'_>, whole: bool) -> Vec<Content> {
        let texts = || content.iter().filter_map(Content::as_text);
        if texts().map(|text| text.len() + JOINT.len()).sum::<usize>() <= self.budget {
            return content;
        }
        let joined = texts().collect::<Vec<_>>().join(JOINT);
        let Some((cut, notice)) = budget::cut_with_notice(&joined, self.budget, |cut| self.how(cut, uri, whole)) else {
            return content;
        };
        let (head_end, tail_start) = (cut.head.len(), joined.len() - cut.tail.len());
        let (mut begin, mut is_noted) = (0, false);
        let mut shown = Vec::with_capacity(content.len());
        for block in content {
            let Some(length) = block.as_text().map(str::len) else {
                shown.push(block);
                continue;
            };
            let end = begin + length;
            let mut text = joined[begin.min(head_end)..end.min(head_end)].to_owned();
            if end >= head_end && !is_noted {
                is_noted = true;
                text.push_str(&notice);
            }
            text.push_str(&joined[begin.max(tail_start).min(end.max(tail_start))..end.max(tail_start)]);
            if !text.is_empty() {
                shown.push(Content::text(text));
            }
            begin = end + JOINT.len();
        }
        shown
    }

    fn cut<'t>(&self, text: &'t str, uri: &OutputUri<'_>) -> Cow<'t, str> {
        budget::fit(text, self.budget, |cut| self.how(cut, uri, true))
    }

    /// The part of a notice that tells how to read on: with a tool, if the model has one that may, or else from outside.
    fn how(&self, cut: &Cut<'_>, uri: &OutputUri<'_>, whole: bool) -> String {
        let from = if whole { cut.head.len() } else { 0 };
        if self.has_reader {
            return format!("; the whole output is {uri}: read on with the tool {READ_OUTPUT} from offset {from}");
        }
        let OutputUri { run, path } = uri;
        let (query, word) = match path.is_root() {
            true => (String::new(), String::new()),
            false => (format!("path={path}&"), format!(" {path}")),
        };
        format!(
            "; the whole output is {uri}: read on with GET /v1/runs/{run}/output?{query}offset={from} or `windlass runs \
             output {run}{word} --offset {from}`"
        )
    }
}

impl Default for ModelView {
    fn default() -> Self {
        Self { open_world: false, has_reader: false, budget: limits::OUTPUT_BUDGET, projector: None }
    }
}

impl fmt::Debug for ModelView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let projector = self.projector.is_some();
        write!(f, "ModelView(open_world: {}, budget: {}, projector: {projector})", self.open_world, self.budget)
    }
}

/// The name of the standard tool that reads on in a cut output.
pub const READ_OUTPUT: &str = "read_output";

/// The id of that tool. A tool of the same name and another id is another tool.
pub const READ_OUTPUT_ID: &str = "windlass.read_output";

/// What separates the texts of an output.
const JOINT: &str = "\n";

/// The address of a whole output.
pub(crate) struct OutputUri<'a> {
    pub(crate) run: RunId,
    pub(crate) path: &'a Path,
}

impl fmt::Display for OutputUri<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string();
        write!(f, "windlass://run/{}/{}", self.run, path.trim_start_matches('/'))
    }
}

/// Reads the address of a whole output, as the notice of a cut output names it: `windlass://run/RUN/PATH`.
pub fn parse_output_uri(uri: &str) -> Option<(RunId, Path)> {
    let (run, path) = uri.strip_prefix("windlass://run/")?.split_once('/')?;
    let path = if path.is_empty() { Path::root() } else { path.parse().ok()? };
    Some((run.parse().ok()?, path))
}

impl Output {
    /// Everything in it that is text: the value and the text blocks, each beginning on a new line. A model that was
    /// shown only a part of it reads on in this text.
    pub fn full_text(&self) -> Cow<'_, str> {
        let mut texts = self.content.iter().filter_map(Content::as_text).peekable();
        if texts.peek().is_none() {
            return self.text();
        }
        let value = self.value_text();
        value.as_deref().into_iter().chain(texts).collect::<Vec<_>>().join(JOINT).into()
    }

    /// The value as text; `None` if there are content blocks instead of a value.
    fn value_text(&self) -> Option<Cow<'_, str>> {
        (!self.value.is_null() || self.content.is_empty()).then(|| self.text())
    }

    /// The value as text: a string as it is, anything else as JSON.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.value)
    }
}
