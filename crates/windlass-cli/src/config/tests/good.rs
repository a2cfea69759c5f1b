//! Valid files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use windlass::policy::Unattended;
use windlass::store::{Durability, Retention};
use windlass::tool::Schemas;
use windlass::tool::spec::{Approval, Concurrency, OnDoubt};
use windlass::{Effect, Tool};
use windlass_tools::sandbox::Launcher;

use super::super::keys::{Kind, Section};
use super::super::table::ROOT;
use super::super::{check, load, parse, schema, tree, view};
use super::read;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/windlass.toml")
}

#[test]
fn an_empty_file_is_valid() {
    let config = read("").unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.server.listen.to_string(), super::super::LISTEN);
    assert!(config.store.file.ends_with("windlass.db") && config.store.file.is_absolute(), "{:?}", config.store);
    assert_eq!(config.store.durability, Durability::Full);
    assert_eq!(config.retention, Retention::default());
    assert_eq!(config.policy, windlass::Policy::default());
    assert!(config.webhook.is_none() && config.warnings().is_empty());
}

#[test]
fn every_section_is_read() {
    let config = load(&example()).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.server.listen.port(), 7117);
    assert_eq!(config.server.allowed_hosts, ["tools.example.com"]);
    assert_eq!(config.server.allowed_origins, ["https://app.example.com"]);
    assert_eq!(config.retention.full, Duration::from_secs(30 * 24 * 3_600));
    assert_eq!(config.retention.keys, Duration::MAX);
    let policy = &config.policy;
    assert_eq!(policy.deadline, Some(Duration::from_secs(3_600)));
    assert_eq!(policy.retry.map(|retry| retry.attempts), Some(3), "two retries are three attempts");
    assert_eq!(policy.on_doubt, Some(OnDoubt::Ask));
    assert_eq!(policy.approval, Some(Approval::When("tool.destructive".into())));
    assert_eq!(policy.unattended, Some(Unattended::Wait));
    assert_eq!(policy.output_budget, Some(32 << 10));
    assert!(config.people.attended);
    assert_eq!(config.people.connected, ["github"]);
    assert_eq!(config.limits.drain, Duration::from_secs(10));
    let webhook = config.webhook.as_ref().expect("it has one");
    assert_eq!(webhook.url.to_string(), "https://chat.example.com/hooks/windlass");
    assert_eq!(webhook.secret.to_string(), "${secret:HOOK_KEY}");
}

/// The example without the files it names.
fn without_files() -> super::super::Config {
    let text = std::fs::read_to_string(example()).unwrap();
    let text = text.replace("authorities = [\"secrets/our-ca.pem\"]\n", "");
    let text = text.split("\n[openapi.").next().unwrap_or_default().to_owned();
    parse(&example(), text).unwrap_or_else(|problems| panic!("{problems}"))
}

#[tokio::test]
async fn tools_have_the_settings_of_the_file() {
    let toolbox =
        without_files().toolbox(&Launcher::new(["none"])).await.unwrap_or_else(|problems| panic!("{problems}"));
    let spec = |name: &str| toolbox.get(name).unwrap_or_else(|| panic!("there is no {name}")).spec().clone();
    let resize = spec("resize");
    assert_eq!(resize.effect, Effect::Idempotent);
    assert_eq!(resize.limits.timeout, Some(Duration::from_secs(120)));
    assert_eq!(resize.limits.heartbeat, Some(Duration::from_secs(30)));
    assert_eq!(resize.limits.per_second, Some(5));
    assert_eq!(resize.limits.in_flight, Some(4));
    let retry = resize.limits.retry.expect("it has retries");
    assert_eq!((retry.attempts, retry.base, retry.cap), (4, Duration::from_millis(200), Duration::from_secs(10)));
    assert!(matches!(&resize.guards.concurrency, Concurrency::Keyed(key) if key.source() == "args.file"));
    assert_eq!(resize.guards.connection.as_deref(), Some("github"));
    assert_eq!(toolbox.by_id("shrink").expect("an earlier name").spec().name, resize.name);
    let text =
        toolbox.get("resize").unwrap().narrate("de", windlass::tool::narrate::Phase::Start, &json!({"file": "a.png"}));
    assert_eq!(text.as_deref(), Some("Verkleinere a.png"));
    let charge = spec("charge");
    assert_eq!(charge.effect, Effect::Once);
    assert_eq!(charge.guards.approval, Approval::When("args.cents > 10000".into()));
    assert_eq!(charge.guards.unattended, Some(Unattended::Deny));
    assert_eq!(spec("weather").effect, Effect::Readonly, "by its method");
    assert_eq!(spec("subscribe").effect, Effect::Once, "by its method");
    assert_eq!(spec("order").effect, Effect::Once, "by default");
    let weather = toolbox.get("weather").unwrap();
    let contract = weather.contract().unwrap();
    assert!(contract.check_arguments(&json!({"city": "Bern", "unit": "celsius"})).is_ok());
    let error = contract.check_arguments(&json!({"city": "Bern", "unit": "kelvin", "x": 1})).unwrap_err();
    assert_eq!(error.kind(), "invalid_arguments");
}

