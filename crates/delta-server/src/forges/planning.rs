//! Planning: a duty that takes runs in PLANNING, fetches their commit and has it planned by another
//! process, so that a crash, a hang or a bomb costs that run only (F46, T13).
//!
//! Two processes, both this binary: one that fetches and has the repository's credential, one that
//! reads a stranger's files and has nothing. What they say is read like any other stranger's word.
//! If the server dies meanwhile, the run is in PLANNING still, and is taken again (SM-7).

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delta_core::{Cause, Command, Reply, Run, RunId, RunState};
use delta_store::read::{Reader, RunFilter, RunKind};
use delta_wire::api::{CreateRun, SecretKind, SecretValue, Trigger};
use delta_wire::planning::{FETCH_WORKER, FetchAnswer, FetchOrder, PLAN_WORKER};
use delta_wire::planning::{PlanAnswer, PlanOrder};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::supersede::{self, Other};
use super::worker::{Broken, Workers};
use super::{Registered, find};
use crate::create::{self, Asked};
use crate::http::App;
use crate::writer::{Lane, NotDone};

/// How often runs that wait for a plan are looked for, beside when one was just made.
const EVERY: Duration = Duration::from_secs(1);
/// Runs looked at in one pass.
const LOOKED_AT: usize = 1_000;
/// Plans made at a time: each is a process that uses a processor.
const AT_ONCE: usize = 2;
/// How long a fetch may take: a large repository over a slow line.
const FETCHING: Duration = Duration::from_secs(5 * 60);
/// How often a run that is being planned is looked at for a cancel.
const LOOKING: Duration = Duration::from_millis(500);
/// Memory of a planner: a hundred times what a large monorepo takes.
const MEMORY: u64 = 2 << 30;
/// Runs of one request that are looked at: more than anybody pushes while one waits.
const OF_A_REQUEST: usize = 200;
/// Bytes of what the planner said that are kept.
const MAX_PLAN: usize = 256 * 1024;

pub struct Planning {
    pub app: App,
    pub workers: Workers,
    pub wake: Arc<Notify>,
    busy: Mutex<BTreeSet<RunId>>,
    turns: Arc<Semaphore>,
    /// One fetch at a time into each repository.
    mirrors: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// What became of a run that was planned.
enum Planned {
    Jobs(Box<CreateRun>, serde_json::Value),
    Nothing(serde_json::Value),
    Failed(Cause, String),
    /// Somebody canceled it, or it is over.
    Stopped,
}

impl Planning {
    pub fn new(app: App, program: PathBuf, mirrors: PathBuf) -> Planning {
        Planning {
            wake: app.planning.clone(),
            app,
            workers: Workers { program, mirrors },
            busy: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            mirrors: Mutex::default(),
        }
    }

