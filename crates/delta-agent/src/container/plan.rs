//! What a job's spec comes to on this machine: an order for the shim, or why there is none.
//!
//! Whatever would reach beyond the workspace is refused here, before anything is started: a mount
//! whose source is behind a link, the host's network where the agent does not allow it, another
//! user for a run that is not trusted.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::sync::Arc;
use std::{fs, io};

use delta_core::Cause;
use delta_shim::container::{
    ContainerOrder, HOME, KEPT, Mount, Network, OWN_FOLDER, Ready, Runtime, Service, Sign, TMP,
    WORKSPACE,
};
use delta_shim::sandbox::Confinement;
use delta_shim::verdict::path_cause;
use delta_wire::JobSpec;
use delta_wire::job_spec::{ContainerSpec, MountSpec, ReadySpec, ServiceSpec};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::ContainerSettings;
use crate::attempt::StateFolder;
use crate::job_io::Failed;
use crate::workspace::AttemptFolder;

/// Processes and threads of a job that does not say: as many as one outside of a container has.
const USUAL_PIDS: u32 = 8192;

/// Where the kernel's own things are in a container.
const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Where the settings of the container program are for runs that are not trusted.
const NO_LOGINS: &str = "no-logins";

/// Where and for whom.
pub(crate) struct PlanContext<'a> {
    pub settings: &'a ContainerSettings,
    pub runtime: Option<Arc<Runtime>>,
    /// Where this agent's name is, as containers are labelled.
    pub state: &'a StateFolder,
    pub folder: &'a AttemptFolder,
    pub confinement: Confinement,
    pub untrusted: bool,
}

/// The order for a job with an image. Nothing for one without.
pub(crate) fn plan(
    spec: &JobSpec,
    place: &PlanContext<'_>,
) -> Result<Option<ContainerOrder>, Failed> {
    let Some(image) = &spec.image else {
        return Ok(None);
    };
    let Some(runtime) = place.runtime.as_deref() else {
        let summary = "no container can be made: neither docker nor podman answered when this \
                       agent registered";
        return Err(failed(Cause::StartUp, summary));
    };
    let owner = place.state.owner().map_err(|problem| {
        failed(
            Cause::StartUp,
            format!("no container can be labelled: {problem}"),
        )
    })?;
    let runtime = if place.untrusted {
        runtime
            .without_logins(&place.state.path().join(NO_LOGINS))
            .map_err(|problem| {
                let summary = format!("the agent's logins cannot be hidden: {problem}");
                failed(Cause::StartUp, summary)
            })?
    } else {
        runtime.clone()
    };
    let usual = ContainerSpec::default();
    let asked = spec.container.as_ref().unwrap_or(&usual);
    if place.untrusted && asked.user.is_some() {
        let summary = "container.user: an untrusted run cannot choose its user";
        return Err(failed(Cause::SpecError, summary));
    }
    let capabilities = if place.untrusted {
        Vec::new()
    } else {
        KEPT.into_iter().map(str::to_owned).collect()
    };
    Ok(Some(ContainerOrder {
        runtime,
        owner,
        image: image.clone(),
        pull: place.settings.pull,
        entrypoint: asked.entrypoint.clone().unwrap_or_default(),
        network: network(asked.network.as_deref(), place)?,
        memory_mb: asked.memory_mb,
        cpus: asked.cpus,
        pids: asked.pids.unwrap_or(USUAL_PIDS),
        user: asked
            .user
            .clone()
            .unwrap_or_else(|| own_user(place.confinement)),
        capabilities,
        mounts: mounts(&asked.mounts, place.folder)?,
        services: services(&asked.services)?,
    }))
}

fn failed(cause: Cause, summary: impl Into<String>) -> Failed {
    Failed {
        cause,
        summary: summary.into(),
    }
}

