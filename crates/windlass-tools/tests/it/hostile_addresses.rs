//! Addresses that try to lead inside.

use windlass_tools::net::{Rules, Trouble, Url};

use crate::server::{Names, Server, client, get, json, send};

/// Each must be refused, with a sentence that has these words.
const HOSTILE: [(&str, &str); 78] = [
    // This machine, in the notations there are.
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
    ("http://0.0.0.0/", "no particular address"),
    ("http://[::]/", "no particular address"),
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
    ("http://[fe80::1%eth0]/", "without two hexadecimal digits"),
    ("http://[::1/", "not closed"),
    ("http://::1/", "stands in brackets"),
    ("http://[v1.x]/", "no IPv6 address"),
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
    ("http://255.255.255.255/", "everybody on the network"),
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
    ("http://metadata.google.internal/", "name of this machine or its surroundings"),
    // Two hosts in one address.
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
    ("http://example.com:0/", "no port"),
    ("http://example.com:65616/", "no port"),
    ("http:///etc/passwd", "names no host"),
    ("http:127.0.0.1", "begins with"),
    // Other schemes.
    ("file:///etc/passwd", "is not allowed"),
    ("gopher://127.0.0.1:6379/_INFO", "is not allowed"),
    ("ftp://example.com/", "is not allowed"),
    ("jar:http://127.0.0.1!/", "is not allowed"),
];

#[tokio::test]
async fn e26_hostile_addresses_are_refused_with_a_sentence() {
    // Names that look harmless and have an address inside.
    let names = Names::default().set("example.com", &[&["127.0.0.1"]]);
    let client = client(Rules::default(), names.clone());
    for (url, expected) in HOSTILE {
        let refusal = get(&client, url).await.expect_err(url);
        assert!(refusal.contains(expected), "{url}: {refusal}");
    }
    assert_eq!(names.lookups(), 0, "none of them was even looked up");
}

#[tokio::test]
async fn e26_names_that_lead_inside_are_refused() {
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
        ("zero.example", "no particular address"),
    ] {
        let url: Url = format!("https://{host}/").parse().unwrap();
        let error = send(&client, "POST", url, "x").await.expect_err(host);
        assert_eq!((error.trouble, error.sent), (Trouble::Refused, false), "{host}: {error}");
        assert!(error.to_string().contains(expected), "{host}: {error}");
        assert!(
            error.to_string().contains("[net] allow = [") && error.to_string().contains(":443"),
            "the way out: {error}"
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
async fn e26_a_name_is_looked_up_once_and_the_connection_goes_where_it_was_checked() {
    let server = Server::start(|_, _| json(200, "1")).await;
    let names = Names::default().set("api.test", &[&["127.0.0.1"], &["10.0.0.1"]]);
    let client = client(server.rules(), names.clone());
    let url = format!("http://api.test:{}/x", server.address.port());
    get(&client, &url).await.expect("the first answer is allowed");
    assert_eq!(names.lookups(), 1, "what was checked was connected to");
    let asked = server.asked().remove(0);
    assert_eq!(asked.headers["host"], format!("api.test:{}", server.address.port()));
    // The name has another address now. The connection to the old one is still there, and no help.
    let refusal = get(&client, &url).await.expect_err("rebound");
    assert!(refusal.contains("`api.test` has the address 10.0.0.1, which is a private network"), "{refusal}");
    assert_eq!((names.lookups(), server.asked().len()), (2, 1));
}

#[tokio::test]
async fn e26_a_kept_connection_belongs_to_its_address() {
    let one = Server::start(|_, _| json(200, "1")).await;
    let port = one.address.port();
    let two = Server::at(&format!("127.0.0.2:{port}"), |_, _| json(200, "2")).await;
    let names = Names::default().set("api.test", &[&["127.0.0.1"], &["127.0.0.2"], &["127.0.0.1"], &["127.0.0.2"]]);
    let rules = Rules { allow: vec!["127.0.0.0/8".parse().unwrap()], ports: None };
    let client = client(rules, names);
    let mut answers = Vec::new();
    for _ in 0..4 {
        let answer = get(&client, &format!("http://api.test:{port}/")).await.expect("an answer");
        answers.push(String::from_utf8(answer.body.to_vec()).unwrap());
    }
    assert_eq!(answers, ["1", "2", "1", "2"], "each request goes where its name leads at that moment");
    assert_eq!((one.connections(), two.connections()), (1, 1), "and connections are kept all the same");
}
