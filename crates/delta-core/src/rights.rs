//! Who may use a lease, and what for: the one rule for every right that a lease gives, whichever
//! way a message or a request comes in (I23, A25, A26, A37, A38, LM-13).
//!
//! Owns three questions, in this order. Is this lease the caller's? Is its holder still the agent
//! that got it: not revoked, not superseded, and proven where many share its credential? Does the
//! lease still stand? Refuses to know where the answers come from: `decide` asks with the rows of
//! its batch, a request with committed rows, a session with what it remembers.

use crate::attempt::LateLog;
use crate::command::LeaseProof;
use crate::lease::{Lease, LeaseState, Stale};
use crate::time::Millis;
use crate::{Digest, Text};

/// What a lease is shown for, beside the messages that change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// To read the work; a grant that was not acknowledged yet will do.
    Spec,
    /// To store artifacts and caches, and to read caches and inputs.
    Artifact,
    /// The values of secrets that the policy names (A51).
    Secrets,
    Results,
    /// The one right that outlives the lease: for a moment after a forced cancel, and for the
    /// rest of what was declared.
    Log,
}

/// How much of a log may be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRight {
    /// No byte beyond this one; the quota alone decides when absent.
    pub up_to: Option<u64>,
}

impl LogRight {
    pub fn covers(self, offset: u64, length: usize) -> bool {
        let end = offset.saturating_add(length as u64);
        self.up_to.is_none_or(|up_to| end <= up_to)
    }
}

/// Which way a message came, and what it shows of the agent behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Speaker {
    /// A session of this agent, which proved itself when the session began.
    Session { agent: Text, epoch: u64 },
    /// A request that stands for itself.
    Request {
        /// The agent that the credential is bound to.
        bound: Option<Text>,
        /// Apart, since most messages come over sessions and show nothing.
        shown: Option<Box<AgentShown>>,
    },
}

impl Speaker {
    /// A runner that is no agent, with a credential that any of them may have.
    pub fn anybody() -> Speaker {
        Speaker::Request {
            bound: None,
            shown: None,
        }
    }

    /// The agent behind a message about a lease of this runner, if there is one: a runner of the
    /// Runner Protocol need not be an agent's.
    pub fn agent(&self, runner: &str) -> Option<Text> {
        match self {
            Speaker::Session { agent, .. } => Some(agent.clone()),
            Speaker::Request {
                bound: Some(agent), ..
            } => Some(agent.clone()),
            Speaker::Request { bound: None, .. } => agent_of(runner).map(Text::from),
        }
    }
}

/// What a request shows of the agent that makes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentShown {
    /// The process that makes it: it stays the same while its sessions come and go.
    pub process: Text,
    /// SHA-256 of the secret that the agent was given.
    pub secret: Option<Digest>,
}

/// An agent as the store has it, as far as rights depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentStanding {
    /// The credential it comes with.
    pub principal: Text,
    /// SHA-256 of the secret that tells agents with one credential apart.
    pub secret: Option<Digest>,
    /// The process that began its newest session, if it is one that shows itself in requests.
    pub process: Option<Text>,
    /// The epoch of its newest session.
    pub session: u64,
    pub revoked: bool,
}

/// Why the holder of a lease is not heard, although the lease is the one it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Barred {
    /// The agent was shut out for good.
    Revoked,
    /// Another session of the agent is the newest, begun by another process.
    Superseded,
    /// The request does not prove to be of the agent that the lease was granted to.
    Unproven,
}

impl std::fmt::Display for Barred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Barred::Revoked => "this agent was revoked; what it held is tried again elsewhere",
            Barred::Superseded => {
                "another process has taken over this agent's session and its leases"
            }
            Barred::Unproven => {
                "the request does not prove to be of the agent that has this lease (header \
                 Delta-Agent); if it is your agent, upgrade it to the server's version"
            }
        })
    }
}

/// Why a right is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Denied {
    Stale(Stale),
    Barred(Barred),
    /// The lease was never acknowledged.
    NotAcknowledged,
}

/// A lease as far as its rights depend on it: a row, or what a session remembers of one.
#[derive(Clone, Copy, Debug)]
pub struct Bond<'a> {
    pub token: &'a Digest,
    pub principal: &'a Text,
    pub state: LeaseState,
    /// Until when it is judged valid while it lives.
    pub until: Millis,
    /// What is left of its log's right after its end.
    pub late: Option<LateLog>,
}

