//! A tool that is a program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_tools::command::{Command, Exit, Output, PATH};
use windlass_tools::sandbox::{Kept, Launcher, Level, Sandbox};
use windlass_tools::secret::{Secrets, Text};

use super::input;
use super::kept::{self, Given};
use super::outside::Outside;
use super::problem::Problem;
use super::table_bodies;
use super::tool::missing;
use super::tree::{Entry, Span};
use super::view::View;

/// A program, and how it is run, but for who runs it.
#[derive(Clone)]
pub(super) struct Program {
    argv: Vec<String>,
    dir: Option<PathBuf>,
    env: BTreeMap<String, Text>,
    sandbox: Sandbox,
    /// What of that the file names; what must not be in it is known when the tool is made.
    given: Vec<Given>,
    output: Output,
    exits: BTreeMap<i32, Exit>,
    on_signal: Option<Exit>,
    max_output: Option<usize>,
}

impl Program {
    /// Reads a tool's command. `schema` is what its calls take.
    pub(super) fn read(
        view: &View<'_>,
        schema: &Value,
        outside: &mut Outside,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let sandbox = sandbox(view, outside);
        let mut env = BTreeMap::new();
        for entry in view.entries("env") {
            let path = format!("{}.{}", view.path_of("env"), entry.key);
            if let Some(text) = outside.text(&entry.node, &path, problems) {
                env.insert(entry.key.clone(), text);
            }
        }
        let exits = view.entries("exits").iter();
        let mut program = Self {
            argv: Vec::new(),
            dir: view.text("dir").map(|dir| outside.path(dir)),
            env,
            sandbox,
            given: given(view, outside),
            output: match view.text("output_as") {
                Some("json") => Output::Json,
                Some("text") => Output::Text,
                _ => Output::Auto,
            },
            exits: exits.filter_map(|entry| Some((entry.key.parse().ok()?, exit(entry.node.text()?)?))).collect(),
            on_signal: view.text("on_signal").and_then(exit),
            max_output: view.size("max_output").and_then(|size| usize::try_from(size).ok()),
        };
        let command = view.get("command")?;
        folder_exists(&program, view, problems);
        program.with_words(command, &view.path_of("command"), schema, outside, problems).then_some(program)
    }

    /// A program that asks whether another one did its work: it runs as that one does.
    pub(super) fn asking(
        &self,
        command: &Entry,
        path: &str,
        schema: &Value,
        outside: &Outside,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        // What it is given is told once.
        let mut asking = Self { exits: BTreeMap::new(), on_signal: None, given: Vec::new(), ..self.clone() };
        asking.with_words(command, path, schema, outside, problems).then_some(asking)
    }

    /// A program with nothing of its own, beside a request.
    pub(super) fn plain() -> Self {
        Self {
            argv: Vec::new(),
            dir: None,
            env: BTreeMap::new(),
            sandbox: Sandbox::default(),
            given: Vec::new(),
            output: Output::Json,
            exits: BTreeMap::new(),
            on_signal: None,
            max_output: None,
        }
    }

    /// Whether anything is kept from it.
    pub(super) fn is_confined(&self) -> bool {
        self.sandbox.level != Level::Off
    }

    /// The program where it runs without a sandbox: a command that replaced it would run without one, too.
    pub(super) fn unconfined(&self) -> Option<PathBuf> {
        let program = Path::new(self.argv.first()?);
        let is_there = |path: &PathBuf| is_executable(path);
        let found = match self.search_path() {
            Some(places) => places.split(':').map(|place| Path::new(place).join(program)).find(is_there),
            None => Some(program.to_owned()),
        };
        found.filter(|_| !self.is_confined())
    }

    /// Where the program is looked for; nothing where its path is given.
    fn search_path(&self) -> Option<String> {
        if self.argv.first()?.contains('/') {
            return None;
        }
        Some(self.env.get("PATH").map_or_else(|| PATH.to_owned(), ToString::to_string))
    }

    /// Keeps these files from it. Says so where it is given one.
    pub(super) fn keep(&mut self, files: &[Kept]) -> Vec<Problem> {
        self.sandbox.kept = files.to_vec();
        kept::reached(&self.given, &self.sandbox)
    }

    pub(super) fn command(&self, secrets: &Secrets, launcher: &Launcher) -> Command {
        let mut command = Command::new(self.argv.iter().cloned(), launcher.clone());
        command.dir = self.dir.clone();
        command.secret_env = self.env.clone();
        command.secrets = secrets.clone();
        command.sandbox = self.sandbox.clone();
        command.output = self.output;
        command.exits = self.exits.clone();
        command.on_signal = self.on_signal;
        command.max_output = self.max_output.unwrap_or(command.max_output);
        command
    }

