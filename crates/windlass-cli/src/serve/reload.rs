//! Taking up a changed config while runs go on: by SIGHUP, by a request, or because the file changed.

use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use windlass::{Toolbox, Windlass};
use windlass_server::wire::ReloadAnswer;
use windlass_tools::sandbox::Launcher;

use crate::api;
use crate::config::{Change, Config, Problems, Reload, wake};
use crate::exit::{Exit, Failure, Result};
use crate::style::counted;

/// How often a file is looked at. Soon enough for a person who has just saved it.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// The config as it counts now, and everybody who may ask for it to be read anew.
#[derive(Clone)]
pub(super) struct Reloading {
    reload: Arc<Mutex<Reload>>,
    toolbox: Toolbox,
    /// Whose runs may have missed a tool that comes back; there once the file is open.
    windlass: Arc<OnceLock<Windlass>>,
}

impl Reloading {
    /// Puts the tools of the config into the toolbox, and looks after them from then on.
    pub(super) async fn start(config: &Config, toolbox: &Toolbox, launcher: Launcher) -> Result<Self> {
        let reload = Reload::new(config.clone(), toolbox.clone(), launcher).await;
        let reload = reload.map_err(|problems| api::misconfigured(&problems))?;
        warned(reload.warnings());
        let reloading = Self {
            reload: Arc::new(Mutex::new(reload)),
            toolbox: toolbox.clone(),
            windlass: Arc::new(OnceLock::new()),
        };
        let mut hangup = signal(SignalKind::hangup())
            .map_err(|error| Failure::new(Exit::Failed, format!("signals cannot be heard: {error}")))?;
        let watching = reloading.clone();
        tokio::spawn(async move {
            loop {
                let asked = tokio::select! {
                    _ = hangup.recv() => true,
                    () = tokio::time::sleep(LOOK_EVERY) => false,
                };
                if asked || watching.reload.lock().await.is_stale() {
                    drop(watching.now().await);
                }
            }
        });
        Ok(reloading)
    }

    /// From now on, runs that missed a tool go on when it is back.
    pub(super) fn for_runs_of(&self, windlass: &Windlass) {
        self.windlass.get_or_init(|| windlass.clone());
    }

    /// Reads the config anew, and says in the log what came of it.
    async fn now(&self) -> std::result::Result<Change, Problems> {
        let change = self.reload.lock().await.now().await;
        told(&change);
        if let (Ok(_), Some(windlass)) = (&change, self.windlass.get()) {
            match wake(windlass).await {
                Ok(0) => {}
                Ok(woken) => tracing::warn!("{} that missed a tool may go on", counted(woken, "run")),
                Err(error) => tracing::error!("runs that missed a tool stay held: {error}"),
            }
        }
        change
    }

    /// What a request to read the config anew does.
    pub(super) fn on_request(&self) -> windlass_server::Reload {
        let reloading = self.clone();
        Arc::new(move || {
            let reloading = reloading.clone();
            Box::pin(async move {
                match reloading.now().await {
                    Ok(change) => {
                        let tools = reloading.toolbox.tools().len() as u64;
                        Ok(ReloadAnswer { tools, changes: words(&change) })
                    }
                    Err(problems) => Err(problems.render(false)),
                }
            })
        })
    }
}

/// For whoever reads the log.
fn told(change: &std::result::Result<Change, Problems>) {
    match change {
        Ok(change) => {
            let words = words(change);
            let what = if words.is_empty() { "nothing changed".to_owned() } else { words.join("; ") };
            tracing::warn!("the config was read anew: {what}");
            warned(&change.warnings);
        }
        Err(problems) => {
            tracing::error!("the config cannot be used, and the old one counts:\n{}", problems.render(false));
        }
    }
}

/// What can be used but is probably not meant.
fn warned(warnings: &Problems) {
    if !warnings.is_empty() {
        tracing::warn!("{} about the config:\n{warnings}", counted(warnings.count().1, "warning"));
    }
}

fn words(change: &Change) -> Vec<String> {
    let named = |what: &str, names: &[String]| (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")));
    let said = [
        named("new tools", &change.added),
        named("tools that are gone", &change.removed),
        named("changed tools", &change.changed),
        named("counts after a restart", &change.after_restart),
    ];
    said.into_iter().flatten().collect()
}
