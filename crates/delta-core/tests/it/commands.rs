//! Every message in every state: the whole behaviour of one attempt on one page.
//!
//! The page is `command_matrix.txt`; a change of behaviour is a change of that file, for a person
//! to read. Nothing here may panic, and what is refused leaves no record (RP-1, SM-46, F39).

use crate::scenario::Scene;

/// How an attempt gets into each state; `b` keeps the run alive beside it.
const STATES: &[(&str, &str)] = &[
    ("CREATED", "00:00 create"),
    (
        "QUEUED",
        "00:00 create\n00:00 grant n r9\n00:00 ack n r9\n00:00 complete n r9 succeeded 0",
    ),
    ("LEASED", "QUEUED\n00:01 grant a r1"),
    ("STARTING", "LEASED\n00:01 ack a r1"),
    ("RUNNING", "STARTING\n00:02 heartbeat a r1"),
    ("UPLOADING", "RUNNING\n00:03 heartbeat a r1 uploading"),
    ("SUCCEEDED", "UPLOADING\n00:04 complete a r1 succeeded 0"),
    ("FAILED", "UPLOADING\n00:04 complete a r1 failed 1"),
    ("TIMED_OUT", "UPLOADING\n00:04 complete a r1 timed_out 1"),
    ("CANCEL_REQUESTED", "RUNNING\n00:04 cancel a"),
    ("CANCELED", "CANCEL_REQUESTED\n00:05 cancel-ack a r1"),
    ("lost, QUEUED again", "RUNNING\n02:03 due"),
    ("forced, CANCELED", "CANCEL_REQUESTED\n00:54 due"),
];

const COMMANDS: &[&str] = &[
    "02:10 grant a r1",
    "02:10 grant a r2",
    "00:10 ack a r1",
    "00:10 heartbeat a r1",
    "00:10 heartbeat a r1 uploading",
    "00:10 complete a r1 succeeded 0",
    "00:10 complete a r1 failed 1",
    "00:10 complete a r1 timed_out 1",
    "00:10 cancel-ack a r1",
    "00:10 decline a r1",
    "00:10 heartbeat a eve:r1",
    "00:10 complete a r1! succeeded 0",
    "00:10 cancel a",
    "00:10 cancel run",
    "00:10 revoke a r1 OPERATOR",
    "00:10 due",
    "00:40 due",
    "02:30 due",
    "59:00 due",
    "07:00:00 due",
    "00:10 report",
    "00:10 create",
    "00:10 plan",
    "00:10 fail-plan",
];

fn lines(state: &str) -> Vec<String> {
    let (_, text) = STATES
        .iter()
        .find(|(name, _)| *name == state)
        .expect("a known state");
    let mut all = Vec::new();
    for line in text.lines() {
        if line.contains(' ') {
            all.push(line.to_string())
        } else {
            all.extend(lines(line))
        }
    }
    all
}

fn scene(state: &str) -> Scene {
    let mut scene = Scene::new();
    for line in ["job n", "job a needs=n timeout=50m", "job b needs=n"] {
        scene.line(line);
    }
    for line in lines(state) {
        scene.line(&line);
    }
    scene
}

#[test]
fn every_command_in_every_state_answers_as_written() {
    let mut page = String::new();
    for (state, _) in STATES {
        page += &format!("== {state}: {}\n", scene(state).line("show a"));
        for command in COMMANDS {
            let mut scene = scene(state);
            let before = scene.records.len();
            let answer = scene.line(command);
            let moved = scene.records.len() - before;
            let after = if moved > 0 {
                scene.line("show a")
            } else {
                "unchanged".into()
            };
            page += &format!("{command:<34} | {answer:<44.44} | {after}\n");
            if answer.starts_with("stale") || answer.starts_with("refused") {
                assert_eq!(moved, 0, "{state}: {command} was refused and left a record");
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/command_matrix.txt");
    if std::env::var_os("DELTA_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == written,
        "read the change, then DELTA_BLESS=1 cargo test -p delta-core\n{page}"
    );
}

#[test]
fn a_cancel_ends_every_state_without_success() {
    // F39, SM-21, I10, I11, L4: whatever the state, a canceled run ends CANCELED within its bound.
    for (state, _) in STATES {
        let mut scene = scene(state);
        scene.line("00:10 cancel run");
        scene.line("02:10 due");
        let shown = scene.line("show run");
        assert_eq!(shown, "REPORTED CANCELED canceled_by_user", "{state}");
    }
}

#[test]
fn the_same_commands_in_the_same_order_give_the_same_history() {
    // LM-4: deterministic, fact for fact.
    for (state, _) in STATES {
        for command in COMMANDS {
            let play = || {
                let mut scene = scene(state);
                scene.line(command);
                scene.records
            };
            assert_eq!(play(), play(), "{state}: {command}");
        }
    }
}
