//! A tool that runs a program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_tools::command::{Command, Exit, Output, PATH};
use windlass_tools::sandbox::{Kept, Launcher, Level, Sandbox};
use windlass_tools::secret::{Secrets, Text};

use super::context::ReadContext;
use super::input;
use super::problem::Problem;
use super::protected::{self, GrantedPath};
use super::table_bodies;
use super::tool::suggest_argument;
use super::tree::{Span, TableEntry};
use super::view::View;

/// A program and how it is run, without the launcher.
#[derive(Clone)]
pub(super) struct Program {
    argv: Vec<String>,
    dir: Option<PathBuf>,
    session_files: bool,
    /// The folder of the config.
    base: Option<PathBuf>,
    env: BTreeMap<String, Text>,
    sandbox: Sandbox,
    /// The paths that the file grants. Whether they include protected files is checked when the tool is built.
    granted: Vec<GrantedPath>,
    output: Output,
    media_type: Option<String>,
    exits: BTreeMap<i32, Exit>,
    on_signal: Option<Exit>,
    max_output: Option<usize>,
}

impl Program {
    /// Reads a tool's command. `schema` is the schema of its arguments.
    pub(super) fn read(
        view: &View<'_>,
        schema: &Value,
        context: &mut ReadContext,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let sandbox = sandbox(view, context);
        let mut env = BTreeMap::new();
        for entry in view.entries("env") {
            let path = format!("{}.{}", view.path_of("env"), entry.key);
            if let Some(text) = context.text(&entry.node, &path, problems) {
                env.insert(entry.key.clone(), text);
            }
        }
        let exits = view.entries("exits").iter();
        let mut program = Self {
            argv: Vec::new(),
            dir: view.text("dir").map(|dir| context.path(dir)),
            session_files: view.text("files") == Some("session"),
            base: None,
            env,
            sandbox,
            granted: granted_paths(view, context),
            output: match view.text("output_as") {
                Some("json") => Output::Json,
                Some("text") => Output::Text,
                Some("content") => Output::Content,
                _ => Output::Auto,
            },
            media_type: view.text("media_type").map(str::to_owned),
            exits: exits.filter_map(|entry| Some((entry.key.parse().ok()?, exit(entry.node.text()?)?))).collect(),
            on_signal: view.text("on_signal").and_then(exit),
            max_output: view.size("max_output").and_then(|size| usize::try_from(size).ok()),
        };
        if let (Some(_), Some(entry)) = (view.get("output_as"), view.get("media_type")) {
            let problem = format!("`{}`: the output is either a file or has a format", view.path_of("media_type"));
            let problem = Problem::error("contradiction", &entry.node.span, problem);
            problems.push(problem.help("remove `output_as` or `media_type`"));
        }
        if let Some(entry) = view.get("files") {
            let mut contradict = |key: &str, help: String| {
                let problem = format!("`{}`: it contradicts `{key}`", view.path_of("files"));
                problems.push(Problem::error("contradiction", &entry.node.span, problem).help(help));
            };
            if view.get("dir").is_some() {
                contradict(
                    "dir",
                    "the files of the session are the working directory; remove `dir` or `files`".to_owned(),
                );
            }
            if let Some(chosen) = view.text("concurrency").filter(|chosen| !matches!(*chosen, "auto" | "exclusive")) {
                let help = format!("such a tool is exclusive in its session; remove `concurrency = {chosen:?}`");
                contradict("concurrency", help);
            }
        }
        let command = view.get("command")?;
        check_folders(&program, view, problems);
        program.with_words(command, &view.path_of("command"), schema, context, problems).then_some(program)
    }

    /// The reconcile program of this one, which runs in the same way.
    pub(super) fn reconcile(
        &self,
        command: &TableEntry,
        path: &str,
        schema: &Value,
        context: &ReadContext,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        // Problems with the granted paths are reported once.
        let mut reconcile = Self { exits: BTreeMap::new(), on_signal: None, granted: Vec::new(), ..self.clone() };
        reconcile.with_words(command, path, schema, context, problems).then_some(reconcile)
    }

    /// A program with default settings, for a tool that is an HTTP request.
    pub(super) fn plain() -> Self {
        Self {
            argv: Vec::new(),
            dir: None,
            session_files: false,
            base: None,
            env: BTreeMap::new(),
            sandbox: Sandbox::default(),
            granted: Vec::new(),
            output: Output::Json,
            media_type: None,
            exits: BTreeMap::new(),
            on_signal: None,
            max_output: None,
        }
    }

    /// Whether it runs in a sandbox.
    pub(super) fn is_sandboxed(&self) -> bool {
        self.sandbox.level != Level::Off
    }

