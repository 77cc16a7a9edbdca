//! What a job is kept from: files, signals, privileges, another user's things.
//!
//! Restrictions are put on one thread, the one that starts the job's processes: they inherit them,
//! and the shim around them stays free to write the log and to end what it started. What this
//! machine cannot enforce is left out and not claimed: [`Confinement::enforced`] is what is
//! reported.
//!
//! Reading order: this file, `file_rules` (Landlock), `call_filter` (seccomp), `slot_user`,
//! [`namespaces`].

mod call_filter;
mod file_rules;
pub mod namespaces;
mod slot_user;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{ABI, RulesetStatus};
use rustix::process::{Resource, Rlimit, getpriority_process, setpriority_process, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use serde::{Deserialize, Serialize};

use self::call_filter::Own;
use self::file_rules::Restricted;
use crate::groups::control_group::Group;
use crate::groups::memory_count;

/// Below the agent and the shim, so that a job that eats the processor never starves the heartbeat.
const JOB_NICENESS: i32 = 10;

/// Processes and threads of one job's user: a parallel build has hundreds, a fork bomb more.
const MAX_PROCESSES: u64 = 8192;

/// From here on signals can be kept inside.
const SIGNALS: ABI = ABI::V6;

/// From here on files can be moved between folders under rules, as every tool does.
const MOVES: ABI = ABI::V2;

/// How far jobs are trusted with this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// They read the system and write their own folders, and nothing else.
    Strict,
    /// They do what the agent's user may do; its tools work as they do by hand. The agent itself is
    /// kept from them as far as the machine can, at the price that no program gains a privilege.
    Host,
    /// They do what the agent's user may do, `sudo` too, and nothing is kept from them.
    Open,
}

impl Sandbox {
    /// What a run gets: an untrusted one is always confined.
    pub fn for_run(self, trusted: bool) -> Sandbox {
        if trusted { self } else { Sandbox::Strict }
    }
}

/// What one attempt is confined to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub sandbox: Sandbox,
    /// The user and group it becomes.
    pub user: Option<u32>,
    /// It shares no memory, semaphores or queues with anybody.
    #[serde(default)]
    pub apart: bool,
    /// It changes the limits of nobody else, nor its mark; a strict one no priorities either.
    #[serde(default)]
    pub filtered: bool,
}

impl Confinement {
    /// The agent's own user, unrestricted.
    pub const OPEN: Confinement = Confinement {
        sandbox: Sandbox::Open,
        user: None,
        apart: false,
        filtered: false,
    };

    /// For what the operator runs as the agent's own user, and as freely.
    pub fn of_host() -> Confinement {
        Confinement {
            sandbox: Sandbox::Host,
            filtered: is_filtered(Sandbox::Host),
            ..Confinement::OPEN
        }
    }

    /// For the attempts of one slot: with a user of the slot's own where this agent may switch
    /// users and that user can reach the work folder.
    pub fn of_slot(sandbox: Sandbox, state: &Path, work: &Path, slot: u32) -> Confinement {
        let user = match sandbox {
            Sandbox::Strict if slot_user::may_switch_users() && slot_user::is_open_to_all(work) => {
                Some(slot_user::user_of(state, slot))
            }
            _ => None,
        };
        let apart = sandbox == Sandbox::Strict && namespaces::is_possible();
        Confinement {
            sandbox,
            user,
            apart,
            filtered: is_filtered(sandbox),
        }
    }

    /// Those of the agent's secrets that its jobs are kept from by name: all of them where jobs
    /// read nothing but the system; otherwise those that can be closed without a tool noticing.
    pub fn to_hide(&self, secrets: &[PathBuf], work: &Path) -> Vec<PathBuf> {
        match self.sandbox {
            Sandbox::Strict => secrets.to_vec(),
            // Root makes files everywhere, and is stopped by no rule that it could not undo.
            Sandbox::Host if !is_root() && file_rules::version() >= Some(MOVES) => {
                let home = std::env::home_dir().and_then(|home| home.canonicalize().ok());
                file_rules::free_to_hide(secrets, work, home.as_deref())
            }
            Sandbox::Host | Sandbox::Open => Vec::new(),
        }
    }

