//! Tools, and checks of hypothetical calls.

use std::borrow::Cow;
use std::convert::Infallible;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::schema::{AnyOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use windlass::policy::{Hypothetical, Verdict as Predicted};
use windlass::tool::{Catalog, SourceFailure};
use windlass::{Tool, ToolCall, ToolError, Toolbox, Windlass};

use super::sessions::session;
use crate::access::{Authorized, Identity, Read};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, MaybeJson, PathParam, Query, shortened};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::show;
use crate::wire::{AnthropicTools, CheckRequest, CheckResponse, OpenAiTools, ToolList, ToolView, Verdict};

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
    /// Format of the list; `windlass` by default.
    #[param(inline)]
    format: Option<Format>,
    /// Only tools with this tag.
    tag: Option<String>,
    /// Only the tools that this layer shows.
    #[param(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    layer: Option<String>,
    /// Only the tools that this session shows, and those that belong to it.
    #[param(min_length = 1, max_length = 255)]
    session: Option<String>,
    /// Which schemas the list shows; `loaded` by default.
    #[param(inline)]
    schemas: Option<ShownSchemas>,
    /// Only these tools, separated by commas, with their schemas. Tools that are not listed can be named too.
    names: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ShownSchemas {
    /// Those that need not be loaded.
    #[default]
    Loaded,
    /// All; sources that have them elsewhere load them.
    All,
}

/// Longer lists are streamed, because the schemas of a large OpenAPI document take ten times the size of its text.
const MAX_BUFFERED: usize = 64;

/// A list of tools in one of the formats.
struct Tools;

/// Not derived, because an empty list matches all three formats.
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
///
/// Loads no schemas unless `schemas=all` or `names` asks for them. A source that cannot list its tools is named in
/// `failed_sources`.
#[utoipa::path(get, path = "/v1/tools", tag = "tools", params(ToolQuery),
    responses((status = 200, description = "The tools, sorted by name", body = inline(Tools))))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    Query(query): Query<ToolQuery>,
) -> ApiResult {
    let windlass = authorized.identity.windlass(&app, query.layer.as_deref())?;
    let toolbox = in_session(&app, &authorized.identity, &windlass, query.session.as_deref()).await?;
    let Catalog { mut tools, failed } = toolbox.catalog();
    if let Some(names) = &query.names {
        tools = names.split(',').map(|name| find(&toolbox, name)).collect::<ApiResult<_>>()?;
    }
    let chosen = toolbox.session_tools();
    if let Some(tag) = &query.tag {
        tools.retain(|tool| tool.spec().about.tags.contains(tag));
    }
    let format = query.format.unwrap_or_default();
    let load = query.names.is_some() || query.schemas == Some(ShownSchemas::All);
    let (mut first, count) = (true, tools.len());
    let parts = tools.into_iter().filter_map(move |tool| {
        let is_revealed = chosen.as_ref().is_some_and(|(_, chosen)| chosen.revealed.contains(&tool.spec().name));
        let text = to_json(&tool, format, load || is_revealed)?;
        Some(format!("{}{text}", if std::mem::take(&mut first) { "" } else { "," }))
    });
    let parts = iter::once("{\"tools\":[".to_owned()).chain(parts).chain([end_of_list(&failed)]);
    let body = if count <= MAX_BUFFERED {
        Body::from(parts.collect::<String>())
    } else {
        // Each tool is serialized when it is sent, and other requests are served in between.
        Body::from_stream(stream::iter(parts).then(|part| async {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(part)
        }))
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The end of a list, with the sources whose tools are missing in it.
fn end_of_list(failed: &[SourceFailure]) -> String {
    if failed.is_empty() {
        return "]}\n".to_owned();
    }
    let failed: Vec<_> = failed.iter().map(show::failed_source).collect();
    format!("],\"failed_sources\":{}}}\n", serde_json::json!(failed))
}

/// A tool as JSON. In the formats for models, a tool that cannot be called is left out.
fn to_json(tool: &Tool, format: Format, load: bool) -> Option<String> {
    let view = if load { view(tool) } else { Ok(show::tool(tool, tool.schemas_if_loaded())) };
    let text = match (format, view) {
        (Format::Windlass, view) => serde_json::to_string(&view.unwrap_or_else(|why| unavailable(tool, why))),
        (Format::OpenAi, Ok(view)) => serde_json::to_string(&show::openai(view)),
        (Format::Anthropic, Ok(view)) => serde_json::to_string(&show::anthropic(view)),
        (Format::OpenAi | Format::Anthropic, Err(_)) => return None,
    };
    text.inspect_err(|error| tracing::error!("tool `{}` could not be serialized: {error}", tool.spec().name)).ok()
}

/// The tool with its schemas, or why they could not be loaded.
fn view(tool: &Tool) -> Result<ToolView, String> {
    let schemas = tool.schemas().map_err(|error| {
        let why = show::failure(&error).message;
        format!("could not load the schemas of `{}`: {why}", tool.spec().name)
    })?;
    Ok(show::tool(tool, Some(schemas)))
}

fn unavailable(tool: &Tool, why: String) -> ToolView {
    ToolView { unavailable: Some(why), ..show::tool(tool, None) }
}

/// The tools of a request: those that its session shows, if it names one.
async fn in_session<'w>(
    app: &Shared,
    sender: &Identity,
    windlass: &'w Windlass,
    name: Option<&str>,
) -> ApiResult<Cow<'w, Toolbox>> {
    let Some(name) = name else { return Ok(Cow::Borrowed(windlass.toolbox())) };
    session(app, sender, name).await?;
    Ok(Cow::Owned(windlass.session(name).toolbox().await?))
}

