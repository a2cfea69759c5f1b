//! `windlass tools`

use serde_json::{Map, Value};
use windlass_server::wire::{CheckAnswer, CheckRequest, ToolList, ToolView, Verdict};

use super::say;
use crate::api::{Api, escaped, query, unknown_tool};
use crate::args::ToolFormat;
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// Every tool.
pub(super) async fn list(
    (tag, layer): (Option<&str>, Option<&str>),
    format: Option<ToolFormat>,
    api: &Api,
    out: &Out,
) -> Result<()> {
    let word = format.map(|format| match format {
        ToolFormat::Openai => "openai",
        ToolFormat::Anthropic => "anthropic",
    });
    let path = format!("/v1/tools{}", query(&[("format", word), ("tag", tag), ("layer", layer)]));
    if out.json || format.is_some() {
        return out.document(&api.get::<Value>(&path).await?);
    }
    let list: ToolList = api.get(&path).await?;
    if list.tools.is_empty() {
        out.aside("no tools; describe some in windlass.toml, and check it with `windlass check`");
        return Ok(());
    }
    let mut rows = vec![["TOOL", "EFFECT", "ASKS", "WHAT IT DOES"].map(|head| (Tint::Dim, head.to_owned())).into()];
    for tool in &list.tools {
        let asks = tool.policy.get("approval").map(asks).unwrap_or_default();
        let first = tool.description.lines().next().unwrap_or_default();
        rows.push(vec![
            (Tint::Bold, plain(&tool.name)),
            (Tint::Plain, effect(tool)),
            (Tint::Park, asks),
            tool.unavailable.as_ref().map_or_else(|| (Tint::Plain, plain(first)), |why| (Tint::Bad, plain(why))),
        ]);
    }
    out.lines(&table(&rows, &out.style))
}

/// What to say of a tool that is not there, with the one that may be meant; nothing if it is there. Whoever may call may not be
/// allowed to look: then what was told must do.
pub(super) async fn unknown(name: &str, layer: Option<&str>, api: &Api) -> Option<Failure> {
    let known: ToolList = api.get(&format!("/v1/tools{}", query(&[("layer", layer)]))).await.ok()?;
    let names: Vec<&str> = known.tools.iter().map(|tool| tool.name.as_str()).collect();
    if names.iter().any(|known| *known == name || windlass::tools::model_name(known) == name) {
        return None;
    }
    Some(unknown_tool(name, layer, names))
}

/// The answer about a tool, or what is known of the tool that is not there.
async fn of_tool<T>(asked: Result<T>, name: &str, layer: Option<&str>, api: &Api) -> Result<T> {
    match asked {
        Err(failure) if failure.exit == Exit::NotFound => Err(unknown(name, layer, api).await.unwrap_or(failure)),
        asked => asked,
    }
}

fn asks(approval: &Value) -> String {
    match approval.as_str() {
        Some("never") => String::new(),
        Some("always") => "always".to_owned(),
        _ => "sometimes".to_owned(),
    }
}

fn effect(tool: &ToolView) -> String {
    if tool.durable { "durable".to_owned() } else { plain(&tool.effect) }
}

/// One tool.
pub(super) async fn show(name: &str, layer: Option<&str>, api: &Api, out: &Out) -> Result<()> {
    let tool = api.get(&format!("/v1/tools/{}{}", escaped(name), query(&[("layer", layer)]))).await;
    let tool: ToolView = of_tool(tool, name, layer, api).await?;
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
    out.line(&out.dim("arguments"))?;
    out.lines(&say::pretty(&tool.input_schema))?;
    let Some(output) = &tool.output_schema else { return Ok(()) };
    out.line(&out.dim("returns"))?;
    out.lines(&say::pretty(output))
}

/// What would become of a call.
pub(super) async fn check(
    name: &str,
    args: &str,
    (session, layer): (Option<String>, Option<String>),
    api: &Api,
    out: &Out,
) -> Result<()> {
    let Value::Object(args) = input::json(args, "--args")? else {
        return Err(Failure::usage("--args is no JSON object: write {\"name\": value}"));
    };
    let path = format!("/v1/tools/{}/check", escaped(name));
    let answer = api.post(&path, &CheckRequest { args, session, layer: layer.clone() }, None).await;
    let answer: CheckAnswer = of_tool(answer, name, layer.as_deref(), api).await?;
    if out.json {
        out.document(&answer)?;
    } else {
        out.lines(&verdict(&answer, out))?;
    }
    if answer.verdict == Verdict::Refused { Err(Failure::silent(Exit::Failed)) } else { Ok(()) }
}

fn verdict(answer: &CheckAnswer, out: &Out) -> Vec<String> {
    let (tint, word) = match answer.verdict {
        Verdict::Runs => (Tint::Good, "would run"),
        Verdict::NeedsConnection => (Tint::Park, "would wait for a connection"),
        Verdict::NeedsApproval => (Tint::Park, "would wait for approval"),
        Verdict::Refused => (Tint::Bad, "would be refused"),
    };
    let why = answer.why.as_ref().map(|why| say::unrepeated(why, &answer.violations));
    let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
    let mut lines = vec![format!("{}{why}", out.style.paint(tint, word))];
    lines.extend(say::violations(&answer.violations));
    lines.push(out.dim(&format!("effect {}", plain(&answer.effect))));
    lines.extend(answer.key.as_ref().map(|key| out.dim(&format!("one at a time under the key {}", plain(key)))));
    lines
}