    /// What is really enforced, in words an agent reports. `hidden` is what [`Self::to_hide`] said,
    /// `secret` a file inside it.
    pub fn enforced(&self, hidden: &[PathBuf], secret: &Path) -> Vec<String> {
        let mut words = vec![match self.sandbox {
            Sandbox::Strict => "strict",
            Sandbox::Host => "host",
            Sandbox::Open => "open",
        }];
        words.extend(Group::kind());
        words.extend(memory_count::kind());
        if self.sandbox == Sandbox::Open {
            return words.into_iter().map(str::to_owned).collect();
        }
        let strict = self.sandbox == Sandbox::Strict;
        let (rules, root) = (file_rules::version(), is_root());
        let traced = if strict { ABI::V1 } else { SIGNALS };
        let promised = strict || (!root && self.gains(hidden));
        // Whoever may write the agent's control groups limits and ends what is in them by a file.
        let grouped = !strict && !root && Group::kind().is_some();
        let facts = [
            ("uid", self.user.is_some()),
            ("no-capabilities", strict && root),
            ("no-new-privs", promised),
            ("rlimits", strict),
            ("clean-env", strict),
            ("private-ipc", self.apart),
            ("own-limits", self.filtered && !grouped),
            ("own-priorities", self.filtered && strict),
            (
                "private-state",
                self.user.is_some() || self.hides(hidden, secret),
            ),
            // The agent and the shim let nobody of their user in; the rules stop root too.
            (
                "no-tracing",
                self.user.is_some() || !root || rules >= Some(traced),
            ),
            ("no-signals", self.keeps_signals_inside(rules) && !grouped),
        ];
        let held = facts.into_iter().filter(|(_, holds)| *holds);
        words.extend(held.map(|(word, _)| word));
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if let Some(version) = rules.filter(|_| strict) {
            words.insert(1, format!("landlock:{version}"));
        }
        words
    }

    /// A limit of processor time is a signal by another name, which rules do not stop.
    fn keeps_signals_inside(&self, rules: Option<ABI>) -> bool {
        self.user.is_some() || (rules >= Some(SIGNALS) && self.filtered)
    }

    /// Whether a job in the host's sandbox is worth the promise to gain no privilege.
    fn gains(&self, hidden: &[PathBuf]) -> bool {
        let rules = file_rules::version();
        rules >= Some(SIGNALS) || (rules >= Some(MOVES) && !hidden.is_empty())
    }

    /// Tried out: whether a thread so restricted can read the secret.
    fn hides(&self, hidden: &[PathBuf], secret: &Path) -> bool {
        let (confinement, hidden, secret) = (*self, hidden.to_owned(), secret.to_owned());
        let tried = file_rules::elsewhere(move || {
            let ruled = confinement.rule(&[], &hidden);
            ruled.is_ok() && File::open(secret).is_err()
        });
        tried.unwrap_or(false)
    }

    /// Puts the kernel's rules on the calling thread.
    fn rule(&self, writable: &[PathBuf], hidden: &[PathBuf]) -> Restricted {
        match self.sandbox {
            Sandbox::Strict => file_rules::only_these(writable, hidden, self.apart),
            _ if is_root() => file_rules::signals_inside(file_rules::Privileges::Kept),
            _ if hidden.is_empty() => file_rules::signals_inside(file_rules::Privileges::GivenUp),
            _ => file_rules::all_but(hidden),
        }
    }

    /// Puts the kernel's filter on the calling thread, where that was found to be possible.
    fn filter(&self, own: Own) -> Result<(), String> {
        if self.filtered {
            call_filter::put(own).map_err(|why| failed("seccomp", &why))
        } else {
            Ok(())
        }
    }
}

/// The folders a confined job may write, and what it may not even read, wherever it lies.
pub(crate) struct Places<'a> {
    pub writable: &'a [PathBuf],
    pub hidden: &'a [PathBuf],
}

impl Places<'_> {
    /// What is hidden and has nothing in it that the job may write.
    fn closed(&self) -> Vec<PathBuf> {
        let has_none = |hidden: &&PathBuf| {
            let mut writable = self.writable.iter();
            !writable.any(|it| it.starts_with(hidden))
        };
        self.hidden.iter().filter(has_none).cloned().collect()
    }
}

