//! README and the pages of docs/, typed: each block of commands is typed as it is printed, or is in
//! the list of those that cannot be, with the reason. A new block is one or the other.

use std::fs;
use std::path::{Path, PathBuf};

use delta_testkit::git::git;
use serde_json::Value;

use crate::harness::until;
use crate::typist::{Block, SOON, Typist, Unprinted, blocks};

/// Blocks that are not typed here, by their page and how they begin, and why.
const UNTYPED: [(&str, &str, &str); 13] = [
    (
        "docs/api.md",
        "$ curl -s http",
        "a server at its usual port; api::validators asks for the same",
    ),
    (
        "docs/api.md",
        "$ openapi-python-client generate",
        "done by api::clients",
    ),
    (
        "docs/api.md",
        "$ npx openapi-typescript",
        "done by api::clients",
    ),
    (
        "README.md",
        "$ cargo run -- run examples/first",
        "builds this repository",
    ),
    (
        "README.md",
        "$ delta-ci up --runners",
        "the guide of functions has the file, and is typed",
    ),
    (
        "docs/forges.md",
        "$ delta-ci trigger app",
        "the repository would have to be at GitHub; `relative` has one of its own",
    ),
    (
        "docs/identity.md",
        "$ delta-ci server … --oidc",
        "needs an issuer; delta-server's tests of identity have one",
    ),
    (
        "docs/performance.md",
        "$ cargo build --release",
        "measures for minutes, and needs a release build",
    ),
    (
        "docs/planning.md",
        "$ delta-ci plan",
        "is about one repository; README's block types the same commands",
    ),
    (
        "docs/guide/functions.md",
        "$ python3 -m venv",
        "typed by functions::guide",
    ),
    (
        "docs/guide/functions.md",
        "$ . venv/bin/activate",
        "typed by functions::guide",
    ),
    (
        "docs/guide/functions.md",
        "$ delta-ci ",
        "typed by functions::guide",
    ),
    (
        "docs/guide/functions.md",
        "$ python3 mail.py",
        "typed by functions::guide",
    ),
];

/// Blocks of the guide of functions that build: prepared by its own test.
const BUILT: &str = "$ cargo build --release\n";

/// Blocks that are typed below, by their page and how they begin.
const TYPED: [(&str, &str); 10] = [
    ("README.md", "$ delta-ci plan"),
    ("README.md", "$ delta-ci up\n"),
    ("README.md", "$ delta-ci server --data ./data"),
    ("README.md", "$ TOKEN="),
    ("docs/run.md", "$ delta-ci run"),
    ("docs/forges.md", "$ delta-ci secret set STATUS_TOKEN"),
    ("docs/identity.md", "$ delta-ci token create --role runner"),
    (
        "docs/identity.md",
        "$ delta-ci token create --role enrolment",
    ),
    ("docs/identity.md", "$ delta-ci token list"),
    ("docs/identity.md", "$ delta-ci ca init"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).expect("a page")
}

/// The block of a page that begins so.
#[track_caller]
fn block(page: &str, begins: &str) -> String {
    assert!(TYPED.contains(&(page, begins)), "{begins} is not listed");
    let mut found = consoles(page).into_iter();
    let found = found.find(|it| it.text.starts_with(begins));
    found
        .unwrap_or_else(|| panic!("{page} has no {begins}"))
        .text
}

fn consoles(page: &str) -> Vec<Block> {
    let mut all = blocks(&read(page));
    all.retain(|it| it.language == "console");
    all
}

/// README, and everything in docs/ but what decisions were taken.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/guide"] {
        let entries = fs::read_dir(repository().join(folder)).expect("a folder");
        let names = entries.map(|it| it.expect("a file").file_name());
        let names = names.map(|it| format!("{folder}/{}", it.to_string_lossy()));
        pages.extend(names.filter(|it| it.ends_with(".md")));
    }
    pages
}

#[test]
fn every_block_of_commands_is_typed_or_says_why_not() {
    let mut used = vec![false; TYPED.len() + UNTYPED.len()];
    for page in pages() {
        for block in consoles(&page) {
            if page == "docs/guide/functions.md" && block.text == BUILT {
                continue;
            }
            let typed = TYPED.iter().map(|(of, begins)| (*of, *begins));
            let untyped = UNTYPED.iter().map(|(of, begins, _)| (*of, *begins));
            let place = typed
                .chain(untyped)
                .position(|(of, begins)| of == page && block.text.starts_with(begins));
            let place = place.unwrap_or_else(|| {
                panic!(
                    "{page}: nobody types this block; see tests/it/guides.rs\n{}",
                    block.text
                )
            });
            used[place] = true;
        }
    }
    let unused = used.iter().position(|it| !it);
    assert_eq!(unused, None, "an entry of the lists is of no block");
}

