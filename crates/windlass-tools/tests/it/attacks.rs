//! A process survives many hostile commands at once: its own state is unchanged, and nothing of theirs is left. One
//! round in every test run; `cargo xtask soak` repeats it for minutes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use windlass::tool::Schemas;
use windlass::{Effect, Tool, ToolSpec, Windlass};
use windlass_tools::command::Command;
use windlass_tools::sandbox::{Kept, support};

use crate::world::{World, alone, can_confine, memory, until};

/// Lowers the limits, priority and scheduling of the process with this id, and clones children whose parent it is.
const LOWER: &str = r#"
my $pid = shift;
syscall($_->[0], @{$_}[1..$#$_]) for (
    [PRLIMIT, $pid + 0, 7, pack("QQ", 3, 3), 0], [PRLIMIT, $pid + 0, 1, pack("QQ", 0, 0), 0],
    [PRLIMIT, $pid + 0, 0, pack("QQ", 1, 1), 0], [SETPRIORITY, 0, $pid + 0, 19], [SETPRIORITY, 2, 0, 19],
    [SETAFFINITY, $pid + 0, 8, pack("Q", 1)], [SETSCHEDULER, $pid + 0, 5, pack("L", 0)],
    [SETATTR, $pid + 0, pack("LLQlLQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 0], [IOPRIO, 1, $pid + 0, 24576], [IOPRIO, 3, 0, 24576],
);
for (1..50) { my $child = syscall(CLONE, 0x8000 | 17, 0, 0, 0, 0); exit 0 if $child == 0; }
print "tried";
"#;

/// Ends or stops the process with this id by every call that sends signals. All processes get a harmless signal.
const SIGNAL: &str = r#"
use Fcntl;
my ($pid, $info) = (shift, "\0" x 128);
syscall($_->[0], @{$_}[1..$#$_]) for map { my $signal = $_; (
    [KILL, $pid + 0, $signal], [KILL, getppid(), $signal], [TKILL, $pid + 0, $signal], [TGKILL, $pid + 0, $pid + 0, $signal],
    [QUEUE, $pid + 0, $signal, $info], [TGQUEUE, $pid + 0, $pid + 0, $signal, $info],
) } (9, 15, 19);
my $opened = syscall(PIDFD, $pid + 0, 0);
syscall(SENDTO, $opened, 9, 0, 0) if $opened >= 0;
pipe(my $read, my $write);
fcntl($read, F_SETOWN, $pid + 0);
fcntl($read, 10, 9);
fcntl($read, F_SETFL, O_NONBLOCK | 020000);
syswrite($write, "x");
kill(18, -1);
print "tried";
"#;

/// Replaces the names of system calls in a script by their numbers.
fn numbered(script: &str) -> String {
    [
        ("PRLIMIT", libc::SYS_prlimit64),
        ("SETPRIORITY", libc::SYS_setpriority),
        ("SETAFFINITY", libc::SYS_sched_setaffinity),
        ("SETSCHEDULER", libc::SYS_sched_setscheduler),
        ("SETATTR", libc::SYS_sched_setattr),
        ("IOPRIO", libc::SYS_ioprio_set),
        ("CLONE", libc::SYS_clone),
        ("[TKILL", libc::SYS_tkill),
        ("[TGKILL", libc::SYS_tgkill),
        ("[KILL", libc::SYS_kill),
        ("[QUEUE", libc::SYS_rt_sigqueueinfo),
        ("[TGQUEUE", libc::SYS_rt_tgsigqueueinfo),
        ("PIDFD", libc::SYS_pidfd_open),
        ("SENDTO", libc::SYS_pidfd_send_signal),
    ]
    .iter()
    .fold(script.to_owned(), |script, (name, number)| {
        let bracket = if name.starts_with('[') { "[" } else { "" };
        script.replace(name, &format!("{bracket}{number}"))
    })
}

fn attack(name: &str, command: Command) -> Tool {
    let spec = ToolSpec::new(name, "Does harm");
    command.tool(spec, Schemas::any()).effect(Effect::Readonly).timeout(Duration::from_secs(20))
}

fn attacks(world: &World) -> Vec<Tool> {
    let own = std::process::id().to_string();
    let launcher = world.launcher.clone().keep([Kept::new("the key", world.base().join("secret/key.txt"))]);
    let of = |mut command: Command| {
        command.launcher = launcher.clone();
        command
    };
    let mut linked = world.sh("cat key.txt; echo spoilt > key.txt");
    linked.dir = Some(world.work().join("linked"));
    let perl = |script: &str| world.command(&["/usr/bin/perl", "-e", &numbered(script), "--", &own]);
    let mut all = vec![
        attack("limits", of(perl(LOWER))),
        attack("deep", of(world.probe(&["deep", "16000"]))),
        attack("wide", of(world.probe(&["wide", "2000"]))),
        attack("shut", of(world.probe(&["shut"]))),
        attack("bomb", of(world.sh("f() { f & f & wait; }; f"))),
        attack("threads", of(world.probe(&["threads", "200"]))),
        attack("linked", of(linked)),
        attack("orphans", of(world.sh("for _ in 1 2 3 4 5; do (sleep 600 &); done; cat ../secret/key.txt"))),
    ];
    if support().landlock >= 6 {
        all.push(attack("signals", of(perl(SIGNAL))));
    } else {
        println!("this kernel does not restrict signals to other processes; they are not sent");
    }
    all
}

/// The state that an attack would change.
fn state() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let status = read("status");
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap();
    format!("{}{:?}{:?}{allowed}", read("limits"), &fields[15..=16], &fields[37..=38])
}

/// Processes of commands whose parent is now this process.
fn adopted() -> usize {
    let own = std::process::id().to_string();
    let is_ours = |number: &String| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        parent == Some(&*own) && ["(perl)", "(sh)", "(sleep)", "(probe)"].iter().any(|name| stat.contains(name))
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(is_ours)
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn e26_a_process_outlives_hostile_commands() {
    if !alone("attacks::e26_a_process_outlives_hostile_commands", "TMPDIR", memory()) {
        return;
    }
    let world = World::new();
    if !can_confine(&world).await || !Path::new("/usr/bin/perl").exists() {
        return;
    }
    std::os::unix::fs::symlink("../secret", world.work().join("linked")).unwrap();
    let minutes: u64 = std::env::var("WINDLASS_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let until_when = Instant::now() + Duration::from_secs(60 * minutes);
    let attacks = attacks(&world);
    let names: Vec<String> = attacks.iter().map(|tool| tool.spec().name.to_string()).collect();
    let echo = attack("echo", world.sh("cat"));
    let mut windlass = Windlass::in_memory().tool(echo);
    for tool in attacks {
        windlass = windlass.tool(tool);
    }
    let windlass = windlass.await.unwrap();
    let before = state();
    for round in 1.. {
        let outcomes = join_all(names.iter().map(|name| windlass.call_json(name, json!({})))).await;
        for (name, outcome) in names.iter().zip(outcomes) {
            let outcome = outcome.unwrap();
            let failed = outcome.result.as_ref().err().map(ToString::to_string);
            match &**name {
                "bomb" | "threads" => assert!(failed.unwrap().contains("more than 64"), "{round}: {name}"),
                "linked" => assert!(failed.unwrap().contains("a folder of its own"), "{round}: {name}"),
                "orphans" => assert!(failed.unwrap().contains("Permission denied"), "{round}: {name}"),
                _ => assert_eq!(failed, None, "{round}: {name}"),
            }
        }
        let echoed = windlass.call_json("echo", json!({"still": "here"})).await.unwrap();
        assert_eq!(echoed.value(), Some(&json!({"still": "here"})), "{round}");
        assert_eq!(state(), before, "{round}");
        assert_eq!(fs::read_to_string(world.base().join("secret/key.txt")).unwrap(), "SECRET", "{round}");
        until("all processes are gone", || world.records() == 0 && adopted() == 0).await;
        for (folder, _) in world.folders() {
            assert_eq!(fs::read_dir(folder).map_or(0, Iterator::count), 0, "{round}: nothing is left on the disk");
        }
        if Instant::now() >= until_when {
            println!("{round} rounds");
            return;
        }
    }
}
