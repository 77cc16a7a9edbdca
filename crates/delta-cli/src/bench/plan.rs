//! Planning a monorepo that nobody wrote a pipeline for: a tree is made in a temporary folder, then
//! planned from disk and from a commit, whole and after a change, and what that took is printed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use delta_planner::{Changed, Commit, Folder, Plan, Tree, discover};

use super::meter::Usage;
use crate::terminal::Terminal;

/// One way of planning, and what it took.
struct Measured {
    what: &'static str,
    seconds: f64,
    jobs: usize,
    omitted: usize,
    peak_resident_bytes: u64,
}

pub fn measure(packages: u32, files: u32, terminal: &Terminal) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let root = folder.path();
    terminal.say("making the tree");
    make(root, packages, files)?;
    let changed = Changed::files(["web/p1/src/f0.js".to_owned()]);
    let mut all = vec![
        one(
            "folder, everything",
            || Ok(Folder::tree(root)?),
            &Changed::All,
        )?,
        one(
            "folder, one file changed",
            || Ok(Folder::tree(root)?),
            &changed,
        )?,
    ];
    all.push(written(root)?);
    terminal.say("committing it");
    for arguments in [
        &["init", "-q"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "x"],
    ] {
        git(root, arguments)?;
    }
    let commit = || Ok(Commit::tree(root, "HEAD")?);
    all.push(one("commit, everything", commit, &Changed::All)?);
    all.push(one("commit, one file changed", commit, &changed)?);
    for it in all {
        if terminal.json {
            terminal.value_line(&serde_json::json!({
                "what": it.what, "packages": packages, "files": files, "seconds": it.seconds,
                "jobs": it.jobs, "omitted": it.omitted,
                "peak_resident_bytes": it.peak_resident_bytes,
            }));
        } else {
            terminal.data(&format!(
                "{}: {packages} packages, {files} files in {:.2} s; {} jobs, {} left out; \
                 {:.1} MB at most",
                it.what,
                it.seconds,
                it.jobs,
                it.omitted,
                it.peak_resident_bytes as f64 / 1e6
            ));
        }
    }
    Ok(())
}

fn one(
    what: &'static str,
    tree: impl Fn() -> anyhow::Result<Tree>,
    changed: &Changed,
) -> anyhow::Result<Measured> {
    let started = Instant::now();
    let tree = tree()?;
    let found = discover(&tree).context("nothing was found")?;
    let plan: Plan = found.plan(changed);
    let seconds = started.elapsed().as_secs_f64();
    ensure!(!plan.jobs.is_empty(), "nothing is planned");
    Ok(Measured {
        what,
        seconds,
        jobs: plan.jobs.len(),
        omitted: plan.omitted.len(),
        peak_resident_bytes: Usage::of(std::process::id()).peak_resident_bytes,
    })
}

/// With the condition of each job, as `delta-ci init` writes it.
fn written(root: &Path) -> anyhow::Result<Measured> {
    let started = Instant::now();
    let tree = Folder::tree(root)?;
    let found = discover(&tree).context("nothing was found")?;
    let jobs = found.pipeline().jobs.len();
    Ok(Measured {
        what: "folder, with conditions",
        seconds: started.elapsed().as_secs_f64(),
        jobs,
        omitted: 0,
        peak_resident_bytes: Usage::of(std::process::id()).peak_resident_bytes,
    })
}

/// A quarter of the packages each for Cargo, npm, Python and Go, the rest of the files spread over
/// them.
fn make(root: &Path, packages: u32, files: u32) -> anyhow::Result<()> {
    write(root, "package.json", "{\"workspaces\": [\"web/*\"]}")?;
    write(root, "package-lock.json", "{}")?;
    write(root, "rust/Cargo.toml", "[workspace]\nmembers = [\"*\"]\n")?;
    for n in 0..packages {
        let before = n.saturating_sub(4);
        let (folder, name, end, text) = match n % 4 {
            0 => {
                let needs = format!("p{before} = {{ path = \"../p{before}\" }}");
                let text = format!("[package]\nname = \"p{n}\"\n[dependencies]\n{needs}\n");
                ("rust", "Cargo.toml", "rs", text)
            }
            1 => {
                let text = serde_json::json!({
                    "name": format!("p{n}"), "scripts": {"test": "jest", "lint": "eslint ."},
                    "dependencies": {format!("p{before}"): "workspace:*"},
                });
                ("web", "package.json", "js", text.to_string())
            }
            2 => {
                let text = "[tool.pytest.ini_options]\n".to_owned();
                ("python", "pyproject.toml", "py", text)
            }
            _ => {
                let text = format!("module example.org/p{n}\nreplace b => ../p{before}\n");
                ("go", "go.mod", "go", text)
            }
        };
        write(root, &format!("{folder}/p{n}/{name}"), &text)?;
        for file in 0..(files / packages).saturating_sub(1) {
            write(root, &format!("{folder}/p{n}/src/f{file}.{end}"), "x\n")?;
        }
    }
    Ok(())
}

pub fn write(root: &Path, path: &str, text: &str) -> anyhow::Result<()> {
    let path = root.join(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

pub fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"])
        .args([
            "-c",
            "commit.gpgsign=false",
            "-c",
            "core.hooksPath=/dev/null",
        ])
        .args(arguments)
        .status()
        .context("run git")?;
    ensure!(status.success(), "git {arguments:?} ended with {status}");
    Ok(())
}