/// Types the commands of a block that end; starts those that stay.
fn follow(typist: &mut Typist, block: &str) {
    let mut rest = String::new();
    let whole = block.replace("\\\n", "");
    for line in whole.lines() {
        let command = line.strip_prefix("$ ").unwrap_or_default();
        let command = command.split("  #").next().unwrap_or_default().trim_end();
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

fn start_agent(typist: &mut Typist, command: &str) {
    let command = typist.here(command);
    let process = typist.shell(&format!("exec {command}")).spawn();
    let process = process.expect("an agent");
    if command.contains("--enroll-token-file") {
        let line = process
            .wait_for_line("enrolled as", SOON)
            .expect("enrolled");
        assert!(line.contains("the enrolment token is used up"), "{line}");
    }
    typist.running.push(process);
}

fn json_of(typist: &Typist, command: &str) -> Value {
    let process = typist.shell(command).spawn().expect("a command");
    let status = process.wait(SOON).expect("its end");
    assert!(status.success(), "{command}: {}", process.stderr());
    serde_json::from_str(&process.stdout()).expect("JSON")
}

/// Somebody in the folder of a small project, under git.
fn in_a_project() -> Typist {
    let typist = Typist::new(Unprinted::Any);
    let folder = typist.folder.path();
    fs::write(folder.join("Makefile"), "test:\n\ttrue\n").unwrap();
    let author = ["-c", "user.name=a", "-c", "user.email=a@b"];
    let commit = [&author[..], &["commit", "-qm", "first"]].concat();
    for words in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &commit] {
        git(folder, words).unwrap();
    }
    typist
}

#[test]
fn a_first_pipeline_is_planned_run_and_written_down_as_the_readme_says() {
    let mut typist = in_a_project();
    follow(&mut typist, &block("README.md", "$ delta-ci plan"));
    assert!(typist.folder.path().join(".delta-ci.yaml").exists());
}

#[test]
fn a_project_is_run_in_each_way_that_the_page_of_local_runs_has() {
    let mut typist = in_a_project();
    follow(&mut typist, &block("docs/run.md", "$ delta-ci run"));
    assert!(typist.folder.path().join(".delta-ci").exists());
}

#[test]
fn a_server_and_an_agent_are_started_and_used_as_the_readme_says() {
    let mut alone = Typist::new(Unprinted::Any);
    follow(&mut alone, &block("README.md", "$ delta-ci up\n"));
    assert!(alone.folder.path().join(".delta-ci").is_dir());
    drop(alone);
    let mut typist = Typist::new(Unprinted::Any);
    follow(
        &mut typist,
        &block("README.md", "$ delta-ci server --data ./data"),
    );
    let text = block("README.md", "$ TOKEN=");
    let (make, look) = text.split_once("$ export").expect("a variable");
    typist.type_all(make);
    let show = || json_of(&typist, "delta-ci --json show latest --data ./data");
    let over = until("the run is over", show, |it| !it["outcome"].is_null());
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    // What the page calls a run and a job; and a run that is over has nothing to cancel.
    typist.instead(" RUN", " latest");
    typist.instead(" JOB", " latest/hello");
    let look: String = look
        .lines()
        .filter(|line| !line.starts_with("$ delta-ci cancel RUN"))
        .map(|line| format!("{line}\n"))
        .collect();
    typist.type_all(&format!("$ export{look}"));
    use std::os::unix::fs::PermissionsExt;
    let token = typist.folder.path().join("runner.token");
    let mode = fs::metadata(token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_repository_is_registered_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    fs::write(typist.folder.path().join("token"), "status-token\n").unwrap();
    typist.start_server("delta-ci up --listen 127.0.0.1:0 --public-url https://ci.example");
    let text = block("docs/forges.md", "$ delta-ci secret set STATUS_TOKEN");
    follow(&mut typist, &text);
}

#[test]
fn agents_come_in_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci server --data ./data --listen 127.0.0.1:0");
    let address = typist.here("http://127.0.0.1:7878");
    typist.instead("https://ci.example:7878", address);
    let page = "docs/identity.md";
    follow(
        &mut typist,
        &block(page, "$ delta-ci token create --role runner"),
    );
    // Each on a machine of its own.
    let first = typist.running.pop().expect("an agent");
    let line = || json_of(&typist, "delta-ci --json agents list --data ./data");
    let listed = until("the agent is there", line, |it| {
        it.to_string().contains("builds")
    });
    first.kill9().unwrap();
    first.wait(SOON).unwrap();
    fs::remove_dir_all(typist.folder.path().join(".delta-agent")).unwrap();
    follow(
        &mut typist,
        &block(page, "$ delta-ci token create --role enrolment"),
    );
    let tokens = json_of(&typist, "delta-ci --json token list --data ./data");
    let id = tokens[0]["token_id"].as_str();
    typist.instead(
        "tok_1f3a…",
        id.unwrap_or_else(|| panic!("{tokens} {listed}")),
    );
    follow(&mut typist, &block(page, "$ delta-ci token list"));
}

#[test]
fn certificates_are_made_and_served_with_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    follow(
        &mut typist,
        &block("docs/identity.md", "$ delta-ci ca init"),
    );
    let ignored = fs::read_to_string(typist.folder.path().join("ca/.gitignore")).unwrap();
    assert_eq!(ignored, "*.key\n");
}
