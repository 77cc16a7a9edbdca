//! The agent and TLS: a private authority is trusted when it is named, and nobody else is.

use std::path::PathBuf;
use std::sync::Arc;

use delta_agent::AgentError;
use delta_agent::tls::{ClientFiles, TlsFiles};
use delta_wire::agent::proto::RunStatus;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tonic::Status;

use crate::agent::{Agent, server_settings, steps};
use crate::fake_server::FakeServer;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 22;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = params.self_signed(&key).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), made.pem()).expect("a file");
        Authority {
            certificate: made.der().clone(),
            issuer: Issuer::new(params, key),
            folder,
        }
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.folder.path().join("ca.pem"))
    }

    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        let made = params.signed_by(&key, &self.issuer);
        (made.expect("a certificate"), key)
    }

    /// A server that this authority vouches for; it wants to know its agents where it is told to.
    fn acceptor(&self, wants_certificate: bool) -> TlsAcceptor {
        let (leaf, key) = self.sign("127.0.0.1");
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = if wants_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(self.certificate.clone()).expect("a root");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        } else {
            builder.with_no_client_auth()
        };
        let chain = vec![leaf.der().clone()];
        let mut config = builder
            .with_single_cert(chain, key)
            .expect("a configuration");
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

#[tokio::test]
async fn a_named_authority_is_trusted() {
    let authority = Authority::new();
    let tls = authority.acceptor(false);
    let server = FakeServer::start_tls(&[steps(&["echo over tls"])], tls).await;
    let mut settings = server_settings(&server.address);
    settings.tls.ca = authority.ca();
    let agent = Agent::start_at(settings);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    assert!(server.log().ends_with("over tls\n"));
    agent.shut_down().await;
}

// EP-34: check the certificate, back off, try again; never in the clear.
#[tokio::test]
async fn an_unknown_authority_is_tried_again_and_nothing_is_sent_in_the_clear() {
    let authority = Authority::new();
    let server = FakeServer::start_tls(&[], authority.acceptor(false)).await;
    let file = authority.folder.path().join("named.pem");
    std::fs::copy(Authority::new().ca().expect("a file"), &file).expect("a copy");
    let mut settings = server_settings(&server.address);
    settings.tls.ca = Some(file.clone());
    let agent = Agent::start_at(settings);
    server
        .wait_until(|state| state.first_bytes.len() >= 3)
        .await;
    assert_eq!(server.count("Register"), 0);
    // The file is mended under the agent's eyes: files are read on every try.
    std::fs::copy(authority.ca().expect("a file"), &file).expect("a copy");
    server.wait_for("Register", 1).await;
    let spoken = server.state().first_bytes.clone();
    assert!(spoken.iter().all(|byte| *byte == HANDSHAKE), "{spoken:?}");
    agent.shut_down().await;
}

/// A client certificate on disk, where an agent finds it.
fn write(files: &ClientFiles, (certificate, key): &(rcgen::Certificate, KeyPair)) {
    std::fs::write(&files.cert, certificate.pem()).expect("a file");
    std::fs::write(&files.key, key.serialize_pem()).expect("a file");
}

impl Authority {
    /// Where its agent's certificate is.
    fn client_files(&self) -> ClientFiles {
        ClientFiles {
            cert: self.folder.path().join("agent.pem"),
            key: self.folder.path().join("agent.key"),
        }
    }
}

// EP-35: a certificate that was refused, as one that has expired is, and replaced meanwhile.
#[tokio::test]
async fn a_certificate_that_was_replaced_meanwhile_is_tried() {
    let authority = Authority::new();
    let server = FakeServer::start_tls(&[], authority.acceptor(true)).await;
    let files = authority.client_files();
    write(&files, &authority.sign("box-1"));
    let mut settings = server_settings(&server.address);
    settings.tls = TlsFiles {
        ca: authority.ca(),
        client: Some(files.clone()),
    };
    let agent = Agent::start_at(settings);
    server.wait_for("Register", 1).await;
    let fresh = authority.sign("box-1");
    write(&files, &fresh);
    let expired = || Status::unauthenticated("the credential has expired; show a fresh one");
    server.change(|state| state.end_with(expired()));
    server.wait_for("Register", 2).await;
    let shown = server.state().certificate.clone();
    assert_eq!(shown.as_deref(), Some(&**fresh.0.der()));
    // And one that was not replaced ends the agent.
    server.wait_for("Heartbeat", 2).await;
    server.change(|state| state.end_with(expired()));
    let ended = agent.ended().await;
    assert!(
        matches!(ended, Err(AgentError::Unauthorized(_))),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let authority = Authority::new();
    let tls = authority.acceptor(true);
    let server = FakeServer::start_tls(&[steps(&["true"])], tls).await;
    let (files, signed) = (authority.client_files(), authority.sign("box-1"));
    write(&files, &signed);
    let mut settings = server_settings(&server.address);
    settings.tls = TlsFiles {
        ca: authority.ca(),
        client: Some(files),
    };
    let agent = Agent::start_at(settings);
    server.wait_for("RunComplete", 1).await;
    let shown = server.state().certificate.clone();
    assert_eq!(shown.as_deref(), Some(&**signed.0.der()));
    agent.shut_down().await;
}
