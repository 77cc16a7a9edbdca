//! What jobs leave and find again: artifacts, inputs and caches, through the real binary.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use delta_testkit::disk::Mounted;
use delta_testkit::process::{Process, Spawn};
use delta_testkit::proxy::{Direction, Proxy};
use delta_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::faults_agent::{agent_at, only_job};
use crate::handover::log_of;
use crate::harness::server::finish;
use crate::harness::{Options, Person, Server, storm_count, until};

/// Megabytes of the large artifact: sparse, so that only the way is long.
fn large_megabytes() -> u32 {
    storm_count("DELTA_STORM_ARTIFACT_MB", 512)
}

/// Megabytes of the large cache.
fn cache_megabytes() -> u32 {
    storm_count("DELTA_STORM_CACHE_MB", 128)
}

/// How long the largest file may take.
const LONG: Duration = Duration::from_secs(240);

/// Memory that neither side may ever have needed, whatever the size of a file: several times what
/// an idle one has.
const FLAT_MEMORY_KB: u64 = 300_000;

/// What a large one may need more than a small one: half of the smallest large one there is.
const FEW_MORE_KB: u64 = 64_000;

fn agent(server: &Server, name: &str) -> Spawn {
    // Jobs of users of their own pass through.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(server.folder(), open).unwrap();
    server.agent(name)
}

fn run_of(trust: &str, spec: Value) -> Value {
    json!({ "trust": trust, "jobs": [{ "name": "work", "job_spec": spec }] })
}

#[track_caller]
fn succeeds(person: &Person, run: &str) -> String {
    let over = person.until_over_within(LONG, run);
    let job = only_job(person, run);
    let shown = person.attempt(&job);
    assert_eq!(
        over["outcome"],
        "SUCCESS",
        "{shown}\n{}",
        log_of(person, &job)
    );
    job
}

