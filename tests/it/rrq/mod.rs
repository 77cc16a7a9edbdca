//! Function jobs between ours and what nobody here wrote: runners of RRQ under our agent, RRQ's
//! worker over our runners, and both codecs over each other's frames.
//!
//! All runners have the same five functions (`echo`, `fail`, `flaky`, `later`, `hold`), so that one
//! table of cases is put to each of them.

mod agent;
mod frames;
mod worker;

use std::path::{Path, PathBuf};

use crate::harness::until;

/// What lies in `tests/fixtures/runners`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/runners")
        .join(name)
}

/// What cargo has built of the examples beside the tests.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("this test's own place");
    let built = tests.parent().and_then(Path::parent).expect("target/debug");
    let file = built.join("examples").join(name);
    assert!(file.is_file(), "{} is not built", file.display());
    file
}

/// The Rust runner that others wrote.
fn rust_peer() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/rrq-runner");
    delta_testkit::rrq::rust_runner(&package).expect("the crate rrq-runner")
}

/// A place where `hold` says that it has begun, and where it is let go.
struct Held {
    path: PathBuf,
    go: PathBuf,
}

impl Held {
    fn new(folder: &Path, name: &str) -> Held {
        Held {
            path: folder.join(format!("{name}.begun")),
            go: folder.join(format!("{name}.go")),
        }
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({"path": self.path, "go": self.go})
    }

    /// What was noted: process ids, and `cancelled` by those that are told.
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn until_begun(&self, times: usize) -> Vec<String> {
        let what = format!("{} began {times} times", self.path.display());
        until(&what, || self.lines(), |lines| lines.len() >= times)
    }

    fn let_go(&self) {
        std::fs::write(&self.go, "").expect("a file");
    }
}

/// kill -9 of a process that said its id itself.
#[track_caller]
fn kill9(pid: &str) {
    let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    let killed = rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL);
    killed.expect("kill -9");
}
