//! The guide works as printed: its programs are written out, its commands typed, and what they say
//! is compared, but for ports, ids and times.
//!
//! What installs or builds is not typed, for it would fetch things: the SDK is there already, and
//! programs in Rust are examples that cargo has built beside the tests. The guide has their text
//! word for word, and its manifest makes the same programs of them.

use std::path::Path;

use delta_testkit::process::Process;

use super::{repository, rust_runner};
use crate::typist::{Block, Typist, Unprinted};

/// Commands for which `prepare` stands.
const PREPARED: [&str; 2] = ["pip install", "cargo build"];

/// The blocks of a chapter, each with the file that the sentence before it names last.
fn blocks(chapter: &str) -> Vec<Block> {
    let guide = repository().join("docs/guide/functions.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let (_, rest) = guide
        .split_once(&format!("\n### {chapter}\n"))
        .expect("the chapter");
    let end = ["\n## ", "\n### "].iter().filter_map(|it| rest.find(it));
    crate::typist::blocks(&rest[..end.min().unwrap_or(rest.len())])
}

/// Follows a chapter, and says who got mail; `prepare` stands for what installs or builds.
fn follow(chapter: &str, prepare: impl FnOnce(&Path)) -> Vec<String> {
    let blocks = blocks(chapter);
    let free = || {
        let port = delta_testkit::port::free_port().expect("a port");
        format!("127.0.0.1:{port}")
    };
    let mut typist = Typist::new(Unprinted::Silent);
    for printed in ["127.0.0.1:1025", "127.0.0.1:8000"] {
        typist.instead(printed, free());
    }
    prepare(typist.folder.path());
    let mut prepared = 0;
    for block in blocks {
        let text = typist.here(&block.text);
        match (block.language.as_str(), block.name.as_str()) {
            ("console", _) if block.text.starts_with("$ delta-ci up ") => {
                let command = block.text.trim_start_matches("$ ").trim_end();
                typist.start_server(&command.replace("127.0.0.1:7878", "127.0.0.1:0"));
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

/// The pool and the handlers of RRQ, with the package as `pip` would install it.
#[test]
fn the_pool_of_rrq_starts_as_printed() {
    use std::os::unix::fs::PermissionsExt;
    let rrq = delta_testkit::rrq::Rrq::version(delta_testkit::rrq::NEW).expect("the package rrq");
    let guide = std::fs::read_to_string(repository().join("docs/guide/functions.md"));
    let guide = guide.expect("the guide");
    let (_, part) = guide.split_once("**Runners of RRQ**").expect("a part");
    let part = part.split("\n**").next().expect("its end");
    let mut typist = Typist::new(Unprinted::Silent);
    let programs = typist.folder.path().join("installed");
    std::fs::create_dir(&programs).expect("a folder");
    let script = format!(
        "#!/bin/sh\nPYTHONPATH={}:$PYTHONPATH exec {} {} \"$@\"\n",
        rrq.python_path().display(),
        delta_testkit::python::PYTHON,
        rrq.runner().display()
    );
    let program = programs.join("rrq-runner");
    std::fs::write(&program, script).expect("a program");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("a program");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.display());
    typist.variables.push(("PATH".to_owned(), path));
    let mut typed = 0;
    for block in crate::typist::blocks(part) {
        match (block.language.as_str(), block.name.as_str()) {
            ("console", _) if block.text.starts_with("$ delta-ci up ") => {
                let command = block.text.trim_start_matches("$ ").trim_end();
                typist.start_server(&command.replace("127.0.0.1:7878", "127.0.0.1:0"));
                typist.variables.clear();
            }
            ("console", _) => {
                typist.type_all(&block.text);
                typed += 1;
            }
            (_, name) => {
                std::fs::write(typist.folder.path().join(name), &block.text).expect("a file");
            }
        }
    }
    assert_eq!(typed, 1, "a call and its result");
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
