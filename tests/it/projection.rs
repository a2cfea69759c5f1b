//! What the model sees, apart from the record: projectors, budgets, reading on.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use windlass::tool::budget::{cut, fit};
use windlass::{Artifact, Content, Outcome, Output, Path, Tool, ToolCall, ToolError};
use windlass_core::Runtime;

use crate::world::{Kind, World, on_every_store, tool};

fn call(world: &World, tool: Tool) -> (Runtime, Outcome) {
    let runtime = Runtime::new(world.another([tool]));
    let caller = runtime.clone();
    let args = json!({"who": "ann"});
    (runtime, world.run(async move { caller.call(ToolCall::new("t", args)).await.unwrap() }))
}

fn table() -> Tool {
    tool("t", |_| async { Ok(json!({"rows": [1, 2, 3], "internal_id": 99})) })
}

#[test]
fn l18_a_projector_makes_what_the_model_sees_and_the_output_stays() {
    on_every_store(|world| {
        let (runtime, outcome) = call(
            &world,
            table().project(|output: &Output, args: &Value| {
                let rows = output.value["rows"].as_array().map_or(0, Vec::len);
                Ok(format!("{rows} rows for {}", args["who"].as_str().unwrap_or("unknown")))
            }),
        );
        assert_eq!(outcome.for_model(), json!("3 rows for ann"));
        assert_eq!(outcome.projection().content, [Content::text("3 rows for ann")]);
        assert_eq!(outcome.value(), Some(&json!({"rows": [1, 2, 3], "internal_id": 99})));
        let run = outcome.run;
        let again = world.run(async move { runtime.attach(run).await.unwrap().remove(0) });
        assert_eq!(again.for_model(), json!("3 rows for ann"), "the same from the journal");
    });
}

#[test]
fn l18_a_failing_projector_degrades_to_text_and_loses_nothing() {
    let world = World::new(Kind::Memory);
    let fail = |_: &Output, _: &Value| Err::<String, _>(ToolError::failed("no"));
    let boom = |_: &Output, _: &Value| -> Result<String, ToolError> { panic!("boom") };
    for tool in [table().project(fail), table().project(boom)] {
        let (_, outcome) = call(&world, tool);
        let whole = json!({"rows": [1, 2, 3], "internal_id": 99});
        assert_eq!((outcome.for_model(), outcome.value()), (whole.clone(), Some(&whole)));
        assert_eq!(outcome.projection().content, [Content::text(whole.to_string())]);
    }
}

#[test]
fn l18_blocks_are_native_and_untrusted_stays_untrusted() {
    let world = World::new(Kind::Memory);
    let picture = || Content::Image(Artifact::new("image/png", [1u8, 2].as_slice()));
    let draw = move |_: &Output, _: &Value| Ok(vec![Content::text("a map"), picture()]);
    let (_, outcome) = call(&world, table().project(draw).with(|spec| spec.hints.open_world = true));
    let projection = outcome.projection();
    assert_eq!(projection.content, [Content::text("a map"), picture()]);
    assert!(projection.untrusted && !projection.failed);
    assert_eq!(outcome.for_model()["untrusted"], true);
    assert_eq!(outcome.for_model()["result"][1]["type"], "image");
    let (_, outcome) = call(&world, tool("t", |_| async { Err::<Value, _>(ToolError::failed("broken")) }));
    let projection = outcome.projection();
    assert!(
        projection.failed && matches!(&projection.content[..], [Content::Text { text }] if text.contains("broken"))
    );
}

