//! Files that a command names or needs, but that it cannot use where it runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::argv::is_plain;
use super::{Command, PATH};
use crate::sandbox::{Level, links_to, resolved};

/// Longest first line of a script that the kernel reads.
const SHEBANG: u64 = 256;

/// Interpreters that load their library from the folder above their `bin`.
const INTERPRETERS: [&str; 9] = ["python", "pypy", "ruby", "node", "perl", "php", "lua", "julia", "java"];

/// Folders of an installation that show that a program needs more than its own file.
const LIBRARIES: [&str; 4] = ["lib", "lib64", "libexec", "versions"];

/// A file that a command names or needs, but that it cannot use where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HiddenFile {
    /// The index of the word in argv that names it.
    pub word: usize,
    /// Which file it is, and why the command cannot use it.
    pub problem: String,
    /// How to make it usable.
    pub remedy: String,
}

impl Command {
    /// Finds files that the command names or needs and cannot use: arguments that are files outside of its working
    /// directory and its sandbox, and folders of an interpreter that its sandbox does not include. Reads the file
    /// system. A word that only looks like the name of a file is reported too.
    pub fn hidden_files(&self) -> Vec<HiddenFile> {
        let words = self.argv.iter().enumerate().skip(1);
        let arguments = words.filter_map(|(word, text)| {
            let (problem, remedy) = self.hidden_argument(text)?;
            Some(HiddenFile { word, problem, remedy })
        });
        self.hidden_program().into_iter().chain(arguments).collect()
    }

    /// The hint for a failed call, if a hidden file may be the cause.
    pub(super) fn hidden_hint(&self, stderr: &str) -> Option<String> {
        let lower = stderr.to_lowercase();
        let is_cause = |hidden: &HiddenFile| match hidden.word {
            0 => lower.is_empty() || LOAD_FAILURES.iter().any(|sign| lower.contains(sign)),
            word => {
                let name = self.argv.get(word).and_then(|text| Path::new(text).file_name());
                stderr.is_empty() || name.is_some_and(|name| stderr.contains(&*name.to_string_lossy()))
            }
        };
        let causes: Vec<String> = self
            .hidden_files()
            .iter()
            .filter(|hidden| is_cause(hidden))
            .map(|hidden| format!("{}; {}", hidden.problem, hidden.remedy))
            .collect();
        (!causes.is_empty()).then(|| format!(" ({})", causes.join(". ")))
    }

    fn hidden_argument(&self, text: &str) -> Option<(String, String)> {
        let path = Path::new(text);
        if text.starts_with('-') || !is_plain(text) {
            return None;
        }
        if path.is_absolute() {
            let is_hidden = path.is_file() && !self.shows(path);
            return is_hidden
                .then(|| (format!("the sandbox does not include {text}"), format!("add {}", reads([text]))));
        }
        let file = self.base.as_ref()?.join(path);
        if !file.is_file() {
            return None;
        }
        let absolute = if self.shows(&file) {
            format!("write its absolute path {}", file.display())
        } else {
            format!("write its absolute path {} and add {}", file.display(), reads([text]))
        };
        let Some(dir) = &self.dir else {
            let folder = file.parent().unwrap_or(&file).display();
            let problem = format!("`{text}` is in {folder}, but the command runs in an empty temporary folder");
            let remedy = format!("move it into a folder for the tool and set `dir` to that folder, or {absolute}");
            return Some((problem, remedy));
        };
        if dir.join(path).exists() {
            return None;
        }
        let problem = format!("`{text}` is not in {}, the folder in which the command runs", dir.display());
        let remedy = match resolved(&file).strip_prefix(resolved(dir)) {
            Ok(inside) => format!("write `{}`, its path in that folder", inside.display()),
            Err(_) => format!("move it into that folder, or {absolute}"),
        };
        Some((problem, remedy))
    }

    fn hidden_program(&self) -> Option<HiddenFile> {
        if self.sandbox.level == Level::Off {
            return None;
        }
        let name = self.argv.first()?;
        let program = self.find_program(name)?;
        let mut folders = BTreeSet::new();
        // The launcher makes a program readable that is named by a path.
        self.add_needed(&program, name.contains('/'), &mut folders);
        if let Some(interpreter) = self.interpreter_of(&program) {
            self.add_needed(&interpreter, false, &mut folders);
        }
        let listed: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        (!listed.is_empty()).then(|| HiddenFile {
            word: 0,
            problem: format!("`{name}` needs {}, which the sandbox does not include", listed.join(" and ")),
            remedy: format!("add {}", reads(listed.iter().map(String::as_str))),
        })
    }

    /// Adds the folders that a program needs and the sandbox does not include.
    fn add_needed(&self, program: &Path, is_granted: bool, folders: &mut BTreeSet<PathBuf>) {
        let real = resolved(program);
        for file in links_to(program) {
            if self.shows_entry(&file) {
                continue;
            }
            let installation = installation_of(&file, file == real);
            let needed = match installation {
                Some(folder) => Some(folder),
                None => file.parent().filter(|_| file == real && !is_granted).map(Path::to_owned),
            };
            folders.extend(needed.filter(|folder| !self.shows(folder)));
        }
    }

