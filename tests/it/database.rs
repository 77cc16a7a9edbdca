//! A database that is lost, damaged, full or not to be written: nobody is told anything else.

use std::fs;
use std::path::Path;

use delta_testkit::disk::Mounted;
use delta_testkit::postgres::fresh_database;
use delta_testkit::process::{Process, Spawn};
use serde_json::{Value, json};

use crate::harness::person::SOON;
use crate::harness::server::{Done, finish};
use crate::harness::{Options, Person, Server, delta_ci, jobs, until};

/// Names in a data folder, and what is in them.
type Files<'a> = &'a [(&'a str, &'a [u8])];

pub const DATABASE: &str = "delta-ci.db";

/// A server on a data folder of the test's own.
pub fn server(data: &Path) -> Spawn {
    delta_ci()
        .args(["server", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
}

#[track_caller]
pub fn started(spawn: Spawn) -> (Process, Person) {
    let process = spawn.spawn().unwrap();
    let line = process.wait_for_line("listening on", SOON);
    let line = line.unwrap_or_else(|error| panic!("{error}: {}", process.stderr()));
    let addr = line.split("://").nth(1).unwrap().parse().unwrap();
    (process, Person::new(addr, ""))
}

/// Ends it as a machine that fails would.
pub fn killed(process: Process) {
    process.kill9().unwrap();
    process.wait(SOON).unwrap();
}

#[track_caller]
fn refused(data: &Path) {
    refused_to_start(data);
    // Nor do commands that need no server take it for a new one.
    let done = finish(delta_ci().args(["runs", "--data"]).arg(data));
    assert_ne!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("--accept-empty"), "{done:?}");
}

#[track_caller]
pub fn refused_to_start(data: &Path) {
    let before = listed(data);
    let done = finish(server(data));
    assert_ne!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("the database is"), "{done:?}");
    assert!(done.stderr.contains("--accept-empty"), "{done:?}");
    // Nothing was made in its place that whoever puts a copy back would trip over.
    assert_eq!(listed(data), before);
}

/// The files of the database, and how long they are.
fn listed(data: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(data).unwrap().map(Result::unwrap);
    let mut files: Vec<(String, u64)> = entries
        .map(|it| {
            let name = it.file_name().into_string().unwrap();
            (name, it.metadata().unwrap().len())
        })
        .filter(|(name, _)| name.starts_with(DATABASE))
        .collect();
    files.sort();
    files
}

fn remove_database(data: &Path) {
    for (name, _) in listed(data) {
        fs::remove_file(data.join(name)).unwrap();
    }
}

/// A folder whose server has served; its database is whole in one file.
pub fn served() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let (process, _) = started(server(&place.path().join("data")));
    process.terminate().unwrap();
    process.wait(SOON).unwrap();
    place
}

#[test]
fn a_database_that_is_gone_cut_or_replaced_is_no_fresh_installation() {
    let place = served();
    let data = place.path().join("data");
    let copy = fs::read(data.join(DATABASE)).unwrap();
    // Cut to nothing.
    remove_database(&data);
    fs::write(data.join(DATABASE), b"").unwrap();
    refused(&data);
    // Removed.
    remove_database(&data);
    refused(&data);
    // Another one that is as new.
    let other = served();
    fs::copy(
        other.path().join("data").join(DATABASE),
        data.join(DATABASE),
    )
    .unwrap();
    let done = finish(server(&data));
    assert!(
        done.stderr.contains("is not the one that was here"),
        "{done:?}"
    );
    // A copy that is put back is what it was.
    remove_database(&data);
    fs::write(data.join(DATABASE), copy).unwrap();
    let (process, _) = started(server(&data));
    killed(process);
    // And somebody may say that it is all the same.
    remove_database(&data);
    refused(&data);
    let (process, _) = started(server(&data).arg("--accept-empty"));
    killed(process);
    let (process, _) = started(server(&data));
    killed(process);
}

#[test]
fn a_folder_of_an_older_server_is_known_by_what_its_runs_left() {
    let place = served();
    let data = place.path().join("data");
    // As a server left it that wrote no note.
    fs::remove_file(data.join("database.id")).unwrap();
    let (process, _) = started(server(&data));
    killed(process);
    fs::remove_file(data.join("database.id")).unwrap();
    remove_database(&data);
    let run = data.join("objects/run_0190000000007000800000000000abcd/1");
    fs::create_dir_all(&run).unwrap();
    refused_to_start(&data);
}