fn network(asked: Option<&str>, place: &PlanContext<'_>) -> Result<Network, Failed> {
    let allowed = if place.untrusted {
        place.settings.network.min(Network::Bridge)
    } else {
        place.settings.network
    };
    let Some(asked) = asked.and_then(Network::from_text) else {
        return Ok(allowed.min(Network::Bridge));
    };
    if asked <= allowed {
        return Ok(asked);
    }
    let (asked, allowed) = (asked.as_str(), allowed.as_str());
    let whom = if place.untrusted {
        " to untrusted runs"
    } else {
        ""
    };
    let summary = format!(
        "container.network: this agent allows `{allowed}`{whom}, the job asks for `{asked}`"
    );
    Err(failed(Cause::SpecError, summary))
}

/// Files in the workspace are to belong to whoever has it.
fn own_user(confinement: Confinement) -> String {
    match confinement.user {
        Some(user) => format!("{user}:{user}"),
        None => {
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            format!("{}:{}", user.as_raw(), group.as_raw())
        }
    }
}

fn mounts(asked: &[MountSpec], folder: &AttemptFolder) -> Result<Vec<Mount>, Failed> {
    let own = [
        (&folder.workspace, WORKSPACE),
        (&folder.home, HOME),
        (&folder.tmp, TMP),
    ];
    let own = own.into_iter().map(|(source, target)| Mount {
        source: source.clone().into(),
        target: target.to_owned(),
        read_only: false,
    });
    let mut mounts: Vec<Mount> = own.collect();
    for mount in asked {
        let refused = |why: &str| {
            let MountSpec { source, target, .. } = mount;
            let summary = format!("container.mounts: {source:?} at {target:?}: {why}");
            failed(Cause::SpecError, summary)
        };
        if is_taken(&mount.target) {
            return Err(refused("that place is not the job's to fill"));
        }
        let source = beneath(&folder.workspace, &mount.source);
        let source = source.map_err(|why| Failed {
            cause: why.cause(),
            ..refused(&why.to_string())
        })?;
        mounts.push(Mount {
            source: source.into(),
            target: mount.target.clone(),
            read_only: mount.read_only,
        });
    }
    Ok(mounts)
}

fn is_taken(target: &str) -> bool {
    let mut parts = Path::new(target).components();
    let top = parts.find_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let taken = KERNELS.into_iter().chain([OWN_FOLDER]);
    top.is_none_or(|top| taken.into_iter().any(|it| &it[1..] == top))
}

