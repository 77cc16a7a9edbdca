//! What stands around a job's work: its source, its container, what it gets from other jobs and
//! from the server, and what is kept of it afterwards.
//!
//! Paths and patterns here are relative to the workspace and never leave it. That they do not by
//! way of a link is for the agent to see.

use serde::{Serialize, Serializer};

use super::brace_patterns::{MAX_ALTERNATIVES, alternatives};
use super::service::{self, ServiceSpec};
use super::{MAX_PATH, MAX_PATTERNS, MAX_WORD, Strangers};
use crate::fields::{Fields, Node};
use crate::invalid::{Invalid, Problems};

/// Services beside one job: a database, a cache, a queue; more is a cluster.
pub const MAX_SERVICES: usize = 16;
/// Secrets of one job.
pub const MAX_SECRETS: usize = 100;
/// Inputs of one job: as many as it may need others.
pub const MAX_INPUTS: usize = 200;
/// Characters of an environment's name.
pub(crate) const MAX_ENVIRONMENT: usize = 100;
/// Words of an entrypoint.
pub(crate) const MAX_ARGUMENTS: usize = 100;
/// Commits of history that may be asked for; whoever wants more wants all of it, which is 0.
pub(crate) const MAX_DEPTH: i64 = 1_000_000;

/// Files to keep after the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactPattern {
    #[serde(rename = "type")]
    pub kind: String,
    pub path_glob: String,
}

/// How the run's repository comes into the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutSpec {
    /// Not at all: `false`.
    Off,
    On(CheckoutOptions),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckoutOptions {
    /// Commits of history; 0 is all of it.
    pub depth: u32,
    pub submodules: bool,
    pub lfs: bool,
    /// The secret with a token or a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

impl Default for CheckoutOptions {
    fn default() -> Self {
        CheckoutOptions {
            depth: 1,
            submodules: false,
            lfs: true,
            credential: None,
        }
    }
}

impl Serialize for CheckoutSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            CheckoutSpec::Off => to.serialize_bool(false),
            CheckoutSpec::On(options) => options.serialize(to),
        }
    }
}

/// How the container of a job's `image` is run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ContainerSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// `none`, `bridge` or `host`; what the agent allows when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountSpec>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceSpec>,
}

/// A folder of the workspace at another place of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountSpec {
    /// Inside the workspace.
    pub source: String,
    pub target: String,
    pub read_only: bool,
}

/// A report of tests that the work writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResultsSpec {
    /// `junit`, `jest`, `playwright`, `tap`, `json`.
    pub format: ResultsFormat,
    /// A path or a pattern.
    pub path: String,
}

crate::states::spelled! {
    /// How a report of tests is written.
    ResultsFormat {
        Junit = "junit",
        Jest = "jest",
        Playwright = "playwright",
        Tap = "tap",
        Json = "json",
    }
}

crate::states::spelled! {
    /// Where it can be told how many tests a job ran: in the reports that `results` names, in what
    /// its steps print, or nowhere, which the job then says. Work that succeeded without one fails
    /// as `no_tests`.
    CountTests {
        Report = "report",
        Output = "output",
        None = "none",
    }
}

/// Artifacts of a job that this one needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputSpec {
    pub job: String,
    /// Which of them; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_glob: Option<String>,
    /// Where they go; the root of the workspace when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
}

/// A secret that the work gets as a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecretSpec {
    pub name: String,
    /// The variable.
    pub env: String,
}

pub(super) fn artifact(node: Node<'_>, strangers: Strangers) -> Result<ArtifactPattern, Problems> {
    if node.raw().get().starts_with('"') {
        return Ok(ArtifactPattern {
            kind: "file".to_owned(),
            path_glob: pattern(node)?,
        });
    }
    object(node, strangers, |f, p| {
        let kind = p.note(f.must("type", |it| it.text(MAX_WORD)));
        let path_glob = p.note(f.must("path_glob", pattern));
        Some(ArtifactPattern {
            kind: kind?,
            path_glob: path_glob?,
        })
    })
}

pub(super) fn checkout(node: Node<'_>, strangers: Strangers) -> Result<CheckoutSpec, Problems> {
    if !node.raw().get().starts_with('{') {
        return match node.boolean() {
            Ok(false) => Ok(CheckoutSpec::Off),
            Ok(true) => Ok(CheckoutSpec::On(CheckoutOptions::default())),
            Err(_) => Err(Invalid::here("must be true, false or an object").into()),
        };
    }
    let usual = CheckoutOptions::default();
    object(node, strangers, |f, p| {
        let depth = p.note(f.may("depth", |it| it.whole(0, MAX_DEPTH)));
        let submodules = p.note(f.may("submodules", Node::boolean));
        let lfs = p.note(f.may("lfs", Node::boolean));
        let credential = p.note(f.may("credential", secret_name));
        let depth = depth?.and_then(|depth| u32::try_from(depth).ok());
        Some(CheckoutSpec::On(CheckoutOptions {
            depth: depth.unwrap_or(usual.depth),
            submodules: submodules?.unwrap_or(usual.submodules),
            lfs: lfs?.unwrap_or(usual.lfs),
            credential: credential?,
        }))
    })
}

