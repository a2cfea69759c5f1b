//! What `#[tool]` makes of a function: the spec, the schemas, typed calls, the plain function. What it refuses is in `ui/`.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::__private::core::tool::spec::{Approval, Background, Deferral, KeyExpression, OnDoubt, Retry, ToolSpec};
use windlass::__private::core::tool::{Concurrency, Effect};
use windlass::prelude::*;

fn spec(tool: impl Into<Tool>) -> ToolSpec {
    tool.into().spec().clone()
}

fn input(tool: impl Into<Tool>) -> Value {
    tool.into().contract().unwrap().input().clone()
}

fn output(tool: impl Into<Tool>) -> Option<Value> {
    tool.into().contract().unwrap().output().cloned()
}

/// Add two numbers.
#[tool(effect = readonly, timeout = "5s")]
pub async fn add(a: f64, b: f64) -> ToolResult<f64> {
    Ok(a + b)
}

#[test]
fn a_function_is_a_tool() {
    let tool = Tool::from(add);
    let spec = tool.spec();
    assert_eq!((&*spec.name, spec.id.as_str()), ("add", "add"));
    assert_eq!(spec.about.description, "Add two numbers.");
    assert_eq!(spec.effect, Effect::Readonly);
    assert_eq!(spec.limits.timeout, Some(Duration::from_secs(5)));
    assert!(!tool.is_durable());
    assert_eq!(
        input(add),
        json!({
            "type": "object",
            "properties": {"a": {"type": "number", "format": "double"}, "b": {"type": "number", "format": "double"}},
            "required": ["a", "b"],
            "additionalProperties": false
        })
    );
    assert_eq!(output(add), Some(json!({"type": "number", "format": "double"})));
    assert_eq!(tool.spec(), add().spec(), "the function makes the tool, and stands for it");
}

#[test]
fn several_tools_fit_into_an_array() {
    let names = [add, search, ping].map(|tool| spec(tool).name);
    assert_eq!(names, ["add", "search", "ping"].map(Into::into));
}

#[tokio::test]
async fn the_plain_function_is_there() {
    assert_eq!(add::body(1.0, 2.5).await.unwrap(), 3.5);
}

#[test]
fn a_typed_call_goes_by_id() {
    let call: ToolCall<f64> = add::call(1.0, 2.5);
    assert_eq!(call.tool(), "add");
    assert_eq!(**call.args(), json!({"a": 1.0, "b": 2.5}));
}

#[tokio::test]
async fn a_variable_may_have_the_name_of_a_tool() {
    let add = add::body(1.0, 1.0).await.unwrap();
    assert_eq!(add, 2.0);
}

/// Search, by a parameter of the same name.
#[tool(effect = readonly)]
async fn search(search: String) -> ToolResult<String> {
    Ok(search)
}

#[tokio::test]
async fn a_parameter_may_have_the_name_of_the_tool() {
    assert_eq!(search::body("x".to_owned()).await.unwrap(), "x");
    assert_eq!(**search::call("x").args(), json!({"search": "x"}));
    assert_eq!(input(search)["required"], json!(["search"]));
}

#[tool(description = "Answers.")]
async fn ping() -> ToolResult<()> {
    Ok(())
}

#[test]
fn a_tool_without_parameters_refuses_extra_properties() {
    let tool = Tool::from(ping);
    let contract = tool.contract().unwrap();
    assert_eq!(*contract.input(), json!({"type": "object", "properties": {}, "additionalProperties": false}));
    assert!(contract.check_arguments(&json!({})).is_ok());
    let error = contract.check_arguments(&json!({"x": 1})).unwrap_err().to_string();
    assert!(error.contains('x'), "{error}");
    assert_eq!(contract.output(), Some(&json!({"type": "null"})));
    assert_eq!(**ping::call().args(), json!({}));
    assert_eq!(spec(ping), ToolSpec::new("ping", "Answers."), "nothing else is set");
}

