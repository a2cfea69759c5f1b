//! Artifacts: stored before the outcome that refers to them, guarded per session, collected when nothing refers to
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::record::{Event, Record};
use windlass::run::{Cut, Start};
use windlass::store::{Access, ArtifactId};
use windlass::testing::{CrashMatrix, Ledger, MemoryDisk};
use windlass::tool::Reconciled;
use windlass::{
    Artifact, Attempt, Call, Content, Ctx, Effect, Outcome, Output, Path, RunId, Tool, ToolCall, ToolError, ToolResult,
    limits,
};
use windlass_core::Runtime;

use crate::crash::on_sqlite;
use crate::world::on_every_store;

const PIECE: usize = limits::ARTIFACT_PIECE;
const HOUR: Duration = limits::ARTIFACT_GRACE;

/// Bytes that do not repeat.
fn content(length: usize) -> Vec<u8> {
    (0u64..).flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()).take(length).collect()
}

async fn store(attempt: &Attempt, bytes: &[u8]) -> ToolResult<Artifact> {
    let mut file = attempt.new_artifact("application/octet-stream").named("f.bin");
    for some in bytes.chunks(100_003) {
        file.write(some).await?;
    }
    Ok(file.finish().await?)
}

async fn load(attempt: &Attempt, artifact: &Artifact) -> ToolResult<Vec<u8>> {
    Ok(attempt.open_artifact(artifact).await?.whole(1 << 30).await?)
}

/// Stores as many bytes as its argument says, and returns them as the raw original of its output.
fn writer() -> Tool {
    Tool::with_call("write", "stores", |call: Call, length: usize| async move {
        let artifact = store(&call, &content(length)).await?;
        Ok(Output::value(json!(length)).with(Content::text("a file")).raw(artifact))
    })
    .effect(Effect::Idempotent)
}

/// Reads a range of an artifact, and returns it.
fn reader() -> Tool {
    Tool::with_call("read", "reads", |call: Call, artifact: Artifact| async move {
        Ok(json!(ArtifactId::of(&load(&call, &artifact).await?).to_string()))
    })
    .effect(Effect::Readonly)
}

fn call(tool: &str, args: impl serde::Serialize) -> ToolCall {
    ToolCall::new(tool, serde_json::to_value(args).unwrap())
}

/// Starts a call in a session and waits for its end.
async fn in_session(runtime: &Runtime, session: &str, call: ToolCall) -> Outcome {
    let run = runtime.start_with(call, Start::session(session)).await.unwrap();
    runtime.attach(run).await.unwrap().remove(0)
}

fn raw(outcome: &Outcome) -> Artifact {
    *outcome.result.as_ref().unwrap().raw.clone().unwrap()
}

async fn whole(runtime: &Runtime, artifact: &Artifact, by: Access) -> windlass::Result<Vec<u8>> {
    Ok(runtime.open_artifact(artifact, by).await?.whole(1 << 30).await?)
}

fn is_missing<T: std::fmt::Debug>(result: windlass::Result<T>) -> bool {
    matches!(&result, Err(error) if error.to_string().contains("artifact b3:"))
}

#[test]
fn l16_an_artifact_is_written_in_pieces_and_read_at_any_offset() {
    on_every_store(|world| {
        let runtime = world.runtime([writer()]);
        let bytes = content(2 * PIECE + 77);
        let (run, artifact) = world.run({
            let bytes = bytes.clone();
            async move {
                let outcome = runtime.call(call("write", bytes.len())).await.unwrap();
                let artifact = runtime.artifact(outcome.run, &Path::root()).await.unwrap();
                assert_eq!((artifact.id(), artifact.size()), (Some(ArtifactId::of(&bytes)), bytes.len() as u64));
                assert_eq!(
                    (&*artifact.media_type, artifact.name.as_deref()),
                    ("application/octet-stream", Some("f.bin"))
                );
                assert_eq!(artifact.bytes(), None, "the record has its name, and not its bytes");
                (outcome.run, artifact)
            }
        });
        let world = world.restart();
        let runtime = world.runtime([writer()]);
        world.run(async move {
            let mut reader = runtime.open_artifact(&artifact, Access::Run(run)).await.unwrap();
            assert_eq!(reader.read_at(PIECE as u64 - 2, 5).await.unwrap(), bytes[PIECE - 2..PIECE + 3]);
            assert_eq!(reader.read_at(u64::MAX, 5).await.unwrap(), [0u8; 0]);
            let mut all = Vec::new();
            while let Some(piece) = reader.next().await.unwrap() {
                assert!(piece.len() <= PIECE);
                all.extend(piece);
            }
            assert_eq!(all, bytes);
            let error = reader.whole(1_000).await.unwrap_err().to_string();
            assert_eq!(
                error,
                "artifact of 524365 bytes is too large to read whole within 1000; read it piece by piece"
            );
            // A small artifact that is stored in a record is read in the same way.
            let inline = Artifact::new("text/plain", b"small".as_slice());
            let reader = runtime.open_artifact(&inline, Access::Run(run)).await.unwrap();
            assert_eq!((reader.size(), reader.read_at(1, 9).await.unwrap()), (5, b"mall".to_vec()));
        });
    });
}