pub(super) fn container(node: Node<'_>, strangers: Strangers) -> Result<ContainerSpec, Problems> {
    object(node, strangers, |f, p| {
        let entrypoint = p.note_all(f.may_all("entrypoint", arguments));
        let network = p.note(f.may("network", network));
        let memory_mb = p.note(f.may("memory_mb", |it| it.whole(4, 64 * 1024 * 1024)));
        let cpus = p.note(f.may("cpus", cpus));
        let pids = p.note(f.may("pids", |it| it.whole(1, 4_194_304)));
        let user = p.note(f.may("user", user));
        let mounts = p.note_all(f.may_all("mounts", |it| {
            it.each_all(MAX_PATTERNS, |it| mount(it, strangers))
        }));
        let services = p.note_all(f.may_all("services", |it| {
            it.each_all(MAX_SERVICES, |it| service::service(it, strangers))
        }));
        Some(ContainerSpec {
            entrypoint: entrypoint?,
            network: network?,
            memory_mb: memory_mb?.map(i64::unsigned_abs),
            cpus: cpus?,
            pids: pids?.and_then(|pids| u32::try_from(pids).ok()),
            user: user?,
            mounts: mounts?.unwrap_or_default(),
            services: services?.unwrap_or_default(),
        })
    })
}

pub(super) fn network(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_WORD)?;
    match name.as_str() {
        "none" | "bridge" | "host" => Ok(name),
        _ => Err(Invalid::here("must be none, bridge or host")),
    }
}

fn cpus(node: Node<'_>) -> Result<f64, Invalid> {
    let cpus = node.number()?;
    match (0.01..=1024.0).contains(&cpus) {
        true => Ok(cpus),
        false => Err(Invalid::here("must be from 0.01 to 1024")),
    }
}

fn user(node: Node<'_>) -> Result<String, Invalid> {
    let user = node.text(MAX_WORD)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    match user.chars().all(fits) && !user.starts_with('-') {
        true => Ok(user),
        false => Err(Invalid::here("must be USER, or UID:GID")),
    }
}

pub(super) fn mount(node: Node<'_>, strangers: Strangers) -> Result<MountSpec, Problems> {
    object(node, strangers, |f, p| {
        let source = p.note(f.must("source", inside));
        let target = p.note(f.must("target", target));
        let read_only = p.note(f.may("read_only", Node::boolean));
        Some(MountSpec {
            source: source?,
            target: target?,
            read_only: read_only?.unwrap_or(false),
        })
    })
}

fn target(node: Node<'_>) -> Result<String, Invalid> {
    let target = node.text(MAX_PATH)?;
    let plain = target.starts_with('/') && !target.split('/').any(|part| part == "..");
    match plain && !target.contains([',', ':', '\0', '"']) {
        true => Ok(target),
        false => Err(Invalid::here(
            "must be an absolute path without `..`, `,` or `:`",
        )),
    }
}

/// A reference that no program takes for an option.
pub(super) fn image(node: Node<'_>) -> Result<String, Invalid> {
    let image = node.text(MAX_PATH)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    match image.starts_with(|c: char| c.is_ascii_alphanumeric()) && image.chars().all(plain) {
        true => Ok(image),
        false => Err(Invalid::here(
            "is no reference of an image; write NAME:TAG or NAME@DIGEST",
        )),
    }
}

pub(super) fn arguments(node: Node<'_>) -> Result<Vec<String>, Problems> {
    node.each_all(MAX_ARGUMENTS, |it| {
        let word = it.string()?;
        match word.len() > MAX_PATH || word.contains('\0') {
            true => {
                let words = format!("has more than {MAX_PATH} bytes, or a NUL");
                Err(Invalid::here(words).into())
            }
            false => Ok(word),
        }
    })
}

/// One report, or a list of them.
pub(super) fn results(node: Node<'_>, strangers: Strangers) -> Result<Vec<ResultsSpec>, Problems> {
    match node.raw().get().starts_with('[') {
        true => node.each_all(MAX_PATTERNS, |it| one_result(it, strangers)),
        false => Ok(vec![one_result(node, strangers)?]),
    }
}

fn one_result(node: Node<'_>, strangers: Strangers) -> Result<ResultsSpec, Problems> {
    object(node, strangers, |f, p| {
        let format = p.note(f.must("format", format));
        let path = p.note(f.must("path", pattern));
        Some(ResultsSpec {
            format: format?,
            path: path?,
        })
    })
}

fn format(node: Node<'_>) -> Result<ResultsFormat, Invalid> {
    let name = node.text(MAX_WORD)?;
    let known = "must be junit, jest, playwright, tap or json";
    ResultsFormat::from_text(&name).ok_or_else(|| Invalid::here(known))
}

