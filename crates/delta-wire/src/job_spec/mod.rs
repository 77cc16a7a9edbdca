//! The job spec: what an agent is to do. The server checks it once, when a job is created, and
//! from then on carries its text unread, byte for byte, to the agent that gets the lease. (Only a
//! missing `name` is added there.)
//!
//! Exactly one kind of work is in it: `steps`, `tests` or `function` (A68). Empty work is refused
//! here, so that it can never count as a success.

mod brace_patterns;
mod cache;
mod function;
mod job_io;
mod service;
mod test_spec;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::api::create_run::timeout;
use crate::fields::{Fields, Node, read_text};
use crate::invalid::{Invalid, Problems};
use crate::seconds::Seconds;
use crate::step::StepSpec;

pub use brace_patterns::alternatives;
pub(crate) use cache::MAX_RESTORE_KEYS;
pub use cache::{BadKey, CacheSpec, HOME_PREFIX, KeyPart, key_parts};
pub use function::{DEFAULT_QUEUE, FunctionSpec, MAX_PARAMS_BYTES, MAX_QUEUE, is_name};
pub(crate) use function::{
    MAX_CARRIED, MAX_FUNCTION, MAX_ROUTED, carrier, default_queue, function_name, no_params,
    params, queue_name,
};
pub use job_io::{
    ArtifactPattern, CheckoutOptions, CheckoutSpec, ContainerSpec, CountTests, InputSpec,
    MAX_INPUTS, MAX_SECRETS, MAX_SERVICES, MountSpec, ResultsFormat, ResultsSpec, SecretSpec,
    environment_name, is_inside, is_shells_own, secret_name,
};
pub(crate) use job_io::{MAX_ARGUMENTS, MAX_DEPTH, MAX_ENVIRONMENT, SHELLS_OWN};
pub use service::{
    MAX_READY_TIMEOUT, READY_EVERY, READY_PAUSES, READY_TIMEOUT, ReadySpec, ServiceSpec,
};
pub(crate) use test_spec::MAX_TEST_ARGUMENTS;
pub use test_spec::{ExecutionKind, ExecutionSpec, ResultConfig, TestSpec};

/// Bytes of one spec: long scripts in every step still fit, a checked-in binary does not.
pub const MAX_SPEC_BYTES: usize = 1024 * 1024;
/// Specs up to this size ride inside LeaseGranted; larger ones go by reference, so that a grant
/// stays a small message.
pub const MAX_EMBEDDED_SPEC_BYTES: usize = 64 * 1024;
/// Steps of one job: more of them is a script that should be a file.
pub const MAX_STEPS: usize = 200;
/// Bytes of one step: half of what Linux allows as a single argument of a process.
pub const MAX_STEP_BYTES: usize = 64 * 1024;
/// Environment entries of one job: several times what a large build sets.
pub const MAX_ENV: usize = 500;
/// Bytes of one environment value, bounded by the same argument limit as a step.
pub const MAX_ENV_VALUE_BYTES: usize = 64 * 1024;
/// Artifact patterns and caches of one job: each costs a walk over the work folder.
pub const MAX_PATTERNS: usize = 100;
/// Tests of one job.
pub const MAX_TESTS: usize = 1000;
/// What an agent must have for a job with an image: docker, or podman in its place.
pub const IMAGE_REQUIREMENT: &str = "docker";
/// Characters of a path, an image or a cache key: Linux's own limit of a path.
pub(crate) const MAX_PATH: usize = 4096;
/// Characters of a short word: a kind, a name of a variable.
pub const MAX_WORD: usize = 256;

/// A job spec as text, exactly as it was submitted.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJobSpec(Box<RawValue>);

impl RawJobSpec {
    /// Takes over any JSON text. Whether it is a job spec, [`JobSpec::read`] says.
    pub fn from_text(text: String) -> Result<Self, Invalid> {
        RawValue::from_string(text)
            .map(RawJobSpec)
            .map_err(|error| Invalid::here(format!("is not JSON: {error}")))
    }

