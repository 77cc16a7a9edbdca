//! OIDC machine credentials against an issuer that the test runs itself: real keys, a discovery
//! document, a set of keys that rotates and goes away.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use delta_server::{Config, OidcTimes};
use delta_testkit::wait::eventually_async;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::audit::keep_log;
use crate::bench::{Answer, Bench, PATIENCE, config, patient_settings};

/// A key of the issuer, with its name.
struct Key {
    id: &'static str,
    algorithm: Algorithm,
    signing: EncodingKey,
    public_pem: String,
}

impl Key {
    fn rsa(id: &'static str) -> Key {
        let size = rcgen::RsaKeySize::_2048;
        let pair = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        let signing = EncodingKey::from_rsa_pem(pair.serialize_pem().as_bytes()).unwrap();
        Key {
            id,
            algorithm: Algorithm::RS256,
            signing,
            public_pem: pair.public_key_pem(),
        }
    }

    fn ec(id: &'static str) -> Key {
        let pair = rcgen::KeyPair::generate().unwrap();
        let signing = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
        Key {
            id,
            algorithm: Algorithm::ES256,
            signing,
            public_pem: pair.public_key_pem(),
        }
    }

    fn public(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.signing, self.algorithm).unwrap();
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["kid"] = self.id.into();
        jwk["use"] = "sig".into();
        jwk
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_as(self.id, claims)
    }

    fn sign_as(&self, id: &str, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(id.to_owned());
        jsonwebtoken::encode(&header, claims, &self.signing).unwrap()
    }
}

/// An issuer on a port of its own.
struct Issuer {
    url: String,
    keys: Arc<Mutex<Value>>,
    fetches: Arc<AtomicUsize>,
    serving: tokio::task::JoinHandle<()>,
}

impl Issuer {
    async fn start(keys: &[&Key]) -> Issuer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Mutex::new(Value::Null));
        let fetches = Arc::<AtomicUsize>::default();
        let document = json!({ "issuer": url, "jwks_uri": format!("{url}/keys") });
        let (set, count) = (shared.clone(), fetches.clone());
        let router = Router::new()
            .route(
                "/.well-known/openid-configuration",
                get(async move || Json(document)),
            )
            .route(
                "/keys",
                get(async move || {
                    count.fetch_add(1, Relaxed);
                    Json(set.lock().unwrap().clone())
                }),
            );
        let serving = tokio::spawn(async move { axum_serve(listener, router).await });
        let issuer = Issuer {
            url,
            keys: shared,
            fetches,
            serving,
        };
        issuer.publish(keys);
        issuer
    }

    fn publish(&self, keys: &[&Key]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.public()).collect();
        *self.keys.lock().unwrap() = json!({ "keys": keys });
    }

    fn claims(&self) -> Value {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap().as_secs();
        json!({ "iss": self.url, "aud": "delta-ci", "sub": "repo:acme/app", "iat": now,
            "nbf": now, "exp": now + 600, "zones": ["eu"] })
    }

    fn changed(&self, name: &str, value: Value) -> Value {
        let mut claims = self.claims();
        claims[name] = value;
        claims
    }

    fn in_seconds(&self, name: &str, seconds: i64) -> Value {
        let now = self.claims()["iat"].as_i64().unwrap();
        self.changed(name, json!(now + seconds))
    }
}

