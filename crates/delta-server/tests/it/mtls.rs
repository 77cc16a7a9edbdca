//! Client certificates over real TLS, with certificates that openssl made: who gets in, as whom,
//! with what; and files that change while connections are open.

use std::path::PathBuf;

use delta_server::{Config, Tls};
use delta_testkit::wait::eventually_async;
use reqwest::{Client, Identity};
use serde_json::{Value, json};

use crate::audit::keep_log;
use crate::bench::{Answer, Bench, PATIENCE, config, patient_settings};
use crate::certificates::{Authority, Made};

struct Place {
    bench: Bench,
    authority: Authority,
    url: String,
    files: Tls,
    /// Of the API of people, over TLS, too.
    people: Client,
}

async fn place() -> Place {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let data = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let file = |name: &str| -> PathBuf { data.path().join(name) };
    let files = Tls {
        cert: file("server.pem"),
        key: file("server.key"),
        client_ca: Some(file("clients.pem")),
    };
    authority.server().write(&files.cert, &files.key);
    std::fs::copy(authority.path(), file("clients.pem")).unwrap();
    let config = Config {
        tls: Some(files.clone()),
        ..config(&data, patient_settings())
    };
    let mut bench = Bench::start(data, config).await;
    let port = bench.server.as_ref().unwrap().addr().unwrap().port();
    let url = format!("https://localhost:{port}");
    bench.base = url.clone();
    let people = client(&authority, None);
    bench.client = people.clone();
    Place {
        bench,
        authority,
        url,
        files,
        people,
    }
}

/// A client that trusts this authority alone, and shows this.
fn client(authority: &Authority, identity: Option<Identity>) -> Client {
    let builder = Client::builder().tls_certs_only([authority.root()]);
    let builder = match identity {
        Some(identity) => builder.identity(identity),
        None => builder,
    };
    builder.build().unwrap()
}

fn ask(runner: &str, tags: &[&str]) -> String {
    json!({ "type": "Lease", "runner_id": runner, "capabilities": tags, "wait_seconds": 0 })
        .to_string()
}

impl Place {
    /// Asks for work; the status, or nothing when there was no connection.
    async fn lease(&self, client: &Client, runner: &str, tags: &[&str]) -> Option<u16> {
        let request = client
            .post(format!("{}/api/v1/runner/lease", self.url))
            .body(ask(runner, tags));
        request.send().await.ok().map(|it| it.status().as_u16())
    }

    async fn as_agent(&self, made: &Made, tags: &[&str]) -> Option<u16> {
        let client = client(&self.authority, Some(made.identity()));
        self.lease(&client, "box/1", tags).await
    }

    async fn grant(&self, body: Value) -> Answer {
        let admin = &self.bench.admin;
        self.bench.post(admin, "/api/v1/tokens", body).await
    }

    async fn revoke(&self, id: &str) -> u16 {
        let url = format!("{}/api/v1/tokens/{id}", self.url);
        let request = self.people.delete(url).bearer_auth(&self.bench.admin);
        request.send().await.unwrap().status().as_u16()
    }

    /// A job for the zone `prod`.
    async fn job_in_prod(&self) {
        let job = json!([{ "name": "a", "requires": ["zone=prod"],
            "job_spec": { "steps": ["true"] } }]);
        self.bench.create(job).await;
    }
}

#[tokio::test]
async fn a_certificate_of_the_authority_gets_in_and_no_other() {
    // EP-31
    let place = place().await;
    let authority = &place.authority;
    let stranger = Authority::new();
    for (good, made) in [
        (true, authority.agent("x", "URI:spiffe://ci/a")),
        (true, authority.agent("x", "DNS:a.ci")),
        (true, authority.agent("only-a-common-name", "")),
        // The authority is another, of the same name.
        (false, stranger.agent("x", "DNS:a.ci")),
        // Expired.
        (
            false,
            authority.issue("x", "extendedKeyUsage=clientAuth\n", -1),
        ),
        // For servers, and for nothing in particular.
        (false, authority.server()),
        (false, authority.issue("x", "subjectAltName=DNS:a.ci\n", 2)),
    ] {
        let status = place.as_agent(&made, &["linux"]).await;
        assert_eq!(status, good.then_some(204), "{}", made.cert);
    }
    // Without a certificate there are tokens, and without a token nothing.
    let bare = client(authority, None);
    assert_eq!(place.lease(&bare, "box/1", &[]).await, Some(401));
    place.bench.lease_as("r", 0.0).await.expect(204);
    // A certificate is an agent's: it opens nothing that people do.
    let made = authority.agent("x", "DNS:a.ci");
    let agent = client(authority, Some(made.identity()));
    let runs = agent.get(format!("{}/api/v1/runs", place.url)).send();
    assert_eq!(runs.await.unwrap().status().as_u16(), 403);
}

