//! Reading the file of runner pools: YAML, in which everything has a bound, and whatever is wrong
//! is told at once, with its place and what to write instead.
//!
//! Values of `env` may be secrets: no line is shown from where one begins.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use delta_wire::job_spec::is_name;
use delta_wire::nearest::nearest;
use delta_yaml::diagnostic::{Collector, Diagnostics, shown};
use delta_yaml::fields::{self, Fields, Foreign, Keys, by_name_alone};
use delta_yaml::yaml::{self, Node, Place, Value};

use super::settings::{MAX_IN_FLIGHT, PoolSettings, RunnerSettings, RunnerSource};

/// Pools of one agent: each is one more program to keep alive, and one more word that it offers.
const MAX_POOLS: usize = 32;
/// Processes of one pool: more than any machine has processors for.
const MAX_SIZE: u32 = 128;
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

/// Templates are of the pipeline file.
const MERGE: Foreign = word(
    "<<",
    "<<",
    "write its keys out; a whole value may be repeated by an alias: `env: &NAME {…}` in one pool, \
     `env: *NAME` in another",
);

const FILE_KEYS: Keys = Keys {
    known: &["pools", "default"],
    not_yet: &[],
    foreign: &[
        MERGE,
        word(
            "runners",
            "pools",
            "write `pools: {python: {command: […]}}`",
        ),
        word(
            "runner_configs",
            "pools",
            "write `pools: {python: {command: […]}}`",
        ),
        word("default_runner", "default", "write `default: python`"),
        word(
            "command",
            "pools",
            "it belongs to a pool: `pools: {python: {command: […]}}`",
        ),
    ],
    look: by_name_alone,
};

const POOL_KEYS: Keys = Keys {
    known: &[
        "command",
        "address",
        "env",
        "working_folder",
        "size",
        "port",
        "in_flight",
        "pipeline",
        "response_timeout",
        "grace",
        "start_timeout",
        "queues",
    ],
    not_yet: &[],
    foreign: &[
        MERGE,
        word("cmd", "command", "write `command: [python3, -m, app]`"),
        word("run", "command", "write `command: [python3, -m, app]`"),
        word("cwd", "working_folder", "write `working_folder: FOLDER`"),
        word(
            "workdir",
            "working_folder",
            "write `working_folder: FOLDER`",
        ),
        word("pool_size", "size", "write `size: 2`"),
        word("max_in_flight", "in_flight", "write `in_flight: 8`"),
        word(
            "tcp_socket",
            "address",
            "write `address: 127.0.0.1:9000`, or `port` of a command",
        ),
        word(
            "timeout",
            "response_timeout",
            "write `response_timeout: 5m`",
        ),
    ],
    look: by_name_alone,
};

const fn word(word: &'static str, means: &'static str, advice: &'static str) -> Foreign {
    Foreign {
        word,
        means,
        advice,
        idle: false,
    }
}

/// What a file looks like.
const EXAMPLE: &str = "a file begins like this: `pools: {python: {command: [python3, -m, app]}}`";

/// A time must be more than nothing.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=MAX_TIME;

/// The pools of a file, or everything that is wrong with it.
pub(super) fn file(name: &str, text: &str, folder: &Path) -> Result<RunnerSettings, Diagnostics> {
    let mut out = Collector::new(name, text);
    let settings = match yaml::read(text) {
        Ok(root) => {
            hide_variables(&root, &mut out);
            whole(&root, folder, &mut out)
        }
        Err(problem) => {
            // Whatever stands in the line: it is not known what of it is a value.
            out.hide(Place {
                column: 1,
                ..problem.place
            });
            out.push(problem.place, problem.reason, problem.suggestion);
            None
        }
    };
    match settings.filter(|_| out.is_empty()) {
        Some(settings) => Ok(settings),
        None => Err(out.finish()),
    }
}

/// What stands behind the key `env`, wherever somebody has put it.
fn hide_variables(node: &Node, out: &mut Collector<'_>) {
    match &node.value {
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter().for_each(|item| hide_variables(item, out)),
        Value::Map(pairs) => {
            for (key, value) in pairs {
                let is_env = matches!(&key.value, Value::Scalar { text, .. } if text == "env");
                if is_env {
                    hide_values(value, out)
                } else {
                    hide_variables(value, out)
                }
            }
        }
    }
}

