//! Finding out where requests go: to the server that was named, to the one that has the file open, or to a runtime in this
//! process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use windlass::{Builder, Error, OpenError, Toolbox, Windlass};
use windlass_server::Options;
use windlass_tools::sandbox::Launcher;

use super::remote::Remote;
use super::{Api, Way};
use crate::args::Global;
use crate::config::{self, Config};
use crate::exit::{Exit, Failure, Result};
use crate::style::{counted, plain};

/// Another command has the file open for a moment only, and a server that starts announces itself soon.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is going to be done with a file that no server has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Look at runs and tell them things. The file must be there; none of its runs is driven, and no tool is needed.
    Look,
    /// The same under the rules of the config, which must be known for it.
    Tidy,
    /// The same, and the file may be new.
    Begin,
    /// Look at runs with the tools they call.
    Replay,
    /// Leave a call in a file that may be new.
    Create,
    /// Drive its runs.
    Drive,
    /// Look at the tools, for which no file is needed, and none is made.
    Tools,
}

impl Open {
    /// Whether it makes no sense without the tools of the config.
    fn needs_tools(self) -> bool {
        matches!(self, Self::Replay | Self::Create | Self::Drive | Self::Tools)
    }

    /// Whether it makes no sense without a file.
    fn needs_file(self) -> bool {
        matches!(self, Self::Look | Self::Tidy | Self::Replay)
    }
}

/// What this command is about: a file, and a config where there is one.
pub struct Place {
    /// The config file, read.
    pub config: Option<Config>,
    /// The database file.
    pub file: PathBuf,
}

/// Reads the config, if there is one, and finds out which file is meant.
pub fn place(global: &Global) -> Result<Place> {
    let config = match config_path(global) {
        Some(path) => Some(config::load(&path).map_err(|problems| misconfigured(&problems))?),
        None => None,
    };
    Ok(place_with(config, global))
}

/// The same for what needs no tools: a config with mistakes in it is told of in one line, as far as it says where runs are kept and
/// for how long.
pub fn place_without_tools(global: &Global, how: Open) -> Result<Place> {
    let Some(path) = config_path(global) else { return Ok(place_with(None, global)) };
    let problems = match config::load(&path) {
        Ok(config) => return Ok(place_with(Some(config), global)),
        Err(problems) => problems,
    };
    let errors = counted(problems.count().0, "error");
    let said = format!("{} has {errors} (`windlass check` shows them)", path.display());
    match config::load_settings(&path) {
        Ok(settings) => {
            warn(&format!("{said}; going on without its tools"));
            Ok(place_with(Some(settings), global))
        }
        Err(_) if how == Open::Look || (how == Open::Begin && global.file.is_some()) || is_served(global) => {
            warn(&format!("{said}; going on without it"));
            Ok(place_with(None, global))
        }
        Err(_) if how == Open::Tidy => {
            Err(Failure::usage(format!("{said}, so how long runs are kept is not known; mend it first")))
        }
        Err(_) => {
            Err(Failure::usage(format!("{said}, so where runs are kept is not known; mend it, or name the --file")))
        }
    }
}

/// Whether a server has the file that is meant without a config: it knows its own.
fn is_served(global: &Global) -> bool {
    served(&place_with(None, global).file).is_ok_and(|server| server.is_some())
}

/// Says something once; a command may open the file again and again.
fn warn(sentence: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(sentence.to_owned()) {
        eprintln!("warning: {sentence}");
    }
}

/// The file that is meant under this config.
pub fn place_with(config: Option<Config>, global: &Global) -> Place {
    let configured = config.as_ref().map(|config| config.store.file.clone());
    let file = global.file.clone().or(configured).unwrap_or_else(|| PathBuf::from(config::FILE));
    Place { config, file }
}

/// The config file that counts: the one that was named, or the one that is here.
pub fn config_path(global: &Global) -> Option<PathBuf> {
    let here = Path::new(config::SOURCE);
    global.config.clone().or_else(|| here.exists().then(|| here.to_owned()))
}

/// What is wrong with a config, for people.
pub fn misconfigured(problems: &config::Problems) -> Failure {
    let text = problems.render(false);
    Failure::usage(format!("the config cannot be used\n{}", text.trim_end()))
}

impl Place {
    /// The runtime this place describes, not opened yet.
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

    /// The same rules and tools, without the file.
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

/// How command tools start this program anew, and where they keep account of what runs.
pub fn launcher(file: &Path) -> Launcher {
    Launcher::this_program([crate::LAUNCH]).records(records(file)).keep(config::of_database(file))
}

/// Where the commands that run for a file are recorded: in one place, whichever of its names is used.
fn records(file: &Path) -> PathBuf {
    let mut name = resolved(file).into_os_string();
    name.push("-commands");
    PathBuf::from(name)
}

/// The file with its links followed; one that is not there yet below its folder.
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
    /// A server somewhere.
    pub fn remote(url: &str, token: Option<String>) -> Result<Self> {
        Ok(Self { way: Way::Remote(Remote::new(url)?), token })
    }
}

