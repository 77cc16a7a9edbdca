//! Planning: a duty that takes runs in PLANNING, fetches their commit and has it planned by another
//! process, so that a crash, a hang or a bomb costs that run only (F46, T13).
//!
//! Two processes, both this binary: one that fetches and has the repository's credential, one that
//! reads a stranger's files and has nothing. What they say is read like any other stranger's word.
//! If the server dies meanwhile, the run is in PLANNING still, and is taken again (SM-7).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delta_core::{Cause, Command, Reply, Run, RunId, RunState};
use delta_store::read::{Reader, RunFilter};
use delta_wire::api::{CreateRun, SecretValue, Trigger, TriggerEvent, Trust};
use delta_wire::planning::{FetchAnswer, FetchOrder, PLAN_WORKER, PlanAnswer, PlanOrder};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::base::{self, Base};
use super::fetching::{Fetching, as_text};
use super::worker::Broken;
use super::{Registered, find, plan_summary, supersede, supersede_runs};
use crate::app::App;
use crate::duties::every::Duty;
use crate::new_run::{self, Asked};
use crate::not_done::NotDone;
use crate::writer::Lane;

/// How often runs that wait for a plan are looked for, beside when one was just made.
const EVERY: Duration = Duration::from_secs(1);
/// Runs looked at in one pass.
const LOOKED_AT: usize = 1_000;
/// Plans made at a time: each is a process that uses a processor. Fetches have turns of their own,
/// in `mirrors`: a server that does not answer keeps nobody from planning.
const AT_ONCE: usize = 2;
/// How often a run that is being planned is looked at for a cancel, and one that waits for its
/// turn: there may be a thousand of those.
const LOOKING: Duration = Duration::from_millis(500);
const LOOKING_WAITING: Duration = Duration::from_secs(5);
/// Memory of a planner: a hundred times what a large monorepo takes.
const MEMORY: u64 = 2 << 30;

pub struct Planning {
    pub app: App,
    pub fetching: Arc<Fetching>,
    pub wake: Arc<Notify>,
    busy: Mutex<BTreeSet<RunId>>,
    /// Requests whose waiting runs are being sorted out, by the newest.
    sorting: Mutex<BTreeSet<RunId>>,
    turns: Arc<Semaphore>,
}

/// What became of a run that was planned.
enum Planned {
    Jobs(Box<CreateRun>, serde_json::Value),
    Nothing(serde_json::Value),
    Failed(Cause, String),
    /// Somebody canceled it, or it is over.
    Stopped,
}

impl Planned {
    /// Whether it would end whoever came before it to its group.
    fn cancels_older(&self) -> bool {
        match self {
            Planned::Jobs(request, _) => {
                (request.concurrency.as_ref()).is_some_and(|group| group.cancel_older)
            }
            _ => false,
        }
    }
}

impl Duty for Arc<Planning> {
    const NAME: &'static str = "planning";
    type Counts = usize;
    type Error = String;

    fn interval(&self) -> Duration {
        EVERY
    }

    fn bell(&self) -> Option<Arc<Notify>> {
        Some(self.wake.clone())
    }

    async fn run_once(&mut self) -> Result<usize, String> {
        Planning::run_once(self, &self.app.stop).await
    }
}

impl Planning {
    pub fn new(app: App, program: PathBuf, mirrors: PathBuf) -> Planning {
        let fetching = Arc::new(Fetching::new(program, mirrors));
        // People ask for runs, too. The first one stays: there is one in a server.
        let _ = app.fetching.set(fetching.clone());
        Planning {
            wake: app.planning.clone(),
            app,
            fetching,
            busy: Mutex::default(),
            sorting: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
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
            let (mut ready, mut gated) = (Vec::new(), Vec::new());
            for run in runs {
                if is_ready(reader, &run)? {
                    ready.push(run)
                } else {
                    gated.push(run)
                }
            }
            Ok((ready, gated))
        });
        let mut begun = 0;
        let (ready, gated) = waiting.await?;
        self.sort_out(gated, stop);
        // The oldest first.
        for run in ready.into_iter().rev() {
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

    pub(super) fn sorting(&self) -> std::sync::MutexGuard<'_, BTreeSet<RunId>> {
        self.sorting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> std::sync::MutexGuard<'_, BTreeSet<RunId>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn one(&self, run: Run) {
        let working = AtomicBool::new(false);
        let planned = tokio::select! {
            planned = self.plan(&run, &working) => planned,
            () = self.until_stopped(run.id, &working) => Planned::Stopped,
        };
        if let Err(why) = self.settle(&run, planned).await {
            tracing::warn!(run = %run.id, why, "a plan was not taken; it is made again");
        }
    }

