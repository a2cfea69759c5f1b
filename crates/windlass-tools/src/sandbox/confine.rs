//! Confines this process before it becomes the command.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::kept::{Kept, SYSTEM};
use super::launch::NotRun;
use super::{Launch, Level, Sandbox, filter};

/// Files that the name resolver reads.
const NAMES: [&str; 6] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services"];

const READ_DEVICES: [&str; 2] = ["/dev/random", "/dev/urandom"];
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// A command yields to its server and to other programs: it gets a tenth of the processor under load, all of it
/// otherwise.
const NICE: i32 = 10;

/// Counts as half of the machine's memory on top of what the command uses, so the kernel kills the command before its
/// server.
const OOM_SCORE: i32 = 500;

/// Applies the sandbox to this process, irrevocably. On failure the process must not become the command.
pub(super) fn confine(launch: &Launch) -> Result<(), NotRun> {
    let sandbox = &launch.sandbox;
    if sandbox.processes.is_some() {
        lower_priority();
    }
    let is_confined = sandbox.level != Level::Off;
    if is_confined {
        prefer_oom_kill();
        let none = CapabilitySet::empty();
        let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, nothing)
            .map_err(|error| NotRun::from_error("its capabilities cannot be dropped", error))?;
        rustix::thread::set_no_new_privs(true).map_err(|error| NotRun::from_error("no_new_privs is refused", error))?;
        files(launch)?;
    }
    // After the rules for files: the command's limit on open files must not make opening them fail.
    limit(sandbox)?;
    if !is_confined {
        return Ok(());
    }
    match filter::apply(sandbox.network, sandbox.metadata) {
        Err(refused) if sandbox.level == Level::BestEffort && !refused.is_transient => Ok(()),
        applied => applied,
    }
}

fn limit(sandbox: &Sandbox) -> Result<(), NotRun> {
    let set = |resource, name: &str, limit: Option<u64>| match limit {
        // A limit of this process that is already lower stays.
        Some(limit) => {
            let limit = getrlimit(resource).maximum.map_or(limit, |most| limit.min(most));
            setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) }).map_err(|error| {
                NotRun::from_error(format!("its limit of {limit} for {name} cannot be set; choose a lower one"), error)
            })
        }
        None => Ok(()),
    };
    set(Resource::Core, "core dumps", (sandbox.level != Level::Off).then_some(0))?;
    set(Resource::As, "memory", sandbox.memory)?;
    set(Resource::Nofile, "open files", sandbox.files)?;
    set(Resource::Fsize, "file size", sandbox.file_size)?;
    set(Resource::Cpu, "processor time", sandbox.cpu_seconds)
}

/// When memory runs out, the kernel should kill a command before its server. Best effort: `/proc` may be read-only.
fn prefer_oom_kill() {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    if own.is_none_or(|own: i32| own < OOM_SCORE) {
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE.to_string());
    }
}

/// Lets the thread that counts processes run while there are too many: without this, a fork bomb started tens of
/// thousands before it was counted. Best effort, because the command can also run at the normal priority.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, NICE);
    // Where the kernel schedules by session (autogroup), priorities count within a session only, so the session needs
    // one too. The kernel limits such changes to ten per second and user.
    let _ = std::fs::write("/proc/self/autogroup", NICE.to_string());
}

