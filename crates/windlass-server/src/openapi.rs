//! The description of the API: made once, from what stands at the handlers.

use std::sync::OnceLock;

use axum::body::Bytes;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    Required, ResponseBuilder, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};

use crate::wire::Problem;

/// What every request may be refused with.
const ALWAYS: [(&str, &str); 9] = [
    ("400", "The request cannot be read"),
    ("401", "A token is needed"),
    ("403", "The token lacks a scope, or the page may not ask"),
    ("404", "There is no such thing"),
    ("408", "The request took too long to arrive"),
    ("421", "Another server is meant"),
    ("429", "Too many requests"),
    ("500", "The server failed"),
    ("503", "Not now"),
];

/// The same of whatever changes or is about something.
const WRITES: [(&str, &str); 5] = [
    ("409", "Conflict with the run's state"),
    ("410", "It is no longer kept, or the key is void"),
    ("413", "The request is too large"),
    ("415", "Send JSON"),
    ("422", "The request does not fit"),
];

/// The same of reading.
const READS: [(&str, &str); 4] = [
    ("409", "Conflict with the run's state"),
    ("410", "It is no longer kept"),
    ("416", "There is nothing in this range"),
    ("422", "The request does not fit"),
];

pub(crate) fn base() -> OpenApi {
    let description = "Durable tools for agents: calls that outlive crashes. A call that fails is an outcome, not an HTTP \
                       error; the HTTP status is about the request. Errors are RFC 9457 problems. Every POST takes an \
                       `Idempotency-Key`.";
    let license = LicenseBuilder::new().name("MIT OR Apache-2.0").identifier(Some("MIT OR Apache-2.0")).build();
    let info = InfoBuilder::new()
        .title("Windlass")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(description))
        .license(Some(license))
        .build();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components = ComponentsBuilder::new()
        .schema(<Problem as ToSchema>::name(), Problem::schema())
        .security_scheme("token", bearer)
        .build();
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        // Where no tokens exist, none is needed.
        .security(Some([SecurityRequirement::default(), SecurityRequirement::new("token", Vec::<String>::new())]))
        .build()
}

/// Adds to every operation what it may be refused with, and the key of every POST.
pub(crate) fn complete(mut api: OpenApi) -> OpenApi {
    for (path, item) in &mut api.paths.paths {
        for (method, operation) in [("get", &mut item.get), ("delete", &mut item.delete)] {
            let Some(operation) = operation else { continue };
            operation.operation_id = Some(id(method, path));
            answers(operation);
            refusals(operation, &READS);
        }
        if let Some(operation) = &mut item.post {
            operation.operation_id = Some(id("post", path));
            refusals(operation, &WRITES);
            add_key(operation);
        }
    }
    api
}

/// What the handlers say of their answers, as checkers read it: the schema of a stream is that of one of its events, and a
/// list in one of several formats fits all of them while it is empty.
fn answers(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        for (kind, content) in &mut response.content {
            let RefOr::T(content) = content else { continue };
            if kind == "text/event-stream" {
                content.schema = Some(stream_event().into());
            } else if let Some(RefOr::T(Schema::OneOf(formats))) = &mut content.schema {
                let any = formats.items.drain(..).fold(AnyOfBuilder::new(), AnyOfBuilder::item);
                content.schema = Some(Schema::AnyOf(any.build()).into());
            }
        }
    }
}

fn stream_event() -> Schema {
    let text = |about: &str| ObjectBuilder::new().schema_type(Type::String).description(Some(about)).build();
    let event = ObjectBuilder::new()
        .property("id", text("Its place, where it is recorded; for `Last-Event-ID`"))
        .property("event", text("Its kind; `end` is the last"))
        .property("data", text("JSON"))
        .required("event")
        .required("data");
    Schema::Object(event.build())
}

/// Names an operation after its place.
fn id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty() && *word != "v1");
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn refusals(operation: &mut Operation, more: &[(&str, &str)]) {
    for (status, description) in ALWAYS.iter().chain(more) {
        let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name(<Problem as ToSchema>::name()))).build();
        let response =
            ResponseBuilder::new().description(*description).content("application/problem+json", problem).build();
        match operation.responses.responses.get_mut(*status) {
            // Said otherwise where the handler is, and also as a problem.
            Some(RefOr::T(known)) => {
                known.content.extend(response.content);
            }
            Some(RefOr::Ref(_)) => {}
            None => {
                operation.responses.responses.insert((*status).to_owned(), RefOr::T(response));
            }
        }
    }
}

fn add_key(operation: &mut Operation) {
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(255))
        .pattern(Some("^[!-~]{1,255}$"))
        .build();
    let parameter = utoipa::openapi::path::ParameterBuilder::new()
        .name("idempotency-key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("The same request under the same key is done once"))
        .schema(Some(schema))
        .build();
    operation.parameters.get_or_insert_with(Vec::new).push(RefOr::T(parameter));
}

static DOCUMENT: OnceLock<Bytes> = OnceLock::new();

/// Keeps the description as text. It is the same for every server of a process.
pub(crate) fn keep(api: OpenApi) {
    DOCUMENT.get_or_init(|| {
        let mut text = serde_json::to_vec(&complete(api)).unwrap_or_default();
        text.push(b'\n');
        text.into()
    });
}

pub(crate) fn document() -> Bytes {
    DOCUMENT.get().cloned().unwrap_or_default()
}
