//! Calls that nobody could judge when they were enqueued: no agent with a runner was known then,
//! and the first to come might have been theirs. Once some have come, those of runners that none of
//! them has are dead letters (RQ-45), as they would be if they were enqueued now.
//!
//! Only those. A call that was enqueued later was judged as it came, and waits for its runner
//! however the agents change.

use std::collections::BTreeSet;
use std::time::Duration;

use delta_core::requirement::queue_of;
use delta_core::{Millis, RunId, RunState, Span, Text};
use delta_store::read::{RunFilter, RunKind};
use tokio_util::sync::CancellationToken;

use super::give_up;
use crate::http::{ApiError, App};

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(10);
/// How long after the first agent with runners the others have to come: a fleet does not start in
/// one moment.
const SETTLED: Span = Span::secs(60);
/// Calls that are looked at in one read, and in one pass; the next goes on.
const PAGE: usize = 500;
const MAX_LOOKED_AT: usize = 10_000;

pub struct Unjudged {
    app: App,
    settled: Span,
}

impl Unjudged {
    pub fn new(app: App) -> Unjudged {
        let settled = SETTLED;
        Unjudged { app, settled }
    }

    pub async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = stop.cancelled() => return,
            }
            match self.run_once().await {
                Ok(0) => {}
                Ok(calls) => {
                    tracing::info!(calls, "calls of runners that nobody has were given up")
                }
                Err(error) => {
                    let error = error.body.message;
                    tracing::warn!(error, "calls could not be judged again");
                }
            }
        }
    }

    /// Judges what waits; returns how many calls were given up.
    pub async fn run_once(&self) -> Result<usize, ApiError> {
        let hopeless = self.hopeless().await?;
        let since = match hopeless.is_empty() {
            true => None,
            false => self.app.known_runners.since(&self.app).await?,
        };
        let Some(judged_since) = since.map(|it| it + self.settled) else {
            return Ok(0);
        };
        if self.app.writer.now() < judged_since {
            return Ok(0);
        }
        let mut given_up = 0;
        for key in &hopeless {
            given_up += self.give_up_before(judged_since, key).await?;
        }
        Ok(given_up)
    }

    /// What waiting calls require of a runner that nobody has.
    async fn hopeless(&self) -> Result<BTreeSet<Text>, ApiError> {
        let waiting = self.app.read(|reader| reader.queue()).await?;
        let mut hopeless = BTreeSet::new();
        for depth in waiting {
            let mut words = depth.match_key.split(' ');
            let Some(runner) = words.find_map(|word| word.strip_prefix("runner:")) else {
                continue;
            };
            if self
                .app
                .known_runners
                .is_hopeless(&self.app, runner)
                .await?
            {
                hopeless.insert(depth.match_key);
            }
        }
        Ok(hopeless)
    }

    async fn give_up_before(&self, moment: Millis, key: &Text) -> Result<usize, ApiError> {
        let (mut before, mut looked_at, mut given_up) = (first_of(moment), 0, 0);
        loop {
            let filter = RunFilter {
                before: Some(before),
                state: Some(RunState::Queued),
                kind: RunKind::Functions,
                queue: queue_of(key).map(Into::into),
                ..RunFilter::default()
            };
            let page = self.app.read(move |reader| {
                let runs = reader.runs(&filter, PAGE)?;
                let rows = runs.iter().map(|run| reader.job(run.id.job(1)));
                rows.filter_map(Result::transpose)
                    .collect::<Result<Vec<_>, _>>()
            });
            let page = page.await?;
            let meant = page.iter().filter(|rows| rows.job.policy.requires == *key);
            let meant: Vec<RunId> = meant.map(|rows| rows.run.id).collect();
            given_up += meant.len();
            give_up(&self.app, meant.into_iter()).await?;
            looked_at += page.len();
            match page.last() {
                Some(last) if page.len() == PAGE && looked_at < MAX_LOOKED_AT => {
                    before = last.run.id;
                }
                _ => return Ok(given_up),
            }
        }
    }
}

/// The smallest id that a run of this moment can have: ids begin with their milliseconds.
fn first_of(moment: Millis) -> RunId {
    let millis = u128::try_from(moment.0).unwrap_or(0);
    RunId(millis << 80)
}

