//! What every request passes, in this order: who is meant, which page asks, who asks, how often; then its handler, within
//! a time; then what is counted.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower::Service;

use crate::access::Access;
use crate::answer::located;
use crate::app::Shared;
use crate::connections::ConnectionUse;
use crate::given::{self, PIECE};
use crate::rate::Client;
use crate::refusal::{Answer, Refusal};
use crate::shares::Share;
use crate::wire::Accepted;

/// Routes that answer within a time of their own: what a call is waited for, or an artifact takes to arrive.
const WAITING: [&str; 4] = ["/v1/calls", "/v1/batches", "/v1/runs/{run}/outcome", "/v1/artifacts"];

/// Where a request comes from, and by which connection.
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    pub(crate) usage: Arc<ConnectionUse>,
}

/// Whose share a request is counted against; nothing where it comes from this very process.
#[derive(Clone, Debug)]
pub(crate) struct Asker(pub(crate) Option<Client>);

/// Bytes that an answer takes while it is given, where that is not its length.
#[derive(Clone, Copy)]
pub(crate) struct Takes(pub(crate) usize);

/// What is answered instead of what is too large to be held now.
#[derive(Clone)]
pub(crate) struct Instead(pub(crate) Accepted);

/// The API with what is before it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Guarded {
    app: Shared,
    router: Router,
    places: Arc<matchit::Router<Arc<Place>>>,
}

/// A path of the API, as it is written in its description.
struct Place {
    path: String,
    /// Whether its requests wait on purpose.
    waits: bool,
}

impl Guarded {
    /// `paths`: all that the router knows.
    pub(crate) fn new<'a>(app: Shared, router: Router, paths: impl Iterator<Item = &'a String>) -> Self {
        let mut places = matchit::Router::new();
        for path in paths {
            let place = Place { path: path.clone(), waits: WAITING.contains(&path.as_str()) };
            let inserted = places.insert(path, Arc::new(place));
            debug_assert!(inserted.is_ok(), "{path}: the router has taken it already");
        }
        Self { app, router, places: Arc::new(places) }
    }
}

impl Service<Request> for Guarded {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.answer(request, None)
    }
}

impl Guarded {
    /// `peer`: where the request comes from, if it came over a connection.
    pub(crate) fn answer(&self, mut request: Request, peer: Option<&Peer>) -> <Self as Service<Request>>::Future {
        let (begun, app) = (Instant::now(), self.app.clone());
        let busy = peer.map(|peer| peer.usage.busy());
        let method = request.method().clone();
        let place = self.places.at(request.uri().path()).ok().map(|found| found.value.clone());
        let origin = request.headers().get(header::ORIGIN).cloned();
        let (mut handled, admitted) = match admitted(&app, &mut request, peer, begun) {
            Err(refusal) => (Err(refusal.into_response()), None),
            Ok(admitted) if is_preflight(&app, &method, origin.as_ref()) => (Err(preflight()), Some(admitted)),
            Ok(admitted) => (Ok(self.router.clone().call(request)), Some(admitted)),
        };
        Box::pin(async move {
            // What handles it is used where it lies: moving it would make every request larger by as much again.
            let mut response = match &mut handled {
                Err(answered) => std::mem::take(answered),
                Ok(handled) => {
                    let handled = AssertUnwindSafe(handled).catch_unwind();
                    // Those that wait on purpose know how long; a second clock would only cost.
                    match place.as_ref().is_some_and(|place| place.waits) {
                        true => whole(handled.await, &method),
                        false => match tokio::time::timeout(app.options.limits.request, handled).await {
                            Ok(handled) => whole(handled, &method),
                            Err(_) => Refusal::unavailable("took_too_long", "the request took too long; ask again")
                                .into_response(),
                        },
                    }
                }
            };
            let (client, request) = admitted.map_or((None, None), |admitted| (admitted.client, admitted.request));
            let bytes = held(&app, client.as_ref(), &mut response);
            finish(&app, origin.as_ref(), response.headers_mut());
            let place = place.as_ref().map_or("unmatched", |place| place.path.as_str());
            app.metrics.request(known(&method), place, response.status().as_u16(), begun.elapsed());
            Ok(given::until_given((busy, request, bytes), response))
        })
    }
}

/// The answer of a handler, also of one that panicked.
fn whole(handled: thread::Result<Result<Response, Infallible>>, method: &Method) -> Response {
    match handled {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            tracing::error!(%method, "a handler panicked: {text}");
            Refusal::internal().into_response()
        }
    }
}

