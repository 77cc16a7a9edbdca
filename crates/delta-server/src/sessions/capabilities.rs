//! What an agent offers, from what it says and what it was given.
//!
//! Facts (os, arch, runtimes, resources, kinds of work) are the agent's to tell; zones, labels and
//! the pool were granted with its credential, and what the agent says only narrows them.
//! Everything is bounded here: an agent is not trusted to be brief (EP-4).

use std::collections::BTreeSet;

use delta_core::Text;
use delta_core::requirement::{Capabilities, MAX_LENGTH, NEVER_LABELS, UNNAMED, UNNAMED_BUT};
use delta_store::read::Scope;
use delta_wire::agent::MAX_PARALLEL;
use delta_wire::agent::proto;
use delta_wire::job_spec::is_name;
use serde::{Deserialize, Serialize};

use crate::identity::scope;

/// Items of one list that are looked at; the rest is left out.
const MAX_ITEMS: usize = 64;
/// Characters of a name or a version.
const MAX_WORD: usize = 128;
/// Cores, mebibytes: more than any machine has.
const MAX_CORES: i32 = 65_536;
const MAX_MIB: i64 = 1 << 40;

/// What is known of an agent, as it is stored and shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    pub name: String,
    pub version: String,
    pub pool: String,
    pub zones: Vec<String>,
    pub labels: Vec<String>,
    pub os: String,
    pub arch: String,
    pub runtimes: Vec<String>,
    pub work: Vec<String>,
    pub docker: bool,
    pub cpu_cores: i32,
    pub memory_mb: i64,
    pub disk_mb: i64,
    pub slots: u32,
    pub enforced: Vec<String>,
    /// Which of the slots belong to a runner pool, from the first on.
    pub groups: Vec<Group>,
}

/// Slots of one runner pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    pub runner: String,
    pub slots: u32,
    /// Functions of these queues that name no runner are called there.
    pub queues: Vec<String>,
    /// So are those of queues that no group names.
    pub default: bool,
}

/// Reads what an agent says in the light of what it may be.
pub fn about(request: &proto::RegisterRequest, scope: &Scope) -> About {
    let said = request.capabilities.clone().unwrap_or_default();
    let resources = said.resources.unwrap_or_default();
    let work = if said.work.is_empty() {
        // A68: who says nothing executes tests.
        vec!["tests".to_owned()]
    } else {
        words(&said.work)
    };
    let slots = u32::try_from(said.max_parallel)
        .unwrap_or(0)
        .clamp(1, MAX_PARALLEL);
    About {
        name: word(&request.agent_name),
        version: word(&request.version),
        pool: scope.pool.to_string(),
        zones: texts(scope::zones(scope, limited(&said.network_zones))),
        labels: texts(scope::labels(scope, limited(&said.labels))),
        os: word(&said.os),
        arch: word(&said.arch),
        runtimes: runtimes(&said.runtimes, scope),
        work,
        docker: said.docker_available,
        cpu_cores: resources.cpu_cores.clamp(0, MAX_CORES),
        memory_mb: resources.memory_mb.clamp(0, MAX_MIB),
        disk_mb: resources.disk_mb.clamp(0, MAX_MIB),
        slots,
        enforced: words(&said.enforced),
        groups: groups(&said.slot_groups, slots),
    }
}

/// Never more slots than the agent has, and each runner once.
fn groups(said: &[proto::SlotGroup], slots: u32) -> Vec<Group> {
    let (mut groups, mut left) = (Vec::<Group>::new(), slots);
    for it in said.iter().take(MAX_ITEMS) {
        let runner = word(&it.runner);
        let known = groups.iter().any(|group| group.runner == runner);
        let slots = u32::try_from(it.slots).unwrap_or(0).min(left);
        if known || slots == 0 || !is_name(&runner) {
            continue;
        }
        left -= slots;
        let queues = limited(&it.queues).filter(|queue| is_name(queue));
        groups.push(Group {
            runner,
            slots,
            queues: queues.map(str::to_owned).collect(),
            default: it.default,
        });
    }
    groups
}

