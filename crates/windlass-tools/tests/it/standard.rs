//! The standard tools.

use serde_json::{Value, json};
use windlass::tool::Layers;
use windlass::{Ctx, Outcome, Output, Tool, Windlass};
use windlass_tools::standard;

fn text() -> String {
    (0..5_000).map(|n| format!("Zeile {n} äöü\n")).collect()
}

fn long() -> Tool {
    Tool::new("long", "returns much", |_: Value| async { Ok(text()) }).output_budget(2_048)
}

fn reader() -> Tool {
    Tool::durable_fn("reads", "reads an output of its own run", |mut ctx: Ctx, _: Value| async move {
        let _: Value = ctx.call_json("long", json!({})).await?;
        let output = format!("windlass://run/{}/0", ctx.run());
        let page: Value = ctx.call_json("read_output", json!({"output": output, "offset": 6, "limit": 3})).await?;
        Ok(Output::value(page))
    })
}

async fn call(windlass: &Windlass, session: Option<&str>, tool: &str, args: Value) -> Outcome {
    let call = windlass::ToolCall::new(tool, args);
    let call = session.map_or(call.clone(), |session| call.session(session));
    windlass.runtime().call(call).await.unwrap()
}

/// Reads on as a model does, from the notice to the end.
async fn read_on(windlass: &Windlass, session: &str, shown: &str) -> String {
    let (head, notice) = shown.split_once("\n[… ").unwrap();
    let (_, after) = notice.split_once("the whole output is ").unwrap();
    let (output, after) = after.split_once(": read on with the tool read_output from offset ").unwrap();
    let mut next: Value = after.split_once(' ').unwrap().0.parse().unwrap();
    assert_eq!(next, head.len());
    let mut read = head.to_owned();
    while next != Value::Null {
        let args = json!({"output": output, "offset": next, "limit": 20_000});
        let outcome = call(windlass, Some(session), "read_output", args).await;
        let page = outcome.for_model()["result"].clone();
        assert_eq!(page["total_bytes"], text().len(), "{page}");
        read.push_str(page["text"].as_str().unwrap());
        next = page["next_offset"].clone();
    }
    read
}

#[tokio::test]
async fn e10_a_model_reads_on_with_the_tool_that_the_notice_names() {
    let folder = tempfile::tempdir().unwrap();
    for builder in [Windlass::in_memory(), Windlass::open(folder.path().join("app.db"))] {
        let windlass = builder.tool(long()).tool(standard::read_output()).tool(reader()).await.unwrap();
        let outcome = call(&windlass, Some("s1"), "long", json!({})).await;
        let shown = outcome.for_model();
        let shown = shown.as_str().unwrap();
        assert!(shown.len() <= 2_048, "{}", shown.len());
        assert_eq!(read_on(&windlass, "s1", shown).await, text());
        let attached = windlass.runtime().attach(outcome.run).await.unwrap().remove(0);
        assert_eq!(attached.for_model(), outcome.for_model(), "the same from the journal");

        let output = format!("windlass://run/{}/", outcome.run);
        for other in [None, Some("s2")] {
            let outcome = call(&windlass, other, "read_output", json!({"output": output})).await;
            assert_eq!(outcome.error().map(windlass::ToolError::kind), Some("denied"), "{other:?}");
        }
        let missing = "windlass://run/01890000-0000-7000-8000-000000000000/";
        let unknown = call(&windlass, Some("s1"), "read_output", json!({"output": missing})).await;
        assert_eq!(unknown.error().map(windlass::ToolError::kind), Some("denied"), "unknown looks like another's");
        let bad = call(&windlass, Some("s1"), "read_output", json!({"output": "elsewhere"})).await;
        assert_eq!(bad.error().map(windlass::ToolError::kind), Some("invalid_arguments"));

        let own = call(&windlass, None, "reads", json!({})).await;
        let expected = json!({"text": "0 ", "next_offset": 8, "total_bytes": text().len()});
        assert_eq!(own.value(), Some(&expected), "a body reads what it called, without a session");
        windlass.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn e10_the_notice_names_the_tool_only_if_the_model_can_use_it() {
    let windlass = Windlass::in_memory().tool(long()).await.unwrap();
    let named = |outcome: &Outcome| outcome.for_model().as_str().unwrap().contains("the tool read_output");
    assert!(!named(&call(&windlass, Some("s1"), "long", json!({})).await), "it is not registered");
    let own = Tool::new("read_output", "another tool of this name", |_: Value| async { Ok(1) });
    windlass.toolbox().insert(own).unwrap();
    assert!(!named(&call(&windlass, Some("s1"), "long", json!({})).await), "it is another tool");
    windlass.toolbox().insert(standard::read_output()).unwrap();
    assert!(named(&call(&windlass, Some("s1"), "long", json!({})).await));
    let alone = call(&windlass, None, "long", json!({})).await;
    assert!(!named(&alone), "without a session, no later call may read it");
    assert!(alone.for_model().as_str().unwrap().contains("`windlass runs output "));
    windlass.layer("guest").unwrap().toolbox().hide("read_output");
    let guest = windlass.in_layers(&Layers::from_iter(["guest".into()])).unwrap();
    assert!(!named(&call(&guest, Some("s1"), "long", json!({})).await), "the layer hides it");
    windlass.toolbox().remove("read_output");
    assert!(!named(&call(&windlass, Some("s1"), "long", json!({})).await), "it was removed");
}