/// The API of what the options name. A file is not made for the sake of a `tool` that is not there, or not in its layer.
pub async fn open(global: &Global, how: Open, tool: Option<(&str, Option<&str>)>) -> Result<Api> {
    let token = global.token.clone();
    if let Some(url) = &global.server {
        return Api::remote(url, token);
    }
    let place = if how.needs_tools() { place(global)? } else { place_without_tools(global, how)? };
    let began = Instant::now();
    loop {
        if let Some(server) = server(&place.file).await? {
            return Api::remote(&server.address, token);
        }
        if how.needs_file() && !place.file.exists() {
            return Err(missing(&place.file));
        }
        let toolbox = match place.toolbox().await {
            Ok(toolbox) => toolbox,
            Err(problems) if how.needs_tools() => return Err(misconfigured(&problems)),
            // A document that cannot be fetched today is no reason not to look.
            Err(problems) => {
                let errors = counted(problems.count().0, "error");
                let sentence = format!("the tools cannot be had ({errors}, `windlass check` shows them)");
                warn(&format!("{sentence}; going on without them"));
                Toolbox::new()
            }
        };
        if let Some((name, layer)) = tool
            && !place.file.exists()
            && windlass::forbidden(&place.file).is_none()
        {
            let seen =
                toolbox.scope(&layer.map(Into::into).into_iter().collect()).map_err(|missing| no_layer(&missing))?;
            if windlass::tools::called(&seen, name).is_none() {
                let tools = seen.tools();
                return Err(unknown_tool(name, layer, tools.iter().map(|tool| &*tool.spec().name)));
            }
        }
        let builder = match how {
            Open::Tools if !place.file.exists() => place.in_memory(toolbox),
            _ => place.builder(toolbox),
        };
        let builder = if how == Open::Drive { driving(builder, &place.file) } else { builder.idle() };
        match builder.await {
            Ok(windlass) => return here(windlass, token),
            Err(error) if is_in_use(&error) && began.elapsed() < PATIENCE => tokio::time::sleep(LOOK_AGAIN).await,
            Err(error) => return Err(unopened(&error)),
        }
    }
}

/// A runtime that drives the runs of a file. Nothing may be settled as not having happened while it still happens, so the
/// commands that a dead process left are killed first: by the process that has the file, since a command whose owner
/// lives is no leftover.
pub fn driving(builder: Builder, file: &Path) -> Builder {
    let folder = records(file);
    builder.before_runs(move || end_leftovers(&folder))
}

fn end_leftovers(folder: &Path) -> std::result::Result<(), String> {
    let found = windlass_tools::process::kill_leftovers(folder)
        .map_err(|error| format!("commands of an earlier process cannot be ended: {error} ({})", folder.display()))?;
    for group in &found.killed {
        tracing::warn!("killed process group {group}, which an earlier process had left running");
    }
    for group in &found.unsure {
        tracing::warn!(
            "process group {group} may be a leftover of an earlier process; look at it, and kill it by hand"
        );
    }
    Ok(())
}

fn here(windlass: Windlass, token: Option<String>) -> Result<Api> {
    let mut options = Options::default();
    // Whoever can open the file may do everything with it anyway.
    options.trusted = true;
    let router = windlass_server::router(windlass.clone(), options);
    let router = router.map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))?;
    Ok(Api { way: Way::Here { router, windlass }, token })
}

/// Who has a file open and answers.
pub struct Server {
    /// Where.
    pub address: String,
    /// The number of its process, where that is known.
    pub pid: Option<u32>,
}

/// The server that has the file open. One that was killed has it a moment longer, and answers no more: that moment is waited for.
pub async fn server(file: &Path) -> Result<Option<Server>> {
    let began = Instant::now();
    while let Some(server) = served(file)? {
        if Remote::new(&server.address)?.answers().await || began.elapsed() >= PATIENCE {
            return Ok(Some(server));
        }
        warn(&format!("the server at {} does not answer; looking whether it is gone in a moment", server.address));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(None)
}

/// Who says that it has the file open and where it answers.
pub fn served(file: &Path) -> Result<Option<Server>> {
    let holder =
        windlass::holder(file).map_err(|error| crate::input::unreadable(&file.display().to_string(), &error))?;
    Ok(holder.and_then(|holder| Some(Server { address: holder.address?, pid: holder.pid })))
}

/// What to say of a tool that is not there, with the one that may be meant.
pub fn unknown_tool<'n>(name: &str, layer: Option<&str>, known: impl IntoIterator<Item = &'n str>) -> Failure {
    let meant = match windlass::tools::nearest(name, known) {
        Some(near) => format!("did you mean `{}`?", plain(near)),
        None => {
            let layer = layer.map(|layer| format!(" --layer {}", plain(layer))).unwrap_or_default();
            format!("`windlass tools list{layer}` shows which there are")
        }
    };
    Failure::new(Exit::NotFound, format!("there is no tool `{}`; {meant}", plain(name)))
}

fn no_layer(missing: &windlass::NoLayer) -> Failure {
    let name = plain(&missing.0);
    Failure::new(
        Exit::Refused,
        format!("there is no layer `{name}` here; add `[layer.{name}]` to the config, or use another"),
    )
}

fn missing(file: &Path) -> Failure {
    let sentence = format!(
        "there is no file {}; name one with --file, or a server with --server; `windlass serve` makes a new one",
        file.display()
    );
    Failure::new(Exit::NotFound, sentence)
}

fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::Open(error) if matches!(error.downcast_ref(), Some(OpenError::InUse { .. })))
}

/// Why a file cannot be opened. The sentences have the way out.
pub fn unopened(error: &Error) -> Failure {
    let exit = match error {
        Error::Register(_) => Exit::Usage,
        _ => Exit::Unreachable,
    };
    Failure::new(exit, error.to_string())
}
