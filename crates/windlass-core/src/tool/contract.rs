//! The schemas of a tool, which are expensive to compile and therefore compiled once.

use std::cell::Cell;
use std::sync::OnceLock;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Validator};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::effort::{CheckCost, SchemaRefusal};
use super::error::{ToolError, Violation};
use super::near::nearest;
use super::secrets::{self, Secrets};
use super::spec::ToolSpec;
use crate::limits::{CHECK_STEPS, EXPLAINED_STEPS, PATTERN_BACKTRACKS, PATTERN_BYTES, SCHEMA_BYTES, SCHEMA_PATH};
use crate::run::secrets::Places;

/// How many violations an error lists. A model corrects its arguments from the first few.
const MAX_VIOLATIONS: usize = 20;

thread_local! {
    /// Counted by thread, so that tests which run at the same time do not count the schemas of each other.
    static COMPILED: Cell<u64> = const { Cell::new(0) };
}

/// A schema that cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the {side} schema of tool `{tool}` cannot be used: {problem}")]
pub struct BadSchema {
    /// The name of the tool.
    pub tool: String,
    /// Which schema: `input`, `output`, `event` or `signal`.
    pub side: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// Where in the schema, as a JSON pointer; empty for the whole schema.
    pub pointer: String,
}

/// The schemas of a tool, as JSON and compiled.
pub struct Contract {
    input: CompiledSchema,
    output: Option<CompiledSchema>,
}

/// A schema as JSON and compiled, with what checking a value against it costs.
pub(super) struct CompiledSchema {
    json: Value,
    validator: Validator,
    cost: CheckCost,
    /// Whether the schema marks anything as secret.
    secrets: bool,
}

/// The schemas of a tool, not compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Schemas {
    /// JSON Schema 2020-12 of the arguments. It must describe an object.
    pub input: Value,
    /// JSON Schema 2020-12 of the output value; `None` accepts any value.
    pub output: Option<Value>,
}

impl Schemas {
    /// Accepts any object as arguments and any value as output.
    pub fn any() -> Self {
        Self { input: json!({"type": "object"}), output: None }
    }

    /// Accepts arguments of this schema and any value as output.
    pub fn input(input: Value) -> Self {
        Self { input, output: None }
    }

    /// An estimate of the memory that the compiled schemas take. A schema that cannot be estimated counts as the
    /// largest one that is allowed.
    pub fn compiled_bytes(&self) -> usize {
        let bytes = |schema: &Value| CheckCost::of(schema).map_or(SCHEMA_BYTES, |cost| cost.bytes);
        std::iter::once(&self.input).chain(&self.output).map(bytes).fold(0, usize::saturating_add)
    }

    fn compile(self, tool: &str) -> Result<Contract, BadSchema> {
        Ok(Contract {
            input: CompiledSchema::compile(self.input, tool, "input")?,
            output: self.output.map(|json| CompiledSchema::compile(json, tool, "output")).transpose()?,
        })
    }
}

impl CompiledSchema {
    pub(super) fn compile(json: Value, tool: &str, side: &'static str) -> Result<Self, BadSchema> {
        let bad = |problem, pointer| BadSchema { tool: tool.to_owned(), side, problem, pointer };
        if !json.is_object() && !json.is_boolean() {
            return Err(bad("a JSON Schema is an object or a boolean".to_owned(), String::new()));
        }
        COMPILED.set(COMPILED.get() + 1);
        let cost = CheckCost::of(&json).map_err(|much| bad(refusal_message(much), String::new()))?;
        let options = jsonschema::draft202012::options().should_validate_formats(false);
        let options = match cost.backtracks {
            false => options.with_pattern_options(PatternOptions::regex().size_limit(PATTERN_BYTES)),
            true => {
                let patterns =
                    PatternOptions::fancy_regex().backtrack_limit(PATTERN_BACKTRACKS).size_limit(PATTERN_BYTES);
                options.with_pattern_options(patterns)
            }
        };
        let validator = options.build(&json).map_err(|error| {
            bad(format!("{error} (at `{}`)", error.instance_path()), error.instance_path().to_string())
        })?;
        Ok(Self { secrets: secrets::marks_secrets(&json), json, validator, cost })
    }

    /// Whether a value fits the schema; `None` if the check would take too long.
    fn fits(&self, value: &Value) -> Option<bool> {
        self.cost.allows(value).then(|| self.validator.is_valid(value))
    }

    pub(super) fn json(&self) -> &Value {
        &self.json
    }

