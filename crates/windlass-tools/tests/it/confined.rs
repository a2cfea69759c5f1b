//! What a command cannot do: read and write elsewhere, talk to anybody, take more than its share.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::{Value, json};
use windlass_tools::sandbox::{Kept, Level, Sandbox, support};

use crate::world::{World, call, can_confine, error, probe, value};

#[tokio::test]
async fn e26_the_working_directory_can_be_used_and_nothing_beside_it() {
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
async fn e26_nothing_outside_can_be_changed_in_any_way() {
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
    // The same probe does find ways where there are some.
    std::fs::write(world.work().join("own"), "x").unwrap();
    let worked = value(world.probe(&["spoil", "own"])).await;
    assert!(worked.as_array().unwrap().len() >= 4, "{worked}");
}

#[tokio::test]
async fn e26_more_can_be_given_to_a_command() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut command = world.sh("cat ../secret/key.txt && ! echo x 2>/dev/null > ../secret/key.txt");
    command.sandbox.read.push(world.base().join("secret"));
    assert_eq!(value(command.clone()).await, json!("SECRET"), "to read is not to write");
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
async fn e26_a_command_whose_folder_has_a_kept_file_in_it_is_not_run() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let key = world.base().join("secret/key.txt");
    let launcher = world.launcher.clone().keep([Kept::new("the key", &key)]);
    // Replaced between the time it was looked at and the time it is used.
    std::os::unix::fs::symlink("../secret", world.work().join("turned")).unwrap();
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
        given("work/turned", &[], &[]),
        given("work", &["work/turned"], &[]),
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
async fn e26_a_command_talks_to_nobody_unless_it_may() {
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
    let mut asked = world.probe(&args);
    asked.sandbox.network = true;
    let worked = value(asked).await.to_string();
    for way in ["tcp", "udp", "listen", "child"] {
        assert!(worked.contains(&format!("\"{way}\"")), "{way}: {worked}");
    }
    assert!(!worked.contains("unix") && !worked.contains("abstract"), "the network is not this machine: {worked}");
    let mut free = world.probe(&args);
    free.sandbox = Sandbox::off();
    let worked = value(free).await.to_string();
    assert!(worked.contains("\"unix\"") && worked.contains("\"abstract\""), "the probe can: {worked}");
}

#[tokio::test]
async fn e26_a_command_has_no_power_over_other_processes() {
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
    assert!(value(free).await.to_string().contains("signal"), "the probe can");
}

#[tokio::test]
async fn e26_a_command_goes_before_its_server_where_memory_or_processors_are_short() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut command = world.sh("cat /proc/self/oom_score_adj && nice");
    command.sandbox.read.push("/proc".into());
    command.output = windlass_tools::command::Output::Text;
    let said = value(command).await;
    let numbers: Vec<i32> = said.as_str().unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers[0] >= 500 && numbers[1] >= 10, "{said}");
}

#[tokio::test]
async fn e26_memory_files_and_time_are_bounded() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut small = world.probe(&["eat", &(1_u64 << 30).to_string()]);
    small.sandbox.memory = Some(256 << 20);
    assert_eq!(value(small).await, json!(0), "there is no gigabyte to be had");
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
async fn e26_a_fork_bomb_is_ended_and_nothing_of_it_is_left() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    for kind in ["bomb", "threads"] {
        let mut bomb = world.probe(&[kind, "200"]);
        bomb.sandbox.processes = Some(20);
        let (_, message) = error(bomb).await;
        assert!(message.contains("more than its 20 processes"), "{kind}: {message}");
    }
    assert_eq!(world.records(), 0);
    let few = world.sh("sleep 0.2 & sleep 0.2 & wait; echo fine");
    assert_eq!(value(few).await, json!("fine"));
}

#[tokio::test]
async fn e26_the_environment_is_clean() {
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
    assert!(!std::path::Path::new(seen["TMPDIR"].as_str().unwrap()).exists(), "its folder is gone with it");
}

#[tokio::test]
async fn e26_the_temporary_folder_is_private_and_goes_with_the_command() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut command = world.sh("echo x > $TMPDIR/x && stat -c %a $TMPDIR && pwd && cat $TMPDIR/x");
    command.dir = None;
    let said = value(command).await;
    let lines: Vec<&str> = said.as_str().unwrap().lines().collect();
    assert_eq!((lines[0], lines[2]), ("700", "x"));
    assert!(lines[1].contains("windlass-") && !std::path::Path::new(lines[1]).exists(), "{said}");
    // Another temporary folder is as far away as anything.
    let (_, message) = error(world.sh("ls /tmp")).await;
    assert!(message.contains("Permission denied"), "{message}");
}

#[tokio::test]
async fn e26_without_a_sandbox_nothing_of_this_holds_and_that_is_what_was_asked_for() {
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
    assert!(worked.contains("SECRET"), "the probe of the other tests can steal: {worked} by {}", probe().display());
}
