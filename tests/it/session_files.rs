//! Session files (E15) through the library: a tree of its own for each session, with quotas and compare-and-set.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::session::{
    ArtifactId, FileEncoding, FileError, FileExpectation, FileLimits, FileRefusal, Grep, SessionPath, UnfinishedRuns,
};
use windlass::store::StoreError;
use windlass::tool::Artifact;
use windlass::{Attempt, Call, Ctx, Effect, Error, Tool, ToolCall, ToolError};
use windlass_core::{Runtime, Start};

use crate::world::{Kind, World, on_every_store};

fn path(text: &str) -> SessionPath {
    text.parse().unwrap()
}

fn names(files: &[windlass::session::FileInfo]) -> Vec<&str> {
    files.iter().map(|file| file.path.as_str()).collect()
}

#[test]
fn e15_files_are_written_read_listed_and_deleted() {
    on_every_store(|world| {
        let ada = world.runtime([]).session("ada");
        let files = ada.files();
        world.run(async move {
            assert!(files.stat("/").await.unwrap().is_none() && files.read("a").await.unwrap().is_none());
            let missing = Error::from(files.write("a", "x").await.unwrap_err());
            assert!(matches!(&missing, Error::NotFound(why) if why.contains("no session \"ada\"")), "{missing}");
            ada.open(None, None).await.unwrap();
            let written = files.write("notes/rome.md", "# Rome\nnight train\n").await.unwrap();
            assert_eq!((written.path.as_str(), written.name(), written.size), ("/notes/rome.md", "rome.md", 19));
            assert_eq!(files.stat("/workspace/notes/rome.md").await.unwrap().as_ref(), Some(&written));
            assert_eq!(files.read("./notes/rome.md").await.unwrap().unwrap(), b"# Rome\nnight train\n");
            assert_eq!(files.read_range("/notes/rome.md", 2, 4).await.unwrap().unwrap(), b"Rome");
            assert_eq!(files.read_range("/notes/rome.md", 100, 4).await.unwrap().unwrap(), b"");
            let binary = files.write("blob", [1, 0, 2]).await.unwrap();
            assert_eq!((written.encoding, binary.encoding), (FileEncoding::Text, FileEncoding::Base64));
            let large = vec![b'x'; 600_000];
            files.write("/large", &large).await.unwrap();
            assert!(files.read("/large").await.unwrap().unwrap() == large);
            assert_eq!(files.read_range("/large", 200_000, 300_000).await.unwrap().unwrap().len(), 300_000);
            files.create_directory("/empty/inner").await.unwrap();
            let listed = files.list("/", None, 10).await.unwrap();
            assert_eq!(names(&listed), ["/blob", "/empty", "/large", "/notes"]);
            assert_eq!(names(&files.list("/", Some("/empty"), 1).await.unwrap()), ["/large"]);
            assert_eq!(names(&files.tree("/empty", None, 9).await.unwrap()), ["/empty/inner"]);
            assert!(files.list("/empty/inner", None, 9).await.unwrap().is_empty());
            let refusal = |error: FileError| error.refusal().cloned().expect("a refusal");
            let error = files.list("/none", None, 9).await.unwrap_err();
            assert_eq!(refusal(error), FileRefusal::Missing { path: path("/none") });
            let error = files.list("/blob", None, 9).await.unwrap_err();
            assert_eq!(refusal(error), FileRefusal::NotDirectory { path: path("/blob") });
            let error = files.read("/empty").await.unwrap_err();
            assert_eq!(refusal(error), FileRefusal::IsDirectory { path: path("/empty") });
            let error = files.write("/blob/x", "").await.unwrap_err();
            assert_eq!(refusal(error), FileRefusal::NotDirectory { path: path("/blob") });
            assert!(matches!(files.delete("/empty").await, Err(error) if error.to_string().contains("not empty")));
            assert!(files.delete_recursive("/empty").await.unwrap() && !files.delete("/empty").await.unwrap());
            for bad in ["../etc/passwd", "/a//b", "/a\0", "C:\\x", "/.background/x"] {
                let error = Error::from(files.write(bad, "x").await.unwrap_err());
                assert!(matches!(&error, Error::Invalid(why) if why.contains("is not a valid path")), "{bad}: {error}");
                assert!(
                    files.read(bad).await.is_err()
                        && files.stat(bad).await.is_err()
                        && files.delete(bad).await.is_err()
                );
            }
            assert_eq!(files.usage().await.unwrap().count, 4);
        });
    });
}