/// Does everything.
#[tool(
    name = "do.everything",
    id = "acme.everything",
    aliases = ["everything", "all"],
    title = "Everything",
    version = "2.1",
    tags = ["a", "b"],
    effect = idempotent,
    open_world,
    long_running,
    cpu_bound,
    approval = "args.account != 'mine'",
    key = "'account-' + args.account",
    timeout = "1500ms",
    deadline = "2m",
    heartbeat = "10s",
    grace = "200ms",
    retry(attempts = 4, base = "200ms", cap = "1h"),
    in_flight = 8,
    per_second = 5,
    on_doubt = fail,
    connection = "github",
    deferral = never,
    narration = ["Doing {what}", "Did {what}", "Could not do {what}"],
    output_budget = 4096,
    background = never,
)]
async fn everything(account: String) -> ToolResult<String> {
    Ok(account)
}

/// Keyed by an expression.
#[tool(key = "args.fast ? 'fast' : args.account")]
async fn keyed_by_cel(account: String, fast: bool) -> ToolResult<String> {
    Ok(format!("{account} {fast}"))
}

/// Guarded by nothing that compiles.
#[tool(approval = "args.cents >")]
async fn badly_guarded(cents: u64) -> ToolResult<u64> {
    Ok(cents)
}

#[test]
fn w07_expressions_are_compiled_when_the_tool_is_made_and_refused_when_it_is_registered() {
    let Concurrency::Keyed(key) = &Tool::from(keyed_by_cel).spec().guards.concurrency.clone() else {
        panic!("it has a key");
    };
    assert_eq!(key.evaluate(&windlass::policy::Facts::of_args(&json!({"account": "a1", "fast": false}))), "a1");
    assert_eq!(key.evaluate(&windlass::policy::Facts::of_args(&json!({"account": "a1", "fast": true}))), "fast");
    let refused = Toolbox::new().insert(badly_guarded).map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.starts_with("tool `badly_guarded`: policy: approval: expression `args.cents >`, line 1"),
        "{refused}"
    );
}

/// Destroys.
#[tool(destructive, approval = always, concurrency = exclusive, on_doubt = ask, deferral = always)]
async fn destroy() -> ToolResult<()> {
    Ok(())
}

/// Looks.
#[tool(effect = once, approval = never, concurrency = parallel, retries = 3, on_doubt = rerun, deferral = auto)]
async fn look() -> ToolResult<()> {
    Ok(())
}

#[test]
fn e01_every_attribute_lands_in_the_spec() {
    let mut expected = ToolSpec::new("do.everything", "Does everything.");
    expected.id = "acme.everything".into();
    expected.aliases = vec!["everything".into(), "all".into()];
    expected.about.title = Some("Everything".to_owned());
    expected.about.version = Some("2.1".into());
    expected.about.tags = vec!["a".to_owned(), "b".to_owned()];
    expected.about.deferral = Deferral::Never;
    expected.about.narration.add("en", "Doing {what}", "Did {what}");
    expected.about.narration.add_failure("en", "Could not do {what}");
    expected.limits.output_budget = Some(4_096);
    expected.guards.background = Background::Never;
    expected.effect = Effect::Idempotent;
    expected.hints.open_world = true;
    expected.hints.long_running = true;
    expected.hints.cpu_bound = true;
    expected.guards.approval = Approval::When("args.account != 'mine'".into());
    expected.guards.concurrency = Concurrency::Keyed(KeyExpression::parse("'account-' + args.account").unwrap());
    expected.guards.connection = Some("github".into());
    expected.guards.on_doubt = Some(OnDoubt::Fail);
    expected.limits.timeout = Some(Duration::from_millis(1_500));
    expected.limits.deadline = Some(Duration::from_secs(120));
    expected.limits.heartbeat = Some(Duration::from_secs(10));
    expected.limits.grace = Some(Duration::from_millis(200));
    expected.limits.retry =
        Some(Retry { attempts: 4, base: Duration::from_millis(200), cap: Duration::from_secs(3_600) });
    expected.limits.in_flight = Some(8);
    expected.limits.per_second = Some(5);
    assert_eq!(spec(everything), expected);
    assert_eq!(everything::call("mine").tool(), "acme.everything");

    let mut expected = ToolSpec::new("destroy", "Destroys.");
    expected.hints.destructive = true;
    expected.guards.approval = Approval::Always;
    expected.guards.concurrency = Concurrency::Exclusive;
    expected.guards.on_doubt = Some(OnDoubt::Ask);
    expected.about.deferral = Deferral::Always;
    assert_eq!(spec(destroy), expected);

    let mut expected = ToolSpec::new("look", "Looks.");
    expected.effect = Effect::Once;
    expected.guards.approval = Approval::Never;
    expected.guards.concurrency = Concurrency::Parallel;
    expected.guards.on_doubt = Some(OnDoubt::Rerun);
    expected.limits.retry = Some(Retry::attempts(4));
    expected.about.deferral = Deferral::Auto;
    assert_eq!(spec(look), expected);
}