/// The most memory that a process has had at once, in kilobytes.
fn peak(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn names(person: &Person, path: &str) -> Vec<String> {
    let list = person.get(&format!("/api/v1/{path}/artifacts"))["artifacts"].clone();
    let name = |it: &Value| it["name"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

/// A job that leaves good files among traps, and two that want some of them.
fn hostile_and_good(folder: &Path) -> Value {
    let secret = folder.join("secret");
    std::fs::write(&secret, "canary").unwrap();
    let make = format!(
        "mkdir -p dist/sub; echo small > dist/small.txt\n\
         head -c 3000000 /dev/urandom > dist/sub/large.bin; sha256sum dist/sub/large.bin\n\
         : > dist/empty; ln dist/small.txt dist/twin\n\
         ln -s {secret} dist/link; ln -s / dist/root; mkfifo dist/pipe; ln -s .. dist/sub/up\n\
         ln -s /proc/self/fd dist/fds",
        secret = secret.display()
    );
    json!([
        { "name": "build", "job_spec": { "steps": [make],
            "artifacts": ["dist/**", { "type": "report", "path_glob": "no/such.xml" }] } },
        { "name": "use", "needs": ["build"], "job_spec": {
            "steps": ["cat in/dist/small.txt; sha256sum in/dist/sub/large.bin; ! ls in/dist/link"],
            "inputs": [{ "job": "build", "path_glob": "dist/**", "into": "in" }] } },
        { "name": "want", "needs": ["build"], "job_spec": {
            "steps": ["echo never"], "inputs": [{ "job": "build", "path_glob": "other/*" }] },
            "required": false },
    ])
}

// T9, EP-13, EP-46
#[test]
fn files_of_one_job_are_kept_fetched_and_found_by_the_next() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "box").spawn().unwrap();
    let jobs = hostile_and_good(server.folder());
    let run = person.create(&json!({ "jobs": jobs }));
    let over = person.until_over(&run);
    let ids: Vec<String> = (0..3)
        .map(|n| over["jobs"][n]["job_id"].as_str().unwrap().to_owned())
        .collect();
    let build = log_of(&person, &ids[0]);
    assert_eq!(over["outcome"], "SUCCESS", "{over}\n{build}");
    let wanted = [
        "dist/empty",
        "dist/small.txt",
        "dist/sub/large.bin",
        "dist/twin",
    ];
    assert_eq!(names(&person, &format!("jobs/{}", ids[0])), wanted);
    assert!(build.contains("--- 4 artifacts, 3.0 MB in "), "{build}");
    assert!(
        build.contains("warning: no file matches the artifact `no/such.xml`"),
        "{build}"
    );
    assert!(build.contains("`dist/link` is a link"), "{build}");
    let used = log_of(&person, &ids[1]);
    let hash = build
        .lines()
        .find(|line| line.contains("dist/sub/large.bin"))
        .unwrap();
    let hash = hash.split_whitespace().next().unwrap();
    assert!(used.contains("small\n") && used.contains(hash), "{used}");
    let want = person.job(&ids[2]);
    let attempts = want["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1, "it would be the same again: {want}");
    assert_eq!(attempts[0]["cause"], "spec_error", "{want}");
    fetched_by_hand(&server, &run);
    let list = server.cli(&["artifacts", &run]);
    assert!(
        list.stdout.contains("3.0 MB") && list.stdout.contains("dist/twin"),
        "{list:?}"
    );
    server.check();
}

/// What a person gets of it with `artifacts get`.
fn fetched_by_hand(server: &Server, run: &str) {
    let got = server.folder().join("got");
    let (data, build) = (server.data(), format!("{run}/build"));
    let program = delta_testkit::process::binary("delta-ci").unwrap();
    let get = Spawn::new("/bin/sh")
        .args(["-c", "umask 027; exec \"$0\" \"$@\""])
        .arg(program)
        .args(["artifacts", "get", &build, "-o"])
        .arg(&got)
        .arg("--data")
        .arg(&data);
    let done = finish(get);
    assert_eq!(done.code, Some(0), "{done:?}");
    let small = got.join("dist/small.txt");
    assert_eq!(std::fs::read_to_string(&small).unwrap(), "small\n");
    let mode = small.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640, "as the umask has it");
    let large = std::fs::read(got.join("dist/sub/large.bin")).unwrap();
    assert_eq!(large.len(), 3_000_000);
    let all = server.cli(&["artifacts", "get", &build, "-o", "-"]);
    assert_eq!(all.code, Some(2), "{all:?}");
    assert!(all.stderr.contains("none is named"), "{all:?}");
    assert!(!Path::new("-").exists(), "no folder of that name");
    let none = server.cli(&["artifacts", "get", &format!("{run}/use")]);
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(none.stderr.contains("left no artifacts"), "{none:?}");
}

/// The seconds that a text begins with.
fn seconds(text: &str) -> f64 {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.strip_suffix('s')
        .and_then(|it| it.parse().ok())
        .unwrap_or_else(|| panic!("`{word}`"))
}

// T7
#[test]
fn the_second_run_finds_the_cache_and_no_run_finds_a_forks() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "box").spawn().unwrap();
    let spec = |word: &str| {
        json!({ "steps": [format!("cat deps/.bin/tool || echo nothing there\n\
                [ -e deps/tool ] || sleep 3 # what the cache saves\n\
                mkdir -p deps/.bin; echo {word} > deps/tool; ln -sf ../tool deps/.bin/tool")],
            "caches": [{ "type": "deps", "key": "deps-{os}-{hash:none.lock}", "paths": ["deps"],
                "restore_keys": ["deps-"] }] })
    };
    // The fork is first, and says that it is the default branch.
    let mut fork = run_of("untrusted", spec("poison"));
    fork["ref"] = json!("main");
    let fork_log = log_of(&person, &succeeds(&person, &person.create(&fork)));
    assert!(
        fork_log.contains("cache deps: saved deps-linux-none"),
        "{fork_log}"
    );
    let first = log_of(
        &person,
        &succeeds(&person, &person.create(&run_of("trusted", spec("good")))),
    );
    assert!(
        first.contains("cache deps: miss deps-linux-none"),
        "{first}"
    );
    assert!(
        first.contains("nothing there") && !first.contains("poison\n"),
        "{first}"
    );
    let second = person.create(&run_of("trusted", spec("better")));
    let second = log_of(&person, &succeeds(&person, &second));
    assert!(
        second.contains("cache deps: hit deps-linux-none"),
        "{second}"
    );
    assert!(
        second.contains("\ngood\n") && !second.contains("saved deps"),
        "{second}"
    );
    assert!(second.contains("caches: saved about "), "{second}");
    // A fork reads what the default branch saved, where it has none of its own.
    let mut other = run_of("untrusted", spec("other"));
    other["ref"] = json!("patch");
    let other = log_of(&person, &succeeds(&person, &person.create(&other)));
    assert!(
        other.contains("cache deps: hit") && other.contains("\ngood\n"),
        "{other}"
    );
    let listed = server.cli(&["caches"]);
    assert!(listed.stdout.contains("untrusted"), "{listed:?}");
    // As long as it slept, and then as long as a busy machine takes.
    let times: Vec<f64> = listed.stdout.split("up to ").skip(1).map(seconds).collect();
    assert_eq!(times.len(), 2, "{listed:?}");
    assert!(
        times.iter().all(|it| (3.0..60.0).contains(it)),
        "{listed:?}"
    );
    assert!(listed.stdout.contains("(runs of "), "{listed:?}");
    let removed = server.cli(&["caches", "rm", "deps-"]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    assert_eq!(person.get("/api/v1/caches")["caches"], json!([]));
    server.check();
}

