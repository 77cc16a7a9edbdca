//! What this machine is and has, found out by looking (EP-4): hardware, runtimes, tools. Facts are
//! free to tell; pools, zones and labels are granted by the server.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use delta_core::tool::{TOOLS, Tool};
use delta_shim::container;
use delta_wire::agent::proto::{Capabilities, Resources, Runtime, SlotGroup};
use tokio::process::Command;

use crate::functions::{RunnerSettings, share};

/// How long a program may take to answer: many that are asked at once from a cold disk, not a hang.
const VERSION_TIME: Duration = Duration::from_secs(10);
/// Bytes of a version's output that are read.
const VERSION_BYTES: usize = 4096;

/// Programs that are asked for their version, and what jobs call them.
const RUNTIMES: [(&str, &str, &str); 17] = [
    ("python", "python3", "--version"),
    ("node", "node", "--version"),
    ("java", "java", "-version"),
    ("go", "go", "version"),
    ("rust", "rustc", "--version"),
    ("ruby", "ruby", "--version"),
    ("dotnet", "dotnet", "--version"),
    ("bun", "bun", "--version"),
    ("deno", "deno", "--version"),
    ("elixir", "elixir", "--short-version"),
    ("erlang", "erl", "+V"),
    ("gcc", "gcc", "-dumpfullversion"),
    ("git", "git", "--version"),
    ("kotlin", "kotlin", "-version"),
    ("perl", "perl", "-e print $^V"),
    ("php", "php", "--version"),
    ("swift", "swift", "--version"),
];

/// Programs that are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    Nothing,
    /// Those that somebody asks for.
    Named(BTreeSet<String>),
    Everything,
}

impl Sought {
    fn has(&self, name: &str) -> bool {
        match self {
            Sought::Nothing => false,
            Sought::Named(names) => names.contains(name),
            Sought::Everything => true,
        }
    }
}

/// Facts about a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    runtimes: Vec<Runtime>,
    docker: bool,
    resources: Resources,
    /// Kinds of work it takes.
    work: Vec<&'static str>,
    /// Slots of each runner pool.
    groups: Vec<SlotGroup>,
}

impl Machine {
    /// Looks at the hardware alone: quick.
    pub fn hardware(work_folder: &Path) -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Machine {
            runtimes: Vec::new(),
            docker: false,
            resources: Resources {
                cpu_cores: i32::try_from(cores).unwrap_or(i32::MAX),
                memory_mb: memory_mb(),
                disk_mb: disk_mb(work_folder),
            },
            work: vec!["steps", "tests"],
            groups: Vec::new(),
        }
    }

    /// Looks at the hardware, and asks programs for their version. What does not answer well does
    /// not work, though there is a file of its name.
    pub async fn with_programs(work_folder: &Path, sought: &Sought) -> Machine {
        let mut asked = tokio::task::JoinSet::new();
        for (name, program, argument) in RUNTIMES.into_iter().filter(|it| sought.has(it.0)) {
            asked
                .spawn(async move { Some((name, version_in(&answer(program, argument).await?)?)) });
        }
        let tools = here(std::env::var_os("PATH").as_deref());
        for (tool, file) in tools.into_iter().filter(|(tool, _)| sought.has(tool.name)) {
            asked.spawn(async move {
                let said = answer(file, "--version").await?;
                let version = version_in(&said).filter(|_| tool.versioned);
                Some((tool.name, version.unwrap_or_default()))
            });
        }
        let mut runtimes = Vec::new();
        while let Some(answer) = asked.join_next().await {
            runtimes.extend(answer.ok().flatten());
        }
        runtimes.sort_unstable();
        let runtime = |(name, version): (&str, String)| Runtime {
            name: name.to_owned(),
            version,
        };
        Machine {
            runtimes: runtimes.into_iter().map(runtime).collect(),
            ..Machine::hardware(work_folder)
        }
    }

    /// With the runtime that makes containers here, which was asked and answered.
    pub fn with_containers(mut self, runtime: Option<&container::Runtime>) -> Machine {
        self.docker = runtime.is_some();
        self.runtimes.extend(runtime.map(|it| Runtime {
            name: it.kind.as_str().to_owned(),
            version: it.version.clone(),
        }));
        self
    }

    /// With the pools of functions here, which share these slots. Whoever may run steps beside them
    /// may reach their sockets, so that without `mixed` there is nothing else.
    pub fn with_runners(mut self, runners: &RunnerSettings, slots: u32, mixed: bool) -> Machine {
        let shares = share(runners, slots, mixed).unwrap_or_default();
        let groups = runners.pools.iter().zip(shares);
        self.groups.extend(groups.map(|(pool, slots)| SlotGroup {
            runner: pool.name.clone(),
            slots: i32::try_from(slots).unwrap_or(i32::MAX),
            queues: pool.queues.clone(),
            default: runners.default.as_ref() == Some(&pool.name),
        }));
        if !mixed {
            self.work.clear();
        }
        self.work.push("function");
        self.runtimes
            .extend(runners.pools.iter().map(|pool| Runtime {
                name: format!("runner:{}", pool.name),
                version: String::new(),
            }));
        self
    }

    /// The facts as jobs ask for them: `linux`, `python=3.11`, `cpu=4`.
    pub fn tags(&self) -> Vec<String> {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let resources = &self.resources;
        let mut tags = vec![
            os.to_owned(),
            arch.to_owned(),
            format!("os={os}"),
            format!("arch={arch}"),
            format!("cpu={}", resources.cpu_cores),
            format!("memory={}MiB", resources.memory_mb),
            format!("disk={}MiB", resources.disk_mb),
        ];
        tags.extend(self.work.iter().map(|work| format!("work:{work}")));
        let runtimes = self.runtimes.iter();
        tags.extend(runtimes.map(|it| {
            if it.version.is_empty() {
                it.name.clone()
            } else {
                format!("{}={}", it.name, it.version)
            }
        }));
        tags.extend(self.docker.then(|| "docker".to_owned()));
        tags
    }

    /// What is said at a registration.
    pub fn capabilities(&self, slots: u32) -> Capabilities {
        Capabilities {
            runtimes: self.runtimes.clone(),
            max_parallel: i32::try_from(slots).unwrap_or(i32::MAX),
            docker_available: self.docker,
            resources: Some(self.resources),
            work: self.work.iter().map(|it| (*it).to_owned()).collect(),
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            slot_groups: self.groups.clone(),
            ..Default::default()
        }
    }
}

