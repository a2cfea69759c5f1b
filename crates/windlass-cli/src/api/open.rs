//! Choosing where requests go: to the named server, to the server that has the file open, or to a runtime in this process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use windlass::{Builder, Error, OpenError, Toolbox, Windlass};
use windlass_server::Options;
use windlass_tools::sandbox::Launcher;

use super::remote::Remote;
use super::{Api, Transport};
use crate::args::Global;
use crate::config::{self, Config};
use crate::exit::{Exit, Failure, Result};
use crate::style::{counted, plain};

/// How long to wait for a server that may be restarting, and for commands that take turns with the file.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait for one process that has the file open without serving it. Another command closes it sooner, and a
/// server that starts announces its address sooner.
const OWNER_PATIENCE: Duration = Duration::from_millis(400);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How a command uses a file that no server has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Read runs and send them messages. The file must exist; its runs are not driven, and no tool is needed.
    Inspect,
    /// The same, under the retention rules of the config.
    Collect,
    /// The same, but the file may be new.
    Init,
    /// Read runs, with the tools they call.
    Replay,
    /// Record a call in a file that may be new.
    Enqueue,
    /// Drive the run that the command is about. The other runs stay as they are.
    Drive,
    /// Read the tools. No file is needed, and none is created.
    Tools,
}

impl OpenMode {
    /// Whether it requires the tools of the config.
    fn needs_tools(self) -> bool {
        matches!(self, Self::Replay | Self::Enqueue | Self::Drive | Self::Tools)
    }

    /// Whether the file must exist.
    fn needs_file(self) -> bool {
        matches!(self, Self::Inspect | Self::Collect | Self::Replay)
    }
}

/// The file that a command uses, and its config if there is one.
pub struct Target {
    /// The config.
    pub config: Option<Config>,
    /// The database file.
    pub file: PathBuf,
}

/// Loads the config, if there is one, and determines the file.
pub fn target(global: &Global) -> Result<Target> {
    let config = match existing_config(global)? {
        Some(path) => Some(config::load(&path).map_err(|problems| invalid_config(&problems))?),
        None => None,
    };
    Ok(target_with(config, global))
}

/// The same for commands that need no tools. They continue with an invalid config, with a warning, if its `[store]` and
/// `[retention]` can be read or are not needed.
pub fn target_without_tools(global: &Global, mode: OpenMode) -> Result<Target> {
    let Some(path) = existing_config(global)? else { return Ok(target_with(None, global)) };
    let problems = match config::load(&path) {
        Ok(config) => return Ok(target_with(Some(config), global)),
        Err(problems) => problems,
    };
    let errors = counted(problems.count().0, "error");
    let invalid = format!("{} has {errors} (`windlass check` shows them)", path.display());
    let needs_file_only = mode == OpenMode::Inspect || (mode == OpenMode::Init && global.file.is_some());
    match config::load_settings(&path) {
        Ok(settings) => {
            warn(&format!("{invalid}; continuing without its tools"));
            Ok(target_with(Some(settings), global))
        }
        Err(_) if needs_file_only || is_served(global) => {
            warn(&format!("{invalid}; continuing without it"));
            Ok(target_with(None, global))
        }
        Err(_) if mode == OpenMode::Collect => {
            Err(Failure::usage(format!("{invalid}, so the retention times are not known; correct it first")))
        }
        Err(_) => {
            Err(Failure::usage(format!("{invalid}, so the database file is not known; correct it, or name the --file")))
        }
    }
}

/// Whether a server has the file open that is used without a config.
fn is_served(global: &Global) -> bool {
    served(&target_with(None, global).file).is_ok_and(|server| server.is_some())
}

/// Prints a warning once; a command may open the file repeatedly.
fn warn(warning: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.insert(warning.to_owned()) {
        eprintln!("warning: {warning}");
    }
}

/// The target under this config.
pub fn target_with(config: Option<Config>, global: &Global) -> Target {
    let configured = config.as_ref().map(|config| config.store.file.clone());
    let file = global.file.clone().or(configured).unwrap_or_else(|| PathBuf::from(config::FILE));
    Target { config, file }
}

/// The config file: the named one, or the one in the current directory.
pub fn config_path(global: &Global) -> Option<PathBuf> {
    let here = Path::new(config::SOURCE);
    global.config.clone().or_else(|| here.exists().then(|| here.to_owned()))
}

/// The same, refused if a config file was named that does not exist.
pub fn existing_config(global: &Global) -> Result<Option<PathBuf>> {
    match config_path(global) {
        Some(path) if !path.exists() => {
            let message = format!("the config file {} does not exist; name another with --config", path.display());
            Err(Failure::new(Exit::NotFound, message))
        }
        path => Ok(path),
    }
}

/// The failure for an invalid config.
pub fn invalid_config(problems: &config::Problems) -> Failure {
    let text = problems.render(false);
    Failure::usage(format!("the config is not valid\n{}", text.trim_end()))
}

