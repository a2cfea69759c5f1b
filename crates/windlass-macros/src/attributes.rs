//! The attributes of `#[tool(…)]`: one table with a row for each, and the rules between them.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Error, ExprPath, Ident, LitStr, Result};

use crate::mistakes::Mistakes;
use crate::value::{AttributeEntry, Entries, Reader};
use crate::{condition, key, near};

/// An attribute, and how it changes the spec.
struct Attribute {
    name: &'static str,
    /// An example of its syntax.
    example: &'static str,
    scope: Scope,
    /// Generates the statement that sets its value in `__spec`, a `ToolSpec` of the kernel's module `__kernel`.
    set: fn(Reader<'_>) -> Result<TokenStream>,
}

/// What an attribute applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Calls, which every tool has.
    Calls,
    /// Attempts. A durable tool has none of its own: its steps and child calls have.
    Attempts,
}

use Scope::{Attempts, Calls};

const fn row(
    name: &'static str,
    example: &'static str,
    scope: Scope,
    set: fn(Reader<'_>) -> Result<TokenStream>,
) -> Attribute {
    Attribute { name, example, scope, set }
}

/// Every attribute. Some set nothing here: the spec is created with the name and the description, `prepare` and
/// `reconcile` belong to the body, and the signals and events to the tool as a whole.
const ATTRIBUTES: &[Attribute] = &[
    row("name", r#"name = "get_weather""#, Calls, |value| tool_name(value).map(|_| TokenStream::new())),
    row("id", r#"id = "acme.weather""#, Calls, |value| {
        let id = value.text()?;
        Ok(quote!(__spec.id = ::core::convert::Into::into(#id);))
    }),
    row("aliases", r#"aliases = ["old_weather"]"#, Calls, |value| {
        let ids = value.texts()?;
        Ok(quote!(__spec.aliases = ::std::vec![#(::core::convert::Into::into(#ids)),*];))
    }),
    row("title", r#"title = "Weather""#, Calls, |value| {
        let title = value.text()?;
        Ok(quote!(__spec.about.title = ::core::option::Option::Some(::std::string::String::from(#title));))
    }),
    row("description", r#"description = "Current weather for a city.""#, Calls, |value| {
        value.text().map(|_| TokenStream::new())
    }),
    row("version", r#"version = "2""#, Calls, |value| {
        let version = value.text()?;
        Ok(quote!(__spec.about.version = ::core::option::Option::Some(::std::sync::Arc::from(#version));))
    }),
    row("tags", r#"tags = ["travel"]"#, Calls, |value| {
        let tags = value.texts()?;
        Ok(quote!(__spec.about.tags = ::std::vec![#(::std::string::String::from(#tags)),*];))
    }),
    row("effect", "effect = readonly", Attempts, |value| {
        let effect = value.word(&[("readonly", "Readonly"), ("idempotent", "Idempotent"), ("once", "Once")])?;
        Ok(quote!(__spec.effect = __kernel::Effect::#effect;))
    }),
    row("destructive", "destructive", Calls, |value| {
        value.flag()?;
        Ok(quote!(__spec.hints.destructive = true;))
    }),
    row("open_world", "open_world", Calls, |value| {
        value.flag()?;
        Ok(quote!(__spec.hints.open_world = true;))
    }),
    row("long_running", "long_running", Calls, |value| {
        value.flag()?;
        Ok(quote!(__spec.hints.long_running = true;))
    }),
    row("cpu_bound", "cpu_bound", Attempts, |value| {
        value.flag()?;
        Ok(quote!(__spec.hints.cpu_bound = true;))
    }),
    row("approval", r#"approval = "args.cents > 10000""#, Calls, |value| {
        let approval = if value.is_text() {
            let condition = value.text()?;
            // The config file has these words in quotes.
            match condition.value().as_str() {
                "always" => return Ok(quote!(__spec.guards.approval = __kernel::spec::Approval::Always;)),
                "never" => return Ok(quote!(__spec.guards.approval = __kernel::spec::Approval::Never;)),
                _ => {}
            }
            condition::arguments(&condition.value()).map_err(|problem| {
                let example = "a condition is CEL on `args`, such as \"args.cents > 10000 && args.currency == 'EUR'\"";
                Error::new_spanned(condition, format!("not a condition: {problem}; {example}"))
            })?;
            // Other errors in it are found when the tool is registered.
            quote!(When(::core::convert::Into::into(#condition)))
        } else {
            let word = value.word(&[("always", "Always"), ("never", "Never")]);
            let word = word.map_err(|_| value.wrong("must be `always`, `never` or a condition in quotes"))?;
            quote!(#word)
        };
        Ok(quote!(__spec.guards.approval = __kernel::spec::Approval::#approval;))
    }),
    row("concurrency", "concurrency = parallel", Calls, |value| {
        let concurrency = value.word(&[("parallel", "Parallel"), ("exclusive", "Exclusive")])?;
        Ok(quote!(__spec.guards.concurrency = __kernel::Concurrency::#concurrency;))
    }),
    row("key", r#"key = "args.account""#, Calls, |value| {
        let source = value.text()?;
        key::arguments(&source.value()).map_err(|problem| {
            let ways = "write a literal ('printer'), an argument (args.account), or pieces joined with +";
            Error::new_spanned(source, format!("not a key: {problem}; {ways}"))
        })?;
        // Other errors in it are found when the tool is registered.
        Ok(quote! {
            __spec.guards.concurrency = __kernel::Concurrency::Keyed(::core::convert::From::from(#source));
        })
    }),
    row("timeout", r#"timeout = "5s""#, Attempts, |value| {
        let timeout = value.duration()?;
        Ok(quote!(__spec.limits.timeout = ::core::option::Option::Some(#timeout);))
    }),
    row("deadline", r#"deadline = "2m""#, Calls, |value| {
        let deadline = value.duration()?;
        Ok(quote!(__spec.limits.deadline = ::core::option::Option::Some(#deadline);))
    }),
    row("heartbeat", r#"heartbeat = "10s""#, Attempts, |value| {
        let heartbeat = value.duration()?;
        Ok(quote!(__spec.limits.heartbeat = ::core::option::Option::Some(#heartbeat);))
    }),
    row("grace", r#"grace = "200ms""#, Attempts, |value| {
        let grace = value.duration()?;
        Ok(quote!(__spec.limits.grace = ::core::option::Option::Some(#grace);))
    }),
    row("retries", "retries = 3", Attempts, |value| {
        let Some(attempts) = value.count()?.checked_add(1) else { return Err(value.wrong("is too many")) };
        Ok(quote!(__spec.limits.retry = ::core::option::Option::Some(__kernel::spec::Retry::attempts(#attempts));))
    }),
    row("retry", r#"retry(attempts = 4, base = "200ms", cap = "10s")"#, Attempts, retry),
    row("in_flight", "in_flight = 8", Attempts, |value| {
        let most = value.count()? as usize;
        Ok(quote!(__spec.limits.in_flight = ::core::option::Option::Some(#most);))
    }),
    row("per_second", "per_second = 5", Attempts, |value| {
        let most = value.count()?;
        Ok(quote!(__spec.limits.per_second = ::core::option::Option::Some(#most);))
    }),
    row("output_budget", "output_budget = 4096", Calls, |value| {
        let bytes = value.count()? as usize;
        Ok(quote!(__spec.limits.output_budget = ::core::option::Option::Some(#bytes);))
    }),
    row("on_doubt", "on_doubt = fail", Attempts, |value| {
        let policy = value.word(&[("ask", "Ask"), ("fail", "Fail"), ("rerun", "Rerun")])?;
        let policy = quote!(::core::option::Option::Some(__kernel::spec::OnDoubt::#policy));
        Ok(quote!(__spec.guards.on_doubt = #policy;))
    }),
    row("prepare", "prepare = quote_price", Calls, |value| value.path().map(|_| TokenStream::new())),
    row("reconcile", "reconcile = find_charge", Attempts, |value| value.path().map(|_| TokenStream::new())),
    row("connection", r#"connection = "github""#, Calls, |value| {
        let provider = value.text()?;
        let provider = quote!(::core::option::Option::Some(::core::convert::Into::into(#provider)));
        Ok(quote!(__spec.guards.connection = #provider;))
    }),
    row("deferral", "deferral = never", Calls, |value| {
        let deferral = value.word(&[("auto", "Auto"), ("never", "Never"), ("always", "Always")])?;
        Ok(quote!(__spec.about.deferral = __kernel::spec::Deferral::#deferral;))
    }),
    row("narration", r#"narration = ["Reading {path}", "Read {path}"]"#, Calls, |value| {
        let lines = value.texts()?;
        match lines.as_slice() {
            [start, end] => Ok(quote!(__spec.about.narration.add("en", #start, #end);)),
            [start, end, failure] => Ok(quote! {
                __spec.about.narration.add("en", #start, #end);
                __spec.about.narration.add_failure("en", #failure);
            }),
            [start, end, failure, waiting] => Ok(quote! {
                __spec.about.narration.add("en", #start, #end);
                __spec.about.narration.add_failure("en", #failure);
                __spec.about.narration.add_waiting("en", #waiting);
            }),
            _ => Err(value
                .wrong("takes texts for the start and the end of a call, and optionally for failures and for waiting")),
        }
    }),
    row("recovery", "recovery = owner_bound", Calls, |value| {
        let recovery = value.word(&[("rerun", "Rerun"), ("owner_bound", "OwnerBound")])?;
        Ok(quote!(__spec.guards.recovery = __kernel::spec::Recovery::#recovery;))
    }),
    row("signals", "signals(approve = Decision)", Calls, |value| channels(value).map(|_| TokenStream::new())),
    row("events", "events(progress = Progress)", Calls, |value| channels(value).map(|_| TokenStream::new())),
    row("background", "background = never", Calls, |value| {
        let background = value.word(&[("allowed", "Allowed"), ("never", "Never")])?;
        Ok(quote!(__spec.guards.background = __kernel::spec::Background::#background;))
    }),
];

/// Words that are written instead of an attribute, and the right syntax.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("readonly", "effect = readonly"),
    ("read_only", "effect = readonly"),
    ("idempotent", "effect = idempotent"),
    ("once", "effect = once"),
    ("parallel", "concurrency = parallel"),
    ("exclusive", "concurrency = exclusive"),
    ("doc", "a doc comment on the function"),
    ("rate", "per_second = 5"),
    ("concurrent", "in_flight = 8"),
];

/// Attributes that contradict each other, and how to resolve it.
const CONTRADICTIONS: &[(&str, &str, &str)] = &[
    ("key", "concurrency", "`key` says which calls may overlap; remove `concurrency`"),
    ("retry", "retries", "`retry` and `retries` mean the same; remove one of them"),
    ("retries", "destructive", "a destructive tool is never retried automatically; remove one of them"),
    ("retry", "destructive", "a destructive tool is never retried automatically; remove one of them"),
];

/// The attributes of one tool, each valid and given once.
pub(crate) struct Attributes(Vec<(&'static Attribute, AttributeEntry)>);

/// Reports attributes that are unknown or given twice, and returns the others.
pub(crate) fn read(entries: Entries, mistakes: &mut Mistakes) -> Attributes {
    let mut attributes: Vec<(&'static Attribute, AttributeEntry)> = Vec::new();
    for entry in entries.0 {
        let name = entry.name.unraw();
        match ATTRIBUTES.iter().find(|attribute| name == attribute.name) {
            None => mistakes.here(entry.name.span(), unknown(&name.to_string())),
            Some(known) if attributes.iter().any(|(given, _)| given.name == known.name) => {
                mistakes.here(entry.name.span(), format!("`{name}` is given twice"));
            }
            Some(known) => attributes.push((known, entry)),
        }
    }
    Attributes(attributes)
}

impl Attributes {
    fn get(&self, name: &str) -> Option<Reader<'_>> {
        let (attribute, entry) = self.0.iter().find(|(attribute, _)| attribute.name == name)?;
        Some(Reader { entry, example: attribute.example })
    }

    /// The statements that set every attribute in `__spec`.
    pub(crate) fn statements(&self, mistakes: &mut Mistakes) -> Vec<TokenStream> {
        self.0
            .iter()
            .filter_map(|(attribute, entry)| {
                mistakes.note((attribute.set)(Reader { entry, example: attribute.example }))
            })
            .collect()
    }

    /// The name by which models call the tool: that of `name`, or the function's.
    pub(crate) fn name(&self, function: &Ident, mistakes: &mut Mistakes) -> LitStr {
        let own = LitStr::new(&function.unraw().to_string(), function.span());
        match self.get("name") {
            // An invalid `name` is reported with the statements.
            Some(value) => tool_name(value).map_or(own, Clone::clone),
            None => {
                if let Some(problem) = bad_name(&own.value()) {
                    mistakes.here(function.span(), format!("{problem}; give the tool a `name = \"…\"` of its own"));
                }
                own
            }
        }
    }

    /// The value of `description`, which models read instead of the doc comment.
    pub(crate) fn description(&self) -> Option<&LitStr> {
        self.get("description")?.text().ok()
    }

    pub(crate) fn has_description(&self) -> bool {
        self.get("description").is_some()
    }

    /// The value of `id`.
    pub(crate) fn id(&self) -> Option<&LitStr> {
        self.get("id")?.text().ok()
    }

    /// The function that settles doubts.
    pub(crate) fn reconcile(&self) -> Option<&ExprPath> {
        self.get("reconcile")?.path().ok()
    }

    /// Builder calls on the finished tool that declare its signals and events.
    pub(crate) fn channels(&self) -> TokenStream {
        let declared = [("signals", "signal"), ("events", "event")].into_iter().flat_map(|(attribute, method)| {
            let method = Ident::new(method, proc_macro2::Span::call_site());
            let list = self.get(attribute).and_then(|value| channels(value).ok()).unwrap_or_default();
            list.into_iter().map(move |(name, ty)| quote!(.#method::<#ty>(#name)))
        });
        declared.collect()
    }

    /// The function that prepares a call.
    pub(crate) fn prepare(&self) -> Option<&ExprPath> {
        self.get("prepare")?.path().ok()
    }

    /// Reports attributes that contradict each other, the kind of body, or the parameters.
    pub(crate) fn check(&self, durable: bool, parameters: &[String], mistakes: &mut Mistakes) {
        for (attribute, entry) in &self.0 {
            if durable && attribute.scope == Attempts {
                let name = attribute.name;
                let hint = if name == "timeout" { "; a `deadline` limits the whole call" } else { "" };
                mistakes.here(
                    entry.name.span(),
                    format!(
                        "`{name}` applies to attempts, and a durable tool (`ctx: &mut Ctx`) has none of its own: \
                         set it on its steps and child calls{hint}"
                    ),
                );
            }
        }
        for (one, other, problem) in CONTRADICTIONS {
            if let (Some(one), Some(_)) = (self.get(one), self.get(other)) {
                mistakes.here(one.entry.name.span(), problem);
            }
        }
        let readonly = |effect: Reader<'_>| effect.word(&[("readonly", "Readonly")]).is_ok();
        if let (Some(destructive), true) = (self.get("destructive"), self.get("effect").is_some_and(readonly)) {
            let problem = "a readonly tool destroys nothing; remove `destructive` or change the effect";
            mistakes.here(destructive.entry.name.span(), problem);
        }
        let retry = self.get("retries").or(self.get("retry"));
        if let (Some(retry), None, None, false) = (retry, self.get("effect"), self.get("destructive"), durable) {
            let name = retry.entry.name.unraw();
            let problem = format!(
                "`{name}` needs an `effect`: with `effect = readonly` or `idempotent` every failed attempt is repeated, with \
                 `effect = once` only one that fails with `ToolError::retryable`"
            );
            mistakes.here(retry.entry.name.span(), problem);
        }
        if let Some(Ok(source)) = self.get("key").map(Reader::text) {
            for argument in key::arguments(&source.value()).unwrap_or_default() {
                if !parameters.iter().any(|parameter| parameter == argument) {
                    mistakes.at(source, no_argument(argument, parameters));
                }
            }
        }
        if let Some(Ok(source)) = self.get("approval").map(Reader::text) {
            for argument in condition::arguments(&source.value()).unwrap_or_default() {
                if !parameters.contains(&argument) {
                    mistakes.at(source, no_argument(&argument, parameters));
                }
            }
        }
    }
}

fn no_argument(argument: &str, parameters: &[String]) -> String {
    let known = || parameters.iter().map(String::as_str);
    match near::closest(argument, known()) {
        Some(near) => format!("there is no argument `{argument}`: did you mean `args.{near}`?"),
        None if parameters.is_empty() => format!("there is no argument `{argument}`: the tool takes none"),
        None => format!("there is no argument `{argument}`: the tool takes {}", near::list(known())),
    }
}

fn unknown(name: &str) -> String {
    let known = || ATTRIBUTES.iter().map(|attribute| attribute.name);
    let instead = OTHER_WORDS.iter().find(|(word, _)| *word == name);
    let hint = match (instead, near::closest(name, known())) {
        (Some((_, way)), _) if way.contains('=') => format!("write `{way}`"),
        (Some((_, way)), _) => format!("write {way}"),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => "no similar attribute exists".to_owned(),
    };
    format!("`#[tool]` has no attribute `{name}`: {hint} (known: {})", near::list(known()))
}

fn tool_name<'a>(value: Reader<'a>) -> Result<&'a LitStr> {
    let name = value.text()?;
    match bad_name(&name.value()) {
        Some(problem) => Err(Error::new_spanned(name, problem)),
        None => Ok(name),
    }
}

/// Model APIs refuse other names, and so does registration.
fn bad_name(name: &str) -> Option<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if (1..=64).contains(&name.len()) && name.chars().all(legal) {
        return None;
    }
    Some(format!("`{name}` is not a tool name: use 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`"))
}

/// Names, each with the type of its values.
fn channels(value: Reader<'_>) -> Result<Vec<(String, &ExprPath)>> {
    let mut mistakes = Mistakes::default();
    let mut list: Vec<(String, &ExprPath)> = Vec::new();
    for entry in value.entries()? {
        let name = entry.name.unraw().to_string();
        if list.iter().any(|(known, _)| *known == name) {
            mistakes.here(entry.name.span(), format!("`{name}` is given twice"));
        }
        let ty = Reader { entry, example: value.example }.path();
        list.extend(mistakes.note(ty).map(|ty| (name, ty)));
    }
    mistakes.finish()?;
    Ok(list)
}

fn retry(value: Reader<'_>) -> Result<TokenStream> {
    let mut mistakes = Mistakes::default();
    let (mut attempts, mut base, mut cap) = (None, None, None);
    for entry in value.entries()? {
        let setting = |example| Reader { entry, example };
        let twice = match entry.name.to_string().as_str() {
            "attempts" => attempts.replace(mistakes.note(setting("attempts = 4").count())).is_some(),
            "base" => base.replace(mistakes.note(setting(r#"base = "200ms""#).duration())).is_some(),
            "cap" => cap.replace(mistakes.note(setting(r#"cap = "10s""#).duration())).is_some(),
            other => {
                let problem = format!("`retry` has no setting `{other}`, only `attempts`, `base` and `cap`");
                mistakes.here(entry.name.span(), problem);
                false
            }
        };
        if twice {
            mistakes.here(entry.name.span(), format!("`{}` is given twice", entry.name));
        }
    }
    if attempts.is_none() {
        mistakes.push(value.wrong("needs `attempts`, including the first one"));
    }
    mistakes.finish()?;
    let set = [("base", base.flatten()), ("cap", cap.flatten())].into_iter().filter_map(|(field, duration)| {
        let field = Ident::new(field, proc_macro2::Span::call_site());
        duration.map(|duration| quote!(retry.#field = #duration;))
    });
    let attempts = attempts.flatten();
    Ok(quote! {
        __spec.limits.retry = ::core::option::Option::Some({
            #[allow(unused_mut)]
            let mut retry = __kernel::spec::Retry::attempts(#attempts);
            #(#set)*
            retry
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_accepted() {
        for attribute in ATTRIBUTES {
            let entry: AttributeEntry = syn::parse_str(attribute.example).unwrap();
            assert_eq!(entry.name, attribute.name);
            (attribute.set)(Reader { entry: &entry, example: attribute.example }).unwrap();
        }
    }

    #[test]
    fn other_words_are_not_attributes() {
        for (word, _) in OTHER_WORDS {
            assert!(!ATTRIBUTES.iter().any(|attribute| attribute.name == *word), "{word}");
        }
    }
}