    /// Writes a spec that was put together here rather than submitted.
    pub fn from_spec(spec: &JobSpec) -> Result<Self, Invalid> {
        serde_json::value::to_raw_value(spec)
            .map(RawJobSpec)
            .map_err(|error| Invalid::here(format!("cannot be written: {error}")))
    }

    pub fn as_text(&self) -> &str {
        self.0.get()
    }

    pub fn parse(&self) -> Result<JobSpec, Invalid> {
        JobSpec::parse(self.as_text().as_bytes())
    }

    /// This spec with a name in front, for one that has none. Every other byte stays, but
    /// for a `null` that stood for the name.
    pub(crate) fn named(&self, name: &str) -> Result<Self, Invalid> {
        let text = self.as_text();
        let (has_null, _) = read_text(text.as_bytes(), |node| {
            let fields = node.object()?;
            Ok(fields.entries().any(|(key, _)| key == "name"))
        })?;
        if has_null {
            let mut spec = self.parse()?;
            spec.name = Some(name.to_owned());
            return RawJobSpec::from_spec(&spec);
        }
        let name = serde_json::Value::from(name);
        RawJobSpec::from_text(format!("{{\"name\":{name},{}", &text[1..]))
    }

    pub(crate) fn from_node(node: Node<'_>) -> Result<Self, Invalid> {
        if !node.raw().get().starts_with('{') {
            return Err(Invalid::here("must be an object"));
        }
        if node.raw().get().len() > MAX_SPEC_BYTES {
            return Err(Invalid::here(format!(
                "has more than {MAX_SPEC_BYTES} bytes"
            )));
        }
        Ok(RawJobSpec(node.raw().to_owned()))
    }
}

impl PartialEq for RawJobSpec {
    fn eq(&self, other: &Self) -> bool {
        self.as_text() == other.as_text()
    }
}

impl Eq for RawJobSpec {}

/// A spec may hold what its author would not want in a log, so only its size is shown.
impl std::fmt::Debug for RawJobSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawJobSpec({} bytes)", self.as_text().len())
    }
}

/// A job spec that has been read. Serialising it gives a spec of the same meaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Relative to the work folder; `.` when not given.
    pub workdir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSpec>,
    /// Absent: as usual, where the run has a repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout: Option<CheckoutSpec>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepSpec>,
    /// In the order written: a later entry may refer to an earlier one.
    #[serde(serialize_with = "as_map", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactPattern>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheSpec>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputSpec>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<ResultsSpec>,
    /// Where it can be told how many tests ran; nothing is asked for when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_tests: Option<CountTests>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretSpec>,
    /// What it works on, such as `production`: decides among secrets of one name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Past this without a byte of output it is ended.
    #[serde(
        rename = "no_output_timeout_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub no_output_timeout: Option<Seconds>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<TestSpec>,
    /// A call of a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionSpec>,
}

/// The one kind of work a spec holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    Steps,
    Tests,
    Function,
}

impl WorkKind {
    pub fn as_str(self) -> &'static str {
        match self {
            WorkKind::Steps => "steps",
            WorkKind::Tests => "tests",
            WorkKind::Function => "function",
        }
    }

    /// What an agent must be able to do, as a requirement: `work:steps`.
    pub fn requirement(self) -> String {
        format!("work:{}", self.as_str())
    }
}

impl JobSpec {
    /// Reads a spec as an agent does: unknown fields are left alone.
    pub fn parse(text: &[u8]) -> Result<JobSpec, Invalid> {
        let (outcome, _) = read_text(text, |node| Ok(JobSpec::read(node, Strangers::Ignored)))?;
        outcome.map_err(Problems::into_first)
    }

