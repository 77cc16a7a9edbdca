//! Every statement in one place. Statements of the writer are prepared once per connection and
//! planned once (see `connect.rs`), so each is written to have one good plan: by key, in a loop.

use super::rows::{
    ATTEMPT_FIXED, ATTEMPT_KEY, ATTEMPT_MOVING, ATTEMPT_RENEWED, Columns, JOB_FIXED, JOB_KEY,
    JOB_MOVING, JOB_READ, LEASE, LINE, LINE_KEY, REPORT, RUN_FIXED, RUN_HEADER, RUN_KEY,
    RUN_MOVING, RUN_READ,
};
use super::sql_read;

macro_rules! statements {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Sql { $($name,)* }

        impl Sql {
            pub(super) const ALL: &[Sql] = &[$(Sql::$name,)*];
        }
    };
}

statements! {
    Lock, LockAtOnce, Tips, Jobs, Attempts, CurrentAttempts, LiveJobs, LiveAttempts, PastLeases,
    Keys, LockUniques, Uniques, Holders, Line, Standings,
    ClaimOne, ClaimSome, MatchKeys,
    InsertRuns, InsertReports, UpdateRuns, UpdateHeaders, InsertJobs, UpdateJobs, InsertAttempts,
    UpdateAttempts, RenewAttempts, InsertPastLeases, InsertEvents, EnterQueue, LeaveQueue,
    InsertHolders, DeleteHolders, InsertDelayed, DeleteDelayed, PutLine, LeaveLine, Notify,
    DueRuns, DueLeases, DueDelayed, DueLines, Leased, Specs, NewestMoment, EventIsThere,
    XactStatus, EndXact,
    ReadRun, ReadRunJobs, ReadJobRun, ReadJob, ReadJobAttempts, ReadJobLeases, ListRuns, Events,
    Spec, QueueDepths, Ahead, RunIds, Pruned, Credential, Credentials, PutCredential,
    RevokeCredential, ExchangeEnrolment, NoteReuse, Agent, AgentPage, NewAgent, AgentsSeen,
    BeginSession, DrainAgent, RebindAgent, RevokeAgent, ForgetAgents, PutResults, WithdrawResults,
    SizesOfResults, PutResultClaim, LeaseResults,
    LeaseClaim, RunResults, RunClaims, ResultPage, TestHistory, Secrets, Secret, SecretsFor,
    NewSecret, ReplaceSecret, RemoveSecret, Queues, PauseQueue, ResumeQueue,
    RouteQueue, UnrouteQueue, ForgetQueue, Repositories, Repository,
    NewRepository, ReplaceRepository, RemoveRepository, ReportsDue, Report, TakeReport, PutReport,
    RemoveReport, Approve, Approval, PutPlan, ReadPlan, Ping, Stats,
}