#[test]
fn e15_a_write_requires_the_hash_that_its_writer_read() {
    on_every_store(|world| {
        let ada = world.runtime([]).session("ada");
        world.run(async move {
            ada.open(None, None).await.unwrap();
            let files = ada.files();
            let first = files.write_if("a", FileExpectation::Missing, "one").await.unwrap();
            assert_eq!(first.content, Some(ArtifactId::of(b"one")));
            let base = FileExpectation::Content(ArtifactId::of(b"one"));
            files.write_if("a", base, "two").await.unwrap();
            let stale = files.write_if("a", base, "three").await.unwrap_err();
            let current = Some(ArtifactId::of(b"two"));
            assert_eq!(stale.refusal(), Some(&FileRefusal::Stale { path: path("/a"), current }));
            assert!(stale.to_string().contains(&ArtifactId::of(b"two").to_string()), "{stale}");
            assert!(matches!(Error::from(stale), Error::Conflict(_)));
            assert!(files.delete_if("a", base).await.is_err());
            assert_eq!(files.read("a").await.unwrap().unwrap(), b"two");
            files.set_readonly("a", true).await.unwrap();
            let refused = files.write("a", "x").await.unwrap_err();
            assert_eq!(refused.refusal(), Some(&FileRefusal::Readonly { path: path("/a") }));
            ada.close("done", UnfinishedRuns::Leave).await.unwrap();
            let closed = Error::from(files.write("b", "x").await.unwrap_err());
            assert!(matches!(closed, Error::Store(StoreError::SessionClosed { .. })), "{closed}");
            assert_eq!(files.read("a").await.unwrap().unwrap(), b"two", "a closed session can be read");
            ada.purge().await.unwrap();
            assert!(files.read("a").await.unwrap().is_none());
        });
    });
}

#[test]
fn e15_one_session_reads_nothing_of_another() {
    on_every_store(|world| {
        let runtime = world.runtime([]);
        world.run(async move {
            let (ada, bob) = (runtime.session("ada"), runtime.session("bob"));
            for session in [&ada, &bob] {
                session.open(None, None).await.unwrap();
            }
            let secret = ada.files().write("secret.txt", "the plan").await.unwrap().content.unwrap();
            assert!(bob.files().read("secret.txt").await.unwrap().is_none());
            assert!(bob.files().tree("/", None, 9).await.unwrap().is_empty());
            let refused = bob.files().open_content(secret).await.err().unwrap();
            assert_eq!(refused.refusal(), Some(&FileRefusal::NoContent { content: secret }));
            let stored = Artifact::stored("text/plain", windlass::store::Stored { id: secret, size: 8 });
            let refused = bob.files().write_artifact("mine", FileExpectation::Any, &stored).await.unwrap_err();
            assert_eq!(refused.refusal(), Some(&FileRefusal::NoContent { content: secret }));
            assert_eq!(ada.files().open_content(secret).await.unwrap().whole().await.unwrap(), b"the plan");
            // Equal content is stored once, and each session has its own file.
            bob.files().write("same", "the plan").await.unwrap();
            ada.files().delete("secret.txt").await.unwrap();
            assert_eq!(bob.files().read("same").await.unwrap().unwrap(), b"the plan");
        });
    });
}

#[test]
fn e15_quotas_are_options_of_the_runtime() {
    on_every_store(|world| {
        let mut config = world.config([]);
        config.files = FileLimits { file_bytes: 300_000, session_bytes: 400_000, count: 3 };
        let ada = Runtime::new(config).session("ada");
        world.run(async move {
            ada.open(None, None).await.unwrap();
            let files = ada.files();
            let error = Error::from(files.write("a", vec![1; 300_001]).await.unwrap_err());
            assert!(matches!(&error, Error::TooLarge(why) if why.contains("300000 bytes")), "{error}");
            files.write("a", vec![1; 300_000]).await.unwrap();
            let full = files.write("b", vec![2; 100_001]).await.unwrap_err();
            assert_eq!(full.refusal(), Some(&FileRefusal::SessionBytes { limit: 400_000, used: 300_000 }));
            files.write("b", vec![2; 100_000]).await.unwrap();
            files.write("c", "").await.unwrap();
            let full = files.write("d", "").await.unwrap_err();
            assert_eq!(full.refusal(), Some(&FileRefusal::Count { limit: 3 }));
            assert!(matches!(Error::from(full), Error::Conflict(_)));
            files.delete("a").await.unwrap();
            files.write("d", vec![3; 250_000]).await.unwrap();
            assert_eq!(files.usage().await.unwrap().bytes, 350_000);
        });
    });
}

