//! The smallest useful program: one tool, called by type, by name and in a batch, on a database file.
//!
//! `cargo run -p windlass-examples` uses `quickstart.db`; add `-- other.db` to use another file.

use windlass::prelude::*;

/// Add two numbers.
// The doc comment above is the description for the model; the parameters become the JSON Schema of its arguments.
// `readonly` says that an attempt changes nothing, so it may be repeated.
#[tool(effect = readonly)]
async fn add(a: f64, b: f64) -> ToolResult<f64> {
    Ok(a + b)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "quickstart.db".to_owned());
    // Opening the file also continues everything that an earlier process left unfinished in it.
    let windlass = Windlass::open(&file).tool(add).await?;

    // From Rust: typed arguments, typed result.
    let sum: f64 = windlass.call(add::call(2.0, 3.0)).await?;
    println!("typed:    2 + 3 = {sum}");

    // From a model: a name and unchecked JSON. A failing call is an outcome, not an `Err`.
    let outcome = windlass.call_json("add", json!({"a": 2, "b": 3})).await?;
    println!("by name:  {}", outcome.for_model());

    // Several calls at once. Outcomes come back in order, and one bad call does not affect the others.
    let calls = [
        ToolCall::new("add", json!({"a": 1, "b": 1})).with_id("call_1"),
        ToolCall::new("add", json!({"a": 1, "b": "one"})).with_id("call_2"),
        ToolCall::new("ad", json!({"a": 1, "b": 1})).with_id("call_3"),
    ];
    for outcome in windlass.batch(calls).await? {
        println!("in batch: {} -> {}", outcome.id.as_deref().unwrap_or("?"), outcome.for_model());
    }

    // Every call is a run with a journal, which was durable before the result was printed.
    let records = windlass.run(outcome.run).journal().await?.len();
    println!("journal:  run {} has {records} record(s) in {file}", outcome.run);
    windlass.shutdown().await
}