impl<'a> Bond<'a> {
    pub fn of(lease: &'a Lease, floor: Millis, late: Option<LateLog>) -> Bond<'a> {
        Bond {
            token: &lease.token,
            principal: &lease.principal,
            state: lease.state,
            until: lease.judged_until(floor),
            late,
        }
    }

    /// The whole rule: whether this caller has this right at this moment.
    pub fn gives(
        &self,
        right: Right,
        proof: &LeaseProof,
        agent: Option<&AgentStanding>,
        now: Millis,
    ) -> Result<LogRight, Denied> {
        self.is_held_by(proof, agent)?;
        let late = self.late.filter(|_| right == Right::Log);
        let late = late.filter(|late| now < late.until);
        match (self.stale(now), late) {
            (None, _) if self.state == LeaseState::Granted && right != Right::Spec => {
                Err(Denied::NotAcknowledged)
            }
            (None, _) => Ok(LogRight { up_to: None }),
            (Some(_), Some(late)) => Ok(LogRight { up_to: late.up_to }),
            (Some(why), None) => Err(Denied::Stale(why)),
        }
    }

    /// Whether the caller is the lease's holder. A foreign or invented token is answered like an
    /// unknown one, before anything is said of agents.
    pub fn is_held_by(
        &self,
        proof: &LeaseProof,
        agent: Option<&AgentStanding>,
    ) -> Result<(), Denied> {
        if !same_digest(self.token, &proof.token) || *self.principal != proof.principal {
            return Err(Denied::Stale(Stale::Unknown));
        }
        let barred = agent.and_then(|agent| agent.bars(self.principal, &proof.speaker));
        barred.map_or(Ok(()), |why| Err(Denied::Barred(why)))
    }

    /// Why a message that came at `now` is stale; at equality the lease has expired.
    pub fn stale(&self, now: Millis) -> Option<Stale> {
        match self.state {
            LeaseState::Granted | LeaseState::Active => {
                (now >= self.until).then_some(Stale::Expired)
            }
            LeaseState::Expired => Some(Stale::Expired),
            LeaseState::Revoked => Some(Stale::Revoked),
            LeaseState::Completed | LeaseState::Canceled => Some(Stale::AlreadyFinal),
        }
    }
}

impl AgentStanding {
    /// Why a message about a lease of this principal is not heard.
    fn bars(&self, principal: &Text, speaker: &Speaker) -> Option<Barred> {
        let bound = matches!(speaker, Speaker::Request { bound: Some(_), .. });
        // The same words may name a runner of somebody else, which is not this agent.
        if self.principal != *principal && !bound {
            return None;
        }
        if self.revoked {
            return Some(Barred::Revoked);
        }
        match speaker {
            Speaker::Session { epoch, .. } => (*epoch < self.session).then_some(Barred::Superseded),
            Speaker::Request { shown, .. } => self.bars_request(shown.as_deref()),
        }
    }

