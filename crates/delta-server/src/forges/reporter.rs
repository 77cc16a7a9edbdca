//! The reporter: tells forges about runs, from the outbox, in order, until they have heard (A44).
//!
//! A run's row is in the outbox from the commit that made it. The reporter takes a row for a while,
//! publishes what the run is now, and writes down that it did. If it dies in between, the row comes
//! back, and whoever takes it looks at the forge first: a status is there once. A run is REPORTED
//! after the forge said yes, and not before (R11, SM-17).
//!
//! A status belongs to a commit: what it is with several refs there, `standing` says, and it is
//! looked at again when it is told, so that of two who tell the last one is right. Nobody waits for
//! a forge but who is to be told there: see `report_limits`.

use std::sync::Arc;
use std::time::Duration;

use delta_core::policy::{Backoff, retry_delay};
use delta_core::{Command, Millis, RunId, Span, Text};
use delta_forge::{Client, Outgoing, Secret, Verdict};
use delta_store::forges::{ReportRow, STAGE_DONE, STAGE_FINAL, STAGE_NOTIFIED, stage_of};
use delta_store::read::{Reader, RunRows};
use delta_store::side_tables::SideTables;
use delta_wire::api::Trigger;
use tokio::sync::Mutex;
use tokio::task::{JoinError, JoinSet};

use super::commit_status::{self, Seen};
use super::report_limits::{ForgeCredential, ReportLimits};
use super::{Registered, summary};
use crate::app::App;
use crate::duties::every::Duty;
use crate::not_done::NotDone;
use crate::writer::sha256;

/// How often the outbox is looked at: what a person sees at the forge is this old at most.
const EVERY: Duration = Duration::from_millis(500);
/// Rows looked at in one pass: those of a forge that does not answer come first, and stay.
const LOOKED_AT: usize = 2_000;
/// How often a status is told that is another one by then, before it waits.
const ROUNDS: usize = 3;
/// How long one request may take.
pub const REQUEST: Duration = Duration::from_secs(10);
/// How long telling about one run may take, with all its pages and rounds.
const TELLING: Duration = Duration::from_secs(25);
/// How long a row is taken for: longer than the telling, and the webhook after it.
const TAKEN: Span = Span::secs(40);
/// Between tries: doubling, with jitter.
const BACKOFF: Backoff = Backoff {
    base: Span::secs(2),
    cap: Span::minutes(5),
};
/// A clear no changes when somebody changes something.
const REFUSED: Span = Span::minutes(15);
/// How long an outgoing webhook is tried.
const NOTIFYING: Span = Span::hours(24);
/// There is nobody who must be told.
const NOBODY: Verdict = Verdict::Done {
    already: true,
    rest: None,
};
/// Characters of what was in the way that are kept.
const MAX_WHY: usize = 300;

pub struct Reporter {
    app: App,
    pub client: Client,
    /// This server's own: no other takes a row until the same moment.
    pub apart: Span,
    limits: ReportLimits,
    telling: Mutex<JoinSet<Result<bool, String>>>,
}

/// What became of runs that were told about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub told: usize,
    /// Those that are to be tried again, or that somebody else has.
    pub later: usize,
}

/// A random offset of less than three seconds, so that two servers never take a row until the same
/// moment. Without chance they may tell something twice, which does no harm.
fn apart() -> Span {
    let mut bytes = [0; 2];
    let _ = getrandom::fill(&mut bytes);
    Span(i64::from(u16::from_be_bytes(bytes) % 3000))
}

/// Everything that telling about a run needs.
struct Case {
    rows: RunRows,
    /// None where there is nobody to tell any more.
    whom: Option<(Registered, Trigger)>,
    status: Option<delta_forge::Status>,
    token: Option<Token>,
    /// How the commit stands.
    seen: Option<Seen>,
    /// A newer run of the same ref tells it.
    overtaken: bool,
}

/// What statuses are written with.
struct Token {
    secret: Secret,
    /// Whose requests the forge counts.
    credential: ForgeCredential,
}

impl Duty for Arc<Reporter> {
    const NAME: &'static str = "reports";
    type Counts = usize;
    type Error = String;