fn hide_values(node: &Node, out: &mut Collector<'_>) {
    match &node.value {
        Value::Scalar { .. } => out.hide(node.place),
        Value::List(items) => items.iter().for_each(|item| hide_values(item, out)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| hide_values(value, out)),
    }
}

fn whole(root: &Node, folder: &Path, out: &mut Collector<'_>) -> Option<RunnerSettings> {
    if root.is_absent() {
        out.push(root.place, "the file is empty", Some(EXAMPLE.to_owned()));
        return None;
    }
    let file = fields::fields(root, &FILE_KEYS, "the file", out)?;
    let Some(node) = file.get("pools") else {
        if !file.is_misspelt("pools") {
            out.push(
                root.place,
                "the file has no `pools`",
                Some(EXAMPLE.to_owned()),
            );
        }
        return None;
    };
    let (pools, names) = pools(node, folder, out)?;
    let default = file.get("default");
    let default = default.and_then(|node| default_pool(node, &names, out));
    queues_apart(&pools, out);
    ports_apart(&pools, out);
    let pools = pools.into_iter().map(|it| it.settings).collect();
    Some(RunnerSettings { pools, default })
}

/// A pool, and where what may clash with others stands.
struct Read {
    settings: PoolSettings,
    port: Option<Place>,
    queues: Vec<(String, Place)>,
}

/// The pools that could be read, and the names of all of them.
fn pools<'n>(
    node: &'n Node,
    folder: &Path,
    out: &mut Collector<'_>,
) -> Option<(Vec<Read>, Vec<&'n str>)> {
    let faults = out.pushed();
    let pairs = fields::pairs(node, "`pools`", &["python"], MERGE.advice, out)?;
    if pairs.is_empty() && out.pushed() != faults {
        return None;
    }
    if pairs.is_empty() || pairs.len() > MAX_POOLS {
        let reason = format!("`pools` must name 1 to {MAX_POOLS} pools");
        out.push(node.place, reason, Some(EXAMPLE.to_owned()));
        return None;
    }
    let mut all: Vec<Read> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (name, key, node) in pairs {
        if !is_name(name) {
            let reason = format!("`{}` is no name of a pool", shown(name));
            out.push(
                key.place,
                reason,
                Some("write letters, digits and . _ -".to_owned()),
            );
        }
        // Runners are called by their names in any letters.
        if let Some(other) = names.iter().find(|it| it.eq_ignore_ascii_case(name)) {
            let reason = format!("`{}` is `{}` in other letters", shown(name), shown(other));
            out.push(
                key.place,
                reason,
                Some("give them different names".to_owned()),
            );
        }
        names.push(name);
        all.extend(pool(name, node, folder, out));
    }
    Some((all, names))
}

fn pool(name: &str, node: &Node, folder: &Path, out: &mut Collector<'_>) -> Option<Read> {
    let what = format!("pool `{}`", shown(name));
    if node.is_absent() {
        let reason = format!("{what} has no `command`");
        out.push(node.place, reason, Some(COMMAND.to_owned()));
        return None;
    }
    let map = fields::fields(node, &POOL_KEYS, &what, out)?;
    let source = source(&map, node.place, &what, folder, out);
    let number = |key: &str, most: u32, out: &mut Collector<'_>| {
        let node = map.get(key)?;
        number(node, key, most, out)
    };
    let time = |key: &str, out: &mut Collector<'_>| {
        let node = map.get(key)?;
        fields::duration(node, &format!("`{key}`"), TIMES, out)
    };
    let pipeline = map.get("pipeline");
    let pipeline = pipeline.and_then(|it| fields::boolean(it, "`pipeline`", out));
    let queues = map.get("queues").map(|it| queues(it, out));
    let queues = queues.unwrap_or_default();
    Some(Read {
        port: map.get("port").map(|it| it.place),
        settings: PoolSettings {
            name: name.to_owned(),
            in_flight: number("in_flight", MAX_IN_FLIGHT, out).unwrap_or(IN_FLIGHT),
            pipeline: pipeline.unwrap_or(false),
            response_timeout: time("response_timeout", out),
            grace: time("grace", out).unwrap_or(GRACE),
            start_timeout: time("start_timeout", out).unwrap_or(START_TIMEOUT),
            queues: queues.iter().map(|(name, _)| name.clone()).collect(),
            source: source?,
        },
        queues,
    })
}