/// Only some delays.
#[tool(effect = once, retry(attempts = 2, cap = "3s"))]
async fn retried() -> ToolResult<()> {
    Ok(())
}

#[test]
fn retry_keeps_the_usual_delays_where_it_is_silent() {
    let usual = Retry::attempts(2);
    assert_eq!(spec(retried).limits.retry, Some(Retry { cap: Duration::from_secs(3), ..usual }));
}

/// Every kind of key.
#[tool(key = " args.to.account+'→' + args.n + '' ")]
async fn keyed(to: BTreeMap<String, String>, n: u8) -> ToolResult<usize> {
    Ok(to.len() + usize::from(n))
}

#[test]
fn the_kernel_reads_keys_as_the_macro_does() {
    let Concurrency::Keyed(key) = spec(keyed).guards.concurrency else { panic!("it has a key") };
    assert_eq!(key.evaluate(&windlass::policy::Facts::of_args(&json!({"to": {"account": "a"}, "n": 7}))), "a→7");
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Unit {
    #[default]
    Celsius,
    Fahrenheit,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Place {
    /// In English.
    city: String,
    country: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Forecast {
    places: Vec<Place>,
    unit: Unit,
    days: u8,
    note: Option<String>,
}

/// Wettervorhersage – 天気予報 🌦
///
/// - for *several* places
///   at once
#[tool(effect = readonly)]
async fn forecast(
    /// Where: `["Köln"]` 🗺
    /// on two lines
    places: Vec<Place>,
    #[default] unit: Unit,
    #[default = 3]
    #[schemars(range(min = 1, max = 14))]
    days: u8,
    #[default("en")] language: String,
    #[default(Some("x".to_owned()))] tag: Option<String>,
    /// Anything.
    note: Option<String>,
) -> ToolResult<Forecast> {
    let _ = (language, tag);
    Ok(Forecast { places, unit, days, note })
}

#[test]
fn schemas_come_from_the_signature() {
    let place = |nullable: Value| {
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "In English."},
                "country": {"type": nullable}
            },
            "required": ["city"]
        })
    };
    let unit = json!({"type": "string", "enum": ["celsius", "fahrenheit"]});
    let mut defaulted_unit = unit.clone();
    defaulted_unit["default"] = json!("celsius");
    assert_eq!(
        input(forecast),
        json!({
            "type": "object",
            "properties": {
                "places": {
                    "type": "array",
                    "description": "Where: `[\"Köln\"]` 🗺\non two lines",
                    "items": place(json!(["string", "null"]))
                },
                "unit": defaulted_unit,
                "days": {"type": "integer", "format": "uint8", "minimum": 1, "maximum": 14, "default": 3},
                "language": {"type": "string", "default": "en"},
                "tag": {"type": ["string", "null"], "default": "x"},
                "note": {"type": ["string", "null"], "description": "Anything."}
            },
            "required": ["places"],
            "additionalProperties": false
        })
    );
    assert_eq!(
        output(forecast),
        Some(json!({
            "type": "object",
            "properties": {
                "places": {"type": "array", "items": place(json!(["string", "null"]))},
                "unit": unit,
                "days": {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255},
                "note": {"type": ["string", "null"]}
            },
            "required": ["places", "unit", "days"]
        }))
    );
}

#[test]
fn the_description_is_the_doc_comment_as_written() {
    assert_eq!(spec(forecast).about.description, "Wettervorhersage – 天気予報 🌦\n\n- for *several* places\n  at once");
}

#[doc = include_str!("ui/description.md")]
///
/// And a line.
#[tool]
async fn included() -> ToolResult<()> {
    Ok(())
}

