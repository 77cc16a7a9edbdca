//! The work under one lease: a workspace, the steps in it, and the log on its way to the server.
//!
//! It runs as a task beside the lease, whose loop talks to the server meanwhile. When it returns,
//! nothing of the job is left on this machine but what it reports, and the record of it, which is
//! kept until the server has it. When it is dropped, the work goes on in its shim.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use delta_core::Cause;
use delta_core::time::Millis;
use delta_shim::clock::wall_time;
use delta_shim::evidence;
use delta_shim::handed_secrets::Handed;
use delta_shim::mask::Patterns;
use delta_shim::order::StepRecord;
use delta_shim::sandbox::Confinement;
use delta_shim::step::Step;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_wire::agent::proto::StepResult;
use delta_wire::runner::LeaseGranted;
use delta_wire::{FunctionAnswer, JobSpec};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::agent::SlotContext;
use crate::attempt::not_started::{cause_of, no_workspace, not_begun, stopped_before};
use crate::attempt::shim_events::ShimEvents;
use crate::attempt::span::Traced;
use crate::attempt::spec::{self, Kinds};
use crate::attempt::{self, Adopted, Attempt, Begin, Draft, Finished, Remains, Watcher};
use crate::connection::Cursors;
use crate::job_io::{self, Around, Carried, Failed, Kept, Log, Prepared, Results, Tested};
use crate::lease::handover::HandoverNote;
use crate::lease::report;
use crate::log::Sizes;
use crate::log::drain::{Patience, Shipping, flush};
use crate::log::progress::{Lines, Progress};
use crate::log::ship::{self, Shipment};
use crate::work::{BaseEnvironment, Ended, Identity, StopOrder, Work, steps, unusable};
use crate::workspace::{AttemptFolder, Home, Source, WorkspaceError};
use crate::{container, functions};

/// What the session can see of the work while it goes on.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    /// Log bytes the server has.
    pub shipped: Arc<AtomicU64>,
    /// The steps are over; only the log is still on its way.
    pub uploading: AtomicBool,
    /// The step at work, counted from 0, and what people call it.
    pub step: Mutex<Option<(usize, String)>>,
}

/// What the work came to.
pub(crate) struct WorkEnd {
    pub ended: Ended,
    pub started_at: String,
    pub finished_at: String,
    pub steps: Vec<StepResult>,
    /// What the tests came to, where there were any.
    pub summary: Option<Tested>,
    /// Artifacts that were handed over.
    pub artifacts: u32,
    /// What a function answered.
    pub answer: Option<FunctionAnswer>,
    /// The record on disk, to be removed when nobody needs it any more.
    pub remains: Option<Remains>,
    /// The workspace, to be removed then, too: until its end is reported it may be needed again.
    pub folder: Option<AttemptFolder>,
}

/// What the session orders while the work goes on, and what it begins with.
pub(crate) struct Assignment {
    pub context: Arc<SlotContext>,
    pub granted: Arc<LeaseGranted>,
    pub identity: Identity,
    pub stop: watch::Receiver<Option<StopOrder>>,
    /// The lease's local end, as it moves.
    pub until: watch::Receiver<Millis>,
    pub must_finish_by: Millis,
    pub visible: Arc<Visible>,
    pub cursors: watch::Receiver<Cursors>,
    pub line: watch::Receiver<Option<u64>>,
    /// What an earlier agent left to this one.
    pub carried: Carried,
}

/// What is needed when the work is over.
struct Last<'a> {
    spec: Option<&'a JobSpec>,
    steps: &'a [Step],
    carried: Carried,
    /// An earlier agent began it.
    taken_over: bool,
    /// What must not be seen in the log; not known where an earlier agent fetched the secrets.
    patterns: Option<Arc<Patterns>>,
    folder: AttemptFolder,
    shipping: Shipping,
}

/// Work that is over, with what is to be made of it.
struct Done {
    ended: Ended,
    records: Vec<StepRecord>,
    results: Option<Results>,
}