    /// Returns when nobody wants the plan any more.
    async fn until_stopped(&self, id: RunId, working: &AtomicBool) {
        let mut waited = Duration::ZERO;
        loop {
            tokio::time::sleep(LOOKING).await;
            waited += LOOKING;
            if !working.load(Ordering::Relaxed) && waited < LOOKING_WAITING {
                continue;
            }
            waited = Duration::ZERO;
            let found = self.read(move |reader| reader.run(id)).await;
            let stopped = |run: &Run| run.cancel.is_some() || run.state != RunState::Planning;
            match found {
                Ok(Some(rows)) if !stopped(&rows.run) => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    async fn plan(&self, run: &Run, working: &AtomicBool) -> Planned {
        if run.cancel.is_some() {
            return Planned::Stopped;
        }
        let trigger = run.header.trigger.as_deref().and_then(Trigger::from_text);
        let Some(trigger) = trigger else {
            return Planned::Failed(Cause::PlanError, "the run has no trigger".into());
        };
        match self.plan_for(run, &trigger, working).await {
            Ok(planned) => planned,
            Err(why) => Planned::Failed(Cause::PlanError, why),
        }
    }

    async fn plan_for(
        &self,
        run: &Run,
        trigger: &Trigger,
        working: &AtomicBool,
    ) -> Result<Planned, String> {
        let opened = self.opened(trigger).await?;
        let Some((registered, credential)) = opened else {
            let why = format!(
                "the repository {} is not registered any more",
                trigger.repository
            );
            return Ok(Planned::Failed(Cause::PlanError, why));
        };
        // First who else there is, then the head: see `supersede`.
        let others = self.others(run, trigger).await?;
        let mirror =
            (self.fetching.workers).mirror(&registered.row.name, &registered.row.clone_url);
        let order = FetchOrder {
            mirror: mirror.clone(),
            url: registered.row.clone_url.to_string(),
            git_ref: run.header.git_ref.as_deref().map(str::to_owned),
            commit: run.header.commit.as_deref().map(str::to_owned),
            base: trigger.base.clone(),
            credential: credential.map(as_text),
        };
        let (head, base) = match self.fetching.fetch(&registered, order, working).await {
            FetchAnswer::Fetched { head, base, .. } => (head, base),
            FetchAnswer::Failed(why) => {
                let why = format!("the commit could not be fetched: {why}");
                return Ok(Planned::Failed(Cause::PlanError, why));
            }
        };
        let head = head.as_deref().unwrap_or_default();
        if supersede_runs::ends_older(trigger, &registered)
            && self.supersede(run, head, &others).await?
        {
            return Ok(Planned::Stopped);
        }
        let Ok(_turn) = self.turns.acquire().await else {
            return Ok(Planned::Stopped);
        };
        working.store(true, Ordering::Relaxed);
        let (base, no_base) = match self.base(run, trigger, base).await? {
            Base::Commit(base) => (Some(base), None),
            Base::Unknown(why) => (None, Some(why.to_owned())),
        };
        let order = PlanOrder {
            mirror,
            commit: run.header.commit.as_deref().unwrap_or_default().into(),
            git_ref: run.header.git_ref.as_deref().map(str::to_owned),
            base,
            no_base,
            trigger: trigger.clone(),
            trusted: run.header.trusted,
            cpu_seconds: self.limit().as_secs().max(1),
            memory_bytes: MEMORY,
        };
        let workers = &self.fetching.workers;
        let answered = workers.call(PLAN_WORKER, &order, self.limit()).await;
        let planned = self.understood(answered, &registered, run.header.trusted);
        let commit = run.header.commit.as_deref().unwrap_or_default();
        if planned.cancels_older() && supersede::is_behind(commit, head, &others) {
            self.end(run.id).await?;
            return Ok(Planned::Stopped);
        }
        Ok(planned)
    }

    /// The repository of a trigger and what it is cloned with; none where it is not registered.
    pub(super) async fn opened(
        &self,
        trigger: &Trigger,
    ) -> Result<Option<(Registered, Option<SecretValue>)>, String> {
        let (app, name) = (self.app.clone(), trigger.repository.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let Some(registered) = find(&*app.sides.reader, &name)? else {
                return Ok(None);
            };
            let credential = match &registered.credential {
                Some(name) => registered.secret(&*app.sides.reader, &app.secret_keys, name)?,
                None => None,
            };
            Ok(Some((registered, credential)))
        });
        let opened = opened.await.map_err(|error| error.to_string())?;
        opened.map_err(|error: crate::secrets::SecretError| error.to_string())
    }

    /// How long the planner itself may take (A33).
    fn limit(&self) -> Duration {
        let span = self.app.writer.shared().settings.planning_timeout;
        Duration::from_millis(span.0.unsigned_abs())
    }

    /// What the commit is compared with, given where a request's branch stands.
    async fn base(
        &self,
        run: &Run,
        trigger: &Trigger,
        branch: Option<String>,
    ) -> Result<Base, String> {
        match trigger.event {
            TriggerEvent::PullRequest => {
                let base = branch.or_else(|| trigger.base_commit.clone());
                let why = "the branch it wants to go to is not known";
                Ok(base.map_or(Base::Unknown(why), Base::Commit))
            }
            TriggerEvent::Manual => Ok(Base::Unknown("somebody asked for it")),
            TriggerEvent::Push | TriggerEvent::Tag => {
                let (run, trigger) = (run.clone(), trigger.clone());
                self.read(move |reader| base::of_push(reader, &run, &trigger))
                    .await
            }
        }
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
                let why = broken.reported(PLAN_WORKER, None);
                let why = format!("the planner did not answer: {why}");
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

    /// What is sent for a plan, the specs of its jobs, and what is kept of what the planner said.
    fn answer(&self, run: &Run, planned: Planned) -> (Command, Vec<Arc<str>>, Option<Value>) {
        let id = run.id;
        let plan = |jobs, settings| Command::Plan {
            run: id,
            jobs,
            settings,
        };
        let failed = |cause, why: String| {
            let said = serde_json::json!({ "error": why });
            (Command::FailPlan { run: id, cause }, vec![], Some(said))
        };
        match planned {
            Planned::Stopped => (plan(vec![], None), vec![], None),
            Planned::Nothing(said) => (plan(vec![], None), vec![], Some(said)),
            Planned::Failed(cause, why) => failed(cause, why),
            Planned::Jobs(request, said) => {
                let asked = Asked {
                    by: run.header.created_by.clone(),
                    idempotency: None,
                };
                let settings = &self.app.writer.shared().settings;
                let request = as_it_came(*request, run);
                match new_run::new_run(id, &request, asked, settings) {
                    Ok((new, specs)) => {
                        // What the file says about the whole run counts from its plan on.
                        let settings = Some(new.header.settings());
                        let jobs = new.jobs.unwrap_or_default();
                        (plan(jobs, settings), specs, Some(said))
                    }
                    Err(why) => failed(Cause::PlanError, why.to_string()),
                }
            }
        }
    }

    async fn settle(&self, run: &Run, planned: Planned) -> Result<(), String> {
        let id = run.id;
        let (command, specs, said) = self.answer(run, planned);
        // Only a run that was canceled ends without a plan: one that is over refuses it anyway.
        match said.clone() {
            // Whoever is told of the end finds it; who comes too late leaves what is there.
            Some(said) if self.is_planned(id).await? => self.keep(id, said).await?,
            Some(_) => return Ok(()),
            None if !self.is_canceled(id).await? => return Ok(()),
            None => {}
        }
        let answer = self
            .app
            .writer
            .create(self.app.writer.now(), command, specs);
        match answer.await {
            Ok(answer) => {
                debug_assert!(matches!(answer.reply, Reply::Done { .. }));
                self.app.metrics().plans.inc();
                // Of two who plan one is taken, and what it said is kept.
                match said {
                    Some(said) => self.keep(id, said).await,
                    None => Ok(()),
                }
            }
            Err(NotDone::Refused(delta_core::Refusal::BadPlan(why))) => {
                self.keep(id, serde_json::json!({ "error": why })).await?;
                let cause = Cause::PlanError;
                self.command(Command::FailPlan { run: id, cause }).await
            }
            // It is not in PLANNING any more: somebody else was first.
            Err(NotDone::Refused(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn keep(&self, id: RunId, said: serde_json::Value) -> Result<(), String> {
        let text = plan_summary::text(said);
        let put = self.app.write(move |tables| tables.put_plan(id, &text));
        put.await.map_err(|error| error.to_string())
    }

    /// Whether it still waits for a plan.
    async fn is_planned(&self, id: RunId) -> Result<bool, String> {
        let rows = self.read(move |reader| reader.run(id)).await?;
        Ok(rows.is_some_and(|rows| rows.run.state == RunState::Planning))
    }

    async fn is_canceled(&self, id: RunId) -> Result<bool, String> {
        let rows = self.read(move |reader| reader.run(id)).await?;
        Ok(rows.is_some_and(|rows| rows.run.cancel.is_some()))
    }

    pub(super) async fn command(&self, command: Command) -> Result<(), String> {
        let now = self.app.writer.now();
        match self.app.writer.command(Lane::People, now, command).await {
            Ok(_) | Err(NotDone::Refused(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Reader) -> Result<T, delta_store::StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let done = self.app.read(read).await;
        done.map_err(|error| error.to_string())
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

/// Where a run comes from, the delivery says: a planner's word on it would let a stranger's file
/// into groups that are not its own.
fn as_it_came(mut request: CreateRun, run: &Run) -> CreateRun {
    let text = |text: &Option<delta_core::Text>| text.as_deref().map(str::to_owned);
    request.repository = text(&run.header.repository);
    request.git_ref = text(&run.header.git_ref);
    request.commit = text(&run.header.commit);
    request.trust = if run.header.trusted {
        Trust::Trusted
    } else {
        Trust::Untrusted
    };
    request
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
