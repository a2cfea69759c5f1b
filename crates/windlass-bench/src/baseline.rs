//! The bare baseline: the least that any tool runtime has to do, written by hand.

use std::{future::Future, hint::black_box, pin::Pin};

use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::{
    Contender, drive,
    fixture::{self, Call},
};

/// The name of the contender that ratios refer to.
pub const NAME: &str = "baseline";

type BoxFuture = Pin<Box<dyn Future<Output = Value> + Send>>;

struct Tool {
    validator: jsonschema::Validator,
    body: Box<dyn Fn(Value) -> BoxFuture + Send + Sync>,
}

/// Look-up by name, a compiled validator, one boxed call.
pub struct Baseline {
    tools: FxHashMap<String, Tool>,
    prepared: Vec<Vec<Call>>,
}

impl Baseline {
    /// The baseline with the tool of the fixture.
    ///
    /// # Errors
    ///
    /// When the schema of the fixture is invalid.
    pub fn new() -> anyhow::Result<Self> {
        let tool = Tool {
            validator: jsonschema::draft202012::new(&fixture::schema())?,
            body: Box::new(|arguments| Box::pin(async move { fixture::body(&arguments) })),
        };
        Ok(Self { tools: FxHashMap::from_iter([(fixture::NAME.to_owned(), tool)]), prepared: Vec::new() })
    }

    async fn call(&self, call: Call) -> Result<Value, &'static str> {
        let tool = self.tools.get(&call.name).ok_or("no such tool")?;
        if !tool.validator.is_valid(&call.arguments) {
            return Err("the arguments do not match the schema");
        }
        Ok((tool.body)(call.arguments).await)
    }
}

impl Contender for Baseline {
    fn name(&self) -> &str {
        NAME
    }

    fn probe(&mut self, call: Call) -> Result<Value, String> {
        drive::now(self.call(call)).map_err(str::to_owned)
    }

    fn prepare(&mut self, batch: usize, batches: usize) {
        self.prepared = fixture::batches(batch, batches, |call| call);
    }

    fn run(&mut self) -> usize {
        let prepared = std::mem::take(&mut self.prepared);
        let calls = prepared.into_iter().flatten();
        calls.map(|call| black_box(drive::now(self.call(call)))).filter(Result::is_ok).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baseline_does_the_work() {
        let mut baseline = Baseline::new().unwrap();
        crate::contender::check(&mut baseline).unwrap();
    }
}