#[test]
fn a_first_start_that_was_killed_goes_on_wherever_that_was() {
    let place = served();
    let whole = place.path().join("data");
    let key = fs::read(whole.join("secret.key")).unwrap();
    let database = fs::read(whole.join(DATABASE)).unwrap();
    // In the order in which they are made.
    let states: [(&str, Files<'_>); 6] = [
        ("the folder", &[]),
        ("its lock", &[("lock", b"7\n")]),
        (
            "objects",
            &[("lock", b"7\n"), ("objects/parts/x.part", b"")],
        ),
        ("the key", &[("lock", b"7\n"), ("secret.key", &key)]),
        ("an empty file", &[("secret.key", &key), (DATABASE, b"")]),
        (
            "the database",
            &[
                ("secret.key", &key),
                (DATABASE, &database),
                ("database.new", b"sqli"),
            ],
        ),
    ];
    for (what, files) in states {
        let fresh = tempfile::tempdir().unwrap();
        let data = fresh.path().join("data");
        fs::create_dir(&data).unwrap();
        for (name, bytes) in files {
            let path = data.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            if *name == "secret.key" {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            }
        }
        let process = server(&data).spawn().unwrap();
        let line = process.wait_for_line("listening on", SOON);
        assert!(line.is_ok(), "killed after {what}: {}", process.stderr());
        killed(process);
        assert!(data.join("database.id").exists(), "{what}");
    }
}

#[test]
fn a_first_start_may_be_killed_at_any_moment() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    // From before it has made its folder to after it serves.
    for millis in [0, 5, 10, 15, 20, 30, 40, 60, 80, 120] {
        let process = server(&data).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(millis));
        killed(process);
        let (process, _) = started(server(&data));
        killed(process);
        if millis % 20 == 0 {
            fs::remove_dir_all(&data).unwrap();
        }
    }
}

#[test]
fn a_move_to_postgres_beside_objects_is_no_loss_and_a_lost_postgres_is_one() {
    let place = served();
    let data = place.path().join("data");
    fs::create_dir_all(data.join("objects/run_0190000000007000800000000000abcd/1")).unwrap();
    let (one, other) = (fresh_database().unwrap(), fresh_database().unwrap());
    let on = |url: &str| server(&data).env("DELTA_STORE", url);
    for _ in 0..2 {
        let (process, _) = started(on(&one.url));
        killed(process);
    }
    let done = finish(on(&other.url));
    assert!(
        done.stderr.contains("is not the one that was here"),
        "{done:?}"
    );
    let (process, _) = started(on(&other.url).arg("--accept-empty"));
    killed(process);
    // Back to the file, which is whole.
    let (process, _) = started(server(&data));
    killed(process);
}

