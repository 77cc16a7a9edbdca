//! Work that is a list of tests: what the Execution Protocol calls TestSpec.
//!
//! A test is a program and its arguments, handed over word by word: no shell reads them. Paths stay
//! inside the workspace. What only a container can do is read here and left to its executor.

use serde::{Serialize, Serializer};

use super::job_io::{ResultsFormat, arguments, done, image, inside, mount, network, pattern};
use super::{MAX_PATH, MAX_PATTERNS, MAX_TESTS, MAX_WORD, MountSpec, Strangers};
use crate::agent::proto;
use crate::fields::Node;
use crate::invalid::{Invalid, Problems};

/// Arguments of one test: a list of files may be long.
pub(crate) const MAX_TEST_ARGUMENTS: usize = 1000;

/// One test, or one program that runs many.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestSpec {
    pub test_id: String,
    /// What people call it; the id where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    pub execution: ExecutionSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_config: Option<ResultConfig>,
}

impl TestSpec {
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.test_id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionKind {
    Subprocess,
    Container,
}

impl Serialize for ExecutionKind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            ExecutionKind::Subprocess => "SUBPROCESS",
            ExecutionKind::Container => "CONTAINER",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutionSpec {
    #[serde(rename = "type")]
    pub kind: ExecutionKind,
    /// A program, looked for in PATH unless it has a slash. Empty only in a container, which has
    /// one of its own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Inside the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<TestLimits>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TestLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

/// Where the results of a test are found. Without it its exit code is its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResultConfig {
    /// A path or a pattern inside the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_file: Option<String>,
    pub result_format: ResultsFormat,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifact_paths: Vec<String>,
}

/// The tests of a job; two with one id could not be told apart.
pub(super) fn tests(node: Node<'_>, strangers: Strangers) -> Result<Vec<TestSpec>, Invalid> {
    let tests = node.each(MAX_TESTS, |it| test(it, strangers))?;
    let mut seen = std::collections::HashSet::new();
    for (index, test) in tests.iter().enumerate() {
        if !seen.insert(test.test_id.as_str()) {
            let words = "is the id of an earlier test, too";
            return Err(Invalid::field("test_id", words).within(&format!("[{index}]")));
        }
    }
    Ok(tests)
}

fn test(node: Node<'_>, strangers: Strangers) -> Result<TestSpec, Invalid> {
    let mut f = node.object()?;
    let test = TestSpec {
        test_id: f.must("test_id", |it| it.text(MAX_WORD))?,
        name: f.may("name", |it| it.text(MAX_WORD))?,
        suite: f.may("suite", |it| it.text(MAX_WORD))?,
        execution: f.must("execution", |it| execution(it, strangers))?,
        result_config: f.may("result_config", |it| result_config(it, strangers))?,
    };
    done(f, strangers)?;
    Ok(test)
}

fn execution(node: Node<'_>, strangers: Strangers) -> Result<ExecutionSpec, Invalid> {
    let mut f = node.object()?;
    let kind = f.may("type", |it| {
        let kind = it.text(MAX_WORD)?.to_ascii_uppercase();
        match kind.as_str() {
            "SUBPROCESS" => Ok(ExecutionKind::Subprocess),
            "CONTAINER" => Ok(ExecutionKind::Container),
            _ => Err(Invalid::here("must be SUBPROCESS or CONTAINER")),
        }
    })?;
    let execution = ExecutionSpec {
        kind: kind.unwrap_or(ExecutionKind::Subprocess),
        command: f.may("command", program)?.unwrap_or_default(),
        args: f.may("args", words)?.unwrap_or_default(),
        working_dir: f.may("working_dir", inside)?,
        image: f.may("image", image)?,
        entrypoint: f.may("entrypoint", |it| {
            arguments(it).map_err(Problems::into_first)
        })?,
        mounts: f
            .may("mounts", |it| {
                it.each(MAX_PATTERNS, |it| {
                    mount(it, strangers).map_err(Problems::into_first)
                })
            })?
            .unwrap_or_default(),
        network_mode: f.may("network_mode", network)?,
        resource_limits: f.may("resource_limits", |it| limits(it, strangers))?,
    };
    done(f, strangers)?;
    let container = execution.kind == ExecutionKind::Container;
    if container && execution.image.is_none() {
        return Err(Invalid::field("image", "is missing: a container needs one"));
    }
    if !container && execution.command.is_empty() {
        return Err(Invalid::missing("command"));
    }
    Ok(execution)
}

fn limits(node: Node<'_>, strangers: Strangers) -> Result<TestLimits, Invalid> {
    let mut f = node.object()?;
    let small = |it: i64| u32::try_from(it).ok();
    let limits = TestLimits {
        cpu_millis: f
            .may("cpu_millis", |it| it.whole(10, 1_024_000))?
            .and_then(small),
        memory_mb: f
            .may("memory_mb", |it| it.whole(4, 64 * 1024 * 1024))?
            .map(i64::unsigned_abs),
        pids: f.may("pids", |it| it.whole(1, 4_194_304))?.and_then(small),
    };
    done(f, strangers)?;
    Ok(limits)
}

fn result_config(node: Node<'_>, strangers: Strangers) -> Result<ResultConfig, Invalid> {
    let mut f = node.object()?;
    let format = f.may("result_format", |it| {
        let name = it.text(MAX_WORD)?.to_ascii_lowercase();
        let known = "must be JUNIT, JEST, PLAYWRIGHT, TAP or JSON";
        ResultsFormat::from_text(&name).ok_or_else(|| Invalid::here(known))
    })?;
    let result_file = f.may("result_file", pattern)?;
    if result_file.is_some() && format.is_none() {
        return Err(Invalid::missing("result_format"));
    }
    let artifact_paths = f.may("artifact_paths", |it| it.each(MAX_PATTERNS, pattern))?;
    done(f, strangers)?;
    Ok(ResultConfig {
        result_file,
        result_format: format.unwrap_or(ResultsFormat::Junit),
        artifact_paths: artifact_paths.unwrap_or_default(),
    })
}

fn program(node: Node<'_>) -> Result<String, Invalid> {
    let program = node.text(MAX_PATH)?;
    if program.contains('\0') || program.trim().is_empty() {
        Err(Invalid::here("is the name of no program"))
    } else {
        Ok(program)
    }
}

fn words(node: Node<'_>) -> Result<Vec<String>, Invalid> {
    node.each(MAX_TEST_ARGUMENTS, |it| {
        let word = it.string()?;
        if word.len() > super::MAX_STEP_BYTES || word.contains('\0') {
            Err(Invalid::here("is too long, or has a NUL"))
        } else {
            Ok(word)
        }
    })
}

/// As an agent of the Execution Protocol is told of it.
impl From<&TestSpec> for proto::TestSpec {
    fn from(test: &TestSpec) -> proto::TestSpec {
        let execution = &test.execution;
        let limits = execution.resource_limits.map(|it| proto::ResourceLimits {
            cpu_millis: it.cpu_millis.map_or(0, u32::cast_signed),
            memory_mb: it.memory_mb.map_or(0, u64::cast_signed),
            pids: it.pids.map_or(0, u32::cast_signed),
        });
        let kind = match execution.kind {
            ExecutionKind::Subprocess => proto::ExecutionType::Subprocess,
            ExecutionKind::Container => proto::ExecutionType::Container,
        };
        let mount = |it: &MountSpec| proto::Mount {
            source: it.source.clone(),
            target: it.target.clone(),
            read_only: it.read_only,
        };
        proto::TestSpec {
            test_id: test.test_id.clone(),
            name: test.label().to_owned(),
            suite: test.suite.clone().unwrap_or_default(),
            execution: Some(proto::ExecutionSpec {
                r#type: kind.into(),
                command: execution.command.clone(),
                args: execution.args.clone(),
                working_dir: execution.working_dir.clone().unwrap_or_default(),
                image: execution.image.clone().unwrap_or_default(),
                entrypoint: execution.entrypoint.clone().unwrap_or_default(),
                mounts: execution.mounts.iter().map(mount).collect(),
                network_mode: execution.network_mode.clone().unwrap_or_default(),
                resource_limits: limits,
            }),
            result_config: test.result_config.as_ref().map(|it| proto::ResultConfig {
                result_file: it.result_file.clone().unwrap_or_default(),
                result_format: format(it.result_format).into(),
                artifact_paths: it.artifact_paths.clone(),
            }),
        }
    }
}

fn format(format: ResultsFormat) -> proto::ResultFormat {
    match format {
        ResultsFormat::Junit => proto::ResultFormat::Junit,
        ResultsFormat::Jest => proto::ResultFormat::Jest,
        ResultsFormat::Playwright => proto::ResultFormat::Playwright,
        ResultsFormat::Tap => proto::ResultFormat::Tap,
        ResultsFormat::Json => proto::ResultFormat::Json,
    }
}

#[cfg(test)]
mod tests {
    use crate::job_spec::{JobSpec, RawJobSpec, WorkKind};