impl Sql {
    pub(super) fn text(self) -> String {
        match self {
            Sql::Lock => lock(""),
            Sql::LockAtOnce => lock(" NOWAIT"),
            Sql::ClaimOne => CLAIM_ONE.into(),
            Sql::ClaimSome => CLAIM_SOME.into(),
            Sql::MatchKeys => MATCH_KEYS.into(),
            Sql::Tips => "SELECT w.id, e.version, e.hash FROM unnest($1::uuid[]) AS w(id), \
                 LATERAL (SELECT first + records - 1 AS version, hash FROM events \
                          WHERE run_id = w.id ORDER BY first DESC LIMIT 1) e"
                .into(),
            Sql::Jobs
            | Sql::Attempts
            | Sql::CurrentAttempts
            | Sql::LiveJobs
            | Sql::LiveAttempts
            | Sql::PastLeases => self.reading_rows(),
            Sql::Keys => {
                "SELECT idempotency_key, id FROM runs WHERE idempotency_key = ANY ($1)".into()
            }
            Sql::LockUniques => "SELECT pg_advisory_xact_lock(\
                 hashtextextended(encode(w.key, 'hex'), 0)) FROM unnest($1::bytea[]) AS w(key)"
                .into(),
            Sql::Uniques => "SELECT w.key, r.id FROM unnest($1::bytea[]) AS w(key), \
                 LATERAL (SELECT id FROM runs WHERE unique_key = w.key \
                          ORDER BY id DESC LIMIT 1) r"
                .into(),
            Sql::DueLines => "SELECT l.key, l.run_id, l.job, l.taken, l.cancel_older FROM lines l \
                 WHERE l.key IN (SELECT w.key FROM lines w WHERE NOT w.taken) LIMIT 100000"
                .into(),
            Sql::Line => "SELECT l.key, l.run_id, l.job, l.taken, l.cancel_older \
                 FROM unnest($1::bytea[]) AS w(key) JOIN lines l ON l.key = w.key"
                .into(),
            Sql::Holders => "SELECT h.principal, h.runner, h.run_id, h.job, h.n \
                 FROM unnest($1::text[], $2::text[]) AS w(principal, runner) \
                 JOIN holders h ON h.principal = w.principal AND h.runner = w.runner"
                .into(),
            Sql::Standings => "SELECT id, principal, resume, process, session, \
                 revoked_at IS NOT NULL FROM agents WHERE id = ANY ($1)"
                .into(),
            Sql::DueRuns | Sql::DueLeases | Sql::DueDelayed => self.due().into(),
            Sql::Leased => "SELECT run_id, job, n FROM holders ORDER BY run_id, job, n".into(),
            Sql::Specs => "SELECT j.run_id, j.n, j.spec FROM unnest($1::uuid[], $2::int8[]) \
                 AS w(run_id, n) JOIN jobs j ON j.run_id = w.run_id AND j.n = w.n"
                .into(),
            Sql::NewestMoment => NEWEST_MOMENT.into(),
            Sql::XactStatus => "SELECT pg_xact_status($1::text::xid8)".into(),
            Sql::EndXact => "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE backend_xid = $1::text::xid8::xid AND pid <> pg_backend_pid()"
                .into(),
            Sql::EventIsThere => "SELECT EXISTS (SELECT FROM events WHERE run_id = $1 \
                 AND first = $2 AND hash = $3)"
                .into(),
            _ => self.writing(),
        }
    }

    fn reading_rows(self) -> String {
        let (job, attempt) = (job_list("j"), attempt_list("a"));
        match self {
            Sql::Jobs => format!(
                "SELECT {job} FROM unnest($1::uuid[], $2::int8[]) AS w(run_id, n) \
                 JOIN jobs j ON j.run_id = w.run_id AND j.n = w.n"
            ),
            Sql::Attempts => format!(
                "SELECT {attempt} FROM unnest($1::uuid[], $2::int8[], $3::int8[]) \
                 AS w(run_id, job, n) \
                 JOIN attempts a ON a.run_id = w.run_id AND a.job = w.job AND a.n = w.n"
            ),
            Sql::CurrentAttempts => format!(
                "SELECT {attempt} FROM unnest($1::uuid[], $2::int8[]) AS w(run_id, n) \
                 JOIN jobs j ON j.run_id = w.run_id AND j.n = w.n \
                 JOIN attempts a ON a.run_id = j.run_id AND a.job = j.n AND a.n = j.attempts"
            ),
            Sql::LiveJobs => format!(
                "SELECT {job} FROM jobs j WHERE j.run_id = ANY ($1) AND j.resolution IS NULL"
            ),
            Sql::LiveAttempts => format!(
                "SELECT {attempt} FROM jobs j JOIN attempts a ON a.run_id = j.run_id \
                 AND a.job = j.n AND a.n = j.attempts \
                 WHERE j.run_id = ANY ($1) AND j.resolution IS NULL"
            ),
            _ => format!(
                "SELECT p.run_id, p.job, p.n, {} \
                 FROM unnest($1::uuid[], $2::int8[], $3::int8[], $4::int8[]) \
                 AS w(run_id, job, n, epoch) JOIN past_leases p ON p.run_id = w.run_id \
                 AND p.job = w.job AND p.n = w.n AND p.lease_epoch = w.epoch",
                names("p", LEASE)
            ),
        }
    }

