//! Trusted certificate authorities.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// The certificate authorities of the system, and additional ones.
#[derive(Default)]
pub(crate) struct Trust {
    additional: Vec<CertificateDer<'static>>,
    config: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Trust {
    /// Fails if a file cannot be read or has no certificate.
    pub(crate) fn new(files: &[PathBuf]) -> Result<Self, String> {
        let mut additional = Vec::new();
        for path in files {
            additional.extend(certificates(path)?);
        }
        Ok(Self { additional, config: OnceLock::new() })
    }

    /// Created on first use, because reading the system's certificates takes a while.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        self.config.get_or_init(|| self.configure()).clone()
    }

    fn configure(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = system().clone();
        roots.add_parsable_certificates(self.additional.iter().cloned());
        if roots.is_empty() {
            return Err(
                "the system has no certificates of authorities; install `ca-certificates`, or set SSL_CERT_FILE to a \
                 file with certificates"
                    .to_owned(),
            );
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

/// The certificate authorities of the system, read once for each process.
fn system() -> &'static RootCertStore {
    static SYSTEM: OnceLock<RootCertStore> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        let (_, unusable) = roots.add_parsable_certificates(native.certs);
        if unusable > 0 || !native.errors.is_empty() {
            tracing::debug!(unusable, errors = ?native.errors, "some certificates of the system could not be used");
        }
        roots
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |problem: String| format!("{}: {problem}; use a file with certificates in PEM format", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(|error| bad(error.to_string()))?;
    if certificates.is_empty() { Err(bad("it has no certificate".to_owned())) } else { Ok(certificates) }
}
