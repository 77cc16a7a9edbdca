//! A fuzzer of schemas against a live server, as each role: what the document allows is carried out
//! or refused as docs/api.md says, what it does not allow is refused, and nothing is answered that
//! the document does not know. `cargo xtask fuzz-api` is the same for longer.

use std::path::Path;
use std::process::Command;

use delta_testkit::python;
use delta_testkit::python::PYTHON;

use super::{programs, succeed};
use crate::harness::{Options, Server};

/// Requests of each kind for each operation where nobody says for how long: every operation has its
/// turn, within some seconds.
const SHORT: [&str; 4] = ["--phases", "fuzzing", "--max-examples", "3"];

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,unsupported_method,\
    allow_header_conformance,what_is_valid_is_accepted,an_error_has_the_one_shape";

/// A role, its share of the time in tenths, and which operations are not tried as it.
struct Part {
    role: &'static str,
    tenths: u64,
    filter: &'static [&'static str],
}

const PARTS: &[Part] = &[
    Part {
        role: "user",
        tenths: 3,
        filter: &["--exclude-tag", "runner"],
    },
    Part {
        role: "runner",
        tenths: 2,
        filter: &["--include-tag", "runner"],
    },
    Part {
        role: "admin",
        tenths: 5,
        // Once there are repositories, this one would reach for other machines.
        filter: &[
            "--exclude-tag",
            "runner",
            "--exclude-operation-id",
            "trigger_run",
        ],
    },
];

#[test]
fn a_fuzzer_finds_nothing_that_the_document_does_not_say() {
    let seconds = std::env::var("DELTA_FUZZ_SECONDS").ok();
    let seconds: Option<u64> = seconds.map(|it| it.parse().expect("a number of seconds"));
    let seed = match std::env::var("DELTA_FUZZ_SEED") {
        Ok(seed) => seed,
        // The suite asks the same each time; whoever looks for news takes longer.
        Err(_) if seconds.is_none() => "31".to_owned(),
        Err(_) => std::process::id().to_string(),
    };
    println!("DELTA_FUZZ_SEED={seed} repeats it");
    let packages = python::packages(python::SCHEMATHESIS).expect("the fuzzer");
    let server = Server::start(Options::patient());
    for part in PARTS {
        let token = server.token(part.role);
        let mut fuzz = fuzz(&server, &packages, part, &token);
        fuzz.args(["--seed", &seed]);
        match seconds {
            Some(all) => {
                let own = (all * part.tenths / 10).max(1).to_string();
                // Other phases would take all of the time.
                fuzz.args(["--phases", "fuzzing", "--max-time", &own])
            }
            None => fuzz.args(SHORT),
        };
        let said = succeed(&mut fuzz);
        println!("as {}:\n{said}", part.role);
        assert!(said.contains("generated"), "nothing was tried: {said}");
    }
    server.check();
}

fn fuzz(server: &Server, packages: &Path, part: &Part, token: &str) -> Command {
    let page = programs().join("../../docs/api.md");
    let hooks = std::env::join_paths([packages, &programs()]).expect("a path");
    let mut command = Command::new(PYTHON);
    command
        .args(["-m", "schemathesis.cli", "--no-color", "--config-file"])
        .arg(programs().join("schemathesis.toml"))
        .arg("run")
        .arg(format!("http://{}/api/v1/openapi.json", server.addr()))
        .args(["--checks", CHECKS, "--generation-database", "none"])
        // How quickly requests are thought of says nothing about the server.
        .args(["--suppress-health-check", "too_slow,filter_too_much"])
        .args(part.filter)
        .current_dir(server.folder())
        .env("PYTHONPATH", hooks)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", "fuzz")
        .env("DELTA_API_PAGE", page)
        .env("DELTA_TOKEN", token);
    command
}
