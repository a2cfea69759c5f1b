use serde_json::{Value, json};

use super::*;
use crate::limits::STUB_ABOVE;
use crate::tool::Schemas;
use crate::tool::contract::Contract;
use crate::tool::spec::Deferral;

fn tool(name: &str, description: &str) -> Tool {
    Tool::new(name, description, |_: Value| async { Ok(()) })
}

fn described(toolbox: &Toolbox, name: &str) -> Option<String> {
    toolbox.get(name).map(|tool| tool.spec().about.description.clone())
}

fn names(toolbox: &Toolbox) -> Vec<String> {
    toolbox.tools().iter().map(|tool| tool.spec().name.to_string()).collect()
}

#[test]
fn b01_a_taken_name_is_replaced_and_the_old_tool_returned() {
    let toolbox = Toolbox::new();
    assert!(toolbox.insert(tool("b", "first")).unwrap().is_none());
    let old = toolbox.insert(tool("b", "second")).unwrap().expect("the old one");
    assert_eq!(old.spec().about.description, "first");
    assert_eq!(described(&toolbox, "b").unwrap(), "second");
}

#[test]
fn b01_tools_are_listed_in_a_stable_order() {
    let toolbox = Toolbox::new();
    for name in ["m", "z", "a", "k"] {
        toolbox.insert(tool(name, "")).unwrap();
    }
    assert_eq!(names(&toolbox), ["a", "k", "m", "z"]);
}

#[test]
fn b02_layers_shadow_hide_and_end() {
    let base = Toolbox::new();
    base.insert(tool("read", "base")).unwrap();
    base.insert(tool("write", "base")).unwrap();
    {
        let scope = base.unnamed_layer();
        let other = base.layer("other").unwrap();
        scope.insert(tool("read", "scope")).unwrap();
        scope.hide("write");
        assert_eq!(described(&scope, "read").unwrap(), "scope");
        assert_eq!(names(&scope), ["read"]);
        assert!(scope.by_id("write").is_none(), "hidden by name is hidden by id");
        assert_eq!(names(&other), ["read", "write"], "concurrent scopes do not affect each other");
        assert_eq!(described(&other, "read").unwrap(), "base");
        base.insert(tool("new", "base")).unwrap();
        assert_eq!(described(&scope, "new").unwrap(), "base", "a layer sees its parent's later changes");
        scope.remove("write");
        assert_eq!(described(&scope, "write").unwrap(), "base");
    }
    assert_eq!(described(&base, "read").unwrap(), "base");
    assert_eq!(base.layer_names(), ["other".into()], "an unnamed layer is removed with its last toolbox");
    assert!(base.remove_layer("other") && !base.remove_layer("other"));
}

#[test]
fn b02_a_layer_is_the_same_wherever_its_name_is_used() {
    let base = Toolbox::new();
    base.insert(tool("read", "base")).unwrap();
    let guest = base.layer("guest").unwrap();
    guest.insert(tool("read", "guest")).unwrap();
    assert_eq!(described(&base.layer("guest").unwrap(), "read").unwrap(), "guest");
    let trial = guest.layer("trial").unwrap();
    trial.insert(tool("read", "trial")).unwrap();
    assert_eq!(trial.layers().names(), ["guest".into(), "trial".into()]);
    assert_eq!(described(&trial, "read").unwrap(), "trial");
    // The order of the layers belongs to the scope: the same layers in another order are another scope.
    let other = base.layer("trial").unwrap().layer("guest").unwrap();
    assert_eq!(described(&other, "read").unwrap(), "guest");
    assert_eq!(base.scope(&trial.layers()).unwrap().layers(), trial.layers());
    assert_eq!(guest.layer("guest").unwrap().layers(), guest.layers(), "not stacked on itself");
    let missing = base.with_layers(&["gone".into()].into_iter().collect());
    assert_eq!(missing.err(), Some(NoLayer("gone".into())));
    for bad in ["", "a b", "~x", &"n".repeat(65)] {
        assert_eq!(base.layer(bad).err(), Some(RegisterError::LayerName(bad.to_owned())));
    }
}