    /// An agent whose program shows nothing in requests is served as before: it would have to be
    /// registered with the agent's secret to be that one.
    fn bars_request(&self, shown: Option<&AgentShown>) -> Option<Barred> {
        let process = self.process.as_ref()?;
        let proven = self.secret.as_ref().is_none_or(|secret| {
            let shown = shown.and_then(|it| it.secret.as_ref());
            shown.is_some_and(|shown| same_digest(secret, shown))
        });
        match shown {
            _ if !proven => Some(Barred::Unproven),
            Some(shown) if shown.process != *process => Some(Barred::Superseded),
            _ => None,
        }
    }
}

/// The agent whose slot a runner is named as: the ids of agents have no slash in them.
pub fn agent_of(runner: &str) -> Option<&str> {
    let (agent, _) = runner.split_once('/')?;
    (!agent.is_empty()).then_some(agent)
}

/// Looks at every byte whatever it finds, so that the time taken says nothing.
pub fn same_digest(a: &Digest, b: &Digest) -> bool {
    a.iter()
        .zip(b)
        .fold(0, |difference, (x, y)| difference | (x ^ y))
        == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;

    const SECRET: Digest = [7; 32];
    const RIGHTS: [Right; 5] = [
        Right::Spec,
        Right::Artifact,
        Right::Secrets,
        Right::Results,
        Right::Log,
    ];

    fn standing() -> AgentStanding {
        AgentStanding {
            principal: "p".into(),
            secret: Some(SECRET),
            process: Some("one".into()),
            session: 5,
            revoked: false,
        }
    }

    fn request(process: &str, secret: Option<Digest>) -> Speaker {
        Speaker::Request {
            bound: None,
            shown: Some(Box::new(AgentShown {
                process: process.into(),
                secret,
            })),
        }
    }

    fn session(epoch: u64) -> Speaker {
        Speaker::Session {
            agent: "agt".into(),
            epoch,
        }
    }

    fn judged(agent: &AgentStanding, speaker: Speaker, right: Right) -> Result<LogRight, Denied> {
        let mut lease = crate::world::test_support::lease(LeaseState::Active);
        lease.expires_at = Millis(10);
        let proof = LeaseProof {
            key: RunId(1).job(1).attempt(1).lease(1),
            token: lease.token,
            principal: "p".into(),
            runner: "agt/1".into(),
            speaker,
        };
        Bond::of(&lease, Millis(0), None).gives(right, &proof, Some(agent), Millis(1))
    }

    /// What is answered whatever the right is.
    fn answer(agent: &AgentStanding, speaker: &Speaker) -> Result<LogRight, Denied> {
        let mut answers = RIGHTS
            .map(|right| judged(agent, speaker.clone(), right))
            .into_iter();
        let first = answers.next().unwrap();
        assert!(answers.all(|it| it == first), "{speaker:?}");
        first
    }

    const ALL: Result<LogRight, Denied> = Ok(LogRight { up_to: None });

    #[test]
    fn a_revoked_agent_has_no_right_whichever_way_it_comes() {
        // D14, T3
        let agent = AgentStanding {
            revoked: true,
            ..standing()
        };
        let bound = Speaker::Request {
            bound: Some("agt".into()),
            shown: None,
        };
        let shown = request("one", Some(SECRET));
        for speaker in [session(5), shown, bound, Speaker::anybody()] {
            assert_eq!(
                answer(&agent, &speaker),
                Err(Denied::Barred(Barred::Revoked))
            );
        }
    }

    #[test]
    fn a_superseded_session_has_no_right_and_one_process_keeps_its_own() {
        // I23, A26
        let superseded = Err(Denied::Barred(Barred::Superseded));
        let agent = standing();
        assert_eq!(answer(&agent, &session(4)), superseded);
        assert_eq!(answer(&agent, &session(5)), ALL);
        assert_eq!(answer(&agent, &request("two", Some(SECRET))), superseded);
        // Its sessions come and go; what it began before goes on.
        let reconnected = AgentStanding {
            session: 9,
            ..agent
        };
        assert_eq!(answer(&reconnected, &request("one", Some(SECRET))), ALL);
    }

    #[test]
    fn whoever_shares_the_token_and_has_the_lease_is_not_the_agent() {
        // T3, T32
        let agent = standing();
        let unproven = Err(Denied::Barred(Barred::Unproven));
        for speaker in [
            Speaker::anybody(),
            request("one", None),
            request("one", Some([8; 32])),
        ] {
            assert_eq!(answer(&agent, &speaker), unproven, "{speaker:?}");
        }
    }

    #[test]
    fn an_agent_that_shows_nothing_in_requests_is_served_until_it_does() {
        let old = AgentStanding {
            process: None,
            ..standing()
        };
        assert_eq!(answer(&old, &Speaker::anybody()), ALL);
        // A credential of one agent proves it.
        let bound = AgentStanding {
            secret: None,
            ..standing()
        };
        assert_eq!(answer(&bound, &Speaker::anybody()), ALL);
        let superseded = Err(Denied::Barred(Barred::Superseded));
        assert_eq!(answer(&bound, &request("two", None)), superseded);
    }

    #[test]
    fn a_runner_that_only_has_the_name_of_an_agent_is_judged_by_its_lease() {
        let other = AgentStanding {
            principal: "somebody else".into(),
            revoked: true,
            ..standing()
        };
        assert_eq!(answer(&other, &Speaker::anybody()), ALL);
        assert_eq!(agent_of("agt_1/3"), Some("agt_1"));
        assert_eq!((agent_of("agt_1"), agent_of("/3")), (None, None));
    }

    #[test]
    fn a_lease_that_is_over_gives_nothing_but_the_rest_of_its_log() {
        // LM-13, I25, A37, A42
        let late = Some(LateLog {
            until: Millis(20),
            up_to: Some(7),
        });
        for state in LeaseState::ALL {
            let mut lease = crate::world::test_support::lease(state);
            (lease.expires_at, lease.ack_by) = (Millis(10), Millis(10));
            let proof = LeaseProof {
                key: RunId(1).job(1).attempt(1).lease(1),
                token: lease.token,
                principal: "p".into(),
                runner: "r".into(),
                speaker: Speaker::anybody(),
            };
            let bond = Bond::of(&lease, Millis(0), late);
            for right in RIGHTS {
                let now = |at| bond.gives(right, &proof, None, Millis(at));
                let late = right == Right::Log;
                let open = state == LeaseState::Active
                    || (state == LeaseState::Granted && right == Right::Spec);
                assert_eq!(now(9) == ALL, open, "{state:?} {right:?}");
                let rest = Ok(LogRight { up_to: Some(7) });
                assert_eq!(now(19) == rest, late, "{state:?} {right:?}");
                assert!(
                    matches!(now(20), Err(Denied::Stale(_))),
                    "{state:?} {right:?}"
                );
            }
            let foreign = LeaseProof {
                principal: "q".into(),
                ..proof
            };
            let answered = bond.gives(Right::Log, &foreign, None, Millis(1));
            assert_eq!(answered, Err(Denied::Stale(Stale::Unknown)));
        }
    }
}
