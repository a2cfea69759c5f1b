//! Maintenance of the config and the file: `check`, `doctor`, `gc`, `backup`, `restore`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windlass_server::wire::{BackupRequest, BackupResponse, FileCheck, Health, HealthStatus, TidyResponse};
use windlass_tools::sandbox;

use crate::api::{self, Api, OpenMode};
use crate::args::{CheckArgs, Global, RestoreArgs};
use crate::config;
use crate::exit::{Exit, Failure, Result};
use crate::files;
use crate::out::Out;
use crate::progress::{Progress, during};
use crate::style::{Tint, counted, plain};

/// `windlass check`
pub(super) async fn check(args: &CheckArgs, global: &Global, out: &Out) -> Result<()> {
    if args.schema {
        return out.document(&config::schema());
    }
    let Some(path) = api::existing_config(global)? else {
        let message = "there is no windlass.toml in this directory; name a config file with --config";
        return Err(Failure::new(Exit::NotFound, message));
    };
    let report = config::check(&path, global.file.as_deref()).await;
    if out.json {
        out.document(&report.json())?;
    } else {
        out.line(report.render(out.style.colour).trim_end())?;
    }
    if report.is_usable() { Ok(()) } else { Err(Failure::silent(Exit::Usage)) }
}

/// `windlass gc`
pub(super) async fn gc(api: &Api, out: &Out) -> Result<()> {
    let nothing = json!({});
    let tidying = api.post("/v1/admin/tidy", &nothing, None);
    let tidied: TidyResponse = during("deleting expired data", out, tidying).await?;
    if out.json {
        return out.document(&tidied);
    }
    let (summarized, removed) = (counted(tidied.summarized, "run"), counted(tidied.removed, "run"));
    out.line(&format!("{summarized} summarized, {removed} and {} removed", counted(tidied.artifacts, "artifact")))
}

/// `windlass backup`
pub(super) async fn backup(to: &Path, api: &Api, out: &Out) -> Result<()> {
    // The server may have another working directory.
    let to = std::path::absolute(to).map_err(|error| Failure::usage(format!("{}: {error}", to.display())))?;
    let Some(to) = to.to_str() else {
        return Err(Failure::usage(format!("the file name {} is not valid UTF-8; name another file", to.display())));
    };
    let request = BackupRequest { to: to.to_owned() };
    let copying = api.post("/v1/admin/backup", &request, None);
    let answer: BackupResponse = during("backing up", out, copying).await?;
    if out.json {
        return out.document(&answer);
    }
    out.line(&plain(&answer.to))?;
    if let Some(keys) = &answer.key_file {
        let keys = plain(keys);
        out.note(&format!(
            "its secrets are encrypted, and the backup does not contain the key: keep a copy of {keys} elsewhere"
        ));
    }
    Ok(())
}

/// `windlass restore`
pub(super) fn restore(args: &RestoreArgs, global: &Global, out: &Out) -> Result<()> {
    let file = api::target_without_tools(global, OpenMode::Init)?.file;
    let from = &args.from;
    if !from.exists() {
        return Err(Failure::new(Exit::NotFound, format!("the backup {} does not exist", from.display())));
    }
    // Held until the restore is done: a process that opened the file meanwhile would write to the file that is moved aside.
    let _lock = lock(&file)?;
    let mut progress = Progress::new("checking runs", out);
    let report = windlass::store::check_file(from, |done, of| progress.update(done, of))
        .map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))?;
    if let Some(problem) = report.problems.first() {
        let why = format!("the backup {} is damaged: {problem}; use another backup", from.display());
        return Err(Failure::new(Exit::Unreachable, why));
    }
    let aside = move_aside(&file, args.replace)?;
    copy_into_place(from, &file)
        .map_err(|error| Failure::new(Exit::Unreachable, format!("could not write {}: {error}", file.display())))?;
    let missing = report.missing_keys(&file);
    if out.json {
        return out.document(&json!({ "file": file, "from": from, "moved_aside": aside, "missing_keys": missing }));
    }
    if let Some(aside) = &aside {
        out.line(&format!("moved the previous file to {}", aside.display()))?;
    }
    out.line(&format!("restored {}", file.display()))?;
    out.note("attempts that unfinished runs may have made after the backup are in doubt, and reply keys are revoked");
    missing.into_iter().for_each(|sentence| out.note(&sentence));
    Ok(())
}

fn lock(file: &Path) -> Result<windlass::store::FileLock> {
    windlass::store::lock_file(file).map_err(|error| match error {
        windlass::OpenError::InUse { pid, .. } => {
            let owner = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            Failure::new(Exit::Refused, format!("{owner} has {} open; stop it first", file.display()))
        }
        error => Failure::new(Exit::Unreachable, error.to_string()),
    })
}

/// The suffixes of the files that make up a database.
const PARTS: [&str; 3] = ["", "-wal", "-shm"];

/// Renames an existing database, with all its files.
fn move_aside(file: &Path, replace: bool) -> Result<Option<PathBuf>> {
    if !file.exists() {
        return Ok(None);
    }
    if !replace {
        let why = format!("{} already exists; --replace moves it aside first", file.display());
        return Err(Failure::new(Exit::Refused, why));
    }
    let free = |number: &u32| !with(file, &format!(".before-restore-{number}")).exists();
    let number = (1..).find(free).unwrap_or(u32::MAX);
    let aside = with(file, &format!(".before-restore-{number}"));
    for part in PARTS {
        let (old, new) = (with(file, part), with(&aside, part));
        if old.exists() {
            std::fs::rename(&old, &new).map_err(|error| {
                Failure::new(Exit::Unreachable, format!("could not move {}: {error}", old.display()))
            })?;
        }
    }
    Ok(Some(aside))
}