/// Changes one byte of the only cache that the server keeps.
fn spoil_the_cache(server: &Server) {
    let caches = server.data().join("objects/caches");
    let scopes = std::fs::read_dir(caches).unwrap().flatten();
    let files = scopes.flat_map(|it| std::fs::read_dir(it.path()).unwrap().flatten());
    let mut data: Vec<_> = files.map(|it| it.path()).collect();
    data.retain(|it| it.extension().is_some_and(|it| it == "data"));
    assert_eq!(data.len(), 1, "{data:?}");
    let mut bytes = std::fs::read(&data[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&data[0], bytes).unwrap();
}

// T11, D15
#[test]
fn a_cache_that_cannot_be_restored_does_not_hold_its_key() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "box").spawn().unwrap();
    // The one is packed once though it is named twice, the other is nearly nothing when packed.
    let spec = json!({ "steps": ["mkdir -p deps/a zeros; echo tool > deps/a/tool\n\
            ln -sf tool deps/a/link; truncate -s 200M zeros/big"],
        "caches": [{ "type": "deps", "key": "deps", "paths": ["deps/a", "deps"] },
            { "type": "zeros", "key": "zeros", "paths": ["zeros"] }] });
    let log = || {
        let run = person.create(&run_of("trusted", spec.clone()));
        log_of(&person, &succeeds(&person, &run))
    };
    let says = |log: &str, lines: &[&str]| {
        for line in lines {
            assert!(log.contains(line), "{line}\n{log}");
        }
        assert!(!log.contains("by another"), "{log}");
    };
    let too_large = "cache zeros: not saved: it could not be restored: 209.7 MB would come out of";
    says(&log(), &["cache deps: saved deps", too_large]);
    says(
        &log(),
        &["cache deps: hit deps", "cache zeros: miss zeros", too_large],
    );
    spoil_the_cache(&server);
    let lost = "cache deps: miss, for it could not be restored: ";
    let gone = "the server has it no more";
    says(&log(), &[lost, gone, "cache deps: saved deps"]);
    says(&log(), &["cache deps: hit deps"]);
    server.check();
}

/// Files that are being received, and are not empty.
fn being_received(objects: &Path) -> usize {
    let entries = std::fs::read_dir(objects.join("parts"))
        .into_iter()
        .flatten()
        .flatten();
    let written = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        path.metadata().is_ok_and(|it| it.blocks() > 2_000)
    };
    entries.filter(|entry| written(&entry.path())).count()
}

