//! What a model sees of an outcome, as opposed to what the record keeps and a body computes with.

use std::borrow::Cow;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::Value;

use super::Tool;
use super::budget;
use super::error::ToolResult;
use super::output::{Content, Output};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy::Policy;

/// Makes what the model sees out of an output and the arguments as asked.
pub(crate) type Projector = dyn Fn(&Output, &Value) -> ToolResult<Vec<Content>> + Send + Sync;

/// What a projector may return.
pub trait IntoContent {
    /// The blocks it stands for.
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

/// How outcomes of one call are shown.
#[derive(Clone)]
pub(crate) struct Lens {
    pub(crate) open_world: bool,
    budget: usize,
    /// Only a tool that has a projector pays for one.
    projector: Option<(Arc<Projector>, Arc<Value>)>,
}

impl Lens {
    /// `policies`: the call's own policy and the runtime's.
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

    /// The blocks a projector makes of it; `None` where there is none, or where it fails: then the output is its own text.
    fn projected(&self, output: &Output, place: &Place<'_>) -> Option<Vec<Content>> {
        let (projector, args) = self.projector.as_ref()?;
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| projector(output, args)));
        let problem = match made {
            Ok(Ok(content)) => return Some(content),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        let Place { run, path } = place;
        tracing::warn!(%run, %path, "the projector failed, the model sees the output as text: {problem}");
        None
    }

    /// What the model sees as one JSON value.
    pub(crate) fn value<'o>(&self, output: &'o Output, place: &Place<'_>) -> Cow<'o, Value> {
        match self.projected(output, place) {
            Some(content) => {
                let mut content = self.bounded(content, place);
                Cow::Owned(match content.as_mut_slice() {
                    [Content::Text { text }] => Value::String(std::mem::take(text)),
                    _ => serde_json::to_value(content).unwrap_or_default(),
                })
            }
            None if budget::surely_fits(&output.value, self.budget) => Cow::Borrowed(&output.value),
            None => match self.cut(&output.text(), place, true) {
                Cow::Owned(cut) => Cow::Owned(Value::String(cut)),
                Cow::Borrowed(_) => Cow::Borrowed(&output.value),
            },
        }
    }

    /// What the model sees as native blocks.
    pub(crate) fn content(&self, output: &Output, place: &Place<'_>) -> Vec<Content> {
        if let Some(content) = self.projected(output, place) {
            return self.bounded(content, place);
        }
        let text = Content::text(self.cut(&output.text(), place, true));
        let mut all = vec![text];
        all.extend(self.bounded(output.content.clone(), place));
        all
    }

    /// The budget counts for each block of text; other media are bounded where they are made.
    fn bounded(&self, mut content: Vec<Content>, place: &Place<'_>) -> Vec<Content> {
        for block in &mut content {
            if let Content::Text { text } = block
                && let Cow::Owned(cut) = self.cut(text, place, false)
            {
                *text = cut;
            }
        }
        content
    }

    /// `whole`: the text is the one that can be read on, so its offsets count there.
    fn cut<'t>(&self, text: &'t str, place: &Place<'_>, whole: bool) -> Cow<'t, str> {
        budget::fit(text, self.budget, |cut| {
            let from = if whole { cut.head.len() } else { 0 };
            format!("; the whole output is {place}: read on with read_output from offset {from}")
        })
    }
}

impl Default for Lens {
    fn default() -> Self {
        Self { open_world: false, budget: limits::OUTPUT_BUDGET, projector: None }
    }
}

impl fmt::Debug for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let projector = self.projector.is_some();
        write!(f, "Lens(open_world: {}, budget: {}, projector: {projector})", self.open_world, self.budget)
    }
}

/// Where the whole output is.
pub(crate) struct Place<'a> {
    pub(crate) run: RunId,
    pub(crate) path: &'a Path,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string();
        write!(f, "windlass://run/{}/{}", self.run, path.trim_start_matches('/'))
    }
}

impl Output {
    /// The value as text: a string as it is, anything else as JSON. What a model is shown and reads on in.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.value {
            Value::String(text) => Cow::Borrowed(text),
            other => Cow::Owned(other.to_string()),
        }
    }
}
