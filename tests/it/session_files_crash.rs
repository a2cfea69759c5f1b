//! A body that reads and writes session files, through every crash of the simulator and real kills; and a large file that
//! is never in memory as a whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::session::{ArtifactId, FileExpectation, Grep};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::{CrashMatrix, Watched};
use windlass::{Ctx, Tool, ToolCall, ToolResult, Windlass};

use crate::crash::on_sqlite;
use crate::crash_parks::{HOUR, check_parked};
use crate::kill::{DIR, every_kill_ends_the_same, report};

fn text(bytes: Option<Vec<u8>>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes, reads, replaces, is refused, and deletes. With a pause, it is suspended in between.
async fn edit(ctx: &mut Ctx, pause: bool) -> ToolResult<Value> {
    let first = ctx.session().files().write_if("a/b.txt", FileExpectation::Missing, "one").await?;
    let read = ctx.session().files().read("a/b.txt").await?;
    if pause {
        ctx.sleep(HOUR).await?;
    }
    let base = FileExpectation::Content(ArtifactId::of(b"one"));
    let second = ctx.session().files().write_if("a/b.txt", base, "two\nlines").await?;
    let stale = ctx.session().files().write_if("a/b.txt", base, "three").await.unwrap_err();
    let found = ctx.session().files().grep(Grep::new("lines")).await?;
    let made = ctx.session().files().create_directory("d").await?;
    let full = ctx.session().files().delete("a").await.unwrap_err();
    let gone = (ctx.session().files().delete_recursive("a").await?, ctx.session().files().delete("a").await?);
    let left = ctx.session().files().list("/", None, 10).await?;
    ctx.session().close("over").await?;
    let closed = ctx.session().files().write("late", "x").await.unwrap_err();
    let left: Vec<&str> = left.iter().map(|file| file.path.as_str()).collect();
    Ok(json!([
        first.size,
        text(read),
        second.size,
        [stale.code(), full.code(), closed.code()],
        found.matches[0].line,
        made,
        gone,
        left
    ]))
}

fn expected() -> Value {
    let refused = ["file_stale", "directory_not_empty", "session_closed"];
    json!([3, "one", 9, refused, 2, true, [true, false], ["/d"]])
}

fn tools(pause: bool) -> Vec<Tool> {
    let edits = move |mut ctx: Ctx, _: Value| async move { edit(&mut ctx, pause).await };
    vec![Tool::durable_fn("edit", "edits", edits)]
}

fn call() -> ToolCall {
    ToolCall::new("edit", json!({})).session("s")
}

#[test]
fn e15_a_body_that_changes_files_survives_every_crash() {
    let report = check_parked(|| CrashMatrix::new(|_| tools(true)).call(call()));
    assert_eq!(report.outcome, json!([expected()]));
    let writes = report.log.iter().filter(|line| line.contains("a write to a session")).count();
    assert!(writes >= 18, "the process dies before and after every write: {:?}", report.log);
}

#[test]
fn e15_a_body_that_changes_files_survives_two_crashes() {
    let matrix = CrashMatrix::new(|_| tools(false)).call(call()).crashes(2);
    assert_eq!(matrix.run().outcome, json!([expected()]));
}

/// Starts two runs that replace one content, and says what became of both and whether the file has the winner's text.
fn race() -> Vec<Tool> {
    let replace = Tool::durable_fn("replace", "replaces", |mut ctx: Ctx, args: Value| async move {
        let text = args["text"].as_str().unwrap_or_default().to_owned();
        let expect = FileExpectation::Content(ArtifactId::of(b"base"));
        let written = ctx.session().files().write_if("a", expect, &text).await;
        Ok(match written {
            Ok(_) => json!("won"),
            Err(refused) => json!([refused.code(), refused.to_string()]),
        })
    });
    let race = Tool::durable_fn("race", "races", |mut ctx: Ctx, _: Value| async move {
        ctx.session().files().write("a", "base").await?;
        let left = ctx.spawn(ToolCall::new("replace", json!({"text": "left"}))).await?;
        let right = ctx.spawn(ToolCall::new("replace", json!({"text": "right"}))).await?;
        let verdicts = [("left", ctx.join(&left).await?), ("right", ctx.join(&right).await?)];
        let content = text(ctx.session().files().read("a").await?).unwrap_or_default();
        let winner = verdicts.iter().find(|(_, verdict)| *verdict == json!("won")).map(|(name, _)| *name);
        // The loser is told the hash of the content that won.
        let hash = ArtifactId::of(content.as_bytes()).to_string();
        let is_told =
            |verdict: &Value| verdict[0] == "file_stale" && verdict[1].as_str().is_some_and(|why| why.contains(&hash));
        let told = verdicts.iter().filter(|(_, verdict)| is_told(verdict)).count();
        Ok(json!([winner == Some(&*content), told]))
    });
    vec![replace, race]
}

#[test]
fn e15_of_two_runs_that_replace_one_content_exactly_one_wins_whatever_crashes() {
    let matrix = || CrashMatrix::new(|_| race()).call(ToolCall::new("race", json!({})).session("s"));
    assert_eq!(matrix().run().outcome, json!([[true, 1]]));
    assert_eq!(on_sqlite(matrix()).outcome, json!([[true, 1]]));
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    tools(false).into_iter().fold(builder, windlass::Builder::tool).await.expect("the runtime opens")
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let known = windlass.list(windlass::run::Filter::tool("edit"), None, 2).await.expect("the runs");
        let outcome = match known.first() {
            Some(info) => windlass.runtime().attach(info.run).await.expect("the run ends").remove(0),
            None => windlass.runtime().call(call()).await.expect("the call ends"),
        };
        println!("\nresult {}", outcome.for_model());
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn e15_every_kill_leaves_each_change_once_and_the_same_result() {
    every_kill_ends_the_same("session_files_crash::child", &expected(), 9);
}

const STREAM: &str = "WINDLASS_TEST_FILE_STREAM";
const STREAMED: u64 = 100 << 20;

/// The peak memory of this process in KiB, if the system reports it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn e15_a_file_of_a_hundred_megabytes_needs_little_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "session_files_crash::streams", "--nocapture", "--test-threads=1"])
        .env(STREAM, directory.path().join("app.db"))
        .output()
        .expect("the child runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let said = text.lines().find_map(|line| line.split_once("grew by ")).expect("the child says how it went").1;
    let grew: u64 = said.split(' ').next().expect("a number").parse().expect("a number");
    assert!(grew < 20 << 10, "{grew} KiB");
}

/// Does something only in the process that the test above starts.
#[test]
fn streams() {
    let Some(path) = std::env::var_os(STREAM) else { return };
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("tokio");
    executor.block_on(async {
        let windlass = Windlass::open(path).durability(Durability::Relaxed).await.expect("the store opens");
        let session = windlass.session("s");
        session.open(None, None).await.expect("the session");
        // The caches of the store's connections are full before the measurement.
        session.files().write("warm", vec![1; 4 << 20]).await.expect("a file");
        session.files().read("warm").await.expect("a file");
        let before = peak().unwrap_or_default();
        let mut writer = session.files().writer("large", FileExpectation::Missing).expect("a path");
        // Nearly random, so that it is hardly compressed.
        let mut block: Vec<u8> =
            (0..8 << 10).flat_map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()).collect();
        let mut hasher = windlass_core::store::ArtifactHasher::default();
        for number in 0..STREAMED / block.len() as u64 {
            block[..8].copy_from_slice(&number.to_be_bytes());
            hasher.update(&block);
            writer.write(&block).await.expect("a piece");
        }
        let file = writer.finish().await.expect("the file");
        assert_eq!((file.size, file.content), (STREAMED, Some(hasher.finish())));
        let mut reader = session.files().open("large").await.expect("the file").expect("the file");
        let mut hasher = windlass_core::store::ArtifactHasher::default();
        while let Some(piece) = reader.next().await.expect("a piece") {
            hasher.update(&piece);
        }
        assert_eq!(Some(hasher.finish()), file.content);
        let grew = peak().unwrap_or_default() - before;
        windlass.shutdown().await.expect("the end");
        println!("grew by {grew} KiB");
    });
}
