//! Checks what the pages for contributors and README.md say about the code itself.

#![allow(clippy::expect_used)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The rules of the journal. ARCHITECTURE.md must contain them word for word.
const RULES: [&str; 5] = [
    "Only the lease owner appends to a run's journal, at `expected_seq`; everyone else writes to its mailbox. What the \
     owner consumes from the mailbox becomes a record; \"the Nth signal\" means consumption order.",
    "A body may see its own result before it is durable; **nothing leaves the process** (an attempt, an event, an \
     answer, a spawn) until everything it depends on is. A `readonly` attempt may run ahead. (So a chain of `once` steps \
     costs N+1 syncs, not 2N, and read-heavy runs do not wait for the disk at all until they act or answer.)",
    "An operation once polled is finished, parked, or poisons its `Ctx` (run held: \"abandoned operation at path …\"). \
     Races are spelled `first`. Replay never depends on timing, map order, or a value without a record.",
    "A store error or an unknown commit is never shown to a body: the body stops, the journal is reloaded, and replay \
     decides.",
    "Identical resubmission of a commit returns the original answer; a stale epoch or sequence is refused and its body \
     stopped.",
];

const PROMISE: &str = "A recorded result is never run again. An attempt whose result was not recorded is repeated only if \
     it was declared safe to repeat; otherwise it is *in doubt*, and is settled by the tool itself, by policy, or by a \
     person. Nothing is lost silently.";

/// Most lines of a source file.
const MOST_LINES: usize = 600;

/// README.md has fewer lines than this: a newcomer reads all of it.
const README_LINES: usize = 200;

/// ARCHITECTURE.md has fewer words than this. Depth belongs in `docs/design/`.
const ARCHITECTURE_WORDS: usize = 2_500;

/// Subjects that do not say what acts. The caller, the owner, the worker or the operator does.
const VAGUE: [&str; 5] = ["whoever", "somebody", "nobody", "everybody", "anybody"];

/// Files and texts in which a person, or a name made of such a word, is meant.
const NOT_VAGUE: [(&str, &str); 1] = [("tests/it/golden.rs", "nobody knows")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace is there")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Rust file below `folder`, with its path from the root.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).expect("sources are text")));
            }
        }
    }
    found.sort();
    found
}

/// The code of a file, without comments and without its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Files below `folder` whose code contains one of `words`.
fn users(folder: &str, words: &[&str]) -> BTreeSet<String> {
    let uses = |text: &str| words.iter().any(|word| code(text).contains(word));
    sources(folder).into_iter().filter(|(_, text)| uses(text)).map(|(name, _)| name).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn cargo(args: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args).current_dir(root()).output().expect("cargo can be started");
    assert!(output.status.success(), "cargo {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints text")
}

/// What a package of the workspace names as its ordinary dependencies.
fn dependencies(package: &str) -> BTreeSet<String> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1", "--locked"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("a workspace has packages");
    let found = packages.iter().find(|found| found["name"] == package);
    let named = found.unwrap_or_else(|| panic!("there is no package `{package}`"))["dependencies"].as_array();
    let ordinary = named.into_iter().flatten().filter(|dependency| dependency["kind"].is_null());
    ordinary.filter_map(|dependency| dependency["name"].as_str()).map(str::to_owned).collect()
}

fn of_ours(package: &str) -> BTreeSet<String> {
    dependencies(package).into_iter().filter(|name| name.starts_with("windlass")).collect()
}

/// The text of a block quote as one line, without quotation marks.
fn one_line(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != ">").collect::<Vec<_>>().join(" ")
}

