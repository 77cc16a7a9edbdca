//! `delta-ci run` on one machine, as often as somebody tries it: a Rust workspace without
//! dependencies, run for the first time, again, and after one changed line. What cargo says that it
//! compiled is counted.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::plan::{git, write};
use crate::terminal::Terminal;

const PIPELINE: &str = "\
jobs:
  build:
    env: {CARGO_TERM_COLOR: never}
    steps: [cargo build --offline]
";

pub fn measure(crates: u16, terminal: &Terminal) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let (root, cache) = (folder.path().join("tree"), folder.path().join("cache"));
    make(&root, crates)?;
    one("first", &root, &cache, crates, terminal)?;
    one("again, nothing changed", &root, &cache, crates, terminal)?;
    write(&root, "c0/src/lib.rs", "pub fn f() -> u32 { 1 }\n")?;
    one("one line changed", &root, &cache, crates, terminal)
}

fn one(
    what: &str,
    root: &Path,
    cache: &Path,
    crates: u16,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let output = Command::new("/proc/self/exe")
        .arg("run")
        .current_dir(root)
        .env("XDG_CACHE_HOME", cache)
        .env_remove("CI")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .context("run delta-ci")?;
    let seconds = started.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {said}{why}");
    let compiled = said.lines().filter(|it| it.contains("Compiling ")).count();
    if terminal.json {
        terminal.value_line(&serde_json::json!({
            "what": what, "crates": crates, "seconds": seconds, "compiled": compiled,
        }));
    } else {
        terminal.data(&format!(
            "{what}: {compiled} of {crates} crates compiled, {seconds:.2} s"
        ));
    }
    Ok(())
}

fn make(root: &Path, crates: u16) -> anyhow::Result<()> {
    fs::create_dir_all(root)?;
    write(root, ".delta-ci.yaml", PIPELINE)?;
    write(root, ".gitignore", "target/\n")?;
    write(
        root,
        "Cargo.toml",
        "[workspace]\nresolver = \"2\"\nmembers = [\"c*\"]\n",
    )?;
    for n in 0..crates {
        let head = format!("[package]\nname = \"c{n}\"\nversion = \"0.1.0\"\n");
        write(
            root,
            &format!("c{n}/Cargo.toml"),
            &format!("{head}edition = \"2021\"\n"),
        )?;
        write(
            root,
            &format!("c{n}/src/lib.rs"),
            "pub fn f() -> u32 { 0 }\n",
        )?;
    }
    for arguments in [
        &["init", "-q"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "x"],
    ] {
        git(root, arguments)?;
    }
    Ok(())
}