    fn refused(test: &str) -> String {
        let text = format!(r#"{{"tests":[{test}]}}"#);
        JobSpec::parse(text.as_bytes()).unwrap_err().to_string()
    }

    // EP-20, EP-21
    #[test]
    fn a_test_is_read_word_by_word_and_written_as_it_was() {
        let text = r#"{"workdir":".","tests":[{"test_id":"t1","name":"one","suite":"s",
            "execution":{"type":"SUBPROCESS","command":"prove","args":["-v","$(rm -rf /)"],
            "working_dir":"sub"},"result_config":{"result_file":"out/*.tap",
            "result_format":"tap","artifact_paths":["out/**"]}}]}"#;
        let spec = JobSpec::parse(text.as_bytes()).unwrap();
        assert_eq!(spec.work(), WorkKind::Tests);
        assert_eq!(spec.tests[0].execution.args[1], "$(rm -rf /)");
        let written: serde_json::Value = serde_json::to_value(&spec).unwrap();
        let given: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(written, given);
        assert_eq!(RawJobSpec::from_spec(&spec).unwrap().parse().unwrap(), spec);
    }

    // EP-20: working_dir stays in the workspace. A68: nothing to do is no test.
    #[test]
    fn a_test_that_could_not_be_executed_is_refused() {
        for (test, words) in [
            (
                r#"{"execution":{"command":"a"}}"#,
                "tests[0].test_id: is missing",
            ),
            (r#"{"test_id":"t"}"#, "tests[0].execution: is missing"),
            (
                r#"{"test_id":"t","execution":{}}"#,
                "execution.command: is missing",
            ),
            (
                r#"{"test_id":"t","execution":{"command":"a","working_dir":"../x"}}"#,
                "execution.working_dir: must be a path inside",
            ),
            (
                r#"{"test_id":"t","execution":{"type":"CONTAINER"}}"#,
                "execution.image: is missing",
            ),
            (
                r#"{"test_id":"t","execution":{"type":"SHELL","command":"a"}}"#,
                "must be SUBPROCESS or CONTAINER",
            ),
            (
                r#"{"test_id":"t","execution":{"command":"a"},"result_config":
                    {"result_file":"/etc/passwd","result_format":"JUNIT"}}"#,
                "result_config.result_file: must be a path inside",
            ),
        ] {
            let said = refused(test);
            assert!(said.contains(words), "{said}");
        }
        let twice = r#"{"test_id":"t","execution":{"command":"a"}},
            {"test_id":"t","execution":{"command":"b"}}"#;
        assert!(refused(twice).contains("tests[1].test_id: is the id of an earlier"));
        assert!(JobSpec::parse(br#"{"tests":[]}"#).is_err());
    }
}
