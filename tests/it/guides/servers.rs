//! Servers and agents, as people start them; and runners that are none of ours.

use std::fs;

use delta_testkit::{node, python};

use super::{block, follow, json_of, repository, start};
use crate::harness::until;
use crate::typist::{SOON, Typist, Unprinted};

#[test]
fn a_server_and_an_agent_are_started_and_used_as_the_readme_says() {
    let mut alone = Typist::new(Unprinted::Any);
    follow(&mut alone, &block("README.md", "$ delta-ci up\n"));
    assert!(alone.folder.path().join(".delta-ci").is_dir());
    drop(alone);
    let mut typist = Typist::new(Unprinted::Any);
    follow(
        &mut typist,
        &block("README.md", "$ delta-ci server --data ./data"),
    );
    let text = block("README.md", "$ TOKEN=");
    let (make, look) = text.split_once("$ export").expect("a variable");
    typist.type_all(make);
    let over = latest(&typist, "./data");
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    // What the page calls a run and a job; and a run that is over has nothing to cancel.
    typist.instead(" RUN", " latest");
    typist.instead(" JOB", " latest/hello");
    let look: String = look
        .lines()
        .filter(|line| !line.starts_with("$ delta-ci cancel RUN"))
        .map(|line| format!("{line}\n"))
        .collect();
    typist.type_all(&format!("$ export{look}"));
    use std::os::unix::fs::PermissionsExt;
    let token = typist.folder.path().join("runner.token");
    let mode = fs::metadata(token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// The newest run when it is over.
fn latest(typist: &Typist, data: &str) -> serde_json::Value {
    let command = format!("delta-ci --json show latest --data {data}");
    let show = || json_of(typist, &command);
    until("the run is over", show, |it| !it["outcome"].is_null())
}

#[test]
fn a_run_is_canceled_as_the_readme_says() {
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci server --data ./data --listen 127.0.0.1:0");
    let text = block("README.md", "$ TOKEN=");
    // Nobody is there to execute it, so that it is not over.
    let (make, look) = text.split_once("$ export").expect("a variable");
    typist.type_all(make);
    let cancel = look.lines().find(|it| it.starts_with("$ delta-ci cancel"));
    let cancel = cancel.expect("a line").replace(" RUN", " latest");
    typist.type_all(&format!("{cancel} --data ./data\n"));
    let over = latest(&typist, "./data");
    assert_eq!(over["outcome"], "CANCELED", "{over}");
}

#[test]
fn runners_in_python_are_started_as_their_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    let root = repository();
    for folder in ["examples", "protocol"] {
        let folder = root.join(folder);
        typist.type_all(&format!("$ cp -r {} .\n", folder.display()));
    }
    let text = block("examples/README.md", "$ delta-ci server --data ./data");
    let (ours, theirs) = text.split_once("$ python3").expect("a runner");
    follow(&mut typist, ours);
    // Debian's packages are for Debian's Python.
    typist.instead("python3 ", "/usr/bin/python3 ");
    for (at, line) in format!("$ python3{theirs}").lines().enumerate() {
        let command = line.strip_prefix("$ ").expect("a command");
        start(&mut typist, command);
        typist.type_all(
            block("README.md", "$ TOKEN=")
                .split("$ export")
                .next()
                .unwrap(),
        );
        let over = latest(&typist, "./data");
        assert_eq!(over["outcome"], "SUCCESS", "{over}");
        let process = typist.running.pop().expect("a runner");
        let said = process.wait_for_line("SUCCE", SOON);
        said.unwrap_or_else(|error| panic!("{at}: {error}"));
    }
}

#[test]
fn agents_come_in_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci server --data ./data --listen 127.0.0.1:0");
    let address = typist.here("http://127.0.0.1:7878");
    typist.instead("https://ci.example:7878", address);
    let page = "docs/identity.md";
    follow(
        &mut typist,
        &block(page, "$ delta-ci token create --role runner"),
    );
    // Each on a machine of its own.
    let first = typist.running.pop().expect("an agent");
    let line = || json_of(&typist, "delta-ci --json agents list --data ./data");
    let listed = until("the agent is there", line, |it| {
        it.to_string().contains("builds")
    });
    first.kill9().unwrap();
    first.wait(SOON).unwrap();
    fs::remove_dir_all(typist.folder.path().join(".delta-agent")).unwrap();
    follow(
        &mut typist,
        &block(page, "$ delta-ci token create --role enrolment"),
    );
    let tokens = json_of(&typist, "delta-ci --json token list --data ./data");
    let id = tokens[0]["token_id"].as_str();
    typist.instead(
        "tok_1f3a…",
        id.unwrap_or_else(|| panic!("{tokens} {listed}")),
    );
    follow(&mut typist, &block(page, "$ delta-ci token list"));
}

