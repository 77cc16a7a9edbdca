//! What a job asks of an agent and what an agent offers (A64).
//!
//! Grammar: `linux` · `zone=eu` · `python>=3.11` · `cpu>=4` · `memory>=2GiB` · `work:steps`.
//! A job's requirements are normalised to one text, the match key: equal keys are served by equal
//! agents, so a claim never looks at jobs nobody could run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::Text;

/// One requirement has at most this many characters: labels, not programs.
pub const MAX_LENGTH: usize = 128;

/// The tag of a function's queue. An agent that has it serves the queues it names and no other.
pub const QUEUE: &str = "queue";

/// The tag of a slot that belongs to a runner pool: the queues whose functions it takes when they
/// name no runner. A slot with neither this nor [`UNNAMED_BUT`] takes those of every queue.
pub const UNNAMED: &str = "unnamed";
/// The tag of a slot whose runner pool takes the functions of all queues but these, which others
/// serve.
pub const UNNAMED_BUT: &str = "unnamed-but";

/// Names of the machine and its size, which an agent finds out for itself and may claim. Every word
/// in a list of capabilities that is none of these, of [`RUNTIMES`] and of the tools is a label.
const MACHINE: [&str; 23] = [
    "os",
    "arch",
    "cpu",
    "memory",
    "disk",
    "docker",
    "podman",
    "linux",
    "macos",
    "windows",
    "freebsd",
    "netbsd",
    "openbsd",
    "android",
    "x86",
    "x86_64",
    "amd64",
    "arm",
    "arm64",
    "aarch64",
    "riscv64",
    "s390x",
    "powerpc64",
];

/// Languages and programs whose version every agent of ours finds out.
pub const RUNTIMES: [&str; 17] = [
    "bun", "deno", "dotnet", "elixir", "erlang", "gcc", "git", "go", "java", "kotlin", "node",
    "perl", "php", "python", "ruby", "rust", "swift",
];

/// What an agent finds out for itself beside its tools.
pub fn facts() -> impl Iterator<Item = &'static str> {
    MACHINE.into_iter().chain(RUNTIMES)
}

/// Names that no label may give: agents measure them, or a server grants them.
pub const NEVER_LABELS: [&str; 8] = [
    "zone", "pool", "os", "arch", "cpu", "memory", "disk", "docker",
];

/// Kinds of work and of runners: `work:steps`, `runner:python`.
const FACT_FAMILIES: [&str; 2] = ["work:", "runner:"];

/// Whether an agent finds this out for itself.
pub fn is_fact(name: &str) -> bool {
    facts().any(|fact| fact == name)
        || crate::tool::named(name).is_some()
        || FACT_FAMILIES.iter().any(|it| name.starts_with(it))
}

/// The queue of a match key.
pub fn queue_of(key: &str) -> Option<&str> {
    let mut words = key.split(' ');
    words.find_map(|word| word.strip_prefix("queue="))
}

/// Whether it is a function whose runner nobody has named.
fn is_unnamed(key: &str) -> bool {
    let mut words = key.split(' ');
    words.any(|word| word == "work:function")
        && !key.split(' ').any(|word| word.starts_with("runner:"))
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The tag is there, with any value.
    Has(String),
    /// The tag has exactly this value.
    Is(String, String),
    /// The tag's value is at least this, compared as a version or as a size.
    AtLeast(String, String),
}

/// Why a text is not a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequirement {
    pub text: String,
    pub why: &'static str,
}