    /// Reads a spec and lists everything wrong with it.
    pub(crate) fn read(node: Node<'_>, strangers: Strangers) -> Result<JobSpec, Problems> {
        let mut problems = Problems::new();
        let spec = match node.object() {
            Ok(fields) => read_fields(fields, strangers, &mut problems),
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        spec.filter(|_| problems.is_empty()).ok_or(problems)
    }

    /// What an agent must have to carry this out, as requirements.
    pub fn requires(&self) -> Vec<String> {
        let tests = self.tests.iter();
        let mut boxed = tests.map(|it| it.execution.kind == ExecutionKind::Container);
        let image = self.image.is_some() || boxed.any(|it| it);
        let image = image.then(|| IMAGE_REQUIREMENT.to_owned());
        let runner = self.function.as_ref().and_then(|it| it.parts().0);
        let runner = runner.map(|it| format!("runner:{}", it.to_lowercase()));
        image.into_iter().chain(runner).collect()
    }

    /// The names of every secret it refers to, each once, in order.
    pub fn secret_names(&self) -> Vec<&str> {
        let checkout = match &self.checkout {
            Some(CheckoutSpec::On(options)) => options.credential.as_deref(),
            Some(CheckoutSpec::Off) | None => None,
        };
        let names = self.secrets.iter().map(|it| it.name.as_str());
        let names: BTreeSet<&str> = names.chain(checkout).collect();
        names.into_iter().collect()
    }

    pub fn work(&self) -> WorkKind {
        if !self.steps.is_empty() {
            WorkKind::Steps
        } else if !self.tests.is_empty() {
            WorkKind::Tests
        } else {
            WorkKind::Function
        }
    }
}

/// What happens to fields nobody knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strangers {
    Ignored,
    Refused,
}

fn read_fields(mut f: Fields<'_>, strangers: Strangers, p: &mut Problems) -> Option<JobSpec> {
    let name = p.note(f.may("name", |it| it.text(MAX_WORD)));
    let workdir = p.note(f.may("workdir", job_io::inside));
    let image = p.note(f.may("image", job_io::image));
    let container = p.note_all(f.may_all("container", |it| job_io::container(it, strangers)));
    let checkout = p.note_all(f.may_all("checkout", |it| job_io::checkout(it, strangers)));
    let steps = p.note(f.may("steps", |it| {
        it.each(MAX_STEPS, |it| StepSpec::read(it, strangers))
    }));
    let env = p.note_all(f.may_all("env", environment));
    let artifacts = p.note_all(f.may_all("artifacts", |it| {
        it.each_all(MAX_PATTERNS, |it| job_io::artifact(it, strangers))
    }));
    let caches = p.note_all(f.may_all("caches", |it| {
        it.each_all(MAX_PATTERNS, |it| cache::cache(it, strangers))
    }));
    let inputs = p.note_all(f.may_all("inputs", |it| {
        it.each_all(MAX_INPUTS, |it| job_io::input(it, strangers))
    }));
    let results = p.note_all(f.may_all("results", |it| job_io::results(it, strangers)));
    let count_tests = p.note(f.may("count_tests", job_io::count_tests));
    let secrets = p.note_all(f.may_all("secrets", |it| {
        it.each_all(MAX_SECRETS, |it| job_io::secret(it, strangers))
    }));
    let work_on = p.note(f.may("environment", job_io::environment_name));
    let no_output = p.note(f.may("no_output_timeout_seconds", timeout));
    let tests = p.note(f.may("tests", |it| test_spec::tests(it, strangers)));
    let function = p.note(f.may("function", |it| FunctionSpec::read(it, strangers)));
    match strangers {
        Strangers::Ignored => f.close(),
        Strangers::Refused => f.refuse_unknown(p),
    }
    let spec = JobSpec {
        name: name?,
        workdir: workdir?.unwrap_or_else(|| ".".to_owned()),
        image: image?,
        container: container?,
        checkout: checkout?,
        steps: steps?.unwrap_or_default(),
        env: env?.unwrap_or_default(),
        artifacts: artifacts?.unwrap_or_default(),
        caches: caches?.unwrap_or_default(),
        inputs: inputs?.unwrap_or_default(),
        results: results?.unwrap_or_default(),
        count_tests: count_tests?,
        secrets: secrets?.unwrap_or_default(),
        environment: work_on?,
        no_output_timeout: no_output?,
        tests: tests?.unwrap_or_default(),
        function: function?,
    };
    contradictions(&spec, p);
    Some(spec)
}