    /// The violations of the schema. A message quotes the value it is about, unless that value may contain a secret:
    /// errors are recorded and shown to clients.
    pub(super) fn violations(&self, value: &Value) -> Vec<Violation> {
        self.violations_given_fit(value, self.fits(value))
    }

    /// The violations of a value for which [`fits`](Self::fits) returned `fits`.
    fn violations_given_fit(&self, value: &Value, fits: Option<bool>) -> Vec<Violation> {
        let one = |message: String| vec![Violation { pointer: String::new(), message }];
        match fits {
            Some(true) => return Vec::new(),
            None => {
                return one(format!(
                    "checking this value would take too long: more than {CHECK_STEPS} steps for a value of its size; \
                     send less, or use a schema with fewer alternatives, references or patterns"
                ));
            }
            Some(false) if !self.cost.takes_at_most(value, EXPLAINED_STEPS) => {
                return one(
                    "this value does not fit the schema, and it is too large to locate the violations; send less"
                        .to_owned(),
                );
            }
            Some(false) => {}
        }
        let hides = |pointer: &str| self.secrets && Secrets { root: &self.json }.may_mark_at(pointer);
        let violation = |error: jsonschema::ValidationError<'_>| {
            let pointer = error.instance_path().to_string();
            let mut message = if hides(&pointer) { error.masked().to_string() } else { error.to_string() };
            message.push_str(&self.suggestion(&error));
            Violation { pointer, message }
        };
        self.validator.iter_errors(value).take(MAX_VIOLATIONS).map(violation).collect()
    }
}

fn refusal_message(much: SchemaRefusal) -> String {
    match much {
        SchemaRefusal::Memory => {
            format!("it would take more than {SCHEMA_BYTES} bytes of memory; use fewer subschemas or simpler patterns")
        }
        SchemaRefusal::Path => {
            format!("its references lead through more than {SCHEMA_PATH} schemas, one within another; nest less")
        }
        SchemaRefusal::Pattern(why) => why,
        SchemaRefusal::Ids(most) => format!("it has more than {most} schemas with an `$id`; use fewer"),
    }
}

impl CompiledSchema {
    /// For properties that are not allowed: "did you mean" with the most similar allowed names, or an empty string.
    fn suggestion(&self, error: &jsonschema::ValidationError<'_>) -> String {
        let ValidationErrorKind::AdditionalProperties { unexpected } = error.kind() else { return String::new() };
        let keyword = error.schema_path().as_str();
        let object = keyword.rfind('/').and_then(|end| self.json.pointer(&keyword[..end]));
        let allowed = object.and_then(|object| object.get("properties")).and_then(Value::as_object);
        // A property that is already given cannot be the intended one.
        let given = |name: &&str| error.instance().get(name).is_some();
        let free: Vec<&str> =
            allowed.into_iter().flat_map(Map::keys).map(String::as_str).filter(|name| !given(name)).collect();
        let similar: Vec<String> = unexpected
            .iter()
            .filter_map(|wrong| nearest(wrong, free.iter().copied()))
            .map(|near| format!("`{near}`"))
            .collect();
        if similar.is_empty() { String::new() } else { format!("; did you mean {}?", similar.join(" and ")) }
    }
}

impl Contract {
    /// The schema of the arguments.
    pub fn input(&self) -> &Value {
        &self.input.json
    }

    /// The schema of the output value, if the tool has one.
    pub fn output(&self) -> Option<&Value> {
        self.output.as_ref().map(|schema| &schema.json)
    }

    /// Whether the arguments may contain secrets.
    pub(crate) fn takes_secrets(&self) -> bool {
        self.input.secrets
    }

    /// The locations of the secrets in arguments. In arguments that do not fit the schema a secret may be anywhere, so
    /// all of them count as secret.
    pub(crate) fn secret_places(&self, args: &Value) -> Places {
        let CompiledSchema { json, secrets, .. } = &self.input;
        if !secrets {
            return Places::default();
        }
        match self.input.fits(args) {
            Some(true) => Secrets { root: json }.find(args, &[json]),
            _ => Places::whole(args),
        }
    }

    /// Like [`secret_places`](Self::secret_places), for an output value.
    pub(crate) fn output_secrets(&self, value: &Value) -> Places {
        match &self.output {
            Some(schema) if schema.secrets => match schema.fits(value) {
                Some(true) => Secrets { root: &schema.json }.find(value, &[&schema.json]),
                _ => Places::whole(value),
            },
            _ => Places::default(),
        }
    }

