//! Whatever path a call names, nothing outside of the working directory is read.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;
use windlass::Windlass;

use crate::world::{World, can_confine, tool};

/// Paths to the secret, or to something else that a command must not read. `BASE` is the folder that contains `work`
/// and `secret`; `PID` is a process outside.
const HOSTILE: &[&str] = &[
    // Relative paths.
    "../secret/key.txt",
    "./../secret/key.txt",
    ".././secret/./key.txt",
    "../work/../secret/key.txt",
    "sub/../../secret/key.txt",
    "../../../../../../../../BASE/secret/key.txt",
    "..//..//..//../BASE/secret/key.txt",
    "../secret/key.txt/",
    "../secret/key.txt/.",
    "../secret/../secret/key.txt",
    "..",
    "../",
    "../secret",
    "../..",
    // Absolute paths.
    "BASE/secret/key.txt",
    "/BASE/secret/key.txt",
    "///BASE/secret/key.txt",
    "/./BASE/./secret/key.txt",
    "/usr/../BASE/secret/key.txt",
    "/usr/lib/../../BASE/secret/key.txt",
    "/dev/../BASE/secret/key.txt",
    "BASE/work/../secret/key.txt",
    // Links that exist already.
    "link",
    "linked/key.txt",
    "chain",
    "relative",
    "linked/../secret/key.txt",
    "up/secret/key.txt",
    "root/BASE/secret/key.txt",
    "loop",
    "dangling",
    "through-proc",
    // Detours through the kernel's file systems.
    "/proc/self/root/BASE/secret/key.txt",
    "/proc/self/cwd/../secret/key.txt",
    "/proc/thread-self/root/BASE/secret/key.txt",
    "/proc/1/root/BASE/secret/key.txt",
    "/proc/PID/root/BASE/secret/key.txt",
    "/proc/PID/cwd",
    "/proc/PID/environ",
    "/proc/PID/mem",
    "/proc/PID/maps",
    "/proc/PID/fd",
    "/proc/PID/fd/0",
    "/proc/PID/fd/3",
    "/proc/PID/exe",
    "/proc/self/environ",
    "/proc/self/mountinfo",
    "/proc/self/task",
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/cmdline",
    "/sys/kernel",
    "/dev/fd/9",
    // Things that are not files.
    "pipe-link",
    "../secret/pipe",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/tty",
    "/dev/console",
    "/dev/vda",
    "/dev/sda",
    "/dev/shm",
    "/dev/pts",
    "/dev",
    // Files of other users.
    "/etc/shadow",
    "/etc/passwd",
    "/etc/hostname",
    "/root",
    "/root/.ssh/id_rsa",
    "/home",
    "/tmp",
    "/var/log",
    "/var/lib",
    "/run",
    "/",
    "/etc",
    // Encodings that some programs decode.
    "%2e%2e/secret/key.txt",
    "..%2fsecret%2fkey.txt",
    "%252e%252e%252fsecret",
    "..\\secret\\key.txt",
    "..\u{2215}secret\u{2215}key.txt",
    "\u{ff0e}\u{ff0e}/secret/key.txt",
    "..\u{0}/secret/key.txt",
    "../secret/key.txt\u{0}.png",
    "own.txt\u{0}../secret/key.txt",
    "../secret/key.txt\n",
    " ../secret/key.txt",
    "file://BASE/secret/key.txt",
    "~/../secret/key.txt",
    "$HOME/../secret/key.txt",
    "$(cat ../secret/key.txt)",
    "`cat ../secret/key.txt`",
    "; cat ../secret/key.txt",
    "| cat ../secret/key.txt",
    "../secret/*",
    "../{secret,x}/key.txt",
    "../secret/k?y.txt",
    "<(cat ../secret/key.txt)",
    "@../secret/key.txt",
    "--file=../secret/key.txt",
    "-",
    "",
    ".",
];

fn prepare(world: &World) {
    let (base, work) = (world.base(), world.work());
    fs::create_dir(work.join("sub")).unwrap();
    fs::write(work.join("own.txt"), "own").unwrap();
    let secret = base.join("secret/key.txt");
    symlink(&secret, work.join("link")).unwrap();
    symlink(base.join("secret"), work.join("linked")).unwrap();
    symlink("link", work.join("chain")).unwrap();
    symlink("../secret/key.txt", work.join("relative")).unwrap();
    symlink("..", work.join("up")).unwrap();
    symlink("/", work.join("root")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    symlink("../secret/not-yet", work.join("dangling")).unwrap();
    symlink(format!("/proc/{}/root{}", std::process::id(), secret.display()), work.join("through-proc")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(base.join("secret/pipe")).status().unwrap();
    assert!(made.success());
    symlink("../secret/pipe", work.join("pipe-link")).unwrap();
}

#[tokio::test]
async fn e26_hostile_paths_lead_nowhere() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    prepare(&world);
    assert!(HOSTILE.len() >= 60, "{}", HOSTILE.len());
    let command = world.probe(&["steal", "--", "{args.path}"]);
    let windlass = Windlass::in_memory().tool(tool(command)).await.unwrap();
    let base = world.base().to_str().unwrap();
    let long = [
        format!("{}secret/key.txt", "../".repeat(1_000)),
        format!("{}/../secret/key.txt", "x".repeat(5_000)),
        "a/".repeat(60_000),
    ];
    let mut refused = 0;
    for path in HOSTILE.iter().map(|path| (*path).to_owned()).chain(long) {
        let path = path.replace("/BASE", base).replace("BASE", base).replace("PID", &std::process::id().to_string());
        let outcome = windlass.call_json("run", json!({"path": path})).await.unwrap();
        match &outcome.result {
            // A command may read its working directory.
            Ok(output) if matches!(path.as_str(), "" | ".") => assert!(!output.value.to_string().contains("SECRET")),
            Ok(output) => assert_eq!(output.value, json!([]), "{path:.200}"),
            Err(error) => {
                assert_eq!(error.kind(), "invalid_arguments", "{path:.200}: {error}");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 3, "words with a NUL never reach the command");
    let own = windlass.call_json("run", json!({"path": "own.txt"})).await.unwrap();
    let ways = own.value().unwrap().to_string();
    for way in ["open", "copy", "hard link", "symbolic link", "move", "path descriptor", "child", "shell"] {
        assert!(ways.contains(&format!("[\"{way}\"")), "its own file can be read by {way}: {ways}");
    }
    assert_eq!(fs::read_to_string(world.base().join("secret/key.txt")).unwrap(), "SECRET", "the file is unchanged");
}