impl fmt::Display for BadRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}`: {} (examples: linux, zone=eu, python>=3.11)",
            self.text, self.why
        )
    }
}

impl std::error::Error for BadRequirement {}

impl Requirement {
    pub fn parse(text: &str) -> Result<Requirement, BadRequirement> {
        let bad = |why| BadRequirement {
            text: text.chars().take(MAX_LENGTH).collect(),
            why,
        };
        if text.len() > MAX_LENGTH {
            return Err(bad("is longer than 128 characters"));
        }
        let (name, value, at_least) = match (text.split_once(">="), text.split_once('=')) {
            (Some((name, value)), _) => (name, Some(value), true),
            (None, Some((name, value))) => (name, Some(value), false),
            (None, None) => (text, None, false),
        };
        if !is_word(name) {
            return Err(bad("the name must be letters, digits and . _ - : /"));
        }
        match value {
            None => Ok(Requirement::Has(name.to_lowercase())),
            Some(value) if !is_word(value) => {
                Err(bad("the value must be letters, digits and . _ - : /"))
            }
            Some(value) if at_least && quantity(value).is_none() => Err(bad(
                "the value after >= must be a version or a size such as 3.11 or 2GiB",
            )),
            Some(value) if at_least => {
                Ok(Requirement::AtLeast(name.to_lowercase(), value.to_string()))
            }
            Some(value) => Ok(Requirement::Is(name.to_lowercase(), value.to_string())),
        }
    }

    fn name(&self) -> &str {
        let (Requirement::Has(name) | Requirement::Is(name, _) | Requirement::AtLeast(name, _)) =
            self;
        name
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requirement::Has(name) => f.write_str(name),
            Requirement::Is(name, value) => write!(f, "{name}={value}"),
            Requirement::AtLeast(name, value) => write!(f, "{name}>={value}"),
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-:/".contains(&b))
}

/// The match key: sorted, each once, separated by single spaces.
pub fn normalise(requirements: &[Requirement]) -> Text {
    let sorted: BTreeSet<String> = requirements.iter().map(ToString::to_string).collect();
    sorted.into_iter().collect::<Vec<_>>().join(" ").into()
}

/// What an agent offers: tags with values, `linux` being short for any value. Sorted, and no larger
/// than it must be: there is one of each agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(Box<[(String, Box<[String]>)]>);

impl Capabilities {
    /// Reads `linux`, `arch=amd64`, `python=3.11` …; what is no tag at all is left out, since an
    /// agent that offers nonsense offers nothing.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Capabilities {
        let mut tags: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for text in texts {
            match Requirement::parse(text) {
                Ok(Requirement::Has(name)) => {
                    tags.entry(name).or_default();
                }
                Ok(Requirement::Is(name, value)) => {
                    tags.entry(name).or_default().insert(value);
                }
                Ok(Requirement::AtLeast(..)) | Err(_) => {}
            }
        }
        let tags = tags.into_iter();
        Capabilities(
            tags.map(|(name, it)| (name, it.into_iter().collect()))
                .collect(),
        )
    }

    fn values(&self, name: &str) -> Option<&[String]> {
        let found = self.0.binary_search_by(|(it, _)| it.as_str().cmp(name));
        found.ok().map(|at| &*self.0[at].1)
    }

    pub fn meets(&self, requirement: &Requirement) -> bool {
        let Some(values) = self.values(requirement.name()) else {
            // Who names no queue serves all of them.
            return requirement.name() == QUEUE;
        };
        match requirement {
            Requirement::Has(_) => true,
            Requirement::Is(_, wanted) => values.contains(wanted),
            Requirement::AtLeast(_, wanted) => {
                let Some(wanted) = quantity(wanted) else {
                    return false;
                };
                values
                    .iter()
                    .filter_map(|v| quantity(v))
                    .any(|have| have >= wanted)
            }
        }
    }

    /// The requirements of a match key that are not met; none means fit.
    pub fn missing(&self, key: &str) -> Vec<String> {
        let words = key.split(' ').filter(|text| !text.is_empty());
        let unmet = words.filter(|text| !Requirement::parse(text).is_ok_and(|r| self.meets(&r)));
        let mut missing: Vec<String> = unmet.map(str::to_string).collect();
        if missing.is_empty() && is_unnamed(key) && !self.takes_unnamed(key) {
            let queue = queue_of(key).unwrap_or_default();
            missing.push(format!("{UNNAMED}={queue}"));
        }
        missing
    }

    /// Whether a function that names no runner would be called in the pool of this slot.
    fn takes_unnamed(&self, key: &str) -> bool {
        let queue = queue_of(key).unwrap_or_default();
        let names = |values: &[String]| values.iter().any(|value| value == queue);
        match (self.values(UNNAMED), self.values(UNNAMED_BUT)) {
            (None, None) => true,
            (own, others) => own.is_some_and(names) || others.is_some_and(|others| !names(others)),
        }
    }

    pub fn fits(&self, key: &str) -> bool {
        self.missing(key).is_empty()
    }

    /// One text for equal offers, so that fitness can be remembered by it.
    pub fn key(&self) -> Text {
        let mut words = Vec::new();
        for (name, values) in &*self.0 {
            words.push(name.clone());
            words.extend(values.iter().map(|value| format!("{name}={value}")));
        }
        words.join(" ").into()
    }
}

/// Versions compare part by part, sizes by bytes.
fn quantity(text: &str) -> Option<Vec<u64>> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1u64 << 40),
    ];
    for (suffix, factor) in units {
        if let Some(number) = text.strip_suffix(suffix) {
            return number
                .parse::<u64>()
                .ok()?
                .checked_mul(factor)
                .map(|bytes| vec![bytes]);
        }
    }
    let mut parts: Vec<u64> = text
        .split('.')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    while parts.len() > 1 && parts.last() == Some(&0) {
        parts.pop();
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(texts: &[&str]) -> Capabilities {
        Capabilities::parse(texts.iter().copied())
    }

    fn key(texts: &[&str]) -> Text {
        let parsed: Vec<_> = texts
            .iter()
            .map(|t| Requirement::parse(t).unwrap())
            .collect();
        normalise(&parsed)
    }

    #[test]
    fn a_job_never_fits_an_agent_that_lacks_a_tag() {
        // RP-11, A64
        let agent = offers(&[
            "linux",
            "zone=eu",
            "python=3.11",
            "cpu=4",
            "memory=8GiB",
            "docker",
        ]);
        let table: &[(&[&str], bool)] = &[
            (&[], true),
            (&["linux"], true),
            (&["zone"], true),
            (&["zone=eu"], true),
            (&["zone=us"], false),
            (&["python>=3.9"], true),
            (&["python>=3.11"], true),
            (&["python>=3.12"], false),
            (&["cpu>=4", "docker"], true),
            (&["cpu>=5"], false),
            (&["memory>=2GiB"], true),
            (&["memory>=9GiB"], false),
            (&["gpu"], false),
            (&["linux", "gpu"], false),
        ];
        for (requires, fits) in table {
            assert_eq!(agent.fits(&key(requires)), *fits, "{requires:?}");
        }
        assert_eq!(
            agent.missing(&key(&["linux", "gpu", "zone=us"])),
            ["gpu", "zone=us"]
        );
    }

    #[test]
    fn an_agent_serves_all_queues_or_those_it_names() {
        let any = offers(&["work:function", "runner:python"]);
        let mail = offers(&["work:function", "runner:python", "queue=mail"]);
        let key = key(&["work:function", "runner:python", "queue=mail"]);
        assert!(any.fits(&key) && mail.fits(&key));
        assert_eq!(queue_of(&key), Some("mail"));
        let video = key.replace("mail", "video");
        assert!(any.fits(&video) && !mail.fits(&video));
        assert_eq!(queue_of("linux work:steps"), None);
    }

    #[test]
    fn a_function_without_a_runner_goes_to_the_pool_that_serves_its_queue() {
        // RQ-45
        let mail = offers(&["work:function", "runner:a", "unnamed", "unnamed=mail"]);
        let rest = offers(&["work:function", "runner:b", "unnamed-but=mail"]);
        let none = offers(&["work:function", "runner:c", "unnamed"]);
        let any = offers(&["work:function", "runner:d"]);
        let unnamed = key(&["work:function", "queue=mail"]);
        assert_eq!(
            [&mail, &rest, &none, &any].map(|it| it.fits(&unnamed)),
            [true, false, false, true]
        );
        let other = key(&["work:function", "queue=video"]);
        assert_eq!(
            [&mail, &rest, &none, &any].map(|it| it.fits(&other)),
            [false, true, false, true]
        );
        assert_eq!(none.missing(&other), ["unnamed=video"]);
        // Who names a runner is not asked for anything else.
        assert!(none.fits(&key(&["work:function", "queue=video", "runner:c"])));
        assert!(offers(&["unnamed", "work:steps"]).fits("work:steps"));
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(offers(&["python=3.11"]).fits("python>=3.9"));
        assert!(offers(&["python=4"]).fits("python>=3.12"));
        assert!(offers(&["python=3"]).fits("python>=3.0"));
    }

    #[test]
    fn the_key_does_not_depend_on_order_or_repetition() {
        assert_eq!(
            key(&["linux", "zone=eu"]),
            key(&["zone=eu", "linux", "LINUX"])
        );
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for text in [
            "", " ", "a b", "=x", "x=", "x>=", "x>=y", "a\nb", "§", "$(id)",
        ] {
            assert!(Requirement::parse(text).is_err(), "{text}");
        }
        assert!(Requirement::parse(&"x".repeat(129)).is_err());
    }
}
