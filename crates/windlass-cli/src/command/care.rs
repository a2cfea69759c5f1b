//! Looking after the config and the file: `check`, `doctor`, `gc`, `backup`, `restore`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windlass_server::wire::{BackupAnswer, BackupRequest, FileCheck, Health, HealthStatus, TidyAnswer};
use windlass_tools::sandbox;

use crate::api::{self, Api, Open};
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
    let Some(path) = api::config_path(global) else {
        let why = "there is no windlass.toml here; name a config file with --config";
        return Err(Failure::new(Exit::NotFound, why));
    };
    if !path.exists() {
        return Err(Failure::new(Exit::NotFound, format!("there is no config file {}", path.display())));
    }
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
    let tidied: TidyAnswer = during("letting go of what is kept no longer", out, tidying).await?;
    if out.json {
        return out.document(&tidied);
    }
    let (summarized, removed) = (counted(tidied.summarized, "run"), counted(tidied.removed, "run"));
    out.line(&format!("{summarized} summarized, {removed} and {} removed", counted(tidied.artifacts, "artifact")))
}

/// `windlass backup`
pub(super) async fn backup(to: &Path, api: &Api, out: &Out) -> Result<()> {
    // The server may stand elsewhere: what is meant is what is meant here.
    let to = std::path::absolute(to).map_err(|error| Failure::usage(format!("{}: {error}", to.display())))?;
    let Some(to) = to.to_str() else {
        return Err(Failure::usage(format!("{} is not UTF-8; name another file", to.display())));
    };
    let request = BackupRequest { to: to.to_owned() };
    let copying = api.post("/v1/admin/backup", &request, None);
    let answer: BackupAnswer = during("copying", out, copying).await?;
    if out.json {
        return out.document(&answer);
    }
    out.line(&plain(&answer.to))?;
    if let Some(keys) = &answer.key_file {
        let keys = plain(keys);
        out.aside(&format!("secrets in it are sealed, and the key is not in it: keep a copy of {keys} somewhere else"));
    }
    Ok(())
}

/// `windlass restore`
pub(super) fn restore(args: &RestoreArgs, global: &Global, out: &Out) -> Result<()> {
    let file = api::place_without_tools(global, Open::Begin)?.file;
    let from = &args.from;
    if !from.exists() {
        return Err(Failure::new(Exit::NotFound, format!("there is no backup {}", from.display())));
    }
    // Until the backup stands where it should: a process that opened the file meanwhile would write to what is put aside.
    let _claim = claimed(&file)?;
    let mut progress = Progress::new("checking runs", out);
    let report = windlass::check_file(from, |done, of| progress.tell(done, of))
        .map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))?;
    if let Some(problem) = report.problems.first() {
        let why = format!("{} is damaged: {problem}; take another backup", from.display());
        return Err(Failure::new(Exit::Unreachable, why));
    }
    let aside = put_aside(&file, args.replace)?;
    put(from, &file)
        .map_err(|error| Failure::new(Exit::Unreachable, format!("{} cannot be written: {error}", file.display())))?;
    let missing = report.missing_keys(&file);
    if out.json {
        return out.document(&json!({ "file": file, "from": from, "moved_aside": aside, "missing_keys": missing }));
    }
    if let Some(aside) = &aside {
        out.line(&format!("what was there is now {}", aside.display()))?;
    }
    out.line(&format!("{} is restored", file.display()))?;
    out.aside("what unfinished runs may have done after the backup is in doubt, and reply keys are void");
    missing.into_iter().for_each(|sentence| out.aside(&sentence));
    Ok(())
}

fn claimed(file: &Path) -> Result<windlass::Claim> {
    windlass::claim(file).map_err(|error| match error {
        windlass::OpenError::InUse { pid, .. } => {
            let who = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            Failure::new(Exit::Refused, format!("{who} has {} open; stop it first", file.display()))
        }
        error => Failure::new(Exit::Unreachable, error.to_string()),
    })
}

/// What a database consists of beside itself.
const PARTS: [&str; 3] = ["", "-wal", "-shm"];

