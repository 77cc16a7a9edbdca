//! TLS of the listener: certificate, key and client authorities, read again when the files change.
//!
//! Connections that are open keep what they were made with; new ones get what is in the files. A
//! file that cannot be used leaves the old one in force, and the log says so once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use delta_core::Digest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::identity::peer::{ClientTrust, Trusted};
use crate::writer::sha256;
use crate::{StartError, Tls};

/// How often the files are looked at: a renewed certificate is in use within seconds, and a look
/// costs three small reads.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What the listener speaks TLS with.
pub struct Terminator {
    files: Tls,
    current: ArcSwap<ServerConfig>,
    trust: Arc<ClientTrust>,
    /// Of the files' bytes as they were last looked at, good or not.
    seen: Mutex<Digest>,
}

/// Why the files are no good.
struct Bad {
    path: PathBuf,
    why: String,
}

/// The bytes of all files at one moment.
struct Bytes {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Terminator {
    /// Reads the files; at the start they must be good.
    pub fn open(files: &Tls, trust: Arc<ClientTrust>) -> Result<Terminator, StartError> {
        let refused = |bad: Bad| StartError::Tls {
            path: bad.path,
            why: bad.why,
        };
        let bytes = Bytes::read(files).map_err(refused)?;
        let (config, trusted) = build(files, &bytes).map_err(refused)?;
        trust.set(trusted);
        Ok(Terminator {
            files: files.clone(),
            current: ArcSwap::from_pointee(config),
            trust,
            seen: Mutex::new(bytes.digest()),
        })
    }

    /// For one connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Looks at the files until told to stop.
    pub async fn keep_fresh(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
            let this = self.clone();
            let _ = tokio::task::spawn_blocking(move || this.look()).await;
        }
    }

    /// Takes over what changed, if all of it is good together.
    fn look(&self) {
        let bytes = match Bytes::read(&self.files) {
            Ok(bytes) => bytes,
            Err(bad) => {
                // Gone for a moment while somebody replaces it, or for good: said once.
                if self.is_news([0; 32]) {
                    self.keep_old(&bad);
                }
                return;
            }
        };
        if !self.is_news(bytes.digest()) {
            return;
        }
        match build(&self.files, &bytes) {
            Ok((config, trusted)) => {
                self.trust.set(trusted);
                self.current.store(Arc::new(config));
                tracing::info!(cert = %self.files.cert.display(), "TLS files were read again");
            }
            Err(bad) => self.keep_old(&bad),
        }
    }

    fn is_news(&self, digest: Digest) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        std::mem::replace(&mut *seen, digest) != digest
    }

    fn keep_old(&self, bad: &Bad) {
        let (path, why) = (bad.path.display(), &bad.why);
        tracing::error!(%path, why, "a TLS file cannot be used; the former ones stay in force");
    }
}

impl Bytes {
    fn read(files: &Tls) -> Result<Bytes, Bad> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| Bad {
                path: path.to_owned(),
                why: error.to_string(),
            })
        };
        Ok(Bytes {
            cert: read(&files.cert)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn digest(&self) -> Digest {
        let files = [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()];
        let each = files.map(|bytes| sha256(bytes.map_or(&[][..], |bytes| bytes)));
        sha256(each.as_flattened())
    }
}

fn build(files: &Tls, bytes: &Bytes) -> Result<(ServerConfig, Option<Trusted>), Bad> {
    let bad = |path: &Path, why: String| Bad {
        path: path.to_owned(),
        why,
    };
    let chain = certificates(&bytes.cert).map_err(|why| bad(&files.cert, why))?;
    let key = PrivateKeyDer::from_pem_slice(&bytes.key)
        .map_err(|error| bad(&files.key, error.to_string()))?;
    let trusted = match (&files.client_ca, &bytes.client_ca) {
        (Some(path), Some(pem)) => Some(authorities(pem).map_err(|why| bad(path, why))?),
        _ => None,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&files.cert, error.to_string()))?;
    let builder = match &trusted {
        Some(trusted) => builder.with_client_cert_verifier(trusted.verifier()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| bad(&files.cert, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, trusted))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| error.to_string())?;
    if found.is_empty() {
        Err("there is no certificate in it".into())
    } else {
        Ok(found)
    }
}

fn authorities(pem: &[u8]) -> Result<Trusted, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        let added = store.add(certificate);
        added.map_err(|error| error.to_string())?;
    }
    Trusted::new(store)
}
