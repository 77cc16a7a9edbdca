//! A disk that takes what is written and fails when it is to be flushed: what may be lost with the
//! next loss of power is told to nobody as done.
//!
//! A library of a few lines stands between the server and the system's; Rust needs a compiler of C
//! to link, so there is one.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::harness::{Grant, Options, Runner, Server, jobs, until};

/// Fails every flush while there is the file that `FLUSHES_FAIL` names.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(void) {
    const char *mark = getenv("FLUSHES_FAIL");
    return mark && access(mark, F_OK) == 0 ? (errno = EIO, 1) : 0;
}

int fsync(int file) { return fails() ? -1 : syscall(SYS_fsync, file); }
int fdatasync(int file) { return fails() ? -1 : syscall(SYS_fdatasync, file); }
"#;

fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("flushes.c"), folder.join("flushes.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    assert!(compiler.status().expect("cc").success());
    library
}

/// Hands over the whole log of a lease; the status of the answer.
fn hand_over(runner: &Runner, grant: &Grant, log: &str) -> u16 {
    let message = json!({ "type": "CreateUpload", "lease_id": grant.lease, "runner_id": runner.id,
        "name": "log", "kind": "log" });
    let made = runner
        .http
        .post("/api/v1/runner/uploads", &message)
        .unwrap();
    if made.status != 201 {
        return made.status;
    }
    let headers = [
        ("Delta-Lease", grant.lease.as_str()),
        ("Upload-Offset", "0"),
    ];
    let url = made.word("url");
    let put = runner.http.send("PUT", url, &headers, log.as_bytes());
    put.unwrap().status
}

#[test]
fn what_a_disk_fails_to_flush_is_told_to_nobody_as_done() {
    let place = tempfile::tempdir().unwrap();
    let mark = place.path().join("fails");
    let library = library(place.path()).display().to_string();
    let options = Options::patient()
        .env("LD_PRELOAD", library)
        .env("FLUSHES_FAIL", mark.display().to_string());
    let mut server = Server::start(options);
    let (person, one) = (server.person(), server.runner("one"));
    let run = person.create(&jobs(1));
    let grant = one.take();
    let ready = || person.http.get("/readyz").unwrap();
    assert_eq!(ready().status, 200);

    std::fs::write(&mark, "").unwrap();
    let refused = person.http.post("/api/v1/runs", &jobs(1)).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(refused.body["retryable"], true, "{}", refused.text);
    let said = refused.word("message");
    assert!(said.contains("cannot be written to"), "{said}");
    let refused = one.complete(&grant, "SUCCEEDED", 0).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text);
    let log = "what was printed\n";
    let status = hand_over(&one, &grant, log);
    assert!(status >= 500, "{status}");
    until("it is not ready", ready, |answer| answer.status == 503);
    // Not restarted: it lives, and what was there before can be read.
    assert_eq!(person.run(&run)["jobs"][0]["job_id"], grant.job.as_str());
    assert!(server.process().is_running());

    std::fs::remove_file(&mark).unwrap();
    until("it is ready again", ready, |answer| answer.status == 200);
    assert_eq!(hand_over(&one, &grant, log), 200);
    one.succeed(&grant);
    let after = person.create(&jobs(1));
    server.kill9();
    server.start_again();
    let over = person.run(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let path = format!("/api/v1/jobs/{}/log", grant.job);
    assert_eq!(person.http.get(&path).unwrap().text, log);
    // Those that were answered with success, and none beside them.
    let mut made = vec![run, after];
    made.sort();
    let mut known = person.run_ids();
    known.sort();
    assert_eq!(known, made);
    server.check();
}