#[test]
fn dependencies_point_one_way() {
    assert_eq!(of_ours("windlass-core"), set([]));
    assert_eq!(of_ours("windlass-macros"), set([]), "the macro writes paths, it does not use them");
    assert_eq!(of_ours("windlass-store"), set(["windlass-core"]));
    assert_eq!(of_ours("windlass"), set(["windlass-core", "windlass-macros", "windlass-store"]));
    assert_eq!(of_ours("windlass-http"), set([]), "a client of the network knows nothing of runs");
    assert_eq!(of_ours("windlass-tools"), set(["windlass", "windlass-http"]), "a tool is made of what users have");
    assert_eq!(of_ours("windlass-cli"), set(["windlass", "windlass-http", "windlass-server", "windlass-tools"]));
    let server = "a server does nothing a user of the library could not";
    assert_eq!(of_ours("windlass-server"), set(["windlass", "windlass-http"]), "{server}");
    let newcomer = "a newcomer needs one crate, and another one to serve HTTP";
    assert_eq!(of_ours("windlass-examples"), set(["windlass", "windlass-server"]), "{newcomer}");
}

#[test]
fn core_knows_no_database_network_or_executor() {
    // All dependencies of the crate, not only the direct ones.
    let tree = cargo(&["tree", "--package", "windlass-core", "--edges", "normal", "--prefix", "none", "--locked"]);
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("jsonschema"), "the tree is not what it should be: {tree}");
    let families = "tokio async-std smol mio rusqlite libsqlite3 sqlx postgres diesel redb sled reqwest hyper axum tonic \
                    rustls native-tls socket2 rmcp";
    let families: Vec<&str> = families.split_whitespace().collect();
    let strangers: Vec<&&str> =
        names.iter().filter(|name| families.iter().any(|family| name.starts_with(family))).collect();
    assert!(strangers.is_empty(), "windlass-core pulls in {strangers:?}");
}

#[test]
fn one_crate_opens_connections_and_knows_certificates() {
    let words = ["TcpStream::connect", "tokio_rustls", "rustls_native_certs", "client::conn"];
    for folder in ["windlass-tools", "windlass-server", "windlass-cli"] {
        assert_eq!(users(&format!("crates/{folder}/src"), &words), set([]));
    }
}

#[test]
fn the_kernel_reads_no_clock_and_touches_no_file() {
    let words =
        ["SystemTime", "Instant::now", "std::fs", "std::net", "std::process", "std::env", "std::io", "thread::sleep"];
    assert_eq!(users("crates/windlass-core/src", &words), set([]));
}

#[test]
fn only_the_facade_names_tokio() {
    for package in ["windlass-core", "windlass-macros", "windlass-store"] {
        assert!(!dependencies(package).contains("tokio"), "{package} names tokio");
    }
    assert!(dependencies("windlass").contains("tokio"));
}

#[test]
fn the_store_knows_no_tools() {
    let words = ["core::tool", "core::call", "core::ctx", "Toolbox", "ToolSpec", "ToolError", "Contract"];
    let users: Vec<String> = users("crates/windlass-store/src", &words).into_iter().collect();
    // Its tests need an output to record.
    assert!(users.iter().all(|name| name.contains("/tests/")), "{users:?}");
    let replay = self::users("crates/windlass-store/src", &["replay", "Decision"]);
    assert_eq!(replay, set([]), "a store decides nothing about replay");
}

#[test]
fn one_module_knows_the_cel_library() {
    let users = users("crates", &["cel_core::"]);
    let policy = |name: &str| format!("crates/windlass-core/src/policy/{name}.rs");
    assert_eq!(users, ["cel", "lower", "meter", "tree"].map(policy).into());
    assert!(!dependencies("windlass").contains("cel-core"));
}

#[test]
fn one_module_confines_commands() {
    let sandbox = "crates/windlass-tools/src/sandbox/";
    let users = users("crates", &["landlock::", "seccompiler::"]);
    assert_eq!(
        users,
        set(["confine.rs", "filter.rs"].map(|name| format!("{sandbox}{name}")).each_ref().map(String::as_str))
    );
}

