//! What a sandbox prevents: access to other files, to the network and to other processes, and use beyond the limits.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::{Value, json};
use windlass_tools::sandbox::{Kept, Level, Sandbox, support};

use crate::world::{World, call, can_confine, error, probe, value};

#[tokio::test]
async fn e26_a_command_can_use_its_working_directory_and_no_other_file() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let script = "echo kept > here.txt && cat here.txt && cat ../secret/key.txt; ls ..; cat /etc/hostname";
    let outcome = call(world.sh(script), json!({})).await;
    let error = outcome.result.unwrap_err().to_string();
    assert!(error.contains("Permission denied") && error.contains("`sandbox.read` and"), "{error}");
    assert_eq!(std::fs::read_to_string(world.work().join("here.txt")).unwrap(), "kept\n");
    let seen = value(world.sh("cat here.txt; cat ../secret/key.txt 2>/dev/null; true")).await;
    assert_eq!(seen, json!("kept"));
}

#[tokio::test]
async fn e26_a_command_cannot_change_files_outside_of_its_folder() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let before = std::fs::metadata(world.base().join("secret/key.txt")).unwrap();
    for path in
        [world.base().join("secret/key.txt"), world.base().join("secret"), world.base().to_owned(), "/usr".into()]
    {
        let worked = value(world.probe(&["spoil", path.to_str().unwrap()])).await;
        assert_eq!(worked, json!([]), "{}", path.display());
    }
    let after = std::fs::metadata(world.base().join("secret/key.txt")).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    assert_eq!(before.permissions(), after.permissions());
    assert_eq!(std::fs::read_to_string(world.base().join("secret/key.txt")).unwrap(), "SECRET");
    // The same probe succeeds where it may.
    std::fs::write(world.work().join("own"), "x").unwrap();
    let worked = value(world.probe(&["spoil", "own"])).await;
    assert!(worked.as_array().unwrap().len() >= 4, "{worked}");
}

#[tokio::test]
async fn e26_a_sandbox_can_allow_more_files() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut command = world.sh("cat ../secret/key.txt && ! echo x 2>/dev/null > ../secret/key.txt");
    command.sandbox.read.push(world.base().join("secret"));
    assert_eq!(value(command.clone()).await, json!("SECRET"), "reading does not include writing");
    let mut command = world.sh("echo x > ../secret/new && cat ../secret/new");
    command.sandbox.write.push(world.base().join("secret"));
    assert_eq!(value(command).await, json!("x").as_str().map(Value::from).unwrap());
    let mut command = world.sh("chmod 700 . && echo changed");
    command.sandbox.metadata = true;
    assert_eq!(value(command).await, json!("changed"));
    let mut command = world.sh("true");
    command.sandbox.read.push("/nowhere/at/all".into());
    let (kind, message) = error(command).await;
    assert_eq!(kind, "unavailable");
    assert!(message.contains("/nowhere/at/all"), "{message}");
}

#[tokio::test]
async fn e26_a_command_whose_folder_contains_a_protected_file_is_not_run() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let key = world.base().join("secret/key.txt");
    let launcher = world.launcher.clone().keep([Kept::new("the key", &key)]);
    // A folder that was replaced by a link after the config was checked.
    std::os::unix::fs::symlink("../secret", world.work().join("linked")).unwrap();
    let given = |dir: &str, read: &[&str], write: &[&str]| {
        let mut command = world.sh("echo ran");
        command.launcher = launcher.clone();
        command.dir = Some(world.base().join(dir));
        command.sandbox.read.extend(read.iter().map(|path| world.base().join(path)));
        command.sandbox.write.extend(write.iter().map(|path| world.base().join(path)));
        command
    };
    for command in [
        given("secret", &[], &[]),
        given("", &[], &[]),
        given("work/linked", &[], &[]),
        given("work", &["work/linked"], &[]),
        given("work", &[], &["secret/key.txt"]),
        given("work", &["records"], &[]),
    ] {
        let (kind, message) = error(command).await;
        assert_eq!(kind, "unavailable");
        assert!(message.contains("a folder of its own"), "{message}");
    }
    assert_eq!(value(given("work", &[], &[])).await, json!("ran"));
    let mut off = given("secret", &[], &[]);
    off.sandbox.level = Level::Off;
    assert_eq!(value(off).await, json!("ran"));
}

