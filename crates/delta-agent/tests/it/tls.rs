//! The agent and TLS: a private authority is trusted when it is named, and nobody else is.

use std::sync::Arc;

use delta_agent::client::CallError;
use delta_agent::{AgentSettings, Client};
use delta_wire::Seconds;
use delta_wire::runner::Lease;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

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
