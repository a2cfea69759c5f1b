//! Applies a changed file while runs continue.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use windlass::run::{Filter, Hold, RunState};
use windlass::{Toolbox, Windlass};
use windlass_tools::sandbox::Launcher;

use super::problem::Problems;
use super::{Config, ConfigTool, Tools, load};

/// How often a watched file is checked: soon enough for a person who has just saved it.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Files up to this size are compared by content. Files written by hand are smaller.
const SMALL: u64 = 1 << 20;

/// How many held runs are read at once.
const PAGE: usize = 256;

/// Sections whose changes need a restart.
const RESTART: [&str; 6] = ["server", "store", "retention", "policy", "limits", "webhook"];

/// Applies changes of a config file: on request ([`now`](Reload::now)) or automatically ([`watch`](Reload::watch)).
///
/// The tools of the file are replaced in the toolbox all at once. Calls that are already in progress keep their tool. A run
/// whose tool was removed is held, and continues when the tool is back ([`wake`]). A file with errors changes nothing.
pub struct Reload {
    config: Config,
    toolbox: Toolbox,
    launcher: Launcher,
    /// The fingerprints of the tools, by name.
    tools: BTreeMap<String, u64>,
    warnings: Problems,
    stamps: Vec<FileStamp>,
}

/// The effect of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// New tools.
    pub added: Vec<String>,
    /// Removed tools.
    pub removed: Vec<String>,
    /// Tools with a changed definition.
    pub changed: Vec<String>,
    /// Changed keys that take effect after a restart, such as `server.listen`.
    pub after_restart: Vec<String>,
    /// The warnings about the file and its documents.
    pub warnings: Problems,
}

/// The version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    path: PathBuf,
    modified: Option<SystemTime>,
    size: Option<u64>,
    /// The hash of a small file: two changes may fall into one tick of the file system's clock.
    hash: Option<u64>,
}

impl Reload {
    /// Puts the tools of a loaded file into a toolbox, to be replaced when the file changes.
    pub async fn new(config: Config, toolbox: Toolbox, launcher: Launcher) -> Result<Self, Problems> {
        let stamps = file_stamps(&config);
        let built = config.tools(&launcher).await?;
        let (tools, warnings) = (fingerprints(&config, &built.tools), config.warnings_with(built.warnings));
        config.mount(&toolbox, built.tools, None)?;
        Ok(Self { config, toolbox, launcher, tools, warnings, stamps })
    }

    /// The warnings about the file in effect and its documents.
    pub fn warnings(&self) -> &Problems {
        &self.warnings
    }

    /// The config in effect.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reads the file again and applies it. If it is not valid, nothing changes and the problems are returned. Dropping the
    /// future leaves either the old tools or the new ones.
    pub async fn now(&mut self) -> Result<Change, Problems> {
        // Taken before the files are read, so that a change during the read is noticed by the next check.
        let before = file_stamps(&self.config);
        let read = load(self.config.path());
        self.stamps = file_stamps(read.as_ref().unwrap_or(&self.config));
        for stamp in &mut self.stamps {
            if let Some(earlier) = before.iter().find(|earlier| earlier.path == stamp.path) {
                *stamp = earlier.clone();
            }
        }
        let config = read?;
        let built = config.tools(&self.launcher).await?;
        let (new, warnings) = (fingerprints(&config, &built.tools), config.warnings_with(built.warnings));
        config.mount(&self.toolbox, built.tools, Some(&self.config))?;
        self.warnings = warnings;
        let old = std::mem::replace(&mut self.tools, new);
        let before = std::mem::replace(&mut self.config, config);
        let absent = |names: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
            names.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
        };
        let differs = |(name, print): &(&String, &u64)| old.get(*name).is_some_and(|old| old != *print);
        Ok(Change {
            added: absent(&self.tools, &old),
            removed: absent(&old, &self.tools),
            changed: self.tools.iter().filter(differs).map(|(name, _)| name.clone()).collect(),
            after_restart: RESTART.iter().flat_map(|section| before.changed_keys(&self.config, section)).collect(),
            warnings: self.warnings.clone(),
        })
    }

    /// Whether the file, or a document of it, has changed since it was last read.
    pub fn is_stale(&self) -> bool {
        self.stamps != file_stamps(&self.config)
    }

    /// Checks every second whether the file has changed, and applies it; `on_change` receives the result. Runs until it is
    /// dropped.
    pub async fn watch(&mut self, mut on_change: impl FnMut(Result<Change, Problems>)) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            if self.is_stale() {
                on_change(self.now().await);
            }
        }
    }
}

/// Resumes runs that were held because of a missing tool or layer that exists again after a reload. Returns their number.
/// Dropping the future leaves the rest held.
pub async fn wake(windlass: &Windlass) -> windlass::Result<usize> {
    let (mut woken, mut after) = (0, None);
    loop {
        let page = windlass.list(Filter::held(), after, PAGE).await?;
        for info in &page {
            let exists = match &info.state {
                RunState::Held { hold: Hold::ToolMissing { tool, .. } } => {
                    let layers = windlass.runtime().layers_of(info.run).await?;
                    windlass.toolbox().recorded(tool, &layers, info.session.as_ref()).is_some()
                }
                RunState::Held { hold: Hold::LayerMissing { layer, .. } } => {
                    windlass.toolbox().layer_names().iter().any(|name| **name == **layer)
                }
                _ => false,
            };
            if exists {
                windlass.runtime().resume(info.run).await?;
                woken += 1;
            }
        }
        after = page.last().map(|info| info.run);
        if page.len() < PAGE {
            return Ok(woken);
        }
    }
}

/// A fingerprint of each tool: of its section in the file and its specification. The schemas of OpenAPI operations are not
/// built for this, because a document may have thousands.
fn fingerprints(config: &Config, tools: &Tools) -> BTreeMap<String, u64> {
    let print = |ConfigTool { from, tool, revision }: &ConfigTool| {
        let mut hasher = DefaultHasher::new();
        format!("{} {:?} {revision:?}", config.section(from), tool.spec()).hash(&mut hasher);
        if revision.is_none() {
            tool.contract().ok().map(|contract| (contract.input(), contract.output())).hash(&mut hasher);
        }
        (tool.spec().name.to_string(), hasher.finish())
    };
    tools.iter().map(print).collect()
}

/// The current versions of the files. A file that cannot be accessed has no time and no size.
fn file_stamps(config: &Config) -> Vec<FileStamp> {
    let stamp = |path: PathBuf| {
        let found = std::fs::metadata(&path).ok();
        let modified = found.as_ref().and_then(|found| found.modified().ok());
        let size = found.map(|found| found.len());
        let small = size.is_some_and(|size| size <= SMALL);
        let hash = small.then(|| std::fs::read(&path).ok()).flatten().map(|content| {
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            hasher.finish()
        });
        FileStamp { path, modified, size, hash }
    };
    config.files().into_iter().map(stamp).collect()
}
