//! Locking this very process in, before it becomes the command.

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

/// What turns names into addresses.
const NAMES: [&str; 6] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services"];

const READ_DEVICES: [&str; 2] = ["/dev/random", "/dev/urandom"];
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// What a command yields to its server, and to all else: a tenth of the processors while they are wanted, all of them otherwise.
const NICE: i32 = 10;

/// As if it had half of the machine's memory beside what it has: more than its server, less than what asks to go first.
const OOM_SCORE: i32 = 500;

/// Applies all of it to this process, for good. On failure the process must not become the command.
pub(super) fn confine(launch: &Launch) -> Result<(), NotRun> {
    let sandbox = &launch.sandbox;
    if sandbox.processes.is_some() {
        lower_priority();
    }
    let is_confined = sandbox.level != Level::Off;
    if is_confined {
        go_first();
        let none = CapabilitySet::empty();
        let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, nothing)
            .map_err(|error| NotRun::for_want("its capabilities cannot be dropped", error))?;
        rustix::thread::set_no_new_privs(true).map_err(|error| NotRun::for_want("no_new_privs is refused", error))?;
        files(launch)?;
    }
    // After the files, so that what is short of them is this machine, and not what the command is given.
    limit(sandbox)?;
    if !is_confined {
        return Ok(());
    }
    match filter::apply(sandbox.network, sandbox.metadata) {
        Err(refused) if sandbox.level == Level::BestEffort && !refused.passes => Ok(()),
        applied => applied,
    }
}

fn limit(sandbox: &Sandbox) -> Result<(), NotRun> {
    let set = |resource, name: &str, limit: Option<u64>| match limit {
        // Where this process is kept shorter itself, so is the command.
        Some(limit) => {
            let limit = getrlimit(resource).maximum.map_or(limit, |most| limit.min(most));
            setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) }).map_err(|error| {
                NotRun::for_want(format!("its limit of {limit} for {name} cannot be set; choose a lower one"), error)
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

/// Where memory runs out, the system is to end a command before its server. Best effort: `/proc` may be closed to us.
fn go_first() {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    if own.is_none_or(|own: i32| own < OOM_SCORE) {
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE.to_string());
    }
}

/// So that the thread that counts processes gets its turn while there are too many: without it a fork bomb has had tens of thousands
/// before it was counted. Best effort, since a command may also run as it is.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, NICE);
    // Where the system shares processors out by session, priorities count within one, and the session has its own. A user may change
    // those ten times a second.
    let _ = std::fs::write("/proc/self/autogroup", NICE.to_string());
}

fn files(launch: &Launch) -> Result<(), NotRun> {
    let sandbox = &launch.sandbox;
    let told = |error: RulesetError| NotRun::for_want("Landlock refuses its rules", error);
    let level = if sandbox.level == Level::Required { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    let mut ruleset = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(ABI::V3))
        .map_err(told)?
        // What newer kernels add is taken where it is.
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI::V6)))
        .map_err(told)?;
    if !sandbox.network {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4)).map_err(told)?;
    }
    let read = AccessFs::from_read(ABI::V5);
    // Whoever may write may not make devices, nor talk to them.
    let write = AccessFs::from_all(ABI::V5) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let device: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile;
    let names = if sandbox.network { &NAMES[..] } else { &[] };
    let system = SYSTEM.iter().chain(names).map(|path| (*path, read));
    let random = READ_DEVICES.iter().map(|path| (*path, AccessFs::ReadFile.into()));
    let devices = DEVICES.iter().map(|path| (*path, device));
    let mut ruleset = ruleset.create().map_err(told)?;
    for (path, access) in system.chain(random).chain(devices) {
        match opened(Path::new(path)) {
            Ok(opened) => ruleset = ruleset.add_rule(beneath(opened, access)).map_err(told)?,
            Err(short) if short.passes => return Err(short),
            // No system has all of them.
            Err(_) => {}
        }
    }
    ruleset = ruleset.add_rule(beneath(opened(&launch.temp)?, write)).map_err(told)?;
    if let Some((folder, kept)) = sandbox.reached_by_all().first() {
        return Err(refusal(Path::new(folder), kept));
    }
    let program = program(launch).filter(|path| path.exists());
    let reads = sandbox.read.iter().chain(&program).map(|path| (path, false));
    for (path, may_write) in sandbox.write.iter().chain([&launch.dir]).map(|path| (path, true)).chain(reads) {
        let opened = opened(path)?;
        // Of what was opened, whatever a path leads to by now.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
            .map_err(|error| NotRun::for_want("/proc does not show open files", error))?;
        if let Some(kept) = sandbox.reaches(&real, may_write).first() {
            return Err(refusal(path, kept));
        }
        ruleset = ruleset.add_rule(beneath(opened, if may_write { write } else { read })).map_err(told)?;
    }
    ruleset.restrict_self().map(drop).map_err(told)
}

/// A rule for what is open: of what can be done to folders, a file has nothing.
fn beneath(opened: OwnedFd, access: BitFlags<AccessFs>) -> PathBeneath<OwnedFd> {
    let is_folder = fstat(&opened).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir());
    PathBeneath::new(opened, if is_folder { access } else { access & AccessFs::from_file(ABI::V5) })
}

/// The command itself, where it is named by a path: whoever wrote its name wants it run.
fn program(launch: &Launch) -> Option<PathBuf> {
    launch.argv.first().filter(|name| name.contains('/')).map(|name| launch.dir.join(name))
}

/// What a rule is made for. A path that is skipped in silence would be looked for in the command.
fn opened(path: &Path) -> Result<OwnedFd, NotRun> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| {
        NotRun::for_want(
            format!("its sandbox names {}, which does not exist or cannot be opened", path.display()),
            error,
        )
    })
}

fn refusal(folder: &Path, kept: &Kept) -> NotRun {
    let (folder, what, path) = (folder.display(), &kept.what, kept.path.display());
    NotRun::for_good(format!(
        "its sandbox has {folder} in it, and with it {what} ({path}); give it a folder of its own"
    ))
}

/// The highest version whose rights this kernel knows, as far as we use them.
pub(super) fn landlock_version() -> u32 {
    let hard = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let files = |abi| hard().handle_access(AccessFs::from_all(abi)).is_ok();
    let known = [
        files(ABI::V1),
        files(ABI::V2),
        files(ABI::V3),
        hard().handle_access(AccessNet::from_all(ABI::V4)).is_ok(),
        files(ABI::V5),
        hard().scope(Scope::from_all(ABI::V6)).is_ok(),
    ];
    u32::try_from(known.iter().take_while(|known| **known).count()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn l17_a_shortage_is_found_in_what_the_kernel_refuses() {
        for (errno, passes) in [(Errno::NOMEM, true), (Errno::MFILE, true), (Errno::INVAL, false), (Errno::PERM, false)]
        {
            let filtered = NotRun::for_want("its calls", seccompiler::Error::Seccomp(errno.into()));
            assert_eq!(filtered.passes, passes, "{}", filtered.problem);
            let ruled = NotRun::for_want("its limits", errno);
            assert_eq!(ruled.passes, passes, "{}", ruled.problem);
        }
        let missing = opened(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(!missing.passes && missing.problem.contains("/nowhere/at/all"), "{}", missing.problem);
    }
}
