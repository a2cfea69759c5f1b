//! What a model sees of an outcome. The record and the caller keep the whole outcome.

use std::borrow::Cow;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::Value;

use super::Tool;
use super::budget;
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
    budget: usize,
    /// The projector and the arguments of the call, for tools that have a projector.
    projector: Option<(Arc<Projector>, Arc<Value>)>,
}

impl ModelView {
    /// `policies` are the call's own policy and the runtime's.
    pub(crate) fn of(tool: Option<&Arc<Tool>>, args: &Arc<Value>, policies: (Option<&Policy>, &Policy)) -> Self {
        let Some(tool) = tool else { return Self::default() };
        let spec = tool.spec();
        let (own, runtime) = (policies.0.and_then(|own| own.output_budget), policies.1);
        Self {
            open_world: spec.hints.open_world,
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
        match self.projected(output, uri) {
            Some(content) => {
                let mut content = self.bounded(content, uri);
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
        if budget::surely_fits(&output.value, self.budget) {
            return Cow::Borrowed(&output.value);
        }
        match self.cut(&output.text(), uri, true) {
            Cow::Owned(cut) => Cow::Owned(Value::String(cut)),
            Cow::Borrowed(_) => Cow::Borrowed(&output.value),
        }
    }

    /// The outcome as content blocks.
    pub(crate) fn content(&self, output: &Output, uri: &OutputUri<'_>) -> Vec<Content> {
        if let Some(content) = self.projected(output, uri) {
            return self.bounded(content, uri);
        }
        let text = Content::text(self.cut(&output.text(), uri, true));
        let mut all = vec![text];
        all.extend(self.bounded(output.content.clone(), uri));
        all
    }

    /// Applies the budget to each text block. Other media are bounded when they are created.
    fn bounded(&self, mut content: Vec<Content>, uri: &OutputUri<'_>) -> Vec<Content> {
        for block in &mut content {
            if let Content::Text { text } = block
                && let Cow::Owned(cut) = self.cut(text, uri, false)
            {
                *text = cut;
            }
        }
        content
    }

    /// `whole`: the text is the one that `read_output` returns, so the notice can name the offset at which to continue.
    fn cut<'t>(&self, text: &'t str, uri: &OutputUri<'_>, whole: bool) -> Cow<'t, str> {
        budget::fit(text, self.budget, |cut| {
            let from = if whole { cut.head.len() } else { 0 };
            format!("; the whole output is {uri}: read on with read_output from offset {from}")
        })
    }
}

impl Default for ModelView {
    fn default() -> Self {
        Self { open_world: false, budget: limits::OUTPUT_BUDGET, projector: None }
    }
}

impl fmt::Debug for ModelView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let projector = self.projector.is_some();
        write!(f, "ModelView(open_world: {}, budget: {}, projector: {projector})", self.open_world, self.budget)
    }
}

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

impl Output {
    /// The value as text: a string as it is, anything else as JSON. This is the text that a model is shown and that
    /// `read_output` pages through.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.value)
    }
}
