//! The API as its document describes it, seen by programs of other people: validators, generators
//! of clients, and a fuzzer.

mod clients;
mod fuzz;
mod validators;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::Server;

/// Where the programs of these tests are.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("api")
}

/// The document as it is served, in a file of the server's folder.
#[track_caller]
fn document(server: &Server) -> PathBuf {
    let file = server.folder().join("openapi.json");
    let answer = server.person().http.get("/api/v1/openapi.json");
    let answer = answer.expect("an answer").expect(200);
    std::fs::write(&file, &answer.text).expect("a file");
    file
}

/// Runs a program to its good end, and gives what it printed.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("the program");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{command:?}\n{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said.into_owned()
}
