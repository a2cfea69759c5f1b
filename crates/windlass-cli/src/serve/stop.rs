//! Requests to stop a server.

use std::future::Future;

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{Exit, Failure, Result};

/// Whether the server was asked to stop.
pub(super) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// SIGTERM and SIGINT stop the server cleanly; a second SIGINT stops it at once. With `attached` the end of standard
    /// input also stops it at once: the process that started it is gone.
    pub(super) fn new(attached: bool) -> Result<Self> {
        let failed =
            |error: std::io::Error| Failure::new(Exit::Failed, format!("could not install a signal handler: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let (request, requested) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {
                        if request.send_replace(true) {
                            // The second request: exit as in a crash, which loses no recorded result.
                            std::process::exit(Exit::Interrupted as i32);
                        }
                    }
                    _ = terminate.recv() => drop(request.send_replace(true)),
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
        Ok(Self(requested))
    }

    /// Resolves when the server is asked to stop.
    pub(super) fn requested(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut requested = self.0.clone();
        async move {
            // Cannot fail: the sender lives in a task that never ends.
            let _ = requested.wait_for(|requested| *requested).await;
        }
    }
}
