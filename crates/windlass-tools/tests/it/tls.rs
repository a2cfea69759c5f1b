//! Encrypted connections with a certificate authority of our own: `tls/` has its certificate, and one for `api.test`.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring};
use windlass_tools::net::{Client, Limits, NetErrorKind, Options};

use crate::server::{Names, Server, get, json, send};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

async fn server() -> Server {
    let chain = CertificateDer::pem_file_iter(file("server.pem")).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Server::listen("127.0.0.1:0", Some(acceptor), Arc::new(|_, _| json(200, "1"))).await
}

fn client(server: &Server, authorities: Vec<PathBuf>) -> Client {
    let names = Names::default().set("api.test", &[&["127.0.0.1"]]).set("other.test", &[&["127.0.0.1"]]);
    let resolver = Arc::new(names);
    Client::new(Options { rules: server.rules(), limits: Limits::default(), resolver, authorities }).unwrap()
}

#[tokio::test]
async fn e26_the_certificate_must_match_the_host() {
    let server = server().await;
    let port = server.address.port();
    let trusting = client(&server, vec![file("ca.pem")]);
    for _ in 0..3 {
        assert_eq!(&get(&trusting, &format!("https://api.test:{port}/")).await.unwrap().body[..], b"1");
    }
    assert_eq!(server.connections(), 1, "the connection is reused");
    for (client, host) in [(&trusting, "other.test"), (&client(&server, Vec::new()), "api.test")] {
        let url = format!("https://{host}:{port}/").parse().unwrap();
        let error = send(client, "POST", url, "x").await.unwrap_err();
        assert_eq!((error.kind, error.sent), (NetErrorKind::Unreachable, false), "{error}");
    }
    assert_eq!(server.requests().len(), 3, "nothing was sent to an untrusted server");
}

#[test]
fn an_invalid_file_of_authorities_is_refused_by_name() {
    for (name, expected) in [("none.pem", "none.pem"), ("server.key", "it has no certificate")] {
        let authorities = vec![file(name)];
        let error = Client::new(Options { authorities, ..Options::default() }).err().unwrap();
        assert!(error.contains(expected), "{error}");
    }
}