/// Does the work of one lease.
pub(crate) async fn perform(mut assignment: Assignment, adopted: Option<Adopted>) -> WorkEnd {
    let started_at = wall_time();
    let done = match adopted {
        Some(adopted) => {
            assignment.tell_started();
            Ok(Box::pin(assignment.go_on(adopted)).await)
        }
        None => assignment.begin().await,
    };
    let end = match done {
        Ok(end) => end,
        Err(ended) => WorkEnd {
            ended: *ended,
            started_at,
            finished_at: wall_time(),
            steps: Vec::new(),
            summary: None,
            artifacts: 0,
            answer: None,
            remains: None,
            folder: None,
        },
    };
    assignment.context.observer.progress(Progress::Ended {
        job: &assignment.identity,
        ended: &end.ended,
    });
    end
}

impl Assignment {
    async fn begin(&mut self) -> Result<WorkEnd, Box<Ended>> {
        let spec = spec::read(&self.granted, self.context.kinds());
        if let Some(name) = spec.as_ref().ok().and_then(|it| it.name.as_ref()) {
            self.identity.job_name.clone_from(name);
        }
        self.tell_started();
        let mut spec = spec.map_err(|unusable| not_begun(unusable.cause, unusable.summary))?;
        if let Some(order) = *self.stop.borrow() {
            return Err(stopped_before(order.reason, None));
        }
        if let (Some(functions), Some(function)) = (&self.context.functions, spec.function.take()) {
            return functions::perform(self, functions, function).await;
        }
        if let Some(name) = unusable(&spec.env) {
            let summary = format!("the variable {name:?} cannot be set");
            return Err(not_begun(Cause::SpecError, summary));
        }
        let traced = Traced::steps(&self.context, &self.identity, &mut spec.env);
        // Apart: a call would carry the room for all of it about, and it is kilobytes.
        let done = Box::pin(self.begin_steps(spec)).await;
        traced.end_of(&done);
        done
    }

    async fn begin_steps(&mut self, spec: JobSpec) -> Result<WorkEnd, Box<Ended>> {
        let number = self.context.state.number();
        let confinement = self.confinement();
        let home = Home::of(confinement, spec.image.as_deref());
        let source = self.context.settings.source.of(spec.checkout.as_ref());
        let folder = self.make_folder(number, source, home).await?;
        let drafted = attempt::prepare(&self.context.state, number)
            .and_then(|draft| Ok((self.log(&draft)?, draft)));
        let (log, draft) = match drafted {
            Ok(drafted) => drafted,
            Err(problem) => {
                remove(folder).await;
                let summary = format!("no log could be begun: {problem}");
                return Err(not_begun(cause_of(&problem), summary));
            }
        };
        let shipping = self.ship(draft.spool(), draft.sizes());
        let mut steps: Vec<Step> = spec.steps.iter().cloned().map(steps::of_step).collect();
        steps.extend(spec.tests.iter().map(steps::of_test));
        let begun = match self.prepare(&spec, &folder, confinement, &log).await {
            Ok(prepared) => {
                let dropped = log.settle();
                let begun = self.start(&draft, &spec, &steps, &folder, &prepared, dropped);
                let begun = begun.map_err(|problem| {
                    let summary = format!("no shim could be started: {problem}");
                    not_begun(Cause::StartUp, summary)
                });
                begun.map(|attempt| (attempt, prepared.carried, log.patterns()))
            }
            Err(ended) => Err(ended),
        };
        match begun {
            Ok((attempt, carried, patterns)) => {
                drop((draft, log));
                let last = Last {
                    spec: Some(&spec),
                    steps: &steps,
                    carried,
                    taken_over: false,
                    patterns,
                    folder,
                    shipping,
                };
                Ok(self.follow(attempt, last).await)
            }
            Err(mut ended) => {
                if ended.cause.is_some() {
                    ended.evidence = evidence::around(&folder.workspace, &draft.spool());
                }
                log.mark(&ended.summary);
                ended.log = log.finish();
                Ok(self.not_followed(*ended, draft, folder, shipping).await)
            }
        }
    }