#[test]
fn l16_it_is_stored_before_the_outcome_that_refers_to_it() {
    on_every_store(|world| {
        let looked = Arc::new(AtomicUsize::new(0));
        let (disk, count) = (world.store.clone(), looked.clone());
        let tool = Tool::with_call("write", "stores", move |call: Call, _: Value| {
            let (disk, count) = (disk.clone(), count.clone());
            async move {
                let artifact = store(&call, b"content").await?;
                let id = artifact.id().expect("it is stored");
                assert_eq!(disk.artifacts().size(id, Access::Run(call.run())).await, Ok(7));
                let journal = disk.journal(call.run(), 0).await.unwrap();
                assert!(!journal.iter().any(|record| matches!(record.event, Event::Finished(_))), "{journal:?}");
                count.fetch_add(1, Ordering::SeqCst);
                Ok(artifact)
            }
        });
        let runtime = world.runtime([tool]);
        world.run(async move { runtime.call(call("write", json!({}))).await.unwrap().result.unwrap() });
        assert_eq!(looked.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn l16_another_sessions_artifact_cannot_be_read_by_its_name() {
    on_every_store(|world| {
        let runtime = world.runtime([writer(), reader()]);
        world.run(async move {
            let outcome = in_session(&runtime, "ada", call("write", 5)).await;
            let artifact = raw(&outcome);
            let read = in_session(&runtime, "ada", call("read", &artifact)).await;
            assert_eq!(read.result.unwrap().value, json!(ArtifactId::of(&content(5)).to_string()));
            // Neither a run that is started with the name nor one that learns it later can read it.
            let refused = runtime.start_with(call("read", &artifact), Start::session("bob")).await;
            assert!(is_missing(refused));
            let refused = runtime.call(call("read", &artifact)).await.unwrap().result.unwrap_err();
            assert!(
                matches!(&*refused, ToolError::Failed { message, .. } if message.contains("does not exist here")),
                "{refused}"
            );
            assert!(is_missing(whole(&runtime, &artifact, Access::Session("bob".into())).await));
            for by in [Access::Session("ada".into()), Access::Run(outcome.run), Access::Owner] {
                assert_eq!(whole(&runtime, &artifact, by).await.unwrap(), content(5));
            }
        });
    });
}

#[test]
fn l16_a_name_in_an_outcome_grants_no_access() {
    on_every_store(|world| {
        let echo = Tool::new("echo", "says it again", |value: Value| async move {
            let artifact: Artifact = serde_json::from_value(value["file"].clone())?;
            Ok(Output::value(value).with(Content::File(artifact)))
        });
        let runtime = world.runtime([writer(), echo]);
        world.run(async move {
            let artifact = raw(&in_session(&runtime, "ada", call("write", 5)).await);
            // For example, a model passes the name to the runs of bob's session.
            let outcome = runtime.call(call("echo", json!({"file": artifact}))).await.unwrap();
            assert!(outcome.result.is_ok(), "an outcome is recorded whatever it mentions");
            assert!(is_missing(whole(&runtime, &artifact, Access::Run(outcome.run)).await));
        });
    });
}

#[test]
fn l16_an_artifact_without_a_reference_is_collected() {
    on_every_store(|world| {
        let (sim, seen) = (world.sim.clone(), Arc::new(parking_lot::Mutex::new(Vec::new())));
        let told = seen.clone();
        let tool = Tool::with_call("try", "stores and fails", move |call: Call, _: Value| {
            let told = told.clone();
            async move {
                let stored = store(&call, &content(PIECE + 1)).await?;
                told.lock().push(stored);
                // Dropped in the middle of the upload.
                let mut half = call.new_artifact("text/plain");
                half.write(&content(2 * PIECE)).await?;
                drop(half);
                Err::<Value, _>(ToolError::failed("no"))
            }
        });
        let runtime = world.runtime([tool, writer()]);
        let kept = {
            let runtime = runtime.clone();
            world.run(async move {
                let kept = raw(&runtime.call(call("write", 9)).await.unwrap());
                runtime.call(call("try", json!({}))).await.unwrap().result.unwrap_err();
                kept
            })
        };
        let failed = seen.lock()[0].clone();
        world.run(async move {
            assert_eq!(whole(&runtime, &failed, Access::Owner).await.unwrap().len(), PIECE + 1, "not at once");
            windlass_core::time::Clock::sleep(&sim, HOUR + limits::ATTEMPT_TIMEOUT).await;
            while runtime.sweep_artifacts().await.unwrap().more {}
            assert!(is_missing(whole(&runtime, &failed, Access::Owner).await));
            assert_eq!(whole(&runtime, &kept, Access::Owner).await.unwrap(), content(9));
        });
    });
}

#[test]
fn l16_an_artifact_that_is_too_large_is_refused_with_advice() {
    on_every_store(|world| {
        let mut config = world.config([writer()]);
        config.artifact_bytes = PIECE as u64;
        let runtime = Runtime::new(config);
        world.run(async move {
            runtime.call(call("write", PIECE)).await.unwrap().result.unwrap();
            let error = runtime.call(call("write", PIECE + 1)).await.unwrap().result.unwrap_err();
            let expected = "the artifact is larger than 262144 bytes, which is the most this runtime stores; split it, keep it \
                            elsewhere and pass its address on, or raise `artifact_bytes`";
            assert!(matches!(&*error, ToolError::Failed { message, .. } if message == expected), "{error}");
        });
    });
}

/// A body that stores an artifact in a step, lets a tool read it, and returns it.
fn painter() -> Tool {
    Tool::durable_fn("paint", "paints", |mut ctx: Ctx, length: usize| async move {
        let draw = move |a: Attempt| async move { store(&a, &content(length)).await };
        let picture: Artifact = ctx.step("draw", draw).idempotent().await?;
        let seen: Value = ctx.call(call("read", &picture)).await?;
        Ok(Output::value(seen).with(Content::Image(picture)))
    })
}

/// A body that spawns `painter`, and returns its artifact.
fn patron() -> Tool {
    Tool::durable_fn("order", "has it painted", |mut ctx: Ctx, length: usize| async move {
        let painter =
            ctx.spawn(ToolCall::<Output>::to(windlass::tool::ToolRef::Name("paint".into()), json!(length))).await?;
        let mut painted: Output = ctx.join(&painter).await?;
        let seen: Value = ctx.call(call("read", painted.content[0].artifact().expect("a picture"))).await?;
        painted.value = json!([seen, painted.value]);
        Ok(painted)
    })
}

/// The number of records with references to artifacts.
async fn references(runtime: &Runtime, run: RunId) -> usize {
    let says = |record: &&Record| serde_json::to_string(record).unwrap().contains("\"refs\":[\"b3:");
    runtime.journal(run).await.unwrap().iter().filter(says).count()
}

#[test]
fn l16_a_run_keeps_the_artifacts_of_its_steps_and_children() {
    on_every_store(|world| {
        let runtime = world.runtime([painter(), patron(), reader()]);
        world.run(async move {
            let outcome = runtime.call(call("order", PIECE + 5)).await.unwrap();
            let id = ArtifactId::of(&content(PIECE + 5)).to_string();
            let output = outcome.result.clone().unwrap();
            assert_eq!(output.value, json!([id, id]));
            let picture = output.content[0].artifact().unwrap().clone();
            // The join and the outcome refer to it; a call that only reads it does not.
            assert_eq!(references(&runtime, outcome.run).await, 2);
            let children = runtime.list(windlass::run::Filter::children(outcome.run), None, 9).await.unwrap();
            assert_eq!(references(&runtime, children[0].run).await, 2, "the step, and the outcome");
            for run in [outcome.run, children[0].run] {
                assert_eq!(whole(&runtime, &picture, Access::Run(run)).await.unwrap().len(), PIECE + 5);
            }
            // A fork with these records keeps what they refer to, although it is not a relative of the original run.
            let fork = runtime.fork(outcome.run, Cut::End, None).await.unwrap();
            runtime.attach(fork).await.unwrap().remove(0).result.unwrap();
            assert_eq!(whole(&runtime, &picture, Access::Run(fork)).await.unwrap().len(), PIECE + 5);
            let stranger = runtime.call(call("read", &picture)).await.unwrap();
            assert!(stranger.result.is_err());
        });
    });
}

#[test]
fn l16_a_run_can_be_started_with_an_artifact_of_its_session() {
    on_every_store(|world| {
        let sim = world.sim.clone();
        let runtime = world.runtime([reader()]);
        world.run(async move {
            let mut file = runtime.new_artifact("ada", "text/plain");
            file.write(b"attached").await.unwrap();
            let artifact = file.finish().await.unwrap();
            let outcome = in_session(&runtime, "ada", call("read", &artifact)).await;
            assert_eq!(outcome.result.unwrap().value, json!(ArtifactId::of(b"attached").to_string()));
            let lost = runtime.new_artifact("ada", "text/plain").finish().await.unwrap();
            windlass_core::time::Clock::sleep(&sim, HOUR).await;
            while runtime.sweep_artifacts().await.unwrap().more {}
            let ada = || Access::Session("ada".into());
            assert_eq!(whole(&runtime, &artifact, ada()).await.unwrap(), b"attached", "its run keeps it");
            assert!(is_missing(whole(&runtime, &lost, ada()).await));
            assert!(is_missing(runtime.start_with(call("read", &lost), Start::session("ada")).await));
        });
    });
}

/// A once tool that stores its result, and finds it again.
fn maker(ledger: &Ledger) -> Tool {
    let (acting, looking) = (ledger.clone(), ledger.clone());
    Tool::with_call("make", "makes", move |call: Call, _: Value| {
        let ledger = acting.clone();
        async move {
            let artifact = store(&call, &content(PIECE + 1)).await?;
            ledger.once("make", &call.idempotency_key()).await;
            Ok(artifact)
        }
    })
    .reconcile(move |call| {
        let happened = looking.happened(&call.idempotency_key());
        async move {
            if !happened {
                return Ok(Reconciled::DidNotHappen);
            }
            // Stored again, in case the process died before the outcome could refer to it.
            Ok(Reconciled::Happened(store(&call, &content(PIECE + 1)).await?))
        }
    })
}

#[test]
fn l16_artifacts_survive_every_crash_also_in_the_middle_of_an_upload() {
    let matrix = || {
        let tools = |ledger: &Ledger| {
            let keep = Tool::durable_fn("keep", "makes and keeps", |mut ctx: Ctx, _: Value| async move {
                let made: Artifact =
                    ctx.call(ToolCall::to(windlass::tool::ToolRef::Name("make".into()), json!({}))).await?;
                let seen: Value = ctx.call(call("read", &made)).await?;
                let painted: Output =
                    ctx.call(ToolCall::to(windlass::tool::ToolRef::Name("paint".into()), json!(9))).await?;
                Ok(Output::value(json!([seen, painted.value])).raw(made))
            });
            vec![maker(ledger), painter(), reader(), keep]
        };
        CrashMatrix::new(tools).call(call("keep", json!({})))
    };
    let memory = matrix().disk(MemoryDisk::default).run();
    let id = |length| ArtifactId::of(&content(length)).to_string();
    assert!(memory.outcome.to_string().contains(&id(PIECE + 1)) && memory.outcome.to_string().contains(&id(9)));
    assert_eq!(memory.effects["make"], 1);
    for point in ["before a piece of an upload", "after a piece of an upload", "after the end of an upload"] {
        assert!(memory.log.iter().any(|passed| passed == point), "{point}: {:?}", memory.log);
    }
    let sqlite = on_sqlite(matrix());
    assert_eq!((memory.outcome, memory.effects), (sqlite.outcome, sqlite.effects));
}

const CHILD: &str = "WINDLASS_TEST_STREAM";
const STREAMED: u64 = 100 << 20;

/// The peak memory of this process in KiB, if the system reports it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn l16_a_hundred_megabytes_need_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "artifacts::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, directory.path().join("app.db"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let said = text.lines().find_map(|line| line.split_once("grew by ")).expect("the child says how it went").1;
    // The page caches of the store's connections, and a few pieces.
    let grew: u64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(grew < 48 << 10, "{grew} KiB");
}

/// Does something only in the process that the test above starts.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let stream = Tool::with_call("stream", "stores a lot", |call: Call, _: Value| async move {
        let mut file = call.new_artifact("application/octet-stream");
        // Random, so that it cannot be compressed.
        let mut block = content(64 << 10);
        for number in 0..STREAMED / block.len() as u64 {
            block[..8].copy_from_slice(&number.to_be_bytes());
            file.write(&block).await?;
        }
        Ok(file.finish().await?)
    });
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    executor.block_on(async {
        let opened = windlass::Windlass::open(path).durability(windlass::store::Durability::Relaxed).tool(stream);
        let windlass = opened.await.unwrap();
        let before = peak().unwrap_or_default();
        let outcome = windlass.call_json("stream", json!({})).await.unwrap();
        let artifact: Artifact = serde_json::from_value(outcome.result.unwrap().value.clone()).unwrap();
        assert_eq!(artifact.size(), STREAMED);
        let mut reader = windlass.open_artifact(&artifact, Access::Run(outcome.run)).await.unwrap();
        let mut hasher = windlass_core::store::ArtifactHasher::default();
        while let Some(piece) = reader.next().await.unwrap() {
            hasher.update(&piece);
        }
        assert_eq!(Some(hasher.finish()), artifact.id());
        windlass.shutdown().await.unwrap();
        println!("grew by {} KiB", peak().unwrap_or_default() - before);
    });
}
