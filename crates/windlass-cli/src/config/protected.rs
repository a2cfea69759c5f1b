//! The files that no command may access: the database with its companion files, the config, the secrets, and the programs
//! that run without a sandbox.

use std::path::{Path, PathBuf};

use windlass_tools::sandbox::{Kept, Sandbox, SecondName};
use windlass_tools::secret::Reference;

use super::Config;
use super::api::Api;
use super::problem::Problem;
use super::tree::Span;

/// The companion files of a database, by suffix.
const COMPANIONS: [(&str, &str); 7] = [
    ("-wal", "the database's log"),
    ("-shm", "the database's index"),
    // SQLite applies a journal that it finds.
    ("-journal", "the database's journal"),
    ("-lock", "the database's lock"),
    ("-key", "the database's keys"),
    ("-tokens", "the server's tokens"),
    ("-commands", "the record of running commands"),
];

/// How many links are followed from the name of a database to its file, as in the kernel.
const MAX_LINKS: usize = 40;

/// A database and its companion files. If the given name is a link, they may be named after any file it leads to.
pub fn database_files(file: &Path) -> Vec<Kept> {
    let next = |name: &PathBuf| {
        let target = std::fs::read_link(name).ok()?;
        Some(name.parent().map_or_else(|| target.clone(), |folder| folder.join(&target)))
    };
    let names = std::iter::successors(Some(file.to_owned()), next).take(MAX_LINKS);
    let companions = |file: PathBuf| {
        COMPANIONS.map(|(end, what)| {
            let mut name = file.clone().into_os_string();
            name.push(end);
            Kept::new(what, name)
        })
    };
    std::iter::once(Kept::new("the database", file)).chain(names.flat_map(companions)).collect()
}

impl Config {
    /// The files that no command may access. Documents and certificates may be read but not written, because they decide
    /// where requests go.
    pub(super) fn protected(&self) -> Vec<Kept> {
        let mut kept = database_files(&self.store.file);
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

/// A path to which a tool grants its command access.
#[derive(Clone)]
pub(super) struct GrantedPath {
    /// The path of the key in the config.
    pub(super) key: String,
    pub(super) path: PathBuf,
    pub(super) may_write: bool,
    pub(super) at: Span,
}

/// Reports every granted path that contains a protected file.
pub(super) fn check_grants(granted: &[GrantedPath], sandbox: &Sandbox) -> Vec<Problem> {
    let problem = |grant: &GrantedPath| {
        let reached = sandbox.reaches(&grant.path, grant.may_write);
        let Some(first) = reached.first() else { return check_hard_links(grant, sandbox) };
        let others = match reached.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let problem = format!(
            "`{}` is {}, which would grant the command access to {} {}{others}",
            grant.key,
            grant.path.display(),
            first.what,
            first.path.display(),
        );
        let help = "grant a separate folder, such as \"work\", that contains only what the command needs; or move the other file";
        Some(Problem::error("unsafe_folder", &grant.at, problem).help(help))
    };
    granted.iter().filter_map(problem).collect()
}

/// Reports a hard link in a granted path to a protected file.
fn check_hard_links(grant: &GrantedPath, sandbox: &Sandbox) -> Option<Problem> {
    let found = sandbox.second_name(&grant.path, grant.may_write);
    let remedy = "remove the hard link, or make a copy of the file";
    match found {
        SecondName::None => None,
        SecondName::Found(name, kept) => {
            let (name, what, path) = (name.display(), &kept.what, kept.path.display());
            let problem = format!("`{}` contains {name}, which is a hard link to {what} {path}", grant.key);
            Some(Problem::error("unsafe_folder", &grant.at, problem).help(remedy))
        }
        SecondName::Unknown(kept) => {
            let (folder, what, path) = (grant.path.display(), &kept.what, kept.path.display());
            let problem = format!(
                "`{}` is {folder}, which has too many files to search, and {what} {path} has a hard link somewhere: the command \
                 may have access to it",
                grant.key
            );
            Some(Problem::warning("unsafe_folder", &grant.at, problem).help(remedy))
        }
    }
}

/// Reports a protected file in a folder that every command can read.
pub(super) fn readable_by_all(sandbox: &Sandbox) -> Option<Problem> {
    let found = sandbox.reached_by_all();
    let (folder, kept) = found.first()?;
    let problem = format!("every command may read {folder}, which contains {} {}", kept.what, kept.path.display());
    Some(Problem::of_file("unsafe_folder", problem).help("move it to another folder"))
}
