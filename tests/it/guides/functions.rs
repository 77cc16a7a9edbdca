//! Functions beyond the guide's own chapters: queues, dead letters, pools, traces, the SDK.

use std::fs;

use delta_testkit::process::Process;

use super::{block, follow, json_of, read, repository, start};
use crate::harness::collector::Collector;
use crate::harness::until;
use crate::typist::{SOON, Typist, Unprinted, blocks};

/// Somebody with the SDK, its page's `jobs.py`, and a pool of it called `python`.
fn with_a_pool() -> Typist {
    let typist = Typist::new(Unprinted::Any);
    let folder = typist.folder.path();
    let sdk = repository().join("sdk/python/delta_runner");
    let sdk = sdk.canonicalize().expect("the SDK");
    std::os::unix::fs::symlink(sdk, folder.join("delta_runner")).unwrap();
    let page = blocks(&read("sdk/python/README.md"));
    let jobs = page.iter().find(|it| it.name == "jobs.py").expect("a file");
    fs::write(folder.join("jobs.py"), &jobs.text).unwrap();
    let pool = "pools: {python: {command: [python3, -m, delta_runner, 'jobs:app']}}\n";
    fs::write(folder.join("runners.yaml"), pool).unwrap();
    typist
}

#[test]
fn a_function_is_called_as_the_readme_says() {
    let mut typist = with_a_pool();
    follow(&mut typist, &block("README.md", "$ delta-ci up --runners"));
}

#[test]
fn queues_and_dead_letters_are_dealt_with_as_the_guide_says() {
    let mut typist = with_a_pool();
    typist.start_server("delta-ci up --runners runners.yaml --listen 127.0.0.1:0");
    let page = "docs/guide/functions.md";
    typist.type_all(&block(page, "$ delta-ci queues"));
    typist.type_all(
        "$ delta-ci enqueue send_email --queue mail --params '{\"to\":\"bob\"}' \
         --max-attempts 1 --wait || test $? = 1\n",
    );
    let list = || json_of(&typist, "delta-ci --json dead-letters");
    let letters = until("a dead letter", list, |it| it.to_string().contains("run_"));
    let text = letters.to_string();
    let id = text.split('"').find(|it| it.starts_with("run_"));
    let id = id.expect("its id").to_owned();
    typist.instead("run_0197f3c4", id);
    typist.type_all(&block(page, "$ delta-ci dead-letters"));
}

#[test]
fn a_pool_is_served_as_the_guide_says() {
    let mut typist = with_a_pool();
    typist.start_server("delta-ci server --data ./data --listen 127.0.0.1:0");
    typist.type_all("$ delta-ci token create --role runner --data ./data --out runner.token\n");
    let address = typist.here("http://127.0.0.1:7878");
    typist.instead("https://ci.example", address);
    // The agent, and in a folder of its own all in one.
    follow(
        &mut typist,
        &block("docs/guide/functions.md", "$ delta-ci agent --server"),
    );
    typist.type_all(
        "$ delta-ci enqueue python#send_email --params '{\"to\":\"ann@example.org\"}' --wait \
         --data ./.delta-ci\n",
    );
    let listed = || json_of(&typist, "delta-ci --json agents list --data ./data");
    until("the agent is there", listed, |it| {
        it.to_string().contains("python")
    });
}

#[test]
fn traces_are_sent_as_the_page_says() {
    let collector = Collector::start();
    let mut typist = with_a_pool();
    typist.instead("http://127.0.0.1:4317", collector.url());
    let text = block("docs/tracing.md", "$ delta-ci server");
    let (server, agent) = text.split_once("$ delta-ci agent").expect("both");
    let server = typist.here(server);
    follow(&mut typist, &server);
    typist.type_all("$ delta-ci token create --role runner --data ./data --out runner.token\n");
    follow(&mut typist, &format!("$ delta-ci agent{agent}"));
    typist.type_all(
        "$ delta-ci enqueue python#send_email --params '{\"to\":\"ann@example.org\"}' --wait \
         --data ./data\n",
    );
    until(
        "both told theirs",
        || collector.raw(),
        |it| it.contains("delta.enqueue") && it.contains("delta.call"),
    );
}

/// A program called `delta-runner`, as the package would install it.
#[test]
fn a_runner_is_started_as_the_page_of_the_sdk_says() {
    use std::os::unix::fs::PermissionsExt;
    let mut typist = with_a_pool();
    let script = "#!/bin/sh\nexec python3 -c 'import sys; \
                  from delta_runner.main import main; sys.exit(main())' \"$@\"\n";
    let program = typist.folder.path().join("delta-runner");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    typist.instead("delta-runner jobs", "./delta-runner jobs");
    typist.instead("127.0.0.1:9000", "127.0.0.1:0");
    let here = ("PYTHONPATH".to_owned(), ".".to_owned());
    typist.variables.push(here);
    let text = block("sdk/python/README.md", "$ pip install");
    let command = text.trim_end().strip_prefix("$ ").expect("a command");
    let process: &Process = start(&mut typist, command);
    process
        .wait_for_line("listening on 127.0.0.1:", SOON)
        .unwrap();
}