    fn interval(&self) -> Duration {
        EVERY
    }

    async fn run_once(&mut self) -> Result<usize, String> {
        Reporter::run_once(self, self.app.writer.now()).await
    }

    /// What was begun is finished: a try that is cut off counts as one.
    async fn finish(&mut self) {
        Reporter::finish(self).await;
    }
}

impl Reporter {
    pub fn new(app: App, client: Client) -> Reporter {
        Reporter {
            app,
            client,
            apart: apart(),
            limits: ReportLimits::default(),
            telling: Mutex::default(),
        }
    }

    /// Begins to tell what is due at this moment, as far as there are places; how many. Nobody
    /// waits here for a forge: [`Reporter::finish`] does.
    pub async fn run_once(self: &Arc<Self>, now: Millis) -> Result<usize, String> {
        let mut telling = self.telling.lock().await;
        while let Some(done) = telling.try_join_next() {
            count(done, &mut Told::default());
        }
        let due = self
            .read(move |reader| reader.reports_due(now, LOOKED_AT))
            .await?;
        let mut begun = 0;
        for row in due {
            let host = self.host_of(row.run).await?;
            let Some(place) = self.limits.take(row.run, host) else {
                continue;
            };
            begun += 1;
            let this = self.clone();
            telling.spawn(async move {
                let told = this.tell(row, now).await;
                drop(place);
                told
            });
        }
        Ok(begun)
    }

    /// Waits for everything that was begun, and says what came of it.
    pub async fn finish(&self) -> Told {
        let mut telling = self.telling.lock().await;
        let mut told = Told::default();
        while let Some(done) = telling.join_next().await {
            count(done, &mut told);
        }
        told
    }

    /// Where a run is told about; nothing where it is not known.
    async fn host_of(&self, run: RunId) -> Result<Text, String> {
        if let Some(host) = self.limits.host(run) {
            return Ok(host);
        }
        let look = self.read(move |reader| {
            let trigger = reader.run(run)?.and_then(|rows| rows.run.header.trigger);
            let Some(trigger) = trigger.as_deref().and_then(Trigger::from_text) else {
                return Ok(None);
            };
            reader.repository(&trigger.repository)
        });
        let registered = look.await?.and_then(|row| Registered::read(row).ok());
        let host: Text = registered
            .map_or_else(String::new, |it| it.site.api_host())
            .into();
        self.limits.remember(run, host.clone());
        Ok(host)
    }

    /// Takes a row and tells what there is to tell; false when it is to be tried again, or somebody
    /// else has it.
    async fn tell(&self, row: ReportRow, now: Millis) -> Result<bool, String> {
        let (seen, until) = (row.clone(), now + TAKEN.plus(self.apart));
        let taken = self.write(move |tables| tables.take_report(&seen, until));
        if !taken.await? {
            return Ok(false);
        }
        let Some(case) = self.case(&row).await? else {
            // The run itself is gone.
            self.remove(&row).await?;
            return Ok(true);
        };
        let goal = stage_of(&case.rows.run);
        let mut row = row;
        let notified = row.stage == STAGE_NOTIFIED;
        let owed = notified || row.stage < goal.min(STAGE_FINAL);
        if owed {
            let rests = self.rests(&case, now);
            // What was not sent is not looked for the next time.
            let tried = u32::from(rests.is_none());
            let verdict = match rests {
                Some(verdict) => verdict,
                None => self.publish(&row, &case, now).await?,
            };
            if let Some(after) = pause(&verdict, row.tries) {
                let ended = goal == STAGE_DONE && !notified;
                // Nobody else waits for the forge.
                if ended && self.has_notified(&case, now).await {
                    row.stage = STAGE_NOTIFIED;
                }
                row.tries += tried;
                return self.later(row, verdict, now + after).await;
            }
        }
        if notified {
            // An interruption before it is gone costs a look at the forge, which has it.
            return if self.reported(&case).await? {
                self.remove(&row).await.map(|()| true)
            } else {
                Ok(false)
            };
        }
        if owed {
            row.stage = goal.min(STAGE_FINAL);
            row.tries = 0;
            // Whoever else wants to know is told under the same roof.
            row.next_at = if goal == STAGE_DONE { until } else { now };
            row.why = "".into();
            let told = row.clone();
            self.write(move |tables| tables.put_report(&told)).await?;
        }
        if goal < STAGE_DONE {
            return Ok(true);
        }
        if !self.reported(&case).await? {
            return Ok(false);
        }
        match self.notify(&case, now).await {
            Some(verdict) if self.is_worth_it(&case, now) => {
                let after = pause(&verdict, row.tries);
                row.tries += 1;
                match after {
                    Some(after) => self.later(row, verdict, now + after).await,
                    None => self.remove(&row).await.map(|()| true),
                }
            }
            _ => self.remove(&row).await.map(|()| true),
        }
    }