    /// Validates arguments.
    ///
    /// # Errors
    ///
    /// [`ToolError::InvalidArguments`] with up to 20 violations. It also refuses arguments whose check would take too
    /// long.
    pub fn check_arguments(&self, args: &Value) -> Result<(), ToolError> {
        match self.input.fits(args) {
            Some(true) => Ok(()),
            fits => Err(ToolError::InvalidArguments { violations: self.input.violations_given_fit(args, fits) }),
        }
    }

    /// Validates an output value.
    ///
    /// # Errors
    ///
    /// Up to 20 violations.
    pub fn check_output(&self, value: &Value) -> Result<(), Vec<Violation>> {
        match &self.output {
            None => Ok(()),
            Some(schema) => match schema.fits(value) {
                Some(true) => Ok(()),
                fits => Err(schema.violations_given_fit(value, fits)),
            },
        }
    }

    /// The number of schemas that this thread has compiled, for tests that prove a call compiles none.
    pub fn compiled() -> u64 {
        COMPILED.get()
    }
}

/// Loads the schemas of a tool when they are first needed.
pub(crate) type Resolve = dyn Fn(&ToolSpec) -> Result<Schemas, ToolError> + Send + Sync;

/// A contract that is compiled at most once: at registration if its schemas were given, or on first use if they are
/// loaded lazily.
pub(crate) struct LazyContract {
    source: SchemaSource,
    compiled: OnceLock<Contract>,
    /// Held while lazy schemas are loaded and compiled, so that calls which need them first at the same time do it once.
    compiling: Mutex<()>,
}

/// Where the schemas of a tool come from.
enum SchemaSource {
    Eager(Schemas),
    Lazy(Box<Resolve>),
}

impl LazyContract {
    pub(crate) fn eager(schemas: Schemas) -> Self {
        Self { source: SchemaSource::Eager(schemas), compiled: OnceLock::new(), compiling: Mutex::new(()) }
    }

    pub(crate) fn lazy(resolve: Box<Resolve>) -> Self {
        Self { source: SchemaSource::Lazy(resolve), compiled: OnceLock::new(), compiling: Mutex::new(()) }
    }

    /// Compiles schemas that were given. Schemas that are loaded lazily are left for their first use.
    pub(crate) fn compile_eager(&self, spec: &ToolSpec) -> Result<(), BadSchema> {
        let SchemaSource::Eager(schemas) = &self.source else { return Ok(()) };
        if self.compiled.get().is_none() {
            let contract = schemas.clone().compile(&spec.name)?;
            self.compiled.get_or_init(|| contract);
        }
        Ok(())
    }

    /// The contract, if it has been compiled already.
    pub(crate) fn if_compiled(&self) -> Option<&Contract> {
        self.compiled.get()
    }

    /// The schemas as JSON, unless they have to be loaded.
    pub(crate) fn schemas_if_loaded(&self) -> Option<Schemas> {
        match (self.compiled.get(), &self.source) {
            (Some(contract), _) => {
                Some(Schemas { input: contract.input().clone(), output: contract.output().cloned() })
            }
            (None, SchemaSource::Eager(schemas)) => Some(schemas.clone()),
            (None, SchemaSource::Lazy(_)) => None,
        }
    }

    /// The schemas as JSON, loaded if necessary.
    pub(crate) fn schemas(&self, spec: &ToolSpec) -> Result<Schemas, ToolError> {
        match (self.schemas_if_loaded(), &self.source) {
            (None, SchemaSource::Lazy(resolve)) => resolve(spec),
            (loaded, _) => Ok(loaded.unwrap_or_else(Schemas::any)),
        }
    }

    pub(crate) fn get(&self, spec: &ToolSpec) -> Result<&Contract, ToolError> {
        if let Some(contract) = self.compiled.get() {
            return Ok(contract);
        }
        let _compiling = self.compiling.lock();
        if let Some(contract) = self.compiled.get() {
            return Ok(contract);
        }
        // Only success is kept: a source that fails now may succeed at the next call.
        let contract =
            self.schemas(spec)?.compile(&spec.name).map_err(|bad| ToolError::unavailable(bad.to_string()))?;
        Ok(self.compiled.get_or_init(|| contract))
    }
}