    fn due(self) -> &'static str {
        match self {
            Sql::DueRuns => {
                "SELECT due_at, id FROM runs WHERE NOT ended AND moment <= $1 AND due_at <= $1 \
                 ORDER BY moment LIMIT $2"
            }
            Sql::DueDelayed => {
                "SELECT not_before, run_id, job, n FROM delayed WHERE not_before <= $1 \
                 ORDER BY not_before LIMIT $2"
            }
            // A cancel may fall due before its lease does.
            _ => {
                "SELECT d.due, a.run_id, a.job, a.n \
                 FROM holders h JOIN attempts a \
                   ON a.run_id = h.run_id AND a.job = h.job AND a.n = h.n, \
                 LATERAL (SELECT least( \
                     a.lease_expires_at, \
                     CASE a.lease_state WHEN 'GRANTED' THEN a.lease_ack_by END, \
                     (a.cancel::json ->> 'force_at')::int8, \
                     a.cancel_told_at + (a.cancel::json ->> 'grace')::int8) AS due) d \
                 WHERE d.due <= $1 ORDER BY d.due LIMIT $2"
            }
        }
    }

    fn writing(self) -> String {
        match self {
            Sql::InsertRuns => insert("runs", &[RUN_KEY, RUN_FIXED, RUN_MOVING]),
            Sql::InsertReports => insert("reports", &[REPORT]),
            Sql::UpdateRuns => update("runs", RUN_KEY, &[RUN_MOVING]),
            Sql::UpdateHeaders => update("runs", RUN_KEY, &[RUN_HEADER]),
            Sql::InsertJobs => insert("jobs", &[JOB_KEY, JOB_FIXED, JOB_MOVING]),
            Sql::UpdateJobs => update("jobs", JOB_KEY, &[JOB_MOVING]),
            Sql::InsertAttempts => insert(
                "attempts",
                &[ATTEMPT_KEY, ATTEMPT_FIXED, ATTEMPT_MOVING, LEASE],
            ),
            Sql::UpdateAttempts => update("attempts", ATTEMPT_KEY, &[ATTEMPT_MOVING, LEASE]),
            Sql::RenewAttempts => update("attempts", ATTEMPT_KEY, &[ATTEMPT_RENEWED]),
            Sql::InsertPastLeases => {
                insert("past_leases", &[ATTEMPT_KEY, &[("project", "text")], LEASE])
            }
            Sql::InsertEvents => insert("events", &[EVENT]),
            Sql::InsertHolders => insert("holders", &[HOLDER, &[("project", "text")]]),
            Sql::DeleteHolders => delete("holders", HOLDER),
            Sql::InsertDelayed => insert(
                "delayed",
                &[ATTEMPT_KEY, &[("project", "text"), ("not_before", "int8")]],
            ),
            Sql::DeleteDelayed => delete("delayed", ATTEMPT_KEY),
            // The match key is the job's own; a lost attempt comes back without its job's row.
            Sql::EnterQueue => every_row(&format!(
                "INSERT INTO queue (project, match_key, order_key, run_id, job, n, queued_at) \
                 SELECT j.project, j.match_key, w.order_key, w.run_id, w.job, w.n, w.queued_at \
                 FROM {} JOIN jobs j ON j.run_id = w.run_id AND j.n = w.job",
                wanted(&[ATTEMPT_KEY, QUEUED])
            )),
            // As a subquery, the match key is known before the queue is looked at: joined, the
            // planner may leave the order key out of the search.
            Sql::LeaveQueue => format!(
                "DELETE FROM queue t USING {} WHERE t.match_key = \
                 (SELECT j.match_key FROM jobs j WHERE j.run_id = w.run_id AND j.n = w.job) \
                 AND t.order_key = w.order_key AND {}",
                wanted(&[ATTEMPT_KEY, QUEUED]),
                same(ATTEMPT_KEY)
            ),
            Sql::PutLine => format!(
                "{} ON CONFLICT (key, run_id, job) DO UPDATE SET taken = excluded.taken",
                insert("lines", &[LINE_KEY, LINE])
            ),
            Sql::LeaveLine => delete("lines", LINE_KEY),
            Sql::Notify => format!("SELECT pg_notify('{CHANNEL}', $1)"),
            other => sql_read::text(other),
        }
    }
}

/// Where a batch that queued attempts says so; the payload names the writer.
pub(super) const CHANNEL: &str = "delta_ci_queue";