/** In a block.
 *
 * - with *stars*
 */
#[tool]
async fn block_comment() -> ToolResult<()> {
    Ok(())
}

#[test]
fn descriptions_may_be_included_or_in_blocks() {
    assert_eq!(spec(included).about.description, "From a *file*.\n\n\nAnd a line.");
    assert_eq!(spec(block_comment).about.description, "In a block.\n\n- with *stars*");
}

/// Keywords as names.
#[tool(effect = readonly, key = "args.type")]
async fn r#match(r#type: String, r#in: Option<u32>) -> ToolResult<Value> {
    Ok(json!([r#type, r#in]))
}

#[tokio::test]
async fn raw_identifiers_lose_their_prefix_in_json() {
    assert_eq!(&*spec(r#match).name, "match");
    let schema = input(r#match);
    let properties: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(properties, ["in", "type"]);
    assert_eq!(**r#match::call("a", Some(1)).args(), json!({"type": "a", "in": 1}));
    assert_eq!(r#match::body("a".to_owned(), None).await.unwrap(), json!(["a", null]));
}

#[test]
fn calls_take_values_references_and_borrowed_forms() {
    let place = Place { city: "Oslo".to_owned(), country: None };
    let (places, unit, days, language) = (vec![place], Unit::Fahrenheit, 2, "de".to_owned());
    let (tag, note) = (None, Some("n".to_owned()));
    let calls = [
        forecast::call(&places, unit, days, &language, &tag, &note),
        forecast::call(places.as_slice(), unit, days, language.as_str(), None, Some("n".to_owned())),
        forecast::call(places, unit, days, language, tag, note),
    ];
    let expected = json!({
        "places": [{"city": "Oslo", "country": null}], "unit": "fahrenheit", "days": 2, "language": "de", "tag": null,
        "note": "n"
    });
    let tool = Tool::from(forecast);
    assert!(tool.contract().unwrap().check_arguments(&expected).is_ok());
    for call in calls {
        assert_eq!(**call.args(), expected);
    }
}

/// Some types are not JSON.
#[tool]
async fn tally(fine: u8, votes: HashMap<(u8, u8), u64>) -> ToolResult<usize> {
    Ok(votes.len() + usize::from(fine))
}

#[test]
fn an_argument_that_is_not_json_breaks_the_call_and_says_so() {
    let fine = tally::call(1, HashMap::new());
    assert_eq!(**fine.args(), json!({"fine": 1, "votes": {}}));
    let broken = tally::call(1, HashMap::from([((1, 2), 3)]));
    let shown = format!("{broken:?}");
    assert!(shown.contains("argument `votes` is not JSON: key must be a string"), "{shown}");
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Receipt {
    id: String,
    cents: u64,
}

mod payments {
    use super::*;

    pub(super) async fn find_charge(call: &Call) -> ToolResult<Reconciled<Receipt>> {
        Ok(Reconciled::Happened(Receipt { id: call.idempotency_key(), cents: 5 }))
    }
}

/// Charge a card.
#[tool(effect = once, reconcile = payments::find_charge)]
async fn charge(call: &Call, customer: String, mut cents: u64) -> ToolResult<Receipt> {
    cents += 1;
    Ok(Receipt { id: format!("{customer}-{}", call.idempotency_key()), cents })
}

#[test]
fn the_call_is_no_argument() {
    assert!(!Tool::from(charge).is_durable());
    assert_eq!(input(charge)["required"], json!(["customer", "cents"]));
    assert_eq!(**charge::call("c1", 500).args(), json!({"customer": "c1", "cents": 500}));
}

/// Book a trip.
#[tool(deadline = "3d", key = "args.customer", tags = ["travel"])]
async fn book(ctx: &mut Ctx, customer: String, legs: Vec<Place>) -> ToolResult<Receipt> {
    let charge = ctx.call(charge::call(&customer, legs.len() as u64)).await?;
    Ok(charge)
}

#[test]
fn a_context_makes_it_durable() {
    let tool = Tool::from(book);
    assert!(tool.is_durable());
    assert_eq!(tool.spec().limits.deadline, Some(Duration::from_secs(3 * 86_400)));
    assert_eq!(input(book)["required"], json!(["customer", "legs"]));
    assert_eq!(**book::call("c", Vec::new()).args(), json!({"customer": "c", "legs": []}));
}

#[derive(Debug, PartialEq)]
struct Refused(&'static str);

impl From<Refused> for ToolError {
    fn from(refused: Refused) -> Self {
        Self::denied(refused.0)
    }
}

/// Errors of its own.
#[tool]
async fn picky(fine: bool) -> Result<String, Refused> {
    fine.then(|| "fine".to_owned()).ok_or(Refused("not fine"))
}

/// Errors of the standard library.
#[tool(effect = readonly)]
async fn read(path: std::path::PathBuf) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

/// An output made by hand.
#[tool]
async fn drawn() -> Result<Output, ToolError> {
    Ok(Output::value(json!("a picture")))
}

#[tokio::test]
async fn results_may_have_errors_of_their_own() {
    assert_eq!(picky::body(false).await, Err(Refused("not fine")));
    assert_eq!(output(picky), Some(json!({"type": "string"})));
    assert_eq!(output(read), Some(json!({"type": "string"})));
    assert_eq!(output(drawn), None);
}

/// Not there.
#[tool]
#[cfg(any())]
async fn absent(of: NoSuchType) -> ToolResult<NoSuchType> {
    Ok(of)
}

/// Other attributes.
#[tool]
#[cfg(not(any()))]
#[allow(unused_variables, dead_code)]
#[must_use = "it is polled or nothing happens"]
#[doc(alias = "other")]
async fn attributed(#[allow(unused_mut)] mut unused: u8) -> ToolResult<()> {
    Ok(())
}

/// An older way.
#[tool]
#[deprecated = "use `add`"]
async fn sum(a: f64) -> ToolResult<f64> {
    Ok(a)
}

#[test]
fn other_attributes_are_kept() {
    assert_eq!(spec(attributed).about.description, "Other attributes.");
    #[allow(deprecated)]
    let old = spec(sum);
    assert_eq!(old.about.description, "An older way.");
}

macro_rules! constant_tool {
    ($name:ident, $ok:ty, $parameter:ty, $value:expr) => {
        /// Made by a macro.
        #[tool(effect = readonly)]
        async fn $name(argument: $parameter) -> ToolResult<$ok> {
            let _ = argument;
            Ok($value)
        }
    };
}

constant_tool!(seven, u8, Option<u8>, 7);

#[tokio::test]
async fn macros_may_write_tools() {
    assert_eq!(seven::body(None).await.unwrap(), 7);
    assert_eq!(input(seven)["properties"]["argument"]["type"], json!(["integer", "null"]));
}

#[test]
fn tools_may_be_local_and_use_what_is_around_them() {
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Local(u8);
    const FEW: u8 = 3;

    /// Local.
    #[tool]
    async fn local(#[default = Local(FEW)] local: Local) -> ToolResult<Local> {
        Ok(local)
    }
    assert_eq!(input(local)["properties"]["local"]["default"], json!(3));
}

#[test]
fn mistakes_are_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

async fn quote_price(call: &Call) -> ToolResult<Preparation> {
    Ok(Preparation::freeze(json!({"cents": call.args()["seats"].as_u64().unwrap_or(0) * 100})))
}

/// Buys seats.
#[tool(prepare = quote_price)]
async fn buy(call: &Call, seats: u32) -> ToolResult<Value> {
    Ok(json!({"seats": seats, "quote": call.prepared()}))
}

/// Buys seats, durably.
#[tool(prepare = quote_price)]
async fn order(ctx: &mut Ctx, seats: u32) -> ToolResult<Value> {
    Ok(json!({"seats": seats, "quote": ctx.prepared()}))
}

#[tokio::test]
async fn l01_prepare_names_a_function() {
    let windlass = Windlass::in_memory().tool(buy).tool(order).await.unwrap();
    let expected = json!({"seats": 2, "quote": {"cents": 200}});
    assert_eq!(windlass.call(buy::call(2)).await.unwrap(), expected);
    assert_eq!(windlass.call(order::call(2)).await.unwrap(), expected);
}
