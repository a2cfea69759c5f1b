//! Compensation: what a body undoes, in reverse order, when it fails.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;

use super::Ctx;
use crate::call::Attempt;
use crate::tool::{Effect, Output, ToolError, ToolResult, from_output};

/// How to undo something that was done.
pub(crate) struct Undo {
    name: Arc<str>,
    effect: Effect,
    run: Box<dyn FnMut(Attempt) -> BoxFuture<'static, ToolResult<()>> + Send>,
}

/// Makes an [`Undo`] once there is something to undo.
pub(crate) struct UndoPlan {
    pub(super) effect: Effect,
    make: Box<Make>,
}

/// Takes the step's name, the compensation's effect class, and what the step returned.
type Make = dyn FnOnce(Arc<str>, Effect, Arc<Output>) -> Undo + Send;

impl UndoPlan {
    pub(super) fn new<T, G, Fut>(f: G) -> Self
    where
        T: DeserializeOwned + 'static,
        G: FnMut(T, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        let make = |name, effect, output: Arc<Output>| {
            let mut f = f;
            let run = move |attempt| -> BoxFuture<'static, ToolResult<()>> {
                match from_output::<T>(&output) {
                    Ok(value) => Box::pin(f(value, attempt)),
                    Err(error) => Box::pin(std::future::ready(Err(ToolError::from(error)))),
                }
            };
            Undo { name, effect, run: Box::new(run) }
        };
        Self { effect: Effect::Once, make: Box::new(make) }
    }

    pub(super) fn of(self, name: &str, output: &Arc<Output>) -> Undo {
        (self.make)(format!("undo {name}").into(), self.effect, output.clone())
    }
}

/// Undoes what was done, the latest first, and returns the error that made it necessary. If one compensation fails, the
/// others are still tried.
pub(crate) async fn compensate(mut ctx: Ctx, undos: Vec<Undo>, error: ToolError) -> ToolResult<Output> {
    for undo in undos.into_iter().rev() {
        let step = ctx.step(undo.name.clone(), undo.run).compensating(undo.effect);
        if let Err(failure) = step.await {
            tracing::error!(run = %ctx.run(), path = %ctx.path(), "{} failed: {failure}", undo.name);
        }
    }
    Err(error)
}
