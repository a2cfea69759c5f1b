//! The `#[tool]` attribute. Use it through the `windlass` crate: what it generates names everything by paths of that
//! crate, so a user needs no `serde` or `schemars` of their own.
//!
//! The way of a function through this crate: `function` takes it apart and refuses what cannot be a tool,
//! `attributes` reads what stands in the parentheses, and `expand` writes the tool. Mistakes are collected, so that
//! all of them are reported at once.

mod attributes;
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

/// Makes an async fn a tool.
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
/// The function may take the call as its first parameter, `call: &Call`, and stays atomic: one attempt is one effect.
/// With `ctx: &mut Ctx` as its first parameter it is durable: made of operations, entered again after a crash. The other
/// parameters are the arguments, decoded from JSON: owned types that implement `Deserialize` and `JsonSchema`. It
/// returns `ToolResult<T>`, or a `Result<T, E>` whose error converts into `ToolError`.
///
/// The doc comment is the description. Doc comments on parameters describe the arguments. An `Option` may be left out, and
/// so may a parameter with `#[default]`, `#[default = …]` or `#[default(…)]`. `#[schemars(…)]` on a parameter adds to
/// its schema: `#[schemars(range(min = 1, max = 50))] limit: u32`. `#[cfg]` on the function goes for all of the tool,
/// other attributes go to the plain function.
///
/// # Attributes
///
/// | attribute | meaning |
/// |---|---|
/// | `name = "get_weather"` | what models call it; the function's name unless set |
/// | `id = "acme.weather"` | stable identity; the name unless set |
/// | `aliases = ["old_weather"]` | earlier ids under which journals may know it |
/// | `title = "Weather"` | for people |
/// | `version = "2"` | kept with every call |
/// | `tags = ["travel"]` | selects tools in listings |
/// | `connection = "github"` | the provider the session must be connected to |
/// | `approval = always`, `never` or `"args.cents > 10000"` | whether a person must agree first |
/// | `concurrency = parallel` or `exclusive` | which calls may overlap |
/// | `key = "'account-' + args.account"` | calls with the same key run one at a time; other CEL on `args` works too |
/// | `deadline = "2m"` | longest a call may take in all |
/// | `deferral = auto`, `never` or `always` | whether it may be listed as a stub |
/// | `output_budget = 4096` | bytes of an output that the model sees at once |
/// | `prepare = quote_price` | `async fn quote_price(call: &Call) -> ToolResult<Preparation>` settles what a call is to do |
/// | `narration = ["Reading {path}", "Read {path}"]` | what people are told, in English, when a call starts and ends, and in a third line when it fails |
/// | `grace = "200ms"` | how long an attempt that was asked to stop may still take |
/// | `background = allowed` or `never` | whether it may be started without anyone waiting |
/// | `destructive` | may destroy what cannot be restored |
/// | `open_world` | talks to the world outside: what it returns is untrusted |
/// | `long_running` | attempts take minutes |
///
/// These speak of attempts, so a durable tool, which has none of its own, cannot have them:
///
/// | attribute | meaning |
/// |---|---|
/// | `effect = readonly`, `idempotent` or `once` | what repeating an attempt means; `once` unless set |
/// | `timeout = "5s"` | longest one attempt may run |
/// | `heartbeat = "10s"` | longest an attempt may be silent |
/// | `retries = 3` | failed attempts are repeated, three times at most |
/// | `retry(attempts = 4, base = "200ms", cap = "10s")` | the same with delays |
/// | `in_flight = 8` | most attempts at once |
/// | `per_second = 5` | most attempts started per second |
/// | `reconcile = find_charge` | `async fn find_charge(call: &Call) -> ToolResult<Reconciled<T>>` settles doubts |
/// | `on_doubt = ask`, `fail` or `rerun` | what happens to the doubts nobody else settles |
/// | `cpu_bound` | computes without yielding: attempts run on threads of their own |
///
/// Durations are a whole number with `ms`, `s`, `m`, `h` or `d`.
///
/// # What it generates
///
/// Two items of the function's name and visibility. The type has `call` and `body`. The function makes the `Tool` and
/// converts into it, so `toolbox.insert(weather)` takes it as it is and `weather().timeout(…)` changes it first; being a
/// function, it does not stand in the way of `let weather = …`.
#[proc_macro_attribute]
pub fn tool(attributes: TokenStream, item: TokenStream) -> TokenStream {
    expand::tool(attributes.into(), item.into()).unwrap_or_else(|mistakes| mistakes.into_compile_error()).into()
}