#[test]
fn b02_a_layer_may_show_only_some_tools_including_ones_registered_later() {
    let base = Toolbox::new();
    base.insert(tool("read", "base")).unwrap();
    base.insert(tool("write", "base")).unwrap();
    let guest = base.layer("guest").unwrap();
    guest.show_only(["read", "list"]);
    guest.insert(tool("mine", "guest")).unwrap();
    guest.mount("source", [tool("theirs", "guest")]).unwrap();
    base.insert(tool("list", "base")).unwrap();
    base.insert(tool("format", "base")).unwrap();
    assert_eq!(names(&guest), ["list", "mine", "read", "theirs"]);
    assert!(guest.by_id("format").is_none());
    guest.hide("list");
    guest.show_all_but(["write", "mine"]);
    assert_eq!(names(&guest), ["format", "list", "mine", "read", "theirs"]);
}

#[test]
fn b02_sources_come_and_go_as_a_whole() {
    let toolbox = Toolbox::new();
    toolbox.insert(tool("mine", "own")).unwrap();
    toolbox.mount("files", [tool("mine", "source"), tool("ls", "source")]).unwrap();
    assert_eq!(described(&toolbox, "mine").unwrap(), "own");
    let before = toolbox.snapshot();
    let refused = toolbox.mount("files", [tool("cat", ""), tool("bad name", "")]);
    assert_eq!(refused.unwrap_err(), RegisterError::Name("bad name".to_owned()));
    assert_eq!(names(&toolbox), ["ls", "mine"], "a refused mount changes nothing");
    toolbox.mount("files", [tool("cat", "")]).unwrap();
    assert_eq!(names(&toolbox), ["cat", "mine"]);
    assert!(before.by_name("ls").is_some(), "a snapshot keeps what it saw");
    assert!(toolbox.unmount("files"));
    assert!(!toolbox.unmount("files"));
    assert_eq!(names(&toolbox), ["mine"]);
}

#[test]
fn l02_ids_are_stable_beside_names_and_may_have_aliases() {
    let toolbox = Toolbox::new();
    let renamed = tool("fetch_page", "").id("web.fetch").with(|spec| spec.aliases.push("fetch".into()));
    toolbox.insert(renamed).unwrap();
    assert_eq!(toolbox.by_id("web.fetch").unwrap().spec().name.as_ref(), "fetch_page");
    assert_eq!(toolbox.by_id("fetch").unwrap().spec().name.as_ref(), "fetch_page");
    assert!(toolbox.get("web.fetch").is_none(), "a tool is not found by its id where a name is expected");
    let taken = toolbox.insert(tool("other", "").id("fetch")).unwrap_err().to_string();
    assert!(taken.contains("`other`") && taken.contains("`fetch_page`"), "{taken}");
}

#[test]
fn l03_contracts_of_big_sources_are_resolved_on_first_use_and_kept() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let asked = Arc::new(AtomicU32::new(0));
    let counter = asked.clone();
    let lazy = Tool::lazy(
        ToolSpec::new("big", "").clone(),
        move |spec| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Schemas::input(json!({"type": "object", "title": spec.name.to_string()})))
        },
        tool("x", "").body().clone(),
    );
    let toolbox = Toolbox::new();
    toolbox.mount("source", [lazy]).unwrap();
    assert_eq!(toolbox.tools().len(), 1);
    assert_eq!(asked.load(Ordering::Relaxed), 0, "listing specs resolves nothing");
    let by_name = toolbox.get("big").unwrap();
    assert_eq!(by_name.contract().unwrap().input()["title"], "big");
    assert!(toolbox.by_id("big").unwrap().contract().is_ok());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn b04_a_bad_schema_is_refused_at_registration() {
    let toolbox = Toolbox::new();
    let bad = Tool::atomic(ToolSpec::new("bad", ""), Schemas::input(json!({"type": 3})), Never);
    let error = toolbox.insert(bad).unwrap_err().to_string();
    assert!(error.contains("input schema of tool `bad`"), "{error}");
    assert!(toolbox.tools().is_empty());
    let before = Contract::compiled();
    toolbox.insert(tool("good", "")).unwrap();
    assert!(Contract::compiled() > before, "compiled at registration, not at the first call");
}

