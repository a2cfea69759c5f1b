//! Ctrl-C.

use crate::exit::{Exit, Failure};

/// Waits until the program is interrupted from the keyboard (SIGINT) or asked to stop (SIGTERM).
pub(crate) async fn wait() -> Failure {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut keyboard), Ok(mut system)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
        // Without handlers, the signals end the process, which is their default.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = keyboard.recv() => {}
        _ = system.recv() => {}
    }
    // The command now shuts down cleanly. A second signal ends the process at once.
    tokio::spawn(async move {
        tokio::select! {
            _ = keyboard.recv() => {}
            _ = system.recv() => {}
        }
        std::process::exit(Exit::Interrupted as i32);
    });
    Failure::silent(Exit::Interrupted)
}