#[test]
fn e10_a_large_output_is_cut_for_the_model_and_can_be_read_on() {
    on_every_store(|world| {
        let text: String = (0..10_000).map(|n| format!("Zeile {n} äöü\n")).collect();
        let whole = text.clone();
        let long = tool("t", move |_| {
            let text = whole.clone();
            async move { Ok(text) }
        });
        let (runtime, outcome) = call(&world, long.output_budget(4_096));
        let shown = outcome.for_model().as_str().unwrap().to_owned();
        assert!(shown.len() <= 4_096 && shown.starts_with("Zeile 0") && shown.ends_with("Zeile 9999 äöü\n"), "{shown}");
        assert_eq!(outcome.value(), Some(&json!(text)), "what is computed with is whole");
        let reference = format!("windlass://run/{}/", outcome.run);
        assert!(shown.contains(&reference), "{shown}");
        let (_, after) = shown.split_once(&format!("GET /v1/runs/{}/output?offset=", outcome.run)).unwrap();
        assert!(after.contains(&format!("`windlass runs output {} --offset ", outcome.run)), "{shown}");
        let offset: usize = after.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(&text[..offset], &shown[..offset], "the offset is where the head ends");
        let run = outcome.run;
        let rest = world.run(async move {
            let (mut rest, mut next) = (String::new(), Some(offset));
            while let Some(at) = next {
                let page = runtime.read_output(run, &Path::root(), at, 10_007).await.unwrap();
                rest.push_str(&page.text);
                next = page.next_offset;
                assert_eq!(page.total, text.len());
            }
            assert_eq!(format!("{}{rest}", &text[..offset]), text);
            let artifact = runtime.artifact(run, &Path::root()).await.unwrap();
            assert_eq!((artifact.media_type.as_str(), artifact.bytes()), ("text/plain", Some(text.as_bytes())));
            rest
        });
        assert!(!rest.is_empty());
    });
}