#[tokio::test]
async fn e26_a_command_has_no_network_unless_allowed() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let socket = world.work().join("outside.sock");
    let _unix = UnixListener::bind(&socket).unwrap();
    let name = format!("windlass-test-{}", std::process::id());
    let _hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let args = ["network", &address, socket.to_str().unwrap(), &name];
    assert_eq!(value(world.probe(&args)).await, json!([]));
    let mut allowed = world.probe(&args);
    allowed.sandbox.network = true;
    let worked = value(allowed).await.to_string();
    for way in ["tcp", "udp", "listen", "child"] {
        assert!(worked.contains(&format!("\"{way}\"")), "{way}: {worked}");
    }
    assert!(!worked.contains("unix") && !worked.contains("abstract"), "Unix sockets stay forbidden: {worked}");
    let mut free = world.probe(&args);
    free.sandbox = Sandbox::off();
    let worked = value(free).await.to_string();
    assert!(
        worked.contains("\"unix\"") && worked.contains("\"abstract\""),
        "the probe works without a sandbox: {worked}"
    );
}

#[tokio::test]
async fn e26_a_command_cannot_affect_other_processes() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let own = std::process::id().to_string();
    let worked = value(world.probe(&["privileges", &own])).await.to_string();
    let scoped = support().landlock >= 6;
    assert_eq!(worked, if scoped { "[]" } else { "[[\"signal\",\"\"]]" });
    let mut free = world.probe(&["privileges", &own]);
    free.sandbox = Sandbox::off();
    assert!(value(free).await.to_string().contains("signal"), "the probe works without a sandbox");
}

#[tokio::test]
async fn e26_a_command_is_killed_before_its_server_and_yields_the_processor_to_it() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut command = world.sh("cat /proc/self/oom_score_adj && nice");
    command.sandbox.read.push("/proc".into());
    command.output = windlass_tools::command::Output::Text;
    let printed = value(command).await;
    let numbers: Vec<i32> = printed.as_str().unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers[0] >= 500 && numbers[1] >= 10, "{printed}");
}

#[tokio::test]
async fn e26_memory_files_and_time_are_limited() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut small = world.probe(&["eat", &(1_u64 << 30).to_string()]);
    small.sandbox.memory = Some(256 << 20);
    assert_eq!(value(small).await, json!(0), "a gigabyte cannot be allocated");
    let mut enough = world.probe(&["eat", &(16_u64 << 20).to_string()]);
    enough.sandbox.memory = Some(256 << 20);
    assert_eq!(value(enough).await, json!(16 << 20));
    let mut long = world.sh("head -c 2000000 /dev/zero > big");
    long.sandbox.file_size = Some(1 << 20);
    let (_, message) = error(long).await;
    assert!(message.contains("ended with") || message.contains("SIGXFSZ"), "{message}");
    assert!(std::fs::metadata(world.work().join("big")).unwrap().len() <= 1 << 20);
    let mut busy = world.sh("while :; do :; done");
    busy.sandbox.cpu_seconds = Some(1);
    let (kind, message) = error(busy).await;
    assert!(kind == "failed" && (message.contains("SIGKILL") || message.contains("SIGXCPU")), "{message}");
}

#[tokio::test]
async fn e26_a_fork_bomb_is_killed_and_leaves_nothing() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    for kind in ["bomb", "threads"] {
        let mut bomb = world.probe(&[kind, "200"]);
        bomb.sandbox.processes = Some(20);
        let (_, message) = error(bomb).await;
        assert!(message.contains("more than 20 processes"), "{kind}: {message}");
    }
    assert_eq!(world.records(), 0);
    let few = world.sh("sleep 0.2 & sleep 0.2 & wait; echo fine");
    assert_eq!(value(few).await, json!("fine"));
}

