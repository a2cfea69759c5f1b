//! Every system call by which a command could affect other processes is refused.

use std::process::{Child, Command, Stdio};

use serde_json::json;
use windlass_tools::sandbox::{Sandbox, support};

use crate::world::{World, can_confine, until, value};

/// Makes each call that is given as `NAME:NUMBER:ARGUMENT…`, where `xHEX` is a buffer, and prints the names of those
/// that were not refused. Rust cannot make a call by its number without unsafe code.
const CALLS: &str = r#"
use POSIX ();
for (@ARGV) {
    my ($name, $number, @words) = split /:/;
    my @arguments = map { /^x(.*)/ ? pack("H*", $1) : $_ + 0 } @words;
    $! = 0;
    my $answer = syscall($number + 0, @arguments);
    POSIX::_exit(0) if $name =~ /^clone/ && $answer == 0;
    print "$name\n" unless $answer == -1 && ($!{EPERM} || $!{ENOSYS});
}
"#;

/// A process of the same user outside of the sandbox, as the server is to a command.
struct Outsider(Child);

impl Outsider {
    fn new() -> Self {
        Self(Command::new("/bin/sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> i64 {
        i64::from(self.0.id())
    }

    /// Its limits and scheduling.
    fn state(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).unwrap();
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let status = read("status");
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned();
        format!("{}{:?}{:?}{allowed}", read("limits"), &fields[15..=16], &fields[37..=38])
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn calls(pid: i64) -> Vec<(&'static str, i64, String)> {
    let limit = format!("x{}", "03000000000000000300000000000000");
    let (one, zeros) = ("x0100000000000000", format!("x{}", "00".repeat(128)));
    let attributes = format!("x30000000{}", "00".repeat(44));
    let to = |rest: &str| format!("{pid}:{rest}");
    vec![
        ("prlimit64 files", libc::SYS_prlimit64, to(&format!("7:{limit}:0"))),
        ("prlimit64 time", libc::SYS_prlimit64, to("0:x00000000000000010000000000000001:0")),
        ("prlimit64 file size", libc::SYS_prlimit64, to(&format!("1:{limit}:0"))),
        ("prlimit64 to look", libc::SYS_prlimit64, to(&format!("7:0:{zeros}"))),
        ("setpriority", libc::SYS_setpriority, format!("0:{pid}:7")),
        ("setpriority of a group", libc::SYS_setpriority, format!("1:{pid}:7")),
        ("setpriority of the user", libc::SYS_setpriority, "2:0:0".to_owned()),
        ("sched_setaffinity", libc::SYS_sched_setaffinity, to(&format!("8:{one}"))),
        ("sched_setscheduler", libc::SYS_sched_setscheduler, to("3:x00000000")),
        ("sched_setparam", libc::SYS_sched_setparam, to("x00000000")),
        ("sched_setattr", libc::SYS_sched_setattr, to(&format!("{attributes}:0"))),
        ("ioprio_set", libc::SYS_ioprio_set, format!("1:{pid}:24576")),
        ("ioprio_set of the user", libc::SYS_ioprio_set, "3:0:24576".to_owned()),
        ("ptrace", libc::SYS_ptrace, format!("16902:{pid}:0:0")),
        ("process_vm_readv", libc::SYS_process_vm_readv, to("0:0:0:0:0")),
        ("process_vm_writev", libc::SYS_process_vm_writev, to("0:0:0:0:0")),
        ("process_madvise", libc::SYS_process_madvise, "-1:0:0:0:0".to_owned()),
        ("process_mrelease", libc::SYS_process_mrelease, "-1:0".to_owned()),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, "-1:0:0".to_owned()),
        ("kcmp", libc::SYS_kcmp, format!("{pid}:{pid}:0:0:0")),
        ("migrate_pages", libc::SYS_migrate_pages, to(&format!("8:{one}:{one}"))),
        ("move_pages", libc::SYS_move_pages, to("0:0:0:0:0")),
        ("perf_event_open", libc::SYS_perf_event_open, format!("{zeros}:{pid}:-1:-1:0")),
        ("setpgid", libc::SYS_setpgid, format!("0:{pid}")),
        ("setsid", libc::SYS_setsid, String::new()),
        ("shmget", libc::SYS_shmget, "77:4096:896".to_owned()),
        ("shmctl", libc::SYS_shmctl, format!("0:2:{zeros}")),
        ("msgget", libc::SYS_msgget, "77:896".to_owned()),
        ("msgctl", libc::SYS_msgctl, format!("0:2:{zeros}")),
        ("semget", libc::SYS_semget, "77:1:896".to_owned()),
        ("semctl", libc::SYS_semctl, "0:0:12:0".to_owned()),
        ("mq_open", libc::SYS_mq_open, "x7700:0:0:0".to_owned()),
        ("mq_unlink", libc::SYS_mq_unlink, "x7700".to_owned()),
        ("add_key", libc::SYS_add_key, "x7573657200:x7700:x77:1:-3".to_owned()),
        ("keyctl", libc::SYS_keyctl, "0:-3:0:0:0".to_owned()),
        ("userfaultfd", libc::SYS_userfaultfd, "1".to_owned()),
        ("bpf", libc::SYS_bpf, format!("0:{zeros}:48")),
        ("io_uring_setup", libc::SYS_io_uring_setup, format!("1:{zeros}")),
        ("unshare", libc::SYS_unshare, format!("{}", libc::CLONE_NEWUSER)),
        ("setns", libc::SYS_setns, "-1:0".to_owned()),
        ("name_to_handle_at", libc::SYS_name_to_handle_at, format!("-100:x2f00:{zeros}:{zeros}:0")),
        ("open_tree", libc::SYS_open_tree, "-100:x2f00:0".to_owned()),
        ("open_tree_attr", 467, "-100:x2f00:0:0:0".to_owned()),
        ("fsopen", libc::SYS_fsopen, "x746d70667300:0".to_owned()),
        ("quotactl_fd", libc::SYS_quotactl_fd, "-1:0:0:0".to_owned()),
        ("clone beside the caller", libc::SYS_clone, format!("{}:0:0:0:0", libc::CLONE_PARENT | 17)),
        ("clone into a namespace", libc::SYS_clone, format!("{}:0:0:0:0", libc::CLONE_NEWUSER | 17)),
        ("clone3", libc::SYS_clone3, format!("{zeros}:88")),
    ]
}

/// Calls that only Landlock restricts, from Linux 6.12 on.
fn signals(pid: i64) -> Vec<(&'static str, i64, String)> {
    let info = format!("x{}", "00".repeat(128));
    vec![
        ("kill", libc::SYS_kill, format!("{pid}:0")),
        ("tkill", libc::SYS_tkill, format!("{pid}:0")),
        ("tgkill", libc::SYS_tgkill, format!("{pid}:{pid}:0")),
        ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, format!("{pid}:0:{info}")),
        ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, format!("{pid}:{pid}:0:{info}")),
    ]
}

