//! `windlass tools`

use serde_json::{Map, Value};
use windlass_server::wire::{CheckRequest, CheckResponse, ToolList, ToolView, Verdict};

use super::text;
use crate::api::{Api, escaped, query, unknown_tool};
use crate::args::ToolFormat;
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// Lists the tools.
pub(super) async fn list(
    (tag, layer, session): (Option<&str>, Option<&str>, Option<&str>),
    format: Option<ToolFormat>,
    schemas: bool,
    api: &Api,
    out: &Out,
) -> Result<()> {
    let word = format.map(|format| match format {
        ToolFormat::Openai => "openai",
        ToolFormat::Anthropic => "anthropic",
    });
    let schemas = schemas.then_some("all");
    let pairs = [("format", word), ("tag", tag), ("layer", layer), ("session", session), ("schemas", schemas)];
    let path = format!("/v1/tools{}", query(&pairs));
    if out.json || format.is_some() {
        return out.document(&api.get::<Value>(&path).await?);
    }
    let list: ToolList = api.get(&path).await?;
    for failed in &list.failed_sources {
        out.note(&format!(
            "the tools of the source `{}` are missing: {}",
            plain(&failed.source),
            plain(&failed.message)
        ));
    }
    if list.tools.is_empty() && session.is_some() {
        out.note("the session shows no tools; `windlass sessions tools` changes that");
        return Ok(());
    }
    if list.tools.is_empty() {
        out.note("no tools; declare some in windlass.toml, and check it with `windlass check`");
        return Ok(());
    }
    let heads = ["TOOL", "EFFECT", "APPROVAL", "DESCRIPTION"];
    let mut rows = vec![heads.map(|head| (Tint::Dim, head.to_owned())).into()];
    for tool in &list.tools {
        let approval = tool.policy.get("approval").map(approval).unwrap_or_default();
        let first = tool.description.lines().next().unwrap_or_default();
        rows.push(vec![
            (Tint::Bold, plain(&tool.name)),
            (Tint::Plain, effect(tool)),
            (Tint::Park, approval),
            tool.unavailable.as_ref().map_or_else(|| (Tint::Plain, plain(first)), |why| (Tint::Bad, plain(why))),
        ]);
    }
    out.lines(&table(&rows, &out.style))
}

/// The failure for a tool that does not exist; `None` if it exists, or if the token does not allow to list the tools.
pub(super) async fn unknown(name: &str, layer: Option<&str>, api: &Api) -> Option<Failure> {
    let list: ToolList = api.get(&format!("/v1/tools{}", query(&[("layer", layer)]))).await.ok()?;
    let names: Vec<&str> = list.tools.iter().map(|tool| tool.name.as_str()).collect();
    if names.iter().any(|other| *other == name || windlass::tool::model_name(other) == name) {
        return None;
    }
    Some(unknown_tool(name, layer, names))
}

/// Replaces a "not found" by a failure with a suggestion.
async fn with_suggestion<T>(response: Result<T>, name: &str, layer: Option<&str>, api: &Api) -> Result<T> {
    match response {
        Err(failure) if failure.exit == Exit::NotFound => Err(unknown(name, layer, api).await.unwrap_or(failure)),
        response => response,
    }
}

fn approval(approval: &Value) -> String {
    match approval.as_str() {
        Some("never") => String::new(),
        Some("always") => "always".to_owned(),
        _ => "sometimes".to_owned(),
    }
}

fn effect(tool: &ToolView) -> String {
    if tool.durable { "durable".to_owned() } else { plain(&tool.effect) }
}

/// Shows one tool.
pub(super) async fn show(name: &str, layer: Option<&str>, api: &Api, out: &Out) -> Result<()> {
    let tool = api.get(&format!("/v1/tools/{}{}", escaped(name), query(&[("layer", layer)]))).await;
    let tool: ToolView = with_suggestion(tool, name, layer, api).await?;
    if out.json {
        return out.document(&tool);
    }
    out.line(&format!("{}  {}", out.bold(&plain(&tool.name)), out.dim(&effect(&tool))))?;
    tool.description.lines().try_for_each(|line| out.line(&format!("  {}", plain(line))))?;
    let mut facts = Map::new();
    facts.extend(tool.hints.clone().into_iter().filter(|(_, value)| value == &Value::Bool(true)));
    facts.extend(tool.policy.clone());
    facts.insert("concurrency".to_owned(), tool.concurrency.clone().into());
    facts.extend(tool.connection.clone().map(|connection| ("connection".to_owned(), connection.into())));
    for (name, value) in &facts {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        out.line(&format!("  {}  {}", out.dim(&plain(name)), plain(&value)))?;
    }
    if let Some(input) = &tool.input_schema {
        out.line(&out.dim("arguments"))?;
        out.lines(&text::pretty(input))?;
    }
    let Some(output) = &tool.output_schema else { return Ok(()) };
    out.line(&out.dim("returns"))?;
    out.lines(&text::pretty(output))
}

/// Checks what a call would do.
pub(super) async fn check(
    name: &str,
    args: &str,
    (session, layer, cause): (Option<String>, Option<String>, Option<String>),
    api: &Api,
    out: &Out,
) -> Result<()> {
    let Value::Object(args) = input::json(args, "--args")? else {
        return Err(Failure::usage("--args must be a JSON object (expected for example {\"name\": \"value\"})"));
    };
    let path = format!("/v1/tools/{}/check", escaped(name));
    let answer = api.post(&path, &CheckRequest { args, session, cause, layer: layer.clone() }, None).await;
    let answer: CheckResponse = with_suggestion(answer, name, layer.as_deref(), api).await?;
    if out.json {
        out.document(&answer)?;
    } else {
        out.lines(&verdict(&answer, out))?;
    }
    if answer.verdict == Verdict::Refused { Err(Failure::silent(Exit::Failed)) } else { Ok(()) }
}

fn verdict(answer: &CheckResponse, out: &Out) -> Vec<String> {
    let (tint, word) = match answer.verdict {
        Verdict::Runs => (Tint::Good, "would run"),
        Verdict::Answered => (Tint::Good, "would be answered without an attempt"),
        Verdict::NeedsConnection => (Tint::Park, "would wait for a connection"),
        Verdict::NeedsApproval => (Tint::Park, "would wait for approval"),
        Verdict::Refused => (Tint::Bad, "would be refused"),
    };
    let why = answer.why.as_ref().map(|why| text::unrepeated(why, &answer.violations));
    let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
    let mut lines = vec![format!("{}{why}", out.style.paint(tint, word))];
    lines.extend(text::violations(&answer.violations));
    lines.push(out.dim(&format!("effect {}", plain(&answer.effect))));
    lines.extend(answer.key.as_ref().map(|key| out.dim(&format!("runs one at a time under the key {}", plain(key)))));
    if answer.unprepared {
        lines.push(out.dim(
            "the token may not call the tool, so the tool was not asked, and may still change or refuse this call",
        ));
    }
    lines
}
