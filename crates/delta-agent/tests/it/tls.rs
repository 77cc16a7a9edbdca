//! The agent and TLS: a private authority is trusted when it is named, and nobody else is.

use std::sync::Arc;

use delta_agent::client::CallError;
use delta_agent::tls::{ClientFiles, TlsFiles};
use delta_agent::{AgentSettings, Client};
use delta_wire::Seconds;
use delta_wire::runner::Lease;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::fake_server::FakeServer;
use crate::lease::{Agent, client_settings, steps};

/// A server's side of TLS, and the PEM of the authority that signed it.
fn private_authority() -> (TlsAcceptor, String) {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .expect("a configuration");
    (TlsAcceptor::from(Arc::new(config)), pem)
}

#[tokio::test]
async fn a_named_authority_is_trusted() {
    let (tls, pem) = private_authority();
    let server = FakeServer::start_tls(&[steps(&["echo over tls"])], tls).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = client_settings(&server);
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, pem).expect("a file");
    settings.ca_file = Some(ca_file);
    let mut work = AgentSettings::recommended("box".into(), folder.path().join("work"));
    work.shim = crate::bench::shim_program();
    let agent = Agent::start_at(&settings, folder, work);
    let complete = server.wait_for("complete", 1).await.remove(0);
    assert_eq!(complete["status"], "SUCCEEDED");
    assert!(server.log().ends_with("over tls\n"));
    agent.shut_down().await;
}

#[tokio::test]
async fn an_unknown_authority_is_not_and_nothing_is_sent_in_the_clear() {
    let (tls, _) = private_authority();
    let server = FakeServer::start_tls(&[], tls).await;
    let client = Client::new(&client_settings(&server)).expect("a client");
    let request = Lease {
        runner_id: "box/1".into(),
        capabilities: Vec::new(),
        wait_seconds: Seconds::ZERO,
    };
    let refused = client.lease(&request).await;
    let unreachable = matches!(&refused, Err(CallError::Unreachable(why)) if why.contains("cert"));
    assert!(unreachable, "{refused:?}");
    assert!(server.bodies("lease").is_empty());
}

#[test]
fn a_file_that_holds_no_authority_is_refused_at_the_start() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "no certificate").expect("written");
    let settings = delta_agent::ClientSettings {
        server: "https://127.0.0.1:1".into(),
        token: delta_agent::TokenSource::Memory(delta_agent::Secret::new("t")),
        ca_file: Some(file.path().to_owned()),
    };
    assert!(Client::new(&settings).is_err());
}

/// An authority of a test's own, which signs for servers and for agents.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.extended_key_usages = vec![usage];
        let made = params.signed_by(&key, &self.issuer).expect("a certificate");
        (made, key)
    }

    /// A certificate and a key for an agent, as files.
    fn write_agent(&self, files: &ClientFiles) {
        let (made, key) = self.sign("agent", ExtendedKeyUsagePurpose::ClientAuth);
        std::fs::write(&files.cert, made.pem()).expect("written");
        std::fs::write(&files.key, key.serialize_pem()).expect("written");
    }

    /// A server that lets in whoever shows a certificate of this authority.
    fn acceptor(&self) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("a certificate");
        roots.add(root).expect("an authority");
        let clients = WebPkiClientVerifier::builder(roots.into());
        let (made, key) = self.sign("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth);
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder()
            .with_client_cert_verifier(clients.build().expect("a verifier"))
            .with_single_cert(vec![made.der().clone()], key)
            .expect("a configuration");
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Whether a connection made with these files right now is accepted at both ends.
async fn is_let_in(files: &TlsFiles, server: &TlsAcceptor) -> bool {
    let (here, there) = tokio::io::duplex(64 * 1024);
    let config = files.config(&[b"h2"]).expect("usable files");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let client = TlsConnector::from(Arc::new(config)).connect(name, here);
    let (client, server) = tokio::join!(client, server.accept(there));
    client.is_ok() && server.is_ok()
}

// EP-31, EP-34: what is in the files at the moment of the connect counts.
#[tokio::test]
async fn a_reconnect_uses_renewed_files_and_trusts_the_named_authority_alone() {
    let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().expect("a folder");
    let (own, other) = (Authority::new(), Authority::new());
    let server = own.acceptor();
    let client = ClientFiles {
        cert: folder.path().join("agent.pem"),
        key: folder.path().join("agent.key"),
    };
    let files = TlsFiles {
        ca: Some(folder.path().join("ca.pem")),
        client: Some(client.clone()),
    };
    let pin = |authority: &Authority| {
        std::fs::write(folder.path().join("ca.pem"), &authority.pem).expect("written");
    };
    pin(&own);
    own.write_agent(&client);
    assert!(is_let_in(&files, &server).await);
    // Renewed by the wrong authority, then by the right one.
    other.write_agent(&client);
    assert!(!is_let_in(&files, &server).await);
    own.write_agent(&client);
    assert!(is_let_in(&files, &server).await);
    let bare = TlsFiles {
        client: None,
        ..files.clone()
    };
    assert!(!is_let_in(&bare, &server).await, "it shows no certificate");
    pin(&other);
    assert!(!is_let_in(&files, &server).await, "another is pinned");
}