#[tokio::test]
async fn a_certificate_is_granted_what_was_said_of_its_exact_name() {
    // EP-31, T27: the alternative name counts, whatever the common name says.
    let place = place().await;
    place.job_in_prod().await;
    let tags = ["linux", "zone=prod"];
    let victim = "spiffe://ci/victim";
    let granted = json!({ "role": "runner", "name": "v", "certificate": victim,
        "zones": ["prod"], "agent_id": "box" });
    let made = place.grant(granted).await.expect(201);
    assert_eq!(made["view"]["token_id"], format!("cert:{victim}"));
    assert!(made.get("token").is_none(), "{made}");
    for (common, names) in [
        ("spiffe_ci_victim", "URI:spiffe://ci/other"),
        ("x", "URI:spiffe://ci/victim2"),
        ("x", "DNS:victim"),
    ] {
        let other = place.authority.agent(common, names);
        assert_eq!(place.as_agent(&other, &tags).await, Some(204), "{names}");
    }
    let made = place.authority.agent("x", &format!("URI:{victim}"));
    // A26: bound to one agent.
    let agent = client(&place.authority, Some(made.identity()));
    assert_eq!(place.lease(&agent, "other/1", &tags).await, Some(403));
    assert_eq!(place.lease(&agent, "box/1", &tags).await, Some(200));
}

#[tokio::test]
async fn a_revoked_name_is_refused_for_good_and_on_open_connections() {
    // EP-31, D14
    let place = place().await;
    let made = place.authority.agent("x", "DNS:a.ci");
    let agent = client(&place.authority, Some(made.identity()));
    assert_eq!(place.lease(&agent, "box/1", &[]).await, Some(204));
    // Nothing was granted to it, and it can be revoked all the same.
    assert_eq!(place.revoke("cert:a.ci").await, 204);
    assert_eq!(place.lease(&agent, "box/1", &[]).await, Some(401));
    let again = json!({ "role": "runner", "name": "v", "certificate": "a.ci" });
    place.grant(again).await.expect(409);
    assert_eq!(place.as_agent(&made, &[]).await, Some(401));
    let list = place
        .bench
        .get_as(&place.bench.admin, "/api/v1/tokens")
        .await;
    assert!(list.text.contains("cert:a.ci"), "{}", list.text);
}

#[tokio::test]
async fn renewed_files_are_used_without_dropping_connections() {
    // EP-2
    let log = keep_log();
    let place = place().await;
    let old = client(&place.authority, None);
    assert_eq!(place.lease(&old, "box/1", &[]).await, Some(401));
    let other = Authority::new();
    other.server().write(&place.files.cert, &place.files.key);
    eventually_async(PATIENCE, "the new certificate", async || {
        let fresh = client(&other, None);
        place.lease(&fresh, "box/1", &[]).await.ok_or(())
    })
    .await;
    // It trusts the old authority alone, so that this is the connection from before.
    assert_eq!(place.lease(&old, "box/1", &[]).await, Some(401));
    let new_one = client(&place.authority, None);
    assert_eq!(place.lease(&new_one, "box/1", &[]).await, None);
    // A broken file leaves the former ones in force, and that is said.
    std::fs::write(&place.files.cert, "-----BEGIN CERTIFICATE-----\nx").unwrap();
    let said = "stay in force";
    eventually_async(PATIENCE, said, async || {
        log().contains(said).then_some(()).ok_or(())
    })
    .await;
    let fresh = client(&other, None);
    assert_eq!(place.lease(&fresh, "box/1", &[]).await, Some(401));
}

#[tokio::test]
async fn an_authority_that_is_trusted_no_more_ends_open_connections() {
    // EP-31
    let place = place().await;
    let made = place.authority.agent("x", "DNS:a.ci");
    let agent = client(&place.authority, Some(made.identity()));
    assert_eq!(place.lease(&agent, "box/1", &[]).await, Some(204));
    let other = Authority::new();
    let clients = place.files.client_ca.as_ref().unwrap();
    std::fs::write(clients, other.pem()).unwrap();
    eventually_async(
        PATIENCE,
        "the old authority's agent is out",
        async || match place.lease(&agent, "box/1", &[]).await {
            Some(401) => Ok(()),
            other => Err(other),
        },
    )
    .await;
    let new_agent = other.agent("x", "DNS:b.ci");
    let new_agent = client(&place.authority, Some(new_agent.identity()));
    assert_eq!(place.lease(&new_agent, "box/1", &[]).await, Some(204));
}
