//! The chapters in `docs/`, read by somebody who types everything they show and compares what comes. Programs in Rust are
//! tested with the documentation of `tests/`.

mod chapter;
mod shell;
mod shown;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::world::World;
use chapter::{Block, Kind, Shown, blocks, commands, folder};
use shell::Shell;

/// In the order in which they are read.
const CHAPTERS: [&str; 10] =
    ["start", "tools", "promise", "config", "people", "operating", "http", "testing", "limits", "questions"];

/// As many lines as somebody reads at a sitting.
const MOST_LINES: usize = 200;

/// Blocks that only say what somebody could type. Each needs a reason.
const MOST_NOT_RUN: usize = 4;

fn page(name: &str) -> String {
    let path = folder().join(name).with_extension("md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Does what a page says, all of it, and then says what was not as shown.
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
            // A webhook that nobody could trust is refused, so its secret must be there.
            let check = "HOOK_KEY=0123456789abcdef windlass --config .shown.toml check";
            return shell.script(check).map_err(|problem| vec![problem]);
        }
        Kind::Script => {
            return shell.script(&block.text).map_err(|problem| vec![format!("{}{problem}", block.text)]);
        }
        Kind::Console { eventually } => {
            let typed = |shown: Shown| {
                let told = |problem| format!("$ {}\n{problem}", shown.command);
                shell.type_in(&shown, *eventually).map_err(told).err()
            };
            let wrong: Vec<String> = commands(&block.text).into_iter().filter_map(typed).collect();
            return if wrong.is_empty() { Ok(()) } else { Err(wrong) };
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
        fn every_chapter_is_followed() {
            assert_eq!([$($name),*], CHAPTERS);
        }
    };
}

chapters! {
    what_the_chapter_on_starting_shows_is_so: "start";
    what_the_chapter_on_tools_shows_is_so: "tools";
    what_the_chapter_on_the_promise_shows_is_so: "promise";
    what_the_chapter_on_the_config_shows_is_so: "config";
    what_the_chapter_on_people_shows_is_so: "people";
    what_the_chapter_on_operating_shows_is_so: "operating";
    what_the_chapter_on_http_shows_is_so: "http";
    what_the_chapter_on_testing_shows_is_so: "testing";
    what_the_chapter_on_limits_shows_is_so: "limits";
    what_the_chapter_of_questions_shows_is_so: "questions";
}

#[test]
fn what_the_readme_shows_is_so() {
    let mut shown = blocks(&page("../README"));
    // The two commands for a fresh machine: one is run with the tests of the demo, the other runs this test.
    shown.retain(|block| block.kind != Kind::Script);
    follow("README", &shown);
}

#[test]
fn the_chapters_are_few_and_short() {
    let pages = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = pages.collect();
    // The reference is made, and not read from one end to the other.
    let wanted = CHAPTERS.iter().chain(&["keys"]).map(|name| format!("{name}.md")).collect();
    assert_eq!(found, wanted);
    for name in CHAPTERS {
        let page = page(name);
        assert!(page.starts_with("# "), "docs/{name}.md has no title");
        let (lines, widest) = (page.lines().count(), page.lines().map(|line| line.chars().count()).max());
        assert!(lines <= MOST_LINES, "docs/{name}.md has {lines} lines: what can be left out?");
        assert!(widest <= Some(130), "docs/{name}.md has a line of {widest:?} characters");
    }
}

#[test]
fn hardly_anything_is_shown_that_is_not_run() {
    let mut not_run = Vec::new();
    for name in CHAPTERS {
        for Block { line, kind, text } in blocks(&page(name)) {
            match kind {
                Kind::NotRun(reason) => {
                    assert!(reason.split(' ').count() >= 3, "docs/{name}.md, line {line}: why is this not run?");
                    not_run.push(format!("docs/{name}.md, line {line}: {reason}"));
                }
                Kind::Compiled => not_run.push(format!("docs/{name}.md, line {line}: it is compiled only")),
                Kind::Text => {
                    let commands = ["$ ", "curl ", "windlass ", "cargo "];
                    let hidden = text.lines().find(|line| commands.iter().any(|word| line.starts_with(word)));
                    assert_eq!(hidden, None, "docs/{name}.md, line {line}: commands are shown in a console");
                }
                _ => {}
            }
        }
    }
    assert!(not_run.len() <= MOST_NOT_RUN, "{not_run:#?}");
}

#[test]
fn programs_in_the_chapters_are_tested() {
    let tested = std::fs::read_to_string(folder().join("../tests/it/lib.rs")).unwrap();
    for name in CHAPTERS {
        assert!(tested.contains(&format!("docs/{name}.md")), "tests/it/lib.rs does not include docs/{name}.md");
    }
}

#[test]
fn links_lead_somewhere() {
    let readme = std::fs::read_to_string(folder().join("../README.md")).unwrap();
    for name in CHAPTERS {
        assert!(readme.contains(&format!("](docs/{name}.md)")), "README.md does not name docs/{name}.md");
        for target in page(name).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = target.starts_with("https://");
            assert!(outside || file.is_empty() || folder().join(file).exists(), "docs/{name}.md: {target}");
        }
    }
}

/// The reference as the program's own schema has it.
fn reference(schema: &Value) -> String {
    let mut page =
        "# Every key of windlass.toml\n\nMade from `windlass check --schema`; [the chapter on the config](config.md) \
                    says what they are for.\n"
            .to_owned();
    section(&mut page, "", schema);
    page
}

fn section(page: &mut String, path: &str, schema: &Value) {
    let Some(keys) = schema["properties"].as_object() else { return };
    if !path.is_empty() {
        page.push_str(&format!("\n## {path}\n\n| key | |\n|---|---|\n"));
        for (key, schema) in keys {
            let said = schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
            page.push_str(&format!("| `{key}` | {} |\n", said.join(" ").replace('|', "\\|")));
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
fn the_reference_of_keys_is_what_the_program_says() {
    let schema: Value = serde_json::from_str(&World::empty().ok(&["check", "--schema"])).unwrap();
    let made = reference(&schema);
    let path = folder().join("keys.md");
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(made == kept, "docs/keys.md is old: run this test with WINDLASS_BLESS=1 to write it anew");
}
