//! The interpreter of `tests/scenarios/*.txt`: one command a line, at a moment, with its answer.
//!
//! ```text
//! job unit attempts=3 on=user_exit needs=lint optional once timeout=60s
//! 00:00 create
//! 00:00 grant unit r1               => granted 1
//! 00:01 ack unit r1                 => ack 2m
//! 02:01 complete unit r1 succeeded 0 => stale LEASE_EXPIRED
//! 02:01 due                         => changed
//! show unit                         => QUEUED attempt 1 losses 1
//! ```
//! `r1` speaks with its latest lease of that job, `r1@1` with the job's first. `eve:r1` is r1's
//! lease in the hands of another principal. `agent a one` is an agent whose newest session is the
//! process one's; `a/1^one` is its slot in a request that shows that process and the secret.

use std::collections::BTreeMap;

use delta_core::attempt::{Attempt, Progress, Report};
use delta_core::command::{Kept, LeaseProof, NewJob, NewRun, Status};
use delta_core::deadlines::attempt_due_at;
use delta_core::lease::{Revocation, epoch};
use delta_core::policy::RetryOn;
use delta_core::requirement::{Requirement, normalise};
use delta_core::rights::{AgentShown, AgentStanding, Speaker};
use delta_core::run::RunHeader;
use delta_core::{
    AttemptId, Cause, Command, Context, Decision, Digest, JobId, LeaseKey, Member, Millis, Policy,
    Record, Reply, Resolution, RunId, RunState, Settings, Span, Stop, Want, World, decide,
};

use crate::words::{digest_of, facts, group, moment, shown, span, token};

const RUN: RunId = RunId(7);
const GROUP_OF_RUNS: Digest = [1; 32];
const GROUP_OF_JOBS: Digest = [2; 32];
const AGENT_SECRET: Digest = [3; 32];
/// The run that it runs again, where jobs are kept.
const BEFORE: RunId = RunId(6);

pub struct Scene {
    settings: Settings,
    jobs: Vec<NewJob>,
    header: RunHeader,
    pub world: World,
    pub records: Vec<Record>,
    /// Latest lease number per (job, runner).
    held: BTreeMap<(u32, String), (AttemptId, u32)>,
    /// Attempt of every lease number ever granted per job.
    granted: BTreeMap<(u32, u32), AttemptId>,
    now: Millis,
}

/// Plays a scenario; panics with the line that does not hold.
pub fn play(text: &str) -> Scene {
    let mut scene = Scene::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or_default().trim();
        let line = if line.starts_with('#') { "" } else { line };
        if line.is_empty() {
            continue;
        }
        let (said, expected) = match line.split_once("=>") {
            Some((said, expected)) => (said.trim(), Some(expected.trim())),
            None => (line, None),
        };
        let answer = scene.line(said);
        if let Some(expected) = expected {
            assert_eq!(answer, expected, "line {}: {line}", number + 1);
        }
    }
    scene.check_fold();
    scene
}

impl Scene {
    pub fn new() -> Scene {
        let mut settings = Settings::recommended();
        settings.retry_base = Span::ZERO;
        Scene {
            header: RunHeader {
                trusted: true,
                ..RunHeader::plain("ann", &settings)
            },
            settings,
            jobs: Vec::new(),
            world: World::default(),
            records: Vec::new(),
            held: BTreeMap::new(),
            granted: BTreeMap::new(),
            now: Millis(0),
        }
    }

    pub fn line(&mut self, said: &str) -> String {
        let mut words: Vec<&str> = said.split_whitespace().collect();
        if words[0].contains(':') && words[0].as_bytes()[0].is_ascii_digit() {
            self.now = moment(words.remove(0));
        }
        match words.as_slice() {
            ["set", rest @ ..] => self.set(rest),
            ["job", name, rest @ ..] => self.job(name, rest),
            ["show", "run"] => self.show_run(),
            ["show", name] => self.show_job(name),
            ["facts"] => self.records.last().map_or("none".into(), facts),
            ["due"] => self.due(),
            ["other", n, how @ ..] => self.other(n, how),
            ["agent", id, process, how @ ..] => self.agent(id, process, how),
            words => {
                let command = self.command(words);
                self.tell(&command)
            }
        }
    }