    /// Takes the words over; says whether they can be run.
    fn with_words(
        &mut self,
        command: &Entry,
        path: &str,
        schema: &Value,
        outside: &Outside,
        problems: &mut Vec<Problem>,
    ) -> bool {
        let words = command.node.list().unwrap_or_default();
        let Some(first) = words.first() else {
            // What is no list was reported.
            if command.node.list().is_some() {
                let problem = Problem::error("bad_value", &command.node.span, format!("`{path}` is empty"));
                problems.push(problem.help("name a program: [\"wc\", \"-w\"]"));
            }
            return false;
        };
        self.argv = words.iter().filter_map(|word| word.text().map(str::to_owned)).collect();
        let Some(program) = self.argv.first_mut() else { return false };
        if program.contains('/') {
            let found = outside.path(program);
            *program = found.display().to_string();
            self.sandbox.read.push(found);
        }
        for word in words {
            let name = word.text().and_then(|text| text.strip_prefix("{args.")).and_then(|rest| rest.strip_suffix('}'));
            let Some(name) = name else { continue };
            let steps: Vec<&str> = name.split('.').collect();
            if !input::has_argument(schema, &steps) {
                let problem = format!("`{path}`: the input has no argument `{name}`");
                problems.push(missing(Problem::error("unknown_argument", &word.span, problem), schema, steps[0]));
            }
        }
        let launcher = Launcher::new(["windlass"]);
        if let Err(bad) = self.command(&Secrets::default(), &launcher).check() {
            problems.push(Problem::error("bad_command", &command.node.span, format!("`{path}`: {bad}")));
            return false;
        }
        self.found(&first.span, path, problems);
        true
    }

    /// Warns if the program is not there: it may come with a deployment that this file does not see.
    fn found(&self, span: &Span, path: &str, problems: &mut Vec<Problem>) {
        let Some(program) = self.argv.first() else { return };
        let Some(places) = self.search_path() else {
            if !is_executable(Path::new(program)) {
                let problem = format!("`{path}`: {program} is not there, or cannot be executed");
                problems.push(Problem::warning("no_program", span, problem).help("calls fail until it can be"));
            }
            return;
        };
        if !places.split(':').any(|place| is_executable(&Path::new(place).join(program))) {
            let problem = format!("`{path}`: there is no program `{program}` in {places}");
            let help = "calls fail until there is; write its whole path, or set env.PATH";
            problems.push(Problem::warning("no_program", span, problem).help(help));
        }
    }
}

fn folder_exists(program: &Program, view: &View<'_>, problems: &mut Vec<Problem>) {
    let sandbox = view.below("sandbox", &table_bodies::SANDBOX);
    let mut warn = |key: &'static str, view: &View<'_>, path: &Path| {
        if !path.exists() {
            let problem = format!("`{}`: there is no {}", view.path_of(key), path.display());
            problems.push(Problem::warning("no_file", &view.place(key), problem).help("calls fail until there is"));
        }
    };
    if let Some(dir) = &program.dir {
        warn("dir", view, dir);
    }
    program.sandbox.read.iter().for_each(|path| warn("read", &sandbox, path));
    program.sandbox.write.iter().for_each(|path| warn("write", &sandbox, path));
}

/// The paths that a tool gives to its command, each with its place.
fn given(view: &View<'_>, outside: &Outside) -> Vec<Given> {
    let sandbox = view.below("sandbox", &table_bodies::SANDBOX);
    let given = |view: &View<'_>, key: &'static str, path: &str, may_write| Given {
        key: view.path_of(key),
        path: outside.path(path),
        may_write,
        at: view.place(key),
    };
    let dir = view.text("dir").map(|dir| given(view, "dir", dir, true));
    let writes = sandbox.texts("write").into_iter().map(|path| given(&sandbox, "write", path, true));
    let reads = sandbox.texts("read").into_iter().map(|path| given(&sandbox, "read", path, false));
    dir.into_iter().chain(writes).chain(reads).collect()
}

fn sandbox(view: &View<'_>, outside: &Outside) -> Sandbox {
    let view = view.below("sandbox", &table_bodies::SANDBOX);
    let usual = match view.text("level") {
        Some("off") => Sandbox::off(),
        Some("best_effort") => Sandbox { level: Level::BestEffort, ..Sandbox::default() },
        _ => Sandbox::default(),
    };
    let paths = |texts: Vec<&str>| texts.into_iter().map(|path| outside.path(path)).collect();
    Sandbox {
        level: usual.level,
        read: paths(view.texts("read")),
        write: paths(view.texts("write")),
        kept: Vec::new(),
        network: view.flag("network").unwrap_or(usual.network),
        metadata: view.flag("metadata").unwrap_or(usual.metadata),
        memory: view.size("memory").or(usual.memory),
        cpu_seconds: view.count("cpu_seconds").or(usual.cpu_seconds),
        processes: view.count("processes").or(usual.processes),
        files: view.count("files").or(usual.files),
        file_size: view.size("file_size").or(usual.file_size),
    }
}

fn exit(word: &str) -> Option<Exit> {
    Some(match word {
        "ok" => Exit::Ok,
        "failed" => Exit::Failed,
        "retry" => Exit::Retry,
        "unavailable" => Exit::Unavailable,
        "invalid_arguments" => Exit::InvalidArguments,
        "denied" => Exit::Denied,
        "in_doubt" => Exit::InDoubt,
        _ => return None,
    })
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}
