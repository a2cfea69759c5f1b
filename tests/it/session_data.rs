//! The data and secrets of sessions (E27): kept apart, sealed at rest, and nowhere else.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::session::UnfinishedRuns;
use windlass::store::StoreError;
use windlass::{Call, Ctx, Effect, Error, Tool, ToolCall};

use crate::world::{Kind, World, on_every_store};

const SECRET: &str = "correct-horse-battery-staple";

#[test]
fn e27_values_and_secrets_are_set_read_listed_and_deleted() {
    on_every_store(|world| {
        let runtime = world.runtime([]);
        let ada = runtime.session("ada");
        world.run(async move {
            ada.open(None, None).await.unwrap();
            ada.set("cart", &json!({"items": [1, 2]})).await.unwrap();
            ada.set("cart", &json!({"items": [3]})).await.unwrap();
            ada.set("nothing", &Value::Null).await.unwrap();
            ada.set_secret("token", SECRET).await.unwrap();
            assert_eq!(ada.get::<Value>("cart").await.unwrap(), Some(json!({"items": [3]})));
            assert_eq!(ada.get::<Value>("nothing").await.unwrap(), Some(Value::Null));
            assert_eq!(ada.get::<Value>("missing").await.unwrap(), None);
            assert_eq!(ada.get::<Value>("token").await.unwrap(), None, "a secret is not a value");
            let unfit = ada.get::<u32>("cart").await.unwrap_err();
            assert!(matches!(&unfit, Error::Invalid(why) if why.contains("\"cart\"")), "{unfit}");
            assert_eq!(ada.secret("token").await.unwrap().as_deref(), Some(SECRET));
            let names = |entries: Vec<windlass::session::DataEntry>| {
                entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>()
            };
            assert_eq!(names(ada.values().await.unwrap()), ["cart", "nothing"]);
            assert_eq!(names(ada.secrets().await.unwrap()), ["token"]);
            assert!(ada.delete("cart").await.unwrap() && !ada.delete("cart").await.unwrap());
            assert!(ada.delete_secret("token").await.unwrap() && !ada.delete_secret("token").await.unwrap());
            assert_eq!(ada.secret("token").await.unwrap(), None);
            for error in [
                ada.set("", &1).await.unwrap_err(),
                ada.set("a\0", &1).await.unwrap_err(),
                ada.set_secret(&"x".repeat(300), "x").await.unwrap_err(),
                ada.set_secret("empty", "").await.unwrap_err(),
            ] {
                assert!(matches!(error, Error::Invalid(_)), "{error}");
            }
            let huge = ada.set("huge", &"x".repeat(70_000)).await.unwrap_err();
            assert!(matches!(&huge, Error::TooLarge(why) if why.contains("65536 bytes")), "{huge}");
            let huge = ada.set_secret("huge", &"x".repeat(70_000)).await.unwrap_err();
            assert!(matches!(&huge, Error::TooLarge(why) if !why.contains("xxx")), "{huge}");
        });
    });
}

#[test]
fn e27_a_body_sets_and_gets_values_as_operations() {
    on_every_store(|world| {
        let count = || {
            Tool::durable_fn("count", "counts", |mut ctx: Ctx, _: Value| async move {
                let before: Option<u32> = ctx.session().get("n").await?;
                ctx.session().set("n", &(before.unwrap_or(0) + 1)).await?;
                let unfit = ctx.session().get::<String>("n").await.unwrap_err().to_string();
                Ok(json!([before, unfit]))
            })
        };
        let runtime = world.runtime([count()]);
        for (n, before) in [(1, json!(null)), (2, json!(1))] {
            let counting = runtime.clone();
            let call = ToolCall::new("count", json!({})).session("ada");
            let outcome = world.run(async move { counting.call(call).await }).unwrap();
            assert_eq!(outcome.value().unwrap()[0], before);
            assert!(outcome.value().unwrap()[1].as_str().unwrap().contains("the value \"n\" of the session"));
            let ada = runtime.session("ada");
            assert_eq!(world.run(async move { ada.get::<u32>("n").await }).unwrap(), Some(n));
        }
    });
}

/// Uses a secret of its session, and says only how long it is.
fn using() -> Tool {
    Tool::with_call("using", "uses a secret", |call: Call, _: Value| async move {
        let secret = call.session().expect("it is in one").secret("token").await?;
        Ok(json!(secret.map(|secret| secret.len())))
    })
    .effect(Effect::Readonly)
}

#[test]
fn e27_a_secret_is_in_no_file_record_export_backup_or_error() {
    let world = World::new(Kind::Sqlite);
    let file = world.file();
    let runtime = world.runtime([using()]);
    let (ada, calling) = (runtime.session("ada"), runtime.clone());
    let run = world.run(async move {
        ada.open(None, None).await.unwrap();
        ada.set_secret("token", SECRET).await.unwrap();
        let outcome = calling.call(ToolCall::new("using", json!({})).session("ada")).await.unwrap();
        assert_eq!(outcome.value(), Some(&json!(SECRET.len())));
        outcome.run
    });
    let exporting = runtime.clone();
    let export = world.run(async move { exporting.export(run).await }).unwrap();
    assert!(!export.to_string().contains(SECRET));
    let write = windlass_core::store::SessionChange::Set {
        kind: windlass_core::store::DataKind::Secret,
        name: "token".into(),
        value: json!(SECRET),
    };
    assert!(!format!("{write:?}").contains(SECRET), "not even a debug print shows it");
    drop(runtime);
    let world = world.restart();
    for entry in std::fs::read_dir(file.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let is_there = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!is_there, "{} contains the secret in clear", path.display());
    }
    // Without its key, the secret cannot be read, and everything else works.
    let key = file.with_file_name("test.db-key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let runtime = world.runtime([using()]);
    let ada = runtime.session("ada");
    let error = world.run(async move {
        ada.set("fine", &1).await.unwrap();
        assert_eq!(ada.secrets().await.unwrap().len(), 1);
        ada.secret("token").await.unwrap_err()
    });
    assert!(
        matches!(&error, Error::Store(StoreError::Unsealable { why, .. }) if why.contains("test.db-key")),
        "{error}"
    );
    std::fs::write(&key, kept).unwrap();
    let ada = runtime.session("ada");
    assert_eq!(world.run(async move { ada.secret("token").await }).unwrap().as_deref(), Some(SECRET));
}

#[test]
fn e27_w09_a_purged_secret_is_overwritten_in_the_file() {
    let world = World::new(Kind::Sqlite);
    let file = world.file();
    let runtime = world.runtime([]);
    let ada = runtime.session("ada");
    let marker = "a value that is easy to find in a file";
    world.run(async move {
        ada.open(None, None).await.unwrap();
        ada.set("marker", &marker).await.unwrap();
        ada.close("over", UnfinishedRuns::Leave).await.unwrap();
        ada.purge().await.unwrap();
        assert_eq!(ada.info().await.unwrap(), None);
    });
    world.pass(Duration::from_secs(1));
    drop(runtime);
    let world = world.restart();
    let bytes = std::fs::read(&file).unwrap();
    assert!(!bytes.windows(marker.len()).any(|window| window == marker.as_bytes()));
    drop(world);
}
