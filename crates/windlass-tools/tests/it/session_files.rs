//! Commands that work on the files of their session (E15).

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::run::Filter;
use windlass::session::{ArtifactId, FileLimits, Session};
use windlass::store::Durability;
use windlass::tool::Schemas;
use windlass::{Content, Effect, Outcome, Tool, ToolCall, ToolSpec, Windlass};
use windlass_tools::command::Command;
use windlass_tools::process::kill_leftovers;
use windlass_tools::sandbox::Launcher;

use crate::world::{World, can_confine, until};

/// A tool that runs a script in the files of its session. `$OUT` is a folder that both sides see.
fn tool(launcher: &Launcher, out: &Path, script: &str) -> Tool {
    let mut command = Command::new(["/bin/sh", "-c", script], launcher.clone());
    command.session_files = true;
    command.sandbox.write.push(out.to_owned());
    command.env.insert("OUT".to_owned(), out.to_string_lossy().into_owned());
    command.tool(ToolSpec::new("run", "Runs a script"), Schemas::any()).effect(Effect::Idempotent)
}

async fn open(world: &World, script: &str) -> (Windlass, Session) {
    let windlass = Windlass::in_memory().tool(tool(&world.launcher, &world.work(), script)).await.unwrap();
    let session = windlass.session("ada");
    session.open(None, None).await.unwrap();
    (windlass, session)
}

fn run() -> ToolCall {
    ToolCall::new("run", json!({})).session("ada")
}

async fn call(windlass: &Windlass) -> Outcome {
    windlass.runtime().call(run()).await.unwrap()
}

async fn text(session: &Session, path: &str) -> Option<String> {
    session.files().read(path).await.unwrap().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn value(outcome: &Outcome) -> Value {
    outcome.result.as_ref().unwrap_or_else(|error| panic!("{error}")).value.clone()
}

/// What the outcome says about changes that were not made, and the contents it has.
fn unmade(outcome: &Outcome) -> (String, Vec<(String, ArtifactId)>) {
    let content = &outcome.result.as_ref().unwrap_or_else(|error| panic!("{error}")).content;
    let text = content.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n");
    let files = content.iter().filter_map(Content::artifact);
    (text, files.map(|file| (file.name.clone().unwrap(), file.id().unwrap())).collect())
}

#[tokio::test]
async fn e15_a_command_changes_the_files_of_its_session_with_its_outcome() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let script = "cat dir/b; printf two > a; rm gone; mkdir -p new/deep empty; printf n > new/deep/n; touch same; pwd > $OUT/pwd";
    let (windlass, ada) = open(&world, script).await;
    for (path, content) in [("a", "one"), ("gone", "x"), ("same", "s"), ("dir/b", "b")] {
        ada.files().write(path, content).await.unwrap();
    }
    let same = ada.files().stat("same").await.unwrap();
    let outcome = call(&windlass).await;
    assert_eq!((value(&outcome), unmade(&outcome)), (json!("b"), Default::default()));
    assert_eq!(text(&ada, "a").await.as_deref(), Some("two"));
    assert_eq!(text(&ada, "new/deep/n").await.as_deref(), Some("n"));
    assert!(ada.files().stat("gone").await.unwrap().is_none());
    assert_eq!(ada.files().stat("same").await.unwrap(), same, "its content is the same");
    let paths: Vec<String> =
        ada.files().tree("/", None, 99).await.unwrap().iter().map(|file| file.path.to_string()).collect();
    assert_eq!(paths, ["/a", "/dir", "/dir/b", "/new", "/new/deep", "/new/deep/n", "/same"], "regular files only");
    let folder = PathBuf::from(fs::read_to_string(world.work().join("pwd")).unwrap().trim());
    until("the copy is gone", || !folder.exists()).await;
    assert!(folder != world.work());
}

#[tokio::test]
async fn e15_files_that_changed_meanwhile_or_exceed_a_limit_stay_and_are_named() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let script = "printf mine > a; printf mine > free; rm gone; head -c 3000 /dev/zero > large; touch $OUT/ready; \
                  while [ ! -e $OUT/go ]; do sleep 0.01; done";
    let tool = tool(&world.launcher, &world.work(), script);
    let limits = FileLimits { file_bytes: 2_000, session_bytes: 10_000, count: 10 };
    let windlass = Windlass::in_memory().session_files(limits).tool(tool).await.unwrap();
    let ada = windlass.session("ada");
    ada.open(None, None).await.unwrap();
    for path in ["a", "free", "gone"] {
        ada.files().write(path, "base").await.unwrap();
    }
    let calling = tokio::spawn({
        let windlass = windlass.clone();
        async move { call(&windlass).await }
    });
    until("the command runs", || world.work().join("ready").exists()).await;
    for path in ["a", "gone"] {
        ada.files().write(path, "theirs").await.unwrap();
    }
    fs::write(world.work().join("go"), "").unwrap();
    let outcome = calling.await.unwrap();
    for (path, expected) in [("a", Some("theirs")), ("gone", Some("theirs")), ("free", Some("mine")), ("large", None)] {
        assert_eq!(text(&ada, path).await.as_deref(), expected, "{path}");
    }
    let (said, files) = unmade(&outcome);
    let (mine, large) = (ArtifactId::of(b"mine"), ArtifactId::of(&[0; 3_000]));
    assert_eq!(files, [("/a".to_owned(), mine), ("/large".to_owned(), large)]);
    let words = ["/a: the file \"/a\" has changed", "/gone: ", "the command deleted it", "/large: ", "2000 bytes"];
    for word in words.into_iter().chain([&*mine.to_string(), &*large.to_string()]) {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("/free"), "{said}");
    // The contents can be fetched, and are kept with the run.
    while windlass.sweep_artifacts().await.unwrap().more {}
    assert_eq!(ada.files().open_content(large).await.unwrap().whole().await.unwrap(), [0; 3_000]);
    ada.files().write("a", "free again").await.unwrap();
}

