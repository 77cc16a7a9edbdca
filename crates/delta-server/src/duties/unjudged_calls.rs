//! Calls that nobody could judge when they were enqueued: no agent with a runner was known then,
//! and the first to come might have been theirs. They say so in their header. Once some have come,
//! those of runners that none of them has are dead letters (RQ-45), as they would be if they were
//! enqueued now.
//!
//! Only those. A call that was judged as it came waits for its runner however the agents change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use delta_core::requirement::queue_of;
use delta_core::{RunId, RunState, Text};
use delta_store::read::{RunFilter, RunKind};

use super::every::Duty;
use crate::app::App;
use crate::functions::give_up;
use crate::not_done::NotDone;

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(10);
/// How long a runner that calls wait for has to come once others are known: a fleet does not start
/// in one moment.
const SETTLED: Duration = Duration::from_secs(60);
/// Calls that are looked at in one read, and in one pass; the next goes on where this one ended.
const PAGE: usize = 500;
const MAX_LOOKED_AT: usize = 10_000;

pub struct UnjudgedCalls {
    app: App,
    settled: Duration,
    most: usize,
    /// What waiting calls require of a runner that nobody has.
    hopeless: BTreeMap<Text, Stage>,
}

/// How far one of them is.
#[derive(Clone, Copy)]
enum Stage {
    /// Its runner may still come.
    Since(Instant),
    /// Calls of this id and newer ones were looked at.
    DownTo(RunId),
    /// All were: as long as some runner is known, none comes unjudged.
    Done,
}

impl Duty for UnjudgedCalls {
    const NAME: &'static str = "unjudged_calls";
    type Counts = usize;
    type Error = NotDone;

    fn interval(&self) -> Duration {
        EVERY
    }

    /// Judges what waits; returns how many calls were given up.
    async fn run_once(&mut self) -> Result<usize, NotDone> {
        let found = self.find_hopeless().await?;
        self.hopeless.retain(|key, _| found.contains(key));
        let mut given_up = 0;
        for key in found {
            let now = Instant::now();
            let stage = *self
                .hopeless
                .entry(key.clone())
                .or_insert(Stage::Since(now));
            let below = match stage {
                Stage::Since(since) if now.duration_since(since) < self.settled => continue,
                Stage::Since(_) => None,
                Stage::DownTo(run) => Some(run),
                Stage::Done => continue,
            };
            let (count, stage) = self.give_up_below(below, &key).await?;
            given_up += count;
            self.hopeless.insert(key, stage);
        }
        if given_up > 0 {
            let calls = given_up;
            tracing::info!(calls, "calls of runners that nobody has were given up");
        }
        Ok(given_up)
    }
}

impl UnjudgedCalls {
    pub fn new(app: App) -> UnjudgedCalls {
        UnjudgedCalls {
            app,
            settled: SETTLED,
            most: MAX_LOOKED_AT,
            hopeless: BTreeMap::new(),
        }
    }

