//! Files on disk, by the reader and by the schema that editors have: the examples, which both
//! accept, and the hostile ones, each of which says in its first lines what must be said about it.

use std::fs;
use std::path::{Path, PathBuf};

use delta_planner::{Event, Facts, SCHEMA_PATH, parse, plan, schema};
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

// T13, A71
#[test]
fn hostile_files_are_refused_with_the_right_words() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/bad");
    let validator = validator();
    let files = yaml_files(&folder);
    assert!(files.len() > 50);
    let mut wrong = Vec::new();
    for (path, text) in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let head = text.lines().take_while(|line| line.starts_with("# "));
        let count = head.clone().count();
        let body: Vec<&str> = text.lines().skip(count).collect();
        let body = body.join("\n");
        let found = match parse(&name, body.as_bytes()) {
            Ok(_) => "nothing at all".to_owned(),
            Err(found) => found.to_string(),
        };
        let words: Vec<&str> = head
            .clone()
            .filter_map(|it| it.strip_prefix("# says: "))
            .collect();
        assert!(!words.is_empty(), "{name} says nothing");
        let unsaid = words.into_iter().filter(|words| !found.contains(words));
        wrong.extend(unsaid.map(|words| format!("{name}: {words}\n{found}")));
        if let Some(verdict) = head.clone().find_map(|it| it.strip_prefix("# schema: ")) {
            let json = as_json(&body).unwrap_or_else(|| panic!("{name}: no JSON"));
            if validator.is_valid(&json) != (verdict == "accepts") {
                wrong.push(format!("{name}: by the schema it is not `{verdict}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