#[test]
fn e10_one_budget_covers_the_value_and_all_text_blocks() {
    on_every_store(|world| {
        let picture = || Content::Image(Artifact::new("image/png", [1u8, 2].as_slice()));
        let (many, long) = ("ä,".repeat(300), "é\n".repeat(1_000));
        let output = Output::value(json!({"rows": many}))
            .with(Content::text("between"))
            .with(picture())
            .with(Content::text(long.clone()))
            .with(Content::text("the end"));
        let full = format!("{}\nbetween\n{long}\nthe end", output.text());
        assert_eq!(output.full_text(), full);
        let blocks = || {
            let made = output.clone();
            tool("t", move |_| std::future::ready(Ok(made.clone())))
        };
        for budget in [400, 1_000, 1_500, 3_000] {
            let (runtime, outcome) = call(&world, blocks().output_budget(budget));
            let shown = outcome.projection().content;
            let texts: Vec<&str> = shown.iter().filter_map(Content::as_text).collect();
            let total: usize = texts.iter().map(|text| text.len()).sum();
            assert!(total <= budget && total + 120 > budget, "{budget}: {total}");
            assert!(texts[0].starts_with(r#"{"rows":"ä,"#) && texts.last().unwrap().ends_with("the end"), "{texts:?}");
            assert_eq!(shown.iter().filter(|block| **block == picture()).count(), 1, "media are not cut");
            let all = texts.join("\n");
            assert_eq!(all.matches("bytes omitted here").count(), 1, "{all}");
            assert!(all.contains(&format!(" of {} bytes omitted here", full.len())), "{all}");
            let offset: usize = all.split_once("--offset ").unwrap().1.split_once('`').unwrap().0.parse().unwrap();
            assert!(all.starts_with(&full[..offset]), "the offset is where the head ends: {all}");
            let omitted: usize = all.split_once("[… ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
            let tail = &full[offset + omitted..];
            assert!(all.ends_with(tail) || tail.starts_with('\n'), "{tail}");
            let run = outcome.run;
            let rest = world.run(async move { runtime.read_output(run, &Path::root(), offset, usize::MAX).await });
            assert_eq!(rest.unwrap().text, full[offset..]);
        }
        let (_, outcome) = call(&world, blocks().output_budget(full.len() + 1));
        assert_eq!(outcome.projection().content.len(), 5, "what fits is not cut");
    });
}

#[test]
fn e10_what_fits_the_budget_is_shown_as_it_is() {
    let world = World::new(Kind::Memory);
    let (_, outcome) = call(&world, table().output_budget(45));
    assert_eq!(outcome.for_model(), json!({"rows": [1, 2, 3], "internal_id": 99}));
    let (_, outcome) = call(&world, tool("t", |_| async { Ok(json!({"list": vec![1_000_000; 10_000]})) }));
    let shown = outcome.for_model().as_str().unwrap().to_owned();
    assert!(shown.len() <= windlass::limits::OUTPUT_BUDGET && shown.starts_with(r#"{"list":[1000000,"#), "{shown}");
}

#[test]
fn e10_the_budget_holds_for_projected_text_and_for_errors() {
    let world = World::new(Kind::Memory);
    let (_, outcome) = call(&world, table().output_budget(600).project(|_: &Output, _: &Value| Ok("é".repeat(10_000))));
    let shown = outcome.for_model().as_str().unwrap().to_owned();
    assert!(shown.len() <= 600 && shown.contains("output?offset=0 or "), "{shown}");
    let (_, outcome) = call(&world, tool("t", |_| async { Err::<Value, _>(ToolError::failed("é".repeat(10_000))) }));
    let message = outcome.for_model()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.len() <= windlass::limits::ERROR_BYTES && message.contains("of 20000 bytes"), "{message}");
}

#[test]
fn e10_reading_something_missing_says_what_is_wrong() {
    on_every_store(|world| {
        let (runtime, outcome) = call(&world, tool("t", |_| async { Err::<Value, _>(ToolError::failed("broken")) }));
        let run = outcome.run;
        let (failed, nowhere, unknown) = world.run(async move {
            let unknown: windlass::RunId = "01890000-0000-7000-8000-000000000000".parse().unwrap();
            let path: Path = "3/1".parse().unwrap();
            (
                runtime.read_output(run, &Path::root(), 0, 10).await.unwrap_err().to_string(),
                runtime.read_output(run, &path, 0, 10).await.unwrap_err().to_string(),
                runtime.artifact(unknown, &path).await.unwrap_err().to_string(),
            )
        });
        assert!(failed.contains("has no output at /: it ended with an error (failed)"), "{failed}");
        assert!(nowhere.contains("has no output at 3/1: the run has no operation there"), "{nowhere}");
        assert!(unknown.contains("01890000-0000-7000-8000-000000000000"), "{unknown}");
    });
}

#[test]
fn e05_the_artifact_is_the_original_the_tool_kept() {
    let world = World::new(Kind::Memory);
    let raw = || Artifact::new("text/csv", b"a,b\n1,2\n".as_slice()).named("t.csv");
    let (runtime, outcome) =
        call(&world, tool("t", move |_| async move { Ok(Output::value(json!("one row")).raw(raw())) }));
    let run = outcome.run;
    let artifact = world.run(async move { runtime.artifact(run, &Path::root()).await.unwrap() });
    assert_eq!((artifact, outcome.for_model()), (raw(), json!("one row")));
}

/// Text of all kinds of characters, including combining marks and emoji.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-z ]{0,20}",
        Just("\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("e\u{301}\u{302}".to_owned()),
        Just("👩‍💻".to_owned()),
        Just("漢字".to_owned()),
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn e10_a_cut_is_within_budget_and_its_counts_add_up(text in text(), budget in 0usize..300) {
        let Some(cut) = cut(&text, budget) else {
            prop_assert!(text.len() <= budget);
            return Ok(());
        };
        prop_assert!(text.len() > budget);
        prop_assert!(cut.head.len() + cut.tail.len() <= budget);
        prop_assert!(text.starts_with(cut.head) && text.ends_with(cut.tail));
        prop_assert_eq!(cut.head.len() + cut.omitted_bytes + cut.tail.len(), text.len());
        prop_assert_eq!(cut.total_bytes, text.len());
        let lines = |text: &str| text.matches('\n').count();
        prop_assert_eq!(lines(cut.head) + cut.omitted_lines + lines(cut.tail), lines(&text));
        // Little is dropped to keep characters and their marks whole.
        prop_assert!(cut.head.len() + cut.tail.len() + 2 * 4 * 17 >= budget);
    }

    #[test]
    fn e10_a_text_is_made_to_fit(text in text(), budget in 120usize..400) {
        let shown = fit(&text, budget, |cut| format!("; from {}", cut.head.len()));
        prop_assert!(shown.len() <= budget, "{} > {budget}", shown.len());
        prop_assert_eq!(text.len() <= budget, shown == text);
    }
}

#[test]
fn e10_the_budget_applies_to_the_model_not_to_the_body() {
    let world = World::new(Kind::Memory);
    let long = tool("long", |_| async { Ok("x".repeat(100_000)) }).output_budget(1_000);
    let body = Tool::durable_fn("t", "", |mut ctx: windlass::Ctx, _: Value| async move {
        let text: Value = ctx.call_json("long", json!({})).await?;
        Ok(text.as_str().map_or(0, str::len))
    });
    let runtime = world.runtime([long, body]);
    let outcome = world.run(async move { runtime.call(ToolCall::new("t", Arc::new(json!({})))).await.unwrap() });
    assert_eq!(outcome.value(), Some(&json!(100_000)));
}
