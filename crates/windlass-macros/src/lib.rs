//! The `#[tool]` attribute. Use it through the `windlass` crate: the generated code refers to everything by paths of
//! that crate, so a user needs neither `serde` nor `schemars`.
//!
//! `function` parses the function and refuses what cannot be a tool, `attributes` parses the attributes, and `expand`
//! generates the tool. Errors are collected, so that all of them are reported at once.

mod attributes;
mod condition;
mod docs;
mod duration;
mod expand;
mod function;
mod key;
mod mistakes;
mod near;
mod parameter;
mod types;
mod value;

use proc_macro::TokenStream;

/// Turns an async fn into a tool.
///
/// ```text
/// /// Current weather for a city.
/// #[tool(effect = readonly, timeout = "5s")]
/// pub async fn weather(
///     /// Its English name.
///     city: String,
///     #[default = Unit::Celsius] unit: Unit,
/// ) -> ToolResult<Weather> { … }
///
/// toolbox.insert(weather)?;                        // a tool
/// ctx.call(weather::call("Oslo", Unit::Celsius));  // a typed call of it
/// weather::body("Oslo".into(), Unit::Celsius);     // the plain function
/// ```
///
/// If its first parameter is `call: &Call`, the function gets the call and stays atomic: one attempt is one effect. If
/// its first parameter is `ctx: &mut Ctx`, it is durable: made of operations, and entered again after a crash. The
/// other parameters are the arguments, decoded from JSON: owned types that derive `serde::Deserialize` and
/// `windlass::schemars::JsonSchema` (with `#[schemars(crate = "windlass::schemars")]`). It returns `ToolResult<T>`, or a
/// `Result<T, E>` whose error converts into `ToolError`; `T` derives `serde::Serialize` and `JsonSchema`.
///
/// The doc comment is the description that models read; a tool must have one, or a `description`. Doc comments on parameters describe the arguments. An `Option` may be left out,
/// and so may a parameter with `#[default]`, `#[default = …]` or `#[default(…)]`. `#[schemars(…)]` on a parameter adds
/// to its schema: `#[schemars(range(min = 1, max = 50))] limit: u32`. `#[cfg]` on the function applies to everything
/// that is generated, other attributes to the plain function.
///
/// # Attributes
///
/// | attribute | meaning |
/// |---|---|
/// | `name = "get_weather"` | what models call it; the function's name unless set |
/// | `id = "acme.weather"` | stable identity; the name unless set |
/// | `aliases = ["old_weather"]` | earlier ids, which older journals may contain |
/// | `description = "…"` | what models read, where the doc comment is for programmers |
/// | `title = "Weather"` | a name for people |
/// | `version = "2"` | recorded with every call |
/// | `tags = ["travel"]` | selects tools in listings |
/// | `connection = "github"` | the provider the session must be connected to |
/// | `approval = always`, `never` or `"args.cents > 10000"` | whether a person must approve a call |
/// | `concurrency = parallel` or `exclusive` | which calls may overlap |
/// | `key = "'account-' + args.account"` | calls with the same key run one at a time; other CEL on `args` works too |
/// | `deadline = "2m"` | longest a call may take in total |
/// | `deferral = auto`, `never` or `always` | whether it may be listed as a stub |
/// | `output_budget = 4096` | bytes of an output that the model sees at once |
/// | `prepare = quote_price` | `async fn quote_price(call: &Call) -> ToolResult<Preparation>` decides what a call will do |
/// | `narration = ["Reading {path}", "Read {path}"]` | messages for people, in English, when a call starts and ends; a third for failures, a fourth for waiting |
/// | `grace = "200ms"` | how long an attempt that was asked to stop may still take |
/// | `background = allowed` or `never` | whether it may be started without a waiting caller |
/// | `destructive` | may destroy what cannot be restored |
/// | `open_world` | contacts external systems: its output is untrusted |
/// | `long_running` | attempts take minutes |
///
/// These apply to attempts. A durable tool has no attempts of its own, so it cannot have them:
///
/// | attribute | meaning |
/// |---|---|
/// | `effect = readonly`, `idempotent` or `once` | what repeating an attempt means; `once` unless set |
/// | `timeout = "5s"` | longest one attempt may run |
/// | `heartbeat = "10s"` | longest time between two signs of life of an attempt |
/// | `retries = 3` | failed attempts are repeated, three times at most; needs an `effect`, see below |
/// | `retry(attempts = 4, base = "200ms", cap = "10s")` | the same with delays, the first attempt included |
/// | `in_flight = 8` | most attempts at once |
/// | `per_second = 5` | most attempts started per second |
/// | `reconcile = find_charge` | `async fn find_charge(call: &Call) -> ToolResult<Reconciled<T>>` settles doubts |
/// | `on_doubt = ask`, `fail` or `rerun` | what happens to a doubt that `reconcile` does not settle |
/// | `cpu_bound` | computes without yielding: attempts run on separate threads |
///
/// Attempts of a `readonly` or `idempotent` tool with `retries` or `retry` are repeated after every failure. Those of a
/// `once` tool are repeated only after a failure that says that it left nothing behind (`ToolError::retryable`), up to
/// the same number, or three attempts where the tool sets none. So `effect` must be written next to `retries`.
///
/// Durations are a whole number with `ms`, `s`, `m`, `h` or `d`.
///
/// # What it generates
///
/// Two items with the function's name and visibility. The type has `call` and `body`. The function creates the `Tool`
/// and converts into it, so `toolbox.insert(weather)` accepts it as it is and `weather().timeout(…)` changes it first.
/// Because it is a function, `let weather = …` may shadow it.
#[proc_macro_attribute]
pub fn tool(attributes: TokenStream, item: TokenStream) -> TokenStream {
    expand::tool(attributes.into(), item.into()).unwrap_or_else(|mistakes| mistakes.into_compile_error()).into()
}