fn files(launch: &Launch) -> Result<(), NotRun> {
    let sandbox = &launch.sandbox;
    let landlock_error = |error: RulesetError| NotRun::from_error("Landlock refuses its rules", error);
    let level = if sandbox.level == Level::Required { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    let mut ruleset = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(ABI::V3))
        .map_err(landlock_error)?
        // Rights that only newer kernels know are used where they exist.
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI::V6)))
        .map_err(landlock_error)?;
    if !sandbox.network {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4)).map_err(landlock_error)?;
    }
    let read = AccessFs::from_read(ABI::V5);
    // Write access does not include creating devices or controlling them.
    let write = AccessFs::from_all(ABI::V5) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let device: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile;
    let names = if sandbox.network { &NAMES[..] } else { &[] };
    let system = SYSTEM.iter().chain(names).map(|path| (*path, read));
    let random = READ_DEVICES.iter().map(|path| (*path, AccessFs::ReadFile.into()));
    let devices = DEVICES.iter().map(|path| (*path, device));
    let mut ruleset = ruleset.create().map_err(landlock_error)?;
    for (path, access) in system.chain(random).chain(devices) {
        match opened(Path::new(path)) {
            Ok(opened) => ruleset = ruleset.add_rule(beneath(opened, access)).map_err(landlock_error)?,
            Err(error) if error.is_transient => return Err(error),
            // No system has all of these paths.
            Err(_) => {}
        }
    }
    ruleset = ruleset.add_rule(beneath(opened(&launch.temp)?, write)).map_err(landlock_error)?;
    if let Some((folder, kept)) = sandbox.reached_by_all().first() {
        return Err(refusal(Path::new(folder), kept));
    }
    let program = program(launch).filter(|path| path.exists());
    let reads = sandbox.read.iter().chain(&program).map(|path| (path, false));
    for (path, may_write) in sandbox.write.iter().chain([&launch.dir]).map(|path| (path, true)).chain(reads) {
        let opened = opened(path)?;
        // Checks what was opened, not what the path leads to by now.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
            .map_err(|error| NotRun::from_error("/proc does not show open files", error))?;
        if let Some(kept) = sandbox.reaches(&real, may_write).first() {
            return Err(refusal(path, kept));
        }
        ruleset = ruleset.add_rule(beneath(opened, if may_write { write } else { read })).map_err(landlock_error)?;
    }
    ruleset.restrict_self().map(drop).map_err(landlock_error)
}

/// A rule for an open file or folder. The kernel refuses a rule for a file that has rights for folders.
fn beneath(opened: OwnedFd, access: BitFlags<AccessFs>) -> PathBeneath<OwnedFd> {
    let is_folder = fstat(&opened).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir());
    PathBeneath::new(opened, if is_folder { access } else { access & AccessFs::from_file(ABI::V5) })
}

/// The program of the command, if it is named by a path. The config names it, so it may be read without `sandbox.read`.
fn program(launch: &Launch) -> Option<PathBuf> {
    launch.argv.first().filter(|name| name.contains('/')).map(|name| launch.dir.join(name))
}

/// Opens what a rule is made for. Skipping a path that cannot be opened would only make the command fail later.
fn opened(path: &Path) -> Result<OwnedFd, NotRun> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| {
        NotRun::from_error(
            format!("its sandbox names {}, which does not exist or cannot be opened", path.display()),
            error,
        )
    })
}

fn refusal(folder: &Path, kept: &Kept) -> NotRun {
    let (folder, what, path) = (folder.display(), &kept.what, kept.path.display());
    NotRun::permanent(format!(
        "its sandbox includes {folder}, which contains {what} ({path}); give the command a folder of its own"
    ))
}

/// The highest Landlock version that this kernel supports, of those we use.
pub(super) fn landlock_version() -> u32 {
    let hard = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let files = |abi| hard().handle_access(AccessFs::from_all(abi)).is_ok();
    let supported = [
        files(ABI::V1),
        files(ABI::V2),
        files(ABI::V3),
        hard().handle_access(AccessNet::from_all(ABI::V4)).is_ok(),
        files(ABI::V5),
        hard().scope(Scope::from_all(ABI::V6)).is_ok(),
    ];
    u32::try_from(supported.iter().take_while(|supported| **supported).count()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn l17_a_shortage_is_recognized_in_kernel_errors() {
        for (errno, is_transient) in
            [(Errno::NOMEM, true), (Errno::MFILE, true), (Errno::INVAL, false), (Errno::PERM, false)]
        {
            let filtered = NotRun::from_error("its calls", seccompiler::Error::Seccomp(errno.into()));
            assert_eq!(filtered.is_transient, is_transient, "{}", filtered.problem);
            let ruled = NotRun::from_error("its limits", errno);
            assert_eq!(ruled.is_transient, is_transient, "{}", ruled.problem);
        }
        let missing = opened(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(!missing.is_transient && missing.problem.contains("/nowhere/at/all"), "{}", missing.problem);
    }
}
