//! Ctrl-C.

use crate::exit::{Exit, Failure};

/// Waits until somebody interrupts the program from the keyboard, or the system asks it to stop.
pub(crate) async fn wait() -> Failure {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut keyboard), Ok(mut system)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
        // Then the system ends the process, as it does by itself.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = keyboard.recv() => {}
        _ = system.recv() => {}
    }
    // What is under way is let go of in good order; whoever does not want to wait for that says so again.
    tokio::spawn(async move {
        tokio::select! {
            _ = keyboard.recv() => {}
            _ = system.recv() => {}
        }
        std::process::exit(Exit::Interrupted as i32);
    });
    Failure::silent(Exit::Interrupted)
}
