//! Messages and servers in the simulated world: what is sent, lost, repeated and delayed, batches
//! and their commits, crashes and starts.

use std::sync::Arc;

use delta_core::{Command, JobId, Refusal, Reply};

use super::bug::Bug;
use super::server::{Answer, Ask, Batch, Done, Request, Server};
use super::sometimes::Sometimes;
use super::{Client, Event, Millis, Published, Sent, Sim};
use crate::check::Violation;

/// An hour, as far as a wall clock may jump across a restart.
const HOUR: i64 = 3_600_000;

impl Sim {
    pub(super) fn send(&mut self, client: Client, ask: Ask, specs: Vec<(JobId, Arc<str>)>) {
        self.counter += 1;
        let from = self.counter;
        let sent = Sent {
            client,
            ask: ask.clone(),
            at: self.now,
        };
        self.sent.insert(from, sent);
        if self.lost(client) {
            return;
        }
        let copies = 1 + u64::from(self.rng.per_mille(self.faults.copy));
        for _ in 0..copies {
            let server = self.rng.below(self.desks.len() as u64) as usize;
            let request = Request {
                from,
                ask: ask.clone(),
                at: self.now,
                specs: specs.clone(),
            };
            let delay = self.delay();
            self.after(delay, delay, Event::Arrive { server, request });
        }
    }

    fn lost(&mut self, client: Client) -> bool {
        let cut = match client {
            Client::Agent(agent) => self.agents[agent].cut_off,
            _ => false,
        };
        cut || self.rng.per_mille(self.faults.lose)
    }

    /// Most messages are quick; a few take as long as this story allows.
    fn delay(&mut self) -> i64 {
        if self.rng.per_mille(850) {
            self.rng.between(1, 20)
        } else {
            self.rng.between(1, self.faults.delay)
        }
    }

    /// What the server's own clock shows.
    pub(super) fn clock(&self, server: usize) -> Millis {
        Millis(self.now.0 + self.desks[server].offset)
    }

    pub(super) fn arrive(&mut self, server: usize, mut request: Request) {
        if !self.desks[server].up {
            return;
        }
        request.at = self.clock(server);
        if self.desks[server].inbox.is_empty() {
            self.after(0, 6, Event::Flush { server });
        }
        self.desks[server].inbox.push(request);
    }

    pub(super) fn flush(&mut self, server: usize) -> Result<(), Violation> {
        let requests = std::mem::take(&mut self.desks[server].inbox);
        if requests.is_empty() || !self.desks[server].up {
            return Ok(());
        }
        if self.rng.per_mille(self.faults.crash_in_batch) {
            self.judge.seen.note(Sometimes::CrashBeforeCommit);
            self.crash(server);
            return Ok(());
        }
        if self.bug == Some(Bug::AckBeforeCommit) {
            let answers = self.server().rehearse(&requests);
            self.answer(answers);
            let life = self.desks[server].life;
            let late = Event::Late {
                server,
                requests,
                life,
            };
            self.after(5, 200, late);
            return Ok(());
        }
        let answers = self.commit(server, &requests)?;
        self.answer(answers);
        Ok(())
    }