/// A tool nobody knows is a label, and those are granted.
fn runtimes(said: &[proto::Runtime], scope: &Scope) -> Vec<String> {
    let said = said.iter().take(MAX_ITEMS).map(runtime);
    said.filter(|it| scope::is_fact_tag(it) || scope::is_granted(scope, it))
        .collect()
}

fn runtime(runtime: &proto::Runtime) -> String {
    if runtime.version.is_empty() {
        word(&runtime.name)
    } else {
        format!("{}={}", word(&runtime.name), word(&runtime.version))
    }
}

/// No more than are looked at, so that nobody's list is long work.
fn limited(list: &[String]) -> impl Iterator<Item = &str> {
    let short = list.iter().filter(|word| word.len() <= MAX_WORD);
    short.take(MAX_ITEMS).map(String::as_str)
}

fn texts(list: BTreeSet<Text>) -> Vec<String> {
    list.iter().map(|word| word.to_string()).collect()
}

fn words(list: &[String]) -> Vec<String> {
    list.iter().take(MAX_ITEMS).map(|it| word(it)).collect()
}

/// Printable and short; what else is in it is left out.
fn word(text: &str) -> String {
    let fit = text.chars().filter(|c| !c.is_control());
    fit.take(MAX_WORD).collect()
}

/// Names that only we give beside those that no label may give.
const OURS: [&str; 2] = [UNNAMED, UNNAMED_BUT];

impl About {
    /// The tags that jobs are matched by (A64), of all slots together.
    #[cfg(test)]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::parse(self.tags().iter().map(String::as_str))
    }

    /// What the slots offer, from the first on: how many, and what. A slot of a runner pool offers
    /// that runner's functions and nothing else; beside such slots no other one calls functions.
    pub fn offers(&self) -> Vec<(u32, Capabilities)> {
        let is_work = |tag: &str| tag.starts_with("work:") || tag.starts_with("runner:");
        let parse = |tags: &[String]| Capabilities::parse(tags.iter().map(String::as_str));
        let all = self.tags();
        if self.groups.is_empty() {
            return vec![(self.slots, parse(&all))];
        }
        let offers = |wanted: &str| all.iter().any(|tag| tag.eq_ignore_ascii_case(wanted));
        let mut offered = Vec::with_capacity(self.groups.len() + 1);
        for group in &self.groups {
            let mut tags = all.clone();
            tags.retain(|tag| !is_work(&tag.to_lowercase()));
            // What the agent does not offer at all, no slot of it does.
            let own = [
                "work:function".to_owned(),
                format!("runner:{}", group.runner),
            ];
            tags.extend(own.into_iter().filter(|tag| offers(tag)));
            tags.extend(self.unnamed(group));
            offered.push((group.slots, parse(&tags)));
        }
        let rest = self.slots - self.groups.iter().map(|it| it.slots).sum::<u32>();
        if rest > 0 {
            let of_functions = |tag: &str| tag == "work:function" || tag.starts_with("runner:");
            let mut tags = all;
            tags.retain(|tag| !of_functions(&tag.to_lowercase()));
            offered.push((rest, parse(&tags)));
        }
        offered
    }

    /// Which functions that name no runner the slots of a group take.
    fn unnamed(&self, group: &Group) -> Vec<String> {
        if !group.default {
            let own = group.queues.iter().map(|it| format!("{UNNAMED}={it}"));
            return std::iter::once(UNNAMED.to_owned()).chain(own).collect();
        }
        let others = self.groups.iter().filter(|it| it.runner != group.runner);
        let theirs = others.flat_map(|it| &it.queues);
        let theirs = theirs.map(|it| format!("{UNNAMED_BUT}={it}"));
        std::iter::once(UNNAMED_BUT.to_owned())
            .chain(theirs)
            .collect()
    }

    fn tags(&self) -> Vec<String> {
        let mut tags = vec![
            format!("pool={}", self.pool),
            format!("cpu={}", self.cpu_cores),
            format!("memory={}MiB", self.memory_mb),
            format!("disk={}MiB", self.disk_mb),
        ];
        for (name, value) in [("os", &self.os), ("arch", &self.arch)] {
            if !value.is_empty() {
                tags.push(format!("{name}={value}"));
            }
            // `linux` by itself too; what else is written there claims nothing.
            if scope::is_fact_tag(value) && !value.contains('=') {
                tags.push(value.clone());
            }
        }
        tags.extend(self.zones.iter().map(|zone| format!("zone={zone}")));
        tags.extend(self.work.iter().map(|work| format!("work:{work}")));
        let free = self.runtimes.iter().chain(&self.labels);
        tags.extend(free.filter(|tag| !is_ours(tag)).cloned());
        if self.docker {
            tags.push("docker".to_owned());
        }
        tags.retain(|tag| tag.len() <= MAX_LENGTH);
        tags
    }
}