    /// Everything before the steps, unless it is to stop.
    async fn prepare(
        &mut self,
        spec: &JobSpec,
        folder: &AttemptFolder,
        confinement: Confinement,
        log: &Log,
    ) -> Result<Prepared, Box<Ended>> {
        let stopped = CancellationToken::new();
        let _tell = stopped.clone().drop_guard();
        let mut stop = self.stop.clone();
        let around = self.around(spec, folder, confinement, log, stopped, &[]);
        let prepared = tokio::select! {
            prepared = job_io::before(&around) => prepared,
            reason = ordered(&mut stop) => return Err(stopped_before(reason, around.at())),
        };
        let failed = |failed: Failed| not_begun(failed.cause, log.redact(&failed.summary));
        let mut prepared = prepared.map_err(failed)?;
        prepared.container =
            container::plan(spec, &self.place(folder, confinement)).map_err(failed)?;
        if let Some(owner) = confinement.user {
            self.give_away(folder, owner).await?;
        }
        Ok(prepared)
    }

    fn around<'a>(
        &'a self,
        spec: &'a JobSpec,
        folder: &'a AttemptFolder,
        confinement: Confinement,
        log: &'a Log,
        stopped: CancellationToken,
        records: &'a [StepRecord],
    ) -> Around<'a> {
        Around {
            context: &self.context,
            lease: &self.granted.lease_id,
            identity: &self.identity,
            spec,
            folder,
            confinement,
            log,
            secrets: OnceLock::new(),
            at: Mutex::default(),
            records,
            stopped,
        }
    }

    /// Where a container would be.
    fn place<'a>(
        &'a self,
        folder: &'a AttemptFolder,
        confinement: Confinement,
    ) -> container::PlanContext<'a> {
        let context = &self.context;
        container::PlanContext {
            settings: &context.settings.containers,
            runtime: context.containers.runtime(),
            state: &context.state,
            folder,
            confinement,
            untrusted: context.untrusted,
        }
    }

    fn log(&self, draft: &Draft) -> std::io::Result<Log> {
        let observer = Arc::clone(&self.context.observer);
        let quota = self.context.log_quota();
        let identity = self.identity.clone();
        Log::begin(&draft.spool(), quota, draft.sizes(), observer, identity)
    }

    /// The end of an attempt whose work was not begun; its log is kept like any other.
    async fn not_followed(
        &mut self,
        ended: Ended,
        draft: Draft,
        folder: AttemptFolder,
        shipping: Shipping,
    ) -> WorkEnd {
        let remains = draft.remains();
        drop(draft);
        let now = wall_time();
        flush(shipping, self.stop.clone(), self.patience()).await;
        WorkEnd {
            ended,
            started_at: now.clone(),
            finished_at: now,
            steps: Vec::new(),
            summary: None,
            artifacts: 0,
            answer: None,
            remains: Some(remains),
            folder: Some(folder),
        }
    }

    /// Goes on with what an earlier agent began.
    async fn go_on(&mut self, adopted: Adopted) -> WorkEnd {
        let number = adopted.number;
        let steps = adopted.steps.clone();
        let tap = self.tap(&steps);
        let attempt = adopted.resume(&self.context.state, tap);
        let shipping = self.ship(attempt.spool(), attempt.sizes());
        // It was read before the work began, and has not changed.
        let spec = spec::read(&self.granted, Kinds::STEPS).ok();
        let last = Last {
            spec: spec.as_ref(),
            steps: &steps,
            carried: self.carried.clone(),
            taken_over: true,
            patterns: None,
            folder: self.context.work_folder.existing(number),
            shipping,
        };
        self.follow(attempt, last).await
    }

    fn confinement(&self) -> Confinement {
        let context = &self.context;
        let (state, work) = (context.state.path(), context.work_folder.path());
        let sandbox = context.settings.sandbox.for_run(!context.untrusted);
        Confinement::of_slot(sandbox, state, work, context.slot)
    }

    /// What `--pass-env` names is for those who are trusted.
    fn base_environment(&self) -> BaseEnvironment {
        if self.context.untrusted {
            return BaseEnvironment::Clean { pass: Vec::new() };
        }
        self.context.settings.base_environment.clone()
    }

    fn start(
        &self,
        draft: &Draft,
        spec: &JobSpec,
        steps: &[Step],
        folder: &AttemptFolder,
        prepared: &Prepared,
        log_dropped: u64,
    ) -> std::io::Result<Attempt> {
        let settings = &self.context.settings;
        let confinement = self.confinement();
        let work = Work {
            identity: self.identity.clone(),
            steps: steps.to_vec(),
            env: spec.env.clone(),
            workspace: folder.workspace.clone(),
            workdir: spec.workdir.clone(),
            tmp: folder.tmp.clone(),
            home: (Home::of(confinement, spec.image.as_deref()) == Home::Own)
                .then(|| folder.home.clone()),
            base: self.base_environment(),
            hidden: confinement.to_hide(&self.context.secrets, self.context.work_folder.path()),
            confinement,
            control_group: true,
            container: prepared.container.clone(),
            log_quota: self.context.log_quota(),
            log_dropped,
            stop_grace: settings.stop_grace,
            leftover_grace: settings.leftover_grace,
            silence: spec.no_output_timeout.map(|it| it.as_duration()),
        };
        let mut note = HandoverNote::of(&self.context, &self.granted, &self.identity);
        note.carried.clone_from(&prepared.carried);
        let begin = Begin {
            program: &settings.shim,
            work: &work,
            until: *self.until.borrow(),
            must_finish_by: self.must_finish_by,
            abandoned: settings.abandoned,
            note: &note.to_bytes(),
            secrets: &Handed {
                env: prepared.secrets.clone(),
                masked: prepared.masked.clone(),
            },
        };
        draft.start(&begin, self.tap(steps))
    }

    fn ship(&self, path: PathBuf, sizes: Sizes) -> Shipping {
        let shipment = Shipment {
            link: self.context.link.clone(),
            execution: self.context.execution.clone(),
            lease: self.granted.lease_id.clone(),
            path,
            grows: sizes.subscribe(),
            cursors: self.cursors.clone(),
            line: self.line.clone(),
            shipped: Arc::clone(&self.visible.shipped),
        };
        Shipping::new(tokio::spawn(ship::ship(shipment)))
    }

    /// Stays with the work to its end, keeps what is to be kept, and sees its log off.
    async fn follow(&mut self, mut attempt: Attempt, last: Last<'_>) -> WorkEnd {
        let (context, lease) = (&self.context, &self.granted.lease_id);
        let results = last.spec.and_then(|spec| {
            Results::begin(job_io::test_results::ResultsContext {
                context,
                lease,
                line: self.line.clone(),
                spec,
                workspace: &last.folder.workspace,
                aside: attempt.reports(),
                stale: last.carried.reports.clone(),
                patterns: last.patterns.clone(),
                taken_over: last.taken_over,
            })
        });
        let finished = self.obey_until_ended(&mut attempt).await;
        let steps = finished.steps.iter().map(|it| report::step(it, last.steps));
        let steps = steps.collect();
        self.visible.uploading.store(true, Ordering::Relaxed);
        let remains = attempt.remains();
        let done = Done {
            ended: finished.ended,
            records: finished.steps,
            results,
        };
        let (ended, kept) = self.keep(attempt, done, &last).await;
        flush(last.shipping, self.stop.clone(), self.patience()).await;
        WorkEnd {
            ended,
            started_at: finished.started_at,
            finished_at: finished.finished_at,
            steps,
            summary: kept.summary,
            artifacts: kept.artifacts,
            answer: None,
            remains: Some(remains),
            folder: Some(last.folder),
        }
    }

    /// Everything after the steps, unless it is to stop. The log may grow by it.
    async fn keep(&mut self, attempt: Attempt, done: Done, last: &Last<'_>) -> (Ended, Kept) {
        let mut ended = done.ended;
        let Some(spec) = last.spec.filter(|spec| job_io::keeps(spec, &ended)) else {
            return (ended, Kept::default());
        };
        let log = Log::go_on(
            &attempt.spool(),
            self.context.log_quota(),
            ended.log.clone(),
            attempt.sizes(),
            Arc::clone(&self.context.observer),
            self.identity.clone(),
        );
        log.mask(last.patterns.clone());
        let spool = attempt.spool();
        drop(attempt);
        let succeeded = ended.outcome == Outcome::Succeeded;
        let stopped = CancellationToken::new();
        let tell = stopped.clone().drop_guard();
        let mut stop = self.stop.clone();
        let (folder, records) = (&last.folder, &done.records);
        let around = self.around(spec, folder, self.confinement(), &log, stopped, records);
        let mut kept = tokio::select! {
            kept = job_io::after(&around, done.results) => kept,
            // Without what was to be kept it is no success.
            reason = ordered_beyond(&mut stop, ended.stopped) => Kept::stopped(reason),
        };
        if succeeded && kept.failed.is_none() {
            // An order to stop costs the caches, and nothing else.
            tokio::select! {
                () = job_io::save_caches(&around, &last.carried) => {}
                _ = ordered_beyond(&mut stop, ended.stopped) => {}
            }
        }
        drop(tell);
        if let Some(failed) = &kept.failed {
            log.mark(&failed.summary);
        }
        if let Some(failed) = kept.failed.take().filter(|_| succeeded) {
            ended.outcome = failed.outcome();
            ended.cause = Some(failed.cause);
            ended.summary = log.redact(&failed.summary);
            ended.evidence = evidence::around(&folder.workspace, &spool);
        } else if succeeded {
            ended.summary = log.redact(&kept.beside(&ended.summary));
        } else if kept.found_none && ended.cause == Some(Cause::UserExit) {
            ended.cause = Some(Cause::NoTests);
            ended.summary = format!("{}: {}", ended.summary, job_io::FOUND_NONE);
        }
        ended.log = log.finish();
        (ended, kept)
    }

    fn patience(&self) -> Patience {
        Patience::new(self.line.clone(), self.cursors.clone())
    }

    async fn obey_until_ended(&mut self, attempt: &mut Attempt) -> Finished {
        self.stop.mark_changed();
        self.until.mark_changed();
        loop {
            tokio::select! {
                finished = attempt.ended() => return finished,
                Ok(()) = self.stop.changed() => {
                    if let Some(order) = *self.stop.borrow_and_update() {
                        attempt.stop(order);
                    }
                }
                Ok(()) = self.until.changed() => attempt.extend(*self.until.borrow_and_update()),
            }
        }
    }

    async fn make_folder(
        &self,
        number: u64,
        source: Source,
        home: Home,
    ) -> Result<AttemptFolder, Box<Ended>> {
        let work = Arc::clone(&self.context.work_folder);
        // What was built for those who are trusted is theirs.
        let job = (!self.context.untrusted).then(|| self.identity.job_name.clone());
        on_disk(move || work.attempt(number, &source, job.as_deref(), home)).await
    }

    async fn give_away(&self, folder: &AttemptFolder, owner: u32) -> Result<(), Box<Ended>> {
        let (context, folder) = (Arc::clone(&self.context), folder.clone());
        on_disk(move || context.work_folder.give_away(&folder, owner)).await
    }

    fn tell_started(&self) {
        let job = &self.identity;
        self.context.observer.progress(Progress::Started { job });
    }

    fn tap(&self, steps: &[Step]) -> Box<dyn Watcher> {
        Box::new(ShimEvents {
            context: Arc::clone(&self.context),
            visible: Arc::clone(&self.visible),
            identity: self.identity.clone(),
            steps: steps.to_vec(),
            lines: Lines::default(),
        })
    }
}