#[cfg(test)]
mod tests {
    use delta_store::agents::AgentRow;
    use delta_store::read::Role;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Config, Server, StoreChoice};

    struct Desk {
        server: Server,
        user: String,
        _data: tempfile::TempDir,
    }

    impl Desk {
        async fn new() -> Desk {
            let data = tempfile::tempdir().unwrap();
            let config = Config {
                listen: Some(([127, 0, 0, 1], 0).into()),
                store: StoreChoice::Memory,
                duties: false,
                ..Config::recommended(data.path().to_owned())
            };
            let server = crate::start(config).await.unwrap();
            let user = server.create_token(Role::User, "u").await.unwrap();
            Desk {
                server,
                user,
                _data: data,
            }
        }

        fn app(&self) -> App {
            self.server.app.clone()
        }

        async fn request(&self, path: &str, body: Option<Value>) -> Value {
            let url = format!("http://{}{path}", self.server.addr().unwrap());
            let client = reqwest::Client::new();
            let request = match body {
                Some(body) => client.post(url).body(body.to_string()),
                None => client.get(url),
            };
            let answer = request.bearer_auth(&self.user).send().await.unwrap();
            serde_json::from_str(&answer.text().await.unwrap()).unwrap()
        }

        async fn enqueue(&self, function: &str) -> String {
            let call = json!({ "function": function, "queue": "mail" });
            let view = self.request("/api/v1/functions", Some(call)).await;
            view["id"].as_str().unwrap().to_owned()
        }

        async fn shown(&self, id: &str) -> Value {
            self.request(&format!("/api/v1/functions/{id}"), None).await
        }

        /// An agent with this runner has come, and is known for good.
        fn agent(&self, id: &str, runner: &str) {
            let now = self.app().writer.now();
            let row = AgentRow {
                id: id.into(),
                principal: "p".into(),
                resume: None,
                slots: 1,
                about: json!({ "runtimes": [format!("runner:{runner}")] })
                    .to_string()
                    .into(),
                session: 1,
                drain: None,
                created_at: now,
                seen_at: now,
                revoked_at: None,
            };
            assert!(self.app().reader.new_agent(&row).unwrap());
        }

        async fn judged(&self, settled: Span) -> usize {
            let app = self.app();
            app.known_runners.forget();
            let duty = Unjudged { app, settled };
            duty.run_once().await.unwrap()
        }
    }

    #[tokio::test]
    async fn what_came_before_the_first_agent_is_judged_once_there_is_one() {
        // RQ-45
        let desk = Desk::new().await;
        let mut early = Vec::new();
        for function in ["ruby#a", "ruby#b", "python#f", "plain"] {
            early.push(desk.enqueue(function).await);
        }
        assert_eq!(desk.judged(Span::ZERO).await, 0, "the first may still come");
        desk.agent("a", "python");
        assert_eq!(desk.judged(SETTLED).await, 0, "another may be on its way");
        // In the same millisecond nobody can tell what came first.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let settled = Span(1);
        assert_eq!(desk.judged(settled).await, 2);
        for id in &early[..2] {
            let call = desk.shown(id).await;
            let ended = (&call["state"], &call["dead_letter"], &call["cause"]);
            let wanted = (&json!("FAILED"), &json!(true), &json!("handler_not_found"));
            assert_eq!(ended, wanted, "{call}");
            assert_eq!(call["summary"], "no agent has the runner `ruby`", "{call}");
        }
        for id in &early[2..] {
            assert_eq!(desk.shown(id).await["state"], "QUEUED");
        }
        assert_eq!(desk.judged(settled).await, 0, "an empty pass");
    }

    #[tokio::test]
    async fn a_call_whose_runner_was_known_waits_for_it_however_the_agents_change() {
        let desk = Desk::new().await;
        desk.agent("a", "ruby");
        desk.app().known_runners.forget();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let call = desk.enqueue("ruby#a").await;
        let seen = delta_store::agents::AgentSeen {
            id: "a".into(),
            slots: 1,
            about: json!({ "runtimes": ["runner:python"] }).to_string().into(),
            session: 2,
            seen_at: desk.app().writer.now(),
        };
        desk.app().reader.agents_seen(&[seen]).unwrap();
        assert_eq!(desk.judged(Span::ZERO).await, 0);
        assert_eq!(desk.shown(&call).await["state"], "QUEUED");
    }
}