const COMMAND: &str = "write the runner's program and arguments: `command: [python3, -m, app]`";

fn source(
    map: &Fields<'_>,
    place: Place,
    what: &str,
    folder: &Path,
    out: &mut Collector<'_>,
) -> Option<RunnerSource> {
    let size = map.get("size");
    let size = size
        .and_then(|it| number(it, "size", MAX_SIZE, out))
        .unwrap_or(1);
    let last = u32::from(u16::MAX) + 1 - size;
    let port = map.get("port").and_then(|it| number(it, "port", last, out));
    let env = map
        .get("env")
        .map(|it| variables(it, out))
        .unwrap_or_default();
    let inner = map.get("working_folder");
    let inner = inner.and_then(|it| fields::text(it, "`working_folder`", out));
    let foreign = ["env", "working_folder", "size", "port"];
    match (map.get("command"), map.get("address")) {
        (Some(node), None) => Some(RunnerSource::Command {
            words: command(node, out)?,
            env,
            folder: inner.map_or(folder.to_owned(), |inner| folder.join(inner)),
            size,
            port: port.and_then(|port| u16::try_from(port).ok()),
        }),
        (None, Some(node)) if foreign.iter().any(|key| map.get(key).is_some()) => {
            let reason = format!("the `address` of {what} belongs to whoever starts it");
            let hint = "leave out env, working_folder, size and port, or write `command`";
            out.push(node.place, reason, Some(hint.to_owned()));
            None
        }
        (None, Some(node)) => address(node, out).map(RunnerSource::Address),
        (Some(_), Some(node)) => {
            let reason = format!("{what} has both `command` and `address`");
            let hint = "`address` is for a runner that runs already; leave out one of them";
            out.push(node.place, reason, Some(hint.to_owned()));
            None
        }
        (None, None) => {
            if !map.is_misspelt("command") && !map.is_misspelt("address") {
                let reason = format!("{what} has no `command`");
                out.push(place, reason, Some(COMMAND.to_owned()));
            }
            None
        }
    }
}

