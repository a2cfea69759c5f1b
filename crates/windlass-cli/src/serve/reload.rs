//! Reloading the config while runs continue: on SIGHUP, on request, or when the file changes.

use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use windlass::{Toolbox, Windlass};
use windlass_server::wire::ReloadResponse;
use windlass_tools::sandbox::Launcher;

use crate::api;
use crate::config::{Change, Config, Problems, Reload, wake};
use crate::exit::{Exit, Failure, Result};
use crate::style::counted;

/// How often the file is checked for changes: soon enough for a person who has just saved it.
const CHECK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// The config in effect, with everything that reloading it needs.
#[derive(Clone)]
pub(super) struct Reloading {
    reload: Arc<Mutex<Reload>>,
    toolbox: Toolbox,
    /// The runtime whose runs may wait for a tool that is back; set once the file is open.
    runtime: Arc<OnceLock<Windlass>>,
}

impl Reloading {
    /// Puts the tools of the config into the toolbox, and starts to watch the config.
    pub(super) async fn start(config: &Config, toolbox: &Toolbox, launcher: Launcher) -> Result<Self> {
        let reload = Reload::new(config.clone(), toolbox.clone(), launcher).await;
        let reload = reload.map_err(|problems| api::invalid_config(&problems))?;
        log_warnings(reload.warnings());
        let reloading =
            Self { reload: Arc::new(Mutex::new(reload)), toolbox: toolbox.clone(), runtime: Arc::new(OnceLock::new()) };
        let mut hangup = signal(SignalKind::hangup())
            .map_err(|error| Failure::new(Exit::Failed, format!("could not install a signal handler: {error}")))?;
        let watching = reloading.clone();
        tokio::spawn(async move {
            loop {
                let requested = tokio::select! {
                    _ = hangup.recv() => true,
                    () = tokio::time::sleep(CHECK_EVERY) => false,
                };
                if requested || watching.reload.lock().await.is_stale() {
                    drop(watching.now().await);
                }
            }
        });
        Ok(reloading)
    }

    /// From now on, runs that were held because of a missing tool continue when it is back.
    pub(super) fn set_runtime(&self, windlass: &Windlass) {
        self.runtime.get_or_init(|| windlass.clone());
    }

    /// Reads the config again, and logs the changes.
    async fn now(&self) -> std::result::Result<Change, Problems> {
        let change = self.reload.lock().await.now().await;
        log_change(&change);
        if let (Ok(_), Some(windlass)) = (&change, self.runtime.get()) {
            match wake(windlass).await {
                Ok(0) => {}
                Ok(woken) => tracing::warn!("{} that missed a tool can continue", counted(woken, "run")),
                Err(error) => tracing::error!("could not resume runs that missed a tool: {error}"),
            }
        }
        change
    }

    /// The handler for a request to reload the config.
    pub(super) fn on_request(&self) -> windlass_server::Reload {
        let reloading = self.clone();
        Arc::new(move || {
            let reloading = reloading.clone();
            Box::pin(async move {
                match reloading.now().await {
                    Ok(change) => {
                        let tools = reloading.toolbox.tools().len() as u64;
                        Ok(ReloadResponse { tools, changes: describe(&change) })
                    }
                    Err(problems) => Err(problems.render(false)),
                }
            })
        })
    }
}

fn log_change(change: &std::result::Result<Change, Problems>) {
    match change {
        Ok(change) => {
            let changes = describe(change);
            let changes = if changes.is_empty() { "nothing changed".to_owned() } else { changes.join("; ") };
            tracing::warn!("config reloaded: {changes}");
            log_warnings(&change.warnings);
        }
        Err(problems) => {
            tracing::error!(
                "could not reload the config; the previous one stays in effect:\n{}",
                problems.render(false)
            );
        }
    }
}

fn log_warnings(warnings: &Problems) {
    if !warnings.is_empty() {
        tracing::warn!("{} about the config:\n{warnings}", counted(warnings.count().1, "warning"));
    }
}

fn describe(change: &Change) -> Vec<String> {
    let named = |what: &str, names: &[String]| (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")));
    let parts = [
        named("new tools", &change.added),
        named("removed tools", &change.removed),
        named("changed tools", &change.changed),
        named("in effect after a restart", &change.after_restart),
    ];
    parts.into_iter().flatten().collect()
}