    async fn find_hopeless(&self) -> Result<BTreeSet<Text>, NotDone> {
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

    /// Goes through the calls that wait, the newest first; how many were given up, and how far it
    /// came.
    async fn give_up_below(
        &self,
        mut below: Option<RunId>,
        key: &Text,
    ) -> Result<(usize, Stage), NotDone> {
        let (mut looked_at, mut given_up) = (0, 0);
        let page_size = PAGE.min(self.most);
        loop {
            let filter = RunFilter {
                before: below,
                state: Some(RunState::Queued),
                kind: RunKind::Functions,
                queue: queue_of(key).map(Into::into),
                ..RunFilter::default()
            };
            let page = self.app.read(move |reader| {
                let runs = reader.runs(&filter, page_size)?;
                let last = runs.last().filter(|_| runs.len() == page_size);
                let last = last.map(|run| run.id);
                let unjudged = runs.iter().filter(|run| run.header.unjudged);
                let rows = unjudged.map(|run| reader.job(run.id.job(1)));
                let rows = rows.filter_map(Result::transpose);
                Ok((rows.collect::<Result<Vec<_>, _>>()?, last))
            });
            let (unjudged, last) = page.await?;
            let meant = unjudged
                .iter()
                .filter(|rows| rows.job.policy.requires == *key);
            let meant: Vec<RunId> = meant.map(|rows| rows.run.id).collect();
            given_up += meant.len();
            give_up(&self.app, meant.into_iter()).await?;
            looked_at += page_size;
            let Some(last) = last else {
                return Ok((given_up, Stage::Done));
            };
            if looked_at >= self.most {
                return Ok((given_up, Stage::DownTo(last)));
            }
            below = Some(last);
        }
    }
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
                process: None,
            };
            assert!(self.app().sides.tables.new_agent(&row).unwrap());
        }

        /// A duty that waits for nobody.
        fn duty(&self) -> UnjudgedCalls {
            UnjudgedCalls {
                settled: Duration::ZERO,
                ..UnjudgedCalls::new(self.app())
            }
        }

        async fn judged(&self) -> usize {
            self.pass(&mut self.duty()).await
        }

        async fn pass(&self, duty: &mut UnjudgedCalls) -> usize {
            self.app().known_runners.forget();
            duty.run_once().await.unwrap()
        }

        /// The agent says what it has anew, as after a restart.
        fn says(&self, id: &str, runtimes: &[&str]) {
            let seen = delta_store::agents::AgentSeen {
                id: id.into(),
                slots: 1,
                about: json!({ "runtimes": runtimes }).to_string().into(),
                session: 2,
                seen_at: self.app().writer.now(),
            };
            self.app().sides.tables.agents_seen(&[seen]).unwrap();
            self.app().known_runners.forget();
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
        assert_eq!(desk.judged().await, 0, "the first may still come");
        desk.agent("a", "python");
        let mut patient = UnjudgedCalls::new(desk.app());
        assert_eq!(
            desk.pass(&mut patient).await,
            0,
            "another may be on its way"
        );
        assert_eq!(desk.judged().await, 2);
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
        assert_eq!(desk.judged().await, 0, "an empty pass");
    }

    #[tokio::test]
    async fn an_agent_that_gets_its_runners_later_is_the_first_with_one() {
        let desk = Desk::new().await;
        desk.agent("a", "none");
        desk.says("a", &[]);
        let call = desk.enqueue("ruby#a").await;
        assert_eq!(desk.judged().await, 0, "nobody has a runner");
        desk.says("a", &["runner:python"]);
        assert_eq!(desk.judged().await, 1);
        assert_eq!(desk.shown(&call).await["dead_letter"], true);
    }

    #[tokio::test]
    async fn a_call_whose_runner_was_known_waits_for_it_however_the_agents_change() {
        let desk = Desk::new().await;
        desk.agent("a", "ruby");
        desk.app().known_runners.forget();
        let call = desk.enqueue("ruby#a").await;
        desk.says("a", &["runner:python"]);
        assert_eq!(desk.judged().await, 0);
        // The only one that was there first is forgotten, and another has come since.
        desk.agent("b", "python");
        let now = desk.app().writer.now();
        assert!(desk.app().sides.tables.revoke_agent("a", now).unwrap());
        assert_eq!(desk.judged().await, 0);
        assert_eq!(desk.shown(&call).await["state"], "QUEUED");
    }

    #[tokio::test]
    async fn a_call_that_is_run_again_is_judged_by_who_is_known_then() {
        let desk = Desk::new().await;
        let early = desk.enqueue("ruby#a").await;
        desk.agent("a", "python");
        assert_eq!(desk.judged().await, 1);
        let again = async || {
            let path = format!("/api/v1/runs/{early}/rerun");
            let made = desk.request(&path, Some(json!({}))).await;
            made["run_id"]
                .as_str()
                .unwrap_or_else(|| panic!("{made}"))
                .to_owned()
        };
        let hopeless = again().await;
        assert_eq!(desk.judged().await, 1);
        assert_eq!(desk.shown(&hopeless).await["dead_letter"], true);
        desk.says("a", &["runner:ruby"]);
        let known = again().await;
        desk.says("a", &["runner:python"]);
        assert_eq!(desk.judged().await, 0);
        assert_eq!(desk.shown(&known).await["state"], "QUEUED");
    }

    #[tokio::test]
    async fn a_pass_goes_on_where_the_one_before_ended() {
        let desk = Desk::new().await;
        let old = desk.enqueue("ruby#old").await;
        desk.agent("a", "ruby");
        desk.app().known_runners.forget();
        for _ in 0..5 {
            desk.enqueue("ruby#new").await;
        }
        desk.says("a", &["runner:python"]);
        let mut duty = UnjudgedCalls {
            most: 2,
            ..desk.duty()
        };
        let mut passes = Vec::new();
        for _ in 0..4 {
            passes.push(desk.pass(&mut duty).await);
        }
        assert_eq!(passes, [0, 0, 1, 0]);
        assert_eq!(desk.shown(&old).await["dead_letter"], true);
    }
}
