//! Tools without the macro: a body and a schema written by hand, a source whose schemas are fetched when they are first
//! needed, and a durable closure. A bridge to the tools of another system is made this way: there, names and schemas are data.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass::prelude::*;
use windlass::tool::{Atomic, Body, Schemas, Source, ToolRef};

type AttemptFuture = Pin<Box<dyn Future<Output = ToolResult<Output>> + Send>>;

/// A price list as a tool. The body is a value and may own what it needs.
struct Prices(Arc<BTreeMap<String, u64>>);

impl Atomic for Prices {
    fn attempt(&self, call: Call) -> AttemptFuture {
        let prices = self.0.clone();
        Box::pin(async move {
            // The arguments match the schema, so `item` exists and is a string.
            let item = call.args()["item"].as_str().unwrap_or_default();
            let Some(cents) = prices.get(item) else {
                return Err(ToolError::failed(format!("no price for {item:?}")));
            };
            // An output is a value and, where useful, native content and the raw original.
            Ok(Output::value(json!({"cents": cents}))
                .with(Content::text(format!("{item} costs {cents} cents")))
                .raw(Artifact::new("text/csv", format!("{item},{cents}").into_bytes())))
        })
    }
}

fn prices() -> Tool {
    let list = BTreeMap::from([("apple".to_owned(), 30), ("pear".to_owned(), 45)]);
    let schemas = Schemas {
        input: json!({
            "type": "object",
            "properties": {"item": {"type": "string", "minLength": 1}},
            "required": ["item"],
            "additionalProperties": false
        }),
        output: Some(json!({
            "type": "object",
            "properties": {"cents": {"type": "integer"}},
            "required": ["cents"]
        })),
    };
    Tool::atomic(ToolSpec::new("price", "The price of an item."), schemas, Prices(Arc::new(list)))
        .effect(Effect::Readonly)
}

/// Number of schemas fetched from the catalogue.
static FETCHED: AtomicUsize = AtomicUsize::new(0);

/// One body for every tool of a remote catalogue: the call has the name of its tool.
struct Remote;

impl Atomic for Remote {
    fn attempt(&self, call: Call) -> AttemptFuture {
        Box::pin(async move { Ok(Output::value(json!(format!("{} did {}", call.tool(), call.args())))) })
    }
}

/// Thousands of tools, of which it lists 300. Each schema is fetched when it is first needed, and kept.
struct Catalogue;

impl Source for Catalogue {
    fn list(&self) -> ToolResult<Vec<Tool>> {
        Ok((1..=300).map(remote).collect())
    }

    /// A name that is not listed. The id of these tools is their name.
    fn find(&self, tool: &ToolRef) -> ToolResult<Option<Tool>> {
        let number = tool.as_str().strip_prefix("remote_").and_then(|number| number.parse().ok());
        Ok(number.filter(|number| (1..=9999).contains(number)).map(remote))
    }
}

fn remote(number: u32) -> Tool {
    let spec = ToolSpec::new(format!("remote_{number}"), "A tool of a catalogue.");
    let body = Body::Atomic(Arc::new(Remote));
    let fetch = |spec: &ToolSpec| {
        FETCHED.fetch_add(1, Ordering::Relaxed);
        if &*spec.name == "remote_13" {
            return Err(ToolError::unavailable("the catalogue has no schema of remote_13"));
        }
        Ok(Schemas::input(json!({"type": "object", "required": ["x"]})))
    };
    Tool::lazy(spec, fetch, body).effect(Effect::Readonly)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A closure can be durable too; it takes its context by value.
    let basket = Tool::durable_fn("basket", "The price of several items.", |mut ctx: Ctx, items: Items| async move {
        let mut total = 0;
        for item in &items.items {
            let price = ctx.call_json("price", json!({"item": item})).await?;
            total += price["cents"].as_u64().unwrap_or(0);
        }
        Ok(total)
    });
    let windlass = Windlass::in_memory().tool(prices()).tool(basket).await?;
    windlass.toolbox().mount_source("catalogue", Catalogue)?;
    println!("{} tools, {} schemas fetched", windlass.toolbox().tools().len(), FETCHED.load(Ordering::Relaxed));

    let apple = windlass.call_json("price", json!({"item": "apple"})).await?;
    println!("price:     {}", apple.for_model());
    if let Ok(output) = &apple.result {
        let raw = output.raw.as_ref().and_then(|raw| raw.bytes());
        let raw = raw.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        println!("beside it: {:?}, raw {:?}", output.content, raw.unwrap_or_default());
    }
    println!("no price:  {}", windlass.call_json("price", json!({"item": "plum"})).await?.for_model());
    println!("basket:    {}", windlass.call_json("basket", json!({"items": ["apple", "pear"]})).await?.for_model());

    for args in [json!({"x": 1}), json!({"y": 1})] {
        let outcome = windlass.call_json("remote_7", args).await?;
        println!("remote_7:  {} ({} fetched)", outcome.for_model(), FETCHED.load(Ordering::Relaxed));
    }
    let unlisted = windlass.call_json("remote_4711", json!({"x": 1})).await?;
    println!("unlisted:  {} ({} fetched)", unlisted.for_model(), FETCHED.load(Ordering::Relaxed));
    println!("remote_13: {}", windlass.call_json("remote_13", json!({"x": 1})).await?.for_model());
    windlass.shutdown().await
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Items {
    items: Vec<String>,
}
