//! Statements of the reading side. Each reads one page; filters left open match everything.

use super::rows::LEASE;
use super::sql::{Sql, attempt_list, job_list, names, run_list};

/// The columns of a credential in the order they are read and written.
macro_rules! credential {
    () => {
        "id, name, role, hash, created_at, expires_at, revoked_at, pool, zones, labels, agent, \
         used_at, used_by, reused_at"
    };
}

pub(super) fn text(sql: Sql) -> String {
    if let Some(text) = super::forges::text(sql) {
        return text;
    }
    let (run, job, attempt) = (run_list("r"), job_list("j"), attempt_list("a"));
    match sql {
        Sql::ReadRun => format!(
            "SELECT {run}, (SELECT e.first + e.records - 1 FROM events e \
             WHERE e.run_id = r.id ORDER BY e.first DESC LIMIT 1) \
             FROM runs r WHERE r.id = $1"
        ),
        Sql::ReadRunJobs => format!(
            "SELECT {job}, {attempt} FROM jobs j JOIN attempts a \
             ON a.run_id = j.run_id AND a.job = j.n AND a.n = j.attempts \
             WHERE j.run_id = $1 ORDER BY j.n"
        ),
        Sql::ReadJobRun => format!("SELECT {run} FROM runs r WHERE r.id = $1"),
        Sql::ReadJob => format!("SELECT {job} FROM jobs j WHERE j.run_id = $1 AND j.n = $2"),
        Sql::ReadJobAttempts => format!(
            "SELECT {attempt} FROM attempts a WHERE a.run_id = $1 AND a.job = $2 ORDER BY a.n"
        ),
        Sql::ReadJobLeases => format!(
            "SELECT p.run_id, p.job, p.n, {} FROM past_leases p \
             WHERE p.run_id = $1 AND p.job = $2 ORDER BY p.n, p.lease_epoch",
            names("p", LEASE)
        ),
        // What is still going on is found by its own index, however many runs have ended.
        Sql::ListRuns => format!(
            "SELECT {run} FROM runs r WHERE ($1::uuid IS NULL OR r.id < $1) \
             AND ($2::text IS NULL OR r.state = $2) AND ($3::bool IS NULL OR r.ended = $3) \
             AND ($4::text IS NULL OR r.outcome = $4) \
             AND ($5::text IS NULL OR r.repository = $5) \
             AND ($6::text IS NULL OR r.git_ref = $6) \
             AND ($7::text IS NULL OR r.commit = $7) \
             AND ($8::text IS NULL OR r.queue = $8) AND ($9::bool IS NULL OR \
             (r.queue IS NOT NULL) = $9) AND (NOT $10::bool OR (r.queue IS NOT NULL \
             AND r.outcome IN ('FAILED', 'TIMEOUT') AND r.state <> 'REPORTED' \
             AND r.live_jobs = 0)) AND ($11::text IS NULL OR r.rerun_of = $11) \
             ORDER BY r.id DESC LIMIT $12"
        ),
        Sql::Secrets
        | Sql::Secret
        | Sql::SecretsFor
        | Sql::NewSecret
        | Sql::ReplaceSecret
        | Sql::RemoveSecret => super::secrets::text(sql).into(),
        Sql::Queues => super::queues::READ.into(),
        Sql::PauseQueue => super::queues::PAUSE.into(),
        Sql::ResumeQueue => super::queues::RESUME.into(),
        Sql::RouteQueue => super::queues::ROUTE.into(),
        Sql::UnrouteQueue => super::queues::UNROUTE.into(),
        Sql::ForgetQueue => super::queues::FORGET.into(),
        Sql::PutResults
        | Sql::WithdrawResults
        | Sql::SizesOfResults
        | Sql::PutResultClaim
        | Sql::LeaseResults
        | Sql::LeaseClaim
        | Sql::RunResults
        | Sql::RunClaims
        | Sql::ResultPage
        | Sql::TestHistory => super::sql_results::text(sql).into(),
        _ => short(sql).into(),
    }
}

fn short(sql: Sql) -> &'static str {
    match sql {
        // From the row before the one that holds event $2, up to the one that holds event $3.
        Sql::Events => {
            "SELECT run_id, first, records, at, hash, bytes FROM events \
             WHERE run_id = $1 AND first <= $3 AND first >= coalesce( \
                 (SELECT min(first) FROM (SELECT first FROM events \
                  WHERE run_id = $1 AND first <= $2 ORDER BY first DESC LIMIT 2) f), 0) \
             ORDER BY first"
        }
        Sql::Spec => "SELECT spec FROM jobs WHERE run_id = $1 AND n = $2",
        Sql::QueueDepths => {
            "SELECT match_key, count(*), min(queued_at) FROM queue \
             GROUP BY match_key ORDER BY match_key"
        }
        Sql::Ahead => "SELECT count(*) FROM queue WHERE match_key = $1 AND order_key < $2",
        Sql::RunIds => "SELECT id FROM runs WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2",
        Sql::Pruned => "SELECT run_id FROM tombstones WHERE run_id = ANY ($1)",
        Sql::Credential
        | Sql::Credentials
        | Sql::PutCredential
        | Sql::RevokeCredential
        | Sql::ExchangeEnrolment
        | Sql::NoteReuse => credentials(sql),
        Sql::Agent
        | Sql::AgentPage
        | Sql::NewAgent
        | Sql::AgentsSeen
        | Sql::BeginSession
        | Sql::DrainAgent
        | Sql::RebindAgent
        | Sql::RevokeAgent
        | Sql::ForgetAgents => agents(sql),
        Sql::Ping => "SELECT 1",
        // Counting a large table is slow; what vacuum counted last is near enough.
        Sql::Stats => {
            "SELECT CASE WHEN c.reltuples > 100000 THEN c.reltuples::int8 \
                         ELSE (SELECT count(*) FROM runs) END, \
                    (SELECT count(*) FROM queue), (SELECT count(*) FROM holders) \
             FROM pg_class c WHERE c.oid = 'runs'::regclass"
        }
        other => unreachable!("{other:?} is a statement of the writer"),
    }
}