impl Target {
    /// The runtime for this target, not opened yet.
    pub fn builder(&self, toolbox: Toolbox) -> Builder {
        match &self.config {
            Some(config) => {
                let mut config = config.clone();
                config.store.file.clone_from(&self.file);
                config.open(toolbox)
            }
            None => Windlass::open(&self.file).toolbox(toolbox),
        }
    }

    /// The same policy and tools, without the file.
    fn in_memory(&self, toolbox: Toolbox) -> Builder {
        let builder = Windlass::in_memory().toolbox(toolbox);
        match &self.config {
            Some(config) if config.people.attended => builder.policy(config.policy.clone()).attended(),
            Some(config) => builder.policy(config.policy.clone()),
            None => builder,
        }
    }

    async fn toolbox(&self) -> std::result::Result<Toolbox, config::Problems> {
        match &self.config {
            Some(config) => config.toolbox(&launcher(&self.file)).await,
            None => Ok(Toolbox::new()),
        }
    }
}

/// How command tools start this program again, and where they record the processes that run.
pub fn launcher(file: &Path) -> Launcher {
    Launcher::this_program([crate::LAUNCH]).records(records(file)).keep(config::database_files(file))
}

/// The folder in which the commands that run for a file are recorded. It is the same for every name of the file.
fn records(file: &Path) -> PathBuf {
    let mut name = resolved(file).into_os_string();
    name.push("-commands");
    PathBuf::from(name)
}

/// The file with its links resolved; for a file that does not exist yet, with those of its folder resolved.
fn resolved(file: &Path) -> PathBuf {
    if let Ok(found) = file.canonicalize() {
        return found;
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (folder.canonicalize(), file.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => file.to_owned(),
    }
}

impl Api {
    /// The API of a server.
    pub fn remote(url: &str, token: Option<String>) -> Result<Self> {
        Ok(Self {
            transport: Transport::Remote(Remote::new(url)?),
            token,
            waits_for: OnceLock::new(),
            principal: OnceLock::new(),
        })
    }
}

/// Opens the API of the target. With `tool` (a name and a layer), no file is created if that tool does not exist.
pub async fn open(global: &Global, mode: OpenMode, tool: Option<(&str, Option<&str>)>) -> Result<Api> {
    let token = global.token.clone();
    if let Some(url) = &global.server {
        return Api::remote(url, token);
    }
    let target = if mode.needs_tools() { target(global)? } else { target_without_tools(global, mode)? };
    let mut in_use = InUse::new(Instant::now());
    loop {
        if let Some(server) = server(&target.file).await? {
            return Api::remote(&server.address, token);
        }
        if mode.needs_file() && !target.file.exists() {
            return Err(missing(&target.file));
        }
        let toolbox = match target.toolbox().await {
            Ok(toolbox) => toolbox,
            Err(problems) if mode.needs_tools() => return Err(invalid_config(&problems)),
            // An API document may be unreachable for now; inspecting runs does not depend on it.
            Err(problems) => {
                let errors = counted(problems.count().0, "error");
                warn(&format!(
                    "could not load the tools ({errors}, `windlass check` shows them); continuing without them"
                ));
                Toolbox::new()
            }
        };
        if let Some((name, layer)) = tool
            && !target.file.exists()
            && windlass::store::access_problem(&target.file).is_none()
        {
            let visible =
                toolbox.scope(&layer.map(Into::into).into_iter().collect()).map_err(|missing| no_layer(&missing))?;
            if windlass::tool::called(&visible, name).is_none() {
                let tools = visible.tools();
                return Err(unknown_tool(name, layer, tools.iter().map(|tool| &*tool.spec().name)));
            }
        }
        let builder = match mode {
            OpenMode::Tools if !target.file.exists() => target.in_memory(toolbox),
            _ => target.builder(toolbox),
        };
        let builder = match mode {
            OpenMode::Drive => driving(builder.own_runs_only(), &target.file),
            _ => builder.idle(),
        };
        match builder.await {
            Ok(windlass) => return local(windlass, token),
            Err(error) => match owner_in_use(&error) {
                Some(pid) if in_use.may_retry(pid, Instant::now()) => tokio::time::sleep(RETRY_INTERVAL).await,
                _ => return Err(open_failed(&error)),
            },
        }
    }
}

/// How long opening is retried while other processes have the file open.
struct InUse {
    began: Instant,
    /// The process that has the file open, and since when this command has known it.
    owner: Option<(Option<u32>, Instant)>,
}

impl InUse {
    fn new(now: Instant) -> Self {
        Self { began: now, owner: None }
    }

    /// Whether to retry, given that process `pid` has the file open. Commands that take turns get more time than one process
    /// that keeps the file.
    fn may_retry(&mut self, pid: Option<u32>, now: Instant) -> bool {
        let since = match self.owner {
            Some((owner, since)) if owner == pid => since,
            _ => self.owner.insert((pid, now)).1,
        };
        now.duration_since(since) < OWNER_PATIENCE && now.duration_since(self.began) < PATIENCE
    }
}

/// A runtime that drives the runs of a file. Before it does, it kills the commands that a dead process left running:
/// an attempt must not be settled as "did not happen" while its command still runs. Only the process that has the file open
/// may do this, because a command whose owner is alive is not a leftover.
pub fn driving(builder: Builder, file: &Path) -> Builder {
    let folder = records(file);
    builder.before_runs(move || end_leftovers(&folder))
}

fn end_leftovers(folder: &Path) -> std::result::Result<(), String> {
    let found = windlass_tools::process::kill_leftovers(folder)
        .map_err(|error| format!("could not end the commands of an earlier process: {error} ({})", folder.display()))?;
    for group in &found.killed {
        tracing::warn!("killed process group {group}, a command that an earlier process left running");
    }
    for group in &found.unsure {
        tracing::warn!(
            "process group {group} may be a command that an earlier process left running; check it, and kill it by hand"
        );
    }
    Ok(())
}

fn local(windlass: Windlass, token: Option<String>) -> Result<Api> {
    let mut options = Options::default();
    // A user that can open the file can do everything with it anyway.
    options.trusted = true;
    let router = windlass_server::router(windlass.clone(), options);
    let router = router.map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))?;
    Ok(Api {
        transport: Transport::Local { router, windlass },
        token,
        waits_for: OnceLock::new(),
        principal: OnceLock::new(),
    })
}

