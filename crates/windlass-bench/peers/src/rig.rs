//! rig-core: a `DynamicTool` behind its erased handler, looked up by key and served inline. The handler takes the
//! arguments as JSON text, parses them itself, and does not validate.
//!
//! Three variants: without validation; after `arguments_refusal`, the check that rig-core offers, which reads the
//! schema again for each call; and after a compiled validator like the baseline's.

use std::hint::black_box;

use rig_core::{
    effect::{Answered, EffectKind, HandlerKey, tool_key},
    message::{ToolCall, ToolFunction, ToolName},
    serve::{ErasedHandler, serve_inline},
    tool::{DynamicTool, ToolOutput, feedback::arguments_refusal},
};
use rustc_hash::FxHashMap;
use serde_json::Value;
use tokio::runtime::Runtime;
use windlass_bench::{
    Contender, drive,
    fixture::{self, Call},
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Validation {
    None,
    Own,
    InFront,
}

/// A call in the form that the variant starts from.
#[expect(clippy::large_enum_variant, reason = "freeing a box would be charged to the peer")]
enum Prepared {
    Text { name: String, args: String },
    Message(ToolCall),
    Json(Call),
}

struct Registered {
    handler: ErasedHandler,
    parameters: Value,
    validator: jsonschema::Validator,
}

pub(crate) struct Rig {
    executor: Runtime,
    validation: Validation,
    tools: FxHashMap<HandlerKey, Registered>,
    prepared: Vec<Vec<Prepared>>,
}

impl Rig {
    pub(crate) fn new(validation: Validation) -> anyhow::Result<Self> {
        let tool =
            DynamicTool::new(ToolName::new(fixture::NAME)?, fixture::DESCRIPTION, fixture::schema(), |arguments| {
                Box::pin(async move { Ok(ToolOutput::json(fixture::body(&arguments))) })
            });
        let registered = Registered {
            parameters: tool.definition().parameters,
            validator: jsonschema::draft202012::new(&fixture::schema())?,
            handler: ErasedHandler::new(tool),
        };
        let tools = FxHashMap::from_iter([(registered.handler.key().clone(), registered)]);
        Ok(Self { executor: drive::runtime()?, validation, tools, prepared: Vec::new() })
    }

    async fn call(&self, call: Prepared) -> Result<ToolOutput, String> {
        let (handler, effect) = match call {
            Prepared::Text { name, args } => (&self.find(&name)?.handler, EffectKind::ToolCall { name, args }),
            Prepared::Message(call) => {
                let tool = self.find(call.function.name.as_str())?;
                if let Some(refusal) = arguments_refusal(&tool.parameters, &call) {
                    return Err(refusal);
                }
                (&tool.handler, EffectKind::from(&call))
            }
            Prepared::Json(call) => {
                let tool = self.find(&call.name)?;
                if !tool.validator.is_valid(&call.arguments) {
                    return Err("the arguments do not match the schema".to_owned());
                }
                (&tool.handler, EffectKind::ToolCall { name: call.name, args: call.arguments.to_string() })
            }
        };
        match serve_inline(handler, effect).await {
            Ok(Answered::ToolResult { result }) => result.into_result().map_err(|error| error.to_string()),
            Ok(_) => Err("not the result of a tool".to_owned()),
            Err(report) => Err(report.to_string()),
        }
    }

    fn find(&self, name: &str) -> Result<&Registered, String> {
        self.tools.get(&tool_key(name)).ok_or_else(|| format!("no tool named {name}"))
    }
}

fn convert(call: Call, validation: Validation) -> Result<Prepared, String> {
    Ok(match validation {
        Validation::None => Prepared::Text { name: call.name, args: call.arguments.to_string() },
        Validation::Own => {
            let name = ToolName::new(call.name).map_err(|error| error.to_string())?;
            Prepared::Message(ToolCall::from_wire(call.id, ToolFunction::new(name, call.arguments)))
        }
        Validation::InFront => Prepared::Json(call),
    })
}

impl Contender for Rig {
    fn name(&self) -> &str {
        match self.validation {
            Validation::None => "rig-core (no validation)",
            Validation::Own => "rig-core (its own validator)",
            Validation::InFront => "rig-core (jsonschema in front)",
        }
    }

    fn validates(&self) -> bool {
        self.validation != Validation::None
    }

    fn probe(&mut self, call: Call) -> Result<Value, String> {
        let output = self.executor.block_on(self.call(convert(call, self.validation)?))?;
        output.as_json().cloned().ok_or_else(|| "not JSON".to_owned())
    }

    fn prepare(&mut self, batch: usize, batches: usize) {
        let converted = fixture::batches(batch, batches, |call| convert(call, self.validation));
        self.prepared = converted.into_iter().map(|batch| batch.into_iter().filter_map(Result::ok).collect()).collect();
    }

    fn run(&mut self) -> usize {
        let prepared = std::mem::take(&mut self.prepared);
        self.executor.block_on(async {
            let mut succeeded = 0;
            for call in prepared.into_iter().flatten() {
                succeeded += usize::from(black_box(self.call(call).await).is_ok());
            }
            succeeded
        })
    }
}
