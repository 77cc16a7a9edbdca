//! Files on disk, by the reader and by the schema that editors have: the examples, which both
//! accept, and the hostile and the doubtful ones, each of which says in its first lines what must
//! be said about it.

use std::fs;
use std::path::{Path, PathBuf};

use delta_planner::{Diagnostic, Event, Facts, Level, SCHEMA_PATH, parse, plan, schema};
use jsonschema::Validator;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn yaml_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut files: Vec<(PathBuf, String)> = fs::read_dir(folder)
        .unwrap_or_else(|problem| panic!("{}: {problem}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "yaml"))
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect();
    files.sort();
    files
}

fn examples() -> Vec<(PathBuf, String)> {
    let mut files = yaml_files(&root().join("examples/pipelines"));
    for file in ["examples/first/.delta-ci.yaml", ".delta-ci.yaml"] {
        let path = root().join(file);
        if let Ok(text) = fs::read_to_string(&path) {
            files.push((path, text));
        }
    }
    assert!(files.len() >= 4, "{files:?}");
    files
}

fn validator() -> Validator {
    jsonschema::validator_for(&schema()).expect("a schema")
}

/// As an editor reads the text.
fn as_json(text: &str) -> Option<Value> {
    serde_saphyr::from_str(text).ok()
}

#[test]
fn the_schema_in_the_repository_is_the_one_of_the_reader() {
    let path = root().join(SCHEMA_PATH);
    let mut wanted = serde_json::to_string_pretty(&schema()).unwrap();
    wanted.push('\n');
    if std::env::var_os("DELTA_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let command = "DELTA_BLESS=1 cargo nextest run -p delta-planner the_schema";
    assert!(
        found == wanted,
        "{SCHEMA_PATH} is not up to date: {command}"
    );
}

#[test]
fn examples_are_accepted_by_the_reader_the_schema_and_the_api() {
    let validator = validator();
    for (path, text) in examples() {
        let name = path.display().to_string();
        let pipeline = parse(&name, text.as_bytes()).unwrap_or_else(|found| panic!("{found}"));
        let json = as_json(&text).unwrap_or_else(|| panic!("{name}: not read as JSON"));
        let faults: Vec<String> = validator
            .iter_errors(&json)
            .map(|it| it.to_string())
            .collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
        let facts = [
            Facts::manual(),
            Facts {
                event: Event::Tag,
                tag: Some("v1.2.3".into()),
                ..Facts::manual()
            },
            Facts::push("main", delta_planner::Changed::All),
        ];
        for facts in facts {
            let plan = plan(&pipeline, &facts).unwrap_or_else(|faults| panic!("{faults:?}"));
            if plan.jobs.is_empty() {
                continue;
            }
            let request = plan.to_request().to_string();
            let read = delta_wire::api::CreateRun::parse(request.as_bytes());
            let read = read.unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
            assert_eq!(read.jobs.len(), plan.jobs.len(), "{name}");
        }
    }
}

/// A file of the corpus: what its first lines say of it, and the rest, which is read.
struct Case {
    name: String,
    head: Vec<String>,
    body: String,
}

impl Case {
    fn all(of: &str) -> Vec<Case> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        let read = |(path, text): (PathBuf, String)| {
            let head = text.lines().take_while(|line| line.starts_with("# "));
            let head: Vec<String> = head.map(str::to_owned).collect();
            let body: Vec<&str> = text.lines().skip(head.len()).collect();
            Case {
                name: path.file_name().unwrap().to_string_lossy().into_owned(),
                body: body.join("\n"),
                head,
            }
        };
        yaml_files(&corpus.join(of)).into_iter().map(read).collect()
    }

    fn head(&self, word: &str) -> Vec<&str> {
        let word = format!("# {word}: ");
        let lines = self.head.iter();
        lines.filter_map(|it| it.strip_prefix(&word)).collect()
    }

    /// What is not as the head says, given what was found.
    fn wrong(&self, found: &[Diagnostic], words: &str) -> Vec<String> {
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        let shown = shown.join("\n\n");
        let said = self.head(words);
        assert!(!said.is_empty(), "{} says nothing", self.name);
        let unsaid = said.into_iter().filter(|it| !shown.contains(it));
        let mut wrong: Vec<String> = unsaid.map(|it| format!("unsaid: {it}")).collect();
        let never = self.head("never").into_iter();
        wrong.extend(never.filter(|it| shown.contains(it)).map(str::to_owned));
        for (word, level) in [("faults", Level::Fault), ("warnings", Level::Warning)] {
            let count = found.iter().filter(|it| it.level == level).count();
            let wanted = self.head(word);
            let same = wanted.first().is_none_or(|it| *it == count.to_string());
            wrong.extend((!same).then(|| format!("{count} {word}")));
        }
        if let Some(verdict) = self.head("schema").first() {
            let json = as_json(&self.body).unwrap_or_else(|| panic!("{}: no JSON", self.name));
            let accepts = validator().is_valid(&json);
            let same = accepts == (*verdict == "accepts");
            wrong.extend((!same).then(|| format!("the schema does not: {verdict}")));
        }
        let told = |it: String| format!("{}: {it}\n{shown}", self.name);
        wrong.into_iter().map(told).collect()
    }
}

// T13, A71
#[test]
fn hostile_files_are_refused_with_the_right_words() {
    let cases = Case::all("bad");
    assert!(cases.len() > 70);
    let mut wrong = Vec::new();
    for case in cases {
        match parse(&case.name, case.body.as_bytes()) {
            Ok(_) => wrong.push(format!("{}: nothing at all is said", case.name)),
            Err(found) => wrong.extend(case.wrong(&found.items, "says")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn doubtful_files_are_read_with_a_warning() {
    let mut wrong = Vec::new();
    let cases = Case::all("warned");
    assert!(!cases.is_empty());
    for case in cases {
        match parse(&case.name, case.body.as_bytes()) {
            Ok(pipeline) => {
                wrong.extend(case.wrong(&pipeline.warnings, "warns"));
                let plan = plan(&pipeline, &Facts::manual()).unwrap();
                assert_eq!(plan.warnings(), pipeline.warnings, "{}", case.name);
            }
            Err(found) => wrong.push(format!("{}: {found}", case.name)),
        }
        let json = as_json(&case.body).unwrap();
        assert!(validator().is_valid(&json), "{}: the schema", case.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn warnings_never_crowd_out_a_fault() {
    let labels: Vec<String> = (0..30).map(|at| format!("ubuntu-{at}")).collect();
    let labels = labels.join(", ");
    let one = |at: usize| format!("  a{at}: {{steps: [x], requires: [{labels}]}}\n");
    let jobs: String = (0..5).map(one).collect();
    let text = format!("jobs:\n{jobs}  b: {{stesp: [x]}}\n");
    let found = parse("f", text.as_bytes()).unwrap_err();
    assert_eq!(found.faults(), 1);
    assert!(
        found.to_string().contains("did you mean `steps`?"),
        "{found}"
    );
    assert!(found.items.len() <= delta_planner::MAX_DIAGNOSTICS);
}