#[tokio::test]
async fn e26_the_environment_has_only_documented_variables() {
    let world = World::new();
    let mut command = world.probe(&["env"]);
    command.sandbox.level = if support().is_whole() { Level::Required } else { Level::BestEffort };
    command.env = [("OWN".to_owned(), "value".to_owned()), ("LANG".to_owned(), "de_DE.UTF-8".to_owned())].into();
    let outcome = call(command, json!({})).await;
    let seen = outcome.value().unwrap().as_object().unwrap().clone();
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    let expected = [
        "HOME",
        "LANG",
        "OWN",
        "PATH",
        "TMPDIR",
        "WINDLASS_ATTEMPT",
        "WINDLASS_IDEMPOTENCY_KEY",
        "WINDLASS_PATH",
        "WINDLASS_RUN",
    ];
    assert_eq!(names, expected);
    assert_eq!(seen["HOME"], json!(world.work()));
    assert_eq!(seen["LANG"], "de_DE.UTF-8");
    assert_eq!(seen["WINDLASS_RUN"], json!(outcome.run.to_string()));
    assert_eq!(seen["WINDLASS_ATTEMPT"], "1");
    assert!(seen["WINDLASS_IDEMPOTENCY_KEY"].as_str().unwrap().starts_with(&outcome.run.to_string()));
    assert!(!std::path::Path::new(seen["TMPDIR"].as_str().unwrap()).exists(), "its folder is removed after it");
}

#[tokio::test]
async fn e26_the_temporary_folder_is_private_and_removed_after_the_command() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut command = world.sh("echo x > $TMPDIR/x && stat -c %a $TMPDIR && pwd && cat $TMPDIR/x");
    command.dir = None;
    let printed = value(command).await;
    let lines: Vec<&str> = printed.as_str().unwrap().lines().collect();
    assert_eq!((lines[0], lines[2]), ("700", "x"));
    assert!(lines[1].contains("windlass-") && !std::path::Path::new(lines[1]).exists(), "{printed}");
    // Other temporary folders are not accessible.
    let (_, message) = error(world.sh("ls /tmp")).await;
    assert!(message.contains("Permission denied"), "{message}");
}

#[tokio::test]
async fn e26_without_a_sandbox_nothing_is_restricted() {
    let world = World::new();
    let mut command = world.sh("cat ../secret/key.txt");
    command.sandbox = Sandbox::off();
    assert_eq!(value(command).await, json!("SECRET"));
    let worked = {
        let path = world.base().join("secret/key.txt");
        let mut command = world.probe(&["steal", "--", path.to_str().unwrap()]);
        command.sandbox = Sandbox::off();
        value(command).await.to_string()
    };
    assert!(worked.contains("SECRET"), "the probe of the other tests works: {worked} by {}", probe().display());
}

#[tokio::test]
async fn e26_a_call_that_fails_because_of_a_hidden_file_says_how_to_show_it() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let script = world.base().join("tool.sh");
    std::fs::write(&script, "echo fine").unwrap();
    let mut command = world.command(&["/bin/sh", "tool.sh"]);
    (command.dir, command.base) = (None, Some(world.base().to_owned()));
    let (_, message) = error(command.clone()).await;
    let remedy = format!("write its absolute path {} and add `sandbox.read = [\"tool.sh\"]`", script.display());
    assert!(message.contains("runs in an empty temporary folder") && message.contains(&remedy), "{message}");
    command.argv[1] = script.display().to_string();
    let (_, message) = error(command.clone()).await;
    assert!(message.contains("the sandbox does not include"), "{message}");
    command.sandbox.read.push(script);
    assert_eq!(value(command).await, json!("fine"), "the remedy works");
}

#[tokio::test]
async fn e26_a_call_whose_interpreter_is_outside_of_the_sandbox_names_its_folder() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    // An installation in a home folder, found by a link on the search path.
    let version = world.base().join("versions/3.12");
    for folder in ["bin", "lib"] {
        std::fs::create_dir_all(version.join(folder)).unwrap();
    }
    std::fs::copy("/bin/echo", version.join("bin/python3.12")).unwrap();
    let bin = world.base().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink("../versions/3.12/bin/python3.12", bin.join("python3")).unwrap();
    let mut command = world.command(&["python3", "fine"]);
    command.env = [("PATH".to_owned(), bin.display().to_string())].into();
    let (kind, message) = error(command.clone()).await;
    let remedy = format!("add `sandbox.read = [\"{}\"]`", version.display());
    assert!(kind == "unavailable" && message.contains("`python3` needs") && message.contains(&remedy), "{message}");
    command.sandbox.read.push(version);
    assert_eq!(value(command).await, json!("fine"), "the remedy works");
}