/// A server that has a file open.
pub struct Server {
    /// Its URL.
    pub address: String,
    /// The id of its process, if known.
    pub pid: Option<u32>,
}

/// The server that has the file open. A server that was just killed holds the file a moment longer without answering, so
/// this waits for it to be gone.
pub async fn server(file: &Path) -> Result<Option<Server>> {
    let began = Instant::now();
    while let Some(server) = served(file)? {
        if Remote::new(&server.address)?.answers().await || began.elapsed() >= PATIENCE {
            return Ok(Some(server));
        }
        warn(&format!(
            "the server at {} does not respond; waiting up to 3 s for it to exit or to respond",
            server.address
        ));
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    Ok(None)
}

/// The server that has announced that it has the file open.
pub fn served(file: &Path) -> Result<Option<Server>> {
    let owner = windlass::store::file_owner(file);
    let owner = owner.map_err(|error| crate::input::read_failed(&file.display().to_string(), &error))?;
    Ok(owner.and_then(|owner| Some(Server { address: owner.address?, pid: owner.pid })))
}

/// The failure for a tool that does not exist, with a suggestion.
pub fn unknown_tool<'n>(name: &str, layer: Option<&str>, tools: impl IntoIterator<Item = &'n str>) -> Failure {
    let hint = match windlass::tool::nearest(name, tools) {
        Some(near) => format!("did you mean `{}`?", plain(near)),
        None => {
            let layer = layer.map(|layer| format!(" --layer {}", plain(layer))).unwrap_or_default();
            format!("`windlass tools list{layer}` lists the tools")
        }
    };
    Failure::new(Exit::NotFound, format!("there is no tool `{}`; {hint}", plain(name)))
}

fn no_layer(missing: &windlass::tool::NoLayer) -> Failure {
    let name = plain(&missing.0);
    Failure::new(
        Exit::Refused,
        format!("there is no layer `{name}`; add `[layer.{name}]` to the config, or use another layer"),
    )
}

fn missing(file: &Path) -> Failure {
    let message = format!(
        "the file {} does not exist; name another with --file, or a server with --server; `windlass serve` creates it",
        file.display()
    );
    Failure::new(Exit::NotFound, message)
}

/// The process that has the file open, if that is why it could not be opened.
fn owner_in_use(error: &Error) -> Option<Option<u32>> {
    let Error::Open(error) = error else { return None };
    match error.downcast_ref() {
        Some(OpenError::InUse { pid, .. }) => Some(*pid),
        _ => None,
    }
}

/// The failure for a file that could not be opened. The error says what to do.
pub fn open_failed(error: &Error) -> Failure {
    let exit = match error {
        Error::Register(_) => Exit::Usage,
        _ => Exit::Unreachable,
    };
    Failure::new(exit, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_is_retried_while_commands_take_turns_but_not_for_one_that_keeps_the_file() {
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        let mut in_use = InUse::new(began);
        assert!(in_use.may_retry(Some(1), at(0)));
        assert!(in_use.may_retry(Some(1), at(399)));
        assert!(!in_use.may_retry(Some(1), at(400)));
        assert!(in_use.may_retry(Some(2), at(400)), "another process has it now");
        assert!(in_use.may_retry(None, at(2_900)));
        assert!(!in_use.may_retry(Some(3), at(3_000)), "the total wait is bounded");
    }
}
