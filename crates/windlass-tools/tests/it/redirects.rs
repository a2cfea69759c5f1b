//! Redirects: every hop follows the same rules as the first request.

use windlass_tools::net::{NetErrorKind, Rules};

use crate::server::{Names, Server, client, get, json, response, send};

fn to(location: &str) -> crate::server::Reply {
    response(302, &format!("location: {location}\r\n"), "")
}

#[tokio::test]
async fn e26_a_redirect_cannot_reach_what_a_request_could_not() {
    for (location, expected) in [
        ("http://169.254.169.254/latest/meta-data/", "metadata service"),
        ("//169.254.169.254/latest/", "metadata service"),
        ("http://[::ffff:169.254.169.254]/", "metadata service"),
        ("http://127.0.0.1:1/", "this machine itself"),
        ("http://2130706433/", "unusual notation"),
        ("http://localhost/", "name of this machine"),
        ("http://rebound.example/", "has the address 10.0.0.1"),
        ("http://user@rebound.example/", "user or password"),
        ("file:///etc/passwd", "is not allowed"),
        ("gopher://x/", "is not allowed"),
        ("http:\\\\127.0.0.1/", "a backslash"),
    ] {
        let location = location.to_owned();
        let server = Server::start(move |_, _| to(&location)).await;
        let client = client(server.rules(), Names::default().set("rebound.example", &[&["10.0.0.1"]]));
        let error = get(&client, &server.url("/start")).await.expect_err(expected);
        assert!(error.contains(expected), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn e26_redirects_are_followed_up_to_a_limit() {
    let server = Server::start(|request, _| match request.target.as_str() {
        "/loop" => to("/loop"),
        "/a" => to("b?x=1"),
        "/b?x=1" => json(200, "\"there\""),
        other => panic!("{other}"),
    })
    .await;
    let client = server.client();
    let response = get(&client, &server.url("/a")).await.unwrap();
    assert_eq!((&response.body[..], response.url.target()), (&b"\"there\""[..], "/b?x=1"));
    let error = get(&client, &server.url("/loop")).await.unwrap_err();
    assert!(error.contains("more than 5 redirects, the last to"), "{error}");
    assert_eq!(server.requests().iter().filter(|request| request.target == "/loop").count(), 6);
}

#[tokio::test]
async fn e26_credentials_are_sent_to_their_own_origin_only() {
    let other = Server::start(|_, _| json(200, "1")).await;
    let there = other.url("/elsewhere");
    let server = Server::start(move |request, _| match request.target.as_str() {
        "/away" => to(&there),
        "/near" => to("/here"),
        _ => json(200, "1"),
    })
    .await;
    let allow = vec!["127.0.0.0/8".parse().unwrap()];
    let client = client(Rules { allow, ports: None }, Names::default());
    for target in ["/away", "/near"] {
        let mut headers = windlass_tools::net::HeaderMap::new();
        for (name, value) in [("authorization", "Bearer x"), ("x-api-key", "y"), ("cookie", "z"), ("accept", "a/b")] {
            headers.insert(name, value.parse().unwrap());
        }
        let url = server.url(target).parse().unwrap();
        let request =
            windlass_tools::net::Outgoing { method: "GET".parse().unwrap(), url, headers, body: Default::default() };
        client.send(request).await.unwrap();
    }
    let away = other.requests().remove(0).headers;
    assert_eq!(away.get("accept").map(String::as_str), Some("a/b"));
    for name in ["authorization", "x-api-key", "cookie"] {
        assert!(!away.contains_key(name), "{name} was sent to another origin");
    }
    let here = server.requests().pop().unwrap();
    assert_eq!((here.target.as_str(), here.headers["authorization"].as_str()), ("/here", "Bearer x"));
}

#[tokio::test]
async fn w01_a_redirected_request_may_have_happened_except_after_307_and_308() {
    for (status, sent) in [(302, true), (303, true), (307, false), (308, false)] {
        let server = Server::start(move |_, _| response(status, "location: http://10.0.0.1/\r\n", "")).await;
        let url = server.url("/").parse().unwrap();
        let error = send(&server.client(), "POST", url, "body").await.unwrap_err();
        assert_eq!((error.kind, error.sent), (NetErrorKind::Refused, sent), "{status}: {error}");
    }
}
