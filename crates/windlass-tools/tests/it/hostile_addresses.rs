//! URLs that try to reach internal addresses.

use windlass_tools::net::{NetErrorKind, Rules, Url};

use crate::server::{Names, Server, client, get, json, send};

/// URLs that must be refused, and a part of the message.
const HOSTILE: [(&str, &str); 78] = [
    // This machine, in every notation.
    ("http://127.0.0.1/", "this machine itself"),
    ("http://127.0.0.1:22/", "this machine itself"),
    ("http://127.1/", "unusual notation"),
    ("http://127.0.1/", "unusual notation"),
    ("http://2130706433/", "unusual notation"),
    ("http://017700000001/", "unusual notation"),
    ("http://0x7f000001/", "unusual notation"),
    ("http://0x7f.0.0.1/", "unusual notation"),
    ("http://0177.0.0.1/", "unusual notation"),
    ("http://127.0.0.0x1/", "unusual notation"),
    ("http://127.000.000.001/", "unusual notation"),
    ("http://127.0.0.1./", "ends in a dot"),
    ("http://127.0.0.1.:80/", "ends in a dot"),
    ("http://127.255.255.254/", "this machine itself"),
    ("http://0/", "unusual notation"),
    ("http://0.0.0.0/", "the unspecified address"),
    ("http://[::]/", "the unspecified address"),
    ("http://[::1]/", "this machine itself"),
    ("http://[0:0:0:0:0:0:0:1]/", "this machine itself"),
    ("http://[::ffff:127.0.0.1]/", "this machine itself"),
    ("http://[::ffff:7f00:1]/", "this machine itself"),
    ("http://[::127.0.0.1]/", "this machine itself"),
    ("http://[::ffff:0:127.0.0.1]/", "this machine itself"),
    ("http://[64:ff9b::127.0.0.1]/", "this machine itself"),
    ("http://[2002:7f00:1::]/", "this machine itself"),
    ("http://[2001:0:7f00:1::]/", "this machine itself"),
    ("http://[::1%25lo]/", "a zone"),
    ("http://[fe80::1%25eth0]/", "a zone"),
    ("http://[fe80::1%eth0]/", "not followed by two hexadecimal digits"),
    ("http://[::1/", "not closed"),
    ("http://::1/", "written in brackets"),
    ("http://[v1.x]/", "not an IPv6 address"),
    ("http://localhost/", "name of this machine"),
    ("http://LOCALHOST/", "name of this machine"),
    ("http://a.localhost/", "name of this machine"),
    ("http://localhost./", "ends in a dot"),
    // Private and special networks.
    ("http://10.0.0.1/", "a private network"),
    ("http://172.16.0.1/", "a private network"),
    ("http://192.168.1.1/", "a private network"),
    ("http://[fd12:3456::1]/", "a private network"),
    ("http://100.64.0.1/", "shared by a provider's customers"),
    ("http://198.18.0.1/", "for benchmarks"),
    ("http://192.0.2.1/", "for documentation"),
    ("http://224.0.0.1/", "a multicast group"),
    ("http://[ff02::1]/", "a multicast group"),
    ("http://255.255.255.255/", "the broadcast address"),
    ("http://240.0.0.1/", "a reserved network"),
    ("http://[fe80::1]/", "the local link"),
    ("http://[fec0::1]/", "a reserved network"),
    // Metadata services.
    ("http://169.254.169.254/latest/meta-data/", "metadata service"),
    ("http://2852039166/latest/", "unusual notation"),
    ("http://[::ffff:169.254.169.254]/", "metadata service"),
    ("http://[::ffff:a9fe:a9fe]/", "metadata service"),
    ("http://[64:ff9b::a9fe:a9fe]/", "metadata service"),
    ("http://[fd00:ec2::254]/", "metadata service"),
    ("http://100.100.100.200/", "metadata service"),
    ("http://metadata.google.internal/", "name of this machine or its cloud"),
    // Two hosts in one URL.
    ("http://example.com@127.0.0.1/", "user or password"),
    ("http://127.0.0.1@example.com/", "user or password"),
    ("http://user:pass@example.com/", "user or password"),
    ("http://example.com:80@127.0.0.1/", "user or password"),
    ("http://example.com\\@127.0.0.1/", "a backslash"),
    ("http:\\\\127.0.0.1\\", "a backslash"),
    ("http://127.0.0.1\t.example.com/", "control character"),
    ("http://example.com\r\nHost: 127.0.0.1/", "control character"),
    ("http://exam%70le.com/", "a `%`"),
    ("http://127.0.0.1%2f.example.com/", "a `%`"),
    ("http://１２７.０.０.１/", "not ASCII"),
    ("http://127。0。0。1/", "not ASCII"),
    ("http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "not ASCII"),
    ("http://example.com:0/", "not a port"),
    ("http://example.com:65616/", "not a port"),
    ("http:///etc/passwd", "has no host"),
    ("http:127.0.0.1", "begins with"),
    // Other schemes.
    ("file:///etc/passwd", "is not allowed"),
    ("gopher://127.0.0.1:6379/_INFO", "is not allowed"),
    ("ftp://example.com/", "is not allowed"),
    ("jar:http://127.0.0.1!/", "is not allowed"),
];

#[tokio::test]
async fn e26_hostile_addresses_are_refused_with_a_sentence() {
    // A harmless name that resolves to an internal address.
    let names = Names::default().set("example.com", &[&["127.0.0.1"]]);
    let client = client(Rules::default(), names.clone());
    for (url, expected) in HOSTILE {
        let refusal = get(&client, url).await.expect_err(url);
        assert!(refusal.contains(expected), "{url}: {refusal}");
    }
    assert_eq!(names.lookups(), 0, "they are refused before a name is resolved");
}

#[tokio::test]
async fn e26_names_that_resolve_to_internal_addresses_are_refused() {
    let names = Names::default()
        .set("127.0.0.1.nip.example", &[&["127.0.0.1"]])
        .set("10-0-0-1.sslip.example", &[&["10.0.0.1"]])
        .set("metadata.example", &[&["169.254.169.254"]])
        .set("six.example", &[&["::1"]])
        .set("mapped.example", &[&["::ffff:192.168.0.1"]])
        .set("mixed.example", &[&["93.184.215.14", "127.0.0.1"]])
        .set("none.example", &[&[]])
        .set("zero.example", &[&["0.0.0.0"]]);
    let client = client(Rules::default(), names);
    for (host, expected) in [
        ("127.0.0.1.nip.example", "`127.0.0.1.nip.example` has the address 127.0.0.1, which is this machine itself"),
        ("10-0-0-1.sslip.example", "a private network"),
        ("metadata.example", "metadata service"),
        ("six.example", "this machine itself"),
        ("mapped.example", "a private network"),
        ("mixed.example", "this machine itself"),
        ("zero.example", "the unspecified address"),
    ] {
        let url: Url = format!("https://{host}/").parse().unwrap();
        let error = send(&client, "POST", url, "x").await.expect_err(host);
        assert_eq!((error.kind, error.sent), (NetErrorKind::Refused, false), "{host}: {error}");
        assert!(error.to_string().contains(expected), "{host}: {error}");
        assert!(
            error.to_string().contains("[net] allow = [") && error.to_string().contains(":443"),
            "the message has a remedy: {error}"
        );
    }
    for (host, expected) in
        [("none.example", "has no address"), ("unknown.example", "cannot be looked up: no such name")]
    {
        let error = get(&client, &format!("http://{host}/")).await.expect_err(host);
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn e26_a_name_is_resolved_once_and_the_connection_uses_the_checked_address() {
    let server = Server::start(|_, _| json(200, "1")).await;
    let names = Names::default().set("api.test", &[&["127.0.0.1"], &["10.0.0.1"]]);
    let client = client(server.rules(), names.clone());
    let url = format!("http://api.test:{}/x", server.address.port());
    get(&client, &url).await.expect("the first address is allowed");
    assert_eq!(names.lookups(), 1, "the connection goes to the checked address");
    let request = server.requests().remove(0);
    assert_eq!(request.headers["host"], format!("api.test:{}", server.address.port()));
    // The name resolves to another address now. The pooled connection to the old one must not be used.
    let refusal = get(&client, &url).await.expect_err("rebound");
    assert!(refusal.contains("`api.test` has the address 10.0.0.1, which is a private network"), "{refusal}");
    assert_eq!((names.lookups(), server.requests().len()), (2, 1));
}

#[tokio::test]
async fn e26_a_pooled_connection_belongs_to_its_address() {
    let one = Server::start(|_, _| json(200, "1")).await;
    let port = one.address.port();
    let two = Server::at(&format!("127.0.0.2:{port}"), |_, _| json(200, "2")).await;
    let names = Names::default().set("api.test", &[&["127.0.0.1"], &["127.0.0.2"], &["127.0.0.1"], &["127.0.0.2"]]);
    let rules = Rules { allow: vec!["127.0.0.0/8".parse().unwrap()], ports: None };
    let client = client(rules, names);
    let mut bodies = Vec::new();
    for _ in 0..4 {
        let response = get(&client, &format!("http://api.test:{port}/")).await.expect("a response");
        bodies.push(String::from_utf8(response.body.to_vec()).unwrap());
    }
    assert_eq!(bodies, ["1", "2", "1", "2"], "each request goes to the current address of its name");
    assert_eq!((one.connections(), two.connections()), (1, 1), "connections are reused all the same");
}