fn is_ours(tag: &str) -> bool {
    let name = tag
        .split(['=', '>'])
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let never = NEVER_LABELS.contains(&name.as_str()) || OURS.contains(&name.as_str());
    never || name.starts_with("work:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use delta_store::read::Labels;

    fn scope() -> Scope {
        Scope {
            pool: "linux".into(),
            zones: ["eu".into(), "us".into()].into(),
            labels: Labels::Only(["gpu".into()].into()),
        }
    }

    fn said(capabilities: proto::Capabilities) -> Capabilities {
        let request = proto::RegisterRequest {
            capabilities: Some(capabilities),
            ..Default::default()
        };
        about(&request, &scope()).capabilities()
    }

    #[test]
    fn an_agent_offers_what_it_was_given_and_no_more() {
        // T27, A64
        let offer = said(proto::Capabilities {
            network_zones: vec!["eu".into(), "prod".into()],
            labels: vec!["gpu".into(), "zone=prod".into(), "fast".into()],
            runtimes: vec![
                proto::Runtime {
                    name: "python".into(),
                    version: "3.11".into(),
                },
                proto::Runtime {
                    name: "zone".into(),
                    version: "prod".into(),
                },
            ],
            os: "linux".into(),
            docker_available: true,
            resources: Some(proto::Resources {
                cpu_cores: 4,
                memory_mb: 2048,
                disk_mb: 10,
            }),
            work: vec!["steps".into()],
            ..Default::default()
        });
        for fits in [
            "zone=eu",
            "gpu",
            "python>=3.9",
            "linux",
            "docker",
            "cpu>=4",
            "memory>=2GiB",
            "pool=linux",
            "work:steps",
        ] {
            assert!(offer.fits(fits), "{fits}");
        }
        for unfit in [
            "zone=us",
            "zone=prod",
            "fast",
            "python>=3.12",
            "cpu>=5",
            "memory>=3GiB",
            "work:tests",
            "pool=other",
        ] {
            assert!(!offer.fits(unfit), "{unfit}");
        }
    }

    #[test]
    fn no_field_smuggles_in_what_was_not_given() {
        // T27, I22: each of them becomes a tag, and a tag may say anything.
        let claims = [
            "zone=prod",
            "ZONE=prod",
            "pool=gold",
            "fast",
            "zone",
            "a zone=prod",
        ];
        for claim in claims {
            let runtime = |name: &str, version: &str| proto::Runtime {
                name: name.into(),
                version: version.into(),
            };
            let (name, value) = claim.split_once('=').unwrap_or((claim, ""));
            let offer = said(proto::Capabilities {
                os: claim.into(),
                arch: claim.into(),
                network_zones: vec![claim.into(), "prod".into()],
                runtimes: vec![runtime(claim, ""), runtime(name, value)],
                labels: vec![claim.into()],
                work: vec![claim.into()],
                enforced: vec![claim.into()],
                ..Default::default()
            });
            for unfit in ["zone=prod", "pool=gold", "fast"] {
                assert!(!offer.fits(unfit), "{unfit} by {claim:?}");
            }
        }
        let known = said(proto::Capabilities {
            os: "linux".into(),
            arch: "aarch64".into(),
            ..Default::default()
        });
        assert!(known.fits("linux os=linux aarch64 arch=aarch64"));
    }

    #[test]
    fn an_agent_that_names_no_zone_is_in_all_it_was_given() {
        let offer = said(proto::Capabilities::default());
        assert!(offer.fits("zone=eu zone=us work:tests"));
    }

    fn pooled(groups: &[(&str, i32, &[&str], bool)], slots: i32) -> About {
        let group =
            |(runner, slots, queues, default): &(&str, i32, &[&str], bool)| proto::SlotGroup {
                runner: (*runner).into(),
                slots: *slots,
                queues: queues.iter().map(|it| (*it).to_owned()).collect(),
                default: *default,
            };
        let runner = |name: &str| proto::Runtime {
            name: format!("runner:{name}"),
            version: String::new(),
        };
        let request = proto::RegisterRequest {
            capabilities: Some(proto::Capabilities {
                max_parallel: slots,
                work: vec!["function".into(), "steps".into()],
                runtimes: vec![runner("a"), runner("b")],
                slot_groups: groups.iter().map(group).collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        about(&request, &scope())
    }

    #[test]
    fn a_slot_of_a_pool_calls_its_functions_and_does_nothing_else() {
        let about = pooled(&[("a", 2, &["mail"], false), ("b", 3, &[], true)], 6);
        let offers = about.offers();
        let slots: Vec<u32> = offers.iter().map(|(slots, _)| *slots).collect();
        assert_eq!(slots, [2, 3, 1]);
        let fits = |key: &str| -> Vec<bool> { offers.iter().map(|(_, it)| it.fits(key)).collect() };
        assert_eq!(fits("runner:a work:function"), [true, false, false]);
        assert_eq!(fits("runner:b work:function"), [false, true, false]);
        assert_eq!(fits("work:steps"), [false, false, true]);
        assert_eq!(fits("queue=mail work:function"), [true, false, false]);
        assert_eq!(fits("queue=other work:function"), [false, true, false]);
        let whole = about.capabilities();
        for key in [
            "runner:a work:function",
            "queue=x work:function",
            "work:steps",
        ] {
            assert!(whole.fits(key), "{key}");
        }
        assert_eq!(pooled(&[], 4).offers().len(), 1, "as it always was");
    }

    #[test]
    fn groups_of_slots_never_offer_what_the_agent_does_not() {
        // T27, EP-4
        let many: Vec<(String, i32)> = (0..500).map(|n| (format!("r{n}"), 1)).collect();
        let many: Vec<(&str, i32, &[&str], bool)> = many
            .iter()
            .map(|(name, slots)| (name.as_str(), *slots, [].as_slice(), true))
            .collect();
        let about = pooled(&many, 10);
        assert_eq!(about.groups.len(), 10, "no more than it has slots");
        assert_eq!(pooled(&many, 1000).groups.len(), MAX_ITEMS);
        let odd: [(&str, i32, &[&str], bool); 6] = [
            ("a", i32::MAX, &["q q", "zone=prod", "ok"], false),
            ("a", 5, &[], true),
            ("", 5, &[], true),
            ("x zone=prod", 5, &[], true),
            ("b", -1, &[], true),
            ("b", 5, &[], true),
        ];
        let about = pooled(&odd, 4);
        assert_eq!(about.groups.len(), 1, "{:?}", about.groups);
        assert_eq!(about.groups[0].queues, ["ok"]);
        assert_eq!(
            about.offers().iter().map(|(slots, _)| slots).sum::<u32>(),
            4
        );
        let foreign = pooled(&[("c", 4, &[], false)], 4).offers();
        assert!(!foreign[0].1.fits("runner:c work:function"), "not offered");
    }

    #[test]
    fn nonsense_is_clamped() {
        // EP-4
        let request = proto::RegisterRequest {
            agent_name: "x".repeat(10_000),
            capabilities: Some(proto::Capabilities {
                max_parallel: -5,
                labels: vec!["gpu".into(); 10_000],
                resources: Some(proto::Resources {
                    cpu_cores: i32::MIN,
                    memory_mb: i64::MAX,
                    disk_mb: -1,
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let about = about(&request, &scope());
        assert_eq!((about.slots, about.cpu_cores, about.disk_mb), (1, 0, 0));
        assert_eq!(about.name.len(), MAX_WORD);
        assert!(about.labels.len() <= MAX_ITEMS);
        assert!(about.capabilities().fits("memory>=1TiB"));
    }
}
