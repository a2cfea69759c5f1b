//! everruns: `ToolRegistry` as a `ToolExecutor`. `execute_batch` borrows the calls, runs them one after another, and
//! creates a validator for each call.

use std::hint::black_box;

use async_trait::async_trait;
use everruns_contracts::{
    runtime::{Tool, ToolExecutionResult, ToolExecutor, ToolRegistry},
    tool_types::{ToolCall, ToolDefinition, ToolHints, ToolResult},
};
use serde_json::Value;
use tokio::runtime::Runtime;
use windlass_bench::{
    Contender, drive,
    fixture::{self, Call},
};

struct SearchOrders {
    schema: Value,
}

#[async_trait]
impl Tool for SearchOrders {
    fn name(&self) -> &str {
        fixture::NAME
    }

    fn description(&self) -> &str {
        fixture::DESCRIPTION
    }

    fn parameters_schema(&self) -> Value {
        self.schema.clone()
    }

    fn hints(&self) -> ToolHints {
        ToolHints::default().with_readonly(true)
    }

    async fn execute(&self, arguments: Value) -> ToolExecutionResult {
        ToolExecutionResult::success(fixture::body(&arguments))
    }
}

pub(crate) struct Everruns {
    executor: Runtime,
    registry: ToolRegistry,
    definitions: Vec<ToolDefinition>,
    prepared: Vec<Vec<ToolCall>>,
}

impl Everruns {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let registry = ToolRegistry::builder().tool(SearchOrders { schema: fixture::schema() }).build();
        let definitions = registry.tool_definitions();
        Ok(Self { executor: drive::runtime()?, registry, definitions, prepared: Vec::new() })
    }

    async fn execute(&self, batch: &[ToolCall]) -> Result<Vec<ToolResult>, String> {
        self.registry.execute_batch(batch, &self.definitions).await.map_err(|error| error.to_string())
    }
}

fn convert(call: Call) -> ToolCall {
    ToolCall { id: call.id, name: call.name, arguments: call.arguments }
}

impl Contender for Everruns {
    fn name(&self) -> &str {
        "everruns"
    }

    fn probe(&mut self, call: Call) -> Result<Value, String> {
        let results = self.executor.block_on(self.execute(&[convert(call)]))?;
        let result = results.into_iter().next().ok_or("no result")?;
        match result.error {
            Some(error) => Err(error),
            None => result.result.ok_or_else(|| "no value".to_owned()),
        }
    }

    fn prepare(&mut self, batch: usize, batches: usize) {
        self.prepared = fixture::batches(batch, batches, convert);
    }

    fn run(&mut self) -> usize {
        let prepared = std::mem::take(&mut self.prepared);
        self.executor.block_on(async {
            let mut succeeded = 0;
            for batch in prepared {
                let results = black_box(self.execute(&batch).await).unwrap_or_default();
                succeeded += results.iter().filter(|result| result.error.is_none()).count();
            }
            succeeded
        })
    }
}
