//! What a start says of a disk without room and of a database that is not its folder's, and what
//! commands that only read leave as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use delta_testkit::disk::Mounted;
use delta_testkit::postgres::fresh_database;
use delta_testkit::process::Spawn;
use serde_json::json;

use crate::database::{DATABASE, fill, killed, refused_to_start, served, server, started, token};
use crate::harness::person::SOON;
use crate::harness::server::finish;
use crate::harness::{delta_ci, jobs};

/// A run that no database here has.
const STRANGE: &str = "objects/run_0190000000007000800000000000abcd/1";

const NOTE: &str = "database.id";

/// What may be there while somebody looks, and says nothing.
const PASSING: [&str; 4] = ["lock", "admin.sock", "delta-ci.db-wal", "delta-ci.db-shm"];

/// Everything that is asked for and changes nothing.
const READING: [&str; 15] = [
    "runs",
    "show latest",
    "why latest",
    "logs latest/one",
    "events latest",
    "tests latest",
    "artifacts latest",
    "caches",
    "queues",
    "agents",
    "dead-letters",
    "secret list",
    "token list",
    "repo list",
    "doctor",
];

/// A folder whose server has stopped, with a run that left a log or would have; and the run.
fn with_a_run() -> (tempfile::TempDir, String) {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let (process, mut person) = started(server(&data));
    person.http.token = finish(token(&data)).stdout.trim().to_owned();
    let run = person.create(&json!({ "jobs": [
        { "name": "one", "job_spec": { "steps": ["true"] } },
        { "name": "two", "job_spec": { "steps": ["true"] } },
    ] }));
    process.terminate().unwrap();
    process.wait(SOON).unwrap();
    fs::create_dir_all(data.join("objects").join(&run).join("1")).unwrap();
    (place, run)
}

/// Every file with its bytes, and every folder.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            if PASSING.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                found.insert(format!("{name}/"), Vec::new());
                left.push(path);
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn asked(command: &str, data: &Path) -> Spawn {
    let words = command.split(' ');
    delta_ci().args(words).arg("--data").arg(data)
}

#[test]
fn what_only_reads_leaves_a_folder_without_a_server_as_it_was() {
    let (place, _) = with_a_run();
    let data = place.path().join("data");
    // As a server of before left it, and with nothing that a start would make.
    for file in [NOTE, "secret.key", ".gitignore"] {
        fs::remove_file(data.join(file)).unwrap();
    }
    fs::remove_dir_all(data.join("objects/parts")).unwrap();
    let before = contents(&data);
    for command in READING {
        let done = finish(asked(command, &data));
        // There is no log yet, which is not what this is about.
        let fine = done.code == Some(0) || command.starts_with("logs");
        assert!(fine, "{command}: {done:?}");
        assert!(contents(&data) == before, "{command} changed something");
    }
    // Whoever serves makes what is missing.
    let (process, _) = started(server(&data));
    killed(process);
    assert!(data.join(NOTE).exists() && data.join("secret.key").exists());
}

#[test]
fn what_only_reads_brings_no_database_to_another_version() {
    let (place, _) = with_a_run();
    let data = place.path().join("data");
    let connection = rusqlite::Connection::open(data.join(DATABASE)).unwrap();
    let known: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    connection
        .pragma_update(None, "user_version", known - 1)
        .unwrap();
    drop(connection);
    let before = contents(&data);
    for command in READING {
        let done = finish(asked(command, &data));
        assert_eq!(done.code, Some(8), "{command}: {done:?}");
        let words = format!("the store has schema version {}", known - 1);
        assert!(done.stderr.contains(&words), "{command}: {done:?}");
        assert!(done.stderr.contains("next: start"), "{command}: {done:?}");
        assert!(contents(&data) == before, "{command} changed something");
    }
}

#[test]
fn what_only_reads_makes_no_store_in_an_empty_postgres() {
    let database = fresh_database().unwrap();
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    for command in ["runs", "doctor", "token list"] {
        let done = finish(asked(command, &data).env("DELTA_STORE", &database.url));
        assert_ne!(done.code, Some(0), "{command}: {done:?}");
        let words = "holds no store";
        assert!(done.stderr.contains(words), "{command}: {done:?}");
        assert!(!data.exists(), "{command}");
        let made = database.execute("SELECT * FROM delta_ci.schema_version");
        assert!(made.is_err(), "{command}");
    }
}