/// What is right by itself, and not together.
fn contradictions(spec: &JobSpec, p: &mut Problems) {
    let kinds = [
        !spec.steps.is_empty(),
        !spec.tests.is_empty(),
        spec.function.is_some(),
    ];
    match kinds.into_iter().filter(|present| *present).count() {
        1 => {}
        0 => p.push(Invalid::field(
            "steps",
            "there is no work: give steps, tests or a function, and not an empty one",
        )),
        _ => p.push(Invalid::here(
            "has several kinds of work; give one of steps, tests, function",
        )),
    }
    if spec.container.is_some() && spec.image.is_none() && spec.tests.is_empty() {
        let words = "describes a container, and there is no `image` to make it of";
        p.push(Invalid::field("container", words));
    }
    if spec.count_tests.is_some() && spec.steps.is_empty() {
        let words = "asks for tests of steps, and there are none; `tests` count by themselves";
        p.push(Invalid::field("count_tests", words));
    }
    if spec.count_tests == Some(CountTests::Report) && spec.results.is_empty() {
        let words = "counts in reports, and `results` names none";
        p.push(Invalid::field("count_tests", words));
    }
}

/// Reads what stands around the work, as a person wrote it, and gives it back written out in full.
/// For the pipeline file, whose own reader knows where each value stands.
pub fn check_around(value: &serde_json::Value) -> Result<serde_json::Value, Problems> {
    let mut problems = Problems::new();
    let mut with_work = value.clone();
    if let Some(fields) = with_work.as_object_mut() {
        fields.insert("steps".to_owned(), serde_json::json!(["true"]));
    }
    let text = with_work.to_string();
    let read = read_text(text.as_bytes(), |node| {
        Ok(JobSpec::read(node, Strangers::Refused))
    });
    let spec = match problems.note(read) {
        Some((Ok(spec), _)) => spec,
        Some((Err(found), _)) => return Err(found),
        None => return Err(problems),
    };
    let mut written = serde_json::to_value(&spec).unwrap_or_default();
    if let (Some(all), Some(asked)) = (written.as_object_mut(), value.as_object()) {
        all.retain(|key, _| asked.contains_key(key));
    }
    Ok(written)
}

pub(crate) fn environment(node: Node<'_>) -> Result<Vec<(String, String)>, Problems> {
    let fields = node.object()?;
    if fields.len() > MAX_ENV {
        let words = format!("has {} entries, at most {MAX_ENV}", fields.len());
        return Err(Invalid::here(words).into());
    }
    let (mut all, mut problems) = (Vec::new(), Problems::new());
    for (name, value) in fields.entries() {
        all.extend(problems.note(variable(name, value)));
    }
    if problems.is_empty() {
        Ok(all)
    } else {
        Err(problems)
    }
}

fn variable(name: &str, value: Node<'_>) -> Result<(String, String), Invalid> {
    if name.is_empty()
        || name.len() > MAX_WORD
        || name.contains(|c: char| c == '=' || c.is_control())
    {
        return Err(Invalid::here(
            "a name of a variable is 1 to 256 bytes, without `=` and control characters",
        ));
    }
    let value = value.string().map_err(|problem| problem.within(name))?;
    if value.len() > MAX_ENV_VALUE_BYTES || value.contains('\0') {
        let most = format!("must have at most {MAX_ENV_VALUE_BYTES} bytes and no NUL");
        return Err(Invalid::field(name, most));
    }
    Ok((name.to_owned(), value))
}