/// Serves until the task is ended.
async fn axum_serve(listener: tokio::net::TcpListener, router: Router) {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto::Builder;
    use hyper_util::service::TowerToHyperService;
    let mut open = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(router.clone());
        open.spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Fetches as often as a test likes.
const EAGER: OidcTimes = OidcTimes {
    refresh_after: Duration::from_millis(100),
    kept_for: Duration::from_secs(600),
    pause: Duration::from_millis(10),
};

async fn server(issuer: &Issuer, times: OidcTimes) -> Bench {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("oidc.json");
    let rules = json!({ "issuers": [{ "name": "forge", "issuer": issuer.url,
        "audience": "delta-ci", "algorithms": ["RS256", "ES256"], "subjects": ["repo:acme/*"],
        "pool": "ci", "zones_claim": "zones" }] });
    std::fs::write(&file, rules.to_string()).unwrap();
    let config = Config {
        oidc: Some(file),
        oidc_times: times,
        ..config(&data, patient_settings())
    };
    Bench::start(data, config).await
}

async fn lease(bench: &Bench, token: &str) -> Answer {
    let ask = json!({ "type": "Lease", "runner_id": "r/1", "capabilities": ["linux"],
        "wait_seconds": 0 });
    bench.post(token, "/api/v1/runner/lease", ask).await
}

#[tokio::test]
async fn a_token_of_the_issuer_gets_in_with_what_its_claims_grant() {
    // EP-32, T27
    let log = keep_log();
    let (rsa, ec) = (Key::rsa("r1"), Key::ec("e1"));
    let issuer = Issuer::start(&[&rsa, &ec]).await;
    let bench = server(&issuer, EAGER).await;
    let in_zone = |zone: &str| {
        json!([{ "name": "a", "requires": [format!("zone={zone}"), "pool=ci"],
            "job_spec": { "steps": ["true"] } }])
    };
    bench.create(in_zone("prod")).await;
    let tokens = [rsa.sign(&issuer.claims()), ec.sign(&issuer.claims())];
    for token in &tokens {
        lease(&bench, token).await.expect(204);
        // It is an agent's, and opens nothing else.
        bench.get_as(token, "/api/v1/runs").await.expect(403);
    }
    bench.create(in_zone("eu")).await;
    lease(&bench, &tokens[0]).await.expect(200);
    // Revoked by who it is, whatever tokens it still gets.
    let url = format!("{}/api/v1/tokens/oidc:forge:repo:acme%2Fapp", bench.base);
    let revoked = bench.client.delete(url).bearer_auth(&bench.admin).send();
    assert_eq!(revoked.await.unwrap().status().as_u16(), 204);
    lease(&bench, &rsa.sign(&issuer.claims())).await.expect(401);
    let all = log();
    for token in &tokens {
        assert!(!all.contains(token.as_str()), "a token is in the log");
    }
}

#[tokio::test]
async fn a_token_that_is_wrong_in_any_way_is_refused() {
    // EP-32
    let (rsa, thief) = (Key::rsa("r1"), Key::rsa("r1"));
    let issuer = Issuer::start(&[&rsa]).await;
    let bench = server(&issuer, EAGER).await;
    let good = rsa.sign(&issuer.claims());
    lease(&bench, &good).await.expect(204);
    let claims = issuer.claims();
    let parts: Vec<&str> = good.split('.').collect();
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let none = |alg: &str, signature: &str| {
        let header = encoded(&json!({ "alg": alg, "kid": "r1" }));
        format!("{header}.{}.{signature}", encoded(&claims))
    };
    // The public key, known to all, as the secret of a symmetric signature.
    let mut confused = Header::new(Algorithm::HS256);
    confused.kid = Some("r1".into());
    let secret = EncodingKey::from_secret(rsa.public_pem.as_bytes());
    let confused = jsonwebtoken::encode(&confused, &claims, &secret).unwrap();
    for (what, token) in [
        (
            "issuer",
            rsa.sign(&issuer.changed("iss", json!("https://id.example"))),
        ),
        (
            "audience",
            rsa.sign(&issuer.changed("aud", json!("another"))),
        ),
        (
            "subject",
            rsa.sign(&issuer.changed("sub", json!("repo:evil/app"))),
        ),
        ("expired", rsa.sign(&issuer.in_seconds("exp", -31))),
        ("not yet valid", rsa.sign(&issuer.in_seconds("nbf", 60))),
        ("of the future", rsa.sign(&issuer.in_seconds("iat", 60))),
        ("no expiry", rsa.sign(&issuer.changed("exp", Value::Null))),
        ("unknown key", rsa.sign_as("r2", &claims)),
        ("another's key", thief.sign(&claims)),
        (
            "changed claims",
            format!(
                "{}.{}.{}",
                parts[0],
                encoded(&issuer.changed("sub", json!("repo:acme/x"))),
                parts[2]
            ),
        ),
        ("cut signature", good[..good.len() - 4].to_owned()),
        ("alg none", none("none", "")),
        ("alg none, signed", none("none", parts[2])),
        ("alg None", none("None", "")),
        ("key confusion", confused),
        ("not a token", "a.b.c".to_owned()),
    ] {
        assert_eq!(lease(&bench, &token).await.status.as_u16(), 401, "{what}");
    }
    lease(&bench, &good).await.expect(204);
}

#[tokio::test]
async fn keys_rotate_and_survive_an_outage() {
    // EP-32
    let (old, new) = (Key::rsa("k1"), Key::ec("k2"));
    let issuer = Issuer::start(&[&old]).await;
    let bench = server(&issuer, EAGER).await;
    let (by_old, by_new) = (old.sign(&issuer.claims()), new.sign(&issuer.claims()));
    lease(&bench, &by_old).await.expect(204);
    lease(&bench, &by_new).await.expect(401);
    // Both for a while, as issuers do it.
    issuer.publish(&[&old, &new]);
    eventually_async(PATIENCE, "the new key", async || {
        let status = lease(&bench, &by_new).await.status.as_u16();
        if status == 204 { Ok(()) } else { Err(status) }
    })
    .await;
    lease(&bench, &by_old).await.expect(204);
    issuer.publish(&[&new]);
    eventually_async(PATIENCE, "the old key is gone", async || {
        let status = lease(&bench, &by_old).await.status.as_u16();
        if status == 401 { Ok(()) } else { Err(status) }
    })
    .await;
    // The issuer goes away: what is known stays good.
    issuer.serving.abort();
    let _ = issuer.serving.await;
    for _ in 0..3 {
        lease(&bench, &by_new).await.expect(204);
    }
}

#[tokio::test]
async fn invented_keys_cause_no_flood_of_fetches() {
    // EP-32, D15
    let key = Key::rsa("k1");
    let issuer = Issuer::start(&[&key]).await;
    let patient = OidcTimes {
        pause: Duration::from_secs(600),
        refresh_after: Duration::from_secs(600),
        ..EAGER
    };
    let bench = server(&issuer, patient).await;
    lease(&bench, &key.sign(&issuer.claims())).await.expect(204);
    for n in 0..40 {
        let invented = key.sign_as(&format!("x{n}"), &issuer.claims());
        lease(&bench, &invented).await.expect(401);
    }
    assert_eq!(issuer.fetches.load(Relaxed), 1);
    lease(&bench, &key.sign(&issuer.claims())).await.expect(204);
}

#[tokio::test]
async fn an_issuer_that_was_never_reached_is_waited_for() {
    // A35: an outage must not make agents give up their credentials.
    let key = Key::rsa("k1");
    let issuer = Issuer::start(&[&key]).await;
    issuer.serving.abort();
    let bench = server(&issuer, EAGER).await;
    let answer = lease(&bench, &key.sign(&issuer.claims())).await;
    answer.expect(503);
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_file_with_a_slip_keeps_the_server_from_starting() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("oidc.json");
    std::fs::write(&file, r#"{ "issuers": [{ "nam": "x" }] }"#).unwrap();
    let config = Config {
        oidc: Some(file),
        ..config(&data, patient_settings())
    };
    let refused = delta_server::start(config).await.err().unwrap().to_string();
    assert!(refused.contains("did you mean `name`"), "{refused}");
}
