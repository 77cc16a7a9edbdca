//! README, the pages of docs/ and every other page, typed: each block of commands is typed as it is
//! printed, or is in the list of those that cannot be, with the reason. A new block is one or the
//! other, and no fence hides one: whatever looks like a command stands in a `console` block.

mod functions;
mod local;
mod pages;
mod people;
mod servers;

use std::fs;
use std::path::{Path, PathBuf};

use delta_testkit::process::Process;
use serde_json::Value;

use crate::typist::{Block, SOON, Typist, blocks};

/// Blocks that are not typed here, by their page and how they begin, and why.
const UNTYPED: [(&str, &str, &str); 10] = [
    (
        "CONTRIBUTING.md",
        "$ cargo xtask check",
        "builds and tests this repository, these tests among the rest",
    ),
    (
        "sdk/python/README.md",
        "$ cd sdk/python\n$ python3 -m unittest discover",
        "typed by sdk_python",
    ),
    (
        "docs/identity.md",
        "$ delta-ci server … --oidc",
        "needs an issuer; delta-server's tests of identity have one",
    ),
    (
        "docs/guide/functions.md",
        "$ python3 -m venv",
        "functions::guide stands for what it installs",
    ),
    (
        "docs/guide/functions.md",
        "$ delta-ci up --listen",
        "typed by functions::guide",
    ),
    (
        "docs/guide/functions.md",
        "$ . venv/bin/activate",
        "typed by functions::guide",
    ),
    (
        "docs/guide/functions.md",
        "$ cargo build --release\n",
        "functions::guide stands for what it builds",
    ),
    (
        "docs/guide/functions.md",
        "$ python3 mail.py",
        "typed by functions::guide",
    ),
    (
        "docs/guide/functions.md",
        "$ delta-ci enqueue python#greet",
        "typed by functions::guide",
    ),
    (
        "docs/run.md",
        "$ delta-ci run\nworkspaces kept from",
        "what it says depends on the time; `kept` has the same line",
    ),
];

/// Lines of blocks that are typed otherwise, and why they are not.
const LEFT_OUT: [(&str, &str, &str); 5] = [
    (
        "docs/performance.md",
        "$ cargo build --release",
        "the binary and the runner are built beside the tests",
    ),
    (
        "docs/performance.md",
        "$ cargo run --release",
        "a release build, and minutes",
    ),
    (
        "docs/performance.md",
        "$ delta-ci bench lifecycle",
        "seconds each, however small; delta-cli's tests of bench have it",
    ),
    (
        "README.md",
        "$ cargo xtask test --install",
        "runs all tests, these among the rest",
    ),
    (
        "sdk/python/README.md",
        "$ pip install ./sdk/python",
        "fetches what builds packages; a program of the same words stands for it",
    ),
];

/// Blocks that are typed in the files beside this one, by their page and how they begin.
const TYPED: [(&str, &str); 33] = [
    ("README.md", "$ cargo run -- run examples/first"),
    ("README.md", "$ delta-ci plan"),
    ("README.md", "$ delta-ci up\n"),
    ("README.md", "$ delta-ci server --data ./data"),
    ("README.md", "$ TOKEN="),
    ("README.md", "$ delta-ci up --runners"),
    ("examples/README.md", "$ delta-ci server --data ./data"),
    ("sdk/python/README.md", "$ pip install"),
    ("docs/agent.md", "$ delta-ci agent --server"),
    ("docs/agent.md", "$ install -d"),
    ("docs/agents.md", "$ delta-ci drain builder-1"),
    ("docs/api.md", "$ curl -s http"),
    ("docs/api.md", "$ openapi-python-client generate"),
    ("docs/api.md", "$ npx openapi-typescript"),
    ("docs/artifacts.md", "$ delta-ci artifacts latest"),
    ("docs/forges.md", "$ delta-ci secret set STATUS_TOKEN"),
    ("docs/forges.md", "$ delta-ci trigger app"),
    ("docs/guide/functions.md", "$ delta-ci queues"),
    ("docs/guide/functions.md", "$ delta-ci dead-letters"),
    ("docs/guide/functions.md", "$ delta-ci agent --server"),
    ("docs/identity.md", "$ delta-ci token create --role runner"),
    (
        "docs/identity.md",
        "$ delta-ci token create --role enrolment",
    ),
    ("docs/identity.md", "$ delta-ci token list"),
    ("docs/identity.md", "$ delta-ci ca init"),
    ("docs/logs.md", "$ delta-ci logs JOB"),
    ("docs/performance.md", "$ cargo build --release"),
    ("docs/planning.md", "$ delta-ci plan"),
    ("docs/reruns.md", "$ delta-ci rerun RUN"),
    ("docs/results.md", "$ delta-ci tests latest"),
    ("docs/run.md", "$ delta-ci run "),
    ("docs/secrets.md", "$ printf %s"),
    ("docs/secrets.md", "$ (umask 077"),
    ("docs/tracing.md", "$ delta-ci server"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).expect("a page")
}