#[test]
fn one_module_decides_replay() {
    let core = "crates/windlass-core/src";
    assert_eq!(users(core, &["fn replay("]), set(["crates/windlass-core/src/run/replay.rs"]));
    assert_eq!(users(core, &["enum Decision"]), set(["crates/windlass-core/src/run/replay.rs"]));
    // Only the machine calls it; all others call the machine.
    let askers = users(core, &[" replay(", "replay::replay", "replay::unasked"]);
    assert_eq!(askers, set(["crates/windlass-core/src/run/machine.rs", "crates/windlass-core/src/run/replay.rs"]));
    // What the journal has at a path is read where it is folded and where it is decided upon.
    let readers = users(core, &["history::OpState", "history::{OpState, RecordedOp}", "enum OpState {\n    Accepted"]);
    let allowed = ["run/history.rs", "run/replay.rs"];
    for reader in &readers {
        assert!(allowed.iter().any(|allowed| reader.ends_with(allowed)), "{reader} looks into the history");
    }
    assert!(readers.contains("crates/windlass-core/src/run/replay.rs"), "{readers:?}");
}

#[test]
fn the_run_machine_awaits_nothing() {
    for file in ["run/machine.rs", "run/outbox.rs", "run/history.rs", "run/replay.rs"] {
        let text = code(&read(Path::new("crates/windlass-core/src").join(file)));
        for word in ["async ", ".await", "Future", "Waker", "Context<", "dyn Store", "dyn Clock", "Mutex"] {
            assert!(!text.contains(word), "{file} contains `{word}`");
        }
    }
}

#[test]
fn the_run_machine_knows_neither_calls_nor_bodies_nor_their_driver() {
    let others = ["crate::call", "crate::ctx", "crate::kernel", "crate::driver", "crate::take_up", "crate::runtime"];
    for file in ["machine", "replay", "history", "outbox", "record", "parks", "state", "intent", "restored"] {
        let text = code(&read(format!("crates/windlass-core/src/run/{file}.rs")));
        for other in others {
            assert!(!text.contains(other), "run/{file}.rs imports `{other}`");
        }
    }
    let roster = code(&read("crates/windlass-core/src/roster.rs"));
    for word in ["Store", "Future", ".await", "crate::kernel", "crate::env"] {
        assert!(!roster.contains(word), "roster.rs contains `{word}`");
    }
    let env = code(&read("crates/windlass-core/src/env.rs"));
    for word in ["RunId", "crate::run", "crate::roster", "Store"] {
        assert!(!env.contains(word), "env.rs contains `{word}`");
    }
}

#[test]
fn production_code_imports_nothing_of_the_tests() {
    let tests = |name: &str| name.contains("/testing/") || name.contains("/tests") || name.ends_with("/disk.rs");
    let importers = users("crates", &["crate::testing", "windlass_core::testing", "planted("]);
    let importers: Vec<_> =
        importers.iter().filter(|name| !tests(name) && !name.ends_with("windlass/src/lib.rs")).collect();
    assert!(importers.is_empty(), "{importers:?}");
    // The binary and the server are built without it.
    for package in ["windlass-cli", "windlass-server"] {
        let tree =
            cargo(&["tree", "--locked", "-p", package, "-e", "features,normal", "--prefix", "none", "-f", "{p} {f}"]);
        let core = tree.lines().find(|line| line.starts_with("windlass-core ")).expect("it stands on the kernel");
        assert!(!core.contains("testing"), "{package} is built with {core}");
    }
}

/// A struct with many fields must have its reason beside it.
#[test]
fn no_struct_of_the_kernel_has_more_than_twelve_fields_without_a_reason() {
    for (name, text) in sources("crates/windlass-core/src").into_iter().filter(|(name, _)| !name.contains("/testing/"))
    {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !(line.contains("struct ") && line.ends_with('{') && !line.starts_with(' ')) {
                continue;
            }
            let body = lines[at + 1..].iter().take_while(|line| **line != "}");
            let is_field = |line: &&&str| line.starts_with("    ") && !line.starts_with("     ") && line.ends_with(',');
            let fields = body.filter(is_field).filter(|line| line.contains(": ")).count();
            let reason = lines[..at].iter().rev().take_while(|line| line.starts_with("//") || line.starts_with('#'));
            let has_reason = reason.into_iter().any(|line| line.contains("Many fields:"));
            assert!(fields <= 12 || has_reason, "{name}: `{line}` has {fields} fields and no `Many fields:` beside it");
        }
    }
}

