//! An agent backend: three tools, a loop around a model, an approval, and a restart that repeats nothing.
//!
//! `cargo run -p windlass-examples --bin agent_backend -- agent.db [approver]`. Without an approver the refund waits:
//! kill the program then, and start it again with one.

use std::error::Error;
use std::time::Duration;

use windlass::prelude::*;

/// Find the orders of a customer.
#[tool(effect = readonly)]
async fn find_orders(customer: String) -> ToolResult<Vec<String>> {
    println!("  find_orders runs");
    Ok(vec![format!("order 7 of {customer}: lamp, 4500 cents, delivered")])
}

/// Open a ticket for a customer.
#[tool(effect = idempotent)]
async fn open_ticket(call: &Call, customer: String, subject: String) -> ToolResult<String> {
    println!("  open_ticket runs");
    // Pass this key to the ticket system: it is the same for every attempt of this call.
    let _key = call.idempotency_key();
    Ok(format!("ticket of {customer}: {subject}"))
}

/// Give a customer money back.
#[tool(effect = once, approval = "args.cents > 1000")]
async fn refund(order: u64, cents: u64) -> ToolResult<String> {
    println!("  refund runs");
    Ok(format!("{cents} cents refunded for order {order}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "agent.db".to_owned());
    let approver = std::env::args().nth(2);
    // Opening the file also continues the runs that an earlier process left unfinished.
    let windlass = Windlass::open(&file).attended().tool(find_orders).tool(open_ticket).tool(refund).await?;
    tokio::spawn(decide(windlass.clone(), approver));

    // The tools as model APIs describe them.
    let describe = |tool: windlass::tool::Listing| {
        json!({"type": "function", "function":
            {"name": &*tool.name, "description": tool.description, "parameters": tool.input}})
    };
    let listing = windlass.toolbox().listing_with(|_| true);
    for failed in &listing.failed {
        eprintln!("{failed}");
    }
    let tools: Vec<Value> = listing.tools.into_iter().map(describe).collect();

    // A real model goes here: send `tools` and `messages` to its API, and return the message of its response.
    let model = |_tools: &[Value], messages: &[Value]| {
        let call = |id: &str, name: &str, args: Value| {
            let function = json!({"name": name, "arguments": args.to_string()});
            json!({"id": id, "type": "function", "function": function})
        };
        match messages.iter().filter(|message| message["role"] == "assistant").count() {
            0 => json!({"role": "assistant", "tool_calls": [
                call("call_1", "find_orders", json!({"customer": "Ada"})),
                call("call_2", "open_ticket", json!({"customer": "Ada", "subject": "broken lamp"}))]}),
            1 => json!({"role": "assistant", "tool_calls": [
                call("call_3", "refund", json!({"order": 7, "cents": 4500}))]}),
            _ => json!({"role": "assistant", "content": "You get 4500 cents back for the lamp."}),
        }
    };

    // The conversation is stored after every message, so that a restart continues with the last one.
    let chat = format!("{file}.chat");
    let mut messages: Vec<Value> = match std::fs::read_to_string(&chat) {
        Ok(text) => text.lines().map(str::parse).collect::<Result<_, _>>()?,
        Err(_) => vec![json!({"role": "user", "content": "I am Ada. My lamp is broken, I want my money back."})],
    };
    loop {
        match messages.last() {
            Some(last) if last["tool_calls"].is_array() => {
                let mut calls = Vec::new();
                for call in last["tool_calls"].as_array().into_iter().flatten() {
                    let (name, id) = (call["function"]["name"].as_str(), call["id"].as_str());
                    // Arguments that are not JSON become a string, which the tool's schema refuses: the model is told.
                    let text = call["function"]["arguments"].as_str().unwrap_or_default();
                    let args = text.parse().unwrap_or_else(|_| json!(text));
                    calls.push(ToolCall::new(name.unwrap_or_default(), args).with_id(id.unwrap_or_default()));
                }
                // The key is the position in the conversation: after a restart it leads to the same run.
                let outcomes =
                    windlass.batch(calls).session("chat-1").key(format!("chat-1/{}", messages.len())).await?;
                messages.extend(outcomes.iter().map(|outcome| {
                    let content = outcome.for_model().to_string();
                    println!("{}: {content}", outcome.id.as_deref().unwrap_or_default());
                    json!({"role": "tool", "tool_call_id": outcome.id, "content": content})
                }));
            }
            Some(last) if last["role"] == "assistant" => break println!("assistant: {}", last["content"]),
            _ => messages.push(model(&tools, &messages)),
        }
        let lines: Vec<String> = messages.iter().map(Value::to_string).collect();
        std::fs::write(&chat, lines.join("\n"))?;
    }
    Ok(windlass.shutdown().await?)
}

/// The person who decides. In a backend, a web page shows the inbox, and its handlers approve or deny.
async fn decide(windlass: Windlass, approver: Option<String>) -> windlass::Result<()> {
    loop {
        // An item with a reply key is a question: it needs an answer, not an approval.
        for item in windlass.inbox().waiting().await?.into_iter().filter(|item| item.key.is_none()) {
            let Some(approver) = &approver else {
                println!("waiting for approval: {}", item.park.operation);
                return Ok(());
            };
            windlass.inbox().approve(&item, approver, "the lamp arrived broken").await?;
            println!("{approver} approved: {}", item.park.operation);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
