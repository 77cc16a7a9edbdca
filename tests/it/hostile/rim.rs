//! The rim: credentials, noise on the wire, and what must never be shown.

use serde_json::{Value, json};

use super::{Stage, refused};
use crate::harness::http::raw;
use crate::harness::{Http, jobs, secret_in, until};

// RP-55: who may do what.
#[test]
fn credentials_reach_as_far_as_their_role() {
    let stage = Stage::set();
    let addr = stage.server.addr();
    let http = |token: &str| Http {
        addr,
        token: token.to_owned(),
    };
    let stranger = format!("delta_runner_{}", "A".repeat(43));
    let beat = stage.one.beat(&stage.grant);
    let runs = "/api/v1/runs";
    let beats = "/api/v1/runner/heartbeat";
    let cancel = format!("{runs}/{}/cancel", stage.grant.run);
    let token = json!({"role": "admin", "name": "mine"});
    let (runner, user) = (&stage.one.http.token, &stage.person.http.token);
    stage.nothing_changes("the wrong role", || {
        for nobody in ["", "x", stranger.as_str(), "delta_user_", "' OR 1=1 --"] {
            let nobody = http(nobody);
            refused(&nobody.post(beats, &beat).unwrap(), 401, None);
            refused(&nobody.post(runs, &jobs(1)).unwrap(), 401, None);
            refused(&nobody.get(runs).unwrap(), 401, None);
            refused(
                &nobody.get(&format!("{runs}/{}", stage.grant.run)).unwrap(),
                401,
                None,
            );
        }
        refused(&http(user).post(beats, &beat).unwrap(), 403, None);
        refused(
            &http(user).post("/api/v1/tokens", &token).unwrap(),
            403,
            None,
        );
        refused(&http(user).get("/api/v1/tokens").unwrap(), 403, None);
        for path in [runs, cancel.as_str(), "/api/v1/tokens"] {
            refused(&http(runner).post(path, &jobs(1)).unwrap(), 403, None);
        }
        refused(&http(runner).get(runs).unwrap(), 403, None);
    });
    stage.end();
}

// T22, T23: bytes that are no HTTP; the server goes on.
#[test]
fn bytes_that_are_no_http_hurt_nobody() {
    let stage = Stage::set();
    let addr = stage.server.addr();
    stage.nothing_changes("noise", || {
        for bytes in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /api/v1/runs HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
            &[0; 4096],
            &vec![b'A'; 200_000],
        ] {
            if let Ok(answer) = raw(addr, bytes).and_then(|sent| sent.answer()) {
                assert!((400..500).contains(&answer.status), "{answer:?}");
            }
        }
        // A request that stops in the middle, and one that says less than it announced.
        drop(raw(
            addr,
            b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Le",
        ));
        drop(raw(
            addr,
            b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
        ));
    });
    stage.end();
}

// I24, RP-53, RP-54, A24: a token that was used is nowhere to be read.
#[test]
fn no_secret_is_shown_anywhere() {
    let stage = Stage::set();
    let (person, grant) = (&stage.person, &stage.grant);
    stage.one.heartbeat(grant).unwrap().expect(200);
    stage
        .two
        .complete(grant, "SUCCEEDED", 0)
        .unwrap()
        .expect(409);
    stage.one.succeed(grant);
    let run = format!("/api/v1/runs/{}", grant.run);
    let paths = [
        "/metrics".to_owned(),
        "/healthz".to_owned(),
        "/readyz".to_owned(),
        "/api/v1/openapi.json".to_owned(),
        "/api/v1/runs".to_owned(),
        run.clone(),
        format!("{run}/events"),
        format!("/api/v1/jobs/{}", grant.job),
    ];
    let random = &grant.lease[grant.lease.len() - 20..];
    for path in &paths {
        let answer = person.http.get(path).unwrap().expect(200);
        assert_eq!(secret_in(&answer.text), None, "{path}");
        assert!(!answer.text.contains(random), "{path} shows the lease");
        for (name, value) in &answer.headers {
            assert_eq!(secret_in(value), None, "{path}: {name}");
        }
    }
    let listed = stage.server.cli(&["token", "list", "--json"]);
    assert_eq!((listed.code, secret_in(&listed.stdout)), (Some(0), None));
    let log = stage.server.log();
    assert!(!log.contains(random), "the log shows the lease");
    stage.server.check();
}

// D14: a revoked token is worthless within seconds.
#[test]
fn a_revoked_token_is_nobodys() {
    let stage = Stage::set();
    let listed = stage.server.cli(&["token", "list", "--json"]);
    let tokens: Value = serde_json::from_str(&listed.stdout).unwrap();
    for token in tokens
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["role"] == "runner")
    {
        let done = stage
            .server
            .cli(&["token", "revoke", token["token_id"].as_str().unwrap()]);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    until(
        "the revocation bites",
        || stage.one.heartbeat(&stage.grant).unwrap().status,
        |status| *status == 401,
    );
    assert_eq!(stage.person.http.get("/api/v1/runs").unwrap().status, 200);
    stage.server.check();
}
