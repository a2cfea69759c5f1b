//! behest: `ToolRuntime::execute_batch`, which takes the calls by value and creates a validator for each call.

use std::hint::black_box;

use behest::{
    RuntimePolicy,
    provider::ToolCall,
    runtime::tool::{ToolExecutionOutcome, ToolRuntime},
    tool::{FunctionTool, ToolRegistry},
};
use serde_json::Value;
use tokio::runtime::Runtime;
use uuid::Uuid;
use windlass_bench::{
    Contender, drive,
    fixture::{self, Call},
};

pub(crate) struct Behest {
    executor: Runtime,
    runtime: ToolRuntime,
    prepared: Vec<Vec<ToolCall>>,
}

impl Behest {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let runtime = ToolRuntime::new(ToolRegistry::new(), RuntimePolicy::default());
        let tool =
            FunctionTool::new(fixture::NAME, fixture::DESCRIPTION, fixture::schema(), |arguments: Value| async move {
                Ok(fixture::body(&arguments))
            });
        runtime.register_tool(std::sync::Arc::new(tool.read_only()));
        Ok(Self { executor: drive::runtime()?, runtime, prepared: Vec::new() })
    }

    async fn execute(&self, batch: Vec<ToolCall>) -> Result<Vec<ToolExecutionOutcome>, String> {
        let (session, message) = (Uuid::nil(), Uuid::nil());
        self.runtime.execute_batch(batch, session, message, None).await.map_err(|error| error.to_string())
    }
}

fn convert(call: Call) -> ToolCall {
    ToolCall::new(call.id, call.name, call.arguments)
}

impl Contender for Behest {
    fn name(&self) -> &str {
        "behest"
    }

    fn probe(&mut self, call: Call) -> Result<Value, String> {
        let outcomes = self.executor.block_on(self.execute(vec![convert(call)]))?;
        let outcome = outcomes.into_iter().next().ok_or("no outcome")?;
        outcome.output.map(|output| output.value).map_err(|error| error.to_string())
    }

    fn prepare(&mut self, batch: usize, batches: usize) {
        self.prepared = fixture::batches(batch, batches, convert);
    }

    fn run(&mut self) -> usize {
        let prepared = std::mem::take(&mut self.prepared);
        self.executor.block_on(async {
            let mut succeeded = 0;
            for batch in prepared {
                let outcomes = black_box(self.execute(batch).await).unwrap_or_default();
                succeeded += outcomes.iter().filter(|outcome| outcome.output.is_ok()).count();
            }
            succeeded
        })
    }
}