#[tokio::test]
async fn a_report_lists_tools_and_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.toml");
    let text = "[tool.b]\ndescription = \"B.\"\ncommand = [\"true\"]\napproval = \"always\"\n\
                [tool.a]\ndescription = \"A.\"\nhttp = { url = \"https://a.example/\" }\n\
                [secrets]\nX = \"env:WINDLASS_TEST_NOT_SET\"\n";
    std::fs::write(&path, text).unwrap();
    let report = check(&path, None).await;
    let text = report.render(false);
    assert!(report.is_usable(), "{text}");
    assert!(
        text.ends_with(&format!("\na  readonly\nb  once, needs approval\n{}: 2 tools, 2 warnings\n", path.display())),
        "{text}"
    );
    let json = report.json();
    assert_eq!(json["ok"], json!(true));
    let tool = json!({"name": "b", "description": "B.", "effect": "once", "approval": "always", "from": "tool.b"});
    assert_eq!(json["tools"][1], tool);
    assert_eq!(json["problems"].as_array().map(Vec::len), Some(2));
    std::fs::write(&path, "[tool.b]\n").unwrap();
    let report = check(&path, None).await;
    assert!(!report.is_usable());
    assert!(report.render(false).ends_with(&format!("{}: 2 errors, 0 warnings\n", path.display())));
}

#[test]
fn the_schema_accepts_the_example_and_refuses_what_the_checker_refuses() {
    let probe = Tool::external("probe", "", Schemas::input(schema()));
    let contract = probe.contract().expect("the schema compiles");
    let json = |text: &str| tree::parse(text).0.json();
    let text = std::fs::read_to_string(example()).unwrap();
    if let Err(error) = contract.check_arguments(&json(&text)) {
        panic!("{error}");
    }
    for bad in [
        "[sever]",
        "[policy]\ntimout = \"5s\"",
        "[policy]\ntimeout = 5",
        "[policy]\ntimeout = \"5 parsecs\"",
        "[policy]\nretries = -1",
        "[policy]\nretries = { base = \"5s\" }",
        "[limits]\nartifact = \"16M\"",
        "[store]\ndurability = \"relax\"",
        "[server]\nallowed_hosts = \"a\"",
        "[secrets]\nX = \"hunter2\"",
        "[webhook]\n",
        "[tool.x]\ncommand = [\"true\"]",
        "[tool.\"a b\"]\ndescription = \"x\"",
        "[tool.x]\ndescription = \"x\"\nexits = { 0 = \"ok\" }",
        "[tool.x]\ndescription = \"x\"\nhints = [\"nice\"]",
        "[tool.x]\ndescription = \"x\"\nhttp = { method = \"FETCH\", url = \"https://a.example/\" }",
    ] {
        assert!(contract.check_arguments(&json(bad)).is_err(), "the schema accepts\n{bad}");
        assert!(read(bad).is_err(), "the checker accepts\n{bad}");
    }
}

/// Every key of the table, with its section.
fn every_key(section: &'static Section, see: &mut dyn FnMut(&'static Section, &'static str, &'static str)) {
    fn below(kind: &'static Kind, see: &mut dyn FnMut(&'static Section, &'static str, &'static str)) {
        match kind {
            Kind::Table(section) => every_key(section, see),
            Kind::Map(_, kind) | Kind::List(kind) => below(kind, see),
            Kind::Either(kinds) => kinds.iter().for_each(|kind| below(kind, see)),
            _ => {}
        }
    }
    for key in section.keys() {
        see(section, key.name, key.doc);
        below(&key.kind, see);
    }
}

#[test]
fn every_key_is_documented_read_and_shown_in_the_example() {
    let text = std::fs::read_to_string(example()).unwrap();
    load(&example()).unwrap_or_else(|problems| panic!("{problems}"));
    let mut number = 0;
    every_key(&ROOT, &mut |section, key, doc| {
        number += 1;
        assert!(doc.ends_with('.') && doc.len() > 5, "`{key}` is not documented: {doc:?}");
        assert!(view::reads::contains(section, key), "`{key}` is never read");
        let shown =
            [format!("{key} = "), format!("[{key}]"), format!("[{key}."), format!(".{key}]"), format!(".{key}.")];
        assert!(shown.iter().any(|shown| text.contains(shown)), "the example does not show `{key}`");
    });
    assert!(number > 90, "{number}");
}