#[test]
fn e15_grep_finds_lines_within_its_limits() {
    on_every_store(|world| {
        let ada = world.runtime([]).session("ada");
        world.run(async move {
            ada.open(None, None).await.unwrap();
            let files = ada.files();
            files.write("src/main.rs", "fn main() {\r\n    run();\n}\n").await.unwrap();
            files.write("src/lib/run.rs", "pub fn run() {}").await.unwrap();
            files.write("README.md", "To run it: `cargo run`\n").await.unwrap();
            files.write("blob.rs", b"fn run\0").await.unwrap();
            // A line that is split between two pieces.
            files.write("long.txt", format!("{}needle\nlast", "x\n".repeat(131_070))).await.unwrap();
            let lines = |found: &windlass::session::GrepResult| {
                found.matches.iter().map(|hit| format!("{}:{}", hit.path, hit.line)).collect::<Vec<_>>()
            };
            let found = files.grep(&Grep::new(r"\brun\b")).await.unwrap();
            assert_eq!(lines(&found), ["/README.md:1", "/src/lib/run.rs:1", "/src/main.rs:2"]);
            assert_eq!((found.is_complete, found.files, found.binary), (true, 4, 1));
            let found = files.grep(&Grep::new("^FN main.*\\{$").ignore_case().paths("*.rs")).await.unwrap();
            assert_eq!((lines(&found), &*found.matches[0].text), (vec!["/src/main.rs:1".into()], "fn main() {"));
            let found = files.grep(&Grep::new("run").paths("src/**").directory("/src/lib")).await.unwrap();
            assert_eq!(lines(&found), ["/src/lib/run.rs:1"]);
            let found = files.grep(&Grep::new("needle")).await.unwrap();
            assert_eq!(lines(&found), ["/long.txt:131071"]);
            let found = files.grep(&Grep::new("x").paths("long.txt").limit(3)).await.unwrap();
            assert_eq!((found.matches.len(), found.is_complete), (3, false));
            for (search, why) in [(Grep::new("("), "not valid"), (Grep::new("x").paths("["), "`[`")] {
                let error = Error::from(files.grep(&search).await.unwrap_err());
                assert!(matches!(&error, Error::Invalid(text) if text.contains(why)), "{error}");
            }
            assert!(files.grep(&Grep::new("x").directory("/none")).await.is_err());
        });
    });
}