    /// Tells whoever wants to know before the forge has heard; false when nobody does, or it is to
    /// be tried again together with the forge.
    async fn has_notified(&self, case: &Case, now: Millis) -> bool {
        match self.notify(case, now).await {
            Some(Verdict::Done { .. }) => true,
            Some(_) => !self.is_worth_it(case, now),
            None => false,
        }
    }

    /// Reads what there is to know about a run; none when it is gone.
    async fn case(&self, row: &ReportRow) -> Result<Option<Case>, String> {
        let (app, run) = (self.app.clone(), row.run);
        let public_url = self.app.public_url.clone();
        let found = tokio::task::spawn_blocking(move || {
            let reader: &dyn Reader = &*app.sides.reader;
            let Some(rows) = reader.run(run)? else {
                return Ok(None);
            };
            let trigger = rows.run.header.trigger.as_deref();
            let trigger = trigger.and_then(Trigger::from_text);
            let registered = match &trigger {
                Some(trigger) => super::find(reader, &trigger.repository)?,
                None => None,
            };
            let Some((registered, trigger)) = registered.zip(trigger) else {
                return Ok(Some(Case {
                    rows,
                    whom: None,
                    status: None,
                    token: None,
                    seen: None,
                    overtaken: false,
                }));
            };
            let standing = commit_status::of(reader, &rows.run, &trigger)?;
            let status = match &standing {
                Some(standing) => said_of(reader, &rows, standing, public_url.as_deref())?,
                None => None,
            };
            let token = match &registered.token {
                Some(name) => registered.secret(reader, &app.secret_keys, name)?,
                None => None,
            };
            let token = token.map(|it| Token {
                credential: (
                    registered.site.api_host().into(),
                    sha256(it.value.as_bytes()),
                ),
                secret: Secret::new(it.value),
            });
            Ok(Some(Case {
                rows,
                whom: Some((registered, trigger)),
                status,
                token,
                overtaken: standing.as_ref().is_some_and(|it| it.is_overtaken()),
                seen: standing.map(|it| it.seen()),
            }))
        });
        let found = found.await.map_err(|error| error.to_string())?;
        found.map_err(|error: crate::secrets::SecretError| error.to_string())
    }

    /// Why a forge is left alone at this moment, where it wants to be.
    fn rests(&self, case: &Case, now: Millis) -> Option<Verdict> {
        case.status.as_ref().filter(|_| !case.overtaken)?;
        let until = self
            .limits
            .rests_until(&case.token.as_ref()?.credential, now)?;
        let left = u64::try_from(until.since(now).0).unwrap_or_default();
        Some(Verdict::Again {
            after: Some(Duration::from_millis(left)),
            why: "the forge wants to be left alone for a while".into(),
        })
    }

    /// Publishes how the commit stands, in the time that the row is taken for.
    async fn publish(&self, row: &ReportRow, first: &Case, now: Millis) -> Result<Verdict, String> {
        if first.overtaken {
            return Ok(NOBODY);
        }
        let telling = self.publish_until_right(row, first, now);
        let Ok(verdict) = tokio::time::timeout(TELLING, telling).await else {
            self.app.metrics().statuses_delayed.inc();
            return Ok(Verdict::Again {
                after: None,
                why: "the forge took too long".into(),
            });
        };
        verdict
    }