    fn set(&mut self, rest: &[&str]) -> String {
        for pair in rest {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("run", value) => self.header.run_timeout = span(value),
                ("wait", value) => self.header.wait_timeout = span(value),
                ("retry", value) => self.settings.retry_base = span(value),
                ("ack", value) => self.settings.ack_timeout = span(value),
                ("fail_fast", _) => self.header.fail_fast = true,
                ("group", how) => self.header.concurrency = Some(group(GROUP_OF_RUNS, how)),
                ("reporter", _) => self.header.needs_report = true,
                other => panic!("unknown setting {other:?}"),
            }
        }
        "ok".into()
    }

    fn job(&mut self, name: &str, rest: &[&str]) -> String {
        let mut policy = Policy::plain(&self.settings);
        let mut kept = None;
        for word in rest {
            match word.split_once('=').unwrap_or((word, "")) {
                ("kept", how) => {
                    kept = Some(Kept {
                        job: BEFORE.job(self.jobs.len() as u32 + 1),
                        resolution: Resolution::from_name(how).unwrap(),
                        cause: (how == "FAILED").then_some(Cause::UserExit),
                    });
                }
                ("needs", names) => policy.needs = names.split(',').map(|n| self.n(n)).collect(),
                ("attempts", n) => policy.max_attempts = n.parse().unwrap(),
                ("timeout", value) => policy.timeout = span(value),
                ("on", causes) => {
                    policy.retry_on = causes.split(',').filter_map(RetryOn::from_name).collect();
                }
                ("requires", text) => {
                    policy.requires = normalise(&[Requirement::parse(text).unwrap()]);
                }
                ("optional", _) => policy.required = false,
                ("once", _) => policy.once = true,
                ("group", how) => policy.concurrency = Some(group(GROUP_OF_JOBS, how)),
                ("cell", of) => policy.fail_fast_group = Some(of.into()),
                other => panic!("unknown word {other:?}"),
            }
        }
        self.jobs.push(NewJob {
            name: name.into(),
            policy,
            spec: [0; 32],
            kept,
        });
        "ok".into()
    }

    fn n(&self, name: &str) -> u32 {
        let position = self.jobs.iter().position(|job| &*job.name == name);
        position.unwrap_or_else(|| panic!("no job {name}")) as u32 + 1
    }

    fn id(&self, name: &str) -> JobId {
        RUN.job(self.n(name))
    }

    fn command(&mut self, words: &[&str]) -> Command {
        match words {
            ["create"] => Command::CreateRun(Box::new(NewRun {
                id: RUN,
                header: self.header.clone(),
                jobs: Some(self.jobs.clone()),
            })),
            ["create", "unplanned"] => Command::CreateRun(Box::new(NewRun {
                id: RUN,
                header: self.header.clone(),
                jobs: None,
            })),
            ["plan"] => Command::Plan {
                run: RUN,
                jobs: self.jobs.clone(),
                settings: Some(self.header.settings()),
            },
            ["plan", "nothing"] => Command::Plan {
                run: RUN,
                jobs: Vec::new(),
                settings: None,
            },
            ["fail-plan"] => Command::FailPlan {
                run: RUN,
                cause: Cause::PlanError,
            },
            ["cancel", "run"] => Command::CancelRun {
                run: RUN,
                cause: Cause::CanceledByUser,
                by: "ann".into(),
            },
            ["supersede", "run"] => Command::CancelRun {
                run: RUN,
                cause: Cause::Superseded,
                by: "server".into(),
            },
            ["cancel", job] => {
                let cause = Cause::CanceledByUser;
                Command::CancelJob {
                    job: self.id(job),
                    cause,
                    by: "ann".into(),
                }
            }
            ["report"] => Command::Report { run: RUN },
            ["turn", "run"] => Command::TakeTurn { member: RUN.job(0) },
            ["turn", job] => Command::TakeTurn {
                member: self.id(job),
            },
            ["grant", job, runner] => self.grant(job, runner),
            ["revoke", job, runner, why] => Command::Revoke {
                lease: self.proof(job, runner).key,
                why: Revocation::from_name(why).unwrap(),
            },
            [verb, job, runner, rest @ ..] => self.message(verb, job, runner, rest),
            other => panic!("cannot read {other:?}"),
        }
    }

    fn grant(&self, job: &str, runner: &str) -> Command {
        let id = self.id(job);
        let current = self.world.jobs[&id].as_ref().unwrap().current();
        let number = self.world.attempts[&current].as_ref().unwrap().lease_number + 1;
        Command::Grant {
            attempt: current,
            principal: "pool".into(),
            runner: runner.into(),
            token: token(id.n, number),
            epoch: epoch(self.settings.incarnation, number),
        }
    }

    fn message(&self, verb: &str, job: &str, runner: &str, rest: &[&str]) -> Command {
        let proof = self.proof(job, runner);
        match (verb, rest) {
            ("ack", []) => Command::AckLease {
                proof,
                job: self.id(job),
            },
            ("ack", ["naming", other]) => Command::AckLease {
                proof,
                job: self.id(other),
            },
            ("heartbeat", rest) => Command::Heartbeat {
                proof,
                seq: rest
                    .iter()
                    .find_map(|w| w.strip_prefix("seq="))
                    .map(|n| n.parse().unwrap()),
                progress: Progress::default(),
                uploading: rest.contains(&"uploading"),
            },
            ("decline", []) => Command::Decline { proof },
            ("complete", [status, exit, cause @ ..]) => Command::Complete {
                proof,
                digest: digest_of(&rest.join(" ")),
                status: match *status {
                    "succeeded" => Status::Succeeded,
                    "failed" => Status::Failed,
                    "timed_out" => Status::TimedOut,
                    other => panic!("no status {other}"),
                },
                cause: cause.first().and_then(|name| Cause::from_name(name)),
                report: Box::new(Report {
                    exit_code: exit.parse().ok(),
                    ..Report::default()
                }),
            },
            ("cancel-ack", []) => Command::CancelAck {
                proof,
                digest: [5; 32],
                report: Box::default(),
            },
            other => panic!("cannot read {other:?}"),
        }
    }

    fn proof(&self, job: &str, runner: &str) -> LeaseProof {
        let n = self.n(job);
        let (principal, runner) = runner.split_once(':').unwrap_or(("pool", runner));
        let (runner, process) = match runner.split_once('^') {
            Some((runner, process)) => (runner, Some(process)),
            None => (runner, None),
        };
        let (runner, forged) = match runner.strip_suffix('!') {
            Some(runner) => (runner, true),
            None => (runner, false),
        };
        let (attempt, number, runner) = match runner.split_once('@') {
            Some((runner, number)) => {
                let number: u32 = number.parse().unwrap();
                (self.granted[&(n, number)], number, runner)
            }
            None => match self.held.get(&(n, runner.to_string())) {
                Some((attempt, number)) => (*attempt, *number, runner),
                None => {
                    let (number, attempt) = self.latest(n);
                    (attempt, number, runner)
                }
            },
        };
        LeaseProof {
            key: LeaseKey {
                attempt,
                epoch: epoch(self.settings.incarnation, number),
            },
            token: if forged { [0xee; 32] } else { token(n, number) },
            principal: principal.into(),
            runner: runner.into(),
            speaker: Speaker::Request {
                bound: None,
                shown: process.map(|process| {
                    Box::new(AgentShown {
                        process: process.into(),
                        secret: Some(AGENT_SECRET),
                    })
                }),
            },
        }
    }

    fn latest(&self, n: u32) -> (u32, AttemptId) {
        let last = self.granted.range((n, 0)..=(n, u32::MAX)).next_back();
        last.map_or((1, RUN.job(n).attempt(1)), |((_, number), attempt)| {
            (*number, *attempt)
        })
    }

    fn tell(&mut self, command: &Command) -> String {
        let before = self.records.len();
        let answer = match self.decide(command) {
            Ok(reply) => shown(&reply),
            Err(refusal) => format!("refused: {refusal}"),
        };
        if let Command::Grant {
            attempt, runner, ..
        } = command
            && self.records.len() > before
        {
            let number = self.world.attempts[attempt].as_ref().unwrap().lease_number;
            self.held
                .insert((attempt.job.n, runner.to_string()), (*attempt, number));
            self.granted.insert((attempt.job.n, number), *attempt);
        }
        answer
    }

    /// Decides with everything in sight: what is missing does not exist.
    fn decide(&mut self, command: &Command) -> Result<Reply, delta_core::Refusal> {
        loop {
            let context = Context {
                now: self.now,
                settings: &self.settings,
                entropy: 0,
                lease_floor: Millis::ZERO,
            };
            match decide(&self.world, command, &context) {
                Ok(Decision {
                    reply,
                    record,
                    edits,
                }) => {
                    self.world.absorb(&edits);
                    self.records.extend(record);
                    return Ok(reply);
                }
                Err(Stop::Refused(refusal)) => return Err(refusal),
                Err(Stop::Missing(want)) => self.absent(want),
            }
        }
    }

    fn absent(&mut self, want: Want) {
        match want {
            Want::Run(id) => drop(self.world.runs.insert(id, None)),
            Want::Job(id) => drop(self.world.jobs.insert(id, None)),
            Want::Attempt(id) => drop(self.world.attempts.insert(id, None)),
            Want::PastLease(key) => drop(self.world.past_leases.insert(key, None)),
            Want::Key(key) => drop(self.world.keys.insert(key, None)),
            Want::Unique(key) => drop(self.world.uniques.insert(key, None)),
            Want::Holder(principal, runner) => {
                self.world.holders.insert((principal, runner), None);
            }
            Want::LiveJobs(run) => drop(self.world.whole.insert(run)),
            Want::Group(key) => self.world.put_group(key, Default::default()),
            Want::Agent(id) => drop(self.world.agents.insert(id, None)),
        }
    }

    fn agent(&mut self, id: &str, process: &str, how: &[&str]) -> String {
        let standing = AgentStanding {
            principal: "pool".into(),
            secret: Some(AGENT_SECRET),
            process: Some(process.into()),
            session: 1,
            revoked: how.contains(&"revoked"),
        };
        self.world.agents.insert(id.into(), Some(standing));
        "ok".into()
    }

    /// A member of both groups, of another run.
    fn other(&mut self, n: &str, how: &[&str]) -> String {
        let id = RunId(n.parse().unwrap()).job(0);
        for key in [GROUP_OF_RUNS, GROUP_OF_JOBS] {
            self.world.put_group(key, Default::default());
            let members = self.world.groups.get_mut(&key).unwrap();
            let member = Member {
                id,
                taken: how.contains(&"at-work"),
                cancel_older: how.contains(&"cancels"),
            };
            match how {
                ["leaves"] => members.remove(&id),
                _ => members.insert(id, member),
            };
        }
        "ok".into()
    }

    /// One pass of a sweeper: the run first, then every attempt that may be due.
    fn due(&mut self) -> String {
        let before = self.records.len();
        let _ = self.decide(&Command::RunDue { run: RUN });
        let attempts: Vec<AttemptId> = self.world.attempts.keys().copied().collect();
        for id in attempts {
            let attempt = self.world.attempts[&id].clone();
            if attempt
                .and_then(|a| attempt_due_at(&a))
                .is_some_and(|at| self.now >= at)
            {
                let _ = self.decide(&Command::AttemptDue { attempt: id });
            }
        }
        if self.records.len() > before {
            "changed"
        } else {
            "nothing"
        }
        .into()
    }

    fn show_run(&self) -> String {
        let run = self.world.runs[&RUN].as_ref().unwrap();
        let mut text = run.state.name().to_string();
        if run.state == RunState::Reported || run.live_jobs > 0 && run.outcome.is_some() {
            text = format!("{text} {}", run.outcome.unwrap().name());
        }
        run.cause
            .map_or(text.clone(), |cause| format!("{text} {}", cause.name()))
    }

    fn show_job(&self, name: &str) -> String {
        let job = self.world.jobs[&self.id(name)].as_ref().unwrap();
        let attempt = self.world.attempts[&job.current()].as_ref().unwrap();
        let mut text = format!("{} attempt {}", job.state_name(attempt), attempt.id.index);
        if let Some(lease) = &attempt.lease {
            text += &format!(" lease {} {}", lease.number, lease.state.name());
            if let Some(revocation) = lease.revocation {
                text += &format!("({})", revocation.name());
            }
        }
        if attempt.losses > 0 {
            text += &format!(" losses {}", attempt.losses);
        }
        if attempt.dispatches > 0 {
            text += &format!(" dispatches {}", attempt.dispatches);
        }
        attempt
            .cause
            .map_or(text.clone(), |cause| format!("{text} {}", cause.name()))
    }

    /// I17: the facts alone give the rows back.
    fn check_fold(&self) {
        let mut folded = World::default();
        for record in &self.records {
            for fact in &record.facts {
                fact.apply(&mut folded, record.run, record.at).unwrap();
            }
        }
        for (id, attempt) in &self.world.attempts {
            let Some(have) = attempt else {
                continue;
            };
            let mut have = Attempt::clone(have);
            let mut want = Attempt::clone(folded.attempts[id].as_ref().unwrap());
            for side in [&mut have, &mut want] {
                side.progress = Progress::default();
                side.cancel_told_at = None;
                if let Some(lease) = &mut side.lease {
                    lease.expires_at = Millis::ZERO;
                    lease.heartbeat_seq = None;
                }
            }
            assert_eq!(have, want);
        }
        for (id, job) in self.world.jobs.iter().filter(|(_, job)| job.is_some()) {
            assert_eq!(job, &folded.jobs[id]);
        }
        for (id, run) in self.world.runs.iter().filter(|(_, run)| run.is_some()) {
            assert_eq!(run, &folded.runs[id]);
        }
    }
}
