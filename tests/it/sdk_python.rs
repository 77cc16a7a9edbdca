//! The Python SDK's own tests, on Debian's Python: runners as processes, on real sockets.

use std::path::Path;
use std::process::Command;

// RQ-1 … RQ-45, as the vectors and the tests of the SDK name them.
#[test]
fn the_python_sdk_passes_its_own_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python");
    let output = Command::new("/usr/bin/python3")
        .args(["-m", "unittest", "discover"])
        .current_dir(folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        !said.contains("Ran 0 tests"),
        "there is something to test: {said}"
    );
}
