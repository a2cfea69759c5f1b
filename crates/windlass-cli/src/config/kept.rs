//! What a server lives by, and no command may reach: its database with all that belongs to it, its config, its secrets, and the
//! programs it runs without a sandbox.

use std::path::{Path, PathBuf};

use windlass_tools::sandbox::{Kept, Sandbox, SecondName};
use windlass_tools::secret::Reference;

use super::Config;
use super::api::Api;
use super::problem::Problem;
use super::tree::Span;

/// What stands beside a database, by the end of its name.
const BESIDE: [(&str, &str); 7] = [
    ("-wal", "the database's log"),
    ("-shm", "the database's index"),
    // SQLite plays one back that it finds.
    ("-journal", "the database's journal"),
    ("-lock", "the database's lock"),
    ("-key", "the database's keys"),
    ("-tokens", "the server's tokens"),
    ("-commands", "the record of what runs"),
];

/// Links that are followed from a database to its file, as the system counts them.
const MOST_LINKS: usize = 40;

/// A database and all that belongs to it. What stands beside it is named after the file itself, where the name given is a link.
pub fn of_database(file: &Path) -> Vec<Kept> {
    let next = |name: &PathBuf| {
        let target = std::fs::read_link(name).ok()?;
        Some(name.parent().map_or_else(|| target.clone(), |folder| folder.join(&target)))
    };
    let names = std::iter::successors(Some(file.to_owned()), next).take(MOST_LINKS);
    let beside = |file: PathBuf| {
        BESIDE.map(|(end, what)| {
            let mut name = file.clone().into_os_string();
            name.push(end);
            Kept::new(what, name)
        })
    };
    std::iter::once(Kept::new("the database", file)).chain(names.flat_map(beside)).collect()
}

impl Config {
    /// What no command of this file may reach. Documents and certificates may be read; who writes them says where requests go.
    pub(super) fn kept(&self) -> Vec<Kept> {
        let mut kept = of_database(&self.store.file);
        kept.push(Kept::new("the config", &self.source.path));
        for (name, reference) in self.secrets.iter() {
            if let Reference::File(path) = reference {
                kept.push(Kept::new(format!("the secret `{name}`"), path));
            }
        }
        kept.extend(self.apis.iter().filter_map(Api::file).map(|file| Kept::new("a document", file).readable()));
        kept.extend(self.net.authorities().iter().map(|file| Kept::new("a certificate", file).readable()));
        kept
    }
}

/// A path that a tool gives to its command.
#[derive(Clone)]
pub(super) struct Given {
    /// The key that names it.
    pub(super) key: String,
    pub(super) path: PathBuf,
    pub(super) may_write: bool,
    pub(super) at: Span,
}

/// Says of each path that has something in it which no command may reach.
pub(super) fn reached(given: &[Given], sandbox: &Sandbox) -> Vec<Problem> {
    let problem = |given: &Given| {
        let reached = sandbox.reaches(&given.path, given.may_write);
        let Some(first) = reached.first() else { return second_name(given, sandbox) };
        let others = match reached.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let problem = format!(
            "`{}` is {}, and would give the command {} {}{others}",
            given.key,
            given.path.display(),
            first.what,
            first.path.display(),
        );
        let help =
            "give it a folder of its own, such as \"work\", with what it needs in it; or keep the other elsewhere";
        Some(Problem::error("unsafe_folder", &given.at, problem).help(help))
    };
    given.iter().filter_map(problem).collect()
}

fn second_name(given: &Given, sandbox: &Sandbox) -> Option<Problem> {
    let found = sandbox.second_name(&given.path, given.may_write);
    let remedy = "remove that name, or make a copy of the file";
    match found {
        SecondName::None => None,
        SecondName::Found(name, kept) => {
            let (name, what, path) = (name.display(), &kept.what, kept.path.display());
            let problem = format!("`{}` has {name} in it, which is another name of {what} {path}", given.key);
            Some(Problem::error("unsafe_folder", &given.at, problem).help(remedy))
        }
        SecondName::Unknown(kept) => {
            let (folder, what, path) = (given.path.display(), &kept.what, kept.path.display());
            let problem = format!(
                "`{}` is {folder}, which has too many files to look at all of them, and {what} {path} has another name (a hard link) \
                 somewhere: the command may reach it",
                given.key
            );
            Some(Problem::warning("unsafe_folder", &given.at, problem).help(remedy))
        }
    }
}

/// Says what lies where every command can read.
pub(super) fn reached_by_all(sandbox: &Sandbox) -> Option<Problem> {
    let found = sandbox.reached_by_all();
    let (folder, kept) = found.first()?;
    let problem = format!("every command may read {folder}, and {} {} is in it", kept.what, kept.path.display());
    Some(Problem::of_file("unsafe_folder", problem).help("keep it elsewhere"))
}