    pub async fn run(self, stop: CancellationToken) {
        let this = Arc::new(self);
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = this.wake.notified() => {}
                () = stop.cancelled() => return,
            }
            if let Err(why) = this.run_once(&stop).await {
                tracing::warn!(why, "no plans are made; the next look tries again");
            }
        }
    }

    /// Begins to plan whatever waits for it; how many.
    pub async fn run_once(self: &Arc<Self>, stop: &CancellationToken) -> Result<usize, String> {
        let filter = RunFilter {
            state: Some(RunState::Planning),
            ..RunFilter::default()
        };
        let waiting = self.read(move |reader| {
            let runs = reader.runs(&filter, LOOKED_AT)?;
            let mut ready = Vec::new();
            for run in runs {
                if is_ready(reader, &run)? {
                    ready.push(run);
                }
            }
            Ok(ready)
        });
        let mut begun = 0;
        // The oldest first.
        for run in waiting.await?.into_iter().rev() {
            if !self.busy().insert(run.id) {
                continue;
            }
            begun += 1;
            let (this, stop) = (self.clone(), stop.clone());
            tokio::spawn(async move {
                let id = run.id;
                tokio::select! {
                    () = this.one(run) => {}
                    // Its processes end with it, and another server or the next start takes it.
                    () = stop.cancelled() => {}
                }
                this.busy().remove(&id);
            });
        }
        Ok(begun)
    }

    fn busy(&self) -> std::sync::MutexGuard<'_, BTreeSet<RunId>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn one(&self, run: Run) {
        let Ok(_turn) = self.turns.acquire().await else {
            return;
        };
        let planned = tokio::select! {
            planned = self.plan(&run) => planned,
            () = self.until_stopped(run.id) => Planned::Stopped,
        };
        if let Err(why) = self.settle(&run, planned).await {
            tracing::warn!(run = %run.id, why, "a plan was not taken; it is made again");
        }
    }

    /// Returns when nobody wants the plan any more.
    async fn until_stopped(&self, id: RunId) {
        loop {
            tokio::time::sleep(LOOKING).await;
            let found = self.read(move |reader| reader.run(id)).await;
            let stopped = |run: &Run| run.cancel.is_some() || run.state != RunState::Planning;
            match found {
                Ok(Some(rows)) if !stopped(&rows.run) => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    async fn plan(&self, run: &Run) -> Planned {
        if run.cancel.is_some() {
            return Planned::Stopped;
        }
        let trigger = run.header.trigger.as_deref().and_then(Trigger::from_text);
        let Some(trigger) = trigger else {
            return Planned::Failed(Cause::PlanError, "the run has no trigger".into());
        };
        match self.plan_for(run, &trigger).await {
            Ok(planned) => planned,
            Err(why) => Planned::Failed(Cause::PlanError, why),
        }
    }

    async fn plan_for(&self, run: &Run, trigger: &Trigger) -> Result<Planned, String> {
        let (app, name) = (self.app.clone(), trigger.repository.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let Some(registered) = find(&*app.reader, &name)? else {
                return Ok(None);
            };
            let credential = match &registered.credential {
                Some(name) => registered.secret(&*app.reader, &app.secret_keys, name)?,
                None => None,
            };
            Ok(Some((registered, credential)))
        });
        let opened = opened.await.map_err(|error| error.to_string())?;
        let opened = opened.map_err(|error: crate::secrets::SecretError| error.to_string())?;
        let Some((registered, credential)) = opened else {
            let why = format!(
                "the repository {} is not registered any more",
                trigger.repository
            );
            return Ok(Planned::Failed(Cause::PlanError, why));
        };
        // First who else there is, then the head: see `supersede`.
        let others = self.others(run, trigger, &registered).await?;
        let mirror = self
            .workers
            .mirror(&registered.row.name, &registered.row.clone_url);
        let fetched = self.fetch(run, trigger, &registered, credential, &mirror);
        let (head, base) = match fetched.await? {
            FetchAnswer::Fetched { head, base } => (head, base),
            FetchAnswer::Failed(why) => {
                let why = format!("the commit could not be fetched: {why}");
                return Ok(Planned::Failed(Cause::PlanError, why));
            }
        };
        if self.supersede(run, head.as_deref(), &others).await? {
            return Ok(Planned::Stopped);
        }
        let order = PlanOrder {
            mirror,
            commit: run.header.commit.as_deref().unwrap_or_default().into(),
            git_ref: run.header.git_ref.as_deref().map(str::to_owned),
            base: base
                .or_else(|| trigger.base_commit.clone())
                .or_else(|| trigger.before.clone()),
            trigger: trigger.clone(),
            trusted: run.header.trusted,
            cpu_seconds: self.limit().as_secs().max(1),
            memory_bytes: MEMORY,
        };
        let answered = self.workers.call(PLAN_WORKER, &order, self.limit()).await;
        Ok(self.understood(answered, &registered, run.header.trusted))
    }

    /// How long the planner itself may take (A33).
    fn limit(&self) -> Duration {
        let span = self.app.writer.shared().settings.planning_timeout;
        Duration::from_millis(span.0.unsigned_abs())
    }

    async fn fetch(
        &self,
        run: &Run,
        trigger: &Trigger,
        registered: &Registered,
        credential: Option<SecretValue>,
        mirror: &str,
    ) -> Result<FetchAnswer, String> {
        if registered.credential.is_some() && credential.is_none() {
            let name = registered.credential.as_deref().unwrap_or_default();
            return Ok(FetchAnswer::Failed(format!("the secret {name} is not set")));
        }
        let order = FetchOrder {
            mirror: mirror.to_owned(),
            url: registered.row.clone_url.to_string(),
            git_ref: run.header.git_ref.as_deref().map(str::to_owned),
            commit: run.header.commit.as_deref().unwrap_or_default().to_owned(),
            base: trigger.base.clone(),
            credential: credential.map(as_text),
        };
        let lock = {
            let mut mirrors = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
            mirrors.entry(mirror.to_owned()).or_default().clone()
        };
        let _lock = lock.lock().await;
        let answered = self.workers.call(FETCH_WORKER, &order, FETCHING).await;
        Ok(answered.unwrap_or_else(|broken| FetchAnswer::Failed(broken.to_string())))
    }

    /// Other runs of the same request.
    async fn others(
        &self,
        run: &Run,
        trigger: &Trigger,
        registered: &Registered,
    ) -> Result<Vec<Other>, String> {
        // A rerun was asked for by a person: it is nobody's older or newer.
        let rerun = run.header.rerun_of.is_some();
        if trigger.number.is_none() || !registered.supersede || rerun {
            return Ok(Vec::new());
        }
        let filter = RunFilter {
            repository: run.header.repository.clone(),
            git_ref: run.header.git_ref.clone(),
            kind: RunKind::Plain,
            ..RunFilter::default()
        };
        let found = self.read(move |reader| reader.runs(&filter, OF_A_REQUEST));
        let other = |run: &Run| Other {
            id: run.id,
            commit: run.header.commit.as_deref().unwrap_or_default().to_owned(),
            live: !run.state.has_ended(),
        };
        let found = found.await?;
        let first = found.iter().filter(|run| run.header.rerun_of.is_none());
        Ok(first.map(other).collect())
    }

    /// Ends what is older; true when this run is old itself.
    async fn supersede(
        &self,
        run: &Run,
        head: Option<&str>,
        others: &[Other],
    ) -> Result<bool, String> {
        let commit = run.header.commit.as_deref().unwrap_or_default();
        let outcome = supersede::judge(run.id, commit, head.unwrap_or_default(), others);
        let own = outcome.is_old.then_some(run.id);
        for id in outcome.ends.into_iter().chain(own) {
            let command = Command::CancelRun {
                run: id,
                cause: Cause::Superseded,
                by: "server".into(),
            };
            self.command(command).await?;
        }
        Ok(outcome.is_old)
    }

    fn understood(
        &self,
        answered: Result<PlanAnswer, Broken>,
        registered: &Registered,
        trusted: bool,
    ) -> Planned {
        let (request, plan) = match answered {
            Ok(PlanAnswer::Jobs { request, plan }) => (request, plan),
            Ok(PlanAnswer::Nothing { plan }) => return Planned::Nothing(plan),
            Ok(PlanAnswer::Empty(why)) => return Planned::Failed(Cause::EmptyPlan, why),
            Ok(PlanAnswer::Fault(why)) => return Planned::Failed(Cause::PlanError, why),
            Err(Broken::Time(_)) => {
                let why = Cause::PlanTimeout.sentence().to_owned();
                return Planned::Failed(Cause::PlanTimeout, why);
            }
            Err(broken) => {
                let why = format!("the planner did not answer: {broken}");
                return Planned::Failed(Cause::PlanError, why);
            }
        };
        let mut request = request;
        // A stranger's job gets no credential, so it is not told of one.
        if let Some(credential) = registered.credential.as_deref().filter(|_| trusted) {
            lend(&mut request, credential);
        }
        let bytes = serde_json::to_vec(&request).unwrap_or_default();
        match CreateRun::parse(&bytes) {
            Ok(request) => Planned::Jobs(Box::new(request), plan),
            Err(problems) => {
                let why = format!("the plan is not one that can run: {problems}");
                Planned::Failed(Cause::PlanError, why)
            }
        }
    }

    async fn settle(&self, run: &Run, planned: Planned) -> Result<(), String> {
        let id = run.id;
        let (command, specs, said) = match planned {
            Planned::Stopped => (
                Command::Plan {
                    run: id,
                    jobs: vec![],
                },
                vec![],
                None,
            ),
            Planned::Nothing(plan) => (
                Command::Plan {
                    run: id,
                    jobs: vec![],
                },
                vec![],
                Some(plan),
            ),
            Planned::Failed(cause, why) => {
                let said = serde_json::json!({ "error": why });
                (Command::FailPlan { run: id, cause }, vec![], Some(said))
            }
            Planned::Jobs(request, plan) => {
                let asked = Asked {
                    by: run.header.created_by.clone(),
                    idempotency: None,
                };
                let settings = &self.app.writer.shared().settings;
                match create::new_run(id, &request, asked, settings) {
                    Ok((new, specs)) => {
                        let jobs = new.jobs.unwrap_or_default();
                        (Command::Plan { run: id, jobs }, specs, Some(plan))
                    }
                    Err(why) => {
                        let said = serde_json::json!({ "error": why.to_string() });
                        let cause = Cause::PlanError;
                        (Command::FailPlan { run: id, cause }, vec![], Some(said))
                    }
                }
            }
        };
        // Only a run that was canceled ends without a plan: one that is over refuses it anyway.
        if let Some(said) = said {
            let text = bounded(said);
            self.read(move |reader| reader.put_plan(id, &text)).await?;
        } else if !self.is_canceled(id).await? {
            return Ok(());
        }
        let answer = self
            .app
            .writer
            .create(self.app.writer.now(), command, specs);
        match answer.await {
            Ok(answer) => {
                debug_assert!(matches!(answer.reply, Reply::Done { .. }));
                self.app.metrics().plans.inc();
                Ok(())
            }
            Err(NotDone::Refused(delta_core::Refusal::BadPlan(why))) => {
                let said = serde_json::json!({ "error": why }).to_string();
                self.read(move |reader| reader.put_plan(id, &said)).await?;
                let cause = Cause::PlanError;
                self.command(Command::FailPlan { run: id, cause }).await
            }
            // It is not in PLANNING any more: somebody else was first.
            Err(NotDone::Refused(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn is_canceled(&self, id: RunId) -> Result<bool, String> {
        let rows = self.read(move |reader| reader.run(id)).await?;
        Ok(rows.is_some_and(|rows| rows.run.cancel.is_some()))
    }

    async fn command(&self, command: Command) -> Result<(), String> {
        let now = self.app.writer.now();
        match self.app.writer.command(Lane::People, now, command).await {
            Ok(_) | Err(NotDone::Refused(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Reader) -> Result<T, delta_store::StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let done = self.app.read(read).await;
        done.map_err(|error| error.body.message)
    }
}

/// Whether it can be planned now: nobody has to let it go on, or somebody did, or wants it over.
fn is_ready(reader: &dyn Reader, run: &Run) -> Result<bool, delta_store::StoreError> {
    let trigger = run.header.trigger.as_deref().and_then(Trigger::from_text);
    let Some(trigger) = trigger else {
        // Somebody else's to plan.
        return Ok(false);
    };
    Ok(!trigger.gated || run.cancel.is_some() || reader.approval(run.id)?.is_some())
}

/// A credential as the text of a secret has it.
fn as_text(value: SecretValue) -> String {
    match (value.kind, value.username, value.known_hosts) {
        (SecretKind::SshKey, _, Some(hosts)) => format!("{}\n{hosts}", value.value.trim_end()),
        (_, Some(user), _) => format!("{user}\n{}", value.value),
        _ => value.value,
    }
}

/// Names the credential for the checkout of every job that has no word of its own about it.
fn lend(request: &mut serde_json::Value, credential: &str) {
    let Some(jobs) = request["jobs"].as_array_mut() else {
        return;
    };
    for job in jobs {
        let Some(spec) = job["job_spec"].as_object_mut() else {
            continue;
        };
        let checkout = spec
            .entry("checkout")
            .or_insert_with(|| serde_json::json!({}));
        match checkout {
            serde_json::Value::Bool(true) => {
                *checkout = serde_json::json!({ "credential": credential });
            }
            serde_json::Value::Object(options) => {
                options
                    .entry("credential")
                    .or_insert_with(|| credential.into());
            }
            _ => {}
        }
    }
}

fn bounded(said: serde_json::Value) -> String {
    let text = said.to_string();
    match text.len() <= MAX_PLAN {
        true => text,
        false => {
            serde_json::json!({ "error": "what the planner said is too long to keep" }).to_string()
        }
    }
}
