//! Sockets: TLS, the admin socket, the rule about the clear, one server per folder.

use std::net::SocketAddr;

use delta_server::{Config, StartError, Tls};
use reqwest::{Certificate, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bench::{Bench, config, patient_settings};

async fn refused(config: Config) -> StartError {
    match delta_server::start(config).await {
        Err(error) => error,
        Ok(_) => panic!("it started"),
    }
}

#[tokio::test]
async fn a_listener_beyond_loopback_needs_tls_or_a_word_about_it() {
    // D14
    let data = tempfile::tempdir().unwrap();
    let anywhere: SocketAddr = ([0, 0, 0, 0], 0).into();
    let open = Config {
        listen: Some(anywhere),
        ..config(&data, patient_settings())
    };
    let error = refused(open.clone()).await.to_string();
    for fix in ["--tls-cert", "--tls-key", "--behind-tls-proxy"] {
        assert!(error.contains(fix), "{error}");
    }
    let proxied = Config {
        behind_tls_proxy: true,
        ..open
    };
    delta_server::start(proxied).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused_by_name() {
    // D3
    let bench = Bench::patient().await;
    let second = refused(config(&bench.data, patient_settings())).await;
    let text = second.to_string();
    assert!(matches!(second, StartError::Locked { .. }), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
}

#[tokio::test]
async fn a_setting_that_cannot_work_is_refused_by_name() {
    // RP-47
    let data = tempfile::tempdir().unwrap();
    let mut config = config(&data, patient_settings());
    config.settings.lease_ttl = delta_core::Span::secs(1);
    let error = refused(config).await.to_string();
    assert!(error.contains("--lease-ttl"), "{error}");
}

#[tokio::test]
async fn tls_is_spoken_with_the_given_certificate() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let data = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (data.path().join("cert.pem"), data.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let secured = Config {
        tls: Some(Tls {
            client_ca: None,
            cert: cert.clone(),
            key,
        }),
        listen: Some(([0, 0, 0, 0], 0).into()),
        ..config(&data, patient_settings())
    };
    let server = delta_server::start(secured).await.unwrap();
    let port = server.addr().unwrap().port();
    let root = Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    let client = Client::builder().tls_certs_only([root]).build().unwrap();
    let answer = client
        .get(format!("https://localhost:{port}/healthz"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let plain = Client::new()
        .get(format!("http://localhost:{port}/healthz"))
        .send()
        .await;
    assert!(plain.is_err(), "nothing is answered in the clear");
    server.shutdown().await;
    let wrong = Config {
        tls: Some(Tls {
            client_ca: None,
            cert,
            key: data.path().join("nothing.pem"),
        }),
        ..config(&data, patient_settings())
    };
    assert!(refused(wrong).await.to_string().contains("nothing.pem"));
}

/// One request over the admin socket, without any credential.
async fn admin(bench: &Bench, request: &str) -> (u16, Value) {
    let path = bench.server.as_ref().unwrap().admin_socket();
    let mut socket = tokio::net::UnixStream::connect(path).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test]
async fn whoever_may_open_the_admin_socket_is_an_administrator() {
    // D14
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::patient().await;
    let body = json!({ "role": "runner", "name": "box" }).to_string();
    let head = "POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\nconnection: close";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let (status, made) = admin(&bench, &request).await;
    assert_eq!(status, 201, "{made}");
    let get = "GET /api/v1/runs HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(admin(&bench, get).await.0, 200);
    let path = bench.server.as_ref().unwrap().admin_socket();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let folder = std::fs::metadata(bench.data.path().join("lock")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn shutdown_sends_parked_requests_home_and_refuses_nobody_mid_flight() {
    // A67
    let mut bench = Bench::patient().await;
    let server = bench.server.take().unwrap();
    let socket = server.admin_socket();
    let (parked, ()) = tokio::join!(bench.lease_as("r1", 30.0), async {
        delta_testkit::wait::eventually_async(crate::bench::PATIENCE, "parked", async || {
            let text = bench.get("/metrics").await.text;
            if text.contains("delta_parked_slots 1") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        server.shutdown().await;
    });
    parked.expect(204);
    assert!(!socket.exists(), "the socket is gone with its server");
}