/// Moves a file that is there out of the way, with everything that belongs to it.
fn put_aside(file: &Path, replace: bool) -> Result<Option<PathBuf>> {
    if !file.exists() {
        return Ok(None);
    }
    if !replace {
        let why = format!("{} is there; --replace moves it aside first", file.display());
        return Err(Failure::new(Exit::Refused, why));
    }
    let free = |number: &u32| !with(file, &format!(".before-restore-{number}")).exists();
    let number = (1..).find(free).unwrap_or(u32::MAX);
    let aside = with(file, &format!(".before-restore-{number}"));
    for part in PARTS {
        let (old, new) = (with(file, part), with(&aside, part));
        if old.exists() {
            std::fs::rename(&old, &new).map_err(|error| {
                Failure::new(Exit::Unreachable, format!("{} cannot be moved: {error}", old.display()))
            })?;
        }
    }
    Ok(Some(aside))
}

/// The copy appears under its name when it is whole and on disk.
fn put(from: &Path, file: &Path) -> std::io::Result<()> {
    let partial = with(file, ".partial");
    write_private(&partial, |to| std::io::copy(&mut std::fs::File::open(from)?, to).map(|_| ()))?;
    std::fs::rename(&partial, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

/// Writes a file that nobody else may read, and sees to it that it is on disk. What was there goes, and its mode with it.
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

/// One thing that was looked at.
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
    findings.push(finding("files", true, files::sentence(files::most()).1));
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
        return vec![finding("config", true, "there is none, and none is needed")];
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

/// The server that is meant, or the one that has the file, or the file itself.
async fn store(global: &Global, out: &Out) -> Vec<Finding> {
    let file = match api::place(global) {
        Ok(place) => place.file,
        Err(_) => {
            let settings = api::config_path(global).and_then(|path| config::load_settings(&path).ok());
            api::place_with(settings, global).file
        }
    };
    let url = match &global.server {
        Some(url) => Some(url.clone()),
        None => api::served(&file).ok().flatten().map(|server| server.address),
    };
    let Some(url) = url else { return unserved(&file, out) };
    let api = match Api::remote(&url, global.token.clone()) {
        Ok(api) => api,
        Err(failure) => return vec![finding("server", false, failure.sentence)],
    };
    vec![health(&url, &api).await, checked(&api).await]
}

async fn health(url: &str, api: &Api) -> Finding {
    match api.get::<Health>("/v1/health").await {
        Ok(health) if health.status == HealthStatus::Ok => {
            finding("server", true, format!("{url} is up, version {}", health.version))
        }
        Ok(health) => finding("server", false, format!("{url}: {}", health.problems.join("; "))),
        Err(failure) => finding("server", false, failure.sentence),
    }
}

async fn checked(api: &Api) -> Finding {
    match api.post::<FileCheck>("/v1/admin/check", &json!({}), None).await {
        Ok(check) if check.ok => finding("file", true, "the server's file is sound"),
        Ok(check) => finding("file", false, check.problems.join("; ")),
        Err(failure) => finding("file", false, failure.sentence),
    }
}

fn unserved(file: &Path, out: &Out) -> Vec<Finding> {
    let name = file.display();
    if let Some(problem) = windlass::forbidden(file) {
        let advice = "let this user read and write the file and its directory, or name another --file";
        return vec![finding("file", false, format!("{name}: {problem}; {advice}"))];
    }
    if !file.exists() {
        return vec![finding("file", true, format!("{name} is not there yet; `windlass serve` makes it"))];
    }
    if let Ok(Some(holder)) = windlass::holder(file) {
        let who = holder.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        return vec![finding("file", true, format!("{name} is open in {who}, which is no server"))];
    }
    let mut progress = Progress::new("checking runs", out);
    let report = match windlass::check_file(file, |done, of| progress.tell(done, of)) {
        Ok(report) => report,
        Err(error) => return vec![finding("file", false, error.to_string())],
    };
    let whole = match report.problems.is_empty() {
        true => finding("file", true, format!("{name} is sound; no server has it open")),
        false => finding("file", false, format!("{name} is damaged: {}; restore a backup", report.problems.join("; "))),
    };
    let missing = report.missing_keys(file).map(|sentence| finding("key", false, format!("{name}: {sentence}")));
    std::iter::once(whole).chain(missing).collect()
}

/// What command tools are kept from, on this machine.
fn sandboxing() -> Vec<Finding> {
    let support = sandbox::support();
    let fine = support.is_whole();
    support.sentences().into_iter().map(|sentence| finding("sandbox", fine, sentence)).collect()
}