    /// The file of a program, as the command finds it.
    fn find_program(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            let dir = self.dir.as_deref().or(self.base.as_deref()).unwrap_or(Path::new("/"));
            return Some(dir.join(name)).filter(|path| path.is_file());
        }
        let secret = || self.secret_env.get("PATH").map(ToString::to_string);
        let folders = self.env.get("PATH").cloned().or_else(secret).unwrap_or_else(|| PATH.to_owned());
        folders.split(':').map(|folder| Path::new(folder).join(name)).find(|path| is_executable(path))
    }

    /// The interpreter in the first line of a script, also behind `env`.
    fn interpreter_of(&self, script: &Path) -> Option<PathBuf> {
        let mut bytes = Vec::new();
        fs::File::open(script).ok()?.take(SHEBANG).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(bytes.strip_prefix(b"#!")?).into_owned();
        let mut words = text.lines().next()?.split_whitespace();
        let interpreter = Path::new(words.next()?);
        if interpreter.file_name().is_some_and(|name| name == "env") {
            return self.find_program(words.find(|word| !word.starts_with('-') && !word.contains('='))?);
        }
        interpreter.is_file().then(|| interpreter.to_owned())
    }

    /// Whether the command can read a file or folder, with links resolved.
    fn shows(&self, path: &Path) -> bool {
        self.shows_entry(&resolved(path))
    }

    fn shows_entry(&self, path: &Path) -> bool {
        self.sandbox.level == Level::Off
            || self.sandbox.shows(path)
            || self.dir.as_ref().is_some_and(|dir| path.starts_with(resolved(dir)))
    }
}

/// Parts of messages with which interpreters report that they cannot load their own files.
const LOAD_FAILURES: [&str; 7] = [
    "permission denied",
    "no such file",
    "no module named",
    "cannot find module",
    "cannot load such file",
    "init_fs_encoding",
    "cannot open shared object",
];

/// The setting that makes these paths readable.
fn reads<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let paths: Vec<String> = paths.into_iter().map(|path| format!("\"{path}\"")).collect();
    format!("`sandbox.read = [{}]`", paths.join(", "))
}

