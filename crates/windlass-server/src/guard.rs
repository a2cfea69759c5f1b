//! Checks that every request passes before its handler: host, origin, access, rate and quotas. Then the handler runs
//! within a time-out, and the response is counted.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::Route;
use futures_util::FutureExt;
use tower::Service;

use crate::access::Access;
use crate::app::Shared;
use crate::body::{self, CHUNK_BYTES};
use crate::connections::ConnectionUse;
use crate::quota::QuotaPermit;
use crate::rate::Client;
use crate::refusal::{ApiResult, Refusal};
use crate::response;
use crate::wire::Accepted;

/// Routes with time-outs of their own: `wait_ms` of a call, or the time between two parts of an artifact.
const OWN_TIMEOUT: [&str; 4] = ["/v1/calls", "/v1/batches", "/v1/runs/{run}/outcome", "/v1/artifacts"];

/// The other side of the connection that a request came over; a request extension.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    pub(crate) usage: Arc<ConnectionUse>,
}

/// The client whose quotas a request is counted against; `None` for requests from this process. A request extension.
#[derive(Clone, Debug)]
pub(crate) struct QuotaClient(pub(crate) Option<Client>);

/// Bytes of memory that a response takes while it is sent, if that is not its length. A response extension.
#[derive(Clone, Copy)]
pub(crate) struct BufferedBytes(pub(crate) usize);

/// Sent instead of a response for which there is no room. A response extension.
#[derive(Clone)]
pub(crate) struct FallbackResponse(pub(crate) Accepted);

/// A route of the API behind the checks. A layer of the router, so the route is matched already when the guard runs.
#[derive(Clone)]
pub(crate) struct Guarded {
    app: Shared,
    route: Route,
}

impl Guarded {
    pub(crate) fn new(app: Shared, route: Route) -> Self {
        Self { app, route }
    }
}

impl Service<Request> for Guarded {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let (begun, app) = (Instant::now(), self.app.clone());
        let peer = request.extensions_mut().remove::<Peer>();
        let busy = peer.as_ref().map(|peer| peer.usage.busy());
        let method = request.method().clone();
        let route = request.extensions().get::<MatchedPath>().cloned();
        let origin = request.headers().get(header::ORIGIN).cloned();
        let (mut handled, admission) = match admit(&app, &mut request, peer.as_ref(), begun) {
            Err(refusal) => (Err(refusal.into_response()), None),
            Ok(admission) if is_preflight(&app, &method, origin.as_ref()) => (Err(preflight()), Some(admission)),
            Ok(admission) => (Ok(self.route.call(request)), Some(admission)),
        };
        Box::pin(async move {
            let label = route.as_ref().map_or("unmatched", MatchedPath::as_str);
            // The handler's future is polled in place: moving it would double the size of every request.
            let mut response = match &mut handled {
                Err(response) => std::mem::take(response),
                Ok(handled) => {
                    let handled = AssertUnwindSafe(handled).catch_unwind();
                    if OWN_TIMEOUT.contains(&label) {
                        or_internal(handled.await, &method)
                    } else {
                        match tokio::time::timeout(app.options.limits.request_timeout, handled).await {
                            Ok(handled) => or_internal(handled, &method),
                            Err(_) => timed_out(&app).into_response(),
                        }
                    }
                }
            };
            let (client, request) = admission.map_or((None, None), |admission| (admission.client, admission.request));
            let bytes = take_bytes(&app, client.as_ref(), &mut response);
            add_headers(&app, origin.as_ref(), response.headers_mut());
            app.metrics.request(method_label(&method), label, response.status().as_u16(), begun.elapsed());
            Ok(body::hold_until_sent((busy, request, bytes), response))
        })
    }
}

fn timed_out(app: &Shared) -> Refusal {
    let seconds = app.options.limits.request_timeout.as_secs();
    let detail = format!("the request was not handled within {seconds} s; send it again");
    Refusal::unavailable("request_timeout", "Request timed out", detail)
}

/// The response of a handler, or an internal error if it panicked.
fn or_internal(handled: thread::Result<Result<Response, Infallible>>, method: &Method) -> Response {
    match handled {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            tracing::error!(%method, "a handler panicked: {text}");
            Refusal::internal().into_response()
        }
    }
}

