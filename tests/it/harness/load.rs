//! Load: clients that make runs and runners that do them, all at once and in spite of everything.
//!
//! They behave as the protocol asks of clients: what is not answered is sent again, word for word.
//! What is answered goes into the [`History`]. A part of the runners dies now and then.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use delta_testkit::rng::Rng;
use serde_json::{Value, json};

use super::history::History;
use super::http::Answer;
use super::person::Person;
use super::runner::{Grant, Runner};

/// Until the last run is over: several jobs in a row may each lose a runner first.
const ALL_OVER: Duration = Duration::from_secs(120);

/// Before a message is sent again.
const PAUSE: Duration = Duration::from_millis(20);

/// One in so many leases is dropped without a word, as by a machine that died.
const DEATHS: u64 = 40;

/// Who takes part.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Replicas; each message goes to one of them by chance.
    pub addrs: Vec<SocketAddr>,
    pub user: String,
    pub runner: String,
    pub people: u64,
    pub runners: u64,
    pub seed: u64,
}

/// Clients and runners at work.
pub struct Load {
    shared: Arc<Shared>,
    people: Vec<JoinHandle<()>>,
    runners: Vec<JoinHandle<()>>,
}

struct Shared {
    shape: Shape,
    history: Mutex<History>,
    no_more_runs: AtomicBool,
    go_home: AtomicBool,
}

impl Load {
    pub fn start(shape: Shape) -> Load {
        let shared = Arc::new(Shared {
            history: Mutex::default(),
            no_more_runs: AtomicBool::new(false),
            go_home: AtomicBool::new(false),
            shape,
        });
        let spawn = |number: u64, work: fn(&Shared, u64)| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || work(&shared, number))
        };
        Load {
            people: (0..shared.shape.people)
                .map(|n| spawn(n, make_runs))
                .collect(),
            runners: (0..shared.shape.runners)
                .map(|n| spawn(n, do_runs))
                .collect(),
            shared,
        }
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.shared.history()
    }

    /// Makes no more runs, waits until those there are have ended, and checks everything that was
    /// ever answered.
    #[track_caller]
    pub fn finish(self, person: &Person) -> History {
        self.shared.no_more_runs.store(true, Ordering::SeqCst);
        for thread in self.people {
            thread.join().expect("a client ends well");
        }
        let runs: Vec<String> = self.shared.history().created.values().cloned().collect();
        for run in runs {
            person.until_over_within(ALL_OVER, &run);
        }
        self.shared.go_home.store(true, Ordering::SeqCst);
        for thread in self.runners {
            thread.join().expect("a runner ends well");
        }
        let history = std::mem::take(&mut *self.shared.history());
        history.check(person);
        history
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sends until somebody judges it. `None` when it is time to go home.
    fn insist(
        &self,
        rng: &mut Rng,
        mut send: impl FnMut(SocketAddr) -> std::io::Result<Answer>,
    ) -> Option<Answer> {
        loop {
            let addr = *rng.pick(&self.shape.addrs);
            match send(addr) {
                Ok(answer) if !matches!(answer.status, 429 | 503) => {
                    assert_ne!(answer.status, 500, "{}", answer.text);
                    return Some(answer);
                }
                _ if self.go_home.load(Ordering::SeqCst) => return None,
                _ => self.history().repeated += 1,
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn make_runs(shared: &Shared, number: u64) {
    let mut rng = Rng::part(shared.shape.seed, number);
    let mut count = 0;
    while !shared.no_more_runs.load(Ordering::SeqCst) {
        count += 1;
        let key = format!("key-{number}-{count}");
        let body = some_jobs(&mut rng);
        let answer = shared.insist(&mut rng, |addr| {
            Person::new(addr, &shared.shape.user).create_keyed(&key, &body)
        });
        let Some(answer) = answer else { return };
        let run = answer.expect(201).word("run_id").to_owned();
        shared.history().created.insert(key, run);
        std::thread::sleep(rng.duration(Duration::ZERO..PAUSE));
    }
}

/// One to three jobs, in a row or side by side, with a second try after a failure.
fn some_jobs(rng: &mut Rng) -> Value {
    let chained = rng.chance(0.3);
    let jobs: Vec<Value> = (1..=rng.between(1..4))
        .map(|n| {
            let needs = (chained && n > 1).then(|| format!("job-{}", n - 1));
            json!({"name": format!("job-{n}"), "needs": needs.as_slice(), "max_attempts": 2,
                "retry_on": ["user_exit"], "job_spec": {"steps": ["true"]}})
        })
        .collect();
    json!({ "jobs": jobs })
}

fn do_runs(shared: &Shared, number: u64) {
    let mut rng = Rng::part(shared.shape.seed, 1000 + number);
    let mut life = 0;
    let mut runner = reborn(shared, number, life);
    while !shared.go_home.load(Ordering::SeqCst) {
        let Some(answer) = shared.insist(&mut rng, |addr| runner.through(addr).lease(0.5)) else {
            return;
        };
        if answer.status == 204 {
            continue;
        }
        let grant = Grant::of(&answer.expect(200));
        shared.history().granted.push(grant.clone());
        if rng.below(DEATHS) == 0 {
            life += 1;
            runner = reborn(shared, number, life);
            continue;
        }
        do_job(shared, &mut rng, &runner, grant);
    }
}

fn reborn(shared: &Shared, number: u64, life: u64) -> Runner {
    let id = format!("runner-{number}-{life}");
    Runner::new(shared.shape.addrs[0], &shared.shape.runner, &id)
}

fn do_job(shared: &Shared, rng: &mut Rng, runner: &Runner, grant: Grant) {
    let Some(answer) = shared.insist(rng, |addr| runner.through(addr).ack(&grant)) else {
        return;
    };
    if answer.status != 200 {
        assert_eq!(
            (answer.status, answer.word("type")),
            (409, "StaleLease"),
            "{}",
            answer.text
        );
        return;
    }
    shared.history().acknowledged.push(grant.clone());
    for _ in 0..rng.below(3) {
        std::thread::sleep(rng.duration(Duration::ZERO..PAUSE));
        let beat = shared.insist(rng, |addr| runner.through(addr).heartbeat(&grant));
        match beat {
            Some(answer) if answer.body["extend_lease"] == true => {}
            _ => return,
        }
    }
    let (status, code) = if rng.chance(0.8) {
        ("SUCCEEDED", 0)
    } else {
        ("FAILED", 1)
    };
    let done = shared.insist(rng, |addr| {
        runner.through(addr).complete(&grant, status, code)
    });
    let Some(answer) = done else { return };
    match answer.status {
        200 => shared.history().completed.push((grant, status.to_owned())),
        // The very same message again is answered as it was the first time (A18).
        _ => assert_ne!(answer.word("reason"), "ALREADY_FINAL", "{}", answer.text),
    }
}
