//! Clients that are generated from the document, in Python and in TypeScript, used against the
//! server that served it.

use std::process::Command;

use delta_testkit::python::PYTHON;
use delta_testkit::{node, python};
use serde_json::json;

use super::{document, programs, succeed};
use crate::harness::{Options, Server};

#[test]
fn a_generated_client_in_python_works() {
    let server = Server::start(Options::patient());
    let document = document(&server);
    let packages = python::packages(python::OPENAPI).expect("the generator");
    let (config, client) = (
        server.folder().join("client.json"),
        server.folder().join("client"),
    );
    // It would be made pretty by another program; nobody looks at it.
    let settings = json!({
        "package_name_override": "delta_ci_client",
        "post_hooks": [],
        // Metrics are a text of a kind that it does not know.
        "content_type_overrides": {"application/openmetrics-text": "text/plain"},
    });
    std::fs::write(&config, settings.to_string()).expect("a file");
    succeed(
        Command::new(PYTHON)
            .args([
                "-m",
                "openapi_python_client",
                "generate",
                "--fail-on-warning",
            ])
            .args(["--meta", "none", "--config"])
            .arg(&config)
            .arg("--path")
            .arg(&document)
            .arg("--output-path")
            .arg(client.join("delta_ci_client"))
            .env("PYTHONPATH", &packages),
    );
    let path = std::env::join_paths([&client, &packages]).expect("a path");
    let said = succeed(
        Command::new(PYTHON)
            .arg(programs().join("client.py"))
            .env("PYTHONPATH", path)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("DELTA_SERVER", format!("http://{}", server.addr()))
            .env("DELTA_TOKEN", server.token("admin")),
    );
    assert_eq!(said, "done\n");
    server.check();
}

#[test]
fn a_generated_client_in_typescript_works() {
    let server = Server::start(Options::patient());
    let document = document(&server);
    let packages = node::packages(node::OPENAPI).expect("the generator");
    let folder = server.folder().join("client");
    std::fs::create_dir(&folder).expect("a folder");
    let modules = packages.join("node_modules");
    std::os::unix::fs::symlink(&modules, folder.join("node_modules")).expect("a link");
    std::fs::write(folder.join("package.json"), r#"{"type":"module"}"#).expect("a file");
    let program = |name: &str| modules.join(".bin").join(name);
    succeed(
        Command::new(program("openapi-typescript"))
            .arg(&document)
            .arg("-o")
            .arg(folder.join("delta-ci.d.ts")),
    );
    std::fs::copy(programs().join("client.ts"), folder.join("client.ts")).expect("a copy");
    let strict = ["--strict", "--noUncheckedIndexedAccess", "--skipLibCheck"];
    let language = ["--target", "es2022", "--module", "nodenext"];
    succeed(
        Command::new(program("tsc"))
            .args(strict)
            .args(language)
            .args(["--lib", "es2022,dom", "client.ts"])
            .current_dir(&folder),
    );
    let said = succeed(
        Command::new("node")
            .arg(folder.join("client.js"))
            .env("DELTA_SERVER", format!("http://{}", server.addr()))
            .env("DELTA_TOKEN", server.token("admin")),
    );
    assert_eq!(said, "done\n");
    server.check();
}
