//! Standard tools, switched on by name.

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::tool::spec::Concurrency;
use windlass::tool::{Atomic, READ_OUTPUT, READ_OUTPUT_ID, Schemas, parse_output_uri};
use windlass::{Call, Effect, Output, Tool, ToolError, ToolResult, ToolSpec, limits};

/// The names of the standard tools.
pub const NAMES: [&str; 1] = [READ_OUTPUT];

/// Bytes that a model reads at once, unless it asks for fewer or more.
const PAGE: usize = 16 * 1024;

/// The standard tool with this name.
pub fn tool(name: &str) -> Option<Tool> {
    match name {
        READ_OUTPUT => Some(read_output()),
        _ => None,
    }
}

/// `read_output`: a model that was shown only a part of an output reads on with it. It reads outputs of its own run and
/// of the runs of its own session.
///
/// If a toolbox has this tool, the notice in a cut output names it. Otherwise the notice names the route and the command
/// that read the same text.
pub fn read_output() -> Tool {
    let mut spec = ToolSpec::new(
        READ_OUTPUT,
        "Read on in an output that was too long to be shown at once. The notice in the output has its address and the \
         offset to continue at.",
    );
    spec.id = READ_OUTPUT_ID.into();
    spec.effect = Effect::Readonly;
    spec.guards.concurrency = Concurrency::Parallel;
    // What other tools returned may come from outside systems.
    spec.hints.open_world = true;
    // A page is never cut again: a byte takes at most six in JSON.
    spec.limits.output_budget = Some(6 * limits::OUTPUT_BUDGET + 1024);
    spec.about.title = Some("Read output".to_owned());
    spec.about.narration.add("en", "Reading on in an output", "Read on in an output");
    spec.about.narration.add_failure("en", "Could not read on in an output");
    spec.about.narration.add("de", "Liest in einer Ausgabe weiter", "In einer Ausgabe weitergelesen");
    spec.about.narration.add_failure("de", "Konnte in einer Ausgabe nicht weiterlesen");
    Tool::atomic(spec, schemas(), ReadOutput)
}

fn schemas() -> Schemas {
    let input = json!({
        "type": "object",
        "properties": {
            "output": {"type": "string", "description": "The address of the output: windlass://run/…"},
            "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "The byte to begin at"},
            "limit": {"type": "integer", "minimum": 1, "maximum": limits::OUTPUT_BUDGET, "default": PAGE,
                      "description": "The most bytes to read"},
        },
        "required": ["output"],
        "additionalProperties": false,
    });
    let output = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "next_offset": {"type": ["integer", "null"], "description": "Where to read on; null at the end"},
            "total_bytes": {"type": "integer"},
        },
        "required": ["text", "next_offset", "total_bytes"],
    });
    Schemas { output: Some(output), ..Schemas::input(input) }
}

struct ReadOutput;

impl Atomic for ReadOutput {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(async move {
            let number = |name: &str| call.args()[name].as_u64().and_then(|number| usize::try_from(number).ok());
            let address = call.args()["output"].as_str().unwrap_or_default();
            let (run, path) = parse_output_uri(address).ok_or_else(|| {
                ToolError::invalid("/output", "is not the address of an output: windlass://run/RUN/PATH".to_owned())
            })?;
            let (offset, limit) = (number("offset").unwrap_or(0), number("limit").unwrap_or(PAGE));
            let page = call.read_output(run, &path, offset, limit).await?;
            let (text, next, total) = (page.text, page.next_offset, page.total);
            Ok(Output::value(
                json!({"text": text, "next_offset": next.map_or(Value::Null, Value::from), "total_bytes": total}),
            ))
        })
    }
}