#[test]
fn e15_a_body_reads_and_writes_files_as_operations() {
    on_every_store(|world| {
        let edit = Tool::durable_fn("edit", "edits", |mut ctx: Ctx, _: Value| async move {
            let base = ctx.session().files().stat("a.txt").await?.and_then(|file| file.content);
            let base = base.map_or(FileExpectation::Missing, FileExpectation::Content);
            let text = ctx.session().files().read("a.txt").await?.unwrap_or_default();
            let written = ctx.session().files().write_if("a.txt", base, [&text[..], b"+"].concat()).await?;
            let stale = ctx.session().files().write_if("a.txt", base, "x").await.unwrap_err();
            let bad = ctx.session().files().write("../x", "x").await.unwrap_err();
            let range = ctx.session().files().read_range("/a.txt", 1, 2).await?;
            let made = ctx.session().files().create_directory("d").await?;
            let listed = ctx.session().files().list("/", None, 10).await?;
            let found = ctx.session().files().grep(Grep::new("base")).await?;
            let gone = ctx.session().files().delete_recursive("/d").await?;
            let artifact: Artifact = ctx
                .step("report", |attempt: Attempt| async move {
                    let mut artifact = attempt.new_artifact("text/plain");
                    artifact.write(b"a report").await?;
                    Ok(artifact.finish().await?)
                })
                .await?;
            let report = ctx.session().files().write_artifact("r", FileExpectation::Missing, &artifact).await?;
            Ok(json!({
                "size": written.size, "stale": stale.code(), "bad": bad.to_string(), "made": made, "gone": gone,
                "range": range.map(|range| String::from_utf8_lossy(&range).into_owned()),
                "listed": listed.len(), "found": found.matches.len(), "report": report.size,
            }))
        });
        let runtime = world.runtime([edit]);
        world.run(async move {
            let ada = runtime.session("ada");
            ada.open(None, None).await.unwrap();
            ada.files().write("a.txt", "base").await.unwrap();
            let outcome = runtime.call(ToolCall::new("edit", json!({})).session("ada")).await.unwrap();
            let value = outcome.result.unwrap().value.clone();
            assert!(value["bad"].as_str().unwrap().contains("`..`"), "{value}");
            let rest = json!({"bad": value["bad"], "size": 5, "stale": "file_stale", "made": true, "gone": true,
                              "range": "as", "listed": 2, "found": 1, "report": 8});
            assert_eq!(value, rest);
            assert_eq!(ada.files().read("/a.txt").await.unwrap().unwrap(), b"base+");
            assert_eq!(ada.files().read("/r").await.unwrap().unwrap(), b"a report");
            let outside = runtime.call(ToolCall::new("edit", json!({}))).await.unwrap();
            assert!(outside.result.unwrap_err().to_string().contains("belongs to no session"));
        });
    });
}

#[test]
fn e15_an_attempt_reads_the_files_of_its_session() {
    on_every_store(|world| {
        let count = Tool::with_call("count", "counts", |call: Call, _: Value| async move {
            let Some(session) = call.session() else { return Err(ToolError::failed("call it in a session")) };
            let mut reader = session.files().open("a").await?.ok_or_else(|| ToolError::failed("no file"))?;
            let mut bytes = 0;
            while let Some(piece) = reader.next().await? {
                bytes += piece.len();
            }
            let refused = ToolError::from(session.files().list("/none", None, 9).await.unwrap_err());
            Ok(json!([bytes, reader.file().size, refused.code()]))
        });
        let runtime = world.runtime([count.effect(Effect::Readonly)]);
        world.run(async move {
            let ada = runtime.session("ada");
            ada.open(None, None).await.unwrap();
            ada.files().write("a", vec![7; 300_000]).await.unwrap();
            let outcome = runtime.call(ToolCall::new("count", json!({})).session("ada")).await.unwrap();
            assert_eq!(outcome.result.unwrap().value, json!([300_000, 300_000, "file_missing"]));
        });
    });
}

/// Reads a file, waits for a signal, and reads it again from its record.
fn patient() -> Tool {
    Tool::durable_fn("patient", "waits", |mut ctx: Ctx, _: Value| async move {
        let before = ctx.session().files().read("a").await?.unwrap_or_default();
        ctx.sleep(Duration::from_secs(2 * 3_600)).await?;
        let after = ctx.session().files().read("a").await?;
        Ok(json!([String::from_utf8_lossy(&before), after.map(|after| after.len())]))
    })
}

#[test]
fn e15_a_body_that_is_entered_again_reads_what_it_read_before() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        let mut world = World::new(kind);
        let runtime = world.runtime([patient()]);
        let run = world.run(async move {
            runtime.session("ada").open(None, None).await.unwrap();
            runtime.session("ada").files().write("a", "first").await.unwrap();
            let how = Start { session: Some("ada".into()), ..Start::default() };
            runtime.start_with(ToolCall::new("patient", json!({})), how).await.unwrap()
        });
        world.pass(Duration::from_secs(60));
        let runtime = world.runtime([patient()]);
        world.run(async move { assert!(runtime.session("ada").files().delete("a").await.unwrap()) });
        // The file is gone for longer than a deleted content is kept, and the run only waits.
        world.pass(Duration::from_secs(90 * 60));
        world = world.restart();
        let runtime = world.runtime([patient()]);
        let store = world.store.clone();
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            while store.artifacts().sweep(windlass_core::time::Timestamp::from_micros(i64::MAX), 9).await.unwrap().more
            {
            }
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.result.unwrap().value, json!(["first", null]), "{kind:?}");
    }
}