#[test]
fn one_module_converts_errors_for_the_outside() {
    let view = "crates/windlass-core/src/tool/view.rs";
    // `Display`, for people with access to the process, uses it.
    let viewers = users("crates", &["ErrorView"]);
    assert_eq!(viewers, set([view, "crates/windlass-core/src/tool/error.rs"]));
    let literals = ["\"error\":", "\"error\" :", "\\\"error\\\"", "{\"kind\"", "\"violations\":"];
    for folder in ["crates/windlass-core/src", "crates/windlass-store/src", "crates/windlass/src"] {
        for name in users(folder, &literals) {
            assert_eq!(name, view, "writes an error as JSON itself");
        }
    }
}

#[test]
fn no_source_file_is_too_long() {
    let long: Vec<String> = ["crates", "examples", "tests", "xtask"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|(_, text)| text.lines().count() > MOST_LINES)
        .map(|(name, text)| format!("{name}: {} lines", text.lines().count()))
        .collect();
    assert!(long.is_empty(), "split what has more than {MOST_LINES} lines: {long:#?}");
}

#[test]
fn the_architecture_has_the_five_rules_word_for_word() {
    let page = one_line(&read("ARCHITECTURE.md"));
    for (number, rule) in (1..).zip(RULES) {
        assert!(page.contains(&format!("{number}. {}", one_line(rule))), "rule {number} is not there word for word");
    }
}

#[test]
fn readme_and_architecture_make_the_same_promise() {
    for page in ["README.md", "ARCHITECTURE.md"] {
        assert!(one_line(&read(page)).contains(&one_line(PROMISE)), "{page} does not make the promise word for word");
    }
    let crate_page = one_line(&read("crates/windlass/src/docs/crate.md"));
    assert!(crate_page.contains(&one_line(PROMISE)), "the crate's documentation promises something else");
}

/// The text between backquotes on a page, outside of its code blocks.
fn quoted(page: &str) -> Vec<String> {
    let prose: Vec<&str> = page.split("```").step_by(2).collect();
    prose.iter().flat_map(|prose| prose.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// ARCHITECTURE.md and the pages for contributors below `docs/`, with their text.
fn contributor_pages() -> Vec<(String, String)> {
    let mut pages = vec!["ARCHITECTURE.md".to_owned(), "docs/decisions.md".to_owned()];
    for entry in fs::read_dir(root().join("docs/design")).expect("there are design pages") {
        pages.push(format!("docs/design/{}", entry.expect("a folder can be read").file_name().to_string_lossy()));
    }
    pages.sort();
    pages.into_iter().map(|name| (name.clone(), read(name))).collect()
}

#[test]
fn every_file_and_test_the_pages_name_exists() {
    let files: BTreeSet<String> = ["crates", "examples", "tests", "xtask"]
        .iter()
        .flat_map(|folder| sources(folder))
        .map(|(name, _)| name)
        .collect();
    let all: String = ["crates", "tests"].iter().flat_map(|folder| sources(folder)).map(|(_, text)| text).collect();
    let mut wrong = Vec::new();
    for (page, text) in contributor_pages() {
        let mut tests = 0;
        for word in quoted(&text) {
            if word.ends_with(".rs") {
                if !files.iter().any(|file| *file == word || file.ends_with(&format!("/{word}"))) {
                    wrong.push(format!("{page} names the file `{word}`"));
                }
            } else if word.starts_with("crates/") || word.ends_with('/') {
                let below =
                    ["", "crates/windlass-core/src/", "crates/windlass-server/src/", "crates/windlass-tools/src/"];
                if !below.iter().any(|at| root().join(format!("{at}{word}")).is_dir()) {
                    wrong.push(format!("{page} names the folder `{word}`"));
                }
            } else if word.matches('_').count() >= 2 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                tests += 1;
                if !all.contains(&format!("fn {word}(")) {
                    wrong.push(format!("{page} names the test `{word}`"));
                }
            }
        }
        assert!(tests >= 2, "{page} names only {tests} tests");
    }
    assert!(wrong.is_empty(), "these do not exist: {wrong:#?}");
}

#[test]
fn links_of_the_pages_have_targets() {
    let mut pages = contributor_pages();
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| (name.to_owned(), read(name))));
    for (page, text) in pages {
        let folder = Path::new(&page).parent().expect("a page is in a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = target.starts_with("https://") || file.is_empty();
            assert!(outside || root().join(folder).join(file).exists(), "{page} links to {target}");
        }
    }
}

