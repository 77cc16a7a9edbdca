//! The environment of a step: a clean base, the job's own variables, and who it is. Nothing that
//! holds a credential of the agent ever gets in.

use std::collections::BTreeMap;
use std::ffi::OsString;

use delta_shim::container::{HOME, TMP, WORKSPACE};

use super::Work;
use crate::local::REPOSITORY_VARIABLES;

/// Every name that begins so belongs to us. The job's file may not set one, and an inherited one
/// may hold a token.
const OWN_PREFIX: &str = "DELTA_";

/// What the base is when the agent itself has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the base comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BaseEnvironment {
    /// `PATH` of the agent and what is named here, and nothing else of it.
    Clean { pass: Vec<String> },
    /// Everything the caller has, except our own names and those by which git names another
    /// repository than the one a step is in: for a run on a developer's machine.
    Inherited,
}

/// Who the attempt is, as its steps may know it. The lease token is not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub run_id: String,
    pub job_id: String,
    pub job_name: String,
    pub attempt: u32,
    /// Rises with every lease of the job, so that a step can fence its own side effects.
    pub lease_epoch: u64,
}

/// The whole environment of a step.
pub(crate) fn environment(work: &Work) -> BTreeMap<OsString, OsString> {
    if work.container.is_some() {
        return inside(work);
    }
    let mut env = base(&work.base);
    let home = match &work.home {
        Some(home) => home.clone().into(),
        None => std::env::var_os("HOME").unwrap_or_else(|| work.workspace.clone().into()),
    };
    env.insert("HOME".into(), home);
    env.insert("TMPDIR".into(), work.tmp.clone().into());
    own_words(work, env, work.workspace.clone().into())
}

/// What every process on this machine begins with.
pub(crate) fn base(from: &BaseEnvironment) -> BTreeMap<OsString, OsString> {
    let own = |name: &OsString| name.as_encoded_bytes().starts_with(OWN_PREFIX.as_bytes());
    let mut env: BTreeMap<OsString, OsString> = match from {
        BaseEnvironment::Inherited => std::env::vars_os()
            .filter(|(name, _)| !REPOSITORY_VARIABLES.iter().any(|it| name == it))
            .collect(),
        BaseEnvironment::Clean { pass } => ["PATH"]
            .into_iter()
            .chain(pass.iter().map(String::as_str))
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect(),
    };
    env.retain(|name, _| !own(name));
    for (name, value) in [("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")] {
        env.entry(name.into()).or_insert_with(|| value.into());
    }
    env
}

/// That of a step in a container: the image's own, which is not here, and what it must know of
/// this attempt. Of the agent's there is what it is told to pass on by name.
fn inside(work: &Work) -> BTreeMap<OsString, OsString> {
    let passed: &[String] = match &work.base {
        BaseEnvironment::Clean { pass } => pass,
        BaseEnvironment::Inherited => &[],
    };
    let passed = passed.iter().filter(|it| !it.starts_with(OWN_PREFIX));
    let mut env: BTreeMap<OsString, OsString> = passed
        .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
        .collect();
    env.insert("HOME".into(), HOME.into());
    env.insert("TMPDIR".into(), TMP.into());
    own_words(work, env, WORKSPACE.into())
}

/// The job's variables, and who it is.
fn own_words(
    work: &Work,
    mut env: BTreeMap<OsString, OsString>,
    workspace: OsString,
) -> BTreeMap<OsString, OsString> {
    env.insert("CI".into(), "true".into());
    for (name, value) in &work.env {
        env.insert(name.into(), value.into());
    }
    let identity = &work.identity;
    for (name, value) in [
        ("DELTA_RUN_ID", identity.run_id.clone()),
        ("DELTA_JOB_ID", identity.job_id.clone()),
        ("DELTA_JOB_NAME", identity.job_name.clone()),
        ("DELTA_ATTEMPT", identity.attempt.to_string()),
        ("DELTA_LEASE_EPOCH", identity.lease_epoch.to_string()),
    ] {
        env.insert(name.into(), value.into());
    }
    env.insert("DELTA_WORKSPACE".into(), workspace);
    env
}

/// Variables of a step, without those that belong to us.
pub(super) fn without_own(mut env: Vec<(String, String)>) -> Vec<(String, String)> {
    env.retain(|(name, _)| !name.starts_with(OWN_PREFIX));
    env
}

/// The first variable of the job that no process could be given.
pub(crate) fn unusable(env: &[(String, String)]) -> Option<&str> {
    env.iter()
        .find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
        .map(|(name, _)| name.as_str())
}
