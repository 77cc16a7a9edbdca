//! Somebody with a user's token: makes runs, looks at them, cancels them.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use delta_testkit::wait::eventually;
use serde_json::{Value, json};

use super::http::{Answer, Http};

/// Generous: two cores may be shared by other tests and builds.
pub const SOON: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Person {
    pub http: Http,
}

/// A job that any runner can do.
pub fn job(name: &str) -> Value {
    json!({"name": name, "job_spec": {"steps": ["true"]}})
}

/// A run of so many jobs.
pub fn jobs(count: usize) -> Value {
    let jobs: Vec<Value> = (1..=count).map(|n| job(&format!("job-{n}"))).collect();
    json!({ "jobs": jobs })
}

impl Person {
    pub fn new(addr: SocketAddr, token: &str) -> Person {
        let token = token.to_owned();
        Person {
            http: Http { addr, token },
        }
    }

    /// Makes a run and returns its id.
    #[track_caller]
    pub fn create(&self, body: &Value) -> String {
        let answer = self.http.post("/api/v1/runs", body).expect("an answer");
        answer.expect(201).word("run_id").to_owned()
    }

    /// Makes a run under an idempotency key.
    pub fn create_keyed(&self, key: &str, body: &Value) -> std::io::Result<Answer> {
        let headers = [("Idempotency-Key", key)];
        let body = body.to_string();
        self.http
            .send("POST", "/api/v1/runs", &headers, body.as_bytes())
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.http.get(path).expect("an answer").expect(200).body
    }

    #[track_caller]
    pub fn run(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/runs/{id}"))
    }

    #[track_caller]
    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/jobs/{id}"))
    }

    /// The current attempt of a job.
    #[track_caller]
    pub fn attempt(&self, job: &str) -> Value {
        let job = self.job(job);
        let attempts = job["attempts"].as_array().expect("attempts");
        attempts.last().expect("an attempt").clone()
    }

    /// Every event of a run, oldest first.
    #[track_caller]
    pub fn events(&self, run: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let page = self.get(&format!("/api/v1/runs/{run}/events?after={after}"));
            let events = page["events"].as_array().expect("events").clone();
            all.extend(events);
            match page["next_after"].as_u64() {
                Some(next) if next > after => after = next,
                _ => return all,
            }
        }
    }

    pub fn cancel(&self, run: &str) -> std::io::Result<Answer> {
        self.http
            .post(&format!("/api/v1/runs/{run}/cancel"), &json!({}))
    }

    /// All run ids there are.
    #[track_caller]
    pub fn run_ids(&self) -> Vec<String> {
        let mut ids = Vec::new();
        let mut path = "/api/v1/runs?limit=200".to_owned();
        loop {
            let page = self.get(&path);
            for run in page["runs"].as_array().expect("runs") {
                ids.push(run["run_id"].as_str().expect("an id").to_owned());
            }
            match page["next_cursor"].as_str() {
                Some(cursor) => path = format!("/api/v1/runs?limit=200&cursor={cursor}"),
                None => return ids,
            }
        }
    }

    /// Waits until the run is over; returns it.
    #[track_caller]
    pub fn until_over(&self, run: &str) -> Value {
        self.until_over_within(SOON, run)
    }

    /// Waits until so many lease requests wait at the server.
    #[track_caller]
    pub fn until_parked(&self, wanted: usize) {
        let line = format!("delta_parked_slots {wanted}");
        until(
            "parked requests",
            || self.http.get("/metrics").unwrap().text,
            |text| text.lines().any(|found| found == line),
        );
    }

    /// Waits for so long until the run is over; returns it.
    #[track_caller]
    pub fn until_over_within(&self, patience: Duration, run: &str) -> Value {
        eventually(patience, "the run is over", || {
            let seen = self.run(run);
            let over = seen["state"] == "REPORTED";
            if over { Ok(seen) } else { Err(seen) }
        })
    }
}

/// Looks until it is as wanted.
#[track_caller]
pub fn until<T: Debug>(what: &str, mut look: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    eventually(SOON, what, || {
        let seen = look();
        if wanted(&seen) { Ok(seen) } else { Err(seen) }
    })
}
