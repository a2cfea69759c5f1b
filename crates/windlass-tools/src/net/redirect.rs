//! Redirects: each hop is checked like the first request, and carries fewer headers to another origin.

use hyper::header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, LOCATION, USER_AGENT};
use hyper::{HeaderMap, Method, StatusCode};

use super::client::{Outgoing, Response};

/// Headers that are sent to another origin. Every other header may be a credential.
const PUBLIC: [hyper::header::HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Whether the request had no effect on the server: it only read, or the server says to repeat it elsewhere.
pub(crate) fn is_untouched(request: &Outgoing, status: StatusCode) -> bool {
    let elsewhere = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    elsewhere || matches!(request.method, Method::GET | Method::HEAD)
}

/// The request that a redirect asks for; none if the response is not a redirect.
pub(crate) fn follow(request: &Outgoing, response: &Response) -> Result<Option<Outgoing>, String> {
    let (method, with_body) = match response.status {
        StatusCode::SEE_OTHER if request.method == Method::HEAD => (Method::HEAD, false),
        StatusCode::SEE_OTHER => (Method::GET, false),
        // Servers use these statuses for 303, and clients have always treated them so.
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND if request.method == Method::POST => (Method::GET, false),
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => (request.method.clone(), true),
        _ => return Ok(None),
    };
    let Some(location) = response.headers.get(LOCATION) else { return Ok(None) };
    let from = request.url.without_query();
    let location = location.to_str().map_err(|_| format!("{from} redirects to a location that is not a URL"))?;
    let to = request.url.join(location).map_err(|bad| format!("{from} redirects to a URL that is refused: {bad}"))?;
    if request.url.origin().tls && !to.origin().tls {
        return Err(format!("{from} redirects to {}, which is not encrypted", to.without_query()));
    }
    let same = to.origin() == request.url.origin();
    if with_body && !same && !request.body.is_empty() {
        return Err(format!("{from} redirects to {}, another origin, which must not get the body", to.without_query()));
    }
    let mut headers = request.headers.clone();
    if !with_body {
        headers.remove(CONTENT_TYPE);
    }
    if !same {
        headers = public(&headers);
    }
    let body = if with_body { request.body.clone() } else { bytes::Bytes::new() };
    Ok(Some(Outgoing { method, url: to, headers, body }))
}

fn public(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| PUBLIC.contains(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::{AUTHORIZATION, HeaderValue};

    use super::*;

    fn hop(method: &str, body: &str, status: u16, location: &str) -> Result<Option<Outgoing>, String> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        headers.insert("x-api-key", HeaderValue::from_static("x"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        let url: crate::net::Url = "https://a.example/x?key=secret".parse().unwrap();
        let method = method.parse().unwrap();
        let request = Outgoing { method, url: url.clone(), headers, body: body.to_owned().into() };
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::from_str(location).unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        follow(&request, &Response { status, headers, body: bytes::Bytes::new(), url })
    }

    #[test]
    fn e26_redirects_change_method_and_body_as_http_requires() {
        for (method, body, status, expected, untouched) in [
            ("GET", "", 301, "GET 0", true),
            ("GET", "", 307, "GET 0", true),
            ("HEAD", "", 303, "HEAD 0", true),
            ("POST", "b", 301, "GET 0", false),
            ("POST", "b", 302, "GET 0", false),
            ("POST", "b", 303, "GET 0", false),
            ("POST", "b", 307, "POST 1", true),
            ("PUT", "b", 302, "PUT 1", false),
            ("DELETE", "", 308, "DELETE 0", true),
        ] {
            let next = hop(method, body, status, "/y").unwrap().unwrap();
            assert_eq!(format!("{} {}", next.method, next.body.len()), expected, "{method} {status}");
            let asked = Outgoing { method: method.parse().unwrap(), ..next };
            assert_eq!(is_untouched(&asked, StatusCode::from_u16(status).unwrap()), untouched, "{method} {status}");
        }
        assert!(hop("GET", "", 304, "/y").unwrap().is_none());
        assert!(hop("GET", "", 200, "/y").unwrap().is_none());
    }

    #[test]
    fn e26_another_origin_gets_no_credentials() {
        let names = |next: Outgoing| {
            let mut names: Vec<String> = next.headers.keys().map(ToString::to_string).collect();
            names.sort();
            names.join(" ")
        };
        let same = hop("GET", "", 302, "/y").unwrap().unwrap();
        assert_eq!(names(same), "accept authorization content-type x-api-key");
        for other in ["https://b.example/", "https://a.example:8443/", "https://sub.a.example/"] {
            assert_eq!(names(hop("GET", "", 302, other).unwrap().unwrap()), "accept content-type", "{other}");
        }
        for (method, body, to, expected) in [
            ("GET", "", "http://a.example/", "not encrypted"),
            ("POST", "b", "https://b.example/", "must not get the body"),
            ("GET", "", "file:///etc/passwd", "only `https:` and `http:`"),
            ("GET", "", "https://a@b.example/", "user or password"),
        ] {
            let error = hop(method, body, 307, to).unwrap_err();
            assert!(error.contains(expected) && !error.contains("key=secret"), "{error}");
        }
    }
}