/// The folder of an installation that a program belongs to, if the program needs it: a virtual environment of Python, or
/// the folder above the `bin` of an interpreter.
fn installation_of(program: &Path, is_real: bool) -> Option<PathBuf> {
    let bin = program.parent()?;
    let folder = bin.parent()?;
    if folder.join("pyvenv.cfg").is_file() {
        return Some(folder.to_owned());
    }
    let name = program.file_name()?.to_string_lossy();
    let is_interpreter = INTERPRETERS.iter().any(|interpreter| name.starts_with(interpreter));
    let is_bin = bin.file_name().is_some_and(|name| name == "bin" || name == "shims");
    let has_library = LIBRARIES.iter().any(|library| folder.join(library).is_dir());
    // Files of the user that have nothing to do with the program must not be suggested.
    let is_home = std::env::var_os("HOME").is_some_and(|home| Path::new(&home).starts_with(folder));
    (is_real && is_interpreter && is_bin && has_library && !is_home).then(|| folder.to_owned())
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::sandbox::{Launcher, Sandbox};

    /// A folder with links resolved, and helpers to fill it.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn file(&self, name: &str, text: &str) -> String {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        }

        fn command(&self, argv: &[&str]) -> Command {
            let command = Command::new(argv.iter().copied(), Launcher::new(["l"]));
            Command { base: Some(self.path("")), ..command }
        }
    }

    fn only(command: &Command) -> (usize, String, String) {
        let hidden = command.hidden_files();
        assert_eq!(hidden.len(), 1, "{hidden:?}");
        (hidden[0].word, hidden[0].problem.clone(), hidden[0].remedy.clone())
    }

    #[test]
    fn e26_an_argument_that_is_a_file_beside_the_config_is_reported_with_a_remedy() {
        let folder = Folder::new();
        let script = folder.file("tool.py", "print(1)");
        folder.file("work/own.py", "print(1)");
        let (word, problem, remedy) = only(&folder.command(&["/bin/cat", "-u", "tool.py"]));
        assert!(word == 2 && problem.contains("`tool.py` is in ") && problem.contains("temporary folder"), "{problem}");
        let absolute = format!("write its absolute path {script} and add `sandbox.read = [\"tool.py\"]`");
        assert!(remedy.contains("set `dir`") && remedy.contains(&absolute), "{remedy}");

        let dir = Some(folder.path("work"));
        let (_, problem, remedy) = only(&Command { dir: dir.clone(), ..folder.command(&["/bin/cat", "tool.py"]) });
        assert!(problem.contains("is not in") && remedy.contains("move it into that folder"), "{problem}: {remedy}");
        let (_, _, remedy) = only(&Command { dir: dir.clone(), ..folder.command(&["/bin/cat", "work/own.py"]) });
        assert_eq!(remedy, "write `own.py`, its path in that folder");
        assert_eq!(Command { dir, ..folder.command(&["/bin/cat", "own.py"]) }.hidden_files(), []);

        let (_, problem, remedy) = only(&folder.command(&["/bin/cat", &script]));
        assert_eq!(problem, format!("the sandbox does not include {script}"));
        assert_eq!(remedy, format!("add `sandbox.read = [\"{script}\"]`"));
        let mut readable = folder.command(&["/bin/cat", &script]);
        readable.sandbox.read.push(script.clone().into());
        assert_eq!(readable.hidden_files(), []);
        let off = Command { sandbox: Sandbox::off(), ..folder.command(&["/bin/cat", "tool.py"]) };
        let (_, _, remedy) = only(&off);
        assert!(remedy.ends_with(&format!("or write its absolute path {script}")), "{remedy}");
        for argv in
            [&["/bin/cat", "other.py"][..], &["/bin/cat", "work"], &["/bin/cat", "{args.x}"], &["/bin/cat", "--"]]
        {
            assert_eq!(folder.command(argv).hidden_files(), [], "{argv:?}");
        }
        let library = Command { base: None, ..folder.command(&["/bin/cat", "tool.py"]) };
        assert_eq!(library.hidden_files(), [], "without a config, a relative word is not a file");
    }

    #[test]
    fn e26_an_interpreter_outside_of_the_sandbox_is_reported_with_its_folder() {
        let folder = Folder::new();
        let python = folder.file("pyenv/versions/3.12/bin/python3.12", "");
        fs::create_dir_all(folder.path("pyenv/versions/3.12/lib")).unwrap();
        fs::create_dir_all(folder.path("bin")).unwrap();
        symlink(&python, folder.path("bin/python3")).unwrap();
        folder.file("venv/pyvenv.cfg", "");
        fs::create_dir_all(folder.path("venv/bin")).unwrap();
        symlink("../../bin/python3", folder.path("venv/bin/python")).unwrap();
        fs::create_dir_all(folder.path("venv-system/bin")).unwrap();
        folder.file("venv-system/pyvenv.cfg", "");
        symlink("/bin/cat", folder.path("venv-system/bin/python")).unwrap();
        let (venv, system) = (folder.path("venv/bin/python"), folder.path("venv-system/bin/python"));
        let direct = folder.file("direct.sh", &format!("#!{}\n", venv.display()));
        let env = folder.file("env.sh", "#!/usr/bin/env -S python3 -u\n");
        let standalone = folder.file("tools/standalone", "");
        let plain = folder.file("plain.sh", "#!/bin/sh\n");

        let version = folder.path("pyenv/versions/3.12");
        let both = [version.clone(), folder.path("venv")];
        let on_path = |argv: &[&str]| {
            let mut command = folder.command(argv);
            command.env.insert("PATH".to_owned(), format!("{}:/usr/bin:/bin", folder.path("bin").display()));
            command
        };
        for (command, folders) in [
            (folder.command(&[&python]), &both[..1]),
            (folder.command(&[venv.to_str().unwrap()]), &both),
            (folder.command(&[system.to_str().unwrap()]), &[folder.path("venv-system")]),
            (folder.command(&[&direct]), &both),
            (on_path(&["python3"]), &both[..1]),
            (on_path(&[&env]), &both[..1]),
        ] {
            let (word, problem, remedy) = only(&command);
            let listed: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            let quoted: Vec<String> = listed.iter().map(|folder| format!("\"{folder}\"")).collect();
            assert_eq!(word, 0);
            assert!(problem.ends_with(&format!("needs {}, which the sandbox does not include", listed.join(" and "))));
            assert_eq!(remedy, format!("add `sandbox.read = [{}]`", quoted.join(", ")), "{problem}");
            let mut readable = command.clone();
            readable.sandbox.read.extend(folders.iter().cloned());
            assert_eq!(readable.hidden_files(), [], "the remedy works");
            let off = Command { sandbox: Sandbox::off(), ..command };
            assert_eq!(off.hidden_files(), []);
        }
        // A program on the search path that is not an interpreter needs its folder, unless it is named by its path.
        let mut found = folder.command(&["standalone"]);
        found.env.insert("PATH".to_owned(), folder.path("tools").display().to_string());
        assert!(only(&found).1.contains(&folder.path("tools").display().to_string()));
        for argv in [&[&*standalone][..], &[&*plain], &["cat"], &["/bin/sh"], &["no-such-program"]] {
            assert_eq!(folder.command(argv).hidden_files(), [], "{argv:?}");
        }
    }

    #[test]
    fn e26_a_hint_is_given_for_failures_that_a_hidden_file_explains() {
        let folder = Folder::new();
        folder.file("tool.py", "");
        let command = folder.command(&["/bin/cat", "tool.py"]);
        for (stderr, is_hinted) in [("can't open file '/tmp/1/tool.py'", true), ("", true), ("no such city", false)] {
            assert_eq!(command.hidden_hint(stderr).is_some(), is_hinted, "{stderr}");
        }
        assert!(command.hidden_hint("").unwrap().starts_with(" (`tool.py` is in "));
        assert_eq!(folder.command(&["/bin/cat"]).hidden_hint(""), None);
    }
}