    /// The path of the program, if it runs without a sandbox. A command that could replace this file could escape its own
    /// sandbox.
    pub(super) fn unsandboxed_path(&self) -> Option<PathBuf> {
        let program = Path::new(self.argv.first()?);
        let exists = |path: &PathBuf| is_executable(path);
        let path = match self.search_path() {
            Some(folders) => folders.split(':').map(|folder| Path::new(folder).join(program)).find(exists),
            None => Some(program.to_owned()),
        };
        path.filter(|_| !self.is_sandboxed())
    }

    /// The folders in which the program is searched; `None` if it is given by its path.
    fn search_path(&self) -> Option<String> {
        if self.argv.first()?.contains('/') {
            return None;
        }
        Some(self.env.get("PATH").map_or_else(|| PATH.to_owned(), ToString::to_string))
    }

    /// Denies it access to these files. Reports grants that would include one.
    pub(super) fn protect(&mut self, files: &[Kept]) -> Vec<Problem> {
        self.sandbox.kept = files.to_vec();
        protected::check_grants(&self.granted, &self.sandbox)
    }

    pub(super) fn command(&self, secrets: &Secrets, launcher: &Launcher) -> Command {
        let mut command = Command::new(self.argv.iter().cloned(), launcher.clone());
        command.dir = self.dir.clone();
        command.session_files = self.session_files;
        command.base = self.base.clone();
        command.secret_env = self.env.clone();
        command.secrets = secrets.clone();
        command.sandbox = self.sandbox.clone();
        command.output = self.output;
        command.media_type = self.media_type.clone();
        command.exits = self.exits.clone();
        command.on_signal = self.on_signal;
        command.max_output = self.max_output.unwrap_or(command.max_output);
        command
    }

    /// Sets the program and its arguments. Returns whether they are valid.
    fn with_words(
        &mut self,
        command: &TableEntry,
        path: &str,
        schema: &Value,
        context: &ReadContext,
        problems: &mut Vec<Problem>,
    ) -> bool {
        let words = command.node.list().unwrap_or_default();
        let Some(first) = words.first() else {
            // A value that is not a list was already reported.
            if command.node.list().is_some() {
                let problem = Problem::error("bad_value", &command.node.span, format!("`{path}` is empty"));
                problems.push(problem.help("name a program, for example [\"wc\", \"-w\"]"));
            }
            return false;
        };
        self.argv = words.iter().filter_map(|word| word.text().map(str::to_owned)).collect();
        self.base = std::path::absolute(context.path(".")).ok();
        let Some(program) = self.argv.first_mut() else { return false };
        if program.contains('/') {
            let path = context.path(program);
            *program = path.display().to_string();
            self.sandbox.read.push(path);
        }
        for word in words {
            let name = word.text().and_then(|text| text.strip_prefix("{args.")).and_then(|rest| rest.strip_suffix('}'));
            let Some(name) = name else { continue };
            let steps: Vec<&str> = name.split('.').collect();
            if !input::has_argument(schema, &steps) {
                let problem = format!("`{path}`: the input has no argument `{name}`");
                problems.push(suggest_argument(
                    Problem::error("unknown_argument", &word.span, problem),
                    schema,
                    steps[0],
                ));
            }
        }
        let built = self.command(&Secrets::default(), &Launcher::new(["windlass"]));
        if let Err(bad) = built.check() {
            problems.push(Problem::error("bad_command", &command.node.span, format!("`{path}`: {bad}")));
            return false;
        }
        self.check_exists(&first.span, path, problems);
        for hidden in built.hidden_files() {
            let span = words.get(hidden.word).map_or(&first.span, |word| &word.span);
            let problem = format!("`{path}`: {}", hidden.problem);
            problems.push(Problem::warning("hidden_file", span, problem).help(hidden.remedy));
        }
        true
    }

    /// Warns if the program does not exist. This is not an error, because a later deployment may install it.
    fn check_exists(&self, span: &Span, path: &str, problems: &mut Vec<Problem>) {
        let Some(program) = self.argv.first() else { return };
        let Some(folders) = self.search_path() else {
            if !is_executable(Path::new(program)) {
                let problem = format!("`{path}`: {program} does not exist or is not executable");
                problems.push(Problem::warning("no_program", span, problem).help("calls fail until it is"));
            }
            return;
        };
        if !folders.split(':').any(|folder| is_executable(&Path::new(folder).join(program))) {
            let problem = format!("`{path}`: there is no program `{program}` in {folders}");
            let help = "calls fail until there is one; write its full path, or set env.PATH";
            problems.push(Problem::warning("no_program", span, problem).help(help));
        }
    }
}