    /// Publishes how the commit stands, and looks whether it stands so still: somebody else may
    /// tell of another run of it at the same moment, and whoever comes last must be right.
    async fn publish_until_right(
        &self,
        row: &ReportRow,
        first: &Case,
        now: Millis,
    ) -> Result<Verdict, String> {
        let mut newer: Option<Case> = None;
        for round in 0..ROUNDS {
            let case = newer.as_ref().unwrap_or(first);
            // The round before may have used up what the forge allows.
            if round > 0
                && let Some(verdict) = self.rests(case, now)
            {
                return Ok(verdict);
            }
            let others = case.seen.as_ref().is_some_and(Seen::is_anothers);
            let look_first = row.tries > 0 || round > 0 || others;
            let verdict = self.publish_once(case, look_first, now).await;
            if !matches!(verdict, Verdict::Done { .. }) || case.seen.is_none() {
                return Ok(verdict);
            }
            let Some(looked) = self.case(row).await? else {
                return Ok(verdict);
            };
            if looked.seen == case.seen {
                return Ok(verdict);
            }
            newer = Some(looked);
        }
        Ok(Verdict::Again {
            after: None,
            why: "the commit's runs change faster than they are told about".into(),
        })
    }

    async fn publish_once(&self, case: &Case, look_first: bool, now: Millis) -> Verdict {
        let (Some((registered, _)), Some(status)) = (&case.whom, &case.status) else {
            return NOBODY;
        };
        let Some(name) = &registered.token else {
            // Nobody but an outgoing webhook wants to know.
            return NOBODY;
        };
        let Some(token) = &case.token else {
            let why = format!("the secret {name} is not set");
            return Verdict::Refused { why };
        };
        let seconds = now.0 / 1000;
        let publish =
            self.client
                .publish(&registered.site, &token.secret, status, look_first, seconds);
        let verdict = publish.await;
        if let Some(rest) = verdict.rest() {
            let rest = Span(i64::try_from(rest.as_millis()).unwrap_or(i64::MAX));
            self.limits.rest(token.credential.clone(), now, now + rest);
        }
        let metrics = self.app.metrics();
        match &verdict {
            Verdict::Done { .. } => metrics.statuses_published.inc(),
            Verdict::Again { .. } => metrics.statuses_delayed.inc(),
            Verdict::Refused { .. } => metrics.statuses_refused.inc(),
        };
        verdict
    }

