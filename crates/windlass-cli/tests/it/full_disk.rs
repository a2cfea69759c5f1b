//! A server on a full disk: its responses, the length of its log, and its recovery once there is space again.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::Client;
use crate::world::{PATIENCE, Server, World, has};

const CONFIG: &str = r#"
[tool.note]
description = "Takes a note, once."
command = ["cat"]
input = { text = "string" }
sandbox = { level = "off" }
"#;

/// The number of concurrent clients.
const CLIENTS: u64 = 8;
/// How long the disk is full while they send requests.
const FULL_FOR: Duration = Duration::from_secs(3);
/// The most lines that may be logged in that time: the beginning, the kinds of errors, the affected runs, the end.
const MAX_LINES: usize = 25;

/// Whether this user may mount a small disk in a private mount namespace.
fn may_mount() -> bool {
    let mounted =
        Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]).output();
    let may = mounted.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: this user may not mount a small file system to fill");
    }
    may
}

/// The path of the server's disk outside of its mount namespace.
fn disk(world: &World, server: &Server) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", server.child.id(), world.path("disk").display()))
}

/// A server with its file on a small disk, and with its log in a file.
fn serve(world: &World) -> Server {
    world.write("windlass.toml", CONFIG);
    serve_with(world, "mount -t tmpfs -o size=8m none disk", "disk/app.db")
}

/// A server with a disk that this script mounts.
fn serve_with(world: &World, mount: &str, file: &str) -> Server {
    std::fs::create_dir(world.path("disk")).unwrap();
    let script = format!("{mount} && exec \"$0\" \"$@\" 2> server.log");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_windlass")]);
    command.args(["--json", "--file", file, "serve", "--listen", "127.0.0.1:0"]);
    command.current_dir(world.path("")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["WINDLASS_SERVER", "WINDLASS_TOKEN", "WINDLASS_LOG"] {
        command.env_remove(name);
    }
    Server::start(command)
}

fn fill(filler: &Path) {
    let mut file = std::fs::File::create(filler).unwrap();
    for size in [64 << 10, 4_096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

fn note(key: &str) -> String {
    json!({"tool": "note", "args": {"text": key}, "wait_ms": 20_000}).to_string()
}

/// Makes calls until the given time, and repeats each until it is accepted. Returns their number.
async fn make_calls(url: String, number: u64, until: Instant) -> u64 {
    let mut client = Client::new(&url);
    for n in 0.. {
        if Instant::now() >= until {
            return n;
        }
        let key = format!("p{number}.{n}");
        let answer = client.insist("POST", "/v1/calls", Some(&key), &note(&key)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    0
}

async fn get(url: &str, path: &str) -> (u16, Value) {
    let answer = Client::new(url).ask("GET", path, None, "").await.unwrap();
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w08_a_server_on_a_full_disk_says_so_and_goes_on_when_there_is_room() {
    if !may_mount() {
        return;
    }
    let world = World::empty();
    let server = serve(&world);
    let (url, filler) = (server.url.clone(), disk(&world, &server).join("filler"));
    let log = || world.read("server.log").lines().count();
    let mut client = Client::new(&url);
    for n in 0..6 {
        let answer = client.insist("POST", "/v1/calls", Some(&format!("before.{n}")), &note("before")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let before = log();
    fill(&filler);
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| tokio::spawn(make_calls(url.clone(), number, Instant::now() + FULL_FOR))).collect();
    let began = Instant::now();
    while get(&url, "/v1/ready").await.0 == 200 {
        assert!(began.elapsed() < PATIENCE, "the full disk is not noticed");
    }
    let refused = client.ask("POST", "/v1/calls", Some("refused"), &note("refused")).await.unwrap();
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body["detail"].as_str().unwrap().contains("again later"), "{refused:?}");
    // The command line shows the cause, which the problem itself does not have.
    let args = ["--server", &url, "call", "note", "--args", r#"{"text": "refused"}"#];
    let text = tokio::task::block_in_place(|| world.fails(5, &args));
    has(&text, &["the store cannot be used", "app.db takes no commits: its disk is full; free some space"]);
    let (status, ready) = get(&url, "/v1/ready").await;
    assert_eq!(status, 503);
    has(ready["why"].as_str().unwrap(), &["app.db takes no commits: its disk is full; free some space"]);
    has(&get(&url, "/v1/health").await.1.to_string(), &["its disk is full; free some space"]);
    while began.elapsed() < FULL_FOR {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let lines = log() - before;
    assert!(lines <= MAX_LINES, "{lines} lines in {:?}:\n{}", began.elapsed(), world.read("server.log"));
    std::fs::remove_file(&filler).unwrap();
    let freed = Instant::now();
    while get(&url, "/v1/ready").await.0 != 200 {
        assert!(freed.elapsed() < Duration::from_secs(20), "{:?}", get(&url, "/v1/health").await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("ready {:?} after there was space; {lines} lines of log in {FULL_FOR:?}", freed.elapsed());
    let answer = client.insist("POST", "/v1/calls", Some("refused"), &note("refused")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
    assert_eq!(get(&url, "/v1/inbox").await.0, 200);
    has(&world.read("server.log"), &["its disk is full", "open again"]);
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w01_e02_a_command_that_could_not_start_on_a_full_disk_runs_once_later() {
    if !may_mount() {
        return;
    }
    let world = World::empty();
    let ledger = "[tool.charge]\ndescription = \"Charges, once.\"\ncommand = [\"sh\", \"-c\", \"echo charged >> ledger; cat\"]\n\
                  dir = \"work\"\ninput = { cents = \"integer\" }\nsandbox = { level = \"best_effort\" }\n";
    world.write("windlass.toml", ledger);
    std::fs::create_dir(world.path("work")).unwrap();
    // Temporary folders are on the full disk; the database is not.
    let mount = "mount -t tmpfs -o nr_inodes=32 none disk && export TMPDIR=$PWD/disk";
    let server = serve_with(&world, mount, "app.db");
    let (url, disk) = (server.url.clone(), disk(&world, &server));
    let fillers: Vec<PathBuf> = (0..).map(|number| disk.join(format!("filler-{number}"))).take(64).collect();
    let full = fillers.iter().find_map(|filler| std::fs::File::create_new(filler).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let call = |wait: u64| json!({"tool": "charge", "args": {"cents": 7}, "wait_ms": wait}).to_string();
    let mut client = Client::new(&url);
    let answer = client.insist("POST", "/v1/calls", Some("k"), &call(1)).await;
    assert_eq!(answer.status, 202, "it is delayed, not refused: {answer:?}");
    let run = answer.body["run"].as_str().unwrap().to_owned();
    let began = Instant::now();
    while !get(&url, &format!("/v1/runs/{run}/journal")).await.1.to_string().contains("nothing was done") {
        assert!(began.elapsed() < PATIENCE, "{:?}", get(&url, &format!("/v1/runs/{run}/journal")).await);
        tokio::task::yield_now().await;
    }
    has(&get(&url, &format!("/v1/runs/{run}/journal")).await.1.to_string(), &["No space left on device"]);
    assert!(!world.path("work/ledger").exists());
    for filler in fillers.iter().filter(|filler| filler.exists()) {
        std::fs::remove_file(filler).unwrap();
    }
    let answer = client.insist("POST", "/v1/calls", Some("k"), &call(20_000)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    has(&answer.body.to_string(), &["cents"]);
    assert_eq!(world.read("work/ledger"), "charged\n");
    assert_eq!(server.stop(), 0);
}
