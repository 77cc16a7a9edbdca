//! The file of runner pools: which programs hold functions, and how many calls each takes.
//!
//! YAML, read once at the start. Everything in it has a bound, and what is wrong is told by field,
//! with what to write instead. Values of `env` may be secrets and are never shown.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_wire::fields::{Node, read_text};
use delta_wire::job_spec::is_name;
use delta_wire::{Invalid, Problems, duration};

/// Bytes of the file: it is written by hand.
pub const MAX_FILE_BYTES: usize = 256 << 10;
/// Pools of one agent: each is one more program to keep alive, and one more word that it offers.
const MAX_POOLS: usize = 32;
/// Processes of one pool: more than any machine has processors for.
const MAX_SIZE: u32 = 128;
/// Calls of one process at a time: what real runners take on a connection.
pub const MAX_IN_FLIGHT: u32 = 64;
/// Calls of one process at a time, where nobody says.
const IN_FLIGHT: u32 = 8;
/// Words of a command, and characters of one.
const MAX_WORDS: usize = 256;
const MAX_WORD: usize = 8192;
/// Variables of one pool.
const MAX_VARIABLES: usize = 256;
/// Queues that one pool serves.
const MAX_QUEUES: usize = 256;
/// How long a runner may take to listen: an interpreter with a large application on a cold disk.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call may go on after its cancel, and a runner after TERM.
const GRACE: Duration = Duration::from_secs(10);
/// The longest of these times: beyond it somebody means something else.
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);

/// All pools of an agent.
#[derive(Clone, Debug)]
pub struct RunnerSettings {
    pub pools: Vec<PoolSettings>,
    /// The pool of functions that name no runner, in queues that no pool serves.
    pub default: Option<String>,
}

/// One pool: processes of one program, or a runner that somebody else has started.
#[derive(Clone)]
pub struct PoolSettings {
    /// What stands before `#` in a function's name.
    pub name: String,
    pub source: RunnerSource,
    /// Calls at a time, of each process.
    pub in_flight: u32,
    /// Whether they share one connection, answered in any order.
    pub pipeline: bool,
    /// How long an answer may take, however long the job may.
    pub response_timeout: Option<Duration>,
    /// Between a cancel and the end of the process, and between TERM and KILL.
    pub grace: Duration,
    pub start_timeout: Duration,
    /// Functions of these queues that name no runner are called here.
    pub queues: Vec<String>,
}

/// Where a runner comes from.
#[derive(Clone)]
pub enum RunnerSource {
    Command {
        words: Vec<String>,
        env: Vec<(String, String)>,
        folder: PathBuf,
        /// Processes.
        size: u32,
        /// Where the first of them listens, the next one behind it, and so on; where nobody says,
        /// on ports that are free.
        port: Option<u16>,
    },
    /// Somebody else's, on the loopback.
    Address(SocketAddr),
}

impl fmt::Debug for PoolSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSettings")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why there are no pools.
#[derive(Debug, thiserror::Error)]
pub enum RunnerSettingsError {
    #[error("has more than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    #[error("is not YAML: {0}")]
    NotYaml(String),
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl RunnerSettings {
    /// Reads the text of a file; `folder` is what its paths are relative to.
    pub fn parse(text: &str, folder: &Path) -> Result<RunnerSettings, RunnerSettingsError> {
        if text.len() > MAX_FILE_BYTES {
            return Err(RunnerSettingsError::TooLarge);
        }
        let tree: serde_json::Value = serde_saphyr::from_str(text)
            .map_err(|problem| RunnerSettingsError::NotYaml(first_line(&problem.to_string())))?;
        let (settings, _) =
            read_text(tree.to_string().as_bytes(), |node| file(node, folder)).map_err(named)?;
        Ok(settings)
    }

    /// Calls that all of them take at a time.
    pub fn room(&self) -> u32 {
        self.pools.iter().map(PoolSettings::room).sum()
    }
}

impl PoolSettings {
    /// Processes, or the one that somebody else has started.
    pub fn size(&self) -> usize {
        match self.source {
            RunnerSource::Command { size, .. } => size as usize,
            RunnerSource::Address(_) => 1,
        }
    }