    /// R11; false when the writer is not to be had just now.
    async fn reported(&self, case: &Case) -> Result<bool, String> {
        let command = Command::Report {
            run: case.rows.run.id,
        };
        let sent = self.app.writer.send_duty(self.app.writer.now(), command);
        let answer = match sent {
            Ok(sent) => sent.answer().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => Ok(true),
            Err(NotDone::Refused(refusal)) => {
                tracing::debug!(%refusal, "a report was refused");
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Tells whoever wants to know by an outgoing webhook; none where nobody does.
    async fn notify(&self, case: &Case, now: Millis) -> Option<Verdict> {
        let (registered, trigger) = case.whom.as_ref()?;
        let notify = registered.notify.clone()?;
        let (app, for_secret) = (self.app.clone(), registered.clone());
        let name = notify.secret.clone();
        let secret = tokio::task::spawn_blocking(move || {
            for_secret.secret(&*app.sides.reader, &app.secret_keys, &name)
        });
        let Ok(Ok(Some(secret))) = secret.await else {
            let why = format!("the secret {} cannot be had", notify.secret);
            return Some(Verdict::Refused { why });
        };
        let url = notify_address(&notify.url)?;
        let body = told_body(&case.rows, trigger).to_string();
        let id = case.rows.run.id.to_string();
        let outgoing = Outgoing {
            id: &id,
            event: "run.ended",
            timestamp: now.0 / 1000,
            body: body.as_bytes(),
        };
        let secret = Secret::new(secret.value);
        Some(self.client.deliver(&url, &secret, &outgoing).await)
    }

    /// A receiver that is gone for a day is told nothing more.
    fn is_worth_it(&self, case: &Case, now: Millis) -> bool {
        let ended = case.rows.run.ended_at.unwrap_or(now);
        now.since(ended) < NOTIFYING
    }

    async fn later(&self, row: ReportRow, why: Verdict, at: Millis) -> Result<bool, String> {
        let why = match why {
            Verdict::Again { why, .. } | Verdict::Refused { why } => why,
            Verdict::Done { .. } => String::new(),
        };
        tracing::info!(run = %row.run, why, "a forge was not told; it is tried again");
        let row = ReportRow {
            next_at: at,
            why: why.chars().take(MAX_WHY).collect::<String>().into(),
            ..row
        };
        self.write(move |tables| tables.put_report(&row)).await?;
        Ok(false)
    }

    async fn remove(&self, row: &ReportRow) -> Result<(), String> {
        let run = row.run;
        self.write(move |tables| tables.remove_report(run)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Reader) -> Result<T, delta_store::StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let done = self.app.read(read).await;
        done.map_err(|error| error.to_string())
    }

    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&dyn SideTables) -> Result<T, delta_store::StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let done = self.app.write(write).await;
        done.map_err(|error| error.to_string())
    }
}

/// What became of one row. One that was not told for a reason of ours is found by a later look.
fn count(done: Result<Result<bool, String>, JoinError>, told: &mut Told) {
    match done.map_err(|error| error.to_string()).flatten() {
        Ok(true) => told.told += 1,
        Ok(false) => told.later += 1,
        Err(why) => tracing::warn!(why, "a forge was not told; the next look finds it again"),
    }
}

/// The status of a commit as it stands: what the run that has the word comes to.
fn said_of(
    reader: &dyn Reader,
    own: &RunRows,
    standing: &commit_status::Standing,
    public_url: Option<&str>,
) -> Result<Option<delta_forge::Status>, delta_store::StoreError> {
    let (id, trigger) = standing.word();
    let other = match id == own.run.id {
        true => None,
        // Gone in this moment: the next try finds it gone.
        false => match reader.run(id)? {
            Some(rows) => Some(rows),
            None => return Ok(None),
        },
    };
    let plan = reader.plan(id)?;
    let about = summary::About {
        rows: other.as_ref().unwrap_or(own),
        trigger,
        tests: summary::counts(&reader.run_results(id)?),
        plan: plan.as_deref(),
        approved: reader.approval(id)?.is_some(),
        several: standing.is_of_several(),
        public_url,
    };
    Ok(summary::status(&about))
}

/// How long to wait before the next try; none when it is done.
fn pause(verdict: &Verdict, tries: u32) -> Option<Span> {
    // Not drawn: rows differ by their moments already.
    let usual = retry_delay(BACKOFF, tries + 1, u64::from(tries) * 379);
    match verdict {
        Verdict::Done { .. } => None,
        Verdict::Again { after, .. } => {
            let asked = after.map_or(0, |it| i64::try_from(it.as_millis()).unwrap_or(i64::MAX));
            Some(Span(asked.max(usual.0)))
        }
        Verdict::Refused { .. } => Some(REFUSED),
    }
}

/// What an outgoing webhook says.
fn told_body(rows: &RunRows, trigger: &Trigger) -> serde_json::Value {
    let run = &rows.run;
    let header = &run.header;
    serde_json::json!({
        "event": "run.ended",
        "run_id": run.id.to_string(),
        "repository": trigger.repository,
        "ref": header.git_ref.as_deref(),
        "commit": header.commit.as_deref(),
        "trigger": trigger,
        "outcome": run.outcome.map(|it| it.name()),
        "cause": run.cause.map(|it| it.name()),
        "created_at": run.created_at.0,
        "ended_at": run.ended_at.map(|at| at.0),
        "jobs": rows.jobs.iter().map(|(job, _)| serde_json::json!({
            "name": &*job.name,
            "resolution": job.resolution.map(|it| it.name()),
            "cause": job.cause.map(|it| it.name()),
        })).collect::<Vec<_>>(),
    })
}

/// Where an outgoing webhook may go: https, or this machine.
pub fn notify_address(text: &str) -> Option<reqwest::Url> {
    let url: reqwest::Url = text.parse().ok()?;
    let plain = url.username().is_empty() && url.password().is_none();
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    let here = host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|it| it.is_loopback());
    let safe = url.scheme() == "https" || (url.scheme() == "http" && here);
    (plain && safe).then_some(url)
}
