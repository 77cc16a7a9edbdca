//! The guide works as printed: its programs are written out, its commands typed, and what they say
//! is compared, but for ports, ids and times.
//!
//! What installs or builds is not typed, for it would fetch things: the SDK is there already, and
//! programs in Rust are examples that cargo has built beside the tests. The guide has their text
//! word for word, and its manifest makes the same programs of them.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use delta_testkit::process::{Process, Spawn, binary};

use super::{repository, rust_runner};
use crate::harness::{delta_ci, until};

const SOON: Duration = Duration::from_secs(60);

/// Commands for which `prepare` stands.
const PREPARED: [&str; 2] = ["pip install", "cargo build"];

/// A block of the guide: the file it is, or its language, and its text.
struct Block {
    name: String,
    language: String,
    text: String,
}

/// The blocks of a chapter, each with the file that the sentence before it names last.
fn blocks(chapter: &str) -> Vec<Block> {
    let guide = repository().join("docs/guide/functions.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let (_, rest) = guide
        .split_once(&format!("\n### {chapter}\n"))
        .expect("the chapter");
    let end = ["\n## ", "\n### "].iter().filter_map(|it| rest.find(it));
    let rest = &rest[..end.min().unwrap_or(rest.len())];
    let (mut blocks, mut before) = (Vec::new(), "");
    let mut lines = rest.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            before = if line.is_empty() { before } else { line };
            continue;
        };
        let text = lines.by_ref().take_while(|line| *line != "```");
        let text: String = text.map(|line| format!("{line}\n")).collect();
        let name = before.strip_suffix("`:").unwrap_or_default();
        blocks.push(Block {
            name: name.rsplit('`').next().unwrap_or_default().to_owned(),
            language: language.to_owned(),
            text,
        });
        before = "";
    }
    blocks
}