struct Never;

impl crate::tool::Atomic for Never {
    fn attempt(
        &self,
        _: crate::call::Call,
    ) -> futures_util::future::BoxFuture<'static, Result<crate::tool::Output, ToolError>> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn e01_specs_that_contradict_themselves_are_refused() {
    use std::time::Duration;
    let check = |change: fn(&mut ToolSpec), word: &str| {
        let error = Toolbox::new().insert(tool("t", "").with(change)).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("`t`"), "{word}: {error}");
    };
    check(
        |spec| {
            spec.effect = Effect::Readonly;
            spec.hints.destructive = true;
        },
        "readonly",
    );
    check(|spec| spec.limits.timeout = Some(Duration::ZERO), "timeout of zero");
    check(|spec| spec.limits.deadline = Some(Duration::ZERO), "deadline of zero");
    check(|spec| spec.limits.in_flight = Some(0), "limit of zero");
    check(|spec| spec.limits.per_second = Some(0), "limit of zero");
    check(|spec| spec.guards.approval = Approval::When(" ".into()), "approval condition");
    check(
        |spec| {
            spec.hints.destructive = true;
            spec.limits.retry = Some(crate::tool::spec::Retry::attempts(2));
        },
        "never retried",
    );
}

#[test]
fn e01_deferral_decides_what_a_large_toolbox_shows() {
    let toolbox = Toolbox::new();
    toolbox.insert(tool("always", "").with(|spec| spec.about.deferral = Deferral::Always)).unwrap();
    toolbox.insert(tool("auto", "")).unwrap();
    let stub = |name: &str| {
        let listing = toolbox.listing().tools;
        listing.iter().find(|tool| &*tool.name == name).unwrap().input.is_none()
    };
    assert!(stub("always") && !stub("auto"));
    for n in 0..STUB_ABOVE {
        toolbox.insert(tool(&format!("t{n}"), "").with(|spec| spec.about.deferral = Deferral::Never)).unwrap();
    }
    assert!(stub("auto") && !stub("t0"));
}

#[test]
fn many_tools_register_in_linear_time() {
    let toolbox = Toolbox::new();
    for n in 0..2_000 {
        let spec = ToolSpec::new(format!("t{n}"), "");
        toolbox.insert(Tool::lazy(spec, |_| Ok(Schemas::any()), tool("x", "").body().clone())).unwrap();
    }
    assert_eq!(toolbox.tools().len(), 2_000);
}

#[test]
fn a_tool_that_is_mounted_again_keeps_its_counts_unless_its_limits_changed() {
    let toolbox = Toolbox::new();
    let limited = |per_second: u32, in_flight: usize| {
        tool("slow", "Slow.").with(|spec| {
            spec.limits.per_second = Some(per_second);
            spec.limits.in_flight = Some(in_flight);
        })
    };
    let next = || toolbox.get("slow").unwrap().gate().expect("it has limits").reserve(0).as_millis();
    let mounted = |per_second, in_flight| toolbox.mount("file", [limited(per_second, in_flight)]).unwrap();
    mounted(4, 1);
    assert_eq!((next(), next()), (0, 250));
    let gate = toolbox.get("slow").unwrap().gate().unwrap();
    let mut first = gate.enter().unwrap();
    let cx = &std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.poll(cx).is_ready());
    mounted(4, 1);
    assert_eq!(next(), 500, "the third start of the first second");
    let enter = || toolbox.get("slow").unwrap().gate().unwrap().enter().unwrap();
    assert!(enter().poll(cx).is_pending(), "the running call still counts");
    mounted(4, 2);
    assert_eq!(next(), 750, "the rate is the same as before");
    assert!(enter().poll(cx).is_ready(), "the changed limit starts from zero");
    mounted(1, 2);
    assert_eq!((next(), next()), (0, 1000), "a changed rate starts from zero");
}
