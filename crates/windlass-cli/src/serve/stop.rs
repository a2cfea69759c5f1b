//! How a server is asked to stop.

use std::future::Future;

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{Exit, Failure, Result};

/// Knows whether somebody asked.
pub(super) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// SIGTERM and SIGINT ask; a second SIGINT does not wait. With `attached` the end of standard input ends the process
    /// at once: whoever started it is gone.
    pub(super) fn new(attached: bool) -> Result<Self> {
        let deaf = |error: std::io::Error| Failure::new(Exit::Failed, format!("signals cannot be heard: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(deaf)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(deaf)?;
        let (say, asked) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {
                        if say.send_replace(true) {
                            // Asked again. What is under way is what a crash would leave, and a crash loses nothing.
                            std::process::exit(Exit::Interrupted as i32);
                        }
                    }
                    _ = terminate.recv() => drop(say.send_replace(true)),
                }
            }
        });
        if attached {
            tokio::spawn(async {
                let mut byte = [0; 64];
                while tokio::io::stdin().read(&mut byte).await.is_ok_and(|read| read > 0) {}
                std::process::exit(0);
            });
        }
        Ok(Self(asked))
    }

    /// Resolves when somebody asks.
    pub(super) fn asked(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut asked = self.0.clone();
        async move {
            // Whoever could ask is a task that never ends.
            let _ = asked.wait_for(|asked| *asked).await;
        }
    }
}
