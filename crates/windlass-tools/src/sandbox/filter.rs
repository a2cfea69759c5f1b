//! System calls that no command needs: they fail with `EPERM`.

use std::collections::BTreeMap;

use libc::{AF_INET, AF_INET6, SOCK_DGRAM, SOCK_STREAM, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use super::launch::NotRun;

/// Refused with any arguments. They affect other processes, the objects of other users, or the kernel itself, and
/// Landlock's rules about files do not cover them.
const REFUSED: &[c_long] = &[
    // Leaving the process group: killing the group must reach every process.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Other views of the file system, and files by handle.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // The kernel and the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_kexec_file_load, libc::SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Change limits or scheduling of the process that the first argument names; zero is the caller. A command that can
/// lower the limits of its server can end it.
const OF_A_PROCESS: &[c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// Change scheduling of a process, a group or a user that the second argument names, each with the kind that means a
/// user. Zero is the caller's process, group or user. The user is refused, because it is the server's user too.
const OF_A_KIND: &[(c_long, u64)] = &[(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)];

/// Changes to files by path that Landlock does not check.
const METADATA: &[c_long] = &[
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
];

#[cfg(target_arch = "x86_64")]
const METADATA_HERE: &[c_long] =
    &[libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];
#[cfg(not(target_arch = "x86_64"))]
const METADATA_HERE: &[c_long] = &[];

/// Fail with `ENOSYS`: programs then fall back to an older call whose arguments a filter can read.
const UNKNOWN: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

// Numbers that are the same on every architecture and that `libc` does not have yet.
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const OPEN_TREE_ATTR: c_long = 467;
const FILE_SETATTR: c_long = 469;

/// Flags that `clone` may not have: new namespaces, and children whose parent would be the server.
const CLONE: [i32; 8] = [
    libc::CLONE_PARENT,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The kind of a socket is in the low bits of its type.
const SOCKET_KIND: u64 = 0xf;

/// The x32 ABI: another numbering of the same calls, which some kernels for x86_64 still accept.
#[cfg(target_arch = "x86_64")]
const X32: c_long = 0x4000_0000;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Whether this kernel filters system calls, and we know the numbers of this architecture.
pub(super) fn is_possible() -> bool {
    let kernel = || std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nSeccomp:"));
    architecture().is_ok() && (std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() || kernel())
}

/// Filters the system calls of this process from now on.
pub(super) fn apply(network: bool, metadata: bool) -> Result<(), NotRun> {
    let refused = refused(network, metadata).map_err(|error| NotRun::permanent(error.to_string()))?;
    for (rules, errno) in [(refused, libc::EPERM), (all(UNKNOWN), libc::ENOSYS)] {
        let program = program(rules, errno).map_err(NotRun::permanent)?;
        apply_filter(&program).map_err(|error| NotRun::from_error("its system calls cannot be filtered", error))?;
    }
    Ok(())
}

fn architecture() -> Result<TargetArch, String> {
    let name = std::env::consts::ARCH;
    TargetArch::try_from(name).map_err(|_| format!("system calls cannot be filtered on {name}"))
}

fn program(rules: Rules, errno: i32) -> Result<BpfProgram, String> {
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture()?);
    let program = filter.and_then(BpfProgram::try_from);
    program.map_err(|error| format!("the filter for its system calls does not compile: {error}"))
}

fn refused(network: bool, metadata: bool) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = all(REFUSED);
    rules.extend(all(REFUSED_HERE));
    add(&mut rules, libc::SYS_clone, clone()?);
    others(&mut rules)?;
    add(&mut rules, libc::SYS_socket, if network { other_sockets()? } else { Vec::new() });
    if !metadata {
        rules.extend(all(METADATA));
        rules.extend(all(METADATA_HERE));
        // Without a path the call changes an open file, which Landlock allowed to open.
        let by_path = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
        add(&mut rules, libc::SYS_utimensat, vec![SeccompRule::new(vec![by_path])?]);
    }
    Ok(rules)
}

/// An empty list of conditions refuses a call with any arguments.
fn all(calls: &[c_long]) -> Rules {
    let mut rules = Rules::new();
    for call in calls {
        add(&mut rules, *call, Vec::new());
    }
    rules
}

fn add(rules: &mut Rules, call: c_long, when: Vec<SeccompRule>) {
    #[cfg(target_arch = "x86_64")]
    rules.insert(call | X32, when.clone());
    rules.insert(call, when);
}

fn clone() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    CLONE
        .iter()
        .map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            let has = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
            SeccompRule::new(vec![has])
        })
        .collect()
}

