//! The words the container program is called with. Lists, never a text that a shell reads; no
//! variable of a job is among them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::order::{
    AGENT_LABEL, ATTEMPT_LABEL, ContainerOrder, KEPT, LOG, NAME_PREFIX, Network, Service,
    attempt_label,
};
use super::runtime::Kind;
use super::script::SWEEP;

/// What the containers and the network of one attempt are called.
#[derive(Debug, Clone)]
pub(super) struct Names {
    owner: String,
    attempt: String,
}

impl Names {
    pub fn of(owner: &str, number: &str) -> Names {
        Names {
            owner: owner.to_owned(),
            attempt: attempt_label(owner, number),
        }
    }

    /// The job's container, and its network.
    pub fn main(&self) -> String {
        format!("{NAME_PREFIX}{}", self.attempt)
    }

    pub fn service(&self, name: &str) -> String {
        format!("{}-{name}", self.main())
    }

    /// Finds everything of the attempt.
    pub fn filter(&self) -> String {
        format!("label={ATTEMPT_LABEL}={}", self.attempt)
    }

    fn labels(&self) -> [String; 4] {
        [
            "--label".to_owned(),
            format!("{AGENT_LABEL}={}", self.owner),
            "--label".to_owned(),
            format!("{ATTEMPT_LABEL}={}", self.attempt),
        ]
    }
}

/// A service of the attempt that other containers find by its name.
pub(super) struct Reachable {
    pub name: String,
    pub address: String,
}

pub(super) fn network(names: &Names) -> Vec<OsString> {
    let mut words = Words::new(["network", "create"]);
    words.all(names.labels());
    words.one(names.main());
    words.0
}

/// The job's container, whose first process is `holder` behind the entrypoint.
pub(super) fn main(
    order: &ContainerOrder,
    names: &Names,
    pipe: &Path,
    reachable: &[Reachable],
    holder: String,
) -> Vec<OsString> {
    // Not removed by itself: how it ended is asked for afterwards.
    let mut words = Words::new(["run", "--interactive", "--init", "--pull", "never"]);
    words.two("--name", names.main());
    words.all(names.labels());
    words.kept_from_the_machine(&order.capabilities);
    words.two("--user", &order.user);
    if order.runtime.kind == Kind::Podman && !rustix::process::geteuid().is_root() {
        // The numbers of users inside are then those outside, as with a daemon.
        words.two("--userns", "keep-id");
    }
    match order.network {
        Network::Bridge => words.two("--network", names.main()),
        network => words.two("--network", network.as_str()),
    }
    for service in reachable {
        words.two(
            "--add-host",
            format!("{}:{}", service.name, service.address),
        );
    }
    words.limits(order);
    for mount in &order.mounts {
        words.mount(&mount.source, &mount.target, mount.read_only);
    }
    words.mount(pipe.as_os_str(), LOG, true);
    let mut first = order.entrypoint.iter().cloned();
    words.two(
        "--entrypoint",
        first.next().unwrap_or_else(|| "sh".to_owned()),
    );
    words.one(&order.image);
    words.all(first);
    if !order.entrypoint.is_empty() {
        words.one("sh");
    }
    words.all(["-c".to_owned(), holder]);
    words.0
}

/// A service. Its variables come a line each on the standard input.
pub(super) fn service(order: &ContainerOrder, names: &Names, service: &Service) -> Vec<OsString> {
    let mut words = Words::new(["run", "--detach", "--init", "--pull", "never"]);
    words.two("--name", names.service(&service.name));
    words.all(names.labels());
    // Databases and the like do things as root before they become somebody else. They see nothing
    // of the machine.
    words.kept_from_the_machine(&KEPT);
    match order.network {
        Network::None => words.two("--network", format!("container:{}", names.main())),
        Network::Bridge => {
            words.two("--network", names.main());
            words.two("--network-alias", &service.name);
        }
        Network::Host => words.two("--network", "host"),
    }
    // Each of them may have what the job may.
    words.limits(order);
    if !service.env.is_empty() {
        words.two("--env-file", "/dev/stdin");
    }
    words.one(&service.image);
    words.all(service.command.iter());
    words.0
}

/// The lines of a service's variables.
pub(super) fn service_env(service: &Service) -> Vec<u8> {
    let lines = service
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"));
    lines.collect::<String>().into_bytes()
}

/// A shell in the job's container that reads what it is to do.
pub(super) fn step(names: &Names, workdir: &Path) -> Vec<OsString> {
    let mut words = Words::new(["exec", "--interactive"]);
    words.two("--workdir", workdir);
    words.one(names.main());
    words.one("sh");
    words.0
}

