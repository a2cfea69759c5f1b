//! How the futures of the contenders are polled.
//!
//! A contender that needs no runtime uses [`now`]. One that may need a timer or a task uses [`runtime`] and enters it
//! once per [`run`](crate::Contender::run), not once per call: a program that makes tool calls is inside of its runtime
//! already.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use anyhow::Context as _;

/// Polls a future until it is ready, with a waker that does nothing: the least possible cost of a call.
pub fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// The tokio runtime for contenders: one thread, timers on.
///
/// # Errors
///
/// When the operating system refuses what the runtime needs.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_time().build().context("cannot start a tokio runtime")
}

/// The tokio runtime for durable engines: as many threads as there are cores, as in a server.
///
/// # Errors
///
/// When the operating system refuses what the runtime needs.
pub fn threads() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start a tokio runtime")
}