/// Headers of every response.
fn add_headers(app: &Shared, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    allow_origin(app, origin, headers);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if headers.get(header::CONTENT_TYPE).is_some_and(|content| content == "application/problem+json") {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Takes quota for a response that does not fit in one write. If there is none left, the response is replaced.
/// Responses are made without awaiting anything, so no more of them than threads exist uncounted.
fn take_bytes(app: &Shared, client: Option<&Client>, response: &mut Response) -> Option<QuotaPermit> {
    let buffered = response.extensions().get::<BufferedBytes>().map(|bytes| bytes.0);
    let size = buffered.or_else(|| body::size(response).and_then(|size| usize::try_from(size).ok())).unwrap_or(0);
    if size <= CHUNK_BYTES {
        return None;
    }
    let permit = app.bytes.take(client?, size);
    if permit.is_none() {
        *response = match response.extensions().get::<FallbackResponse>().cloned() {
            Some(FallbackResponse(accepted)) => response::accepted(&accepted),
            None => too_many_bytes(app).into_response(),
        };
    }
    permit
}

pub(crate) fn too_many_bytes(app: &Shared) -> Refusal {
    let limit = app.bytes.per_client();
    let detail = format!(
        "the body or the response would exceed the {limit} bytes that one client may have in flight, or the limit of \
         all clients; read the pending responses, then send the request again"
    );
    Refusal::unavailable("too_many_bytes", "Too many bytes in flight", detail).with("limit", limit)
}

/// What an admitted request is counted against.
struct Admission {
    client: Option<Client>,
    request: Option<QuotaPermit>,
}

/// Refuses the request, or adds to it as extensions what handlers have to know about its sender.
fn admit(app: &Shared, request: &mut Request, peer: Option<&Peer>, now: Instant) -> ApiResult<Admission> {
    if !app.options.trusted {
        check_host(app, request)?;
    }
    let access = Access::of(app, request.headers());
    if let Some(client) = client(&access, peer)
        && let Err(wait) = app.rates.take(client, now)
    {
        let seconds = wait.as_secs_f64().ceil().max(1.0);
        return Err(Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_requests",
            "Too many requests",
            format!(
                "this client sent more than {} requests a second; send the request again in {seconds} s",
                app.options.limits.requests_per_second
            ),
        )
        .header(header::RETRY_AFTER, &format!("{seconds}")));
    }
    let client = quota_client(&access, peer);
    let permit = client.as_ref().map(|client| app.requests.take(client, 1).ok_or_else(|| too_many_requests(app)));
    request.extensions_mut().insert(access);
    request.extensions_mut().insert(QuotaClient(client.clone()));
    Ok(Admission { client, request: permit.transpose()? })
}

fn too_many_requests(app: &Shared) -> Refusal {
    let limit = app.requests.per_client();
    let detail = format!(
        "this client has {limit} concurrent requests, which is its limit, or all clients together have reached theirs; \
         wait until some of them end"
    );
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_concurrent_requests", "Too many concurrent requests", detail)
        .with("limit", limit)
        .header(header::RETRY_AFTER, "1")
}

fn check_host(app: &Shared, request: &Request) -> ApiResult<()> {
    let headers = request.headers();
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Refusal::bad_request("multiple_hosts", "the request has more than one `Host` header; send one"));
    }
    let host_header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // A proxy in between may use the header or the request target, so both have to name this server.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let host = target.or(host_header);
    let own = |host: &str| app.hosts.is_own(host);
    if app.hosts.bound.is_some() && !(host.is_some_and(own) && host_header.is_none_or(own)) {
        return Err(Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            "host_not_allowed",
            "Host not allowed",
            "the `Host` of the request is not a name of this server; use the server's address, or add the name to \
             `allowed_hosts` in its configuration",
        ));
    }
    match headers.get(header::ORIGIN) {
        Some(origin) if !origin.to_str().is_ok_and(|origin| app.hosts.allows_origin(origin, host)) => {
            Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "origin_not_allowed",
                "Origin not allowed",
                "the `Origin` of the request is not one that this server allows; add it to `allowed_origins` in the \
             server's configuration if pages of this origin may use the API",
            ))
        }
        _ => Ok(()),
    }
}

/// The client whose request rate is limited; none for requests from this machine without tokens.
fn client(access: &Access, peer: Option<&Peer>) -> Option<Client> {
    match access {
        Access::Local => None,
        Access::Token(bearer) => Some(Client::Token(bearer.id.clone())),
        Access::Anonymous | Access::Invalid(_) => peer.map(|peer| Client::Address(peer.ip)),
    }
}

/// The client whose quotas are used. Programs on this machine have quotas too, so that one leaves room for the others.
fn quota_client(access: &Access, peer: Option<&Peer>) -> Option<Client> {
    client(access, peer).or_else(|| peer.map(|peer| Client::Address(peer.ip)))
}

fn is_preflight(app: &Shared, method: &Method, origin: Option<&HeaderValue>) -> bool {
    let listed = origin.and_then(|origin| origin.to_str().ok()).is_some_and(|origin| app.hosts.is_listed(origin));
    method == Method::OPTIONS && listed
}

fn preflight() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, idempotency-key, windlass-principal, last-event-id, range, accept, if-match, \
             if-none-match",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Allows cross-origin access for listed origins only.
fn allow_origin(app: &Shared, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    if origin.to_str().is_ok_and(|text| app.hosts.is_listed(text)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers
            .insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("location, etag, content-range"));
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

/// The label of a method in metrics. Clients can invent methods, so unusual ones share a label.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