/// A look into a service: a script for a shell in its container.
pub(super) fn look(names: &Names, service: &str, script: &str) -> Vec<OsString> {
    let mut words = Words::new(["exec"]);
    words.all([names.service(service).as_str(), "sh", "-c", script]);
    words.0
}

pub(super) fn sweep(names: &Names, holder: &str, signal: &str) -> Vec<OsString> {
    let mut words = Words::new(["exec"]);
    words.all([
        names.main().as_str(),
        "sh",
        "-c",
        SWEEP,
        "sh",
        holder,
        signal,
    ]);
    words.0
}

struct Words(Vec<OsString>);

impl Words {
    fn new<const N: usize>(words: [&str; N]) -> Words {
        Words(words.into_iter().map(OsString::from).collect())
    }

    fn one(&mut self, word: impl AsRef<OsStr>) {
        self.0.push(word.as_ref().to_owned());
    }

    fn two(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.one(name);
        self.one(value);
    }

    fn all(&mut self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) {
        for word in words {
            self.one(word);
        }
    }

    /// No privilege is gained inside, and few are there.
    fn kept_from_the_machine(&mut self, capabilities: &[impl AsRef<OsStr>]) {
        self.two("--security-opt", "no-new-privileges");
        self.two("--cap-drop", "ALL");
        for capability in capabilities {
            self.two("--cap-add", capability);
        }
    }

    fn limits(&mut self, order: &ContainerOrder) {
        if let Some(memory) = order.memory_mb {
            self.two("--memory", format!("{memory}m"));
            // With no more of it on a disk.
            self.two("--memory-swap", format!("{memory}m"));
        }
        if let Some(cpus) = order.cpus {
            self.two("--cpus", format!("{cpus}"));
        }
        self.two("--pids-limit", order.pids.to_string());
    }

    fn mount(&mut self, source: &OsStr, target: &str, read_only: bool) {
        let mut value = b"type=bind,".to_vec();
        value.extend_from_slice(&field("source", source));
        value.push(b',');
        value.extend_from_slice(&field("target", OsStr::new(target)));
        if read_only {
            value.extend_from_slice(b",readonly");
        }
        self.two("--mount", OsString::from_vec(value));
    }
}

/// A field of comma-separated values, quoted where it must be.
fn field(name: &str, value: &OsStr) -> Vec<u8> {
    let plain = [name.as_bytes(), b"=", value.as_bytes()].concat();
    if !plain.iter().any(|byte| b",\"\n".contains(byte)) {
        return plain;
    }
    let mut quoted = vec![b'"'];
    for byte in plain {
        if byte == b'"' {
            quoted.push(byte);
        }
        quoted.push(byte);
    }
    quoted.push(b'"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Mount, Pull, Runtime};

    fn order() -> ContainerOrder {
        ContainerOrder {
            runtime: Runtime {
                program: "docker".into(),
                kind: Kind::Docker,
                version: "1".into(),
                env: Vec::new(),
                host: None,
            },
            owner: "me".into(),
            image: "box:1".into(),
            pull: Pull::IfMissing,
            entrypoint: Vec::new(),
            network: Network::Bridge,
            memory_mb: Some(64),
            cpus: Some(0.5),
            pids: 9,
            user: "7:8".into(),
            capabilities: Vec::new(),
            mounts: vec![Mount {
                source: "/a, \"b".into(),
                target: "/delta/workspace".into(),
                read_only: false,
            }],
            services: Vec::new(),
        }
    }

    fn text(words: &[OsString]) -> String {
        let words: Vec<_> = words.iter().map(|it| it.to_string_lossy()).collect();
        words.join(" ")
    }

    // EP-20, T28
    #[test]
    fn a_container_gets_what_was_asked_for_and_no_more() {
        let names = Names::of("me", "3");
        let made = main(&order(), &names, Path::new("/s/pipe"), &[], "hold".into());
        assert_eq!(
            text(&made),
            "run --interactive --init --pull never --name delta-ci-me-3 \
             --label delta-ci.agent=me --label delta-ci.attempt=me-3 \
             --security-opt no-new-privileges --cap-drop ALL --user 7:8 \
             --network delta-ci-me-3 --memory 64m --memory-swap 64m --cpus 0.5 --pids-limit 9 \
             --mount type=bind,\"source=/a, \"\"b\",target=/delta/workspace \
             --mount type=bind,source=/s/pipe,target=/delta/log,readonly \
             --entrypoint sh box:1 -c hold"
        );
        let mut order = order();
        order.entrypoint = vec!["/init".into(), "-v".into()];
        let made = main(&order, &names, Path::new("/s/pipe"), &[], "hold".into());
        assert!(text(&made).ends_with("--entrypoint /init box:1 -v sh -c hold"));
    }
}
