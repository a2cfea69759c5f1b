//! Sources that load lazily, fail, and find what they do not list.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::call::ToolRef;
use crate::tool::{Contract, Effect, Schemas, Source, ToolResult};

/// Lists `listed`, and finds `unlisted` and `renamed` (id `catalog.renamed`) as well.
#[derive(Clone, Default)]
struct Catalogue {
    asked: Arc<[AtomicU32; 3]>,
    down: Arc<AtomicBool>,
}

impl Catalogue {
    const LISTS: usize = 0;
    const FINDS: usize = 1;
    const SCHEMAS: usize = 2;

    fn count(&self, what: usize) -> u32 {
        self.asked[what].load(Ordering::Relaxed)
    }

    /// How often it listed, found and loaded schemas.
    fn counts(&self) -> [u32; 3] {
        [Self::LISTS, Self::FINDS, Self::SCHEMAS].map(|what| self.count(what))
    }

    fn asked(&self, what: usize) -> ToolResult<()> {
        self.asked[what].fetch_add(1, Ordering::Relaxed);
        if self.down.load(Ordering::Relaxed) { Err(ToolError::unavailable("connection refused")) } else { Ok(()) }
    }

    fn tool(&self, name: &str) -> Tool {
        let this = self.clone();
        let body = Tool::new("x", "", |_: Value| async { Ok(()) }).body().clone();
        let resolve = move |spec: &ToolSpec| {
            this.asked(Self::SCHEMAS)?;
            Ok(Schemas::input(json!({"type": "object", "title": spec.name.to_string()})))
        };
        Tool::lazy(ToolSpec::new(name, "Of a catalogue."), resolve, body).effect(Effect::Readonly)
    }
}

impl Source for Catalogue {
    fn list(&self) -> ToolResult<Vec<Tool>> {
        self.asked(Self::LISTS)?;
        Ok(vec![self.tool("listed")])
    }

    fn find(&self, tool: &ToolRef) -> ToolResult<Option<Tool>> {
        self.asked(Self::FINDS)?;
        Ok(match tool {
            ToolRef::Name(name) if &**name == "unlisted" => Some(self.tool("unlisted")),
            ToolRef::Name(name) if &**name == "renamed" => Some(self.tool("renamed").id("catalog.renamed")),
            ToolRef::Id(id) if id.as_str() == "catalog.renamed" => Some(self.tool("renamed").id("catalog.renamed")),
            ToolRef::Name(name) if &**name == "liar" => Some(self.tool("another")),
            _ => None,
        })
    }
}

fn plain(name: &str, description: &str) -> Tool {
    Tool::new(name, description, |_: Value| async { Ok(()) })
}

fn names(tools: &[Arc<Tool>]) -> Vec<&str> {
    tools.iter().map(|tool| &*tool.spec().name).collect()
}

#[test]
fn l03_listing_loads_no_schema_that_was_not_asked_for() {
    let (toolbox, source) = (Toolbox::new(), Catalogue::default());
    toolbox.mount_source("catalogue", source.clone()).unwrap();
    toolbox.insert(plain("own", "")).unwrap();
    toolbox.mount("large", (0..3).map(|n| source.tool(&format!("lazy_{n}")))).unwrap();
    let shown = |listings: crate::tool::Listings| -> Vec<(String, bool)> {
        assert!(listings.failed.is_empty());
        listings.tools.iter().map(|tool| (tool.name.to_string(), tool.input.is_some())).collect()
    };
    let expected = |loaded: &[&str]| {
        ["lazy_0", "lazy_1", "lazy_2", "listed", "own"].map(|name| (name.to_owned(), loaded.contains(&name))).to_vec()
    };
    assert_eq!(shown(toolbox.listing()), expected(&["own"]));
    assert_eq!(names(&toolbox.catalog().tools).len(), 5);
    assert_eq!(source.counts(), [1, 0, 0], "listed once, nothing else");
    let one = toolbox.listing_with(|spec| &*spec.name == "lazy_1");
    assert_eq!(shown(one), expected(&["own", "lazy_1"]));
    assert_eq!(shown(toolbox.listing()), expected(&["own", "lazy_1"]), "what is loaded is shown");
    assert_eq!(source.counts(), [1, 0, 1]);
    assert_eq!(shown(toolbox.listing_with(|_| true)), expected(&["lazy_0", "lazy_1", "lazy_2", "listed", "own"]));
    assert_eq!(source.counts(), [1, 0, 4], "each schema is loaded once");
}