    /// Where the process of this lane is to listen, if that was said.
    pub fn port(&self, lane: usize) -> Option<u16> {
        let RunnerSource::Command { port, .. } = self.source else {
            return None;
        };
        port?.checked_add(u16::try_from(lane).ok()?)
    }

    /// Calls that it takes at a time.
    pub fn room(&self) -> u32 {
        match self.source {
            RunnerSource::Command { size, .. } => size * self.in_flight,
            RunnerSource::Address(_) => self.in_flight,
        }
    }
}

fn named(mut problem: Invalid) -> Invalid {
    if problem.field.is_empty() {
        problem.field = "the file".to_owned();
    }
    problem
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn file(node: Node<'_>, folder: &Path) -> Result<RunnerSettings, Invalid> {
    let mut f = node.object()?;
    let default = f.may("default", |it| it.text(MAX_WORD))?;
    let pools = f.must("pools", |it| pools(it, folder))?;
    refuse_unknown(f)?;
    // By its own spelling from here on.
    let own = |name: String| {
        let mut pools = pools.iter();
        let pool = pools.find(|pool| pool.name.eq_ignore_ascii_case(&name));
        pool.map(|pool| pool.name.clone()).ok_or_else(|| {
            let words = format!("`{name}` is no pool; write the name of one below `pools`");
            Invalid::field("default", words)
        })
    };
    let default = default.map(own).transpose()?;
    let mut served = BTreeSet::new();
    for pool in &pools {
        if let Some(twice) = pool.queues.iter().find(|queue| !served.insert(*queue)) {
            let words = format!("`{twice}` has a pool already; name each queue once");
            return Err(Invalid::field(format!("pools.{}.queues", pool.name), words));
        }
    }
    ports_apart(&pools)?;
    Ok(RunnerSettings { pools, default })
}

/// RQ-9: each process has a port of its own.
fn ports_apart(pools: &[PoolSettings]) -> Result<(), Invalid> {
    let mut taken = BTreeSet::new();
    for pool in pools {
        let lanes = 0..pool.size();
        if let Some(twice) = lanes
            .filter_map(|lane| pool.port(lane))
            .find(|port| !taken.insert(*port))
        {
            let words = format!("{twice} is a port of another pool already; leave room for `size`");
            return Err(Invalid::field(format!("pools.{}.port", pool.name), words));
        }
    }
    Ok(())
}

fn pools(node: Node<'_>, folder: &Path) -> Result<Vec<PoolSettings>, Invalid> {
    let f = node.object()?;
    if f.is_empty() || f.len() > MAX_POOLS {
        let words = format!("must name 1 to {MAX_POOLS} pools, as in `python: {{command: …}}`");
        return Err(Invalid::here(words));
    }
    let mut all: Vec<PoolSettings> = Vec::new();
    for (name, node) in f.entries() {
        if !is_name(name) {
            let words = "is no name of a pool; write letters, digits and . _ -";
            return Err(Invalid::field(name.escape_debug().to_string(), words));
        }
        // Runners are called by their names in any letters.
        let same = |it: &&PoolSettings| it.name.eq_ignore_ascii_case(name);
        if let Some(other) = all.iter().find(same) {
            let words = format!(
                "is `{}` in other letters; give them different names",
                other.name
            );
            return Err(Invalid::field(name, words));
        }
        all.push(pool(name, node, folder).map_err(|problem| problem.within(name))?);
    }
    Ok(all)
}

fn pool(name: &str, node: Node<'_>, folder: &Path) -> Result<PoolSettings, Invalid> {
    let mut f = node.object()?;
    let command = f.may("command", command)?;
    let address = f.may("address", address)?;
    let env = f.may("env", variables)?;
    let place = f.may("working_folder", |it| it.text(MAX_WORD))?;
    let size = f.may("size", |it| number(it, MAX_SIZE))?;
    let last = u32::from(u16::MAX) + 1 - size.unwrap_or(1);
    let port = f.may("port", |it| number(it, last))?;
    let foreign = env.is_some() || place.is_some() || size.is_some() || port.is_some();
    let source = match (command, address) {
        (Some(words), None) => RunnerSource::Command {
            words,
            env: env.unwrap_or_default(),
            folder: place.map_or(folder.to_owned(), |place| folder.join(place)),
            size: size.unwrap_or(1),
            port: port.and_then(|port| u16::try_from(port).ok()),
        },
        (None, Some(_)) if foreign => {
            let words = "belongs to whoever starts it; leave out env, working_folder, size, port";
            return Err(Invalid::field("address", words));
        }
        (None, Some(address)) => RunnerSource::Address(address),
        (Some(_), Some(_)) => {
            let words = "is for a runner that runs already; leave out either it or `command`";
            return Err(Invalid::field("address", words));
        }
        (None, None) => {
            let words = "is missing; write the runner's program and arguments as a list";
            return Err(Invalid::field("command", words));
        }
    };
    let pool = PoolSettings {
        name: name.to_owned(),
        source,
        in_flight: f
            .may("in_flight", |it| number(it, MAX_IN_FLIGHT))?
            .unwrap_or(IN_FLIGHT),
        pipeline: f.may("pipeline", Node::boolean)?.unwrap_or(false),
        response_timeout: f.may("response_timeout", time)?,
        grace: f.may("grace", time)?.unwrap_or(GRACE),
        start_timeout: f.may("start_timeout", time)?.unwrap_or(START_TIMEOUT),
        queues: f.may("queues", queues)?.unwrap_or_default(),
    };
    refuse_unknown(f)?;
    Ok(pool)
}

fn refuse_unknown(f: delta_wire::fields::Fields<'_>) -> Result<(), Invalid> {
    let mut problems = Problems::new();
    f.refuse_unknown(&mut problems);
    match problems.iter().next() {
        Some(problem) => Err(problem.clone()),
        None => Ok(()),
    }
}

fn command(node: Node<'_>) -> Result<Vec<String>, Invalid> {
    let words = node.each(MAX_WORDS, |it| match it.text(MAX_WORD)? {
        word if word.contains('\0') => Err(Invalid::here("has a NUL character")),
        word => Ok(word),
    })?;
    match words.is_empty() {
        true => Err(Invalid::here(
            "is empty; write the program and its arguments",
        )),
        false => Ok(words),
    }
}

/// RQ-8: whoever reaches a runner can call its functions.
fn address(node: Node<'_>) -> Result<SocketAddr, Invalid> {
    let text = node.text(MAX_WORD)?;
    let parsed = match text.strip_prefix("localhost:") {
        Some(port) => port
            .parse()
            .ok()
            .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => text.parse().ok(),
    };
    let parsed: Option<SocketAddr> = parsed;
    match parsed.filter(|it| it.port() != 0) {
        None => Err(Invalid::here("must be host:port, as in 127.0.0.1:9000")),
        Some(it) if !it.ip().to_canonical().is_loopback() => Err(Invalid::here(
            "is not on the loopback; a runner has no other protection: write 127.0.0.1:PORT",
        )),
        Some(it) => Ok(it),
    }
}

fn variables(node: Node<'_>) -> Result<Vec<(String, String)>, Invalid> {
    let f = node.object()?;
    if f.len() > MAX_VARIABLES {
        let words = format!("has more than {MAX_VARIABLES} variables");
        return Err(Invalid::here(words));
    }
    let mut all = Vec::new();
    for (name, value) in f.entries() {
        let shown = name.escape_debug().to_string();
        let value = value.string().map_err(|_| {
            Invalid::field(shown.clone(), "must be a text; put it into quotation marks")
        })?;
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Invalid::field(shown, "cannot be a variable"));
        }
        all.push((name.to_owned(), value));
    }
    Ok(all)
}