fn as_map<S: serde::Serializer>(
    entries: &[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        JobSpec::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_spec_of_one_step_is_enough() {
        let spec = JobSpec::parse(br#"{"steps":["make"],"env":{"B":"1","A":"2"}}"#).unwrap();
        assert_eq!(spec.workdir, ".");
        assert_eq!(spec.work(), WorkKind::Steps);
        assert_eq!(spec.env[0].0, "B", "the order written is kept");
        let written = RawJobSpec::from_spec(&spec).unwrap();
        assert_eq!(
            written.parse().unwrap(),
            spec,
            "what is written means the same"
        );
    }

    // A68
    #[test]
    fn empty_work_and_two_kinds_of_work_are_refused() {
        assert!(refused("{}").contains("there is no work"));
        assert!(refused(r#"{"steps":[]}"#).contains("there is no work"));
        assert!(refused(r#"{"steps":["  "]}"#).contains("steps[0]: is empty"));
        assert!(refused(r#"{"steps":["a"],"function":{"name":"f"}}"#).contains("several kinds"));
        assert!(refused(r#"{"function":{}}"#).contains("function: is empty"));
    }

    #[test]
    fn a_refusal_names_the_inner_field() {
        assert!(refused(r#"{"steps":["a"],"env":{"A":1}}"#).starts_with("env.A: must be a string"));
        assert!(refused(r#"{"steps":["a",2]}"#).starts_with("steps[1]: must be a string"));
        assert!(refused(r#"{"steps":["a"],"workdir":"../x"}"#).starts_with("workdir: "));
        assert!(
            refused(r#"{"steps":["a"],"artifacts":[{"type":"t"}]}"#)
                .starts_with("artifacts[0].path_glob: is missing")
        );
        let many = "{a,b}".repeat(7);
        let artifacts = format!(r#"{{"steps":["a"],"artifacts":["x","{many}"]}}"#);
        let words = refused(&artifacts);
        assert!(words.starts_with("artifacts[1]: its braces"), "{words}");
    }

    #[test]
    fn everything_wrong_around_the_work_is_listed_at_once() {
        let around = serde_json::json!({
            "image": "x",
            "caches": [{"key": "", "paths": []}, {"key": "k", "paths": ["", ""]}],
            "results": [{"format": "junt", "path": ""}],
            "artifacts": [{"type": ""}],
            "container": {
                "entrypoint": [1, 2],
                "cpus": 0,
                "pids": 0,
                "mounts": [{"target": "up"}],
                "services": [
                    {"name": "A", "image": "-"},
                    {"image": "x", "env": {"A": 1, "B": 2}, "zzzzzz": 1},
                ],
            },
        });
        let found = check_around(&around).unwrap_err();
        let places: Vec<&str> = found.iter().map(Invalid::place).collect();
        assert_eq!(
            places,
            [
                "container.entrypoint[0]",
                "container.entrypoint[1]",
                "container.cpus",
                "container.pids",
                "container.mounts[0].source",
                "container.mounts[0].target",
                "container.services[0].name",
                "container.services[0].image",
                "container.services[1].name",
                "container.services[1].env.A",
                "container.services[1].env.B",
                "container.services[1].zzzzzz",
                "artifacts[0].type",
                "artifacts[0].path_glob",
                "caches[0].key",
                "caches[0].paths",
                "caches[1].paths[0]",
                "caches[1].paths[1]",
                "results[0].format",
                "results[0].path",
            ]
        );
    }

    // T6: it would have to be in a command line.
    #[test]
    fn no_secret_becomes_a_variable_of_the_shells_own() {
        for name in ["IFS", "UID", "BASH_ENV", "PWD"] {
            let secrets = format!(r#"{{"steps":["a"],"secrets":[{{"name":"A","env":"{name}"}}]}}"#);
            let words = refused(&secrets);
            assert!(words.starts_with("secrets[0].env: "), "{words}");
            assert!(words.contains("shells keep"), "{words}");
        }
        assert!(refused(r#"{"steps":["a"],"secrets":["DELTA_A"]}"#).starts_with("secrets[0]: "));
    }

    #[test]
    fn the_text_is_kept_byte_for_byte_and_stays_out_of_debug_output() {
        let text = "{ \"steps\":[\"a\"],\n  \"secret\" : 1.50 }";
        let raw = RawJobSpec::from_text(text.to_owned()).unwrap();
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        assert!(!format!("{raw:?}").contains("secret"));
    }

    #[test]
    fn deep_nesting_is_refused_not_followed() {
        let deep = format!(
            r#"{{"function":{{"name":"f","params":{{"a":{}{}}}}}}}"#,
            "[".repeat(5_000),
            "]".repeat(5_000)
        );
        assert!(refused(&deep).starts_with("function.params: cannot be read"));
    }
}