/// Restricts the calling thread, and with it everything that is started from it. An error means
/// that the job must not be started.
pub(crate) fn confine(confinement: Confinement, places: &Places<'_>) -> Result<(), String> {
    if getpriority_process(None).is_ok_and(|now| now < JOB_NICENESS) {
        // Not being allowed to is no reason not to work.
        let _ = setpriority_process(None, JOB_NICENESS);
    }
    match confinement.sandbox {
        Sandbox::Open => return Ok(()),
        Sandbox::Host => {
            if is_root() || confinement.gains(places.hidden) {
                // What this machine cannot do is not claimed, and no reason not to work.
                let _ = confinement.rule(places.writable, places.hidden);
            }
            return confinement.filter(Own::Limits);
        }
        Sandbox::Strict => {}
    }
    if confinement.apart {
        let parts = [&file_rules::readable(), places.writable].concat();
        let entered = namespaces::enter(&parts, &places.closed());
        entered.map_err(|why| failed("namespaces", &why))?;
    }
    limit(Resource::Core, 0).map_err(|why| failed("core size", &why))?;
    if confinement.user.is_some() {
        limit(Resource::Nproc, MAX_PROCESSES).map_err(|why| failed("processes", &why))?;
    }
    set_no_new_privs(true).map_err(|why| failed("no-new-privs", &why))?;
    let ruled = confinement.rule(places.writable, places.hidden);
    let ruled = ruled.map_err(|why| failed("landlock", &why))?;
    // Neither rules nor a user of its own: the agent's files would lie open to it.
    if ruled.ruleset == RulesetStatus::NotEnforced && confinement.user.is_none() {
        let why = "this kernel has none, and the job has no user of its own";
        return Err(failed("landlock", &why));
    }
    if is_root() {
        // Those for becoming the job's user are given up by becoming it.
        let kept = match confinement.user {
            Some(_) => CapabilitySet::SETUID.union(CapabilitySet::SETGID),
            None => CapabilitySet::empty(),
        };
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).map_err(|why| failed("capabilities", &why))?;
    }
    confinement.filter(if confinement.apart {
        Own::LimitsAndPriorities
    } else {
        Own::AllThatIsShared
    })
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> String {
    format!("no sandbox: {what}: {why}")
}

/// Whether the kernel is to refuse a job some calls. In the host's sandbox where signals stay
/// inside, too: elsewhere a job can end the agent anyway, and the filter asks for the same promise
/// to gain no privilege.
fn is_filtered(sandbox: Sandbox) -> bool {
    let wanted = match sandbox {
        Sandbox::Strict => true,
        Sandbox::Host => !is_root() && file_rules::version() >= Some(SIGNALS),
        Sandbox::Open => false,
    };
    wanted && call_filter::is_possible()
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limit)?)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_the_jobs_own_in_it_is_not_closed_as_a_whole() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let (writable, hidden) = (paths(&["/w/1/workspace"]), paths(&["/w", "/w/state", "/t"]));
        let places = Places {
            writable: &writable,
            hidden: &hidden,
        };
        assert_eq!(places.closed(), paths(&["/w/state", "/t"]));
    }

    #[test]
    fn signals_are_said_to_stay_inside_only_where_no_limit_sends_them_either() {
        let job = |user, filtered| Confinement {
            sandbox: Sandbox::Strict,
            user,
            filtered,
            ..Confinement::OPEN
        };
        for (rules, user, filtered, stay) in [
            (None, None, true, false),
            (Some(ABI::V5), None, true, false),
            (Some(ABI::V6), None, false, false),
            (Some(ABI::V6), None, true, true),
            (None, Some(7), false, true),
        ] {
            let said = job(user, filtered).keeps_signals_inside(rules);
            assert_eq!(said, stay, "{rules:?} {user:?} {filtered}");
        }
    }

    #[test]
    fn an_untrusted_run_is_always_confined() {
        for sandbox in [Sandbox::Host, Sandbox::Open, Sandbox::Strict] {
            assert_eq!(sandbox.for_run(false), Sandbox::Strict);
            assert_eq!(sandbox.for_run(true), sandbox);
        }
    }
}