/// Refuses calls that affect another process than the caller.
fn others(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    let when = |argument, operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
    };
    for call in OF_A_PROCESS {
        add(rules, *call, vec![when(0, SeccompCmpOp::Ne, 0)?]);
    }
    for (call, user) in OF_A_KIND {
        add(rules, *call, vec![when(1, SeccompCmpOp::Ne, 0)?, when(0, SeccompCmpOp::Eq, *user)?]);
    }
    Ok(())
}

/// Matches all sockets but TCP and UDP: raw packets, netlink, Unix sockets of other programs.
fn other_sockets() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let is_not = |family: i32| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(family.unsigned_abs()))
    };
    let mut rules = vec![SeccompRule::new(vec![is_not(AF_INET)?, is_not(AF_INET6)?])?];
    let allowed = [SOCK_STREAM, SOCK_DGRAM].map(|kind| u64::from(kind.unsigned_abs()));
    for kind in (0..=SOCKET_KIND).filter(|kind| !allowed.contains(kind)) {
        let is = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)?;
        rules.push(SeccompRule::new(vec![is])?);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles_and_fits_into_the_kernel() {
        for (network, metadata) in [(false, false), (false, true), (true, false), (true, true)] {
            let length = program(refused(network, metadata).unwrap(), libc::EPERM).unwrap().len();
            assert!(length < 4096, "{network} {metadata}: {length}");
        }
        assert!(!program(all(UNKNOWN), libc::ENOSYS).unwrap().is_empty());
    }

    /// What the kernel does with a call: the error number it is refused with, if it is.
    fn refusal(program: &BpfProgram, call: c_long, arguments: [u64; 6]) -> Option<u32> {
        let native = match std::env::consts::ARCH {
            "x86_64" => 0xc000_003e_u32,
            "aarch64" => 0xc000_00b7,
            _ => 0xc000_00f3,
        };
        let mut words = vec![u32::try_from(call).unwrap(), native, 0, 0];
        let halves = |value: &u64| [u32::try_from(value & 0xffff_ffff).unwrap(), u32::try_from(value >> 32).unwrap()];
        words.extend(arguments.iter().flat_map(halves));
        let (mut at, mut value) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let skip = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            match step.code {
                0x20 => value = words[usize::try_from(step.k).unwrap() / 4],
                0x54 => value &= step.k,
                0x05 => at += usize::try_from(step.k).unwrap(),
                0x15 => at += skip(value == step.k),
                0x25 => at += skip(value > step.k),
                0x35 => at += skip(value >= step.k),
                0x06 if step.k == 0x7fff_0000 => return None,
                0x06 => return Some(step.k & 0xffff),
                other => panic!("the filter has an instruction {other:#x} that this test does not know"),
            }
        }
    }

    #[test]
    fn e26_calls_that_name_a_process_may_name_the_caller_only() {
        let refused = program(refused(false, false).unwrap(), libc::EPERM).unwrap();
        let is_refused = |call, first, second| refusal(&refused, call, [first, second, 0, 0, 0, 0]).is_some();
        let minus_one = u64::MAX;
        for call in OF_A_PROCESS {
            assert!(!is_refused(*call, 0, 7), "{call}: itself");
            // The kernel reads the lower half only.
            assert!(!is_refused(*call, 1 << 32, 7), "{call}: itself, by a larger number");
            assert!(
                is_refused(*call, 1, 0) && is_refused(*call, 4_000_000, 0) && is_refused(*call, minus_one, 0),
                "{call}"
            );
        }
        for (call, user) in OF_A_KIND {
            for kind in (0..4).filter(|kind| kind != user) {
                assert!(!is_refused(*call, kind, 0) && is_refused(*call, kind, 1), "{call} {kind}");
            }
            assert!(is_refused(*call, *user, 0) && is_refused(*call, *user | 1 << 32, 0), "{call}: its user");
        }
        for flag in CLONE {
            let flag = u64::from(flag.unsigned_abs());
            assert!(is_refused(libc::SYS_clone, flag | 17, 0), "{flag:#x}");
        }
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        for flags in [17, thread, libc::CLONE_VM | libc::CLONE_VFORK | 17] {
            assert!(!is_refused(libc::SYS_clone, u64::from(flags.unsigned_abs()), 0), "{flags:#x}");
        }
        let unknown = program(all(UNKNOWN), libc::ENOSYS).unwrap();
        assert_eq!(refusal(&unknown, libc::SYS_clone3, [0; 6]), Some(libc::ENOSYS.unsigned_abs()));
    }
}
