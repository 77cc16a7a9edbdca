//! Projects without a pipeline file, found, executed, and executed once more after one changed
//! line: each tool builds anew what it would build in its person's own folder, and nothing else.
//! What was built is told by the tool itself; `--fresh` shows that it has to be kept for that.

use std::fs;

use crate::plan::checkout;
use crate::support::{Place, Ran};

/// Runs what is found; the words behind `said` in its log, in order.
#[track_caller]
fn built(place: &Place, said: &str, more: &[&str]) -> Vec<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = place
        .command()
        .arg("run")
        .args(more)
        .env("PATH", format!("/usr/bin:{path}"))
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .output()
        .expect("the binary runs");
    let ran = Ran {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    let ran = ran.expect(0);
    // Green is no proof: so many tests ran.
    assert!(ran.stdout.contains("tests ran") || ran.stdout.contains("test ran"));
    let lines = ran.stdout.lines().filter_map(|line| line.split_once(" | "));
    let words = lines.filter_map(|(_, line)| line.trim().strip_prefix(said));
    let mut words: Vec<String> = words
        .filter_map(|it| it.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    words.sort();
    words
}

/// Of the two parts of a project one changes, and that one is built anew.
#[track_caller]
fn twice(fixture: &str, said: &str, file: &str, from: &str, to: &str) {
    let place = checkout(fixture);
    assert_eq!(built(&place, said, &[]), ["one", "two"], "at first");
    let path = place.path().join(file);
    let text = fs::read_to_string(&path).expect("a file");
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replacen(from, to, 1)).expect("a file");
    assert_eq!(built(&place, said, &["--all"]), ["two"], "after a change");
    let nothing: [&str; 0] = [];
    assert_eq!(built(&place, said, &["--all"]), nothing, "after none");
    let fresh = built(&place, said, &["--all", "--fresh"]);
    assert_eq!(fresh, ["one", "two"], "from nothing");
}

#[test]
fn a_found_cargo_project_is_built_again_where_it_changed() {
    twice(
        "twice-cargo",
        "Compiling ",
        "two/src/lib.rs",
        "    2\n",
        "    1 + 1\n",
    );
}

#[test]
fn a_found_node_project_is_built_again_where_it_changed() {
    twice("twice-node", "built ", "src/two.js", "= 2", "= 1 + 1");
}

#[test]
fn a_found_python_project_is_compiled_again_where_it_changed() {
    twice("twice-python", "compiles ", "two.py", "= 2", "= 1 + 1");
}