/// Headers of every answer.
fn finish(app: &Shared, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    allow_origin(app, origin, headers);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if headers.get(header::CONTENT_TYPE).is_some_and(|content| content == "application/problem+json") {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Takes room for an answer that is not given at once. Where there is none it is dropped, and another one given. An answer is
/// made without waiting for anything, so that there are no more uncounted ones than threads.
fn held(app: &Shared, client: Option<&Client>, response: &mut Response) -> Option<Share> {
    let takes = response.extensions().get::<Takes>().map(|takes| takes.0);
    let size = takes.or_else(|| given::size(response).and_then(|size| usize::try_from(size).ok())).unwrap_or(0);
    if size <= PIECE {
        return None;
    }
    let taken = app.bytes.take(client?, size);
    if taken.is_none() {
        let instead = response.extensions().get::<Instead>().cloned();
        *response = match instead {
            Some(Instead(accepted)) => located(StatusCode::ACCEPTED, &format!("/v1/runs/{}", accepted.run), &accepted),
            None => too_much_held(app).into_response(),
        };
    }
    taken
}

/// Why there is no room.
pub(crate) fn too_much_held(app: &Shared) -> Refusal {
    let why = format!(
        "more than {} bytes would be on their way between this client and the server, or too many in all; take what was \
         answered already, then ask again",
        app.bytes.each()
    );
    Refusal::unavailable("too_much_in_flight", why).with("limit", app.bytes.each())
}

/// A request that may go on.
struct Admitted {
    client: Option<Client>,
    request: Option<Share>,
}

/// Whether the request may go on; notes who asks.
fn admitted(app: &Shared, request: &mut Request, peer: Option<&Peer>, now: Instant) -> Answer<Admitted> {
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
            format!("at most {} a second are answered here; come back in {seconds} s", app.options.limits.per_second),
        )
        .header(header::RETRY_AFTER, &format!("{seconds}")));
    }
    let client = holder(&access, peer);
    let under_way = client.as_ref().map(|client| app.requests.take(client, 1).ok_or_else(|| too_many_at_once(app)));
    request.extensions_mut().insert(access);
    request.extensions_mut().insert(Asker(client.clone()));
    Ok(Admitted { client, request: under_way.transpose()? })
}

fn too_many_at_once(app: &Shared) -> Refusal {
    let most = app.requests.each();
    let why = format!(
        "{most} requests of this client are under way, which is as many as it may have, or too many of all clients; let some end first"
    );
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_at_once", "Too many requests", why)
        .with("limit", most)
        .header(header::RETRY_AFTER, "1")
}

fn check_host(app: &Shared, request: &Request) -> Answer<()> {
    let headers = request.headers();
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Refusal::bad_request("several_hosts", "the request has more than one `Host`; send one"));
    }
    let said = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // A proxy in between may go by either, so both must mean this server.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let host = target.or(said);
    let ours = |host: &str| app.hosts.is_ours(host);
    if app.hosts.bound.is_some() && !(host.is_some_and(ours) && said.is_none_or(ours)) {
        return Err(Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong_host",
            "Another server is meant",
            "the `Host` of the request is none of this server's names; use its address, or add the name to `allowed_hosts`",
        ));
    }
    match headers.get(header::ORIGIN) {
        Some(origin) if !origin.to_str().is_ok_and(|origin| app.hosts.admits(origin, host)) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "wrong_origin",
            "This page may not ask",
            "the `Origin` of the request is not let in here; add it to `allowed_origins` if it should be",
        )),
        _ => Ok(()),
    }
}

/// Whose requests are counted; nobody's on the machine itself.
fn client(access: &Access, peer: Option<&Peer>) -> Option<Client> {
    match access {
        Access::Local => None,
        Access::Token(bearer) => Some(Client::Token(bearer.id.clone())),
        Access::Nobody | Access::Void(_) => peer.map(|peer| Client::Address(peer.ip)),
    }
}

/// Whose share is taken of what there is: also on the machine itself it is one program's of several.
fn holder(access: &Access, peer: Option<&Peer>) -> Option<Client> {
    client(access, peer).or_else(|| peer.map(|peer| Client::Address(peer.ip)))
}

fn is_preflight(app: &Shared, method: &Method, origin: Option<&HeaderValue>) -> bool {
    let listed = origin.and_then(|origin| origin.to_str().ok()).is_some_and(|origin| app.hosts.is_listed(origin));
    method == Method::OPTIONS && listed
}

fn preflight() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, idempotency-key, last-event-id, range, accept",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Closed, but for the origins that are listed.
fn allow_origin(app: &Shared, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    if origin.to_str().is_ok_and(|text| app.hosts.is_listed(text)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers
            .insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("location, etag, content-range"));
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

/// Methods that are counted by name: the others are as many as somebody likes to make up.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