fn find(toolbox: &Toolbox, name: &str) -> ApiResult<Arc<Tool>> {
    windlass::tool::called(toolbox, name).ok_or_else(|| match toolbox.session_tools() {
        Some((session, _)) => Refusal::not_found(format!(
            "session {session:?} has no tool `{}`; /v1/tools?session=… lists the tools that it shows",
            shortened(name)
        )),
        None => Refusal::not_found(format!("tool `{}` does not exist; /v1/tools lists all tools", shortened(name))),
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LayerQuery {
    /// Layer through which the tool is read.
    #[param(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    layer: Option<String>,
    /// Session in which the tool is read.
    #[param(min_length = 1, max_length = 255)]
    session: Option<String>,
}

/// Read a tool
#[utoipa::path(get, path = "/v1/tools/{name}", tag = "tools", params(("name" = String, Path), LayerQuery),
    responses((status = 200, description = "The tool", body = ToolView)))]
pub(super) async fn get(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
    Query(query): Query<LayerQuery>,
) -> ApiResult {
    let windlass = authorized.identity.windlass(&app, query.layer.as_deref())?;
    let toolbox = in_session(&app, &authorized.identity, &windlass, query.session.as_deref()).await?;
    let view = view(&*find(&toolbox, &name)?);
    Ok(ok(&view.map_err(|why| Refusal::unavailable("tool_unavailable", "Tool unavailable", why))?))
}

/// Check a hypothetical call
///
/// Returns whether the arguments are valid, whether the call would wait for a connection or an approval and why, its
/// effect, its key and its limits, as the same call with the same token would find them. Nothing is executed.
#[utoipa::path(post, path = "/v1/tools/{name}/check", tag = "tools", params(("name" = String, Path)),
    request_body = Option<CheckRequest>,
    responses((status = 200, description = "What would happen to the call", body = CheckResponse)))]
pub(super) async fn check(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    _key: IdempotencyKey,
    PathParam(name): PathParam<String>,
    MaybeJson(request): MaybeJson<CheckRequest>,
) -> ApiResult {
    let windlass = authorized.identity.windlass(&app, request.layer.as_deref())?;
    if let Some(name) = &request.session {
        session(&app, &authorized.identity, name).await?;
    }
    // With the tools that the session hides: the prediction says that it does.
    let toolbox = match &request.session {
        Some(session) => Cow::Owned(windlass.toolbox().of_session(session.as_str())),
        None => Cow::Borrowed(windlass.toolbox()),
    };
    let tool = find(&toolbox, &name)?;
    let name = tool.spec().name.to_string();
    let args = Value::Object(request.args);
    let case = Hypothetical {
        session: request.session,
        principal: authorized.identity.principal.as_deref().map(str::to_owned),
        cause: request.cause,
        // A token that only reads does not execute code of the tool.
        prepare: authorized.identity.may_call,
        ..Hypothetical::new(ToolCall::new(name.as_str(), args))
    };
    let predicted = windlass.predict(case).await?;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let policy = predicted.policy;
    let (verdict, why, error) = match predicted.verdict {
        Predicted::Runs => (Verdict::Runs, None, None),
        Predicted::Answered => (Verdict::Answered, None, None),
        Predicted::NeedsConnection { provider, then } => {
            let why = format!("the provider `{provider}` is not connected; once it is, the call {then}");
            (Verdict::NeedsConnection, Some(why), None)
        }
        Predicted::NeedsApproval(need) => (Verdict::NeedsApproval, Some(need.to_string()), None),
        Predicted::Refused(error) => (Verdict::Refused, None, Some(error)),
    };
    let violations = match &error {
        Some(ToolError::InvalidArguments { violations }) => violations.iter().map(show::violation).collect(),
        _ => Vec::new(),
    };
    let failure = error.as_ref().map(show::failure);
    let effect = show::effect_name(tool.spec().effect).to_owned();
    let why = why.or_else(|| failure.as_ref().map(|failure| failure.message.clone()));
    Ok(ok(&CheckResponse {
        tool: name,
        valid: violations.is_empty(),
        violations,
        verdict,
        why,
        error: failure,
        effect,
        key: predicted.key.as_deref().map(str::to_owned),
        timeout_ms: policy.as_ref().map(|policy| milliseconds(policy.timeout)),
        deadline_ms: policy.and_then(|policy| policy.deadline).map(milliseconds),
        unprepared: predicted.unprepared,
    }))
}