#[test]
fn the_pages_stay_short() {
    let (lines, words) = (read("README.md").lines().count(), read("ARCHITECTURE.md").split_whitespace().count());
    assert!(lines < README_LINES, "README.md has {lines} lines");
    assert!(words < ARCHITECTURE_WORDS, "ARCHITECTURE.md has {words} words; move depth to docs/design/");
}

/// Every text file of the repository that people write, with its path from the root.
fn texts() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> =
        ["crates", "tests", "xtask", "examples", "docs"].iter().map(|folder| root().join(folder)).collect();
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut files: Vec<PathBuf> = pages.iter().map(|page| root().join(page)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder can be read").path();
            let kind = path.extension().and_then(OsStr::to_str).unwrap_or_default();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if ["rs", "md", "toml", "stderr"].contains(&kind) {
                files.push(path);
            }
        }
    }
    for path in files {
        let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        found.push((name, fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))));
    }
    found.sort();
    found
}

#[test]
fn texts_name_their_subject() {
    let is_vague = |line: &str| {
        let line = line.to_lowercase();
        line.split(|c: char| !c.is_alphanumeric()).any(|word| VAGUE.contains(&word))
    };
    let mut vague = Vec::new();
    let mut used = BTreeSet::new();
    for (name, text) in texts().iter().filter(|(name, _)| name != "tests/it/architecture.rs") {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_vague(line)) {
            match NOT_VAGUE.iter().position(|(file, part)| name == file && line.contains(part)) {
                Some(allowed) => drop(used.insert(allowed)),
                None => vague.push(format!("{name}:{number}: {}", line.trim())),
            }
        }
    }
    assert!(vague.is_empty(), "name the caller, the owner, the worker, …: {vague:#?}");
    let unused: Vec<_> = (0..NOT_VAGUE.len()).filter(|at| !used.contains(at)).map(|at| NOT_VAGUE[at]).collect();
    assert!(unused.is_empty(), "these lines are gone: {unused:#?}");
}

#[test]
fn every_crate_is_on_the_map() {
    let page = read("ARCHITECTURE.md");
    for entry in fs::read_dir(root().join("crates")).expect("there are crates") {
        let name = entry.expect("a folder can be read").file_name().to_string_lossy().into_owned();
        assert!(page.contains(&format!("`crates/{name}`")), "ARCHITECTURE.md has no paragraph on crates/{name}");
    }
}

#[test]
fn cargo_run_is_the_binary() {
    let manifest = read("Cargo.toml");
    assert!(
        manifest.contains("default-members = [\"crates/windlass-cli\"]"),
        "`cargo run -- demo` must run the binary"
    );
}

/// The commands in the code blocks of one section.
fn commands(page: &str, section: &str) -> Vec<String> {
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section:?}"));
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```").skip(1).step_by(2);
    blocks.flat_map(|block| block.lines().skip(1)).filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

#[test]
fn a_fresh_machine_needs_two_commands() {
    let readme = read("README.md");
    assert_eq!(commands(&readme, "Run it"), ["cargo run --release -- demo"]);
    assert_eq!(commands(&readme, "Test it"), ["cargo xtask test"]);
    assert_eq!(readme.matches("```sh").count(), 2, "no other commands are needed");
    let ci = read(".ci/run");
    assert!(ci.trim_end().ends_with("exec cargo xtask test"), "CI runs the command the README names");
}

#[test]
fn the_readme_names_every_example() {
    let readme = read("README.md");
    for (name, _) in sources("examples").iter().filter(|(name, _)| !name.contains("/tests/")) {
        assert!(readme.contains(&format!("]({name})")), "README.md does not name {name}");
    }
}