fn check_folders(program: &Program, view: &View<'_>, problems: &mut Vec<Problem>) {
    let sandbox = view.below("sandbox", &table_bodies::SANDBOX);
    let mut warn = |key: &'static str, view: &View<'_>, path: &Path| {
        if !path.exists() {
            let problem = format!("`{}`: {} does not exist", view.path_of(key), path.display());
            problems.push(Problem::warning("no_file", &view.span_of(key), problem).help("calls fail until it does"));
        }
    };
    if let Some(dir) = &program.dir {
        warn("dir", view, dir);
    }
    program.sandbox.read.iter().for_each(|path| warn("read", &sandbox, path));
    program.sandbox.write.iter().for_each(|path| warn("write", &sandbox, path));
}

/// The paths to which a tool grants its command access.
fn granted_paths(view: &View<'_>, context: &ReadContext) -> Vec<GrantedPath> {
    let sandbox = view.below("sandbox", &table_bodies::SANDBOX);
    let grant = |view: &View<'_>, key: &'static str, path: &str, may_write| GrantedPath {
        key: view.path_of(key),
        path: context.path(path),
        may_write,
        at: view.span_of(key),
    };
    let dir = view.text("dir").map(|dir| grant(view, "dir", dir, true));
    let writes = sandbox.texts("write").into_iter().map(|path| grant(&sandbox, "write", path, true));
    let reads = sandbox.texts("read").into_iter().map(|path| grant(&sandbox, "read", path, false));
    dir.into_iter().chain(writes).chain(reads).collect()
}

fn sandbox(view: &View<'_>, context: &ReadContext) -> Sandbox {
    let view = view.below("sandbox", &table_bodies::SANDBOX);
    let default = match view.text("level") {
        Some("off") => Sandbox::off(),
        Some("best_effort") => Sandbox { level: Level::BestEffort, ..Sandbox::default() },
        _ => Sandbox::default(),
    };
    let paths = |texts: Vec<&str>| texts.into_iter().map(|path| context.path(path)).collect();
    Sandbox {
        level: default.level,
        read: paths(view.texts("read")),
        write: paths(view.texts("write")),
        kept: Vec::new(),
        network: view.flag("network").unwrap_or(default.network),
        metadata: view.flag("metadata").unwrap_or(default.metadata),
        memory: view.size("memory").or(default.memory),
        cpu_seconds: view.count("cpu_seconds").or(default.cpu_seconds),
        processes: view.count("processes").or(default.processes),
        files: view.count("files").or(default.files),
        file_size: view.size("file_size").or(default.file_size),
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

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn e26_a_file_that_a_command_cannot_use_is_a_warning_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tool.sh"), "echo hello").unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        std::fs::write(folder.path().join("work/own.sh"), "echo hello").unwrap();
        let config = folder.path().join("windlass.toml");
        let warnings = |more: &str| {
            let text = format!("[tool.t]\ndescription = \"x\"\n{more}\n");
            let config = parse(&config, text).unwrap_or_else(|problems| panic!("{problems}"));
            let warnings = config.warnings();
            let codes = warnings.iter().map(|problem| (problem.code, warnings.position(problem).unwrap())).collect();
            (codes, warnings.to_string())
        };
        let none: Vec<(&str, (usize, usize))> = Vec::new();
        let (codes, text): (Vec<_>, String) = warnings("command = [\"sh\", \"tool.sh\"]");
        assert_eq!(codes, [("hidden_file", (3, 18))], "{text}");
        assert!(text.contains("set `dir` to that folder") && text.contains("`sandbox.read = [\"tool.sh\"]`"), "{text}");
        let absolute = folder.path().join("tool.sh");
        let remedied = format!("command = [\"sh\", {absolute:?}]\nsandbox = {{ read = [\"tool.sh\"] }}");
        for fine in [&*remedied, "command = [\"sh\", \"own.sh\"]\ndir = \"work\"", "command = [\"./tool.sh\"]"] {
            let (codes, text) = warnings(fine);
            assert_eq!(codes.iter().filter(|(code, _)| *code == "hidden_file").count(), 0, "{fine}: {text}");
            assert!(codes == none || fine.contains("./tool.sh"), "{fine}: {text}");
        }
        let (codes, text) = warnings("command = [\"sh\", \"work/own.sh\"]\ndir = \"work\"");
        assert_eq!(codes, [("hidden_file", (3, 18))], "{text}");
        assert!(text.contains("write `own.sh`"), "{text}");
    }
}