/// Works on folders off the async threads.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, Box<Ended>> {
    let not_done = |problem| not_begun(Cause::StartUp, format!("no workspace: {problem}"));
    let done = tokio::task::spawn_blocking(work).await.map_err(not_done)?;
    done.map_err(|problem| no_workspace(&problem))
}

pub(crate) async fn remove(folder: AttemptFolder) {
    let removed = tokio::task::spawn_blocking(move || folder.remove()).await;
    if let Err(problem) = removed {
        tracing::warn!(error = %problem, "the workspace was not removed");
    }
}

/// The order that ends the work, once there is one.
async fn ordered(stop: &mut watch::Receiver<Option<StopOrder>>) -> StopReason {
    ordered_beyond(stop, None).await
}

/// The next order for work that one has ended already: what it left is still kept.
async fn ordered_beyond(
    stop: &mut watch::Receiver<Option<StopOrder>>,
    ended_by: Option<StopReason>,
) -> StopReason {
    let new = |order: &Option<StopOrder>| order.is_some_and(|it| Some(it.reason) != ended_by);
    match stop.wait_for(new).await.map(|order| *order) {
        Ok(Some(order)) => order.reason,
        // Nobody is left to order anything: the session is gone, and this with it.
        _ => std::future::pending().await,
    }
}
