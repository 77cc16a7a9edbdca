//! TLS towards the server: whom the agent trusts, and what it shows of itself.
//!
//! Files are read on every call, so that a reconnect uses what was renewed meanwhile. Where an
//! authority is named, it alone is trusted: a certificate that some other authority of the system
//! made for the same host is refused.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files of one agent's TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities of the server, in PEM; the system's when absent.
    pub ca: Option<PathBuf>,
    /// The agent's certificate and its key, in PEM.
    pub client: Option<ClientFiles>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Why there is no TLS. A later try may find better files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}: {why}", .path.display())]
    File { path: PathBuf, why: String },
    #[error("the system has no certificate authorities; name the server's with --ca-cert")]
    NoAuthorities,
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

impl TlsFiles {
    /// What the next connection is made with. `alpn` names the protocols it may speak, the best
    /// first: `h2` for gRPC.
    pub fn config(&self, alpn: &[&[u8]]) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?);
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let chain = certificates(&files.cert)?;
                let key = PrivateKeyDer::from_pem_file(&files.key)
                    .map_err(|error| unusable(&files.key, error))?;
                let with = builder.with_client_auth_cert(chain, key);
                with.map_err(|error| unusable(&files.cert, error))?
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }

    /// A hash of the certificate as it is on disk: whether there is another by now than the one
    /// that was shown.
    pub fn shown(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(files) = &self.client else {
            return Ok(None);
        };
        let pem = std::fs::read(&files.cert)?;
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &pem);
        Ok(Some(hash.as_ref().to_vec()))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            for certificate in certificates(path)? {
                let added = roots.add(certificate);
                added.map_err(|error| unusable(path, error))?;
            }
            return Ok(roots);
        }
        let system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(system.certs);
        if roots.is_empty() {
            Err(TlsError::NoAuthorities)
        } else {
            Ok(roots)
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| unusable(path, error))?
        .collect();
    let found = found.map_err(|error| unusable(path, error))?;
    if found.is_empty() {
        Err(unusable(path, "there is no certificate in it"))
    } else {
        Ok(found)
    }
}

fn unusable(path: &Path, why: impl ToString) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn files(dir: &Path) -> TlsFiles {
        TlsFiles {
            ca: Some(dir.join("ca.pem")),
            client: Some(ClientFiles {
                cert: dir.join("a.pem"),
                key: dir.join("a.key"),
            }),
        }
    }

    fn write(dir: &Path) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["a".to_owned()]).expect("parameters");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        std::fs::write(dir.join("ca.pem"), &pem).expect("written");
        std::fs::write(dir.join("a.pem"), &pem).expect("written");
        std::fs::write(dir.join("a.key"), key.serialize_pem()).expect("written");
    }

    #[test]
    fn files_are_read_on_every_call_and_named_when_they_are_wrong() {
        // EP-34
        let dir = tempfile::tempdir().expect("a folder");
        let files = files(dir.path());
        let missing = files.config(&[]).expect_err("nothing is there");
        assert!(missing.to_string().contains("ca.pem"), "{missing}");
        write(dir.path());
        let config = files.config(&[b"h2"]).expect("good files");
        assert_eq!(config.alpn_protocols, [b"h2".to_vec()]);
        let other = KeyPair::generate().expect("a key");
        std::fs::write(dir.path().join("a.key"), other.serialize_pem()).expect("written");
        let mismatch = files.config(&[]).expect_err("another key");
        assert!(mismatch.to_string().contains("a.pem"), "{mismatch}");
        write(dir.path());
        files.config(&[]).expect("good again");
        std::fs::write(dir.path().join("ca.pem"), "nothing").expect("written");
        assert!(files.config(&[]).is_err(), "an empty file is no authority");
    }
}