async fn permitted(world: &World, calls: &[(&str, i64, String)], sandbox: Sandbox) -> Vec<String> {
    let words: Vec<String> = calls.iter().map(|(name, number, rest)| format!("{name}:{number}:{rest}")).collect();
    let argv: Vec<&str> = ["/usr/bin/perl", "-e", CALLS, "--"].into_iter().chain(words.iter().map(|w| &**w)).collect();
    let mut command = world.command(&argv);
    command.sandbox = sandbox;
    command.output = windlass_tools::command::Output::Text;
    value(command).await.as_str().unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn e26_no_system_call_of_a_command_affects_another_process() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    if !std::path::Path::new("/usr/bin/perl").exists() {
        println!("perl is not installed, so calls cannot be made by number; the filter's own tests cover them");
        return;
    }
    let outsider = Outsider::new();
    let before = outsider.state();
    let mut tried = calls(outsider.pid());
    if support().landlock >= 6 {
        tried.extend(signals(outsider.pid()));
    }
    let none: [&str; 0] = [];
    assert_eq!(permitted(&world, &tried, Sandbox::default()).await, none);
    assert_eq!(outsider.state(), before);
    let free = permitted(&world, &[tried[0].clone(), tried[4].clone()], Sandbox::off()).await;
    assert_eq!(free, ["prlimit64 files", "setpriority"], "without a sandbox they are permitted");
    assert_ne!(outsider.state(), before);
    // A command may change its own limits and scheduling.
    let (limit, mask) = ("x40000000000000004000000000000000", "xffffffffffffffff");
    let own = [
        ("prlimit64", libc::SYS_prlimit64, format!("0:7:{limit}:0")),
        ("setpriority", libc::SYS_setpriority, "0:0:15".to_owned()),
        ("sched_setaffinity", libc::SYS_sched_setaffinity, format!("0:8:{mask}")),
        ("sched_setscheduler", libc::SYS_sched_setscheduler, "0:3:x00000000".to_owned()),
        ("ioprio_set", libc::SYS_ioprio_set, "1:0:24576".to_owned()),
    ];
    let names: Vec<&str> = own.iter().map(|(name, ..)| *name).collect();
    assert_eq!(permitted(&world, &own, Sandbox::default()).await, names);
    let usual = world.sh("nice -n 5 ionice -c 3 sh -c 'ulimit -n 64 && echo fine'");
    assert_eq!(value(usual).await, json!("fine"));
}

#[tokio::test]
async fn e26_processes_adopted_by_the_server_do_not_stay_zombies() {
    let world = World::new();
    if !std::path::Path::new("/usr/bin/perl").exists() {
        return;
    }
    let own = std::process::id().to_string();
    let zombies = || {
        let numbers =
            std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let stat = |number: &String| std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let is_ours = |number: &String| {
            let stat = stat(number);
            let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
            stat.contains("(perl)") && fields.next() == Some("Z") && fields.next() == Some(&*own)
        };
        numbers.filter(is_ours).count()
    };
    let many: Vec<_> = (0..20).map(|_| calls(1).into_iter().find(|call| call.0.contains("beside")).unwrap()).collect();
    assert_eq!(permitted(&world, &many, Sandbox::off()).await.len(), 20, "without a sandbox they are permitted");
    until("none is left", || zombies() == 0).await;
}