const EVENT: Columns = &[
    ("run_id", "uuid"),
    ("first", "int8"),
    ("records", "int8"),
    ("project", "text"),
    ("at", "int8"),
    ("hash", "bytea"),
    ("bytes", "bytea"),
];

const HOLDER: Columns = &[
    ("principal", "text"),
    ("runner", "text"),
    ("run_id", "uuid"),
    ("job", "int8"),
    ("n", "int8"),
];

const QUEUED: Columns = &[("order_key", "int8"), ("queued_at", "int8")];

/// Only the run is locked: whoever has it may grant any of its attempts, nobody else can. What is
/// picked here may have left the queue since the statement's snapshot; the attempt's row, read
/// afterwards under the lock, decides.
const CLAIM_ONE: &str = "SELECT q.run_id, q.job, q.n FROM queue q JOIN runs r ON r.id = q.run_id \
     WHERE q.match_key = $1 ORDER BY q.order_key, q.run_id, q.job, q.n LIMIT $2 \
     FOR UPDATE OF r SKIP LOCKED";

/// The first `$3` of each key, then the first `$2` of all of them that can be locked: no run is
/// locked that is not returned.
const CLAIM_SOME: &str = "SELECT q.run_id, q.job, q.n FROM ( \
         SELECT f.order_key, f.run_id, f.job, f.n FROM unnest($1::text[]) AS k(key), \
         LATERAL (SELECT order_key, run_id, job, n FROM queue WHERE match_key = k.key \
                  ORDER BY order_key, run_id, job, n LIMIT $3) f) q \
     JOIN runs r ON r.id = q.run_id \
     ORDER BY q.order_key, q.run_id, q.job, q.n LIMIT $2 FOR UPDATE OF r SKIP LOCKED";

/// Jumps from key to key instead of reading the whole queue.
const MATCH_KEYS: &str = "WITH RECURSIVE keys AS ( \
         (SELECT match_key FROM queue ORDER BY match_key LIMIT 1) \
         UNION ALL \
         SELECT (SELECT q.match_key FROM queue q WHERE q.match_key > k.match_key \
                 ORDER BY q.match_key LIMIT 1) \
         FROM keys k WHERE k.match_key IS NOT NULL) \
     SELECT match_key FROM keys WHERE match_key IS NOT NULL";

/// A first guess by key and by the renewals of live leases, then the pages of history that may
/// hold something newer.
const NEWEST_MOMENT: &str = "WITH guess AS (SELECT coalesce(greatest( \
         (SELECT created_at FROM runs ORDER BY id DESC LIMIT 1), \
         (SELECT max(a.lease_expires_at - a.lease_ttl) FROM holders h JOIN attempts a \
          ON a.run_id = h.run_id AND a.job = h.job AND a.n = h.n), \
         (SELECT moment FROM runs WHERE ended AND moment IS NOT NULL \
          ORDER BY ended DESC, moment DESC LIMIT 1)), 0) AS at) \
     SELECT greatest((SELECT at FROM guess), \
                     (SELECT max(at) FROM events WHERE at >= (SELECT at FROM guess)))";

/// The run's own columns are the newest: a row that had to be waited for is read again.
fn lock(wait: &str) -> String {
    format!(
        "SELECT {} FROM runs r WHERE r.id = ANY ($1) ORDER BY r.id FOR UPDATE{wait}",
        run_list("r")
    )
}

pub(super) fn run_list(table: &str) -> String {
    listed(table, RUN_READ.iter().copied())
}

pub(super) fn job_list(table: &str) -> String {
    listed(table, JOB_READ.iter().copied())
}

/// Everything of an attempt but its project, which no decision reads.
pub(super) fn attempt_list(table: &str) -> String {
    let parts = [ATTEMPT_KEY, &ATTEMPT_FIXED[1..], ATTEMPT_MOVING, LEASE];
    listed(table, parts.into_iter().flatten().map(|(name, _)| *name))
}

pub(super) fn names(table: &str, columns: Columns) -> String {
    listed(table, columns.iter().map(|(name, _)| *name))
}

fn listed<'a>(table: &str, names: impl Iterator<Item = &'a str>) -> String {
    let full: Vec<String> = names.map(|name| format!("{table}.{name}")).collect();
    full.join(", ")
}

