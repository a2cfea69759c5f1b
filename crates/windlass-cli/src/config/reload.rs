//! A changed file is taken up while runs go on.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use windlass::{Filter, Hold, RunState, Toolbox, Windlass};
use windlass_tools::sandbox::Launcher;

use super::problem::Problems;
use super::{Config, MadeTool, Tools, load};

/// How often a watched file is looked at: soon enough for a person who has just saved it, and cheap enough to do for ever.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Files up to this size are compared by content: what people write is smaller.
const SMALL: u64 = 1 << 20;

/// Held runs that are looked at in one go.
const PAGE: usize = 256;

/// Sections that only a restart takes up.
const RESTART: [&str; 6] = ["server", "store", "retention", "policy", "limits", "webhook"];

/// Takes up changes of a config file: by request ([`now`](Reload::now)) or by itself ([`watch`](Reload::watch)).
///
/// The tools of the file are replaced in the toolbox all at once. Calls that were resolved before finish with the tool they have;
/// a run whose tool is gone is held, and goes on when it is there again ([`wake`]). A file with errors changes nothing.
pub struct Reload {
    config: Config,
    toolbox: Toolbox,
    launcher: Launcher,
    /// What tells each tool from how it was, by name.
    tools: BTreeMap<String, u64>,
    warnings: Problems,
    seen: Vec<Stamp>,
}

/// What taking up a file changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Tools that are new.
    pub added: Vec<String>,
    /// Tools that are gone.
    pub removed: Vec<String>,
    /// Tools that were there and are written differently now.
    pub changed: Vec<String>,
    /// Keys that were changed but count only after a restart, such as `server.listen`.
    pub after_restart: Vec<String>,
    /// What is probably not meant.
    pub warnings: Problems,
}

/// What tells a file from how it was.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    modified: Option<SystemTime>,
    size: Option<u64>,
    /// Of the content, where it is small: two changes may fall into one tick of a file system's clock.
    hash: Option<u64>,
}

impl Reload {
    /// Puts the tools of a loaded file into a toolbox, to be replaced when the file changes.
    pub async fn new(config: Config, toolbox: Toolbox, launcher: Launcher) -> Result<Self, Problems> {
        let seen = stamps(&config);
        let made = config.tools(&launcher).await?;
        let (tools, warnings) = (fingerprints(&config, &made.tools), config.warnings_with(made.warnings));
        config.mount(&toolbox, made.tools, None)?;
        Ok(Self { config, toolbox, launcher, tools, warnings, seen })
    }

    /// What is probably not meant, in the file as it counts now and in its documents.
    pub fn warnings(&self) -> &Problems {
        &self.warnings
    }

    /// The file as it counts now.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reads the file again and takes it up. If it cannot be used, everything stays as it is and the problems are returned.
    /// Dropping the future leaves either the old tools or the new ones.
    pub async fn now(&mut self) -> Result<Change, Problems> {
        // As the files are before they are read: what changes meanwhile is seen with the next look.
        let before = stamps(&self.config);
        let read = load(self.config.path());
        self.seen = stamps(read.as_ref().unwrap_or(&self.config));
        for stamp in &mut self.seen {
            if let Some(earlier) = before.iter().find(|earlier| earlier.path == stamp.path) {
                *stamp = earlier.clone();
            }
        }
        let config = read?;
        let made = config.tools(&self.launcher).await?;
        let (new, warnings) = (fingerprints(&config, &made.tools), config.warnings_with(made.warnings));
        config.mount(&self.toolbox, made.tools, Some(&self.config))?;
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

    /// Whether the file, or one it refers to, is not as it was when it was last read.
    pub fn is_stale(&self) -> bool {
        self.seen != stamps(&self.config)
    }

    /// Looks every second whether the file changed, and takes it up if it did; `tell` hears what came of it. Goes on until it
    /// is dropped.
    pub async fn watch(&mut self, mut tell: impl FnMut(Result<Change, Problems>)) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.is_stale() {
                tell(self.now().await);
            }
        }
    }
}

/// Lets runs go on that were held because a tool or a layer was missing that is there now: after a reload. Says how many.
/// Dropping the future leaves the rest held.
pub async fn wake(windlass: &Windlass) -> windlass::Result<usize> {
    let (mut woken, mut after) = (0, None);
    loop {
        let page = windlass.list(Filter::Held, after, PAGE).await?;
        for info in &page {
            let is_there = match &info.state {
                RunState::Held { hold: Hold::ToolMissing { tool, .. } } => {
                    windlass.toolbox().recorded(tool, &windlass.layers_of(info.run).await?).is_some()
                }
                RunState::Held { hold: Hold::LayerMissing { layer, .. } } => {
                    windlass.toolbox().layer_names().iter().any(|name| **name == **layer)
                }
                _ => false,
            };
            if is_there {
                windlass.resume(info.run).await?;
                woken += 1;
            }
        }
        after = page.last().map(|info| info.run);
        if page.len() < PAGE {
            return Ok(woken);
        }
    }
}

/// What tells each tool from how it was: its section of the file, and what came of it. The schemas of an operation are not
/// made for this: a document may have thousands.
fn fingerprints(config: &Config, tools: &Tools) -> BTreeMap<String, u64> {
    let print = |MadeTool { from, tool, revision }: &MadeTool| {
        let mut hasher = DefaultHasher::new();
        format!("{} {:?} {revision:?}", config.section(from), tool.spec()).hash(&mut hasher);
        if revision.is_none() {
            tool.contract().ok().map(|contract| (contract.input(), contract.output())).hash(&mut hasher);
        }
        (tool.spec().name.to_string(), hasher.finish())
    };
    tools.iter().map(print).collect()
}

/// Files as they are. One that cannot be looked at has no time and no size, and has changed when it can be again.
fn stamps(config: &Config) -> Vec<Stamp> {
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
        Stamp { path, modified, size, hash }
    };
    config.files().into_iter().map(stamp).collect()
}