fn agents(sql: Sql) -> &'static str {
    match sql {
        Sql::Agent => {
            "SELECT id, principal, resume, slots, about, session, drain, created_at, seen_at, \
             revoked_at, process \
             FROM agents WHERE id = $1"
        }
        Sql::AgentPage => {
            "SELECT id, principal, resume, slots, about, session, drain, created_at, seen_at, \
             revoked_at, process \
             FROM agents WHERE id > $1 ORDER BY id LIMIT $2"
        }
        Sql::NewAgent => {
            "INSERT INTO agents (project, id, principal, resume, slots, about, session, drain, \
             created_at, seen_at, revoked_at, process) \
             VALUES ('default', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
             ON CONFLICT DO NOTHING RETURNING id"
        }
        Sql::AgentsSeen => {
            "UPDATE agents a SET slots = greatest(a.slots, w.slots), about = w.about, \
             seen_at = greatest(a.seen_at, w.seen_at), \
             session = greatest(a.session, w.session) \
             FROM unnest($1::text[], $2::int8[], $3::text[], $4::int8[], $5::int8[]) \
             AS w(id, slots, about, seen_at, session) WHERE a.id = w.id"
        }
        Sql::BeginSession => {
            "UPDATE agents SET session = greatest(session + 1, $2), process = $3 WHERE id = $1 \
             RETURNING session"
        }
        Sql::DrainAgent => "UPDATE agents SET drain = $2 WHERE id = $1 RETURNING id",
        Sql::RebindAgent => {
            "UPDATE agents SET principal = $3 WHERE id = $1 AND principal = $2 RETURNING id"
        }
        Sql::RevokeAgent => {
            "UPDATE agents SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 RETURNING id"
        }
        Sql::ForgetAgents => {
            "DELETE FROM agents \
             WHERE seen_at < $1 AND drain IS NULL AND revoked_at IS NULL RETURNING id"
        }
        other => unreachable!("{other:?} is not about agents"),
    }
}

fn credentials(sql: Sql) -> &'static str {
    match sql {
        Sql::Credential => concat!(
            "SELECT ",
            credential!(),
            " FROM credentials WHERE hash = $1"
        ),
        Sql::Credentials => concat!(
            "SELECT ",
            credential!(),
            " FROM credentials ORDER BY created_at, id"
        ),
        // What was revoked or used stays so, whatever is written over it.
        Sql::PutCredential => concat!(
            "INSERT INTO credentials AS c (project, ",
            credential!(),
            ") VALUES ('default', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, role = excluded.role, \
                 hash = excluded.hash, created_at = excluded.created_at, \
                 expires_at = excluded.expires_at, pool = excluded.pool, \
                 zones = excluded.zones, labels = excluded.labels, agent = excluded.agent, \
                 revoked_at = coalesce(c.revoked_at, excluded.revoked_at), \
                 used_at = coalesce(c.used_at, excluded.used_at), \
                 used_by = coalesce(c.used_by, excluded.used_by), \
                 reused_at = coalesce(c.reused_at, excluded.reused_at)"
        ),
        // The first revocation counts.
        Sql::RevokeCredential => {
            "UPDATE credentials SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1"
        }
        // Whoever waits for the row's lock looks at it again, and finds it used.
        Sql::ExchangeEnrolment => concat!(
            "WITH used AS ( \
                 UPDATE credentials SET used_at = $16, used_by = $11 \
                 WHERE id = $15 AND role = 'enrolment' AND used_at IS NULL \
                     AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $16) \
                 RETURNING project), \
             made AS ( \
                 INSERT INTO credentials (project, ",
            credential!(),
            ") SELECT project, $1::text, $2::text, $3::text, $4::bytea, $5::bigint, $6::bigint, \
                     $7::bigint, $8::text, $9::text, $10::text, $11::text, $12::bigint, \
                     $13::text, $14::bigint FROM used RETURNING id) \
             SELECT EXISTS (SELECT FROM made) OR EXISTS (SELECT FROM credentials WHERE id = $1)"
        ),
        Sql::NoteReuse => {
            "UPDATE credentials SET reused_at = $2 WHERE id = $1 AND used_at IS NOT NULL"
        }
        other => unreachable!("{other:?} is not about credentials"),
    }
}