/// The block of a page that begins so, without the lines that are left out.
#[track_caller]
fn block(page: &str, begins: &str) -> String {
    assert!(TYPED.contains(&(page, begins)), "{begins} is not listed");
    let mut found = consoles(page).into_iter();
    let found = found.find(|it| it.text.starts_with(begins));
    let text = found
        .unwrap_or_else(|| panic!("{page} has no {begins}"))
        .text;
    let left_out = |line: &str| {
        let mut all = LEFT_OUT.iter();
        all.any(|(of, begins, _)| *of == page && line.starts_with(begins))
    };
    let lines = text.lines().filter(|line| !left_out(line));
    lines.map(|line| format!("{line}\n")).collect()
}

fn consoles(page: &str) -> Vec<Block> {
    let mut all = blocks(&read(page));
    all.retain(|it| it.language == "console");
    all
}

/// Types the commands of a block that end; starts those that stay.
fn follow(typist: &mut Typist, block: &str) {
    let mut rest = String::new();
    let whole = block.replace("\\\n", "");
    for line in whole.lines() {
        let command = line.strip_prefix("$ ").unwrap_or_default();
        let command = command.split("  #").next().unwrap_or_default().trim_end();
        let command = command.trim_end_matches(" &");
        let stays = ["delta-ci up", "delta-ci server", "delta-ci agent "];
        if !stays.iter().any(|it| command.starts_with(it)) {
            rest.push_str(&format!("{line}\n"));
            continue;
        }
        typist.type_all(&std::mem::take(&mut rest));
        if command.starts_with("delta-ci agent ") {
            start_agent(typist, command);
            continue;
        }
        let command = command.replace("0.0.0.0:7878", "127.0.0.1:0");
        let command = command.replace("127.0.0.1:7878", "127.0.0.1:0");
        let listen = match command.contains("--listen") {
            true => String::new(),
            // The usual port may be somebody's.
            false => " --listen 127.0.0.1:0".to_owned(),
        };
        typist.start_server(&format!("{command}{listen}"));
    }
    // What an agent says while it stays was waited for.
    let said = rest.trim_start().starts_with("enrolled as");
    typist.type_all(if said { "" } else { &rest });
}

/// Starts what stays.
fn start<'a>(typist: &'a mut Typist, command: &str) -> &'a Process {
    let command = typist.here(command);
    let process = typist.shell(&format!("exec {command}")).spawn();
    typist.running.push(process.expect("a program"));
    typist.running.last().expect("the program")
}

fn start_agent(typist: &mut Typist, command: &str) {
    let process = start(typist, command);
    if command.contains("--enroll-token-file") {
        let line = process
            .wait_for_line("enrolled as", SOON)
            .expect("enrolled");
        assert!(line.contains("the enrolment token is used up"), "{line}");
    }
}

fn json_of(typist: &Typist, command: &str) -> Value {
    let process = typist.shell(command).spawn().expect("a command");
    let status = process.wait(SOON).expect("its end");
    assert!(status.success(), "{command}: {}", process.stderr());
    serde_json::from_str(&process.stdout()).expect("JSON")
}