#[test]
fn an_empty_database_beside_what_unknown_runs_left_is_a_lost_one() {
    let place = served();
    let data = place.path().join("data");
    // As a server of before left it, that had started on nothing and taken it for a first start.
    fs::remove_file(data.join(NOTE)).unwrap();
    fs::create_dir_all(data.join(STRANGE)).unwrap();
    refused_to_start(&data);
    let done = finish(asked("runs", &data));
    assert!(done.stderr.contains("that it does not know"), "{done:?}");
    assert!(!data.join(NOTE).exists());
    // Somebody says that it is all the same, once.
    let (process, _) = started(server(&data).arg("--accept-empty"));
    killed(process);
    let (process, _) = started(server(&data));
    killed(process);

    // A database with runs in it is in use, whatever else lies there.
    let (place, _) = with_a_run();
    let data = place.path().join("data");
    fs::remove_file(data.join(NOTE)).unwrap();
    fs::create_dir_all(data.join(STRANGE)).unwrap();
    let (process, _) = started(server(&data));
    killed(process);
}

#[test]
fn an_empty_postgres_is_a_move_where_the_file_explains_the_objects_and_a_loss_elsewhere() {
    let on = |data: &Path, url: &str| server(data).env("DELTA_STORE", url);
    let database = fresh_database().unwrap();
    // Nothing but objects is here: they were of a database that is not this one.
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir_all(data.join(STRANGE)).unwrap();
    let done = finish(on(&data, &database.url));
    assert_eq!(done.code, Some(8), "{done:?}");
    assert!(done.stderr.contains("that it does not know"), "{done:?}");
    assert!(done.stderr.contains("--accept-empty"), "{done:?}");
    // A file that knows nothing of them explains nothing.
    let other = served();
    let from = other.path().join("data").join(DATABASE);
    fs::copy(from, data.join(DATABASE)).unwrap();
    let done = finish(on(&data, &database.url));
    assert_eq!(done.code, Some(8), "{done:?}");
    let (process, _) = started(on(&data, &database.url).arg("--accept-empty"));
    killed(process);

    // The folder of a server of before, which wrote no note, moves with its runs' objects.
    let database = fresh_database().unwrap();
    let (place, _) = with_a_run();
    let data = place.path().join("data");
    fs::remove_file(data.join(NOTE)).unwrap();
    fs::create_dir_all(data.join(STRANGE)).unwrap();
    for _ in 0..2 {
        let (process, _) = started(on(&data, &database.url));
        killed(process);
    }
}

#[test]
fn a_start_on_a_full_disk_is_called_that_whatever_fails_first() {
    let place = tempfile::tempdir().unwrap();
    let disk = Mounted::of(&place.path().join("disk"), "4m").unwrap();
    let data = disk.path().join("data");
    let filler = disk.path().join("filler");
    let full = |left: usize| {
        fill(&filler);
        let file = fs::OpenOptions::new().write(true).open(&filler).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.saturating_sub(left as u64 * 1024))
            .unwrap();
        let done = finish(server(&data));
        assert_eq!(done.code, Some(6), "{left} KiB: {done:?}");
        for words in [
            format!("the disk of {}", data.display()),
            "is full".to_owned(),
            "next: make room on that disk".to_owned(),
        ] {
            assert!(done.stderr.contains(&words), "{left} KiB: {done:?}");
        }
    };
    // The lock, the key, the file for readers, the pages of the first tables.
    for left in [0, 4, 8, 12, 16, 24, 32, 40, 64, 100, 200] {
        full(left);
        fs::remove_dir_all(&data).unwrap();
    }
    // What such a start has left is gone on with once there is room.
    full(100);
    fs::remove_file(&filler).unwrap();
    let (process, mut person) = started(server(&data));
    person.http.token = finish(token(&data)).stdout.trim().to_owned();
    person.create(&jobs(1));
    process.terminate().unwrap();
    process.wait(SOON).unwrap();
    // And so is one that has served.
    full(0);
    fs::remove_file(&filler).unwrap();
    let (process, person) = started(server(&data));
    assert_eq!(person.http.get("/readyz").unwrap().status, 200);
    killed(process);
}