#[test]
fn certificates_are_made_and_served_with_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    follow(
        &mut typist,
        &block("docs/identity.md", "$ delta-ci ca init"),
    );
    let ignored = fs::read_to_string(typist.folder.path().join("ca/.gitignore")).unwrap();
    assert_eq!(ignored, "*.key\n");
}

/// Somebody with a server in ./data, and a token of a runner for it.
fn with_a_server() -> Typist {
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci server --data ./data --listen 127.0.0.1:0");
    typist.type_all("$ delta-ci token create --role runner --data ./data --out runner.token\n");
    let address = typist.here("http://127.0.0.1:7878");
    typist.instead("https://ci.example", address);
    typist
}

/// Waits until the list of agents has this word.
fn listed(typist: &Typist, word: &str) {
    let list = || json_of(typist, "delta-ci --json agents list --data ./data").to_string();
    until("the agent is there", list, |it| it.contains(word));
}

#[test]
fn an_agent_is_started_as_its_page_says() {
    let mut typist = with_a_server();
    let text = block("docs/agent.md", "$ delta-ci agent --server");
    follow(&mut typist, &text);
    listed(&typist, "\"gpu\"");
    let first = typist.running.pop().expect("an agent");
    first.kill9().unwrap();
    first.wait(SOON).unwrap();
    typist.type_all("$ delta-ci token create --role runner --data ./data --out second.token\n");
    typist.instead("/var/lib/delta-ci", "./lib");
    typist.instead("-o ci -g ci", "-m 0700");
    typist.instead(
        "--token-file runner.token",
        "--token-file second.token --name second",
    );
    let text = block("docs/agent.md", "$ install -d");
    follow(&mut typist, &text);
    listed(&typist, "second");
    assert!(typist.folder.path().join("lib/state").is_dir());
}

#[test]
fn a_machine_is_taken_out_as_the_page_says() {
    let mut typist = with_a_server();
    let command = "delta-ci agent --server https://ci.example --token-file runner.token";
    start(&mut typist, &format!("{command} --name builder-1"));
    listed(&typist, "builder-1");
    typist.instead("ssh builder-1 reboot", "true");
    let export = "$ export DELTA_DATA=./data\n";
    typist.type_all(export);
    // How many leases are left is told as it goes; here there are none.
    let text = block("docs/agents.md", "$ delta-ci drain builder-1");
    let commands = text.lines().filter(|it| it.starts_with("$ "));
    let commands: String = commands.map(|it| format!("{it}\n")).collect();
    let (drain, undrain) = commands.split_once("$ delta-ci undrain").expect("both");
    typist.type_all(drain);
    listed(&typist, "DRAINING");
    typist.type_all(&format!("$ delta-ci undrain{undrain}"));
    listed(&typist, "IDLE");
}

/// The document is where the page fetches it, and is one.
#[test]
fn the_document_of_the_api_is_fetched_as_the_page_says() {
    let mut typist = with_a_server();
    follow(&mut typist, &block("docs/api.md", "$ curl -s http"));
    let text = fs::read_to_string(typist.folder.path().join("openapi.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(document["paths"]["/api/v1/runs"].is_object());
    // As if somebody had installed both; the path is for the sake of what the first one starts.
    let packages = python::packages(python::OPENAPI).expect("the generator");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", packages.join("bin").display());
    typist.variables.push(("PATH".into(), path));
    let packages = packages.display().to_string();
    typist.variables.push(("PYTHONPATH".into(), packages));
    let modules = node::packages(node::OPENAPI).expect("the generator");
    let here = typist.folder.path().join("node_modules");
    std::os::unix::fs::symlink(modules.join("node_modules"), here).expect("a link");
    follow(
        &mut typist,
        &block("docs/api.md", "$ openapi-python-client generate"),
    );
    follow(
        &mut typist,
        &block("docs/api.md", "$ npx openapi-typescript"),
    );
    for made in ["delta-ci-client/delta_ci_client", "delta-ci.d.ts"] {
        assert!(typist.folder.path().join(made).exists(), "{made}");
    }
}
