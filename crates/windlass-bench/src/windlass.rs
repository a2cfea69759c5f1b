//! Windlass on the memory store: the whole pipeline, including the journal.
//!
//! The store keeps the last 1,024 finished runs with their arguments and outputs, and frees the oldest when another one
//! ends. So the arguments of a call are freed 1,024 runs later, also in measured time, once that many runs were made;
//! [`Windlass::prepare`](Contender::prepare) makes them.

use std::hint::black_box;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::Runtime;
use windlass::tool::{Atomic, Schemas};
use windlass::{Effect, Outcome, Output, Tool, ToolCall, ToolResult, ToolSpec, Windlass as Facade};

use crate::{
    Contender, drive,
    fixture::{self, Call},
};

/// Runs made before anything is measured: more than the memory store keeps.
const WARM_UP: usize = 1_100;

/// The body of the tool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Body {
    /// Takes the arguments as JSON, like the bodies of all other contenders; written by hand.
    Dynamic,
    /// A closure with its own argument and result types: the schemas come from them, arguments are decoded, and the
    /// output is validated too.
    Typed,
}

struct SearchOrders;

impl Atomic for SearchOrders {
    fn attempt(&self, call: windlass::Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(async move { Ok(Output::value(fixture::body(call.args()))) })
    }
}

/// The arguments of the fixture as a type. Most fields are only decoded.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the body of the fixture reads one field only")]
struct Arguments {
    #[schemars(length(min = 1))]
    query: String,
    status: Status,
    #[schemars(range(min = 1, max = 1000))]
    limit: u64,
    include_archived: Option<bool>,
    #[schemars(length(max = 16))]
    #[serde(default)]
    tags: Vec<String>,
    customer: Customer,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    Open,
    Packed,
    Shipped,
    Delivered,
    Returned,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the body of the fixture does not read the customer")]
struct Customer {
    id: String,
    name: Option<String>,
    #[schemars(length(min = 2, max = 2))]
    country: String,
    #[schemars(range(min = 0))]
    credit_limit: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
struct SearchResult {
    found: u64,
    complete: bool,
}

impl Body {
    fn tool(self) -> Tool {
        let tool = match self {
            Self::Dynamic => {
                let spec = ToolSpec::new(fixture::NAME, fixture::DESCRIPTION);
                Tool::atomic(spec, Schemas::input(fixture::schema()), SearchOrders)
            }
            Self::Typed => Tool::new(fixture::NAME, fixture::DESCRIPTION, |arguments: Arguments| async move {
                Ok(SearchResult { found: arguments.limit / 2, complete: true })
            }),
        };
        tool.effect(Effect::Readonly)
    }
}

/// A single call or a batch, in the form of its API.
enum Prepared {
    One(Value),
    Batch(Vec<ToolCall>),
}

/// Windlass with the tool of the fixture.
pub struct Windlass {
    executor: Runtime,
    windlass: Facade,
    body: Body,
    /// The batch size of the runs that fill the store.
    warm: usize,
    prepared: Vec<Prepared>,
}

impl Windlass {
    /// Windlass with one kind of body.
    ///
    /// # Errors
    ///
    /// When the runtime cannot be started.
    pub fn new(body: Body) -> anyhow::Result<Self> {
        let executor = drive::runtime()?;
        let windlass = executor.block_on(async { Facade::in_memory().tool(body.tool()).await })?;
        Ok(Self { executor, windlass, body, warm: 0, prepared: Vec::new() })
    }

    async fn make(&self, prepared: Prepared) -> windlass::Result<Vec<Outcome>> {
        match prepared {
            Prepared::One(arguments) => Ok(vec![self.windlass.call_json(fixture::NAME, arguments).await?]),
            Prepared::Batch(calls) => self.windlass.batch(calls).await,
        }
    }
}

fn prepare(batch: usize, batches: usize) -> Vec<Prepared> {
    let convert = |mut calls: Vec<Call>| match calls.len() {
        1 => Prepared::One(calls.remove(0).arguments),
        _ => Prepared::Batch(calls.into_iter().map(tool_call).collect()),
    };
    fixture::batches(batch, batches, |call| call).into_iter().map(convert).collect()
}

fn tool_call(call: Call) -> ToolCall {
    ToolCall::new(call.name, Arc::new(call.arguments)).with_id(call.id)
}

impl Contender for Windlass {
    fn name(&self) -> &str {
        match self.body {
            Body::Dynamic => "windlass",
            Body::Typed => "windlass (typed body)",
        }
    }

    fn probe(&mut self, call: Call) -> Result<Value, String> {
        let outcomes = self.executor.block_on(self.make(Prepared::Batch(vec![tool_call(call)])));
        let outcome = outcomes.map_err(|error| error.to_string())?.pop().ok_or("no outcome")?;
        outcome.result.map(|output| output.value.clone()).map_err(|error| error.to_string())
    }

    fn prepare(&mut self, batch: usize, batches: usize) {
        if self.warm != batch {
            self.warm = batch;
            for _ in 0..WARM_UP {
                self.prepared = prepare(batch, 1);
                self.run();
            }
        }
        self.prepared = prepare(batch, batches);
    }

    fn run(&mut self) -> usize {
        let prepared = std::mem::take(&mut self.prepared);
        self.executor.block_on(async {
            let mut succeeded = 0;
            for calls in prepared {
                let outcomes = black_box(self.make(calls).await).unwrap_or_default();
                succeeded += outcomes.iter().filter(|outcome| outcome.result.is_ok()).count();
            }
            succeeded
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Stores the arguments of its calls.
    #[derive(Clone, Default)]
    struct StoreArguments(Arc<Mutex<Vec<Arc<Value>>>>);

    impl Atomic for StoreArguments {
        fn attempt(&self, call: windlass::Call) -> BoxFuture<'static, ToolResult<Output>> {
            self.0.lock().unwrap().push(call.args().clone());
            Box::pin(std::future::ready(Ok(Output::default())))
        }
    }

    #[test]
    fn arguments_reach_the_body_and_the_journal_without_a_copy() {
        let kept = StoreArguments::default();
        let spec = ToolSpec::new(fixture::NAME, fixture::DESCRIPTION);
        let tool = Tool::atomic(spec, Schemas::input(fixture::schema()), kept.clone()).effect(Effect::Readonly);
        let arguments: Vec<_> = (0..2).map(|_| Arc::new(fixture::arguments())).collect();
        drive::runtime().unwrap().block_on(async {
            let windlass = Facade::in_memory().tool(tool).await.unwrap();
            let calls = arguments.iter().map(|arguments| ToolCall::new(fixture::NAME, arguments.clone()));
            let outcomes = windlass.batch(calls).await.unwrap();
            let journal = windlass.runtime().journal(outcomes[0].run).await.unwrap();
            let recorded: Vec<_> = journal.iter().filter_map(|record| record.asked.as_ref()?.input.clone()).collect();
            let same = |others: &[Arc<Value>]| arguments.iter().zip(others).all(|(a, b)| Arc::ptr_eq(a, b));
            assert!(recorded.len() == 2 && same(&recorded));
            assert!(kept.0.lock().unwrap().len() == 2 && same(&kept.0.lock().unwrap()));
        });
    }

    #[test]
    fn both_bodies_do_the_work() {
        for body in [Body::Dynamic, Body::Typed] {
            crate::contender::check(&mut Windlass::new(body).unwrap()).unwrap();
        }
    }
}