/// `unnest($1::uuid[], …) AS w(run_id, …)`: one array per column, one row per element.
fn wanted(parts: &[Columns]) -> String {
    let all: Vec<_> = parts.iter().copied().flatten().collect();
    let arrays: Vec<String> = all
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| format!("${}::{kind}[]", at + 1))
        .collect();
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    format!("unnest({}) AS w({})", arrays.join(", "), names.join(", "))
}

fn insert(table: &str, parts: &[Columns]) -> String {
    let names: Vec<&str> = parts
        .iter()
        .copied()
        .flatten()
        .map(|(name, _)| *name)
        .collect();
    let names = names.join(", ");
    format!(
        "INSERT INTO {table} ({names}) SELECT {names} FROM {}",
        wanted(parts)
    )
}

fn update(table: &str, key: Columns, parts: &[Columns]) -> String {
    let moving = parts.iter().copied().flatten();
    let set: Vec<String> = moving
        .map(|(name, _)| format!("{name} = w.{name}"))
        .collect();
    let all: Vec<Columns> = std::iter::once(key).chain(parts.iter().copied()).collect();
    every_row(&format!(
        "UPDATE {table} t SET {} FROM {} WHERE {}",
        set.join(", "),
        wanted(&all),
        same(key)
    ))
}

/// Fails, dividing by zero, unless a statement writes as many rows as it was given. Rows that are
/// locked cannot vanish, so a miss means that somebody else wrote here; and it must be found before
/// the COMMIT that is already on its way, since what was committed cannot be answered as failed.
fn every_row(statement: &str) -> String {
    format!(
        "WITH written AS ({statement} RETURNING 1) \
         SELECT 1 / (count(*) = cardinality($1))::int4 FROM written"
    )
}

fn delete(table: &str, key: Columns) -> String {
    format!(
        "DELETE FROM {table} t USING {} WHERE {}",
        wanted(&[key]),
        same(key)
    )
}

fn same(key: Columns) -> String {
    let each: Vec<String> = key
        .iter()
        .map(|(name, _)| format!("t.{name} = w.{name}"))
        .collect();
    each.join(" AND ")
}

#[cfg(test)]
mod tests {
    use delta_testkit::postgres::fresh_database;

    use super::*;
    use crate::postgres::connect::{Planning, Target};

    /// Statements that look at everything there is of something, by intent.
    const WHOLE: [Sql; 6] = [
        Sql::DueLines,
        Sql::Leased,
        Sql::DueLeases,
        Sql::NewestMoment,
        Sql::EndXact,
        Sql::MatchKeys,
    ];

    fn writer_statements() -> impl Iterator<Item = Sql> {
        let all = Sql::ALL.iter().copied();
        all.take_while(|sql| *sql != Sql::ReadRun)
            .filter(|sql| !WHOLE.contains(sql))
    }

    #[test]
    fn statements_of_the_writer_are_planned_by_key() {
        // Also for empty tables without statistics: the plan is made once and kept.
        let database = fresh_database().expect("a database");
        drop(crate::postgres::open(&database.url).expect("opens"));
        let target = Target::parse(&database.url).expect("an address");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let (client, _driver) = target
                .connect(Planning::ByKey, None)
                .await
                .expect("connects");
            for sql in writer_statements() {
                let text = sql.text();
                let count = (1..100)
                    .take_while(|n| text.contains(&format!("${n}")))
                    .count();
                let nulls = match count {
                    0 => String::new(),
                    count => format!("({})", vec!["NULL"; count].join(", ")),
                };
                let prepare = format!("DEALLOCATE ALL; PREPARE it AS {text}");
                client
                    .batch_execute(&prepare)
                    .await
                    .unwrap_or_else(|e| panic!("{sql:?}: {e}"));
                let explain = format!("EXPLAIN (COSTS OFF) EXECUTE it{nulls}");
                let rows = client
                    .query(&explain, &[])
                    .await
                    .unwrap_or_else(|e| panic!("{sql:?}: {e}"));
                let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
                let plan = lines.join("\n");
                for bad in ["Seq Scan", "Join Filter", "Hash Join", "Merge Join"] {
                    assert!(!plan.contains(bad), "{sql:?} has a {bad}:\n{plan}");
                }
            }
        });
    }
}
