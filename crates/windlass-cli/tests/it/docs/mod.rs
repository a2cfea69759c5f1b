//! The chapters in `docs/`: executes every command they show, and compares the output. Rust programs are tested with the
//! documentation tests of `tests/`.

mod chapter;
mod shell;
mod shown;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::world::World;
use chapter::{Block, Kind, Shown, blocks, commands, folder};
use shell::Shell;

/// In the order in which they are read.
const CHAPTERS: [&str; 23] = [
    "start",
    "agent-backend",
    "tools",
    "attributes",
    "scripts",
    "bodies",
    "outputs",
    "overload",
    "runs",
    "sessions",
    "session-tools",
    "turns",
    "files",
    "promise",
    "config",
    "people",
    "principals",
    "connections",
    "operating",
    "http",
    "testing",
    "limits",
    "questions",
];

/// Pages that are not chapters: the reference of keys is generated, and the others are written for contributors.
const OTHER_PAGES: [&str; 3] = ["keys", "contract", "decisions"];

/// The length limit of a chapter, not counting programs that are also files in `examples/`.
const MAX_LINES: usize = 200;

/// How many blocks may be shown without being executed. Each needs a reason.
const MAX_NOT_RUN: usize = 4;

fn page(name: &str) -> String {
    let path = folder().join(name).with_extension("md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Executes all blocks of a page, and then reports every difference.
fn follow(name: &str, blocks: &[Block]) {
    let mut shell = Shell::new();
    let mut wrong = Vec::new();
    for block in blocks {
        if let Err(problems) = step(&mut shell, block) {
            wrong.extend(problems.into_iter().map(|problem| format!("{name}.md, line {}: {problem}", block.line)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn step(shell: &mut Shell, block: &Block) -> Result<(), Vec<String>> {
    match &block.kind {
        Kind::File(name) => shell.save(name, &block.text, false),
        Kind::Added(name) => shell.save(name, &block.text, true),
        Kind::Config => {
            shell.save(".shown.toml", &block.text, false);
            // A webhook needs its secret to be valid.
            let check = "HOOK_KEY=0123456789abcdef windlass --config .shown.toml check";
            return shell.script(check).map_err(|problem| vec![problem]);
        }
        Kind::Script => {
            return shell.script(&block.text).map_err(|problem| vec![format!("{}{problem}", block.text)]);
        }
        Kind::Console { eventually } => {
            let run = |shown: Shown| {
                let report = |problem| format!("$ {}\n{problem}", shown.command);
                shell.check(&shown, *eventually).map_err(report).err()
            };
            let wrong: Vec<String> = commands(&block.text).into_iter().filter_map(run).collect();
            return if wrong.is_empty() { Ok(()) } else { Err(wrong) };
        }
        Kind::Example(name) => {
            let file = std::fs::read_to_string(folder().join("../examples").join(name));
            let file = file.map_err(|error| vec![format!("examples/{name}: {error}")])?;
            if file != block.text {
                return Err(vec![format!("this program differs from examples/{name}")]);
            }
        }
        Kind::Rust | Kind::Compiled | Kind::Text | Kind::NotRun(_) => {}
    }
    Ok(())
}

macro_rules! chapters {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            follow($name, &blocks(&page($name)));
        })*

        #[test]
        fn every_chapter_is_executed() {
            assert_eq!([$($name),*], CHAPTERS);
        }
    };
}

chapters! {
    the_examples_of_the_chapter_on_starting_work: "start";
    the_examples_of_the_chapter_on_an_agent_backend_work: "agent-backend";
    the_examples_of_the_chapter_on_tools_work: "tools";
    the_examples_of_the_chapter_on_attributes_work: "attributes";
    the_examples_of_the_chapter_on_scripts_work: "scripts";
    the_examples_of_the_chapter_on_durable_bodies_work: "bodies";
    the_examples_of_the_chapter_on_outputs_work: "outputs";
    the_examples_of_the_chapter_on_overload_work: "overload";
    the_examples_of_the_chapter_on_runs_work: "runs";
    the_examples_of_the_chapter_on_sessions_work: "sessions";
    the_examples_of_the_chapter_on_the_tools_of_sessions_work: "session-tools";
    the_examples_of_the_chapter_on_turns_work: "turns";
    the_examples_of_the_chapter_on_files_work: "files";
    the_examples_of_the_chapter_on_the_promise_work: "promise";
    the_examples_of_the_chapter_on_the_config_work: "config";
    the_examples_of_the_chapter_on_people_work: "people";
    the_examples_of_the_chapter_on_principals_work: "principals";
    the_examples_of_the_chapter_on_connections_work: "connections";
    the_examples_of_the_chapter_on_operating_work: "operating";
    the_examples_of_the_chapter_on_http_work: "http";
    the_examples_of_the_chapter_on_testing_work: "testing";
    the_examples_of_the_chapter_on_limits_work: "limits";
    the_examples_of_the_chapter_of_questions_work: "questions";
}

#[test]
fn the_examples_of_the_readme_work() {
    let mut shown = blocks(&page("../README"));
    // The commands for a new machine: one is tested with the demo, the other runs this test.
    shown.retain(|block| block.kind != Kind::Script);
    follow("README", &shown);
}

#[test]
fn the_chapters_are_few_and_short() {
    let pages = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let other: Vec<String> = OTHER_PAGES.iter().map(|name| format!("{name}.md")).collect();
    let found: BTreeSet<String> = pages.filter(|name| name.ends_with(".md") && !other.contains(name)).collect();
    let expected = CHAPTERS.iter().map(|name| format!("{name}.md")).collect();
    assert_eq!(found, expected);
    for name in CHAPTERS {
        let page = page(name);
        assert!(page.starts_with("# "), "docs/{name}.md has no title");
        let files = blocks(&page).into_iter().filter(|block| matches!(block.kind, Kind::Example(_)));
        let lines = page.lines().count() - files.map(|block| block.text.lines().count()).sum::<usize>();
        let widest = page.lines().map(|line| line.chars().count()).max();
        assert!(lines <= MAX_LINES, "docs/{name}.md has {lines} lines, more than {MAX_LINES}");
        assert!(widest <= Some(130), "docs/{name}.md has a line of {widest:?} characters");
    }
}

#[test]
fn few_blocks_are_shown_without_being_executed() {
    let mut not_run = Vec::new();
    for name in CHAPTERS {
        for Block { line, kind, text } in blocks(&page(name)) {
            match kind {
                Kind::NotRun(reason) => {
                    assert!(
                        reason.split(' ').count() >= 3,
                        "docs/{name}.md, line {line}: the reason why this is not executed is too short"
                    );
                    not_run.push(format!("docs/{name}.md, line {line}: {reason}"));
                }
                Kind::Compiled => not_run.push(format!("docs/{name}.md, line {line}: only compiled")),
                Kind::Text => {
                    let commands = ["$ ", "curl ", "windlass ", "cargo "];
                    let hidden = text.lines().find(|line| commands.iter().any(|word| line.starts_with(word)));
                    assert_eq!(hidden, None, "docs/{name}.md, line {line}: commands belong in a console block");
                }
                _ => {}
            }
        }
    }
    assert!(not_run.len() <= MAX_NOT_RUN, "{not_run:#?}");
}

#[test]
fn programs_in_the_chapters_are_tested() {
    let tested = std::fs::read_to_string(folder().join("../tests/it/lib.rs")).unwrap();
    for name in CHAPTERS {
        assert!(tested.contains(&format!("docs/{name}.md")), "tests/it/lib.rs does not include docs/{name}.md");
    }
}

#[test]
fn links_have_existing_targets() {
    let (readme, index) = (page("../README"), page("start"));
    for name in CHAPTERS {
        assert!(readme.contains(&format!("](docs/{name}.md)")), "README.md does not name docs/{name}.md");
        assert!(name == "start" || index.contains(&format!("]({name}.md)")), "docs/start.md does not name {name}.md");
        for target in page(name).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = target.starts_with("https://");
            assert!(outside || file.is_empty() || folder().join(file).exists(), "docs/{name}.md: {target}");
        }
    }
}

#[test]
fn every_attribute_of_a_tool_is_documented() {
    let source = std::fs::read_to_string(folder().join("../crates/windlass-macros/src/attributes.rs")).unwrap();
    let names = source.split("    row(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let page = page("attributes");
    let missing: Vec<&str> = names.filter(|name| !page.contains(&format!("\n| `{name}"))).collect();
    assert!(missing.is_empty(), "docs/attributes.md does not list {missing:?}");
}

/// The reference of keys, generated from the program's own schema.
fn reference(schema: &Value) -> String {
    let mut page =
        "# Every key of windlass.toml\n\nGenerated from `windlass check --schema`; [the chapter on the config](config.md) \
                    introduces them.\n"
            .to_owned();
    section(&mut page, "", schema);
    page
}

fn section(page: &mut String, path: &str, schema: &Value) {
    let Some(keys) = schema["properties"].as_object() else { return };
    if !path.is_empty() {
        page.push_str(&format!("\n## {path}\n\n| key | |\n|---|---|\n"));
        for (key, schema) in keys {
            let words = schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
            page.push_str(&format!("| `{key}` | {} |\n", words.join(" ").replace('|', "\\|")));
        }
    }
    for (key, schema) in keys {
        let dot = if path.is_empty() { String::new() } else { format!("{path}.") };
        section(page, &format!("{dot}{key}"), schema);
        section(page, &format!("{dot}{key}.NAME"), &schema["additionalProperties"]);
        for other in schema["anyOf"].as_array().into_iter().flatten() {
            section(page, &format!("{dot}{key}"), other);
        }
    }
}

#[test]
fn the_reference_of_keys_is_current() {
    let schema: Value = serde_json::from_str(&World::empty().ok(&["check", "--schema"])).unwrap();
    let generated = reference(&schema);
    let path = folder().join("keys.md");
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(generated == stored, "docs/keys.md is out of date: run this test with WINDLASS_BLESS=1 to write it");
}