/// What stands for itself in every run of the guide.
fn plain(text: &str) -> String {
    let word = |word: &str| match word.strip_prefix("run_") {
        Some(id) if id.chars().all(|c| c.is_ascii_hexdigit()) => "run_ID".to_owned(),
        _ => word.to_owned(),
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Somebody at a terminal, in a folder of their own.
struct Typist {
    folder: tempfile::TempDir,
    /// What the guide says for each address, and what it is here.
    addresses: Vec<(&'static str, String)>,
    variables: Vec<(String, String)>,
    running: Vec<Process>,
}

impl Typist {
    fn here(&self, text: &str) -> String {
        let each = self.addresses.iter();
        each.fold(text.to_owned(), |text, (printed, real)| {
            text.replace(printed, real)
        })
    }

    fn shell(&self, script: &str) -> Spawn {
        let program = binary("delta-ci").expect("the binary");
        let folder = program.parent().expect("its folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut spawn = Spawn::new("/bin/sh")
            .args(["-c", script])
            .clean_env()
            .env("PATH", format!("{folder}:{path}"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(self.folder.path());
        for (name, value) in &self.variables {
            spawn = spawn.env(name, value);
        }
        spawn
    }

    /// The server of the guide, which says where it listens.
    fn start_server(&mut self, command: &str) {
        let command = command.replace("127.0.0.1:7878", "127.0.0.1:0");
        let words = command.strip_prefix("delta-ci ").expect("our program");
        let spawn = delta_ci()
            .args(words.split(' '))
            .current_dir(self.folder.path());
        let process = spawn.spawn().expect("a server");
        let line = process
            .wait_for_line("listening on", SOON)
            .expect("it listens");
        let address = line.split("://").nth(1).expect("an address").to_owned();
        self.addresses.push(("127.0.0.1:7878", address));
        self.running.push(process);
    }

    /// Types the commands of a block, and compares what is said with what is printed.
    fn type_all(&mut self, block: &str) {
        let mut script = String::new();
        let mut printed: Vec<(String, String)> = Vec::new();
        for line in block.lines() {
            let Some(command) = line.strip_prefix("$ ") else {
                let (_, said) = printed.last_mut().expect("a command comes first");
                said.push_str(&format!("{line}\n"));
                continue;
            };
            let command = self.here(command);
            if let Some(exported) = command.strip_prefix("export ") {
                self.settle(&mut script, &mut printed);
                let pairs = exported.split(' ').filter_map(|it| it.split_once('='));
                let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
                self.variables.extend(pairs);
            } else if let Some(command) = command.strip_suffix(" &") {
                self.settle(&mut script, &mut printed);
                let process = self.shell(&format!("exec {command}")).spawn();
                self.running.push(process.expect("a program"));
                let address = command.rsplit(' ').next().expect("an address").to_owned();
                let there = || TcpStream::connect(&address).is_ok();
                until("it listens", there, |there| *there);
            } else {
                script.push_str(&format!("echo @@@\n{command}\n"));
                printed.push((command, String::new()));
            }
        }
        self.settle(&mut script, &mut printed);
    }

    fn settle(&self, script: &mut String, printed: &mut Vec<(String, String)>) {
        let script = std::mem::take(script);
        let process = self.shell(&format!("exec 2>&1\n{script}")).spawn();
        let process = process.expect("a shell");
        process.wait(SOON * 2).expect("its end");
        let all = process.stdout();
        let said: Vec<&str> = all.split("@@@\n").skip(1).collect();
        assert_eq!(said.len(), printed.len(), "{all}");
        for ((command, printed), said) in printed.drain(..).zip(said) {
            assert_eq!(plain(said), plain(&printed), "$ {command}");
        }
    }
}

/// Follows a chapter, and says who got mail; `prepare` stands for what installs or builds.
fn follow(chapter: &str, prepare: impl FnOnce(&Path)) -> Vec<String> {
    let blocks = blocks(chapter);
    let free = || {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("an address").to_string()
    };
    let mut typist = Typist {
        folder: tempfile::tempdir().expect("a folder"),
        addresses: vec![("127.0.0.1:1025", free()), ("127.0.0.1:8000", free())],
        variables: Vec::new(),
        running: Vec::new(),
    };
    prepare(typist.folder.path());
    let mut prepared = 0;
    for block in blocks {
        let text = typist.here(&block.text);
        match (block.language.as_str(), block.name.as_str()) {
            ("console", _) if block.text.starts_with("$ delta-ci up ") => {
                typist.start_server(block.text.trim_start_matches("$ ").trim_end());
            }
            ("console", _) if PREPARED.iter().any(|it| block.text.contains(it)) => prepared += 1,
            ("console", _) => typist.type_all(&block.text),
            (language, "") => panic!("a block of {language} belongs to no file"),
            (_, name) => {
                let path = typist.folder.path().join(name);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(path, text).expect("a file");
            }
        }
    }
    assert_eq!(prepared, 1, "one block installs or builds");
    let said: String = typist.running.iter().map(Process::stdout).collect();
    let mail = said.lines().filter_map(|it| it.strip_prefix("mail for "));
    mail.map(str::to_owned).collect()
}

#[test]
fn the_guide_in_python_works_as_printed() {
    let mail = follow("In Python", |folder| {
        let sdk = repository().join("sdk/python/delta_runner");
        let sdk = sdk.canonicalize().expect("the SDK");
        std::os::unix::fs::symlink(sdk, folder.join("delta_runner")).expect("a link");
        // The system's own Python stands for the one of the environment.
        std::fs::create_dir_all(folder.join("venv/bin")).expect("a folder");
        std::fs::write(folder.join("venv/bin/activate"), "").expect("a file");
    });
    assert_eq!(mail, ["ann@example.org"], "sent once, and nothing to bob");
}

#[test]
fn the_guide_in_rust_works_as_printed() {
    let examples = rust_runner();
    let examples = examples.parent().expect("a folder");
    let source = repository().join("crates/delta-runner/examples");
    for (name, example) in [
        ("src/bin/jobs.rs", "guide_jobs.rs"),
        ("src/bin/web.rs", "guide_web.rs"),
    ] {
        let blocks = blocks("In Rust");
        let block = blocks.iter().find(|it| it.name == name).expect("a program");
        let text = std::fs::read_to_string(source.join(example)).expect("an example");
        assert_eq!(block.text, text, "{name} is {example}");
    }
    let mail = follow("In Rust", |folder| {
        let blocks = blocks("In Python");
        let server = blocks.iter().find(|it| it.name == "mail.py");
        let text = &server.expect("a mail server").text;
        std::fs::write(folder.join("mail.py"), text).expect("a file");
        let release = folder.join("target/release");
        std::fs::create_dir_all(&release).expect("a folder");
        for (name, example) in [("jobs", "guide_jobs"), ("web", "guide_web")] {
            let link = release.join(name);
            std::os::unix::fs::symlink(examples.join(example), link).expect("a link");
        }
    });
    assert_eq!(mail, ["ann@example.org", "bob@example.org"]);
}

#[test]
fn the_manifest_of_the_guide_makes_its_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    for block in blocks("In Rust").iter().filter(|it| !it.name.is_empty()) {
        let path = folder.path().join(&block.name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, &block.text).expect("a file");
    }
    let cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args([
            "metadata",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(folder.path())
        .output()
        .expect("cargo");
    let said = String::from_utf8_lossy(&cargo.stderr);
    assert!(cargo.status.success(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&cargo.stdout).expect("JSON");
    let targets = found["packages"][0]["targets"].as_array().expect("targets");
    let mut names: Vec<&str> = targets.iter().flat_map(|it| it["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["jobs", "web"]);
}
