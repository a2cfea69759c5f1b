//! Tools: what there is, and what would become of a call.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::schema::{AnyOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use windlass::policy::{Hypothetical, Verdict as Predicted};
use windlass::tools::spec::Concurrency;
use windlass::{Tool, ToolCall, ToolError};

use crate::access::{May, Read};
use crate::answer::ok;
use crate::app::Shared;
use crate::extract::{Key, MaybeJson, Place, Query, shortened};
use crate::refusal::{Answer, Refusal};
use crate::show;
use crate::wire::{AnthropicTools, CheckAnswer, CheckRequest, OpenAiTools, ToolList, ToolView, Verdict};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    #[default]
    Windlass,
    #[serde(rename = "openai")]
    OpenAi,
    Anthropic,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ToolQuery {
    /// In whose form; `windlass` unless said.
    #[param(inline)]
    format: Option<Format>,
    /// Only tools with this tag.
    tag: Option<String>,
}

/// A list of tools in one of its forms.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Tools {
    Windlass(ToolList),
    OpenAi(OpenAiTools),
    Anthropic(AnthropicTools),
}

/// By hand, because an empty list has all three forms at once.
impl PartialSchema for Tools {
    fn schema() -> RefOr<Schema> {
        let item = |name| Ref::from_schema_name(name);
        let names = [ToolList::name(), OpenAiTools::name(), AnthropicTools::name()];
        names.into_iter().fold(AnyOfBuilder::new(), |any, name| any.item(item(name))).into()
    }
}

impl ToSchema for Tools {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((ToolList::name().into_owned(), ToolList::schema()));
        schemas.push((OpenAiTools::name().into_owned(), OpenAiTools::schema()));
        schemas.push((AnthropicTools::name().into_owned(), AnthropicTools::schema()));
        ToolList::schemas(schemas);
        OpenAiTools::schemas(schemas);
        AnthropicTools::schemas(schemas);
    }
}

/// List tools
#[utoipa::path(get, path = "/v1/tools", tag = "tools", params(ToolQuery),
    responses((status = 200, description = "The tools, sorted by name", body = inline(Tools))))]
pub(super) async fn list(State(app): State<Shared>, _may: May<Read>, Query(query): Query<ToolQuery>) -> Answer {
    let toolbox = app.windlass.toolbox();
    let tools = query.tag.as_deref().map_or_else(|| toolbox.tools(), |tag| toolbox.tagged(tag));
    let views = tools.iter().map(|tool| view(tool)).collect::<Answer<Vec<ToolView>>>()?.into_iter();
    Ok(ok(&match query.format.unwrap_or_default() {
        Format::Windlass => Tools::Windlass(ToolList { tools: views.collect() }),
        Format::OpenAi => Tools::OpenAi(OpenAiTools { tools: views.map(show::openai).collect() }),
        Format::Anthropic => Tools::Anthropic(AnthropicTools { tools: views.map(show::anthropic).collect() }),
    }))
}

fn view(tool: &Tool) -> Answer<ToolView> {
    show::tool(tool).map_err(|error| {
        let why = show::failure(&error).message;
        Refusal::unavailable(
            "tool_unavailable",
            format!("the schemas of `{}` cannot be had now: {why}", tool.spec().name),
        )
    })
}

fn find(app: &Shared, name: &str) -> Answer<Arc<Tool>> {
    app.windlass
        .toolbox()
        .get(name)
        .ok_or_else(|| Refusal::not_found(format!("there is no tool `{}`; /v1/tools lists them", shortened(name))))
}

/// Look at a tool
#[utoipa::path(get, path = "/v1/tools/{name}", tag = "tools", params(("name" = String, Path)),
    responses((status = 200, description = "The tool", body = ToolView)))]
pub(super) async fn get(State(app): State<Shared>, _may: May<Read>, Place(name): Place<String>) -> Answer {
    Ok(ok(&view(&*find(&app, &name)?)?))
}

/// What would become of a call?
///
/// Whether its arguments fit, whether it would need approval and why, its effect and its key. Nothing is run.
#[utoipa::path(post, path = "/v1/tools/{name}/check", tag = "tools", params(("name" = String, Path)),
    request_body = Option<CheckRequest>, responses((status = 200, description = "What would happen", body = CheckAnswer)))]
pub(super) async fn check(
    State(app): State<Shared>,
    _may: May<Read>,
    _key: Key,
    Place(name): Place<String>,
    MaybeJson(request): MaybeJson<CheckRequest>,
) -> Answer {
    let tool = find(&app, &name)?;
    let args = Value::Object(request.args);
    let key = match &tool.spec().guards.concurrency {
        Concurrency::Keyed(key) => Some(key.evaluate(&args)),
        _ => None,
    };
    let case = Hypothetical { session: request.session, ..Hypothetical::new(ToolCall::new(name.as_str(), args)) };
    let predicted = app.windlass.predict(case);
    let (verdict, why, error) = match predicted.verdict {
        Predicted::Runs(_) => (Verdict::Runs, None, None),
        Predicted::NeedsApproval(need) => (Verdict::NeedsApproval, Some(need.to_string()), None),
        Predicted::Refused(error) => (Verdict::Refused, None, Some(error)),
    };
    let violations = match &error {
        Some(ToolError::InvalidArguments { violations }) => violations.iter().map(show::violation).collect(),
        _ => Vec::new(),
    };
    let failure = error.as_ref().map(show::failure);
    let effect = show::effect_word(tool.spec().effect).to_owned();
    let why = why.or_else(|| failure.as_ref().map(|failure| failure.message.clone()));
    Ok(ok(&CheckAnswer {
        tool: name,
        valid: violations.is_empty(),
        violations,
        verdict,
        why,
        error: failure,
        effect,
        key,
    }))
}
