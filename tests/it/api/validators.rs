//! Two validators that nobody here wrote, and that have nothing in common, read the document.

use std::process::Command;

use delta_testkit::python::PYTHON;
use delta_testkit::{node, python};

use super::{document, succeed};
use crate::harness::{Options, Server};

#[test]
fn two_validators_find_nothing_wrong_with_the_document() {
    let server = Server::start(Options::patient());
    let document = document(&server);
    let packages = python::packages(python::OPENAPI).expect("the validator");
    let said = succeed(
        Command::new(PYTHON)
            .args(["-m", "openapi_spec_validator", "--schema", "3.1"])
            .arg(&document)
            .env("PYTHONPATH", packages),
    );
    assert!(said.contains("OK"), "{said}");
    let packages = node::packages(node::OPENAPI).expect("the validator");
    let program = r#"
        import { Validator } from "@seriousme/openapi-schema-validator";
        const answer = await new Validator().validate(process.argv[2]);
        console.log(JSON.stringify(answer));
        process.exit(answer.valid ? 0 : 1);
    "#;
    let file = server.folder().join("validate.mjs");
    std::fs::write(&file, program).expect("a file");
    let modules = server.folder().join("node_modules");
    std::os::unix::fs::symlink(packages.join("node_modules"), modules).expect("a link");
    succeed(Command::new("node").arg(&file).arg(&document));
}