    fn server(&mut self) -> Server<'_> {
        Server {
            store: &mut self.store,
            settings: &self.settings,
            bug: self.bug,
            entropy: self.rng.word(),
        }
    }

    /// Decides and commits a batch, and has it judged.
    pub(super) fn commit(
        &mut self,
        server: usize,
        requests: &[Request],
    ) -> Result<Vec<(u64, Answer)>, Violation> {
        let clock = self.clock(server);
        self.store.set_clock(clock);
        if let Some(fault) = self.faults.commit_fault(&mut self.rng) {
            self.store.inject(fault);
        }
        let Batch {
            answers,
            done,
            troubles,
        } = self.server().process(requests);
        self.note_troubles(troubles);
        let visible_at = Millis(self.now.0 + self.rng.between(0, 2_500));
        for done in &done {
            let (name, reply) = (done.command.name(), &done.reply);
            let actor = done.command.actor();
            let line = || format!("server {server}: {name} by {actor} -> {reply:?}");
            let quiet = done.record.is_none() && matches!(reply, Reply::Done { changed: false });
            if !quiet {
                self.say(line);
            }
            if done.record.is_some() {
                let run = done.command.run();
                let version = self.versions.entry(run).or_default();
                *version += 1;
                let number = self.feed.len() as u64 + 1;
                self.feed.push(Published {
                    number,
                    visible_at,
                    run,
                    version: *version,
                });
            }
            self.judge.committed(done, &self.settings)?;
            self.one_executes(done)?;
        }
        Ok(answers)
    }

    /// LM-5, LM-17: when work is given to an agent, nobody who keeps the holder's rules is still at
    /// it. Clocks that differ or jump are outside of what those rules can promise.
    fn one_executes(&mut self, done: &Done) -> Result<(), Violation> {
        let (
            Command::Grant {
                attempt, runner, ..
            },
            Reply::Granted { .. },
        ) = (&done.command, &done.reply)
        else {
            return Ok(());
        };
        if self.desks.len() > 1 || self.jumpy {
            return Ok(());
        }
        let others = self.agents.iter().filter(|agent| agent.runner != *runner);
        for agent in others {
            if agent.executes(self.now) == Some(attempt.job) {
                let what = format!("{} still executes {attempt}", agent.runner);
                let invariant = "LM-5";
                return Err(Violation { invariant, what });
            }
        }
        Ok(())
    }

    fn note_troubles(&mut self, troubles: [u64; 4]) {
        let kinds = [
            Sometimes::CommitConflict,
            Sometimes::CommitUnknownApplied,
            Sometimes::CommitUnknownNot,
            Sometimes::StoreAway,
        ];
        for (kind, count) in kinds.into_iter().zip(troubles) {
            if count > 0 {
                self.judge.seen.note(kind);
                self.say(|| kind.text().to_string());
            }
        }
    }

    fn answer(&mut self, answers: Vec<(u64, Answer)>) {
        for (to, answer) in answers {
            let Some(client) = self.sent.get(&to).map(|sent| sent.client) else {
                continue;
            };
            if client == Client::Nobody || self.lost(client) {
                continue;
            }
            let delay = self.delay();
            self.after(delay, delay, Event::Answered { to, answer });
        }
    }

    pub(super) fn answered(&mut self, to: u64, answer: Answer) -> Result<(), Violation> {
        let Some(sent) = self.sent.get(&to).cloned() else {
            return Ok(());
        };
        match &answer {
            Answer::Refused(Refusal::RunnerBusy(_)) => self.judge.seen.note(Sometimes::RunnerBusy),
            Answer::Refused(Refusal::RunnerMismatch) => {
                self.judge.seen.note(Sometimes::RunnerMismatch);
            }
            _ => {}
        }
        if let Answer::Reply(reply) | Answer::Granted(reply, _) = &answer {
            let command = match &sent.ask {
                Ask::Do(command) => command.clone(),
                // Only the reply matters for a grant.
                Ask::Lease { .. } => Command::Report {
                    run: delta_core::RunId(0),
                },
            };
            self.judge.told(&self.store, &command, reply)?;
        }
        match sent.client {
            Client::Agent(agent) => {
                if !self.agents[agent].up || self.agents[agent].cut_off {
                    return Ok(());
                }
                let now = self.now;
                self.agents[agent].hear(&sent, &answer, now, &mut self.rng);
                if let Some(proof) = self.agents[agent].held()
                    && !self.stolen.contains(&proof)
                {
                    self.stolen.push(proof);
                }
            }
            Client::Person(person) => {
                if let Answer::Reply(Reply::Created { run, .. }) = answer {
                    self.people[person].run = Some(run);
                }
            }
            Client::Nobody => {}
        }
        Ok(())
    }

    pub(super) fn sweep(&mut self, server: usize, life: u64) -> Result<(), Violation> {
        if !self.desks[server].up || self.desks[server].life != life {
            return Ok(());
        }
        let clock = self.clock(server);
        let requests = self.server().sweep(clock);
        if !requests.is_empty() {
            self.commit(server, &requests)?;
        }
        let sweep = self.settings.sweep.0;
        self.after(sweep, sweep + 50, Event::Sweep { server, life });
        Ok(())
    }

    pub(super) fn crash(&mut self, server: usize) {
        self.say(|| format!("server {server} dies"));
        let desk = &mut self.desks[server];
        desk.up = false;
        desk.life += 1;
        desk.inbox.clear();
        self.store = self.store.reopen();
        self.after(100, 12_000, Event::Start { server });
    }

    pub(super) fn start(&mut self, server: usize) -> Result<(), Violation> {
        if self.desks[server].up {
            return Ok(());
        }
        if self.faults.clock_jumps {
            self.desks[server].offset += self.rng.between(-HOUR, HOUR);
        }
        let wall = self.clock(server);
        let (clock, clamps) = self.server().start(wall);
        if clock > wall {
            self.judge.seen.note(Sometimes::ClockGuard);
        } else if self.desks[server].offset > HOUR / 10 {
            self.judge.seen.note(Sometimes::ClockForward);
        }
        self.desks[server].offset = clock.0 - self.now.0;
        self.desks[server].up = true;
        self.say(|| {
            format!(
                "server {server} starts, its clock {} ms ahead",
                clock.0 - wall.0
            )
        });
        if self.desks.len() > 1 {
            self.judge.seen.note(Sometimes::TwoServers);
        }
        self.judge.at_rest(&mut self.store)?;
        self.commit(server, &clamps)?;
        let life = self.desks[server].life;
        self.after(0, 1_000, Event::Sweep { server, life });
        Ok(())
    }
}