/// Tools of which there is a program, and where: a name that nobody has costs no start.
fn here(path: Option<&OsStr>) -> Vec<(&'static Tool, PathBuf)> {
    let folders: Vec<PathBuf> = path
        .map(std::env::split_paths)
        .into_iter()
        .flatten()
        .collect();
    let is_program = |file: &PathBuf| {
        let about = std::fs::metadata(file);
        about.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    let place = |tool: &'static Tool| {
        let mut files = folders.iter().map(|it| it.join(tool.name));
        Some((tool, files.find(is_program)?))
    };
    TOOLS.iter().filter_map(place).collect()
}

/// What a program says of itself, where it ends well.
async fn answer(program: impl AsRef<OsStr>, argument: &str) -> Option<String> {
    let asked = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIME, asked).await.ok()?.ok()?;
    // A complaint may have a version in it, too.
    if !output.status.success() {
        return None;
    }
    // Java says it on stderr.
    let mut text = output.stdout;
    text.extend(output.stderr);
    text.truncate(VERSION_BYTES);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The first thing that looks like a version.
fn version_in(text: &str) -> Option<String> {
    text.split(|c: char| c.is_whitespace() || c == '"')
        .map(|word| word.trim_start_matches(['v', 'g', 'o']))
        .map(|word| {
            let end = word.find(|c: char| !c.is_ascii_digit() && c != '.');
            word[..end.unwrap_or(word.len())].trim_end_matches('.')
        })
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && !word.is_empty())
        .map(str::to_owned)
}

fn memory_mb() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<i64>().ok());
    kib.map_or(0, |kib| kib / 1024)
}

fn disk_mb(folder: &Path) -> i64 {
    let existing = folder.ancestors().find(|it| it.exists());
    let space = existing.and_then(|it| rustix::fs::statvfs(it).ok());
    let bytes = space.map_or(0, |it| it.f_bavail.saturating_mul(it.f_frsize));
    i64::try_from(bytes / (1024 * 1024)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("Python 3.11.7\n", Some("3.11.7")),
            ("v20.20.2\n", Some("20.20.2")),
            ("openjdk version \"17.0.15\" 2025-04-15", Some("17.0.15")),
            ("go version go1.22.1 linux/amd64", Some("1.22.1")),
            ("rustc 1.95.0 (59807616e 2026-04-14)", Some("1.95.0")),
            ("git version 2.47.3", Some("2.47.3")),
            ("v5.36.0", Some("5.36.0")),
            ("PHP 8.2.29 (cli) (built: Jul  3 2025)", Some("8.2.29")),
            ("Kotlin version 1.9.0-release-358 (JRE 17)", Some("1.9.0")),
            ("Swift version 5.10 (swift-5.10-RELEASE)", Some("5.10")),
            ("no such thing", None),
        ] {
            assert_eq!(version_in(text).as_deref(), version, "{text}");
        }
    }

    /// A requirement that is called a fact and that nobody looks for would never be met.
    #[test]
    fn every_runtime_that_is_a_fact_is_asked_for() {
        let mut asked = RUNTIMES.map(|(name, ..)| name);
        asked.sort_unstable();
        assert_eq!(asked, delta_core::requirement::RUNTIMES);
    }

    #[test]
    fn tools_are_programs_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, mode: u32| {
            let file = folder.path().join(name);
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        place("uv", 0o755);
        place("pnpm", 0o644);
        std::fs::create_dir(folder.path().join("make")).unwrap();
        let path = std::env::join_paths([Path::new("/nonexistent"), folder.path()]).unwrap();
        let found = here(Some(&path));
        let names: Vec<&str> = found.iter().map(|(tool, _)| tool.name).collect();
        assert_eq!(names, ["uv"]);
        assert_eq!(found[0].1, folder.path().join("uv"));
        assert!(here(None).is_empty());
    }

    #[tokio::test]
    async fn only_what_is_sought_is_asked() {
        let names = |machine: Machine| {
            let said = machine.capabilities(1).runtimes.into_iter();
            said.map(|it| it.name).collect::<Vec<_>>()
        };
        let sought = Sought::Named(["rust".to_owned(), "no-such".to_owned()].into());
        let some = Machine::with_programs(Path::new("/"), &sought).await;
        assert_eq!(names(some), ["rust"]);
        let none = Machine::with_programs(Path::new("/"), &Sought::Nothing).await;
        assert_eq!(names(none), [""; 0]);
    }

    #[tokio::test]
    async fn a_machine_knows_its_size() {
        let folder = Path::new("/tmp/there/is/no/such/folder");
        let here = Machine::with_programs(folder, &Sought::Everything).await;
        let said = here.capabilities(3);
        let resources = said.resources.unwrap();
        assert!(resources.cpu_cores > 0 && resources.memory_mb > 0 && resources.disk_mb > 0);
        assert_eq!(
            (said.max_parallel, said.os.as_str()),
            (3, std::env::consts::OS)
        );
    }
}