#[test]
fn a_full_disk_is_called_that_and_the_server_goes_on_once_there_is_room() {
    let place = tempfile::tempdir().unwrap();
    let disk = Mounted::of(&place.path().join("disk"), "8m").unwrap();
    let data = disk.path().join("data");
    let objects = place.path().join("objects");
    let (process, mut person) = started(server(&data).arg("--objects").arg(&objects));
    let token = finish(token(&data));
    person.http.token = token.stdout.trim().to_owned();
    let run = person.create(&jobs(1));
    assert_eq!(person.http.get("/readyz").unwrap().status, 200);
    let filler = disk.path().join("filler");
    fill(&filler);
    let body = json!({ "jobs": [{ "name": "big", "job_spec": {
        "steps": [format!("echo {}", "x".repeat(60_000))] } }] });
    let answer = until(
        "nothing fits any more",
        || person.http.post("/api/v1/runs", &body).unwrap(),
        |answer| answer.status != 201,
    );
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(answer.body["retryable"], true, "{}", answer.text);
    assert!(
        answer.word("message").contains("is full"),
        "{}",
        answer.text
    );
    let unready = person.http.get("/readyz").unwrap();
    assert_eq!(unready.status, 503, "{}", unready.text);
    assert!(
        unready.word("message").contains("is full"),
        "{}",
        unready.text
    );
    // Not restarted: it lives.
    assert_eq!(person.http.get("/healthz").unwrap().status, 200);
    fs::remove_file(&filler).unwrap();
    // Nobody writes meanwhile.
    until(
        "it is ready again",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 200,
    );
    person.create(&body);
    assert_eq!(person.run(&run)["state"], "QUEUED");
    assert!(process.stderr().contains("is full"), "{}", process.stderr());
    let done = doctor(&data);
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn a_full_disk_of_logs_is_called_that_too() {
    let place = tempfile::tempdir().unwrap();
    let disk = Mounted::of(&place.path().join("disk"), "4m").unwrap();
    let data = place.path().join("data");
    let objects = disk.path().join("objects");
    let (process, mut person) = started(server(&data).arg("--objects").arg(&objects));
    person.http.token = finish(token(&data)).stdout.trim().to_owned();
    assert_eq!(person.http.get("/readyz").unwrap().status, 200);
    let filler = disk.path().join("filler");
    fill(&filler);
    let unready = until(
        "it is not ready",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 503,
    );
    let words = "the disk of the server's logs and artifacts is full";
    assert!(unready.word("message").contains(words), "{}", unready.text);
    // What needs no such room is done.
    person.create(&jobs(1));
    fs::remove_file(&filler).unwrap();
    until(
        "it is ready again",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 200,
    );
    killed(process);
}

// D8: the log of a job that printed while the server's disk was full is whole once there is room.
#[test]
fn a_log_outlasts_a_disk_that_is_full_for_a_while() {
    let place = tempfile::tempdir().unwrap();
    let disk = Mounted::of(&place.path().join("disk"), "6m").unwrap();
    let (data, go_on) = (place.path().join("data"), place.path().join("go"));
    let objects = disk.path().join("objects");
    let (process, mut person) = started(server(&data).arg("--objects").arg(&objects));
    let admin = finish(token(&data)).stdout.trim().to_owned();
    person.http.token = admin;
    let file = place.path().join("runner.token");
    let runner = delta_ci().args(["token", "create", "--role", "runner", "--data"]);
    let runner = finish(runner.arg(&data));
    fs::write(&file, runner.stdout.trim()).unwrap();
    let agent = delta_ci()
        .args(["agent", "--server"])
        .arg(format!("http://{}", person.http.addr))
        .arg("--token-file")
        .arg(&file)
        .arg("--work-dir")
        .arg(place.path().join("work"))
        .arg("--state-dir")
        .arg(place.path().join("state"))
        .spawn()
        .unwrap();
    let print = format!(
        "echo first; while [ ! -e {} ]; do sleep 0.1; done; seq 1 50000; echo last",
        go_on.display()
    );
    let run = person.create(&json!({ "jobs": [{ "name": "talks",
        "job_spec": { "steps": [print] } }] }));
    let job = person.run(&run)["jobs"][0]["job_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let log = || person.http.get(&format!("/api/v1/jobs/{job}/log")).unwrap();
    until("it has begun", log, |answer| {
        answer.text.contains("first\n")
    });
    let filler = disk.path().join("filler");
    fill(&filler);
    fs::write(&go_on, "").unwrap();
    // Asked for again and again, and not given up.
    until(
        "there is no room for its log",
        || {
            process
                .stderr()
                .matches("log bytes were not written")
                .count()
        },
        |tries| *tries > 5,
    );
    fs::remove_file(&filler).unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let lines: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    let log = log();
    assert!(log.text.ends_with(&format!("first\n{lines}last\n")));
    assert_eq!(log.header("delta-log"), Some("complete"));
    killed(agent);
    killed(process);
}

#[test]
fn a_disk_that_cannot_be_written_is_said_before_anybody_tries() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    // A bound on the size of files is a disk that fails, and one that can be mended from outside.
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    let program = delta_testkit::process::binary("delta-ci").unwrap();
    let spawn = Spawn::new("/bin/sh")
        .args(["-c", script])
        .arg(program)
        .args(["server", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data);
    let (process, person) = started(spawn);
    assert_eq!(person.http.get("/readyz").unwrap().status, 200);
    // Its log is short, and still gets through.
    let written = fs::metadata(data.join(format!("{DATABASE}-wal")))
        .unwrap()
        .len();
    limit(&process, &written.to_string());
    let unready = until(
        "it is not ready",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 503,
    );
    let said = unready.word("message");
    assert!(said.contains("cannot be written to"), "{said}");
    limit(&process, "unlimited");
    until(
        "it is ready again",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 200,
    );
}

#[test]
fn a_postgres_without_room_is_called_that() {
    let database = fresh_database().unwrap();
    let server = Server::start(Options::patient().on(&database.url));
    let person = server.person();
    let fail = "SET search_path = delta_ci; \
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; \
        CREATE TRIGGER no_room BEFORE INSERT ON runs EXECUTE FUNCTION no_room(); \
        CREATE TRIGGER no_room BEFORE UPDATE ON store EXECUTE FUNCTION no_room()";
    database.execute(fail).unwrap();
    let answer = person.http.post("/api/v1/runs", &jobs(1)).unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(
        answer.word("message").contains("is full"),
        "{}",
        answer.text
    );
    let unready = person.http.get("/readyz").unwrap();
    assert_eq!(unready.status, 503, "{}", unready.text);
    assert!(
        unready.word("message").contains("is full"),
        "{}",
        unready.text
    );
    assert!(server.log().contains("53100"), "{}", server.log());
    let mend = "DROP TRIGGER no_room ON delta_ci.runs; DROP TRIGGER no_room ON delta_ci.store";
    database.execute(mend).unwrap();
    until(
        "it is ready again",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 200,
    );
    person.create(&jobs(1));
    server.check();
}

#[test]
fn the_doctor_names_what_is_gone_and_says_when_the_file_is_damaged() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let _agent = server.agent("box").spawn().unwrap();
    let body = json!({ "jobs": [{ "name": "work", "job_spec": {
        "steps": ["echo hello; echo x > left"], "artifacts": ["left"],
        "caches": [{ "type": "deps", "key": "k1", "paths": ["left"] }] } }] });
    let run = person.create(&body);
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    server.doctor();
    let objects = server.data().join("objects");
    fs::remove_dir_all(objects.join(&run)).unwrap();
    remove_bytes_of_caches(&objects.join("caches"));
    let done = server.cli(&["--json", "doctor"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(report["missing_objects"], 3, "{report}");
    let told = report["first_missing"].to_string();
    assert!(
        told.contains(&format!("log of {}", run.replace("run_", "job_"))),
        "{told}"
    );
    assert!(
        told.contains("artifact ") && told.contains("cache k1"),
        "{told}"
    );
    let said = server.cli(&["doctor"]).stdout;
    assert!(
        said.contains("3 objects of logs, artifacts and caches are gone"),
        "{said}"
    );
    // A page in the middle of an index, which nothing that folds events reads.
    server.process().terminate().unwrap();
    server.process().wait(SOON).unwrap();
    let file = server.data().join(DATABASE);
    let page = page_of(&file, "results_name");
    let mut bytes = fs::read(&file).unwrap();
    bytes[page * 4096..(page + 1) * 4096].fill(0xa5);
    fs::write(&file, bytes).unwrap();
    server.start_again();
    let done = server.cli(&["doctor"]);
    assert_eq!(done.code, Some(70), "{done:?}");
    assert!(done.stdout.contains("the database is damaged"), "{done:?}");
}

/// Leaves what is known of each cache, and takes its bytes.
fn remove_bytes_of_caches(folder: &Path) {
    let mut removed = 0;
    for scope in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        for entry in fs::read_dir(scope.path()).unwrap().map(Result::unwrap) {
            // The bytes of the one before are gone already.
            let text = fs::read(entry.path()).unwrap_or_default();
            let about: Value = serde_json::from_slice(&text).unwrap_or_default();
            if let Some(data) = about["data"].as_str() {
                fs::remove_file(scope.path().join(data)).unwrap();
                removed += 1;
            }
        }
    }
    assert_eq!(removed, 1);
}

/// The number of the page, from zero, that an index or a table begins at.
fn page_of(file: &Path, name: &str) -> usize {
    let connection = rusqlite::Connection::open(file).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: i64 = connection.query_row(sql, [name], |row| row.get(0)).unwrap();
    usize::try_from(page).unwrap() - 1
}

pub fn token(data: &Path) -> Spawn {
    let words = ["token", "create", "--role", "user", "--data"];
    delta_ci().args(words).arg(data)
}

fn doctor(data: &Path) -> Done {
    finish(delta_ci().args(["doctor", "--data"]).arg(data))
}

/// Takes all that is left of a disk.
pub fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).unwrap();
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
}

/// How long a file of this process may become.
fn limit(process: &Process, size: &str) {
    let status = std::process::Command::new("prlimit")
        .arg(format!("--pid={}", process.pid()))
        .arg(format!("--fsize={size}:unlimited"))
        .status()
        .unwrap();
    assert!(status.success());
}