// F3, F45, D15
#[test]
fn an_agent_killed_in_mid_upload_leaves_nothing_half_and_the_next_sends_it_whole() {
    let server = Server::start(Options::patient().flag("lease-ttl", "60s"));
    let person = server.person();
    let running = agent(&server, "box").spawn().unwrap();
    let step = format!("truncate -s {}M big; printf end >> big", large_megabytes());
    let run = person.create(&run_of(
        "trusted",
        json!({ "steps": [step], "artifacts": ["big"] }),
    ));
    let objects = server.data().join("objects");
    // All of it is hashed before the first byte is sent.
    eventually(LONG, "bytes come", || match being_received(&objects) {
        0 => Err(0),
        parts => Ok(parts),
    });
    running.kill9().unwrap();
    let job = only_job(&person, &run);
    assert_eq!(names(&person, &format!("jobs/{job}")), [""; 0]);
    let again = agent(&server, "box").spawn().unwrap();
    assert_eq!(succeeds(&person, &run), job);
    let attempt = person.attempt(&job);
    assert_eq!(
        (&attempt["attempt"], &attempt["losses"]),
        (&json!(1), &json!(0)),
        "{attempt}"
    );
    let list = person.get(&format!("/api/v1/jobs/{job}/artifacts"));
    let size = u64::from(large_megabytes()) * 1024 * 1024 + 3;
    assert_eq!(list["artifacts"][0]["size"], size, "{list}");
    for (who, process) in [("agent", &again), ("server", server.process())] {
        let peak = peak(process);
        assert!(peak < FLAT_MEMORY_KB, "the {who} needed {peak} kB");
    }
    until(
        "nothing is left over",
        || being_received(&objects),
        |parts| *parts == 0,
    );
    server.check();
}

/// Bytes a second of an upload that is to be met on its way: it takes a quarter of a minute.
const SLOW: u32 = 8_000_000;

// D4, F7
#[test]
fn an_agent_that_wakes_in_mid_upload_changes_nothing_of_the_winners() {
    let server = Server::start(Options::patient().flag("lease-ttl", "3s"));
    let person = server.person();
    let way = Proxy::start(server.addr(), 1).unwrap();
    way.throttle(Direction::ToServer, Some(SLOW));
    let sleeper = agent_at(&server, way.addr(), "sleeper");
    let step = "head -c 120000000 /dev/urandom > big; echo $DELTA_LEASE_EPOCH > small; \
                sha256sum big; printf '1..1\\nok 1 - epoch %s\\n' $DELTA_LEASE_EPOCH > r.tap";
    let spec = json!({ "steps": [step], "artifacts": ["small", "big"],
        "results": { "format": "tap", "path": "r.tap" } });
    let run = person.create(&run_of("trusted", spec));
    let objects = server.data().join("objects");
    until(
        "bytes come",
        || being_received(&objects),
        |parts| *parts > 0,
    );
    sleeper.stop().unwrap();
    assert_eq!(being_received(&objects), 1, "it is in mid-upload");
    let job = only_job(&person, &run);
    assert_eq!(names(&person, &format!("jobs/{job}")), [""; 0]);
    let _winner = agent(&server, "winner").spawn().unwrap();
    assert_eq!(succeeds(&person, &run), job);
    let attempt = person.attempt(&job);
    let lost = (&attempt["attempt"], &attempt["losses"]);
    assert_eq!(
        lost,
        (&json!(1), &json!(1)),
        "the lease was lost: {attempt}"
    );
    let path = format!("/api/v1/jobs/{job}/artifacts");
    let tests = format!("/api/v1/jobs/{job}/tests");
    let (won, passed) = (person.get(&path), person.get(&tests));
    let hash = won["artifacts"][0]["sha256"].as_str().unwrap().to_owned();
    let log = log_of(&person, &job);
    assert!(log.contains(&hash), "the winner's bytes");
    assert_eq!(won["artifacts"].as_array().unwrap().len(), 2, "{won}");
    assert_eq!(passed["tests"].as_array().unwrap().len(), 1, "{passed}");
    way.throttle(Direction::ToServer, None);
    sleeper.cont().unwrap();
    until(
        "nothing is left over",
        || being_received(&objects),
        |parts| *parts == 0,
    );
    let attempts = server.folder().join("sleeper/state/attempts");
    let left = || std::fs::read_dir(&attempts).map_or(0, |it| it.count());
    until("the sleeper gave up", left, |left| *left == 0);
    assert_eq!(person.get(&path), won);
    assert_eq!(person.get(&tests), passed);
    assert_eq!(log_of(&person, &job), log);
    server.check();
}