#[tokio::test]
async fn e15_nothing_but_regular_files_of_the_folder_is_stored() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let script = "rm base dir/b; ln -s $OUT/secret base; rmdir dir; ln -s $OUT dir; ln -s /etc/passwd link; \
                  printf x > one; ln one two; mkfifo pipe; mkdir workspace; printf x > workspace/w; \
                  printf x > \"$(printf 'bad\\377')\"; printf x > \"$(printf 'a\\nb')\"; printf ok > fine; mkdir .background; \
                  printf x > .background/b; ln -s fine fine2";
    let (windlass, ada) = open(&world, script).await;
    fs::write(world.work().join("secret"), "SECRET").unwrap();
    fs::write(world.work().join("b"), "SECRET").unwrap();
    for path in ["base", "dir/b"] {
        ada.files().write(path, "mine").await.unwrap();
    }
    let outcome = call(&windlass).await;
    let (said, files) = unmade(&outcome);
    let paths: Vec<String> =
        ada.files().tree("/", None, 99).await.unwrap().iter().map(|file| file.path.to_string()).collect();
    assert_eq!(paths, ["/base", "/dir", "/dir/b", "/fine"], "{said}");
    assert_eq!(text(&ada, "base").await.as_deref(), Some("mine"), "a link in its place is not followed");
    assert_eq!(text(&ada, "dir/b").await.as_deref(), Some("mine"));
    assert!(files.is_empty(), "{files:?}");
    for name in
        ["/base", "/dir", "/link", "/one", "/two", "/pipe", "/workspace", "bad", "/a\\nb", "/.background", "/fine2"]
    {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(!said.contains("SECRET") && fs::read_to_string(world.work().join("secret")).unwrap() == "SECRET");
    let kinds = fs::read_dir(world.work()).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_fifo());
    assert_eq!(kinds.count(), 0);
}

#[tokio::test]
async fn e15_a_command_that_fails_or_has_no_session_changes_nothing() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let (windlass, ada) = open(&world, "touch $OUT/ran; printf two > a; exit 1").await;
    ada.files().write("a", "one").await.unwrap();
    let outside = windlass.call_json("run", json!({})).await.unwrap().result.unwrap_err();
    assert!(outside.to_string().contains("make it in a session"), "{outside}");
    assert_eq!(outside.code(), Some("no_session"));
    assert!(!world.work().join("ran").exists(), "it was refused before it started");
    assert!(call(&windlass).await.result.is_err() && world.work().join("ran").exists());
    assert_eq!(text(&ada, "a").await.as_deref(), Some("one"));
}

#[tokio::test]
async fn e15_such_commands_run_one_after_the_other_in_a_session() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let (windlass, ada) = open(&world, "n=$(cat n); sleep 0.05; printf $((n + 1)) > n").await;
    ada.files().write("n", "0").await.unwrap();
    let windlass = Arc::new(windlass);
    let calls = (0..4).map(|_| {
        let windlass = windlass.clone();
        tokio::spawn(async move { unmade(&call(&windlass).await).0 })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), "");
    }
    assert_eq!(text(&ada, "n").await.as_deref(), Some("4"));
}

const DIR: &str = "WINDLASS_TEST_SESSION_FILES";

/// The first attempt never ends.
const GROW: &str = "printf x >> $OUT/ran; printf + >> a; if [ $(wc -c < $OUT/ran) = 1 ]; then sleep 600; fi; cat a";

async fn reopen(base: &Path) -> Windlass {
    let records = base.join("records");
    let launcher = Launcher::new([env!("CARGO_BIN_EXE_windlass-launch")]).records(&records);
    let tool = tool(&launcher, &base.join("work"), GROW);
    let opened = Windlass::open(base.join("app.db")).durability(Durability::Relaxed).tool(tool);
    opened.before_runs(move || kill_leftovers(&records).map(drop)).await.unwrap()
}

/// Does something only in the process that the test below starts.
#[tokio::test]
async fn child() {
    let Some(base) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let windlass = reopen(&base).await;
    windlass.session("ada").open(None, None).await.unwrap();
    windlass.session("ada").files().write("a", "base").await.unwrap();
    call(&windlass).await;
}

#[tokio::test]
async fn e15_an_attempt_after_a_kill_begins_with_the_files_of_the_session() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "session_files::child", "--nocapture"])
        .env(DIR, world.base())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the first attempt runs", || world.work().join("ran").exists()).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let windlass = reopen(world.base()).await;
    let known = windlass.list(Filter::tool("run"), None, 2).await.unwrap();
    let outcome = windlass.runtime().attach(known[0].run).await.unwrap().remove(0);
    assert_eq!(value(&outcome), json!("base+"), "the first attempt left nothing");
    assert_eq!(text(&windlass.session("ada"), "a").await.as_deref(), Some("base+"));
    assert_eq!(fs::read_to_string(world.work().join("ran")).unwrap(), "xx");
    windlass.shutdown().await.unwrap();
}