#[test]
fn l03_names_and_ids_that_a_source_never_listed_are_found_once_and_kept() {
    let (toolbox, source) = (Toolbox::new(), Catalogue::default());
    toolbox.mount_source("catalogue", source.clone()).unwrap();
    let found = toolbox.get("unlisted").expect("the source finds it");
    assert!(Arc::ptr_eq(&found, &toolbox.get("unlisted").unwrap()), "one tool, with one gate and one contract");
    assert_eq!(found.contract().unwrap().input()["title"], "unlisted");
    assert!(toolbox.get("unlisted").unwrap().contract().is_ok());
    assert_eq!(source.counts(), [1, 1, 1]);
    let by_id = toolbox.by_id("catalog.renamed").expect("found by id, without the name");
    assert!(Arc::ptr_eq(&by_id, &toolbox.get("renamed").unwrap()));
    assert_eq!(source.counts(), [1, 2, 1]);
    assert!(toolbox.get("listed").is_some() && toolbox.by_id("listed").is_some());
    assert_eq!(source.counts(), [1, 2, 1], "what is listed is not asked for");
    assert!(toolbox.get("nothing").is_none() && toolbox.get("liar").is_none());
    assert_eq!(names(&toolbox.tools()), ["listed"], "what was found is not listed");
}

#[test]
fn l03_a_source_that_fails_is_named_and_hides_no_other_tools() {
    let (toolbox, source, other) = (Toolbox::new(), Catalogue::default(), Catalogue::default());
    source.down.store(true, Ordering::Relaxed);
    toolbox.mount_source("github", source.clone()).unwrap();
    toolbox.mount_source("wiki", other.clone()).unwrap();
    toolbox.insert(plain("own", "")).unwrap();
    let listings = toolbox.listing();
    let failed: Vec<String> = listings.failed.iter().map(ToString::to_string).collect();
    assert_eq!(failed, ["the source `github` failed: unavailable: connection refused"]);
    let shown: Vec<&str> = listings.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(shown, ["listed", "own"]);
    assert!(toolbox.get("unlisted").is_some(), "the other source still finds it");
    let error = crate::call::plan::unknown(&toolbox, &ToolRef::Name("nothing".into())).to_string();
    assert!(
        error.contains("`nothing`") && error.contains("`github` failed: unavailable: connection refused"),
        "{error}"
    );
    toolbox.unmount("wiki");
    source.down.store(false, Ordering::Relaxed);
    let catalog = toolbox.catalog();
    assert!(catalog.failed.is_empty(), "asked again, and listed");
    assert_eq!(names(&catalog.tools), ["listed", "own"]);
    let lists = source.count(Catalogue::LISTS);
    assert_eq!(toolbox.catalog().tools.len(), 2);
    assert_eq!(source.count(Catalogue::LISTS), lists, "a success is kept");
}

#[test]
fn l03_a_lazy_schema_that_fails_is_reported_with_its_tool() {
    let (toolbox, source) = (Toolbox::new(), Catalogue::default());
    toolbox.mount_source("catalogue", source.clone()).unwrap();
    toolbox.insert(plain("own", "")).unwrap();
    source.down.store(true, Ordering::Relaxed);
    let listings = toolbox.listing_with(|_| true);
    let problems: Vec<Option<String>> =
        listings.tools.iter().map(|tool| tool.problem.as_ref().map(ToString::to_string)).collect();
    assert_eq!(problems, [Some("unavailable: connection refused".to_owned()), None]);
    assert!(listings.tools[1].input.is_some());
}

#[test]
fn l03_b02_unlisted_tools_are_hidden_and_shadowed_like_listed_ones() {
    let (toolbox, source) = (Toolbox::new(), Catalogue::default());
    toolbox.mount_source("catalogue", source.clone()).unwrap();
    let guest = toolbox.layer("guest").unwrap();
    guest.show_only(["listed"]);
    assert!(guest.get("unlisted").is_none() && toolbox.get("unlisted").is_some());
    assert!(guest.by_id("catalog.renamed").is_none(), "hidden by name is hidden by id");
    guest.show_all_but(["unlisted"]);
    assert!(guest.get("unlisted").is_none() && guest.get("renamed").is_some());
    toolbox.insert(plain("unlisted", "own")).unwrap();
    assert_eq!(toolbox.get("unlisted").unwrap().spec().about.description, "own", "registered tools come first");
    toolbox.insert(plain("other", "").id("catalog.renamed")).unwrap();
    assert!(toolbox.get("renamed").is_none(), "its id belongs to another tool");
    assert_eq!(&*toolbox.by_id("catalog.renamed").unwrap().spec().name, "other");
}

#[test]
fn b04_a_lazy_schema_is_loaded_and_compiled_once_by_calls_at_the_same_time() {
    let source = Catalogue::default();
    let tool = source.tool("busy");
    let barrier = std::sync::Barrier::new(8);
    let compiled: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let before = Contract::compiled();
                    barrier.wait();
                    assert!(tool.contract().is_ok());
                    Contract::compiled() - before
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((compiled, source.counts()), (1, [0, 0, 1]));
}
