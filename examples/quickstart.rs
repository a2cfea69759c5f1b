//! The smallest useful program: one tool, called by type, by name and in a batch, on a database file.

use windlass::prelude::*;

/// Add two numbers.
#[tool(effect = readonly)]
async fn add(a: f64, b: f64) -> ToolResult<f64> {
    Ok(a + b)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "quickstart.db".to_owned());
    let windlass = Windlass::open(&file).tool(add).await?;

    let sum: f64 = windlass.call(add::call(2.0, 3.0)).await?;
    println!("typed:    2 + 3 = {sum}");

    let outcome = windlass.call_json("add", json!({"a": 2, "b": 3})).await?;
    println!("by name:  {}", outcome.for_model());

    let calls = [
        ToolCall::new("add", json!({"a": 1, "b": 1})).with_id("call_1"),
        ToolCall::new("add", json!({"a": 1, "b": "one"})).with_id("call_2"),
        ToolCall::new("ad", json!({"a": 1, "b": 1})).with_id("call_3"),
    ];
    for outcome in windlass.batch(calls).await? {
        println!("in batch: {} -> {}", outcome.id.as_deref().unwrap_or("?"), outcome.for_model());
    }

    let records = windlass.journal(outcome.run).await?.len();
    println!("run {} has {records} record(s) in {file}", outcome.run);
    windlass.shutdown().await
}
