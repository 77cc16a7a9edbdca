//! Help that teaches, and errors that say what to type.

use crate::support::{Place, comparable};

#[test]
fn the_exit_codes_are_one_table() {
    let ran = Place::new().say("help exit-codes").expect(0);
    assert!(ran.stderr.is_empty());
    assert!(ran.stdout.starts_with("Exit codes:\n   0  it worked"));
    let whole = Place::new().say("--help").expect(0);
    assert!(whole.stdout.ends_with(&ran.stdout), "{}", whole.stdout);
}

#[test]
fn help_of_every_command_has_examples() {
    let place = Place::new();
    let mut open: Vec<Vec<String>> = commands_in(&place.say("--help").expect(0).stdout)
        .into_iter()
        .map(|command| vec![command])
        .collect();
    let mut seen = 0;
    while let Some(command) = open.pop() {
        let help = command.iter().map(String::as_str).chain(["--help"]);
        let help = place.delta(help).expect(0).stdout;
        let below = commands_in(&help);
        // A command that only has commands leaves the examples to them.
        assert!(
            help.contains("Examples:") || !below.is_empty(),
            "{command:?}"
        );
        let asked = command.iter().map(String::as_str);
        let asked = place.delta(["help"].into_iter().chain(asked)).expect(0);
        let told = asked.stdout.contains("Examples:") || !below.is_empty();
        assert!(told, "help {command:?}");
        let path = |name| command.iter().cloned().chain([name]).collect();
        open.extend(below.into_iter().map(path));
        seen += 1;
    }
    assert!(seen > 50, "only {seen} commands were found");
}

/// The commands that a help lists, but for `help` itself.
fn commands_in(help: &str) -> Vec<String> {
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = below.take_while(|line| !line.is_empty());
    listed
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    let ran = Place::new().say("rnu").expect(2);
    assert!(ran.stdout.is_empty());
    assert!(ran.stderr.contains("run"), "{}", ran.stderr);
}

#[test]
fn a_folder_without_data_is_named_with_what_to_type() {
    let ran = Place::new().say("runs").expect(5);
    assert_eq!(
        ran.shown(),
        "exit 5\n--- stderr\n\
         error: there is no data folder .delta-ci\n\
         next: say which server: --data DIR on its machine, or --server URL"
    );
}

#[test]
fn errors_are_json_for_programs() {
    let ran = Place::new().say("--json runs").expect(5);
    assert!(ran.stdout.is_empty());
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(error["error"]["exit_code"], 5);
}

#[test]
fn a_usage_error_is_json_for_programs() {
    let place = Place::new();
    for line in ["--json rnu", "runs --bogus --json", "--json", "show --json"] {
        let ran = place.say(line).expect(2);
        let error: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
        assert_eq!(error["error"]["code"], "usage", "{line}: {error}");
        assert!(error["error"]["message"].is_string(), "{line}: {error}");
    }
    // Not ours: it belongs to whatever comes after the two dashes.
    let ran = place.say("show -- --json x").expect(2);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
}

#[test]
fn what_is_typed_wins_over_the_environment() {
    let place = Place::new();
    let mut command = place.command();
    command.env("DELTA_DATA", "nowhere");
    let output = command.args(["runs", "--server", "http://127.0.0.1:1"]);
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(6), "the address that was typed");
    let mut command = place.command();
    command.env("DELTA_SERVER", "http://127.0.0.1:1");
    let output = command
        .args(["runs", "--data", "nowhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "the folder that was typed");
    let mut command = place.command();
    command.env("DELTA_SERVER", "http://127.0.0.1:1");
    let output = command.env("DELTA_DATA", "nowhere").arg("runs").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2), "nobody said which");
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let ran = Place::new()
        .say("runs --server http://127.0.0.1:1")
        .expect(6);
    let said = comparable(&ran.stderr);
    assert!(
        said.starts_with("error: cannot reach http://127.0.0.1:1\nwhy: "),
        "{said}"
    );
    Place::new().say("runs --server ci.example").expect(2);
}

#[test]
fn a_pipeline_file_with_a_fault_points_at_the_line() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs:\n  unit:\n    stps: [make]\n");
    let ran = place.say("run").expect(2);
    assert!(ran.stderr.contains(".delta-ci.yaml:3:5"), "{}", ran.stderr);
    assert!(ran.stderr.contains("steps"), "{}", ran.stderr);
    assert!(ran.stdout.is_empty());
}

#[test]
fn a_folder_without_a_pipeline_file_says_so() {
    let ran = Place::new().say("run").expect(5);
    assert!(
        ran.stderr.contains("EMPTY_PLAN: there is nothing to run"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("looked for .delta-ci.yaml"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr
            .contains("next: delta-ci init leaves .delta-ci.yaml"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    let place = Place::new();
    let one = place.say("--json sim --seed 7").expect(0);
    let two = place.say("--json sim --seed 7").expect(0);
    assert_eq!(one.stdout, two.stdout);
    assert!(!one.json()["timeline"].as_array().unwrap().is_empty());
    let all = place.say("--json sim --seeds 20 --from 1").expect(0).json();
    assert_eq!(all["seeds"], 20, "{all}");
}