/// Why there is nothing to mount.
#[derive(Debug, thiserror::Error)]
enum NoSource {
    #[error("{0}")]
    Refused(&'static str),
    #[error("{0}")]
    Workspace(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl NoSource {
    /// What this machine cannot do is not the job's mistake.
    fn cause(&self) -> Cause {
        match self {
            NoSource::Refused(_) => Cause::SpecError,
            NoSource::Workspace(_) => Cause::StartUp,
            NoSource::Io(problem) => path_cause(problem),
        }
    }
}

impl From<Errno> for NoSource {
    fn from(problem: Errno) -> NoSource {
        NoSource::Io(problem.into())
    }
}

/// The path of something in the workspace, reached without a link. What is not there becomes a
/// folder. No process of the job is there yet to change it afterwards.
fn beneath(workspace: &Path, inner: &str) -> Result<std::path::PathBuf, NoSource> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |at: &OwnedFd, name: &Path| openat(at, name, flags, Mode::empty());
    let root = workspace.canonicalize().map_err(NoSource::Workspace)?;
    let here = openat(CWD, &root, flags, Mode::empty());
    let mut here = here.map_err(|why| NoSource::Workspace(why.into()))?;
    let mut path = root;
    for part in Path::new(inner).components() {
        let name = match part {
            Component::CurDir => continue,
            Component::Normal(name) => Path::new(name),
            _ => return Err(NoSource::Refused("it leaves the workspace")),
        };
        here = match open(&here, name) {
            Err(Errno::NOENT) => {
                mkdirat(&here, name, Mode::from_raw_mode(0o700))?;
                open(&here, name)?
            }
            opened => opened?,
        };
        path.push(name);
        let kind = fs::symlink_metadata(&path)?;
        if kind.is_symlink() {
            let why = "a link on the way may leave the workspace";
            return Err(NoSource::Refused(why));
        }
        if !kind.is_dir() && !kind.is_file() {
            return Err(NoSource::Refused("it is neither a folder nor a file"));
        }
    }
    Ok(path)
}

fn services(asked: &[ServiceSpec]) -> Result<Vec<Service>, Failed> {
    let mut services: Vec<Service> = Vec::with_capacity(asked.len());
    for service in asked {
        let name = &service.name;
        let refused = |why: String| failed(Cause::SpecError, why);
        if services.iter().any(|other| other.name == *name) {
            return Err(refused(format!(
                "container.services: two are called {name:?}"
            )));
        }
        // They are handed over a line each.
        if let Some((variable, _)) = service.env.iter().find(|(_, value)| value.contains('\n')) {
            let summary =
                format!("container.services: {variable:?} of {name:?} has a line break in it");
            return Err(refused(summary));
        }
        services.push(Service {
            name: name.clone(),
            image: service.image.clone(),
            env: service.env.clone(),
            command: service.command.clone().unwrap_or_default(),
            ready: service.ready.as_ref().and_then(ready),
        });
    }
    Ok(services)
}

/// How it is known that a service is ready; a spec that was read says exactly one.
fn ready(asked: &ReadySpec) -> Option<Ready> {
    let by_run = asked.run.clone().map(Sign::Run);
    let sign = by_run.or(asked.port.map(Sign::Port))?;
    Some(Ready {
        sign,
        timeout: asked.timeout.as_duration(),
        every: asked.every.as_duration(),
    })
}

#[cfg(test)]
mod tests {
    use delta_shim::container::Kind;

    use super::*;

    fn runtime() -> Runtime {
        Runtime {
            program: "docker".into(),
            kind: Kind::Docker,
            version: "1".into(),
            env: vec![("DOCKER_CONFIG".into(), "/etc/logins".into())],
            host: Some("unix:///run/d.sock".into()),
        }
    }

    struct Case {
        folder: tempfile::TempDir,
        settings: ContainerSettings,
        untrusted: bool,
    }

    fn case() -> Case {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("workspace/inner")).expect("a folder");
        Case {
            folder,
            settings: ContainerSettings::default(),
            untrusted: false,
        }
    }

    impl Case {
        fn plan(&self, container: &str) -> Result<ContainerOrder, Failed> {
            let text = format!(r#"{{"steps":["x"],"image":"box:1","container":{container}}}"#);
            let spec = JobSpec::parse(text.as_bytes()).expect("a spec");
            let work = crate::workspace::WorkFolder::open(&self.folder.path().join("w"));
            let mut folder = work.expect("a folder").existing(1);
            folder.workspace = self.folder.path().join("workspace");
            let runtime = runtime();
            let state = StateFolder::open(&self.folder.path().join("state")).expect("a folder");
            let place = PlanContext {
                settings: &self.settings,
                runtime: Some(Arc::new(runtime)),
                state: &state,
                folder: &folder,
                confinement: Confinement::OPEN,
                untrusted: self.untrusted,
            };
            plan(&spec, &place).map(|order| order.expect("an order"))
        }

        fn refused(&self, container: &str) -> String {
            let failed = self.plan(container).expect_err(container);
            assert_eq!(failed.cause, Cause::SpecError, "{failed:?}");
            failed.summary
        }
    }

    // EP-20: mounts lie in the workspace, whatever a link says.
    #[test]
    fn a_mount_stays_inside_the_workspace() {
        let case = case();
        let workspace = case.folder.path().join("workspace");
        std::os::unix::fs::symlink("/etc", workspace.join("out")).expect("a link");
        std::os::unix::fs::symlink("inner", workspace.join("in")).expect("a link");
        let order = case.plan(r#"{"mounts":[{"source":"inner/new","target":"/data"}]}"#);
        let mount = order.expect("an order").mounts.pop().expect("a mount");
        let wanted = workspace.canonicalize().expect("a path").join("inner/new");
        assert_eq!(Path::new(&mount.source), wanted);
        assert!(wanted.is_dir(), "made");
        for source in ["out", "out/passwd", "in", "in/x"] {
            let mounts = format!(r#"{{"mounts":[{{"source":"{source}","target":"/data"}}]}}"#);
            let why = case.refused(&mounts);
            assert!(
                why.contains("link") || why.contains("Not a directory"),
                "{why}"
            );
        }
        for target in ["/", "/delta/log", "/proc/x", "/dev", "//sys"] {
            let mounts = format!(r#"{{"mounts":[{{"source":"inner","target":"{target}"}}]}}"#);
            assert!(case.refused(&mounts).contains("not the job's"), "{target}");
        }
    }

    // D10
    #[test]
    fn a_workspace_that_is_not_there_is_not_the_jobs_mistake() {
        let case = case();
        fs::remove_dir_all(case.folder.path().join("workspace")).expect("removed");
        let failed = case.plan(r#"{"mounts":[{"source":"inner","target":"/data"}]}"#);
        assert_eq!(failed.expect_err("no workspace").cause, Cause::StartUp);
        assert_eq!(NoSource::from(Errno::NOSPC).cause(), Cause::DiskFull);
        assert_eq!(NoSource::from(Errno::IO).cause(), Cause::StartUp);
        assert_eq!(NoSource::from(Errno::LOOP).cause(), Cause::SpecError);
    }

    // EP-20, T28
    #[test]
    fn an_agent_says_how_far_the_network_goes() {
        let mut case = case();
        assert_eq!(case.plan("{}").expect("an order").network, Network::Bridge);
        assert!(
            case.refused(r#"{"network":"host"}"#)
                .contains("allows `bridge`")
        );
        case.settings.network = Network::Host;
        let order = case.plan(r#"{"network":"host"}"#).expect("an order");
        assert_eq!(order.network, Network::Host);
        assert_eq!(case.plan("{}").expect("an order").network, Network::Bridge);
        case.untrusted = true;
        assert!(case.refused(r#"{"network":"host"}"#).contains("untrusted"));
        case.settings.network = Network::None;
        assert_eq!(case.plan("{}").expect("an order").network, Network::None);
        assert!(
            case.refused(r#"{"network":"bridge"}"#)
                .contains("allows `none`")
        );
    }

    // T28
    #[test]
    fn an_untrusted_job_chooses_no_user_and_keeps_no_capability() {
        let mut case = case();
        let order = case.plan(r#"{"user":"root"}"#).expect("an order");
        assert_eq!(order.user, "root");
        assert!(!order.capabilities.is_empty());
        case.untrusted = true;
        assert!(case.refused(r#"{"user":"root"}"#).contains("cannot choose"));
        assert!(case.plan("{}").expect("an order").capabilities.is_empty());
    }

    // T5
    #[test]
    fn an_untrusted_job_fetches_nothing_with_the_agents_logins() {
        let mut case = case();
        let config = |order: ContainerOrder| {
            let env = order.runtime.env.into_iter();
            let mut found = env.filter(|(name, _)| name == "DOCKER_CONFIG");
            (found.next().expect("a folder").1, found.next())
        };
        let trusted = case.plan("{}").expect("an order");
        assert_eq!(config(trusted), ("/etc/logins".into(), None));
        case.untrusted = true;
        let order = case.plan("{}").expect("an order");
        let host = ("DOCKER_HOST".into(), "unix:///run/d.sock".into());
        assert!(order.runtime.env.contains(&host));
        let (folder, other) = config(order);
        let text = fs::read_to_string(Path::new(&folder).join("config.json"));
        assert_eq!((text.expect("a file").as_str(), other), ("{}", None));
    }
}