/// Copies the file, and gives the copy its name once it is complete and on disk.
fn copy_into_place(from: &Path, file: &Path) -> std::io::Result<()> {
    let partial = with(file, ".partial");
    write_private(&partial, |to| std::io::copy(&mut std::fs::File::open(from)?, to).map(|_| ()))?;
    std::fs::rename(&partial, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

/// Writes a file that only its owner can read, and syncs it to disk. An existing file is removed first, because it would
/// keep its mode.
pub(super) fn write_private(
    path: &Path,
    write: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.write(true).create_new(true).open(path)?;
    write(&mut file)?;
    file.sync_all()
}

fn with(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The result of one check.
struct Finding {
    what: &'static str,
    fine: bool,
    sentence: String,
}

/// `windlass doctor`
pub(super) async fn doctor(global: &Global, out: &Out) -> Result<()> {
    let mut findings = vec![version()];
    findings.extend(config_finding(global).await);
    findings.extend(store(global, out).await);
    findings.push(finding("files", true, files::describe(files::limit()).1));
    findings.extend(sandboxing());
    let fine = findings.iter().all(|finding| finding.fine);
    if out.json {
        let all: Vec<Value> = findings
            .iter()
            .map(|finding| json!({ "what": finding.what, "ok": finding.fine, "sentence": finding.sentence }))
            .collect();
        out.document(&json!({ "ok": fine, "findings": all }))?;
    } else {
        for finding in &findings {
            let (tint, sign) = if finding.fine { (Tint::Good, "✓") } else { (Tint::Bad, "✗") };
            let what = format!("{:<8}", finding.what);
            out.line(&format!("{} {} {}", out.style.paint(tint, sign), out.dim(&what), plain(&finding.sentence)))?;
        }
    }
    if fine { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
}

fn finding(what: &'static str, fine: bool, sentence: impl Into<String>) -> Finding {
    Finding { what, fine, sentence: sentence.into() }
}

fn version() -> Finding {
    let system = format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH);
    finding("program", true, format!("windlass {}, {system}", env!("CARGO_PKG_VERSION")))
}

async fn config_finding(global: &Global) -> Vec<Finding> {
    let Some(path) = api::config_path(global) else {
        return vec![finding("config", true, "there is no windlass.toml, and none is needed")];
    };
    let report = config::check(&path, global.file.as_deref()).await;
    let (errors, warnings) = report.problems.count();
    let (tools, warnings) = (counted(report.tools.len(), "tool"), counted(warnings, "warning"));
    if report.is_usable() {
        return vec![finding("config", true, format!("{}: {tools}, {warnings}", path.display()))];
    }
    let errors = counted(errors, "error");
    vec![finding("config", false, format!("{}: {errors}; `windlass check` shows them", path.display()))]
}

/// Checks the named server, or the server that has the file open, or the file itself.
async fn store(global: &Global, out: &Out) -> Vec<Finding> {
    let file = match api::target(global) {
        Ok(target) => target.file,
        Err(_) => {
            let settings = api::config_path(global).and_then(|path| config::load_settings(&path).ok());
            api::target_with(settings, global).file
        }
    };
    let url = match &global.server {
        Some(url) => Some(url.clone()),
        None => api::served(&file).ok().flatten().map(|server| server.address),
    };
    let Some(url) = url else { return local_file(&file, out) };
    let api = match Api::remote(&url, global.token.clone()) {
        Ok(api) => api,
        Err(failure) => return vec![finding("server", false, failure.message)],
    };
    vec![health(&url, &api).await, server_file(&api).await]
}

async fn health(url: &str, api: &Api) -> Finding {
    match api.get::<Health>("/v1/health").await {
        Ok(health) if health.status == HealthStatus::Ok => {
            finding("server", true, format!("{url} is up, version {}", health.version))
        }
        Ok(health) => finding("server", false, format!("{url}: {}", health.problems.join("; "))),
        Err(failure) => finding("server", false, failure.message),
    }
}

async fn server_file(api: &Api) -> Finding {
    match api.post::<FileCheck>("/v1/admin/check", &json!({}), None).await {
        Ok(check) if check.ok => finding("file", true, "the server's file is intact"),
        Ok(check) => finding("file", false, check.problems.join("; ")),
        Err(failure) => finding("file", false, failure.message),
    }
}

fn local_file(file: &Path, out: &Out) -> Vec<Finding> {
    let name = file.display();
    if let Some(problem) = windlass::store::access_problem(file) {
        let advice = "allow this user to read and write the file and its directory, or name another --file";
        return vec![finding("file", false, format!("{name}: {problem}; {advice}"))];
    }
    if !file.exists() {
        return vec![finding("file", true, format!("{name} does not exist yet; `windlass serve` creates it"))];
    }
    if let Ok(Some(owner)) = windlass::store::file_owner(file) {
        let owner = owner.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        return vec![finding("file", true, format!("{name} is open in {owner}, which does not serve it"))];
    }
    let mut progress = Progress::new("checking runs", out);
    let report = match windlass::store::check_file(file, |done, of| progress.update(done, of)) {
        Ok(report) => report,
        Err(error) => return vec![finding("file", false, error.to_string())],
    };
    let intact = match report.problems.is_empty() {
        true => finding("file", true, format!("{name} is intact; no server has it open")),
        false => finding("file", false, format!("{name} is damaged: {}; restore a backup", report.problems.join("; "))),
    };
    let missing = report.missing_keys(file).map(|sentence| finding("key", false, format!("{name}: {sentence}")));
    std::iter::once(intact).chain(missing).collect()
}

/// The sandbox features that this machine supports.
fn sandboxing() -> Vec<Finding> {
    let support = sandbox::support();
    let fine = support.is_whole();
    support.sentences().into_iter().map(|sentence| finding("sandbox", fine, sentence)).collect()
}