// D15
#[test]
fn a_large_cache_needs_no_more_memory_than_a_small_one() {
    let server = Server::start(Options::patient().flag("lease-ttl", "60s"));
    let person = server.person();
    let running = agent(&server, "box").spawn().unwrap();
    let peaks = |megabytes: u32| {
        // Half of it compresses.
        let step = format!(
            "ls -l deps || true; mkdir -p deps; [ -e deps/one ] || \
             {{ head -c {half}M /dev/urandom > deps/one; head -c {half}M /dev/zero > deps/two; }}",
            half = megabytes / 2
        );
        let key = format!("of-{megabytes}");
        let spec = json!({ "steps": [step],
            "caches": [{ "type": "deps", "key": key, "paths": ["deps"] }] });
        for wanted in ["saved", "hit"] {
            let run = person.create(&run_of("trusted", spec.clone()));
            let log = log_of(&person, &succeeds(&person, &run));
            assert!(
                log.contains(&format!("cache deps: {wanted} {key}")),
                "{log}"
            );
        }
        [&running, server.process()].map(peak)
    };
    let (small, large) = (peaks(2), peaks(cache_megabytes()));
    for (who, (small, large)) in ["agent", "server"]
        .into_iter()
        .zip(small.into_iter().zip(large))
    {
        let more = large - small;
        assert!(
            more < FEW_MORE_KB,
            "the {who} needed {small} kB, then {large} kB"
        );
    }
    server.check();
}

// F44
#[test]
fn a_full_disk_of_the_server_is_said_and_gives_its_space_back() {
    let place = tempfile::tempdir().unwrap();
    let disk = Mounted::of(&place.path().join("objects"), "16m").unwrap();
    let objects = disk.path().to_str().unwrap().to_owned();
    let server = Server::start(Options::patient().flag("objects", &objects));
    let person = server.person();
    let _agent = agent(&server, "box").spawn().unwrap();
    let body = json!({ "jobs": [{ "name": "work", "max_attempts": 1, "job_spec": {
        "steps": ["head -c 40000000 /dev/urandom > big"], "artifacts": ["big"] } }] });
    let run = person.create(&body);
    let over = person.until_over_within(Duration::from_secs(120), &run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let job = only_job(&person, &run);
    let attempt = person.attempt(&job);
    assert_eq!(attempt["cause"], "artifact", "{attempt}");
    let shown = attempt.to_string();
    assert!(shown.contains("the server's disk is full"), "{shown}");
    assert_eq!(names(&person, &format!("jobs/{job}")), [""; 0]);
    until(
        "the space is given back",
        || disk.used().unwrap(),
        |used| *used < 4_000_000,
    );
    let small = json!({ "steps": ["echo x > small"], "artifacts": ["small"] });
    succeeds(&person, &person.create(&run_of("trusted", small)));
}

// F43
#[test]
fn a_cache_that_does_not_fit_on_the_agents_disk_is_said_and_gives_its_space_back() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let spec = json!({ "steps": ["mkdir -p deps; head -c 24000000 /dev/urandom > deps/big"],
        "caches": [{ "type": "deps", "key": "big", "paths": ["deps"] }] });
    let large = agent(&server, "large").spawn().unwrap();
    let saved = log_of(
        &person,
        &succeeds(&person, &person.create(&run_of("trusted", spec))),
    );
    assert!(saved.contains("cache deps: saved big"), "{saved}");
    large.kill9().unwrap();
    let disk = Mounted::of(&server.folder().join("small"), "16m").unwrap();
    let _small = agent(&server, "small")
        .args(["--min-free-mb", "1"])
        .spawn()
        .unwrap();
    let spec = json!({ "steps": ["ls deps"],
        "caches": [{ "type": "deps", "key": "big", "paths": ["deps"] }] });
    let body = json!({ "jobs": [{ "name": "work", "max_attempts": 1, "job_spec": spec }] });
    let run = person.create(&body);
    let over = person.until_over_within(Duration::from_secs(120), &run);
    let attempt = person.attempt(&only_job(&person, &run));
    assert_eq!(over["outcome"], "FAILED", "{attempt}");
    assert_eq!(attempt["cause"], "disk_full", "{attempt}");
    let shown = attempt.to_string();
    assert!(
        shown.contains("cache deps: this machine's disk is full"),
        "{shown}"
    );
    until(
        "the space is given back",
        || disk.used().unwrap(),
        |used| *used < 4_000_000,
    );
}
