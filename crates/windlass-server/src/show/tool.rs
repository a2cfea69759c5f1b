//! Tools.

use serde_json::{Map, Value, json};
use windlass::policy::Policy;
use windlass::tool::spec::{Approval, Concurrency};
use windlass::tool::{Schemas, SourceFailure, model_name};
use windlass::{Effect, Tool};

use crate::wire;

pub(crate) fn effect_name(effect: Effect) -> &'static str {
    match effect {
        Effect::Readonly => "readonly",
        Effect::Idempotent => "idempotent",
        Effect::Once => "once",
    }
}

pub(crate) fn tool(tool: &Tool, schemas: Option<Schemas>) -> wire::ToolView {
    let spec = tool.spec();
    let hints = match serde_json::to_value(spec.hints) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (input_schema, output_schema) = schemas.map_or((None, None), |schemas| (Some(schemas.input), schemas.output));
    let concurrency = match &spec.guards.concurrency {
        Concurrency::Auto => "auto".to_owned(),
        Concurrency::Parallel => "parallel".to_owned(),
        Concurrency::Exclusive => "exclusive".to_owned(),
        Concurrency::Keyed(key) => key.source().to_owned(),
    };
    wire::ToolView {
        name: spec.name.to_string(),
        id: spec.id.to_string(),
        title: spec.about.title.clone(),
        description: spec.about.description.clone(),
        version: spec.about.version.as_deref().map(str::to_owned),
        tags: spec.about.tags.clone(),
        effect: effect_name(spec.effect).to_owned(),
        durable: tool.is_durable(),
        hints,
        policy: policy(&spec.policy()),
        concurrency,
        connection: spec.guards.connection.as_deref().map(str::to_owned),
        input_schema,
        output_schema,
        unavailable: None,
    }
}

/// The fields that a policy sets, with durations in milliseconds.
fn policy(policy: &Policy) -> Map<String, Value> {
    let mut map = Map::new();
    let times = [
        ("timeout_ms", policy.timeout),
        ("deadline_ms", policy.deadline),
        ("grace_ms", policy.grace),
        ("heartbeat_ms", policy.heartbeat),
        ("approval_within_ms", policy.approval_within),
        ("grant_valid_ms", policy.grant_valid),
    ];
    for (name, time) in times {
        map.extend(time.map(|time| (name.to_owned(), u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into())));
    }
    match &policy.approval {
        Some(Approval::Always) => drop(map.insert("approval".to_owned(), "always".into())),
        Some(Approval::When(condition)) => drop(map.insert("approval".to_owned(), condition.source().into())),
        Some(Approval::Never) | None => {}
    }
    if let Some(retry) = &policy.retry {
        map.insert("attempts".to_owned(), retry.attempts.into());
    }
    let plain = [
        ("on_doubt", policy.on_doubt.and_then(|value| serde_json::to_value(value).ok())),
        ("unattended", policy.unattended.and_then(|value| serde_json::to_value(value).ok())),
        ("output_budget", policy.output_budget.map(Into::into)),
        ("loop_limit", policy.loop_limit.map(Into::into)),
        ("max_depth", policy.max_depth.map(Into::into)),
    ];
    map.extend(plain.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    map
}

/// What a model reads of a tool whose schema is not loaded. Model APIs require a schema, so any object is allowed.
const NOT_LOADED: &str =
    "The schema of the arguments is not loaded. A call with wrong arguments is answered with every violation.";

fn for_model(view: wire::ToolView) -> (String, String, Value) {
    let name = model_name(&view.name).into_owned();
    match view.input_schema {
        Some(schema) => (name, view.description, schema),
        None => (name, format!("{}\n\n{NOT_LOADED}", view.description), json!({"type": "object"})),
    }
}

pub(crate) fn openai(view: wire::ToolView) -> wire::OpenAiTool {
    let (name, description, parameters) = for_model(view);
    let function = wire::OpenAiFunction { name, description, parameters };
    wire::OpenAiTool { kind: "function".to_owned(), function }
}

pub(crate) fn anthropic(view: wire::ToolView) -> wire::AnthropicTool {
    let (name, description, input_schema) = for_model(view);
    wire::AnthropicTool { name, description, input_schema }
}

pub(crate) fn failed_source(failure: &SourceFailure) -> wire::FailedSource {
    wire::FailedSource { source: failure.source_name.to_string(), message: super::failure(&failure.problem).message }
}