fn default_pool(node: &Node, names: &[&str], out: &mut Collector<'_>) -> Option<String> {
    let name = fields::text(node, "`default`", out)?;
    // By its own spelling from here on.
    let own = names.iter().find(|it| it.eq_ignore_ascii_case(name));
    if own.is_none() {
        let reason = format!("the default `{}` is no pool", shown(name));
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{}`?", shown(near)),
            None => "write the name of one below `pools`".to_owned(),
        };
        out.push(node.place, reason, Some(hint));
    }
    own.map(|own| (*own).to_owned())
}

fn queues_apart(pools: &[Read], out: &mut Collector<'_>) {
    let mut served = BTreeSet::new();
    for (name, place) in pools.iter().flat_map(|it| &it.queues) {
        if !served.insert(name) {
            let reason = format!("the queue `{}` has a pool already", shown(name));
            out.push(*place, reason, Some("name each queue once".to_owned()));
        }
    }
}

/// RQ-9: each process has a port of its own.
fn ports_apart(pools: &[Read], out: &mut Collector<'_>) {
    let mut taken = BTreeSet::new();
    for pool in pools {
        let mut lanes = (0..pool.settings.size()).filter_map(|lane| pool.settings.port(lane));
        let twice = lanes.find(|port| !taken.insert(*port));
        if let (Some(twice), Some(place)) = (twice, pool.port) {
            let reason = format!("{twice} is a port of another pool already");
            out.push(place, reason, Some("leave room for `size`".to_owned()));
        }
    }
}

fn command(node: &Node, out: &mut Collector<'_>) -> Option<Vec<String>> {
    if let Value::Scalar { text, .. } = &node.value {
        let words: Vec<&str> = text.split_whitespace().collect();
        let reason = format!("`command` must be a list, this is {}", node.kind());
        let hint = if words.is_empty() {
            COMMAND.to_owned()
        } else {
            format!("write `command: [{}]`", shown(&words.join(", ")))
        };
        out.push(node.place, reason, Some(hint));
        return None;
    }
    let words = fields::texts(node, "`command`", MAX_WORDS, out);
    let long = words.iter().find(|(word, _)| word.len() > MAX_WORD);
    if let Some((_, place)) = long {
        let reason = format!("a word of `command` has more than {MAX_WORD} bytes");
        out.push(*place, reason, None);
    }
    if matches!(&node.value, Value::List(items) if items.is_empty()) {
        out.push(node.place, "`command` is empty", Some(COMMAND.to_owned()));
        return None;
    }
    Some(words.into_iter().map(|(word, _)| word).collect())
}

/// RQ-8: whoever reaches a runner can call its functions.
fn address(node: &Node, out: &mut Collector<'_>) -> Option<SocketAddr> {
    let text = fields::text(node, "`address`", out)?;
    let parsed: Option<SocketAddr> = match text.strip_prefix("localhost:") {
        Some(port) => port
            .parse()
            .ok()
            .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => text.parse().ok(),
    };
    let Some(address) = parsed.filter(|it| it.port() != 0) else {
        let reason = format!("the address `{}` is not host:port", shown(text));
        out.push(
            node.place,
            reason,
            Some("write `127.0.0.1:9000`".to_owned()),
        );
        return None;
    };
    if !address.ip().to_canonical().is_loopback() {
        let reason = format!("the address `{}` is not on the loopback", shown(text));
        let hint = "a runner has no other protection: write `127.0.0.1:PORT`";
        out.push(node.place, reason, Some(hint.to_owned()));
        return None;
    }
    Some(address)
}

/// Values are taken as they are written, and never shown.
fn variables(node: &Node, out: &mut Collector<'_>) -> Vec<(String, String)> {
    let pairs = fields::pairs(node, "`env`", &["NAME"], MERGE.advice, out);
    let pairs = pairs.unwrap_or_default();
    if pairs.len() > MAX_VARIABLES {
        let reason = format!("`env` has more than {MAX_VARIABLES} variables");
        out.push(node.place, reason, None);
    }
    let mut all = Vec::new();
    for (name, key, value) in pairs {
        if name.is_empty() || name.contains(['=', '\0']) {
            let reason = format!("`{}` is not a name of a variable", shown(name));
            out.push(key.place, reason, None);
        }
        let what = format!("the value of `{}`", shown(name));
        let text = if value.is_absent() {
            Some("")
        } else {
            fields::text(value, &what, out)
        };
        all.extend(text.map(|text| (name.to_owned(), text.to_owned())));
    }
    all
}

fn queues(node: &Node, out: &mut Collector<'_>) -> Vec<(String, Place)> {
    let names = fields::texts(node, "`queues`", MAX_QUEUES, out);
    for (name, place) in names.iter().filter(|(name, _)| !is_name(name)) {
        let reason = format!("`{}` is no name of a queue", shown(name));
        out.push(
            *place,
            reason,
            Some("write letters, digits and . _ -".to_owned()),
        );
    }
    names
}

fn number(node: &Node, key: &str, most: u32, out: &mut Collector<'_>) -> Option<u32> {
    let number = fields::integer(node, &format!("`{key}`"), 1..=i64::from(most), out)?;
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RunnerSettings, String> {
        RunnerSettings::parse("runners.yaml", text, Path::new("/srv"))
            .map_err(|problem| problem.to_string())
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
    fn what_is_wrong_is_told_with_its_place_and_with_what_to_write() {
        // RQ-8
        for (text, words) in [
            ("pools: {}", "1:8: `pools` must name 1 to 32 pools"),
            ("", "the file is empty"),
            ("default: x", "the file has no `pools`"),
            ("pool: {a: {command: [x]}}", "did you mean `pools`?"),
            ("pools: {a: {}}", "pool `a` has no `command`"),
            ("pools: {a: }", "pool `a` has no `command`"),
            ("pools: {a: {command: []}}", "`command` is empty"),
            (
                "pools: {a: {command: [x], env: {<<: {A: b}}}}",
                "merge keys (`<<`) are not supported in `env`",
            ),
            (
                "pools: {a: {command: python3 -m app}}",
                "write `command: [python3, -m, app]`",
            ),
            (
                "pools: {a: {command: [x], sizes: 2}}",
                "did you mean `size`?",
            ),
            (
                "pools: {a: {command: [x], cwd: y}}",
                "write `working_folder: FOLDER`",
            ),
            (
                "pools: {a: {command: [x], in_flight: 65}}",
                "`in_flight` must be a whole number from 1 to 64",
            ),
            (
                "pools: {a: {command: [x], size: 0}}",
                "`size` must be a whole number from 1 to 128",
            ),
            (
                "pools: {a: {address: '10.0.0.1:80'}}",
                "the address `10.0.0.1:80` is not on the loopback",
            ),
            (
                "pools: {a: {command: [x], size: 2, port: 65535}}",
                "`port` must be a whole number from 1 to 65534",
            ),
            (
                "pools: {a: {command: [x], size: 3, port: 9000}, b: {command: [x], port: 9002}}",
                "9002 is a port of another pool already",
            ),
            (
                "pools: {a: {address: 'x'}}",
                "the address `x` is not host:port",
            ),
            (
                "pools: {a: {address: '127.0.0.1:1', size: 2}}",
                "belongs to whoever starts it",
            ),
            (
                "pools: {a: {address: '127.0.0.1:1', command: [x]}}",
                "has both `command` and `address`",
            ),
            (
                "pools: {a: {command: [x], grace: 5}}",
                "`5` has no unit; write 5s for seconds",
            ),
            (
                "pools: {a: {command: [x], pipeline: yes}}",
                "must be `true` or `false`",
            ),
            (
                "pools: {a: {command: [x], queues: [q]}, b: {command: [x], queues: [q]}}",
                "1:68: the queue `q` has a pool already",
            ),
            (
                "default: pyton\npools: {python: {command: [x]}}",
                "did you mean `python`?",
            ),
            (
                "pools: {'a#b': {command: [x]}}",
                "`a#b` is no name of a pool",
            ),
            (
                "pools: {py: {command: [x]}, PY: {command: [x]}}",
                "`PY` is `py` in other letters",
            ),
            (
                "pools: {a: {command: [x], env: &e {B: c}}, b: {<<: {x: y}, command: [x]}}",
                "`env: *NAME` in another",
            ),
            (
                "<<: {a: b}\npools: {a: {command: [x]}}",
                "write its keys out",
            ),
            ("a: [", "not valid YAML"),
            ("pools: 3", "`pools` must be a map, this is text"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
            assert_eq!(problem.matches('^').count().min(1), 1, "{problem}");
        }
    }

    #[test]
    fn all_faults_are_told_at_once_each_with_its_line() {
        let text = "\
pools:
  python:
    comand: [python3, -m, app]
    sise: 3
  rust:
    address: 10.0.0.1:80
default: pyhton
";
        assert_eq!(
            read(text).unwrap_err(),
            "\
runners.yaml:3:5: unknown key `comand` in pool `python`
3 |     comand: [python3, -m, app]
  |     ^^^^^^
  = did you mean `command`?

runners.yaml:4:5: unknown key `sise` in pool `python`
4 |     sise: 3
  |     ^^^^
  = did you mean `size`?

runners.yaml:6:14: the address `10.0.0.1:80` is not on the loopback
6 |     address: 10.0.0.1:80
  |              ^^^^^^^^^^^
  = a runner has no other protection: write `127.0.0.1:PORT`

runners.yaml:7:10: the default `pyhton` is no pool
7 | default: pyhton
  |          ^^^^^^
  = did you mean `python`?"
        );
    }

    #[test]
    fn a_variable_is_text_as_it_is_written_and_is_never_shown() {
        let settings = read("pools: {a: {command: [x], env: {PORT: 80, NONE: }}}").unwrap();
        let RunnerSource::Command { env, .. } = &settings.pools[0].source else {
            panic!("a command");
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(env, &[pair("PORT", "80"), pair("NONE", "")]);
        for text in [
            "pools: {a: {command: [x], env: {KEY: hunter2}, bogus: 1}}",
            "pools:\n  a:\n    command: [x]\n    env: {'K=': hunter2, L: [hunter2]}\n",
            "pools:\n  a:\n    command: [x]\n    env:\n      K: hunter2\n      K: hunter2\n",
            "pools: {a: {command: [x], env: {KEY: hunter2}",
            "pools: {a: {command: [x], env: hunter2}}",
            "env: {K: hunter2}\npools: {a: {command: [x]}}",
        ] {
            let problem = read(text).unwrap_err();
            assert!(!problem.contains("hunter2"), "{text}: {problem}");
        }
    }
}
