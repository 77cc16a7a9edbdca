//! The language of conditions: what holds, what cannot be known, and what is written back.

use delta_planner::{Changed, Event, Facts, parse, plan};

fn runs(condition: &str, facts: &Facts) -> bool {
    let text = format!(
        "on: {{push: , pull_request: , tag: , manual: {{inputs: {{dry: {{type: boolean}}, \
         level: {{}}}}}}}}\njobs:\n  a:\n    if: |-\n      {condition}\n    steps: [x]\n"
    );
    let pipeline = parse("f", text.as_bytes()).unwrap_or_else(|found| panic!("{found}"));
    // What is written back means the same.
    let shown = pipeline.jobs[0].condition.as_ref().unwrap().to_string();
    let again = text.replace(condition, &shown);
    let again = parse("f", again.as_bytes()).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(
        again.jobs[0].condition, pipeline.jobs[0].condition,
        "{shown}"
    );
    plan(&pipeline, facts).unwrap().jobs.len() == 1
}

fn push(branch: &str, files: &[&str]) -> Facts {
    let files = files.iter().map(|it| (*it).to_owned());
    Facts::push(branch, Changed::files(files))
}

#[test]
fn conditions_hold_or_do_not() {
    let facts = push("main", &["src/a.rs", ".github/x"]);
    for (condition, wanted) in [
        ("true", true),
        ("false", false),
        ("branch == \"main\"", true),
        ("branch == 'dev'", false),
        ("branch != \"main\"", false),
        ("\"main\" == branch", true),
        ("branch =~ \"ma*\"", true),
        ("branch =~ \"{dev,main}\"", true),
        ("tag == \"\"", true),
        ("event == \"push\"", true),
        ("ref == \"refs/heads/main\"", true),
        ("trust == \"trusted\"", true),
        ("changed(\"src/**\")", true),
        ("changed(\"docs\", \"src\")", true),
        ("changed(\".github/**\")", true),
        ("changed(\"docs/**\")", false),
        ("!changed(\"docs/**\")", true),
        ("inputs.dry", false),
        ("!inputs.dry && inputs.level == \"\"", true),
        // `&&` holds tighter than `||`.
        ("true || false && false", true),
        ("(true || false) && false", false),
        ("!(branch == \"main\") || branch == \"main\"", true),
        ("!!true", true),
        ("branch == \"a\\\"b\\\\\"", false),
    ] {
        assert_eq!(runs(condition, &facts), wanted, "{condition}");
    }
}

#[test]
fn what_cannot_be_known_runs() {
    let facts = Facts::push("main", Changed::Unknown("it is the first push".into()));
    for (condition, wanted) in [
        ("changed(\"src/**\")", true),
        ("!changed(\"src/**\")", true),
        ("changed(\"a\") && changed(\"b\")", true),
        ("changed(\"a\") && branch == \"dev\"", false),
        ("changed(\"a\") || branch == \"dev\"", true),
    ] {
        assert_eq!(runs(condition, &facts), wanted, "{condition}");
    }
}

#[test]
fn a_pull_request_from_a_branch_called_main_is_not_main() {
    let facts = Facts {
        event: Event::PullRequest,
        branch: None,
        target: Some("main".into()),
        source: Some("main".into()),
        trusted: false,
        ..push("main", &[])
    };
    assert!(!runs("branch == \"main\"", &facts));
    assert!(runs("target == \"main\" && trust == \"untrusted\"", &facts));
}

#[test]
fn hostile_names_of_branches_stay_data() {
    // T15
    for branch in [
        "$(id)",
        "\" || true || \"",
        "a' && touch x",
        "{tag}",
        "\u{202e}x",
    ] {
        let facts = push(branch, &[]);
        assert!(!runs("branch == \"main\"", &facts), "{branch}");
        assert!(runs("branch != \"main\"", &facts), "{branch}");
    }
}
