//! Invalid input: a clear error, nothing lost, no hang.

use serde_json::{Value, json};
use windlass::tool::Schemas;
use windlass::tool::spec::Approval;
use windlass::{Effect, Error, Tool, ToolCall, ToolSpec, Windlass};

use crate::world::{Counter, Kind, World, on_every_store, tool};

#[test]
fn b04_huge_deep_and_empty_arguments_are_refused_by_limit_or_schema() {
    on_every_store(|world| {
        let ran = Counter::default();
        let count = ran.clone();
        let runtime = world.runtime([tool("t", move |_| {
            count.add();
            async { Ok(()) }
        })]);
        let mut deep = json!({});
        for _ in 0..1_000 {
            deep = json!({"d": deep});
        }
        let huge = json!({"text": "x".repeat(10 << 20)});
        let wide = json!({"list": vec![0u8; 600_000]});
        let outcomes = world.run(async move {
            let calls = vec![ToolCall::new("t", huge), ToolCall::new("t", wide), ToolCall::new("t", deep)];
            let outcomes = runtime.batch(calls, false).await;
            outcomes.unwrap()
        });
        let message = |i: usize| outcomes[i].for_model()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message(0).contains("larger than 1048576 bytes"), "{}", message(0));
        assert!(message(1).contains("larger than 1048576 bytes"), "{}", message(1));
        assert!(message(2).contains("nested deeper than 128"), "{}", message(2));
        assert_eq!(ran.get(), 0);
    });
}

#[test]
fn batches_are_limited_and_an_empty_one_has_no_outcomes() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([tool("t", |_| async { Ok(()) }).effect(Effect::Readonly)]);
    let (empty, full, too_many) = world.run(async move {
        let calls = |n| vec![ToolCall::new("t", json!({})); n];
        (
            runtime.batch(Vec::new(), false).await.unwrap(),
            runtime.batch(calls(4_096), false).await.unwrap(),
            runtime.batch(calls(4_097), false).await.unwrap_err(),
        )
    });
    assert!(empty.is_empty());
    assert!(full.len() == 4_096 && full.iter().all(|outcome| outcome.result.is_ok()));
    assert_eq!(too_many.to_string(), "a batch of 4097 calls is too large; the limit is 4096");
}

#[test]
fn b04_bad_schemas_and_names_are_refused_at_registration() {
    let toolbox = windlass::Toolbox::new();
    struct Never;
    impl windlass::tool::Atomic for Never {
        fn attempt(
            &self,
            _: windlass::Call,
        ) -> futures_util::future::BoxFuture<'static, windlass::ToolResult<windlass::Output>> {
            Box::pin(std::future::pending())
        }
    }
    let with = |schema: Value| Tool::atomic(ToolSpec::new("t", ""), Schemas::input(schema), Never);
    for schema in [
        json!("string"),
        json!(null),
        json!({"type": "objekt"}),
        json!({"required": "x"}),
        json!({"$ref": "http://x/y"}),
    ] {
        let error = toolbox.insert(with(schema.clone())).expect_err(&schema.to_string()).to_string();
        assert!(error.contains("input schema of tool `t`"), "{error}");
    }
    for name in ["", "two words", "ünïcode", &"x".repeat(65), "semi;colon"] {
        let error = toolbox.insert(Tool::new(name, "", |_: Value| async { Ok(()) })).expect_err(name).to_string();
        assert!(error.contains("is not a tool name"), "{error}");
    }
    let error = toolbox.insert(with(json!({})).with(|spec| spec.guards.approval = Approval::When("".into())));
    assert!(error.unwrap_err().to_string().contains("approval condition"));
    assert!(toolbox.tools().is_empty());
    // A recursive schema is valid; checking arguments against it terminates.
    toolbox.insert(with(json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}, "b": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}))).unwrap();
    let tool = toolbox.get("t").unwrap();
    let contract = tool.contract().unwrap();
    assert!(contract.check_arguments(&json!([[null, []]])).is_ok());
    assert!(contract.check_arguments(&json!([[1]])).is_err());
}

#[test]
fn huge_limits_mean_never_and_zero_limits_are_refused() {
    use std::time::Duration;
    let world = World::new(Kind::Memory);
    let slow = tool("slow", |_| async { Ok("in time") }).timeout(Duration::MAX).effect(Effect::Readonly);
    let once = tool("once", |_| async { Ok("in time") }).timeout(Duration::MAX);
    let runtime = world.runtime([slow.with(|spec| spec.limits.deadline = Some(Duration::MAX)), once]);
    let outcomes = world.run(async move {
        let calls = ["slow", "once"].map(|name| ToolCall::new(name, json!({})));
        runtime.batch(calls.to_vec(), false).await.unwrap()
    });
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()), "{outcomes:?}");
}

#[tokio::test]
async fn a_runtime_without_room_for_an_attempt_is_refused() {
    let error = Windlass::in_memory().in_flight(0).await.err().expect("it can do nothing");
    assert!(matches!(&error, Error::Invalid(_)) && error.to_string().contains("use at least 1"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_not_a_store_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    std::fs::write(&path, "dear diary, this is not a database at all, it only looks a little like one").unwrap();
    let error = Windlass::open(&path).await.err().expect("not a database").to_string();
    assert!(error.contains("notes.txt"), "{error}");
    let error = Windlass::open(dir.path().join("no/such/dir/app.db")).await.err().expect("no directory").to_string();
    assert!(error.contains("no/such/dir"), "{error}");
}

#[tokio::test]
async fn w08_opening_an_open_file_fails_with_the_id_of_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let first = Windlass::open(&path).await.unwrap();
    let error = Windlass::open(&path).await.err().expect("one owner at a time").to_string();
    assert!(error.contains("app.db") && error.contains(&std::process::id().to_string()), "{error}");
    first.shutdown().await.unwrap();
    drop(first);
    Windlass::open(&path).await.expect("free again");
}

#[test]
fn a_result_of_an_unexpected_type_is_an_error_that_names_the_run() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([tool("text", |_| async { Ok("text") })]);
    let outcome = world.run(async move { runtime.call(ToolCall::new("text", json!({}))).await.unwrap() });
    let error = windlass_core::decode::<u32>(&outcome).unwrap_err().to_string();
    assert!(error.contains(&outcome.run.to_string()) && error.contains("expected u32"), "{error}");
    let whole: windlass::Output = windlass_core::decode(&outcome).unwrap();
    assert_eq!(whole.value, json!("text"));
}