/// The schema of a Rust type in the form that model APIs accept: JSON Schema 2020-12, everything inline, no
/// meta-schema.
pub fn schema_of<T: schemars::JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
        // Without `properties`, a violation of `additionalProperties` does not name the unexpected property.
        if object.get("type").is_some_and(|kind| kind == "object") {
            object.entry("properties").or_insert_with(|| json!({}));
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contract(input: Value) -> Contract {
        Schemas::input(input).compile("t").unwrap()
    }

    #[test]
    fn b04_every_violation_is_reported_with_its_pointer() {
        let contract = contract(json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
            "required": ["city", "unit"],
            "additionalProperties": false
        }));
        let error = contract.check_arguments(&json!({"city": 5, "days": [1, "two", null], "extra": 1})).unwrap_err();
        let ToolError::InvalidArguments { violations } = error else { panic!("{error}") };
        let mut pointers: Vec<&str> = violations.iter().map(|v| v.pointer.as_str()).collect();
        pointers.sort_unstable();
        assert_eq!(pointers, ["", "", "/city", "/days/1", "/days/2"]);
        assert!(violations.iter().any(|v| v.message.contains("unit")));
        assert!(violations.iter().any(|v| v.message.contains("extra")));
    }

    #[test]
    fn b04_a_misspelt_argument_is_answered_with_the_most_similar_name() {
        let city = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "additionalProperties": false});
        let trip = json!({"$defs": {"city": city}, "type": "object", "properties": {"to": {"$ref": "#/$defs/city"}}});
        let message = |schema: &Value, args: Value| match contract(schema.clone()).check_arguments(&args).unwrap_err() {
            ToolError::InvalidArguments { violations } => violations[0].message.clone(),
            other => panic!("{other}"),
        };
        let check = |args: Value, ends: &str| {
            let message = message(&city, args);
            assert!(message.contains("unexpected)") && message.ends_with(ends), "{message}");
        };
        check(json!({"ctiy": "Bern"}), "; did you mean `city`?");
        check(json!({"citty": "Bern", "day": 2}), "; did you mean `city` and `days`?");
        check(json!({"colour": "red"}), "unexpected)");
        check(json!({"city": "Bern", "citty": "Bern"}), "unexpected)");
        assert!(message(&trip, json!({"to": {"cty": "Bern"}})).ends_with("; did you mean `city`?"));
    }

    #[test]
    fn b04_a_bad_schema_is_refused_by_name() {
        for schema in [json!({"type": "strin"}), json!(7), json!({"properties": []}), json!({"$ref": "#/$defs/none"})] {
            let error = Schemas::input(schema.clone()).compile("lookup").err();
            let error = error.unwrap_or_else(|| panic!("{schema} was accepted")).to_string();
            assert!(error.contains("input schema of tool `lookup`"), "{error}");
        }
    }

    /// A schema in which each level refers to the next one twice.
    fn doubling(levels: usize) -> Value {
        let level = |n: usize| {
            let next = format!("#/$defs/d{}", n + 1);
            (format!("d{n}"), json!({"anyOf": [{"$ref": next, "type": "array"}, {"$ref": next}]}))
        };
        let mut defs: Map<String, Value> = (0..levels).map(level).collect();
        defs.insert(format!("d{levels}"), json!({"required": ["x"]}));
        json!({"type": "object", "$defs": defs, "$ref": "#/$defs/d0"})
    }

    #[track_caller]
    fn refused_soon(schema: Value, args: Value) -> String {
        let contract = contract(schema);
        let begun = std::time::Instant::now();
        let error = contract.check_arguments(&args).unwrap_err();
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
        let ToolError::InvalidArguments { violations } = error else { panic!("{error}") };
        violations[0].message.clone()
    }

    #[test]
    fn e25_arguments_that_would_take_too_long_to_check_are_refused_at_once() {
        let backtracks = json!({"properties": {"all": {"items": {"pattern": "^(?:(a|aa)\\1?)+$"}}}});
        let texts: Vec<Value> = (0..400).map(|n| json!(format!("{}!{n}", "a".repeat(80)))).collect();
        let tree = json!({"$defs": {"tree": {"anyOf": [
            {"properties": {"next": {"$ref": "#/$defs/tree"}}, "required": ["x"]},
            {"properties": {"next": {"$ref": "#/$defs/tree"}}, "required": ["y"]}]}}, "$ref": "#/$defs/tree"});
        let deep = (0..60).fold(json!({}), |next, _| json!({ "next": next }));
        for (schema, args) in [(doubling(30), json!({})), (backtracks, json!({ "all": texts })), (tree, deep)] {
            let message = refused_soon(schema, args);
            assert!(message.contains("would take too long"), "{message}");
        }
    }

    #[test]
    fn e25_schemas_of_many_small_parts_are_refused_by_name_as_are_arguments_that_they_are_checked_against_often() {
        let schemas = |count: usize| {
            let names: Map<String, Value> = (0..count).map(|n| (format!("n{n}"), json!(["a"]))).collect();
            let some = vec![Value::Bool(true); count];
            [json!({"items": {"allOf": some}}), json!({"items": {"dependentRequired": names}})]
        };
        for schema in schemas(250_000) {
            let error = Schemas::input(schema).compile("big").err().expect("it is refused").to_string();
            assert!(error.contains("input schema of tool `big`") && error.contains("bytes of memory"), "{error}");
        }
        for schema in schemas(5_000) {
            let message = refused_soon(schema, vec![json!({}); 3_000].into());
            assert!(message.contains("would take too long"), "{message}");
        }
        let ahead = json!({"properties": {"text": {"pattern": "^(?:(?=.*!)a)+$"}}});
        let message = refused_soon(ahead, json!({"text": format!("{}!", "a".repeat(100_000))}));
        assert!(message.contains("would take too long"), "{message}");
    }

    #[test]
    fn e25_the_explanation_of_arguments_that_do_not_fit_is_bounded() {
        let message = refused_soon(doubling(17), json!({}));
        assert!(message.contains("does not fit the schema") && message.len() < 200, "{message}");
    }

    #[test]
    fn e25_large_arguments_of_an_ordinary_schema_are_checked() {
        let item = json!({"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-z0-9-]{1,64}$"},
            "tags": {"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", "c"]}},
            "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "additionalProperties": false});
        let contract =
            contract(json!({"type": "object", "properties": {"all": {"items": item}, "text": {"pattern": "^\\S"}}}));
        let items: Vec<Value> = (0..8_000)
            .map(|n| json!({"id": format!("a-longer-id-than-most-{n}"), "tags": ["a", "b"], "size": n}))
            .collect();
        contract.check_arguments(&json!({ "all": items, "text": "x".repeat(200_000) })).unwrap();
        // A single text of the largest allowed size.
        let schema = json!({"properties": {"file": {"type": "string", "pattern": "^[A-Za-z0-9+/]*={0,2}$", "maxLength": 1_048_576}}});
        let base64 = Schemas::input(schema).compile("t").unwrap();
        base64.check_arguments(&json!({"file": "A".repeat((1 << 20) - 16)})).unwrap();
    }

    #[test]
    fn e25_a_schema_that_takes_too_much_memory_or_stack_is_refused_by_name() {
        let refused = |schema: Value| Schemas::input(schema).compile("big").err().expect("it is refused").to_string();
        let many: Map<String, Value> = (0..60_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
        let error = refused(json!({ "properties": many }));
        assert!(error.contains("input schema of tool `big`") && error.contains("bytes of memory"), "{error}");
        let chain: Map<String, Value> =
            (0..20_000).map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", (n + 1) % 20_000)}))).collect();
        let error = refused(json!({"$defs": chain, "$ref": "#/$defs/d0"}));
        assert!(error.contains("one within another"), "{error}");
        let error = refused(json!({"pattern": "^(\\p{L}{100}){100}$"}));
        assert!(error.contains("pattern"), "{error}");
    }

    #[test]
    fn e25_the_deepest_accepted_schema_can_be_checked() {
        let chain: Map<String, Value> = (0..480)
            .map(|n| (format!("d{n}"), json!({"anyOf": [{"$ref": format!("#/$defs/d{}", n + 1)}]})))
            .chain([("d480".to_owned(), json!({"type": "object"}))])
            .collect();
        contract(json!({"$defs": chain, "$ref": "#/$defs/d0"})).check_arguments(&json!({})).unwrap();
    }

    #[test]
    fn b04_a_remote_reference_is_refused() {
        let schema = json!({"$ref": "https://example.com/schema.json"});
        let error = Schemas::input(schema).compile("t").err().expect("no network").to_string();
        assert!(error.contains("example.com"), "{error}");
    }

    #[test]
    fn b04_recursive_schemas_validate() {
        let contract = contract(json!({
            "$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                      "additionalProperties": false}},
            "$ref": "#/$defs/tree"
        }));
        assert!(contract.check_arguments(&json!({"kids": [{"kids": [{}]}]})).is_ok());
        let error = contract.check_arguments(&json!({"kids": [{"kids": [{"x": 1}]}]})).unwrap_err();
        let ToolError::InvalidArguments { violations } = error else { panic!("{error}") };
        assert_eq!(violations[0].pointer, "/kids/0/kids/0");
    }
}
