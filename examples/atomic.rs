//! Atomic tools: leaves of the tree of calls. One attempt is one effect.
//!
//! Shows a plain function, one that uses its call's idempotency key, a closure, and the effect of each kind of error.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::prelude::*;

/// Convert a temperature to degrees Celsius.
#[tool(effect = readonly)]
async fn celsius(
    /// Degrees Fahrenheit.
    fahrenheit: f64,
    /// Digits after the point.
    #[default = 1]
    #[schemars(range(max = 6))]
    digits: u32,
) -> ToolResult<f64> {
    let scale = 10f64.powi(digits.try_into().unwrap_or(i32::MAX));
    Ok(((fahrenheit - 32.0) / 1.8 * scale).round() / scale)
}

/// An external mailing list, which remembers the key of every request.
static MAILING_LIST: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Subscribe an address to the newsletter.
// The first attempt subscribes the address, but its response is lost. Every attempt of a call has the same key, and the
// mailing list recognizes it, so the second attempt does not subscribe the address twice: `idempotent`.
#[tool(effect = idempotent, retry(attempts = 3, base = "1ms", cap = "5ms"))]
async fn subscribe(call: &Call, email: String) -> ToolResult<String> {
    MAILING_LIST.lock().unwrap_or_else(PoisonError::into_inner).insert(call.idempotency_key(), email.clone());
    println!("  attempt {} of {} sends its key", call.number(), call.of());
    if call.number() == 1 {
        return Err(ToolError::failed("the connection was reset"));
    }
    Ok(format!("{email} is subscribed"))
}

/// Take money out of an account.
// `once` by default: it is retried only if the failure says that nothing was done.
#[tool]
async fn withdraw(cents: u64) -> ToolResult<u64> {
    if cents > 500 {
        // The model reads this message and can react to it.
        return Err(ToolError::failed("the account holds 500 cents; ask for less"));
    }
    Ok(500 - cents)
}

/// Read the settings.
#[tool(effect = readonly)]
async fn settings() -> ToolResult<String> {
    // `?` turns any other error into an internal one. Its text may contain hosts, paths or secrets, so it is only
    // logged. The model gets a generic message with the id of the log entry.
    Ok(std::fs::read_to_string("/no/such/folder/password=hunter2")?)
}

#[derive(Deserialize, JsonSchema)]
struct Text {
    /// Any text.
    text: String,
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A closure as a tool; its schemas come from its types.
    let count = Tool::new("count_words", "Count the words of a text.", |a: Text| async move {
        Ok(a.text.split_whitespace().count())
    });
    let windlass = Windlass::in_memory()
        .tool(celsius)
        .tool(subscribe)
        .tool(withdraw)
        .tool(settings)
        .tool(count.effect(Effect::Readonly))
        .await?;

    println!("The listing of `celsius` for the model:");
    for tool in windlass.toolbox().listing().tools {
        if &*tool.name == "celsius" {
            println!("  {}\n  {}", tool.description, tool.input.unwrap_or_default());
        }
    }

    println!("Plain:");
    println!("  100 °F are {} °C", windlass.call(celsius::call(100.0, 1u32)).await?);
    // An argument with a default may be left out.
    println!("  {}", windlass.call_json("celsius", json!({"fahrenheit": 100})).await?.for_model());

    println!("Retried with one key:");
    println!("  {}", windlass.call(subscribe::call("ada@example.com")).await?);
    println!("  the list has {} request(s)", MAILING_LIST.lock().unwrap_or_else(PoisonError::into_inner).len());

    println!("A closure:");
    println!("  {}", windlass.call_json("count_words", json!({"text": "one two three"})).await?.for_model());

    println!("Errors, as the model sees them:");
    for (name, args) in [
        ("withdraw", json!({"cents": 900})),
        ("withdraw", json!({"cents": -1, "currency": "EUR"})),
        ("settings", json!({})),
        ("withdrew", json!({})),
    ] {
        println!("  {name}: {}", windlass.call_json(name, args).await?.for_model());
    }
    windlass.shutdown().await
}