pub(super) fn count_tests(node: Node<'_>) -> Result<CountTests, Invalid> {
    let name = node.text(MAX_WORD)?;
    CountTests::from_text(&name).ok_or_else(|| Invalid::here("must be report, output or none"))
}

pub(super) fn input(node: Node<'_>, strangers: Strangers) -> Result<InputSpec, Problems> {
    if node.raw().get().starts_with('"') {
        return Ok(InputSpec {
            job: node.text(MAX_WORD)?,
            path_glob: None,
            into: None,
        });
    }
    object(node, strangers, |f, p| {
        let job = p.note(f.must("job", |it| it.text(MAX_WORD)));
        let path_glob = p.note(f.may("path_glob", pattern));
        let into = p.note(f.may("into", inside));
        Some(InputSpec {
            job: job?,
            path_glob: path_glob?,
            into: into?,
        })
    })
}

pub(super) fn secret(node: Node<'_>, strangers: Strangers) -> Result<SecretSpec, Problems> {
    if node.raw().get().starts_with('"') {
        let name = secret_name(node)?;
        return Ok(SecretSpec {
            env: name.clone(),
            name,
        });
    }
    object(node, strangers, |f, p| {
        let name = p.note(f.must("name", secret_name));
        let env = p.note(f.may("env", variable));
        let name = name?;
        Some(SecretSpec {
            env: env?.unwrap_or_else(|| name.clone()),
            name,
        })
    })
}

/// The name of a secret is one of a variable, too.
pub fn secret_name(node: Node<'_>) -> Result<String, Invalid> {
    variable(node)
}

/// The name of an environment: one short word.
pub fn environment_name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_ENVIRONMENT)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    match name.chars().all(fits) {
        true => Ok(name),
        false => Err(Invalid::here("has letters, digits and . _ - /")),
    }
}

/// Variables that mean something to a shell, so that it refuses or loses them when they are set in
/// a script.
pub(crate) const SHELLS_OWN: [&str; 19] = [
    "DIRSTACK",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "HOSTNAME",
    "IFS",
    "LINENO",
    "OLDPWD",
    "OPTARG",
    "OPTIND",
    "PIPESTATUS",
    "PPID",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "UID",
];

/// Whether shells keep this variable for themselves.
pub fn is_shells_own(name: &str) -> bool {
    name.starts_with("BASH") || SHELLS_OWN.contains(&name)
}

fn variable(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_WORD)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.chars().all(fits) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(Invalid::here(
            "has letters, digits and `_`, and begins with no digit",
        ));
    }
    // A container's shell would have to be told such a one on its command line, where all can read.
    if is_shells_own(&name) {
        return Err(Invalid::here(
            "is a variable that shells keep for themselves; choose another name",
        ));
    }
    match name.starts_with("DELTA_") {
        true => Err(Invalid::here(
            "names that begin with DELTA_ are set by the agent",
        )),
        false => Ok(name),
    }
}

/// Whether a path stays in the folder it is relative to, as far as its text goes.
pub fn is_inside(path: &str) -> bool {
    !path.starts_with('/') && !path.split('/').any(|part| part == "..") && !path.contains('\0')
}

/// A folder or file inside the workspace.
pub(super) fn inside(node: Node<'_>) -> Result<String, Invalid> {
    let path = node.text(MAX_PATH)?;
    match is_inside(&path) {
        true => Ok(path),
        false => Err(Invalid::here(
            "must be a path inside the work folder, without `..`",
        )),
    }
}

/// A pattern of files inside the workspace.
pub(super) fn pattern(node: Node<'_>) -> Result<String, Invalid> {
    let text = inside(node)?;
    if alternatives(&text).is_none() {
        let words = format!("its braces stand for more than {MAX_ALTERNATIVES} patterns");
        return Err(Invalid::here(words));
    }
    Ok(text)
}

/// An object, with everything listed that is wrong with it. Every field is asked for before the
/// first is found missing: what was not asked for counts as unknown.
pub(super) fn object<T>(
    node: Node<'_>,
    strangers: Strangers,
    read: impl FnOnce(&mut Fields<'_>, &mut Problems) -> Option<T>,
) -> Result<T, Problems> {
    let (mut fields, mut problems) = (node.object()?, Problems::new());
    let value = read(&mut fields, &mut problems);
    close(fields, strangers, &mut problems);
    value.filter(|_| problems.is_empty()).ok_or(problems)
}

/// What nobody asked for: refused where a person wrote it, left alone where an agent reads it.
fn close(f: Fields<'_>, strangers: Strangers, problems: &mut Problems) {
    match strangers {
        Strangers::Ignored => f.close(),
        Strangers::Refused => f.refuse_unknown(problems),
    }
}

/// Closes an object, up to the first problem: [`close`] collects all of them.
pub(super) fn done(f: Fields<'_>, strangers: Strangers) -> Result<(), Invalid> {
    let mut problems = Problems::new();
    close(f, strangers, &mut problems);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.into_first()),
    }
}
