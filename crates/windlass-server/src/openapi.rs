//! The OpenAPI description, generated once from the annotations of the handlers.

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

use crate::access::PRINCIPAL_HEADER;
use crate::wire::Problem;

/// Problems of all requests.
const COMMON: [(&str, &str); 9] = [
    ("400", "The request is malformed"),
    ("401", "The request has no valid token"),
    ("403", "The token lacks the required scope or is bound to another layer, or the origin is not allowed"),
    ("404", "The resource does not exist"),
    ("408", "The body of the request did not arrive in time"),
    ("421", "The host of the request is not a name of this server"),
    ("429", "The client has too many requests or event streams, or sends them too fast"),
    ("500", "The server failed, or the stored data is damaged"),
    ("503", "The server or its store cannot handle the request at the moment; send it again later"),
];

/// Further problems of POST and PUT requests.
const WRITES: [(&str, &str); 5] = [
    ("409", "The request conflicts with the state of the run, of the session or of the server"),
    ("410", "The journal was removed by retention, or the reply key is revoked"),
    ("413", "The request is too large"),
    ("415", "The body is not JSON"),
    ("422", "The request is not valid"),
];

/// Further problems of GET and DELETE requests.
const READS: [(&str, &str); 4] = [
    ("409", "The request conflicts with the state of the run, of the session or of the server"),
    ("410", "The journal was removed by retention"),
    ("416", "The requested range is beyond the end of the artifact"),
    ("422", "The request is not valid"),
];

pub(crate) fn base() -> OpenApi {
    let description = "A durable tool runtime for AI agents: calls survive crashes and restarts. The HTTP status \
                       describes the request; a call that failed is a successful request whose outcome is an error. \
                       HTTP errors are RFC 9457 problems. Every POST accepts an `Idempotency-Key`.";
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
        // The empty requirement: as long as no tokens exist, none is needed.
        .security(Some([SecurityRequirement::default(), SecurityRequirement::new("token", Vec::<String>::new())]))
        .build()
}

/// Adds to every operation its id, its problems and the principal that it may name, and to every POST the
/// `Idempotency-Key`.
pub(crate) fn complete(mut api: OpenApi) -> OpenApi {
    // The router's notation for a parameter with several names is not valid in OpenAPI.
    let paths = std::mem::take(&mut api.paths.paths);
    api.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for (path, item) in &mut api.paths.paths {
        for (method, operation) in [("get", &mut item.get), ("delete", &mut item.delete)] {
            let Some(operation) = operation else { continue };
            operation.operation_id = Some(operation_id(method, path));
            adapt_responses(operation);
            add_problems(operation, &READS);
            add_principal(operation);
        }
        if let Some(operation) = &mut item.post {
            operation.operation_id = Some(operation_id("post", path));
            add_problems(operation, &WRITES);
            add_key(operation);
            add_principal(operation);
        }
        // Idempotent by itself.
        if let Some(operation) = &mut item.put {
            operation.operation_id = Some(operation_id("put", path));
            add_problems(operation, &WRITES);
        }
    }
    api
}

/// Adapts the handlers' responses for validators: the schema of an event stream describes one event, and alternative
/// formats of a list are `anyOf`, because an empty list matches all of them.
fn adapt_responses(operation: &mut Operation) {
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
        .property("id", text("Position of a recorded event, for `Last-Event-ID`"))
        .property("event", text("Kind of the event; `end` is the last event"))
        .property("data", text("The event as JSON"))
        .required("event")
        .required("data");
    Schema::Object(event.build())
}

/// An operation id made of the method and the path.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty() && *word != "v1");
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn add_problems(operation: &mut Operation, more: &[(&str, &str)]) {
    for (status, description) in COMMON.iter().chain(more) {
        let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name(<Problem as ToSchema>::name()))).build();
        let response =
            ResponseBuilder::new().description(*description).content("application/problem+json", problem).build();
        match operation.responses.responses.get_mut(*status) {
            // The handler describes another body for this status.
            Some(RefOr::T(described)) => {
                described.content.extend(response.content);
            }
            Some(RefOr::Ref(_)) => {}
            None => {
                operation.responses.responses.insert((*status).to_owned(), RefOr::T(response));
            }
        }
    }
}

/// Every request with a token may name the principal that it acts for.
fn add_principal(operation: &mut Operation) {
    if operation.security.is_some() {
        return;
    }
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(255))
        .pattern(Some("^[!-~]([ -~]{0,253}[!-~])?$"))
        .build();
    let description = "Principal for whom the request acts. Another one than the token's needs the scope `impersonate`";
    let parameter = utoipa::openapi::path::ParameterBuilder::new()
        .name(PRINCIPAL_HEADER)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
        .build();
    operation.parameters.get_or_insert_with(Vec::new).push(RefOr::T(parameter));
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
        .description(Some("A request that is repeated under the same key takes effect once"))
        .schema(Some(schema))
        .build();
    operation.parameters.get_or_insert_with(Vec::new).push(RefOr::T(parameter));
}

static DOCUMENT: OnceLock<Bytes> = OnceLock::new();

/// Stores the description as text. It is the same for every server of a process.
pub(crate) fn publish(api: OpenApi) {
    DOCUMENT.get_or_init(|| {
        let mut text = serde_json::to_vec(&complete(api)).unwrap_or_default();
        text.push(b'\n');
        text.into()
    });
}

pub(crate) fn document() -> Bytes {
    DOCUMENT.get().cloned().unwrap_or_default()
}