fn queues(node: Node<'_>) -> Result<Vec<String>, Invalid> {
    node.each(MAX_QUEUES, |it| match it.text(MAX_WORD)? {
        name if is_name(&name) => Ok(name),
        _ => Err(Invalid::here("must be letters, digits and . _ -")),
    })
}

fn number(node: Node<'_>, most: u32) -> Result<u32, Invalid> {
    let number = node.whole(1, i64::from(most))?;
    u32::try_from(number).map_err(|_| Invalid::here("is too large"))
}

fn time(node: Node<'_>) -> Result<Duration, Invalid> {
    let words = "must be a time such as 30s or 5m";
    let text = node.string().map_err(|_| Invalid::here(words))?;
    let time = duration::parse(&text).map_err(|problem| Invalid::here(problem.to_string()))?;
    match (Duration::from_millis(1)..=MAX_TIME).contains(&time) {
        true => Ok(time),
        false => Err(Invalid::here("must be more than 0 and at most 24h")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RunnerSettings, String> {
        RunnerSettings::parse(text, Path::new("/srv")).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_file_says_which_pools_there_are() {
        let settings = read(
            "default: rust\n\
             pools:\n  python:\n    command: [python3, -m, app]\n    env: {A: b}\n    size: 3\n    \
             working_folder: app\n    in_flight: 4\n    pipeline: true\n    queues: [mail]\n    \
             response_timeout: 5m\n    grace: 2s\n  rust: {address: 'localhost:9000'}\n",
        )
        .unwrap();
        assert_eq!(settings.default.as_deref(), Some("rust"));
        let other = read("default: RUST\npools: {rust: {command: [x]}}").unwrap();
        assert_eq!(other.default.as_deref(), Some("rust"), "in any letters");
        assert_eq!(settings.room(), 12 + 8);
        let python = &settings.pools[0];
        let RunnerSource::Command {
            words, env, folder, ..
        } = &python.source
        else {
            panic!("a command");
        };
        assert_eq!(words, &["python3", "-m", "app"]);
        assert_eq!(env, &[("A".to_owned(), "b".to_owned())]);
        assert_eq!(folder, Path::new("/srv/app"));
        assert_eq!(python.response_timeout, Some(Duration::from_secs(300)));
        assert_eq!(python.grace, Duration::from_secs(2));
        assert!(
            !format!("{settings:?}").contains('b'),
            "no variable is shown"
        );
    }

    #[test]
    fn what_is_wrong_is_told_by_field_and_with_what_to_write() {
        // RQ-8
        for (text, words) in [
            ("pools: {}", "pools: must name 1 to 32 pools"),
            ("pools: {a: {}}", "pools.a.command: is missing; write"),
            (
                "pools: {a: {command: []}}",
                "pools.a.command: is empty; write",
            ),
            ("pools: {a: {comand: [x]}}", "pools.a.command: is missing"),
            (
                "pools: {a: {command: [x], sizes: 2}}",
                "pools.a.sizes: is not known; did you mean `size`?",
            ),
            (
                "pools: {a: {command: [x], in_flight: 65}}",
                "pools.a.in_flight: must be a whole number from 1 to 64",
            ),
            (
                "pools: {a: {command: [x], size: 0}}",
                "pools.a.size: must be a whole number from 1 to 128",
            ),
            (
                "pools: {a: {address: '10.0.0.1:80'}}",
                "pools.a.address: is not on the loopback",
            ),
            (
                "pools: {a: {command: [x], size: 2, port: 65535}}",
                "pools.a.port: must be a whole number from 1 to 65534",
            ),
            (
                "pools: {a: {command: [x], size: 3, port: 9000}, b: {command: [x], port: 9002}}",
                "pools.b.port: 9002 is a port of another pool",
            ),
            (
                "pools: {a: {address: 'x'}}",
                "pools.a.address: must be host:port",
            ),
            (
                "pools: {a: {address: '127.0.0.1:1', size: 2}}",
                "pools.a.address: belongs to whoever",
            ),
            (
                "pools: {a: {command: [x], env: {PORT: 80}}}",
                "pools.a.env.PORT: must be a text; put it into quotation marks",
            ),
            (
                "pools: {a: {command: [x], grace: 5}}",
                "pools.a.grace: must be a time such as 30s",
            ),
            (
                "pools: {a: {command: [x], queues: [q]}, b: {command: [x], queues: [q]}}",
                "pools.b.queues: `q` has a pool already",
            ),
            (
                "default: b\npools: {a: {command: [x]}}",
                "default: `b` is no pool",
            ),
            (
                "pools: {'a#b': {command: [x]}}",
                "pools.a#b: is no name of a pool",
            ),
            (
                "pools: {py: {command: [x]}, PY: {command: [x]}}",
                "pools.py: is `PY` in other letters",
            ),
            ("a: [", "is not YAML"),
            ("pools: 3", "pools: must be an object"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
    }
}
