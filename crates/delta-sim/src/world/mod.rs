//! One simulated story per seed: people, agents, a bad network, one or two servers, one store.
//!
//! Time is virtual, chance is one generator, everything happens in one thread and in one order: a
//! seed is a story, and the same story every time. First anything may fail; then the faults end and
//! everything must come to rest ([`liveness`]). Refuses to know anything of the machine it runs on.

pub mod agent;
pub mod bug;
pub mod faults;
pub mod judge;
pub mod liveness;
pub mod messages;
pub mod people;
pub mod server;
pub mod sometimes;

use std::collections::BTreeMap;

use delta_core::command::LeaseProof;
use delta_core::{Command, Millis, RunId, Settings, Span};
use delta_store::memory::MemoryStore;
use delta_store::read::Reader;

use crate::check::Violation;
use crate::rng::Rng;
use agent::{Agent, Kind};
use bug::Bug;
use faults::Faults;
use judge::Judge;
use people::Wish;
use server::{Answer, Ask, Request};
use sometimes::Sometimes;

/// When every story begins.
const DAWN: Millis = Millis(1_700_000_000_000);

/// How long anything may fail.
const SAFETY: Span = Span::secs(100);

/// Timings small enough for many lives of a lease in one story.
pub fn settings() -> Settings {
    Settings {
        lease_ttl: Span::secs(6),
        heartbeat_interval: Span::secs(2),
        ack_timeout: Span::secs(3),
        cancel_deadline: Span::secs(3),
        timeout_buffer: Span::secs(1),
        max_losses: 2,
        max_dispatches: 3,
        retry_base: Span::millis(500),
        retry_cap: Span::secs(4),
        sweep: Span::secs(1),
        ..Settings::recommended()
    }
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Agent(usize),
    Person(usize),
    Nobody,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Sent {
    pub client: Client,
    pub ask: Ask,
    pub at: Millis,
}

#[derive(Clone, Debug)]
pub enum Event {
    Arrive {
        server: usize,
        request: Request,
    },
    Answered {
        to: u64,
        answer: Answer,
    },
    Flush {
        server: usize,
    },
    /// [`Bug::AckBeforeCommit`] only: the batch whose answers are already out.
    Late {
        server: usize,
        requests: Vec<Request>,
        life: u64,
    },
    Sweep {
        server: usize,
        life: u64,
    },
    Crash {
        server: usize,
    },
    Start {
        server: usize,
    },
    AgentSpeaks {
        agent: usize,
        life: u64,
    },
    AgentCrash {
        agent: usize,
    },
    AgentStart {
        agent: usize,
    },
    CutOff {
        agent: usize,
        cut: bool,
    },
    PersonActs {
        person: usize,
    },
    Reporter,
    Subscribers,
}

pub struct Desk {
    up: bool,
    /// What its clock shows, minus the true time.
    offset: i64,
    inbox: Vec<Request>,
    life: u64,
}

/// A wish, and what became of it.
pub struct Person {
    wish: Wish,
    run: Option<RunId>,
}

/// An event committed, as a reader by one global number would meet it.
struct Published {
    number: u64,
    visible_at: Millis,
    run: RunId,
    version: u64,
}

pub struct Sim {
    rng: Rng,
    now: Millis,
    queue: BTreeMap<(Millis, u64), Event>,
    counter: u64,
    store: MemoryStore,
    settings: Settings,
    faults: Faults,
    /// The clock of this story jumps, or once did.
    jumpy: bool,
    bug: Option<Bug>,
    desks: Vec<Desk>,
    agents: Vec<Agent>,
    people: Vec<Person>,
    /// Requests on their way, by number.
    sent: BTreeMap<u64, Sent>,
    stolen: Vec<LeaseProof>,
    judge: Judge,
    feed: Vec<Published>,
    feed_read: u64,
    versions: BTreeMap<RunId, u64>,
    timeline: Option<Vec<String>>,
    pub events: u64,
}

/// What a story came to.
pub struct Ending {
    pub violation: Option<Violation>,
    pub seen: sometimes::Seen,
    pub judged: crate::check::Tally,
    pub events: u64,
    pub timeline: Vec<String>,
}

/// Tells the story of a seed.
pub fn tell(seed: u64, bug: Option<Bug>, verbose: bool) -> Ending {
    let mut sim = Sim::new(seed, bug, verbose);
    let violation = sim.story().err();
    Ending {
        violation,
        seen: sim.judge.seen,
        judged: sim.judge.tally,
        events: sim.events,
        timeline: sim.timeline.unwrap_or_default(),
    }
}

impl Sim {
    fn new(seed: u64, bug: Option<Bug>, verbose: bool) -> Sim {
        let mut rng = Rng::new(seed);
        let faults = Faults::draw(&mut rng);
        let kinds = [
            Kind::Honest,
            Kind::Honest,
            Kind::Slow,
            Kind::Deaf,
            Kind::Liar,
        ];
        let mut agents = vec![Agent::new(0, Kind::Honest, &["gpu"])];
        for n in 1..rng.between(3, 5) as usize {
            let kind = *rng.pick(&kinds).unwrap_or(&Kind::Honest);
            let tags: &[&str] = if rng.coin() { &["gpu"] } else { &[] };
            agents.push(Agent::new(n, kind, tags));
        }
        let desks = (0..faults.servers)
            .map(|_| Desk::new(&mut rng, &faults))
            .collect();
        let mut store = MemoryStore::new();
        store.set_clock(DAWN);
        Sim {
            rng,
            now: DAWN,
            queue: BTreeMap::new(),
            counter: 0,
            store,
            settings: settings(),
            jumpy: faults.clock_jumps,
            faults,
            bug,
            desks,
            agents,
            people: Vec::new(),
            sent: BTreeMap::new(),
            stolen: Vec::new(),
            judge: Judge::default(),
            feed: Vec::new(),
            feed_read: 0,
            versions: BTreeMap::new(),
            timeline: verbose.then(Vec::new),
            events: 0,
        }
    }

    fn story(&mut self) -> Result<(), Violation> {
        self.open()?;
        let end = self.now + SAFETY;
        while let Some((&(at, _), _)) = self.queue.first_key_value() {
            if at >= end {
                break;
            }
            self.next()?;
        }
        self.now = end;
        self.liveness()?;
        self.judge.at_the_end(&mut self.store)
    }

    fn open(&mut self) -> Result<(), Violation> {
        for server in 0..self.desks.len() {
            self.start(server)?;
        }
        for agent in 0..self.agents.len() {
            self.after(1, 2_000, Event::AgentSpeaks { agent, life: 0 });
        }
        for _ in 0..self.rng.between(2, 6) {
            self.new_person(None);
        }
        self.after(1_000, 3_000, Event::Reporter);
        self.after(500, 1_500, Event::Subscribers);
        self.plan_faults();
        Ok(())
    }

    fn new_person(&mut self, rerun_of: Option<RunId>) {
        let wish = people::wish(&mut self.rng, rerun_of);
        let person = self.people.len();
        self.people.push(Person { wish, run: None });
        let latest = if rerun_of.is_some() { 2_000 } else { 50_000 };
        self.after(10, latest, Event::PersonActs { person });
    }

    /// Takes the next event off the queue.
    fn next(&mut self) -> Result<(), Violation> {
        let Some(((at, _), event)) = self.queue.pop_first() else {
            return Ok(());
        };
        self.now = at;
        self.events += 1;
        self.happen(event)
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrive { server, request } => self.arrive(server, request),
            Event::Answered { to, answer } => return self.answered(to, answer),
            Event::Flush { server } => return self.flush(server),
            Event::Late {
                server,
                requests,
                life,
            } => {
                if self.desks[server].up && self.desks[server].life == life {
                    return self.commit(server, &requests).map(drop);
                }
                self.judge.seen.note(Sometimes::CrashBeforeCommit);
            }
            Event::Sweep { server, life } => return self.sweep(server, life),
            Event::Crash { server } => self.crash(server),
            Event::Start { server } => return self.start(server),
            Event::AgentSpeaks { agent, life } => self.agent_speaks(agent, life),
            Event::AgentCrash { agent } => {
                self.say(|| format!("agent {agent} dies"));
                self.agents[agent].crash();
                self.after(500, 9_000, Event::AgentStart { agent });
            }
            Event::AgentStart { agent } => {
                self.agents[agent].up = true;
                let life = self.agents[agent].life;
                self.after(1, 500, Event::AgentSpeaks { agent, life });
            }
            Event::CutOff { agent, cut } => {
                self.say(|| format!("agent {agent} cut off: {cut}"));
                self.agents[agent].cut_off = cut;
            }
            Event::PersonActs { person } => self.person_acts(person),
            Event::Reporter => self.report(),
            Event::Subscribers => return self.subscribers(),
        }
        Ok(())
    }

    fn agent_speaks(&mut self, agent: usize, life: u64) {
        if !self.agents[agent].up || self.agents[agent].life != life {
            return;
        }
        let (now, rng) = (self.now, &mut self.rng);
        let speaker = &mut self.agents[agent];
        let ask = speaker.speak(now, rng);
        let lies = speaker.kind == Kind::Liar && rng.per_mille(600);
        let lie = lies.then(|| {
            if rng.per_mille(400) {
                speaker.contradict(rng)
            } else {
                speaker.lie(&self.stolen, rng)
            }
        });
        let pause = speaker.pause(rng);
        for ask in ask.into_iter().chain(lie.flatten().map(Ask::Do)) {
            self.send(Client::Agent(agent), ask, Vec::new());
        }
        self.after(pause, pause, Event::AgentSpeaks { agent, life });
    }

    /// A person sends the wish until it is granted; then looks in now and then.
    fn person_acts(&mut self, person: usize) {
        let wish = self.people[person].wish.clone();
        match self.people[person].run {
            None => {
                let id = self.fresh_run();
                let specs = wish.specs(id);
                let ask = Ask::Do(wish.command(id));
                self.send(Client::Person(person), ask, specs);
                self.after(2_000, 6_000, Event::PersonActs { person });
            }
            Some(run) => {
                let planning = self.run_state(run) == Some(delta_core::RunState::Planning);
                if planning && let Some(plan) = wish.plan(run, &mut self.rng) {
                    self.send(Client::Nobody, Ask::Do(plan), wish.specs(run));
                }
                if self.faults.people && self.rng.per_mille(250) {
                    let cancel = people::cancel(run, &mut self.rng);
                    self.send(Client::Person(person), Ask::Do(cancel), Vec::new());
                }
                let ended = self.run_state(run).is_some_and(|state| state.has_ended());
                if self.faults.people && ended && self.people.len() < 8 && self.rng.per_mille(300) {
                    self.judge.seen.note(Sometimes::Rerun);
                    self.new_person(Some(run));
                }
                self.after(1_500, 8_000, Event::PersonActs { person });
            }
        }
    }

    fn fresh_run(&mut self) -> RunId {
        let high = u128::from(self.now.0 as u64) << 80;
        RunId(high | u128::from(self.rng.word()))
    }

    fn run_state(&self, run: RunId) -> Option<delta_core::RunState> {
        self.judge.memory.runs.get(&run).copied()
    }

    /// Publishes outcomes.
    fn report(&mut self) {
        let ended: Vec<RunId> = self
            .judge
            .memory
            .runs
            .iter()
            .filter(|(_, state)| state.has_ended() && **state != delta_core::RunState::Reported)
            .map(|(run, _)| *run)
            .collect();
        for run in ended {
            self.send(Client::Nobody, Ask::Do(Command::Report { run }), Vec::new());
        }
        self.after(1_000, 3_000, Event::Reporter);
    }

    /// I18: everybody who follows a run gets its events in order, each once.
    fn subscribers(&mut self) -> Result<(), Violation> {
        if self.bug == Some(Bug::BigserialReader) {
            self.read_by_global_number()?;
        } else {
            let runs: Vec<RunId> = self.judge.memory.runs.keys().copied().collect();
            for run in runs {
                let after = self.judge.cursor(run);
                let page = self.store.reader().events(run, after, 20);
                for event in page.unwrap_or_default() {
                    self.judge.delivered(run, event.version)?;
                }
            }
        }
        self.after(500, 1_500, Event::Subscribers);
        Ok(())
    }

    fn read_by_global_number(&mut self) -> Result<(), Violation> {
        let (now, read) = (self.now, self.feed_read);
        let visible =
            |published: &&Published| published.number > read && published.visible_at <= now;
        let mut page: Vec<(u64, RunId, u64)> = self
            .feed
            .iter()
            .filter(visible)
            .map(|feed| (feed.number, feed.run, feed.version))
            .collect();
        page.sort_unstable();
        for (number, run, version) in page {
            self.feed_read = number;
            self.judge.delivered(run, version)?;
        }
        Ok(())
    }

    fn after(&mut self, low: i64, high: i64, event: Event) {
        let at = Millis(self.now.0 + self.rng.between(low, high));
        self.counter += 1;
        self.queue.insert((at, self.counter), event);
    }

    /// A line of the timeline, if anybody reads it.
    fn say(&mut self, line: impl FnOnce() -> String) {
        let since = self.now.since(DAWN).0;
        if let Some(timeline) = &mut self.timeline {
            timeline.push(format!(
                "{:>4}.{:03}  {}",
                since / 1000,
                since % 1000,
                line()
            ));
        }
    }
}
