//! The Python SDK's own tests: runners as processes, on real sockets. On Debian's Python, and on
//! the oldest that is promised, where the machine has it; where it has not, Debian's parser looks
//! at every source as that one would.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What `requires-python` of the package says.
const OLDEST: &str = "3.9";

fn passes_on(python: &Path) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python");
    let output = Command::new(python)
        .args(["-m", "unittest", "discover"])
        .current_dir(folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", python.display());
    assert!(
        !said.contains("Ran 0 tests"),
        "there is something to test: {said}"
    );
}

/// The oldest Python, on the path or where pyenv puts its own.
fn oldest() -> Option<PathBuf> {
    let name = format!("python{OLDEST}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(&name));
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = Path::new(&home).join(".pyenv/versions");
    let versions = std::fs::read_dir(versions).into_iter().flatten().flatten();
    let own = versions.map(|version| version.path().join("bin").join(&name));
    let mut all = on_path.chain(own);
    // A file of that name may be one that only says which versions there are.
    all.find(|program| {
        let said = Command::new(program).arg("--version").output();
        said.is_ok_and(|said| {
            said.stdout
                .starts_with(format!("Python {OLDEST}.").as_bytes())
        })
    })
}

// RQ-1 … RQ-45, as the vectors and the tests of the SDK name them.
#[test]
fn the_python_sdk_passes_its_own_tests() {
    passes_on(Path::new("/usr/bin/python3"));
}

#[test]
fn the_python_sdk_is_fit_for_the_oldest_python_that_is_promised() {
    match oldest() {
        Some(python) => passes_on(&python),
        None => is_read_by_the_oldest(),
    }
}

/// Has every source of the package read by the oldest version's grammar.
fn is_read_by_the_oldest() {
    let read = "import ast, pathlib, sys
sources = sorted(pathlib.Path('delta_runner').glob('**/*.py'))
version = tuple(int(part) for part in sys.argv[1].split('.'))
for source in sources:
    ast.parse(source.read_text(), str(source), feature_version=version)
print(len(sources), 'sources')";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python");
    let output = Command::new("/usr/bin/python3")
        .args(["-c", read, OLDEST])
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let count = said.split(' ').next().and_then(|word| word.parse().ok());
    assert!(count.is_some_and(|count: usize| count > 10), "{said}");
}
